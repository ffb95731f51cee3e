//! How a job ended and where it ran: what the result says, and what the leader knows beside it.
//! `heft submit`, `heft result get` and `heft job show` say it with these words.

use std::io::{self, IsTerminal};
use std::time::Duration;

use chunking::message::Features;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tracing::level_filters::LevelFilter;
use uuid::Uuid;

use super::progress::Progress;
use super::{Output, about, is_quiet, note};
use crate::answers::{JobRow, JobState, ask};
use crate::client::Client;
use crate::model::{JobResult, JobStatus};
use crate::units::Span;

/// A leader that is slower is not waited for: the result is here.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Where a job ran. An older leader, a classic one and one that forgot the job say nothing.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(Option<JobRow>);

impl Whereabouts {
    /// Asks the leader, if it will be shown.
    pub(crate) async fn ask(
        client: &Client,
        job: Uuid,
        output: Output,
        progress: Progress,
    ) -> Whereabouts {
        let is_wanted = match output {
            Output::Json | Output::Jsonl => true,
            Output::Table => is_line_wanted(progress),
            Output::Quiet => false,
        };
        if !is_wanted || !client.can(Features::ASK) {
            return Whereabouts::default();
        }
        let answered = timeout(ANSWER_WAIT, client.ask(&ask::JobShow { job_id: job })).await;
        Whereabouts(answered.ok().and_then(Result::ok).map(|answered| answered.answer.job))
    }

    /// Says it in a line, if the leader said something.
    pub(crate) fn say(&self, job: Uuid) {
        if let Some(line) = self.line() {
            note(&format!("job {job}: {line}"));
        }
    }

    fn line(&self) -> Option<String> {
        let row = self.0.as_ref()?;
        let worker = row.worker_name.as_ref().or(row.worker.as_ref())?;
        let mut line = format!("worker {worker}, attempt {}", row.attempt);
        let times = [("queued", queued_ms(row)), ("ran", ran_ms(row))];
        for (what, ms) in times {
            if let Some(ms) = ms {
                line.push_str(&format!(", {what} {}", about(Duration::from_millis(ms))));
            }
        }
        Some(line)
    }

    /// Adds it to what is printed for programs, with how the job ended.
    pub(crate) fn put(&self, members: &mut Map<String, Value>) {
        let row = self.0.as_ref();
        if row.is_some_and(|row| row.state == JobState::Cancelled) {
            members.insert("ended".to_owned(), json!("cancelled"));
        }
        let attempt = row.map(|row| row.attempt).filter(|attempt| *attempt > 0);
        for (name, value) in [
            ("worker", json!(row.and_then(|row| row.worker.as_ref()))),
            ("worker_name", json!(row.and_then(|row| row.worker_name.as_ref()))),
            ("attempt", json!(attempt)),
            ("queued_ms", json!(row.and_then(queued_ms))),
            ("ran_ms", json!(row.and_then(ran_ms))),
        ] {
            members.insert(name.to_owned(), value);
        }
    }
}

/// Scripts that read standard error see no line that they did not ask for.
fn is_line_wanted(progress: Progress) -> bool {
    let is_watched = io::stderr().is_terminal() && progress == Progress::Auto;
    let is_verbose = LevelFilter::current() >= LevelFilter::INFO && progress != Progress::Json;
    (is_watched || is_verbose) && !is_quiet()
}

/// From when the leader got the job until the worker had it. Of a further run it is not known when
/// that was asked for.
fn queued_ms(row: &JobRow) -> Option<u64> {
    row.submitted_ms
        .zip(row.assigned_ms)
        .filter(|_| row.run <= 1)
        .map(|(from, to)| from.saturating_sub(to))
}

/// From when the worker had the job until its result was here.
fn ran_ms(row: &JobRow) -> Option<u64> {
    row.assigned_ms.zip(row.ended_ms).map(|(from, to)| from.saturating_sub(to))
}

/// How a job ended, in a word; none for a status of which nothing is known here.
pub(crate) fn ended(result: &JobResult) -> Option<&'static str> {
    Some(match &result.status {
        JobStatus::Ok => "ok",
        JobStatus::Cancelled => "cancelled",
        JobStatus::Duplicate => "duplicate",
        JobStatus::Failed if result.is_lost() => "lost",
        JobStatus::Failed if result.dead => "dead",
        JobStatus::Failed if result.timed_out_ms.is_some() => "timed-out",
        JobStatus::Failed if was_cancelled(result) => "cancelled",
        JobStatus::Failed => "failed",
        JobStatus::Other(_) => return None,
    })
}

/// Whether a result that says FAILED is what a leader makes for a job that was cancelled: no
/// program ended for it.
pub(crate) fn was_cancelled(result: &JobResult) -> bool {
    let says_so = result.stderr.trim_start_matches("heft: ").starts_with("cancelled by ");
    says_so && result.exit_code.is_none() && result.signal.is_none() && result.stdout.is_empty()
}

/// What ended a program that did not end OK, to stand behind the word FAILED.
pub(crate) fn how_it_failed(result: &JobResult) -> String {
    match (result.timed_out_ms, result.signal, result.exit_code) {
        (Some(limit), ..) => format!(", {}", timed_out(limit)),
        (None, Some(signal), _) => format!(", it was ended by {}", signal_text(signal)),
        (None, None, Some(code)) => format!(", its exit code is {code}"),
        (None, None, None) => String::new(),
    }
}

/// That a job ran past its time limit.
pub(crate) fn timed_out(limit_ms: u64) -> String {
    format!("it ran longer than its --time-limit of {}", Span(Duration::from_millis(limit_ms)))
}

/// A signal with its name: `signal 11 (SIGSEGV)`.
pub(crate) fn signal_text(signal: i32) -> String {
    let name = usize::try_from(signal).ok().and_then(|at| SIGNALS.get(at.checked_sub(1)?));
    name.map_or_else(|| format!("signal {signal}"), |name| format!("signal {signal} (SIG{name})"))
}

/// The signals of Linux from 1 on, by their names. A worker on another architecture may number a
/// few of them otherwise.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> JobResult {
        JobResult::new(Uuid::nil(), "c", "x", JobStatus::Failed)
    }

    #[test]
    fn a_job_ends_in_one_of_few_words() {
        let of = |status| JobResult { status, ..failed() };
        let cancelled = "heft: cancelled by alice".to_owned();
        for (result, word) in [
            (of(JobStatus::Ok), Some("ok")),
            (of(JobStatus::Cancelled), Some("cancelled")),
            (of(JobStatus::Duplicate), Some("duplicate")),
            (of(JobStatus::Other("ODD".to_owned())), None),
            (failed(), Some("failed")),
            (JobResult { dead: true, ..failed() }, Some("dead")),
            (JobResult { timed_out_ms: Some(5), ..failed() }, Some("timed-out")),
            (JobResult { signal: Some(9), ..failed() }, Some("failed")),
            (JobResult { stderr: cancelled.clone(), ..failed() }, Some("cancelled")),
            // A program may print what it likes.
            (JobResult { stderr: cancelled, exit_code: Some(1), ..failed() }, Some("failed")),
        ] {
            assert_eq!(ended(&result), word, "{result:?}");
        }
    }

    #[test]
    fn what_ended_a_program_is_said_with_its_name_and_its_limit() {
        let of = |timed_out_ms, signal, exit_code| {
            how_it_failed(&JobResult { timed_out_ms, signal, exit_code, ..failed() })
        };
        assert_eq!(of(None, None, None), "");
        assert_eq!(of(None, None, Some(3)), ", its exit code is 3");
        assert_eq!(of(None, Some(11), None), ", it was ended by signal 11 (SIGSEGV)");
        assert_eq!(of(Some(500), None, None), ", it ran longer than its --time-limit of 500ms");
        for (signal, text) in
            [(1, "signal 1 (SIGHUP)"), (31, "signal 31 (SIGSYS)"), (34, "signal 34")]
        {
            assert_eq!(signal_text(signal), text);
        }
        assert_eq!((signal_text(0), signal_text(-1)), ("signal 0".into(), "signal -1".into()));
    }

    #[test]
    fn a_line_has_what_the_leader_knows_and_no_more() {
        let row = |run, worker_name: Option<&str>| JobRow {
            worker: Some("w-1".to_owned()),
            worker_name: worker_name.map(str::to_owned),
            attempt: 2,
            run,
            submitted_ms: Some(9_400),
            assigned_ms: Some(7_400),
            ended_ms: Some(4_000),
            ..JobRow::default()
        };
        let line = |row: JobRow| Whereabouts(Some(row)).line();
        let named = row(1, Some("host-1"));
        assert_eq!(line(named).unwrap(), "worker host-1, attempt 2, queued 2s, ran 3.4s");
        assert_eq!(line(row(2, None)).unwrap(), "worker w-1, attempt 2, ran 3.4s");
        let untimed = JobRow { assigned_ms: None, ..row(1, None) };
        assert_eq!(line(untimed).unwrap(), "worker w-1, attempt 2");
        assert_eq!(line(JobRow::default()), None, "no worker had it");
        assert_eq!(Whereabouts::default().line(), None);
    }

    #[test]
    fn programs_read_every_member_and_null_for_what_nobody_said() {
        let mut members = Map::new();
        Whereabouts::default().put(&mut members);
        let nothing = json!({
            "worker": null, "worker_name": null, "attempt": null, "queued_ms": null, "ran_ms": null,
        });
        assert_eq!(Value::Object(members.clone()), nothing);
        let cancelled = JobRow { state: JobState::Cancelled, ..JobRow::default() };
        Whereabouts(Some(cancelled)).put(&mut members);
        assert_eq!((&members["ended"], &members["attempt"]), (&json!("cancelled"), &json!(null)));
    }
}
