//! The log as the engine reads it: everything that is not compacted, in memory. What is on the disk
//! is the caller's business; it hears of every change through [`Write`](super::Write).

use std::cell::Cell;
use std::sync::Arc;

use ::raft::eraftpb::{ConfState, Entry as Stored, HardState, Snapshot as EngineSnapshot};
use ::raft::{GetEntriesContext, RaftState, Result, Storage, StorageError};

use super::Snapshot;
use super::change::{conf_state, node};
use super::messages::members_bytes;
use crate::consensus::planted::{Bug, Planted};
use crate::core::ids::{Index, Term};
use crate::core::members::Members;

/// Whether a follower waits for a snapshot that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    No,
    Yes,
    Said,
}

/// See the module.
pub(super) struct Log {
    /// The record before the first that is here, and its term.
    base: (u64, u64),
    entries: Vec<Stored>,
    /// What followers get that lag behind the base.
    offer: Option<Snapshot>,
    /// Whether a newer one is needed, and whether that was said.
    wanted: Cell<Wanted>,
    /// As it was when the engine started.
    started: RaftState,
    /// The members and the term of now, for planted bugs.
    pub(super) now: (Option<Arc<Members>>, Term),
    planted: Planted,
}

impl Log {
    pub(super) fn new(
        base: (Index, Term),
        entries: Vec<Stored>,
        offer: Option<Snapshot>,
        (hard, conf): (HardState, ConfState),
        planted: Planted,
    ) -> Self {
        let now = (None, Term(hard.term));
        let started = RaftState::new(hard, conf);
        let base = (base.0.0, base.1.0);
        let wanted = Cell::new(Wanted::No);
        Log { base, entries, offer, wanted, started, now, planted }
    }

    /// Where in `entries` a record is.
    fn place(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.base.0)?.checked_sub(1)?).ok()
    }

    pub(super) fn last(&self) -> u64 {
        self.base.0.saturating_add(self.entries.len() as u64)
    }

    pub(super) fn base(&self) -> u64 {
        self.base.0
    }

    /// The term of a record, if it is here or the base.
    pub(super) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        self.entries.get(self.place(index)?).map(|entry| entry.term)
    }

    /// Takes entries in, and cuts what was there from the first of them on.
    pub(super) fn append(&mut self, entries: &[Stored]) {
        let Some(first) = entries.first() else { return };
        let place = self.place(first.index).unwrap_or(0);
        if self.planted.has(Bug::TailKept) {
            let kept = self.entries.split_off(place.min(self.entries.len()));
            self.entries.extend_from_slice(entries);
            self.entries.extend(kept.into_iter().skip(entries.len()));
            return;
        }
        self.entries.truncate(place);
        self.entries.extend_from_slice(entries);
    }

    /// Begins anew behind a snapshot that came from the leader.
    pub(super) fn restore(&mut self, snapshot: Snapshot) {
        self.base = (snapshot.index.0, snapshot.term.0);
        self.entries.clear();
        self.offer = Some(snapshot);
    }

    /// Drops the records before `keep`, which a snapshot has that is kept from now on.
    pub(super) fn compact(&mut self, snapshot: Snapshot, keep: Index) {
        let base = keep.0.saturating_sub(1).min(snapshot.index.0);
        if let Some(term) = self.term_of(base).filter(|_| base > self.base.0) {
            let gone = self.place(base).map_or(0, |place| place.saturating_add(1));
            self.entries.drain(..gone.min(self.entries.len()));
            self.base = (base, term);
        }
        self.offer = Some(snapshot);
        self.wanted.set(Wanted::No);
    }

    /// Whether a newer snapshot is wanted, which is said once.
    pub(super) fn take_wanted(&self) -> bool {
        let wanted = self.wanted.get() == Wanted::Yes;
        if wanted {
            self.wanted.set(Wanted::Said);
        }
        wanted
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(self.started.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Stored>> {
        let Some(place) = self.place(low) else { return Err(StorageError::Compacted.into()) };
        let len = usize::try_from(high.saturating_sub(low)).unwrap_or(usize::MAX);
        let found = self.entries.get(place..place.saturating_add(len));
        let mut entries = found.ok_or(StorageError::Unavailable)?.to_vec();
        ::raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index < self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        self.term_of(index).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base.0.saturating_add(1))
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<EngineSnapshot> {
        // A node takes no snapshot of members that it is not one of, and one that was added since
        // is not in there.
        let usable = |offer: &&Snapshot| {
            offer.index.0 >= request_index.max(self.base.0)
                && node(to).is_some_and(|to| offer.members.member(to).is_some())
        };
        let Some(mut offer) = self.offer.as_ref().filter(usable).cloned() else {
            if self.wanted.get() == Wanted::No {
                self.wanted.set(Wanted::Yes);
            }
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        };
        if self.planted.has(Bug::SnapshotMembers) {
            offer.members = self.now.0.clone().unwrap_or(offer.members);
        }
        if self.planted.has(Bug::SnapshotTerm) {
            offer.term = self.now.1;
        }
        Ok(engine_snapshot(&offer))
    }
}

/// A snapshot in the engine's form. Its data goes beside; what the engine takes for it is only the
/// members in our own bytes.
pub(super) fn engine_snapshot(snapshot: &Snapshot) -> EngineSnapshot {
    let data = members_bytes(&snapshot.members);
    let mut made = EngineSnapshot { data, ..EngineSnapshot::default() };
    let meta = made.mut_metadata();
    meta.index = snapshot.index.0;
    meta.term = snapshot.term.0;
    meta.set_conf_state(conf_state(Some(&snapshot.members)));
    made
}

/// Whether two descriptions of members say the same.
pub(super) fn same_members(one: &ConfState, other: &ConfState) -> bool {
    let sorted = |list: &[u64]| {
        let mut list = list.to_vec();
        list.sort_unstable();
        list
    };
    let all = |state: &ConfState| {
        [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next]
            .map(|list| sorted(list))
    };
    all(one) == all(other)
}
