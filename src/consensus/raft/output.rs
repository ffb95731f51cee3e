//! What goes into the engine at a start and comes out of it, in our own terms; and how a step of
//! the engine becomes outputs.

use std::sync::Arc;

use ::raft::StateRole;
use ::raft::eraftpb::{Message, MessageType};
use bytes::Bytes;
use chunking::message::InstallSnapshot;
use thiserror::Error;

use super::change::node;
use super::messages::{self, ConvertError, PeerMessage};
use super::writes::Waiting;
use super::{Bug, Planted, Raft};
use crate::core::ids::{Index, Node, Term};
use crate::core::members::Members;

/// A place in the log, and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: Index,
    pub term: Term,
    pub body: Body,
}

/// What a record is to consensus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The first record of a leader's term. One in mid-term changes nothing.
    Term,
    /// The members change.
    Members(Arc<Members>),
    /// Anything else, as the log has it.
    Record(Bytes),
}

impl Body {
    /// Bytes that count toward the limits.
    pub(super) fn len(&self) -> usize {
        match self {
            Body::Record(bytes) => bytes.len(),
            Body::Term | Body::Members(_) => 0,
        }
    }
}

/// The last term that this node knows, and for whom it voted in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    pub term: Term,
    pub node: Option<Node>,
}

/// What a snapshot is to consensus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record in it.
    pub index: Index,
    /// The term of that record.
    pub term: Term,
    /// As of that record.
    pub members: Arc<Members>,
}

/// Times, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub heartbeat: usize,
    /// The shortest time without a leader after which a node stands for election.
    pub election: usize,
    /// The longest, and one more.
    pub election_most: usize,
}

impl Pace {
    /// With ticks of 25 ms: beats of 50 ms, elections after 250 to 500 ms.
    pub const USUAL: Pace = Pace { heartbeat: 2, election: 10, election_most: 20 };
}

/// What is on the disk when a node starts. All of it is synced.
#[derive(Clone, Debug)]
pub struct Start {
    pub node: Node,
    pub vote: Vote,
    /// The record before the first of `entries`, and its term.
    pub base: (Index, Term),
    /// The newest snapshot that has members.
    pub offer: Option<Snapshot>,
    /// Records of log and tail, without a gap.
    pub entries: Vec<Entry>,
    /// The last record that the state has.
    pub applied: Index,
    /// As of `applied`.
    pub members: Option<Arc<Members>>,
    pub pace: Pace,
    pub entropy: u64,
    pub planted: Planted,
}

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Office {
    /// Nobody is known to.
    Looking {
        term: Term,
    },
    Following {
        term: Term,
        leader: Node,
    },
    /// This node, but the first record of its term is not applied yet.
    Elected {
        term: Term,
    },
    /// This node, and it takes records.
    Leading {
        term: Term,
    },
}

impl Office {
    pub const fn term(self) -> Term {
        match self {
            Office::Looking { term }
            | Office::Following { term, .. }
            | Office::Elected { term }
            | Office::Leading { term } => term,
        }
    }
}

/// What a node does in an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Follower,
    /// Asks whether it would be elected.
    PreCandidate,
    Candidate,
    Leader,
}

/// How far a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub office: Office,
    pub role: Role,
    pub voted: Option<Node>,
    pub committed: Index,
    pub applied: Index,
    pub last: Index,
    /// The first record that is in memory.
    pub first: Index,
    /// At a leader: up to where each other node is known to have the log.
    pub matched: Vec<(Node, Index)>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Write(Write),
    Send {
        to: Node,
        message: PeerMessage,
    },
    /// These are committed, and are to be applied in this order.
    Commit(Vec<Entry>),
    Office(Office),
    /// A follower needs a snapshot: it is offered this, and the data follows. Whatever becomes of
    /// it, [`Raft::installed`] has to be told.
    Install {
        to: Node,
        offer: InstallSnapshot,
    },
    /// A follower needs a snapshot, and the newest one is from before it was a member, or there is
    /// none: [`Raft::compact`] has to be told of another. Said once until then.
    SnapshotWanted,
    /// The leader offers a snapshot that is needed here. [`Raft::fetched`] has to be told when its
    /// data is on the disk.
    Fetch {
        from: Node,
        offer: InstallSnapshot,
    },
    /// Nothing more is to be done, ever: the process ends and says why.
    Stop(Damage),
}

/// What is to be written, in this order, and synced as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// [`Raft::synced`] takes it.
    pub number: u64,
    pub vote: Option<Vote>,
    /// The fetched snapshot counts from now on: the log begins anew behind it.
    pub snapshot: Option<Snapshot>,
    /// Whatever was there from the first of these on is cut off.
    pub entries: Vec<Entry>,
    /// Whether the caller has to sync it, and to report that.
    pub waits: Waits,
}

/// Whether something waits for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    ForSync,
    /// Only with a planted bug.
    ForNothing,
}

/// Why a node cannot go on. What it has must not count any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    #[error(
        "the log ends at record {last}, and the leader knows that this node had record {said}: \
         replace the node with `heft cluster replace`"
    )]
    Lost { last: Index, said: Index },
    #[error(
        "record {index} is committed here, and node {leader} has another one there: replace this \
         node with `heft cluster replace`"
    )]
    Conflict { index: Index, leader: Node },
    #[error("record {index} was applied and is not committed: this is a defect of heft")]
    AppliedEarly { index: Index },
    #[error("the members of record {index} do not follow from those before it")]
    Members { index: Index },
    #[error("the engine cannot be followed: {0}")]
    Engine(#[from] ConvertError),
}

/// Why a record is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotTaken {
    #[error("this node does not lead")]
    NotLeader,
    #[error("this node leads, but its term has not begun: try again soon")]
    TermNotBegun,
    #[error("the office is being handed over: try again soon")]
    HandingOver,
    #[error("{value} {what} wait for a majority, and {limit} are the limit: try again soon")]
    Busy { what: &'static str, value: u64, limit: u64 },
    #[error("a record has {bytes} bytes, and {limit} are the limit")]
    TooLarge { bytes: usize, limit: usize },
    #[error("a record has no bytes")]
    Empty,
    #[error("another change of the members is under way: wait until that is done")]
    ChangeUnderWay,
    #[error("these members do not follow from those of now in one step")]
    NotAStep,
    #[error("node {node} is not another voter: see `heft cluster status`")]
    NotAVoter { node: Node },
    #[error("this node has stopped: {0}")]
    Stopped(Damage),
}

impl Raft {
    /// Takes one step from the engine, in the order that it wants: what it writes is found by it
    /// before the next step, and what is promised waits for the disk.
    pub(super) fn take_ready(&mut self) {
        let mut ready = self.engine.ready();
        let number = ready.number();
        let vote = ready
            .hs()
            .filter(|_| ready.must_sync())
            .map(|hard| Vote { term: Term(hard.term), node: node(hard.vote) });
        let entries = ready.take_entries();
        let snapshot = match self.restored(ready.snapshot()) {
            Ok(snapshot) => snapshot,
            Err(error) => return self.stop(error.into()),
        };
        let is_written = ready.must_sync();
        let leads = self.engine.raft.state == StateRole::Leader;
        if leads && let Some(first) = entries.first().filter(|_| ready.ss().is_some()) {
            // The first record of the new term.
            self.own_term_at = first.index;
            self.changed_at = 0;
            self.uncommitted_bytes = 0;
        }
        self.engine.mut_store().append(&entries);
        self.engine.mut_store().now.1 = Term(self.engine.raft.term);
        let messages = [ready.take_messages(), ready.take_persisted_messages()].concat();
        let committed = ready.take_committed_entries();
        self.engine.advance_append_async(ready);

        let written: Result<Vec<Entry>, _> = entries.iter().map(messages::entry).collect();
        let entries = match written {
            Ok(entries) => entries,
            Err(error) => return self.stop(error.into()),
        };
        let only_vote = entries.is_empty() && snapshot.is_none();
        let unsynced = self.planted.has(Bug::VoteNotSynced) && only_vote;
        let mut waiting = Waiting {
            number,
            is_written: is_written && !unsynced,
            term: vote.map(|vote| vote.term),
            snapshot: snapshot.as_ref().map(|snapshot| snapshot.index),
            messages: Vec::new(),
        };
        if is_written {
            let waits = if unsynced { Waits::ForNothing } else { Waits::ForSync };
            let write = Write { number, vote, snapshot, entries, waits };
            self.outputs.push_back(Output::Write(write));
        }
        let held_dropped = self.planted.has(Bug::HeldDropped) && vote.is_some();
        for message in messages {
            if self.may_leave(&message, leads) {
                self.send(message);
            } else if !held_dropped {
                waiting.messages.push(message);
            }
        }
        if leads && self.planted.has(Bug::SelfCountedEarly) {
            waiting.is_written = false;
        }
        let released = self.writes.push(waiting);
        self.release(released);
        self.commit(&committed);
    }

    /// Whether a message says nothing that the disk does not have, or that has to wait for it.
    fn may_leave(&self, message: &Message, leads: bool) -> bool {
        if self.planted.has(Bug::ReplyBeforeSync) {
            return true;
        }
        // An answer to a heartbeat says nothing of records: a slow sync must not look like a dead
        // node. And a leader's records count only with those of a majority.
        let is_beat = message.get_msg_type() == MessageType::MsgHeartbeatResponse;
        let term_counts = self.writes.has_term(Term(message.term));
        (leads && (term_counts || self.planted.has(Bug::LeadsBeforeVote)))
            || (is_beat && term_counts)
    }

    /// The snapshot of a step, if it has one.
    fn restored(
        &mut self,
        snapshot: &::raft::eraftpb::Snapshot,
    ) -> Result<Option<Snapshot>, ConvertError> {
        if snapshot.is_empty() {
            return Ok(None);
        }
        let meta = snapshot.get_metadata();
        let (index, term) = (Index(meta.index), Term(meta.term));
        let members = messages::members_in(index, &snapshot.data)?;
        let snapshot = Snapshot { index, term, members };
        self.members = Some(snapshot.members.clone());
        self.engine.mut_store().restore(snapshot.clone());
        Ok(Some(snapshot))
    }

    /// Tells the engine what is on the disk, and sends what waited for it.
    pub(super) fn release(&mut self, released: Vec<Waiting>) {
        for Waiting { number, snapshot, messages, .. } in released {
            self.engine.on_persist_ready(number);
            if self.planted.has(Bug::CommittedAlone) && self.engine.raft.state == StateRole::Leader
            {
                let persisted = self.engine.raft.raft_log.persisted;
                self.engine.raft.raft_log.commit_to(persisted);
            }
            if let Some(index) = snapshot {
                self.engine.advance_apply_to(index.0);
            }
            messages.into_iter().for_each(|message| self.send(message));
        }
    }

    fn send(&mut self, message: Message) {
        let applied = Index(self.engine.raft.raft_log.applied);
        match messages::from_engine(message, applied) {
            Err(error) => self.stop(error.into()),
            Ok((to, sent)) => {
                self.outputs.extend(sent.into_iter().map(|message| {
                    if let PeerMessage::Install(offer) = message {
                        return Output::Install { to, offer };
                    }
                    Output::Send { to, message }
                }));
            }
        }
    }

    fn commit(&mut self, committed: &[::raft::eraftpb::Entry]) {
        if committed.is_empty() {
            return;
        }
        let entries: Result<Vec<Entry>, _> = committed.iter().map(messages::entry).collect();
        match entries {
            Err(error) => self.stop(error.into()),
            Ok(entries) => {
                let bytes = entries.iter().map(|entry| entry.body.len()).sum();
                self.uncommitted_bytes = self.uncommitted_bytes.saturating_sub(bytes);
                self.outputs.push_back(Output::Commit(entries));
            }
        }
    }
}
