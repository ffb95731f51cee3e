//! Answers questions about jobs: a page of a list, one job in full, and the ends of jobs
//! (docs/protocol.md, "Questions").
//!
//! A page is taken from the index of jobs in the order in which they came
//! ([`State::newest`](crate::core::state::State::newest)), from the newest on. A question looks at
//! a bounded number of jobs, whatever its filters find among them, and says where to go on: so a
//! list of a million jobs costs the leader no more at a time than a short one.

use std::collections::BTreeSet;

use serde::Serialize;

use super::gathered::children;
use super::payloads::Input;
use super::questions::QuestionEvent;
use super::questions::answer_frames::cut;
use super::{Asked, Leader};
use crate::answers::ask;
use crate::answers::{
    AttemptRow, ChildRow, Failure, InputFrom, InputRow, JobPage, JobRow, JobShown, JobState,
    LISTED_MAX, RequestShown, ResultShown, WaitedJob,
};
use crate::core::ids::{JobId, Micros, ResultId, WorkerId};
use crate::core::job::{EarlierAttempt, Ending, Job, Phase};
use crate::core::record::AttemptEnd;
use crate::model::{BlobRef, InputFile, JobRequest, JobResult, JsonModel, Source};
use crate::store::replay::Key;
use crate::summed::Summed;
use crate::units::ByteSize;

/// Jobs that one question for a list looks at. That takes the leader a few milliseconds.
const JOBS_LOOKED_AT_MAX: usize = 10_000;

/// Jobs of a page, unless the question says fewer.
const PAGE_JOBS_MAX: usize = LISTED_MAX;

/// Bytes of the texts of a page. The last row may go beyond.
const PAGE_TEXT_BYTES_MAX: usize = 1 << 20;

/// States that a question for a list names, each perhaps twice.
const STATES_ASKED_MAX: usize = 16;

/// Bytes of another text that it names.
const ASKED_TEXT_BYTES_MAX: usize = 65_535;

/// Bytes of the lists of an answer about one job.
const SHOWN_BYTES_MAX: usize = 256 << 10;

impl Leader {
    /// A page of the jobs that a question is for.
    pub(super) fn job_ls(&self, question: &ask::JobLs) -> Result<JobPage, Failure> {
        check_list(question)?;
        for state in &question.states {
            if let JobState::Unknown | JobState::Other(_) = state {
                let known = JobState::NAMES.iter().filter(|name| **name != "unknown");
                return Err(format!(
                    "\"{state}\" is not a state of a job: ask for {}",
                    known.copied().collect::<Vec<_>>().join(", ")
                )
                .into());
            }
        }
        let limit = question.limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.unwrap_or(PAGE_JOBS_MAX).clamp(1, PAGE_JOBS_MAX);
        let since =
            question.since_ms.map(|ms| Micros(self.now.0.saturating_sub(ms.saturating_mul(1_000))));
        let (mut page, mut last, mut bytes) = (JobPage::default(), None, 0);
        for (looked, job) in self.broker.state().newest(question.after).enumerate() {
            if page.jobs.len() == limit
                || looked == JOBS_LOOKED_AT_MAX
                || bytes >= PAGE_TEXT_BYTES_MAX
            {
                page.next = last;
                break;
            }
            last = Some(job.seq);
            // Those behind it came before.
            if let (Some(since), Some(at)) = (since, job.times.submitted)
                && at < since
            {
                break;
            }
            if is_meant(question, job) {
                let row = self.job_row(job);
                bytes += text_bytes(&row);
                page.jobs.push(row);
            }
        }
        Ok(page)
    }

    fn job_row(&self, job: &Job) -> JobRow {
        let last = job.history.last();
        let (worker, assigned, ended) = match &job.phase {
            Phase::Queued { .. } | Phase::Gathering { .. } => (None, None, None),
            Phase::Leased { worker, .. } => (Some(*worker), job.times.assigned, None),
            Phase::Done { at, ending: Ending::Returned { worker, .. } } => {
                (Some(*worker), job.times.assigned, Some(*at))
            }
            Phase::Done { at, .. } | Phase::Dead { at, .. } => {
                (last.map(|note| note.worker), last.and_then(|note| note.began), Some(*at))
            }
        };
        JobRow {
            job_id: job.id().to_string(),
            seq: job.seq,
            client_id: cut(&job.submission.client.0),
            exec: cut(&job.submission.exec),
            tag: job.submission.tag.as_ref().map(ToString::to_string),
            state: state_of(job),
            uploading: job.is_announced() && !job.has_ended(),
            priority: job.submission.priority,
            run: job.run.0,
            attempt: job.attempt.0,
            spent: job.spent,
            size: job.submission.size,
            worker: worker.map(|worker| worker.to_string()),
            worker_name: worker.and_then(|worker| self.name_of_worker(worker)),
            submitted_ms: self.ms_ago(job.times.submitted),
            assigned_ms: self.ms_ago(assigned),
            ended_ms: self.ms_ago(ended),
        }
    }

    fn ms_ago(&self, at: Option<Micros>) -> Option<u64> {
        at.map(|at| u64::try_from(self.now.since(at).as_millis()).unwrap_or(u64::MAX))
    }

    /// What a worker calls itself, if it is known.
    fn name_of_worker(&self, worker: WorkerId) -> Option<String> {
        let name = self.broker.worker(worker)?.name.to_string();
        Some(cut(&name)).filter(|name| !name.is_empty())
    }

    /// The payloads that an answer about one job is made of: its request and its result, if they
    /// are held.
    pub(super) fn payloads_to_show(&self, id: JobId) -> Vec<Key> {
        let Some(job) = self.broker.state().job(id) else { return Vec::new() };
        let result = job.returned().map(|(_, result)| Key::Result(result));
        result.into_iter().chain([self.payload_of_job(id)]).collect()
    }

    /// All about one job. Its payloads are in memory, or are lost.
    pub(super) fn job_show(&self, id: JobId) -> Result<JobShown, Failure> {
        let state = self.broker.state();
        let job = state.job(id).ok_or_else(|| self.broker.not_known(id))?;
        let owner = job.child_of.map_or(id, |(parent, _)| parent);
        let request = self.payloads.held.input(owner).filter(|input| input.payload.is_sound());
        let child = |child: &Job| {
            let worker = child.child_of.map(|(_, worker)| worker);
            ChildRow {
                job_id: child.id().to_string(),
                worker: worker.map(|worker| worker.to_string()).unwrap_or_default(),
                worker_name: worker.and_then(|worker| self.name_of_worker(worker)),
                state: state_of(child),
            }
        };
        let mut shown = JobShown {
            job: self.job_row(job),
            key: cut(job.submission.key.as_str()),
            to_all: job.submission.to_all,
            waits: self.explain(id)?.waits,
            why: why_ended(job),
            delivered: job.delivered,
            can_retry: job.may_run_again(),
            request: request.and_then(|Input { payload, .. }| {
                JobRequest::parse(&payload).ok().as_ref().map(request_shown)
            }),
            attempts: self.attempts_of(job),
            children: children(&self.broker, job).take(LISTED_MAX).map(child).collect(),
            result: job.returned().map(|(_, result)| self.result_shown(result)),
            left_out: None,
        };
        fit(&mut shown);
        Ok(shown)
    }

    /// The attempts of a job: those of earlier runs, those of this run that ended without a result,
    /// then the one that has the job, or that ended it.
    fn attempts_of(&self, job: &Job) -> Vec<AttemptRow> {
        let mut rows: Vec<AttemptRow> =
            job.earlier.iter().map(|attempt| self.earlier_attempt(job, attempt)).collect();
        rows.extend(self.attempts_of_run(job));
        rows
    }

    fn earlier_attempt(&self, job: &Job, of: &EarlierAttempt) -> AttemptRow {
        AttemptRow {
            run: Some(of.run.0),
            attempt: of.attempt.0,
            worker: of.worker.to_string(),
            worker_name: self.name_of_worker(of.worker),
            began_ms: self.ms_ago(of.began),
            ended_ms: self.ms_ago(of.ended),
            why: match of.why {
                Some(why) => self.why_over(job, of.worker, why),
                None => "it ended FAILED".to_owned(),
            },
        }
    }

    /// How an attempt ended without a result. Of a program that could not be started it is known
    /// what the worker said, as long as it is not given that program.
    fn why_over(&self, job: &Job, worker: WorkerId, why: AttemptEnd) -> String {
        let refusal = self.broker.refusal(worker, &job.submission.exec);
        let refusal = refusal.filter(|_| why == AttemptEnd::NoProgram);
        match refusal.map(|refusal| &*refusal.why).filter(|said| !said.is_empty()) {
            Some(said) => format!("{}: {said}", why.text()),
            None => why.text().to_owned(),
        }
    }

    fn attempts_of_run(&self, job: &Job) -> Vec<AttemptRow> {
        let row = |attempt, worker: WorkerId, began, ended, why: &str| AttemptRow {
            run: Some(job.run.0),
            attempt,
            worker: worker.to_string(),
            worker_name: self.name_of_worker(worker),
            began_ms: self.ms_ago(began),
            ended_ms: self.ms_ago(ended),
            why: why.to_owned(),
        };
        let notes = job.history.iter();
        let mut rows: Vec<AttemptRow> = notes
            .map(|note| {
                let why = self.why_over(job, note.worker, note.why);
                row(note.attempt.0, note.worker, note.began, note.ended, &why)
            })
            .collect();
        let (attempt, began) = (job.attempt.0, job.times.assigned);
        match &job.phase {
            Phase::Leased { worker, .. } => rows.push(row(attempt, *worker, began, None, "")),
            Phase::Done { at, ending: Ending::Returned { ok, worker, .. } } => {
                let why = if *ok { "it ended OK" } else { "it ended FAILED" };
                let is_noted = job.history.last().is_some_and(|note| note.attempt == job.attempt);
                let late = job.history.iter().rposition(|note| note.worker == *worker);
                match late.filter(|_| is_noted).and_then(|at| rows.get_mut(at)) {
                    // Its worker was late, and the first all the same (C07).
                    Some(row) => row.why.push_str(&format!("; its result came later: {why}")),
                    None => rows.push(row(attempt, *worker, began, Some(*at), why)),
                }
            }
            Phase::Queued { .. }
            | Phase::Gathering { .. }
            | Phase::Done { .. }
            | Phase::Dead { .. } => {}
        }
        rows
    }

    fn result_shown(&self, result: ResultId) -> ResultShown {
        let payload = self.payloads.held.result(result).filter(Summed::is_sound);
        let Some(payload) = payload else {
            let why = self.payloads.held.why_lost(Key::Result(result));
            let lost = Some(why.unwrap_or("the leader cannot read it at present").to_owned());
            return ResultShown { status: "LOST".to_owned(), lost, ..ResultShown::default() };
        };
        let Ok(result) = JobResult::parse(&payload) else {
            let stdout_bytes = payload.len() as u64;
            return ResultShown {
                status: "RAW".to_owned(),
                stdout_bytes,
                ..ResultShown::default()
            };
        };
        let of = |blob: &Option<BlobRef>, inline: usize| {
            blob.as_ref().map_or(inline as u64, |blob| blob.size)
        };
        ResultShown {
            stdout_bytes: of(&result.stdout_blob, result.stdout.len()),
            stderr_bytes: of(&result.stderr_blob, result.stderr.len()),
            archive_bytes: of(&result.archive, result.output_archive.as_ref().map_or(0, Vec::len)),
            status: result.status.as_str().to_owned(),
            exit_code: result.exit_code,
            signal: result.signal,
            timed_out_ms: result.timed_out_ms,
            lost: None,
        }
    }

    /// Somebody asks for the ends of jobs.
    pub(super) fn jobs_stand(&mut self, by: Asked, question: &ask::JobWait) {
        let (mut ended, mut left, mut seen) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for id in question.job_ids.iter().copied().map(JobId) {
            if !seen.insert(id) {
                continue;
            }
            if self.broker.has_yet_to_end(id) {
                left.insert(id);
            } else {
                let why = self.broker.why_forgotten(id).map(|why| why.text().to_owned());
                let state = self.state_of_job(id);
                ended.push(WaitedJob { job_id: id.to_string(), state, why });
            }
        }
        self.questions(QuestionEvent::JobsStand { by, any: question.any, ended, left });
    }

    /// A job has ended that somebody waits for.
    pub(super) fn job_has_ended(&mut self, job: JobId) {
        let state = self.state_of_job(job);
        self.questions(QuestionEvent::JobEnded { job, state });
    }

    fn state_of_job(&self, id: JobId) -> JobState {
        self.broker.state().job(id).map_or(JobState::Unknown, state_of)
    }
}

/// How a job stands, in a word.
pub(super) fn state_of(job: &Job) -> JobState {
    match &job.phase {
        Phase::Queued { .. } => JobState::Queued,
        Phase::Leased { .. } => JobState::Running,
        Phase::Gathering { .. } => JobState::Gathering,
        Phase::Dead { .. } => JobState::Dead,
        Phase::Done { ending, .. } => match ending {
            Ending::Returned { ok: true, .. } | Ending::Gathered { ok: true } => JobState::Done,
            Ending::Returned { ok: false, .. }
            | Ending::Gathered { ok: false }
            | Ending::Orphaned
            | Ending::Failed { .. } => JobState::Failed,
            Ending::Cancelled { .. } => JobState::Cancelled,
        },
    }
}

/// Who or what ended a job without a result of a worker.
pub(super) fn why_ended(job: &Job) -> Option<String> {
    match &job.phase {
        Phase::Dead { why, .. } => Some(why.text().to_owned()),
        Phase::Done { ending, .. } => match ending {
            Ending::Cancelled { by } => Some(format!("cancelled by {by}")),
            Ending::Failed { why } => Some(why.to_string()),
            Ending::Orphaned => Some("the worker is gone".to_owned()),
            Ending::Returned { .. } | Ending::Gathered { .. } => None,
        },
        Phase::Queued { .. } | Phase::Leased { .. } | Phase::Gathering { .. } => None,
    }
}

/// Whether a job is among those that a question is for.
fn is_meant(question: &ask::JobLs, job: &Job) -> bool {
    let ask::JobLs { states, client, exec, tag, .. } = question;
    let of = &job.submission;
    (states.is_empty() || states.contains(&state_of(job)))
        && client.as_ref().is_none_or(|client| is_of(client, &of.client.0))
        && exec.as_ref().is_none_or(|exec| **exec == *of.exec)
        && tag.as_ref().is_none_or(|tag| of.tag.as_deref() == Some(tag))
}

/// Whether a client id is this one, or one of those that `heft submit` makes of it: with a slash
/// and something of its own behind it.
fn is_of(client: &str, id: &str) -> bool {
    let more = id.strip_prefix(client);
    more.is_some_and(|more| more.is_empty() || more.starts_with('/'))
}

/// What a question for a list names, and is not too much.
fn check_list(question: &ask::JobLs) -> Result<(), Failure> {
    let states = question.states.len();
    if states > STATES_ASKED_MAX {
        return Err(format!(
            "the question names {states} states; the limit is {STATES_ASKED_MAX}: name each once, \
             or none for all"
        )
        .into());
    }
    for (what, text) in
        [("client", &question.client), ("exec", &question.exec), ("tag", &question.tag)]
    {
        let bytes = text.as_ref().map_or(0, String::len);
        if bytes > ASKED_TEXT_BYTES_MAX {
            return Err(format!(
                "the \"{what}\" of the question has {bytes} bytes; the limit is \
                 {ASKED_TEXT_BYTES_MAX}: ask for less, and filter the rows"
            )
            .into());
        }
    }
    Ok(())
}

/// Bytes of the texts of a row that peers choose.
fn text_bytes(row: &JobRow) -> usize {
    let names = [&row.tag, &row.worker_name];
    let names = names.into_iter().flatten().map(String::len).sum::<usize>();
    row.client_id.len() + row.exec.len() + names
}

/// Leaves out of an answer about one job what would make it too long: its newest attempts come
/// first, then its children, its arguments and its inputs.
fn fit(shown: &mut JobShown) {
    let (mut room, mut left_out) = (SHOWN_BYTES_MAX, Vec::new());
    shown.attempts.reverse();
    let mut note = |(count, one, many)| match count {
        0 => {}
        1 => left_out.push(format!("1 {one}")),
        count => left_out.push(format!("{count} {many}")),
    };
    note((keep(&mut shown.attempts, &mut room), "attempt", "attempts"));
    shown.attempts.reverse();
    note((keep(&mut shown.children, &mut room), "part", "parts"));
    if let Some(request) = &mut shown.request {
        request.args.iter_mut().for_each(|arg| *arg = cut(arg));
        note((keep(&mut request.args, &mut room), "argument", "arguments"));
        note((keep(&mut request.inputs, &mut room), "input", "inputs"));
    }
    if !left_out.is_empty() {
        shown.left_out = Some(format!(
            "not shown, as an answer has at most {}: {}",
            ByteSize(SHOWN_BYTES_MAX as u64),
            left_out.join(", ")
        ));
    }
}

/// Keeps as much of a list as there is room for; says how many items are left out.
fn keep<T: Serialize>(items: &mut Vec<T>, room: &mut usize) -> usize {
    let all = items.len();
    let fits = items.iter().take_while(|item| {
        let bytes = serde_json::to_string(item).map_or(usize::MAX, |json| json.len() + 1);
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(0);
        left.is_some()
    });
    let kept = fits.count();
    items.truncate(kept);
    all - kept
}

fn request_shown(request: &JobRequest) -> RequestShown {
    let input = |file: &InputFile| {
        let (from, size) = match file.source() {
            Source::Inline(bytes) => (InputFrom::Request, Some(bytes.len() as u64)),
            Source::Streamed { bytes } => (InputFrom::Request, Some(bytes)),
            Source::Blob(blob) => (InputFrom::Transfer, Some(blob.size)),
            Source::Cache(_) => (InputFrom::Dataset, None),
            Source::Url(_) => (InputFrom::Url, None),
            Source::Nothing => (InputFrom::Nothing, None),
        };
        let cache_id = file.cache_id.clone().filter(|id| !id.is_empty());
        let cache_id = cache_id.as_deref().map(cut);
        InputRow { name: cut(&file.name), from, size, cache_id }
    };
    RequestShown {
        args: request.args.iter().take(LISTED_MAX).cloned().collect(),
        args_count: request.args.len() as u64,
        inputs: request.files.iter().take(LISTED_MAX).map(input).collect(),
        inputs_count: request.files.len() as u64,
        time_limit_ms: request.time_limit_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_meant_with_all_that_submit_made_of_its_id() {
        for (id, is_so) in [
            ("ann@host-1", true),
            ("ann@host-1/5f2c", true),
            ("ann@host-12", false),
            ("ann@host-12/5f2c", false),
            ("ann@host", false),
            ("", false),
        ] {
            assert_eq!(is_of("ann@host-1", id), is_so, "{id}");
        }
    }

    #[test]
    fn a_question_for_a_list_names_so_much_and_no_more() {
        let states = |count| vec![JobState::Done; count];
        let question = |states, text: usize| ask::JobLs {
            states,
            exec: Some("x".repeat(text)),
            client: None,
            tag: None,
            since_ms: None,
            limit: None,
            after: None,
        };
        assert!(check_list(&question(states(STATES_ASKED_MAX), ASKED_TEXT_BYTES_MAX)).is_ok());
        let many = check_list(&question(states(STATES_ASKED_MAX + 1), 0)).unwrap_err().error;
        assert!(many.contains("names 17 states; the limit is 16"), "{many}");
        let long = check_list(&question(states(0), ASKED_TEXT_BYTES_MAX + 1)).unwrap_err().error;
        assert!(long.contains("\"exec\"") && long.contains("65536 bytes; the limit"), "{long}");
    }

    #[test]
    fn an_answer_about_one_job_is_cut_and_says_what_is_left_out() {
        let attempt = |number| AttemptRow { attempt: number, ..AttemptRow::default() };
        let child = ChildRow { worker_name: Some("w".repeat(900)), ..ChildRow::default() };
        let small = JobShown {
            attempts: (1..=3).map(attempt).collect(),
            children: vec![child.clone(); 2],
            request: Some(RequestShown { args: vec!["x".to_owned()], ..RequestShown::default() }),
            ..JobShown::default()
        };
        let mut same = small.clone();
        fit(&mut same);
        assert_eq!(same, small);

        let row = InputRow { name: "n".repeat(1_000), ..InputRow::default() };
        let request = RequestShown {
            args: vec!["a".repeat(100_000); 100],
            args_count: 100,
            inputs: vec![row; 1_000],
            inputs_count: 1_000,
            ..RequestShown::default()
        };
        let mut large =
            JobShown { children: vec![child; 100], request: Some(request), ..small.clone() };
        fit(&mut large);
        let json = serde_json::to_string(&large).unwrap();
        assert!((200_000..300_000).contains(&json.len()), "{}", json.len());
        let request = large.request.as_ref().unwrap();
        assert_eq!((large.attempts.len(), large.children.len(), request.args.len()), (3, 100, 100));
        assert!(request.args[0].contains("… (100000 bytes)"));
        let left_out = 1_000 - request.inputs.len();
        let said = large.left_out.unwrap();
        assert!(
            said.contains("256 KiB") && said.contains(&format!(": {left_out} inputs")),
            "{said}"
        );

        // The newest attempts stay.
        let long = |number| AttemptRow { why: "y".repeat(9_000), ..attempt(number) };
        let mut many = JobShown { attempts: (1..=64).map(long).collect(), ..JobShown::default() };
        fit(&mut many);
        assert_eq!(many.attempts.last().unwrap().attempt, 64);
        assert!(many.attempts.len() < 40 && many.left_out.unwrap().ends_with("attempts"));
    }

    #[test]
    fn a_request_is_shown_with_where_each_input_comes_from() {
        let blob = BlobRef { id: uuid::Uuid::from_u128(1), size: 7_000_000, digest: None };
        let request = JobRequest {
            args: (0..1_500).map(|number| number.to_string()).collect(),
            files: vec![
                InputFile::inline("a", b"abc".to_vec()),
                InputFile { name: "b".to_owned(), blob: Some(blob), ..InputFile::default() },
                InputFile::cached("c", "models"),
            ],
            time_limit_ms: Some(5),
            ..JobRequest::default()
        };
        let shown = request_shown(&request);
        assert_eq!((shown.args.len(), shown.args_count, shown.inputs_count), (1_000, 1_500, 3));
        let row = |name: &str, from, size, cache_id: Option<&str>| InputRow {
            name: name.to_owned(),
            from,
            size,
            cache_id: cache_id.map(str::to_owned),
        };
        let rows = [
            row("a", InputFrom::Request, Some(3), None),
            row("b", InputFrom::Transfer, Some(7_000_000), None),
            row("c", InputFrom::Dataset, None, Some("models")),
        ];
        assert_eq!((shown.inputs, shown.time_limit_ms), (rows.to_vec(), Some(5)));
    }
}
