use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use chunking::limits::{CHUNK_BYTES_MAX, CHUNK_PIECE_BYTES_MAX};
use chunking::message::{Done, Grant, Name, Open, OpenFlags, PartOf, Purpose, Reason, Verdict};
use chunking::{ChunkHead, ChunkPlan, Codec, DigestKind, Ranges};
use uuid::Uuid;

use super::*;
use crate::core::ids::JobId;
use crate::leader::relay::{Out, RelayConfig, Says};

const SENDER: ConnId = ConnId(1);
const AGAIN: ConnId = ConnId(2);
const WORKER: ConnId = ConnId(3);
const JOB: JobId = JobId(Uuid::from_u128(7));
const CHUNK: usize = CHUNK_BYTES_MAX as usize;
const PIECE: usize = CHUNK_PIECE_BYTES_MAX as usize;

fn id(number: u128) -> BlobId {
    Uuid::from_u128(number)
}

/// What the first chunks of a blob hold, with their heads.
fn chunk(index: usize) -> &'static (Vec<u8>, ChunkHead) {
    static CHUNKS: OnceLock<Vec<(Vec<u8>, ChunkHead)>> = OnceLock::new();
    let make = |index: usize| {
        let bytes = crate::noise::noise(CHUNK, index as u64);
        let head = ChunkHead::plain((index * CHUNK) as u64, &bytes);
        (bytes, head)
    };
    &CHUNKS.get_or_init(|| (0..4).map(make).collect())[index]
}

fn content(index: usize) -> &'static [u8] {
    &chunk(index).0
}

fn head(index: usize) -> ChunkHead {
    chunk(index).1
}

struct Rig {
    relay: Relay,
    said: Vec<(ConnId, BlobId, Says)>,
    /// Chunks that went out: where to, which, from which byte on.
    chunks: Vec<(ConnId, u64, u32)>,
}

impl Rig {
    fn new(buffers: usize) -> Self {
        let config = RelayConfig { buffers, ..RelayConfig::default() };
        Rig { relay: Relay::new(config), said: Vec::new(), chunks: Vec::new() }
    }

    fn bring(&mut self, conn: ConnId, number: u128, chunks: usize) -> Grant {
        self.bring_as(conn, number, chunks, Purpose::Archive)
    }

    fn bring_as(&mut self, conn: ConnId, number: u128, chunks: usize, purpose: Purpose) -> Grant {
        let size = (chunks * CHUNK) as u64;
        let open = Open {
            purpose,
            codec: Codec::None,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::KEEPS_SOURCE,
            chunk_bytes: CHUNK_BYTES_MAX,
            size,
            owner: JOB.0,
            attempt: 0,
            name: Name::default(),
        };
        let (plan, keep) =
            (ChunkPlan::new(size, CHUNK_BYTES_MAX).unwrap(), purpose == Purpose::Archive);
        self.relay.expect(id(number), open.clone(), plan, keep);
        self.relay.open(conn, id(number), open);
        self.work_off();
        let to = |(to, blob, _): &&(ConnId, BlobId, Says)| (*to, *blob) == (conn, id(number));
        let first = self.said.iter().filter(to).find_map(|(_, _, says)| grant_in(says));
        first.cloned().unwrap()
    }

    fn work_off(&mut self) {
        while let Some(out) = self.relay.poll() {
            match out {
                Out::Say { conn, blob, says } => self.said.push((conn, blob, says)),
                Out::Chunk { conn, head, from, .. } => self.chunks.push((conn, head.offset, from)),
                Out::Disk(_) | Out::Turn { .. } | Out::News(_) => {}
                Out::Elsewhere { .. } | Out::LetGo { .. } | Out::Supply { .. } => {}
            }
        }
    }

    fn piece(&mut self, conn: ConnId, number: u128, index: usize, from: usize, to: usize) {
        self.relay.piece(conn, id(number), &piece(head(index), from, &content(index)[from..to]));
        self.work_off();
    }

    fn pieces(&mut self, conn: ConnId, number: u128, index: usize, from: usize, to: usize) {
        let mut at = from;
        while at < to {
            let next = (at + PIECE).min(to);
            self.piece(conn, number, index, at, next);
            at = next;
        }
    }

    /// What is asked for again when the sender says that all was sent.
    fn missing(&mut self, conn: ConnId, number: u128) -> Vec<u32> {
        let digest = chunking::Digest { kind: DigestKind::ChunkList, bytes: [0; 32] };
        self.said.clear();
        self.relay.done(conn, id(number), &Done { digest });
        self.work_off();
        self.said.iter().find_map(|(_, _, says)| resend_in(says)).unwrap_or_default()
    }

    fn aborted(&self) -> Vec<Reason> {
        self.said.iter().filter_map(|(_, _, says)| abort_in(says)).collect()
    }
}

fn grant_in(says: &Says) -> Option<&Grant> {
    if let Says::Grant(grant) = says { Some(grant) } else { None }
}

fn resend_in(says: &Says) -> Option<Vec<u32>> {
    if let Says::Verdict(Verdict::Resend(ranges)) = says {
        Some(ranges.indices().collect())
    } else {
        None
    }
}

fn abort_in(says: &Says) -> Option<Reason> {
    if let Says::Abort(abort) = says { Some(abort.reason) } else { None }
}

fn piece(head: ChunkHead, from: usize, bytes: &[u8]) -> Piece<'_> {
    Piece { head, sent_len: CHUNK_BYTES_MAX, from: u32::try_from(from).unwrap(), bytes }
}

fn told(index: u32, bytes: usize) -> HeldPart {
    let crc_sent = head(index as usize).crc_sent;
    HeldPart(Some(PartOf { index, bytes: u32::try_from(bytes).unwrap(), crc_sent }))
}

#[test]
fn a_chunk_in_pieces_takes_one_of_the_window_and_one_buffer_until_it_is_whole() {
    let mut rig = Rig::new(48);
    let window = rig.bring(SENDER, 1, 2).window;
    assert_eq!(rig.relay.fill().promised, window as usize);
    rig.pieces(SENDER, 1, 0, 0, CHUNK - 1);
    let fill = rig.relay.fill();
    assert_eq!((fill.buffers_in_use, fill.promised), (1, window as usize - 1));
    rig.piece(SENDER, 1, 0, CHUNK - 1, CHUNK);
    rig.pieces(SENDER, 1, 1, 0, CHUNK);
    assert_eq!(rig.relay.chunks(id(1)).len(), 2);
}

#[test]
fn what_came_before_a_connection_ended_is_told_to_the_next_and_goes_on_there() {
    let mut rig = Rig::new(48);
    assert_eq!(rig.bring(SENDER, 1, 3).part, HeldPart(None));
    rig.pieces(SENDER, 1, 0, 0, CHUNK);
    rig.pieces(SENDER, 1, 1, 0, 3 * PIECE);
    rig.relay.closed(SENDER);
    let fill = rig.relay.fill();
    assert_eq!(
        (fill.buffers_in_use, fill.promised, fill.parts),
        (1, 0, 1),
        "the buffer is the chunk's that is whole"
    );
    let grant = rig.bring(AGAIN, 1, 3);
    assert_eq!(
        (grant.part, grant.held.indices().collect::<Vec<_>>()),
        (told(1, 3 * PIECE), vec![0])
    );
    rig.pieces(AGAIN, 1, 1, 3 * PIECE, CHUNK);
    assert_eq!((rig.missing(AGAIN, 1), rig.relay.fill().parts), (vec![2], 0));
    // And the same of a frame that was cut off.
    let part = Part::new(id(1), head(2), CHUNK_BYTES_MAX, &content(2)[..1234]).unwrap();
    rig.relay.keep_part(part.clone());
    rig.relay.closed(AGAIN);
    assert_eq!(rig.bring(SENDER, 1, 3).part, told(2, 1234));
    rig.pieces(SENDER, 1, 2, 1234, CHUNK);
    assert_eq!(rig.relay.chunks(id(1)).len(), 3);
    rig.relay.keep_part(part);
    assert_eq!(rig.relay.fill().parts, 0, "it is here whole");
    rig.relay.forget(id(1));
    let stranger = Part::new(id(9), head(2), CHUNK_BYTES_MAX, &content(2)[..1234]).unwrap();
    rig.relay.keep_part(stranger);
    assert_eq!(rig.relay.fill().parts, 0, "nobody expects it");
}

#[test]
fn a_part_that_was_damaged_or_is_of_other_bytes_is_asked_for_again() {
    let mut rig = Rig::new(48);
    rig.bring(SENDER, 1, 3);
    let mut damaged = content(0)[..500].to_vec();
    damaged[77] ^= 1;
    rig.relay.keep_part(Part::new(id(1), head(0), CHUNK_BYTES_MAX, &damaged).unwrap());
    rig.pieces(SENDER, 1, 0, 500, CHUNK);
    assert_eq!(rig.missing(SENDER, 1), [0, 1, 2]);
    // Whole it is right.
    rig.pieces(SENDER, 1, 0, 0, CHUNK);
    for other in [
        ChunkHead { crc_sent: 1, ..head(1) },
        ChunkHead { codec: Codec::Zstd, ..head(1) },
        ChunkHead { offset: 2 * CHUNK as u64, ..head(1) },
    ] {
        rig.relay
            .keep_part(Part::new(id(1), head(1), CHUNK_BYTES_MAX, &content(1)[..500]).unwrap());
        rig.relay.piece(SENDER, id(1), &piece(other, 500, &content(1)[500..PIECE]));
        rig.work_off();
        assert_eq!((rig.relay.fill().parts, rig.relay.fill().buffers_in_use), (0, 1), "{other:?}");
        assert_eq!(rig.missing(SENDER, 1), [1, 2]);
    }
    assert_eq!(rig.aborted(), []);
}

#[test]
fn pieces_that_make_no_sense_cost_the_window_and_no_more() {
    let mut rig = Rig::new(48);
    let window = rig.bring(SENDER, 1, 40).window as usize;
    // Gaps, overlaps, other chunks, and no chunk at all.
    rig.piece(SENDER, 1, 0, 0, 100);
    rig.piece(SENDER, 1, 0, 101, 200);
    rig.piece(SENDER, 1, 1, 0, 100);
    rig.piece(SENDER, 1, 1, 50, 200);
    rig.relay.pump();
    rig.piece(SENDER, 1, 2, 7, 200);
    rig.piece(SENDER, 1, 2, 200, 300);
    rig.relay.piece(
        SENDER,
        id(1),
        &piece(ChunkHead { offset: 1 << 50, ..head(0) }, 0, b"far away"),
    );
    rig.work_off();
    let fill = rig.relay.fill();
    assert_eq!((fill.buffers_in_use, rig.aborted()), (0, vec![]));
    assert_eq!(rig.missing(SENDER, 1).len(), 40);
    // Not even the window is a way around itself.
    for _ in 0..10 * window {
        rig.piece(SENDER, 1, 3, 0, 1);
        let fill = rig.relay.fill();
        assert!(fill.buffers_in_use <= 1 && fill.buffers_in_use + fill.promised <= fill.buffers);
    }
    assert!(rig.aborted().contains(&Reason::WINDOW_IGNORED), "{:?}", rig.aborted());
    rig.said.clear();
    for _ in 0..100 {
        rig.piece(SENDER, 99, 0, 0, 1);
    }
    assert!(rig.aborted().iter().all(|reason| *reason == Reason::UNKNOWN));
    let coming =
        |rig: &Rig| rig.relay.lines.iter().filter(|(_, line)| line.coming.is_some()).count();
    assert_eq!(coming(&rig), 1);
    rig.relay.closed(SENDER);
    assert_eq!((coming(&rig), rig.relay.fill().buffers_in_use), (0, 0));
}

#[test]
fn a_connection_has_one_chunk_in_pieces_and_the_next_takes_its_place() {
    let mut rig = Rig::new(48);
    for blob in 1..=4 {
        assert_eq!(rig.bring(SENDER, blob, 1).window, 1);
    }
    for _ in 0..4 {
        for blob in 1..=4 {
            rig.piece(SENDER, blob, 0, 0, 100);
            assert_eq!(rig.relay.fill().buffers_in_use, 1);
            rig.relay.pump();
        }
    }
    assert_eq!(rig.missing(SENDER, 4), [0]);
    rig.pieces(SENDER, 4, 0, 0, CHUNK);
    assert_eq!(rig.missing(SENDER, 4), [0; 0]);
}

#[test]
fn a_chunk_of_which_nothing_more_comes_gives_its_buffer_back_and_may_go_on_after_all() {
    let mut rig = Rig::new(48);
    rig.bring(SENDER, 1, 1);
    rig.pieces(SENDER, 1, 0, 0, 2 * PIECE);
    for second in 1..=12 {
        assert_eq!(rig.relay.fill().buffers_in_use, usize::from(second <= 10), "{second}");
        rig.relay.set_now(rig.relay.now.plus(Duration::from_secs(1)));
        rig.relay.tick();
        rig.work_off();
    }
    assert_eq!(rig.relay.fill().parts, 1);
    rig.pieces(SENDER, 1, 0, 2 * PIECE, CHUNK);
    assert_eq!((rig.relay.chunks(id(1)).len(), rig.aborted()), (1, vec![]));
}

#[test]
fn parts_are_bounded_and_the_oldest_goes_first() {
    let mut rig = Rig::new(48);
    for blob in 1..=200 {
        rig.bring(SENDER, blob, 1);
        rig.relay.keep_part(Part::new(id(blob), head(0), CHUNK_BYTES_MAX, b"first bytes").unwrap());
    }
    assert_eq!((rig.relay.fill().parts, rig.relay.fill().buffers_in_use), (LEADER_PARTS_MAX, 0));
    assert_eq!(
        (rig.relay.held_part(id(1)), rig.relay.held_part(id(200))),
        (HeldPart(None), told(0, 11))
    );
    (1..=200).for_each(|blob| rig.relay.forget(id(blob)));
    assert_eq!(rig.relay.fill().parts, 0);
}

#[test]
fn who_has_a_part_of_a_chunk_gets_the_rest_of_it_if_it_is_the_same() {
    let crc = head(1).crc_sent;
    let part = |index, bytes, crc_sent| HeldPart(Some(PartOf { index, bytes, crc_sent }));
    for (part, from) in [
        (part(1, 300_000, crc), 300_000),
        (part(1, 300_000, crc ^ 1), 0),
        (part(1, CHUNK_BYTES_MAX, crc), 0),
        (part(1, u32::MAX, crc), 0),
        (part(2, 300_000, crc), 0),
        (part(0, 300_000, crc), 0),
        (part(u32::MAX, 1, crc), 0),
        (HeldPart(None), 0),
    ] {
        let mut rig = Rig::new(48);
        rig.bring(SENDER, 1, 3);
        (0..3).for_each(|index| rig.pieces(SENDER, 1, index, 0, CHUNK));
        rig.relay.attach(WORKER, id(1), JOB, 1);
        let held: Ranges = vec![chunking::ChunkRange { first: 0, count: 1 }].try_into().unwrap();
        let grant = Grant { window: 8, reason: Reason::NONE, text: "".into(), held, part };
        rig.relay.granted(WORKER, id(1), &grant);
        // A second one says nothing of what is there.
        rig.relay.granted(WORKER, id(1), &Grant { held: Ranges::default(), ..grant });
        rig.work_off();
        let chunk = CHUNK as u64;
        rig.chunks.sort_unstable();
        assert_eq!(rig.chunks, [(WORKER, chunk, from), (WORKER, 2 * chunk, 0)], "{part:?}");
    }
}

#[test]
fn the_rest_of_a_chunk_goes_before_others_unless_it_does_not_come() {
    for comes in [true, false] {
        let mut rig = Rig::new(48);
        rig.bring_as(SENDER, 1, 4, Purpose::Input);
        rig.relay.attach(AGAIN, id(1), JOB, 1);
        let room = Grant {
            window: 8,
            reason: Reason::NONE,
            text: "".into(),
            held: Ranges::default(),
            part: HeldPart::default(),
        };
        // The first chunk went on, and is not here any more; the last comes while its receiver is
        // away.
        rig.relay.granted(AGAIN, id(1), &room);
        rig.pieces(SENDER, 1, 0, 0, CHUNK);
        rig.relay.closed(AGAIN);
        rig.pieces(SENDER, 1, 3, 0, CHUNK);
        rig.chunks.clear();
        rig.relay.attach(WORKER, id(1), JOB, 1);
        rig.relay.granted(WORKER, id(1), &Grant { part: told(0, 300_000), ..room });
        rig.work_off();
        assert_eq!(rig.chunks, [], "the last waits for the first, which is asked for again");
        let (first, last) = ((WORKER, 0, 300_000), (WORKER, 3 * CHUNK as u64, 0));
        if comes {
            rig.pieces(SENDER, 1, 0, 0, CHUNK);
            rig.relay.chunks_sent(WORKER, 1);
            rig.work_off();
            assert_eq!(rig.chunks, [first, last]);
        } else {
            rig.relay.set_now(rig.relay.now.plus(Duration::from_secs(3)));
            rig.relay.tick();
            rig.work_off();
            assert_eq!(rig.chunks, [last]);
        }
    }
}

#[test]
fn of_bytes_that_were_kept_nothing_is_taken_from_the_pool() {
    let mut rig = Rig::new(8);
    let noise = Bytes::from_static(content(0));
    for blob in 1..=60 {
        rig.bring(SENDER, blob, 1);
        rig.relay
            .keep_part(Part::new(id(blob), head(0), CHUNK_BYTES_MAX, &noise[..CHUNK - 1]).unwrap());
    }
    let fill = rig.relay.fill();
    assert_eq!((fill.parts, fill.buffers_in_use), (60, 0));
    assert!(fill.promised > 0, "others get on");
}

#[test]
fn a_chunk_that_goes_on_when_no_buffer_is_free_keeps_its_first_bytes() {
    let mut rig = Rig::new(8);
    rig.bring(SENDER, 1, 2);
    rig.piece(SENDER, 1, 0, 0, 5000);
    rig.relay.closed(SENDER);
    assert_eq!(rig.relay.fill().parts, 1);
    let grant = rig.bring(AGAIN, 1, 2);
    assert_eq!(grant.part.0.map(|part| part.bytes), Some(5000));
    // Others have all buffers now.
    let taken: Vec<_> = std::iter::from_fn(|| rig.relay.pool.take()).collect();
    assert_eq!(taken.len(), 8);
    rig.piece(AGAIN, 1, 0, 5000, 5000 + PIECE);
    assert!(rig.relay.waits_for_turn(AGAIN), "it is not read on before there is memory");
    drop(taken);
    rig.relay.pump();
    rig.work_off();
    assert!(rig.relay.turn(AGAIN).is_some() && !rig.relay.waits_for_turn(AGAIN));
    rig.pieces(AGAIN, 1, 0, 5000 + PIECE, CHUNK);
    assert_eq!(rig.missing(AGAIN, 1), [1], "nothing of it had to come again");
}
