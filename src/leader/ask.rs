//! Answers questions on the leader's port (docs/protocol.md, "Questions"): each part of the leader
//! contributes its own state, and this file executes the actions of
//! [`Questions`](super::questions::Questions).

use std::time::Duration;

use chunking::message::AnswerStatus;
use serde::Serialize;
use serde_json::Value;

use super::datasets::DatasetEvent;
use super::parts::Named;
use super::questions::answer_frames::cut;
use super::questions::{QuestionAction, QuestionEvent, statuses, written};
use super::tasks::Task;
use super::{Asked, Leader, Output, outcome};
use crate::answers::LISTED_MAX;
use crate::answers::ask::{self, Question};
use crate::answers::{
    BlobPage, Checked, Counts, DeadJob, DeadPage, DeadShown, Disk, FailedAttempt, Failure, Flagged,
    Found, Jobs, LeaderStatus, QueueRow, Status, WorkerClass,
};
use crate::conn::WireFrame;
use crate::core;
use crate::core::Event;
use crate::core::action::OperateError;
use crate::core::ids::JobId;
use crate::core::job::{Job, Phase};
use crate::model::SOFTWARE;
use crate::store::blobs::DiskOp;
use crate::units::ByteSize;

impl Leader {
    /// Something happened to questions.
    pub(super) fn questions(&mut self, event: QuestionEvent) {
        self.questions.handle(event);
        while let Some(action) = self.questions.poll() {
            match action {
                QuestionAction::Look { by, question } => self.look(by, question),
                QuestionAction::Watch { job } => {
                    self.broker.handle(self.now, Event::Watch { job });
                }
                QuestionAction::Unwatch { job } => {
                    self.broker.handle(self.now, Event::Unwatch { job });
                }
                QuestionAction::Operate { token, operation } => {
                    self.broker.handle(self.now, Event::Operate { token, operation });
                    if self.log.trouble().is_some() {
                        // What can be answered at once is.
                        self.act_once();
                        self.answer_those_that_wait();
                    }
                }
                QuestionAction::MakeRoom => {
                    self.outputs.push_back(Output::Disk(DiskOp::MakeRoom));
                    self.relay.measure();
                }
                QuestionAction::List => self.outputs.push_back(Output::Disk(DiskOp::List)),
                QuestionAction::Sweep { lister, listed } => self.collect(lister, listed),
                QuestionAction::Check { blob } => {
                    self.outputs.push_back(Output::Disk(DiskOp::Check { blob }));
                }
                QuestionAction::Send { by, parts } => {
                    let Some(session) = self.peers.get(by.conn) else { continue };
                    let frames = parts.iter().zip(statuses(parts.len())).map(|(part, status)| {
                        session.answer(by.id, by.verb.as_str(), status, part.as_bytes())
                    });
                    match frames.collect::<Option<Vec<_>>>() {
                        Some(frames) => self.send(by.conn, frames),
                        None => self.questions.handle(QuestionEvent::DoesNotFit { by }),
                    }
                }
                QuestionAction::Fail { by, json } => {
                    let session = self.peers.get(by.conn);
                    let frame = session.and_then(|session| {
                        session.answer(
                            by.id,
                            by.verb.as_str(),
                            AnswerStatus::Error,
                            json.as_bytes(),
                        )
                    });
                    self.send(by.conn, frame);
                }
            }
        }
    }

    /// Finds an answer: some come later.
    fn look(&mut self, by: Asked, question: Question) {
        match question {
            Question::Status(_) => {
                // What the next one is told.
                self.relay.measure();
                self.answered(&by, Ok(self.status()));
            }
            Question::StatusPage(question) => self.answered(&by, self.status_page(&question)),
            Question::GetResult(ask::GetResult { job_id }) => {
                match self.pacing.has_room_for_answer(by.conn) {
                    Ok(()) => self.post(by.conn, Task::Answer { by, job: JobId(job_id) }),
                    Err(text) => self.answer_error(&by, text),
                }
            }
            Question::JobLs(question) => self.answered(&by, self.job_ls(&question)),
            Question::JobShow(ask::JobShow { job_id }) => {
                match self.pacing.has_room_for_answer(by.conn) {
                    Ok(()) => self.post(by.conn, Task::Answer { by, job: JobId(job_id) }),
                    Err(text) => self.answer_error(&by, text),
                }
            }
            Question::JobWait(question) => self.jobs_stand(by, &question),
            Question::DlqLs(question) => {
                self.answered(&by, self.dlq_ls(&question));
            }
            Question::DlqShow(ask::DlqShow { job_id }) => {
                self.answered(&by, self.dlq_show(JobId(job_id)));
            }
            Question::Explain(ask::Explain { job_id }) => {
                self.answered(&by, self.explain(JobId(job_id)));
            }
            Question::BlobLs(ask::BlobLs { after }) => {
                let (blobs, more) = self.relay.list(after, LISTED_MAX);
                let page = BlobPage { blobs, more, durability: self.durability() };
                self.answer(&by, &page);
            }
            Question::BlobVerify(ask::BlobVerify { blob }) => match blob {
                blob if !self.relay.knows(blob) => {
                    let text =
                        format!("blob {blob} is unknown here: `heft blob ls` lists all blobs");
                    self.answer_error(&by, Failure::not_found(text));
                }
                blob if !self.relay.has_file(blob) => {
                    self.answer(&by, &Checked { blob: blob.to_string(), ..Checked::default() });
                }
                blob => self.questions(QuestionEvent::CanCheck { by, blob }),
            },
            question @ (Question::DatasetLs(_)
            | Question::DatasetStatus(_)
            | Question::DatasetRm(_)
            | Question::DatasetVerify(_)
            | Question::DatasetPush(_)) => self.dataset_event(DatasetEvent::Asked { by, question }),
            // These are the questions' own.
            Question::DlqRequeue(_)
            | Question::JobRetry(_)
            | Question::DlqPurge(_)
            | Question::Cancel(_)
            | Question::BlobGc(_) => {}
        }
    }

    pub(super) fn answered<A: Serialize>(&mut self, by: &Asked, answered: Result<A, Failure>) {
        let answer = answered.and_then(|answer| Ok(written(&answer)?));
        self.questions(QuestionEvent::Answered { by: by.clone(), answer });
    }

    pub(super) fn answer<A: Serialize>(&mut self, by: &Asked, answer: &A) {
        self.answered(by, Ok(answer));
    }

    pub(super) fn answer_error(&mut self, by: &Asked, failure: impl Into<Failure>) {
        let answer = Err(failure.into());
        self.questions(QuestionEvent::Answered { by: by.clone(), answer });
    }

    /// The log takes nothing: those whose operations wait for it hear that now. What they asked for
    /// is done when it takes more.
    pub(super) fn answer_those_that_wait(&mut self) {
        if let Some(trouble) = self.log.trouble().map(str::to_owned) {
            self.questions(QuestionEvent::LogStuck { trouble });
        }
    }

    /// The result of a job that has ended; its parts follow as transfers.
    pub(super) fn result_answer(
        &mut self,
        by: &Asked,
        job_id: JobId,
    ) -> Result<WireFrame, Failure> {
        let unknown = || self.broker.not_known(job_id);
        let job = self.broker.state().job(job_id).ok_or_else(unknown)?;
        if let Phase::Gathering { left } = job.phase {
            return Err(format!(
                "job {job_id} has not ended: {left} of its {} workers have not: wait for them, or look at `heft status`",
                job.children.len()
            )
            .into());
        }
        if !job.has_ended() {
            return Err(format!(
                "job {job_id} has not ended: wait for it, or look at `heft status`"
            )
            .into());
        }
        let returned = outcome::returned(job);
        let lost = returned.map(|result| self.lost_parts(result)).unwrap_or_default();
        let whole =
            outcome::result_of(&self.broker, &self.payloads.held, job, &self.config.address, true);
        let whole = outcome::without_lost(whole, &lost);
        let result = serde_json::from_slice(&whole).map_err(|_| {
            format!("the result of job {job_id} is {} bytes that are not a JobResult", whole.len())
        })?;
        let frame = |leader: &Leader, result: Value| {
            let json = written(&Found { found: true, result }).ok()?.to_string();
            let session = leader.peers.get(by.conn)?;
            session.answer(by.id, by.verb.as_str(), AnswerStatus::Whole, json.as_bytes())
        };
        // A result that fills a frame does not fit an answer, which has a little more around it:
        // what is long of it goes apart.
        let (mut answer, mut named) = (frame(self, result), Named::Brought);
        if let (None, Some(returned)) = (&answer, returned)
            && let Some(apart) = self.parts_apart(job_id, returned, &whole)
        {
            let result = serde_json::from_slice(&apart).unwrap_or_default();
            (answer, named) = (frame(self, result), Named::Made);
        }
        let answer =
            answer.ok_or_else(|| format!("the result of job {job_id} does not fit an answer"))?;
        if let Some(result) = returned {
            self.send_parts(by.conn, job_id, result, named, true);
        }
        self.hold_children(by.conn, job_id);
        Ok(answer)
    }

    fn status(&self) -> Status {
        let state = self.broker.state();
        let mut jobs = Jobs::default();
        for job in state.jobs().filter(|job| job.children.is_empty()) {
            match job.phase {
                Phase::Queued { .. } => jobs.queued += 1,
                Phase::Leased { .. } | Phase::Gathering { .. } => jobs.running += 1,
                Phase::Done { .. } => jobs.done += 1,
                Phase::Dead { .. } => jobs.dead += 1,
            }
        }
        let mut flags = self.flags();
        let workers = self.broker.workers().take(LISTED_MAX);
        let workers = workers.map(|worker| self.worker_row(worker, &mut flags)).collect();
        let queued_by = self.broker.queues().len_by_client();
        let clients = self.clients_and_queued(&queued_by);
        let counts = Counts {
            workers: self.broker.workers().count() as u64,
            clients: clients.len() as u64,
            queues: self.broker.queues().keys().count() as u64,
        };
        let clients = clients.into_iter().take(LISTED_MAX);
        let clients = clients.map(|client| self.client_row(client, &queued_by)).collect();
        let queues = self.broker.queues().keys().take(LISTED_MAX);
        let queues =
            queues.map(|(key, jobs)| QueueRow { key: cut(key.as_str()), queued: jobs as u64 });
        Status {
            leader: self.leader_status(),
            jobs,
            workers,
            clients,
            queues: queues.collect(),
            counts: Some(counts),
        }
    }

    fn leader_status(&self) -> LeaderStatus {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        LeaderStatus {
            software: SOFTWARE.to_owned(),
            uptime_ms: ms(self.now.since(self.counters.started)),
            driver: self.config.driver.to_owned(),
            durability: self.durability(),
            draining: self.broker.is_draining(),
            connections: self.peers.open as u64,
            frames_damaged: self.counters.frames_damaged,
            acks_refused: self.counters.acks_refused,
            job_names_bytes: self.broker.state().names_bytes(),
            peer_names_bytes: self.peers.names_bytes(),
            results_waiting: self.results_waiting() as u64,
            recovered_jobs: self.counters.recovered_jobs as u64,
            recovery_ms: ms(self.counters.recovery),
            spool: self.relay.fill().describe(),
            log: self.log.describe(),
            disk: Disk {
                disk_trouble: self.disk_short().or_else(|| self.spool_short()),
                ..self.relay.describe_disk()
            },
            payloads: self.describe_payloads(),
        }
    }

    /// What waits for room on the disk, and what would help.
    fn disk_short(&self) -> Option<String> {
        let room = self.relay.disk_room()?;
        let is_low = room.space.free < room.reserve;
        if !is_low && room.waiting == 0 {
            return self.relay.disk_trouble().map(str::to_owned);
        }
        let waits = match room.waiting {
            0 => String::new(),
            1 => "1 large file waits for room: ".to_owned(),
            waiting => format!("{waiting} large files wait for room: "),
        };
        let waits = match self.results_waiting() {
            0 => waits,
            1 => format!("{waits}the result of 1 job is among them; "),
            results => format!("{waits}the results of {results} jobs are among them; "),
        };
        let first =
            self.relay.first_in_words().map(|first| format!("Uploads wait behind {first}. "));
        let first = first.unwrap_or_default();
        let fill = self.relay.fill();
        let datasets = match self.broker.state().dataset_count() {
            0 => "",
            _ => "remove unneeded datasets (`heft dataset rm`), ",
        };
        Some(format!(
            "{waits}{} of {} are free, and {} are reserved for the log and for results \
             (--disk-reserve). {} are large files and results of the leader. {first}To make room, \
             wait for jobs to end or cancel them (`heft cancel`), fetch results (`heft result \
             get ID --out DIR`), {datasets}free space on that disk, or give the leader a larger one (--data)",
            ByteSize(room.space.free),
            ByteSize(room.space.total),
            ByteSize(room.reserve),
            ByteSize(fill.bytes)
        ))
    }

    /// What waits for room in the spool, and what would help.
    fn spool_short(&self) -> Option<String> {
        let (waiting, why) = self.relay.spool_short()?;
        let waits = match waiting {
            1 => "1 large file waits".to_owned(),
            waiting => format!("{waiting} large files wait"),
        };
        Some(format!(
            "{waits} for room: {why}. To make room, wait for jobs to end or cancel them (`heft \
             cancel`), fetch results (`heft result get ID --out DIR`), remove unneeded datasets \
             (`heft dataset rm`), or start the leader with a larger --spool-max"
        ))
    }

    fn dlq_ls(&self, question: &ask::DlqLs) -> Result<DeadPage, Failure> {
        let limit = question.limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
        let mut dead = self.broker.state().dead();
        if let Some(after) = question.after.map(JobId) {
            dead.by_ref().find(|job| job.id() == after).ok_or_else(|| not_dead(after))?;
        }
        let jobs = dead.by_ref().take(limit).map(|job| self.dead_job(job)).collect();
        Ok(DeadPage { jobs, more: dead.next().is_some() })
    }

    fn dlq_show(&self, id: JobId) -> Result<DeadShown, Failure> {
        let job = self.broker.state().job(id).filter(|job| matches!(job.phase, Phase::Dead { .. }));
        let job = job.ok_or_else(|| not_dead(id))?;
        let history = job.history.iter().map(|note| FailedAttempt {
            attempt: note.attempt.0,
            worker: note.worker.to_string(),
            why: note.why.text().to_owned(),
        });
        let (history, key) = (history.collect(), cut(job.submission.key.as_str()));
        Ok(DeadShown { job: self.dead_job(job), history, key, size: job.submission.size })
    }

    fn dead_job(&self, job: &Job) -> DeadJob {
        let (reason, since) = match job.phase {
            Phase::Dead { at, why } => (why.text(), self.now.since(at).as_millis()),
            Phase::Queued { .. }
            | Phase::Leased { .. }
            | Phase::Gathering { .. }
            | Phase::Done { .. } => ("", 0),
        };
        DeadJob {
            job_id: job.id().to_string(),
            client_id: cut(&job.submission.client.0),
            exec: cut(&job.submission.exec),
            reason: reason.to_owned(),
            attempts: job.spent,
            run: job.run.0,
            dead_ms: u64::try_from(since).unwrap_or(u64::MAX),
        }
    }
}

impl From<core::flagged::Flag> for Flagged {
    fn from(flag: core::flagged::Flag) -> Self {
        let core::flagged::Flag { ended, failed, median_permille } = flag;
        Flagged { program: None, ended, failed, median_permille }
    }
}

impl From<core::event::WorkerClass> for WorkerClass {
    fn from(class: core::event::WorkerClass) -> Self {
        match class {
            core::event::WorkerClass::Leasing => WorkerClass::Heft,
            core::event::WorkerClass::Classic => WorkerClass::Classic,
            core::event::WorkerClass::OneAtATime => WorkerClass::Minimal,
        }
    }
}

fn not_dead(job: JobId) -> Failure {
    OperateError::NotDead { job }.into()
}
