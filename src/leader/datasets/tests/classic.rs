//! Classic clients and workers, agents, and staged inputs.

use super::*;

/// A put of a classic client whose contents are in a pack.
fn came(key: u128, version: u128, pack: u128, files: &[(&str, &str)]) -> DatasetEvent {
    let made = |text: &str| PackedFile {
        sha256: sha256(text.as_bytes()),
        pieces: vec![Piece::of(text.as_bytes())],
    };
    let of = |(name, text): &(&str, &str)| (SafeName::parse_in_dataset(name).unwrap(), made(text));
    let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
    let came = ReceivedPut {
        conn: CLASSIC,
        request: id(99),
        key: id(key),
        version: id(version),
        cache: cache("set"),
        target: ALL.to_owned(),
        files: files.iter().map(of).collect(),
        entries: files.len() as u64,
        packs: vec![id(pack)],
    };
    DatasetEvent::ClassicCame { came, packs: vec![(id(pack), layout(&texts))] }
}

#[test]
fn a_classic_clients_put_becomes_a_dataset_and_the_next_adds_files_to_it() {
    let mut bench = Bench::new();
    bench.worker(100, &[]);
    for pack in [20, 21] {
        bench.books.blobs.insert(id(pack), KnownBlob { bytes: 100, has_arrived: true });
    }
    let done = bench.on(came(5, 10, 20, &[("a", "one")]));
    assert_eq!(done, ["look at 20", "keep 10", "look at 10"]);
    bench.manifest_read(10, &manifest(&[("a", "one")]));
    assert_eq!(
        bench.pack_checked(20, &["one"]),
        ["commit set"],
        "no client of ours hears of what lacks"
    );
    assert_eq!(bench.commit(), ["to 100: hold set"]);
    assert_eq!(bench.acks(100, 10, stored(1, 0)), ["no more of 10 to 100", "to 2: OK added=1"]);

    // The file that is there is not overwritten; the answer counts what this client sent.
    bench.on(came(6, 11, 21, &[("a", "other"), ("b", "three")]));
    let both = manifest(&[("a", "one"), ("b", "three")]);
    bench.manifest_read(11, &both);
    bench.pack_checked(21, &["other", "three"]);
    bench.commit();
    assert_eq!(bench.books.datasets[&cache("set")].digest, both.digest().bytes);
    let done = bench.acks(100, 11, stored(2, 0));
    assert_eq!(done.last().unwrap(), "to 2: OK added=1, skipped=1");
}

#[test]
fn a_classic_client_that_left_is_not_waited_for_and_its_dataset_is_kept() {
    let mut bench = Bench::new();
    bench.books.blobs.insert(id(20), KnownBlob { bytes: 100, has_arrived: true });
    bench.on(came(5, 10, 20, &[("a", "one")]));
    bench.books.left.insert(CLASSIC);
    assert!(bench.on(DatasetEvent::Closed { conn: CLASSIC }).is_empty());
    bench.manifest_read(10, &manifest(&[("a", "one")]));
    assert_eq!(bench.pack_checked(20, &["one"]), ["commit set"]);
    assert!(bench.commit().is_empty());
    assert!(bench.datasets.puts.is_empty() && bench.books.has_arrived(id(10)));
}

#[test]
fn a_classic_worker_shows_that_it_knows_cache_put_and_gets_the_dataset_in_one_frame() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let host = IpAddr::from(Ipv4Addr::LOCALHOST);
    bench.put(9, &one, 10, ALL);
    bench.bring_manifest(9, 10, &one);
    bench.bring_pack(9, 20, &["one"]);
    bench.commit();
    assert_eq!(bench.classic_worker(200, host), ["to 200: do you know CachePut?"]);
    assert_eq!(bench.acks(200, 77, CachePutResult::stored(".", 0, 0)), ["look at 20"]);
    assert!(bench.datasets.knows_cache_put(worker(200)));
    let found = Ok(vec![(Piece::of(b"one"), b"one".to_vec())]);
    let read = Ok(Verified::Pieces { reader: id(10), found });
    let done = bench.on(DatasetEvent::Verified { blob: id(20), result: read });
    assert_eq!(done, ["to 200: the dataset in one frame"]);
    bench.acks(200, 10, stored(1, 0));
    assert!(bench.datasets.workers[&worker(200)].held_of(&cache("set")).is_some());
    // One that never answers is asked nothing more.
    bench.classic_worker(201, host);
    bench.after(Duration::from_secs(5));
    assert!(!bench.datasets.workers[&worker(201)].classic.as_ref().unwrap().may_know());
}

#[test]
fn inputs_of_a_job_become_a_dataset_for_the_agent_beside_its_worker() {
    let mut bench = Bench::new();
    let host = IpAddr::from(Ipv4Addr::LOCALHOST);
    bench.classic_worker(200, host);
    let agent = KnownWorker { name: String::new(), patterns: Vec::new(), datasets: true };
    bench.books.workers.insert(worker(100), agent);
    let kind = WorkerKind::Agent { only: None };
    let (conn, agent, host) = (ConnId(100), worker(100), Some(host));
    let done = bench.on(DatasetEvent::WorkerJoined { conn, worker: agent, host, kind });
    assert_eq!(done, ["pair 200 with Some(100)", "to 200: do you know CachePut?"]);
    let have = Have { anew: 1, budget: 1 << 30, used: 0, datasets: DatasetList::default() };
    bench.on(DatasetEvent::WorkerHas { conn, worker: agent, have });

    let (job, one) = (JobId(id(7)), manifest(&[("a", "one")]));
    let staged = |bench: &mut Bench, key: u128| {
        bench.books.blobs.insert(id(20), KnownBlob { bytes: 100, has_arrived: true });
        let inputs = StagedInputs { job, key: id(key), version: id(10), manifest: one.clone() };
        let packs = vec![(id(20), layout(&["one"]))];
        assert_eq!(
            bench.on(DatasetEvent::Staged { inputs, packs }),
            ["look at 20", "keep 10", "look at 10"]
        );
        bench.manifest_read(10, &one);
        bench.pack_checked(20, &["one"])
    };
    let dataset = CacheId::of_inputs(job);
    bench.books.staged_jobs.insert(job);
    assert_eq!(staged(&mut bench, 5), [format!("commit {dataset}")]);
    assert!(bench.commit().is_empty(), "nobody gets it unasked");
    let wanted = DatasetEvent::AgentWanted { agent, cache: dataset.clone() };
    assert_eq!(bench.on(wanted), [format!("to 100: hold {dataset}"), "to 100: blob 10".to_owned()]);
    let removed = bench.books.datasets.remove(&dataset).unwrap();
    bench.on(DatasetEvent::Removed { dataset: removed });

    // One whose job has ended meanwhile goes as soon as it is kept.
    bench.books.staged_jobs.clear();
    staged(&mut bench, 6);
    assert_eq!(
        bench.commit(),
        [format!("remove {dataset}"), "forget 10".to_owned(), "forget 20".to_owned()]
    );

    assert_eq!(bench.on(DatasetEvent::Closed { conn }), ["pair 200 with None"]);
}

#[test]
fn inputs_whose_pack_the_disk_does_not_give_are_not_staged() {
    let mut bench = Bench::new();
    bench.books.blobs.insert(id(20), KnownBlob { bytes: 100, has_arrived: true });
    let manifest = manifest(&[("a", "one")]);
    let inputs =
        StagedInputs { job: JobId(id(7)), key: id(5), version: id(10), manifest: manifest.clone() };
    bench.on(DatasetEvent::Staged { inputs, packs: vec![(id(20), layout(&["one"]))] });
    bench.manifest_read(10, &manifest);
    let bad = DatasetEvent::Verified { blob: id(20), result: Err("it is damaged".to_owned()) };
    let done = bench.on(bad);
    assert_eq!(done[..2], ["forget 20", "forget 10"]);
    assert!(
        done[2].starts_with("not staged: the leader's disk could not store all of it"),
        "{done:?}"
    );
}

#[test]
fn a_classic_put_is_checked_before_its_contents_count() {
    let bench = Bench::new();
    let put =
        |json: &str| crate::model::CachePutRequest::parse(&Bytes::from(json.to_owned())).unwrap();
    let check =
        |json: &str, subject: &str| bench.datasets.check_classic(&bench.books, &put(json), subject);
    let good = r#"{"CacheId":"dataset","Entries":[{"Name":"a","Content":""}]}"#;
    assert_eq!(check(good, "cache.put").unwrap().target, ALL);
    assert_eq!(check(good, "cache.put.job.assign.gpu").unwrap().target, "job.assign.gpu");
    let none = r#"{"CacheId":"dataset","Entries":[]}"#;
    assert!(check(none, "cache.put").unwrap_err().contains("has no files"));
}
