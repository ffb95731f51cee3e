//! A node's disk: what is written is there, and what is not synced goes with the power, from the
//! last operation backwards.

use std::collections::VecDeque;
use std::sync::Arc;

use heft::consensus::raft::{Body, Entry, Snapshot, Vote};
use heft::core::ids::{Index, Term};
use heft::core::members::Members;

use super::history::{Digest, digest};

/// One operation.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Vote(Vote),
    /// Cuts everything from the first of these on.
    Append(Vec<Entry>),
    /// A snapshot of the leader counts.
    Install(Saved),
    /// A snapshot of this node, and the first record that is kept.
    Compact(Saved, Index),
    /// The log has this record, and the state with it.
    Applied(Index),
}

/// A snapshot: what consensus knows of it, and the state.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub(crate) index: Index,
    pub(crate) term: Term,
    /// None in a log from before there was a cluster.
    pub(crate) members: Option<Arc<Members>>,
    pub(crate) digest: Digest,
}

impl Saved {
    pub(crate) fn offer(&self) -> Option<Snapshot> {
        let Saved { index, term, members, .. } = self;
        Some(Snapshot { index: *index, term: *term, members: members.clone()? })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) vote: Vote,
    pub(crate) base: (Index, Term),
    pub(crate) saved: Saved,
    pub(crate) entries: Vec<Entry>,
    pub(crate) applied: Index,
}

impl Content {
    pub(crate) fn empty() -> Self {
        let (index, term) = (Index(0), Term(0));
        let saved = Saved { index, term, members: None, digest: 0 };
        Content {
            vote: Vote::default(),
            base: (index, term),
            saved,
            entries: Vec::new(),
            applied: index,
        }
    }

    pub(crate) fn last(&self) -> Index {
        Index(self.base.0.0 + self.entries.len() as u64)
    }

    pub(crate) fn entry(&self, index: Index) -> Option<&Entry> {
        let place = index.0.checked_sub(self.base.0.0 + 1)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    pub(crate) fn term(&self, index: Index) -> Option<Term> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        self.entry(index).map(|entry| entry.term)
    }

    fn carry_out(&mut self, op: Op) {
        match op {
            Op::Vote(vote) => self.vote = vote,
            Op::Append(entries) => {
                let first = entries[0].index;
                let keep = first.0.checked_sub(self.base.0.0 + 1).expect("not before the base");
                assert!(keep <= self.entries.len() as u64, "no gap before {first}");
                self.entries.truncate(keep as usize);
                self.entries.extend(entries);
            }
            Op::Install(saved) => {
                self.base = (saved.index, saved.term);
                self.applied = saved.index;
                self.saved = saved;
                self.entries.clear();
            }
            Op::Compact(saved, keep) => {
                let base = Index(keep.0.saturating_sub(1).min(saved.index.0)).max(self.base.0);
                let term = self.term(base).expect("the new base is there");
                self.entries.drain(..(base.0 - self.base.0.0) as usize);
                self.base = (base, term);
                self.saved = saved;
            }
            Op::Applied(index) => self.applied = index,
        }
    }

    /// The state that a start finds: members and digest as of `applied`.
    pub(crate) fn replay(&self) -> (Option<Arc<Members>>, Digest) {
        let (mut members, mut sum) = (self.saved.members.clone(), self.saved.digest);
        let mut index = self.saved.index;
        while index < self.applied {
            index = index.next();
            let entry = self.entry(index).expect("what is applied is there");
            sum = digest(sum, entry);
            if let Body::Members(next) = &entry.body
                && members.as_ref().is_none_or(|members| members.may_become(next))
            {
                members = Some(next.clone());
            }
        }
        (members, sum)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// What a crash leaves.
    pub(crate) durable: Content,
    /// With everything that was written.
    pub(crate) now: Content,
    unsynced: VecDeque<Op>,
    written: u64,
    synced: u64,
}

impl Disk {
    pub(crate) fn new(content: Content) -> Self {
        let unsynced = VecDeque::new();
        Disk { durable: content.clone(), now: content, unsynced, written: 0, synced: 0 }
    }

    pub(crate) fn write(&mut self, op: Op) {
        self.now.carry_out(op.clone());
        self.unsynced.push_back(op);
        self.written += 1;
    }

    /// How much has been written; what a sync that begins now covers.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn sync(&mut self, up_to: u64) {
        while self.synced < up_to
            && let Some(op) = self.unsynced.pop_front()
        {
            self.durable.carry_out(op);
            self.synced += 1;
        }
    }

    pub(crate) fn unsynced(&self) -> impl ExactSizeIterator<Item = &Op> {
        self.unsynced.iter()
    }

    /// The power goes. The first `kept` of the operations that were not synced are there all the
    /// same.
    pub(crate) fn crash(&mut self, kept: u64) {
        self.sync(self.synced + kept);
        self.unsynced.clear();
        self.now = self.durable.clone();
        self.synced = self.written;
    }
}
