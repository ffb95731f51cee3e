//! A worker's cache against a leader made of a socket and the wire format: datasets come piece by
//! piece, are visible when they are whole and never before, make room for each other, and come
//! again when they are damaged (CA03, CA05, C02, C08).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm
)]

#[path = "support/cache_scene.rs"]
mod cache_scene;
#[path = "support/pushed.rs"]
mod datasets;
#[path = "support/fake_leader.rs"]
mod fake_leader;
#[path = "../src/noise.rs"]
mod noise;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cache_scene::{OURS, damage, heartbeat, job, of_4_mib, result, scene, some_data};
use chunking::Kind;
use chunking::message::{Body, DatasetState, Features, Inspect, Lacking, Reason, Release, Verdict};
use datasets::{Data, MIB, acked, digest, have, said};
use fake_leader::{Conn, PATIENCE};
use heft::model::{CacheEntry, CachePutRequest, CacheStatus, JobStatus, JsonModel};
use heft::worker::{Exec, Worker};
use noise::noise;
use tokio::time::timeout;
use uuid::Uuid;

#[tokio::test]
async fn ca03_a_dataset_comes_piece_by_piece_and_is_visible_once_it_is_whole_and_counts() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let first = have(&mut conn).await;
    assert_eq!(
        (first.anew, first.budget, first.used, first.datasets.as_slice().len()),
        (1, 1 << 30, 0, 0)
    );
    let data = some_data("set-v1", 1);
    data.hold(&mut conn, false).await;
    assert_eq!(data.send_manifest(&mut conn).await, Verdict::Ok);
    let unique: u64 = data.manifest.pieces().iter().map(|piece| u64::from(piece.len)).sum();
    assert_eq!(data.send_lacking(&mut conn).await, unique, "a piece that repeats lacks once");
    assert!(!scene.visible("set-v1").exists(), "it does not count yet");
    data.hold(&mut conn, true).await;
    let ack = data.acked(&mut conn).await;
    assert_eq!((ack.status, ack.message.as_str()), (CacheStatus::Ok, "added=5"), "M12");
    scene.assert_visible(&data);
    assert!(fs::read_link(scene.visible("set-v1")).unwrap().is_relative());
    // The same again moves nothing.
    data.hold(&mut conn, true).await;
    let ack = data.acked(&mut conn).await;
    assert_eq!((ack.status, ack.message.as_str()), (CacheStatus::Skipped, "already-present=5"));
    assert_eq!(
        data.send_manifest(&mut conn).await,
        Verdict::Ok,
        "one that is on its way is not in the way"
    );
    scene.settles("unsynced", 0).await;
    assert_eq!((scene.count("sets"), scene.count("staging"), scene.count("trash")), (3, 0, 0));
    // The next connection hears of it first.
    drop(conn);
    let mut conn = scene.accept().await;
    let found = have(&mut conn).await;
    let dataset = &found.datasets.as_slice()[0];
    assert_eq!(
        (found.anew, dataset.state, dataset.cache_id.as_str()),
        (1, DatasetState::Held, "set-v1")
    );
    assert_eq!((dataset.digest, found.used), (data.manifest.digest(), data.manifest.bytes()));
}

#[tokio::test]
async fn a_new_version_moves_what_changed_and_a_reader_sees_one_whole() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let old = some_data("set", 1);
    old.push(&mut conn).await;
    let mut big = old.files[0].1.clone();
    big.splice(1_500_000..1_500_000, noise(100, 99));
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("big.bin", big),
        ("data/b.bin", old.files[2].1.clone()),
        ("data/c.bin", old.files[2].1.clone()),
        ("small.txt", b"other".to_vec()),
    ];
    let new = Data::new("set", &files);
    let path = scene.visible("set");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn({
        let (old, new) = (old.files[4].1.clone(), new.files[3].1.clone());
        move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                // A link is read once and then stays where it leads.
                assert!(fs::symlink_metadata(&path).is_ok(), "nothing was visible");
                let Ok(root) = fs::canonicalize(&path) else { continue };
                let Ok(small) = fs::read(root.join("small.txt")) else { continue };
                assert!(small == old || small == new, "{small:?}");
            }
        }
    });
    let (ack, lacked) = new.push(&mut conn).await;
    scene.assert_visible(&new);
    stop.send(()).unwrap();
    reader.join().unwrap();
    assert_eq!(ack.message, "added=3, skipped=1");
    assert!(lacked < 2 * MIB as u64, "{lacked} bytes lacked");
    assert!(!scene.visible("set").join("empty").exists(), "nothing of the old one is left");
    scene.settles("sets", 3).await;
}

#[tokio::test]
async fn what_came_before_a_cut_or_a_kill_need_not_come_again() {
    let mut scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let data = Data::new("set", &[("a", noise(8 * MIB, 1)), ("b", noise(100, 2))]);
    let pieces = u32::try_from(data.manifest.pieces().len()).unwrap();
    data.hold(&mut conn, true).await;
    data.send_manifest(&mut conn).await;
    assert_eq!(data.lack(&mut conn).await.bytes, data.manifest.bytes());
    let pack = data.pack(0..pieces);
    data.open_pack(&mut conn, &pack).await;
    for index in 0..4 {
        conn.chunk(pack.id, &pack.bytes, index, false).await;
    }
    conn.about::<chunking::message::Grant>(pack.id).await;
    drop(conn);

    let mut conn = scene.accept().await;
    data.hold(&mut conn, true).await;
    assert_eq!(data.send_manifest(&mut conn).await, Verdict::Ok, "it is here");
    let lack = data.lack(&mut conn).await;
    let left = data.manifest.bytes() - 4 * MIB as u64;
    assert!(lack.bytes >= left && lack.bytes < left + 2 * MIB as u64, "{} of {left}", lack.bytes);
    let grant = data.open_pack(&mut conn, &pack).await;
    assert!(grant.held.chunk_count() >= 3 && grant.held.chunk_count() <= 4, "{:?}", grant.held);
    for index in 4..6 {
        conn.chunk(pack.id, &pack.bytes, index, false).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    scene.kill().await;
    assert!(!scene.visible("set").exists());
    // What is there counts by its digest alone.
    let staged = scene.private("staging").join(data.version.simple().to_string()).join("a");
    let mut bytes = fs::read(&staged).unwrap();
    bytes[10] ^= 1;
    fs::write(&staged, bytes).unwrap();
    drop(conn);

    let mut conn = scene.accept().await;
    data.hold(&mut conn, true).await;
    assert_eq!(data.send_manifest(&mut conn).await, Verdict::Ok);
    let lacked = data.send_lacking(&mut conn).await;
    assert!(lacked >= 2 * MIB as u64 && lacked < 6 * MIB as u64, "{lacked} bytes lacked");
    assert_eq!(data.acked(&mut conn).await.status, CacheStatus::Ok);
    scene.assert_visible(&data);
}

#[tokio::test]
async fn killed_at_any_point_it_ends_whole_and_shows_nothing_before() {
    let mut scene = scene(|_| {}).await;
    let data = some_data("set", 5);
    for round in 0..12u64 {
        let mut conn = scene.accept().await;
        data.hold(&mut conn, round % 2 == 0).await;
        let pieces = u32::try_from(data.manifest.pieces().len()).unwrap();
        let pack = data.pack(0..pieces);
        if round > 0 {
            data.send_manifest(&mut conn).await;
        }
        if round > 3 {
            data.lack(&mut conn).await;
            data.open_pack(&mut conn, &pack).await;
            for index in 0..usize::try_from(round).unwrap() / 3 {
                conn.chunk(pack.id, &pack.bytes, index, false).await;
            }
        }
        tokio::time::sleep(Duration::from_micros(heft::core::retry::mix(round) % 3000)).await;
        scene.kill().await;
        assert!(!scene.visible("set").exists());
    }
    let mut conn = scene.accept().await;
    let (ack, lacked) = data.push(&mut conn).await;
    assert_eq!(ack.status, CacheStatus::Ok);
    assert!(lacked < data.manifest.bytes());
    scene.assert_visible(&data);
}

#[tokio::test]
async fn a_wrong_piece_is_asked_for_once_more_and_then_refused() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let data = Data::new("set", &[("a", noise(5 * MIB, 1))]);
    data.hold(&mut conn, true).await;
    data.send_manifest(&mut conn).await;
    data.lack(&mut conn).await;
    let pieces = u32::try_from(data.manifest.pieces().len()).unwrap();
    let mut pack = data.pack(0..pieces);
    pack.bytes[2 * MIB + 5] ^= 1;
    let (sent, verdict) = data.send_pack(&mut conn, &pack).await;
    assert_eq!(sent, 5, "the list at the end is not needed");
    let Verdict::Resend(ranges) = verdict else { panic!("{verdict:?}") };
    let chunks: Vec<u32> = ranges.indices().collect();
    assert!(chunks.contains(&2) && chunks.len() <= 3, "{chunks:?}");
    pack.bytes[2 * MIB + 5] ^= 1;
    for index in chunks {
        conn.chunk(pack.id, &pack.bytes, index as usize, false).await;
    }
    conn.say(pack.id, &digest(&pack.bytes)).await;
    assert_eq!(conn.about::<Verdict>(pack.id).await, Verdict::Ok);
    assert_eq!(data.lack(&mut conn).await.what, Lacking::Nothing);
    assert_eq!(data.acked(&mut conn).await.status, CacheStatus::Ok);
    scene.assert_visible(&data);

    let bad = Data::new("bad", &[("a", noise(2 * MIB, 7))]);
    bad.hold(&mut conn, true).await;
    bad.send_manifest(&mut conn).await;
    bad.lack(&mut conn).await;
    let mut pack = bad.pack(0..u32::try_from(bad.manifest.pieces().len()).unwrap());
    pack.bytes[5] ^= 1;
    let (_, verdict) = bad.send_pack(&mut conn, &pack).await;
    let Verdict::Resend(ranges) = verdict else { panic!("{verdict:?}") };
    for index in ranges.indices() {
        conn.chunk(pack.id, &pack.bytes, index as usize, false).await;
    }
    conn.say(pack.id, &digest(&pack.bytes)).await;
    let verdict: Verdict = conn.about(pack.id).await;
    assert!(matches!(verdict, Verdict::Failed { reason: Reason::BAD_DIGEST, .. }), "{verdict:?}");
    assert_eq!(bad.acked(&mut conn).await.status, CacheStatus::Failed);
    assert!(!scene.visible("bad").exists());
}

#[tokio::test]
async fn hostile_manifests_and_ids_are_refused_and_leave_nothing() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    for names in [
        vec!["../up"],
        vec!["/etc/x"],
        vec!["a\0b"],
        vec!["a\\b"],
        vec!["d", "d/e"],
        vec!["Case", "case"],
        vec!["a/./b"],
    ] {
        let files: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (*name, b"x".to_vec())).collect();
        let data = Data::new("set", &files);
        data.hold(&mut conn, true).await;
        assert_eq!(data.send_manifest(&mut conn).await, Verdict::Ok);
        let ack = data.acked(&mut conn).await;
        assert_eq!(ack.status, CacheStatus::Failed, "{names:?}");
        assert!(ack.message.contains("invalid file name"), "{}", ack.message);
    }
    let data = Data::new("set", &[("a", b"x".to_vec())]);
    data.hold(&mut conn, true).await;
    let other = Data::new("set", &[("a", b"y".to_vec())]);
    assert_eq!(data.send_manifest_bytes(&mut conn, &other.manifest.encode()).await, Verdict::Ok);
    assert!(data.acked(&mut conn).await.message.contains("; expected "));
    data.hold(&mut conn, true).await;
    assert_eq!(data.send_manifest_bytes(&mut conn, b"no manifest").await, Verdict::Ok);
    assert!(data.acked(&mut conn).await.message.contains("not a manifest"));
    for id in ["..", "a/b", ".heft", "a\\b", "trailing.", "nul", "x\0", &"x".repeat(300)] {
        let data = Data::new(id, &[("a", b"x".to_vec())]);
        data.hold(&mut conn, true).await;
        let (ack, _) = acked(&mut conn, data.version).await;
        assert_eq!(ack.status, CacheStatus::Failed, "{id:?}");
    }
    assert_eq!((scene.count("sets"), scene.count("staging"), scene.count("unsynced")), (0, 0, 0));
    assert_eq!(fs::read_dir(&scene.exec.cache_dir).unwrap().count(), 1, "our own part alone");
}

#[tokio::test]
async fn c02_what_others_put_there_is_left_alone_and_found_by_jobs() {
    let scene = scene(|_| {}).await;
    fs::create_dir_all(scene.visible("dir/d")).unwrap();
    fs::write(scene.visible("dir/d/x"), "theirs").unwrap();
    fs::write(scene.visible("flat"), "flat").unwrap();
    std::os::unix::fs::symlink("/etc", scene.visible("link")).unwrap();
    let mut conn = scene.accept().await;
    for id in ["dir", "flat", "link"] {
        let data = Data::new(id, &[("d/x", b"ours".to_vec())]);
        data.hold(&mut conn, true).await;
        let ack = data.acked(&mut conn).await;
        assert_eq!(ack.status, CacheStatus::Failed);
        assert!(ack.message.contains("was not created by this worker"), "{}", ack.message);
    }
    let (id, request) = job(&[("dir", "d/x"), ("flat", "any")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    let ended = result(&mut conn, id).await;
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (JobStatus::Ok, "theirs 444 1\nflat 444 1\n"),
        "{}",
        ended.stderr
    );
    assert_eq!(
        fs::metadata(scene.visible("flat")).unwrap().permissions().mode() & 0o200,
        0o200,
        "not touched"
    );
}

#[tokio::test]
async fn no_room_is_said_before_bytes_move_and_the_longest_unused_goes_first() {
    let scene = scene(|config| config.cache.as_mut().unwrap().budget = Some(10 * MIB as u64)).await;
    let mut conn = scene.accept().await;
    let large = Data::new("large", &[("a", noise(11 * MIB, 1))]);
    large.hold(&mut conn, true).await;
    assert_eq!(large.send_manifest(&mut conn).await, Verdict::Ok);
    let ack = large.acked(&mut conn).await;
    assert_eq!(
        ack.message,
        "no room: needs 11 MiB, the cache may hold 10 MiB, 0 B are in use; raise --cache-budget or put a smaller dataset"
    );
    let datasets: Vec<Data> = (0..4).map(|n| of_4_mib(&format!("s{n}"), n + 10)).collect();
    datasets[0].push(&mut conn).await;
    datasets[1].push(&mut conn).await;
    // The first is used by a job, so the second is the older one.
    let (id, request) = job(&[("s0", "s")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    result(&mut conn, id).await;
    conn.settle(id, 1).await;
    datasets[2].hold(&mut conn, true).await;
    assert_eq!(datasets[2].send_manifest(&mut conn).await, Verdict::Ok);
    let gone = said(&mut conn, "s1", DatasetState::Gone).await;
    assert_eq!(gone.text.as_str(), "evicted to make room for s2");
    datasets[2].send_lacking(&mut conn).await;
    datasets[2].acked(&mut conn).await;
    assert!(scene.visible("s0").exists() && !scene.visible("s1").exists());
    scene.settles("sets", 6).await;

    // What a job waits to use stays: one that has not started yet pins both.
    let (id, request) = job(&[("s0", "s"), ("s2", "s")]);
    conn.assign(
        id,
        &request.replace(
            r#""Name":"s","CacheId":"s2""#,
            r#""Name":"b","CacheId":"s2","CacheName":"s""#,
        ),
    )
    .await;
    heartbeat(&mut conn).await;
    datasets[3].hold(&mut conn, true).await;
    assert_eq!(datasets[3].send_manifest(&mut conn).await, Verdict::Ok);
    let ack = datasets[3].acked(&mut conn).await;
    assert!(ack.message.contains("8 MiB are in use"), "{}", ack.message);
    // A dataset that the leader takes back goes when the job has ended.
    let text = "removed".to_owned().into();
    let release =
        Release { reason: Reason::NONE, text, cache_id: "s0".to_owned().try_into().unwrap() };
    conn.say(Uuid::nil(), &release).await;
    heartbeat(&mut conn).await;
    assert!(scene.visible("s0").exists());
    conn.start(id, 1, 1).await;
    said(&mut conn, "s0", DatasetState::Gone).await;
    assert_eq!(result(&mut conn, id).await.status, JobStatus::Ok);
    conn.settle(id, 1).await;
    let (ack, _) = datasets[3].push(&mut conn).await;
    assert_eq!(ack.status, CacheStatus::Ok, "{}", ack.message);
    assert!(
        !scene.visible("s0").exists()
            && scene.visible("s2").exists()
            && scene.visible("s3").exists()
    );
}

#[tokio::test]
async fn the_order_of_use_outlives_a_restart() {
    let mut scene =
        scene(|config| config.cache.as_mut().unwrap().budget = Some(10 * MIB as u64)).await;
    let mut conn = scene.accept().await;
    for (name, seed) in [("first", 1), ("second", 2)] {
        of_4_mib(name, seed).push(&mut conn).await;
    }
    let (id, request) = job(&[("first", "s")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    result(&mut conn, id).await;
    scene.kill().await;
    drop(conn);
    let mut conn = scene.accept().await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(
            have(&mut conn)
                .await
                .datasets
                .as_slice()
                .iter()
                .map(|dataset| dataset.cache_id.as_str().to_owned()),
        );
    }
    let next = of_4_mib("next", 3);
    next.hold(&mut conn, true).await;
    next.send_manifest(&mut conn).await;
    said(&mut conn, "second", DatasetState::Gone).await;
}

#[tokio::test]
async fn a_damaged_file_is_found_at_the_start_on_demand_and_before_use_and_comes_again() {
    let mut scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let data = some_data("set", 3);
    data.push(&mut conn).await;

    // On demand.
    let question = Uuid::new_v4();
    let inspect = Inspect { cache_id: "set".to_owned().try_into().unwrap() };
    conn.say(question, &inspect).await;
    let (ack, _) = acked(&mut conn, question).await;
    assert_eq!((ack.status, ack.message.as_str()), (CacheStatus::Ok, "verified=5"));
    damage(&scene.visible("set").join("big.bin"));
    conn.say(question, &inspect).await;
    let (ack, _) = acked(&mut conn, question).await;
    assert_eq!(ack.status, CacheStatus::Failed);
    assert!(ack.message.contains("\"big.bin\" has wrong bytes at offset 0"), "{}", ack.message);
    said(&mut conn, "set", DatasetState::Lost).await;
    assert!(!scene.visible("set").exists());
    let (_, lacked) = data.push(&mut conn).await;
    assert!(lacked > 0 && lacked <= MIB as u64, "only the damaged piece comes again: {lacked}");
    scene.assert_visible(&data);

    // Before use: the job waits until it is back.
    damage(&scene.visible("set").join("small.txt"));
    let (id, request) = job(&[("set", "small.txt")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    let gone = said(&mut conn, "set", DatasetState::Lost).await;
    assert!(gone.text.as_str().contains("\"small.txt\" was changed on the disk"), "{}", gone.text);
    said(&mut conn, "set", DatasetState::Wanted).await;
    data.hold(&mut conn, true).await;
    data.send_manifest(&mut conn).await;
    assert_eq!(data.send_lacking(&mut conn).await, 5);
    let ended = result(&mut conn, id).await;
    assert_eq!(ended.status, JobStatus::Ok, "{}", ended.stderr);
    assert!(ended.stdout.starts_with("small 444"), "{}", ended.stdout);
    scene.assert_visible(&data);

    // At the start.
    let good = Data::new("good", &[("a", noise(100, 9))]);
    good.push(&mut conn).await;
    damage(&scene.visible("set").join("data/b.bin"));
    scene.kill().await;
    drop(conn);
    let mut conn = scene.accept().await;
    // A job that names it before it was checked waits as well.
    let (id, request) = job(&[("set", "small.txt"), ("good", "a")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    said(&mut conn, "good", DatasetState::Wanted).await;
    said(&mut conn, "set", DatasetState::Wanted).await;
    // All of its pieces are right in another file of it, so that nothing lacks.
    data.hold(&mut conn, true).await;
    assert_eq!(data.acked(&mut conn).await.status, CacheStatus::Ok);
    // The other one is as it was, and may have been replaced for all that the worker knows.
    good.hold(&mut conn, true).await;
    assert_eq!(good.acked(&mut conn).await.status, CacheStatus::Skipped);
    assert_eq!(result(&mut conn, id).await.status, JobStatus::Ok);
}

#[tokio::test]
async fn a_dataset_from_before_a_connection_is_used_when_the_leader_has_said_that_it_counts_or_is_unknown()
 {
    let mut scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let old = Data::new("set", &[("a", b"old".to_vec())]);
    let (new, other) =
        (Data::new("set", &[("a", b"new".to_vec())]), Data::new("own", &[("b", noise(9, 1))]));
    old.push(&mut conn).await;
    other.push(&mut conn).await;
    scene.kill().await;
    drop(conn);
    let mut conn = scene.accept().await;
    // They were checked, and the leader heard so; the job was on its way by then.
    let mut checked = BTreeSet::new();
    while checked.len() < 2 {
        let entries = have(&mut conn).await.datasets;
        let held = entries.as_slice().iter().filter(|entry| entry.state == DatasetState::Held);
        checked.extend(held.map(|entry| entry.cache_id.as_str().to_owned()));
    }
    let (id, request) = job(&[("set", "a"), ("own", "b")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    said(&mut conn, "own", DatasetState::Wanted).await;
    said(&mut conn, "set", DatasetState::Wanted).await;
    new.push(&mut conn).await;
    let text = "".into();
    let unknown =
        Release { reason: Reason::UNKNOWN, text, cache_id: "own".to_owned().try_into().unwrap() };
    conn.say(Uuid::nil(), &unknown).await;
    let ended = result(&mut conn, id).await;
    assert_eq!(ended.status, JobStatus::Ok, "{}", ended.stderr);
    scene.assert_visible(&new);
    scene.assert_visible(&other);
    // The one that counts nobody is asked for again; of the other the leader may know by now.
    let (id, request) = job(&[("set", "a"), ("own", "b")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    let wanted = have(&mut conn).await.datasets;
    let wanted: Vec<_> = wanted
        .as_slice()
        .iter()
        .map(|dataset| (dataset.cache_id.as_str(), dataset.state))
        .collect();
    assert_eq!(wanted, [("own", DatasetState::Wanted)]);
    conn.say(Uuid::nil(), &unknown).await;
    assert_eq!(result(&mut conn, id).await.status, JobStatus::Ok);
}

#[tokio::test]
async fn ca11_a_job_waits_for_its_dataset_and_one_that_nobody_knows_is_a_miss() {
    let scene = scene(|config| config.cache.as_mut().unwrap().budget = Some(MIB as u64)).await;
    let mut conn = scene.accept().await;
    let data = Data::new("set", &[("d/x", b"from the dataset".to_vec())]);
    let (id, request) = job(&[("set", "d/x")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    said(&mut conn, "set", DatasetState::Wanted).await;
    let beat = heartbeat(&mut conn).await;
    assert_eq!(
        beat.jobs.as_slice().iter().map(|held| held.job).collect::<Vec<_>>(),
        [id],
        "it holds its place"
    );
    data.push(&mut conn).await;
    let ended = result(&mut conn, id).await;
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (JobStatus::Ok, "from the dataset 444 1\n"),
        "{}",
        ended.stderr
    );
    conn.settle(id, 1).await;

    // Both ways of naming a file of a dataset.
    let (id, request) = job(&[("set", "d/x")]);
    let request = request.replace(r#""CacheId":"dataset""#, r#""CacheId":"dataset/d/x""#);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    assert_eq!(result(&mut conn, id).await.status, JobStatus::Ok);
    conn.settle(id, 1).await;

    let (id, request) = job(&[("nobody", "x")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    said(&mut conn, "nobody", DatasetState::Wanted).await;
    let text = "no such dataset".to_owned().into();
    let unknown = Release {
        reason: Reason::UNKNOWN,
        text,
        cache_id: "nobody".to_owned().try_into().unwrap(),
    };
    conn.say(Uuid::nil(), &unknown).await;
    let ended = result(&mut conn, id).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (JobStatus::Failed, "Cache miss: nobody"));
    conn.settle(id, 1).await;

    // One that has no room here is given back.
    let large = Data::new("large", &[("x", noise(2 * MIB, 1))]);
    let (id, request) = job(&[("large", "x")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    said(&mut conn, "large", DatasetState::Wanted).await;
    large.hold(&mut conn, true).await;
    large.send_manifest(&mut conn).await;
    assert_eq!(large.acked(&mut conn).await.status, CacheStatus::Failed);
    let ended = result(&mut conn, id).await;
    assert_eq!(ended.status, JobStatus::Cancelled);
    assert!(ended.stderr.contains("no room: needs 2 MiB"), "{}", ended.stderr);
    drop(conn);

    // A classic leader sends none.
    let mut conn = scene.accept_with(Features::TRANSFERS).await;
    let (id, request) = job(&[("nobody", "x")]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    assert_eq!(result(&mut conn, id).await.stderr, "Cache miss: nobody");
}

fn put(cache: &str, files: &[(&str, &str)]) -> Vec<u8> {
    let entries = files.iter().map(|(name, content)| CacheEntry {
        name: (*name).to_owned(),
        content: content.as_bytes().to_vec(),
        sha256: None,
    });
    let request = CachePutRequest {
        cache_id: cache.to_owned(),
        entries: entries.collect(),
        target_pattern: "job.assign.*".into(),
        part_no: None,
        part_count: None,
    };
    request.to_json()
}

#[tokio::test]
async fn ca05_a_classic_put_adds_what_is_new_and_overwrites_nothing() {
    let mut scene = scene(|_| {}).await;
    fs::create_dir(scene.visible("theirs")).unwrap();
    fs::write(scene.visible("theirs/a"), "1").unwrap();
    let mut conn = scene.accept_with(Features::default()).await;
    for (cache, files, status, message) in [
        ("set", &[("data/a.bin", "1"), ("cfg/b.cfg", "2")][..], "OK", "added=2"),
        ("set", &[("data/a.bin", "other"), ("cfg/b.cfg", "2")], "SKIPPED", "already-present=2"),
        ("set", &[("data/a.bin", "other"), ("c", "3")], "OK", "added=1, skipped=1"),
        ("set", &[("./data//a.bin", "other")], "SKIPPED", "already-present=1"),
        ("set", &[("dot.", "3")], "FAILED", "which some systems leave out"),
        ("set", &[], "OK", "added=0, skipped=0"),
        ("theirs", &[("a", "1")], "SKIPPED", "already-present=1"),
        ("theirs", &[("a", "2")], "FAILED", "was not created by this worker"),
        ("set", &[("../x", "3")], "FAILED", "it holds \"..\""),
        ("set", &[("data/a.bin/x", "3")], "FAILED", "is a folder of another file"),
        ("..", &[("x", "3")], "FAILED", ".."),
    ] {
        let request = Uuid::new_v4();
        conn.send_as(Kind::CachePut, Uuid::nil(), request, &put(cache, files)).await;
        let (ack, subject) = acked(&mut conn, request).await;
        assert_eq!(ack.status.as_str(), status, "{cache} {files:?}: {}", ack.message);
        assert!(ack.message.contains(message), "{}", ack.message);
        assert_eq!(subject, format!("cache.ack.{cache}"));
    }
    for (name, content) in [("data/a.bin", "1"), ("cfg/b.cfg", "2"), ("c", "3")] {
        assert_eq!(fs::read_to_string(scene.visible("set").join(name)).unwrap(), content);
    }
    scene.settles("sets", 3).await;
    scene.kill().await;
    drop(conn);
    let mut conn = scene.accept().await;
    said(&mut conn, "set", DatasetState::Held).await;
}

#[tokio::test]
async fn c01_an_agent_keeps_its_cache_and_takes_no_jobs() {
    let worker = Uuid::new_v4();
    let scene = scene(|config| {
        config.cache_only = true;
        config.cache_for = Some(worker);
    })
    .await;
    let (stream, _) = timeout(PATIENCE, scene.listener.accept()).await.unwrap().unwrap();
    let mut conn = Conn::new(stream);
    let hello = conn.expect(Kind::HelloWorker).await;
    let hello = heft::model::WorkerHello::parse(&hello.payload).unwrap();
    assert_eq!((hello.cache_only, hello.cache_for), (true, Some(worker.to_string())));
    assert!(hello.heft.features.contains(&"datasets".to_owned()));
    conn.welcome_with(OURS, &[]).await;
    assert_eq!(heartbeat(&mut conn).await.credit, 0);
    let (id, request) = job(&[]);
    conn.assign(id, &request).await;
    conn.start(id, 1, 1).await;
    let data = some_data("set", 1);
    data.push(&mut conn).await;
    scene.assert_visible(&data);
    let beat = heartbeat(&mut conn).await;
    assert_eq!((beat.credit, beat.jobs.as_slice().len()), (0, 0));
}

#[tokio::test]
async fn a_directory_has_one_keeper() {
    let scene = scene(|_| {}).await;
    let second =
        Worker::new(scene.config.clone(), Exec::new(scene.exec.clone())).unwrap_err().to_string();
    assert!(second.contains("another worker keeps the cache directory"), "{second}");
    assert!(
        second.contains("--cache-dir") && second.contains(scene.root.path().to_str().unwrap()),
        "{second}"
    );
}

#[tokio::test]
async fn a_version_that_counts_takes_the_place_of_one_that_is_on_its_way() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let (old, new) = (some_data("set", 1), some_data("set", 2));
    old.hold(&mut conn, true).await;
    old.send_manifest(&mut conn).await;
    old.lack(&mut conn).await;
    let (ack, _) = new.push(&mut conn).await;
    assert_eq!(ack.message, "added=5");
    let pack = old.pack(0..1);
    conn.say(pack.id, &chunking::message::Abort { reason: Reason::CANCELLED, text: "".into() })
        .await;
    let mut payload = Vec::new();
    chunking::message::Pack { pieces: chunking::message::PieceList::new(pack.pieces.clone()) }
        .encode(&mut payload);
    conn.send_as(Kind::Pack, pack.id, old.version, &payload).await;
    heartbeat(&mut conn).await;
    scene.assert_visible(&new);
    scene.settles("staging", 0).await;
    // Put and then taken back, before and after it is whole.
    let release = |cache: &str| Release {
        reason: Reason::NONE,
        text: "".into(),
        cache_id: cache.to_owned().try_into().unwrap(),
    };
    let other = some_data("other", 3);
    other.hold(&mut conn, true).await;
    other.send_manifest(&mut conn).await;
    other.lack(&mut conn).await;
    conn.say(other.version, &release("other")).await;
    conn.say(old.version, &release("set")).await;
    heartbeat(&mut conn).await;
    scene.settles("staging", 0).await;
    assert!(scene.visible("set").exists(), "another version was meant");
    conn.say(new.version, &release("set")).await;
    said(&mut conn, "set", DatasetState::Gone).await;
    assert!(!scene.visible("set").exists());
    scene.settles("sets", 0).await;
    scene.settles("unsynced", 0).await;
}
