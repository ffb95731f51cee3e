//! What holds for all frames, messages and bitmaps, whatever they contain and however the bytes are
//! cut.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::wildcard_enum_match_arm)]

mod support;

use chunking::dataset::Piece;
use chunking::frame::Trailers;
use chunking::message::{
    self, Abort, Answer, AnswerStatus, AppendEntries, AppendOutcome, AppendResp, AppendSays, Ask,
    Cancel, Challenge, DatasetEntry, DatasetList, DatasetState, Done, EntryKind, EntryList,
    Features, Follow, FollowFlags, Grant, Have, Heartbeat, HeldJob, HeldJobs, HeldPart,
    HelloPurpose, HelloVersions, Hold, HoldFlags, Inspect, InstallSnapResp, InstallSnapshot,
    InstallStage, Keepalive, Lack, Lacking, LeaderHello, LimitId, LimitList, LogEntry,
    MembersBytes, Name, OUTPUT_HEAD_BYTES, Open, OpenFlags, Output, OutputSays, PIECE_HEAD_BYTES,
    Pack, PartOf, PieceList, ProgramList, Programs, ProgramsSay, Progress, Proof, Purpose, Put,
    PutFlags, RECORD_PIECE_HEAD_BYTES, Reason, Received, RecordPiece, Refused, Release,
    RequestVote, Settled, Spread, SpreadStage, Stage, Standing, Start, StartFlags, Stream,
    Submitted, Text, TimeoutNow, Trouble, Verdict, Void, VoteAnswer, VoteFlags, VoteResp, Welcome,
};
use chunking::{
    Bitmap, ChunkHead, ChunkRange, Codec, Decoder, Digest, DigestKind, Generation, Head,
    InboundLimits, Kind, Message, Ranges, Step,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::collections::BTreeSet;
use support::property_config;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq)]
struct OwnedFrame {
    code: u8,
    msg_id: Uuid,
    corr_id: Uuid,
    subject: String,
    payload: Vec<u8>,
}

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn owned_frame() -> impl Strategy<Value = OwnedFrame> {
    let subject = prop_oneof![Just(String::new()), "[a-zé計.*>]{0,40}"];
    (any::<u8>(), uuid(), uuid(), subject, vec(any::<u8>(), 0..300)).prop_map(
        |(code, msg_id, corr_id, subject, payload)| OwnedFrame {
            code,
            msg_id,
            corr_id,
            subject,
            payload,
        },
    )
}

/// A connection's bytes: a Hello, so that detection has its usual first frame, then anything.
fn written(generation: Generation, frames: &[OwnedFrame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        let head = Head {
            code: frame.code,
            msg_id: frame.msg_id,
            corr_id: frame.corr_id,
            subject: &frame.subject,
            payload_len: u32::try_from(frame.payload.len()).unwrap(),
        };
        head.append(generation, &mut bytes).unwrap();
        bytes.extend_from_slice(&frame.payload);
    }
    bytes
}

/// What a generation keeps of a frame.
fn kept(generation: Generation, frame: &OwnedFrame) -> OwnedFrame {
    let has_ids = generation != Generation::F0;
    OwnedFrame {
        msg_id: if has_ids { frame.msg_id } else { Uuid::nil() },
        corr_id: if has_ids { frame.corr_id } else { Uuid::nil() },
        subject: if generation == Generation::F2 { frame.subject.clone() } else { String::new() },
        ..frame.clone()
    }
}

/// Reads frames from bytes that arrive in the given pieces, keeping only what the decoder left.
fn read(decoder: &mut Decoder, pieces: &[&[u8]]) -> Vec<OwnedFrame> {
    let (mut frames, mut current, mut buffer) = (Vec::new(), None::<OwnedFrame>, Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let mut input = buffer.as_slice();
            let waits = match decoder.poll(&mut input).unwrap() {
                Step::NeedMore { .. } => true,
                Step::Head(head) => {
                    current = Some(OwnedFrame {
                        code: head.code,
                        msg_id: head.msg_id,
                        corr_id: head.corr_id,
                        subject: head.subject.to_owned(),
                        payload: Vec::new(),
                    });
                    false
                }
                Step::Payload(bytes) => {
                    current.as_mut().unwrap().payload.extend_from_slice(bytes);
                    false
                }
                Step::End { .. } => {
                    frames.extend(current.take());
                    false
                }
            };
            let consumed = buffer.len() - input.len();
            buffer.drain(..consumed);
            if waits {
                break;
            }
        }
    }
    assert!(decoder.finish(&buffer).is_ok() && current.is_none());
    frames
}

fn cut<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let places: BTreeSet<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for place in places {
        let (piece, behind) = rest.split_at(place - (bytes.len() - rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces.push(rest);
    pieces
}

/// A frame with its checksum.
fn summed(frame: &OwnedFrame) -> Vec<u8> {
    let head = Head {
        code: frame.code,
        msg_id: frame.msg_id,
        corr_id: frame.corr_id,
        subject: &frame.subject,
        payload_len: u32::try_from(frame.payload.len()).unwrap(),
    };
    let mut bytes = Vec::new();
    let trailer =
        head.append_summed(Generation::F2, crc32fast::hash(&frame.payload), &mut bytes).unwrap();
    [&bytes[..], &frame.payload, &trailer].concat()
}

fn checking(trailers: Trailers) -> Decoder {
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    decoder.set_trailers(trailers);
    decoder
}

/// What a connection gives before it waits or fails: how many frames, and whether it failed. Read
/// as whole frames, and in steps.
fn outcomes(decoder: &Decoder, bytes: &[u8]) -> [(usize, bool); 2] {
    let (mut whole, mut rest, mut frames) = (decoder.clone(), bytes, 0);
    let failed = loop {
        match whole.poll_frame(&mut rest) {
            Ok(Some(_)) => frames += 1,
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    let (mut steps, mut rest, mut ended) = (decoder.clone(), bytes, 0);
    let broke = loop {
        match steps.poll(&mut rest) {
            Ok(Step::NeedMore { .. }) => break false,
            Ok(Step::End { .. }) => ended += 1,
            Ok(Step::Head(_) | Step::Payload(_)) => {}
            Err(_) => break true,
        }
    };
    [(frames, failed), (ended, broke)]
}

/// Turns over each bit of `frame` in turn; what follows it is sound. No frame may come out.
fn no_flip_passes(decoder: &Decoder, frame: &[u8], behind: &[u8], what: &str) {
    let sound = [frame, behind].concat();
    let count = outcomes(decoder, &sound)[0].0;
    assert_eq!(outcomes(decoder, &sound), [(count, false); 2], "{what}");
    assert!(count >= 1, "{what}");
    for bit in 0..8 * frame.len() {
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            outcomes(decoder, &bytes),
            [(0, true); 2],
            "{what}: bit {bit} of {}",
            frame.len()
        );
    }
}

#[test]
fn w08_any_bit_that_turns_over_in_any_frame_with_a_checksum_is_found() {
    let (msg_id, corr_id) = (Uuid::from_u128(0x1234_5678_9abc), Uuid::nil());
    let frame = |kind: Kind, subject: &str, payload: &[u8]| {
        let (subject, payload) = (subject.to_owned(), payload.to_vec());
        summed(&OwnedFrame { code: kind.code(), msg_id, corr_id, subject, payload })
    };
    // What follows is long enough for a length that has grown.
    let behind: Vec<u8> = (0..40).flat_map(|_| frame(Kind::Credit, "", &[9; 1000])).collect();
    for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Chunk) {
        for (subject, payload) in
            [("", &b""[..]), ("", &[0; 4]), ("job.submit.calcA", b"{}"), ("s", &[7; 61])]
        {
            let what = format!("{kind} {subject:?} with {} bytes", payload.len());
            no_flip_passes(
                &checking(Trailers::Required),
                &frame(*kind, subject, payload),
                &behind,
                &what,
            );
        }
    }
    // Where they begin, on either side.
    let begin = frame(Kind::Welcome, "", b"");
    no_flip_passes(&checking(Trailers::Announced), &begin, &behind, "the beginning");
}

#[test]
fn a_welcome_with_a_checksum_is_found_damaged_or_makes_the_next_frame_so() {
    let welcome = OwnedFrame {
        code: Kind::Welcome.code(),
        msg_id: Uuid::nil(),
        corr_id: Uuid::from_u128(7),
        subject: String::new(),
        payload: vec![1; 40],
    };
    let credit = OwnedFrame { code: Kind::Start.code(), ..welcome.clone() };
    let (welcome, next) = (summed(&welcome), summed(&credit).repeat(40));
    for bit in 8 * 5..8 * welcome.len() {
        let mut bytes = [&welcome[..], &next].concat();
        bytes[bit / 8] ^= 1 << (bit % 8);
        for (frames, failed) in outcomes(&checking(Trailers::Offered), &bytes) {
            assert!(failed && frames <= 1, "bit {bit}: {frames} frames");
        }
    }
}

fn ranges() -> impl Strategy<Value = Ranges> {
    btree_set(0u32..5000, 0..40).prop_map(|chunks| {
        let mut listed: Vec<ChunkRange> = Vec::new();
        for chunk in chunks {
            match listed.last_mut() {
                Some(last) if last.first + last.count == chunk => last.count += 1,
                _ => listed.push(ChunkRange { first: chunk, count: 1 }),
            }
        }
        Ranges::try_from(listed).unwrap()
    })
}

fn name() -> impl Strategy<Value = Name> {
    ".{0,60}".prop_map(|name| Name::try_from(name).unwrap())
}

fn text() -> impl Strategy<Value = Text> {
    ".{0,60}".prop_map(Text::from)
}

fn digest() -> impl Strategy<Value = Digest> {
    let kind = select(vec![DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3]);
    (kind, any::<[u8; 32]>()).prop_map(|(kind, bytes)| Digest { kind, bytes })
}

fn open() -> impl Strategy<Value = Message<'static>> {
    let purpose = select(vec![
        Purpose::Input,
        Purpose::Archive,
        Purpose::Stdout,
        Purpose::Dataset,
        Purpose::Payload,
    ]);
    let front = (purpose, select(Codec::ALL.to_vec()), digest(), any::<u16>(), any::<u32>());
    (front, any::<u64>(), uuid(), any::<u32>(), name()).prop_map(
        |((purpose, codec, digest, flags, chunk_bytes), size, owner, attempt, name)| {
            let (digest, flags) = (digest.kind, OpenFlags(flags));
            Message::Open(Open {
                purpose,
                codec,
                digest,
                flags,
                chunk_bytes,
                size,
                owner,
                attempt,
                name,
            })
        },
    )
}

fn piece() -> impl Strategy<Value = Message<'static>> {
    let head = (any::<u64>(), any::<[u32; 3]>(), select(Codec::ALL.to_vec()));
    (head, vec(any::<u8>(), 1..200), 0u32..2000, 0u32..2000).prop_map(
        |((offset, [raw_len, crc_sent, crc_raw], codec), bytes, from, behind)| {
            let head = ChunkHead { offset, raw_len, crc_sent, crc_raw, codec };
            let sent_len = from + u32::try_from(bytes.len()).unwrap() + behind;
            Message::Piece(message::Piece { head, sent_len, from, bytes: bytes.leak() })
        },
    )
}

fn message() -> impl Strategy<Value = Message<'static>> {
    let reason = || any::<u16>().prop_map(Reason);
    let held_job = (uuid(), any::<u32>(), any::<u32>());
    let standing =
        select(vec![Standing::Queued, Standing::Assigned, Standing::Running, Standing::Finished]);
    let stage = select(vec![
        Stage::Waiting,
        Stage::Receiving,
        Stage::Running,
        Stage::Packing,
        Stage::Returning,
    ]);
    let limits = vec((any::<u16>().prop_map(LimitId), any::<u64>()), 0..20);
    let json = || vec(any::<u8>(), 0..50).prop_map(|json| -> &'static [u8] { json.leak() });
    let status = select(vec![AnswerStatus::Whole, AnswerStatus::MoreFollows, AnswerStatus::Error]);
    let say =
        select(vec![ProgramsSay::Look, ProgramsSay::Are, ProgramsSay::Same, ProgramsSay::Unlisted]);
    prop_oneof![
        open(),
        (uuid(), name(), any::<u64>(), limits).prop_map(|(leader, software, features, limits)| {
            let limits: LimitList = limits.into_iter().collect();
            Message::Welcome(Welcome { leader, software, features: Features(features), limits })
        }),
        (any::<u32>(), reason(), text(), ranges(), proptest::option::of(any::<[u32; 3]>()))
            .prop_map(|(window, reason, text, held, part)| {
                let part = HeldPart(part.map(|[index, bytes, crc_sent]| PartOf {
                    index,
                    bytes,
                    crc_sent,
                }));
                Message::Grant(Grant { window, reason, text, held, part })
            }),
        piece(),
        digest().prop_map(|digest| Message::Done(Done { digest })),
        Just(Message::Verdict(Verdict::Ok)),
        ranges().prop_map(|ranges| Message::Verdict(Verdict::Resend(ranges))),
        (reason(), text())
            .prop_map(|(reason, text)| Message::Verdict(Verdict::Failed { reason, text })),
        (reason(), text()).prop_map(|(reason, text)| Message::Abort(Abort { reason, text })),
        (any::<u64>(), reason())
            .prop_map(|(offset, reason)| Message::Void(Void { offset, reason })),
        (standing, any::<u32>(), any::<u32>()).prop_map(|(standing, run, ahead)| {
            Message::Submitted(Submitted { standing, run, ahead })
        }),
        (reason(), any::<u64>(), any::<u64>(), name(), text()).prop_map(
            |(reason, value, limit, hop, text)| {
                Message::Refused(Refused { reason, value, limit, hop, text })
            }
        ),
        (any::<[u32; 3]>(), any::<u16>()).prop_map(|([run, attempt, lease_ms], flags)| {
            let flags = StartFlags(flags);
            Message::Start(Start { run, attempt, lease_ms, flags })
        }),
        (any::<u16>(), any::<u32>(), vec(held_job, 0..30)).prop_map(
            |(cpu_permille, credit, jobs)| {
                let jobs =
                    jobs.into_iter().map(|(job, run, attempt)| HeldJob { job, run, attempt });
                Message::Heartbeat(Heartbeat {
                    cpu_permille,
                    credit,
                    jobs: HeldJobs::new(jobs.collect()),
                })
            }
        ),
        (any::<[u32; 2]>(), stage, any::<[u64; 2]>(), text()).prop_map(
            |([run, attempt], stage, [done, total], text)| {
                Message::Progress(Progress { run, attempt, stage, done, total, text })
            }
        ),
        (any::<u32>(), text())
            .prop_map(|(attempt, text)| Message::Cancel(Cancel { attempt, text })),
        any::<u32>().prop_map(|run| Message::Settled(Settled { run })),
        any::<u32>().prop_map(|run| Message::Received(Received { run })),
        Just(Message::Keepalive(Keepalive {})),
        (say, vec(name(), 0..20)).prop_map(|(say, names)| {
            Message::Programs(Programs { say, names: ProgramList::new(names) })
        }),
        json().prop_map(|json| Message::Ask(Ask { json })),
        (status, json()).prop_map(|(status, json)| Message::Answer(Answer { status, json })),
        follow(),
        output(),
    ]
}

fn follow() -> impl Strategy<Value = Message<'static>> {
    let stream = select(vec![Stream::Stdout, Stream::Stderr]);
    (uuid(), any::<[u32; 2]>(), stream, any::<u16>(), any::<[u64; 2]>()).prop_map(
        |(job, [attempt, began], stream, flags, [from, until])| {
            let flags = FollowFlags(flags);
            Message::Follow(Follow { job, attempt, began, stream, flags, from, until })
        },
    )
}

fn output() -> impl Strategy<Value = Message<'static>> {
    let text = select(vec![
        OutputSays::Begins,
        OutputSays::Ends,
        OutputSays::Present,
        OutputSays::JobEnded,
        OutputSays::Refused,
        OutputSays::Waits,
        OutputSays::Lost,
    ]);
    let said = prop_oneof![
        (Just(OutputSays::Bytes), vec(any::<u8>(), 1..200)),
        (text, "[ -~]{0,50}".prop_map(String::into_bytes)),
    ];
    (said, any::<[u32; 2]>(), 0..u64::MAX - 200, any::<u16>()).prop_map(
        |((says, bytes), [attempt, began], offset, reason)| {
            let (reason, bytes) = (Reason(reason), bytes.leak());
            Message::Output(Output { says, attempt, began, offset, reason, bytes })
        },
    )
}

fn any_message() -> impl Strategy<Value = Message<'static>> {
    prop_oneof![2 => message(), 1 => dataset_message(), 1 => cluster_message()]
}

fn entries() -> impl Strategy<Value = EntryList> {
    let bytes = || vec(any::<u8>(), 1..60);
    let entry = prop_oneof![
        (Just(EntryKind::Record), bytes()),
        (Just(EntryKind::Members), bytes()),
        (select(vec![EntryKind::Term, EntryKind::Ahead]), Just(Vec::new())),
    ];
    let entry =
        (entry, any::<u64>()).prop_map(|((kind, bytes), term)| LogEntry { kind, term, bytes });
    vec(entry, 0..8).prop_map(EntryList)
}

fn leader_hello() -> impl Strategy<Value = Message<'static>> {
    let purpose = select(vec![
        HelloPurpose::Control,
        HelloPurpose::Bulk,
        HelloPurpose::RelayFor,
        HelloPurpose::RelayContinues,
        HelloPurpose::Join,
    ]);
    let versions = (any::<[u16; 2]>(), any::<u32>()).prop_map(|([one, two], level)| {
        HelloVersions { lowest: one.min(two), highest: one.max(two), level }
    });
    let who = (uuid(), name(), any::<u32>(), uuid(), name());
    let proof = proptest::option::of(any::<[u8; 32]>()).prop_map(Proof);
    let challenge = any::<[u8; 16]>().prop_map(Challenge);
    (who, purpose, name(), versions, any::<u64>(), challenge, proof).prop_map(
        |(
            (cluster, group, number, directory, address),
            purpose,
            relayed,
            versions,
            moment,
            challenge,
            proof,
        )| {
            Message::LeaderHello(LeaderHello {
                cluster,
                group,
                number,
                directory,
                address,
                purpose,
                relayed,
                versions,
                moment,
                challenge,
                proof,
            })
        },
    )
}

fn cluster_message() -> impl Strategy<Value = Message<'static>> {
    let says = || select(vec![AppendSays::Append, AppendSays::Heartbeat]);
    let trouble = || any::<u16>().prop_map(Trouble);
    let nodes = || any::<[u32; 2]>();
    let outcome = select(vec![AppendOutcome::Taken, AppendOutcome::Rejected]);
    let answer = select(vec![VoteAnswer::Granted, VoteAnswer::Refused]);
    let stage = select(vec![
        InstallStage::Accepted,
        InstallStage::HaveIt,
        InstallStage::Busy,
        InstallStage::Done,
        InstallStage::Failed,
    ]);
    let piece = (vec(any::<u8>(), 1..200), 0u32..2000, 0u32..2000);
    prop_oneof![
        leader_hello(),
        (says(), nodes(), any::<[u64; 7]>(), trouble(), entries()).prop_map(
            |(says, [from, to], numbers, trouble, entries)| {
                let [term, prev_index, prev_term, commit, round, sent, blobs_low] = numbers;
                Message::AppendEntries(AppendEntries {
                    says,
                    from,
                    to,
                    term,
                    prev_index,
                    prev_term,
                    commit,
                    round,
                    sent,
                    trouble,
                    blobs_low,
                    entries,
                })
            }
        ),
        (says(), nodes(), any::<[u64; 8]>(), outcome, trouble(), any::<u32>()).prop_map(
            |(says, [from, to], numbers, outcome, trouble, lacking)| {
                let [term, index, hint, hint_term, commit, round, echo, applied] = numbers;
                Message::AppendResp(AppendResp {
                    says,
                    from,
                    to,
                    term,
                    outcome,
                    index,
                    hint,
                    hint_term,
                    commit,
                    round,
                    echo,
                    applied,
                    trouble,
                    lacking,
                })
            }
        ),
        (nodes(), any::<[u64; 5]>(), any::<u16>()).prop_map(|([from, to], numbers, flags)| {
            let [term, last_index, last_term, commit, commit_term] = numbers;
            let flags = VoteFlags(flags);
            Message::RequestVote(RequestVote {
                from,
                to,
                term,
                last_index,
                last_term,
                commit,
                commit_term,
                flags,
            })
        }),
        (nodes(), any::<[u64; 3]>(), answer, any::<u16>()).prop_map(
            |([from, to], [term, commit, commit_term], answer, flags)| {
                let flags = VoteFlags(flags);
                Message::VoteResp(VoteResp { from, to, term, answer, flags, commit, commit_term })
            }
        ),
        (nodes(), any::<[u64; 4]>(), uuid(), any::<u32>(), vec(any::<u8>(), 0..90)).prop_map(
            |([from, to], [term, index, index_term, bytes], transfer, blobs, members)| {
                let members = MembersBytes(members);
                Message::InstallSnapshot(InstallSnapshot {
                    from,
                    to,
                    term,
                    transfer,
                    index,
                    index_term,
                    bytes,
                    blobs,
                    members,
                })
            }
        ),
        (nodes(), any::<[u64; 2]>(), uuid(), stage, text()).prop_map(
            |([from, to], [term, index], transfer, stage, text)| {
                Message::InstallSnapResp(InstallSnapResp {
                    from,
                    to,
                    term,
                    transfer,
                    stage,
                    index,
                    text,
                })
            }
        ),
        (nodes(), any::<[u64; 2]>(), piece).prop_map(
            |([from, to], [index, term], (bytes, offset, behind))| {
                let total = offset + u32::try_from(bytes.len()).unwrap() + behind;
                let bytes = bytes.leak();
                Message::RecordPiece(RecordPiece { from, to, index, term, total, offset, bytes })
            }
        ),
        (nodes(), any::<u64>()).prop_map(|([from, to], term)| Message::TimeoutNow(TimeoutNow {
            from,
            to,
            term
        })),
    ]
}

fn dataset_message() -> impl Strategy<Value = Message<'static>> {
    let reason = any::<u16>().prop_map(Reason);
    let what = select(vec![Lacking::Nothing, Lacking::Manifest, Lacking::Pieces]);
    let stage = select(vec![SpreadStage::Stored, SpreadStage::Over]);
    let state = select(vec![
        DatasetState::Held,
        DatasetState::Gone,
        DatasetState::Wanted,
        DatasetState::Lost,
    ]);
    let piece = (any::<[u8; 32]>(), any::<u32>()).prop_map(|(blake3, len)| Piece { blake3, len });
    let dataset = (state, digest(), name(), text())
        .prop_map(|(state, digest, cache_id, text)| DatasetEntry { state, digest, cache_id, text });
    let put = (digest(), uuid(), any::<[u64; 2]>(), any::<u32>(), any::<u16>(), name(), name());
    prop_oneof![
        put.prop_map(|(digest, manifest, [bytes, deadline_ms], files, flags, cache_id, target)| {
            let flags = PutFlags(flags);
            Message::Put(Put {
                digest,
                manifest,
                bytes,
                files,
                flags,
                deadline_ms,
                cache_id,
                target,
            })
        }),
        (what, any::<u64>(), ranges()).prop_map(|(what, bytes, pieces)| Message::Lack(Lack {
            what,
            bytes,
            pieces
        })),
        (stage, any::<[u32; 5]>(), any::<[u64; 2]>(), text()).prop_map(
            |(stage, [targets, ok, skipped, failed, missing], [received, moved], text)| {
                Message::Spread(Spread {
                    stage,
                    targets,
                    ok,
                    skipped,
                    failed,
                    missing,
                    received,
                    moved,
                    text,
                })
            }
        ),
        (any::<u16>(), digest(), any::<u64>(), any::<u32>(), name()).prop_map(
            |(flags, digest, bytes, files, cache_id)| {
                Message::Hold(Hold { flags: HoldFlags(flags), digest, bytes, files, cache_id })
            }
        ),
        vec(piece, 0..30).prop_map(|pieces| Message::Pack(Pack { pieces: PieceList::new(pieces) })),
        (reason, text(), name()).prop_map(|(reason, text, cache_id)| Message::Release(Release {
            reason,
            text,
            cache_id
        })),
        (any::<u8>(), any::<[u64; 2]>(), vec(dataset, 0..20)).prop_map(
            |(anew, [budget, used], datasets)| {
                Message::Have(Have { anew, budget, used, datasets: DatasetList::new(datasets) })
            }
        ),
        name().prop_map(|cache_id| Message::Inspect(Inspect { cache_id })),
    ]
}

fn kind_of(message: &Message<'_>) -> Kind {
    // The variant's name is the kind's: what the vectors and the viewer rely on too.
    let shown = format!("{message:?}");
    let name = shown.split('(').next().unwrap();
    *Kind::ALL.iter().find(|kind| kind.name() == name).unwrap()
}

proptest! {
    #![proptest_config(property_config(400, 20_000))]

    #[test]
    fn frames_survive_any_cut_of_the_stream(
        generation in select(vec![Generation::F0, Generation::F1, Generation::F2]),
        frames in vec(owned_frame(), 1..6),
        cuts in vec(any::<Index>(), 0..12),
        detects in any::<bool>(),
    ) {
        let bytes = written(generation, &frames);
        let mut decoder = match detects {
            true => Decoder::detecting(InboundLimits::CLASSIC),
            false => Decoder::speaking(generation, InboundLimits::CLASSIC),
        };
        let expected: Vec<OwnedFrame> = frames.iter().map(|frame| kept(generation, frame)).collect();
        prop_assert_eq!(read(&mut decoder, &cut(&bytes, &cuts)), expected);
        prop_assert_eq!(decoder.generation(), Some(generation));
    }

    #[test]
    fn whole_frames_and_steps_agree(frames in vec(owned_frame(), 1..6)) {
        let bytes = written(Generation::F2, &frames);
        let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::CLASSIC);
        let (mut rest, mut found) = (bytes.as_slice(), Vec::new());
        while let Some(frame) = decoder.poll_frame(&mut rest).unwrap() {
            found.push(OwnedFrame {
                code: frame.head.code,
                msg_id: frame.head.msg_id,
                corr_id: frame.head.corr_id,
                subject: frame.head.subject.to_owned(),
                payload: frame.payload.to_vec(),
            });
        }
        prop_assert!(rest.is_empty());
        prop_assert_eq!(found, frames);
    }

    #[test]
    fn messages_survive_the_wire_and_what_a_newer_peer_appends(message in any_message(), appended in vec(any::<u8>(), 0..9)) {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        let kind = kind_of(&message);
        prop_assert_eq!(Message::decode(kind, &payload), Ok(message.clone()));
        // JSON, bytes of a chunk and output go to the end of the payload, so nothing can stand
        // behind them; nor behind a Grant without a part or a Start without flags, which have to
        // say so if something follows.
        let is_open_ended = matches!(&message, Message::Grant(grant) if grant.part.is_none())
            || matches!(&message, Message::Start(start) if start.flags.is_none());
        if !matches!(kind, Kind::Ask | Kind::Answer | Kind::Piece | Kind::Output | Kind::RecordPiece)
            && !is_open_ended {
            payload.extend_from_slice(&appended);
            payload[0] = payload[0].max(1);
            prop_assert_eq!(Message::decode(kind, &payload), Ok(message));
        }
    }

    #[test]
    fn a_message_that_is_cut_short_is_an_error_and_nothing_else(message in any_message(), at in any::<Index>()) {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        let kind = kind_of(&message);
        let whole = payload.len();
        payload.truncate(at.index(whole));
        // JSON goes to the end of the payload, so only its front can be missing; of a chunk's or an
        // output's bytes there is at least one. A Grant may go without its part, a Start without
        // its flags.
        let is_output = matches!(&message, Message::Output(output) if output.says == OutputSays::Bytes);
        let front = match kind {
            Kind::Ask => 1,
            Kind::Answer => 2,
            Kind::Piece => PIECE_HEAD_BYTES + 1,
            Kind::Output => OUTPUT_HEAD_BYTES + usize::from(is_output),
            Kind::RecordPiece => RECORD_PIECE_HEAD_BYTES + 1,
            _ => usize::MAX,
        };
        if let Message::Grant(Grant { part: HeldPart(Some(_)), .. }) = &message
            && payload.len() == whole - 13
        {
            return Ok(());
        }
        if let Message::Start(start) = &message
            && !start.flags.is_none()
            && payload.len() == whole - 2
        {
            return Ok(());
        }
        prop_assert_eq!(Message::decode(kind, &payload).is_err(), payload.len() < front);
    }

    #[test]
    fn a_bitmap_is_a_set_of_chunks(
        count in 0u32..700,
        changes in vec((any::<Index>(), any::<bool>()), 0..400),
    ) {
        let mut map = Bitmap::new(count);
        let mut model = BTreeSet::new();
        for (at, insert) in changes {
            let index = u32::try_from(at.index(800)).unwrap();
            if insert {
                prop_assert_eq!(map.insert(index), index < count && model.insert(index));
            } else {
                prop_assert_eq!(map.remove(index), model.remove(&index));
            }
        }
        prop_assert_eq!(map.held().indices().collect::<BTreeSet<_>>(), model.clone());
        let missing: BTreeSet<u32> = (0..count).filter(|index| !model.contains(index)).collect();
        prop_assert_eq!(map.missing().indices().collect::<BTreeSet<_>>(), missing.clone());
        prop_assert_eq!(map.is_complete(), missing.is_empty());
        prop_assert_eq!(map.held_count() as usize, model.len());
        map.insert_all(&map.missing());
        prop_assert!(map.is_complete());
        prop_assert!(Ranges::try_from(map.held().as_slice().to_vec()).is_ok());
    }
}
