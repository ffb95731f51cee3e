//! Classic peers and payloads beyond their frames: what they send is taken as a stream, what they
//! cannot take is kept for those who can, and nobody waits without being told why.

use serde_json::{Value, json};

use crate::procs::{Proc, classic_client, classic_worker, heft};
use crate::support::scaled;
use crate::world::{
    MIB, Sent, World, end_of, expect_digests, peak_memory, sha256_of, submit_files,
};

/// What the leader may have in memory, whatever passes through it.
const LEADER_MEMORY_MAX: u64 = 96 * MIB as u64;

/// A file as a classic client sends it.
fn inline(file: &Sent) -> Value {
    use base64::Engine;
    let content =
        base64::engine::general_purpose::STANDARD.encode(std::fs::read(&file.path).unwrap());
    json!({"name": file.name, "content_b64": content})
}

/// The one result of a classic client.
fn result_of(client: Proc) -> Value {
    let (code, lines) = client.finish();
    let found = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found: Vec<Value> = found.filter(|event| event["event"] == "result").collect();
    assert_eq!((code, found.len()), (Some(0), 1), "{lines:#?}");
    found.remove(0)
}

#[test]
fn w06_a_submit_of_many_mebibytes_in_one_frame_reaches_a_heft_worker() {
    let world = World::start(&[]);
    let (large, small) = (
        world.noise("large.bin", u64::from(scaled(40, 200)) * MIB as u64),
        world.noise("small.bin", 1000),
    );
    let medium = world.noise("medium.bin", 6 * MIB as u64);
    // One waits for the worker, one finds it there.
    let job = json!({"exec": "digests", "args": [""], "files": [inline(&medium), inline(&small)]});
    let mut client = classic_client(world.leader.port, "stock", &[], &[job]);
    client.event("submitted");
    world.until("the job waits with its input", |status| {
        status["jobs"]["queued"] == 1 && status["leader"]["spool_bytes"] == 6 * MIB as u64
    });
    let _worker = world.worker(&[]);
    let result = result_of(client);
    let said = format!("medium.bin {}\nsmall.bin {}\n", medium.sha256, small.sha256);
    assert_eq!((&result["status"], result["stdout"].as_str()), (&json!("OK"), Some(said.as_str())));
    let job = json!({"exec": "digests", "args": [""], "files": [inline(&large)]});
    let result = result_of(classic_client(world.leader.port, "stock", &[], &[job]));
    let said = format!("large.bin {}\n", large.sha256);
    assert_eq!((&result["status"], result["stdout"].as_str()), (&json!("OK"), Some(said.as_str())));
    world.assert_idle(0);
    // What is taken apart has to be put together again: the one copy there is, and it is counted.
    let copied = world.status()["leader"]["chunk_bytes_copied"].as_u64().unwrap();
    assert!(copied >= u64::from(scaled(46, 206)) * MIB as u64, "{copied}");
    let peak = peak_memory(&world.leader.proc);
    assert!(peak <= LEADER_MEMORY_MAX, "the leader had {peak} bytes in memory");
}

#[test]
fn w06_a_submit_that_breaks_off_in_the_middle_leaves_nothing() {
    use std::io::Write;
    let world = World::start(&[]);
    let mut raw = std::net::TcpStream::connect(world.addr()).unwrap();
    let mut send = |kind: chunking::Kind, payload: &[u8], announced: u32| {
        let head = chunking::Head { subject: "stock", ..chunking::Head::new(kind) };
        let mut bytes = Vec::new();
        head.append(chunking::Generation::F2, &mut bytes).unwrap();
        // The lengths of a frame that ours would not write: of the body in front, of the payload at
        // the end of the head.
        let at = bytes.len() - 4;
        let body = u32::try_from(at).unwrap() + announced;
        bytes[..4].copy_from_slice(&body.to_le_bytes());
        bytes[at..].copy_from_slice(&announced.to_le_bytes());
        bytes.extend_from_slice(payload);
        raw.write_all(&bytes).unwrap();
    };
    send(chunking::Kind::HelloClient, b"", 0);
    let mut request = br#"{"ExecName":"x","Args":[],"Files":[{"Name":"a","Content":""#.to_vec();
    request.resize(6 * MIB, b'A');
    send(chunking::Kind::SubmitJob, &request, 20 << 20);
    world.until("a part is here", |status| {
        status["leader"]["spool_bytes"].as_u64() > Some(2 * MIB as u64)
    });
    drop(raw);
    world.assert_idle(0);
}

#[test]
fn w06_an_archive_of_many_mebibytes_from_a_classic_worker_reaches_a_heft_client() {
    let world = World::start(&[]);
    let _worker = classic_worker(world.leader.port, &["job.assign.*", "--platform", "windows"]);
    let out = world.dir.join("out");
    let size = (8 * MIB).to_string();
    let (code, stdout, stderr) =
        heft(&["submit", &world.addr(), "make", "--out", out.to_str().unwrap(), "--", &size]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, format!("made.bin {}\n", sha256_of(&out.join("made.bin"))));
    assert_eq!(std::fs::metadata(out.join("made.bin")).unwrap().len(), 8 * MIB as u64);
    world.assert_idle(1);
}

/// So many lines as the classic worker's `prints` prints them: 100 bytes each.
fn printed(lines: usize) -> String {
    format!("aé日😀\"\\<+>{}\n", "-".repeat(84)).repeat(lines)
}

#[test]
fn w06_what_a_classic_workers_program_printed_reaches_a_heft_client_whole_at_any_length() {
    let world = World::start(&[]);
    let _worker = classic_worker(world.leader.port, &["job.assign.*", "--platform", "windows"]);
    let (lines, out) = (90_000_usize, world.dir.join("out"));
    // Both outputs and the archive are beyond a frame, in one frame.
    let args = [lines.to_string(), (lines / 2).to_string(), (5 * MIB).to_string()];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let submit =
        ["submit", &world.addr(), "prints", "--client", "c", "--out", out.to_str().unwrap(), "--"];
    let (code, stdout, stderr) = heft(&[&submit[..], &args].concat());
    assert_eq!(code, Some(0), "{}", end_of(&stderr));
    assert!(stdout == printed(lines), "{} bytes on stdout", stdout.len());
    let stderr = stderr.split_once('\n').map_or("", |(_id, printed)| printed);
    assert!(stderr.starts_with(&printed(lines / 2)), "{} bytes on stderr", stderr.len());
    assert_eq!(std::fs::metadata(out.join("made.bin")).unwrap().len(), 5 * MIB as u64);
    world.assert_idle(3);
    let peak = peak_memory(&world.leader.proc);
    assert!(peak <= LEADER_MEMORY_MAX, "the leader had {peak} bytes in memory");
}

#[test]
fn w06_a_result_just_under_a_frame_is_neither_cut_for_its_client_nor_for_who_fetches_it() {
    let world = World::start(&[]);
    let _worker = classic_worker(world.leader.port, &["job.assign.*"]);
    let client = "c".repeat(255);
    // One comes as a frame, one as a stream; with the longer subject of a Result neither fits one.
    for body in [4 * MIB - 150, 4 * MIB] {
        let args = ["big", "--client", &client, "--", &body.to_string()];
        let mut submit = world.submit(&args);
        let job = crate::world::job_of(&mut submit).to_string();
        let (code, _) = submit.finish();
        assert_eq!(code, Some(0));
        let (code, stdout, stderr) = heft(&["result", "get", &world.addr(), &job]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(
            stdout.len() > body - 4000 && stdout.bytes().all(|byte| byte == b'x'),
            "{}",
            stdout.len()
        );
    }
    let args = ["submit", &world.addr(), "big", "--client", &client, "--", "4194304"];
    let (code, stdout, stderr) = heft(&args);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.len() > 4 * MIB - 4000 && stdout.bytes().all(|byte| byte == b'x'),
        "{}",
        stdout.len()
    );
}

#[test]
fn w06_long_texts_are_cut_for_a_classic_client_which_hears_how_to_fetch_them() {
    let world = World::start(&[]);
    let _worker = classic_worker(world.leader.port, &["job.assign.*"]);
    let client = "c".repeat(3000);
    // One is a blob when it has come, one fits its worker's frame and not that of its client, whose
    // id is in the subject.
    for lines in [90_000_usize, 30_575] {
        let job = json!({"exec": "prints", "args": [lines.to_string(), "1"]});
        let result = result_of(classic_client(world.leader.port, &client, &[], &[job]));
        assert_eq!(result["status"], "OK", "{result}");
        let (stdout, stderr) =
            (result["stdout"].as_str().unwrap(), result["stderr"].as_str().unwrap());
        assert!(printed(lines).starts_with(stdout), "{} bytes", stdout.len());
        assert!(stdout.len() > 60_000 && stdout.len() < printed(lines).len(), "{}", stdout.len());
        let command = stderr.split('`').nth(1).unwrap_or_else(|| panic!("no command in {stderr}"));
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(&words[..3], ["heft", "result", "get"], "{stderr}");
        let (code, fetched, err) = heft(&words[1..6]);
        assert_eq!(code, Some(0), "{err}");
        assert!(fetched == printed(lines), "{} bytes", fetched.len());
    }
}

#[test]
fn a_result_too_large_for_a_classic_client_is_kept_and_it_hears_how_to_fetch_it() {
    let world = World::start(&[]);
    let _worker = world.worker(&[]);
    let (archive, printed) = ((20 * MIB).to_string(), "5".to_owned());
    let job = json!({"exec": "makes", "args": [archive, printed]});
    let result = result_of(classic_client(world.leader.port, "stock", &[], &[job]));
    assert_eq!(
        (&result["status"], &result["stdout"], &result["archive_b64"]),
        (&json!("OK"), &json!("ppppp"), &Value::Null)
    );
    let stderr = result["stderr"].as_str().unwrap();
    let digest = stderr.lines().next().unwrap();
    let command = stderr.split('`').nth(1).unwrap_or_else(|| panic!("no command in {stderr}"));
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(&words[..3], ["heft", "result", "get"], "{stderr}");
    assert_eq!(words[5], result["job_id"].as_str().unwrap());
    let out = world.dir.join("out");
    let (code, _, err) = heft(&[&words[1..6], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(sha256_of(&out.join("made.bin")), digest);
    world.assert_idle(1);
}

#[test]
fn c01_a_job_too_large_for_the_workers_there_waits_and_says_so_or_is_refused() {
    let world = World::start(&[]);
    let _classic = classic_worker(world.leader.port, &["job.assign.*"]);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    let file = world.noise("in.bin", 5 * MIB as u64);
    let refused =
        submit_files(&world.addr(), "digests", &[&file], &["--require-worker", "--output", "json"]);
    let (code, lines) = refused.finish();
    assert_eq!(code, Some(3), "{lines:#?}");
    let refusal = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let refusal = refusal.rev().find(|value| value["status"] == "REFUSED").expect("a refusal");
    assert_eq!(refusal["hop"], "worker", "{refusal}");
    assert!(refusal["value"].as_u64() > Some(5 * MIB as u64), "{refusal}");
    assert_eq!(refusal["limit"], 4 * MIB as u64, "{refusal}");
    world.assert_idle(0);

    let mut waits = submit_files(&world.addr(), "digests", &[&file], &["--compress", "none"]);
    let why = waits.wait_for("why it waits", |line| {
        let event = serde_json::from_str::<Value>(line).ok()?;
        (event["event"] == "waiting").then(|| event["text"].as_str().unwrap().to_owned())
    });
    assert!(why.contains("4,194,304"), "the number is named: {why}");
    let _heft = world.worker(&[]);
    expect_digests(waits, &[&file]);
    world.assert_idle(0);
}

#[test]
fn a_frame_beyond_what_is_taken_ends_its_connection_only() {
    let world = World::start(&["--classic-inbound-max", "8MiB"]);
    let _worker = world.worker(&[]);
    let (fits, large) =
        (world.noise("fits.bin", 5 * MIB as u64), world.noise("large.bin", 7 * MIB as u64));
    let job = json!({"exec": "digests", "args": [""], "files": [inline(&large)]});
    let mut client = classic_client(world.leader.port, "stock", &[], &[job]);
    let closed = client.event("closed");
    assert_eq!(closed["unanswered"], 1, "{closed}");
    let job = json!({"exec": "digests", "args": [""], "files": [inline(&fits)]});
    let result = result_of(classic_client(world.leader.port, "stock", &[], &[job]));
    assert!(result["stdout"].as_str().unwrap().contains(&fits.sha256), "{result}");
    world.assert_idle(0);
}
