//! Distribution to workers, and operators' questions.

use super::*;

#[test]
fn a_dataset_goes_to_workers_as_it_comes_and_its_putter_hears_of_each() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    assert!(bench.worker(100, &[]).is_empty());
    bench.put(9, &two, 10, ALL);
    let done = bench.bring_manifest(9, 10, &two);
    assert_eq!(
        done,
        ["to 1: you lack Pieces, 8 bytes", "to 100: hold set soon", "to 100: blob 10"]
    );
    assert!(
        bench.lacks(100, 10, lack(2, &[0, 1], 8)).is_empty(),
        "nothing of it is on its way yet"
    );
    bench.announce(9, 20, &["one", "three"]);
    let opened = bench.open(9, 20, layout(&["one", "three"]).size());
    assert_eq!(opened, ["to 100: a pack of 2", "to 100: blob 20", "to 1: bring 20"]);
    bench.arrives(20);
    bench.pack_checked(20, &["one", "three"]);
    assert_eq!(bench.commit(), ["to 1: Stored, 0 of 1 have it, 1 missing", "to 100: hold set"]);
    let done = bench.acks(100, 10, stored(2, 0));
    let said = ["no more of 20 to 100", "no more of 10 to 100", "to 1: OK added=2"];
    assert_eq!(done[..3], said);
    assert_eq!(done[3..], ["to 1: Over, 1 of 1 have it, 0 missing"]);
}

#[test]
fn a_worker_that_lacks_pieces_gets_the_packs_that_have_them_and_no_others() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    bench.put(9, &two, 10, ALL);
    bench.bring_manifest(9, 10, &two);
    bench.bring_pack(9, 20, &["one"]);
    bench.bring_pack(9, 21, &["three"]);
    bench.commit();
    assert_eq!(bench.worker(100, &[]), ["to 100: hold set", "to 100: blob 10"]);
    assert_eq!(bench.lacks(100, 10, lack(2, &[1], 5)), ["to 100: a pack of 1", "to 100: blob 21"]);
    let taken =
        DatasetEvent::PartTaken { conn: ConnId(100), worker: Some(worker(100)), blob: id(21) };
    assert_eq!(bench.on(taken), ["no more of 21 to 100"]);
    bench.acks(100, 10, stored(2, 0));
    // One that has it already is left alone.
    assert!(bench.worker(101, &[("set", two.digest())]).is_empty());
}

#[test]
fn a_dataset_that_lost_a_part_at_the_leader_fails_at_workers_and_is_mended_by_a_put() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.put(9, &one, 10, ALL);
    bench.bring_manifest(9, 10, &one);
    bench.bring_pack(9, 20, &["one"]);
    bench.commit();
    bench.worker(100, &[]);
    bench.lacks(100, 10, lack(1, &[0], 3));
    let done = bench.on(DatasetEvent::Failed { blob: id(20), text: "cannot be read".to_owned() });
    assert_eq!(done, ["to 100: release set", "no more of 20 to 100", "no more of 10 to 100"]);
    assert!(
        bench.books.knows_blob(id(20)),
        "what a dataset that is kept needs may be read another time"
    );
    bench.put(8, &one, 11, ALL);
    bench.bring_manifest(8, 11, &one);
    bench.bring_pack(8, 21, &["one"]);
    let done = bench.commit();
    assert!(done.contains(&"to 100: hold set".to_owned()), "{done:?}");
}

#[test]
fn a_worker_that_refuses_a_part_ends_its_push_and_its_putter_hears_why() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.worker(100, &[]);
    bench.keep(&one, 10, 20, &["one"]);
    bench.put(9, &one, 11, ALL);
    bench.commit();
    bench.lacks(100, 10, lack(1, &[0], 3));
    let (worker, reason, text) = (worker(100), Reason::DISK_FULL, "no room".to_owned());
    let done = bench.on(DatasetEvent::PartRefused { worker, blob: id(20), reason, text });
    assert_eq!(
        done[done.len() - 2..],
        ["to 1: FAILED no room", "to 1: Over, 0 of 1 have it, 0 missing"]
    );
    assert!(bench.after(GRACE).is_empty(), "it is not pushed again unasked");
}

#[test]
fn a_worker_with_too_many_transfers_gets_a_part_later_and_its_putter_hears_of_no_failure() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.worker(100, &[]);
    bench.keep(&one, 10, 20, &["one"]);
    bench.put(9, &one, 11, ALL);
    bench.commit();
    let busy = |blob: u128| {
        let (worker, reason, text) = (worker(100), Reason::BUSY, "8192 are under way".to_owned());
        DatasetEvent::PartRefused { worker, blob: id(blob), reason, text }
    };
    assert!(bench.on(busy(10)).is_empty(), "the manifest");
    assert_eq!(bench.after(Duration::from_secs(1)), ["to 100: blob 10"]);
    bench.lacks(100, 10, lack(1, &[0], 3));
    for _ in 0..3 {
        assert!(bench.on(busy(20)).is_empty(), "a pack");
        assert_eq!(bench.after(Duration::from_secs(1)), ["to 100: a pack of 1", "to 100: blob 20"]);
    }
    // What it says to lack is opened once.
    bench.on(busy(20));
    assert_eq!(bench.lacks(100, 10, lack(1, &[0], 3)), ["to 100: a pack of 1", "to 100: blob 20"]);
    assert!(bench.after(Duration::from_secs(1)).is_empty());
    let done = bench.acks(100, 10, stored(1, 0));
    assert_eq!(done.last().unwrap(), "to 1: Over, 1 of 1 have it, 0 missing");
}

#[test]
fn questions_are_answered_at_once_or_when_those_that_know_have_spoken() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let cache_id = || "set".to_owned();
    let rm = || Question::DatasetRm(ask::DatasetRm { cache_id: cache_id() });
    let unknown = bench.ask(ask::DatasetRm::VERB, rm());
    assert_eq!(
        unknown,
        ["no answer: dataset set is unknown here: `heft dataset ls` lists all datasets"]
    );
    bench.keep(&one, 10, 20, &["one"]);
    bench.worker(100, &[("set", one.digest())]);

    let verify = Question::DatasetVerify(ask::DatasetVerify { cache_id: cache_id() });
    let asked = bench.ask(ask::DatasetVerify::VERB, verify);
    assert_eq!(asked, ["look at 10", "look at 20", "to 100: inspect set"]);
    assert!(bench.manifest_read(10, &one).is_empty());
    assert!(bench.pack_checked(20, &["one"]).is_empty(), "the worker has said nothing");
    let done = bench.acks(100, 77, stored(0, 1));
    assert!(
        done[0].starts_with(r#"answer {"packs_bad":[],"packs_good":2,"workers":[{"#),
        "{done:?}"
    );

    let done = bench.ask(ask::DatasetRm::VERB, rm());
    assert_eq!(done[0], "remove set", "{done:?}");
    assert!(done.iter().any(|line| line.starts_with(r#"answer {"bytes":"#)), "{done:?}");
}

#[test]
fn an_operator_who_chooses_the_id_of_another_takes_nobodys_answer_away() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.keep(&one, 10, 20, &["one"]);
    bench.worker(100, &[("set", one.digest())]);
    let verify = || Question::DatasetVerify(ask::DatasetVerify { cache_id: "set".to_owned() });
    let first = bench.ask(ask::DatasetVerify::VERB, verify());
    assert_eq!(first, ["look at 10", "look at 20", "to 100: inspect set"]);
    assert_eq!(bench.ask(ask::DatasetVerify::VERB, verify()), ["to 100: inspect set"]);
    bench.manifest_read(10, &one);
    bench.pack_checked(20, &["one"]);
    for question in [77, 78] {
        let done = bench.acks(100, question, stored(0, 1));
        assert!(done[0].starts_with(r#"answer {"packs_bad":[],"packs_good":2,"#), "{done:?}");
    }
}

#[test]
fn jobs_find_the_content_that_counts_while_another_comes_and_what_comes_when_that_counts() {
    let (old, new) = (manifest(&[("a", "one")]), manifest(&[("a", "three")]));
    let begin = || {
        let mut bench = Bench::new();
        bench.put(9, &old, 10, ALL);
        bench.bring_manifest(9, 10, &old);
        bench.bring_pack(9, 20, &["one"]);
        bench.commit();
        bench.worker(100, &[("set", old.digest())]);
        assert_eq!(bench.holding(100), Some((old.digest().bytes, 0)));
        bench.replace(8, &new, 11, ALL);
        bench.bring_manifest(8, 11, &new);
        bench.lacks(100, 11, lack(1, &[0], 5));
        assert!(
            bench.datasets.workers[&worker(100)].is_pushed(id(11)),
            "it goes to the worker as it comes"
        );
        assert_eq!(bench.holding(100), Some((old.digest().bytes, 0)), "and does not count");
        bench
    };
    // The put is cut: nothing has changed.
    let mut bench = begin();
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    bench.after(CLIENT_WAIT);
    assert_eq!(bench.holding(100), Some((old.digest().bytes, 0)));
    // It is kept, and the worker has it, or cannot.
    for can in [true, false] {
        let mut bench = begin();
        bench.bring_pack(8, 21, &["three"]);
        bench.commit();
        assert_eq!(bench.holding(100), Some((new.digest().bytes, 5)));
        match can {
            true => {
                bench.acks(100, 11, stored(1, 0));
                assert_eq!(bench.holding(100), Some((new.digest().bytes, 0)));
                bench.on(DatasetEvent::Closed { conn: ConnId(100) });
            }
            false => {
                let done = bench.acks(100, 11, CachePutResult::failed("set", "no room"));
                assert!(
                    done.contains(&"to 100: release set".to_owned()),
                    "no job is to see the old: {done:?}"
                );
            }
        }
        assert_eq!(bench.holding(100), None);
    }
}

#[test]
fn a_worker_that_waits_for_a_dataset_which_is_removed_hears_so_once() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let other = put_of(&cache("other"), &one, id(30), &name(ALL));
    bench.on(DatasetEvent::Put { conn: CLIENT, request: id(5), put: other });
    bench.bring_manifest(5, 30, &one);
    bench.bring_pack(5, 31, &["one"]);
    bench.commit();
    bench.put(9, &one, 10, ALL);
    bench.bring_manifest(9, 10, &one);
    bench.commit();
    assert_eq!(bench.worker(100, &[])[0], "to 100: hold other", "the dataset waits for its turn");
    let removed = bench.books.datasets.remove(&cache("set")).unwrap();
    let done = bench.on(DatasetEvent::Removed { dataset: removed });
    assert_eq!(done.iter().filter(|line| *line == "to 100: release set").count(), 1, "{done:?}");
}
