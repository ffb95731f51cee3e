use super::*;
use uuid::uuid;

const ID: Uuid = uuid!("00112233-4455-6677-8899-aabbccddeeff");

fn frame(generation: Generation, kind: Kind, subject: &str, payload: &[u8]) -> Vec<u8> {
    let head = Head {
        msg_id: ID,
        corr_id: ID,
        subject,
        payload_len: u32::try_from(payload.len()).unwrap(),
        ..Head::new(kind)
    };
    let mut out = Vec::new();
    head.append(generation, &mut out).unwrap();
    out.extend_from_slice(payload);
    out
}

fn steps(decoder: &mut Decoder, mut input: &[u8]) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        match decoder.poll(&mut input) {
            Ok(Step::NeedMore { bytes }) => {
                seen.push(format!("need {bytes}"));
                return seen;
            }
            Ok(Step::Head(head)) => seen.push(format!("head {} {}", head.code, head.subject)),
            Ok(Step::Payload(piece)) => seen.push(format!("payload {}", piece.len())),
            Ok(Step::End { trailing }) => seen.push(format!("end {trailing}")),
            Err(error) => {
                seen.push(format!("{error:?}"));
                return seen;
            }
        }
    }
}

#[test]
fn w18_each_generation_is_found_on_the_first_frame_and_holds() {
    for generation in [Generation::F0, Generation::F1, Generation::F2] {
        let mut decoder = Decoder::detecting(InboundLimits::CLASSIC);
        let bytes = frame(generation, Kind::HelloWorker, "", b"hello");
        let seen = steps(&mut decoder, &bytes);
        assert_eq!(seen, ["head 10 ", "payload 5", "end 0", "need 4"]);
        assert_eq!(decoder.generation(), Some(generation));
    }
}

#[test]
fn w18_detection_waits_for_the_bytes_it_needs_and_for_no_more() {
    let needs = |bytes: &[u8]| {
        let mut rest = bytes;
        match Decoder::detecting(InboundLimits::CLASSIC).poll(&mut rest) {
            Ok(Step::NeedMore { bytes }) => bytes,
            other => panic!("{other:?}"),
        }
    };
    let f2 = frame(Generation::F2, Kind::HelloClient, "clientA", b"{}");
    assert_eq!(needs(&f2[..0]), 4);
    assert_eq!(needs(&f2[..4]), 5);
    assert_eq!(needs(&f2[..8]), 9);
    assert_eq!(needs(&f2[..9]), 41);
    assert_eq!(needs(&f2[..41]), 50, "the head ends behind the subject");
    let f0 = frame(Generation::F0, Kind::HelloClient, "", b"");
    let mut rest = f0.as_slice();
    assert!(matches!(
        Decoder::detecting(InboundLimits::CLASSIC).poll(&mut rest),
        Ok(Step::Head(_))
    ));
}

#[test]
fn w05_lengths_that_cannot_be_are_refused_on_four_bytes() {
    let refused = |len: i32, limits| {
        let bytes = len.to_le_bytes();
        Decoder::speaking(Generation::F2, limits).poll(&mut bytes.as_slice()).unwrap_err()
    };
    assert_eq!(refused(0, InboundLimits::CLASSIC), FrameError::LengthZero);
    assert_eq!(refused(-1, InboundLimits::CLASSIC), FrameError::LengthNegative { len: -1 });
    assert_eq!(
        refused(i32::MIN, InboundLimits::CLASSIC),
        FrameError::LengthNegative { len: i32::MIN }
    );
    let over = FrameError::LengthOver { len: 4_194_305, limit: 4_194_304, code: None };
    assert_eq!(refused(4_194_305, InboundLimits::ANNOUNCED), over);
}

#[test]
fn w06_only_bulk_frames_of_peers_that_announced_nothing_may_be_large() {
    let head_of = |kind: Kind, limits| {
        let mut bytes = 50_000_000_i32.to_le_bytes().to_vec();
        bytes.push(kind.code());
        bytes.extend_from_slice(&[0; 34]);
        bytes.extend_from_slice(&(50_000_000_u32 - 39).to_le_bytes());
        let mut rest = bytes.as_slice();
        Decoder::speaking(Generation::F2, limits)
            .poll(&mut rest)
            .map(|step| matches!(step, Step::Head(_)))
    };
    for kind in [Kind::SubmitJob, Kind::AckJob, Kind::CachePut] {
        assert_eq!(head_of(kind, InboundLimits::CLASSIC), Ok(true), "{kind}");
        let over = FrameError::LengthOver { len: 50_000_000, limit: 4_194_304, code: None };
        assert_eq!(head_of(kind, InboundLimits::ANNOUNCED), Err(over), "{kind}");
    }
    let over = FrameError::LengthOver { len: 50_000_000, limit: 4_194_304, code: Some(4) };
    assert_eq!(head_of(Kind::Credit, InboundLimits::CLASSIC), Err(over));
}

#[test]
fn a_stranger_gets_little_room_before_its_generation_is_known() {
    let bytes = 131_073_i32.to_le_bytes();
    let over = FrameError::FirstLengthOver { len: 131_073, limit: 131_072 };
    assert_eq!(Decoder::detecting(InboundLimits::CLASSIC).poll(&mut bytes.as_slice()), Err(over));
}

#[test]
fn c04_trailing_bytes_are_skipped_and_counted_but_not_on_the_first_frame() {
    let mut bytes = frame(Generation::F2, Kind::AckJob, "s", b"abc");
    bytes.extend_from_slice(&[9; 5]);
    bytes[0] += 5;
    let next = frame(Generation::F2, Kind::Credit, "", &[1, 0, 0, 0]);
    bytes.extend_from_slice(&next);
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::CLASSIC);
    assert_eq!(
        steps(&mut decoder, &bytes),
        ["head 3 s", "payload 3", "end 5", "head 4 ", "payload 4", "end 0", "need 4"]
    );
    let mut first = Decoder::detecting(InboundLimits::CLASSIC);
    assert_eq!(
        first.poll(&mut bytes.as_slice()),
        Err(FrameError::NoGeneration { len: 48, code: 3 })
    );
}

#[test]
fn a_frame_is_given_whole_only_when_it_is_there() {
    let bytes = frame(Generation::F2, Kind::Result, "job.result.c.1", b"payload");
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::CLASSIC);
    for end in 0..bytes.len() {
        let mut part = &bytes[..end];
        assert_eq!(decoder.poll_frame(&mut part), Ok(None));
        assert_eq!(part.len(), end, "nothing is consumed while it waits");
    }
    let mut rest = bytes.as_slice();
    let whole = decoder.poll_frame(&mut rest).unwrap().unwrap();
    assert_eq!(
        (whole.head.subject, whole.payload, whole.trailing),
        ("job.result.c.1", &b"payload"[..], 0)
    );
    assert!(rest.is_empty());
}

#[test]
fn a_payload_may_pass_by_the_decoder() {
    let bytes = frame(Generation::F2, Kind::Chunk, "", &[5; 100]);
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::CLASSIC);
    let mut rest = bytes.as_slice();
    assert!(matches!(decoder.poll(&mut rest), Ok(Step::Head(_))));
    assert_eq!(decoder.poll(&mut &rest[..21]), Ok(Step::Payload(&[5; 21])));
    assert_eq!(decoder.payload_left(), 79);
    assert_eq!(decoder.skip_payload(70), 70);
    assert_eq!(decoder.skip_payload(70), 9, "no more than the frame has");
    assert_eq!(decoder.poll(&mut [].as_slice()), Ok(Step::End { trailing: 0 }));
    assert_eq!(decoder.skip_payload(1), 0, "between frames there is no payload");
}

#[test]
fn w08_a_connection_may_end_between_frames_only() {
    let bytes = frame(Generation::F2, Kind::Credit, "", &[1, 0, 0, 0]);
    let decoder = Decoder::speaking(Generation::F2, InboundLimits::CLASSIC);
    assert_eq!(decoder.finish(&[]), Ok(()));
    assert_eq!(decoder.finish(&bytes[..3]), Err(FrameError::Truncated { missing: 1 }));
    assert_eq!(decoder.finish(&bytes[..46]), Err(FrameError::Truncated { missing: 1 }));
    let mut inside = decoder.clone();
    let mut rest = &bytes[..45];
    while !matches!(inside.poll(&mut rest), Ok(Step::NeedMore { .. })) {}
    assert_eq!(inside.finish(&[]), Err(FrameError::Truncated { missing: 2 }));
}

#[test]
fn w11_inner_lengths_beyond_the_body_are_errors_of_their_own() {
    let mut subject = frame(Generation::F2, Kind::Credit, "abc", b"");
    subject[37] = 4;
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::CLASSIC);
    assert_eq!(
        decoder.poll(&mut subject.as_slice()),
        Err(FrameError::SubjectOverrun { len: 4, room: 3 })
    );
    let mut payload = frame(Generation::F2, Kind::Credit, "abc", b"xy");
    payload[45] = 0x80;
    let overrun = FrameError::PayloadOverrun { len: 0x8000_0002, room: 2 };
    assert_eq!(decoder.poll(&mut payload.as_slice()), Err(overrun));
    let mut utf8 = frame(Generation::F2, Kind::Credit, "abc", b"");
    utf8[40] = 0xC3;
    assert_eq!(
        decoder.poll(&mut utf8.as_slice()),
        Err(FrameError::SubjectNotUtf8 { at: 1, len: 3 })
    );
}
