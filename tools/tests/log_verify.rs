//! `heft-tools log verify`: a flipped byte in each kind of file is found and named, and what is
//! good is called so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use heft::core::Record;
use heft::core::event::{Inputs, Submission};
use heft::store::codec::Attached;
use heft::store::map;
use support::{Data, Ran, contents, flip, id, submission, tool};

const BLOB: u128 = 0xB10B;
const PART: u128 = 0x9A27;
const PACK: u128 = 0x9ACC;
const MANIFEST: u128 = 0x3A21;
const COMING: u128 = 0xC0;

/// Every kind of file: several segments, two snapshots of which the newer has payloads in it, a
/// blob of an input, one of a result, two of a dataset, one that is still coming, and one that
/// nothing refers to.
fn full() -> Data {
    let mut data = Data::with_segments(16 * 1024);
    let with_blob = Attached {
        from_ours: true,
        blobs: vec![id(BLOB)],
        payload: b"with a blob".to_vec().into(),
    };
    let job = Submission { needs_transfers: true, ..submission(1) };
    data.blob(id(BLOB), 1, true);
    data.push_with(
        Record::Enqueue { at: data.now(), job, children: Vec::new(), kept: true },
        Some(with_blob),
    );
    data.blob(id(PART), 2, true);
    data.enqueue(2, b"two");
    data.assign(2, 1, 9);
    data.ack(2, 9, 1, b"the result of two", vec![id(PART)]);
    let announced = Submission { inputs: Inputs::Expected, ..submission(3) };
    let attached =
        Attached { from_ours: true, blobs: vec![id(COMING)], payload: b"three".to_vec().into() };
    data.push_with(Record::Announce { at: data.now(), job: announced }, Some(attached));
    data.blob(id(COMING), 3, false);
    data.blob(id(0xF00), 99, true);
    data.push(Record::Cap { client: "alice".into(), cap: 2 });
    data.blob(id(MANIFEST), 70, true);
    data.blob(id(PACK), 70, true);
    data.push(Record::Dataset { dataset: data.dataset(MANIFEST, vec![id(PACK)]).into() });
    let mut number = 100;
    for _ in 0..2 {
        // Most of these end, so that the snapshot takes over what is left of their segments.
        for _ in 0..40 {
            number += 1;
            data.enqueue(number, &[7; 1000]);
            if number % 10 != 0 {
                data.assign(number, 1, 9);
                data.ack(number, 9, u64::try_from(number).unwrap(), b"r", Vec::new());
            }
            data.log.rotate().unwrap();
        }
        data.snapshot();
    }
    data.enqueue(5000, b"the last");
    data.log.note_synced().unwrap();
    data
}

fn verify(data: &Data) -> Ran {
    let before = contents(data.path());
    let ran = tool(&["log", "verify", data.text()]);
    assert!(before == contents(data.path()), "it changed something");
    ran
}

/// The newest file that is called so.
fn newest(data: &Data, begin: &str) -> String {
    let found =
        std::fs::read_dir(data.file("consensus")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = found.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with(begin));
    names.sort();
    format!("consensus/{}", names.last().unwrap())
}

/// Flips a byte, expects exactly this file and offset to be named, and turns it back.
fn finds(data: &Data, file: &str, at: usize, offset: u64) -> String {
    let path = data.file(file);
    flip(&path, at);
    let ran = verify(data);
    flip(&path, at);
    assert_eq!(ran.code, 1, "{file} at {at}: {}{}", ran.out, ran.err);
    let expected = format!("DAMAGED {} at offset {offset}: ", path.display());
    assert!(ran.out.contains(&expected), "{expected} is not in\n{}", ran.out);
    assert!(ran.out.contains("\n  to do: "), "{}", ran.out);
    ran.out
}

#[test]
fn tf04_a_good_directory_has_a_line_for_each_file() {
    let data = full();
    let ran = verify(&data);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    for entry in ["consensus", "blobs"] {
        for file in std::fs::read_dir(data.file(entry)).unwrap() {
            let name = format!("{entry}/{}", file.unwrap().file_name().into_string().unwrap());
            let lines =
                ran.out.lines().filter(|line| line.split(' ').next() == Some(&name)).count();
            assert_eq!(lines, 1, "{name} in\n{}", ran.out);
        }
    }
    assert!(
        ran.out.contains("node 0, directory 00000000-0000-0000-0000-00000000004d"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("sealed with chunk-list, 2 of 2 chunks"), "{}", ran.out);
    assert!(
        ran.out.contains("an input of job 00000000-0000-0000-0000-000000000001"),
        "{}",
        ran.out
    );
    assert!(
        ran.out.contains("a part of the result of job 00000000-0000-0000-0000-000000000002"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("partial, 1 of 2 chunks"), "{}", ran.out);
    assert!(ran.out.contains("which was announced"), "{}", ran.out);
    assert!(ran.out.contains("it is an orphan"), "{}", ran.out);
    assert!(ran.out.contains(": good; "), "{}", ran.out);
}

#[test]
fn tf08_a_flipped_byte_in_the_metadata_is_found_and_the_rest_is_checked_all_the_same() {
    let data = full();
    let out = finds(&data, "consensus/metadata", 1, 0);
    assert!(out.contains("where [5A, 6E, A0, 12] is expected"), "{out}");
    assert!(out.contains("sealed with chunk-list"), "{out}");
    finds(&data, "consensus/metadata", 5, 4);
    finds(&data, "consensus/metadata", 20, 8);
    std::fs::remove_file(data.file("consensus/metadata")).unwrap();
    let ran = verify(&data);
    assert!(ran.code == 1 && ran.out.contains("metadata: it is missing"), "{}", ran.out);
}

#[test]
fn tf06_a_flipped_byte_in_a_segment_is_found() {
    let data = full();
    let last = newest(&data, "log-");
    // The last group notes how far the file is synced, so what is before it was certain.
    let out = finds(&data, &last, 64 + 40, 64);
    assert!(out.contains("is damaged, and record"), "{out}");
    finds(&data, &last, 2, 0);
    finds(&data, &last, 30, 8);
    // A finished segment: none of its records may be torn. The mark behind them may be.
    let finished = format!("consensus/{}", finished_segment(&data));
    let bytes = std::fs::read(data.file(&finished)).unwrap();
    let (mut at, mut groups) = (64, Vec::new());
    while at < bytes.len() {
        groups.push(at);
        at += 32 + u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
    }
    let (mark, last_group) = (groups[groups.len() - 1], groups[groups.len() - 2]);
    let out = finds(&data, &finished, mark - 1, last_group as u64);
    assert!(out.contains("is damaged, and "), "{out}");
    flip(&data.file(&finished), mark + 8);
    let ran = verify(&data);
    assert!(
        ran.code == 0 && ran.out.contains("the mark that another file follows is torn"),
        "{}",
        ran.out
    );
}

/// The segment before the last.
fn finished_segment(data: &Data) -> String {
    let found =
        std::fs::read_dir(data.file("consensus")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = found.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("log-"));
    names.sort();
    names[names.len() - 2].clone()
}

#[test]
fn tf09_a_flipped_byte_in_a_snapshot_is_found_in_payloads_too() {
    let data = full();
    let snapshot = newest(&data, "snapshot-");
    let bytes = std::fs::read(data.file(&snapshot)).unwrap();
    finds(&data, &snapshot, 3, 0);
    finds(&data, &snapshot, 40, 8);
    // Block after block: head, then body.
    let (mut at, mut kinds) = (64, Vec::new());
    while at < bytes.len() {
        let body = u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        kinds.push(bytes[at]);
        finds(&data, &snapshot, at + 5, at as u64);
        finds(&data, &snapshot, at + 16 + body / 2, (at + 16) as u64);
        at += 16 + body;
    }
    assert_eq!(kinds, [1, 2, 3, 4, 7, 5, 6], "a snapshot with every kind of block");
}

#[test]
fn pe09_a_payload_is_named_by_what_it_belongs_to() {
    let data = full();
    let snapshot = newest(&data, "snapshot-");
    let bytes = std::fs::read(data.file(&snapshot)).unwrap();
    let summary = u32::from_be_bytes(bytes[68..72].try_into().unwrap()) as usize;
    let payload = 64 + 16 + summary + 16;
    let out = finds(&data, &snapshot, payload, payload as u64);
    assert!(out.contains("the checksum of a payload is wrong: it is result 139"), "{out}");
    // A leader starts with it, and notices when it needs the payload.
    assert!(out.contains("2 problems; 84 jobs at record 232"), "{out}");
}

#[test]
fn c29_a_flipped_byte_in_a_blob_or_its_map_is_found() {
    let data = full();
    for blob in [BLOB, PART, PACK, MANIFEST] {
        let file = format!("blobs/{}", id(blob).simple());
        let map = format!("{file}.map");
        finds(&data, &map, 0, 0);
        finds(&data, &map, 50, 8);
        finds(&data, &map, 70, 64);
        finds(&data, &map, 150, 128);
        finds(&data, &map, usize::try_from(map::entry_at(1)).unwrap() + 9, map::entry_at(1));
        let out = finds(&data, &file, 1000, 0);
        assert!(out.contains("chunk 0"), "{out}");
        finds(&data, &file, (1 << 20) + 4999, 1 << 20);
        // What fills the last block up is nobody's.
        flip(&data.file(&file), (1 << 20) + 5001);
        assert_eq!(verify(&data).code, 0);
    }
    // Without reading them the bytes count as good.
    flip(&data.file(&format!("blobs/{}", id(BLOB).simple())), 0);
    let ran = tool(&["log", "verify", data.text(), "--no-blobs"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert!(ran.out.contains("its bytes were not read"), "{}", ran.out);
}

#[test]
fn c30_partials_and_blobs_that_nothing_refers_to_are_no_damage() {
    let data = full();
    let coming = format!("blobs/{}", id(COMING).simple());
    flip(&data.file(&coming), 77);
    flip(&data.file(&format!("blobs/{}.map", id(0xF00).simple())), 70);
    std::fs::write(data.file("blobs/stranger"), b"x").unwrap();
    std::fs::write(data.file("consensus/snapshot-0000000000000fff.new"), b"x").unwrap();
    std::fs::write(data.file("consensus/snapshot-0000000000000ffe.bad"), b"x").unwrap();
    let ran = verify(&data);
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert!(ran.out.contains("1 chunk is damaged"), "{}", ran.out);
    assert!(ran.out.contains("damaged places: 1"), "{}", ran.out);
    assert!(ran.out.contains("was put aside by a leader"), "{}", ran.out);
    assert!(ran.out.contains("was not finished"), "{}", ran.out);
}

#[test]
fn pe08_what_is_missing_is_named() {
    let data = full();
    let path = data.file(&format!("blobs/{}.map", id(PART).simple()));
    let map = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let ran = verify(&data);
    let expected =
        format!("DAMAGED {}: it is missing, and the blob is a part of the result", path.display());
    assert!(ran.code == 1 && ran.out.contains(&expected), "{}", ran.out);
    // One that the log refers to and that was never sealed.
    let mut unsealed = map.clone();
    unsealed[64..128].fill(0);
    std::fs::write(&path, unsealed).unwrap();
    let ran = verify(&data);
    let expected = format!("DAMAGED {} at offset 64: the blob is a part", path.display());
    assert!(ran.code == 1 && ran.out.contains(&expected), "{}", ran.out);
    std::fs::write(&path, map).unwrap();
    let data_path = data.file(&format!("blobs/{}", id(PART).simple()));
    std::fs::File::options().write(true).open(&data_path).unwrap().set_len(1 << 20).unwrap();
    let ran = tool(&["log", "verify", data.text(), "--no-blobs"]);
    let expected = format!(
        "DAMAGED {} at offset 1048576: chunk 1 of 5000 bytes is cut off",
        data_path.display()
    );
    assert!(ran.code == 1 && ran.out.contains(&expected), "{}", ran.out);
}

#[test]
fn pe08_a_segment_that_is_missing_behind_the_snapshot_is_named() {
    let mut data = Data::with_segments(4096);
    for number in 1..=20 {
        data.enqueue(number, &[7; 1000]);
        data.log.rotate().unwrap();
    }
    let first = finished_segment(&data);
    std::fs::remove_file(data.file(&format!("consensus/{first}"))).unwrap();
    let ran = verify(&data);
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains(&format!("{first}: the file with the records")), "{}", ran.out);
    assert!(ran.out.contains("a leader would not start with it"), "{}", ran.out);
    let last = newest(&data, "log-");
    std::fs::remove_file(data.file(&last)).unwrap();
    assert_eq!(verify(&data).code, 1);
}

#[test]
fn pe10_a_torn_tail_is_a_note() {
    let mut data = Data::new();
    data.enqueue(1, b"one");
    data.enqueue(2, b"two");
    let path = data.file("consensus/log-0000000000000001");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let ran = verify(&data);
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert!(ran.out.contains("records 1 to 1"), "{}", ran.out);
    assert!(ran.out.contains("are not whole records"), "{}", ran.out);
}

#[test]
fn c29_the_exit_codes_tell_damage_from_a_wrong_command_and_from_what_cannot_be_read() {
    assert_eq!(tool(&["log", "verify"]).code, 2);
    assert_eq!(tool(&["log", "verify", "--nonsense", "."]).code, 2);
    let empty = tempfile::tempdir().unwrap();
    let ran = tool(&["log", "verify", empty.path().to_str().unwrap()]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("is not a data directory of a heft leader"), "{}", ran.err);
    assert_eq!(tool(&["log", "verify", "/nowhere/at/all"]).code, 3);
}
