//! Consensus of several nodes: the engine `raft` (raft-rs), and the rules by which it is driven.
//! These files alone name the engine; all others see [`Raft`], what it is told and its [`Output`]s.
//!
//! There is no I/O, clock or chance in here. The caller tells it of time, messages and what its
//! disk has synced and its state has applied. After each call it takes the outputs with
//! [`Raft::poll_output`] and carries them out, in their order, before the next call.
//!
//! All records that are not compacted are in memory.

mod ahead;
mod change;
mod check;
mod log;
mod messages;
mod output;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::VecDeque;
use std::sync::Arc;

use ::raft::eraftpb::HardState;
use ::raft::{Config, RawNode, SnapshotStatus, StateRole};
use chunking::message::InstallSnapshot;
use thiserror::Error;

use ahead::Ahead;
use change::{changes, conf_state, id, node};
use check::{Known, Verdict};
use log::{Log, same_members};
use writes::Writes;

pub use check::Refused;
pub use messages::{ConvertError, PeerMessage, Piece};
pub use output::{
    Body, Damage, Entry, NotTaken, Office, Output, Pace, Role, Snapshot, Start, Status, Vote,
    Waits, Write,
};

use super::limits::{
    APPENDS_IN_FLIGHT_MAX, COMMIT_BYTES_MAX, PROPOSED_BYTES_MAX, UNCOMMITTED_BYTES_MAX,
    UNCOMMITTED_RECORDS_MAX,
};
use super::members::{votes, votes_alone};
use super::planted::{Bug, Planted};
use crate::core::ids::{Index, Node, Term};
use crate::core::members::Members;

/// A node that cannot start with what its disk has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    #[error("record {found} is where record {expected} belongs")]
    Gap { expected: Index, found: Index },
    #[error("record {index} has term {found} behind term {before}")]
    Terms { index: Index, before: Term, found: Term },
    #[error("the state has record {applied}; the log has records {first} to {last}")]
    Applied { applied: Index, first: Index, last: Index },
    #[error("the engine refuses its settings: {0}")]
    Settings(String),
}

/// Election timeouts, drawn from what the caller gives: a run can be repeated.
#[derive(Debug)]
struct Timeout {
    state: u64,
    drawn: usize,
    /// The term, role and leader that it was drawn for.
    drawn_for: (u64, StateRole, u64),
    pace: Pace,
}

impl Timeout {
    fn next(&mut self) {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let span = self.pace.election_most.saturating_sub(self.pace.election).max(1);
        let more = usize::try_from((mixed ^ (mixed >> 31)) % span as u64).unwrap_or(0);
        self.drawn = self.pace.election.saturating_add(more);
    }
}

/// One node's part in consensus.
pub struct Raft {
    node: Node,
    engine: RawNode<Log>,
    /// As of what is applied.
    members: Option<Arc<Members>>,
    writes: Writes,
    ahead: Ahead,
    timeout: Timeout,
    office: Office,
    /// Bytes of this leader's records that are not committed.
    uncommitted_bytes: usize,
    /// The place of this leader's first record.
    own_term_at: u64,
    /// The place of the last change of members that this leader has proposed.
    changed_at: u64,
    stopped: Option<Damage>,
    outputs: VecDeque<Output>,
    planted: Planted,
}

impl Raft {
    /// Starts with what is on the disk; all of it must be synced.
    pub fn start(start: Start) -> Result<Self, StartError> {
        let Start { node, vote, base, offer, entries, applied, members, pace, entropy, planted } =
            start;
        check_log(base, &entries)?;
        let last = Index(base.0.0.saturating_add(entries.len() as u64));
        if applied < base.0 || applied > last {
            let first = base.0.next();
            return Err(StartError::Applied { applied, first, last });
        }
        let voted = if planted.has(Bug::VoteForgotten) { None } else { vote.node };
        let hard = HardState {
            term: vote.term.0,
            vote: voted.map_or(0, id),
            commit: known_commit(&entries, applied).0,
            ..HardState::default()
        };
        let stored = entries.iter().map(messages::stored).collect();
        let conf = conf_state(members.as_deref());
        let log = Log::new(base, stored, offer, (hard, conf), planted);
        let config = Config {
            id: id(node),
            election_tick: pace.election,
            heartbeat_tick: pace.heartbeat,
            min_election_tick: pace.election,
            max_election_tick: pace.election_most,
            applied: applied.0,
            max_size_per_msg: chunking::limits::APPEND_BYTES_MAX as u64,
            max_inflight_msgs: APPENDS_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            max_committed_size_per_ready: COMMIT_BYTES_MAX,
            ..Config::default()
        };
        config.validate().map_err(|error| StartError::Settings(error.to_string()))?;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let engine = RawNode::new(&config, log, &logger)
            .map_err(|error| StartError::Settings(error.to_string()))?;
        let timeout = Timeout {
            state: entropy,
            drawn: pace.election,
            drawn_for: (u64::MAX, StateRole::Follower, 0),
            pace,
        };
        let mut raft = Raft {
            node,
            engine,
            members,
            writes: Writes::new(vote.term),
            ahead: Ahead::default(),
            timeout,
            office: Office::Looking { term: vote.term },
            uncommitted_bytes: 0,
            own_term_at: 0,
            changed_at: 0,
            stopped: None,
            outputs: VecDeque::new(),
            planted,
        };
        raft.draw();
        Ok(raft)
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A tick has passed; a late one counts once. `entropy` need not be new each time.
    pub fn tick(&mut self, entropy: u64) {
        self.timeout.state ^= entropy;
        if self.stopped.is_some() || !self.may_stand() {
            return;
        }
        self.engine.tick();
        self.settle();
    }

    /// Whether an election may begin here, if the time has come. A leader may always go on.
    fn may_stand(&self) -> bool {
        // A lone voter leads as soon as it stands, and the engine wants its log on the disk then.
        // It also looks for records behind what is applied, which a snapshot may have taken away
        // that is not on the disk yet.
        let alone = self.members.as_ref().is_some_and(|members| votes_alone(members, self.node));
        let waits = self.writes.is_installing() || (alone && self.writes.is_writing());
        self.engine.raft.state == StateRole::Leader || !waits
    }

    /// A message came over the connection of `peer`.
    pub fn heard(&mut self, peer: Node, message: &PeerMessage) -> Result<(), Refused> {
        self.check(peer, message)?;
        match message {
            PeerMessage::Piece(piece) => {
                self.ahead.take(peer, piece);
                return Ok(());
            }
            PeerMessage::Install(offer) if self.needs(offer) => {
                self.outputs.push_back(Output::Fetch { from: peer, offer: offer.clone() });
                return Ok(());
            }
            PeerMessage::TimeoutNow(_) if !self.may_stand() => return Ok(()),
            PeerMessage::Append(_)
            | PeerMessage::AppendResp(_)
            | PeerMessage::RequestVote(_)
            | PeerMessage::VoteResp(_)
            | PeerMessage::Install(_)
            | PeerMessage::TimeoutNow(_) => {}
        }
        self.step(peer, message)
    }

    /// The data of a snapshot that was to be fetched is here, and synced. It counts only if a
    /// [`Write`] with the snapshot follows at once.
    pub fn fetched(&mut self, peer: Node, offer: &InstallSnapshot) -> Result<(), Refused> {
        let message = PeerMessage::Install(offer.clone());
        self.check(peer, &message)?;
        self.step(peer, &message)
    }

    /// A snapshot that was to be installed at a follower is there, or will not be.
    pub fn installed(&mut self, to: Node, is_there: bool) {
        if self.stopped.is_some() {
            return;
        }
        let status = if is_there { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.engine.report_snapshot(id(to), status);
        self.settle();
    }

    /// What was sent to a node may not have arrived.
    pub fn unreachable(&mut self, to: Node) {
        if self.stopped.is_none() {
            self.engine.report_unreachable(id(to));
            self.settle();
        }
    }

    /// The disk has the write with this number, and all before it.
    pub fn synced(&mut self, number: u64) {
        if self.stopped.is_none() {
            let released = self.writes.synced(number);
            self.release(released);
            self.settle();
        }
    }

    /// A committed record is applied, and all before it. Each record of members is reported by
    /// itself, with the members that it led to, if it changed them.
    pub fn applied(&mut self, up_to: Index, changed: Option<&Arc<Members>>) {
        if self.stopped.is_some() || up_to.0 <= self.engine.raft.raft_log.applied {
            // A snapshot that is being installed is ahead of it.
            return;
        }
        let log = &self.engine.raft.raft_log;
        if up_to.0 > log.committed.min(log.persisted) {
            self.stop(Damage::AppliedEarly { index: up_to });
            return;
        }
        if let Some(next) = changed {
            self.change(up_to, next);
        }
        if self.stopped.is_none() {
            self.engine.advance_apply_to(up_to.0);
            self.settle();
        }
    }

    /// Proposes a record. Its place is the next one, and whoever proposes may rely on that.
    pub fn propose(&mut self, body: Body) -> Result<Index, NotTaken> {
        self.may_propose(&body)?;
        let index = self.engine.raft.raft_log.last_index().saturating_add(1);
        let len = body.len();
        let proposed = match &body {
            Body::Term => return Err(NotTaken::Empty),
            Body::Record(bytes) => self.engine.propose(Vec::new(), bytes.to_vec()),
            Body::Members(next) => {
                let bytes = messages::members_bytes(next).to_vec();
                match changes(self.members.as_deref(), next).pop() {
                    Some(change) => self.engine.propose_conf_change(bytes, change),
                    None => self.engine.propose(bytes, Vec::new()),
                }
            }
        };
        let is_there = self.engine.raft.raft_log.last_index() == index;
        if proposed.is_err() || !is_there {
            return Err(NotTaken::NotLeader);
        }
        self.uncommitted_bytes = self.uncommitted_bytes.saturating_add(len);
        if matches!(body, Body::Members(_)) {
            self.changed_at = index;
        }
        self.settle();
        Ok(Index(index))
    }

    fn may_propose(&self, body: &Body) -> Result<(), NotTaken> {
        if let Some(damage) = &self.stopped {
            return Err(NotTaken::Stopped(damage.clone()));
        }
        let raft = &self.engine.raft;
        if raft.state != StateRole::Leader {
            return Err(NotTaken::NotLeader);
        }
        if !matches!(self.standing(), Office::Leading { .. }) {
            return Err(NotTaken::TermNotBegun);
        }
        if raft.lead_transferee.is_some() {
            return Err(NotTaken::HandingOver);
        }
        let waiting = raft.raft_log.last_index().saturating_sub(raft.raft_log.committed);
        if waiting >= UNCOMMITTED_RECORDS_MAX {
            let (what, limit) = ("records", UNCOMMITTED_RECORDS_MAX);
            return Err(NotTaken::Busy { what, value: waiting, limit });
        }
        let len = body.len();
        if len > PROPOSED_BYTES_MAX {
            return Err(NotTaken::TooLarge { bytes: len, limit: PROPOSED_BYTES_MAX });
        }
        let bytes = self.uncommitted_bytes.saturating_add(len);
        if self.uncommitted_bytes > 0 && bytes > UNCOMMITTED_BYTES_MAX {
            let (value, limit) = (bytes as u64, UNCOMMITTED_BYTES_MAX as u64);
            return Err(NotTaken::Busy { what: "bytes of records", value, limit });
        }
        match body {
            Body::Record(bytes) if bytes.is_empty() => Err(NotTaken::Empty),
            Body::Members(_)
                if raft.has_pending_conf() || raft.raft_log.applied < self.changed_at =>
            {
                Err(NotTaken::ChangeUnderWay)
            }
            Body::Members(next) => {
                let follows = self.members.as_ref().is_some_and(|now| {
                    let counts = !changes(Some(now), next).is_empty();
                    now.may_become(next) && counts == (now.is_joint() != next.is_joint())
                });
                if follows { Ok(()) } else { Err(NotTaken::NotAStep) }
            }
            Body::Record(_) | Body::Term => Ok(()),
        }
    }

    /// Hands the office over. Nothing is taken until that is done, or an election's time is over.
    pub fn transfer(&mut self, to: Node) -> Result<(), NotTaken> {
        if let Some(damage) = &self.stopped {
            return Err(NotTaken::Stopped(damage.clone()));
        }
        if self.engine.raft.state != StateRole::Leader {
            return Err(NotTaken::NotLeader);
        }
        let members = self.members.as_ref();
        if to == self.node || !members.is_some_and(|members| votes(members, to)) {
            return Err(NotTaken::NotAVoter { node: to });
        }
        if self.planted.has(Bug::TransferLagging) {
            self.engine.raft.send_timeout_now(id(to));
        } else {
            self.engine.transfer_leader(id(to));
        }
        self.settle();
        Ok(())
    }

    /// A snapshot of what is applied here is on the disk. Records before `keep` are dropped, and
    /// followers that need them get the snapshot.
    pub fn compact(&mut self, snapshot: Snapshot, keep: Index) {
        let applied = self.engine.raft.raft_log.applied;
        let log = self.engine.mut_store();
        if snapshot.index.0 <= applied && log.term_of(snapshot.index.0) == Some(snapshot.term.0) {
            log.compact(snapshot, keep);
        }
    }

    /// The members, as of what is applied here.
    pub fn members(&self) -> Option<&Arc<Members>> {
        self.members.as_ref()
    }

    /// Whether this leader has to finish a change of members that is applied.
    pub fn has_to_leave(&self) -> bool {
        let joint = self.members.as_ref().is_some_and(|members| members.is_joint());
        joint
            && matches!(self.standing(), Office::Leading { .. })
            && !self.engine.raft.has_pending_conf()
            && self.engine.raft.lead_transferee.is_none()
    }

    /// How far this node is.
    pub fn status(&self) -> Status {
        let raft = &self.engine.raft;
        let followers = raft.prs().iter().filter(|(peer, _)| **peer != raft.id);
        let matched = match raft.state {
            StateRole::Leader => followers
                .filter_map(|(peer, progress)| Some((node(*peer)?, Index(progress.matched))))
                .collect(),
            StateRole::Follower | StateRole::Candidate | StateRole::PreCandidate => Vec::new(),
        };
        Status {
            office: self.standing(),
            role: self.role(),
            voted: node(raft.vote),
            committed: Index(raft.raft_log.committed),
            applied: Index(raft.raft_log.applied),
            last: Index(raft.raft_log.last_index()),
            first: Index(raft.raft_log.store.base().saturating_add(1)),
            matched,
        }
    }

    /// Why this node has stopped, if it has.
    pub fn stopped(&self) -> Option<&Damage> {
        self.stopped.as_ref()
    }

    fn role(&self) -> Role {
        match self.engine.raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::PreCandidate => Role::PreCandidate,
            StateRole::Candidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        }
    }

    fn standing(&self) -> Office {
        let raft = &self.engine.raft;
        let term = Term(raft.term);
        let begun = raft.raft_log.applied >= self.own_term_at;
        // A lone voter leads at once. Before its vote is on the disk it could lead the term again.
        let has_vote = self.writes.has_term(term) || self.planted.has(Bug::LeadsBeforeVote);
        match (raft.state, node(raft.leader_id)) {
            (StateRole::Leader, _) if !has_vote => Office::Looking { term },
            (StateRole::Leader, _) if begun => Office::Leading { term },
            (StateRole::Leader, _) => Office::Elected { term },
            (_, Some(leader)) => Office::Following { term, leader },
            (_, None) => Office::Looking { term },
        }
    }

    fn check(&mut self, peer: Node, message: &PeerMessage) -> Result<(), Refused> {
        if let Some(damage) = &self.stopped {
            return Err(Refused::Stopped(damage.clone()));
        }
        if self.members.as_ref().is_some_and(|members| members.removed().contains(&peer)) {
            return Err(Refused::Removed { node: peer });
        }
        let raft = &self.engine.raft;
        let known = Known {
            node: self.node,
            term: Term(raft.term),
            role: self.role(),
            leader: node(raft.leader_id),
            committed: raft.raft_log.committed,
            last: raft.raft_log.last_index(),
            log: &raft.raft_log.store,
        };
        match known.check(peer, message) {
            Verdict::Take => Ok(()),
            Verdict::Refuse(refused) => Err(refused),
            Verdict::Stop(damage) => {
                self.stop(damage.clone());
                Err(Refused::Stopped(damage))
            }
        }
    }

    /// Whether a snapshot that the leader offers would be used.
    fn needs(&self, offer: &InstallSnapshot) -> bool {
        let raft = &self.engine.raft;
        let has = raft.raft_log.store.term_of(offer.index) == Some(offer.index_term);
        offer.term >= raft.term && offer.index > raft.raft_log.committed && !has
    }

    fn step(&mut self, peer: Node, message: &PeerMessage) -> Result<(), Refused> {
        let ahead = &self.ahead;
        let made = messages::to_engine(message, |index, term| ahead.whole(peer, index, term))?;
        // It takes nothing from peers that it does not know, which is all it says.
        drop(self.engine.step(made));
        self.settle();
        self.ahead.drop_up_to(Index(self.engine.raft.raft_log.last_index()));
        Ok(())
    }

    fn stop(&mut self, damage: Damage) {
        self.outputs.push_back(Output::Stop(damage.clone()));
        self.stopped = Some(damage);
    }

    /// A record of members was applied: from now on these count.
    fn change(&mut self, index: Index, next: &Arc<Members>) {
        for change in changes(self.members.as_deref(), next) {
            if self.engine.apply_conf_change(&change).is_err() {
                self.stop(Damage::Members { index });
                return;
            }
        }
        let counted = self.engine.raft.prs().conf().to_conf_state();
        if !same_members(&counted, &conf_state(Some(next))) {
            self.stop(Damage::Members { index });
            return;
        }
        self.engine.mut_store().now.0 = Some(next.clone());
        self.members = Some(next.clone());
        // The engine would go on to lead, and counts itself where it is not any more.
        if self.engine.raft.state == StateRole::Leader && !votes(next, self.node) {
            let term = self.engine.raft.term;
            self.engine.raft.become_follower(term, 0);
        }
    }

    /// Sets the election timeout. The engine draws one by itself whenever it resets; ours stays
    /// until term, role or leader change.
    fn draw(&mut self) {
        let raft = &self.engine.raft;
        let drawn_for = (raft.term, raft.state, raft.leader_id);
        if drawn_for != self.timeout.drawn_for {
            self.timeout.drawn_for = drawn_for;
            self.timeout.next();
        }
        self.engine.raft.set_randomized_election_timeout(self.timeout.drawn);
    }

    /// Takes from the engine all that is to be done.
    fn settle(&mut self) {
        self.draw();
        while self.stopped.is_none() && self.engine.has_ready() {
            self.take_ready();
            self.draw();
        }
        if self.engine.store().take_wanted() {
            self.outputs.push_back(Output::SnapshotWanted);
        }
        let office = self.standing();
        if self.stopped.is_none() && office != self.office {
            self.office = office;
            self.outputs.push_back(Output::Office(office));
        }
    }
}

/// Up to where a log tells by itself that it is committed. The engine counts with the members that
/// are applied, and that is safe only for a node that is behind by one change at most. What a crash
/// takes of what was applied must not set it further back: as a change is proposed when the one
/// before it is applied, of two changes in a log the first is committed.
fn known_commit(entries: &[Entry], applied: Index) -> Index {
    let changes = entries.iter().filter(|entry| matches!(entry.body, Body::Members(_)));
    let before_last = changes.map(|entry| entry.index).rev().nth(1);
    before_last.map_or(applied, |index| applied.max(index))
}

/// Whether the records of a log follow each other.
fn check_log(base: (Index, Term), entries: &[Entry]) -> Result<(), StartError> {
    let (mut at, mut before) = base;
    for entry in entries {
        at = at.next();
        if entry.index != at {
            return Err(StartError::Gap { expected: at, found: entry.index });
        }
        if entry.term < before || entry.term == Term(0) {
            let (index, found) = (at, entry.term);
            return Err(StartError::Terms { index, before, found });
        }
        before = entry.term;
    }
    Ok(())
}
