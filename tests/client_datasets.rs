//! Putting datasets against a leader that follows the test's script: what lacks is sent and nothing
//! else, breaks, refusals, files that change, and who is waited for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/leader.rs"]
mod leader;
#[path = "support/library.rs"]
mod library;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/transfers.rs"]
mod transfers;

use std::path::Path;
use std::time::Duration;

use chunking::message::{
    Abort, Body, Features, Lack, Lacking, PutFlags, Reason, Refused, SpreadStage, Verdict,
};
use chunking::{ChunkHead, ChunkRange, Codec, Kind};
use heft::client::ClientError;
use heft::client::dataset::{DatasetSpec, PutError, PutEvent, PutReport, Wait, put};
use heft::model::{CachePutResult, CacheStatus};
use heft::transfer::Compression;
use leader::{FEATURES, FakeLeader, PATIENCE, options};
use library::{PackIndex, dataset, taking, worker};
use tokio::time::timeout;
use transfers::{MIB, noise};

fn spec(dir: &Path) -> DatasetSpec {
    DatasetSpec::new("set-1", [dir]).unwrap().timeout(PATIENCE)
}

async fn putting(
    leader: &FakeLeader,
    spec: DatasetSpec,
) -> (Result<PutReport, PutError>, Vec<PutEvent>) {
    let mut events = Vec::new();
    let options = options();
    let put = put(&leader.address, spec, &options, |event| events.push(event));
    let ended = timeout(PATIENCE, put).await.expect("an end in time");
    (ended, events)
}

#[tokio::test]
async fn c18_a_dataset_is_sent_once_in_packs_and_every_worker_is_heard() {
    let leader = FakeLeader::start().await;
    let large = noise(20 * MIB);
    let dir = dataset(&[
        ("large.bin", &large),
        ("cfg/a.cfg", b"x=1"),
        ("cfg/same.cfg", b"x=1"),
        ("empty", b""),
    ]);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        let put = &library.put;
        assert_eq!(
            (put.cache_id.as_str(), put.target.as_str(), put.files),
            ("set-1", "job.assign.>", 4)
        );
        assert_eq!((put.bytes, put.flags), (20 * MIB as u64 + 6, PutFlags::default()));
        assert!((1..=10_000).contains(&put.deadline_ms), "{}", put.deadline_ms);
        library.lack(Lacking::Manifest, 0, &[]).await;
        library.take_manifest().await;
        // In rounds: the first runs, then what is left.
        library.lack(Lacking::Pieces, library.manifest.bytes(), &[(0, 3)]).await;
        assert_eq!(library.take_pack().await.len(), 3);
        let mut packs = 1;
        assert!(library.lack_pieces(1024).await);
        while library.pieces.len() < library.manifest.pieces().len() {
            library.take_pack().await;
            packs += 1;
        }
        assert!((3..=4).contains(&packs), "{packs} packs");
        assert!(!library.lack_pieces(1024).await);
        library.spread(SpreadStage::Stored, [3, 0, 0, 0, 3], 0).await;
        library.ack(worker(1, Some("host-1"), CachePutResult::stored("set-1", 4, 0))).await;
        library.ack(worker(2, None, CachePutResult::stored("set-1", 0, 4))).await;
        library
            .ack(worker(3, Some("full"), CachePutResult::failed("set-1", "no room: needs 20 MiB")))
            .await;
        library.spread(SpreadStage::Over, [3, 1, 1, 1, 0], 77).await;
        library.check_files(dir.path());
        library
    };
    let ((ended, events), library) = tokio::join!(putting(&leader, spec(dir.path())), script);
    let report = ended.unwrap();
    assert_eq!(
        (report.digest, report.files, report.bytes),
        (library.put.digest, 4, library.put.bytes)
    );
    let spread = &report.spread;
    assert_eq!(
        (spread.targets, spread.ok, spread.skipped, spread.failed, spread.missing),
        (3, 1, 1, 1, 0)
    );
    assert_eq!((spread.received, spread.moved, report.enough), (library.received, 77, false));
    let names: Vec<&str> = report.acks.iter().map(|ack| ack.worker.as_str()).collect();
    assert_eq!(
        names,
        [
            "00000000-0000-0000-0000-000000000001 host-1",
            "00000000-0000-0000-0000-000000000002",
            "00000000-0000-0000-0000-000000000003 full"
        ]
    );
    assert_eq!(
        (report.acks[2].status.clone(), report.acks[2].message.as_str()),
        (CacheStatus::Failed, "no room: needs 20 MiB")
    );
    let data = library.manifest.pieces().iter().map(|piece| u64::from(piece.len)).sum::<u64>();
    assert!(events.contains(&PutEvent::Uploading { done: data, total: data }), "{events:?}");
    assert!(matches!(events.last(), Some(PutEvent::Ack(_))), "{events:?}");
}

#[tokio::test]
async fn the_same_content_again_moves_no_payload_and_a_known_manifest_is_not_sent() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", &noise(3 * MIB)), ("b", b"b")]);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        assert!(library.put.flags.has(PutFlags::REPLACE) && library.put.deadline_ms == 0);
        library.lack(Lacking::Nothing, 0, &[]).await;
        library.spread(SpreadStage::Stored, [1, 0, 0, 0, 1], 0).await;
        library.ack(worker(1, None, CachePutResult::stored("set-1", 0, 2))).await;
        library.spread(SpreadStage::Over, [1, 0, 1, 0, 0], 0).await;
        assert!(library.peer.poll().await.is_none(), "nothing else came");
    };
    let spec = DatasetSpec::new("set-1", [dir.path()]).unwrap().replace(true);
    let ((ended, events), ()) = tokio::join!(putting(&leader, spec), script);
    assert!(ended.unwrap().enough);
    assert!(events.contains(&PutEvent::Lacking { bytes: 0 }), "{events:?}");

    // The leader has the manifest from before, and one piece lacks.
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.lack(Lacking::Pieces, 1, &[(1, 1)]).await;
        assert_eq!(library.take_pack().await.len(), 1);
        library.lack(Lacking::Nothing, 0, &[]).await;
        library.spread(SpreadStage::Stored, [0; 5], 0).await;
        library
    };
    let spec = DatasetSpec::new("set-1", [dir.path()]).unwrap().target_none();
    let ((ended, _), library) = tokio::join!(putting(&leader, spec), script);
    assert_eq!(library.put.target.as_str(), "none");
    assert!(ended.unwrap().enough, "there is nobody to wait for");
}

#[tokio::test]
async fn after_a_cut_the_same_request_goes_on_with_what_lacks() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", &noise(20 * MIB))]);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        let (request, first) = (library.request, library.put.clone());
        library.lack(Lacking::Manifest, 0, &[]).await;
        let seen = library.next_of(Kind::Open).await;
        assert_eq!(seen.msg_id, first.manifest);
        drop(library.peer);

        library.peer = taking(&leader).await;
        library.hear_put().await;
        assert_eq!(
            (library.request, library.put.manifest),
            (request, first.manifest),
            "the same put"
        );
        library.lack(Lacking::Manifest, 0, &[]).await;
        library.take_manifest().await;
        library.lack_pieces(1024).await;
        let (broken, list, size) = library.opened_pack().await;
        // The others are opened too; the first chunk of this one comes among nothing else, since
        // only it was granted.
        let mut others = Vec::new();
        while others.iter().map(Vec::len).sum::<usize>() + list.len()
            < library.manifest.pieces().len()
        {
            others.push(library.opened_pack().await.1);
        }
        assert!(library.take_blob(broken, size, 2).await.is_none());
        drop(library.peer);

        // What came of the pack before the break does not lack any more; the pack comes again under
        // its id.
        library.peer = taking(&leader).await;
        library.hear_put().await;
        assert_eq!(library.request, request);
        library.lack_pieces(1024).await;
        let (again, same, size) = library.opened_pack().await;
        assert_eq!((again, same), (broken, list.clone()));
        for other in &others {
            assert_eq!(library.opened_pack().await.1, *other);
        }
        library.peer.message(again, &transfers::grant(8, &[(0, 2)])).await;
        let mut chunks = Vec::new();
        loop {
            let seen = library.peer.next().await;
            if seen.kind() == Kind::Done {
                break;
            }
            chunks.push(ChunkHead::decode(&seen.payload).unwrap().0.offset / MIB as u64);
        }
        assert_eq!(
            chunks,
            (2..size.div_ceil(MIB as u64)).collect::<Vec<_>>(),
            "what it had is not sent again"
        );
        library.peer.message(again, &Verdict::Ok).await;
        library.lack(Lacking::Nothing, 0, &[]).await;
        library.spread(SpreadStage::Stored, [1, 1, 0, 0, 0], 0).await;
        library.ack(worker(1, None, CachePutResult::stored("set-1", 1, 0))).await;
        drop(library.peer);

        // Even then: the leader says again how it ended.
        library.peer = taking(&leader).await;
        library.hear_put().await;
        library.lack(Lacking::Nothing, 0, &[]).await;
        library.spread(SpreadStage::Stored, [1, 1, 0, 0, 0], 0).await;
        library.ack(worker(1, None, CachePutResult::stored("set-1", 1, 0))).await;
        library.spread(SpreadStage::Over, [1, 1, 0, 0, 0], 0).await;
    };
    let ((ended, events), ()) = tokio::join!(putting(&leader, spec(dir.path())), script);
    let report = ended.unwrap();
    assert_eq!((report.enough, report.acks.len()), (true, 1));
    let count = |is: &dyn Fn(&PutEvent) -> bool| events.iter().filter(|event| is(event)).count();
    assert_eq!(count(&|event| matches!(event, PutEvent::Reconnecting { .. })), 3);
    assert_eq!(count(&|event| matches!(event, PutEvent::Asked { again: true, .. })), 3);
    assert_eq!(count(&|event| matches!(event, PutEvent::Ack(_))), 1, "said once");
}

fn refused(reason: Reason, text: &str) -> Refused {
    Refused {
        reason,
        value: 0,
        limit: 0,
        hop: "leader".to_owned().try_into().unwrap(),
        text: text.into(),
    }
}

#[tokio::test]
async fn what_the_leader_refuses_ends_the_put_with_its_words() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", b"a")]);
    let text = "set-1 has the content sha256:aa, and sha256:bb was put";
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.say(&refused(Reason::BUSY, "too many puts")).await;
        // It is asked again a little later.
        library.hear_put().await;
        library.say(&refused(Reason::CONFLICT, text)).await;
    };
    let ((ended, events), ()) = tokio::join!(putting(&leader, spec(dir.path())), script);
    let error = ended.unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    let PutError::Refused { refusal, cache_id } = error else { panic!("{error}") };
    assert_eq!((refusal.reason, cache_id.as_str()), (Reason::CONFLICT, "set-1"));
    let waiting = PutEvent::Waiting { reason: Reason::BUSY, text: "too many puts".to_owned() };
    assert!(events.contains(&waiting), "{events:?}");

    // A pack, too.
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.lack(Lacking::Manifest, 0, &[]).await;
        library.take_manifest().await;
        library.lack_pieces(1).await;
        let (id, _, _) = library.opened_pack().await;
        let abort = Abort { reason: Reason::DISK_FULL, text: "the disk is full".into() };
        library.peer.message(id, &abort).await;
    };
    let ((ended, _), ()) = tokio::join!(putting(&leader, spec(dir.path())), script);
    let error = ended.unwrap_err();
    assert!(
        error.to_string().contains("a pack of the dataset set-1 (disk-full): the disk is full"),
        "{error}"
    );
}

#[tokio::test]
async fn a_leader_that_does_not_know_a_pack_is_asked_again() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", b"a")]);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.lack(Lacking::Manifest, 0, &[]).await;
        library.take_manifest().await;
        library.lack_pieces(1).await;
        let (id, _, _) = library.opened_pack().await;
        library
            .peer
            .message(id, &Abort { reason: Reason::UNKNOWN, text: "no such put".into() })
            .await;
        library.hear_put().await;
        library.lack_pieces(1).await;
        library.take_pack().await;
        library.lack_pieces(1).await;
        library.spread(SpreadStage::Over, [0; 5], 0).await;
    };
    let ((ended, _), ()) = tokio::join!(putting(&leader, spec(dir.path())), script);
    ended.unwrap();
}

#[tokio::test]
async fn a_file_that_changes_before_it_is_sent_ends_the_put_with_its_name() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("big", &noise(9 * MIB)), ("small", b"s")]);
    let big = dir.path().join("big");
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.lack(Lacking::Manifest, 0, &[]).await;
        library.take_manifest().await;
        let modified = std::fs::metadata(&big).unwrap().modified().unwrap();
        let mut content = std::fs::read(&big).unwrap();
        content[4 * MIB] ^= 1;
        let file = std::fs::File::options().write(true).open(&big).unwrap();
        std::io::Write::write_all(&mut &file, &content).unwrap();
        // Neither size nor time tell.
        file.set_modified(modified).unwrap();
        library.lack_pieces(1).await;
        let (id, _, _) = library.opened_pack().await;
        library.peer.message(id, &transfers::grant(8, &[])).await;
        while let Some(seen) = library.peer.poll().await {
            if seen.kind() == Kind::Abort && seen.msg_id == id {
                return Abort::decode(&seen.payload).unwrap().reason;
            }
        }
        panic!("no Abort");
    };
    let ((ended, _), reason) = tokio::join!(putting(&leader, spec(dir.path())), script);
    let error = ended.unwrap_err();
    assert!(matches!(error, PutError::Source(_)), "{error}");
    assert!(error.to_string().contains("/big changed while it was sent"), "{error}");
    assert_eq!(reason, Reason::SOURCE_GONE);
}

#[tokio::test]
async fn what_is_waited_for_is_all_some_or_a_share_of_the_targets() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", b"a")]);
    let ok = |number| worker(number, None, CachePutResult::stored("set-1", 1, 0));
    // (what to wait for, targets, workers that have it, Over is said, enough)
    for (wait, targets, have, over, enough) in [
        (Wait::Count(0), 3, 0, false, true),
        (Wait::Count(2), 3, 2, false, true),
        (Wait::Ratio(0.5), 3, 2, false, true),
        (Wait::All, 3, 3, true, true),
        (Wait::Count(4), 3, 3, true, false),
        (Wait::All, 0, 0, false, true),
        (Wait::Count(1), 0, 0, false, false),
        (Wait::Ratio(1.0), 2, 1, true, false),
    ] {
        let script = async {
            let mut library = PackIndex::begin(taking(&leader).await).await;
            library.lack(Lacking::Nothing, 0, &[]).await;
            library.spread(SpreadStage::Stored, [targets, 0, 0, 0, targets], 0).await;
            for number in 0..have {
                library.ack(ok(number.into())).await;
            }
            if over {
                library.spread(SpreadStage::Over, [targets, have, 0, targets - have, 0], 0).await;
            }
            while library.peer.poll().await.is_some() {}
        };
        let spec = spec(dir.path()).wait(wait);
        let ((ended, _), ()) = tokio::join!(putting(&leader, spec), script);
        let report = ended.unwrap();
        assert_eq!(
            (report.enough, report.spread.targets),
            (enough, targets),
            "{wait} of {targets}"
        );
        assert_eq!(report.spread.ok, have, "{wait} of {targets}");
    }
}

#[tokio::test]
async fn time_that_runs_out_says_how_far_it_was() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", b"a")]);
    let short = || spec(dir.path()).timeout(Duration::from_millis(300));
    let silent = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        while library.peer.poll().await.is_some() {}
    };
    let ((ended, _), ()) = tokio::join!(putting(&leader, short()), silent);
    let error = ended.unwrap_err();
    assert!(matches!(error, PutError::TimedOut { report: None, .. }), "{error}");
    assert!(
        error.to_string().contains("set-1 was not put within 300ms: the leader has not listed"),
        "{error}"
    );
    // The leader's own deadline: its last word is waited for.
    let late = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        assert!(library.put.deadline_ms <= 300);
        library.lack(Lacking::Nothing, 0, &[]).await;
        library.spread(SpreadStage::Stored, [2, 0, 0, 0, 2], 0).await;
        library.ack(worker(1, None, CachePutResult::stored("set-1", 0, 1))).await;
        tokio::time::sleep(Duration::from_millis(library.put.deadline_ms + 20)).await;
        library.spread(SpreadStage::Over, [2, 0, 1, 0, 1], 0).await;
    };
    let ((ended, _), ()) = tokio::join!(putting(&leader, short()), late);
    let error = ended.unwrap_err();
    assert!(
        error.to_string().contains("the leader and 1 of 2 workers have it; 1 have not answered"),
        "{error}"
    );
    let PutError::TimedOut { report: Some(report), .. } = error else { panic!("{error}") };
    assert_eq!((report.spread.skipped, report.spread.missing), (1, 1));
}

#[tokio::test]
async fn leaders_that_take_no_datasets_or_cannot_be_reached_are_told_apart() {
    let dir = dataset(&[("a", b"a")]);
    let leader = FakeLeader::start().await;
    let older = async {
        let mut peer = leader.accept().await;
        peer.welcome_with(FEATURES.with(Features::TRANSFERS)).await;
        while peer.poll().await.is_some() {}
    };
    let ((ended, _), ()) = tokio::join!(putting(&leader, spec(dir.path())), older);
    let error = ended.unwrap_err();
    assert!(
        matches!(error, PutError::Client(ClientError::NotSupported { feature: "datasets", .. })),
        "{error}"
    );
    let mut options = options();
    options.connect_wait = Some(Duration::from_millis(100));
    let gone = {
        let gone = FakeLeader::start().await;
        gone.address.clone()
    };
    let error = put(&gone, spec(dir.path()), &options, |_| {}).await.unwrap_err();
    assert!(matches!(error, PutError::Client(ClientError::Unreachable { .. })), "{error}");
    let error = put("nowhere", spec(dir.path()), &options, |_| {}).await.unwrap_err();
    assert!(matches!(error, PutError::Client(ClientError::BadAddress(_))), "{error}");
    // What is wrong with the files is found before anybody is asked.
    let error = put(&gone, spec(&dir.path().join("none")), &options, |_| {}).await.unwrap_err();
    assert!(matches!(error, PutError::Scan(_)), "{error}");
}

#[tokio::test]
async fn chunks_are_compressed_where_it_was_asked_for() {
    let leader = FakeLeader::start().await;
    let text = b"row;value;another value\n".repeat(200_000);
    let dir = dataset(&[("table.csv", &text)]);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        library.lack(Lacking::Manifest, 0, &[]).await;
        library.take_manifest().await;
        while library.lack_pieces(1024).await {
            library.take_pack().await;
        }
        library.spread(SpreadStage::Over, [0; 5], 0).await;
        library.check_files(dir.path());
        library.received
    };
    let spec = spec(dir.path()).compression(Compression::Fixed(Codec::Zstd));
    let ((ended, _), received) = tokio::join!(putting(&leader, spec), script);
    ended.unwrap();
    assert!(received < text.len() as u64 / 4, "{received} bytes came");
}

#[test]
fn ca01_cache_ids_that_are_no_names_are_refused() {
    let long = "x".repeat(300);
    for id in [
        "",
        "..",
        "../x",
        "/abs",
        "a/b",
        "a\\b",
        "nul\0",
        "dots.",
        "space ",
        ".hidden",
        "con",
        long.as_str(),
    ] {
        let error = DatasetSpec::new(id, ["."]).unwrap_err().to_string();
        assert!(error.starts_with("invalid cache id: "), "{error}");
    }
    assert_eq!(
        DatasetSpec::new("dataset-20251019-v1", ["."]).unwrap().cache_id(),
        "dataset-20251019-v1"
    );
}

#[tokio::test]
async fn places_that_the_dataset_does_not_have_are_an_error_and_not_a_wait() {
    let leader = FakeLeader::start().await;
    let dir = dataset(&[("a", b"a")]);
    let script = async {
        let mut library = PackIndex::begin(taking(&leader).await).await;
        let pieces = vec![ChunkRange { first: 7, count: 2 }].try_into().unwrap();
        library.say(&Lack { what: Lacking::Pieces, bytes: 5, pieces }).await;
    };
    let ((ended, _), ()) = tokio::join!(putting(&leader, spec(dir.path())), script);
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("it asks for 2 pieces that are not in the dataset"), "{error}");
}
