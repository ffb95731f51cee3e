//! Connections that are dead above TCP: both ends stay open, and nothing comes any more, or half a
//! frame. Real leaders, workers and clients, with a relay between that goes silent at one frame, or
//! damages its length. Every job ends with its result, by another connection, and runs once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/dead_lines.rs"]
mod dead_lines;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;

use chunking::{Generation, Head, Kind};
use dead_lines::{Fault, Harm, Relay, Way};
use procs::{Leader, PATIENCE, TempDir, Worker, heft};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

const MIB: usize = 1024 * 1024;

/// Short, so that the tests are; a machine that is busy for so long costs a reconnect and nothing
/// else.
const SILENCE: [&str; 2] = ["--silence", "1s"];

/// Takes an input and leaves an archive and an output, all of them too large for a frame. It notes
/// that it ran.
const HEAVY: &str = r#"echo x >> "$0.runs"
cp in.bin out.bin
echo again >> out.bin
head -c 700000 in.bin | od -An -tx1 -v
sha256sum < in.bin | cut -d' ' -f1"#;

/// A leader, and a relay before it for its worker or for its client.
struct Scene {
    leader: Leader,
    relay: Relay,
    dir: TempDir,
    sum: String,
}

impl Scene {
    fn start(fault: Fault) -> Scene {
        let leader = Leader::start(&SILENCE);
        let relay = Relay::start(leader.port, fault);
        let dir = TempDir::new();
        std::fs::write(dir.join("in.bin"), noise::noise(5 * MIB, 7)).unwrap();
        let output =
            std::process::Command::new("sha256sum").arg(dir.join("in.bin")).output().unwrap();
        let sum = String::from_utf8(output.stdout).unwrap();
        let sum = sum.split_whitespace().next().unwrap().to_owned();
        Scene { leader, relay, dir, sum }
    }

    /// Has a job done, and looks at all that comes of it.
    fn submit(&self, port: u16) {
        let file = format!("{}=in.bin", self.dir.join("in.bin").to_str().unwrap());
        let out = self.dir.join("out");
        let (address, out) = (format!("127.0.0.1:{port}"), out.to_str().unwrap());
        let args = ["submit", &address, "calc", "--file", &file, "--out", out, "--timeout", "50s"];
        let (code, said, errors) = heft(&args);
        assert_eq!(code, Some(0), "{errors}");
        assert!(
            said.len() > 2 * MIB && said.trim_end().ends_with(&self.sum),
            "its output is whole"
        );
        let mut made = std::fs::read(self.dir.join("in.bin")).unwrap();
        made.extend_from_slice(b"again\n");
        assert!(
            std::fs::read(self.dir.join("out/out.bin")).unwrap() == made,
            "its archive is whole"
        );
    }
}

fn runs(worker: &Worker) -> usize {
    std::fs::read_to_string(worker.dir.join("exe").join("calc.runs"))
        .unwrap_or_default()
        .lines()
        .count()
}

fn client_case(fault: Fault) {
    let scene = Scene::start(fault);
    let worker = Worker::start(scene.leader.port, &[("calc", HEAVY)], &[]);
    scene.submit(scene.relay.port);
    assert!(scene.relay.has_struck(), "{fault:?} did not happen");
    // A frame that says it is a little longer is whole all the same.
    let harmless = matches!(fault.harm, Harm::Longer(0..100));
    assert!(harmless || scene.relay.connections() >= 2, "{fault:?}: it came by another connection");
    assert_eq!(runs(&worker), 1, "{fault:?}");
}

fn worker_case(fault: Fault) {
    let scene = Scene::start(fault);
    let worker = Worker::start(scene.relay.port, &[("calc", HEAVY)], &["--name", "w"]);
    scene.submit(scene.leader.port);
    // Some of what it says is about a job that has its result already.
    assert!(scene.relay.has_struck() || fault.kind == Kind::Settled, "{fault:?} did not happen");
    assert!(runs(&worker) >= 1, "{fault:?}");
}

/// Runs a few cases at a time.
fn all(cases: &[Fault], case: impl Fn(Fault) + Sync) {
    for some in cases.chunks(4) {
        std::thread::scope(|scope| {
            let threads: Vec<ScopedJoinHandle<'_, ()>> =
                some.iter().map(|fault| scope.spawn(|| case(*fault))).collect();
            for (thread, fault) in threads.into_iter().zip(some) {
                assert!(thread.join().is_ok(), "{fault:?}");
            }
        });
    }
}

fn faults(harm: Harm, frames: &[(Way, Kind)]) -> Vec<Fault> {
    frames.iter().map(|(way, kind)| Fault { way: *way, kind: *kind, harm }).collect()
}

const OF_A_CLIENT: [(Way, Kind); 7] = [
    (Way::Up, Kind::SubmitJob),
    (Way::Up, Kind::Chunk),
    (Way::Up, Kind::Done),
    (Way::Down, Kind::Grant),
    (Way::Down, Kind::Submitted),
    (Way::Down, Kind::Chunk),
    (Way::Down, Kind::Result),
];

#[test]
fn a_client_whose_line_goes_silent_comes_back_for_its_result() {
    all(&faults(Harm::Silence, &OF_A_CLIENT), client_case);
}

#[test]
fn a_client_whose_line_goes_silent_in_one_direction_comes_back_for_its_result() {
    all(&faults(Harm::OneWay, &OF_A_CLIENT), client_case);
}

/// The very first frames: whoever does not hear the answer to its hello cannot know what the leader
/// is.
#[test]
fn a_client_whose_line_was_dead_from_the_hello_on_has_its_job_done() {
    let frames = [(Way::Up, Kind::HelloClient), (Way::Down, Kind::Welcome)];
    all(&[Harm::Silence, Harm::OneWay].map(|harm| faults(harm, &frames)).concat(), client_case);
}

#[test]
fn a_worker_whose_line_was_dead_from_the_hello_on_gets_jobs() {
    let frames = [(Way::Up, Kind::HelloWorker), (Way::Down, Kind::Welcome)];
    all(&[Harm::Silence, Harm::OneWay].map(|harm| faults(harm, &frames)).concat(), worker_case);
}

#[test]
fn a_client_comes_back_when_the_length_of_a_frame_was_damaged() {
    let frames = [&[(Way::Down, Kind::Welcome)], &OF_A_CLIENT[..]].concat();
    all(&faults(Harm::Longer(900_000), &frames), client_case);
}

#[test]
fn a_client_comes_back_when_a_length_is_wrong_by_a_few_bytes() {
    let frames = [(Way::Up, Kind::SubmitJob), (Way::Down, Kind::Grant), (Way::Down, Kind::Result)];
    let cases = [-1, 30].map(|more| faults(Harm::Longer(more), &frames)).concat();
    all(&cases, client_case);
}

const OF_A_WORKER: [(Way, Kind); 7] = [
    (Way::Down, Kind::AssignJob),
    (Way::Down, Kind::Chunk),
    (Way::Down, Kind::Start),
    (Way::Down, Kind::Grant),
    (Way::Up, Kind::Heartbeat),
    (Way::Up, Kind::Chunk),
    (Way::Up, Kind::AckJob),
];

#[test]
fn a_worker_whose_line_goes_silent_comes_back_with_its_job() {
    all(&faults(Harm::Silence, &OF_A_WORKER), worker_case);
}

#[test]
fn a_worker_whose_line_goes_silent_in_one_direction_comes_back_with_its_job() {
    all(&faults(Harm::OneWay, &OF_A_WORKER), worker_case);
}

#[test]
fn a_worker_comes_back_when_the_length_of_a_frame_was_damaged() {
    let frames =
        [&OF_A_WORKER[..], &[(Way::Down, Kind::Settled), (Way::Up, Kind::Credit)]].concat();
    all(&faults(Harm::Longer(900_000), &frames), worker_case);
}

#[test]
fn a_question_over_a_dead_line_ends_with_exit_code_3() {
    let leader = Leader::start(&SILENCE);
    for (way, kind) in [(Way::Up, Kind::Ask), (Way::Down, Kind::Answer)] {
        let relay = Relay::start(leader.port, Fault { way, kind, harm: Harm::Silence });
        let (code, _, errors) = heft(&["status", &format!("127.0.0.1:{}", relay.port)]);
        assert_eq!(code, Some(3), "{kind}: {errors}");
        assert!(errors.contains("nothing arrived for 1000 ms"), "{errors}");
    }
}

fn hello_and(kind: Kind, payload_len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Head { subject: "stock", ..Head::new(Kind::HelloClient) }
        .append(Generation::F2, &mut bytes)
        .unwrap();
    Head { subject: "job.submit.calc", payload_len, ..Head::new(kind) }
        .append(Generation::F2, &mut bytes)
        .unwrap();
    bytes
}

#[test]
fn half_a_frame_of_a_classic_peer_ends_its_connection_and_an_idle_one_or_a_slow_one_stays() {
    let leader = Leader::start(&SILENCE);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", leader.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let (mut half, mut idle, mut slow) = (connect(), connect(), connect());
    let whole = hello_and(Kind::SubmitJob, 0);
    // Without its subject the last frame is none yet.
    half.write_all(&whole[..whole.len() - 30]).unwrap();
    idle.write_all(&whole).unwrap();
    slow.write_all(&hello_and(Kind::SubmitJob, 400_000)).unwrap();
    for _ in 0..40 {
        // 20 KB in a second, for twice the time after which the first one ends.
        slow.write_all(&[b' '; 2000]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut rest = Vec::new();
    assert_eq!(half.read_to_end(&mut rest).unwrap(), 0, "the leader has closed it");
    for (name, mut open) in [("idle", idle), ("slow", slow)] {
        open.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = open.read(&mut [0]).expect_err(name);
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{name}: it is open");
    }
}

#[test]
fn peers_that_have_nothing_to_say_stay_connected() {
    // Longer than anybody is kept waiting by a busy machine.
    let leader = Leader::start(&["--silence", "3s"]);
    let mut worker = Worker::start(leader.port, &[("calc", "sleep 7; echo done")], &[]);
    let (code, out, errors) = heft(&["submit", &leader.addr(), "calc", "--progress", "json"]);
    assert_eq!((code, out.trim()), (Some(0), "done"), "{errors}");
    assert!(!errors.contains("reconnecting"), "{errors}");
    assert!(!worker.proc.has_ended());
}
