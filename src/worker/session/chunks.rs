//! What comes of inputs and sets: chunks, pieces of chunks, and what a lost connection left of one.

use chunking::message::{Features, Piece};
use uuid::Uuid;

use super::Session;
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

    pub(super) fn on_piece(&mut self, transfer: Uuid, piece: &Piece<'_>) {
        if self.is_of_set(transfer) {
            return self.with_cache(|cache, out| cache.on_piece(transfer, piece, out));
        }
        let step = self.receptions.piece(transfer, piece, &mut self.out);
        self.on_step(step);
        self.say_far(transfer);
    }

    pub(super) fn on_chunk(&mut self, chunk: InChunk) {
        let transfer = chunk.transfer;
        if self.is_of_set(transfer) {
            return self.with_cache(|cache, out| cache.on_chunk(chunk, out));
        }
        let step = self.receptions.chunk(chunk, &mut self.out);
        self.on_step(step);
        self.say_far(transfer);
    }

    pub(super) fn on_report(&mut self, report: Report) {
        let transfer = report.transfer;
        if self.is_of_set(transfer) {
            return self.with_cache(|cache, out| cache.on_report(report, out));
        }
        let step = self.receptions.report(report, &mut self.out);
        self.on_step(step);
        self.say_far(transfer);
    }
}
