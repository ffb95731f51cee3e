//! Connects a session to the outputs that are followed: what the leader wants, and what goes out.

use chunking::MessageError;
use chunking::message::{Body as _, Follow};
use uuid::Uuid;

use super::{Session, get};
use crate::peer::InFrame;
use crate::worker::follows::{JobHere, Piece, Running};
use crate::worker::handler::Handler;

impl<H: Handler> Session<H> {
    pub(super) fn on_follow(&mut self, frame: &InFrame) -> Result<(), MessageError> {
        let follow = Follow::decode(&frame.payload)?;
        let here = match self.running(follow.job) {
            Some(running) => JobHere::Runs(running),
            None => match self.table.attempt_of_result(follow.job) {
                Some(attempt) => JobHere::Ended { attempt },
                None => JobHere::NotYet,
            },
        };
        let shows = self.handler.shows_output();
        if let Some(answer) = self.follows.on_follow(frame.msg_id, follow, here, shows) {
            self.say(answer);
        }
        Ok(())
    }

    /// A job runs, or goes on as another attempt.
    pub(super) fn show_output(&mut self, job: Uuid) {
        if self.follows.is_empty() {
            return;
        }
        if let Some(running) = self.running(job) {
            let late = self.follows.on_running(job, &running);
            late.into_iter().for_each(|answer| self.say(answer));
        }
    }

    fn running(&self, job: Uuid) -> Option<Running> {
        let live = self.live.get(&job)?;
        let attempt = get(&live.numbers).attempt;
        Some(Running { attempt, began: live.began, shown: live.shown.clone() })
    }

    /// A piece goes out. It comes here only when nothing else waits to.
    pub(super) fn on_piece(&mut self, piece: Piece) {
        let Some(frame) = self.follows.on_piece(piece) else { return };
        self.say(frame);
        if let Some(writer) = self.uplink.writer() {
            self.follows.set_piece_bytes(writer.piece_bytes());
        }
    }
}
