//! Members as the engine counts them. Its ids are the numbers of nodes plus 1: it takes 0 for none.

use ::raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};

use crate::core::ids::Node;
use crate::core::members::{Member, Members, Role};

pub(super) fn id(node: Node) -> u64 {
    u64::from(node.0).saturating_add(1)
}

pub(super) fn node(id: u64) -> Option<Node> {
    id.checked_sub(1).and_then(|number| u32::try_from(number).ok()).map(Node)
}

/// The members in the engine's four lists. None at all before a node knows any.
pub(super) fn conf_state(members: Option<&Members>) -> ConfState {
    let mut state = ConfState::default();
    let Some(members) = members else { return state };
    let old = members.outgoing().unwrap_or_default();
    let voted = |node: Node| old.iter().any(|member| member.node == node && member.is_voter());
    for Member { node, role, .. } in members.incoming() {
        match role {
            Role::Voter => state.voters.push(id(*node)),
            // It has to vote until the change is done.
            Role::Learner if voted(*node) => state.learners_next.push(id(*node)),
            Role::Learner => state.learners.push(id(*node)),
        }
    }
    let outgoing = old.iter().filter(|member| member.is_voter());
    state.voters_outgoing = outgoing.map(|member| id(member.node)).collect();
    state
}

/// The engine's changes that lead from one list to the next: one, but for the first members that a
/// node gets to know. None if the lists do not differ in what the engine counts.
pub(super) fn changes(before: Option<&Members>, next: &Members) -> Vec<ConfChangeV2> {
    let Some(before) = before else {
        let single = |member: &Member| explicit(vec![single(member)], ConfChangeTransition::Auto);
        return next.incoming().iter().map(single).collect();
    };
    if before.is_joint() && !next.is_joint() {
        return vec![explicit(Vec::new(), ConfChangeTransition::Auto)];
    }
    let old = |node: Node| before.incoming().iter().find(|member| member.node == node);
    let mut singles: Vec<_> = next
        .incoming()
        .iter()
        .filter(|member| old(member.node).is_none_or(|old| old.role != member.role))
        .map(single)
        .collect();
    for gone in before.incoming() {
        if !next.incoming().iter().any(|member| member.node == gone.node) {
            singles.push(step(ConfChangeType::RemoveNode, gone.node));
        }
    }
    if singles.is_empty() {
        return Vec::new();
    }
    vec![explicit(singles, ConfChangeTransition::Explicit)]
}

fn single(member: &Member) -> ConfChangeSingle {
    let change = match member.role {
        Role::Voter => ConfChangeType::AddNode,
        Role::Learner => ConfChangeType::AddLearnerNode,
    };
    step(change, member.node)
}

fn step(change: ConfChangeType, node: Node) -> ConfChangeSingle {
    let mut single = ConfChangeSingle::default();
    single.set_change_type(change);
    single.node_id = id(node);
    single
}

fn explicit(singles: Vec<ConfChangeSingle>, transition: ConfChangeTransition) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    change.set_transition(transition);
    change.set_changes(singles.into());
    change
}
