use super::*;
use chunking::digest::{BlobHasher, ChunkCrcs};
use chunking::message::{OpenFlags, Purpose};
use chunking::{ChunkRange, Codec};
use proptest::prelude::*;
use uuid::Uuid;

const CHUNK: u32 = 4096;
const CRC: u32 = 7;

fn open(size: u64) -> Open {
    Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: CHUNK,
        size,
        owner: Uuid::from_u128(1),
        attempt: 0,
        name: "in.bin".to_owned().try_into().unwrap(),
    }
}

/// A blob of `chunks` chunks, the last of one byte, with its first Grant out.
fn incoming(chunks: u64) -> Incoming {
    let mut incoming = Incoming::new(&open((chunks - 1) * u64::from(CHUNK) + 1), 8).unwrap();
    assert_eq!(incoming.first_grant().window, 8);
    incoming
}

fn head(incoming: &Incoming, index: u32) -> (ChunkHead, u32) {
    let raw_len = incoming.plan().len_of(index);
    let offset = incoming.plan().offset_of(index);
    (ChunkHead { offset, raw_len, crc_sent: CRC, crc_raw: CRC, codec: Codec::None }, raw_len)
}

fn come(incoming: &mut Incoming, index: u32) -> Arrival {
    let (head, sent_len) = head(incoming, index);
    incoming.check(&head, sent_len)
}

fn take(incoming: &mut Incoming, index: u32) -> Option<Grant> {
    assert_eq!(come(incoming, index), Arrival::Wanted { index });
    incoming.accept(index, CRC)
}

fn right(incoming: &Incoming) -> Done {
    let mut crcs = ChunkCrcs::default();
    (0..incoming.plan().count()).for_each(|index| crcs.insert(incoming.plan(), index, CRC));
    Done { digest: crcs.digest(incoming.plan()) }
}

fn wrong() -> Done {
    Done { digest: Digest { kind: DigestKind::ChunkList, bytes: [9; 32] } }
}

fn resend(list: &[(u32, u32)]) -> Ruling {
    let listed: Vec<_> = list.iter().map(|&(first, count)| ChunkRange { first, count }).collect();
    Ruling::Answer(Verdict::Resend(Ranges::try_from(listed).unwrap()))
}

fn units(incoming: &Incoming) -> u32 {
    incoming.granted + incoming.freed + u32::try_from(incoming.storing.len()).unwrap()
}

#[test]
fn what_a_sink_finds_wrong_does_not_open_a_failed_transfer_again() {
    let mut incoming = incoming(2);
    incoming.fail();
    assert_eq!(incoming.on_wrong(&[0]), Ruling::Later);
    assert_eq!(come(&mut incoming, 0), Arrival::Late);
}

#[test]
fn chunks_may_come_in_any_order_and_twice() {
    let mut incoming = incoming(4);
    for index in [3, 0, 2] {
        assert_eq!(take(&mut incoming, index), None);
    }
    assert_eq!(incoming.held_bytes(), 2 * u64::from(CHUNK) + 1, "the last one is short");
    let Arrival::Doubled(Some(grant)) = come(&mut incoming, 3) else { panic!("here before") };
    assert_eq!((grant.window, grant.held), (4, Ranges::default()));
    assert_eq!(come(&mut incoming, 1), Arrival::Wanted { index: 1 });
    assert_eq!(come(&mut incoming, 1), Arrival::Doubled(None), "being stored");
    incoming.accept(1, CRC);
    let done = right(&incoming);
    assert_eq!(incoming.on_done(&done), Ruling::Whole);
    assert_eq!(incoming.on_done(&done), Ruling::Whole, "asked again");
    assert_eq!(come(&mut incoming, 0), Arrival::Late);
}

#[test]
fn a_chunk_between_places_past_the_end_or_of_another_length_is_dropped_and_asked_for() {
    let mut incoming = incoming(2);
    let (good, len) = head(&incoming, 0);
    for (odd, sent_len) in [
        (ChunkHead { offset: 7, ..good }, len),
        (ChunkHead { offset: u64::from(CHUNK) * 2, ..good }, len),
        (ChunkHead { offset: u64::MAX, ..good }, len),
        (ChunkHead { raw_len: len - 1, ..good }, len - 1),
        (good, len - 1),
    ] {
        assert!(matches!(incoming.check(&odd, sent_len), Arrival::Bad(..)), "{odd:?}");
        assert_eq!(units(&incoming), 8);
    }
    let done = right(&incoming);
    assert_eq!(incoming.on_done(&done), resend(&[(0, 2)]));
}

#[test]
fn a_sender_that_ignores_its_window_fails() {
    let mut incoming = incoming(100);
    for index in 0..8 {
        assert_eq!(come(&mut incoming, index), Arrival::Wanted { index });
    }
    let Arrival::Uninvited(Verdict::Failed { reason, text }) = come(&mut incoming, 8) else {
        panic!()
    };
    assert_eq!(reason, Reason::WINDOW_IGNORED);
    assert!(text.as_str().contains("8 chunks are granted"), "{text}");
    assert_eq!(incoming.accept(0, CRC), None, "and gets no more room");
    assert_eq!(come(&mut incoming, 9), Arrival::Late);
}

#[test]
fn done_with_missing_chunks_asks_for_exactly_these_and_not_for_ever() {
    let mut incoming = incoming(8);
    let done = right(&incoming);
    for index in [0, 1, 4, 6] {
        take(&mut incoming, index);
    }
    assert_eq!(come(&mut incoming, 7), Arrival::Wanted { index: 7 });
    assert_eq!(incoming.on_done(&done), Ruling::Later, "one is being stored");
    incoming.reject(7);
    assert_eq!(incoming.rule(), resend(&[(2, 2), (5, 1), (7, 1)]));
    assert_eq!(incoming.rule(), Ruling::Later, "said once");
    take(&mut incoming, 2);
    for _ in 0..VAIN_ROUNDS_MAX {
        assert_eq!(incoming.on_done(&done), resend(&[(3, 1), (5, 1), (7, 1)]));
    }
    let Ruling::Answer(Verdict::Failed { reason, .. }) = incoming.on_done(&done) else { panic!() };
    assert_eq!(reason, Reason::BAD_CHUNK);
}

#[test]
fn a_wrong_digest_costs_all_once_and_the_blob_the_second_time() {
    let mut incoming = incoming(2);
    for round in 0..2 {
        take(&mut incoming, 0);
        take(&mut incoming, 1);
        match (round, incoming.on_done(&wrong())) {
            (0, Ruling::Again(Verdict::Resend(ranges))) => assert_eq!(ranges.chunk_count(), 2),
            (1, Ruling::Answer(Verdict::Failed { reason, text })) => {
                assert_eq!(reason, Reason::BAD_DIGEST);
                assert!(
                    text.as_str().contains("4097 received bytes")
                        && text.as_str().contains("second"),
                    "{text}"
                );
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_digest_of_another_kind_than_was_said_fails() {
    let mut incoming = incoming(1);
    take(&mut incoming, 0);
    let done = Done { digest: Digest { kind: DigestKind::Sha256, bytes: [0; 32] } };
    let Ruling::Answer(Verdict::Failed { reason, .. }) = incoming.on_done(&done) else { panic!() };
    assert_eq!(reason, Reason::INVALID);
}

#[test]
fn a_blob_of_no_bytes_is_whole_at_done() {
    for (done, whole) in
        [(Done { digest: BlobHasher::new(DigestKind::ChunkList).finish() }, true), (wrong(), false)]
    {
        let mut incoming = Incoming::new(&open(0), 8).unwrap();
        let grant = incoming.first_grant();
        assert_eq!((grant.held.is_empty(), incoming.held_bytes()), (true, 0));
        match incoming.on_done(&done) {
            Ruling::Whole => assert!(whole),
            Ruling::Answer(Verdict::Failed { reason, .. }) => {
                assert_eq!((reason, whole), (Reason::BAD_DIGEST, false));
            }
            other
            @ (Ruling::Later | Ruling::NeedsDigest | Ruling::Again(_) | Ruling::Answer(_)) => {
                panic!("{other:?}")
            }
        }
    }
}

#[test]
fn a_void_takes_a_chunk_back_whether_it_is_stored_or_about_to_be() {
    let mut incoming = incoming(3);
    let void = |index: u64| Void { offset: index * u64::from(CHUNK), reason: Reason::SOURCE_GONE };
    take(&mut incoming, 0);
    assert_eq!(come(&mut incoming, 1), Arrival::Wanted { index: 1 });
    assert_eq!(incoming.on_void(&void(0)), Some(0));
    assert_eq!(incoming.on_void(&void(1)), Some(1));
    assert_eq!(incoming.on_void(&void(2)), None, "never came");
    assert_eq!(incoming.on_void(&Void { offset: 5, ..void(0) }), None);
    assert_eq!(incoming.on_void(&Void { offset: u64::MAX, ..void(0) }), None);
    incoming.accept(1, CRC);
    let done = right(&incoming);
    assert_eq!(incoming.on_done(&done), resend(&[(0, 3)]));
    assert_eq!(units(&incoming), 8);
}

#[test]
fn a_new_connection_hears_what_is_here_and_gets_the_whole_window() {
    let mut incoming = incoming(20);
    for index in 0..6 {
        take(&mut incoming, index);
    }
    assert_eq!(come(&mut incoming, 6), Arrival::Wanted { index: 6 });
    let grant = incoming.first_grant();
    assert_eq!((grant.window, grant.held.chunk_count()), (7, 6), "one is still being stored");
    incoming.accept(6, CRC);
    let grant = incoming.first_grant();
    assert_eq!((grant.window, grant.held.chunk_count(), units(&incoming)), (8, 7, 8));
}

#[test]
fn sizes_over_the_limit_are_refused() {
    assert!(Incoming::new(&open(u64::MAX), 8).is_err());
    assert!(Incoming::new(&Open { chunk_bytes: 5, ..open(1) }, 8).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Chunk(u32),
    Odd(u64),
    Store(usize, bool),
    Void(u32),
    Done(bool),
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u32..12).prop_map(Step::Chunk),
        1 => any::<u64>().prop_map(Step::Odd),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(place, sound)| Step::Store(place, sound)),
        1 => (0u32..12).prop_map(Step::Void),
        1 => any::<bool>().prop_map(Step::Done),
        1 => Just(Step::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes in whatever order: what is out, being stored and to be told makes the window,
    /// no Grant exceeds it, and a blob is whole only with every chunk stored after it was last
    /// declared void.
    #[test]
    fn the_window_is_never_exceeded_and_nothing_of_it_is_lost(
        window in 1u32..=8,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut incoming = Incoming::new(&open(12 * u64::from(CHUNK)), window).unwrap();
        let mut out = incoming.first_grant().window;
        let mut storing: Vec<u32> = Vec::new();
        let mut here = [false; 12];
        let mut voided: Vec<u32> = Vec::new();
        let mut over = false;
        for step in steps {
            let grant = match step {
                Step::Chunk(index) => {
                    let allowed = out > 0;
                    match come(&mut incoming, index) {
                        Arrival::Wanted { index } => {
                            prop_assert!(allowed && !here[index as usize] && !storing.contains(&index));
                            out -= 1;
                            storing.push(index);
                            None
                        }
                        Arrival::Doubled(grant) => {
                            prop_assert!(allowed && (here[index as usize] || storing.contains(&index)));
                            out -= 1;
                            grant
                        }
                        Arrival::Uninvited(_) => {
                            prop_assert!(!allowed);
                            over = true;
                            None
                        }
                        Arrival::Late => None,
                        Arrival::Bad(error, _) => panic!("{error}"),
                    }
                }
                Step::Odd(offset) => {
                    let (good, len) = head(&incoming, 0);
                    match incoming.check(&ChunkHead { offset: offset | 1, ..good }, len) {
                        Arrival::Bad(_, grant) => {
                            out -= 1;
                            grant
                        }
                        Arrival::Uninvited(_) => {
                            over = true;
                            None
                        }
                        Arrival::Late => None,
                        other @ (Arrival::Wanted { .. } | Arrival::Doubled(_)) => panic!("{other:?}"),
                    }
                }
                Step::Store(place, sound) if !storing.is_empty() => {
                    let index = storing.remove(place % storing.len());
                    let kept = sound && !voided.contains(&index);
                    voided.retain(|void| *void != index);
                    here[index as usize] |= kept;
                    let grant = if sound { incoming.accept(index, CRC) } else { incoming.reject(index) };
                    match incoming.rule() {
                        Ruling::Again(_) => here = [false; 12],
                        Ruling::Whole => prop_assert!(here.iter().all(|here| *here)),
                        Ruling::Answer(Verdict::Failed { .. }) => over = true,
                        Ruling::Later | Ruling::NeedsDigest | Ruling::Answer(_) => {}
                    }
                    grant
                }
                Step::Store(..) => None,
                Step::Void(index) => {
                    let void = Void { offset: incoming.plan().offset_of(index), reason: Reason::NONE };
                    let was = incoming.on_void(&void);
                    if was.is_some() && storing.contains(&index) {
                        voided.push(index);
                    } else if was.is_some() {
                        here[index as usize] = false;
                    }
                    None
                }
                Step::Done(sound) => {
                    let done = if sound { right(&incoming) } else { wrong() };
                    match incoming.on_done(&done) {
                        Ruling::Whole => prop_assert!(here.iter().all(|here| *here)),
                        Ruling::Again(_) => here = [false; 12],
                        Ruling::Answer(Verdict::Resend(ranges)) => {
                            let missing: Vec<u32> = (0..12).filter(|index| !here[*index as usize]).collect();
                            prop_assert_eq!(ranges.indices().collect::<Vec<_>>(), missing);
                        }
                        Ruling::Answer(_) => over = true,
                        Ruling::Later | Ruling::NeedsDigest => {}
                    }
                    None
                }
                Step::Reconnect if !over => {
                    out = 0;
                    Some(incoming.first_grant())
                }
                Step::Reconnect => None,
            };
            out += grant.map_or(0, |grant| grant.window);
            prop_assert!(out + u32::try_from(storing.len()).unwrap() <= window);
            if over || incoming.is_whole() {
                break;
            }
            prop_assert_eq!((units(&incoming), incoming.granted), (window, out));
        }
    }
}

#[test]
fn transition_table_of_a_blob_that_comes() {
    use crate::transitions::{Event, State, assert_table};
    fn coming() -> Incoming {
        let mut incoming = incoming(2);
        take(&mut incoming, 1);
        incoming
    }
    fn storing() -> Incoming {
        let mut incoming = coming();
        come(&mut incoming, 0);
        incoming
    }
    fn all_here() -> Incoming {
        let mut incoming = coming();
        take(&mut incoming, 0);
        incoming
    }
    let states: [State<Incoming>; 6] = [
        ("open", coming),
        ("open, storing", storing),
        ("open, all here", all_here),
        ("closing, storing", || {
            let mut incoming = storing();
            incoming.on_done(&right(&incoming.clone()));
            incoming
        }),
        ("whole, all here", || {
            let mut incoming = all_here();
            incoming.on_done(&right(&incoming.clone()));
            incoming
        }),
        ("failed", || {
            let mut incoming = coming();
            incoming.fail();
            incoming
        }),
    ];
    let events: [Event<Incoming>; 11] = [
        ("a connection's first grant", |incoming| drop(incoming.first_grant())),
        ("the chunk comes", |incoming| drop(come(incoming, 0))),
        ("it is stored", |incoming| {
            incoming.accept(0, CRC);
            incoming.rule();
        }),
        ("it is damaged", |incoming| {
            incoming.reject(0);
            incoming.rule();
        }),
        ("it is void", |incoming| {
            incoming.on_void(&Void { offset: 0, reason: Reason::NONE });
        }),
        ("a chunk without a grant", |incoming| {
            incoming.granted = 0;
            come(incoming, 0);
        }),
        ("done", |incoming| drop(incoming.on_done(&right(&incoming.clone())))),
        ("done, another digest", |incoming| drop(incoming.on_done(&wrong()))),
        ("done, another kind of digest", |incoming| {
            let digest = Digest { kind: DigestKind::Sha256, bytes: [9; 32] };
            incoming.on_done(&Done { digest });
        }),
        ("what chunks hold is wrong", |incoming| drop(incoming.on_wrong(&[0]))),
        ("not wanted", Incoming::fail),
    ];
    let name = |incoming: &Incoming| {
        let phase = match incoming.phase {
            Phase::Open => "open",
            Phase::Closing(_) => "closing",
            Phase::Whole => "whole",
            Phase::Failed => "failed",
        };
        let storing = if incoming.storing.is_empty() { "" } else { ", storing" };
        let all = if incoming.came.is_complete() { ", all here" } else { "" };
        format!("{phase}{storing}{all}")
    };
    assert_table("src/transfer/incoming.transitions.txt", &states, &events, name);
}
