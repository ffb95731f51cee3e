//! Offers the leader credit for free slots.

use bytes::Bytes;
use chunking::Kind;
use tokio::time::Instant;
use uuid::Uuid;

use super::Session;
use crate::peer::OutFrame;
use crate::worker::handler::Handler;

impl<H: Handler> Session<H> {
    /// Offers what is free, once it is known what the leader is. Not sooner: nothing protects a
    /// frame that goes out before the Welcome, and a worker whose credit was damaged would be idle
    /// for as long as the connection lasts.
    pub(super) fn offer_room(&mut self) {
        // What was withheld meanwhile is part of it.
        self.purse.clear();
        let room = u32::try_from(self.table.room()).unwrap_or(u32::MAX);
        self.give_credit(room);
    }

    pub(super) fn return_credit(&mut self, after_job: bool) {
        let count = self.purse.on_free(Instant::now(), after_job && self.is_busy());
        self.give_credit(count);
    }

    pub(super) fn release_credit(&mut self) {
        let count = self.purse.release(Instant::now(), self.is_busy());
        self.give_credit(count);
    }

    fn is_busy(&self) -> bool {
        match (self.config.cpu_cap, self.cpu.permille()) {
            (Some(cap), Some(permille)) => f64::from(permille) > cap * 1000.0,
            (None, _) | (_, None) => false,
        }
    }

    fn give_credit(&mut self, count: u32) {
        // Before the leader is known nothing is offered, and then all that is free.
        let may_offer = self.leader.is_some() && self.stop_due.is_none() && !self.config.cache_only;
        if count == 0 || !may_offer || !self.uplink.is_up() {
            return;
        }
        self.purse.on_given(count);
        let delta = i32::try_from(count).unwrap_or(i32::MAX).to_le_bytes();
        let credit = OutFrame::new(Kind::Credit, Bytes::copy_from_slice(&delta));
        let frame = OutFrame { msg_id: Uuid::new_v4(), ..credit };
        self.say(frame);
    }
}
