//! Tracks open questions until they are answered: the asker, the work required, and the frames of
//! the answer.
//!
//! A state machine of its own: [`QuestionEvent`]s in, actions out through [`Questions::poll`]. It
//! sees no session, broker or blob. [`QuestionAction::Look`] asks the part of the leader with the
//! data, which replies with [`QuestionEvent::Answered`], now or later.

pub(super) mod answer_frames;
mod job_waits;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chunking::message::AnswerStatus;
use serde_json::Value;
use tracing::warn;
use uuid::Uuid;

use super::relay::BlobId;
use crate::answers::ask::{self, Ask, Question, Verb, Which};
use crate::answers::{
    Cancelled, Checked, Failure, JobState, LISTED_MAX, Purged, Requeued, Retried, Waited,
    WaitedJob, Was,
};
use crate::core::action::{OperateError, Operated, Standing};
use crate::core::event::Operation;
use crate::core::ids::{ConnId, JobId, Micros, Token};
use crate::store::blobs::Listed;
use job_waits::JobWaits;

/// Questions of one connection whose answers are still to come. Our own clients ask a quarter of
/// that at a time.
const QUESTIONS_WAITING_MAX: usize = 256;

/// Bytes of the name that who asks gives himself.
const NAME_BYTES_MAX: usize = 255;

/// How often files that nothing refers to are looked for.
const LIST_EVERY: Duration = Duration::from_secs(300);

/// Characters of an error.
const ERROR_CHARS_MAX: usize = 4000;

/// A question that waits for its answer, which carries this back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) conn: ConnId,
    pub(super) verb: Verb,
    pub(super) id: Uuid,
}

/// Who asked for a list of blob files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lister {
    /// The leader itself, from time to time.
    Own,
    /// Somebody who asked.
    Asked {
        /// The question to answer.
        by: Asked,
        /// Whether nothing is to be removed.
        dry_run: bool,
    },
}

/// Something that happened.
#[derive(Debug)]
pub(super) enum QuestionEvent {
    /// A connection asks. `peer` is how logs call it.
    Asked {
        by: Asked,
        json: Vec<u8>,
        peer: Arc<str>,
    },
    /// A connection wants something done, and waits for no answer.
    Wished(Operation),
    /// The part of the leader that was asked answers.
    Answered {
        by: Asked,
        answer: Result<Value, Failure>,
    },
    /// Whoever was asked for the ends of jobs has looked: these have ended, and these have not.
    JobsStand {
        by: Asked,
        /// Whether the first end is enough.
        any: bool,
        ended: Vec<WaitedJob>,
        left: BTreeSet<JobId>,
    },
    /// A watched job has ended.
    JobEnded {
        job: JobId,
        state: JobState,
    },
    /// An answer does not fit its frames.
    DoesNotFit {
        by: Asked,
    },
    /// The broker has done an operation, or has not.
    Operated {
        token: Token,
        answer: Result<Operated, OperateError>,
    },
    /// The log takes nothing: who waits for an operation hears why.
    LogStuck {
        trouble: String,
    },
    /// Time has passed: the leader itself may want to know which blobs have files.
    Tick(Micros),
    Listed(Result<Vec<Listed>, String>),
    /// A blob is there and can be checked for somebody.
    CanCheck {
        by: Asked,
        blob: BlobId,
    },
    /// It was: chunks that are as they were written, and what is wrong with others.
    Checked {
        blob: BlobId,
        result: Result<(Vec<u32>, Vec<String>), String>,
    },
    /// A connection ended.
    Closed(ConnId),
}

/// Something to do.
#[derive(Debug, PartialEq)]
pub(super) enum QuestionAction {
    /// Find the answer.
    Look { by: Asked, question: Question },
    /// Say when a job has ended, by [`QuestionEvent::JobEnded`].
    Watch { job: JobId },
    /// The same is not needed any more.
    Unwatch { job: JobId },
    /// Hand an operation to the broker.
    Operate { token: Token, operation: Operation },
    /// Remove files that wait to be reused.
    MakeRoom,
    /// List the files of blobs.
    List,
    /// Find the files that nothing refers to among these.
    Sweep { lister: Lister, listed: Vec<Listed> },
    /// Read a blob and check it.
    Check { blob: BlobId },
    /// Send an answer, which has these parts.
    Send { by: Asked, parts: Vec<String> },
    /// Send an error.
    Fail { by: Asked, json: String },
}

/// The questions of all connections.
#[derive(Debug)]
pub(super) struct Questions {
    /// Whether the leader has a disk, so that there are files to ask for.
    durable: bool,
    /// How many questions of a connection wait. Those for results are not among them: they wait for
    /// the line.
    waiting: HashMap<ConnId, usize>,
    /// Those that wait for the ends of jobs.
    job_waits: JobWaits,
    /// Operations that the broker has not answered, with who asked for them.
    operations: HashMap<Token, Asked>,
    token: Token,
    /// Who asked for lists of blob files, in the order of the answers.
    listers: VecDeque<Lister>,
    /// Who asked for a check of each blob.
    checks: HashMap<BlobId, Vec<Asked>>,
    /// When the leader itself lists the files next.
    list_at: Option<Micros>,
    actions: VecDeque<QuestionAction>,
}

impl Questions {
    pub(super) fn new(durable: bool) -> Self {
        Questions {
            durable,
            waiting: HashMap::new(),
            job_waits: JobWaits::default(),
            operations: HashMap::new(),
            token: Token(0),
            listers: VecDeque::new(),
            checks: HashMap::new(),
            list_at: None,
            actions: VecDeque::new(),
        }
    }

    /// From then on files that nothing refers to are looked for.
    pub(super) fn list_from(&mut self, at: Micros) {
        self.list_at = Some(at);
    }

    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.list_at
    }

    /// The next thing to do.
    pub(super) fn poll(&mut self) -> Option<QuestionAction> {
        self.actions.pop_front()
    }

    pub(super) fn handle(&mut self, event: QuestionEvent) {
        match event {
            QuestionEvent::Asked { by, json, peer } => self.asked(by, &json, peer),
            QuestionEvent::Wished(operation) => self.operate(None, operation),
            QuestionEvent::Answered { by, answer } => self.answer(by, answer),
            QuestionEvent::JobsStand { by, any, ended, left } => {
                self.jobs_stand(by, any, ended, left)
            }
            QuestionEvent::JobEnded { job, state } => {
                let (answered, unwanted) = self.job_waits.ended(job, &state);
                for job_waits::Answered { by, waited } in answered {
                    self.answer_with::<ask::JobWait>(by, &waited);
                }
                self.unwatch(unwanted);
            }
            QuestionEvent::DoesNotFit { by } => {
                self.fail(by, "the answer does not fit a frame: ask for less")
            }
            QuestionEvent::Operated { token, answer } => self.operated(token, answer),
            QuestionEvent::LogStuck { trouble } => {
                let text = format!(
                    "{trouble}; the request is not durable yet: it completes when there is room, \
                     unless the leader stops first; see `heft status`"
                );
                for (_, by) in std::mem::take(&mut self.operations) {
                    self.answer(by, Err(text.clone().into()));
                }
            }
            QuestionEvent::Tick(now) => {
                if self.list_at.take_if(|due| *due <= now).is_some() {
                    self.list_at = Some(now.plus(LIST_EVERY));
                    self.list(Lister::Own);
                }
            }
            QuestionEvent::Listed(result) => self.listed(result),
            QuestionEvent::CanCheck { by, blob } => {
                self.checks.entry(blob).or_default().push(by);
                self.actions.push_back(QuestionAction::Check { blob });
            }
            QuestionEvent::Checked { blob, result } => {
                let (good, bad) = match result {
                    Ok((good, bad)) => (good.len() as u64, bad),
                    Err(error) => (0, vec![error]),
                };
                let checked = Checked { blob: blob.to_string(), good, bad };
                for by in self.checks.remove(&blob).unwrap_or_default() {
                    self.answer_with::<ask::BlobVerify>(by, &checked);
                }
            }
            QuestionEvent::Closed(conn) => {
                self.waiting.remove(&conn);
                self.operations.retain(|_, by| by.conn != conn);
                self.checks.values_mut().for_each(|by| by.retain(|by| by.conn != conn));
                let unwanted = self.job_waits.closed(conn);
                self.unwatch(unwanted);
            }
        }
    }

    fn asked(&mut self, by: Asked, json: &[u8], peer: Arc<str>) {
        let waiting = self.waiting.get(&by.conn).copied().unwrap_or(0);
        if waiting >= QUESTIONS_WAITING_MAX {
            let text = format!(
                "{waiting} questions of this connection wait for their answers; the limit is \
                 {QUESTIONS_WAITING_MAX}: ask again when some have arrived"
            );
            return self.fail(by, text);
        }
        let question = match Question::read(&by.verb, json) {
            Ok(question) => question,
            Err(text) => return self.fail(by, text),
        };
        if counts(&by) {
            *self.waiting.entry(by.conn).or_default() += 1;
        }
        match question {
            Question::DlqRequeue(ask::DlqRequeue { which }) => {
                self.operate(Some(by), Operation::Revive { job: one_of(&which) });
            }
            Question::JobRetry(ask::JobRetry { job_id }) => {
                self.operate(Some(by), Operation::Retry { job: JobId(job_id) });
            }
            Question::DlqPurge(ask::DlqPurge { which }) => {
                self.operate(Some(by), Operation::Purge { job: one_of(&which) });
            }
            Question::Cancel(ask::Cancel { job_id, by: name }) => {
                let name = name.and_then(named).unwrap_or(peer);
                self.operate(Some(by), Operation::Cancel { job: JobId(job_id), by: name });
            }
            Question::BlobGc(_) if !self.durable => {
                self.answer(by, Err(nothing_to("collect").into()))
            }
            Question::BlobVerify(_) if !self.durable => {
                self.answer(by, Err(nothing_to("verify").into()))
            }
            Question::BlobGc(ask::BlobGc { dry_run }) => {
                if !dry_run {
                    // Files that wait to be reused also count as orphans.
                    self.actions.push_back(QuestionAction::MakeRoom);
                }
                self.list(Lister::Asked { by, dry_run });
            }
            Question::JobWait(ask::JobWait { job_ids, .. }) if job_ids.len() > LISTED_MAX => {
                let text = format!(
                    "the question names {} jobs; the limit is {LISTED_MAX}: ask for them in \
                     several questions",
                    job_ids.len()
                );
                self.answer(by, Err(text.into()));
            }
            question @ (Question::Status(_)
            | Question::StatusPage(_)
            | Question::GetResult(_)
            | Question::JobLs(_)
            | Question::JobShow(_)
            | Question::JobWait(_)
            | Question::DlqLs(_)
            | Question::DlqShow(_)
            | Question::BlobLs(_)
            | Question::BlobVerify(_)
            | Question::DatasetLs(_)
            | Question::DatasetStatus(_)
            | Question::DatasetRm(_)
            | Question::DatasetVerify(_)
            | Question::DatasetPush(_)
            | Question::Explain(_)) => {
                self.actions.push_back(QuestionAction::Look { by, question })
            }
        }
    }

    /// Answers a question for the ends of jobs, or holds it open.
    fn jobs_stand(&mut self, by: Asked, any: bool, ended: Vec<WaitedJob>, left: BTreeSet<JobId>) {
        if left.is_empty() || any && !ended.is_empty() {
            return self.answer_with::<ask::JobWait>(by, &Waited { jobs: ended });
        }
        match self.job_waits.add(by.clone(), any, ended, left) {
            Ok(new) => {
                self.actions.extend(new.into_iter().map(|job| QuestionAction::Watch { job }));
            }
            Err(text) => self.answer(by, Err(text.into())),
        }
    }

    fn unwatch(&mut self, jobs: Vec<JobId>) {
        self.actions.extend(jobs.into_iter().map(|job| QuestionAction::Unwatch { job }));
    }

    /// Hands an operation to the broker; its answer comes when it is committed.
    fn operate(&mut self, by: Option<Asked>, operation: Operation) {
        self.token = self.token.next();
        self.operations.extend(by.map(|by| (self.token, by)));
        self.actions.push_back(QuestionAction::Operate { token: self.token, operation });
    }

    fn operated(&mut self, token: Token, answer: Result<Operated, OperateError>) {
        let Some(by) = self.operations.remove(&token) else { return };
        match answer {
            Ok(Operated::Cancelled { was }) => {
                self.answer_with::<ask::Cancel>(by, &Cancelled { was: was.into() });
            }
            Ok(Operated::Revived { jobs }) => {
                self.answer_with::<ask::DlqRequeue>(by, &Requeued { requeued: jobs as u64 });
            }
            Ok(Operated::Retried { run }) => {
                self.answer_with::<ask::JobRetry>(by, &Retried { run: run.0 });
            }
            Ok(Operated::Purged { jobs }) => {
                self.answer_with::<ask::DlqPurge>(by, &Purged { purged: jobs as u64 });
            }
            Err(error) => self.answer(by, Err(error.into())),
        }
    }

    fn list(&mut self, lister: Lister) {
        self.listers.push_back(lister);
        self.actions.push_back(QuestionAction::List);
    }

    fn listed(&mut self, result: Result<Vec<Listed>, String>) {
        let Some(lister) = self.listers.pop_front() else { return };
        match (result, lister) {
            (Ok(listed), lister) => {
                self.actions.push_back(QuestionAction::Sweep { lister, listed })
            }
            (Err(error), Lister::Own) => {
                warn!("cannot look for orphaned files: {error}")
            }
            (Err(error), Lister::Asked { by, .. }) => self.answer(by, Err(error.into())),
        }
    }

    fn answer_with<Q: Ask>(&mut self, by: Asked, answer: &Q::Answer) {
        self.answer(by, written(answer).map_err(Failure::from));
    }

    fn answer(&mut self, by: Asked, answer: Result<Value, Failure>) {
        if counts(&by)
            && let Some(waiting) = self.waiting.get_mut(&by.conn)
        {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.waiting.remove(&by.conn);
            }
        }
        match answer {
            Ok(answer) => {
                let parts = answer_frames::parts(answer);
                self.actions.push_back(QuestionAction::Send { by, parts });
            }
            Err(failure) => self.fail(by, failure),
        }
    }

    fn fail(&mut self, by: Asked, failure: impl Into<Failure>) {
        let Failure { error, code } = failure.into();
        let error = error.chars().take(ERROR_CHARS_MAX).collect();
        let json = serde_json::to_string(&Failure { error, code }).unwrap_or_default();
        self.actions.push_back(QuestionAction::Fail { by, json });
    }
}

/// An answer as JSON.
pub(super) fn written(answer: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(answer).map_err(|error| format!("the answer cannot be written: {error}"))
}

/// Whether a question is among those of its connection that are counted.
fn counts(by: &Asked) -> bool {
    by.verb != ask::GetResult::VERB
}

fn nothing_to(what: &str) -> String {
    format!("this leader keeps nothing (--durability memory), so there is nothing to {what}")
}

fn one_of(which: &Which) -> Option<JobId> {
    match which {
        Which::One(job) => Some(JobId(*job)),
        Which::All => None,
    }
}

/// What somebody calls himself, if it can be shown to others.
fn named(name: String) -> Option<Arc<str>> {
    let is_shown = !name.trim().is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(|c: char| c.is_control());
    is_shown.then(|| name.into())
}

impl From<OperateError> for Failure {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::Unknown { .. }
            | OperateError::Forgotten { .. }
            | OperateError::NotDead { .. } => Failure::not_found(error.to_string()),
            OperateError::Ended { .. }
            | OperateError::Part { .. }
            | OperateError::NotAgain { .. } => error.to_string().into(),
        }
    }
}

impl From<Standing> for Was {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Queued => Was::Queued,
            Standing::Assigned => Was::Assigned,
            Standing::Running => Was::Running,
            Standing::Finished => Was::Finished,
        }
    }
}

/// How the parts of an answer are called in its frames: only the last ends it.
pub(super) fn statuses(parts: usize) -> impl Iterator<Item = AnswerStatus> {
    (1..=parts)
        .map(move |at| if at == parts { AnswerStatus::Whole } else { AnswerStatus::MoreFollows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const JOB: Uuid = Uuid::from_u128(7);

    fn asked(conn: u64, verb: &str, id: u128) -> Asked {
        Asked { conn: ConnId(conn), verb: verb.to_owned().into(), id: Uuid::from_u128(id) }
    }

    fn ask(questions: &mut Questions, by: &Asked, question: &Value) {
        let (by, json) = (by.clone(), question.to_string().into_bytes());
        questions.handle(QuestionEvent::Asked { by, json, peer: "client-1".into() });
    }

    /// All that is to be done.
    fn actions(questions: &mut Questions) -> Vec<QuestionAction> {
        std::iter::from_fn(|| questions.poll()).collect()
    }

    fn sent(by: &Asked, answer: &Value) -> QuestionAction {
        QuestionAction::Send { by: by.clone(), parts: vec![answer.to_string()] }
    }

    fn failed(by: &Asked, error: &str) -> QuestionAction {
        QuestionAction::Fail { by: by.clone(), json: json!({ "error": error }).to_string() }
    }

    #[test]
    fn what_others_know_they_are_asked_for_and_their_answer_is_sent() {
        let mut questions = Questions::new(true);
        let by = asked(1, "explain", 1);
        ask(&mut questions, &by, &json!({ "job_id": JOB }));
        let question = Question::Explain(ask::Explain { job_id: JOB });
        assert_eq!(actions(&mut questions), [QuestionAction::Look { by: by.clone(), question }]);
        let answer = json!({ "phase": "queued" });
        questions.handle(QuestionEvent::Answered { by: by.clone(), answer: Ok(answer.clone()) });
        assert_eq!(actions(&mut questions), [sent(&by, &answer)]);
        questions.handle(QuestionEvent::Answered { by: by.clone(), answer: Err("unknown".into()) });
        assert_eq!(actions(&mut questions), [failed(&by, "unknown")]);
        questions.handle(QuestionEvent::DoesNotFit { by: by.clone() });
        assert_eq!(
            actions(&mut questions),
            [failed(&by, "the answer does not fit a frame: ask for less")]
        );
    }

    #[test]
    fn an_operation_is_answered_when_the_broker_has_done_it_and_once() {
        let mut questions = Questions::new(true);
        let by = asked(1, "cancel", 1);
        ask(&mut questions, &by, &json!({ "job_id": JOB }));
        let operation = Operation::Cancel { job: JobId(JOB), by: "client-1".into() };
        assert_eq!(
            actions(&mut questions),
            [QuestionAction::Operate { token: Token(1), operation }]
        );
        for _ in 0..2 {
            let answer = Ok(Operated::Cancelled { was: Standing::Running });
            questions.handle(QuestionEvent::Operated { token: Token(1), answer });
        }
        assert_eq!(actions(&mut questions), [sent(&by, &json!({ "was": "running" }))]);

        // What a frame of its own wants done has nobody to answer.
        let operation = Operation::Cancel { job: JobId(JOB), by: "client-1".into() };
        questions.handle(QuestionEvent::Wished(operation.clone()));
        assert_eq!(
            actions(&mut questions),
            [QuestionAction::Operate { token: Token(2), operation }]
        );
        let answer = Err(OperateError::Unknown { job: JobId(JOB) });
        questions.handle(QuestionEvent::Operated { token: Token(2), answer });
        assert_eq!(actions(&mut questions), []);
    }

    #[test]
    fn those_that_wait_for_a_log_that_takes_nothing_hear_so() {
        let mut questions = Questions::new(true);
        let by = asked(1, "dlq.purge", 1);
        ask(&mut questions, &by, &json!({ "all": true }));
        actions(&mut questions);
        questions.handle(QuestionEvent::LogStuck { trouble: "the disk is full".to_owned() });
        let [QuestionAction::Fail { by: told, json }] = &actions(&mut questions)[..] else {
            panic!("an error")
        };
        assert!(
            *told == by && json.contains("the disk is full; the request is not durable yet"),
            "{json}"
        );
        let answer = Ok(Operated::Purged { jobs: 3 });
        questions.handle(QuestionEvent::Operated { token: Token(1), answer });
        assert_eq!(actions(&mut questions), [], "it is answered once");
    }

    #[test]
    fn a_connection_has_so_many_questions_waiting_and_results_are_not_among_them() {
        let mut questions = Questions::new(true);
        let which = json!({ "cache_id": "set" });
        for id in 0..QUESTIONS_WAITING_MAX as u128 {
            ask(&mut questions, &asked(1, "dataset.status", id), &which);
        }
        assert_eq!(actions(&mut questions).len(), QUESTIONS_WAITING_MAX);
        let over = asked(1, "dataset.status", 999);
        ask(&mut questions, &over, &which);
        let [QuestionAction::Fail { json, .. }] = &actions(&mut questions)[..] else {
            panic!("an error")
        };
        assert!(json.contains("256 questions of this connection wait"), "{json}");
        ask(&mut questions, &asked(2, "dataset.status", 1), &which);
        assert_eq!(actions(&mut questions).len(), 1, "others may ask");

        let first = asked(1, "dataset.status", 0);
        questions.handle(QuestionEvent::Answered { by: first.clone(), answer: Ok(json!({})) });
        let result = asked(1, "result", 5);
        for _ in 0..3 {
            ask(&mut questions, &result, &json!({ "job_id": JOB }));
        }
        assert_eq!(actions(&mut questions).len(), 4);
        questions.handle(QuestionEvent::Answered { by: result, answer: Err("not ended".into()) });
        ask(&mut questions, &over, &which);
        assert!(
            matches!(
                &actions(&mut questions)[..],
                [QuestionAction::Fail { .. }, QuestionAction::Look { .. }]
            ),
            "one was answered, so there is room for one"
        );
        questions.handle(QuestionEvent::Closed(ConnId(1)));
        ask(&mut questions, &over, &which);
        assert_eq!(actions(&mut questions).len(), 1);
    }

    #[test]
    fn a_question_for_the_ends_of_jobs_is_answered_at_once_or_held_open_until_they_have_ended() {
        let mut questions = Questions::new(true);
        let (by, other) = (asked(1, "job.wait", 1), JobId(Uuid::from_u128(8)));
        let row =
            |job: JobId| WaitedJob { job_id: job.to_string(), state: JobState::Done, why: None };
        let look = |by: &Asked, any| QuestionAction::Look {
            by: by.clone(),
            question: Question::JobWait(ask::JobWait { job_ids: vec![JOB], any }),
        };
        ask(&mut questions, &by, &json!({ "job_ids": [JOB] }));
        assert_eq!(actions(&mut questions), [look(&by, false)]);
        let stand = |questions: &mut Questions, by: &Asked, any, ended, left: &[JobId]| {
            let (by, left) = (by.clone(), left.iter().copied().collect());
            questions.handle(QuestionEvent::JobsStand { by, any, ended, left });
        };
        stand(&mut questions, &by, false, vec![row(other)], &[]);
        let both = |first: JobId, second: JobId| json!({ "jobs": [{ "job_id": first.0, "state": "done" }, { "job_id": second.0, "state": "done" }] });
        let one = |job: JobId| json!({ "jobs": [{ "job_id": job.0, "state": "done" }] });
        assert_eq!(actions(&mut questions), [sent(&by, &one(other))]);
        assert!(questions.waiting.is_empty());

        ask(&mut questions, &by, &json!({ "job_ids": [JOB], "any": true }));
        assert_eq!(actions(&mut questions), [look(&by, true)]);
        stand(&mut questions, &by, true, vec![row(other)], &[JobId(JOB)]);
        assert_eq!(actions(&mut questions), [sent(&by, &one(other))]);

        stand(&mut questions, &by, false, vec![row(other)], &[JobId(JOB)]);
        assert_eq!(actions(&mut questions), [QuestionAction::Watch { job: JobId(JOB) }]);
        let gone = asked(2, "job.wait", 3);
        stand(&mut questions, &gone, false, Vec::new(), &[JobId(JOB), other]);
        assert_eq!(actions(&mut questions), [QuestionAction::Watch { job: other }]);
        questions.handle(QuestionEvent::Closed(ConnId(2)));
        assert_eq!(actions(&mut questions), [QuestionAction::Unwatch { job: other }]);
        questions.handle(QuestionEvent::JobEnded { job: JobId(JOB), state: JobState::Done });
        assert_eq!(actions(&mut questions), [sent(&by, &both(other, JobId(JOB)))]);
    }

    #[test]
    fn one_question_waits_for_no_more_jobs_than_a_list_has() {
        let mut questions = Questions::new(true);
        let by = asked(1, "job.wait", 1);
        let ids: Vec<Uuid> = (0..=LISTED_MAX as u128).map(Uuid::from_u128).collect();
        ask(&mut questions, &by, &json!({ "job_ids": ids }));
        let text =
            "the question names 1001 jobs; the limit is 1000: ask for them in several questions";
        assert_eq!(actions(&mut questions), [failed(&by, text)]);
        assert!(questions.waiting.is_empty());
    }

    #[test]
    fn lists_of_files_are_answered_in_their_order_and_a_blob_is_checked_for_all_that_ask() {
        let mut questions = Questions::new(true);
        let by = asked(1, "blob.gc", 1);
        let at = Micros(9);
        questions.list_from(at);
        questions.handle(QuestionEvent::Tick(Micros(8)));
        assert_eq!((questions.poll(), questions.next_deadline()), (None, Some(at)));
        questions.handle(QuestionEvent::Tick(at));
        assert_eq!(questions.next_deadline(), Some(at.plus(LIST_EVERY)));
        ask(&mut questions, &by, &json!({ "dry_run": false }));
        assert_eq!(
            actions(&mut questions),
            [QuestionAction::List, QuestionAction::MakeRoom, QuestionAction::List]
        );
        questions.handle(QuestionEvent::Listed(Err("the disk is gone".to_owned())));
        assert_eq!(actions(&mut questions), [], "the leader itself asked first");
        questions.handle(QuestionEvent::Listed(Ok(Vec::new())));
        let lister = Lister::Asked { by, dry_run: false };
        assert_eq!(actions(&mut questions), [QuestionAction::Sweep { lister, listed: Vec::new() }]);

        let (one, other) = (asked(1, "blob.verify", 2), asked(2, "blob.verify", 3));
        for by in [&one, &other] {
            questions.handle(QuestionEvent::CanCheck { by: by.clone(), blob: JOB });
        }
        assert_eq!(
            actions(&mut questions),
            [QuestionAction::Check { blob: JOB }, QuestionAction::Check { blob: JOB }]
        );
        questions.handle(QuestionEvent::Checked {
            blob: JOB,
            result: Ok((vec![1, 2], vec!["chunk 3".to_owned()])),
        });
        let answer = json!({ "blob": JOB, "good": 2, "bad": ["chunk 3"] });
        assert_eq!(actions(&mut questions), [sent(&one, &answer), sent(&other, &answer)]);
    }

    #[test]
    fn a_leader_that_keeps_nothing_has_no_files_to_look_after() {
        let mut questions = Questions::new(false);
        for (verb, question) in [("blob.gc", json!({})), ("blob.verify", json!({ "blob": JOB }))] {
            ask(&mut questions, &asked(1, verb, 1), &question);
            let [QuestionAction::Fail { json, .. }] = &actions(&mut questions)[..] else {
                panic!("{verb}")
            };
            assert!(json.contains("keeps nothing (--durability memory)"), "{json}");
        }
        assert!(questions.waiting.is_empty());
    }
}
