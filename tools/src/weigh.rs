//! `heft-tools weigh`: takes a file through chunks, codecs, frames and back, and shows what each
//! step makes of it.
//!
//! Every byte goes the whole way: cut, summed, compressed if asked, framed, decoded, inflated,
//! checked, digested. One chunk is in memory at a time.

use anyhow::{Context, bail, ensure};
use chunking::digest::BlobHasher;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::sample::{Rates, Sample, Sampler};
use chunking::{
    ChunkHead, ChunkPlan, Codec, Compressor, Decoder, Digest, DigestKind, Generation,
    InboundLimits, Inflater, Step,
};
use heft::units::ByteSize;
use serde_json::json;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uuid::Uuid;

const EXAMPLES: &str = "Examples:
  heft-tools weigh                     64 MiB that are made for it: half text, half noise
  heft-tools weigh dataset.csv
  heft-tools weigh big.bin --codec zstd --digest sha256 --json";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file; without one, bytes are made up: half text, half noise.
    file: Option<PathBuf>,

    /// How many bytes to make up.
    #[arg(long, default_value = "64MiB", conflicts_with = "file")]
    size: ByteSize,

    /// Raw bytes of a chunk: a power of two from 4KiB to 1MiB.
    #[arg(long, default_value = "1MiB")]
    chunk: ByteSize,

    /// Only this codec: none, gzip, brotli or zstd. Without it, all of them.
    #[arg(long, value_parser = codec_named)]
    codec: Option<Codec>,

    /// The blob's digest: chunk-list, sha256 or blake3.
    #[arg(long, default_value = "chunk-list", value_parser = digest_named)]
    digest: DigestKind,

    /// One JSON object for each codec.
    #[arg(long)]
    json: bool,
}

fn codec_named(name: &str) -> Result<Codec, String> {
    let known = Codec::ALL.into_iter().find(|codec| codec.name() == name);
    known.ok_or_else(|| "codecs are none, gzip, brotli, zstd".to_owned())
}

fn digest_named(name: &str) -> Result<DigestKind, String> {
    let all = [DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3];
    let known = all.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| "digests are chunk-list, sha256, blake3".to_owned())
}

/// What one codec made of the blob.
struct Weight {
    codec: Codec,
    first_sample: Option<Sample>,
    wire_bytes: u64,
    chunks_compressed: u32,
    packing: Duration,
    unpacking: Duration,
    digest: Digest,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let size = match &args.file {
        None => args.size.0,
        Some(path) => {
            let meta = std::fs::metadata(path)
                .with_context(|| format!("cannot open {}", path.display()))?;
            ensure!(meta.is_file(), "{} is not a file: name one file", path.display());
            meta.len()
        }
    };
    let chunk_bytes = u32::try_from(args.chunk.0).unwrap_or(u32::MAX);
    let plan = ChunkPlan::new(size, chunk_bytes)?;
    let codecs = args.codec.map_or_else(|| Codec::ALL.to_vec(), |codec| vec![codec]);
    let mut out = io::stdout().lock();
    if !args.json {
        let name = args
            .file
            .as_ref()
            .map_or("made up: half text, half noise".into(), |path| path.display().to_string());
        let plural = if plan.count() == 1 { "chunk" } else { "chunks" };
        writeln!(out, "{name}")?;
        writeln!(
            out,
            "{}, {} {plural} of {}\n",
            ByteSize(size),
            plan.count(),
            ByteSize(chunk_bytes.into())
        )?;
        writeln!(
            out,
            "{:<8}{:<22}{:>12}{:>8}{:>14}{:>14}",
            "codec", "first sample", "on the wire", "ratio", "packing", "unpacking"
        )?;
    }
    let mut digest = None;
    for codec in codecs {
        let source = Source::open(args)?;
        let weight =
            weigh(plan, codec, args.digest, source).with_context(|| format!("codec {codec}"))?;
        if digest.get_or_insert(weight.digest) != &weight.digest {
            bail!(
                "the digest differs from codec to codec: the file changes while it is read; try again on a copy"
            );
        }
        if args.json {
            weight.print_json(plan, &mut out)?
        } else {
            weight.print_row(plan, &mut out)?
        }
    }
    if let (false, Some(digest)) = (args.json, digest) {
        writeln!(out, "\n{digest}\nwhat came out of the frames has the digest of what went in")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn weigh(
    plan: ChunkPlan,
    codec: Codec,
    kind: DigestKind,
    mut source: Source,
) -> anyhow::Result<Weight> {
    let transfer = Uuid::nil();
    let mut compressor = Compressor::new(codec)?;
    let mut sampler = Sampler::new(Rates::default());
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    let mut inflater = Inflater::new();
    let (mut sent_digest, mut received_digest) = (BlobHasher::new(kind), BlobHasher::new(kind));
    let (mut raw, mut packed, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    let mut weight = Weight {
        codec,
        first_sample: None,
        wire_bytes: 0,
        chunks_compressed: 0,
        packing: Duration::ZERO,
        unpacking: Duration::ZERO,
        digest: BlobHasher::new(kind).finish(),
    };
    for index in 0..plan.count() {
        raw.resize(usize::try_from(plan.len_of(index))?, 0);
        source.fill(&mut raw, plan.offset_of(index))?;

        let started = Instant::now();
        let mut head = ChunkHead::plain(plan.offset_of(index), &raw);
        sent_digest.update(&raw, head.crc_raw);
        let compresses = codec != Codec::None
            && sampler.wants(&mut compressor, &raw)
            && compressor.compress(&raw, &mut packed);
        weight.first_sample = weight.first_sample.or(sampler.sample());
        let sent = if compresses {
            weight.chunks_compressed += 1;
            head = head.compressed(codec, &packed);
            &packed
        } else {
            &raw
        };
        let sent_len = u32::try_from(sent.len())?;
        let front = head.frame_head(transfer, sent_len)?;
        weight.packing += started.elapsed();
        weight.wire_bytes += (front.len() + sent.len()) as u64;

        let started = Instant::now();
        let (received, received_sent) = receive(&mut decoder, &front, sent)?;
        plan.check(&received, sent_len)?;
        let opened = received.raw(received_sent, &mut inflater, &mut scratch)?;
        received_digest.update(opened, received.crc_raw);
        weight.unpacking += started.elapsed();
    }
    weight.digest = sent_digest.finish();
    ensure!(
        weight.digest == received_digest.finish(),
        "what came out is not what went in: please report this"
    );
    Ok(weight)
}

/// Decodes one chunk frame that lies in two pieces, as it would after a vectored write.
fn receive<'a>(
    decoder: &mut Decoder,
    front: &[u8],
    sent: &'a [u8],
) -> anyhow::Result<(ChunkHead, &'a [u8])> {
    let mut input = front;
    let Step::Head(_) = decoder.poll(&mut input)? else { bail!("the frame head did not decode") };
    let Step::Payload(chunk_head) = decoder.poll(&mut input)? else {
        bail!("the chunk head did not decode")
    };
    let (head, _) = ChunkHead::decode(chunk_head)?;
    let mut input = sent;
    let Step::Payload(bytes) = decoder.poll(&mut input)? else {
        bail!("the chunk's bytes did not decode")
    };
    let Step::End { .. } = decoder.poll(&mut input)? else { bail!("the frame did not end") };
    Ok((head, bytes))
}

impl Weight {
    /// Thousandths of the raw size that go over the wire.
    fn permille(&self, plan: ChunkPlan) -> u64 {
        self.wire_bytes.saturating_mul(1000).checked_div(plan.size()).unwrap_or(1000)
    }

    fn sample_text(&self) -> String {
        match self.first_sample {
            None => "-".to_owned(),
            Some(sample) => {
                let permille =
                    (sample.sent_bytes * 1000).checked_div(sample.raw_bytes).unwrap_or(1000);
                let word = if sample.pays(Rates::default()) { "pays" } else { "does not pay" };
                format!("{}.{:03} {word}", permille / 1000, permille % 1000)
            }
        }
    }

    fn print_row(&self, plan: ChunkPlan, out: &mut impl Write) -> io::Result<()> {
        let ratio = self.permille(plan);
        writeln!(
            out,
            "{:<8}{:<22}{:>12}{:>8}{:>14}{:>14}",
            self.codec.name(),
            self.sample_text(),
            ByteSize(self.wire_bytes),
            format!("{}.{:03}", ratio / 1000, ratio % 1000),
            rate(plan.size(), self.packing),
            rate(plan.size(), self.unpacking),
        )
    }

    fn print_json(&self, plan: ChunkPlan, out: &mut impl Write) -> io::Result<()> {
        let line = json!({
            "codec": self.codec.name(),
            "raw_bytes": plan.size(),
            "wire_bytes": self.wire_bytes,
            "chunks": plan.count(),
            "chunks_compressed": self.chunks_compressed,
            "first_sample": self.first_sample.map(|s| json!({"raw_bytes": s.raw_bytes, "sent_bytes": s.sent_bytes})),
            "packing_us": u64::try_from(self.packing.as_micros()).unwrap_or(u64::MAX),
            "unpacking_us": u64::try_from(self.unpacking.as_micros()).unwrap_or(u64::MAX),
            "digest": self.digest,
        });
        writeln!(out, "{line}")
    }
}

/// Bytes a second, as one core of this machine did it.
fn rate(bytes: u64, took: Duration) -> String {
    let per_second = (u128::from(bytes) * 1_000_000).checked_div(took.as_micros());
    per_second.map_or("-".to_owned(), |rate| {
        format!("{}/s", ByteSize(u64::try_from(rate).unwrap_or(u64::MAX)))
    })
}

/// Where the bytes come from.
enum Source {
    File(File, PathBuf),
    MadeUp,
}

impl Source {
    fn open(args: &Args) -> anyhow::Result<Source> {
        match &args.file {
            None => Ok(Source::MadeUp),
            Some(path) => {
                let file =
                    File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
                Ok(Source::File(file, path.clone()))
            }
        }
    }

    fn fill(&mut self, raw: &mut [u8], offset: u64) -> anyhow::Result<()> {
        match self {
            Source::File(file, path) => file.read_exact(raw).with_context(|| {
                format!(
                    "cannot read {} bytes of {} at {offset}: did it shrink?",
                    raw.len(),
                    path.display()
                )
            }),
            Source::MadeUp => {
                make_up(raw, offset);
                Ok(())
            }
        }
    }
}

/// Rows of a table in even stretches of 32 MiB, noise in odd ones; the same for the same offset.
fn make_up(raw: &mut [u8], offset: u64) {
    const STRETCH: u64 = 32 * CHUNK_BYTES_MAX as u64;
    const ROW: &[u8] = b"0000000;station-00;2026-00-00T00:00:00Z;00.000;0000.0\n";
    let is_noise = !(offset / STRETCH).is_multiple_of(2);
    let mut state = offset | 1;
    for (byte, pattern) in raw.iter_mut().zip(ROW.iter().cycle()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let random = state.to_le_bytes()[4];
        *byte = match pattern {
            _ if is_noise => random,
            b'0' => b'0' + random % 10,
            fixed => *fixed,
        };
    }
}
