use super::*;
use crate::transfer::MemorySink;
use chunking::digest::BlobHasher;
use chunking::message::{OpenFlags, Purpose};
use chunking::{ChunkHead, Codec, DigestKind};

const BLOB: &[u8] = b"a small blob";

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn open() -> Open {
    Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: 4096,
        size: BLOB.len() as u64,
        owner: Uuid::from_u128(1),
        attempt: 0,
        name: "in.bin".to_owned().try_into().unwrap(),
    }
}

fn opened(id: Uuid, on: Conn) -> Opened<&'static str> {
    let sink = Box::new(MemorySink::default());
    Opened { id, open: open(), owner: "whose", on, sink, not_needed: None }
}

fn frame<M: chunking::message::Body>(id: Uuid, message: &M) -> InFrame {
    let OutFrame { kind, msg_id, corr_id, subject, payload } = OutFrame::message(id, message);
    InFrame { code: kind.code(), msg_id, corr_id, subject, payload }
}

fn done() -> Done {
    let mut hasher = BlobHasher::new(DigestKind::ChunkList);
    hasher.update(BLOB, ChunkHead::plain(0, BLOB).crc_raw);
    Done { digest: hasher.finish() }
}

/// The blob as one piece.
fn piece(id: Uuid) -> InFrame {
    let head = ChunkHead::plain(0, BLOB);
    let sent_len = u32::try_from(BLOB.len()).unwrap();
    let piece = Piece { head, sent_len, from: 0, bytes: BLOB };
    let (head, trailer) = piece.frame(id, false).unwrap();
    let bytes = [&head[..], BLOB, &trailer].concat();
    let mut decoder =
        chunking::Decoder::speaking(chunking::Generation::F2, chunking::InboundLimits::ANNOUNCED);
    let frame = decoder.poll_frame(&mut &bytes[..]).unwrap().unwrap();
    let payload = frame.payload.to_vec().into();
    let (msg_id, corr_id) = (frame.head.msg_id, frame.head.corr_id);
    InFrame { code: frame.head.code, msg_id, corr_id, subject: String::new(), payload }
}

#[test]
fn what_another_connection_says_of_a_transfer_does_not_count() {
    let (reports, _) = mpsc::unbounded_channel();
    let (mut downloads, mut out) = (Downloads::new(8, reports), Vec::new());
    downloads.start(opened(id(1), 0), &mut out).unwrap();
    let aborted = frame(id(1), &Abort { reason: Reason::UNKNOWN, text: "".into() });
    for said in [&piece(id(1)), &frame(id(1), &done()), &aborted] {
        assert_eq!(downloads.on_frame(1, said, &mut out), Ok(Turn::Unknown), "{said:?}");
    }
    assert_eq!(downloads.on_frame(0, &piece(id(1)), &mut out), Ok(Turn::Nothing));
    // The other one takes it up, and ends it.
    assert_eq!(downloads.reopen(1, id(1), open(), &mut out), None);
    assert_eq!(downloads.on_frame(0, &frame(id(1), &done()), &mut out), Ok(Turn::Unknown));
    assert_eq!(downloads.on_frame(1, &frame(id(1), &done()), &mut out), Ok(Turn::Whole));
    assert_eq!(
        downloads.on_frame(1, &frame(id(1), &done()), &mut out),
        Ok(Turn::Nothing),
        "told once"
    );
    assert!(matches!(downloads.on_frame(1, &aborted, &mut out), Ok(Turn::Ended(_))));
    assert_eq!(
        downloads.remove(id(1)).map(|(owner, download)| (owner, download.is_whole())),
        Some(("whose", true))
    );
}

#[test]
fn beyond_the_limit_a_transfer_is_not_taken_and_whole_ones_do_not_count() {
    let (reports, _) = mpsc::unbounded_channel();
    let (mut downloads, mut out) = (Downloads::new(1, reports), Vec::new());
    downloads.start(opened(id(1), 0), &mut out).unwrap();
    let refused = downloads.start(opened(id(2), 0), &mut out).unwrap_err();
    assert_eq!(
        (refused.clone(), refused.reason()),
        (NotTaken::Busy { under_way: 1, open_max: 1 }, Reason::BUSY)
    );
    downloads.on_frame(0, &piece(id(1)), &mut out).unwrap();
    downloads.on_frame(0, &frame(id(1), &done()), &mut out).unwrap();
    downloads.start(opened(id(2), 0), &mut out).unwrap();
}
