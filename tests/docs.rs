//! Keeps the documents true: what the code knows, `docs/protocol.md` and `docs/storage.md` name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use chunking::Kind;
use chunking::message::{Features, LimitId, Reason};
use heft::core::Record;
use heft::core::dataset::Dataset;
use heft::core::event::{Inputs, Submission, WorkerClass};
use heft::core::ids::{Attempt, CacheId, JobId, Micros, ResultId, Run, WorkerId};
use heft::core::payload::FileNames;
use heft::core::record::AttemptEnd;
use heft::core::subject::routing_key;
use heft::store::codec::put_entry;
use heft::store::format;
use std::path::Path;
use uuid::Uuid;

fn document(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn the_protocol_document_has_every_type_feature_reason_and_limit() {
    let text = document("docs/protocol.md");
    for kind in Kind::ALL {
        let row = format!("| {} | {} |", kind.code(), kind.name());
        assert!(text.contains(&row), "no row {row:?}");
        if kind.code() >= 30 {
            let heading = format!("### {} {}\n", kind.code(), kind.name());
            assert!(text.contains(&heading), "no heading {heading:?}");
        } else {
            let section = text.lines().any(|line| line.starts_with("### ") && line.contains(kind.name()));
            assert!(section, "no section for {kind}");
        }
    }
    for (feature, name) in Features::KNOWN {
        let row = format!("| {} | `{name}` |", feature.0.trailing_zeros());
        assert!(text.contains(&row), "no row {row:?}");
    }
    for (reason, name) in Reason::KNOWN {
        let cell = format!("| {} {name} |", reason.0);
        assert!(text.contains(&cell), "no cell {cell:?}");
    }
    for (id, name) in LimitId::KNOWN {
        let cell = format!("| {} | {name} ", id.0);
        assert!(text.contains(&cell), "no cell {cell:?}");
    }
}

#[test]
fn the_readme_names_the_test_command_that_ci_runs() {
    let command = "scripts/test";
    assert!(document("README.md").contains(command) && document(".ci/run").contains(command));
}

/// All sources beneath a directory, as one text.
fn sources(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: std::path::PathBuf| match path.is_dir() {
        true => sources(&path),
        false => std::fs::read_to_string(path).unwrap(),
    };
    entries.map(text).collect()
}

#[test]
fn the_limits_of_the_leaders_memory_are_there_under_their_names() {
    let text = document("docs/reference.md");
    let section = text.split("### What the leader keeps in memory").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(&root.join("src")) + &sources(&root.join("chunking/src"));
    let entries = section.split("\n- ").skip(1).map(|entry| entry.split("\n\n").next().unwrap());
    let mut names = 0;
    for entry in entries {
        let last = entry.rsplit("\n  - ").next().unwrap();
        let Some(constants) = last.strip_prefix("in the sources: ") else { continue };
        for name in constants.split('`').skip(1).step_by(2) {
            names += 1;
            let is_there =
                sources.contains(&format!("const {name}: ")) || sources.contains(&format!("pub {name}: "));
            assert!(is_there, "{name} of {entry}");
        }
    }
    assert!(names > 60, "{names} names in the lists");
}

#[test]
fn the_storage_document_has_every_marker_and_every_record() {
    let text = document("docs/storage.md");
    for kind in [format::Kind::Log, format::Kind::Snapshot, format::Kind::Metadata, format::Kind::Map] {
        let [a, b, c, d] = kind.marker();
        let marker = format!("{} `{a:02X} {b:02X} {c:02X} {d:02X}`", kind.name());
        assert!(text.contains(&marker), "no marker {marker:?}");
    }
    assert!(text.contains(&format!("version of the format, i32: {}.", format::VERSION)));
    let (at, job, run, attempt) = (Micros(1), JobId(Uuid::nil()), Run(1), Attempt(1));
    let (worker, why) = (WorkerId(Uuid::nil()), AttemptEnd::TimedOut);
    let submission = || Submission {
        job,
        client: "a".into(),
        key: routing_key("a", None).unwrap(),
        exec: "a".into(),
        priority: 0,
        to_all: false,
        size: 0,
        fingerprint: [0; 32],
        inputs: Inputs::Here,
        needs_transfers: false,
        require_worker: false,
        names: FileNames::Plain,
        datasets: Vec::new(),
    };
    let cache = || CacheId::parse("a").unwrap();
    let dataset = Dataset {
        cache: cache(),
        generation: Uuid::nil(),
        digest: [0; 32],
        bytes: 0,
        files: 0,
        target: "none".into(),
        packs: Vec::new(),
        at,
    };
    let records = [
        ("announce", Record::Announce { at, job: submission() }),
        ("enqueue", Record::Enqueue { at, job: submission(), children: Vec::new(), kept: true }),
        ("assign", Record::Assign { job, run, attempt, worker, class: WorkerClass::Leasing }),
        ("ack", Record::Ack { at, job, run, worker, result: ResultId(1), ok: true }),
        ("requeue", Record::Requeue { job, run, attempt, why, counts: true, not_before: at }),
        ("dlq", Record::Dlq { at, job, run, attempt, why }),
        ("cancel", Record::Cancel { at, job, run, by: "a".into() }),
        ("withdraw", Record::Withdraw { job, run }),
        ("fail", Record::Fail { at, job, run, why: "a".into() }),
        ("orphan", Record::Orphan { at, job, run }),
        ("revive", Record::Revive { job, run }),
        ("forget", Record::Forget { job, run }),
        ("delivered", Record::Delivered { job, run }),
        ("cap", Record::Cap { client: "a".into(), cap: 1 }),
        ("dataset", Record::Dataset { dataset: dataset.clone().into() }),
        ("stage", Record::Stage { job, dataset: dataset.into() }),
        ("dataset_gone", Record::DatasetGone { cache: cache(), generation: Uuid::nil() }),
        ("assign", Record::Assign { job, run, attempt, worker, class: WorkerClass::Classic }),
    ];
    let number = |record: &Record| {
        let mut bytes = Vec::new();
        put_entry(record, None, &mut bytes);
        bytes[0]
    };
    for (name, record) in &records {
        let row = format!("| {} | `{name}` |", number(record));
        assert!(text.contains(&row), "no row {row:?}");
    }
    // Every other number is unknown, so a new kind of record is missed here.
    let known: Vec<u8> = records.iter().map(|(_, record)| number(record)).collect();
    for other in (0..=u8::MAX).filter(|number| !known.contains(number)) {
        let mut unknown = vec![0; 200];
        unknown[0] = other;
        let mut names = heft::store::codec::Names::default();
        let error = heft::store::codec::get_entry(&unknown, &mut names).unwrap_err();
        assert!(error.what.contains("is no record"), "{other} has no row: {error}");
    }
}
