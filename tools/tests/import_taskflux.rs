//! `heft-tools import taskflux`: from the three files of a node to a directory that a leader opens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};

use heft::core::job::Phase;
use heft::store::Opened;
use support::{Ran, open, request_of, tool};
use tempfile::TempDir;

const OF_ALL: [u8; 4] = [0x2F, 0x6F, 0x0F, 0x2F];
const OF_LOG: [u8; 4] = [0x12, 0x76, 0xAD, 0x55];
const OF_SNAPSHOT: [u8; 4] = [0xB6, 0x38, 0x0F, 0xC9];
const OF_METADATA: [u8; 4] = [0x5A, 0x6E, 0xA0, 0x12];

fn name(name: &str) -> Vec<u8> {
    [&[u8::try_from(name.len()).unwrap()], name.as_bytes()].concat()
}

fn buffer(bytes: &[u8]) -> Vec<u8> {
    [&i32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn enqueue(queue: &str, key: i64, payload: &[u8]) -> Vec<u8> {
    [b"E".to_vec(), name(queue), key.to_be_bytes().to_vec(), buffer(payload)].concat()
}

fn dequeue(queue: &str) -> Vec<u8> {
    [b"D".to_vec(), name(queue)].concat()
}

fn create(queue: &str, size_max: u32) -> Vec<u8> {
    [b"Q".to_vec(), name(queue), size_max.to_be_bytes().to_vec()].concat()
}

fn delete(queue: &str) -> Vec<u8> {
    [b"R".to_vec(), name(queue)].concat()
}

fn queue(queue: &str, size_max: u32, items: &[(i64, &[u8])]) -> Vec<u8> {
    let mut bytes = name(queue);
    bytes.extend(size_max.to_be_bytes());
    bytes.extend(u32::try_from(items.len()).unwrap().to_be_bytes());
    for (key, payload) in items {
        bytes.extend(key.to_be_bytes());
        bytes.extend(buffer(payload));
    }
    bytes
}

/// A node's directory.
struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("consensus")).unwrap();
        Node { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("consensus").join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> &Self {
        std::fs::write(self.file(name), bytes).unwrap();
        self
    }

    /// A log of these commands, all of term 1.
    fn log(&self, marker: [u8; 4], commands: &[Vec<u8>]) -> &Self {
        let mut bytes = [marker, 1i32.to_be_bytes()].concat();
        for command in commands {
            bytes.extend(1i32.to_be_bytes());
            bytes.extend(buffer(command));
        }
        self.write("raft.log", &bytes)
    }

    fn snapshot(&self, marker: [u8; 4], last_index: i32, queues: &[Vec<u8>]) -> &Self {
        let head = [marker, last_index.to_be_bytes(), 1i32.to_be_bytes()].concat();
        self.write("raft.snapshot", &[head, queues.concat()].concat())
    }

    fn metadata(&self, marker: [u8; 4], term: i32, vote: i32) -> &Self {
        self.write(
            "raft.metadata",
            &[marker, 1i32.to_be_bytes(), term.to_be_bytes(), vote.to_be_bytes()].concat(),
        )
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("heft-data")
    }

    fn import(&self, more: &[&str]) -> Ran {
        let data = self.data();
        let args = [
            "import",
            "taskflux",
            self.dir.path().to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
        ];
        tool(&[&args[..], more].concat())
    }

    /// Imports, opens what was made as a leader does, and gives what its jobs are: key, priority,
    /// payload, in their order.
    fn jobs(&self) -> (Ran, Vec<(String, i64, Vec<u8>)>) {
        let ran = self.import(&[]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let verified = tool(&["log", "verify", self.data().to_str().unwrap()]);
        assert_eq!(verified.code, 0, "{}", verified.out);
        let mut opened = open(&self.data(), 0);
        (ran, jobs(&mut opened))
    }

    /// What the import says of files that are not right. Nothing is left behind.
    fn refused(&self) -> String {
        let ran = self.import(&[]);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(!self.data().exists());
        ran.err
    }
}

fn jobs(opened: &mut Opened) -> Vec<(String, i64, Vec<u8>)> {
    let mut found: Vec<_> = opened.replay.state.jobs().cloned().collect();
    found.sort_by(|one, other| {
        (&one.submission.key, one.submission.priority, one.seq).cmp(&(
            &other.submission.key,
            other.submission.priority,
            other.seq,
        ))
    });
    let with_payload = found.into_iter().map(|job| {
        assert!(matches!(job.phase, Phase::Queued { .. }));
        assert_eq!(
            (&*job.submission.exec, job.submission.client.to_string().as_str()),
            ("", "taskflux"),
            "a raw job (M19)"
        );
        (job.submission.key.to_string(), job.submission.priority, request_of(opened, job.id().0))
    });
    with_payload.collect()
}

fn job(key: &str, priority: i64, payload: &[u8]) -> (String, i64, Vec<u8>) {
    (format!("job.assign.{key}"), priority, payload.to_vec())
}

#[test]
fn tf04_tf10_tf23_snapshot_and_log_become_jobs_with_their_keys() {
    for own_markers in [false, true] {
        let of = |own: [u8; 4]| if own_markers { own } else { OF_ALL };
        let node = Node::new();
        node.snapshot(
            of(OF_SNAPSHOT),
            7,
            &[
                queue("", 0, &[(5, b"plain"), (-5, b"first \xff\x00")]),
                queue("a.b*>", 0, &[(i64::MAX, b"last"), (i64::MIN, b"")]),
                queue("empty", 3, &[]),
            ],
        );
        node.log(
            of(OF_LOG),
            &[
                create("new", 2),
                enqueue("new", 1, b"one"),
                enqueue("new", 0, b"zero"),
                enqueue("new", 9, b"refused: the queue is full"),
                dequeue("new"),
                enqueue("nowhere", 1, b"refused: there is no such queue"),
                [b"C".to_vec(), name("new")].concat(),
                b"L".to_vec(),
                Vec::new(),
                dequeue(""),
                enqueue("empty", 4, b"x"),
                delete("empty"),
                delete(""),
                create("new", 100),
            ],
        );
        node.metadata(of(OF_METADATA), 4, 2);
        let (ran, jobs) = node.jobs();
        assert_eq!(
            jobs,
            [
                job("a%2Eb%2A%3E", i64::MIN, b""),
                job("a%2Eb%2A%3E", i64::MAX, b"last"),
                job("default", 5, b"plain"),
                job("new", 1, b"one"),
            ]
        );
        assert!(ran.out.contains("its term was 4, and it had voted for node 2"), "{}", ran.out);
        assert!(ran.out.contains("jobs that wait                         4"), "{}", ran.out);
        assert!(ran.err.contains("takes at most 2 records there"), "{}", ran.err);
        let opened = open(&node.data(), 0);
        assert_eq!(
            opened.replay.state.cap(&"taskflux".into()),
            Some(u32::MAX),
            "TaskFlux has no caps"
        );
    }
}

#[test]
fn c28_inside_a_key_the_older_comes_first_and_a_dequeue_takes_what_taskflux_took() {
    let node = Node::new();
    let six: Vec<Vec<u8>> = (b'a'..=b'f').map(|letter| enqueue("", 1, &[letter])).collect();
    node.log(OF_ALL, &[six, vec![dequeue(""), dequeue("")]].concat());
    let (_, jobs) = node.jobs();
    // Its heap gives out "a", and then the one that took its place.
    assert_eq!(jobs, [b"b", b"c", b"d", b"e"].map(|letter| job("default", 1, letter)));
}

#[test]
fn c24_a_vote_for_0_is_nobody_and_is_warned_of() {
    let node = Node::new();
    node.log(OF_ALL, &[enqueue("", 1, b"x")]).metadata(OF_ALL, 3, 0);
    let (ran, _) = node.jobs();
    assert!(
        ran.err.contains("its vote is 0, which stands for nobody and for node 0 alike"),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("voted for nobody"), "{}", ran.out);
    std::fs::remove_dir_all(node.data()).unwrap();
    node.metadata(OF_METADATA, 3, -1);
    let (ran, _) = node.jobs();
    assert!(!ran.err.contains("vote"), "{}", ran.err);
    std::fs::remove_dir_all(node.data()).unwrap();
    node.metadata(OF_ALL, 3, -1);
    assert!(node.refused().contains("raft.metadata is damaged at offset 12: its vote is -1"));
    node.metadata(OF_METADATA, 3, -2);
    assert!(node.refused().contains("its vote is -2"));
}

#[test]
fn tf05_a_wrong_marker_or_version_is_named() {
    for file in ["raft.log", "raft.snapshot", "raft.metadata"] {
        let node = Node::new();
        node.log(OF_ALL, &[]).snapshot(OF_ALL, 0, &[]).metadata(OF_ALL, 1, 1);
        let mut bytes = std::fs::read(node.file(file)).unwrap();
        bytes[2] ^= 1;
        node.write(file, &bytes);
        let err = node.refused();
        let expected = format!(
            "{} is damaged at offset 0: it begins with [2F, 6F, 0E, 2F]",
            node.file(file).display()
        );
        assert!(err.contains(&expected), "{err}");
        // The marker of another file is wrong, too.
        bytes[..4].copy_from_slice(if file == "raft.log" { &OF_SNAPSHOT } else { &OF_LOG });
        node.write(file, &bytes);
        assert!(node.refused().contains("damaged at offset 0"));
    }
    let node = Node::new();
    node.write("raft.log", &[OF_LOG, 2i32.to_be_bytes()].concat());
    assert!(node.refused().contains("raft.log is damaged at offset 4: it has version 2"));
    node.write("raft.log", &OF_LOG[..3]);
    assert!(node.refused().contains("its marker has 3 of 4 bytes"));
}

#[test]
fn tf06_a_record_that_is_cut_off_is_named_and_can_be_left_out() {
    let node = Node::new();
    node.log(OF_ALL, &[enqueue("", 1, b"one"), enqueue("", 2, b"two")]);
    let whole = std::fs::read(node.file("raft.log")).unwrap();
    let second = 8 + 8 + enqueue("", 1, b"one").len();
    for cut in 1..whole.len() - second {
        node.write("raft.log", &whole[..whole.len() - cut]);
        let err = node.refused();
        assert!(
            err.contains(&format!("{} is damaged at offset", node.file("raft.log").display())),
            "{err}"
        );
        assert!(
            err.contains("(record 1). Restore the file from a backup, or give --skip-damaged"),
            "{err}"
        );
    }
    let ran = node.import(&["--skip-damaged"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("this and all behind it is left out"), "{}", ran.err);
    assert_eq!(jobs(&mut open(&node.data(), 0)), [job("default", 1, b"one")]);
}

#[test]
fn tf06_tf21_lengths_and_bytes_that_cannot_be_are_named_and_cost_no_memory() {
    let node = Node::new();
    let log = |record: &[u8]| [&OF_ALL[..], &1i32.to_be_bytes(), record].concat();
    let record =
        |term: i32, len: i32, data: &[u8]| [&term.to_be_bytes(), &len.to_be_bytes(), data].concat();
    for (bytes, what) in [
        (log(&record(-1, 0, b"")), "offset 8: a record has the term -1"),
        (log(&record(1, -1, b"")), "offset 12: a record has a length of -1"),
        (
            log(&record(1, i32::MAX, b"E")),
            "offset 12: a record has a length of 2147483647 bytes, and 1 are left",
        ),
        (log(&record(1, 1, b"X")), "offset 16: 88 is not a command"),
        (log(&record(1, 3, b"D\x01 ")), "offset 18: the name of a queue has the byte 32"),
        (log(&record(1, 3, b"D\x01\x7f")), "offset 18: the name of a queue has the byte 127"),
        (
            log(&record(1, 2, b"D\xff")),
            "offset 17: the name of a queue has 255 bytes, and 0 are left",
        ),
        (
            log(&record(1, 3, b"L\x00\x00")),
            "offset 17: a record has 3 bytes, and its command takes 1",
        ),
        (
            log(&record(
                1,
                15,
                &[b"E\x00\x00\x00\x00\x00\x00\x00\x00\x01", &[0x7f; 5][..]].concat(),
            )),
            "the payload of an enqueue has a length of",
        ),
        // A command that would take more than its record has.
        (
            log(&[record(1, 1, b"D"), record(1, 1, b"L")].concat()),
            "a record has 1 bytes, and its command takes 2",
        ),
    ] {
        node.write("raft.log", &bytes);
        let err = node.refused();
        assert!(err.contains(what), "{what} is not in {err}");
    }
    node.log(OF_ALL, &[]);
    std::fs::File::options()
        .write(true)
        .open(node.file("raft.log"))
        .unwrap()
        .set_len(100 << 20)
        .unwrap();
    assert!(
        node.refused().contains("it has 104857600 bytes; TaskFlux empties its log at 16 MB"),
        "TF07"
    );
    node.log(OF_ALL, &[]);
    let snapshot = |queues: &[u8]| [&OF_ALL[..], &[0; 8], queues].concat();
    for (bytes, what) in [
        (snapshot(b"\x00\x00\x00\x00\x00\xff\xff\xff\xff"), "offset 21: a key has 0 of 8 bytes"),
        (snapshot(b"\x00\x00\x00"), "offset 13: the greatest size of a queue has 2 of 4 bytes"),
        (
            snapshot(&[queue("x", 0, &[]), queue("x", 0, &[])].concat()),
            "offset 22: the queue \"x\" is there a second time",
        ),
        (OF_ALL[..].to_vec(), "its last index has 0 of 4 bytes"),
    ] {
        node.write("raft.snapshot", &bytes);
        let err = node.refused();
        assert!(err.contains(what), "{what} is not in {err}");
    }
}

#[test]
fn tf05_files_of_a_later_layout_are_told_apart() {
    let node = Node::new();
    let later = [&OF_LOG[..], &1i32.to_be_bytes(), &[0xff; 8], &[0xAA, 0xF5, 0x34, 0xC4], &[0; 20]]
        .concat();
    node.write("raft.log", &later);
    assert!(node.refused().contains("a later TaskFlux wrote it"));
    node.log(OF_LOG, &[]);
    node.write("raft.snapshot", &[&OF_SNAPSHOT[..], &[0; 8], &[0, 0, 0, 9, 1, 2]].concat());
    assert!(node.refused().contains("If a TaskFlux wrote it that has data/tflux.* files"));
}

#[test]
fn tf09_a_log_that_was_not_emptied_after_its_snapshot_is_not_taken_twice() {
    let node = Node::new();
    let commands = [
        create("q", 0),
        enqueue("q", 3, b"a"),
        enqueue("", 1, b"b"),
        dequeue("q"),
        enqueue("q", 1, b"c"),
    ];
    let later = [commands.to_vec(), vec![enqueue("q", 2, b"d"), dequeue("")]].concat();
    node.log(OF_ALL, &later).snapshot(
        OF_ALL,
        4,
        &[queue("", 0, &[(1, b"b")]), queue("q", 0, &[(1, b"c")])],
    );
    let (ran, found) = node.jobs();
    assert!(
        ran.out.contains("the first 5 records of the log are in the snapshot already"),
        "{}",
        ran.out
    );
    assert_eq!(found, [job("q", 1, b"c"), job("q", 2, b"d")]);
    std::fs::remove_dir_all(node.data()).unwrap();
    // They count if somebody knows better, or if they make something else.
    assert_eq!(node.import(&["--whole-log"]).code, 0);
    assert_eq!(jobs(&mut open(&node.data(), 0)).len(), 4);
    std::fs::remove_dir_all(node.data()).unwrap();
    node.snapshot(OF_ALL, 4, &[queue("", 0, &[(1, b"b")]), queue("q", 0, &[(1, b"other")])]);
    let (ran, found) = node.jobs();
    assert!(!ran.out.contains("already"), "{}", ran.out);
    // The heap of q had "other" of key 1 before "c" of the same: the dequeue took it.
    assert_eq!(
        found,
        [job("default", 1, b"b"), job("q", 1, b"c"), job("q", 2, b"d"), job("q", 3, b"a")]
    );
}

#[test]
fn c27_names_that_differ_in_case_only_become_one_and_that_is_said() {
    let node = Node::new();
    node.snapshot(OF_ALL, 0, &[queue("Mail", 0, &[(1, b"a")]), queue("mail", 0, &[(2, b"b")])]);
    let (ran, jobs) = node.jobs();
    assert_eq!(jobs.len(), 2);
    assert!(ran.err.contains("the queues \"Mail\" and \"mail\" become one"), "{}", ran.err);
}

#[test]
fn tf11_c29_node_dry_run_and_a_directory_that_has_something() {
    let node = Node::new();
    node.log(OF_ALL, &[enqueue("", 1, b"x")]);
    let ran = node.import(&["--dry-run"]);
    assert!(ran.code == 0 && !node.data().exists(), "{}", ran.err);
    assert_eq!(node.import(&["--node", "-1"]).code, 2);
    assert_eq!(node.import(&["--node", "2147483647"]).code, 0);
    assert_eq!(open(&node.data(), i32::MAX).owner.node, i32::MAX);
    assert_eq!(node.import(&[]).code, 2);
    // `consensus` itself may be named, and a directory without such files is named.
    let other = tempfile::tempdir().unwrap();
    let into = other.path().join("heft-data");
    let from = node.dir.path().join("consensus");
    assert_eq!(
        tool(&["import", "taskflux", from.to_str().unwrap(), "--data", into.to_str().unwrap()])
            .code,
        0
    );
    let ran = tool(&[
        "import",
        "taskflux",
        other.path().to_str().unwrap(),
        "--data",
        other.path().join("y").to_str().unwrap(),
    ]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("has neither raft.log nor raft.snapshot"), "{}", ran.err);
}

#[test]
fn tf21_bytes_that_nobody_meant_end_with_an_error_or_an_import_and_never_otherwise() {
    let node = Node::new();
    node.log(
        OF_ALL,
        &[
            create("q", 3),
            enqueue("q", 1, b"one"),
            enqueue("", 2, b"two"),
            dequeue("q"),
            delete("q"),
        ],
    );
    node.snapshot(OF_ALL, 2, &[queue("", 0, &[(1, b"b")]), queue("q", 9, &[(1, b"c"), (4, b"d")])]);
    node.metadata(OF_ALL, 1, 1);
    let files = ["raft.log", "raft.snapshot", "raft.metadata"];
    let good: Vec<Vec<u8>> =
        files.iter().map(|file| std::fs::read(node.file(file)).unwrap()).collect();
    let mut seed = 99u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    for round in 0..80 {
        for (file, good) in files.iter().zip(&good) {
            let mut bytes = good.clone();
            // Mostly behind the marker, where there is something to get wrong.
            let at = 4 + random(bytes.len() - 4);
            match random(4) {
                0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                1 => bytes.truncate(at),
                2 => bytes.extend(good[at..].to_vec()),
                _ => {}
            }
            node.write(file, &bytes);
        }
        let ran = node.import(if round % 2 == 0 { &[] } else { &["--skip-damaged"] });
        assert!(matches!(ran.code, 0 | 1), "{}{}", ran.out, ran.err);
        assert_eq!(node.data().exists(), ran.code == 0);
        if ran.code == 0 {
            check_opens(&node.data());
            std::fs::remove_dir_all(node.data()).unwrap();
        }
    }
}

fn check_opens(data: &Path) {
    let mut opened = open(data, 0);
    jobs(&mut opened);
}
