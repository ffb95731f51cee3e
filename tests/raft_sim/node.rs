//! One node of a world: its disk, its part in consensus while it runs, and its state.

use std::collections::VecDeque;
use std::sync::Arc;

use heft::consensus::planted::Planted;
use heft::consensus::raft::{Body, Entry, Office, Pace, Raft, Start};
use heft::core::ids::{Index, Node};
use heft::core::members::Members;
use uuid::Uuid;

use super::disk::{Content, Disk, Saved};
use super::history::{Digest, digest};

pub(crate) struct SimNode {
    pub(crate) node: Node,
    pub(crate) dir: Uuid,
    pub(crate) disk: Disk,
    /// None while it has no power.
    pub(crate) raft: Option<Raft>,
    /// How often it was started.
    pub(crate) life: u64,
    pub(crate) members: Option<Arc<Members>>,
    pub(crate) digest: Digest,
    /// The last record that the state has.
    pub(crate) applied: Index,
    /// Committed, and not applied yet.
    pub(crate) to_apply: VecDeque<Entry>,
    /// Applied, and consensus is to hear of it: with the members if they changed.
    pub(crate) to_report: VecDeque<(Index, Option<Arc<Members>>)>,
    pub(crate) office: Option<Office>,
    pub(crate) paused_until: u64,
    /// Syncs end in their order.
    pub(crate) sync_ends: u64,
    pub(crate) is_fetching: bool,
    pub(crate) needs_snapshot: bool,
    /// The leader chose it as the next.
    pub(crate) was_chosen: bool,
}

impl SimNode {
    pub(crate) fn new(node: Node, dir: Uuid, content: Content) -> Self {
        SimNode {
            node,
            dir,
            disk: Disk::new(content),
            raft: None,
            life: 0,
            members: None,
            digest: 0,
            applied: Index(0),
            to_apply: VecDeque::new(),
            to_report: VecDeque::new(),
            office: None,
            paused_until: 0,
            sync_ends: 0,
            is_fetching: false,
            needs_snapshot: false,
            was_chosen: false,
        }
    }

    pub(crate) fn start(&mut self, entropy: u64, planted: Planted) -> Result<(), String> {
        let content = &self.disk.durable;
        let (members, digest) = content.replay();
        let start = Start {
            node: self.node,
            vote: content.vote,
            base: content.base,
            offer: content.saved.offer(),
            entries: content.entries.clone(),
            applied: content.applied,
            members: members.clone(),
            pace: Pace::USUAL,
            entropy,
            planted,
        };
        let raft = Raft::start(start).map_err(|error| format!("no start: {error}"))?;
        self.raft = Some(raft);
        (self.members, self.digest, self.applied) = (members, digest, content.applied);
        self.life += 1;
        self.to_apply.clear();
        self.to_report.clear();
        self.office = None;
        self.is_fetching = false;
        self.needs_snapshot = false;
        self.was_chosen = false;
        Ok(())
    }

    /// Applies one record to the state. Gives the members if they changed.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Option<Arc<Members>> {
        self.digest = digest(self.digest, entry);
        self.applied = entry.index;
        let Body::Members(next) = &entry.body else { return None };
        let follows = self.members.as_ref().is_none_or(|members| members.may_become(next));
        follows.then(|| {
            self.members = Some(next.clone());
            next.clone()
        })
    }

    pub(crate) fn saved(&self) -> Option<Saved> {
        let term = self.disk.now.term(self.applied)?;
        let (index, members, digest) = (self.applied, self.members.clone(), self.digest);
        members.is_some().then_some(Saved { index, term, members, digest })
    }

    pub(crate) fn leads(&self) -> bool {
        matches!(self.office, Some(Office::Leading { .. } | Office::Elected { .. }))
    }
}
