//! What operators do: one change of the members after the other.

use std::sync::Arc;

use heft::consensus::members::{Change, enter, next_number};
use heft::consensus::raft::Body;
use heft::core::ids::Node;
use heft::core::members::{Member, Members, Role};

use super::disk::Content;
use super::node::SimNode;
use super::world::{World, member};

const NODES_MAX: usize = 10;

impl World {
    /// Asks the leader, if there is one, for a change.
    pub(crate) fn operate(&mut self) -> Result<(), String> {
        let Some(leader) = self.leader() else { return Ok(()) };
        let raft = self.nodes[&leader].raft.as_ref().unwrap();
        let Some(members) = raft.members().cloned() else { return Ok(()) };
        if members.is_joint() {
            return Ok(());
        }
        let list = members.incoming().to_vec();
        let of = |role: Role| -> Vec<Node> {
            list.iter().filter(|member| member.role == role).map(|member| member.node).collect()
        };
        let (voters, learners) = (of(Role::Voter), of(Role::Learner));
        let (voter, learner) = (self.random.pick(&voters), self.random.pick(&learners));
        let change = match (self.random.below(8), voter, learner) {
            (0..=2, ..) => return self.add(leader, &members),
            (3 | 4, _, Some(node)) => Change::Promote(node),
            (5, Some(old), Some(new)) if voters.len() > 1 => Change::Replace { old, new },
            (6, Some(node), _) if voters.len() > 1 => Change::Demote(node),
            (7, Some(node), _) if voters.len() > 1 => Change::Remove(node),
            (_, _, Some(node)) => Change::Remove(node),
            _ => return Ok(()),
        };
        let Ok(next) = enter(&members, change) else { return Ok(()) };
        self.propose(leader, Body::Members(Arc::new(next))).map(drop)
    }

    /// A new node comes up, and the leader adds it.
    fn add(&mut self, leader: Node, members: &Members) -> Result<(), String> {
        // One that came up and was never added is tried again first.
        let fresh = |node: &&SimNode| {
            members.member(node.node).is_none() && !members.removed().contains(&node.node)
        };
        let fresh = self.nodes.values().find(fresh).map(|node| (node.node, node.dir));
        let (number, dir) = match fresh {
            Some(fresh) => fresh,
            None if self.nodes.len() >= NODES_MAX => return Ok(()),
            None => {
                let Ok(number) = next_number(members, self.planted) else { return Ok(()) };
                let dir = self.dir();
                self.history.number(number)?;
                self.nodes.insert(number, SimNode::new(number, dir, Content::empty()));
                self.start(number)?;
                (number, dir)
            }
        };
        let role = if self.random.one_in(3) { Role::Voter } else { Role::Learner };
        let added: Member = member(number, dir, role);
        let Ok(next) = enter(members, Change::Add(added)) else { return Ok(()) };
        self.propose(leader, Body::Members(Arc::new(next))).map(drop)
    }

    /// A leader finishes the change that is under way.
    pub(crate) fn finish_change(&mut self, leader: Node) -> Result<(), String> {
        let Some(raft) = &self.nodes[&leader].raft else { return Ok(()) };
        if !raft.has_to_leave() {
            return Ok(());
        }
        let Some(next) = raft.members().and_then(|members| members.leave().ok()) else {
            return Ok(());
        };
        self.propose(leader, Body::Members(Arc::new(next))).map(drop)
    }
}
