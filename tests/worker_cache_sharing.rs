//! A worker's cache: what datasets share, what goes to make room and is remembered, and what
//! happens when the leader changes its mind.

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

use std::fs;
use std::os::unix::fs::MetadataExt;

use cache_scene::{of_4_mib, scene, some_data};
use chunking::dataset::sha256;
use chunking::message::{DatasetState, Inspect, Lacking, Reason, Release, Verdict};
use datasets::{Data, MIB, acked, have, said};
use heft::model::CacheStatus;
use noise::noise;
use uuid::Uuid;

/// A dataset that says of its files what they are not.
fn untrue(cache: &str, files: &[(&str, Vec<u8>)], said: &[u8]) -> Data {
    let mut builder = chunking::dataset::ManifestBuilder::default();
    let data = Data::new(cache, files);
    for file in data.manifest.files() {
        let pieces = data.manifest.layout(file).map(|(_, _, piece)| piece).collect();
        builder.file(&file.name, sha256(said), pieces);
    }
    Data { manifest: builder.finish().unwrap(), ..data }
}

#[tokio::test]
async fn a_file_is_shared_by_its_pieces_and_not_by_what_somebody_said_of_it() {
    let mut scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let (good, bad) = (noise(3 * MIB, 1), noise(3 * MIB, 2));
    let evil = untrue("evil", &[("model.bin", bad)], &good);
    assert_eq!(evil.push(&mut conn).await.0.status, CacheStatus::Ok);
    let good = Data::new("good", &[("model.bin", good)]);
    let (ack, lacked) = good.push(&mut conn).await;
    assert_eq!(
        (ack.status, lacked),
        (CacheStatus::Ok, good.manifest.bytes()),
        "nothing of it was here"
    );
    scene.assert_visible(&good);
    // What is the same by its pieces is one file on the disk.
    let same = Data::new("same", &[("model.bin", good.files[0].1.clone())]);
    assert_eq!(same.push(&mut conn).await.1, 0);
    let inode = |cache: &str| fs::metadata(scene.visible(cache).join("model.bin")).unwrap().ino();
    assert_eq!((inode("good") == inode("same"), inode("good") == inode("evil")), (true, false));

    // When it is asked, and when it starts, the worker finds out.
    let other = untrue("other", &[("model.bin", noise(2 * MIB, 3))], b"other");
    other.push(&mut conn).await;
    let inspect = |cache: &str| Inspect { cache_id: cache.to_owned().try_into().unwrap() };
    let question = Uuid::new_v4();
    conn.say(question, &inspect("good")).await;
    assert_eq!(acked(&mut conn, question).await.0.message, "verified=1");
    conn.say(question, &inspect("other")).await;
    let (ack, _) = acked(&mut conn, question).await;
    assert_eq!(ack.status, CacheStatus::Failed);
    assert!(
        ack.message.contains("\"model.bin\" are right, but the file does not match its SHA-256"),
        "{}",
        ack.message
    );
    said(&mut conn, "other", DatasetState::Gone).await;
    assert!(!scene.visible("other").exists());
    scene.kill().await;
    drop(conn);
    let mut conn = scene.accept().await;
    let mut held = Vec::new();
    let gone = loop {
        let found = have(&mut conn).await;
        let of =
            |state| found.datasets.as_slice().iter().filter(move |dataset| dataset.state == state);
        held.extend(of(DatasetState::Held).map(|dataset| dataset.cache_id.as_str().to_owned()));
        if let Some(gone) =
            of(DatasetState::Gone).find(|dataset| dataset.cache_id.as_str() == "evil")
        {
            break gone.clone();
        }
    };
    assert!(gone.text.as_str().contains("put the dataset again"), "{}", gone.text);
    assert!(!held.contains(&"evil".to_owned()));
    assert!(!scene.visible("evil").exists());
}

fn release(cache: &str) -> Release {
    Release {
        reason: Reason::NONE,
        text: "".into(),
        cache_id: cache.to_owned().try_into().unwrap(),
    }
}

#[tokio::test]
async fn a_dataset_that_is_taken_back_and_asked_for_again_at_once_comes_whole() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let data = some_data("set", 1);
    for _ in 0..20 {
        data.hold(&mut conn, false).await;
        assert_eq!(data.send_manifest(&mut conn).await, Verdict::Ok);
        // Its files are being made, or just were.
        conn.say(data.version, &release("set")).await;
    }
    data.hold(&mut conn, false).await;
    assert_eq!(data.send_manifest(&mut conn).await, Verdict::Ok);
    data.send_lacking(&mut conn).await;
    data.hold(&mut conn, true).await;
    assert_eq!(data.acked(&mut conn).await.status, CacheStatus::Ok);
    scene.assert_visible(&data);
    scene.settles("trash", 0).await;
    assert_eq!((scene.count("sets"), scene.count("staging")), (3, 0));
}

#[tokio::test]
async fn a_dataset_that_is_asked_for_again_says_again_what_it_lacks_unless_that_is_being_sent() {
    let scene = scene(|_| {}).await;
    let mut conn = scene.accept().await;
    let data = some_data("set", 1);
    data.hold(&mut conn, false).await;
    data.send_manifest(&mut conn).await;
    let first = data.lack(&mut conn).await;
    data.hold(&mut conn, true).await;
    assert_eq!(data.lack(&mut conn).await, first);
    let pack = data.pack(0..u32::try_from(data.manifest.pieces().len()).unwrap());
    data.open_pack(&mut conn, &pack).await;
    data.hold(&mut conn, true).await;
    for index in 0..pack.bytes.len().div_ceil(MIB) {
        conn.chunk(pack.id, &pack.bytes, index, false).await;
    }
    conn.say(pack.id, &datasets::digest(&pack.bytes)).await;
    assert_eq!(conn.about::<Verdict>(pack.id).await, Verdict::Ok);
    assert_eq!(data.lack(&mut conn).await.what, Lacking::Nothing);
    assert_eq!(data.acked(&mut conn).await.status, CacheStatus::Ok);
}

#[tokio::test]
async fn what_went_to_make_room_is_told_to_each_leader_until_it_is_wanted_again() {
    let mut scene =
        scene(|config| config.cache.as_mut().unwrap().budget = Some(10 * MIB as u64)).await;
    let mut conn = scene.accept().await;
    have(&mut conn).await;
    let datasets: Vec<Data> = (0..4).map(|n| of_4_mib(&format!("s{n}"), n + 1)).collect();
    for dataset in &datasets {
        dataset.push(&mut conn).await;
    }
    // The first two had to go; each leader hears of it first of all, with what they were.
    let gone = async |conn: &mut fake_leader::Conn| -> Vec<_> {
        let first = have(conn).await;
        assert_eq!(first.anew, 1);
        let gone =
            first.datasets.as_slice().iter().filter(|dataset| dataset.state == DatasetState::Gone);
        gone.map(|dataset| {
            (dataset.cache_id.as_str().to_owned(), dataset.digest, dataset.text.to_string())
        })
        .collect()
    };
    let one = |n: usize, by: usize| {
        (format!("s{n}"), datasets[n].manifest.digest(), format!("evicted to make room for s{by}"))
    };
    drop(conn);
    let mut conn = scene.accept().await;
    assert_eq!(gone(&mut conn).await, [one(0, 2), one(1, 3)]);
    scene.kill().await;
    drop(conn);
    let mut conn = scene.accept().await;
    assert_eq!(gone(&mut conn).await, [one(0, 2), one(1, 3)], "a new life knows it as well");
    // It has checked what it has when it can say so.
    for dataset in &datasets[2..] {
        dataset.hold(&mut conn, true).await;
        assert_eq!(dataset.acked(&mut conn).await.status, CacheStatus::Skipped);
    }
    // One is wanted again, and takes the place of another; one is not wanted at all any more.
    datasets[0].push(&mut conn).await;
    conn.say(Uuid::nil(), &release("s1")).await;
    cache_scene::heartbeat(&mut conn).await;
    drop(conn);
    let mut conn = scene.accept().await;
    let left = gone(&mut conn).await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0] == one(2, 0) || left[0] == one(3, 0), "{left:?}");
    // What the leader took back is not remembered.
    conn.say(Uuid::nil(), &release("s0")).await;
    let released = said(&mut conn, "s0", DatasetState::Gone).await;
    assert_eq!(released.digest.bytes, [0; 32]);
    drop(conn);
    let mut conn = scene.accept().await;
    assert_eq!(gone(&mut conn).await, left);
}
