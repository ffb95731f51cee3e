//! Handles incoming data of inputs and datasets: chunks, fragments, and reports from blocking
//! threads.

use chunking::message::{Abort, Reason};
use chunking::{Kind, MessageError};
use uuid::Uuid;

use super::Session;
use crate::peer::{InFrame, OutFrame};
use crate::transfer::{Report, Turn};
use crate::wire::InChunk;
use crate::worker::exchange::Owner;
use crate::worker::handler::Handler;

impl<H: Handler> Session<H> {
    /// A frame of a transfer that comes, or of a result that goes.
    pub(super) fn on_transfer(&mut self, frame: &InFrame) -> Result<(), MessageError> {
        let id = frame.msg_id;
        let turn = self.exchange.on_frame(frame)?;
        if turn != Turn::Unknown {
            self.on_turn(id, turn);
            return Ok(());
        }
        if frame.kind() == Some(Kind::Done) {
            let text = format!("transfer {id} is not open here");
            self.say(OutFrame::message(id, &Abort { reason: Reason::UNKNOWN, text: text.into() }));
        }
        self.returns.on_frame(frame)
    }

    pub(super) fn on_chunk(&mut self, chunk: InChunk) {
        let id = chunk.transfer;
        let turn = self.exchange.on_chunk(chunk);
        self.on_turn(id, turn);
    }

    pub(super) fn on_report(&mut self, report: Report) {
        let id = report.transfer;
        let turn = self.exchange.on_report(report);
        self.on_turn(id, turn);
    }

    fn on_turn(&mut self, id: Uuid, turn: Turn) {
        match self.exchange.downloads.get(id) {
            Some((Owner::Dataset(_), _)) => {
                self.with_cache(|cache, out| cache.on_turn(id, turn, out))
            }
            Some((Owner::Input(_), _)) => {
                let step = self.receptions.on_turn(id, turn, &mut self.exchange);
                self.on_step(step);
                self.say_far(id);
            }
            None => {}
        }
    }
}
