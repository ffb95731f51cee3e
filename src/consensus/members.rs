//! Changes of the members of a cluster, as lists that follow each other. [`Members`] says which
//! changes are allowed; nothing here proposes or applies any.

use std::collections::BTreeSet;

use thiserror::Error;

use super::planted::{Bug, Planted};
use crate::core::ids::Node;
use crate::core::members::{Member, Members, MembersError, NODE_MAX, Role};

/// A change that an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node joins, as a learner or a voter.
    Add(Member),
    /// A learner votes from now on.
    Promote(Node),
    /// A voter only receives the log from now on.
    Demote(Node),
    /// A node goes for good.
    Remove(Node),
    /// One node goes, and another takes its place with its vote.
    Replace { old: Node, new: Node },
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    #[error("node {node} is not a member: see `heft cluster status`")]
    Unknown { node: Node },
    #[error("node {node} is a member already")]
    Known { node: Node },
    #[error("node {node} is a {role:?} already")]
    Already { node: Node, role: Role },
    #[error(transparent)]
    Members(#[from] MembersError),
}

/// The members that a change leads to. Both majorities count until [`Members::leave`] follows.
pub fn enter(members: &Members, change: Change) -> Result<Members, ChangeError> {
    let mut list = members.incoming().to_vec();
    match change {
        Change::Add(member) => {
            let node = member.node;
            if members.member(node).is_some() {
                return Err(ChangeError::Known { node });
            }
            list.push(member);
        }
        Change::Promote(node) => give_role(&mut list, node, Role::Voter)?,
        Change::Demote(node) => give_role(&mut list, node, Role::Learner)?,
        Change::Remove(node) => take_out(&mut list, node)?,
        Change::Replace { old, new } => {
            take_out(&mut list, old)?;
            give_role(&mut list, new, Role::Voter)?;
        }
    }
    Ok(members.enter(list)?)
}

fn give_role(list: &mut [Member], node: Node, role: Role) -> Result<(), ChangeError> {
    let member = list.iter_mut().find(|member| member.node == node);
    let member = member.ok_or(ChangeError::Unknown { node })?;
    if member.role == role {
        return Err(ChangeError::Already { node, role });
    }
    member.role = role;
    Ok(())
}

fn take_out(list: &mut Vec<Member>, node: Node) -> Result<(), ChangeError> {
    let before = list.len();
    list.retain(|member| member.node != node);
    if list.len() == before { Err(ChangeError::Unknown { node }) } else { Ok(()) }
}

/// The number for the next node: higher than any that was ever given out.
pub fn next_number(members: &Members, planted: Planted) -> Result<Node, ChangeError> {
    let mut known: BTreeSet<Node> = members.incoming().iter().map(|member| member.node).collect();
    known.extend(members.outgoing().unwrap_or_default().iter().map(|member| member.node));
    if !planted.has(Bug::NumberAgain) {
        known.extend(members.removed());
    }
    let next = known.last().map_or(Node(0), |last| last.next());
    if next > NODE_MAX { Err(MembersError::Number { node: next }.into()) } else { Ok(next) }
}

/// The voters of each list that is in force.
pub fn voters(members: &Members) -> Vec<BTreeSet<Node>> {
    let lists = [Some(members.incoming()), members.outgoing()];
    let voting = |list: &[Member]| {
        list.iter().filter(|member| member.is_voter()).map(|member| member.node).collect()
    };
    lists.into_iter().flatten().map(voting).collect()
}

/// Whether no other node's vote counts.
pub fn votes_alone(members: &Members, node: Node) -> bool {
    voters(members).iter().all(|voters| voters.iter().eq([&node]))
}

/// Whether its vote counts.
pub fn votes(members: &Members, node: Node) -> bool {
    voters(members).iter().any(|voters| voters.contains(&node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn member(node: u32, role: Role) -> Member {
        Member::new(Node(node), Uuid::from_u128(node.into()), role, &format!("h{node}:5000"))
    }

    fn three() -> Members {
        let list = (0..3).map(|node| member(node, Role::Voter)).collect();
        Members::new(Uuid::from_u128(7), list).unwrap()
    }

    #[test]
    fn a_node_is_added_promoted_demoted_and_removed_for_good() {
        let added = enter(&three(), Change::Add(member(3, Role::Learner))).unwrap();
        assert_eq!(voters(&added), vec![BTreeSet::from([Node(0), Node(1), Node(2)]); 2]);
        let added = added.leave().unwrap();
        let promoted = enter(&added, Change::Promote(Node(3))).unwrap();
        assert_eq!(voters(&promoted).iter().map(BTreeSet::len).collect::<Vec<_>>(), [4, 3]);
        let promoted = promoted.leave().unwrap();
        let demoted = enter(&promoted, Change::Demote(Node(0))).unwrap().leave().unwrap();
        assert!(!votes(&demoted, Node(0)));
        let gone = enter(&demoted, Change::Remove(Node(3))).unwrap();
        assert!(votes(&gone, Node(3)), "until the change is done");
        let gone = gone.leave().unwrap();
        assert_eq!(gone.removed(), &BTreeSet::from([Node(3)]));
        assert_eq!(next_number(&gone, Planted::default()), Ok(Node(4)));
    }

    #[test]
    fn a_node_is_replaced_in_one_change() {
        let added =
            enter(&three(), Change::Add(member(3, Role::Learner))).unwrap().leave().unwrap();
        let change = Change::Replace { old: Node(1), new: Node(3) };
        let replaced = enter(&added, change).unwrap().leave().unwrap();
        assert_eq!(voters(&replaced), [BTreeSet::from([Node(0), Node(2), Node(3)])]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (three, node) = (three(), Node(9));
        assert_eq!(enter(&three, Change::Remove(node)), Err(ChangeError::Unknown { node }));
        assert_eq!(enter(&three, Change::Promote(node)), Err(ChangeError::Unknown { node }));
        let (node, role) = (Node(1), Role::Voter);
        assert_eq!(enter(&three, Change::Promote(node)), Err(ChangeError::Already { node, role }));
        let again = Change::Add(member(1, Role::Learner));
        assert_eq!(enter(&three, again), Err(ChangeError::Known { node }));
        let joint = enter(&three, Change::Remove(node)).unwrap();
        let second = enter(&joint, Change::Remove(Node(0)));
        assert_eq!(second, Err(ChangeError::Members(MembersError::Joint)));
    }

    #[test]
    fn a_voter_is_alone_only_if_neither_list_has_another() {
        let one = Members::new(Uuid::nil(), vec![member(0, Role::Voter)]).unwrap();
        assert!(votes_alone(&one, Node(0)) && !votes_alone(&one, Node(1)));
        let learner = enter(&one, Change::Add(member(1, Role::Learner))).unwrap();
        assert!(votes_alone(&learner, Node(0)));
        let voter = enter(&one, Change::Add(member(1, Role::Voter))).unwrap();
        assert!(!votes_alone(&voter, Node(0)));
    }
}
