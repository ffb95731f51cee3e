//! What is on its way to the disk, and what waits for it.

use std::collections::VecDeque;

use ::raft::eraftpb::Message;

use crate::core::ids::{Index, Term};

/// One step of the engine that waits for the disk, or for those before it.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The engine's number of it.
    pub(super) number: u64,
    /// Whether the disk has something to write for it.
    pub(super) is_written: bool,
    /// The term of its vote, if it has one.
    pub(super) term: Option<Term>,
    /// The last record of its snapshot, if it has one.
    pub(super) snapshot: Option<Index>,
    /// What leaves when it is done.
    pub(super) messages: Vec<Message>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Writes {
    waiting: VecDeque<Waiting>,
    /// The term whose vote is on the disk.
    synced_term: Term,
}

impl Writes {
    pub(super) fn new(synced_term: Term) -> Self {
        Writes { waiting: VecDeque::new(), synced_term }
    }

    /// Whether the disk is to report something.
    pub(super) fn is_writing(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.is_written)
    }

    /// Whether a snapshot is on its way to the disk.
    pub(super) fn is_installing(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.snapshot.is_some())
    }

    /// Whether what is said in this term can be relied on after a crash.
    pub(super) fn has_term(&self, term: Term) -> bool {
        self.synced_term >= term
    }

    /// A step waits. Gives what waits for nothing.
    pub(super) fn push(&mut self, waiting: Waiting) -> Vec<Waiting> {
        self.waiting.push_back(waiting);
        self.synced(0)
    }

    /// The disk has everything up to this number. Gives what is done.
    pub(super) fn synced(&mut self, number: u64) -> Vec<Waiting> {
        let mut done = Vec::new();
        let is_done = |front: &Waiting| !front.is_written || front.number <= number;
        while let Some(front) =
            if self.waiting.front().is_some_and(is_done) { self.waiting.pop_front() } else { None }
        {
            if let Some(term) = front.term {
                self.synced_term = self.synced_term.max(term);
            }
            done.push(front);
        }
        done
    }
}
