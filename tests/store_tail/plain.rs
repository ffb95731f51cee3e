//! A leader on its own: its files are what they were before there were clusters.

use heft::core::Record;
use heft::core::ids::{Index, JobId, Run};
use heft::store;
use heft::store::journal::LogOp;
use uuid::Uuid;

use super::sim_disk::SimDisk;

const NODE: i32 = 1;
const DIR: Uuid = Uuid::from_u128(0xD1);

fn crc(parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = crc32fast::Hasher::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize().to_be_bytes()
}

/// As docs/storage.md has it.
fn header(marker: [u8; 4], number: u64) -> Vec<u8> {
    let mut bytes = [&marker[..], &2_i32.to_be_bytes(), &NODE.to_be_bytes()].concat();
    bytes.extend_from_slice(DIR.as_bytes());
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.resize(60, 0);
    let crc = crc(&[&bytes]);
    [bytes, crc.to_vec()].concat()
}

fn group(first: u64, records: &[&[u8]], synced: u64) -> Vec<u8> {
    let body: Vec<u8> = records
        .iter()
        .flat_map(|record| [&(record.len() as u32).to_be_bytes()[..], record].concat())
        .collect();
    let front = [&b"heft"[..], &(body.len() as u32).to_be_bytes()].concat();
    let count = (records.len() as u32).to_be_bytes();
    let behind = [&first.to_be_bytes()[..], &count, &synced.to_be_bytes(), &body].concat();
    // The segment begins with record 1.
    let crc = crc(&[DIR.as_bytes(), &1_u64.to_be_bytes(), &front, &behind]);
    [front, crc.to_vec(), behind].concat()
}

#[test]
fn the_files_of_a_leader_on_its_own_are_what_they_were_byte_for_byte() {
    let disk = SimDisk::new(1);
    let mut opened = store::open(&disk.shared(), NODE, DIR, 64 << 20).unwrap();
    assert_eq!(opened.tail, None);
    let cap = Record::Cap { client: "alice".into(), cap: 4 };
    let withdraw = Record::Withdraw { job: JobId(Uuid::from_u128(7)), run: Run(2) };
    let append =
        |index, record, sync| LogOp::Append { index: Index(index), record, attached: None, sync };
    opened.journal.run([append(1, cap, false), append(2, withdraw, true)], &|| 0);
    opened.journal.rest();
    let cap = [&[14, 0, 0, 0, 5][..], b"alice", &[0, 0, 0, 4, 0]].concat();
    let withdraw = [&[8][..], Uuid::from_u128(7).as_bytes(), &[0, 0, 0, 2, 0]].concat();
    let mut log = header([0x12, 0x76, 0xAD, 0x55], 1);
    log.extend(group(1, &[&cap, &withdraw], 64));
    let end = log.len() as u64;
    log.extend(group(3, &[], end));
    let tree = disk.tree();
    let names: Vec<&str> = tree.keys().map(String::as_str).collect();
    assert_eq!(names, ["consensus/log-0000000000000001", "consensus/metadata"]);
    assert_eq!(tree["consensus/metadata"], header([0x5A, 0x6E, 0xA0, 0x12], 0));
    assert_eq!(tree["consensus/log-0000000000000001"], log);
}

#[test]
fn a_snapshot_of_a_leader_on_its_own_says_nothing_of_a_cluster() {
    let disk = SimDisk::new(1);
    let mut opened = store::open(&disk.shared(), NODE, DIR, 200).unwrap();
    let mut made = false;
    for number in 1..40 {
        let record = Record::Cap { client: "alice".into(), cap: number };
        let index = Index(number.into());
        let op = LogOp::Append { index, record, attached: None, sync: true };
        opened.journal.run([op], &|| 0);
        if let Some(job) = opened.journal.snapshot_due() {
            opened.journal.snapshot_made(job.make());
            made = true;
        }
    }
    assert!(made);
    let tree = disk.tree();
    let (_, snapshot) = tree.iter().find(|(name, _)| name.contains("snapshot-")).unwrap();
    let (mut kinds, mut at) = (Vec::new(), 64);
    while at < snapshot.len() {
        kinds.push(snapshot[at]);
        let len = u32::from_be_bytes(snapshot[at + 4..at + 8].try_into().unwrap());
        at += 16 + len as usize;
    }
    assert_eq!(kinds, [1, 4, 6], "summary, caps, end");
}
