//! Both ends of transfers as a test's leader plays them: blobs that come from a client, and parts
//! of results that go to it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use crate::leader::{FEATURES, FakeLeader, Peer, Seen};
use chunking::message::{Body, Done, Features, Grant, Open, OpenFlags, Purpose, Verdict};
use chunking::{ChunkHead, Codec, DigestKind, Kind};
use heft::model::BlobRef;
use heft::model::blob_id;
use uuid::Uuid;

pub use crate::blobs::*;

/// The next connection, of a leader that takes transfers.
pub async fn transferring(leader: &FakeLeader) -> Peer {
    let mut peer = leader.accept().await;
    let codecs = Features::GZIP.with(Features::BROTLI).with(Features::ZSTD);
    peer.welcome_with(FEATURES.with(Features::TRANSFERS).with(codecs)).await;
    peer
}

pub async fn opened(peer: &mut Peer) -> (Uuid, Open) {
    let seen = peer.next().await;
    assert_eq!(seen.kind(), Kind::Open);
    (seen.msg_id, Open::decode(&seen.payload).unwrap())
}

/// The next chunk of `content`, checked; its index.
pub async fn chunk(peer: &mut Peer, content: &[u8]) -> usize {
    let seen = peer.next().await;
    assert_eq!(seen.kind(), Kind::Chunk);
    let (head, sent) = ChunkHead::decode(&seen.payload).unwrap();
    assert_eq!(head.codec, Codec::None);
    let start = usize::try_from(head.offset).unwrap();
    assert!(content[start..start + sent.len()] == *sent, "the bytes at {start}");
    start / MIB
}

pub async fn chunks(peer: &mut Peer, content: &[u8], count: usize) -> Vec<usize> {
    let mut came = Vec::new();
    for _ in 0..count {
        came.push(chunk(peer, content).await);
    }
    came
}

pub async fn done(peer: &mut Peer, content: &[u8]) {
    let seen = peer.next().await;
    assert_eq!(seen.kind(), Kind::Done);
    assert_eq!(Done::decode(&seen.payload).unwrap().digest, digest(content, DigestKind::ChunkList));
}

/// A frame of this kind must be next.
pub async fn next(peer: &mut Peer, kind: Kind) -> Seen {
    let seen = peer.next().await;
    assert_eq!(seen.kind(), kind);
    seen
}

/// Opens a part of a result.
pub async fn open_part(
    peer: &mut Peer,
    job: Uuid,
    attempt: u32,
    purpose: Purpose,
    content: &[u8],
) -> Uuid {
    let id = blob_id(job, attempt, purpose, 0);
    let open = Open {
        purpose,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: chunking::limits::CHUNK_BYTES_MAX,
        size: content.len() as u64,
        owner: job,
        attempt,
        name: String::new().try_into().unwrap(),
    };
    peer.message(id, &open).await;
    id
}

pub async fn send_chunk(peer: &mut Peer, id: Uuid, content: &[u8], index: usize) {
    let raw = content.chunks(MIB).nth(index).unwrap();
    let head = ChunkHead::plain((index * MIB) as u64, raw);
    let payload = [&head.encode()[..], raw].concat();
    peer.send(Kind::Chunk, id, Uuid::nil(), "", &payload).await;
}

pub async fn granted(peer: &mut Peer, id: Uuid) -> Grant {
    let seen = next(peer, Kind::Grant).await;
    assert_eq!(seen.msg_id, id);
    Grant::decode(&seen.payload).unwrap()
}

/// The verdict on a blob; grants before it are passed over.
pub async fn verdict(peer: &mut Peer, id: Uuid) -> Verdict {
    loop {
        let seen = peer.next().await;
        if seen.kind() == Kind::Grant {
            continue;
        }
        assert_eq!((seen.kind(), seen.msg_id), (Kind::Verdict, id));
        return Verdict::decode(&seen.payload).unwrap();
    }
}

/// Sends the chunks and Done.
pub async fn send_part(peer: &mut Peer, id: Uuid, content: &[u8], from: usize) {
    for index in from..content.len().div_ceil(MIB) {
        send_chunk(peer, id, content, index).await;
    }
    peer.message(id, &Done { digest: digest(content, DigestKind::ChunkList) }).await;
}

pub fn named(id: Uuid, content: &[u8]) -> Option<BlobRef> {
    Some(BlobRef {
        id,
        size: content.len() as u64,
        digest: Some(digest(content, DigestKind::ChunkList)),
    })
}
