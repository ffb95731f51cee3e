//! `heft-tools log` over the directory of a member of a cluster: its members, its votes, and
//! records that are not committed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use heft::core::Record;
use heft::core::ids::{Index, Node, Term};
use heft::core::members::{Member, Members, Role};
use heft::store::codec::put_entry;
use heft::store::journal::LogOp;
use heft::store::tail::{TailRecord, TailRecords, TailWrite, Vote};
use serde_json::json;
use support::{Data, contents, flip, id, tool};

const TAIL: &str = "consensus/tail-0000000000000001";

/// A job and the members are in the log; the beginning of term 2 and a cap are in the tail, with a
/// vote.
fn member() -> Data {
    let mut data = Data::new();
    data.enqueue(1, b"one");
    let opened = heft::store::open_member(&data.disk, 0, id(77), 64 << 20);
    let mut journal = opened.unwrap().journal;
    let tail = |number, write| LogOp::Tail { number, write };
    journal.run([tail(1, TailWrite::default())], &|| 0);
    let first = Member::new(Node(0), id(77), Role::Voter, "a:5000");
    let members = Members::new(id(0xC1), vec![first]).unwrap();
    let record = Record::Members { members: members.into() };
    let append = LogOp::Append { index: Index(2), record, attached: None, sync: true };
    journal.run([append], &|| 0);
    let in_tail = |record: Record| {
        let mut bytes = Vec::new();
        put_entry(&record, None, &mut bytes);
        TailRecord { term: Term(2), bytes: bytes.into() }
    };
    let cap = Record::Cap { client: "alice".into(), cap: 3 };
    let records = vec![in_tail(Record::Term { term: Term(2) }), in_tail(cap)];
    let write = TailWrite {
        vote: Some(Vote { term: Term(2), node: Some(Node(0)) }),
        records: Some(TailRecords { first: Index(3), records }),
    };
    journal.run([tail(2, write)], &|| 0);
    journal.rest();
    data
}

#[test]
fn dump_prints_what_is_not_committed_behind_the_log() {
    let data = member();
    let before = contents(data.path());
    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines = ran.lines();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["enqueue", "members", "term", "cap"]);
    let member = json!({
        "number": 0, "directory": id(77), "role": "voter",
        "addresses": [{"kind": "heft", "address": "a:5000"}],
    });
    assert_eq!((&lines[1]["cluster"], &lines[1]["members"]), (&json!(id(0xC1)), &json!([member])));
    assert_eq!((&lines[2]["index"], &lines[2]["term"]), (&json!(3), &json!(2)));
    let uncommitted: Vec<_> = lines.iter().map(|line| line.get("uncommitted").is_some()).collect();
    assert_eq!(uncommitted, [false, false, true, true]);
    let told = "the tail has a vote for node 0 in term 2, and records 3 to 4, which are not known \
                to be committed";
    assert!(ran.err.contains(told), "{}", ran.err);
    let ran = tool(&["log", "dump", data.text(), "--from", "4", "--to", "4"]);
    assert_eq!(ran.lines().len(), 1, "{}", ran.out);
    assert!(before == contents(data.path()), "it changed something");
}

#[test]
fn verify_has_a_line_for_each_file_of_the_tail_and_finds_damage_in_it() {
    let data = member();
    let ran = tool(&["log", "verify", data.text()]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(TAIL) && ran.out.contains("2 groups of the tail"), "{}", ran.out);
    assert!(ran.out.contains("a vote for node 0 in term 2, records 3 to 4"), "{}", ran.out);
    flip(&data.file(TAIL), 70);
    let ran = tool(&["log", "verify", data.text()]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains(&format!("{TAIL} at offset 64: a group is damaged")), "{}", ran.out);
    assert!(ran.out.contains("`heft cluster replace`"), "{}", ran.out);
    // What can be read is printed all the same.
    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!((ran.code, ran.lines().len()), (1, 2), "{}", ran.err);
    assert!(ran.err.contains(TAIL), "{}", ran.err);
    let ran = tool(&["log", "replay", data.text(), "--json"]);
    assert_eq!((ran.code, ran.lines().len()), (1, 1), "{}", ran.err);
    std::fs::remove_file(data.file(TAIL)).unwrap();
    let ran = tool(&["log", "verify", data.text()]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains("is missing, and perhaps votes with it"), "{}", ran.out);
}

#[test]
fn replay_shows_the_members_and_leaves_the_tail_out_of_the_state() {
    let data = member();
    let ran = tool(&["log", "replay", data.text()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains(&format!("cluster {}, term 1, level 0", id(0xC1))), "{}", ran.out);
    assert!(ran.out.contains("node 0     voter    a:5000"), "{}", ran.out);
    assert!(ran.err.contains("the tail is not in the state"), "{}", ran.err);
    let ran = tool(&["log", "replay", data.text(), "--json"]);
    let state = &ran.lines()[0];
    assert_eq!((&state["index"], &state["cluster"]["term"]), (&json!(2), &json!(1)));
    assert_eq!(state["cluster"]["members"][0]["role"], "voter");
    assert_eq!(state["clients"][0]["cap"], json!(null), "the cap is in the tail");
}
