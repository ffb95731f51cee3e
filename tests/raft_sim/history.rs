//! What all nodes together have said and committed, and the rules that it must keep.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use heft::consensus::members::voters;
use heft::consensus::raft::{Body, Entry};
use heft::core::ids::{Index, Node, Term};
use heft::core::members::Members;

use super::disk::Content;

/// Stands for a state: equal if the same records were applied in the same order.
pub(crate) type Digest = u64;

pub(crate) fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn body(entry: &Entry) -> u64 {
    match &entry.body {
        Body::Term => 1,
        Body::Record(bytes) => {
            bytes.iter().take(64).fold(bytes.len() as u64, |sum, byte| mix(sum ^ u64::from(*byte)))
        }
        Body::Members(members) => {
            let list = |members: &[heft::core::members::Member]| {
                members.iter().fold(7, |sum, member| {
                    mix(sum ^ u64::from(member.node.0) << 1 ^ u64::from(member.is_voter()))
                })
            };
            mix(list(members.incoming()))
                ^ list(members.outgoing().unwrap_or_default()).rotate_left(7)
                ^ members.removed().len() as u64
        }
    }
}

/// The state after one more record.
pub(crate) fn digest(before: Digest, entry: &Entry) -> Digest {
    mix(mix(before ^ entry.term.0).wrapping_add(body(entry)))
}

#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) term: Term,
    body: u64,
    pub(crate) digest: Digest,
    /// As of this record.
    pub(crate) members: Option<Arc<Members>>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    committed: BTreeMap<Index, Committed>,
    /// Who led a term, and in which of its lives.
    leaders: HashMap<Term, (Node, u64)>,
    /// For whom a node voted in a term.
    votes: HashMap<(Node, Term), Node>,
    /// What is in any log at a place of a term: the record, and the term of the one before.
    logged: HashMap<(Index, Term), (u64, Option<Term>)>,
    numbers: BTreeSet<Node>,
    /// Up to here it was checked that a majority has what is committed.
    certain: Index,
    /// The term of the node that was the first to know a record committed.
    committed_by: HashMap<Index, Term>,
    /// The members that were committed, one after the other.
    in_force: Vec<Arc<Members>>,
}

type Checked = Result<(), String>;

fn wrong<T>(text: String) -> Result<T, String> {
    Err(text)
}

impl History {
    pub(crate) fn last(&self) -> Index {
        self.committed.last_key_value().map_or(Index(0), |(index, _)| *index)
    }

    pub(crate) fn at(&self, index: Index) -> Option<&Committed> {
        self.committed.get(&index)
    }

    /// A number is given to a new node.
    pub(crate) fn number(&mut self, node: Node) -> Checked {
        match self.numbers.insert(node) {
            true => Ok(()),
            false => wrong(format!("number {node} was given out twice")),
        }
    }

    /// A node says that it leads.
    pub(crate) fn leads(&mut self, term: Term, node: Node, life: u64) -> Checked {
        let known = *self.leaders.entry(term).or_insert((node, life));
        if known != (node, life) {
            return wrong(format!("term {term} has two leaders: {known:?} and {:?}", (node, life)));
        }
        Ok(())
    }

    /// A leader has all that was committed in earlier terms: not what a later leader has committed
    /// while its votes were on their way.
    pub(crate) fn is_complete(&self, term: Term, node: Node, log: &Content) -> Checked {
        for (index, committed) in self.committed.iter().rev() {
            let by = self.committed_by.get(index).copied().unwrap_or(Term(0));
            if by >= term || *index < log.base.0 {
                continue;
            }
            if log.term(*index) != Some(committed.term) {
                return wrong(format!(
                    "node {node} leads term {term} without the committed record {index}"
                ));
            }
            // The rest follows from the equality of logs, which is checked as they are written.
            break;
        }
        Ok(())
    }

    pub(crate) fn votes(&mut self, voter: Node, term: Term, candidate: Node) -> Checked {
        let known = *self.votes.entry((voter, term)).or_insert(candidate);
        if known != candidate {
            return wrong(format!("node {voter} voted for {known} and {candidate} in term {term}"));
        }
        Ok(())
    }

    /// Two logs that have a record of the same place and term have the same one, and are the same
    /// before it.
    pub(crate) fn logs(&mut self, entry: &Entry, before: Option<Term>) -> Checked {
        let found = (body(entry), before);
        let known = self.logged.entry((entry.index, entry.term)).or_insert(found);
        if known.0 != found.0 || (known.1.is_some() && before.is_some() && known.1 != before) {
            return wrong(format!("two logs differ in record {} of {}", entry.index, entry.term));
        }
        known.1 = known.1.or(before);
        Ok(())
    }

    /// A node says that a record is committed: a majority has it on the disk. It counts with the
    /// members that some node counts with now, or that were in force a moment ago.
    pub(crate) fn commits(
        &mut self,
        entry: &Entry,
        disks: &[(Node, &Content)],
        mut now: Vec<Arc<Members>>,
        by: Term,
    ) -> Checked {
        let Entry { index, term, .. } = entry;
        if *index <= self.certain {
            return Ok(());
        }
        self.certain = *index;
        self.committed_by.insert(*index, by);
        now.extend(self.in_force.iter().rev().take(3).cloned());
        let has = |voters: &BTreeSet<Node>| {
            let having = disks.iter().filter(|(node, disk)| {
                let beyond = disk.base.0 >= *index;
                voters.contains(node) && (beyond || disk.term(*index) == Some(*term))
            });
            2 * having.count() > voters.len()
        };
        match now.iter().any(|members| voters(members).iter().all(has)) {
            true => Ok(()),
            false => wrong(format!("record {index} is committed, and no majority has synced it")),
        }
    }

    /// A node applies a committed record, and is then in this state.
    pub(crate) fn applies(
        &mut self,
        node: Node,
        entry: &Entry,
        state: (Digest, Option<&Arc<Members>>),
    ) -> Checked {
        let Entry { index, term, .. } = entry;
        if let Some(known) = self.committed.get(index) {
            if (known.term, known.body) != (*term, body(entry)) {
                return wrong(format!("node {node} applies another record {index}"));
            }
        } else {
            if *index != self.last().next() {
                return wrong(format!("record {index} is committed behind {}", self.last()));
            }
            let (digest, members) = (state.0, state.1.cloned());
            let committed =
                Committed { term: *term, body: body(entry), digest, members: members.clone() };
            self.in_force.extend(members.filter(|members| self.in_force.last() != Some(members)));
            self.committed.insert(*index, committed);
        }
        self.agrees(node, *index, state)
    }

    /// A node's state is the one that the committed records lead to.
    pub(crate) fn agrees(
        &self,
        node: Node,
        index: Index,
        (digest, members): (Digest, Option<&Arc<Members>>),
    ) -> Checked {
        let Some(known) = self.committed.get(&index).filter(|_| index.0 > 0) else {
            return if index.0 == 0 {
                Ok(())
            } else {
                wrong(format!("{index} was never committed"))
            };
        };
        if known.digest != digest || known.members.as_ref() != members {
            return wrong(format!("node {node} has another state as of record {index}"));
        }
        Ok(())
    }

    /// What was committed before there was a cluster.
    pub(crate) fn founded(&mut self, content: &Content) {
        let (mut sum, mut members) = (content.saved.digest, None);
        for entry in &content.entries {
            sum = digest(sum, entry);
            if let Body::Members(next) = &entry.body {
                members = Some(next.clone());
            }
            let committed = Committed {
                term: entry.term,
                body: body(entry),
                digest: sum,
                members: members.clone(),
            };
            self.committed.insert(entry.index, committed);
            self.certain = entry.index;
        }
        self.in_force.extend(members);
    }
}
