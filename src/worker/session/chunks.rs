//! What comes of inputs and sets: chunks, pieces of chunks, and what a lost connection left of one.

use chunking::MessageError;
use chunking::message::Features;

use super::Session;
use crate::peer::InFrame;
use crate::transfer::Report;
use crate::wire::{InChunk, Part};
use crate::worker::handler::Handler;

impl<H: Handler> Session<H> {
    /// Keeps what came of a chunk, if the leader can go on with it.
    pub(super) fn keep_cut(&mut self, cut: Option<Part>) {
        let knows = self.leader.is_some_and(|leader| leader.has(Features::PIECES));
        let Some(part) = cut.filter(|_| knows) else { return };
        match &mut self.cache {
            Some(cache) if cache.owns(part.transfer) => cache.keep(part),
            Some(_) | None => self.receptions.keep(part),
        }
    }

    /// A frame of a transfer, which is one of a set, of an input, or of a result.
    pub(super) fn on_transfer(&mut self, frame: &InFrame) -> Result<(), MessageError> {
        let transfer = frame.msg_id;
        if self.is_of_set(transfer) {
            let mut read = Ok(());
            self.with_cache(|cache, out| read = cache.on_frame(frame, out));
            return read;
        }
        match self.receptions.on_frame(frame, &mut self.out)? {
            Some(step) => {
                self.on_step(step);
                self.say_far(transfer);
                Ok(())
            }
            None => self.returns.on_frame(frame),
        }
    }

    pub(super) fn on_chunk(&mut self, chunk: InChunk) {
        let transfer = chunk.transfer;
        if self.is_of_set(transfer) {
            return self.with_cache(|cache, out| cache.on_chunk(chunk, out));
        }
        let step = self.receptions.on_chunk(chunk, &mut self.out);
        self.on_step(step);
        self.say_far(transfer);
    }

    pub(super) fn on_report(&mut self, report: Report) {
        let transfer = report.transfer;
        if self.is_of_set(transfer) {
            return self.with_cache(|cache, out| cache.on_report(report, out));
        }
        let step = self.receptions.on_report(report, &mut self.out);
        self.on_step(step);
        self.say_far(transfer);
    }
}
