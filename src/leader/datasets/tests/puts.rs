//! Puts of heft clients, and the fate of their packs.

use super::*;

#[test]
fn a_put_brings_its_manifest_then_what_lacks_and_is_committed_when_every_piece_is_checked() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    assert_eq!(bench.put(9, &two, 10, TARGET_NONE), ["to 1: you lack Manifest, 0 bytes"]);
    assert_eq!(bench.open(9, 10, 100), ["to 1: bring 10"]);
    assert_eq!(bench.arrives(10), ["look at 10"]);
    assert_eq!(bench.manifest_read(10, &two), ["to 1: you lack Pieces, 8 bytes"]);
    assert!(bench.announce(9, 20, &["one"]).is_empty());
    assert_eq!(bench.open(9, 20, layout(&["one"]).size()), ["to 1: bring 20"]);
    assert_eq!(bench.arrives(20), ["look at 20"]);
    assert_eq!(bench.pack_checked(20, &["one"]), ["to 1: you lack Pieces, 5 bytes"]);
    assert_eq!(
        bench.bring_pack(9, 21, &["three"]),
        ["to 1: you lack Nothing, 0 bytes", "commit set"]
    );
    assert_eq!(
        bench.commit(),
        ["to 1: Stored, 0 of 0 have it, 0 missing", "to 1: Over, 0 of 0 have it, 0 missing"]
    );
    assert_eq!(bench.books.datasets[&cache("set")].packs, [id(20), id(21)]);
}

#[test]
fn what_was_not_announced_is_not_taken_and_a_bad_pack_is_asked_for_again_so_often() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.put(9, &one, 10, TARGET_NONE);
    assert_eq!(bench.open(9, 11, 100), ["to 1: 11 is not expected"]);
    assert_eq!(bench.open(8, 10, 100), ["to 1: 10 is not expected"], "of another request");
    bench.bring_manifest(9, 10, &one);
    let size = layout(&["one"]).size();
    assert_eq!(bench.open(9, 20, size), ["to 1: 20 is not expected"], "its list was not said");
    for pack in [20, 21, 22] {
        bench.announce(9, pack, &["one"]);
        assert_eq!(bench.open(9, pack, size + 1), [format!("to 1: {pack} is not expected")]);
        bench.open(9, pack, size);
        bench.arrives(pack);
        let bad =
            DatasetEvent::Verified { blob: id(pack), result: Err("a piece is damaged".to_owned()) };
        let done = bench.on(bad);
        assert_eq!(done[0], format!("forget {pack}"));
        match pack {
            22 => {
                assert!(
                    done[1]
                        .starts_with("to 1: refused, the content does not match the announcement"),
                    "{done:?}"
                )
            }
            _ => assert_eq!(done[1..], ["to 1: you lack Pieces, 3 bytes"]),
        }
    }
    assert!(bench.books.blobs.is_empty(), "the manifest went, too");
}

#[test]
fn other_content_under_an_id_is_refused_unless_it_replaces_it() {
    let (mut bench, old, new) =
        (Bench::new(), manifest(&[("a", "one")]), manifest(&[("a", "two")]));
    bench.keep(&old, 10, 20, &["one"]);
    let refused = bench.put(9, &new, 11, TARGET_NONE);
    assert!(
        refused[0].starts_with("to 1: refused, dataset set is there with other content"),
        "{refused:?}"
    );
    bench.replace(9, &new, 11, TARGET_NONE);
    bench.bring_manifest(9, 11, &new);
    bench.bring_pack(9, 21, &["two"]);
    let done = bench.commit();
    assert_eq!(done[..2], ["forget 10", "forget 20"], "the blobs of the old one go");
    assert!(bench.books.has_arrived(id(21)));
}

#[test]
fn a_put_that_breaks_off_goes_on_where_it_was_and_ends_if_its_client_does_not_come_back() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    bench.worker(100, &[]);
    bench.put(9, &two, 10, ALL);
    bench.bring_manifest(9, 10, &two);
    bench.bring_pack(9, 20, &["one"]);
    bench.announce(9, 21, &["three"]);
    let opened = bench.open(9, 21, layout(&["three"]).size());
    assert!(bench.on(DatasetEvent::Closed { conn: CLIENT }).is_empty());
    // It comes back, and opens the pack again, of which the relay knows what came.
    assert_eq!(bench.put(9, &two, 10, ALL), ["to 1: you lack Pieces, 5 bytes"]);
    assert!(bench.announce(9, 21, &["three"]).is_empty());
    assert_eq!(bench.open(9, 21, layout(&["three"]).size()), opened);
    assert!(bench.on(DatasetEvent::Closed { conn: CLIENT }).is_empty());
    assert!(bench.after(CLIENT_WAIT / 2).is_empty(), "it is waited for");
    let left = bench.after(CLIENT_WAIT);
    assert_eq!(left, ["forget 21", "no more of 10 to 100", "to 100: release set", "forget 10"]);
    // What came whole stays for a while, for whoever brings the rest.
    assert_eq!(bench.put(8, &two, 11, ALL), ["to 1: you lack Manifest, 0 bytes"]);
    assert_eq!(bench.bring_manifest(8, 11, &two)[0], "to 1: you lack Pieces, 5 bytes");
    // Another put of the same dataset need not wait for a client that is away.
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    assert_eq!(bench.put(7, &two, 12, ALL).last().unwrap(), "to 1: you lack Manifest, 0 bytes");
}

#[test]
fn puts_of_clients_that_are_away_keep_nobody_from_putting() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let put = |bench: &mut Bench, number: u64| {
        let (conn, to) = (ConnId(1000 + number), u128::from(number));
        let put = put_of(&cache(&format!("set{number}")), &one, id(1000 + to), &name(TARGET_NONE));
        let said = bench.on(DatasetEvent::Put { conn, request: id(2000 + to), put });
        (conn, said)
    };
    let most = u64::try_from(PUTS_MAX).unwrap();
    for number in 0..most {
        let (conn, said) = put(&mut bench, number);
        assert!(said[0].contains("you lack Manifest"), "{said:?}");
        if number > 0 {
            bench.on(DatasetEvent::Closed { conn });
        }
    }
    for number in most..2 * most - 1 {
        let (_, said) = put(&mut bench, number);
        assert!(said.last().unwrap().contains("you lack Manifest"), "{number}: {said:?}");
    }
    let (_, said) = put(&mut bench, 2 * most);
    assert!(said.last().unwrap().contains("puts are under way"), "all are here: {said:?}");
}

#[test]
fn packs_that_no_dataset_has_go_after_a_while_and_those_that_others_need_stay() {
    let mut bench = Bench::new();
    let two = manifest(&[("a", "one"), ("b", "three")]);
    let begin = |bench: &mut Bench| {
        bench.put(9, &two, 10, TARGET_NONE);
        bench.bring_manifest(9, 10, &two);
        bench.bring_pack(9, 20, &["one"]);
    };
    begin(&mut bench);
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    assert_eq!(bench.after(CLIENT_WAIT), ["forget 10"]);
    assert!(bench.after(GRACE / 2).is_empty());
    assert_eq!(bench.after(GRACE), ["forget 20"]);
    begin(&mut bench);
    assert!(bench.after(2 * GRACE).is_empty(), "a put under way needs it");
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    assert_eq!(bench.after(CLIENT_WAIT), ["forget 10", "forget 20"]);

    let shares = manifest(&[("a", "one"), ("c", "four")]);
    bench.keep(&two, 10, 22, &["one", "three"]);
    let put = put_of(&cache("other"), &shares, id(11), &name(TARGET_NONE));
    bench.on(DatasetEvent::Put { conn: CLIENT, request: id(8), put });
    bench.bring_manifest(8, 11, &shares);
    bench.bring_pack(8, 23, &["four"]);
    bench.commit();
    let removed = bench.books.datasets.remove(&cache("set")).unwrap();
    assert_eq!(
        bench.on(DatasetEvent::Removed { dataset: removed }),
        ["forget 10"],
        "22 is the other's, too"
    );
    let removed = bench.books.datasets.remove(&cache("other")).unwrap();
    assert_eq!(
        bench.on(DatasetEvent::Removed { dataset: removed }),
        ["forget 11", "forget 22", "forget 23"]
    );
    assert!(bench.books.blobs.is_empty());
}

#[test]
fn packs_of_an_earlier_life_count_when_they_are_read_and_loose_ones_when_they_are_checked() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.keep(&one, 10, 20, &["one"]);
    let Bench { books, now, .. } = bench;
    let mut bench = Bench { books, now, ..Bench::new() };
    let loose = id(21);
    bench.books.blobs.insert(loose, KnownBlob { bytes: 100, has_arrived: true });
    for (blob, part) in [
        (id(10), RestoredPart::Manifest),
        (id(20), RestoredPart::Pack),
        (loose, RestoredPart::LoosePack),
    ] {
        bench.on(DatasetEvent::Restored { blob, part });
    }
    bench.on(DatasetEvent::RestoredAll);
    let is_for = |bench: &mut Bench| bench.worker(100, &[]);
    assert!(is_for(&mut bench).is_empty(), "the dataset is for nobody");
    assert!(bench.pack_checked(20, &["one"]).is_empty());
    assert_eq!(bench.pack_checked(21, &["three"]), ["look at 21"], "its list alone proves nothing");
    let two = manifest(&[("a", "one"), ("b", "three")]);
    bench.replace(9, &two, 11, TARGET_NONE);
    assert_eq!(bench.bring_manifest(9, 11, &two), ["to 1: you lack Pieces, 5 bytes"]);
    bench.pack_checked(21, &["three"]);
    let again = bench.replace(9, &two, 11, TARGET_NONE);
    assert_eq!(again, ["to 1: you lack Nothing, 0 bytes", "commit set"]);
}

#[test]
fn a_put_is_over_at_its_deadline() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let timed =
        Put { deadline_ms: 1000, ..put_of(&cache("set"), &one, id(10), &name(TARGET_NONE)) };
    bench.on(DatasetEvent::Put { conn: CLIENT, request: id(9), put: timed });
    assert_eq!(bench.datasets.next_deadline(), Some(bench.now.plus(Duration::from_secs(1))));
    assert_eq!(bench.after(Duration::from_secs(1)), ["to 1: refused, the put timed out"]);
    assert!(bench.datasets.puts.is_empty());
}

#[test]
fn a_client_that_comes_back_brings_no_more_puts_by_one_connection_than_another() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let put = |bench: &mut Bench, conn: u64, number: u128| {
        let put =
            put_of(&cache(&format!("set{number}")), &one, id(1000 + number), &name(TARGET_NONE));
        bench.on(DatasetEvent::Put { conn: ConnId(conn), request: id(2000 + number), put })
    };
    let most = u128::try_from(PUTS_OF_CONN_MAX).unwrap();
    for number in 0..=most {
        let conn = 1000 + u64::try_from(number).unwrap();
        assert!(put(&mut bench, conn, number)[0].contains("you lack Manifest"));
        bench.on(DatasetEvent::Closed { conn: ConnId(conn) });
    }
    for number in 0..most {
        assert!(put(&mut bench, 1, number)[0].contains("you lack Manifest"));
    }
    assert!(put(&mut bench, 1, 0)[0].contains("you lack Manifest"), "it is there already");
    let said = put(&mut bench, 1, most);
    assert!(said[0].contains("8 puts are under way on this connection"), "{said:?}");
}
