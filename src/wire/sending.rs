//! The state of one blob being sent to one receiver over one connection: chunks sent or already
//! present, the remaining grant, and whether the receiver has everything.
//!
//! Pure. The original sender of a blob (`transfer::Outgoing`) and the relaying leader keep one
//! each.

use chunking::message::{Grant, PartOf};
use chunking::{Bitmap, ChunkHead, Ranges};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPhase {
    /// The receiver has not been told of it on this connection.
    Away,
    /// It has been told; its first Grant has not come.
    Opened,
    /// It has said what it has.
    Sending,
    /// It was sent everything, and Done.
    DoneSent,
    /// It has the blob, checked.
    Arrived,
    /// Nothing more is sent.
    Over,
}

/// What one receiver has of a blob, and what it takes.
#[derive(Clone, Debug)]
pub struct Sending {
    phase: SendPhase,
    /// Chunks that it has, or was sent.
    sent: Bitmap,
    /// Chunks that it takes beyond those.
    window: u32,
    /// What it has of a chunk that is not whole, until that is sent.
    part: Option<PartOf>,
}

impl Sending {
    /// Nothing has been said of a blob of so many chunks.
    pub fn new(chunks: u32) -> Self {
        Sending { phase: SendPhase::Away, sent: Bitmap::new(chunks), window: 0, part: None }
    }

    /// The receiver is told of the blob on a new connection, or the connection ended.
    pub fn begin(&mut self, phase: SendPhase) {
        *self = Sending { phase, ..Sending::new(self.sent.count()) };
    }

    /// How far it is.
    pub fn phase(&self) -> SendPhase {
        self.phase
    }

    /// The receiver is told of the blob.
    pub fn open(&mut self) {
        if self.phase == SendPhase::Away {
            self.phase = SendPhase::Opened;
        }
    }

    /// Whether the receiver has said what it has.
    pub fn is_granted(&self) -> bool {
        match self.phase {
            SendPhase::Sending | SendPhase::DoneSent | SendPhase::Arrived => true,
            SendPhase::Away | SendPhase::Opened | SendPhase::Over => false,
        }
    }

    /// Whether the receiver has all of it.
    pub fn is_arrived(&self) -> bool {
        self.phase == SendPhase::Arrived
    }

    /// Chunks that it has, or was sent.
    pub fn sent(&self) -> &Bitmap {
        &self.sent
    }

    /// Whether a chunk is still to be sent.
    pub fn lacks(&self, index: u32) -> bool {
        !self.sent.contains(index)
    }

    /// Chunks that it takes.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// What it has of a chunk that is not whole.
    pub fn part(&self) -> Option<PartOf> {
        self.part
    }

    /// Room for more chunks. Says whether it was the first, which says what the receiver has.
    pub fn on_grant(&mut self, grant: &Grant) -> bool {
        let is_first = self.phase == SendPhase::Opened;
        if !is_first && !self.is_granted() {
            return false;
        }
        if is_first {
            self.sent.insert_all(&grant.held);
            let is_lacking = |index: u32| index < self.sent.count() && !self.sent.contains(index);
            self.part = grant.part.0.filter(|part| is_lacking(part.index));
            self.phase = SendPhase::Sending;
        }
        self.window = self.window.saturating_add(grant.window);
        is_first
    }

    /// A chunk takes its place in the window, and is sent.
    pub fn send(&mut self, index: u32) {
        self.reserve();
        self.sent.insert(index);
    }

    /// A chunk takes its place in the window, and is sent later.
    pub fn reserve(&mut self) {
        debug_assert!(self.window > 0, "the receiver takes nothing");
        self.window = self.window.saturating_sub(1);
    }

    /// A chunk that has its place is sent.
    pub fn send_reserved(&mut self, index: u32) {
        self.sent.insert(index);
    }

    /// It is not, and its place is free again.
    pub fn release(&mut self) {
        self.window = self.window.saturating_add(1);
    }

    /// A chunk is sent now. Gives how many of its bytes the receiver has already, if it has the
    /// first ones of the very same.
    pub fn goes_on_from(&mut self, index: u32, head: &ChunkHead, sent_len: usize) -> u32 {
        let part = self.part.take_if(|part| part.index == index);
        let fits =
            |part: &PartOf| part.crc_sent == head.crc_sent && (part.bytes as usize) < sent_len;
        part.filter(fits).map_or(0, |part| part.bytes)
    }

    /// A chunk that was sent has to be sent again, and so has Done. False if it was not sent.
    pub fn take_back(&mut self, index: u32) -> bool {
        let was_sent = self.sent.remove(index);
        if was_sent && self.phase == SendPhase::DoneSent {
            self.phase = SendPhase::Sending;
        }
        was_sent
    }

    /// The receiver asks for these again. Gives those that it was sent.
    pub fn on_resend(&mut self, ranges: &Ranges) -> Vec<u32> {
        if self.is_granted() {
            self.phase = SendPhase::Sending;
        }
        let chunks = self.sent.count();
        let known = ranges.indices().take_while(|index| *index < chunks);
        known.filter(|index| self.sent.remove(*index)).collect()
    }

    /// All of it has to be sent again.
    pub fn begin_anew(&mut self) {
        self.sent = Bitmap::new(self.sent.count());
        self.part = None;
        if self.phase == SendPhase::DoneSent {
            self.phase = SendPhase::Sending;
        }
    }

    /// Whether everything was sent, so that Done is due.
    pub fn is_done_due(&self) -> bool {
        self.phase == SendPhase::Sending && self.sent.is_complete()
    }

    /// Done was sent.
    pub fn on_done_sent(&mut self) {
        if self.is_done_due() {
            self.phase = SendPhase::DoneSent;
        }
    }

    /// The receiver has the blob.
    pub fn on_arrived(&mut self) {
        if self.is_granted() {
            self.phase = SendPhase::Arrived;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::message::{HeldPart, Reason};

    fn grant(window: u32, held: &[u32]) -> Grant {
        let mut bitmap = Bitmap::new(4);
        held.iter().for_each(|index| {
            bitmap.insert(*index);
        });
        let (reason, text) = (Reason::NONE, "".into());
        Grant { window, reason, text, held: bitmap.held(), part: HeldPart::default() }
    }

    #[test]
    fn the_first_grant_says_what_is_there_and_the_last_chunk_makes_done_due() {
        let mut sending = Sending::new(4);
        sending.open();
        assert!(!sending.is_granted());
        assert!(sending.on_grant(&grant(3, &[1])) && !sending.on_grant(&grant(0, &[2])));
        assert_eq!((sending.window(), sending.lacks(1), sending.lacks(2)), (3, false, true));
        [0, 2, 3].into_iter().for_each(|index| sending.send(index));
        assert_eq!((sending.window(), sending.is_done_due()), (0, true));
        sending.on_done_sent();
        assert_eq!((sending.phase(), sending.is_done_due()), (SendPhase::DoneSent, false));
        sending.on_arrived();
        assert!(sending.is_arrived());
    }

    #[test]
    fn what_is_taken_back_or_asked_for_again_goes_out_before_another_done() {
        let mut sending = Sending::new(4);
        sending.open();
        sending.on_grant(&grant(4, &[0, 1]));
        [2, 3].into_iter().for_each(|index| sending.send(index));
        sending.on_done_sent();
        assert!(sending.take_back(3) && !sending.take_back(3));
        assert_eq!((sending.phase(), sending.is_done_due()), (SendPhase::Sending, false));
        sending.send(3);
        sending.on_done_sent();
        sending.on_arrived();
        let mut again = Bitmap::new(9);
        [1, 7].into_iter().for_each(|index| {
            again.insert(index);
        });
        assert_eq!(sending.on_resend(&again.held()), [1]);
        assert!(!sending.is_arrived() && sending.lacks(1));
    }

    #[test]
    fn a_place_in_the_window_that_is_not_used_is_given_back() {
        let mut sending = Sending::new(4);
        sending.open();
        sending.on_grant(&grant(1, &[]));
        sending.reserve();
        assert_eq!(sending.window(), 0);
        sending.release();
        sending.reserve();
        sending.send_reserved(0);
        assert_eq!((sending.window(), sending.lacks(0)), (0, false));
        sending.begin(SendPhase::Opened);
        assert_eq!((sending.window(), sending.lacks(0), sending.is_granted()), (0, true, false));
    }
}
