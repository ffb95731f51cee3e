//! What has to be true after each round.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use heft::model::JobStatus;
use serde_json::Value;
use uuid::Uuid;

use crate::clients::{self, OpaqueReport, Report, Reports};
use crate::plan::{ClientName, Harm, Plan, Target, WorkerName};
use crate::procs;
use crate::scene::Scene;
use crate::support::scaled;
use crate::work::{End, Got, made_in};

/// What a leader may hold in memory when nothing is under way, and how many descriptors more than
/// in its first quiet moment. Both are far above what it has, and far below what a leak makes in a
/// long run.
const MEMORY_MAX: u64 = 400 << 20;
const DESCRIPTORS_MORE_MAX: usize = 40;

/// How long a round may take to come to rest, when all harm is over. Generous: it is not a
/// measurement.
pub fn patience() -> Duration {
    Duration::from_secs(scaled(120, 240).into())
}

/// All that goes wrong in a round, in words.
pub type Verdict = Result<(), String>;

/// Waits until something is so: what is in the way is said again and again, until nothing is.
fn eventually(
    scene: &mut Scene,
    what: &str,
    mut in_the_way: impl FnMut(&Scene) -> Option<String>,
) -> Verdict {
    let until = Instant::now() + patience();
    loop {
        scene.supervise();
        let Some(why) = in_the_way(scene) else { return Ok(()) };
        if Instant::now() > until {
            return Err(format!("never: {what}: {why}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Gives what the leader takes, if all is well.
pub fn check(scene: &mut Scene, plan: &Plan, reports: &Reports) -> Result<String, String> {
    cancel_cut_uploads(scene, plan, reports);
    eventually(scene, "the leader has nothing under way", idle)?;
    for report in &reports.jobs {
        job(scene, plan, report).map_err(|why| {
            format!("{:?}, job {}: {why}\n{report:#?}", report.client, report.job)
        })?;
    }
    for report in &reports.opaque {
        opaque(plan, report).map_err(|why| {
            format!("{:?}, job {}: {why}\n{report:#?}", report.client, report.job)
        })?;
    }
    payloads(scene, plan, reports)?;
    results_come_once(scene, plan, reports)?;
    eventually(scene, "the leader has nothing under way", idle)?;
    blobs(scene, plan)?;
    eventually(scene, "no job directory is left", directories)?;
    eventually(scene, "no program is left", |scene| {
        let strays = scene.strays();
        (!strays.is_empty()).then(|| format!("{strays:#?}"))
    })?;
    Ok(format!("{}; {}", tally(reports), measures(scene)?))
}

/// What became of the jobs, as their clients saw it.
fn tally(reports: &Reports) -> String {
    let ends = reports.jobs.iter().map(|report| report.ends.first());
    let ends = ends.chain(reports.opaque.iter().map(|report| report.ends.first()));
    let mut counts = [0; 4];
    for end in ends {
        counts[match end {
            Some(End::Right) => 0,
            Some(End::Failed(_) | End::Wrong(_)) => 1,
            Some(End::Refused(_)) => 2,
            None => 3,
        }] += 1;
    }
    let [right, failed, refused, unheard] = counts;
    format!(
        "{right} right, {failed} failed, {refused} refused, {unheard} whose clients did not wait"
    )
}

/// A job that is still being uploaded waits a minute for its client. Its user may cancel it
/// instead.
fn cancel_cut_uploads(scene: &Scene, plan: &Plan, reports: &Reports) {
    for report in reports.jobs.iter().filter(|report| report.is_gone && !report.is_acknowledged) {
        if plan.cancels && !report.job.is_nil() && report.client != ClientName::Classic {
            procs::heft(&["cancel", &scene.shared.leader(), &report.job.to_string()]);
        }
    }
}

// --- results

/// Whether these failures follow from what was done. A classic client hears of a refusal as a
/// result.
fn is_legitimate(plan: &Plan, text: &str) -> bool {
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let full = plan.has(|harm| matches!(harm, Harm::FullWork(_)));
    let cancelled = plan.cancels && says(&["cancelled"]);
    full && says(&["No space left", "cannot write made.bin", "disk is full", "ENOSPC"])
        || plan.has(|harm| matches!(harm, Harm::FullData(_)))
            && text.starts_with("heft: ")
            && says(&["the disk is full", "disk has"])
        || plan.losses() >= 6 && says(&["attempts", "lost"])
        || cancelled
}

/// Whether the leader may have refused the job.
fn may_refuse(plan: &Plan, text: &str) -> bool {
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    // A leader that is away for longer than `heft submit` tries: it may take a while to read what
    // it has on its disk.
    let is_away = |harm: &Harm| {
        matches!(
            harm,
            Harm::Kill(Target::Leader, _) | Harm::Stop(Target::Leader, _) | Harm::Stall(..)
        )
    };
    plan.has(|harm| matches!(harm, Harm::FullData(_))) && says(&["disk", "full", "space"])
        || plan.has(is_away) && says(&["cannot reach", "no answer to the hello"])
}

fn end(plan: &Plan, end: &End) -> Verdict {
    match end {
        End::Right => Ok(()),
        End::Failed(text) if is_legitimate(plan, text) => Ok(()),
        End::Refused(text) if may_refuse(plan, text) => Ok(()),
        End::Failed(text) => Err(format!("it failed for no reason that was given it: {text}")),
        End::Refused(text) => Err(format!("it was refused for no reason that was given: {text}")),
        End::Wrong(text) => Err(text.clone()),
    }
}

fn job(scene: &Scene, plan: &Plan, report: &Report) -> Verdict {
    report.ends.iter().try_for_each(|found| end(plan, found))?;
    match report.ends.len() {
        0 if !report.is_gone => Err("its client waited to the end and has no result".to_owned()),
        0 if report.job.is_nil() => Ok(()),
        0 => match clients::fetch(&scene.shared, report.job, &report.work) {
            Ok(Some(found)) => end(plan, &found),
            Ok(None) if report.is_acknowledged => {
                Err("the leader has the job, and no result".to_owned())
            }
            Err(error) if report.is_acknowledged => Err(format!("it was acknowledged: {error}")),
            Ok(None) | Err(_) => Ok(()),
        },
        1 => Ok(()),
        _ => Err("several results came".to_owned()),
    }
}

fn opaque(plan: &Plan, report: &OpaqueReport) -> Verdict {
    report.ends.iter().try_for_each(|found| end(plan, found))?;
    match report.ends.len() {
        0 if report.is_gone || report.client == ClientName::Minimal => Ok(()),
        0 => Err("its client waited to the end and has no result".to_owned()),
        1 => Ok(()),
        _ => Err("several results came".to_owned()),
    }
}

/// The lines that a classic peer has said in the whole scene.
fn events(scene: &Scene, worker: WorkerName) -> Vec<Value> {
    let said = fs::read_to_string(scene.log(&format!("{worker:?}.log"))).unwrap_or_default();
    said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What workers of the first generation got is what was sent, and nothing that was sent and read is
/// missing.
fn payloads(scene: &Scene, plan: &Plan, reports: &Reports) -> Verdict {
    let seen: BTreeSet<String> = events(scene, WorkerName::Minimal)
        .iter()
        .filter(|event| event["event"] == "assigned")
        .map(|event| event["payload_sha256"].as_str().unwrap().to_owned())
        .collect();
    for report in &reports.opaque {
        let was_read = match report.client {
            ClientName::Minimal => {
                !report.is_gone
                    && !plan.has(|harm| {
                        matches!(
                            harm,
                            Harm::Kill(Target::Leader, _)
                                | Harm::Cut(Target::Client(ClientName::Minimal))
                                | Harm::FullData(_)
                        )
                    })
            }
            ClientName::Submit
            | ClientName::PackIndex
            | ClientName::Classic
            | ClientName::Correlating
            | ClientName::Leaver => report.ends == [End::Right],
        };
        if was_read && !seen.contains(&report.sha256) {
            return Err(format!("no worker got what {:?} sent as {}", report.client, report.job));
        }
    }
    Ok(())
}

/// Clients that come back under their name get what they have not got, once.
fn results_come_once(scene: &Scene, plan: &Plan, reports: &Reports) -> Verdict {
    for client in [ClientName::Leaver, ClientName::Classic] {
        let gone = reports.jobs.iter().any(|report| report.client == client && report.is_gone);
        if !gone || client == ClientName::Leaver && !plan.comes_back {
            continue;
        }
        let results = clients::come_back(&scene.shared, client, plan);
        let mut times: BTreeMap<Uuid, usize> = BTreeMap::new();
        for (job, result) in &results {
            let report =
                reports.jobs.iter().find(|report| report.client == client && report.job == *job);
            let Some(report) = report else {
                return Err(format!(
                    "{client:?} came back and got a result of somebody else's job {job}"
                ));
            };
            let count = times.entry(*job).or_default();
            *count += 1;
            if *count + report.ends.len() > 1 {
                return Err(format!(
                    "{client:?} came back and got the result of {job} again: {report:#?}"
                ));
            }
            if client == ClientName::Classic {
                let got = Got {
                    is_ok: result.status == JobStatus::Ok,
                    stdout: result.stdout.clone().into_bytes(),
                    stderr: result.stderr.clone(),
                    made: result.output_archive.as_deref().and_then(made_in),
                };
                end(plan, &clients::judge_classic(&scene.shared, &report.work, &got))
                    .map_err(|why| format!("{client:?} came back for {job}: {why}\n{report:#?}"))?;
            }
        }
    }
    Ok(())
}

// --- what is left

/// What is still under way.
fn idle(scene: &Scene) -> Option<String> {
    let Some(status) = scene.status() else { return Some("no status".to_owned()) };
    let (leader, jobs) = (&status["leader"], &status["jobs"]);
    let is_quiet = ["queued", "running"].iter().all(|name| jobs[name] == 0)
        && ["buffers_promised", "buffers_in_use", "payload_bytes"]
            .iter()
            .all(|name| leader[name] == 0)
        && leader["log_trouble"].is_null();
    let mut free: BTreeMap<&str, usize> = BTreeMap::new();
    let workers = status["workers"].as_array().unwrap();
    for worker in workers.iter().filter(|worker| worker["connected"] == true) {
        let class = worker["class"].as_str().unwrap();
        let credit = if class == "minimal" { 1 } else { 4 };
        if worker["running"] == 0 && worker["credit"] == credit {
            *free.entry(class).or_default() += 1;
        }
    }
    let all = BTreeMap::from([("heft", 3), ("minimal", 1), ("stock", 2)]);
    let is_free = free == all && workers.iter().all(|worker| worker["running"] == 0);
    (!is_quiet || !is_free).then(|| format!("{status:#}"))
}

/// Only what belongs to results is kept.
fn blobs(scene: &mut Scene, plan: &Plan) -> Verdict {
    let ask = |scene: &Scene, args: &[&str]| -> Result<Value, String> {
        let addr = scene.shared.leader();
        let (code, out, err) =
            procs::heft(&[&["blob", &addr], args, &["--output", "json"]].concat());
        if code != Some(0) {
            return Err(format!("heft blob {args:?} ends with {code:?}: {out}{err}"));
        }
        serde_json::from_str(&out).map_err(|error| format!("{error}: {out}"))
    };
    eventually(scene, "blobs of inputs are gone", |scene| {
        let listed = ask(scene, &["ls", "--limit", "1000000"]);
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => return Some(error),
        };
        // Those of failed jobs stay for a retry.
        let line = ["job", "ls", "-l", &scene.shared.leader(), "--state", "failed", "-o", "quiet"];
        let (code, failed, err) = procs::heft(&[&line[..], &["--limit", "1000000"]].concat());
        if code != Some(0) {
            return Some(err);
        }
        let inputs: Vec<&Value> = listed["blobs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|blob| blob["purpose"] == "input")
            .filter(|blob| !failed.contains(blob["job_id"].as_str().unwrap()))
            .collect();
        (!inputs.is_empty()).then(|| format!("{inputs:#?}"))
    })?;
    // A leader that was killed may leave files that it had not noted.
    let orphans = ask(scene, &["gc", "--dry-run"])?;
    if orphans["orphans"] != 0 && !plan.has(|harm| matches!(harm, Harm::Kill(Target::Leader, _))) {
        return Err(format!("files of blobs that nothing refers to: {orphans:#}"));
    }
    ask(scene, &["gc"])?;
    eventually(scene, "every file belongs to a blob", |scene| {
        let listed = match ask(scene, &["ls", "--limit", "1000000"]) {
            Ok(listed) => listed,
            Err(error) => return Some(error),
        };
        let known: BTreeSet<String> = listed["blobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|blob| blob["blob"].as_str().unwrap().replace('-', ""))
            .collect();
        let entries = ["spool", "blobs"].map(|dir| fs::read_dir(scene.data_dir().join(dir)));
        let names = entries.into_iter().flatten().flatten().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        let others: Vec<String> = names
            .filter(|name| {
                !name.starts_with("free-") && !known.contains(name.trim_end_matches(".map"))
            })
            .collect();
        (!others.is_empty()).then(|| format!("{others:#?}"))
    })?;
    let verified = procs::heft(&["blob", &scene.shared.leader(), "verify"]);
    if verified.0 != Some(0) {
        return Err(format!("blobs are not as they were written: {verified:?}"));
    }
    Ok(())
}

/// Directories of jobs in the work directory that all workers share. Classic workers never remove
/// theirs, so the test does.
fn directories(scene: &Scene) -> Option<String> {
    let classic: BTreeSet<String> = [WorkerName::Classic(0), WorkerName::Classic(1)]
        .into_iter()
        .flat_map(|worker| events(scene, worker))
        .filter(|event| event["event"] == "assigned")
        .filter_map(|event| event["job_id"].as_str().map(|job| job.replace('-', "")))
        .collect();
    let list = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let mut left = list(&scene.work_dir().join("heft"));
    for name in list(scene.work_dir()) {
        if classic.contains(&name) {
            fs::remove_dir_all(scene.work_dir().join(&name)).ok();
        } else if name != "heft" {
            left.push(name);
        }
    }
    (!left.is_empty()).then(|| format!("{left:?}"))
}

/// Memory and descriptors do not grow from round to round.
fn measures(scene: &mut Scene) -> Result<String, String> {
    let Some(pid) = scene.leader_pid() else { return Err("no leader".to_owned()) };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    // Files of blobs stay open, up to a limit of their own.
    let blobs = scene.data_dir().join("blobs");
    let descriptors = open.filter(|path| !path.starts_with(&blobs)).count();
    let life = scene.leader_life();
    let (_, first) = *scene.descriptors.insert(match scene.descriptors {
        Some((of, first)) if of == life => (of, first),
        _ => (life, descriptors),
    });
    if resident > MEMORY_MAX {
        return Err(format!(
            "the leader holds {resident} bytes in memory, and nothing is under way"
        ));
    }
    if descriptors > first + DESCRIPTORS_MORE_MAX {
        return Err(format!("the leader has {descriptors} descriptors open; it had {first}"));
    }
    Ok(format!("the leader has {} MiB and {descriptors} descriptors", resident >> 20))
}
