//! `heft dataset`, `heft explain` and `heft submit --cache` as a person or a script runs them,
//! against a leader that follows the test's script: what is asked, what is printed, exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/command.rs"]
mod command;
#[path = "support/leader.rs"]
mod leader;
#[path = "support/library.rs"]
mod library;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/transfers.rs"]
mod transfers;

use std::time::Duration;

use chunking::Kind;
use chunking::message::{AnswerStatus, Features, Lacking, Reason, Refused, SpreadStage};
use command::{Ended, end, heft, until_closed, with};
use heft::model::CachePutResult;
use leader::{FEATURES, FakeLeader, Peer, ok};
use library::{PackIndex, dataset, taking, worker};
use serde_json::{Value, json};

const DATASET: &str = "set-1";

/// Takes all of a put that lacks everything.
async fn take_all(leader: &FakeLeader) -> PackIndex {
    let mut library = PackIndex::begin(taking(leader).await).await;
    library.lack(Lacking::Manifest, 0, &[]).await;
    library.take_manifest().await;
    while library.lack_pieces(1024).await {
        library.take_pack().await;
    }
    library
}

#[tokio::test]
async fn a_put_ends_with_a_line_for_each_worker_and_one_for_all() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a.bin", b"aaa"), ("sub/b.bin", b"bb")]);
    let path = dir.path().to_str().unwrap();
    let script = async {
        let mut library = take_all(&leader).await;
        library.spread(SpreadStage::Stored, [2, 0, 0, 0, 2], 0).await;
        library.ack(worker(1, Some("host-1"), CachePutResult::stored(DATASET, 2, 0))).await;
        library.ack(worker(2, None, CachePutResult::stored(DATASET, 0, 2))).await;
        library.spread(SpreadStage::Over, [2, 1, 1, 0, 0], 10).await;
        (library.put.digest, library.received)
    };
    let args = ["dataset", &leader.address, "put", DATASET, path, "--progress", "none"];
    let (ended, (digest, received)) = with(&args, script).await;
    let expected = format!(
        "\
WORKER                                NAME    STATUS   MESSAGE
00000000-0000-0000-0000-000000000001  host-1  OK       added=2
00000000-0000-0000-0000-000000000002  -       SKIPPED  already-present=2
set-1: 2 files, 5 B, {digest}: 2 workers: 1 ok, 1 skipped, 0 failed, 0 missing; {received} B from here, 10 B moved
"
    );
    assert_eq!((ended.code, ended.out, ended.err), (0, expected, String::new()));
}

#[tokio::test]
async fn a_put_as_json_has_all_of_it_and_fails_if_a_worker_does() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a.bin", b"aaa")]);
    let path = dir.path().to_str().unwrap();
    let script = async {
        let mut library = take_all(&leader).await;
        library.spread(SpreadStage::Stored, [2, 0, 0, 0, 2], 0).await;
        library.ack(worker(1, Some("big one"), CachePutResult::stored(DATASET, 1, 0))).await;
        library.ack(worker(2, None, CachePutResult::failed(DATASET, "no room: needs 3 B"))).await;
        library.spread(SpreadStage::Over, [2, 1, 0, 1, 0], 3).await;
    };
    let args = [
        "dataset",
        &leader.address,
        "put",
        DATASET,
        path,
        "--output",
        "json",
        "--progress",
        "none",
    ];
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 1, "a worker FAILED: {}", ended.err);
    assert!(
        ended.err.contains("1 of 2 workers have set-1; --wait all requires more"),
        "{}",
        ended.err
    );
    let shown = ended.json();
    assert_eq!(
        (&shown["status"], &shown["files"], &shown["bytes"]),
        (&json!("FAILED"), &json!(1), &json!(3))
    );
    assert_eq!(
        shown["workers"],
        json!([
            {"id": "00000000-0000-0000-0000-000000000001", "name": "big one", "status": "OK", "message": "added=1"},
            {"id": "00000000-0000-0000-0000-000000000002", "name": null, "status": "FAILED", "message": "no room: needs 3 B"},
        ])
    );
    assert_eq!(
        (&shown["targets"], &shown["failed"], &shown["moved"]),
        (&json!(2), &json!(1), &json!(3))
    );
}

#[tokio::test]
async fn other_content_is_refused_with_both_digests_and_the_way_out() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a.bin", b"aaa")]);
    let path = dir.path().to_str().unwrap();
    let text = "set-1 has the content sha256:aa, and sha256:bb was put";
    let hop = "leader".to_owned().try_into().unwrap();
    let refused = Refused { reason: Reason::CONFLICT, value: 0, limit: 0, hop, text: text.into() };
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.say(&refused).await;
    };
    let args = ["dataset", &leader.address, "put", DATASET, path, "--progress", "none"];
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 3);
    assert!(ended.err.contains(text) && ended.err.contains("use --replace"), "{}", ended.err);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.say(&refused).await;
    };
    let args = [
        "dataset",
        &leader.address,
        "put",
        DATASET,
        path,
        "--progress",
        "none",
        "--output",
        "json",
    ];
    let (ended, ()) = with(&args, script).await;
    let shown = ended.json();
    assert_eq!((&shown["status"], &shown["reason"]), (&json!("REFUSED"), &json!("conflict")));
    assert_eq!(ended.code, 3);
}

#[tokio::test]
async fn bad_input_ends_with_2_before_anybody_is_asked() {
    let dir = dataset(&[("a", b"1"), ("sub/A", b"2"), ("case/x", b"3"), ("case/X", b"4")]);
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("sub/link")).unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let long = "x".repeat(300);
    for (id, path, text) in [
        ("..", at("a"), "invalid cache id"),
        ("/abs", at("a"), "invalid cache id"),
        ("a/b", at("a"), "invalid cache id"),
        ("dots...", at("a"), "invalid cache id"),
        (long.as_str(), at("a"), "it has 300 bytes; at most 255"),
        (DATASET, at("none"), "cannot read"),
        (DATASET, at("empty"), "there is no file in"),
        (DATASET, at("sub"), "sub/link is a link that leads to /etc/passwd"),
        (DATASET, at("case"), "\"X\" and \"x\" in the dataset"),
    ] {
        let ended =
            end(heft(&["dataset", "127.0.0.1:1", "put", id, &path, "--progress", "none"])).await;
        assert_eq!(ended.code, 2, "{id} {path}: {}", ended.err);
        assert!(ended.err.contains(text), "{}", ended.err);
    }
    let ended = end(heft(&["dataset", "127.0.0.1:1", "put", DATASET])).await;
    assert_eq!(ended.code, 2, "no path: {}", ended.err);
    let ended =
        end(heft(&["dataset", "127.0.0.1:1", "put", DATASET, &at("a"), "--wait", "1.5"])).await;
    assert!(ended.code == 2 && ended.err.contains("a share from 0.0 to 1.0"), "{}", ended.err);
    let args = [
        "dataset",
        "127.0.0.1:1",
        "put",
        DATASET,
        &at("a"),
        "--connect-wait",
        "100ms",
        "--progress",
        "none",
    ];
    let ended = end(heft(&args)).await;
    assert!(ended.code == 3 && ended.err.contains("cannot reach 127.0.0.1:1"), "{}", ended.err);
}

#[tokio::test]
async fn time_that_runs_out_ends_with_4_and_what_is_known() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a.bin", b"aaa")]);
    let path = dir.path().to_str().unwrap();
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.lack(Lacking::Nothing, 0, &[]).await;
        library.spread(SpreadStage::Stored, [2, 0, 0, 0, 2], 0).await;
        library.ack(worker(1, None, CachePutResult::stored(DATASET, 0, 1))).await;
        tokio::time::sleep(Duration::from_millis(library.put.deadline_ms + 20)).await;
        library.spread(SpreadStage::Over, [2, 0, 1, 0, 1], 0).await;
    };
    let args = [
        "dataset",
        &leader.address,
        "put",
        DATASET,
        path,
        "--progress",
        "none",
        "--timeout",
        "400ms",
    ];
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 4, "{}", ended.err);
    assert!(
        ended.out.contains("already-present=1") && ended.out.contains("1 missing"),
        "{}",
        ended.out
    );
    assert!(ended.err.contains("1 have not answered"), "{}", ended.err);
}

/// Two connections of one command, in any order: the one that puts, and the one that asks.
async fn two(leader: &FakeLeader) -> (PackIndex, Peer, leader::Seen) {
    let (mut first, mut second) = (taking(leader).await, taking(leader).await);
    let (one, two) = (first.next().await, second.next().await);
    match (one.kind(), two.kind()) {
        (Kind::Put, Kind::Ask) => (PackIndex::heard(first, &one), second, two),
        (Kind::Ask, Kind::Put) => (PackIndex::heard(second, &two), first, one),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_pattern_that_matches_nobody_is_told_at_once_and_the_dataset_is_kept() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a.bin", b"aaa")]);
    let path = dir.path().to_str().unwrap();
    for (wait, code) in [("all", 0), ("0.5", 0), ("1", 1)] {
        let script = async {
            let (mut library, mut asking, ask) = two(&leader).await;
            assert_eq!(ask.subject, "status");
            let status = json!({"workers": [{"id": "w", "patterns": ["job.assign.calcA.*"]}]});
            asking.answer(&ask, AnswerStatus::Whole, &status).await;
            library.lack(Lacking::Nothing, 0, &[]).await;
            library.spread(SpreadStage::Stored, [0; 5], 0).await;
            until_closed(library.peer).await;
        };
        let args = [
            "dataset",
            &leader.address,
            "put",
            DATASET,
            path,
            "--target",
            "groupB",
            "--wait",
            wait,
        ];
        let (ended, ()) = with(&args, script).await;
        assert_eq!(ended.code, code, "--wait {wait}: {}", ended.err);
        for text in [
            "set-1: the leader has all of it",
            "set-1: the leader has it",
            "no worker matches groupB: the leader keeps set-1 for workers that join later",
        ] {
            assert!(ended.err.contains(text), "{text}: {}", ended.err);
        }
        assert!(
            ended.out.contains("set-1: 1 file, 3 B") && ended.out.contains("0 workers"),
            "{}",
            ended.out
        );
    }
}

#[tokio::test]
async fn progress_as_json_has_an_object_for_each_event_and_each_worker() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a.bin", b"aaa")]);
    let path = dir.path().to_str().unwrap();
    let script = async {
        let (mut library, mut asking, ask) = two(&leader).await;
        asking
            .answer(
                &ask,
                AnswerStatus::Whole,
                &json!({"workers": [{"id": "w", "patterns": ["groupB"]}]}),
            )
            .await;
        library.lack(Lacking::Nothing, 0, &[]).await;
        let ask = asking.next().await;
        assert_eq!(
            (ask.subject.as_str(), ask.question()),
            ("dataset.status", json!({"cache_id": DATASET}))
        );
        let worker_state = json!({"id": "w-1", "name": "host", "state": "coming", "done": 1, "total": 3, "text": ""});
        asking.answer(&ask, AnswerStatus::Whole, &json!({"workers": [worker_state]})).await;
        // The next question says that the answer was read.
        asking.next().await;
        library.spread(SpreadStage::Stored, [1, 0, 0, 0, 1], 0).await;
        library.ack(worker(1, None, CachePutResult::stored(DATASET, 1, 0))).await;
        library.spread(SpreadStage::Over, [1, 1, 0, 0, 0], 3).await;
    };
    let args = [
        "dataset",
        &leader.address,
        "put",
        DATASET,
        path,
        "--progress",
        "json",
        "--target",
        "groupC",
    ];
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    let events: Vec<Value> =
        ended.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named = |name: &str| {
        events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("{name}"))
    };
    assert_eq!(named("scanned")["total"], 3);
    assert_eq!(named("lacking")["text"], "the leader has all of it");
    let note = "no connected worker matches groupC: the leader will keep set-1 for workers that \
                join later";
    assert_eq!(named("note")["text"], note, "told before any byte is sent");
    let coming = named("worker");
    assert_eq!(
        (&coming["worker"], &coming["state"], &coming["done"]),
        (&json!("w-1"), &json!("coming"), &json!(1))
    );
    assert_eq!(named("ack")["worker"], "00000000-0000-0000-0000-000000000001");
    for name in ["asked", "stored"] {
        named(name);
    }
}

/// Answers one question, and says what it was.
async fn answer(leader: &FakeLeader, status: AnswerStatus, answer: Value) -> (String, Value) {
    let mut peer = leader.welcome().await;
    let ask = peer.next().await;
    peer.answer(&ask, status, &answer).await;
    until_closed(peer).await;
    (ask.subject.clone(), ask.question())
}

#[tokio::test]
async fn datasets_are_listed_shown_removed_checked_and_pushed() {
    let leader = FakeLeader::start().await;
    let list = json!({"sets": [{"cache_id": DATASET, "files": 2, "bytes": 5, "target": "none"}], "puts": []});
    let status = json!({"cache_id": DATASET, "files": 1, "bytes": 5, "workers": [], "names": [{"name": "a", "size": 5}]});
    let bad = json!({"packs_good": 1, "packs_bad": ["pack x: chunk 0"], "workers": []});
    let good = json!({"packs_good": 1, "packs_bad": [], "workers": []});
    let dataset_question = json!({"cache_id": DATASET});
    let push_question = json!({"cache_id": DATASET, "target": "a.>"});
    for (args, verb, question, reply, code, text) in [
        (vec!["ls"], "dataset.ls", json!({}), list, 0, "set-1"),
        (vec!["status", DATASET], "dataset.status", dataset_question.clone(), status, 0, "FILE"),
        (
            vec!["rm", DATASET],
            "dataset.rm",
            dataset_question.clone(),
            json!({"removed": true, "bytes": 5}),
            0,
            "set-1 removed, 5 B",
        ),
        (
            vec!["verify", DATASET],
            "dataset.verify",
            dataset_question.clone(),
            bad,
            1,
            "leader: pack x: chunk 0",
        ),
        (
            vec!["verify", DATASET],
            "dataset.verify",
            dataset_question.clone(),
            good,
            0,
            "0 are damaged",
        ),
        (
            vec!["push", DATASET],
            "dataset.push",
            dataset_question.clone(),
            json!({"targets": 3}),
            0,
            "to 3 workers",
        ),
        (
            vec!["push", DATASET, "--target", "a.>"],
            "dataset.push",
            push_question,
            json!({"targets": 0}),
            0,
            "no worker",
        ),
    ] {
        let line = [vec!["dataset", leader.address.as_str()], args].concat();
        let (ended, asked) = with(&line, answer(&leader, AnswerStatus::Whole, reply.clone())).await;
        assert_eq!(asked, (verb.to_owned(), question));
        assert_eq!(ended.code, code, "{}", ended.err);
        assert!(ended.out.contains(text), "{}", ended.out);
        let line = [line, vec!["--output", "json"]].concat();
        let (ended, _) = with(&line, answer(&leader, AnswerStatus::Whole, reply.clone())).await;
        assert_eq!((ended.json(), ended.code), (reply, code));
    }
    let unknown = json!({"error": "there is no dataset set-1"});
    let line = ["dataset", &leader.address, "rm", DATASET];
    // It is asked which datasets it has, for those that are like it; this one cannot say.
    let refuse_both = async {
        let mut peer = leader.welcome().await;
        for verb in ["dataset.rm", "dataset.ls"] {
            let ask = peer.next().await;
            assert_eq!(ask.subject, verb);
            peer.answer(&ask, AnswerStatus::Error, &unknown).await;
        }
        until_closed(peer).await;
    };
    let (ended, ()) = with(&line, refuse_both).await;
    assert!(ended.code == 1 && ended.err.contains("there is no dataset set-1"), "{}", ended.err);
}

#[tokio::test]
async fn explain_shows_the_leaders_reasons() {
    let leader = FakeLeader::start().await;
    let job = "00112233-4455-6677-8899-aabbccddeeff";
    let reply = json!({"job_id": job, "phase": "queued", "waits": {"for": "room", "text": "all workers are busy"},
                       "workers": [{"id": "w-1", "verdict": "busy", "text": "no credit"}]});
    let line = ["explain", &leader.address, job];
    let (ended, asked) = with(&line, answer(&leader, AnswerStatus::Whole, reply.clone())).await;
    assert_eq!(asked, ("explain".to_owned(), json!({"job_id": job})));
    assert!(ended.code == 0 && ended.out.contains("all workers are busy"), "{}", ended.out);
    assert!(ended.out.contains("w-1     -     busy"), "{}", ended.out);
    let line = ["explain", &leader.address, job, "--output", "json"];
    let (ended, _) = with(&line, answer(&leader, AnswerStatus::Whole, reply.clone())).await;
    assert_eq!(ended.json(), reply);
}

#[tokio::test]
async fn ca08_a_job_names_files_of_datasets_or_all_of_one() {
    let leader = FakeLeader::start().await;
    let script = async {
        let mut peer = leader.accept().await;
        peer.welcome_with(FEATURES.with(Features::TRANSFERS).with(Features::DATASETS)).await;
        // Of a named file it is only asked whether it is there; of a folder, what is in it. The last
        // one has two pages.
        let row = |name: &str| json!({"name": name});
        for (question, names, next) in [
            (json!({"cache_id": "models-v2", "within": "large.bin"}), vec!["large.bin"], None),
            (
                json!({"cache_id": "models-v2", "within": "cfg"}),
                vec!["cfg/a.cfg", "cfg/b.cfg"],
                None,
            ),
            (json!({"cache_id": "tables"}), vec!["t/1"], Some("t/1")),
            (json!({"cache_id": "tables", "after": "t/1"}), vec!["t/2"], None),
        ] {
            let ask = peer.next().await;
            assert_eq!((ask.subject.as_str(), ask.question()), ("dataset.status", question));
            let mut answer = json!({"files": 2, "generation": "v", "more": next.is_some()});
            answer["names"] = names.into_iter().map(row).collect();
            if let Some(next) = next {
                answer["next"] = next.into();
            }
            peer.answer(&ask, AnswerStatus::Whole, &answer).await;
        }
        let request = peer.next().await.request();
        peer.result(&ok(&request, "done")).await;
        request.files
    };
    let line = [
        "submit",
        &leader.address,
        "calcA",
        "--cache",
        "models-v2/large.bin=model.bin",
        "--dataset",
        "models-v2/cfg=conf",
        "--dataset",
        "tables",
    ];
    let (ended, files) = with(&line, script).await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "done"), "{}", ended.err);
    let named: Vec<(&str, Option<&str>, &str)> = files
        .iter()
        .map(|file| (file.name.as_str(), file.cache_id.as_deref(), file.name_in_dataset()))
        .collect();
    assert_eq!(
        named,
        [
            ("model.bin", Some("models-v2"), "large.bin"),
            ("conf/a.cfg", Some("models-v2"), "cfg/a.cfg"),
            ("conf/b.cfg", Some("models-v2"), "cfg/b.cfg"),
            ("t/1", Some("tables"), "t/1"),
            ("t/2", Some("tables"), "t/2"),
        ]
    );
    for (cache, text) in
        [("../x/y", "invalid cache id"), ("s/../y", "it holds"), ("s/a=/abs", "it is absolute")]
    {
        let ended = end(heft(&["submit", &leader.address, "calcA", "--cache", cache])).await;
        assert!(ended.code == 2 && ended.err.contains(text), "{cache}: {}", ended.err);
    }
    let twice = ["submit", &leader.address, "calcA", "--cache", "a/x", "--cache", "b/x"];
    let ended = end(heft(&twice)).await;
    assert!(ended.code == 2 && ended.err.contains("\"x\" is given twice"), "{}", ended.err);
}

/// Submits with a selection; the leader answers the questions so, one after the other. Gives what
/// the job names, if it was submitted.
async fn selecting(flag: &str, selected: &str, answers: &[Value]) -> (Ended, Option<Vec<String>>) {
    let leader = FakeLeader::start().await;
    let script = async {
        let mut peer = leader.accept().await;
        peer.welcome_with(FEATURES.with(Features::DATASETS)).await;
        for answer in answers {
            let ask = peer.next().await;
            let status = match answer.get("error") {
                Some(_) => AnswerStatus::Error,
                None => AnswerStatus::Whole,
            };
            peer.answer(&ask, status, answer).await;
        }
        let submitted = peer.poll().await?;
        let request = submitted.request();
        peer.result(&ok(&request, "done")).await;
        until_closed(peer).await;
        Some(request.files.into_iter().map(|file| file.name).collect())
    };
    let line = ["submit", &leader.address, "calcA", flag, selected];
    with(&line, script).await
}

#[tokio::test]
async fn ca08_an_older_leader_lists_the_first_files_and_what_it_does_not_list_may_be_there() {
    // It knows no pages: it says the same whatever it is asked for, and that there is more.
    let first = json!({"files": 3, "names": [{"name": "a"}, {"name": "d/b"}], "more": true});
    let all = json!({"files": 2, "names": [{"name": "a"}, {"name": "d/b"}], "more": false});
    let (ended, job) = selecting("--dataset", "s", std::slice::from_ref(&first)).await;
    assert_eq!((ended.code, job), (2, None), "{}", ended.err);
    assert!(ended.err.contains("leader lists only 2 of them"), "{}", ended.err);
    for (selected, answer, names) in [
        ("s/a=x", &first, vec!["x"]),
        ("s/other", &first, vec!["other"]),
        ("s/d", &all, vec!["d/b"]),
        ("s", &all, vec!["a", "d/b"]),
    ] {
        let (ended, job) = selecting("--dataset", selected, std::slice::from_ref(answer)).await;
        assert_eq!(ended.code, 0, "{selected}: {}", ended.err);
        assert_eq!(job.unwrap(), names, "{selected}");
    }
    let (ended, job) = selecting("--dataset", "s/d", &[first]).await;
    assert_eq!((ended.code, job), (2, None), "not all of the folder is listed: {}", ended.err);
    let (ended, job) = selecting("--dataset", "s/b", &[all.clone(), all]).await;
    assert_eq!((ended.code, job), (5, None));
    assert!(ended.err.contains("no file or folder \"b\"; did you mean"), "{}", ended.err);
}

#[tokio::test]
async fn ca08_a_list_that_changes_between_two_pages_is_read_again() {
    let page = |version: &str, name: &str, more: bool| {
        let mut page =
            json!({"files": 2, "generation": version, "names": [{"name": name}], "more": more});
        if more {
            page["next"] = name.into();
        }
        page
    };
    let pages = [
        page("v1", "a", true),
        page("v2", "z", false),
        page("v2", "y", true),
        page("v2", "z", false),
    ];
    let (ended, job) = selecting("--dataset", "s", &pages).await;
    assert_eq!(
        (ended.code, job.unwrap()),
        (0, vec!["y".to_owned(), "z".to_owned()]),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn ca08_an_id_that_the_leader_does_not_know_is_refused_or_left_to_a_workers_directory() {
    let unknown = json!({"error": "dataset modls is unknown here"});
    let page = |id: &str, more: bool| {
        let mut page = json!({"sets": [{"cache_id": id}], "puts": [], "more": more});
        if more {
            page["next"] = id.into();
        }
        page
    };
    let answers = [unknown, page("aaa", true), page("models", false)];
    let (ended, job) = selecting("--dataset", "modls/a", &answers).await;
    assert_eq!((ended.code, job), (5, None), "{}", ended.err);
    assert!(
        ended.err.contains("no dataset \"modls\" (")
            && ended.err.contains("did you mean \"models\"?"),
        "{}",
        ended.err
    );
    let (ended, job) = selecting("--cache", "modls/a", &answers).await;
    assert_eq!((ended.code, job.unwrap()), (0, vec!["a".to_owned()]));
    assert!(ended.err.contains("only where a worker has \"a\" in its cache"), "{}", ended.err);
    let (ended, job) = selecting("--cache", "modls", &answers).await;
    assert_eq!((ended.code, job), (5, None), "all of what is not known: {}", ended.err);
}
