//! Questions on the same port: status, the dead-letter queue, cancel (docs/protocol.md, "Questions").

use std::sync::Arc;
use std::time::Duration;

use chunking::message::AnswerStatus;
use serde_json::{Value, json};
use uuid::Uuid;

use super::collect::Lister;
use super::parts::Named;
use super::tasks::Task;
use super::{Asked, Leader, answers, outcome};
use crate::conn::WireFrame;
use crate::core::Event;
use crate::core::action::{OperateError, Operated, Standing};
use crate::core::event::{Operation, WorkerClass};
use crate::core::ids::{ConnId, JobId, Token};
use crate::core::job::{Job, Phase};
use crate::core::record::Lack;
use crate::core::worker::Worker;
use crate::model::SOFTWARE;
use crate::units::ByteSize;

/// What one answer lists at most.
pub(super) const LISTED_MAX: usize = 1000;

/// Questions of one connection whose answers are still to come. Our own clients ask a quarter of that at a time.
const QUESTIONS_WAITING_MAX: usize = 256;

/// For so long a status shows that a worker handed a job back: jobs that no other takes are tried there again more often.
const LACK_SHOWN_FOR: Duration = Duration::from_secs(600);

/// Patterns of a worker that a status lists.
const PATTERNS_LISTED_MAX: usize = 20;

/// Characters of an error.
const ERROR_CHARS_MAX: usize = 4000;

impl Leader {
    pub(super) fn ask(&mut self, conn: ConnId, verb: &str, id: Uuid, json: &[u8]) {
        let question: Value = match serde_json::from_slice(json) {
            Ok(question) => question,
            Err(_) if json.is_empty() => Value::Null,
            Err(error) => {
                return self.answer_error(conn, verb, id, &format!("the question is no JSON: {error}"));
            }
        };
        let waiting = self.questions_of(conn);
        if waiting >= QUESTIONS_WAITING_MAX {
            let text = format!(
                "{waiting} questions of this connection wait for their answers, and {QUESTIONS_WAITING_MAX} may: ask again when some \
                 have come"
            );
            return self.answer_error(conn, verb, id, &text);
        }
        if let Some(answered) = self.ask_datasets(self.asked(conn, verb, id), &question) {
            return self.answered(conn, verb, id, answered);
        }
        let answered = match verb {
            "status" => {
                // What the next one is told.
                self.relay.measure();
                Ok(Some(self.status()))
            }
            "result" => job_id(&question).and_then(|job| {
                self.pacing.has_room_for_answer(conn)?;
                self.post(conn, Task::Answer { conn, verb: verb.to_owned(), id, job });
                Ok(None)
            }),
            "dlq.ls" => self.dlq_ls(&question).map(Some),
            "dlq.show" => self.dlq_show(&question).map(Some),
            "dlq.requeue" => {
                self.which(&question).map(|job| self.operate(conn, verb, id, Operation::Revive { job }))
            }
            "dlq.purge" => {
                self.which(&question).map(|job| self.operate(conn, verb, id, Operation::Purge { job }))
            }
            "cancel" => job_id(&question).map(|job| {
                let by: Arc<str> = self.name(conn).into();
                self.operate(conn, verb, id, Operation::Cancel { job, by })
            }),
            "explain" => job_id(&question).and_then(|job| self.explain(job)).map(Some),
            "blob.ls" => self.blob_ls(&question).map(Some),
            "blob.gc" => self.blob_gc(self.asked(conn, verb, id), &question).map(|()| None),
            "blob.verify" => self.blob_verify(self.asked(conn, verb, id), &question).map(|()| None),
            other => Err(format!(
                "\"{other}\" is no question this leader knows: ask status, result, dlq.ls, dlq.show, dlq.requeue, \
                 dlq.purge, blob.ls, blob.verify, blob.gc, \
                 dataset.ls, dataset.status, dataset.rm, dataset.verify, dataset.push, \
                 explain or cancel"
            )),
        };
        self.answered(conn, verb, id, answered);
    }

    /// Questions of a connection whose answers are still to come.
    fn questions_of(&self, conn: ConnId) -> usize {
        let listers = self.listers.iter().filter_map(Lister::by);
        let asked = self.asked.values().chain(self.checks.values().flatten()).chain(listers);
        asked.chain(self.datasets.questions()).filter(|asked| asked.conn == conn).count()
    }

    pub(super) fn answered(
        &mut self,
        conn: ConnId,
        verb: &str,
        id: Uuid,
        answered: Result<Option<Value>, String>,
    ) {
        match answered {
            Ok(Some(answer)) => self.answer(conn, verb, id, answer),
            Ok(None) => {}
            Err(text) => self.answer_error(conn, verb, id, &text),
        }
    }

    /// Hands an operation to the broker; its answer comes when it is committed.
    fn operate(&mut self, conn: ConnId, verb: &str, id: Uuid, operation: Operation) -> Option<Value> {
        self.next_token = self.next_token.next();
        self.asked.insert(self.next_token, Asked { conn, verb: verb.to_owned(), id });
        self.broker.handle(self.now, Event::Operate { token: self.next_token, operation });
        if self.log.trouble().is_some() {
            // What can be answered at once is.
            self.act_once();
            self.answer_those_that_wait();
        }
        None
    }

    /// The log takes nothing: those whose operations wait for it hear that now. What they asked for is done when it takes more.
    pub(super) fn answer_those_that_wait(&mut self) {
        let Some(trouble) = self.log.trouble() else { return };
        let text = format!(
            "{trouble}; what was asked for is not certain yet, and is done as soon as there is room, unless the leader is stopped before: \
             see `heft status`"
        );
        for (_, Asked { conn, verb, id }) in std::mem::take(&mut self.asked) {
            self.answer_error(conn, &verb, id, &text);
        }
    }

    pub(super) fn operated(&mut self, token: Token, answer: Result<Operated, OperateError>) {
        let Some(Asked { conn, verb, id }) = self.asked.remove(&token) else { return };
        match answer {
            Ok(Operated::Cancelled { was }) => {
                let was = match was {
                    Standing::Queued => "queued",
                    Standing::Assigned => "assigned",
                    Standing::Running => "running",
                    Standing::Finished => "finished",
                };
                self.answer(conn, &verb, id, json!({ "was": was }));
            }
            Ok(Operated::Revived { jobs }) => {
                self.answer(conn, &verb, id, json!({ "requeued": jobs }));
            }
            Ok(Operated::Purged { jobs }) => {
                self.answer(conn, &verb, id, json!({ "purged": jobs }));
            }
            Err(error) => self.answer_error(conn, &verb, id, &error.to_string()),
        }
    }

    pub(super) fn answer(&mut self, conn: ConnId, verb: &str, id: Uuid, answer: Value) {
        let Some(session) = self.sessions.get(&conn) else { return };
        let parts = answers::parts(answer);
        let last = parts.len().saturating_sub(1);
        let frames = parts.iter().enumerate().map(|(at, part)| {
            let status = if at == last { AnswerStatus::Whole } else { AnswerStatus::MoreFollows };
            session.answer(id, verb, status, part.as_bytes())
        });
        match frames.collect::<Option<Vec<_>>>() {
            Some(frames) => frames.into_iter().for_each(|frame| self.send(conn, Some(frame))),
            None => self.answer_error(conn, verb, id, "the answer does not fit a frame: ask for less"),
        }
    }

    pub(super) fn answer_error(&mut self, conn: ConnId, verb: &str, id: Uuid, text: &str) {
        let text: String = text.chars().take(ERROR_CHARS_MAX).collect();
        let json = json!({ "error": text }).to_string();
        let frame = self
            .sessions
            .get(&conn)
            .and_then(|session| session.answer(id, verb, AnswerStatus::Error, json.as_bytes()));
        self.send(conn, frame);
    }

    /// The result of a job that has ended; its parts follow as transfers.
    pub(super) fn result_answer(
        &mut self,
        conn: ConnId,
        verb: &str,
        id: Uuid,
        job_id: JobId,
    ) -> Result<WireFrame, String> {
        let unknown = || OperateError::Unknown { job: job_id }.to_string();
        let job = self.broker.state().job(job_id).ok_or_else(unknown)?;
        if let Phase::Gathering { left } = job.phase {
            return Err(format!(
                "job {job_id} has not ended: {left} of its {} workers have not: wait for them, or look at `heft status`",
                job.children.len()
            ));
        }
        if !job.has_ended() {
            return Err(format!("job {job_id} has not ended: wait for it, or look at `heft status`"));
        }
        let returned = outcome::returned(job);
        let lost = returned.map(|result| self.lost_parts(result)).unwrap_or_default();
        let whole = outcome::result_of(&self.broker, &self.payloads.held, job, &self.config.address, true);
        let whole = outcome::without_lost(whole, &lost);
        let mut result: Value = serde_json::from_slice(&whole).map_err(|_| {
            format!("the result of job {job_id} is {} bytes that are no JobResult", whole.len())
        })?;
        let frame = |leader: &Leader, result: &Value| {
            let json = json!({ "found": true, "result": result }).to_string();
            leader.sessions.get(&conn)?.answer(id, verb, AnswerStatus::Whole, json.as_bytes())
        };
        // A result that fills a frame does not fit an answer, which has a little more around it: what is long of it goes apart.
        let (mut answer, mut named) = (frame(self, &result), Named::Brought);
        if let (None, Some(returned)) = (&answer, returned)
            && let Some(apart) = self.parts_apart(job_id, returned, &whole)
        {
            result = serde_json::from_slice(&apart).unwrap_or_default();
            (answer, named) = (frame(self, &result), Named::Made);
        }
        let answer = answer.ok_or_else(|| format!("the result of job {job_id} does not fit an answer"))?;
        if let Some(result) = returned {
            self.send_parts(conn, job_id, result, named, true);
        }
        self.hold_children(conn, job_id);
        Ok(answer)
    }

    fn status(&self) -> Value {
        let state = self.broker.state();
        let (mut queued, mut running, mut done, mut dead) = (0u64, 0u64, 0u64, 0u64);
        for job in state.jobs().filter(|job| job.children.is_empty()) {
            match job.phase {
                Phase::Queued { .. } => queued += 1,
                Phase::Leased { .. } | Phase::Gathering { .. } => running += 1,
                Phase::Done { .. } => done += 1,
                Phase::Dead { .. } => dead += 1,
            }
        }
        let workers: Vec<Value> = self
            .broker
            .workers()
            .take(LISTED_MAX)
            .map(|worker| {
                json!({
                    "id": worker.id.to_string(), "name": &*worker.name, "class": class_name(worker.class),
                    "patterns": worker.patterns.iter().take(PATTERNS_LISTED_MAX).collect::<Vec<_>>(),
                    "patterns_more": worker.patterns.len().saturating_sub(PATTERNS_LISTED_MAX),
                    "credit": worker.credit, "running": worker.held.len() - worker.returning(),
                    "returning": worker.returning(), "cpu_permille": worker.cpu_permille,
                    "connected": worker.conn().is_some(), "lacks": self.lacks(worker),
                })
            })
            .collect();
        let queued_by = self.broker.queues().len_by_client();
        let clients: Vec<Value> = self
            .broker
            .clients()
            .take(LISTED_MAX)
            .map(|(client, connections)| {
                json!({
                    "id": client.to_string(), "cap": self.broker.cap_of(client), "in_flight": state.running(client),
                    "queued": queued_by.get(client).copied().unwrap_or(0), "connections": connections,
                })
            })
            .collect();
        let queues = self.broker.queues().keys().take(LISTED_MAX);
        let queues: Vec<Value> =
            queues.map(|(key, jobs)| json!({ "key": key.as_str(), "queued": jobs })).collect();
        let fill = self.relay.fill();
        let (log, room) = (self.log.cost(), self.relay.disk_room());
        let uptime = self.now.since(self.started).as_millis();
        json!({
            "leader": {
                "software": SOFTWARE, "uptime_ms": u64::try_from(uptime).unwrap_or(u64::MAX),
                "driver": self.config.driver, "durability": self.durability(), "draining": self.broker.is_draining(),
                "connections": self.connections, "frames_damaged": self.frames_damaged,
                "acks_refused": self.acks_refused,
                "job_names_bytes": state.names_bytes(), "peer_names_bytes": self.hello_names_bytes,
                "spool_bytes": fill.bytes, "spool_bytes_max": fill.bytes_max, "blobs": fill.blobs,
                "buffers": fill.buffers, "buffers_in_use": fill.buffers_in_use, "buffers_promised": fill.promised,
                "chunks_passed_through": fill.passed_through, "chunks_voided": fill.voided,
                "chunk_bytes_copied": fill.bytes_copied,
                "log_records": log.records, "log_bytes": log.bytes, "log_syncs": log.syncs, "log_sync_us": log.sync_us,
                "log_trouble": self.log.trouble(), "disk_trouble": self.disk_short(),
                "disk_free": room.map(|room| room.space.free), "disk_bytes": room.map(|room| room.space.total),
                "disk_reserve": room.map(|room| room.reserve), "uploads_waiting": room.map(|room| room.waiting),
                "results_waiting": self.results_waiting(),
                "recovered_jobs": self.recovered_jobs,
                "recovery_ms": u64::try_from(self.recovery.as_millis()).unwrap_or(u64::MAX),
                "payload_bytes": self.payloads.held.input_bytes(), "result_bytes": self.payloads.held.result_bytes(),
            },
            "jobs": { "queued": queued, "running": running, "done": done, "dead": dead },
            "workers": workers, "clients": clients, "queues": queues,
        })
    }

    /// What a worker lacked for a job that it handed back lately.
    fn lacks(&self, worker: &Worker) -> Value {
        let lately = worker.lacked.map(|(lack, at)| (lack, self.now.since(at)));
        let Some((lack, ago)) = lately.filter(|(_, ago)| *ago <= LACK_SHOWN_FOR) else { return Value::Null };
        let what = match lack {
            Lack::Room => "room",
            Lack::Directory => "directory",
        };
        json!({ "what": what, "ago_ms": u64::try_from(ago.as_millis()).unwrap_or(u64::MAX) })
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
            1 => format!("{waits}the result of 1 job is among what waits; "),
            results => format!("{waits}the results of {results} jobs are among what waits; "),
        };
        let first = self.relay.first_in_words().map(|first| format!("Uploads wait behind {first}. "));
        let first = first.unwrap_or_default();
        let fill = self.relay.fill();
        let sets = match self.broker.state().dataset_count() {
            0 => "",
            _ => "if datasets that nobody needs are removed (`heft dataset HOST:PORT rm`), ",
        };
        Some(format!(
            "{waits}{} of {} are free, and {} are kept for the log and for results (--disk-reserve). {} are large files and results \
             that the leader keeps. {first}It helps if jobs end or are cancelled (`heft cancel`), if results that nobody has yet are fetched \
             (`heft result get`), {sets}if others free space on that disk, or if the leader gets a larger one (--data)",
            ByteSize(room.space.free),
            ByteSize(room.space.total),
            ByteSize(room.reserve),
            ByteSize(fill.bytes)
        ))
    }

    fn dlq_ls(&self, question: &Value) -> Result<Value, String> {
        let limit =
            question.get("limit").and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
        let after = match question.get("after") {
            None | Some(Value::Null) => None,
            Some(_) => Some(job_id_in(question, "after")?),
        };
        let mut dead = self.broker.state().dead();
        if let Some(after) = after {
            dead.by_ref().find(|job| job.id() == after).ok_or_else(|| not_dead(after))?;
        }
        let jobs: Vec<Value> = dead.by_ref().take(limit).map(|job| self.dead_job(job)).collect();
        Ok(json!({ "jobs": jobs, "more": dead.next().is_some() }))
    }

    fn dlq_show(&self, question: &Value) -> Result<Value, String> {
        let id = job_id(question)?;
        let job = self.broker.state().job(id).filter(|job| matches!(job.phase, Phase::Dead { .. }));
        let job = job.ok_or_else(|| not_dead(id))?;
        let notes = job.history.iter().map(|note| {
            json!({
                "attempt": note.attempt.0, "worker": note.worker.to_string(), "why": note.why.text(),
            })
        });
        let mut shown = self.dead_job(job);
        if let Value::Object(members) = &mut shown {
            members.insert("history".to_owned(), notes.collect());
            members.insert("key".to_owned(), job.submission.key.as_str().into());
            members.insert("size".to_owned(), job.submission.size.into());
        }
        Ok(shown)
    }

    fn dead_job(&self, job: &Job) -> Value {
        let (reason, since) = match job.phase {
            Phase::Dead { at, why } => (why.text(), self.now.since(at).as_millis()),
            Phase::Queued { .. } | Phase::Leased { .. } | Phase::Gathering { .. } | Phase::Done { .. } => {
                ("", 0)
            }
        };
        json!({
            "job_id": job.id().to_string(), "client_id": job.submission.client.to_string(), "exec": &*job.submission.exec, "reason": reason,
            "attempts": job.spent, "run": job.run.0, "dead_ms": u64::try_from(since).unwrap_or(u64::MAX),
        })
    }

    /// One job, or all of them if the question says so.
    fn which(&self, question: &Value) -> Result<Option<JobId>, String> {
        if question.get("all").and_then(Value::as_bool) == Some(true) {
            return Ok(None);
        }
        job_id(question).map(Some)
    }
}

/// What a worker is, in a word.
pub(super) const fn class_name(class: WorkerClass) -> &'static str {
    match class {
        WorkerClass::Leasing => "heft",
        WorkerClass::Classic => "stock",
        WorkerClass::OneAtATime => "minimal",
    }
}

fn not_dead(job: JobId) -> String {
    OperateError::NotDead { job }.to_string()
}

fn job_id(question: &Value) -> Result<JobId, String> {
    job_id_in(question, "job_id")
}

fn job_id_in(question: &Value, member: &str) -> Result<JobId, String> {
    let text = question
        .get(member)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("the question names no {member}"))?;
    text.parse()
        .map(JobId)
        .map_err(|_| format!("\"{text}\" is no job id: it is a Guid such as {}", Uuid::nil()))
}
