//! What holds for all models and all bytes (SPEC 1C, C01): what is written is read back, the
//! content stream and the ordinary reader agree however a payload is cut, and nothing a peer can
//! send makes either of them panic. `HEFT_TEST_SCALE=long` runs many more cases.

// clippy.toml excuses test functions; their helpers stand outside of them.
#![allow(clippy::expect_used, clippy::panic)]

mod support;

use chunking::{Digest, DigestKind};
use heft::model::limits::{CONTENT_PIECE_BYTES_MAX, RESIDUE_BYTES_MAX};
use heft::model::{
    Announcement, BlobRef, CacheEntry, CachePutRequest, CachePutResult, CacheStatus, ClientConfig,
    ContentEvent, ContentStream, Deliver, InputFile, JobRequest, JobResult, JobStatus, JsonModel,
    ModelError, ResultSlot, Shape, WorkerHello,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use support::property_config;
use uuid::Uuid;

fn letter() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => any::<char>(),
        4 => (0x20_u8..0x7F).prop_map(char::from),
        2 => select("\"\\/<>&'+`\0\n\u{7f}é日😀".chars().collect::<Vec<_>>()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    vec(letter(), 0..24).prop_map(String::from_iter)
}

fn name() -> impl Strategy<Value = String> {
    vec(letter(), 1..24).prop_map(String::from_iter)
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |len| vec(any::<u8>(), len);
    prop_oneof![8 => bytes(0..200), 1 => bytes(0..3), 1 => bytes(60_000..70_000)]
}

fn guid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn blob() -> impl Strategy<Value = BlobRef> {
    let kind = select(vec![DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3]);
    let digest = (kind, any::<[u8; 32]>()).prop_map(|(kind, bytes)| Digest { kind, bytes });
    (guid(), any::<u64>(), option::of(digest)).prop_map(|(id, size, digest)| BlobRef {
        id,
        size,
        digest,
    })
}

fn input_file() -> impl Strategy<Value = InputFile> {
    let texts = (option::of(text()), option::of(text()), option::of(name()));
    (name(), texts, option::of(content()), option::of(blob())).prop_map(
        |(name, (cache_id, url, cache_name), content, blob)| InputFile {
            name,
            cache_id,
            content,
            blob,
            url,
            cache_name,
        },
    )
}

fn job_request() -> impl Strategy<Value = JobRequest> {
    let classic = (guid(), text(), name(), vec(text(), 0..4), vec(input_file(), 0..4));
    let deliver = select(vec![Deliver::One, Deliver::All]);
    let limit = option::of(1..=i64::MAX.unsigned_abs());
    let tag = option::of("\\PC{1,20}");
    let ours = (any::<i64>(), deliver, limit, any::<[bool; 2]>(), tag);
    (classic, ours).prop_map(
        |(
            (job_id, client_id, exec_name, args, files),
            (priority, deliver, time_limit_ms, [require_worker, flatten], tag),
        )| JobRequest {
            job_id,
            client_id,
            exec_name,
            args,
            files,
            priority,
            deliver,
            time_limit_ms,
            require_worker,
            flatten,
            tag,
        },
    )
}

fn job_result() -> impl Strategy<Value = JobResult> {
    let status =
        prop_oneof![select(vec!["OK", "FAILED", "DUPLICATE"]).prop_map(str::to_owned), text()];
    let classic = (guid(), text(), text(), status, text(), text(), option::of(content()));
    let ours = (
        any::<bool>(),
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        option::of(any::<i32>()),
        option::of(any::<i32>()),
        option::of(any::<u64>()),
    );
    let blobs = (option::of(blob()), option::of(blob()), option::of(blob()));
    (classic, ours, blobs).prop_map(|(classic, ours, blobs)| {
        let (dead, attempts, run, exit_code, signal, timed_out_ms) = ours;
        let (archive, stdout_blob, stderr_blob) = blobs;
        let (job_id, client_id, exec_name, status, stdout, stderr, output_archive) = classic;
        let status = JobStatus::from(status);
        let empty = JobResult::new(job_id, client_id, exec_name, status);
        JobResult {
            stdout,
            stderr,
            output_archive,
            dead,
            attempts,
            run,
            exit_code,
            signal,
            timed_out_ms,
            archive,
            stdout_blob,
            stderr_blob,
            ..empty
        }
    })
}

fn announcement() -> impl Strategy<Value = Announcement> {
    (0..=i32::MAX.unsigned_abs(), vec(text(), 0..4), option::of(text()))
        .prop_map(|(version, features, name)| Announcement { version, features, name })
}

fn client_config() -> impl Strategy<Value = ClientConfig> {
    (text(), any::<i32>(), option::of(any::<u32>()), option::of(announcement())).prop_map(
        |(client_id, desired_parallelism, cap, heft)| ClientConfig {
            client_id,
            desired_parallelism,
            cap,
            heft,
        },
    )
}

fn worker_hello() -> impl Strategy<Value = WorkerHello> {
    (
        announcement(),
        vec(text(), 0..4),
        option::of(1..=16_384u32),
        any::<bool>(),
        option::of(text()),
        any::<bool>(),
        option::of(text()),
        option::of(vec("[a-zA-Z.ü]{1,12}", 0..4)),
    )
        .prop_map(
            |(heft, patterns, max_parallel, cache_only, cache_for, raw, instance, programs)| {
                WorkerHello {
                    heft,
                    patterns,
                    max_parallel,
                    cache_only,
                    cache_for,
                    raw,
                    instance,
                    programs,
                }
            },
        )
}

fn cache_put_request() -> impl Strategy<Value = CachePutRequest> {
    let entry = (name(), content(), option::of(any::<[u8; 32]>()))
        .prop_map(|(name, content, sha256)| CacheEntry { name, content, sha256 });
    let part = || option::of(0..=i32::MAX.unsigned_abs());
    (name(), vec(entry, 0..4), text(), part(), part()).prop_map(
        |(cache_id, entries, target_pattern, part_no, part_count)| CachePutRequest {
            cache_id,
            entries,
            target_pattern,
            part_no,
            part_count,
        },
    )
}

fn cache_put_result() -> impl Strategy<Value = CachePutResult> {
    (text(), text(), text(), option::of(text())).prop_map(|(cache_id, status, message, worker)| {
        let status = CacheStatus::from(status);
        CachePutResult { cache_id, status, message, worker }
    })
}

/// Lengths by which a payload is cut; the last one is repeated to its end.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        vec(1..200_usize, 1..8),
        vec(1..6_usize, 1..4),
        Just(vec![1]),
        Just(vec![65_536]),
        Just(vec![usize::MAX])
    ]
}

struct Streamed {
    /// The last content of each slot that counts.
    contents: Vec<Option<Vec<u8>>>,
    json: Vec<u8>,
}

/// Drives the stream as a receiver would, and checks what it promises on the way.
fn stream(shape: Shape, payload: &[u8], cuts: &[usize]) -> Result<Streamed, ModelError> {
    let mut stream = ContentStream::new(shape);
    let mut contents: Vec<Option<Vec<u8>>> = Vec::new();
    let mut open = None;
    let mut sink = |event: ContentEvent<'_>| match event {
        ContentEvent::Begin { slot } => {
            assert_eq!(open.replace(slot), None, "one content at a time");
            contents.resize(contents.len().max(slot + 1), None);
            *contents.get_mut(slot).expect("a slot") = Some(Vec::new());
        }
        ContentEvent::Bytes { slot, bytes } => {
            assert_eq!(open, Some(slot));
            assert!((1..=CONTENT_PIECE_BYTES_MAX).contains(&bytes.len()));
            contents
                .get_mut(slot)
                .and_then(Option::as_mut)
                .expect("a content")
                .extend_from_slice(bytes);
        }
        ContentEvent::End { slot, len } => {
            assert_eq!(open.take(), Some(slot));
            let held = contents.get(slot).and_then(Option::as_ref).map(Vec::len);
            assert_eq!(held, usize::try_from(len).ok());
        }
    };
    let mut rest = payload;
    for &cut in cuts.iter().chain(std::iter::repeat(cuts.last().unwrap_or(&1))) {
        let (piece, later) = rest.split_at_checked(cut).unwrap_or((rest, &[]));
        stream.push(piece, &mut sink)?;
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    let residue = stream.finish()?;
    assert!(residue.json.len() <= RESIDUE_BYTES_MAX.min(payload.len()));
    contents.resize(contents.len().max(residue.lens.len()), None);
    for (slot, content) in contents.iter_mut().enumerate() {
        if residue.len_of(slot).is_none() {
            *content = None;
        }
        let len = content.as_ref().map(|content| u64::try_from(content.len()).expect("a length"));
        assert_eq!(residue.len_of(slot), len, "slot {slot}");
    }
    Ok(Streamed { contents, json: residue.json })
}

/// A model that is read from a residue and the contents that were taken out.
trait Contents: JsonModel + PartialEq + std::fmt::Debug {
    const SHAPE: Shape;

    fn put_back(&mut self, slot: usize, content: Vec<u8>);
}

impl Contents for JobRequest {
    const SHAPE: Shape = Shape::JobRequest;

    fn put_back(&mut self, slot: usize, content: Vec<u8>) {
        let file = self.files.get_mut(slot).expect("a file");
        assert_eq!(file.content.replace(content), Some(vec![]));
    }
}

impl Contents for JobResult {
    const SHAPE: Shape = Shape::JobResult;

    fn put_back(&mut self, slot: usize, content: Vec<u8>) {
        let text = || String::from_utf8_lossy(&content).into_owned();
        let left = match ResultSlot::ALL.get(slot).expect("a slot") {
            ResultSlot::Archive => {
                assert_eq!(self.output_archive.replace(content), Some(vec![]));
                return;
            }
            ResultSlot::Stdout => std::mem::replace(&mut self.stdout, text()),
            ResultSlot::Stderr => std::mem::replace(&mut self.stderr, text()),
        };
        assert_eq!(left, "");
    }
}

impl Contents for CachePutRequest {
    const SHAPE: Shape = Shape::CachePutRequest;

    fn put_back(&mut self, slot: usize, content: Vec<u8>) {
        let entry = self.entries.get_mut(slot).expect("an entry");
        assert_eq!(std::mem::replace(&mut entry.content, content), Vec::<u8>::new());
    }
}

fn parse_streamed<M: Contents>(payload: &[u8], cuts: &[usize]) -> Result<M, ModelError> {
    let streamed = stream(M::SHAPE, payload, cuts)?;
    let mut model = M::parse(&streamed.json)?;
    for (slot, content) in streamed.contents.into_iter().enumerate() {
        if let Some(content) = content {
            model.put_back(slot, content);
        }
    }
    Ok(model)
}

/// The stream may be stricter in one thing only: it has decoded a content before it learns that a
/// repetition of the member makes it void. And it is less strict with what a program printed:
/// halves of surrogate pairs, control characters and bytes that are not UTF-8 are no reason to lose
/// a result.
fn agree<M: Contents>(payload: &[u8], cuts: &[usize]) {
    let plain = M::parse(payload);
    let streamed = parse_streamed::<M>(payload, cuts);
    match (&plain, &streamed) {
        (Ok(_), Ok(_)) => assert_eq!(plain, streamed),
        (Ok(_), Err(ModelError::BadBase64 { .. })) | (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("only the stream refuses: {error}"),
        (Err(_), Ok(_)) if M::SHAPE == Shape::JobResult && has_odd_text(payload) => {}
        (Err(error), Ok(_)) => panic!("only the reader refuses: {error}"),
    }
}

/// Whether there is something in a payload that no text may hold.
fn has_odd_text(payload: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(payload) else { return true };
    let lower = text.to_ascii_lowercase();
    let is_half = |half: char| lower.contains(&format!("\\ud{half}"));
    payload.iter().any(|byte| *byte < b' ')
        || ['8', '9', 'a', 'b', 'c', 'd', 'e', 'f'].into_iter().any(is_half)
}

fn agree_all(payload: &[u8], cuts: &[usize]) {
    agree::<JobRequest>(payload, cuts);
    agree::<JobResult>(payload, cuts);
    agree::<CachePutRequest>(payload, cuts);
}

fn round_trip<M: JsonModel + PartialEq + std::fmt::Debug>(model: &M) -> Value {
    let json = model.to_json();
    assert!(json.iter().all(|byte| matches!(byte, b' '..=b'~')), "pure ASCII");
    assert_eq!(M::parse(&json).as_ref(), Ok(model));
    serde_json::from_slice(&json).expect("serde_json reads it too")
}

/// JSON that looks like a message, more or less: the names that matter in all places, repeated,
/// escaped, with white space, and values that fit or do not.
fn message() -> impl Strategy<Value = String> {
    let names = vec![
        "Files",
        "F\\u0069les",
        "Entries",
        "Content",
        "Cont\\u0065nt",
        "OutputArchive",
        "Name",
        "CacheId",
        "ExecName",
        "TargetPattern",
        "Args",
        "JobId",
        "content",
        "ContentX",
        "x\\\"y",
        "é",
    ];
    let space = || select(vec!["", "", "", " ", "\n", "\t \r"]);
    let leaf = prop_oneof![
        8 => select(vec![
            "\"\"", "\"QQ==\"", "\"QUJD\"", "\"\\u0051Q=\\u003d\"", "\"++\\/\\/\"", "null", "\"e\"", "0", "-1",
            "true",
            "\"00112233-4455-6677-8899-aabbccddeeff\"",
        ]).prop_map(str::to_owned),
        1 => select(vec![
            "\"QQ\"", "\"a\\\"b\"", "1.5e3", "\"\\ud83d\"", "\"日本\"", "\"]}\\\\\"", "tru", "01",
        ]).prop_map(str::to_owned),
        1 => content().prop_map(|bytes| {
            let file = CacheEntry { name: String::new(), content: bytes, sha256: None };
            let value: Value = serde_json::from_slice(&file.to_json()).expect("our own JSON");
            value.get("Content").expect("content").to_string()
        }),
    ];
    let value = leaf.prop_recursive(4, 48, 6, move |inner| {
        let member = (space(), select(names.clone()), space(), space(), inner.clone(), space())
            .prop_map(|(a, name, b, c, value, d)| format!("{a}\"{name}\"{b}:{c}{value}{d}"));
        let item = (space(), inner, space()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
        prop_oneof![
            vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(","))),
            vec(item, 0..6).prop_map(|items| format!("[{}]", items.join(","))),
        ]
    });
    // Half of the texts are a whole message around the odd parts, so that they are often read to
    // the end.
    (value.clone(), value, any::<bool>()).prop_map(|(odd, file, whole)| {
        let inner =
            file.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
        let inner = if inner.trim().is_empty() { r#""z":[]"# } else { inner };
        let entries = format!(r#""Entries":[{{{inner},"Name":"a","Content":"QUJD"}}]"#);
        let files = format!(r#""Files":[{{"Name":"a","Content":"QUJD"}},{{{inner},"Name":"b"}}]"#);
        let rest = r#""ExecName":"e","CacheId":"d","OutputArchive":"QQ==""#;
        if whole { format!(r#"{{"x":{odd},{entries},{files},{rest}}}"#) } else { odd }
    })
}

proptest! {
    #![proptest_config(property_config(300, 10_000))]

    #[test]
    fn a_job_request_is_read_back_as_written(model in job_request()) {
        let value = round_trip(&model);
        prop_assert_eq!(&value["JobId"], &json!(model.job_id.hyphenated().to_string()));
        prop_assert_eq!(&value["ClientId"], &json!(model.client_id));
        prop_assert_eq!(&value["ExecName"], &json!(model.exec_name));
        prop_assert_eq!(&value["Args"], &json!(model.args));
        let files = value["Files"].as_array().expect("files");
        prop_assert_eq!(files.len(), model.files.len());
        for (file, written) in model.files.iter().zip(files) {
            prop_assert_eq!(&written["Name"], &json!(file.name));
            prop_assert_eq!(&written["CacheId"], &json!(file.cache_id));
            prop_assert_eq!(written["Content"].is_null(), file.content.is_none());
        }
        prop_assert_eq!(value.get("Priority").is_some(), model.priority != 0);
    }

    #[test]
    fn a_job_result_is_read_back_as_written(model in job_result()) {
        let value = round_trip(&model);
        prop_assert_eq!(&value["Status"], &json!(model.status.as_str()));
        prop_assert_eq!(&value["Stdout"], &json!(model.stdout));
        prop_assert_eq!(&value["Stderr"], &json!(model.stderr));
        prop_assert_eq!(value["OutputArchive"].is_null(), model.output_archive.is_none());
        prop_assert_eq!(value.get("ExitCode").cloned(), model.exit_code.map(Value::from));
        prop_assert_eq!(value.get("Signal").cloned(), model.signal.map(Value::from));
        prop_assert_eq!(value.get("TimedOutMs").cloned(), model.timed_out_ms.map(Value::from));
    }

    #[test]
    fn a_hello_is_read_back_as_written(client in client_config(), worker in worker_hello()) {
        let value = round_trip(&client);
        prop_assert_eq!(&value["ClientId"], &json!(client.client_id));
        prop_assert_eq!(&value["DesiredParallelism"], &json!(client.desired_parallelism));
        prop_assert!(client.cap_for(&client.client_id) >= 1);
        let value = round_trip(&worker);
        prop_assert_eq!(&value["Patterns"], &json!(worker.patterns));
        prop_assert_eq!(&value["Heft"]["Features"], &json!(worker.heft.features));
    }

    #[test]
    fn a_put_and_its_acknowledgement_are_read_back_as_written(
        put in cache_put_request(),
        ack in cache_put_result(),
    ) {
        let value = round_trip(&put);
        prop_assert_eq!(&value["TargetPattern"], &json!(put.target_pattern));
        let value = round_trip(&ack);
        prop_assert_eq!(&value["Message"], &json!(ack.message));
    }

    #[test]
    fn a_streamed_model_equals_the_plain_one_however_it_is_cut(
        request in job_request(),
        result in job_result(),
        put in cache_put_request(),
        cuts in cuts(),
    ) {
        prop_assert_eq!(parse_streamed::<JobRequest>(&request.to_json(), &cuts), Ok(request));
        prop_assert_eq!(parse_streamed::<JobResult>(&result.to_json(), &cuts), Ok(result));
        prop_assert_eq!(parse_streamed::<CachePutRequest>(&put.to_json(), &cuts), Ok(put));
    }

    #[test]
    fn stream_and_reader_agree_on_any_json(message in message(), cuts in cuts()) {
        agree_all(message.as_bytes(), &cuts);
    }

    #[test]
    fn stream_and_reader_agree_on_damaged_json(
        message in message(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..4),
        cuts in cuts(),
    ) {
        let mut payload = message.into_bytes();
        for (at, byte, how) in damage {
            let at = at.index(payload.len().max(1));
            match (how, payload.get_mut(at)) {
                (0, _) => payload.truncate(at),
                (1, Some(place)) => *place = byte,
                (2, Some(place)) => *place = b"{}[]\",:\\ \n=-"[usize::from(byte % 12)],
                (_, Some(_)) => drop(payload.remove(at)),
                (_, None) => {}
            }
        }
        agree_all(&payload, &cuts);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(payload in vec(any::<u8>(), 0..300), cuts in cuts()) {
        agree_all(&payload, &cuts);
        let object = payload.trim_ascii_start().starts_with(b"{");
        prop_assert!(object || InputFile::parse(&payload).is_err());
        prop_assert!(object || ClientConfig::parse(&payload).is_err());
        prop_assert!(object || WorkerHello::parse(&payload).is_err());
        prop_assert!(object || CacheEntry::parse(&payload).is_err());
        prop_assert!(object || CachePutResult::parse(&payload).is_err());
    }
}
