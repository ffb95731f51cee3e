//! Rooms depend one way: what a file names must stand above its own room, or in it, in the table of
//! `docs/architecture.md`. There are no exceptions.
//!
//! The sources are read as tokens, so that a path counts wherever it stands: in a `use`, an
//! expression, a re-export, a macro or a test. Text in strings and comments does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Inside a room: the first must not name the second.
const INSIDE: [(&str, &str); 5] = [
    ("worker::cache", "worker::exec"),
    ("leader::datasets", "conn"),
    ("leader::datasets", "leader::relay"),
    ("leader::payloads", "leader::relay"),
    ("leader::relay", "leader::datasets"),
];

/// The machines that the leader routes between. Each is changed by its own events alone, so none
/// may name the leader, the broker, or a file that connects machines.
const MACHINES: [&str; 10] = [
    "leader::commit_log",
    "leader::datasets",
    "leader::follows",
    "leader::large_frames",
    "leader::pacing",
    "leader::payloads",
    "leader::questions",
    "leader::relay",
    "leader::staging",
    "leader::unread",
];
const NOT_FOR_MACHINES: [&str; 15] = [
    "core::Broker",
    "core::broker",
    "leader::Leader",
    "leader::acks",
    "leader::ask",
    "leader::classic_wiring",
    "leader::datasets_wiring",
    "leader::deliver",
    "leader::following",
    "leader::hello",
    "leader::peers",
    "leader::recover",
    "leader::retention",
    "leader::submit",
    "leader::transfers",
];

/// Crates and modules that only these rooms may name.
const ONLY_IN: [(&str, &[&str]); 1] = [("clap", &["cli", "main"])];

/// The rooms that are free of I/O, clocks, threads and random numbers.
const PURE: [&str; 5] = ["model", "core", "consensus", "conn", "leader"];
const IMPURE: [&str; 8] = [
    "tokio",
    "socket2",
    "std::fs",
    "std::net::TcpStream",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "rustix",
];

/// A path as a source file names it, from the root of the crate it is in.
#[derive(Debug)]
struct Named {
    path: Vec<String>,
    line: usize,
    in_tests: bool,
}

/// Collects the paths in tokens of a module.
struct Reader<'a> {
    module: Vec<String>,
    in_tests: bool,
    found: &'a mut Vec<Named>,
}

impl Reader<'_> {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        let mut test_next = false;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(word) if word == "mod" => {
                    if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
                        (tokens.get(at + 1), tokens.get(at + 2))
                    {
                        let mut module = self.module.clone();
                        module.push(name.to_string());
                        let in_tests = self.in_tests || test_next;
                        Reader { module, in_tests, found: self.found }.read(body.stream());
                        at += 3;
                        test_next = false;
                        continue;
                    }
                    at += 1;
                }
                TokenTree::Ident(_) if !follows_colons(&tokens, at) => {
                    at = self.path(&tokens, at, Vec::new());
                }
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Bracket
                        && group.to_string().contains("cfg (test)")
                    {
                        test_next = true;
                    }
                    self.read(group.stream());
                    at += 1;
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
            }
        }
    }

    /// Reads a path that begins here, and the trees in braces behind it. Says where it ends.
    fn path(&mut self, tokens: &[TokenTree], mut at: usize, mut path: Vec<String>) -> usize {
        let line = tokens.get(at).map_or(0, |token| token.span().start().line);
        loop {
            match tokens.get(at) {
                Some(TokenTree::Ident(word)) => path.push(word.to_string()),
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    let mut start = 0;
                    while start < inner.len() {
                        let end = (start..inner.len())
                            .find(|&at| is_punct(&inner, at, ','))
                            .unwrap_or(inner.len());
                        self.path(&inner[start..end], 0, path.clone());
                        start = end + 1;
                    }
                    return at + 1;
                }
                Some(TokenTree::Group(_) | TokenTree::Punct(_) | TokenTree::Literal(_)) | None => {
                    break;
                }
            }
            at += 1;
            if is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':') {
                at += 2;
            } else {
                break;
            }
        }
        if path.len() > 1 {
            self.found.push(Named { path: self.resolved(path), line, in_tests: self.in_tests });
        }
        at
    }

    /// The path with `super` and `self` replaced.
    fn resolved(&self, path: Vec<String>) -> Vec<String> {
        let mut base = None;
        let mut rest = Vec::new();
        for segment in path {
            match segment.as_str() {
                "crate" | "heft" if rest.is_empty() && base.is_none() => base = Some(Vec::new()),
                "self" if rest.is_empty() && base.is_none() => base = Some(self.module.clone()),
                "super" if rest.is_empty() => {
                    base.get_or_insert_with(|| self.module.clone()).pop();
                }
                _ => rest.push(segment),
            }
        }
        match base {
            Some(base) => [vec!["crate".to_owned()], base, rest].concat(),
            None => rest,
        }
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, sign: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn follows_colons(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && is_punct(tokens, at - 1, ':') && is_punct(tokens, at - 2, ':')
}

/// The rooms from the top of the table to its bottom.
fn rooms() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, table) = text.split_once("## The rooms").expect("the section of the rooms");
    let cells = table
        .lines()
        .skip_while(|line| !line.starts_with("| "))
        .take_while(|line| line.starts_with('|'));
    let first = cells.filter_map(|row| row.split('|').nth(1));
    let names = first.flat_map(|cell| cell.split('`').filter_map(|word| word.strip_prefix("src/")));
    names.map(|name| name.trim_end_matches('/').trim_end_matches(".rs").to_owned()).collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The module that a file is, such as `worker::cache` for `worker/cache/mod.rs`.
fn module_of(file: &Path) -> Vec<String> {
    let mut module: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// What a source names against the rules, a line each.
fn violations(rooms: &[String], module: &[String], source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let tokens: TokenStream = source.parse().expect("Rust");
    let is_tests = module.last().is_some_and(|last| last == "tests" || last.ends_with("_tests"));
    Reader { module: module.to_vec(), in_tests: is_tests, found: &mut found }.read(tokens);
    let place = |room: &str| rooms.iter().position(|known| known == room);
    let mut wrong = Vec::new();
    let Some(own) = module.first() else { return wrong };
    let here = place(own)
        .unwrap_or_else(|| panic!("src/{own} is not in the table of docs/architecture.md"));
    for Named { path, line, in_tests } in found {
        let text = path.join("::");
        let starts = |prefix: &str| text == prefix || text.starts_with(&format!("{prefix}::"));
        if let [first, room, ..] = &path[..]
            && first == "crate"
        {
            match place(room) {
                Some(there) if there > here => {
                    wrong.push(format!("{line}: {own} stands above {room}: {text}"))
                }
                None if room != own && room.starts_with(char::is_lowercase) => {
                    wrong.push(format!("{line}: {room} is not in the table: {text}"));
                }
                Some(_) | None => {}
            }
            let is_in =
                |upper: &str| format!("{}::", module.join("::")).starts_with(&format!("{upper}::"));
            let machines =
                MACHINES.iter().flat_map(|upper| NOT_FOR_MACHINES.map(|lower| (*upper, lower)));
            for (upper, lower) in INSIDE.into_iter().chain(machines) {
                if is_in(upper) && starts(&format!("crate::{lower}")) {
                    wrong.push(format!("{line}: {upper} stands above {lower}: {text}"));
                }
            }
        }
        for (name, only) in ONLY_IN {
            if starts(name) && !only.contains(&own.as_str()) {
                wrong.push(format!("{line}: {name} is for {only:?} alone: {text}"));
            }
        }
        if PURE.contains(&own.as_str()) && !in_tests && IMPURE.iter().any(|name| starts(name)) {
            wrong.push(format!("{line}: {own} is free of I/O and clocks: {text}"));
        }
    }
    wrong
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn no_room_names_one_that_stands_below_it() {
    let (rooms, src) = (rooms(), root().join("src"));
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 250, "{} files are not the whole tree", files.len());
    let mut report = String::new();
    for file in files {
        let file = file.strip_prefix(&src).unwrap();
        let source = std::fs::read_to_string(src.join(file)).unwrap();
        for wrong in violations(&rooms, &module_of(file), &source) {
            writeln!(report, "src/{}:{wrong}", file.display()).unwrap();
        }
    }
    assert!(report.is_empty(), "paths that point the wrong way:\n{report}");
}

#[test]
fn the_engine_of_consensus_is_named_in_one_place_alone() {
    let src = root().join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let names = ["::raft::{", "::raft::eraftpb", "raft_proto", "protobuf::", "slog::"];
    let (mut inside, mut outside) = (0, Vec::new());
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        // `crate::consensus::raft` is ours.
        let source = source.replace("consensus::raft", "");
        if names.iter().any(|name| source.contains(name)) {
            match file.starts_with(src.join("consensus/raft")) {
                true => inside += 1,
                false => outside.push(file),
            }
        }
    }
    assert!(inside > 0, "the names are those that are used");
    assert!(outside.is_empty(), "these name the engine: {outside:?}");
}

#[test]
fn every_row_of_the_table_is_a_room() {
    let (rooms, src) = (rooms(), root().join("src"));
    for room in &rooms {
        let there = src.join(room).is_dir() || src.join(format!("{room}.rs")).is_file();
        assert!(there, "src/{room} is in the table and not in the tree");
    }
    let is_file = |name: &&str| !name.ends_with("::Leader") && !name.ends_with("::Broker");
    let inside = INSIDE.into_iter().flat_map(|(upper, lower)| [upper, lower]);
    let files = NOT_FOR_MACHINES.into_iter().filter(is_file);
    for module in inside.chain(MACHINES).chain(files) {
        let path = src.join(module.replace("::", "/"));
        assert!(path.is_dir() || path.with_extension("rs").is_file(), "{module} is gone");
    }
}

#[test]
fn a_forbidden_path_is_found_however_it_is_written() {
    let rooms = rooms();
    let count = |module: &str, source: &str| {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        violations(&rooms, &module, source).len()
    };
    for forbidden in [
        "use crate::cli::submit;",
        "pub use crate::cli;",
        "use crate::{model::JobRequest, worker::{self, exec}};",
        "fn f() -> crate::cli::Exit { todo!() }",
        "fn f() { let exit = crate::cli::exit(); }",
        "fn f() { println!(\"{}\", crate::cli::EXIT) }",
        "use super::super::cli::Exit;",
        "fn f() { super::super::cli::exit() }",
        "mod inner { use super::super::super::cli::Exit; }",
        "mod inner { use crate::client; fn f() {} }",
        "#[cfg(test)] mod tests { use crate::cli::Exit; }",
        "pub(in crate::cli) fn f() {}",
        "use clap::Parser;",
        "#[derive(clap::ValueEnum)] enum E {}",
        "use std::{fs, io};",
        "use std::time::{Duration, Instant};",
        "fn f() { std::thread::sleep(d) }",
        "use tokio::time;",
        "use crate::nowhere::X;",
    ] {
        assert!(count("core::queue", forbidden) > 0, "{forbidden}");
    }
    for allowed in [
        "use crate::model::JobRequest; use crate::core::job::Job;",
        "use super::super::model::JobRequest;",
        "// crate::cli::Exit\n/// [`crate::cli`]\nfn f() -> &'static str { \"crate::cli::Exit\" }",
        "use std::time::Duration; use std::{collections::HashMap, io};",
        "pub(crate) fn f() {} pub(in crate::core) fn g() {}",
        "#[cfg(test)] mod tests { use std::fs; }",
    ] {
        assert_eq!(count("core::queue", allowed), 0, "{allowed}");
    }
    assert_eq!(count("worker::cache::disk", "use crate::worker::exec::inputs;"), 1);
    assert_eq!(count("leader::relay::flow", "use crate::leader::Leader;"), 1);
    assert_eq!(count("leader::staging", "use super::peers::Peers; use super::Leader;"), 2);
    assert_eq!(count("leader::tasks", "use super::peers::Peers; use super::Leader;"), 0);
    assert_eq!(count("worker::exec::inputs", "use crate::worker::cache::disk;"), 0);
    assert_eq!(count("cli::leader", "use clap::Args; use crate::leader::Leader; use std::fs;"), 0);
}
