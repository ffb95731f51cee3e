//! Keeps the documents true: what the code knows, `docs/protocol.md` and `docs/storage.md` name,
//! the rows that sources, tests and documents refer to are in `docs/spec.md`, and links lead
//! somewhere. What the examples of README and guide do is in `tests/doc_examples.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use chunking::Kind;
use chunking::message::{Features, LimitId, Reason};
use heft::core::Record;
use heft::core::dataset::Dataset;
use heft::core::event::{Inputs, Submission, WorkerClass};
use heft::core::ids::{
    Attempt, CacheId, JobId, Level, Micros, Node, ResultId, Run, Term, WorkerId,
};
use heft::core::members::{Member, Members, Role};
use heft::core::payload::FileNames;
use heft::core::record::AttemptEnd;
use heft::core::subject::routing_key;
use heft::store::codec::put_entry;
use heft::store::format;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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
            let section =
                text.lines().any(|line| line.starts_with("### ") && line.contains(kind.name()));
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
    let text = |path: PathBuf| match path.is_dir() {
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
            let is_there = sources.contains(&format!("const {name}: "))
                || sources.contains(&format!("pub {name}: "));
            assert!(is_there, "{name} of {entry}");
        }
    }
    assert!(names > 60, "{names} names in the lists");
}

#[test]
fn the_storage_document_has_every_marker_and_every_record() {
    let text = document("docs/storage.md");
    for kind in [
        format::Kind::Log,
        format::Kind::Snapshot,
        format::Kind::Metadata,
        format::Kind::Map,
        format::Kind::Tail,
    ] {
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
        tag: None,
        datasets: Vec::new(),
    };
    let cache = || CacheId::parse("a").unwrap();
    let dataset = Dataset {
        cache: cache(),
        version: Uuid::nil(),
        digest: [0; 32],
        bytes: 0,
        files: 0,
        target: "none".into(),
        packs: Vec::new(),
        at,
    };
    let first = Member::new(Node(0), Uuid::nil(), Role::Voter, "a:1");
    let members = Members::new(Uuid::nil(), vec![first]).unwrap();
    let assign = |at, class| Record::Assign { at, job, run, attempt, worker, class };
    let requeue =
        |at| Record::Requeue { at, job, run, attempt, why, counts: true, not_before: Micros(1) };
    let records = [
        ("announce", Record::Announce { at, job: submission() }),
        ("enqueue", Record::Enqueue { at, job: submission(), children: Vec::new(), kept: true }),
        ("assign", assign(None, WorkerClass::Leasing)),
        ("ack", Record::Ack { at, job, run, worker, result: ResultId(1), ok: true }),
        ("requeue", requeue(None)),
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
        ("dataset_gone", Record::DatasetGone { cache: cache(), version: Uuid::nil() }),
        ("assign", assign(None, WorkerClass::Classic)),
        ("assign", assign(Some(at), WorkerClass::Leasing)),
        ("requeue", requeue(Some(at))),
        ("term", Record::Term { term: Term(1) }),
        ("members", Record::Members { members: members.into() }),
        ("level", Record::Level { level: Level(1) }),
        ("mark", Record::Mark { id: Uuid::nil() }),
        ("office", Record::Office { leader: Node(0), at }),
        ("drop_inputs", Record::DropInputs { job, run }),
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
        assert!(error.what.contains("is not a known record"), "{other} has no row: {error}");
    }
}

/// The letters of a row's id such as `W05`, which has two digits behind them.
fn prefix_of(id: &str) -> Option<&str> {
    let (prefix, digits) = id.split_at_checked(id.len().checked_sub(2)?)?;
    let is_prefix = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_uppercase());
    (is_prefix && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(prefix)
}

/// The id of the row of `docs/spec.md` that a line begins: `| W05 | ...` in a table, `**W05** ...`
/// as a paragraph.
fn row_of(line: &str) -> Option<&str> {
    let id = match line.strip_prefix("| ") {
        Some(cells) => cells.split(" |").next()?,
        None => line.strip_prefix("**")?.split_once("** ")?.0,
    };
    prefix_of(id).map(|_| id)
}

/// The rows that a text names: `W05`, `C05-C07`, and `fn c07_c30_...`, as tests are named after
/// rows.
fn named_in(text: &str, prefixes: &BTreeSet<&str>) -> BTreeSet<String> {
    let known_prefix = |id: &str| prefix_of(id).is_some_and(|prefix| prefixes.contains(prefix));
    let mut named = BTreeSet::new();
    let mut before: &[u8] = b"";
    let is_between = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'-');
    for bytes in text.as_bytes().split(is_between) {
        let is_named = before == b"fn";
        before = bytes;
        // There are millions of words, and few have digits.
        if !bytes.iter().any(u8::is_ascii_digit) {
            continue;
        }
        let word = str::from_utf8(bytes).unwrap();
        let ids: Vec<&str> = word.split('-').filter(|id| known_prefix(id)).collect();
        named.extend(ids.iter().map(|id| (*id).to_owned()));
        if let [first, last] = ids.as_slice()
            && let Some(prefix) = prefix_of(first).filter(|prefix| prefix_of(last) == Some(*prefix))
        {
            let number = |id: &str| id.strip_prefix(prefix).unwrap().parse::<u32>().unwrap();
            named.extend(
                (number(first)..=number(last)).map(|number| format!("{prefix}{number:02}")),
            );
        }
        if is_named {
            named.extend(
                word.split('_').map(str::to_ascii_uppercase).take_while(|id| known_prefix(id)),
            );
        }
    }
    named
}

/// Texts beneath a directory that may name rows.
fn texts_beneath(directory: &Path, texts: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_text = path
            .extension()
            .is_some_and(|end| ["rs", "md", "py", "json"].iter().any(|of| end == *of));
        match path.is_dir() {
            true if path.ends_with("target") => {}
            true => texts_beneath(&path, texts),
            false if is_text => texts.push(path),
            false => {}
        }
    }
}

#[test]
fn every_row_that_is_named_anywhere_is_in_the_specification() {
    let spec = document("docs/spec.md");
    let rows: BTreeSet<&str> = spec.lines().filter_map(row_of).collect();
    assert!(rows.len() > 200, "{} rows", rows.len());
    let prefixes: BTreeSet<&str> = rows.iter().filter_map(|id| prefix_of(id)).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    for directory in ["src", "chunking", "tests", "tools", "bench", "fuzz", "docs"] {
        texts_beneath(&root.join(directory), &mut texts);
    }
    let mut missing: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in texts {
        for id in named_in(&std::fs::read_to_string(&path).unwrap(), &prefixes) {
            if !rows.contains(id.as_str()) {
                missing.insert(id, path.clone());
            }
        }
    }
    assert!(missing.is_empty(), "docs/spec.md lacks rows that are named: {missing:#?}");
}

#[test]
fn no_row_of_the_specification_is_there_twice() {
    let spec = document("docs/spec.md");
    let mut seen = BTreeSet::new();
    let twice: Vec<&str> = spec.lines().filter_map(row_of).filter(|id| !seen.insert(*id)).collect();
    assert!(twice.is_empty(), "rows that docs/spec.md has twice: {twice:?}");
}

#[test]
fn rows_are_found_by_their_ids_in_ranges_and_in_the_names_of_tests() {
    let prefixes = BTreeSet::from(["C", "CP"]);
    let named = |text: &str| named_in(text, &prefixes).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(named("(C08, CP02), AC03, C1, C123, X05, c08_names, C08x"), "C08 CP02");
    assert_eq!(named("the rows C05-C07 and CP01-CP03"), "C05 C06 C07 CP01 CP02 CP03");
    assert_eq!(named("async fn c07_cp04_of_two_c09() {}"), "C07 CP04");
    assert_eq!(
        ["| W05 | x |", "**CP04** x", "| row | x |", "**Note** x", "C08"].map(row_of),
        [Some("W05"), Some("CP04"), None, None, None]
    );
}

/// The lines of a text in Markdown that are not in fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// The anchors of the headings of a text, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = Vec::new();
    for file in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        texts.push(root.join(file));
    }
    texts_beneath(&root.join("docs"), &mut texts);
    texts_beneath(&root.join("tests/classic"), &mut texts);
    texts.retain(|path| path.extension().is_some_and(|end| end == "md"));
    let (mut links, mut broken) = (0, Vec::new());
    for path in texts {
        let text = std::fs::read_to_string(&path).unwrap();
        let prose: Vec<&str> = prose(&text).collect();
        for target in prose.join("\n").split("](").skip(1) {
            let target = target.split(')').next().unwrap();
            if target.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let there = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let is_there = there.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(&there).unwrap()).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
    assert!(links > 200, "{links} links");
}
