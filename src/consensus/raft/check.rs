//! What a message from another node must satisfy before the engine sees it. The engine ends the
//! process on input that it takes for impossible, so nothing impossible may reach it.

use chunking::message::{
    AppendEntries, AppendOutcome, AppendResp, AppendSays, InstallSnapshot, RequestVote, VoteFlags,
    VoteResp,
};
use thiserror::Error;

use super::log::Log;
use super::messages::PeerMessage;
use super::{Damage, Role};
use crate::consensus::limits::NUMBER_MAX;
use crate::core::ids::{Index, Node, Term};

/// Why a message was not taken. The connection may go on, but for [`Refused::Ends`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("a message from node {from} to node {to} came from node {peer} to node {here}")]
    Ends { from: Node, to: Node, peer: Node, here: Node },
    #[error("node {node} was removed from the cluster, and is not heard any more")]
    Removed { node: Node },
    #[error("`{field}` is {value}; {expected}")]
    Field { field: &'static str, value: u64, expected: &'static str },
    #[error("node {from} says it leads term {term}, in which node {leader} leads")]
    SecondLeader { from: Node, leader: Node, term: Term },
    #[error("node {from} is not the leader of term {term}, and cannot hand it over")]
    NotItsLeader { from: Node, term: Term },
    #[error(transparent)]
    Content(#[from] super::ConvertError),
    #[error("this node has stopped: {0}")]
    Stopped(Damage),
}

/// What is known here, to compare with.
pub(super) struct Known<'a> {
    pub(super) node: Node,
    pub(super) term: Term,
    pub(super) role: Role,
    pub(super) leader: Option<Node>,
    pub(super) committed: u64,
    pub(super) last: u64,
    pub(super) log: &'a Log,
}

/// What follows from a check.
pub(super) enum Verdict {
    Take,
    Refuse(Refused),
    /// One of the two nodes has lost or changed what was agreed on.
    Stop(Damage),
}

const TERM: &str = "terms are from 1 to 2^62";
const INDEX: &str = "places of records are below 2^62";

impl Known<'_> {
    pub(super) fn check(&self, peer: Node, message: &PeerMessage) -> Verdict {
        match self.verdict(peer, message) {
            Ok(None) => Verdict::Take,
            Ok(Some(damage)) => Verdict::Stop(damage),
            Err(refused) => Verdict::Refuse(refused),
        }
    }

    fn verdict(&self, peer: Node, message: &PeerMessage) -> Result<Option<Damage>, Refused> {
        let (from, to) = message.ends();
        if from != peer || to != self.node || from == self.node {
            return Err(Refused::Ends { from, to, peer, here: self.node });
        }
        let term = message.term();
        within("term", term.0, 1, TERM)?;
        match message {
            PeerMessage::Append(append) => self.append(from, append),
            PeerMessage::AppendResp(resp) => self.append_resp(resp).map(|()| None),
            PeerMessage::RequestVote(vote) => request_vote(vote).map(|()| None),
            PeerMessage::VoteResp(vote) => vote_resp(vote).map(|()| None),
            PeerMessage::Install(install) => self.install(from, install),
            PeerMessage::Piece(piece) => within("index", piece.index, 1, INDEX).map(|()| None),
            PeerMessage::TimeoutNow(_) => match self.leader == Some(from) && term == self.term {
                true => Ok(None),
                false => Err(Refused::NotItsLeader { from, term }),
            },
        }
    }

    /// Whether somebody else says that it leads the term that this node knows the leader of.
    fn leads(&self, from: Node, term: u64) -> Result<(), Refused> {
        let term = Term(term);
        let leader = if self.role == Role::Leader { Some(self.node) } else { self.leader };
        match leader.filter(|leader| term == self.term && *leader != from) {
            Some(leader) => Err(Refused::SecondLeader { from, leader, term }),
            None => Ok(()),
        }
    }

    fn append(&self, from: Node, append: &AppendEntries) -> Result<Option<Damage>, Refused> {
        let AppendEntries { term, prev_index, prev_term, commit, round, .. } = append;
        within("prev_index", *prev_index, 0, INDEX)?;
        within("commit", *commit, 0, INDEX)?;
        zero("round", *round, "nobody asks for rounds yet")?;
        self.leads(from, *term)?;
        if append.says == AppendSays::Heartbeat {
            zero("prev_index", *prev_index, "a heartbeat is about no record")?;
            zero("prev_term", *prev_term, "a heartbeat is about no record")?;
            zero("entries", append.entries.0.len() as u64, "a heartbeat has no records")?;
            let lost = *term >= self.term.0 && *commit > self.last;
            let (last, said) = (Index(self.last), Index(*commit));
            return Ok(lost.then_some(Damage::Lost { last, said }));
        }
        if (*prev_index == 0) != (*prev_term == 0) {
            let expected = "only what comes before the first record has term 0";
            return Err(Refused::Field { field: "prev_term", value: *prev_term, expected });
        }
        let mut before = *prev_term;
        for entry in &append.entries.0 {
            if entry.term < before || entry.term == 0 || entry.term > *term {
                let expected = "terms of records go up to the leader's, and never down";
                return Err(Refused::Field { field: "entries", value: entry.term, expected });
            }
            before = entry.term;
        }
        if before > *term {
            return Err(Refused::Field { field: "prev_term", value: before, expected: TERM });
        }
        if *term < self.term.0 || self.log.term_of(*prev_index) != Some(*prev_term) {
            return Ok(None);
        }
        // The logs meet here, so what is committed on this side has to be equal.
        for (entry, index) in append.entries.0.iter().zip(prev_index.saturating_add(1)..) {
            let here = self.log.term_of(index);
            if index <= self.committed && here.is_some_and(|here| here != entry.term) {
                return Ok(Some(Damage::Conflict { index: Index(index), leader: from }));
            }
        }
        Ok(None)
    }

    fn append_resp(&self, resp: &AppendResp) -> Result<(), Refused> {
        within("index", resp.index, 0, INDEX)?;
        within("hint", resp.hint, 0, INDEX)?;
        within("hint_term", resp.hint_term, 0, TERM)?;
        within("commit", resp.commit, 0, INDEX)?;
        zero("round", resp.round, "nobody asks for rounds yet")?;
        let taken = resp.outcome == AppendOutcome::Taken;
        if self.role == Role::Leader && resp.term == self.term.0 && taken && resp.index > self.last
        {
            let expected = "a follower has no more than its leader";
            return Err(Refused::Field { field: "index", value: resp.index, expected });
        }
        Ok(())
    }

    fn install(&self, from: Node, install: &InstallSnapshot) -> Result<Option<Damage>, Refused> {
        let InstallSnapshot { term, index, index_term, .. } = *install;
        within("index", index, 1, INDEX)?;
        within("index_term", index_term, 1, TERM)?;
        if index_term > term {
            let expected = "no record is of a term behind the leader's";
            return Err(Refused::Field { field: "index_term", value: index_term, expected });
        }
        self.leads(from, term)?;
        let here = self.log.term_of(index).filter(|_| index <= self.committed);
        let differs = term >= self.term.0 && here.is_some_and(|here| here != index_term);
        let conflict = Damage::Conflict { index: Index(index), leader: from };
        Ok(differs.then_some(conflict))
    }
}

fn request_vote(vote: &RequestVote) -> Result<(), Refused> {
    within("last_index", vote.last_index, 0, INDEX)?;
    place("commit", vote.commit, vote.commit_term)?;
    place("last_index", vote.last_index, vote.last_term)?;
    if vote.last_term >= vote.term {
        let (value, expected) = (vote.last_term, "a candidate stands for a term behind its log");
        return Err(Refused::Field { field: "last_term", value, expected });
    }
    if vote.commit > vote.last_index || vote.commit_term > vote.last_term {
        let (value, expected) = (vote.commit, "what is committed is in the log");
        return Err(Refused::Field { field: "commit", value, expected });
    }
    let both = VoteFlags(VoteFlags::PRE.0 | VoteFlags::TRANSFER.0);
    if vote.flags.has(both) {
        let (value, expected) = (vote.flags.0.into(), "a candidate that was chosen asks at once");
        return Err(Refused::Field { field: "flags", value, expected });
    }
    Ok(())
}

fn vote_resp(vote: &VoteResp) -> Result<(), Refused> {
    within("commit", vote.commit, 0, INDEX)?;
    within("commit_term", vote.commit_term, 0, TERM)
}

fn place(field: &'static str, index: u64, term: u64) -> Result<(), Refused> {
    within(field, index, 0, INDEX)?;
    if (index == 0) != (term == 0) {
        let expected = "only what comes before the first record has term 0";
        return Err(Refused::Field { field, value: index, expected });
    }
    Ok(())
}

fn within(
    field: &'static str,
    value: u64,
    least: u64,
    expected: &'static str,
) -> Result<(), Refused> {
    match (least..=NUMBER_MAX).contains(&value) {
        true => Ok(()),
        false => Err(Refused::Field { field, value, expected }),
    }
}

fn zero(field: &'static str, value: u64, expected: &'static str) -> Result<(), Refused> {
    if value == 0 { Ok(()) } else { Err(Refused::Field { field, value, expected }) }
}
