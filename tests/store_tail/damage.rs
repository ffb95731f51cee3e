//! Damaged, missing and foreign files of a tail, and writes that must not be.

use std::collections::BTreeMap;
use std::sync::Arc;

use heft::core::Record;
use heft::core::ids::{Index, Node, Term};
use heft::core::members::{Member, Members, Role};
use heft::store::disk::How;
use heft::store::journal::{Journal, LogDone, LogOp};
use heft::store::tail::read::Found;
use heft::store::tail::{TAIL_RECORD_BYTES_MAX, TailRecord, TailRecords, TailWrite, Vote};
use heft::store::{self, Opened};
use uuid::Uuid;

use super::log_records::{append, enqueue};
use super::node::{DIR, Logged, NODE};
use super::sim_disk::SimDisk;

type Tree = BTreeMap<String, Vec<u8>>;

const SEGMENT_BYTES: u64 = 64 << 20;

fn open(disk: &SimDisk) -> Result<Opened, String> {
    store::open_member(&disk.shared(), NODE, DIR, SEGMENT_BYTES).map_err(|error| error.to_string())
}

fn vote(term: u64, node: Option<u32>) -> TailWrite {
    let vote = Some(Vote { term: Term(term), node: node.map(Node) });
    TailWrite { vote, records: None }
}

/// Records of a term, the first of which begins it if it has salt 0.
fn records(first: u64, term: u64, salts: impl IntoIterator<Item = u32>) -> TailWrite {
    let records = salts.into_iter().map(|salt| Logged { term, salt, bytes: 20 }.in_tail());
    let records = TailRecords { first: Index(first), records: records.collect() };
    TailWrite { vote: None, records: Some(records) }
}

fn write(journal: &mut Journal, writes: impl IntoIterator<Item = TailWrite>) -> Vec<LogDone> {
    let ops = (1..).zip(writes).map(|(number, write)| LogOp::Tail { number, write });
    journal.run(ops.collect::<Vec<_>>(), &|| 0)
}

fn is_safe(done: &[LogDone]) -> bool {
    matches!(done, [LogDone::TailSafe { .. }])
}

fn commit(index: u64, record: Record) -> LogOp {
    LogOp::Append { index: Index(index), record, attached: None, sync: false }
}

fn members() -> Record {
    let member = Member::new(Node(2), DIR, Role::Voter, "a:5000");
    Record::Members { members: Arc::new(Members::new(Uuid::from_u128(1), vec![member]).unwrap()) }
}

/// A disk with these files.
fn disk_of(tree: &Tree) -> SimDisk {
    let disk = SimDisk::new(1);
    let shared = disk.shared();
    shared.make_dir("consensus").unwrap();
    for (path, bytes) in tree {
        let mut file = shared.open(path, How::Create).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
    }
    shared.sync_dir("consensus").unwrap();
    disk
}

/// The files of a member: one record in the log, and four behind it in three files of the tail.
fn made(comes_to_rest: bool) -> Tree {
    let disk = SimDisk::new(1);
    let small = 200;
    let mut opened = store::open_member(&disk.shared(), NODE, DIR, small).unwrap();
    assert!(is_safe(&write(&mut opened.journal, [TailWrite::default()])));
    opened.journal.run([commit(1, members())], &|| 0);
    let more = [vote(2, Some(2)), records(2, 2, [0, 11])];
    assert!(is_safe(&write(&mut opened.journal, more)));
    let more = [vote(3, Some(1)), records(4, 3, [0])];
    assert!(is_safe(&write(&mut opened.journal, more)));
    assert!(is_safe(&write(&mut opened.journal, [records(5, 3, [12])])));
    if comes_to_rest {
        opened.journal.rest();
    }
    disk.tree()
}

fn tails(tree: &Tree) -> Vec<String> {
    tree.keys().filter(|path| path.contains("tail-")).cloned().collect()
}

/// The vote and the records that are found.
fn found(tree: &Tree) -> Result<(Vote, TailRecords), String> {
    let Found { vote, records, .. } = open(&disk_of(tree))?.tail.unwrap();
    Ok((vote, records))
}

#[test]
fn what_was_written_is_found_with_its_terms() {
    let tree = made(true);
    assert_eq!(tails(&tree).len(), 3, "{:?}", tails(&tree));
    let opened = open(&disk_of(&tree)).unwrap();
    assert_eq!(opened.replay.index, Index(1));
    let Found { vote, records, terms, .. } = opened.tail.unwrap();
    assert_eq!(vote, Vote { term: Term(3), node: Some(Node(1)) });
    let all = [(2, 0), (2, 11), (3, 0), (3, 12)];
    let all = all.map(|(term, salt)| Logged { term, salt, bytes: 20 }.in_tail());
    assert_eq!(records, TailRecords { first: Index(2), records: all.to_vec() });
    let begun = [(1, 1), (2, 2), (4, 3)].map(|(index, term)| (Index(index), Term(term)));
    assert_eq!(terms.begun(), begun);
}

#[test]
fn a_start_goes_on_in_a_new_file_and_removes_the_others() {
    let disk = disk_of(&made(true));
    let before = tails(&disk.tree());
    let first = open(&disk).unwrap();
    let after = tails(&disk.tree());
    assert_eq!(after.len(), 1, "{after:?}");
    assert!(!before.contains(&after[0]), "{before:?}, {after:?}");
    drop(first);
    disk.power_loss_of(100);
    assert_eq!(found(&disk.tree()), found(&made(true)), "it is certain");
}

#[test]
fn a_flipped_bit_is_refused_or_changes_nothing() {
    let tree = made(true);
    let whole = found(&tree).unwrap();
    let (mut refused, mut harmless) = (0, 0);
    for path in tails(&tree) {
        for at in 0..tree[&path].len() {
            let mut flipped = tree.clone();
            flipped.get_mut(&path).unwrap()[at] ^= 1 << (at % 8);
            match found(&flipped) {
                Ok(same) => {
                    assert_eq!(same, whole, "{path}, {at}");
                    harmless += 1;
                }
                Err(error) => {
                    assert!(error.contains(path.as_str()), "{path}, {at}: {error}");
                    refused += 1;
                }
            }
        }
    }
    // Those in the note at the end, which says only how far the file is synced, and in the mark
    // that another file follows.
    assert!(harmless <= 33 * tails(&tree).len(), "{harmless} harmless, {refused} refused");
    assert!(refused > 300, "{harmless} harmless, {refused} refused");
}

#[test]
fn damage_names_the_file_the_offset_and_the_next_step() {
    let mut tree = made(true);
    let path = tails(&tree).remove(0);
    tree.get_mut(&path).unwrap()[70] ^= 1;
    let error = found(&tree).unwrap_err();
    let expected = format!("{path} is damaged at offset 64: a group is damaged, and");
    assert!(error.contains(&expected), "{error}");
    assert!(error.contains("`heft cluster replace 2 HOST:PORT`"), "{error}");
    // So it is with the log of a member.
    let mut tree = made(true);
    tree.get_mut("consensus/metadata").unwrap()[62] ^= 1;
    let error = found(&tree).unwrap_err();
    assert!(error.contains("metadata is damaged at offset 8"), "{error}");
    assert!(error.contains("`heft cluster replace 2 HOST:PORT`"), "{error}");
}

#[test]
fn a_torn_end_is_what_was_there_before_the_write() {
    let tree = made(false);
    let last = tails(&tree).pop().unwrap();
    let whole = found(&tree).unwrap();
    let mut seen = Vec::new();
    for len in 0..tree[&last].len() {
        let mut torn = tree.clone();
        torn.get_mut(&last).unwrap().truncate(len);
        match found(&torn) {
            Ok((vote, records)) => {
                assert!(vote.term <= whole.0.term);
                assert!(whole.1.records.starts_with(&records.records), "{len} bytes");
                seen.push(records.records.len());
            }
            Err(error) => assert!(error.contains(last.as_str()), "{len} bytes: {error}"),
        }
    }
    seen.dedup();
    assert!(seen.is_sorted() && !seen.is_empty(), "{seen:?}");
}

#[test]
fn a_missing_file_is_refused() {
    let tree = made(true);
    let all = tails(&tree);
    for missing in &all {
        let without: Tree = tree
            .iter()
            .filter(|(path, _)| *path != missing)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let error = found(&without).unwrap_err();
        let is_first = *missing == all[0];
        let expected = if is_first {
            "are missing before it".to_owned()
        } else {
            format!("{missing} is missing")
        };
        assert!(error.contains(&expected), "without {missing}: {error}");
    }
    let without: Tree = tree.into_iter().filter(|(path, _)| !path.contains("tail-")).collect();
    let error = open(&disk_of(&without)).unwrap_err();
    assert!(error.contains("tail-0000000000000001 is missing, and perhaps votes"), "{error}");
}

#[test]
fn a_leader_on_its_own_refuses_the_directory_of_a_member() {
    let plain = |tree: &Tree| {
        let disk = disk_of(tree);
        let before = disk.tree();
        let opened = store::open(&disk.shared(), NODE, DIR, SEGMENT_BYTES);
        assert_eq!(disk.tree(), before, "nothing was changed");
        opened.map(drop).map_err(|error| error.to_string())
    };
    let tree = made(true);
    let error = plain(&tree).unwrap_err();
    assert!(
        error.contains("belongs to a member of a cluster") && error.contains("tail-"),
        "{error}"
    );
    assert!(error.contains("start it as that member, or give another --data"), "{error}");
    // The log says so, too.
    let tree: Tree = tree.into_iter().filter(|(path, _)| !path.contains("tail-")).collect();
    let error = plain(&tree).unwrap_err();
    assert!(error.contains("belongs to a member") && error.contains("`members`"), "{error}");
}

#[test]
fn a_file_of_another_directory_or_under_another_name_is_refused() {
    let tree = made(true);
    let path = tails(&tree).pop().unwrap();
    let disk = SimDisk::new(2);
    let mut other =
        store::open_member(&disk.shared(), NODE, Uuid::from_u128(5), SEGMENT_BYTES).unwrap();
    write(&mut other.journal, [TailWrite::default()]);
    let mut foreign = tree.clone();
    foreign.insert(path.clone(), disk.tree()["consensus/tail-0000000000000001"].clone());
    let error = found(&foreign).unwrap_err();
    assert!(error.contains("belongs to another data directory"), "{error}");
    let mut renamed = tree.clone();
    let bytes = renamed[&path].clone();
    renamed.insert("consensus/tail-0000000000000063".to_owned(), bytes);
    renamed.retain(|path, _| !path.contains("tail-") || path.ends_with("63"));
    let error = found(&renamed).unwrap_err();
    assert!(error.contains("its name says that it is file 99"), "{error}");
}

#[test]
fn a_directory_of_a_leader_on_its_own_becomes_one_of_a_member_and_nothing_is_written_again() {
    let disk = SimDisk::new(3);
    let mut opened = store::open(&disk.shared(), NODE, DIR, SEGMENT_BYTES).unwrap();
    opened.journal.run((1..=5).map(|number| append(enqueue(number, 50))), &|| 0);
    opened.journal.rest();
    drop(opened);
    let before = disk.tree();
    let mut opened = open(&disk).unwrap();
    assert_eq!((opened.tail.is_none(), opened.replay.index), (true, Index(5)));
    assert!(is_safe(&write(&mut opened.journal, [TailWrite::default()])));
    // Killed here it is a member's, which has no members yet.
    let between = disk_of(&disk.tree());
    let found = open(&between).unwrap().tail.unwrap();
    assert_eq!((found.vote, found.records.first), (Vote::default(), Index(6)));
    opened.journal.run([commit(6, members())], &|| 0);
    drop(opened);
    let log = "consensus/log-0000000000000001";
    assert!(disk.tree()[log].starts_with(&before[log]));
    assert_eq!(disk.tree()["consensus/metadata"], before["consensus/metadata"]);
    let opened = open(&disk).unwrap();
    assert_eq!(opened.replay.state.job_count(), 5);
    assert!(opened.replay.state.cluster().members.is_some());
    let Found { vote, records, terms, .. } = opened.tail.unwrap();
    assert_eq!((vote, records.first, records.records.len()), (Vote::default(), Index(7), 0));
    assert_eq!((terms.of(Index(0)), terms.of(Index(6))), (Some(Term(0)), Some(Term(1))));
}

#[test]
fn what_would_undo_a_vote_or_a_committed_record_stops_the_node() {
    let refused = |writes: Vec<TailWrite>| {
        let mut opened = open(&disk_of(&made(true))).unwrap();
        let done = write(&mut opened.journal, writes);
        let [LogDone::Failed(why)] = &done[..] else { panic!("{done:?}") };
        why.clone()
    };
    let why = refused(vec![vote(2, None)]);
    assert!(why.contains("cannot follow"), "{why}");
    let why = refused(vec![vote(3, Some(0))]);
    assert!(why.contains("cannot follow"), "another vote in the same term: {why}");
    let why = refused(vec![vote(3, None)]);
    assert!(why.contains("cannot follow"), "{why}");
    let why = refused(vec![vote(4, None), records(1, 4, [0])]);
    assert!(why.contains("record 1 is to be replaced, and it is committed"), "{why}");
    let why = refused(vec![records(6, 4, [0])]);
    assert!(why.contains("cannot be written in term 3"), "{why}");
    let why = refused(vec![records(6, 0, [9])]);
    assert!(why.contains("cannot be written in term 3"), "{why}");
    let bytes = vec![0; TAIL_RECORD_BYTES_MAX + 1].into();
    let long = TailRecords { first: Index(6), records: vec![TailRecord { term: Term(3), bytes }] };
    let why = refused(vec![TailWrite { vote: None, records: Some(long) }]);
    assert!(why.contains("does not fit the tail"), "{why}");
}

#[test]
fn a_term_without_the_record_that_begins_it_is_refused() {
    let disk = disk_of(&made(true));
    let mut opened = open(&disk).unwrap();
    // What no engine writes: term 4 begins with another record.
    assert!(is_safe(&write(&mut opened.journal, [vote(4, None), records(6, 4, [13])])));
    drop(opened);
    let error = open(&disk).unwrap_err();
    assert!(error.contains("record 6 has term 4, and the one before it term 3"), "{error}");
}

#[test]
fn while_nothing_is_committed_the_tail_keeps_its_limit_and_the_log_goes_on() {
    let disk = SimDisk::new(4);
    let mut opened = store::open_member(&disk.shared(), NODE, DIR, 300).unwrap();
    let journal = &mut opened.journal;
    journal.limit_tail(2048);
    let mut next = 1;
    let trouble = loop {
        let done = write(journal, [records(next, 1, [next as u32])]);
        next += 1;
        match &done[..] {
            [LogDone::TailSafe { .. }] => assert!(next < 100, "there is no limit"),
            [LogDone::Trouble(Some(why))] => break why.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(trouble.contains("more than 2 KiB of records that are not committed"), "{trouble}");
    assert!(journal.is_stuck());
    assert!(write(journal, [records(next, 1, [next as u32])]).is_empty(), "told once");
    let in_tail = next - 2;
    let committed = (1..=in_tail).map(|index| {
        let record = Logged { term: 1, salt: index as u32, bytes: 20 }.record();
        commit(index, record)
    });
    let done = journal.run(committed.collect::<Vec<_>>(), &|| 0);
    assert!(matches!(&done[..], [LogDone::Written { .. }]), "{done:?}");
    assert!(tails(&disk.tree()).len() <= 2, "{:?}", tails(&disk.tree()));
    let done = journal.run([], &|| 0);
    let [LogDone::Trouble(None), LogDone::TailSafe { number: 1, .. }] = &done[..] else {
        panic!("{done:?}")
    };
    drop(opened);
    disk.power_loss_of(100);
    let opened = open(&disk).unwrap();
    let records = opened.tail.unwrap().records;
    let last = records.first.0 + records.records.len() as u64 - 1;
    assert_eq!(last, next, "both that waited");
}

#[test]
fn several_writes_share_a_sync_and_the_last_number_is_told() {
    let disk = SimDisk::new(5);
    let mut opened = open(&disk).unwrap();
    let writes = [vote(2, Some(2)), records(1, 2, [0]), records(2, 2, [5, 6]), records(3, 2, [7])];
    let done = write(&mut opened.journal, writes);
    let [LogDone::TailSafe { number: 4, cost }] = &done[..] else { panic!("{done:?}") };
    assert_eq!((cost.records, cost.syncs), (4, 1));
    disk.power_loss_of(100);
    let found = open(&disk).unwrap().tail.unwrap();
    let salts = [0, 5, 7].map(|salt| Logged { term: 2, salt, bytes: 20 }.in_tail());
    assert_eq!(found.records.records, salts, "the third was replaced");
}

#[test]
fn members_and_terms_come_back_from_a_snapshot_when_the_log_is_cut() {
    let disk = SimDisk::new(6);
    let mut opened = store::open_member(&disk.shared(), NODE, DIR, 200).unwrap();
    assert!(is_safe(&write(&mut opened.journal, [vote(2, Some(2))])));
    opened.journal.run([commit(1, members())], &|| 0);
    opened.journal.run([commit(2, Record::Term { term: Term(2) })], &|| 0);
    for index in 3..80 {
        let record = Logged { term: 2, salt: index as u32, bytes: 20 }.record();
        opened.journal.run([commit(index, record)], &|| 0);
        if let Some(job) = opened.journal.snapshot_due() {
            opened.journal.snapshot_made(job.make());
            opened.journal.run([LogOp::Cut], &|| 0);
        }
    }
    drop(opened);
    let names = disk.tree();
    assert!(!names.contains_key("consensus/log-0000000000000001"), "{:?}", names.keys());
    disk.power_loss_of(0);
    let opened = open(&disk).unwrap();
    let begun = [(1, 1), (2, 2)].map(|(index, term)| (Index(index), Term(term)));
    assert_eq!(opened.replay.terms.begun(), begun);
    let cluster = opened.replay.state.cluster();
    assert_eq!(cluster.term, Term(2));
    let members = cluster.members.as_ref().unwrap();
    assert_eq!(members.member(Node(2)).unwrap().address(), "a:5000");
}
