//! The six clients. Each gives, for all that it sent, what became of it in its own eyes.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chunking::Kind;
use chunking::message::Purpose;
use heft::client::{Client, Downloads, Finished, JobError, JobEvent, JobHandle, JobSpec, Options};
use heft::model::{JobRequest, JobResult, JobStatus, JsonModel};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::plan::{ClientName, Opaque, Plan};
use crate::procs;
use crate::raw::Raw;
use crate::scene::Shared;
use crate::work::{EXEC, End, Got, Work, made_in, sha256};

/// How long a client that came back listens after the last result.
const QUIET: Duration = Duration::from_millis(400);

/// A job, and what its client knows of it.
#[derive(Debug)]
pub struct Report {
    pub client: ClientName,
    pub job: Uuid,
    pub work: Work,
    /// Whether it heard that the leader has the job.
    pub is_acknowledged: bool,
    /// Whether it was killed, left, or lost a connection that it does not make again: results may
    /// be with the leader.
    pub is_gone: bool,
    /// Every result that came.
    pub ends: Vec<End>,
}

/// The same of opaque bytes.
#[derive(Debug)]
pub struct OpaqueReport {
    pub client: ClientName,
    pub job: Uuid,
    pub sha256: String,
    pub is_gone: bool,
    pub ends: Vec<End>,
}

/// What all clients of a round know.
#[derive(Debug, Default)]
pub struct Reports {
    pub jobs: Vec<Report>,
    pub opaque: Vec<OpaqueReport>,
}

/// Starts all clients of a round, each on a thread.
pub fn start(shared: &Arc<Shared>, plan: &Arc<Plan>) -> Vec<std::thread::JoinHandle<Reports>> {
    let clients: [fn(&Shared, &Plan) -> Reports; 6] =
        [submit, library, classic, correlating, minimal, leaver];
    clients
        .into_iter()
        .map(|client| {
            let (shared, plan) = (shared.clone(), plan.clone());
            std::thread::spawn(move || client(&shared, &plan))
        })
        .collect()
}

fn round_dir(shared: &Shared, plan: &Plan, client: &str) -> std::path::PathBuf {
    let dir = shared.path(&format!("clients/{}-{client}", plan.number));
    fs::create_dir_all(&dir).unwrap();
    dir
}

// --- heft submit

fn submit(shared: &Shared, plan: &Plan) -> Reports {
    let dir = round_dir(shared, plan, "submit");
    let jobs = (0..)
        .zip(&plan.submit)
        .map(|(place, work)| submit_one(shared, &dir, place, work))
        .collect();
    Reports { jobs, ..Reports::default() }
}

fn submit_one(shared: &Shared, dir: &Path, place: usize, work: &Work) -> Report {
    let addr = format!("127.0.0.1:{}", shared.port_of(ClientName::Submit));
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["submit", &addr, EXEC, "--progress", "json"]);
    for input in &work.inputs {
        let path = dir.join(format!("{place}-{}", input.name));
        fs::write(&path, input.bytes(&shared.material)).unwrap();
        command.arg("--file").arg(format!("{}={}", path.display(), input.name));
    }
    let (out, err, unpacked) = (
        dir.join(format!("{place}.out")),
        dir.join(format!("{place}.err")),
        dir.join(format!("{place}-unpacked")),
    );
    command.arg("--out").arg(&unpacked).arg("--").args(work.args());
    let status = shared.run(ClientName::Submit, &mut command, &out, &err);
    let said = fs::read_to_string(&err).unwrap();
    let events: Vec<Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let text: String =
        said.lines().filter(|line| !line.starts_with('{')).collect::<Vec<_>>().join("\n");
    let job = events.iter().find_map(|event| event["job"].as_str()?.parse().ok());
    let got = |is_ok| Got {
        is_ok,
        stdout: fs::read(&out).unwrap(),
        stderr: text.clone(),
        made: fs::read(unpacked.join("made.bin")).ok(),
    };
    let ends = match status.code() {
        Some(0) => vec![got(true).judge(work, &shared.material)],
        Some(1) => vec![got(false).judge(work, &shared.material)],
        Some(3) => vec![End::Refused(text.clone())],
        Some(code) => vec![End::Wrong(format!("exit code {code}: {text}"))],
        None => Vec::new(),
    };
    if ends == [End::Right] {
        fs::remove_dir_all(&unpacked).ok();
        fs::remove_file(&out).ok();
    }
    for input in &work.inputs {
        fs::remove_file(dir.join(format!("{place}-{}", input.name))).unwrap();
    }
    Report {
        client: ClientName::Submit,
        // One that was killed before it said which: it had sent nothing.
        job: job.unwrap_or_else(Uuid::nil),
        work: work.clone(),
        is_acknowledged: events.iter().any(|event| event["event"] == "submitted"),
        is_gone: status.code().is_none(),
        ends,
    }
}

// --- the library

pub fn block_on<T>(what: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
}

fn spec(shared: &Shared, work: &Work) -> JobSpec {
    let request = JobRequest {
        job_id: work.job,
        exec_name: EXEC.to_owned(),
        args: work.args(),
        ..JobRequest::default()
    };
    work.inputs.iter().fold(JobSpec::from(request), |spec, input| {
        spec.bytes(input.name.clone(), input.bytes(&shared.material).to_vec())
    })
}

fn got(finished: &Finished) -> Result<Got, String> {
    let result = finished.result().map_err(|error| error.to_string())?;
    if let Some(missing) = finished.missing.first() {
        return Err(format!("{:?} did not come: {}", missing.purpose, missing.why));
    }
    let part = |purpose| {
        finished.part(purpose).and_then(|part| part.path()).map(|path| fs::read(path).unwrap())
    };
    let archive = part(Purpose::Archive).or(result.output_archive);
    Ok(Got {
        is_ok: result.status == JobStatus::Ok,
        stdout: part(Purpose::Stdout).unwrap_or_else(|| result.stdout.into_bytes()),
        stderr: result.stderr,
        made: archive.as_deref().and_then(made_in),
    })
}

fn ended(shared: &Shared, work: &Work, end: Result<Finished, JobError>) -> End {
    match end {
        Ok(finished) => match got(&finished) {
            Ok(got) => got.judge(work, &shared.material),
            Err(why) => End::Wrong(why),
        },
        Err(JobError::Refused { refusal, .. }) => End::Refused(refusal.to_string()),
        Err(error @ (JobError::InputLost { .. } | JobError::NoWelcome { .. })) => {
            End::Refused(error.to_string())
        }
        Err(
            error @ (JobError::CancelledUnsent { .. }
            | JobError::BadResult { .. }
            | JobError::Closed { .. }),
        ) => End::Wrong(error.to_string()),
    }
}

fn library(shared: &Shared, plan: &Plan) -> Reports {
    let dir = round_dir(shared, plan, "library");
    let name = ClientName::PackIndex;
    let jobs = block_on(async {
        let addr = format!("127.0.0.1:{}", shared.port_of(name));
        let options = Options {
            downloads: Downloads::Directory(dir.clone()),
            ..Options::new(format!("library-{}", plan.number))
        };
        let client = Client::connect(&addr, &options).await.unwrap();
        let mut handles: Vec<(JobHandle, &Work)> = Vec::new();
        for work in &plan.library {
            handles.push((client.submit(spec(shared, work)).await.unwrap(), work));
        }
        let mut reports = Vec::new();
        for (mut handle, work) in handles {
            let ends = vec![ended(shared, work, handle.finish().await)];
            let (job, work) = (work.job, work.clone());
            reports.push(Report {
                client: name,
                job,
                work,
                is_acknowledged: true,
                is_gone: false,
                ends,
            });
        }
        client.close().await;
        reports
    });
    Reports { jobs, ..Reports::default() }
}

/// Submits, leaves when it has heard that its jobs are taken, or a little before.
fn leaver(shared: &Shared, plan: &Plan) -> Reports {
    let name = ClientName::Leaver;
    let patience = match plan.number % 4 {
        3 => Duration::from_millis(100),
        _ => procs::PATIENCE,
    };
    let jobs = block_on(async {
        let addr = format!("127.0.0.1:{}", shared.port_of(name));
        let client = Client::connect(&addr, &Options::new(id_of(name, plan))).await.unwrap();
        let mut reports = Vec::new();
        for work in &plan.leaver {
            let mut handle = client.submit(spec(shared, work)).await.unwrap();
            let heard = tokio::time::timeout(patience, async {
                while let Some(event) = handle.event().await {
                    if matches!(event, JobEvent::Submitted { .. }) {
                        return None;
                    }
                }
                Some(handle.finish().await)
            });
            let (is_acknowledged, ends) = match heard.await {
                Ok(None) => (true, Vec::new()),
                // Without downloads, so all that it can be judged by is whether it was taken.
                Ok(Some(Err(end))) => (false, vec![ended(shared, work, Err(end))]),
                Ok(Some(Ok(_))) => (true, Vec::new()),
                Err(_) => (false, Vec::new()),
            };
            let (job, work) = (work.job, work.clone());
            reports.push(Report { client: name, job, work, is_acknowledged, is_gone: true, ends });
        }
        reports
    });
    Reports { jobs, ..Reports::default() }
}

/// The name under which a client of this round says hello.
pub fn id_of(client: ClientName, plan: &Plan) -> String {
    format!("{client:?}-{}", plan.number)
}

/// The result of any job, as the leader has it.
pub fn fetch(shared: &Shared, job: Uuid, work: &Work) -> Result<Option<End>, String> {
    let dir = shared.path("fetched");
    block_on(async {
        let options = Options { connect_wait: Some(procs::PATIENCE), ..Options::new("") };
        let client =
            Client::connect(&shared.leader(), &options).await.map_err(|error| error.to_string())?;
        let fetched = client.fetch(job, &Downloads::Directory(dir)).await;
        let fetched = fetched.map_err(|error| error.to_string())?;
        let end = fetched.map(|finished| ended(shared, work, Ok(finished)));
        client.close().await;
        Ok(end)
    })
}

/// What a client gets that comes back under a name: every result of that name that was not
/// delivered.
pub fn come_back(shared: &Shared, client: ClientName, plan: &Plan) -> Vec<(Uuid, JobResult)> {
    let id = id_of(client, plan);
    let mut raw = Raw::on(TcpStream::connect(shared.leader()).unwrap());
    let mut config = json!({"ClientId": id, "DesiredParallelism": 4});
    if client == ClientName::Leaver {
        let features = ["submit-answers", "progress", "cancel", "ask", "transfers"];
        config["Heft"] = json!({"Version": 1, "Features": features});
    }
    raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), &id, config.to_string().as_bytes());
    raw.stream.set_read_timeout(Some(QUIET)).unwrap();
    let mut results = Vec::new();
    while let Some(frame) = raw.next() {
        if frame.kind == Kind::Result {
            results.push((frame.msg_id, JobResult::parse(&frame.payload).unwrap()));
        }
    }
    results
}

// --- clients of the older system

/// Runs a classic client until it was connected once; gives its events and whether it was killed.
fn run_classic(
    shared: &Shared,
    plan: &Plan,
    client: ClientName,
    args: &[&str],
    jobs: &[Value],
) -> (Vec<Value>, bool) {
    let dir = round_dir(shared, plan, &format!("{client:?}"));
    let lines: String = jobs.iter().map(|job| format!("{job}\n")).collect();
    let list = dir.join("jobs");
    fs::write(&list, lines).unwrap();
    let port = shared.port_of(client).to_string();
    for attempt in 0..1000 {
        let mut command = Command::new("python3");
        command.arg("-S").arg(procs::root().join("tests/classic/client.py"));
        command.args(["127.0.0.1", &port, &id_of(client, plan), "--jobs"]).arg(&list);
        command.args(["--timeout", "280"]).args(args);
        let (out, err) = (dir.join(format!("{attempt}.log")), dir.join(format!("{attempt}.err")));
        let status = shared.run(client, &mut command, &out, &err);
        let said = fs::read_to_string(&out).unwrap();
        let events: Vec<Value> =
            said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        // One that has said hello to nobody has sent nothing.
        if !events.is_empty() || status.code().is_none() {
            fs::remove_file(&list).unwrap();
            return (events, status.code().is_none());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{client:?} never reached the leader");
}

fn is_done(events: &[Value]) -> bool {
    events.iter().any(|event| event["event"] == "done")
}

fn classic(shared: &Shared, plan: &Plan) -> Reports {
    let name = ClientName::Classic;
    let jobs: Vec<Value> = plan
        .classic
        .iter()
        .map(|work| {
            let files: Vec<Value> = work
                .inputs
                .iter()
                .map(|input| json!({"name": input.name, "content_b64": STANDARD.encode(input.bytes(&shared.material))}))
                .collect();
            json!({"exec": EXEC, "args": work.args(), "files": files, "job_id": work.job})
        })
        .collect();
    let (events, is_killed) = run_classic(shared, plan, name, &[], &jobs);
    let mut by_job: BTreeMap<Uuid, Vec<End>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["event"] == "result") {
        let job: Uuid = event["corr_id"].as_str().unwrap().parse().unwrap();
        let end = match plan.classic.iter().find(|work| work.job == job) {
            None => End::Wrong(format!("a result of a job of somebody else: {event}")),
            Some(_) if event["status"].is_null() => End::Wrong(format!("no JobResult: {event}")),
            Some(work) => {
                let text = |member: &str| event[member].as_str().unwrap_or_default().to_owned();
                let archive =
                    event["archive_b64"].as_str().map(|text| STANDARD.decode(text).unwrap());
                let got = Got {
                    is_ok: event["status"] == "OK",
                    stdout: text("stdout").into_bytes(),
                    stderr: text("stderr"),
                    made: archive.as_deref().and_then(made_in),
                };
                judge_classic(shared, work, &got)
            }
        };
        by_job.entry(job).or_default().push(end);
    }
    let jobs = plan
        .classic
        .iter()
        .map(|work| Report {
            client: name,
            job: work.job,
            work: work.clone(),
            is_acknowledged: false,
            is_gone: is_killed || !is_done(&events),
            ends: by_job.remove(&work.job).unwrap_or_default(),
        })
        .collect();
    Reports { jobs, ..Reports::default() }
}

/// What does not fit a frame of the older system stays with the leader, and the result says how it
/// is fetched.
pub fn judge_classic(shared: &Shared, work: &Work, got: &Got) -> End {
    match got.judge(work, &shared.material) {
        // That of a program which ends with 3 is FAILED, and is fetched like any other.
        End::Wrong(why) | End::Failed(why) if got.stderr.contains("heft result get") => {
            match fetch(shared, work.job, work) {
                Ok(Some(end)) => end,
                Ok(None) => End::Wrong(format!("{why}; and the leader has no result")),
                Err(error) => End::Wrong(format!("{why}; and cannot be fetched: {error}")),
            }
        }
        end @ (End::Right | End::Failed(_) | End::Refused(_) | End::Wrong(_)) => end,
    }
}

/// Opaque bytes that nobody else sends.
fn opaque_bytes(shared: &Shared, opaque: &Opaque) -> Vec<u8> {
    let noise = &shared.material.noise[opaque.start..opaque.start + opaque.len];
    [opaque.job.as_bytes(), noise].concat()
}

fn opaque_reports(
    shared: &Shared,
    client: ClientName,
    jobs: &[Opaque],
    is_gone: bool,
) -> Vec<OpaqueReport> {
    jobs.iter()
        .map(|opaque| OpaqueReport {
            client,
            job: opaque.job,
            sha256: sha256(&opaque_bytes(shared, opaque)),
            is_gone,
            ends: Vec::new(),
        })
        .collect()
}

fn correlating(shared: &Shared, plan: &Plan) -> Reports {
    let name = ClientName::Correlating;
    let jobs: Vec<Value> = plan
        .correlating
        .iter()
        .map(|opaque| json!({"job_id": opaque.job, "raw_b64": STANDARD.encode(opaque_bytes(shared, opaque))}))
        .collect();
    let (events, is_killed) =
        run_classic(shared, plan, name, &["--generation", "f1", "--wait"], &jobs);
    let is_gone = is_killed || !is_done(&events);
    let mut opaque = opaque_reports(shared, name, &plan.correlating, is_gone);
    for event in events.iter().filter(|event| event["event"] == "result") {
        let job: Uuid = event["corr_id"].as_str().unwrap().parse().unwrap();
        let report = opaque.iter_mut().find(|report| report.job == job);
        let report =
            report.unwrap_or_else(|| panic!("a result of a job of somebody else: {event}"));
        // The ack of a worker of the first generation is empty, and means that all is well.
        report.ends.push(if event["payload_len"] == 0 || event["status"] == "OK" {
            End::Right
        } else {
            End::Failed(event["stderr"].as_str().unwrap_or_default().to_owned())
        });
    }
    Reports { opaque, ..Reports::default() }
}

fn minimal(shared: &Shared, plan: &Plan) -> Reports {
    let name = ClientName::Minimal;
    let jobs: Vec<Value> = plan
        .minimal
        .iter()
        .map(|opaque| json!({"raw_b64": STANDARD.encode(opaque_bytes(shared, opaque))}))
        .collect();
    let (events, is_killed) = run_classic(shared, plan, name, &["--generation", "f0"], &jobs);
    let is_gone = is_killed || !is_done(&events);
    Reports { opaque: opaque_reports(shared, name, &plan.minimal, is_gone), ..Reports::default() }
}
