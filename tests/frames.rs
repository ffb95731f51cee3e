//! Holds the wire format against `vectors/frames.json`, which a second implementation wrote.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use chunking::frame::Trailers;
use chunking::message::parse_credit;
use chunking::{
    ChunkHead, ChunkPlan, Codec, Decoder, FrameError, Generation, Head, InboundLimits, Inflater,
    Kind, Message, Step,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::{unhex, vectors};
use uuid::Uuid;

/// One vector, with the bytes that follow as zeros kept as a number.
struct Vector {
    value: Value,
    bytes: Vec<u8>,
    zeros: usize,
}

impl Vector {
    fn all() -> Vec<Vector> {
        let file = vectors("frames.json");
        let all: Vec<Vector> = file["vectors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| Vector {
                bytes: unhex(value["hex"].as_str().unwrap()),
                zeros: usize::try_from(value["then_zeros"].as_u64().unwrap_or(0)).unwrap(),
                value: value.clone(),
            })
            .collect();
        assert!(all.len() >= 60, "at least 60 vectors, found {}", all.len());
        all
    }

    fn name(&self) -> &str {
        self.value["name"].as_str().unwrap()
    }

    fn expect(&self, member: &str) -> &Value {
        &self.value["expect"][member]
    }

    fn limits(&self) -> InboundLimits {
        match self.value["limits"].as_str() {
            Some("classic") => InboundLimits::CLASSIC,
            Some("announced") => InboundLimits::ANNOUNCED,
            other => panic!("{}: limits {other:?}", self.name()),
        }
    }

    fn decoder(&self) -> Decoder {
        let mut decoder = match self.value["speaks"].as_str() {
            Some("first") => Decoder::detecting(self.limits()),
            Some(generation) => Decoder::speaking(named(generation), self.limits()),
            None => panic!("{}: speaks nothing", self.name()),
        };
        decoder.set_trailers(match self.value["trailers"].as_str() {
            None => Trailers::Skipped,
            Some("offered") => Trailers::Offered,
            Some("announced") => Trailers::Announced,
            Some("required") => Trailers::Required,
            Some(other) => panic!("{}: trailers {other:?}", self.name()),
        });
        decoder
    }

    /// Whether the frame ends with a checksum.
    fn is_summed(&self) -> bool {
        self.value["trailers"].is_string() && self.expect("frame")["trailing"] == 4
    }

    /// What the decoder makes of the bytes when they come in pieces of at most `piece` bytes.
    fn read(&self, piece: usize) -> Result<Read, FrameError> {
        let mut decoder = self.decoder();
        let mut buffer = Vec::new();
        let mut read = Read::default();
        let mut zeros_left = self.zeros;
        let mut arriving = self.bytes.chunks(piece);
        loop {
            let mut input = buffer.as_slice();
            let mut arrived: &[u8] = &[];
            match decoder.poll(&mut input)? {
                Step::Head(head) => {
                    read.head = json!({
                        "code": head.code, "msg_id": head.msg_id, "corr_id": head.corr_id,
                        "subject": head.subject, "payload_len": head.payload_len,
                    });
                    read.code = head.code;
                }
                Step::Payload(bytes) => read.payload.extend_from_slice(bytes),
                Step::End { trailing } => {
                    read.head["trailing"] = trailing.into();
                    read.head["generation"] = json!(decoder.generation().unwrap());
                    assert!(input.is_empty(), "{}: bytes behind the frame", self.name());
                    return Ok(read);
                }
                Step::NeedMore { bytes } => {
                    assert!(bytes > input.len(), "{}: asks for what it has", self.name());
                    if let Some(more) = arriving.next() {
                        arrived = more;
                    } else if zeros_left > 0 {
                        let skipped = decoder.skip_payload(u32::try_from(zeros_left).unwrap());
                        assert_eq!(skipped as usize, zeros_left, "{}", self.name());
                        zeros_left = 0;
                    } else {
                        decoder.finish(input)?;
                        panic!(
                            "{}: the bytes ran out and the decoder does not say so",
                            self.name()
                        );
                    }
                }
            }
            let consumed = buffer.len() - input.len();
            buffer.drain(..consumed);
            buffer.extend_from_slice(arrived);
        }
    }

    fn plan(&self) -> ChunkPlan {
        let plan = &self.value["plan"];
        let chunk_bytes = u32::try_from(plan["chunk_bytes"].as_u64().unwrap()).unwrap();
        ChunkPlan::new(plan["size"].as_u64().unwrap(), chunk_bytes).unwrap()
    }

    /// An error has the expected name, and its text says what a reader needs.
    fn check_error(&self, layer: &str, error: &impl std::error::Error) {
        let debug = format!("{error:?}");
        let name = debug.split([' ', '(', '{']).next().unwrap();
        assert_eq!(self.expect(&format!("{layer}_error")), name, "{}: {error}", self.name());
        for said in self.expect("says").as_array().unwrap() {
            let said = said.as_str().unwrap();
            assert!(
                error.to_string().contains(said),
                "{}: \"{error}\" does not say {said}",
                self.name()
            );
        }
    }

    fn expects_error(&self, layer: &str) -> bool {
        self.expect(&format!("{layer}_error")).is_string()
    }
}

#[derive(Default)]
struct Read {
    head: Value,
    code: u8,
    payload: Vec<u8>,
}

fn named(generation: &str) -> Generation {
    match generation {
        "F0" => Generation::F0,
        "F1" => Generation::F1,
        "F2" => Generation::F2,
        other => panic!("no generation {other}"),
    }
}

fn read_chunk(
    plan: ChunkPlan,
    payload: &[u8],
) -> Result<(u32, Codec, Vec<u8>), chunking::ChunkError> {
    let (head, sent) = ChunkHead::decode(payload)?;
    let index = plan.check(&head, u32::try_from(sent.len()).unwrap())?;
    let mut scratch = Vec::new();
    let raw = head.raw(sent, &mut Inflater::new(), &mut scratch)?;
    Ok((index, head.codec, raw.to_vec()))
}

#[test]
fn every_vector_is_read_as_it_says_however_it_is_cut() {
    for vector in Vector::all() {
        // Byte by byte costs a buffer copy each; large vectors are cut into fewer pieces.
        let small = if vector.bytes.len() > 2000 { 977 } else { 1 };
        for piece in [usize::MAX, small, 7 + small, 64] {
            match vector.read(piece) {
                Ok(read) => {
                    assert!(
                        !vector.expects_error("frame"),
                        "{}: read {:?}",
                        vector.name(),
                        read.head
                    );
                    if let Some(expected) = vector.expect("frame").as_object() {
                        for (member, value) in
                            expected.iter().filter(|(m, _)| *m != "kind" && *m != "payload_hex")
                        {
                            assert_eq!(&read.head[member], value, "{}: {member}", vector.name());
                        }
                        let payload = unhex(expected["payload_hex"].as_str().unwrap());
                        assert!(read.payload == payload, "{}: payload", vector.name());
                    }
                }
                Err(error) => vector.check_error("frame", &error),
            }
        }
    }
}

#[test]
fn every_vector_means_what_it_says() {
    for vector in
        Vector::all().iter().filter(|vector| !vector.expects_error("frame") && vector.zeros == 0)
    {
        let read = vector.read(usize::MAX).unwrap();
        let kind = match Kind::try_from(read.code) {
            Ok(kind) => kind,
            Err(error) => {
                vector.check_error("kind", &error);
                continue;
            }
        };
        if vector.expect("frame").is_object() {
            assert_eq!(vector.expect("frame")["kind"], kind.name(), "{}", vector.name());
        }
        if kind == Kind::Credit && vector.value["speaks"] == "F2" {
            match parse_credit(&read.payload) {
                Ok(_) => assert!(!vector.expects_error("message"), "{}", vector.name()),
                Err(error) => vector.check_error("message", &error),
            }
        } else if kind == Kind::Chunk {
            match read_chunk(vector.plan(), &read.payload) {
                Ok((index, codec, raw)) => {
                    let expected = vector.expect("chunk");
                    assert_eq!(
                        (&expected["index"], &expected["codec"]),
                        (&json!(index), &json!(codec))
                    );
                    assert!(
                        raw == unhex(expected["raw_hex"].as_str().unwrap()),
                        "{}",
                        vector.name()
                    );
                }
                Err(error) => vector.check_error("chunk", &error),
            }
        } else if kind.code() >= 30
            || vector.expect("message").is_object()
            || vector.expects_error("message")
        {
            // Of codes 21 to 27 the vectors have the JSON of the founding documents, too.
            match Message::decode(kind, &read.payload) {
                Ok(message) => {
                    assert_eq!(&json!(message), vector.expect("message"), "{}", vector.name())
                }
                Err(error) => vector.check_error("message", &error),
            }
        }
    }
}

#[test]
fn every_sound_vector_is_written_to_the_same_bytes() {
    let sound = |vector: &&Vector| {
        let frame = vector.expect("frame");
        frame.is_object() && (frame["trailing"] == 0 || vector.is_summed())
    };
    for vector in Vector::all().iter().filter(sound) {
        let expected = vector.expect("frame");
        let id = |member: &str| expected[member].as_str().unwrap().parse::<Uuid>().unwrap();
        let head = Head {
            code: u8::try_from(expected["code"].as_u64().unwrap()).unwrap(),
            msg_id: id("msg_id"),
            corr_id: id("corr_id"),
            subject: expected["subject"].as_str().unwrap(),
            payload_len: u32::try_from(expected["payload_len"].as_u64().unwrap()).unwrap(),
        };
        let payload = unhex(expected["payload_hex"].as_str().unwrap());
        let (mut written, mut trailer) = (Vec::new(), Vec::new());
        let generation = named(expected["generation"].as_str().unwrap());
        let fits = if vector.is_summed() {
            let summed = head.append_summed(generation, crc32fast::hash(&payload), &mut written);
            summed.map(|made| trailer.extend_from_slice(&made))
        } else {
            head.append(generation, &mut written)
        };
        if head.payload_len > chunking::limits::FRAME_BODY_BYTES_MAX {
            assert!(fits.is_err(), "{}: what a classic peer may send, we do not", vector.name());
            continue;
        }
        fits.unwrap();
        written.extend_from_slice(&payload);
        written.extend_from_slice(&trailer);
        assert!(written == vector.bytes, "{}: the frame", vector.name());

        let newer = payload.first().is_some_and(|version| *version > chunking::message::VERSION);
        if vector.expect("message").is_object() && !newer {
            let message = Message::decode(head.kind().unwrap(), &payload).unwrap();
            let mut again = Vec::new();
            message.encode(&mut again);
            assert!(again == payload, "{}: the message", vector.name());
        }
        if vector.expect("chunk").is_object() {
            let (chunk, sent) = ChunkHead::decode(&payload).unwrap();
            let front = chunk.frame_head(head.msg_id, u32::try_from(sent.len()).unwrap()).unwrap();
            assert!([&front[..], sent].concat() == vector.bytes, "{}: the chunk", vector.name());
        }
    }
}

#[test]
fn the_vectors_show_every_kind_every_generation_and_every_error() {
    let all = Vector::all();
    let seen = |pick: &dyn Fn(&Vector) -> Option<String>| {
        all.iter().filter_map(pick).collect::<BTreeSet<_>>()
    };

    let kinds = seen(&|vector| vector.expect("frame")["kind"].as_str().map(str::to_owned));
    let known: BTreeSet<String> = Kind::ALL.iter().map(|kind| kind.name().to_owned()).collect();
    assert_eq!(kinds, known);

    let generations =
        seen(&|vector| vector.expect("frame")["generation"].as_str().map(str::to_owned));
    assert_eq!(generations.len(), 3);

    let errors = seen(&|vector| {
        let layers = ["frame", "kind", "message", "chunk"];
        let found = layers.iter().find(|layer| vector.expects_error(layer))?;
        Some(format!("{found} {}", vector.expect(&format!("{found}_error")).as_str().unwrap()))
    });
    for error in [
        "frame LengthZero",
        "frame LengthNegative",
        "frame LengthOver",
        "frame FirstLengthOver",
        "frame LengthUnder",
        "frame NoGeneration",
        "frame SubjectOverrun",
        "frame PayloadOverrun",
        "frame SubjectNotUtf8",
        "frame Truncated",
        "frame TrailerLength",
        "frame Damaged",
        "kind UnknownKind",
        "message Short",
        "message Version",
        "message Value",
        "message Over",
        "message NotUtf8",
        "chunk Short",
        "chunk Codec",
        "chunk OffsetBetween",
        "chunk OffsetPastEnd",
        "chunk RawLen",
        "chunk SentLen",
        "chunk CrcSent",
        "chunk CrcRaw",
        "chunk Inflate",
    ] {
        assert!(errors.contains(error), "no vector for {error}");
    }
}

#[test]
fn t10_a_welcome_names_the_hello_that_it_answers_by_the_checksum_that_one_would_have() {
    let all = Vector::all();
    let named = |name: &str| all.iter().find(|vector| vector.name() == name).unwrap();
    let hello = named("hello of a worker that announces itself");
    let read = hello.read(usize::MAX).unwrap();
    let msg_id: Uuid = read.head["msg_id"].as_str().unwrap().parse().unwrap();
    let subject = read.head["subject"].as_str().unwrap();
    let payload_len = u32::try_from(read.payload.len()).unwrap();
    let head = Head { msg_id, subject, payload_len, ..Head::new(Kind::HelloWorker) };
    let crc = head.checksum(Generation::F2, crc32fast::hash(&read.payload)).unwrap();
    assert_eq!(crc, crc32fast::hash(&hello.bytes[4..]), "all of its body");
    let welcome = named("a welcome that says which hello came");
    assert_eq!(welcome.expect("message")["Welcome"]["limits"], json!([[14, crc]]));
}
