//! Uploads over a real connection to a receiver that says frame by frame what it does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/fake_leader.rs"]
mod fake_leader;
#[path = "../src/noise.rs"]
mod noise;

use std::io::Write;
use std::time::Duration;

use blobs::{MIB, digest, grant, noise, ranges};
use bytes::Bytes;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    Abort, Body as _, Done, Features, Grant, Open, OpenFlags, Purpose, Reason, Verdict,
};
use chunking::{ChunkHead, Codec, DigestKind, Inflater, Kind};
use fake_leader::{Conn, PATIENCE};
use heft::model::blob_id;
use heft::peer::{LinkReader, LinkWriter, connect};
use heft::transfer::{Blob, Compression, Source, State, Status, Upload, Wire};
use heft::wire::Tuning;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use uuid::Uuid;

const ALL: Wire = Wire {
    features: Features::TRANSFERS.with(Features::ZSTD).with(Features::BROTLI).with(Features::GZIP),
    loopback: false,
};

struct World {
    upload: Upload,
    news: mpsc::UnboundedReceiver<Uuid>,
    content: Vec<u8>,
    conn: Conn,
    _reader: LinkReader,
}

async fn link() -> (LinkReader, LinkWriter, Conn) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reader, writer) = connect(address, &Tuning::default()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    (reader, writer, Conn::new(stream))
}

impl World {
    async fn new(
        content: Vec<u8>,
        source: Source,
        compression: Compression,
        digest: DigestKind,
    ) -> World {
        let owner = Uuid::from_u128(7);
        let blob = Blob {
            id: blob_id(owner, 0, Purpose::Input, 0),
            purpose: Purpose::Input,
            owner,
            attempt: 0,
            name: "model.bin".to_owned().try_into().unwrap(),
            digest,
            compression,
            keeps_source: true,
            source,
        };
        let (sender, news) = mpsc::unbounded_channel();
        let upload = Upload::start(blob, sender).unwrap();
        let (reader, writer, conn) = link().await;
        let mut world = World { upload, news, content, conn, _reader: reader };
        world.open(writer).await;
        world
    }

    async fn of(source: Source, content: Vec<u8>) -> World {
        World::new(content, source, Compression::Auto, DigestKind::ChunkList).await
    }

    async fn open(&mut self, writer: LinkWriter) {
        let open = self.upload.connected(writer.clone(), ALL);
        writer.send(open).await.unwrap();
        let got = self.conn.expect(Kind::Open).await;
        assert_eq!(got.msg_id, self.upload.id());
        let open = Open::decode(&got.payload).unwrap();
        assert_eq!((open.size, open.chunk_bytes), (self.content.len() as u64, CHUNK_BYTES_MAX));
        assert!(open.flags.has(OpenFlags::KEEPS_SOURCE));
        assert_eq!(open.name.as_str(), "model.bin");
    }

    async fn reconnect(&mut self) {
        self.upload.disconnected();
        let (reader, writer, conn) = link().await;
        (self._reader, self.conn) = (reader, conn);
        self.open(writer).await;
    }

    /// The next chunk, checked against the content; its index and codec.
    async fn chunk(&mut self) -> (u32, Codec) {
        let got = self.conn.expect(Kind::Chunk).await;
        assert_eq!(got.msg_id, self.upload.id());
        let (head, sent) = ChunkHead::decode(&got.payload).unwrap();
        let start = usize::try_from(head.offset).unwrap();
        let mut raw = vec![0; head.raw_len as usize];
        Inflater::new().inflate(head.codec, sent, &mut raw).unwrap();
        assert!(raw == self.content[start..start + raw.len()], "the bytes at {start}");
        assert_eq!(ChunkHead::plain(head.offset, &raw).crc_raw, head.crc_raw);
        (u32::try_from(start / MIB).unwrap(), head.codec)
    }

    async fn chunks(&mut self, count: usize) -> Vec<u32> {
        let mut came = Vec::new();
        for _ in 0..count {
            came.push(self.chunk().await.0);
        }
        came
    }

    /// Done has to be next, with the digest of the content.
    async fn done(&mut self, kind: DigestKind) {
        let got = self.conn.expect(Kind::Done).await;
        assert_eq!(Done::decode(&got.payload).unwrap().digest, digest(&self.content, kind));
    }

    /// The first status that `is` wanted.
    async fn status(&mut self, is: impl Fn(&Status) -> bool) -> Status {
        loop {
            let status = self.upload.status();
            if is(&status) {
                return status;
            }
            let told = timeout(PATIENCE, self.news.recv()).await.expect("news should have come");
            assert_eq!(told, Some(self.upload.id()));
        }
    }

    /// Nothing else comes: what does come is the answer to an Open on purpose.
    async fn quiet(&mut self) {
        let read = timeout(Duration::from_millis(60), self.conn.read()).await;
        assert!(read.is_err(), "{read:?}");
    }
}

fn file_of(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

#[tokio::test]
async fn a_blob_comes_within_its_windows_from_memory_and_from_a_file() {
    let content = noise(5 * MIB + 100);
    let file = file_of(&content);
    for source in [Source::Memory(Bytes::from(content.clone())), Source::file(file.path()).unwrap()]
    {
        for kind in [DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3] {
            let mut world =
                World::new(content.clone(), source.clone(), Compression::Fixed(Codec::None), kind)
                    .await;
            world.quiet().await;
            world.upload.grant(&grant(2, &[]));
            assert_eq!(world.chunks(2).await, [0, 1]);
            world.quiet().await;
            world.upload.grant(&grant(8, &[]));
            assert_eq!(world.chunks(4).await, [2, 3, 4, 5]);
            world.done(kind).await;
            assert_eq!(world.upload.status().done, content.len() as u64);
            world.upload.verdict(&Verdict::Ok);
            assert!(
                matches!(world.upload.status().state, State::Arrived(digest) if digest.kind == kind)
            );
            // The source is kept: the receiver may ask again.
            world.upload.verdict(&Verdict::Resend(ranges(&[(1, 1), (5, 1)])));
            assert_eq!(world.upload.status().state, State::Sending);
            assert_eq!(world.chunks(2).await, [1, 5]);
            world.done(kind).await;
        }
    }
}

#[tokio::test]
async fn after_a_cut_only_what_is_missing_comes_and_the_digest_is_the_same() {
    let content = noise(6 * MIB);
    let file = file_of(&content);
    for source in [Source::Memory(Bytes::from(content.clone())), Source::file(file.path()).unwrap()]
    {
        for kind in [DigestKind::ChunkList, DigestKind::Blake3] {
            let mut world =
                World::new(content.clone(), source.clone(), Compression::Auto, kind).await;
            world.upload.grant(&grant(3, &[]));
            assert_eq!(world.chunks(3).await, [0, 1, 2]);
            world.reconnect().await;
            world.upload.grant(&grant(8, &[(0, 1), (2, 3)]));
            assert_eq!(world.chunks(2).await, [1, 5]);
            world.done(kind).await;
            world.reconnect().await;
            world.upload.grant(&grant(0, &[(0, 6)]));
            world.done(kind).await;
            world.upload.verdict(&Verdict::Ok);
            assert!(matches!(world.upload.status().state, State::Arrived(_)));
        }
    }
}

#[tokio::test]
async fn a_receiver_that_had_it_all_from_another_process_still_gets_the_digest() {
    let content = noise(3 * MIB + 1);
    let file = file_of(&content);
    let mut world = World::of(Source::file(file.path()).unwrap(), content).await;
    world.upload.grant(&grant(8, &[(0, 4)]));
    world.done(DigestKind::ChunkList).await;
}

#[tokio::test]
async fn a_blob_of_no_bytes_is_open_grant_done() {
    let file = file_of(&[]);
    for source in [Source::Memory(Bytes::new()), Source::file(file.path()).unwrap()] {
        let mut world = World::of(source, Vec::new()).await;
        world.upload.grant(&grant(8, &[]));
        world.done(DigestKind::ChunkList).await;
    }
}

#[tokio::test]
async fn a_window_of_nothing_is_told_with_its_reason() {
    let content = noise(2 * MIB);
    let mut world = World::of(Source::Memory(content.clone().into()), content).await;
    let full =
        Grant { reason: Reason::SPOOL_FULL, text: "the spool is full".into(), ..grant(0, &[]) };
    world.upload.grant(&full);
    let status = world.status(|status| status.waiting.is_some()).await;
    assert_eq!(
        status.waiting.map(|why| (why.reason, why.text)),
        Some((Reason::SPOOL_FULL, "the spool is full".into()))
    );
    world.upload.grant(&grant(2, &[]));
    assert_eq!(world.chunks(2).await, [0, 1]);
    assert_eq!(world.upload.status().waiting, None);
}

#[tokio::test]
async fn a_file_that_shrinks_or_grows_between_grants_ends_with_both_sizes() {
    for (size, word) in [(2 * MIB as u64, "shrank"), (9 * MIB as u64, "grew")] {
        let content = noise(6 * MIB);
        let file = file_of(&content);
        let mut world = World::of(Source::file(file.path()).unwrap(), content).await;
        world.upload.grant(&grant(1, &[]));
        assert_eq!(world.chunks(1).await, [0]);
        file.as_file().set_len(size).unwrap();
        world.upload.grant(&grant(8, &[]));
        let abort = Abort::decode(&world.conn.expect(Kind::Abort).await.payload).unwrap();
        assert_eq!(abort.reason, Reason::SOURCE_GONE);
        let text = format!("{word} from {} bytes to {size}", 6 * MIB);
        assert!(abort.text.as_str().contains(&text), "{}", abort.text.as_str());
        let status = world.status(|status| status.state != State::Sending).await;
        assert!(
            matches!(status.state, State::SourceGone(error) if error.to_string().contains(&text))
        );
    }
}

#[tokio::test]
async fn chunks_are_compressed_where_both_can_and_it_pays() {
    let text = b"row;value;another value\n".repeat(100_000);
    for (compression, codec) in [
        (Compression::Auto, Codec::Zstd),
        (Compression::Fixed(Codec::Gzip), Codec::Gzip),
        (Compression::Fixed(Codec::Brotli), Codec::Brotli),
        (Compression::Fixed(Codec::None), Codec::None),
    ] {
        let source = Source::Memory(text.clone().into());
        let mut world = World::new(text.clone(), source, compression, DigestKind::ChunkList).await;
        world.upload.grant(&grant(8, &[]));
        for index in 0..3 {
            assert_eq!(world.chunk().await, (index, codec));
        }
        world.done(DigestKind::ChunkList).await;
    }
    let noise = noise(MIB);
    let mut world = World::of(Source::Memory(noise.clone().into()), noise).await;
    world.upload.grant(&grant(8, &[]));
    assert_eq!(world.chunk().await, (0, Codec::None));
}

#[tokio::test]
async fn a_refused_or_aborted_blob_is_over() {
    let content = noise(2 * MIB);
    let ends: [&dyn Fn(&Upload); 2] = [
        &|upload| {
            upload.verdict(&Verdict::Failed { reason: Reason::DISK_FULL, text: "no room".into() })
        },
        &|upload| upload.abort(&Abort { reason: Reason::DISK_FULL, text: "no room".into() }),
    ];
    for end in ends {
        let mut world = World::of(Source::Memory(content.clone().into()), content.clone()).await;
        end(&world.upload);
        world.upload.grant(&grant(8, &[]));
        let status = world.status(|status| status.state != State::Sending).await;
        assert!(matches!(status.state, State::Refused(why) if why.reason == Reason::DISK_FULL));
        world.quiet().await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn dropped_uploads_leave_no_descriptor_behind() {
    let content = noise(4 * MIB);
    let file = file_of(&content);
    let open_files = |path: &std::path::Path| {
        let links = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        links.filter(|target| target == path).count()
    };
    let before = open_files(file.path());
    for windows in 0..3u8 {
        let mut world = World::of(Source::file(file.path()).unwrap(), content.clone()).await;
        world.upload.grant(&grant(windows.into(), &[]));
        world.chunks(windows.into()).await;
        drop(world);
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while open_files(file.path()) != before {
        assert!(tokio::time::Instant::now() < deadline, "a descriptor is left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
