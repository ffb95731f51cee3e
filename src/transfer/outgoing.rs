//! Decides which chunk of one blob is sent next on the current connection, and when Done is due.
//!
//! Pure: no socket, file, clock or thread. It returns one chunk at a time, in index order, within
//! the receiver's grant, and skips chunks the receiver has. Every chunk is digested exactly once,
//! in order, whatever is sent or skipped and however often the connection breaks: it also says
//! which chunks must be read for the digest alone. [`Upload`](super::Upload) calls it.

use chunking::message::{Grant, Open, PartOf, Reason, Verdict};
use chunking::{ChunkHead, ChunkPlan, PlanError};

use crate::wire::{SendPhase, Sending, bytes_of};

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read the chunk and send it.
    Send {
        index: u32,
        /// Whether it is the next one of the digest.
        digest: bool,
    },
    /// The receiver has the chunk; read it for the digest alone.
    Digest { index: u32 },
}

/// Why nothing may be sent at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The receiver's reason.
    pub reason: Reason,
    /// The same for people.
    pub text: String,
}

/// What a verdict means for the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// Nothing: it came at a time when it cannot be meant.
    Nothing,
    /// The receiver has the blob.
    Arrived,
    /// Chunks are to be sent again.
    Again,
    /// The receiver will not take the blob.
    Over(Waiting),
}

/// One blob on its way to one receiver.
#[derive(Debug)]
pub struct Outgoing {
    open: Open,
    plan: ChunkPlan,
    /// What the receiver has or what was handed out, on this connection.
    sending: Sending,
    /// No chunk below is unsettled.
    next: u32,
    /// Chunks below were handed out for the digest; never goes back.
    digested: u32,
    waiting: Option<Waiting>,
}

impl Outgoing {
    /// Of the blob that `open` describes; not connected yet.
    pub fn new(open: Open) -> Result<Self, PlanError> {
        let plan = ChunkPlan::new(open.size, open.chunk_bytes)?;
        let sending = Sending::new(plan.count());
        Ok(Outgoing { open, plan, sending, next: 0, digested: 0, waiting: None })
    }

    /// How the transfer opens.
    pub const fn open(&self) -> &Open {
        &self.open
    }

    /// How the blob is cut.
    pub const fn plan(&self) -> &ChunkPlan {
        &self.plan
    }

    /// A new connection: the transfer is opened on it with `codec`, and nothing may be sent before
    /// its first Grant.
    pub fn on_connected(&mut self, codec: chunking::Codec) -> &Open {
        self.reset(SendPhase::Opened);
        self.open.codec = codec;
        &self.open
    }

    /// The connection ended.
    pub fn on_disconnected(&mut self) {
        self.reset(SendPhase::Away);
    }

    fn reset(&mut self, phase: SendPhase) {
        if self.sending.phase() != SendPhase::Over {
            self.sending.begin(phase);
            (self.next, self.waiting) = (0, None);
        }
    }

    /// Room for more chunks; the first of a connection says what the receiver has.
    pub fn on_grant(&mut self, grant: &Grant) {
        self.sending.on_grant(grant);
        if !self.sending.is_granted() {
            return;
        }
        let told = || Waiting { reason: grant.reason, text: grant.text.as_str().to_owned() };
        self.waiting = (grant.window == 0 && grant.reason != Reason::NONE).then(told);
    }

    /// What the receiver makes of the blob.
    pub fn on_verdict(&mut self, verdict: &Verdict) -> Inbound {
        match (verdict, self.sending.phase()) {
            (_, SendPhase::Away | SendPhase::Over) => Inbound::Nothing,
            (Verdict::Failed { reason, text }, _) => {
                self.on_over();
                Inbound::Over(Waiting { reason: *reason, text: text.as_str().to_owned() })
            }
            (Verdict::Ok, SendPhase::DoneSent) => {
                self.sending.on_arrived();
                Inbound::Arrived
            }
            (
                Verdict::Resend(ranges),
                SendPhase::Sending | SendPhase::DoneSent | SendPhase::Arrived,
            ) => {
                let again = self.sending.on_resend(ranges);
                self.next = again.into_iter().fold(self.next, u32::min);
                Inbound::Again
            }
            (Verdict::Ok, SendPhase::Opened | SendPhase::Sending | SendPhase::Arrived)
            | (Verdict::Resend(_), SendPhase::Opened) => Inbound::Nothing,
        }
    }

    /// Nothing more is to be sent: the transfer was aborted, or its owner has gone.
    pub fn on_over(&mut self) {
        self.sending.begin(SendPhase::Over);
        self.waiting = None;
    }

    /// It was over, as nobody needed it, and is needed again: nothing of it is settled.
    pub fn on_wanted_again(&mut self) {
        if self.sending.phase() == SendPhase::Over {
            self.sending.begin(SendPhase::Away);
            self.next = 0;
        }
    }

    /// The next thing to do; it counts as done from now on. `None` while the receiver has to say
    /// something first.
    pub fn next_work(&mut self) -> Option<Work> {
        if self.sending.phase() != SendPhase::Sending {
            return None;
        }
        // What the receiver has a part of goes before others: the next break would leave a part of
        // another one.
        let may_send = self.sending.window() > 0;
        let part = self.sending.part().filter(|part| may_send && part.index < self.digested);
        if let Some(PartOf { index, .. }) = part.filter(|part| self.sending.lacks(part.index)) {
            self.sending.send(index);
            return Some(Work::Send { index, digest: false });
        }
        while self.next < self.plan.count() && !self.sending.lacks(self.next) {
            self.next += 1;
        }
        let index = self.next;
        if self.digested < index {
            let index = self.digested;
            self.digested += 1;
            return Some(Work::Digest { index });
        }
        if index >= self.plan.count() || !may_send {
            return None;
        }
        let digest = index == self.digested;
        if digest {
            self.digested += 1;
        }
        self.sending.send(index);
        Some(Work::Send { index, digest })
    }

    /// A chunk that was handed out is about to be sent as these bytes. Gives how many of them the
    /// receiver has, if it has the first ones of the very same.
    pub fn goes_on_from(&mut self, head: &ChunkHead, sent_len: usize) -> u32 {
        match self.sending.part().filter(|part| self.plan.offset_of(part.index) == head.offset) {
            Some(part) => self.sending.goes_on_from(part.index, head, sent_len),
            None => 0,
        }
    }

    /// Whether everything was handed out, so that Done is the next frame.
    pub fn is_done_due(&self) -> bool {
        self.sending.is_done_due() && self.digested == self.plan.count()
    }

    /// Done was sent.
    pub fn on_done_sent(&mut self) {
        if self.is_done_due() {
            self.sending.on_done_sent();
        }
    }

    /// Whether the receiver has the blob.
    pub fn is_arrived(&self) -> bool {
        self.sending.is_arrived()
    }

    /// What the receiver waits for, while nothing may be sent.
    pub fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_ref().filter(|_| self.sending.window() == 0)
    }

    /// Bytes that the receiver has or that were handed out.
    pub fn settled_bytes(&self) -> u64 {
        bytes_of(&self.plan, self.sending.sent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::message::{HeldPart, OpenFlags, Purpose};
    use chunking::{Bitmap, Ranges};
    use chunking::{ChunkRange, Codec, DigestKind};
    use proptest::prelude::*;
    use uuid::Uuid;

    const CHUNK: u32 = 4096;

    fn outgoing(size: u64) -> Outgoing {
        let open = Open {
            purpose: Purpose::Input,
            codec: Codec::None,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::KEEPS_SOURCE,
            chunk_bytes: CHUNK,
            size,
            owner: Uuid::from_u128(1),
            attempt: 0,
            name: String::new().try_into().unwrap(),
        };
        Outgoing::new(open).unwrap()
    }

    fn of_chunks(count: u32) -> Outgoing {
        let mut outgoing = outgoing(u64::from(count) * u64::from(CHUNK));
        outgoing.on_connected(Codec::None);
        outgoing
    }

    fn ranges(list: &[(u32, u32)]) -> Ranges {
        let list: Vec<ChunkRange> =
            list.iter().map(|&(first, count)| ChunkRange { first, count }).collect();
        list.try_into().unwrap()
    }

    fn grant(window: u32, held: &[(u32, u32)]) -> Grant {
        Grant {
            window,
            reason: Reason::NONE,
            text: "".into(),
            held: ranges(held),
            part: Default::default(),
        }
    }

    fn works(outgoing: &mut Outgoing) -> Vec<Work> {
        std::iter::from_fn(|| outgoing.next_work()).collect()
    }

    fn fresh(index: u32) -> Work {
        Work::Send { index, digest: true }
    }

    fn again(index: u32) -> Work {
        Work::Send { index, digest: false }
    }

    #[test]
    fn nothing_is_sent_before_the_first_grant_and_never_more_than_granted() {
        let mut outgoing = of_chunks(3);
        assert_eq!(works(&mut outgoing), []);
        outgoing.on_grant(&grant(2, &[]));
        assert_eq!(works(&mut outgoing), [fresh(0), fresh(1)]);
        assert!(!outgoing.is_done_due());
        outgoing.on_grant(&grant(8, &[]));
        assert_eq!(works(&mut outgoing), [fresh(2)]);
        assert!(outgoing.is_done_due());
        outgoing.on_done_sent();
        assert!(!outgoing.is_done_due());
        assert_eq!(outgoing.on_verdict(&Verdict::Ok), Inbound::Arrived);
        assert!(outgoing.is_arrived());
    }

    #[test]
    fn what_the_receiver_has_is_skipped_and_still_digested_in_order() {
        let mut outgoing = of_chunks(5);
        outgoing.on_grant(&grant(1, &[(0, 2), (3, 2)]));
        let digest = |index| Work::Digest { index };
        assert_eq!(works(&mut outgoing), [digest(0), digest(1), fresh(2), digest(3), digest(4)]);
        assert!(outgoing.is_done_due());
        let mut all_held = of_chunks(2);
        all_held.on_grant(&grant(0, &[(0, 2)]));
        assert_eq!(works(&mut all_held), [digest(0), digest(1)]);
        assert!(all_held.is_done_due());
    }

    #[test]
    fn chunks_are_sent_again_before_done_after_it_and_after_ok() {
        let mut outgoing = of_chunks(3);
        outgoing.on_grant(&grant(8, &[]));
        assert_eq!(works(&mut outgoing).len(), 3);
        assert_eq!(outgoing.on_verdict(&Verdict::Resend(ranges(&[(1, 1)]))), Inbound::Again);
        assert_eq!(works(&mut outgoing), [again(1)]);
        outgoing.on_done_sent();
        assert_eq!(
            outgoing.on_verdict(&Verdict::Resend(ranges(&[(0, 1), (2, 1)]))),
            Inbound::Again
        );
        assert!(!outgoing.is_done_due());
        assert_eq!(works(&mut outgoing), [again(0), again(2)]);
        outgoing.on_done_sent();
        assert_eq!(outgoing.on_verdict(&Verdict::Ok), Inbound::Arrived);
        assert_eq!(outgoing.on_verdict(&Verdict::Resend(ranges(&[(0, 3)]))), Inbound::Again);
        assert_eq!(works(&mut outgoing), [again(0), again(1)], "the window of 8 has 2 left");
        outgoing.on_grant(&grant(4, &[]));
        assert_eq!(works(&mut outgoing), [again(2)]);
        assert!(outgoing.is_done_due());
    }

    #[test]
    fn a_resend_that_names_no_chunk_of_the_blob_asks_for_done_alone() {
        let mut outgoing = of_chunks(1);
        outgoing.on_grant(&grant(8, &[]));
        works(&mut outgoing);
        outgoing.on_done_sent();
        assert_eq!(outgoing.on_verdict(&Verdict::Resend(ranges(&[(7, 9)]))), Inbound::Again);
        assert_eq!(works(&mut outgoing), []);
        assert!(outgoing.is_done_due());
    }

    #[test]
    fn a_window_of_nothing_says_why_until_there_is_room() {
        let mut outgoing = of_chunks(2);
        let full = Grant {
            window: 0,
            reason: Reason::SPOOL_FULL,
            text: "spool full".into(),
            held: ranges(&[]),
            part: Default::default(),
        };
        outgoing.on_grant(&full);
        assert_eq!(works(&mut outgoing), []);
        assert_eq!(
            outgoing.waiting(),
            Some(&Waiting { reason: Reason::SPOOL_FULL, text: "spool full".into() })
        );
        outgoing.on_grant(&grant(2, &[]));
        assert_eq!(outgoing.waiting(), None);
        assert_eq!(works(&mut outgoing), [fresh(0), fresh(1)]);
    }

    #[test]
    fn a_blob_of_no_bytes_is_done_with_the_first_grant() {
        let mut outgoing = outgoing(0);
        outgoing.on_connected(Codec::None);
        assert!(!outgoing.is_done_due());
        outgoing.on_grant(&grant(0, &[]));
        assert_eq!(works(&mut outgoing), []);
        assert!(outgoing.is_done_due());
        assert_eq!(outgoing.settled_bytes(), 0);
    }

    #[test]
    fn a_new_connection_starts_with_what_the_receiver_has_and_digests_nothing_twice() {
        let mut outgoing = of_chunks(4);
        outgoing.on_grant(&grant(3, &[]));
        assert_eq!(works(&mut outgoing).len(), 3);
        outgoing.on_disconnected();
        outgoing.on_grant(&grant(8, &[]));
        assert_eq!(
            (works(&mut outgoing), outgoing.on_verdict(&Verdict::Ok)),
            (vec![], Inbound::Nothing)
        );
        outgoing.on_connected(Codec::None);
        outgoing.on_grant(&grant(8, &[(0, 1)]));
        assert_eq!(works(&mut outgoing), [again(1), again(2), fresh(3)]);
        outgoing.on_done_sent();
        outgoing.on_verdict(&Verdict::Ok);
        outgoing.on_connected(Codec::None);
        outgoing.on_grant(&grant(8, &[(0, 4)]));
        assert_eq!(works(&mut outgoing), []);
        assert!(outgoing.is_done_due(), "also a blob that had arrived is opened again");
    }

    #[test]
    fn of_a_chunk_that_the_receiver_has_a_part_of_the_rest_is_sent_if_it_is_the_same() {
        let bytes = vec![3; CHUNK as usize];
        let head = |index: u64| ChunkHead::plain(index * u64::from(CHUNK), &bytes);
        let crc_sent = head(0).crc_sent;
        let with = |outgoing: &mut Outgoing, index, bytes, crc_sent| {
            outgoing.on_connected(Codec::None);
            let part = HeldPart(Some(PartOf { index, bytes, crc_sent }));
            outgoing.on_grant(&Grant { part, ..grant(8, &[(0, 1)]) });
        };
        let mut outgoing = of_chunks(4);
        for (index, bytes, crc, from) in [
            (1, 100, crc_sent, 100),
            (1, 100, crc_sent ^ 1, 0),
            (1, CHUNK, crc_sent, 0),
            (1, u32::MAX, crc_sent, 0),
            (0, 100, crc_sent, 0),
            (9, 100, crc_sent, 0),
            (u32::MAX, 100, crc_sent, 0),
        ] {
            with(&mut outgoing, index, bytes, crc);
            assert_eq!(outgoing.goes_on_from(&head(2), CHUNK as usize), 0, "another chunk");
            assert_eq!(outgoing.goes_on_from(&head(1), CHUNK as usize), from, "{index} {bytes}");
            assert_eq!(
                outgoing.goes_on_from(&head(1), CHUNK as usize),
                0,
                "the next time it is sent whole"
            );
        }
        // A part is of one connection, and of its first Grant.
        with(&mut outgoing, 1, 100, crc_sent);
        outgoing.on_connected(Codec::None);
        outgoing.on_grant(&grant(8, &[]));
        let part = HeldPart(Some(PartOf { index: 1, bytes: 100, crc_sent }));
        outgoing.on_grant(&Grant { part, ..grant(8, &[]) });
        assert_eq!(outgoing.goes_on_from(&head(1), CHUNK as usize), 0);
    }

    #[test]
    fn the_rest_of_a_chunk_goes_before_others_once_it_was_digested() {
        let mut outgoing = of_chunks(4);
        outgoing.on_grant(&grant(3, &[]));
        assert_eq!(works(&mut outgoing).len(), 3);
        for (index, first) in [(2, again(2)), (3, again(0))] {
            outgoing.on_connected(Codec::None);
            let part = HeldPart(Some(PartOf { index, bytes: 5, crc_sent: 1 }));
            outgoing.on_grant(&Grant { part, ..grant(2, &[]) });
            assert_eq!(works(&mut outgoing), [first, again(u32::from(index == 3))]);
        }
    }

    #[test]
    fn a_failed_blob_stays_so() {
        let mut outgoing = of_chunks(1);
        let failed = Verdict::Failed { reason: Reason::DISK_FULL, text: "no room".into() };
        let over = Waiting { reason: Reason::DISK_FULL, text: "no room".to_owned() };
        assert_eq!(outgoing.on_verdict(&failed), Inbound::Over(over));
        outgoing.on_connected(Codec::None);
        outgoing.on_grant(&grant(8, &[]));
        assert_eq!(works(&mut outgoing), []);
        assert!(!outgoing.is_done_due());
    }

    #[test]
    fn a_blob_that_was_not_needed_can_be_wanted_again() {
        let mut outgoing = of_chunks(2);
        outgoing.on_grant(&grant(1, &[]));
        assert_eq!(works(&mut outgoing), [fresh(0)]);
        outgoing.on_over();
        outgoing.on_wanted_again();
        outgoing.on_connected(Codec::None);
        outgoing.on_grant(&grant(8, &[]));
        assert_eq!(works(&mut outgoing), [again(0), fresh(1)]);
        assert!(outgoing.is_done_due());
    }

    #[test]
    fn settled_bytes_know_the_short_last_chunk() {
        let mut outgoing = outgoing(u64::from(CHUNK) + 5);
        outgoing.on_connected(Codec::None);
        outgoing.on_grant(&grant(1, &[]));
        works(&mut outgoing);
        assert_eq!(outgoing.settled_bytes(), u64::from(CHUNK));
        outgoing.on_grant(&grant(1, &[]));
        works(&mut outgoing);
        assert_eq!(outgoing.settled_bytes(), u64::from(CHUNK) + 5);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Grant(u32),
        Resend(Vec<u32>),
        Cut,
        Work,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..5).prop_map(Step::Grant),
            1 => prop::collection::vec(0u32..20, 0..4).prop_map(Step::Resend),
            1 => Just(Step::Cut),
            6 => Just(Step::Work),
        ]
    }

    proptest! {
        // Whatever the receiver says, the window is kept, nothing it has is sent, every chunk is
        // digested once and in order, and in the end all of them have come.
        #[test]
        fn any_receiver_gets_every_chunk_within_its_window(count in 0u32..20, steps in prop::collection::vec(step(), 0..60)) {
            let mut outgoing = of_chunks(count);
            let mut has = Bitmap::new(count);
            let mut digested = Vec::new();
            let (mut room, mut first) = (0u32, true);
            let finish = std::iter::repeat_n([Step::Grant(4), Step::Work], 40).flatten();
            for step in steps.into_iter().chain(finish) {
                match step {
                    Step::Grant(window) => {
                        let held = if first { has.held() } else { Ranges::default() };
                        first = false;
                        room += window;
                        outgoing.on_grant(&Grant { window, reason: Reason::NONE, text: "".into(), held, part: Default::default() });
                    }
                    Step::Resend(_) if first => {}
                    Step::Resend(wanted) => {
                        let mut lost = Bitmap::new(20);
                        wanted.iter().for_each(|index| { lost.insert(*index); has.remove(*index); });
                        outgoing.on_verdict(&Verdict::Resend(lost.held()));
                    }
                    Step::Cut => {
                        outgoing.on_connected(Codec::None);
                        (room, first) = (0, true);
                    }
                    Step::Work => while let Some(work) = outgoing.next_work() {
                        match work {
                            Work::Digest { index } => digested.push(index),
                            Work::Send { index, digest } => {
                                prop_assert!(room > 0, "the window is kept");
                                room -= 1;
                                prop_assert!(has.insert(index), "chunk {} was there", index);
                                if digest { digested.push(index); }
                            }
                        }
                    }
                }
            }
            prop_assert!(has.is_complete());
            prop_assert!(outgoing.is_done_due());
            prop_assert_eq!(digested, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn transition_table_of_a_blob_that_goes() {
        use crate::transitions::{Event, State, assert_table};
        fn sending() -> Outgoing {
            let mut outgoing = of_chunks(1);
            outgoing.on_grant(&grant(1, &[]));
            works(&mut outgoing);
            outgoing
        }
        fn done_sent() -> Outgoing {
            let mut outgoing = sending();
            outgoing.on_done_sent();
            outgoing
        }
        fn failed() -> Verdict {
            Verdict::Failed { reason: Reason::INVALID, text: "".into() }
        }
        let states: [State<Outgoing>; 7] = [
            ("Away", || outgoing(1)),
            ("Opened", || of_chunks(1)),
            ("Sending", || {
                let mut outgoing = of_chunks(1);
                outgoing.on_grant(&grant(1, &[]));
                outgoing
            }),
            ("Sending, all handed out", sending),
            ("DoneSent", done_sent),
            ("Arrived", || {
                let mut outgoing = done_sent();
                outgoing.on_verdict(&Verdict::Ok);
                outgoing
            }),
            ("Over", || {
                let mut outgoing = sending();
                outgoing.on_over();
                outgoing
            }),
        ];
        let events: [Event<Outgoing>; 10] = [
            ("connected", |outgoing| {
                outgoing.on_connected(Codec::None);
            }),
            ("disconnected", Outgoing::on_disconnected),
            ("grant", |outgoing| outgoing.on_grant(&grant(1, &[]))),
            ("all work taken", |outgoing| drop(works(outgoing))),
            ("done sent", Outgoing::on_done_sent),
            ("verdict: ok", |outgoing| drop(outgoing.on_verdict(&Verdict::Ok))),
            ("verdict: resend", |outgoing| {
                drop(outgoing.on_verdict(&Verdict::Resend(ranges(&[(0, 1)]))))
            }),
            ("verdict: failed", |outgoing| drop(outgoing.on_verdict(&failed()))),
            ("over", Outgoing::on_over),
            ("wanted again", Outgoing::on_wanted_again),
        ];
        let name = |outgoing: &Outgoing| match outgoing.is_done_due() {
            true => format!("{:?}, all handed out", outgoing.sending.phase()),
            false => format!("{:?}", outgoing.sending.phase()),
        };
        assert_table("src/transfer/outgoing.transitions.txt", &states, &events, name);
    }
}
