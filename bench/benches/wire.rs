//! What the wire format costs: decoding chunk frames where they lie, writing their heads, and, to
//! compare with, what a copy and a checksum of the same bytes cost on this machine.
//!
//! `cargo bench -p heft-bench --bench wire`

use chunking::message::{Body, Grant, Reason, Text};
use chunking::{Bitmap, ChunkHead, Decoder, Generation, Head, InboundLimits, Kind, Step};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use uuid::Uuid;

const CHUNK: usize = 1024 * 1024;
const FRAMES: usize = 64;

fn main() {
    divan::main();
}

/// A stretch of a connection on which one transfer runs: frames of 1 MiB, one behind the other.
fn chunk_frames() -> Vec<u8> {
    let raw: Vec<u8> = (0..CHUNK).map(|index| (index % 251).to_le_bytes()[0]).collect();
    let mut bytes = Vec::with_capacity(FRAMES * (CHUNK + 64));
    for frame in 0..FRAMES {
        let head = ChunkHead::plain((frame * CHUNK) as u64, &raw);
        if let Ok(front) = head.frame_head(Uuid::nil(), u32::try_from(CHUNK).unwrap_or(0)) {
            bytes.extend_from_slice(&front);
            bytes.extend_from_slice(&raw);
        }
    }
    bytes
}

/// Decodes all there is; returns the payload bytes that passed.
fn decode(bytes: &[u8], mut piece: impl FnMut(&[u8])) -> usize {
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    let (mut rest, mut seen) = (bytes, 0);
    loop {
        match decoder.poll(&mut rest) {
            Ok(Step::Head(head)) => seen += black_box(head.payload_len) as usize,
            Ok(Step::Payload(bytes)) => piece(black_box(bytes)),
            Ok(Step::End { .. }) => {}
            Ok(Step::NeedMore { .. }) | Err(_) => return seen,
        }
    }
}

/// The decoder alone: it touches heads only, so the figure is far beyond what memory could carry.
#[divan::bench]
fn decode_1mib_chunk_frames(bencher: Bencher<'_, '_>) {
    let bytes = chunk_frames();
    bencher.counter(BytesCount::new(bytes.len())).bench(|| decode(black_box(&bytes), |_| {}));
}

/// The same with the checksum that every hop but the fast lane makes.
#[divan::bench]
fn decode_and_check_1mib_chunk_frames(bencher: Bencher<'_, '_>) {
    let bytes = chunk_frames();
    bencher.counter(BytesCount::new(bytes.len())).bench(|| {
        decode(black_box(&bytes), |payload| {
            if let Ok((head, sent)) = ChunkHead::decode(payload) {
                black_box(head.check_sent(ChunkHead::plain(0, sent).crc_sent).is_ok());
            }
        })
    });
}

/// To compare with: one copy of the same bytes.
#[divan::bench]
fn copy_of_the_same_bytes(bencher: Bencher<'_, '_>) {
    let bytes = chunk_frames();
    let mut copy = vec![0; bytes.len()];
    bencher
        .counter(BytesCount::new(bytes.len()))
        .bench_local(|| copy.copy_from_slice(black_box(&bytes)));
}

/// Small frames: a job's submission of 1 KiB, decoded whole.
#[divan::bench]
fn decode_1kib_frames(bencher: Bencher<'_, '_>) {
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        let head =
            Head { subject: "job.submit.calcA", payload_len: 1024, ..Head::new(Kind::SubmitJob) };
        if head.append(Generation::F2, &mut bytes).is_ok() {
            bytes.resize(bytes.len() + 1024, b'x');
        }
    }
    bencher.counter(ItemsCount::new(1000usize)).bench(|| {
        let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
        let (mut rest, mut frames) = (black_box(bytes.as_slice()), 0);
        while let Ok(Some(frame)) = decoder.poll_frame(&mut rest) {
            frames += usize::from(!black_box(frame.payload).is_empty());
        }
        frames
    });
}

/// Frame head and chunk head of one chunk, without the checksum of its bytes.
#[divan::bench]
fn write_a_chunk_frame_head(bencher: Bencher<'_, '_>) {
    let head = ChunkHead::plain(0, &[7; 4096]);
    bencher.bench(|| black_box(&head).frame_head(Uuid::nil(), 4096));
}

/// A Grant, written and read.
#[divan::bench]
fn write_and_read_a_grant(bencher: Bencher<'_, '_>) {
    let grant = Grant {
        window: 2,
        reason: Reason::NONE,
        text: Text::default(),
        held: Bitmap::new(64).held(),
        part: Default::default(),
    };
    let mut payload = Vec::with_capacity(64);
    bencher.bench_local(|| {
        payload.clear();
        black_box(&grant).encode(&mut payload);
        Grant::decode(black_box(&payload))
    });
}
