//! Compresses and inflates chunks, one at a time.
//!
//! A chunk that does not shrink is sent uncompressed (CO01). Inflating writes into a buffer of
//! exactly the raw length of the chunk's position, so a hostile chunk cannot make the receiver
//! allocate more.

use brotli::enc::{BrotliEncoderParams, StandardAlloc};
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState};
use flate2::bufread::GzDecoder;
use serde::Serialize;
use std::fmt;
use std::io::{Read, Write};
use thiserror::Error;
use zstd::zstd_safe;

/// zstd at its fastest ordinary level: the others cost more time than the wire saves.
const ZSTD_LEVEL: i32 = 1;
const GZIP_LEVEL: u32 = 4;
const BROTLI_QUALITY: i32 = 4;
/// A window of 1 MiB, the size of a chunk; a larger one could not find more.
const BROTLI_WINDOW_BITS: i32 = 20;

/// A way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    None = 0,
    /// RFC 1952, one member.
    Gzip = 1,
    /// RFC 7932, without large windows.
    Brotli = 2,
    Zstd = 3,
}

impl Codec {
    pub const ALL: [Codec; 4] = [Codec::None, Codec::Gzip, Codec::Brotli, Codec::Zstd];

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name in texts and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Brotli => "brotli",
            Codec::Zstd => "zstd",
        }
    }
}

impl TryFrom<u8> for Codec {
    type Error = CodecError;

    fn try_from(code: u8) -> Result<Self, CodecError> {
        Codec::ALL
            .into_iter()
            .find(|codec| codec.code() == code)
            .ok_or(CodecError::Unknown { code })
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why bytes could not be inflated, or a codec not be set up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// No codec has this code.
    #[error("codec {code} is not known; codecs are 0 none, 1 gzip, 2 brotli, 3 zstd")]
    Unknown { code: u8 },

    /// There is more in it than the chunk's place holds.
    #[error("{codec}: the bytes inflate to more than the {limit} raw bytes that the chunk has")]
    Over {
        codec: Codec,
        /// The chunk's raw length.
        limit: usize,
    },

    /// There is less in it.
    #[error("{codec}: the bytes inflate to {found} raw bytes; the chunk has {expected}")]
    Under {
        codec: Codec,
        /// What came out.
        found: usize,
        /// The chunk's raw length.
        expected: usize,
    },

    /// Something stands behind the end of the compressed stream.
    #[error("{codec}: {bytes} bytes stand behind the end of the compressed stream")]
    Trailing { codec: Codec, bytes: usize },

    /// The bytes are not of this codec, or damaged.
    #[error("{codec}: the bytes cannot be inflated: {text}")]
    Bad {
        codec: Codec,
        /// What the library says.
        text: String,
    },
}

/// Compresses chunk after chunk with one codec, keeping the codec's working memory.
pub struct Compressor {
    codec: Codec,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Compressor {
    /// For chunks in `codec`.
    pub fn new(codec: Codec) -> Result<Self, CodecError> {
        let zstd = match codec {
            Codec::Zstd => {
                Some(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|error| bad(codec, error))?)
            }
            Codec::None | Codec::Gzip | Codec::Brotli => None,
        };
        Ok(Compressor { codec, zstd })
    }

    pub const fn codec(&self) -> Codec {
        self.codec
    }

    /// Compresses `raw` into `out`, whose old content is dropped and whose room is used again. True
    /// if that made it smaller; if not, `raw` is to be sent as it is and `out` means nothing.
    pub fn compress(&mut self, raw: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        out.reserve(raw.len());
        let written = match (self.codec, &mut self.zstd) {
            (Codec::Zstd, Some(zstd)) => zstd.compress_to_buffer(raw, out).map(|_| ()),
            (Codec::Gzip, _) => gzip(raw, out),
            (Codec::Brotli, _) => brotli(raw, out),
            (Codec::None, _) | (Codec::Zstd, None) => return false,
        };
        // A full buffer is the usual error: the bytes do not compress.
        written.is_ok() && out.len() < raw.len()
    }
}

fn gzip(raw: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(GZIP_LEVEL));
    encoder.write_all(raw)?;
    encoder.finish().map(|_| ())
}

fn brotli(mut raw: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    let params = BrotliEncoderParams {
        quality: BROTLI_QUALITY,
        lgwin: BROTLI_WINDOW_BITS,
        size_hint: raw.len(),
        ..BrotliEncoderParams::default()
    };
    brotli::BrotliCompress(&mut raw, out, &params).map(|_| ())
}

/// Inflates chunk after chunk, keeping zstd's working memory.
#[derive(Default)]
pub struct Inflater {
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Inflater {
    /// A new one. Working memory comes with the first chunk that needs it.
    pub const fn new() -> Self {
        Inflater { zstd: None }
    }

    /// Inflates `sent` into `raw`, whose length is the chunk's raw length. Anything but an exact
    /// fit is an error, and the content of `raw` then means nothing.
    pub fn inflate(&mut self, codec: Codec, sent: &[u8], raw: &mut [u8]) -> Result<(), CodecError> {
        match codec {
            Codec::None if sent.len() > raw.len() => {
                Err(CodecError::Over { codec, limit: raw.len() })
            }
            Codec::None if sent.len() < raw.len() => {
                Err(CodecError::Under { codec, found: sent.len(), expected: raw.len() })
            }
            Codec::None => {
                raw.copy_from_slice(sent);
                Ok(())
            }
            Codec::Gzip => inflate_gzip(sent, raw),
            Codec::Brotli => inflate_brotli(sent, raw),
            Codec::Zstd => self.inflate_zstd(sent, raw),
        }
    }

    /// One call into the caller's buffer: zstd then needs no window of its own, whatever the frame
    /// asks for.
    fn inflate_zstd(&mut self, sent: &[u8], raw: &mut [u8]) -> Result<(), CodecError> {
        const TOO_SMALL: usize = 0usize.wrapping_sub(
            zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize,
        );
        let (codec, limit) = (Codec::Zstd, raw.len());
        let context = self.zstd.get_or_insert_with(zstd_safe::DCtx::create);
        match context.decompress(raw, sent) {
            Ok(found) => exactly(codec, found, limit),
            Err(TOO_SMALL) => Err(CodecError::Over { codec, limit }),
            Err(code) => Err(bad(codec, zstd_safe::get_error_name(code))),
        }
    }
}

fn inflate_gzip(sent: &[u8], raw: &mut [u8]) -> Result<(), CodecError> {
    let (codec, limit) = (Codec::Gzip, raw.len());
    let mut decoder = GzDecoder::new(sent);
    let mut found = 0;
    while let Some(room) = raw.get_mut(found..).filter(|room| !room.is_empty()) {
        match decoder.read(room).map_err(|error| bad(codec, error))? {
            0 => return Err(CodecError::Under { codec, found, expected: limit }),
            bytes => found += bytes,
        }
    }
    // The trailer is checked, and the end seen, only by a read beyond the last byte.
    match decoder.read(&mut [0]).map_err(|error| bad(codec, error))? {
        0 => no_trailing(codec, decoder.into_inner().len()),
        _ => Err(CodecError::Over { codec, limit }),
    }
}

fn inflate_brotli(sent: &[u8], raw: &mut [u8]) -> Result<(), CodecError> {
    let (codec, limit) = (Codec::Brotli, raw.len());
    let alloc = StandardAlloc::default;
    // Strict: a large-window stream may ask for a ring buffer of 1 GiB, an ordinary one for 16 MiB
    // at most.
    let mut state = BrotliState::new_strict(alloc(), alloc(), alloc());
    let (mut in_left, mut in_at) = (sent.len(), 0);
    let (mut out_left, mut out_at, mut total) = (limit, 0, 0);
    let result = BrotliDecompressStream(
        &mut in_left,
        &mut in_at,
        sent,
        &mut out_left,
        &mut out_at,
        raw,
        &mut total,
        &mut state,
    );
    match result {
        BrotliResult::ResultSuccess => {
            exactly(codec, out_at, limit).and_then(|()| no_trailing(codec, in_left))
        }
        BrotliResult::NeedsMoreOutput => Err(CodecError::Over { codec, limit }),
        BrotliResult::NeedsMoreInput => Err(bad(codec, "the compressed stream is cut off")),
        BrotliResult::ResultFailure => Err(bad(codec, "not a brotli stream, or a damaged one")),
    }
}

fn exactly(codec: Codec, found: usize, expected: usize) -> Result<(), CodecError> {
    if found == expected { Ok(()) } else { Err(CodecError::Under { codec, found, expected }) }
}

fn no_trailing(codec: Codec, bytes: usize) -> Result<(), CodecError> {
    if bytes == 0 { Ok(()) } else { Err(CodecError::Trailing { codec, bytes }) }
}

fn bad(codec: Codec, error: impl fmt::Display) -> CodecError {
    CodecError::Bad { codec, text: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: [Codec; 3] = [Codec::Gzip, Codec::Brotli, Codec::Zstd];

    fn text(bytes: usize) -> Vec<u8> {
        (0..)
            .flat_map(|row: u32| format!("{row};0.5;name-{};true\n", row % 97).into_bytes())
            .take(bytes)
            .collect()
    }

    fn packed(codec: Codec, raw: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(Compressor::new(codec).unwrap().compress(raw, &mut out));
        out
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut inflater = Inflater::new();
        for codec in REAL {
            let mut compressor = Compressor::new(codec).unwrap();
            let mut out = Vec::new();
            for bytes in [100, 70_000, 1024 * 1024] {
                let raw = text(bytes);
                assert!(compressor.compress(&raw, &mut out), "{codec} {bytes}");
                let mut back = vec![0; bytes];
                inflater.inflate(codec, &out, &mut back).unwrap();
                assert!(back == raw, "{codec} {bytes}");
            }
        }
    }

    #[test]
    fn co01_what_does_not_get_smaller_is_sent_as_it_is() {
        let mut word = 1u64;
        let noise: Vec<u8> = (0..8192)
            .flat_map(|_| {
                word = word
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (word >> 32).to_le_bytes()[..4].to_vec()
            })
            .collect();
        for codec in Codec::ALL {
            assert!(!Compressor::new(codec).unwrap().compress(&noise, &mut Vec::new()), "{codec}");
            assert!(!Compressor::new(codec).unwrap().compress(&[], &mut Vec::new()), "{codec}");
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_raw_length() {
        let zeros = vec![0; 16 * 1024 * 1024];
        for codec in REAL {
            let bomb = packed(codec, &zeros);
            assert!(bomb.len() < 64 * 1024);
            let mut raw = vec![0; 1024 * 1024];
            let stopped = CodecError::Over { codec, limit: 1024 * 1024 };
            assert_eq!(Inflater::new().inflate(codec, &bomb, &mut raw), Err(stopped));
        }
    }

    #[test]
    fn too_little_too_much_and_damage_are_told_apart() {
        let mut inflater = Inflater::new();
        for codec in REAL {
            let raw = text(5000);
            let sent = packed(codec, &raw);
            let mut room = vec![0; 5001];
            let under = CodecError::Under { codec, found: 5000, expected: 5001 };
            assert_eq!(inflater.inflate(codec, &sent, &mut room), Err(under));
            let cut = inflater.inflate(codec, &sent[..sent.len() - 1], &mut room[..5000]);
            assert!(cut.is_err(), "{codec}");
            let mut more = sent.clone();
            more.extend_from_slice(b"behind");
            assert!(inflater.inflate(codec, &more, &mut room[..5000]).is_err(), "{codec}");
            let bad = inflater.inflate(codec, b"\xFFnot compressed at all", &mut room[..5000]);
            assert!(matches!(bad, Err(CodecError::Bad { .. })), "{codec} {bad:?}");
            assert_eq!(
                inflater.inflate(codec, &sent, &mut room[..5000]),
                Ok(()),
                "{codec} works after errors"
            );
        }
        let plain = inflater.inflate(Codec::None, b"abc", &mut [0; 2]);
        assert_eq!(plain, Err(CodecError::Over { codec: Codec::None, limit: 2 }));
        let plain = inflater.inflate(Codec::None, b"a", &mut [0; 2]);
        assert_eq!(plain, Err(CodecError::Under { codec: Codec::None, found: 1, expected: 2 }));
    }

    #[test]
    fn a_large_window_brotli_stream_is_refused() {
        // Window bits 0x11 announce the large-window extension with 2^30 bytes.
        let large = [0x11, 0x1E, 0x00, 0x00];
        let refused = Inflater::new().inflate(Codec::Brotli, &large, &mut [0; 16]);
        assert!(matches!(refused, Err(CodecError::Bad { .. })), "{refused:?}");
    }
}
