//! Runs the commands of the fenced blocks in README, guide and quickstarts, from their text: in the
//! order in which they stand there, with real processes, in one directory for each document.
//!
//! What a document cannot say by itself is in [`NOTES`]: commands that are not run, exit codes other
//! than 0, and what has to be so before a command. A block that is neither commands (`sh`) nor Rust
//! that `cargo test --doc` compiles fails the test, and so does a note on a command that is gone.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use procs::{Proc, TempDir, eventually, root, write_program};
use serde_json::Value;

const README: &str = "README.md";
const GUIDE: &str = "docs/guide.md";
const JAPANESE: &str = "docs/ja/quickstart.md";
const RUSSIAN: &str = "docs/ru/quickstart.md";
/// They have the same tour.
const TOURS: &[&str] = &[README, JAPANESE, RUSSIAN];
const ALL: &[&str] = &[README, GUIDE, JAPANESE, RUSSIAN];

/// What is said about a command, without its comment.
struct Note {
    documents: &'static [&'static str],
    command: &'static str,
    what: What,
}

enum What {
    /// It is not run, and why.
    NotRun(&'static str),
    /// It ends with this exit code, and why.
    Ends(i32, &'static str),
    /// It runs with these flags too, and why.
    With(&'static str, &'static str),
    /// This is done before.
    After(fn(&mut Scene)),
}

const fn note(documents: &'static [&'static str], command: &'static str, what: What) -> Note {
    Note { documents, command, what }
}

const NOTES: &[Note] = &[
    note(ALL, "cargo install --path .", What::NotRun("builds everything and writes to ~/.cargo")),
    note(TOURS, "cargo run --release -- demo", What::NotRun("takes long; see tests/pairing.rs")),
    note(TOURS, "scripts/test", What::NotRun("runs this test")),
    note(&[GUIDE], "heft demo", What::NotRun("takes long; tests/pairing.rs runs it with less")),
    note(&[GUIDE], "heft demo --keep", What::NotRun("runs until Ctrl-C; see tests/pairing.rs")),
    note(
        TOURS,
        "heft submit totals --file big.bin",
        What::Ends(1, "its program calls a command that is not there, as the text says"),
    ),
    note(
        &[GUIDE],
        "heft leader 0",
        What::With("--attempts 1 --worker-grace 200ms", "a job has to get into the DLQ soon"),
    ),
    note(&[GUIDE], "heft explain <jobId>", What::After(Scene::a_queued_job)),
    note(&[GUIDE], "heft job retry last", What::After(Scene::a_failed_job)),
    note(&[GUIDE], "heft job retry --tag nightly", What::After(Scene::a_failed_job)),
    note(
        &[GUIDE],
        "heft job retry --failed && heft job wait --all",
        What::After(Scene::a_failed_job),
    ),
    note(&[GUIDE], "heft dlq ls", What::After(Scene::a_dead_job)),
];

/// A fenced block of a document.
struct Block<'a> {
    /// Number of its first line.
    line: usize,
    language: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        let indent = line.len() - line.trim_start().len();
        open = match (open, fence) {
            (None, None) => None,
            (None, Some(language)) => {
                Some((indent, Block { line: number + 2, language, lines: Vec::new() }))
            }
            (Some((_, block)), Some("")) => {
                blocks.push(block);
                None
            }
            (Some((indent, mut block)), _) => {
                block.lines.push(line.get(indent..).unwrap_or_default());
                Some((indent, block))
            }
        };
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// The commands of a block with the numbers of their lines. One goes over several lines by a
/// backslash or as a here-document.
fn commands(block: &Block) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut lines = block.lines.iter().zip(block.line..);
    while let Some((line, number)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut command = (*line).to_owned();
        while let Some(begin) = command.strip_suffix('\\') {
            command = format!("{begin} {}", lines.next().expect("a next line").0.trim_start());
        }
        if let Some((_, end)) = line.split_once("<<'") {
            let end = end.strip_suffix('\'').expect("the here-document ends the line");
            for (line, _) in lines.by_ref() {
                command = format!("{command}\n{line}");
                if *line == end {
                    break;
                }
            }
        }
        commands.push((number, command));
    }
    commands
}

/// A command as notes have it.
fn without_comment(command: &str) -> &str {
    command.split("  #").next().unwrap().trim_end()
}

/// The directory, the processes and the jobs of a document.
struct Scene {
    dir: TempDir,
    port: u16,
    /// Workers end before their leader.
    workers: Vec<Proc>,
    leader: Option<Proc>,
    /// The newest job, which stands for the ids in the text.
    job: Option<String>,
    /// What commands such as `job=$(...)` have set.
    variables: BTreeMap<String, String>,
}

impl Scene {
    fn new() -> Scene {
        Scene {
            dir: TempDir::new(),
            port: 0,
            workers: Vec::new(),
            leader: None,
            job: None,
            variables: BTreeMap::new(),
        }
    }

    /// A program in the directory, as a user starts it who has set nothing and has the `heft` of
    /// this build.
    fn start(&self, program: &str) -> Command {
        let binaries = Path::new(env!("CARGO_BIN_EXE_heft")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(program);
        for name in ["HEFT_CONTEXT", "HEFT_OUTPUT", "HEFT_DATA", "HEFT_DURABILITY", "HEFT_LOG"] {
            command.env_remove(name);
        }
        command.current_dir(&self.dir.0);
        command.env("PATH", format!("{}:{path}", binaries.display()));
        command.env("XDG_CONFIG_HOME", self.dir.join("config"));
        command.env("XDG_STATE_HOME", self.dir.join("state"));
        command.env("HEFT_LEADER", format!("127.0.0.1:{}", self.port)).envs(&self.variables);
        command
    }

    /// What has to end.
    fn shell(&self, script: &str) -> Command {
        let mut command = self.start("timeout");
        command.args(["120", "bash", "-c", script]).stdin(Stdio::null());
        command
    }

    /// What runs until its handle is dropped. Variables may stand before the program.
    fn serve(&self, name: &str, command: &str) -> Proc {
        let mut bash = self.start("bash");
        bash.args(["-c", &format!("exec env {command}")]);
        Proc::start(name, bash.env("HEFT_LOG", "warn").env("WORKER_CPU_CAP", "0.95"))
    }

    /// What a command of the test prints that ends well.
    fn done(&self, command: &str) -> String {
        let Output { status, stdout, stderr } = self.shell(command).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{command}: {status}\n{out}{err}");
        out.trim().to_owned()
    }

    fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.done(&format!("{command} --output json"))).unwrap()
    }

    fn workers_there(&self) -> usize {
        let workers = self.json("heft workers ls");
        let workers = workers["workers"].as_array().unwrap();
        workers.iter().filter(|worker| worker["connected"] == true).count()
    }

    fn program(&self, directory: &str, name: &str, script: &str) {
        std::fs::create_dir_all(self.dir.join(directory)).unwrap();
        write_program(&self.dir.join(directory).join(name), script);
    }

    fn state(&self, job: &str) -> String {
        self.json(&format!("heft job show {job}"))["state"].as_str().unwrap().to_owned()
    }

    /// The command as it is said here: on this leader's port, with directories of this test and the
    /// newest job.
    fn translated(&self, command: &str) -> String {
        let port = self.port.to_string();
        let job = self.job.as_deref().unwrap_or("no-job-yet");
        let place = |path: &str| format!("{}/{path}", self.dir.text());
        let mut command = command.to_owned();
        for host in ["leader.example", "127.0.0.1"] {
            for between in [":", " "] {
                let here = format!("127.0.0.1{between}{port}");
                command = command.replace(&format!("{host}{between}5000"), &here);
            }
        }
        for (here, there) in [
            ("<jobId>", job),
            ("00112233-4455-6677-8899-aabbccddeeff", job),
            ("/var/lib/heft", &place("var-lib-heft")),
            ("/opt/grid/cache", &place("opt-grid-cache")),
        ] {
            command = command.replace(here, there);
        }
        command
    }

    /// A leader takes the place of the one before: the text shows the one or the other.
    fn lead(&mut self, command: &str) {
        self.workers.clear();
        self.leader = None;
        let command = command.replacen("leader 5000", "leader 0", 1);
        let mut leader = self.serve("leader", &command);
        self.port = leader.wait_for("its address", |line| {
            line.contains("listening on")
                .then(|| line.split(&[':', ' ']).find_map(|word| word.parse().ok()))?
        });
        self.leader = Some(leader);
    }

    /// A worker that names no directories gets its own.
    fn work(&mut self, command: &str) {
        let before = self.workers_there();
        let number = self.workers.len();
        let mut command = command.to_owned();
        for (flag, directory) in [
            ("--exe-dir", "./programs".to_owned()),
            ("--work-dir", format!("./work-{number}")),
            ("--cache-dir", format!("./cache-{number}")),
        ] {
            if !command.contains(flag) {
                command = format!("{command} {flag} {directory}");
            }
        }
        let worker = self.serve("worker", &command);
        self.workers.push(worker);
        eventually(&format!("a worker: {command}"), || self.workers_there() > before);
    }

    /// Runs a command of a document to its end, or starts it if it serves.
    fn run(&mut self, place: &str, command: &str, expected: i32) {
        let command = self.translated(command);
        let is_setting = |word: &&str| {
            let name = word.split_once('=').map(|(name, _)| name);
            name.is_some_and(|name| {
                name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
            })
        };
        let mut words = command.split_whitespace().skip_while(is_setting);
        match (words.next(), words.next()) {
            (Some("heft"), Some("leader")) => return self.lead(&command),
            (Some("heft"), Some("worker")) => return self.work(&command),
            _ => {}
        }
        let variable = command.split_once("=$(").map(|(name, _)| name.to_owned());
        let script = match &variable {
            Some(name) => format!("{command} && printf %s \"${name}\""),
            None => command.clone(),
        };
        let Output { status, stdout, stderr } = self.shell(&script).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        let code = status.code();
        assert_eq!(code, Some(expected), "{place}: {command}\n{out}{err}");
        let id = err.lines().find_map(|line| line.strip_prefix("job ").map(str::to_owned));
        if let Some(name) = variable {
            self.variables.insert(name, out.trim().to_owned());
            self.job = Some(out.trim().to_owned());
        } else if id.is_some() {
            self.job = id;
        }
    }

    fn a_queued_job(&mut self) {
        self.job = Some(self.done("heft submit wordcount --file book.txt --detach -- --top 3"));
    }

    /// The last job has failed, because its program was wrong, which it is not any more.
    fn a_failed_job(&mut self) {
        // Whether those before ended well is not asked here.
        drop(self.shell("heft job wait --all").output().unwrap());
        self.program("programs", "train", "exit 1");
        let job = self.done("heft submit train --file book.txt --tag nightly --detach");
        eventually("a failed job", || self.state(&job) == "failed");
        self.program("programs", "train", TRAIN);
        self.job = Some(job);
    }

    /// The last job is dead, because it took its worker with it.
    fn a_dead_job(&mut self) {
        self.program("crashing", "crash", "kill -9 $PPID");
        self.work(&format!("heft worker 127.0.0.1 {} --exe-dir ./crashing", self.port));
        let job = self.done("heft submit crash --detach");
        eventually("a dead job", || self.state(&job) == "dead");
        self.job = Some(job);
    }
}

const TRAIN: &str = "ls > trained.txt; echo trained";

/// Runs the commands of a document.
fn follow(document: &str, mut scene: Scene) {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let notes: Vec<&Note> =
        NOTES.iter().filter(|note| note.documents.contains(&document)).collect();
    let mut seen = BTreeSet::new();
    let mut ran = 0;
    for block in blocks(&text) {
        match block.language {
            "sh" => {}
            "rust" | "rust,no_run" => {
                let included = format!("include_str!(\"../{document}\")");
                let library = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
                assert!(library.contains(&included), "nothing compiles the Rust of {document}");
                continue;
            }
            other => panic!("{document}:{}: nothing runs a block of {other:?}", block.line),
        }
        // Each block unpacks into directories that are not there yet.
        std::fs::remove_dir_all(scene.dir.join("results")).ok();
        for (line, command) in commands(&block) {
            let place = format!("{document}:{line}");
            let (mut run, mut expected, mut flags) = (true, 0, "");
            for note in notes.iter().filter(|note| note.command == without_comment(&command)) {
                seen.insert(note.command);
                match note.what {
                    What::NotRun(why) => {
                        println!("{place}: {command}: not run: {why}");
                        run = false;
                    }
                    What::Ends(code, why) => {
                        println!("{place}: {command}: ends with {code}: {why}");
                        expected = code;
                    }
                    What::With(more, why) => {
                        println!("{place}: {command}: with {more}: {why}");
                        flags = more;
                    }
                    What::After(prepare) => prepare(&mut scene),
                }
            }
            if run {
                println!("{place}: {command}");
                scene.run(&place, format!("{command} {flags}").trim_end(), expected);
                ran += 1;
            }
        }
    }
    let gone: Vec<&str> =
        notes.iter().map(|note| note.command).filter(|command| !seen.contains(command)).collect();
    assert!(gone.is_empty(), "notes on commands that {document} does not have: {gone:#?}");
    assert!(ran > 10, "{ran} commands of {document}");
}

#[test]
fn the_examples_of_the_readme_do_what_it_says() {
    follow(README, Scene::new());
}

#[test]
fn the_examples_of_the_japanese_quickstart_do_what_it_says() {
    follow(JAPANESE, Scene::new());
}

#[test]
fn the_examples_of_the_russian_quickstart_do_what_it_says() {
    follow(RUSSIAN, Scene::new());
}

#[test]
fn the_examples_of_the_guide_do_what_it_says() {
    let scene = Scene::new();
    scene.program(
        "programs",
        "wordcount",
        "wc -w *.txt > words.txt; head -n \"${2:-5}\" words.txt",
    );
    scene.program("programs", "train", TRAIN);
    std::fs::write(scene.dir.join("book.txt"), "one two three\n".repeat(1000)).unwrap();
    for (directory, file) in [("models", "large.bin"), ("tables", "table.csv")] {
        std::fs::create_dir(scene.dir.join(directory)).unwrap();
        std::fs::write(scene.dir.join(directory).join(file), vec![7; 3 << 20]).unwrap();
    }
    follow(GUIDE, scene);
}

#[test]
fn commands_are_found_in_blocks() {
    let text = "a\n\n```sh\n# a comment\nheft status   # another\n\none \\\n  two\ncat <<'END'\nx\n\
                END\n```\n- b\n\n  ```rust\n  fn f() {}\n  ```\n";
    let blocks = blocks(text);
    assert_eq!(blocks.iter().map(|block| block.language).collect::<Vec<_>>(), ["sh", "rust"]);
    assert_eq!(blocks[1].lines, ["fn f() {}"]);
    let commands = commands(&blocks[0]);
    let wanted = [(5, "heft status   # another"), (7, "one  two"), (9, "cat <<'END'\nx\nEND")];
    assert_eq!(commands, wanted.map(|(line, command)| (line, command.to_owned())));
    assert_eq!(without_comment(&commands[0].1), "heft status");
}
