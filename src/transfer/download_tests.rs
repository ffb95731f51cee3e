use super::*;
use crate::transfer::sink::{FileSink, MemorySink};
use chunking::digest::BlobHasher;
use chunking::message::{Body, OpenFlags, Purpose};
use chunking::{Codec, Compressor, DigestKind, Kind};

const CHUNK: usize = 4096;

/// Whole chunks and a rest that compress well.
fn blob(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at / 100 % 251).unwrap()).collect()
}

fn open(blob: &[u8], digest: DigestKind) -> Open {
    Open {
        purpose: Purpose::Input,
        codec: Codec::Zstd,
        digest,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: u32::try_from(CHUNK).unwrap(),
        size: blob.len() as u64,
        owner: Uuid::from_u128(1),
        attempt: 0,
        name: "in.bin".to_owned().try_into().unwrap(),
    }
}

fn done(blob: &[u8], kind: DigestKind) -> message::Done {
    let mut hasher = BlobHasher::new(kind);
    blob.chunks(CHUNK).for_each(|raw| hasher.update(raw, ChunkHead::plain(0, raw).crc_raw));
    message::Done { digest: hasher.finish() }
}

struct Scene {
    download: Download,
    reports: mpsc::UnboundedReceiver<Report>,
    blob: Vec<u8>,
    out: Vec<OutFrame>,
}

impl Scene {
    fn new(bytes: usize, digest: DigestKind, sink: impl ChunkSink + 'static) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let blob = blob(bytes);
        let id = Uuid::from_u128(9);
        let download = Download::start(id, open(&blob, digest), Box::new(sink), sender).unwrap();
        let mut scene = Scene { download, reports, blob, out: Vec::new() };
        scene.download.grant(&mut scene.out);
        assert_eq!(scene.grants(), 8);
        scene
    }

    fn chunk(&self, index: usize, codec: Codec) -> (ChunkHead, Bytes) {
        let raw = &self.blob[index * CHUNK..self.blob.len().min((index + 1) * CHUNK)];
        let plain = ChunkHead::plain((index * CHUNK) as u64, raw);
        let mut sent = Vec::new();
        match Compressor::new(codec).unwrap().compress(raw, &mut sent) {
            true => (plain.compressed(codec, &sent), sent.into()),
            false => (plain, Bytes::copy_from_slice(raw)),
        }
    }

    fn send(&mut self, index: usize, codec: Codec) {
        let (head, bytes) = self.chunk(index, codec);
        self.download.on_chunk(head, head.crc_sent, bytes, &mut self.out);
    }

    fn done(&mut self, kind: DigestKind) {
        let done = done(&self.blob, kind);
        self.download.on_done(&done, &mut self.out);
    }

    /// Chunks granted in the answers, which must all be Grants.
    fn grants(&mut self) -> u32 {
        self.out.drain(..).map(|frame| Grant::decode(&frame.payload).unwrap().window).sum()
    }

    /// The only verdict among the answers.
    fn verdict(&mut self) -> Verdict {
        let verdicts: Vec<Verdict> = self
            .out
            .drain(..)
            .filter(|frame| frame.kind == Kind::Verdict)
            .map(|frame| Verdict::decode(&frame.payload).unwrap())
            .collect();
        let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        verdict.clone()
    }

    async fn report(&mut self) {
        let report = self.reports.recv().await.unwrap();
        self.download.on_report(report, &mut self.out);
    }
}

const KINDS: [DigestKind; 3] = [DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3];

#[test]
fn chunks_in_any_order_and_codec_make_the_blob_under_every_digest() {
    for kind in KINDS {
        let sink = MemorySink::default();
        let mut scene = Scene::new(5 * CHUNK + 3, kind, sink.clone());
        for (index, codec) in [
            (3, Codec::Zstd),
            (0, Codec::None),
            (5, Codec::None),
            (1, Codec::Gzip),
            (2, Codec::Brotli),
        ] {
            scene.send(index, codec);
        }
        assert_eq!(scene.grants(), 4);
        scene.done(kind);
        let Verdict::Resend(ranges) = scene.verdict() else { panic!() };
        assert_eq!(ranges.indices().collect::<Vec<_>>(), [4]);
        assert_eq!(scene.download.progress(), (4 * CHUNK as u64 + 3, 5 * CHUNK as u64 + 3));
        scene.send(4, Codec::None);
        scene.done(kind);
        assert_eq!((scene.verdict(), scene.download.is_whole()), (Verdict::Ok, true));
        assert_eq!(sink.take(), scene.blob, "{kind}");
        scene.done(kind);
        assert_eq!(scene.verdict(), Verdict::Ok, "asked again");
    }
}

#[test]
fn a_flipped_bit_costs_its_chunk_alone() {
    let mut scene = Scene::new(3 * CHUNK, DigestKind::ChunkList, MemorySink::default());
    scene.send(0, Codec::None);
    let (head, bytes) = scene.chunk(1, Codec::None);
    scene.download.on_chunk(head, head.crc_sent ^ 1, bytes.clone(), &mut scene.out);
    let lying = ChunkHead { crc_raw: head.crc_raw ^ 1, ..head };
    scene.download.on_chunk(lying, head.crc_sent, bytes, &mut scene.out);
    let (head, _) = scene.chunk(2, Codec::Zstd);
    let junk = Bytes::from_static(b"no zstd");
    scene.download.on_chunk(head, head.crc_sent, junk, &mut scene.out);
    scene.done(DigestKind::ChunkList);
    let Verdict::Resend(ranges) = scene.verdict() else { panic!() };
    assert_eq!(ranges.indices().collect::<Vec<_>>(), [1, 2]);
    scene.send(1, Codec::None);
    scene.send(2, Codec::Zstd);
    scene.done(DigestKind::ChunkList);
    assert_eq!(scene.verdict(), Verdict::Ok);
}

#[test]
fn a_void_and_a_wrong_digest_begin_the_digest_anew() {
    for kind in KINDS {
        let sink = MemorySink::default();
        let mut scene = Scene::new(3 * CHUNK, kind, sink.clone());
        (0..3).for_each(|index| scene.send(index, Codec::None));
        scene.download.on_void(&Void { offset: 0, reason: Reason::SOURCE_GONE }, &mut scene.out);
        scene.send(0, Codec::None);
        scene.out.clear();
        let bad = message::Done { digest: chunking::Digest { kind, bytes: [1; 32] } };
        scene.download.on_done(&bad, &mut scene.out);
        let Verdict::Resend(ranges) = scene.verdict() else { panic!() };
        assert_eq!(ranges.chunk_count(), 3);
        (0..3).rev().for_each(|index| scene.send(index, Codec::None));
        scene.done(kind);
        assert_eq!(scene.verdict(), Verdict::Ok, "{kind}");
        assert_eq!(sink.take(), scene.blob);

        let mut scene = Scene::new(CHUNK, kind, MemorySink::default());
        scene.send(0, Codec::None);
        scene.download.on_done(&bad, &mut scene.out);
        scene.send(0, Codec::None);
        scene.out.clear();
        scene.download.on_done(&bad, &mut scene.out);
        let Verdict::Failed { reason, .. } = scene.verdict() else { panic!() };
        assert_eq!(reason, Reason::BAD_DIGEST);
        scene.download.reopen(scene.download.opened().clone(), &mut scene.out);
        assert!(matches!(scene.verdict(), Verdict::Failed { .. }), "it stays failed");
    }
}

#[tokio::test]
async fn a_file_is_written_on_a_thread_and_closed_when_it_is_whole() {
    for kind in KINDS {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("in.bin");
        let file =
            std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let mut scene = Scene::new(6 * CHUNK + 1, kind, FileSink::new(file, "in /w"));
        for index in [1, 0, 2, 3] {
            scene.send(index, Codec::Zstd);
        }
        for _ in 0..4 {
            scene.report().await;
        }
        assert_eq!(scene.grants(), 4);
        // The connection breaks, and what was under way comes again.
        scene.send(4, Codec::None);
        scene.download.reopen(open(&scene.blob, kind), &mut scene.out);
        scene.report().await;
        let grant = Grant::decode(&scene.out.remove(0).payload).unwrap();
        assert_eq!(grant.held.indices().collect::<Vec<_>>(), [0, 1, 2, 3]);
        for index in [4, 5, 6] {
            scene.send(index, Codec::None);
        }
        scene.done(kind);
        while !scene.download.is_whole() {
            scene.report().await;
        }
        assert_eq!(scene.verdict(), Verdict::Ok);
        assert_eq!(std::fs::read(&path).unwrap(), scene.blob, "{kind}");
    }
}

#[test]
fn a_blob_of_no_bytes_is_finished_too() {
    for kind in KINDS {
        let mut scene = Scene::new(0, kind, MemorySink::default());
        scene.done(kind);
        assert_eq!(scene.verdict(), Verdict::Ok, "{kind}");
    }
}

#[test]
fn another_blob_under_the_same_id_is_refused() {
    let mut scene = Scene::new(CHUNK, DigestKind::ChunkList, MemorySink::default());
    let other = Open { size: 5, ..scene.download.opened().clone() };
    scene.download.reopen(other, &mut scene.out);
    let Verdict::Failed { reason, text } = scene.verdict() else { panic!() };
    assert_eq!(reason, Reason::CONFLICT);
    assert!(text.as_str().contains("4096 bytes") && text.as_str().contains("now with 5"), "{text}");
    let later = Open { attempt: 3, codec: Codec::None, ..scene.download.opened().clone() };
    scene.download.reopen(later, &mut scene.out);
    assert_eq!(scene.grants(), 8, "another attempt takes what is here");
}

/// Takes `room` bytes.
struct Full {
    room: u64,
    kind: io::ErrorKind,
}

impl ChunkSink for Full {
    fn write(&mut self, offset: u64, raw: &[u8]) -> io::Result<()> {
        if offset + raw.len() as u64 > self.room { Err(self.kind.into()) } else { Ok(()) }
    }
    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn blocks(&self) -> bool {
        false
    }
    fn place(&self) -> String {
        "in /tmp/jobs/x".into()
    }
}

#[test]
fn a_full_disk_is_said_with_place_bytes_and_next_step() {
    for (kind, expected, step) in [
        (io::ErrorKind::StorageFull, Reason::DISK_FULL, ": free space there"),
        (io::ErrorKind::QuotaExceeded, Reason::DISK_FULL, ": free space there"),
        (io::ErrorKind::PermissionDenied, Reason::IO, ""),
    ] {
        let mut scene =
            Scene::new(3 * CHUNK, DigestKind::ChunkList, Full { room: CHUNK as u64, kind });
        (0..3).for_each(|index| scene.send(index, Codec::None));
        let Verdict::Failed { reason, text } = scene.verdict() else { panic!() };
        assert_eq!(reason, expected);
        let text = text.as_str();
        assert!(text.contains("cannot store \"in.bin\" in /tmp/jobs/x: "), "{text}");
        assert!(text.contains("4096 of 12288 bytes there") && text.contains(step), "{text}");
        assert!(
            matches!(scene.download.state(), DownloadState::Failed { reason, .. } if *reason == expected)
        );
    }
}

#[tokio::test]
async fn a_file_on_a_full_disk_fails_its_transfer_once() {
    let file = std::fs::File::options().read(true).write(true).open("/dev/full").unwrap();
    let mut scene = Scene::new(3 * CHUNK, DigestKind::ChunkList, FileSink::new(file, "in /w/j"));
    (0..3).for_each(|index| scene.send(index, Codec::None));
    for _ in 0..3 {
        scene.report().await;
    }
    let Verdict::Failed { reason, text } = scene.verdict() else { panic!() };
    assert_eq!(reason, Reason::DISK_FULL);
    let text = text.as_str();
    assert!(text.contains("in /w/j: No space left") && text.contains("0 of 12288 bytes"), "{text}");
}
