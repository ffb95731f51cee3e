//! The models against `vectors/models.json`: the exact texts .NET writes, what is read although
//! .NET would write it otherwise, and what is refused, with the error's variant and place. Rows of
//! SPEC are named in the vectors.

// clippy.toml excuses test functions; their helpers stand outside of them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use heft::model::{
    Announcement, BlobRef, CacheEntry, CachePutRequest, CachePutResult, CacheStatus, ClientConfig,
    Deliver, InputFile, JobRequest, JobResult, JobStatus, JsonModel, ModelError, Source,
    WorkerHello,
};
use serde_json::Value;
use support::unhex;

fn cases<'v>(vectors: &'v Value, kind: &str) -> &'v [Value] {
    vectors[kind].as_array().expect(kind)
}

fn text(fields: &Value, member: &str) -> String {
    opt_text(fields, member).unwrap_or_else(|| panic!("{member} in {fields}"))
}

fn opt_text(fields: &Value, member: &str) -> Option<String> {
    fields
        .get(member)
        .filter(|value| !value.is_null())
        .map(|value| value.as_str().expect(member).to_owned())
}

fn texts(fields: &Value, member: &str) -> Vec<String> {
    fields[member]
        .as_array()
        .expect(member)
        .iter()
        .map(|item| item.as_str().expect(member).to_owned())
        .collect()
}

fn models<M>(fields: &Value, member: &str, model: fn(&Value) -> M) -> Vec<M> {
    fields[member].as_array().expect(member).iter().map(model).collect()
}

fn opt_bytes(fields: &Value, member: &str) -> Option<Vec<u8>> {
    opt_text(fields, member).map(|hex| unhex(&hex))
}

fn number<T: TryFrom<i128>>(fields: &Value, member: &str) -> Option<T> {
    let value = fields.get(member)?;
    let number = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from)).expect(member);
    Some(T::try_from(number).ok().expect(member))
}

fn guid(fields: &Value, member: &str) -> uuid::Uuid {
    text(fields, member).parse().expect(member)
}

fn blob(fields: &Value) -> BlobRef {
    BlobRef {
        id: guid(fields, "Id"),
        size: number(fields, "Size").expect("Size"),
        digest: opt_text(fields, "Digest").map(|digest| digest.parse().expect("Digest")),
    }
}

fn input_file(fields: &Value) -> InputFile {
    InputFile {
        name: text(fields, "Name"),
        cache_id: opt_text(fields, "CacheId"),
        content: opt_bytes(fields, "Content"),
        blob: fields.get("Blob").map(blob),
        url: opt_text(fields, "Url"),
        cache_name: opt_text(fields, "CacheName"),
    }
}

fn job_request(fields: &Value) -> JobRequest {
    JobRequest {
        job_id: guid(fields, "JobId"),
        client_id: text(fields, "ClientId"),
        exec_name: text(fields, "ExecName"),
        args: texts(fields, "Args"),
        files: models(fields, "Files", input_file),
        priority: number(fields, "Priority").unwrap_or(0),
        deliver: if fields.get("Deliver").is_some() { Deliver::All } else { Deliver::One },
        time_limit_ms: number(fields, "TimeLimitMs"),
        require_worker: fields.get("RequireWorker").is_some(),
        flatten: fields.get("Flatten").is_some(),
        tag: opt_text(fields, "Tag"),
    }
}

fn job_result(fields: &Value) -> JobResult {
    JobResult {
        job_id: guid(fields, "JobId"),
        client_id: text(fields, "ClientId"),
        exec_name: text(fields, "ExecName"),
        status: match text(fields, "Status").as_str() {
            "OK" => JobStatus::Ok,
            "FAILED" => JobStatus::Failed,
            "DUPLICATE" => JobStatus::Duplicate,
            "CANCELLED" => JobStatus::Cancelled,
            other => JobStatus::Other(other.to_owned()),
        },
        stdout: text(fields, "Stdout"),
        stderr: text(fields, "Stderr"),
        output_archive: opt_bytes(fields, "OutputArchive"),
        dead: fields.get("Dead").is_some(),
        attempts: number(fields, "Attempts"),
        run: number(fields, "Run"),
        exit_code: number(fields, "ExitCode"),
        signal: number(fields, "Signal"),
        timed_out_ms: number(fields, "TimedOutMs"),
        archive: fields.get("Archive").map(blob),
        no_room: fields.get("NoRoom").and_then(Value::as_bool).unwrap_or_default(),
        no_directory: fields.get("NoDirectory").and_then(Value::as_bool).unwrap_or_default(),
        no_program: fields.get("NoProgram").and_then(Value::as_bool).unwrap_or_default(),
        archive_lost: number(fields, "ArchiveLost"),
        stdout_blob: fields.get("StdoutBlob").map(blob),
        stderr_blob: fields.get("StderrBlob").map(blob),
        lost: Vec::new(),
    }
}

fn announcement(fields: &Value) -> Announcement {
    Announcement {
        version: number(fields, "Version").expect("Version"),
        features: texts(fields, "Features"),
        name: opt_text(fields, "Name"),
    }
}

fn client_config(fields: &Value) -> ClientConfig {
    ClientConfig {
        client_id: text(fields, "ClientId"),
        desired_parallelism: number(fields, "DesiredParallelism").expect("DesiredParallelism"),
        cap: number(fields, "Cap"),
        heft: fields.get("Heft").map(announcement),
    }
}

fn worker_hello(fields: &Value) -> WorkerHello {
    WorkerHello {
        heft: announcement(&fields["Heft"]),
        patterns: texts(fields, "Patterns"),
        max_parallel: number(fields, "MaxParallel"),
        cache_only: fields.get("CacheOnly").is_some_and(|flag| flag == &Value::Bool(true)),
        cache_for: fields.get("CacheFor").and_then(Value::as_str).map(str::to_owned),
        raw: fields.get("Raw").is_some_and(|flag| flag == &Value::Bool(true)),
        instance: fields.get("Instance").and_then(Value::as_str).map(str::to_owned),
        programs: fields.get("Programs").map(|_| texts(fields, "Programs")),
    }
}

fn cache_entry(fields: &Value) -> CacheEntry {
    CacheEntry {
        name: text(fields, "Name"),
        content: opt_bytes(fields, "Content").expect("Content"),
        sha256: opt_bytes(fields, "Sha256").map(|sha256| sha256.try_into().expect("Sha256")),
    }
}

fn cache_put_request(fields: &Value) -> CachePutRequest {
    CachePutRequest {
        cache_id: text(fields, "CacheId"),
        entries: models(fields, "Entries", cache_entry),
        target_pattern: text(fields, "TargetPattern"),
        part_no: number(fields, "PartNo"),
        part_count: number(fields, "PartCount"),
    }
}

fn cache_put_result(fields: &Value) -> CachePutResult {
    CachePutResult {
        cache_id: text(fields, "CacheId"),
        status: match text(fields, "Status").as_str() {
            "OK" => CacheStatus::Ok,
            "SKIPPED" => CacheStatus::Skipped,
            "FAILED" => CacheStatus::Failed,
            other => CacheStatus::Other(other.to_owned()),
        },
        message: text(fields, "Message"),
        worker: opt_text(fields, "Worker"),
    }
}

/// Calls a generic check with the case's model.
macro_rules! with_model {
    ($case:expr, $check:ident) => {
        match text($case, "model").as_str() {
            "InputFile" => $check($case, input_file),
            "JobRequest" => $check($case, job_request),
            "JobResult" => $check($case, job_result),
            "ClientConfig" => $check($case, client_config),
            "WorkerHello" => $check($case, worker_hello),
            "CacheEntry" => $check($case, cache_entry),
            "CachePutRequest" => $check($case, cache_put_request),
            "CachePutResult" => $check($case, cache_put_result),
            other => panic!("no model {other}"),
        }
    };
}

fn check_read<M: JsonModel + PartialEq + std::fmt::Debug>(case: &Value, model: fn(&Value) -> M) {
    let read = M::parse(text(case, "json").as_bytes());
    assert_eq!(read, Ok(model(&case["fields"])), "{case}");
}

fn check_write<M: JsonModel + PartialEq + std::fmt::Debug>(case: &Value, model: fn(&Value) -> M) {
    let written = String::from_utf8(model(&case["fields"]).to_json()).unwrap();
    assert_eq!(written, text(case, "json"), "{case}");
    check_read(case, model);
}

fn check_refuse<M: JsonModel + PartialEq + std::fmt::Debug>(case: &Value, _: fn(&Value) -> M) {
    let payload =
        opt_text(case, "json").map_or_else(|| unhex(&text(case, "hex")), String::into_bytes);
    let error = M::parse(&payload).expect_err(&text(case, "name"));
    assert_eq!(variant(&error), text(case, "error"), "{case}: {error}");
    let shown = error.to_string();
    assert!(shown.starts_with(&text(case, "place")), "{case}: {shown}");
    // What, where and the next step in one line that an operator can read.
    assert!(
        shown.contains(": ") && shown.chars().count() < 320 && !shown.contains('\n'),
        "{shown}"
    );
}

fn variant(error: &ModelError) -> String {
    let debug = format!("{error:?}");
    debug.chars().take_while(|c| c.is_ascii_alphanumeric()).collect()
}

#[test]
fn every_model_is_written_as_dotnet_writes_it_and_read_back_the_same() {
    let vectors = support::vectors("models.json");
    for case in cases(&vectors, "write") {
        with_model!(case, check_write);
    }
}

#[test]
fn other_spellings_of_the_same_model_are_read_as_dotnet_reads_them() {
    let vectors = support::vectors("models.json");
    for case in cases(&vectors, "read") {
        with_model!(case, check_read);
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_its_variant_and_place() {
    let vectors = support::vectors("models.json");
    for case in cases(&vectors, "refuse") {
        with_model!(case, check_refuse);
    }
}

#[test]
fn a_cap_counts_only_for_the_client_that_the_subject_names() {
    let vectors = support::vectors("models.json");
    for case in cases(&vectors, "cap") {
        let cap = ClientConfig::cap_of_hello(text(case, "json").as_bytes(), &text(case, "subject"));
        assert_eq!(Some(cap), number(case, "cap"), "{case}");
    }
}

#[test]
fn a_file_comes_from_its_content_then_dataset_then_blob_then_url() {
    let vectors = support::vectors("models.json");
    for case in cases(&vectors, "source") {
        let file = InputFile::parse(text(case, "json").as_bytes()).unwrap();
        let source = match file.source() {
            Source::Inline(content) => format!("inline {}", content.len()),
            Source::Streamed { bytes } => format!("streamed {bytes}"),
            Source::Cache(id) => format!("cache {id}"),
            Source::Blob(blob) => format!("blob {}", blob.size),
            Source::Url(url) => format!("url {url}"),
            Source::Nothing => "nothing".to_owned(),
        };
        assert_eq!(source, text(case, "source"), "{case}");
    }
}

#[test]
fn a_streamed_content_wins_like_an_inline_one() {
    let residue = br#"{"Name":"n","CacheId":"d","Content":""}"#;
    let file = InputFile::parse(residue).unwrap();
    assert_eq!(file.source_streamed(Some(7)), Source::Streamed { bytes: 7 });
    assert_eq!(file.source_streamed(Some(0)), Source::Cache("d"));
    assert_eq!(file.source_streamed(None), Source::Cache("d"));
    assert_eq!(InputFile::inline("n", *b"").source_streamed(Some(0)), Source::Inline(&[]));
}

#[test]
fn a_put_is_acknowledged_in_the_founding_documents_words() {
    let vectors = support::vectors("models.json");
    for case in cases(&vectors, "stored") {
        let (added, skipped) = (number(case, "added").unwrap(), number(case, "skipped").unwrap());
        let json = CachePutResult::stored("d", added, skipped).to_json();
        assert_eq!(String::from_utf8(json).unwrap(), text(case, "json"));
    }
    let failed = CachePutResult::failed("d", "disk full").to_json();
    assert_eq!(failed, br#"{"CacheId":"d","Status":"FAILED","Message":"disk full"}"#);
}

#[test]
fn a_fault_is_placed_by_line_column_and_byte() {
    let error = JobRequest::parse(b"{\n \"ExecName\": x}").unwrap_err();
    let ModelError::NotJson { line, column, offset, .. } = error else { panic!("{error}") };
    assert_eq!((line, column, offset), (2, 14, 15));

    let error = JobRequest::parse(b"{\n\"ExecName\":\"\xC3\x28\"}").unwrap_err();
    let ModelError::NotJson { line, column, offset, .. } = error else { panic!("{error}") };
    assert_eq!((line, column, offset), (2, 13, 14));

    let error = InputFile::parse(br#"{"Name":"n","Content":"QUJD-A=="}"#).unwrap_err();
    let ModelError::BadBase64 { offset, .. } = error else { panic!("{error}") };
    assert_eq!(offset, 4);
}

#[test]
fn an_error_quotes_no_more_than_a_few_characters() {
    let long = format!(r#"{{"ExecName":"e","JobId":"{}"}}"#, "日".repeat(10_000));
    let error = JobRequest::parse(long.as_bytes()).unwrap_err();
    assert!(error.to_string().chars().count() < 256, "{error}");
}

#[test]
fn a_list_over_its_limit_is_refused_with_the_count() {
    let args = vec!["\"\""; 65_537].join(",");
    let error =
        JobRequest::parse(format!(r#"{{"ExecName":"e","Args":[{args}]}}"#).as_bytes()).unwrap_err();
    let ModelError::OverLimit { value, limit, .. } = error else { panic!("{error}") };
    assert_eq!((value, limit), (65_537, 65_536));
}

#[test]
fn the_vectors_name_every_row_they_are_there_for() {
    let vectors = support::vectors("models.json");
    let mut named = BTreeSet::new();
    let mut cases = 0;
    for case in vectors.as_object().unwrap().values().flat_map(|kind| kind.as_array().unwrap()) {
        cases += 1;
        named.extend(texts(case, "rows"));
    }
    let rows = "M01 M02 M03 M04 M05 M06 M07 M11 M12 M13 M14 M15 M18 M19 CP01 CP02 CP03 CA05 CA08 CA12 C01 C19 \
                C28 C32 T10";
    for row in rows.split(' ') {
        assert!(named.contains(row), "no vector names {row}");
    }
    assert!(cases >= 40);
}
