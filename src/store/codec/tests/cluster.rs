//! Records about a cluster.

use super::*;
use crate::core::cluster::{Cluster, LEVEL_MAX, Office, Terms};
use crate::core::ids::{Index, Level, Node, Term};
use crate::core::members::{Address, AddressKind, Member, Members, Role};

pub(super) fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (1..=u64::MAX).prop_map(|term| Record::Term { term: Term(term) }),
        members().prop_map(|members| Record::Members { members: members.into() }),
        (0..=LEVEL_MAX.0).prop_map(|level| Record::Level { level: Level(level) }),
        uuid().prop_map(|id| Record::Mark { id }),
        (any::<u32>(), micros())
            .prop_map(|(leader, at)| Record::Office { leader: Node(leader), at }),
    ]
}

fn member(node: u32) -> impl Strategy<Value = Member> {
    let address = (1_u8..5, "[a-zé]{1,9}").prop_map(move |(kind, text)| Address {
        kind: AddressKind::from_code(kind).unwrap(),
        text: format!("{text}{node}:1").into(),
    });
    let role = prop_oneof![Just(Role::Voter), Just(Role::Learner)];
    (role, vec(address, 0..3)).prop_map(move |(role, more)| {
        let dir = Uuid::from_u128(node.into());
        let mut member = Member::new(Node(node), dir, role, &format!("h{node}:1"));
        member.addresses.extend(more);
        member
    })
}

/// Some of these are no members that there can be: they have no voter, say.
fn members() -> impl Strategy<Value = Members> {
    let list = || {
        let nodes = proptest::sample::subsequence((0_u32..9).collect::<Vec<_>>(), 1..6);
        nodes.prop_flat_map(|nodes| nodes.into_iter().map(member).collect::<Vec<_>>())
    };
    let removed = proptest::collection::btree_set((9_u32..99).prop_map(Node), 0..4);
    (uuid(), list(), option::of(list()), removed).prop_filter_map(
        "members that there can be",
        |(cluster, incoming, outgoing, removed)| {
            Members::from_parts(cluster, incoming, outgoing, removed).ok()
        },
    )
}

fn sample_members() -> Members {
    let dir = |number: u128| Uuid::from_u128(0xD0 + number);
    let mut first = Member::new(Node(0), dir(0), Role::Voter, "a:1");
    first.addresses.push(Address { kind: AddressKind::CLASSIC, text: "a:2".into() });
    let second = Member::new(Node(2), dir(2), Role::Learner, "c:1");
    let removed = [Node(1)].into();
    let cluster = Uuid::from_u128(0xC1);
    Members::from_parts(cluster, vec![first.clone(), second], Some(vec![first]), removed).unwrap()
}

/// Computed from the tables of the document, not by this code.
#[test]
fn records_about_a_cluster_lie_on_the_disk_in_exactly_these_bytes() {
    let golden = [
        "15000000000000010200",
        concat!(
            "16000000000000000000000000000000c10000000200000000000000000000000000000000000000d001",
            "000000020100000003613a310200000003613a3200000002000000000000000000000000000000d20200",
            "0000010100000003633a31010000000100000000000000000000000000000000000000d0010000000201",
            "00000003613a310200000003613a32000000010000000100"
        ),
        "170000000100",
        "18000000000000000000000000000000a900",
        "1900000002000100000000000100",
    ];
    let records = [
        Record::Term { term: Term(0x0102) },
        Record::Members { members: sample_members().into() },
        Record::Level { level: Level(1) },
        Record::Mark { id: Uuid::from_u128(0xA9) },
        Record::Office { leader: Node(2), at: Micros(0x0001_0000_0000_0001) },
    ];
    for (bytes, record) in golden.iter().zip(records) {
        assert_eq!(hex(&written(&record, None)), *bytes, "{record:?}");
        assert_eq!(get_entry(&unhex(bytes), &mut Names::default()).unwrap().record, record);
    }
}

#[test]
fn what_a_snapshot_says_of_a_cluster_lies_on_the_disk_in_exactly_these_bytes() {
    let office = Some(Office { leader: Node(2), at: Micros(9) });
    let cluster = Cluster { members: None, term: Term(5), level: Level(1), office };
    let terms = Terms::restore(vec![(Index(1), Term(1)), (Index(7), Term(5))]).unwrap();
    let mut out = Vec::new();
    put_cluster(&cluster, &terms, &mut out);
    let golden = concat!(
        "00000000000000050000000100010000000200000000000000090000000200000000000000010000",
        "00000000000100000000000000070000000000000005",
    );
    assert_eq!(hex(&out), golden);
    assert_eq!(get_cluster(&mut Reader::new(&out)), Ok((cluster.clone(), terms.clone())));
    let cluster = Cluster { members: Some(sample_members().into()), ..cluster };
    out.clear();
    put_cluster(&cluster, &terms, &mut out);
    assert_eq!(get_cluster(&mut Reader::new(&out)), Ok((cluster, terms)));
    for end in 0..out.len() {
        assert!(get_cluster(&mut Reader::new(&out[..end])).is_err(), "cut at {end}");
    }
}

#[test]
fn members_in_another_order_or_that_cannot_be_are_refused() {
    let refused = |bytes: &[u8]| get_entry(bytes, &mut Names::default()).unwrap_err().to_string();
    let bytes = written(&Record::Members { members: sample_members().into() }, None);
    // The number of the first member, behind the kind, the cluster and the count.
    let mut wrong = bytes.clone();
    wrong[24] = 2;
    assert_eq!(refused(&wrong), "at byte 17: members are not in the order of numbers");
    wrong[24] = 1;
    assert!(refused(&wrong).contains("node 1 was removed"), "{}", refused(&wrong));
    let mut wrong = bytes.clone();
    wrong[41] = 3;
    assert_eq!(refused(&wrong), "at byte 41: 3 is not a known role of a member");
    let mut wrong = bytes;
    wrong[46] = 0;
    assert_eq!(refused(&wrong), "at byte 46: 0 is not a kind of address");
    assert_eq!(refused(&[&[21][..], &[0; 9]].concat()), "at byte 1: 0 is not a term");
    let text = refused(&[23, 0, 0, 0, 2, 0]);
    assert_eq!(text, "at byte 1: level 2 is above 1, the highest this heft knows");
}
