use super::*;
use crate::store::blobs::DiskDone;
use crate::wire::{BUFFER_BYTES, PoolBuf};
use chunking::Bitmap;
use chunking::message::{Done, Name, Purpose};
use std::time::Duration;
use uuid::Uuid;

const SENDER: ConnId = ConnId(1);
const WORKER: ConnId = ConnId(2);
const JOB: JobId = JobId(Uuid::from_u128(7));
const MIB: u64 = CHUNK_BYTES_MAX as u64;

/// A relay with so many buffers and a blob, without keeping what passes.
struct Rig {
    relay: Relay,
    said: Vec<(ConnId, BlobId, Says)>,
    chunks: Vec<(ConnId, u64)>,
    writes: Vec<(BlobId, u32, Bytes)>,
}

fn id(number: u128) -> BlobId {
    Uuid::from_u128(number)
}

fn open(size: u64) -> Open {
    Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: CHUNK_BYTES_MAX,
        size,
        owner: JOB.0,
        attempt: 0,
        name: Name::default(),
    }
}

fn buffer(starts: Starts) -> Option<PoolBuf> {
    match starts {
        Starts::Here(Memory::Pooled(buffer)) => Some(buffer),
        Starts::Here(Memory::Own) | Starts::Waits | Starts::Skip => None,
    }
}

fn room(window: u32) -> Grant {
    Grant {
        window,
        reason: Reason::NONE,
        text: "".into(),
        held: Ranges::default(),
        part: Default::default(),
    }
}

impl Rig {
    fn new(buffers: usize, spool_bytes_max: u64) -> Self {
        let config = RelayConfig { buffers, spool_bytes_max, ..RelayConfig::default() };
        Rig { relay: Relay::new(config), said: Vec::new(), chunks: Vec::new(), writes: Vec::new() }
    }

    fn bring(&mut self, number: u128, chunks: u64, keep: bool) {
        let (size, id) = (chunks * MIB, id(number));
        let purpose = if keep { Purpose::Archive } else { Purpose::Input };
        let open = Open { purpose, ..open(size) };
        self.relay.expect(id, open.clone(), ChunkPlan::new(size, CHUNK_BYTES_MAX).unwrap(), keep);
        self.relay.open(SENDER, id, open);
        self.work_off();
    }

    fn work_off(&mut self) {
        while let Some(out) = self.relay.poll() {
            match out {
                Out::Say { conn, blob, says } => self.said.push((conn, blob, says)),
                Out::Chunk { conn, head, .. } => {
                    self.chunks.push((conn, head.offset));
                }
                Out::Disk(DiskOp::Write { blob, index, bytes, .. }) => {
                    self.writes.push((blob, index, bytes))
                }
                Out::Disk(_) | Out::Turn { .. } | Out::News(_) => {}
                Out::Elsewhere { .. } | Out::LetGo { .. } | Out::Supply { .. } => {}
            }
        }
    }

    /// A chunk comes. False if it is not taken.
    fn chunk(&mut self, number: u128, index: u64) -> bool {
        let head = ChunkHead::plain(index * MIB, &[0; BUFFER_BYTES]);
        let start = ChunkStart { transfer: id(number), head, sent_len: CHUNK_BYTES_MAX };
        let starts = match self.relay.chunk_starts(SENDER, &start) {
            // What is to be written is, and it is its turn.
            Starts::Waits => {
                self.work_off();
                for (blob, index, bytes) in std::mem::take(&mut self.writes) {
                    drop(bytes);
                    self.relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
                }
                self.relay.turn(SENDER).map_or(Starts::Skip, Starts::Here)
            }
            starts @ (Starts::Here(_) | Starts::Skip) => starts,
        };
        let taken = buffer(starts).map(|mut buffer| {
            buffer.room(0..BUFFER_BYTES).unwrap().fill(0);
            let bytes = buffer.freeze(BUFFER_BYTES);
            self.relay.chunk(
                SENDER,
                InChunk { transfer: id(number), head, crc: Some(head.crc_sent), bytes },
            );
        });
        self.work_off();
        taken.is_some()
    }

    /// Brings a blob as far as windows go; gives how many chunks that were, and why it has to wait
    /// then.
    fn bring_all(&mut self, number: u128) -> (u64, Vec<Reason>) {
        let mut next = 0;
        loop {
            let (window, waits) = self.windows(number);
            if window == 0 {
                return (next, waits);
            }
            for _ in 0..window {
                assert!(self.chunk(number, next));
                next += 1;
            }
        }
    }

    /// Windows that the sender of a blob was given, and why it has to wait.
    fn windows(&mut self, number: u128) -> (u32, Vec<Reason>) {
        let mut sum = 0;
        let mut waits = Vec::new();
        self.said.retain(|(conn, blob, says)| match says {
            Says::Grant(grant) if *conn == SENDER && *blob == id(number) => {
                sum += grant.window;
                waits.extend((grant.reason != Reason::NONE).then_some(grant.reason));
                false
            }
            Says::Open(_)
            | Says::Grant(_)
            | Says::Done(_)
            | Says::Verdict(_)
            | Says::Abort(_)
            | Says::Void(_) => true,
        });
        (sum, waits)
    }

    fn pass(&mut self, time: Duration) {
        self.relay.set_now(self.relay.now.plus(time));
        self.relay.tick();
        self.work_off();
    }
}

#[test]
fn no_blob_gets_more_than_a_quarter_of_the_buffers_and_none_more_than_there_are() {
    let mut rig = Rig::new(16, 1 << 40);
    rig.bring(1, 100, false);
    assert_eq!(rig.windows(1), (4, vec![]));
    rig.bring(2, 100, false);
    rig.bring(3, 100, false);
    let (second, third) = (rig.windows(2).0, rig.windows(3).0);
    let fill = rig.relay.fill();
    assert_eq!(fill.promised, (4 + second + third) as usize);
    assert!(
        second <= 4 && third <= 4 && fill.promised <= 16 - 4,
        "some are left to read from the disk"
    );
    rig.relay.closed(SENDER);
    assert_eq!((rig.relay.fill().promised, rig.relay.fill().connections), (0, 0));
}

#[test]
fn transfers_of_a_connection_share_what_it_may_send() {
    let mut rig = Rig::new(8, 1 << 40);
    (1..=5).for_each(|number| rig.bring(number, 50, false));
    assert_eq!((rig.windows(1).0, rig.windows(4).0), (2, 2));
    assert_eq!(rig.windows(5), (0, vec![]), "it waits for the others");
    rig.pass(Duration::from_millis(100));
    assert_eq!(rig.windows(5), (0, vec![]));
    rig.relay.forget(id(1));
    rig.work_off();
    assert_eq!(rig.windows(5).0, 2);
}

#[test]
fn a_full_spool_makes_those_wait_that_nobody_takes_and_no_others() {
    let mut rig = Rig::new(48, 6 * MIB);
    rig.bring(1, 50, false);
    let (came, waits) = rig.bring_all(1);
    assert!((1..=8).contains(&came));
    assert_eq!(waits, [Reason::SPOOL_FULL]);
    rig.relay.attach(WORKER, id(1), JOB, 1);
    rig.relay.granted(WORKER, id(1), &room(8));
    rig.work_off();
    assert!(rig.windows(1).0 > 0, "a worker takes it: it needs no spool");
    assert_eq!(rig.chunks.len(), 4, "what the outbox takes");
}

#[test]
fn a_full_disk_is_told_once_and_tried_again_after_a_while() {
    let mut rig = Rig::new(16, 1 << 40);
    rig.bring(1, 50, false);
    let mut granted = rig.windows(1).0;
    let mut sent = 0;
    while rig.writes.is_empty() {
        assert!(sent < granted && rig.chunk(1, sent.into()));
        sent += 1;
        granted += rig.windows(1).0;
    }
    assert_eq!(sent, 5, "four stay in memory, the fifth goes to the disk");
    let (blob, index, _) = rig.writes.pop().unwrap();
    rig.relay.disk_done(DiskDone::Written { blob, index, result: Err("no space".into()) });
    rig.work_off();
    let mut waits = Vec::new();
    while sent < granted {
        assert!(rig.chunk(1, sent.into()), "what was granted is taken");
        sent += 1;
        let (more, why) = rig.windows(1);
        granted += more;
        waits.extend(why);
    }
    assert_eq!((waits, rig.writes.len()), (vec![Reason::DISK_FULL], 0));
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.writes.len(), 1, "one chunk is tried");
    let (blob, index, _) = rig.writes.pop().unwrap();
    rig.relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
    rig.work_off();
    assert!(rig.windows(1).0 > 0, "the disk takes chunks again");
}

#[test]
fn what_its_receiver_does_not_take_goes_to_the_disk_when_buffers_are_scarce() {
    let mut rig = Rig::new(16, 1 << 40);
    let mut came = 0;
    for number in 1..=2 {
        assert_eq!(rig.writes.len(), 0, "it waits in memory for its worker");
        rig.bring(number, 50, false);
        rig.relay.attach(WORKER, id(number), JOB, 1);
        rig.work_off();
        came += rig.bring_all(number).0;
        rig.pass(Duration::from_millis(100));
    }
    assert_eq!(rig.writes.len() as u64, 0, "there are others");
    rig.bring(3, 50, false);
    rig.pass(Duration::from_millis(100));
    assert_eq!(rig.writes.len() as u64, came);
    rig.pass(Duration::from_secs(1));
    assert!(rig.relay.fill().in_memory == 0);
}

#[test]
fn in_a_small_pool_memory_is_given_up_when_nothing_can_be_promised() {
    for buffers in 8..=11 {
        let mut rig = Rig::new(buffers, 1 << 40);
        let came: u64 = (1..=3)
            .map(|number| {
                rig.bring(number, 50, false);
                rig.relay.attach(WORKER, id(number), JOB, 1);
                rig.work_off();
                rig.bring_all(number).0
            })
            .sum();
        rig.bring(4, 50, true);
        assert_eq!(rig.windows(4).0, 0, "{buffers} buffers: {:?}", rig.relay.fill());
        rig.pass(Duration::from_millis(100));
        assert_eq!(rig.writes.len() as u64, came, "{buffers} buffers: {:?}", rig.relay.fill());
        for (blob, index, bytes) in std::mem::take(&mut rig.writes) {
            drop(bytes);
            rig.relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
        }
        rig.work_off();
        assert!(rig.windows(4).0 > 0, "{buffers} buffers: {:?}", rig.relay.fill());
    }
}

#[test]
fn a_slow_receiver_is_told_of_once() {
    let mut rig = Rig::new(48, 1 << 40);
    rig.bring(1, 50, false);
    rig.relay.attach(WORKER, id(1), JOB, 1);
    rig.work_off();
    assert!(rig.bring_all(1).0 > 0);
    for _ in 0..3 {
        rig.pass(Duration::from_secs(1));
    }
    assert_eq!(rig.windows(1), (0, vec![Reason::SLOW_RECEIVER]));
}

#[test]
fn a_window_that_is_ignored_ends_the_transfer_and_costs_no_buffer() {
    let mut rig = Rig::new(48, 2 * MIB);
    rig.bring(1, 50, false);
    let window = rig.windows(1).0;
    (0..window).for_each(|index| assert!(rig.chunk(1, index.into())));
    assert_eq!(rig.windows(1).0, 0);
    let before = rig.relay.fill();
    assert!(!rig.chunk(1, window.into()));
    let is_end = |(conn, _, says): &(ConnId, BlobId, Says)| {
        *conn == SENDER
            && matches!(says, Says::Abort(abort) if abort.reason == Reason::WINDOW_IGNORED)
    };
    assert!(rig.said.iter().any(is_end));
    let after = rig.relay.fill();
    assert_eq!((after.buffers_in_use, after.promised), (before.buffers_in_use, 0));
    assert_eq!(after.connections, 0, "it brings nothing any more");
}

#[test]
fn a_window_that_went_for_chunks_nobody_recognised_is_given_once_more() {
    let mut rig = Rig::new(48, 1 << 40);
    rig.bring(1, 3, false);
    assert_eq!(rig.windows(1).0, 3);
    assert!(rig.chunk(1, 0));
    rig.pass(Duration::from_secs(5));
    assert_eq!((rig.windows(1).0, rig.relay.fill().promised), (2, 2), "the two that did not come");
    rig.pass(Duration::from_secs(5));
    assert_eq!(rig.windows(1).0, 0, "once, until it is heard of");
    assert!(rig.chunk(1, 1) && rig.chunk(1, 2), "both windows may be used");
    assert!(!rig.chunk(1, 1) && !rig.chunk(1, 2), "and bring nothing twice");
    assert_eq!(rig.relay.fill().promised, 0);
}

#[test]
fn a_blob_that_stays_and_that_nobody_brings_keeps_no_place_from_others() {
    let mut rig = Rig::new(48, 4 * MIB);
    rig.bring(1, 4, true);
    assert!(rig.windows(1).0 > 0 && rig.chunk(1, 0));
    rig.windows(1);
    rig.relay.closed(SENDER);
    rig.relay.attach(WORKER, id(1), JOB, 1);
    rig.relay.pump();
    rig.work_off();
    rig.bring(2, 4, true);
    let (window, waits) = rig.windows(2);
    assert!(window > 0 && waits.is_empty(), "the only one on its way is always let in: {waits:?}");
    rig.bring(3, 4, true);
    assert_eq!(
        rig.windows(3),
        (0, vec![Reason::SPOOL_FULL]),
        "and no second one that does not fit"
    );
}

#[test]
fn inputs_that_were_turned_down_and_let_in_together_do_not_wait_for_room_any_more() {
    let mut rig = Rig::new(48, 4 * MIB);
    rig.bring(1, 4, true);
    for number in [2, 3] {
        let plan = ChunkPlan::new(2 * MIB, CHUNK_BYTES_MAX).unwrap();
        rig.relay.expect(id(number), open(2 * MIB), plan, true);
    }
    rig.relay.belong_together(&[id(2), id(3)]);
    for number in [2, 3] {
        rig.relay.attach(WORKER, id(number), JOB, 1);
        rig.relay.open(SENDER, id(number), open(2 * MIB));
        rig.work_off();
        assert_eq!(rig.windows(number), (0, vec![Reason::SPOOL_FULL]));
    }
    rig.relay.forget(id(1));
    rig.work_off();
    assert_eq!((rig.windows(2).0, rig.windows(3).0), (2, 2), "both are let in");
    assert!(!rig.relay.is_short() && rig.relay.in_line.is_empty());
    // Whoever brings them pauses for longer than a worker waits for inputs that find no room.
    let mut stalled = Vec::new();
    for _ in 0..30 {
        rig.relay.set_now(rig.relay.now.plus(Duration::from_millis(100)));
        rig.relay.tick();
        while let Some(out) = rig.relay.poll() {
            if let Out::News(News::Stalled { blob, .. }) = out {
                stalled.push(blob);
            }
        }
    }
    assert!(stalled.is_empty(), "the worker keeps the job: {stalled:?}");
}

#[test]
fn chunks_on_their_way_when_a_transfer_is_opened_again_on_its_connection_are_no_breach() {
    let mut rig = Rig::new(48, 1 << 40);
    rig.bring(1, 20, true);
    let first = rig.windows(1).0;
    rig.relay.open(SENDER, id(1), open(20 * MIB));
    rig.work_off();
    let second = rig.windows(1).0;
    assert!(first > 0 && second > 0);
    (0..first + second).for_each(|index| {
        rig.chunk(1, index.into());
    });
    let is_end = |(_, _, says): &(ConnId, BlobId, Says)| matches!(says, Says::Abort(_));
    assert!(!rig.said.iter().any(is_end));
    let fill = rig.relay.fill();
    assert!(fill.buffers_in_use + fill.promised <= fill.buffers, "{fill:?}");
}

#[test]
fn a_chunk_that_has_begun_to_come_has_its_place_in_the_spool() {
    let mut rig = Rig::new(48, 3 * MIB);
    rig.bring(1, 2, false);
    rig.bring(2, 2, false);
    assert_eq!((rig.windows(1).0, rig.windows(2).0), (2, 1));
    let head = ChunkHead::plain(0, &[0; BUFFER_BYTES]);
    let start = ChunkStart { transfer: id(1), head, sent_len: CHUNK_BYTES_MAX };
    let coming = rig.relay.chunk_starts(SENDER, &start);
    rig.pass(Duration::from_millis(100));
    assert_eq!(
        (matches!(coming, Starts::Here(_)), rig.windows(2).0),
        (true, 0),
        "the third place is taken"
    );
    rig.relay.closed(SENDER);
    rig.bring(2, 2, false);
    assert_eq!(rig.windows(2).0, 2, "and free when it does not come after all");
}

#[test]
fn a_receiver_that_asks_for_chunks_again_without_end_does_not_get_the_blob() {
    let mut rig = Rig::new(48, 1 << 40);
    rig.bring(1, 2, false);
    rig.relay.attach(WORKER, id(1), JOB, 1);
    rig.relay.granted(WORKER, id(1), &room(1000));
    let asked = Verdict::Resend(Bitmap::new(1).missing());
    for _ in 0..2 + RESENDS_MAX {
        rig.relay.verdict(WORKER, id(1), &asked);
        rig.work_off();
    }
    assert!(rig.relay.is_flowing(id(1)), "what may be asked for");
    rig.relay.verdict(WORKER, id(1), &asked);
    let mut refused = Vec::new();
    while let Some(out) = rig.relay.poll() {
        if let Out::News(News::Refused { conn, reason, text, .. }) = out {
            refused.push((conn, reason, text));
        }
    }
    let [(WORKER, Reason::BAD_DIGEST, text)] = refused.as_slice() else { panic!("{refused:?}") };
    assert!(text.contains("64 times more"), "{text}");
    assert!(!rig.relay.is_flowing(id(1)));
}

#[test]
fn however_many_wait_each_gets_its_turn() {
    let many = 3 * flow::LOOKS_MAX as u128;
    let mut rig = Rig::new(16, 1 << 40);
    (0..many).for_each(|number| rig.bring(number, 1, false));
    let mut came = 0;
    for _ in 0..many {
        for number in 0..many {
            let (window, _) = rig.windows(number);
            came += u128::from(window > 0 && rig.chunk(number, 0));
        }
        let written: Vec<_> = std::mem::take(&mut rig.writes);
        if written.is_empty() && came == many {
            break;
        }
        for (blob, index, bytes) in written {
            drop(bytes);
            rig.relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
        }
        rig.pass(Duration::from_millis(100));
    }
    assert_eq!(came, many);
}

#[test]
fn a_chunk_passes_through_to_one_receiver_with_room_and_nothing_else() {
    let starts = |index: u64, bytes: u32| ChunkStart {
        transfer: id(1),
        head: ChunkHead::plain(index * MIB, &vec![0; bytes as usize]),
        sent_len: bytes,
    };
    let mut rig = Rig::new(48, 1 << 40);
    rig.relay.expect(
        id(1),
        open(3 * MIB + 9),
        ChunkPlan::new(3 * MIB + 9, CHUNK_BYTES_MAX).unwrap(),
        false,
    );
    rig.relay.open(SENDER, id(1), open(3 * MIB + 9));
    let chunk = starts(0, CHUNK_BYTES_MAX);
    assert_eq!(rig.relay.splice_target(SENDER, &chunk, |_| true), None, "nobody takes it");
    rig.relay.attach(WORKER, id(1), JOB, 1);
    assert_eq!(
        rig.relay.splice_target(SENDER, &chunk, |_| true),
        None,
        "it has not said that it has room"
    );
    rig.relay.granted(WORKER, id(1), &room(8));
    assert_eq!(rig.relay.splice_target(SENDER, &chunk, |_| false), None, "it gets something else");
    assert_eq!(rig.relay.splice_target(SENDER, &starts(3, 9), |_| true), None, "too small");
    let damaged = ChunkStart { head: ChunkHead { crc_sent: 1, ..chunk.head }, ..chunk };
    assert_eq!(
        rig.relay.splice_target(SENDER, &damaged, |_| true),
        None,
        "its head contradicts itself"
    );
    assert_eq!(rig.relay.splice_target(SENDER, &chunk, |_| true), Some(WORKER));
    assert_eq!(
        rig.relay.splice_target(SENDER, &starts(1, CHUNK_BYTES_MAX), |_| true),
        None,
        "one after the other"
    );
    rig.relay.spliced(SENDER, &chunk, Spliced::Whole);
    rig.relay.chunks_sent(WORKER, 1);
    assert_eq!(rig.relay.splice_target(SENDER, &chunk, |_| true), None, "it has it");
    let slow = starts(1, CHUNK_BYTES_MAX);
    assert_eq!(rig.relay.splice_target(SENDER, &slow, |_| true), Some(WORKER));
    rig.relay.spliced(SENDER, &slow, Spliced::Slow);
    rig.relay.chunks_sent(WORKER, 1);
    assert_eq!(
        rig.relay.splice_target(SENDER, &starts(2, CHUNK_BYTES_MAX), |_| true),
        None,
        "who is slow sends by buffer"
    );
    let fill = rig.relay.fill();
    assert_eq!((fill.spliced, fill.voided, fill.chunks_out), (2, 0, 0));
}

#[test]
fn a_chunk_that_breaks_on_its_way_through_is_void_and_comes_again() {
    for how in [Spliced::Broken, Spliced::Stalled] {
        let mut rig = Rig::new(48, 1 << 40);
        rig.bring(1, 2, false);
        rig.relay.attach(WORKER, id(1), JOB, 1);
        rig.relay.granted(WORKER, id(1), &room(8));
        let head = ChunkHead::plain(0, &[0; BUFFER_BYTES]);
        let start = ChunkStart { transfer: id(1), head, sent_len: CHUNK_BYTES_MAX };
        assert_eq!(rig.relay.splice_target(SENDER, &start, |_| true), Some(WORKER));
        rig.relay.spliced(SENDER, &start, how);
        rig.work_off();
        let is_void = |(conn, _, says): &(ConnId, BlobId, Says)| {
            *conn == WORKER && matches!(says, Says::Void(void) if void.offset == 0)
        };
        assert_eq!(rig.said.iter().filter(|said| is_void(said)).count(), 1, "{how:?}");
        rig.relay.done(
            SENDER,
            id(1),
            &Done { digest: Digest { kind: DigestKind::ChunkList, bytes: [0; 32] } },
        );
        rig.work_off();
        let asks = |says: &Says| matches!(says, Says::Verdict(Verdict::Resend(again)) if again.indices().count() == 2);
        assert!(rig.said.iter().any(|(_, _, says)| asks(says)), "{how:?}: {:?}", rig.said);
    }
}

#[test]
fn what_is_gathered_counts_on_the_disk_as_what_it_is_for() {
    use crate::store::blobs::Class;
    use crate::store::space::{Reserve, Space};
    let disk_reserve = Reserve::Bytes(8 * MIB);
    let config = RelayConfig { durable: true, buffers: 48, disk_reserve, ..RelayConfig::default() };
    let mut relay = Relay::new(config);
    let takes = |relay: &Relay| (relay.takes_more(Class::Upload), relay.takes_more(Class::Result));
    let space = Some(Space { free: 10 * MIB, total: 1 << 40 });
    relay.disk_done(DiskDone::Measured { mark: 0, space });
    assert_eq!(takes(&relay), (true, true));
    let purposes = [(1, Purpose::Archive), (2, Purpose::Stdout), (3, Purpose::Input)];
    for (number, purpose) in purposes {
        relay.gather(id(number), purpose, 0, vec![0; BUFFER_BYTES].into());
    }
    assert_eq!(takes(&relay), (false, true), "counts before it is written");
    let mut begun = Vec::new();
    while let Some(out) = relay.poll() {
        match out {
            Out::Disk(DiskOp::Begin { blob, open }) => begun.push((blob.as_u128(), open.purpose)),
            Out::Disk(DiskOp::Write { blob, index, .. }) => {
                relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
            }
            Out::Disk(_)
            | Out::Say { .. }
            | Out::Chunk { .. }
            | Out::Turn { .. }
            | Out::News(_) => {}
            Out::Elsewhere { .. } | Out::LetGo { .. } | Out::Supply { .. } => {}
        }
    }
    assert_eq!(begun, purposes, "the disk's threads ask for what it is for, too");
    assert_eq!(takes(&relay), (false, true), "and after");
    for index in 1..5 {
        relay.gather(id(1), Purpose::Archive, index, vec![0; BUFFER_BYTES].into());
    }
    assert_eq!(takes(&relay), (false, false), "results leave half of the reserve");
    purposes.iter().for_each(|(number, _)| relay.forget(id(*number)));
    relay.disk_done(DiskDone::Measured { mark: 3 * MIB, space });
    assert_eq!(takes(&relay), (true, true), "nothing counts that is gone");
}

/// Slow, silent and hostile ones beside a fast one: at every step the fast one's chunk finds a
/// buffer at once, and the slow ones come on.
#[test]
fn a_fast_sender_finds_buffers_whatever_a_hundred_others_do() {
    let mut rig = Rig::new(48, 1 << 40);
    let bring = |rig: &mut Rig, conn: ConnId, number: u128| {
        let plan = ChunkPlan::new(1000 * MIB, CHUNK_BYTES_MAX).unwrap();
        rig.relay.expect(id(number), open(1000 * MIB), plan, true);
        rig.relay.open(conn, id(number), open(1000 * MIB));
        rig.work_off();
    };
    let starts = |number: u128, index: u64| {
        let head = ChunkHead::plain(index * MIB, &[0; 16]);
        ChunkStart {
            transfer: id(number),
            head: ChunkHead { raw_len: CHUNK_BYTES_MAX, ..head },
            sent_len: CHUNK_BYTES_MAX,
        }
    };
    bring(&mut rig, SENDER, 1);
    // Ten connections of one client open transfers and send nothing; the others begin a chunk each,
    // and stop.
    for conn in 100..110 {
        rig.relay.is_of(ConnId(conn), 7);
        (0..50).for_each(|number| bring(&mut rig, ConnId(conn), u128::from(conn) * 1000 + number));
    }
    let mut held = HashMap::new();
    let mut parked = 0;
    for conn in 200..300 {
        let number = u128::from(conn) * 1000;
        bring(&mut rig, ConnId(conn), number);
        match rig.relay.chunk_starts(ConnId(conn), &starts(number, 0)) {
            Starts::Here(Memory::Pooled(buffer)) => drop(held.insert(conn, buffer)),
            Starts::Here(Memory::Own) | Starts::Waits => parked += 1,
            Starts::Skip => panic!("it was allowed to send"),
        }
        // A driver looks after a moment.
        if held.len() >= 30 {
            rig.relay.set_now(rig.relay.now.plus(BUFFER_LEASE));
            held.retain(|conn, _| rig.relay.chunk_lingers(ConnId(*conn), 1000) == Linger::Stays);
            assert!(held.len() <= 24, "half of them are free again");
            rig.relay.pump();
            rig.work_off();
        }
    }
    assert_eq!(parked, 0, "there are buffers for those that are new");
    let mut next = 0;
    for _ in 0..200 {
        let (window, _) = rig.windows(1);
        for _ in 0..window {
            let before = rig.relay.fill().buffers_in_use;
            assert!(before < 48, "{:?}", rig.relay.fill());
            assert!(rig.chunk(1, next), "at once");
            next += 1;
        }
        for (blob, index, bytes) in std::mem::take(&mut rig.writes) {
            drop(bytes);
            rig.relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
        }
        rig.pass(Duration::from_millis(10));
    }
    assert!(next > 400, "{next} chunks came");
    assert!(rig.relay.senders_in_places() > 0 && rig.relay.senders_in_places() <= 48);
    // A slow one is whole: the next one that waits has its place.
    let turns =
        |rig: &mut Rig| (200..300).filter(|conn| rig.relay.turn(ConnId(*conn)).is_some()).count();
    turns(&mut rig);
    let before = rig.relay.senders_in_places();
    for conn in 200..210 {
        rig.relay.closed(ConnId(conn));
    }
    assert!(
        turns(&mut rig) > 0 && rig.relay.senders_in_places() == before,
        "places are used again"
    );
    (100..300).for_each(|conn| rig.relay.closed(ConnId(conn)));
    rig.relay.closed(SENDER);
    rig.writes.clear();
    let fill = rig.relay.fill();
    assert_eq!(
        (fill.promised, fill.kept_free, rig.relay.senders_in_places()),
        (0, 0, 0),
        "{fill:?}"
    );
}

#[test]
fn senders_that_were_promised_nothing_have_no_share_of_the_buffers() {
    let mut rig = Rig::new(16, 1 << 40);
    for _ in 0..20 {
        // A fast one, which finds all buffers in use, and goes.
        rig.bring(1, 2, true);
        assert!(rig.chunk(1, 0));
        let taken: Vec<_> = std::iter::from_fn(|| rig.relay.pool.take()).collect();
        rig.bring(2, 50, true);
        drop(taken);
        rig.relay.closed(SENDER);
        [1, 2].into_iter().for_each(|number| rig.relay.forget(id(number)));
        rig.relay.is_of(SENDER, 100 + rig.relay.now.0);
        rig.pass(Duration::from_secs(1));
    }
    rig.said.clear();
    rig.bring(3, 50, true);
    assert!(rig.chunk(3, 0));
    rig.bring(4, 50, true);
    assert_eq!(rig.windows(4).0, 4, "a quarter of the buffers, as if nobody had been there before");
}

/// What a sender heard of a blob since it was last asked for.
fn verdicts(rig: &mut Rig, number: u128) -> Vec<Verdict> {
    let said = std::mem::take(&mut rig.said).into_iter();
    said.filter(|(conn, blob, _)| (*conn, *blob) == (SENDER, id(number)))
        .filter_map(|(_, _, says)| match says {
            Says::Verdict(verdict) => Some(verdict),
            Says::Open(_) | Says::Grant(_) | Says::Done(_) | Says::Abort(_) | Says::Void(_) => None,
        })
        .collect()
}

fn is_conflict(verdicts: &[Verdict]) -> bool {
    matches!(verdicts, [Verdict::Failed { reason: Reason::CONFLICT, .. }])
}

impl Rig {
    fn done(&mut self, number: u128, digest: Digest) -> Vec<Verdict> {
        self.relay.done(SENDER, id(number), &Done { digest });
        self.work_off();
        verdicts(self, number)
    }

    /// Brings a blob of one chunk whole; gives its digest.
    fn bring_whole(&mut self, number: u128) -> Digest {
        self.bring(number, 1, true);
        assert!(self.chunk(number, 0));
        let digest = self.relay.blobs[&id(number)].came.chunk_list();
        self.said.clear();
        assert_eq!(self.done(number, digest), [Verdict::Ok]);
        digest
    }
}

#[test]
fn what_was_ruled_whole_is_final_whatever_its_sender_says_of_it_later() {
    let mut rig = Rig::new(16, 64 * MIB);
    let digest = rig.bring_whole(1);
    let wrong = Digest { bytes: [7; 32], ..digest };
    let other_kind = Digest { kind: DigestKind::Sha256, ..digest };
    for says in [wrong, other_kind, wrong] {
        assert!(is_conflict(&rig.done(1, says)));
        assert!(rig.relay.has_arrived(id(1)) && rig.relay.is_kept(id(1)));
    }
    assert_eq!(rig.done(1, digest), [Verdict::Ok], "the same is said again");

    rig.relay.open(SENDER, id(1), Open { purpose: Purpose::Archive, ..open(MIB) });
    rig.work_off();
    let whole = |says: &Says| matches!(says, Says::Grant(grant) if grant.held.indices().eq([0]));
    assert!(rig.said.iter().any(|(_, _, says)| whole(says)), "{:?}", rig.said);
    assert!(is_conflict(&{
        rig.said.clear();
        rig.done(1, wrong)
    }));
    assert_eq!((rig.done(1, digest), rig.relay.is_kept(id(1))), (vec![Verdict::Ok], true));
}

#[test]
fn a_part_that_another_connection_brings_before_it_is_answered_with_may_be_another() {
    let mut rig = Rig::new(16, 64 * MIB);
    let digest = rig.bring_whole(1);
    let wrong = Digest { bytes: [7; 32], ..digest };
    rig.relay.doubt_before(SENDER, id(1));
    assert!(is_conflict(&rig.done(1, wrong)), "the same connection has had its say");
    rig.relay.closed(SENDER);
    rig.relay.doubt_before(SENDER, id(1));
    rig.relay.open(SENDER, id(1), Open { purpose: Purpose::Archive, ..open(MIB) });
    rig.work_off();
    rig.said.clear();
    let all = Bitmap::new(1).missing();
    assert_eq!(rig.done(1, wrong), [Verdict::Resend(all)]);
}

#[test]
fn a_receiver_that_asks_for_chunks_again_does_not_end_the_doubt_about_another_sender() {
    let mut rig = Rig::new(16, 64 * MIB);
    let digest = rig.bring_whole(1);
    let wrong = Digest { bytes: [7; 32], ..digest };
    rig.relay.attach(WORKER, id(1), JOB, 1);
    rig.relay.granted(WORKER, id(1), &room(4));
    rig.relay.closed(SENDER);
    rig.relay.doubt_before(SENDER, id(1));
    rig.relay.open(SENDER, id(1), Open { purpose: Purpose::Archive, ..open(MIB) });
    let all = Bitmap::new(1).missing();
    rig.relay.verdict(WORKER, id(1), &Verdict::Resend(all.clone()));
    rig.work_off();
    rig.said.clear();
    assert_eq!(rig.done(1, wrong), [Verdict::Resend(all)]);
}

#[test]
fn a_full_digest_that_its_receiver_doubts_may_be_said_anew() {
    let mut rig = Rig::new(16, 64 * MIB);
    let sha256 = |byte| Digest { kind: DigestKind::Sha256, bytes: [byte; 32] };
    let open = Open { digest: DigestKind::Sha256, ..open(MIB) };
    rig.relay.expect(id(1), open.clone(), ChunkPlan::new(MIB, CHUNK_BYTES_MAX).unwrap(), true);
    rig.relay.open(SENDER, id(1), open);
    rig.relay.attach(WORKER, id(1), JOB, 1);
    rig.relay.granted(WORKER, id(1), &room(4));
    assert!(rig.chunk(1, 0));
    rig.said.clear();
    assert_eq!(rig.done(1, sha256(1)), [Verdict::Ok]);
    assert!(is_conflict(&rig.done(1, sha256(2))));
    rig.relay.verdict(WORKER, id(1), &Verdict::Resend(Bitmap::new(1).missing()));
    rig.work_off();
    rig.said.clear();
    assert_eq!(rig.done(1, sha256(2)), [Verdict::Ok]);
    assert_eq!(rig.relay.digest(id(1)), Some(sha256(2)));
}
