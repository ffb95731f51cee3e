//! The members of a cluster, and which changes of them are allowed.
//!
//! While a change is on its way there are two lists, and a majority of each is needed (joint
//! consensus). Nothing here talks to anybody: `consensus` proposes changes, and a record brings
//! each into the [`State`](super::state::State) of every node.

use std::collections::BTreeSet;
use std::sync::Arc;

use thiserror::Error;
use uuid::Uuid;

use super::ids::Node;

/// Members that vote, in one list: each more costs another copy, and seven survive the loss of
/// three.
pub const VOTERS_MAX: usize = 7;

/// Members that do not vote, in one list.
pub const LEARNERS_MAX: usize = 2;

/// Addresses of one member.
pub const ADDRESSES_MAX: usize = 8;

/// Bytes of an address: a host name of 253, a colon, and a port.
pub const ADDRESS_BYTES_MAX: usize = 259;

/// Numbers of nodes that are no members any more. They are known for good, so a cluster that has
/// replaced so many nodes takes no further change.
pub const REMOVED_MAX: usize = 4096;

/// The highest number of a node: headers of files have it as i32.
pub const NODE_MAX: Node = Node(i32::MAX.unsigned_abs());

/// What an address is for. Members of other versions may have kinds that are not known here; they
/// are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressKind(u8);

impl AddressKind {
    /// Heft peers and other nodes connect to it.
    pub const HEFT: AddressKind = AddressKind(1);
    /// A listener for classic peers.
    pub const CLASSIC: AddressKind = AddressKind(2);
    /// A listener for TaskFlux peers.
    pub const TASKFLUX: AddressKind = AddressKind(3);

    /// The kind with this number. None has 0.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code == 0 { None } else { Some(AddressKind(code)) }
    }

    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Where a member is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub kind: AddressKind,
    /// `host:port`.
    pub text: Arc<str>,
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It votes, and majorities count it.
    Voter,
    /// It receives the log only.
    Learner,
}

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: Node,
    /// The id of its data directory. Another directory under the same number is another node.
    pub dir: Uuid,
    /// At least one of the kind [`AddressKind::HEFT`].
    pub addresses: Vec<Address>,
    pub role: Role,
}

impl Member {
    /// A member with one address, for heft peers and nodes.
    pub fn new(node: Node, dir: Uuid, role: Role, address: &str) -> Self {
        let addresses = vec![Address { kind: AddressKind::HEFT, text: address.into() }];
        Member { node, dir, addresses, role }
    }

    /// The address that heft peers and other nodes connect to.
    pub fn address(&self) -> &str {
        let heft = self.addresses.iter().find(|address| address.kind == AddressKind::HEFT);
        heft.map_or("", |address| &address.text)
    }

    pub fn is_voter(&self) -> bool {
        self.role == Role::Voter
    }

    fn check(&self) -> Result<(), MembersError> {
        let node = self.node;
        if node > NODE_MAX {
            return Err(MembersError::Number { node });
        }
        let found = self.addresses.len();
        if found > ADDRESSES_MAX {
            return Err(MembersError::Addresses { node, found });
        }
        for Address { text, .. } in &self.addresses {
            let bytes = text.len();
            if bytes == 0 || bytes > ADDRESS_BYTES_MAX {
                return Err(MembersError::AddressBytes { node, bytes });
            }
        }
        match self.addresses.iter().any(|address| address.kind == AddressKind::HEFT) {
            true => Ok(()),
            false => Err(MembersError::NoAddress { node }),
        }
    }
}

/// Why a list of members, or a change of it, is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MembersError {
    #[error("node number {node} is above {NODE_MAX}, the highest there can be: choose another")]
    Number { node: Node },
    #[error("node {node} has {found} addresses, and {ADDRESSES_MAX} are the limit: name fewer")]
    Addresses { node: Node, found: usize },
    #[error(
        "an address of node {node} has {bytes} bytes; it needs at least one, and at most \
         {ADDRESS_BYTES_MAX}: give it as HOST:PORT"
    )]
    AddressBytes { node: Node, bytes: usize },
    #[error("node {node} has no address that other nodes can connect to: give one as HOST:PORT")]
    NoAddress { node: Node },
    #[error("there would be no voter: a cluster needs at least one")]
    NoVoter,
    #[error("there would be {found} voters, and {VOTERS_MAX} are the limit: remove one first")]
    Voters { found: usize },
    #[error("there would be {found} learners, and {LEARNERS_MAX} are the limit: remove one first")]
    Learners { found: usize },
    #[error("node {node} is named twice: name it once")]
    Twice { node: Node },
    #[error("nodes {first} and {second} have the same {what}: each needs its own")]
    Shared { first: Node, second: Node, what: &'static str },
    #[error(
        "node {node} has directory {found}, and the cluster knows it with {known}: give it another number"
    )]
    OtherDirectory { node: Node, known: Uuid, found: Uuid },
    #[error("node {node} was removed, and its number is not used again: choose another number")]
    Removed { node: Node },
    #[error("{found} nodes would have been removed, and {REMOVED_MAX} is the limit")]
    RemovedMax { found: usize },
    #[error("the members are being changed already: wait until that is done")]
    Joint,
    #[error("the members are not being changed: there is nothing to finish")]
    NotJoint,
    #[error("numbers, directories or roles would change without the consent of two majorities")]
    NotAddresses,
}

/// The members of a cluster. Equal on all nodes that have applied the same records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    cluster: Uuid,
    /// By number.
    incoming: Vec<Member>,
    /// The list that is being replaced, by number, while a change is on its way.
    outgoing: Option<Vec<Member>>,
    removed: BTreeSet<Node>,
}

impl Members {
    /// The members of a new cluster.
    pub fn new(cluster: Uuid, members: Vec<Member>) -> Result<Self, MembersError> {
        Members::from_parts(cluster, members, None, BTreeSet::new())
    }

    /// Checks what was stored or received.
    pub fn from_parts(
        cluster: Uuid,
        mut incoming: Vec<Member>,
        mut outgoing: Option<Vec<Member>>,
        removed: BTreeSet<Node>,
    ) -> Result<Self, MembersError> {
        incoming.sort_unstable_by_key(|member| member.node);
        check_list(&incoming, &removed)?;
        let mut gone = 0;
        if let Some(outgoing) = &mut outgoing {
            outgoing.sort_unstable_by_key(|member| member.node);
            check_list(outgoing, &removed)?;
            for old in &*outgoing {
                gone += usize::from(find(&incoming, old.node).is_none());
                check_same_directory(old, &incoming)?;
            }
        }
        // Those that go with the end of the change count, so that it can always be finished.
        let found = removed.len() + gone;
        if found > REMOVED_MAX {
            return Err(MembersError::RemovedMax { found });
        }
        if let Some(node) = removed.last().copied().filter(|node| *node > NODE_MAX) {
            return Err(MembersError::Number { node });
        }
        Ok(Members { cluster, incoming, outgoing, removed })
    }

    /// Begins a change to these members: from then on a majority of both lists is needed.
    pub fn enter(&self, incoming: Vec<Member>) -> Result<Self, MembersError> {
        if self.outgoing.is_some() {
            return Err(MembersError::Joint);
        }
        let outgoing = Some(self.incoming.clone());
        Members::from_parts(self.cluster, incoming, outgoing, self.removed.clone())
    }

    /// Finishes a change: the numbers of those that are no members any more are removed for good.
    pub fn leave(&self) -> Result<Self, MembersError> {
        let Some(outgoing) = &self.outgoing else { return Err(MembersError::NotJoint) };
        let gone = outgoing.iter().map(|member| member.node);
        let gone = gone.filter(|node| find(&self.incoming, *node).is_none());
        let removed = self.removed.iter().copied().chain(gone).collect();
        Members::from_parts(self.cluster, self.incoming.clone(), None, removed)
    }

    /// Gives members other addresses. That needs no second majority.
    pub fn readdress(&self, members: Vec<Member>) -> Result<Self, MembersError> {
        if self.outgoing.is_some() {
            return Err(MembersError::Joint);
        }
        let next = Members::from_parts(self.cluster, members, None, self.removed.clone())?;
        let who = |members: &Members| -> Vec<_> {
            members.incoming.iter().map(|member| (member.node, member.dir, member.role)).collect()
        };
        if who(&next) == who(self) { Ok(next) } else { Err(MembersError::NotAddresses) }
    }

    /// Whether these members may follow by one record: one of the three changes above.
    pub fn may_become(&self, next: &Members) -> bool {
        let changed = match (&self.outgoing, &next.outgoing) {
            (None, Some(_)) => self.enter(next.incoming.clone()),
            (Some(_), None) => self.leave(),
            (None, None) => self.readdress(next.incoming.clone()),
            (Some(_), Some(_)) => Err(MembersError::Joint),
        };
        next != self && changed.is_ok_and(|changed| changed == *next)
    }

    /// The id of the cluster.
    pub fn cluster(&self) -> Uuid {
        self.cluster
    }

    /// The members, by number; while a change is on its way, those after it.
    pub fn incoming(&self) -> &[Member] {
        &self.incoming
    }

    /// While a change is on its way, the members before it, by number.
    pub fn outgoing(&self) -> Option<&[Member]> {
        self.outgoing.as_deref()
    }

    /// Whether a change is on its way.
    pub fn is_joint(&self) -> bool {
        self.outgoing.is_some()
    }

    /// A member, of either list. What the change says of it comes first.
    pub fn member(&self, node: Node) -> Option<&Member> {
        find(&self.incoming, node)
            .or_else(|| self.outgoing.as_ref().and_then(|outgoing| find(outgoing, node)))
    }

    /// The numbers of nodes that were members, and never will be again.
    pub fn removed(&self) -> &BTreeSet<Node> {
        &self.removed
    }
}

fn find(members: &[Member], node: Node) -> Option<&Member> {
    members.iter().find(|member| member.node == node)
}

/// One list, by number.
fn check_list(members: &[Member], removed: &BTreeSet<Node>) -> Result<(), MembersError> {
    let voters = members.iter().filter(|member| member.is_voter()).count();
    let learners = members.len().saturating_sub(voters);
    if voters > VOTERS_MAX {
        return Err(MembersError::Voters { found: voters });
    }
    if learners > LEARNERS_MAX {
        return Err(MembersError::Learners { found: learners });
    }
    for (place, member) in members.iter().enumerate() {
        member.check()?;
        if removed.contains(&member.node) {
            return Err(MembersError::Removed { node: member.node });
        }
        for other in members.iter().take(place) {
            let shared =
                |what| MembersError::Shared { first: other.node, second: member.node, what };
            if other.node == member.node {
                return Err(MembersError::Twice { node: member.node });
            }
            if other.dir == member.dir {
                return Err(shared("data directory"));
            }
            if member.addresses.iter().any(|address| other.addresses.contains(address)) {
                return Err(shared("address"));
            }
        }
    }
    if voters == 0 { Err(MembersError::NoVoter) } else { Ok(()) }
}

/// A number stands for one directory, and a directory has one number, over both lists.
fn check_same_directory(old: &Member, incoming: &[Member]) -> Result<(), MembersError> {
    for new in incoming {
        if new.node == old.node && new.dir != old.dir {
            let (known, found) = (old.dir, new.dir);
            return Err(MembersError::OtherDirectory { node: new.node, known, found });
        }
        if new.node != old.node && new.dir == old.dir {
            let (first, second) = (old.node, new.node);
            return Err(MembersError::Shared { first, second, what: "data directory" });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u32, role: Role) -> Member {
        Member::new(Node(node), Uuid::from_u128(node.into()), role, &format!("h{node}:5000"))
    }

    fn voters(nodes: impl IntoIterator<Item = u32>) -> Vec<Member> {
        nodes.into_iter().map(|node| member(node, Role::Voter)).collect()
    }

    fn members(nodes: impl IntoIterator<Item = u32>) -> Members {
        Members::new(Uuid::from_u128(99), voters(nodes)).unwrap()
    }

    #[test]
    fn a_list_has_a_voter_and_keeps_the_limits() {
        let new = |list| Members::new(Uuid::nil(), list);
        assert_eq!(new(Vec::new()), Err(MembersError::NoVoter));
        assert_eq!(new(vec![member(1, Role::Learner)]), Err(MembersError::NoVoter));
        assert!(new(voters(0..7)).is_ok());
        assert_eq!(new(voters(0..8)), Err(MembersError::Voters { found: 8 }));
        let mut learners = voters([0]);
        learners.extend((1..3).map(|node| member(node, Role::Learner)));
        assert!(new(learners.clone()).is_ok());
        learners.push(member(3, Role::Learner));
        assert_eq!(new(learners), Err(MembersError::Learners { found: 3 }));
        assert!(new(voters([NODE_MAX.0])).is_ok());
        let node = Node(NODE_MAX.0 + 1);
        assert_eq!(new(voters([node.0])), Err(MembersError::Number { node }));
    }

    #[test]
    fn numbers_directories_and_addresses_are_not_shared() {
        let new = |list| Members::new(Uuid::nil(), list);
        assert_eq!(new(voters([4, 4])), Err(MembersError::Twice { node: Node(4) }));
        let (first, second) = (Node(1), Node(2));
        let mut list = voters([1, 2]);
        list[1].dir = list[0].dir;
        let what = "data directory";
        assert_eq!(new(list), Err(MembersError::Shared { first, second, what }));
        let mut list = voters([1, 2]);
        let address = list[0].addresses.clone();
        list[1].addresses.extend(address);
        assert_eq!(new(list), Err(MembersError::Shared { first, second, what: "address" }));
    }

    #[test]
    fn addresses_have_a_length_and_a_count_and_one_is_for_nodes() {
        let with = |addresses: Vec<(AddressKind, usize)>| {
            let addresses = addresses.into_iter().enumerate().map(|(place, (kind, len))| {
                let text = format!("{place}{}", "h".repeat(len.saturating_sub(1)));
                Address { kind, text: text.get(..len).unwrap().into() }
            });
            let member = Member { addresses: addresses.collect(), ..member(1, Role::Voter) };
            Members::new(Uuid::nil(), vec![member]).map(drop)
        };
        let (node, heft) = (Node(1), AddressKind::HEFT);
        assert_eq!(with(vec![(heft, ADDRESS_BYTES_MAX)]), Ok(()));
        let bytes = ADDRESS_BYTES_MAX + 1;
        assert_eq!(with(vec![(heft, bytes)]), Err(MembersError::AddressBytes { node, bytes }));
        assert_eq!(with(vec![(heft, 0)]), Err(MembersError::AddressBytes { node, bytes: 0 }));
        assert_eq!(with(vec![(heft, 9); 8]), Ok(()));
        assert_eq!(with(vec![(heft, 9); 9]), Err(MembersError::Addresses { node, found: 9 }));
        assert_eq!(with(vec![(AddressKind::CLASSIC, 9)]), Err(MembersError::NoAddress { node }));
        assert_eq!(with(Vec::new()), Err(MembersError::NoAddress { node }));
        let other = AddressKind::from_code(200).unwrap();
        assert_eq!(with(vec![(other, 9), (heft, 9)]), Ok(()), "kinds of later versions are kept");
        assert_eq!(AddressKind::from_code(0), None);
    }

    #[test]
    fn a_change_has_two_lists_until_it_is_finished_and_removed_numbers_stay_removed() {
        let before = members([0, 1, 2]);
        let joint = before.enter(voters([1, 2, 3])).unwrap();
        assert!(joint.is_joint() && before.may_become(&joint) && !joint.may_become(&before));
        assert_eq!(joint.outgoing(), Some(before.incoming()));
        assert_eq!(joint.member(Node(0)), Some(&member(0, Role::Voter)), "it has a vote still");
        assert_eq!(joint.enter(voters([1])), Err(MembersError::Joint));
        let after = joint.leave().unwrap();
        assert!(joint.may_become(&after) && !before.may_become(&after));
        assert_eq!(after.incoming(), joint.incoming());
        assert_eq!(after.removed().iter().copied().collect::<Vec<_>>(), [Node(0)]);
        assert_eq!(after.member(Node(0)), None);
        let again = after.enter(voters([0, 1, 2, 3]));
        assert_eq!(again, Err(MembersError::Removed { node: Node(0) }));
        assert_eq!(after.leave(), Err(MembersError::NotJoint));
        assert!(!after.may_become(&after), "nothing changes");
    }

    #[test]
    fn a_number_keeps_its_directory_over_both_lists() {
        let before = members([0, 1]);
        let mut list = voters([0, 1]);
        list[1].dir = Uuid::from_u128(77);
        let (known, found) = (Uuid::from_u128(1), Uuid::from_u128(77));
        let error = MembersError::OtherDirectory { node: Node(1), known, found };
        assert_eq!(before.enter(list), Err(error));
        let mut list = voters([0, 5]);
        list[1].dir = Uuid::from_u128(1);
        let (first, second) = (Node(1), Node(5));
        let error = MembersError::Shared { first, second, what: "data directory" };
        assert_eq!(before.enter(list), Err(error));
    }

    #[test]
    fn addresses_alone_change_without_two_lists() {
        let before = members([0, 1]);
        let mut list = voters([0, 1]);
        list[1].addresses[0].text = "elsewhere:1".into();
        let after = before.readdress(list.clone()).unwrap();
        assert!(before.may_become(&after));
        list[1].role = Role::Learner;
        assert_eq!(before.readdress(list.clone()), Err(MembersError::NotAddresses));
        assert!(!before.may_become(&Members::new(before.cluster(), list).unwrap()));
        let elsewhere = Members::new(Uuid::from_u128(98), voters([0, 1])).unwrap();
        assert!(!before.may_become(&elsewhere), "of another cluster");
    }

    #[test]
    fn a_change_that_could_not_be_finished_is_not_begun() {
        let removed = |count: usize| (100..).take(count).map(Node).collect::<BTreeSet<_>>();
        let nearly = removed(REMOVED_MAX - 1);
        let cluster = Uuid::nil();
        let list = voters([0, 1, 2]);
        let members = Members::from_parts(cluster, list.clone(), None, nearly).unwrap();
        assert!(members.enter(voters([0, 1])).unwrap().leave().is_ok());
        let found = REMOVED_MAX + 1;
        assert_eq!(members.enter(voters([0])), Err(MembersError::RemovedMax { found }));
        let more = Members::from_parts(cluster, list, None, removed(found));
        assert_eq!(more, Err(MembersError::RemovedMax { found }));
    }
}
