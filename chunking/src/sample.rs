//! Decides from a sample whether compressing a blob's chunks pays off. Which codec a connection has
//! is decided in the transfers of heft (`transfer/upload.rs`).
//!
//! It has no clock: the caller supplies the speed of the wire and the codec. Senders call it once
//! in a while.

use crate::codec::Compressor;

/// Pieces that are taken from the front, the middle and the end of a chunk.
const PIECES: usize = 3;
const PIECE_BYTES: usize = 16 * 1024;

/// What is sent has to shrink to this share, or inflating it again costs the other side more than
/// the wire saves.
const PAYS_PERMILLE_MAX: u64 = 900;

/// Chunks that go by one sample, before the content may have changed.
const CHUNKS_PER_SAMPLE: u32 = 32;

/// How fast things go, where that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Raw bytes a second that the codec takes in.
    pub codec_bytes_s: Option<u64>,
    /// Bytes a second that the wire carries.
    pub wire_bytes_s: Option<u64>,
}

/// What a sample came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes that were tried.
    pub raw_bytes: u64,
    /// Bytes that would have been sent for them.
    pub sent_bytes: u64,
}

impl Sample {
    /// Tries a few pieces of a chunk.
    pub fn take(compressor: &mut Compressor, raw: &[u8], scratch: &mut Vec<u8>) -> Sample {
        let mut sample = Sample { raw_bytes: 0, sent_bytes: 0 };
        for piece in pieces(raw) {
            let smaller = compressor.compress(piece, scratch);
            let sent = if smaller { scratch.len() } else { piece.len() };
            sample.raw_bytes += piece.len() as u64;
            sample.sent_bytes += sent as u64;
        }
        sample
    }

    /// Whether chunks like these are worth compressing at these rates.
    ///
    /// The codec works beside the wire, so a compressed chunk takes the longer of the two. Without
    /// known rates the wire is taken to be the slower one.
    pub fn pays(&self, rates: Rates) -> bool {
        let smaller =
            self.sent_bytes * 1000 <= self.raw_bytes * PAYS_PERMILLE_MAX && self.raw_bytes > 0;
        let codec_keeps_up = match (rates.codec_bytes_s, rates.wire_bytes_s) {
            (Some(codec), Some(wire)) => {
                u128::from(codec) * u128::from(PAYS_PERMILLE_MAX) >= u128::from(wire) * 1000
            }
            (_, None) | (None, _) => true,
        };
        smaller && codec_keeps_up
    }
}

fn pieces(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = raw.len() <= PIECES * PIECE_BYTES;
    let starts = if whole {
        [Some(0), None, None]
    } else {
        let last = raw.len() - PIECE_BYTES;
        [Some(0), Some(last / 2), Some(last)]
    };
    let len = if whole { raw.len() } else { PIECE_BYTES };
    starts.into_iter().flatten().filter_map(move |start| raw.get(start..start + len))
}

/// Decides for each chunk of a blob, and samples again at intervals.
#[derive(Debug)]
pub struct Sampler {
    rates: Rates,
    sample: Option<Sample>,
    pays: bool,
    chunks_left: u32,
    scratch: Vec<u8>,
}

impl Sampler {
    /// For a blob over a wire of these rates.
    pub const fn new(rates: Rates) -> Self {
        Sampler { rates, sample: None, pays: false, chunks_left: 0, scratch: Vec::new() }
    }

    /// Takes note of rates that were measured meanwhile; the next sample is judged by them.
    pub fn set_rates(&mut self, rates: Rates) {
        self.rates = rates;
    }

    /// The sample that chunks go by now.
    pub const fn sample(&self) -> Option<Sample> {
        self.sample
    }

    /// Whether to compress this chunk.
    pub fn wants(&mut self, compressor: &mut Compressor, raw: &[u8]) -> bool {
        if self.chunks_left == 0 {
            let sample = Sample::take(compressor, raw, &mut self.scratch);
            self.pays = sample.pays(self.rates);
            self.sample = Some(sample);
            self.chunks_left = CHUNKS_PER_SAMPLE;
        }
        self.chunks_left -= 1;
        self.pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        (0..bytes)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect()
    }

    #[test]
    fn text_pays_and_noise_does_not() {
        let mut zstd = Compressor::new(Codec::Zstd).unwrap();
        let text = b"row;value;another value\n".repeat(40_000);
        for (raw, pays) in
            [(text, true), (noise(1 << 20), false), (Vec::new(), false), (noise(10), false)]
        {
            let sample = Sample::take(&mut zstd, &raw, &mut Vec::new());
            assert_eq!(sample.pays(Rates::default()), pays, "{sample:?}");
            assert!(sample.raw_bytes <= (PIECES * PIECE_BYTES) as u64);
        }
    }

    #[test]
    fn a_wire_faster_than_the_codec_does_not_pay() {
        let sample = Sample { raw_bytes: 1000, sent_bytes: 300 };
        let rates = |codec, wire| Rates { codec_bytes_s: Some(codec), wire_bytes_s: Some(wire) };
        assert!(sample.pays(rates(260_000_000, 125_000_000)), "gigabit Ethernet");
        assert!(!sample.pays(rates(260_000_000, 2_600_000_000)), "loopback");
        assert!(sample.pays(Rates { codec_bytes_s: Some(1), wire_bytes_s: None }));
        assert!(!Sample { raw_bytes: 1000, sent_bytes: 950 }.pays(Rates::default()));
    }

    #[test]
    fn a_change_of_content_is_noticed_with_the_next_sample() {
        let mut zstd = Compressor::new(Codec::Zstd).unwrap();
        let (text, noise) = (b"the same again, ".repeat(65_536), noise(1 << 20));
        let mut sampler = Sampler::new(Rates::default());
        let wanted: Vec<bool> = (0..CHUNKS_PER_SAMPLE * 2)
            .map(|chunk| sampler.wants(&mut zstd, if chunk < 5 { &text } else { &noise }))
            .collect();
        assert!(wanted[..32].iter().all(|wanted| *wanted));
        assert!(wanted[32..].iter().all(|wanted| !wanted));
    }
}
