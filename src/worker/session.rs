//! Runs a worker, connected or not: takes jobs, runs them through its handler and returns their
//! results.
//!
//! One task owns everything and waits for the next event. The [`JobTable`] decides; this file turns
//! frames into events and decisions into frames and tasks. `Worker::run` is the only caller.

mod chunks;
mod datasets;
mod greeting;
mod offers;

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chunking::Kind;
use chunking::message::{
    Body as _, Cancel, Features, Open, Progress, Purpose, Refused, Settled, Stage, Start,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::attempt::{Brought, Outcome, Workplace, attempt};
use super::backlog::Backlog;
use super::cache::{self, Cache};
use super::config::WorkerConfig;
use super::credit::CreditLedger;
use super::directory::JobDirectory;
use super::exchange::Exchange;
use super::handler::{Attachment, CancelToken, Handler, Job, Note, StopReason};
use super::hello::hello;
use super::input_download::{InputProgress, Receptions, Step};
use super::job_table::{JobOrder, JobTable, Offer, RunAttempt};
use super::limits::{
    CONNECT_MAX, CPU_SAMPLE, HEARTBEAT, LAZY_WAIT, LEAVE_MAX, RETURNING_DISK_PART, SETTLE_MAX,
    WORKER_GRACE,
};
use super::result_encoding::{Answer, encode, fit};
use super::result_upload::{Returns, Turn};
use super::spool::Spool;
use super::work_dir::WorkDirState;
use crate::cpu::CpuMeter;
use crate::model::{JobResult, JobStatus};
use crate::peer::{InFrame, News, OutFrame, OwnSigns, Patience, Settings, Uplink};
use crate::transfer::Wire;

/// Progress notes of all jobs that wait to be sent; more are dropped.
const NOTES_MAX: usize = 256;

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Jobs that ran to their ends.
    pub ended: u64,
    /// Jobs that were still running when the time to stop was over, and were killed.
    pub killed: usize,
}

struct Ended {
    job: Uuid,
    answer: Answer,
    failed: bool,
    /// It was told to stop: what it answers is not a result.
    given_up: bool,
    directory: Option<JobDirectory>,
}

struct Live {
    cancel: CancelToken,
    numbers: Arc<std::sync::Mutex<RunAttempt>>,
}

/// A running worker.
pub(super) struct Session<H> {
    config: WorkerConfig,
    place: Arc<Workplace>,
    handler: Arc<H>,
    table: JobTable,
    uplink: Uplink,
    jobs: JoinSet<Ended>,
    live: HashMap<Uuid, Live>,
    /// Directories of ended jobs, with whether the job failed.
    directories: HashMap<Uuid, (JobDirectory, bool)>,
    /// Files of results that are on their way.
    files: HashMap<Uuid, Vec<PathBuf>>,
    receptions: Receptions,
    work_dir: WorkDirState,
    cache: Option<Cache>,
    returns: Returns,
    exchange: Exchange,
    /// How many of the frames that go out together are in no hurry, and how long they wait for
    /// company.
    lazy: usize,
    lazy_due: Option<Instant>,
    cleaning: JoinSet<()>,
    spool: Option<Spool>,
    notes: mpsc::Sender<Note>,
    cpu: CpuMeter,
    /// When the processors' use is looked at next.
    sample_due: Instant,
    purse: CreditLedger,
    /// What the leader can do, once that is known.
    leader: Option<Features>,
    /// How long the leader waits for this worker after a lost connection.
    worker_grace: Duration,
    heartbeat_every: Duration,
    heartbeat_due: Option<Instant>,
    stop_due: Option<Instant>,
    settle_due: Option<Instant>,
    summary: Summary,
}

impl<H: Handler> Session<H> {
    pub(super) async fn run(
        config: WorkerConfig,
        (cache, spool): (Option<cache::Opened>, Option<Spool>),
        handler: Arc<H>,
        shutdown: impl Future<Output = ()>,
    ) -> Summary {
        let (notes, mut noted) = mpsc::channel(NOTES_MAX);
        // Both are bounded by what their senders have under way: a window for each input, one note
        // for each upload.
        let (reports, mut reported) = mpsc::unbounded_channel();
        let (uploads, mut uploaded) = mpsc::unbounded_channel();
        // What threads do for the cache: one note for each of them.
        let (cache_news, mut cached) = mpsc::unbounded_channel();
        let place = Workplace {
            worker: config.id,
            work_dir: config.work_dir.clone(),
            time_limit: config.time_limit,
        };
        let work_dir = WorkDirState::default();
        let mut session = Session {
            place: Arc::new(place),
            handler,
            table: JobTable::new(config.parallel_max as usize, backlog(&config)),
            uplink: uplink(&config),
            jobs: JoinSet::new(),
            live: HashMap::new(),
            directories: HashMap::new(),
            files: HashMap::new(),
            receptions: Receptions::new(work_dir.clone()),
            work_dir,
            cache: cache.map(|cache| cache.start(cache_news)),
            returns: Returns::new(uploads),
            exchange: Exchange::new(reports),
            lazy: 0,
            lazy_due: None,
            worker_grace: WORKER_GRACE,
            cleaning: JoinSet::new(),
            spool,
            notes,
            cpu: CpuMeter::default(),
            sample_due: Instant::now(),
            purse: CreditLedger::default(),
            leader: None,
            config,
            heartbeat_every: HEARTBEAT,
            heartbeat_due: None,
            stop_due: None,
            settle_due: None,
            summary: Summary::default(),
        };
        session.load_spool();
        let mut shutdown = pin!(shutdown);
        // One alarm for all that is due. It is set anew only for what is due sooner: when it rings
        // for what has been done meanwhile, nothing is lost, and setting it costs more than most
        // jobs.
        let mut alarm = pin!(sleep_until(Instant::now()));
        let mut set_for: Option<Instant> = None;
        while !session.is_done() {
            let due = session.next_due();
            if set_for.is_none_or(|set_for| due < set_for) {
                alarm.as_mut().reset(due);
                set_for = Some(due);
            }
            tokio::select! {
                news = session.uplink.next(|| session.table.holds_work_of_ours()) => session.on_news(news),
                // A classic leader does not ask for a result again that was sent to an ended
                // connection.
                Some(ended) = session.jobs.join_next(), if !session.uplink.is_ending() => session.on_ended(ended),
                // They wait, and are dropped in the end, while more important things do not get
                // out.
                Some(note) = noted.recv(), if !session.uplink.is_behind() => session.on_note(note),
                Some(report) = reported.recv() => session.on_report(report),
                Some(news) = cached.recv() => session.on_cache_news(news),
                Some(upload) = uploaded.recv() => session.on_upload(upload),
                Some(_) = session.cleaning.join_next() => {}
                () = &mut alarm, if set_for.is_some() => {
                    set_for = None;
                    session.on_alarm(Instant::now());
                }
                () = &mut shutdown, if session.stop_due.is_none() => session.on_stop(),
            }
            session.work_off();
        }
        session.leave().await
    }

    /// Takes up results that an earlier start left.
    fn load_spool(&mut self) {
        match self.spool.as_ref().map(Spool::load) {
            Some(Ok(results)) => {
                if !results.is_empty() {
                    info!(results = results.len(), "results of a previous run will be sent");
                }
                results
                    .into_iter()
                    .for_each(|(job, numbers, answer)| self.table.restore(job, numbers, answer));
            }
            Some(Err(error)) => {
                warn!(
                    "cannot store results in {}: {error}; a restart loses results that the leader \
                     does not have",
                    self.config.work_dir.display()
                );
                self.spool = None;
            }
            None => {}
        }
    }

    /// When something is next to be done, if nothing happens before.
    fn next_due(&self) -> Instant {
        let due = [
            self.receptions.next_due(),
            self.heartbeat_due,
            self.lazy_due,
            self.purse.next_due(),
            self.settle_due.or(self.stop_due),
        ];
        due.into_iter().flatten().fold(self.sample_due, Instant::min)
    }

    /// Does what is due.
    fn on_alarm(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_due(self.receptions.next_due()) {
            self.on_abandoned();
        }
        if is_due(self.heartbeat_due) {
            self.send_heartbeat();
        }
        let sample = self.sample_due <= now;
        if sample {
            self.sample_due = now + CPU_SAMPLE;
            self.cpu.sample();
        }
        if sample || is_due(self.purse.next_due()) {
            self.release_credit();
        }
    }

    /// Whether a stopping worker may leave.
    fn is_done(&mut self) -> bool {
        let Some(stop_due) = self.stop_due else { return false };
        let now = Instant::now();
        if self.table.running() > 0 {
            return now >= stop_due;
        }
        let settle_due = *self.settle_due.get_or_insert(now + SETTLE_MAX);
        self.table.unsettled() == 0 || now >= settle_due
    }

    fn on_stop(&mut self) {
        info!(running = self.table.running(), "stopping: no new jobs, running ones may finish");
        self.stop_due = Some(Instant::now() + self.config.stop_grace);
        self.table.on_stop();
    }

    async fn leave(mut self) -> Summary {
        self.summary.killed = self.table.running();
        if self.summary.killed > 0 {
            warn!(
                jobs = self.summary.killed,
                "the time to stop has run out: killing running jobs; the leader requeues them"
            );
        }
        match (self.table.unsettled(), &self.spool) {
            (0, _) => {}
            (results, Some(_)) => {
                info!(
                    results,
                    "the leader has not taken all results: the next start under this id sends them"
                );
            }
            (results, None) => warn!(
                results,
                "the leader has not taken all results, and they are lost with this worker (--id \
                 keeps them): their jobs will run again"
            ),
        }
        // Dropping the attempts drops their handlers, and those kill their process groups.
        self.jobs.shutdown().await;
        self.uplink.leave(LEAVE_MAX).await;
        let cleaned = async { while self.cleaning.join_next().await.is_some() {} };
        timeout(LEAVE_MAX, cleaned).await.ok();
        info!(ended = self.summary.ended, killed = self.summary.killed, "stopped");
        self.summary
    }

    fn on_news(&mut self, news: News) {
        match news {
            // The uplink has told the log.
            News::Greeted | News::Unanswered { .. } => {}
            News::Classic => self.on_classic(),
            News::Welcome(welcome) => self.on_welcome(&welcome),
            News::Frame(frame) => self.on_frame(frame),
            News::Chunk(chunk) => self.on_chunk(chunk),
            News::Failed { why, retry_in } => self.tell_unconnected(&why, retry_in),
            News::Lost { why, retry_in, cut } => {
                self.tell_unconnected(&why, retry_in);
                // The leader may go on with what came of a chunk.
                let knows = self.leader.is_some_and(|leader| leader.has(Features::PIECES));
                cut.filter(|_| knows)
                    .into_iter()
                    .for_each(|part| self.exchange.downloads.keep(part));
                self.on_lost();
            }
        }
    }

    fn tell_unconnected(&self, why: &str, retry_in: Duration) {
        // A redirect is not a failure.
        if !retry_in.is_zero() {
            let (leader, wait_ms) = (&self.config.leader, retry_in.as_millis());
            warn!(%leader, wait_ms, "no connection: {why}; running jobs continue, retrying");
        }
    }

    fn on_lost(&mut self) {
        self.leader = None;
        self.heartbeat_due = None;
        self.purse.clear();
        self.exchange.out.clear();
        (self.lazy, self.lazy_due) = (0, None);
        self.receptions.lost(self.worker_grace);
        self.returns.lost();
        self.table.on_lost();
        if let Some(cache) = &mut self.cache {
            cache.on_lost(&mut self.exchange);
        }
        self.free_datasets();
    }

    fn on_step(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            // It may wait for datasets too.
            Step::Received(job)
                if self.cache.as_ref().is_some_and(|cache| cache.is_waiting(job)) => {}
            Step::Received(job) => self.table.on_received(job),
        }
    }

    /// Says how far the inputs of a job are, once in a while.
    fn say_far(&mut self, transfer: Uuid) {
        let Some(InputProgress { job, done, total }) =
            self.receptions.far(transfer, &self.exchange)
        else {
            return;
        };
        if let Some((run, attempt)) = self.table.receiving(job) {
            let note = Note { job, stage: Stage::Receiving, done, total, text: String::new() };
            self.say_progress(job, run, attempt, note);
        }
    }

    fn on_abandoned(&mut self) {
        for job in self.receptions.abandoned() {
            info!(%job, "the leader did not resume sending the inputs of a job; the partial inputs \
                         are dropped");
            self.table.on_abandoned(job);
            self.forget_inputs(job);
        }
    }

    fn on_upload(&mut self, upload: Uuid) {
        // A stopping worker waits for results as long as they move.
        if let Some(due) = &mut self.settle_due {
            *due = Instant::now() + SETTLE_MAX;
        }
        let turn = self.returns.on_news(upload);
        self.take_turn(turn);
        // One that has to wait for room there leaves its turn to another.
        self.open_returns();
    }

    fn take_turn(&mut self, turn: Turn) {
        match turn {
            Turn::Nothing => {}
            Turn::Answer { job, payload } => {
                self.say(OutFrame { corr_id: job, ..OutFrame::new(Kind::AckJob, payload) });
                self.open_returns();
            }
            Turn::GiveUp { job, payload } => {
                self.say(OutFrame { corr_id: job, ..OutFrame::new(Kind::AckJob, payload) });
                self.table.on_unwanted(job);
                self.open_returns();
            }
            Turn::InputProgress { job, numbers, done, total, text } => {
                let note = Note { job, stage: Stage::Returning, done, total, text };
                self.say_progress(job, numbers.run.unwrap_or(1), numbers.attempt, note);
            }
        }
    }

    /// Opens the transfers of results whose turn it is.
    fn open_returns(&mut self) {
        if let Some((writer, features)) = self.uplink.writer().cloned().zip(self.leader) {
            let wire = Wire { features, loopback: writer.is_loopback() };
            self.returns.open(&writer, wire, &mut self.exchange.out);
        }
    }

    fn on_frame(&mut self, frame: InFrame) {
        if let Err(error) = self.read_frame(&frame) {
            let kind = frame.kind().map_or("unknown", Kind::name);
            warn!(kind, "skipped a frame that cannot be read: {error}");
        }
    }

    fn read_frame(&mut self, frame: &InFrame) -> Result<(), chunking::MessageError> {
        let job = if frame.msg_id.is_nil() { frame.corr_id } else { frame.msg_id };
        match frame.kind() {
            Some(Kind::AssignJob) => {
                self.purse.on_taken();
                let parsed = Arc::new(Job::new(job, frame.subject.as_str(), frame.payload.clone()));
                if self.config.cache_only {
                    warn!(%job, "ignored a job, because this worker only manages a dataset cache; \
                                 the leader requeues it");
                    return Ok(());
                }
                if self.uplink.is_ending() && !self.table.is_leased() {
                    // It has given the job to another by now, or is about to: it would run twice.
                    warn!(%job, "ignored a job of a closed connection; the leader requeues it");
                    return Ok(());
                }
                let inputs = self.inputs_of(&parsed);
                self.table.on_assign(Offer(parsed), inputs);
            }
            Some(Kind::Open) => {
                let open = Open::decode(&frame.payload)?;
                if open.purpose == Purpose::Dataset && self.cache.is_some() {
                    self.with_cache(|cache, out| cache.on_open(frame.msg_id, open, out));
                    return Ok(());
                }
                let attempt = open.attempt;
                let (handler, place) = (self.handler.clone(), self.place.clone());
                let is_past = |job| self.table.is_past_inputs(job);
                let taken = self.receptions.open(
                    frame.msg_id,
                    open,
                    is_past,
                    &*handler,
                    &place,
                    &mut self.exchange,
                );
                if let Some(job) = taken {
                    self.table.on_open(job, attempt);
                }
            }
            Some(Kind::Done | Kind::Void | Kind::Piece | Kind::Abort) => self.on_transfer(frame)?,
            Some(Kind::Grant | Kind::Verdict) => self.returns.on_frame(frame)?,
            Some(Kind::Start) => {
                let start = Start::decode(&frame.payload)?;
                self.table.on_start(job, RunAttempt::of(&start));
            }
            Some(Kind::Cancel) => {
                let cancel = Cancel::decode(&frame.payload)?;
                let reason = StopReason::Cancelled { text: cancel.text.as_str().to_owned() };
                info!(%job, "{reason}");
                self.table.on_cancel(job, cancel.attempt, cancel.text.as_str());
            }
            Some(Kind::Settled) => self.table.on_settled(job, Settled::decode(&frame.payload)?.run),
            Some(Kind::Refused) => {
                let refused = Refused::decode(&frame.payload)?;
                warn!(id = %job, reason = refused.reason.0, "the leader refuses: {}", refused.text);
            }
            Some(Kind::Hold | Kind::Pack | Kind::Release | Kind::Inspect | Kind::CachePut) => {
                self.on_dataset_frame(frame)?;
            }
            Some(kind) => debug!(%kind, "skipped a frame that this worker has no use for"),
            None => debug!(code = frame.code, "skipped a frame of an unknown type"),
        }
        Ok(())
    }

    fn on_note(&mut self, note: Note) {
        if let Some(numbers) = self.table.numbers(note.job) {
            self.say_progress(note.job, numbers.run.unwrap_or(1), numbers.attempt, note);
        }
    }

    fn say_progress(&mut self, job: Uuid, run: u32, attempt: u32, note: Note) {
        if self.leader.is_some_and(|features| features.has(Features::PROGRESS)) {
            let Note { stage, done, total, text, .. } = note;
            let progress = Progress { run, attempt, stage, done, total, text: text.into() };
            // A job that ends at once says that it runs together with its result.
            self.say_lazily(OutFrame { corr_id: job, ..OutFrame::message(job, &progress) });
        }
    }

    fn on_ended(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        match ended {
            Ok(ended) => {
                self.summary.ended += 1;
                self.live.remove(&ended.job);
                if let Some(directory) = ended.directory {
                    self.directories.insert(ended.job, (directory, ended.failed));
                }
                if let Some(large) = &ended.answer.large {
                    self.files.insert(ended.job, large.files().collect());
                }
                let job = ended.job;
                self.table.on_ended(job, ended.answer, ended.given_up);
                self.free_datasets_of(job);
            }
            // An attempt catches what its handler does; it ends otherwise only when the worker
            // leaves.
            Err(error) => warn!("an attempt ended without a result: {error}"),
        }
    }

    /// Carries out the decisions of the job table.
    fn work_off(&mut self) {
        // A first heartbeat that is due goes before the results it announces.
        if self.heartbeat_due.is_some_and(|due| due <= Instant::now()) {
            self.send_heartbeat();
        }
        while let Some(todo) = self.table.poll() {
            match todo {
                JobOrder::SayRunning { job, run, attempt } => {
                    if let Some(live) = self.live.get(&job) {
                        set(&live.numbers, RunAttempt::new(Some(run), attempt));
                    }
                    self.say_progress(job, run, attempt, Note::running(job));
                }
                JobOrder::Run(offer, numbers) => self.start(offer, numbers),
                JobOrder::Stop { job, reason } => {
                    if let Some(live) = self.live.get(&job) {
                        live.cancel.cancel(reason);
                    }
                }
                JobOrder::Answer { job, payload } => {
                    self.unsay_progress(job);
                    self.say(OutFrame { corr_id: job, ..OutFrame::new(Kind::AckJob, payload) });
                }
                JobOrder::Return { job, numbers, large } => {
                    // Before the place is offered: the leader does not count the job as running any
                    // more.
                    let note = Note {
                        job,
                        stage: Stage::Returning,
                        done: 0,
                        total: large.bytes(),
                        text: String::new(),
                    };
                    self.say_progress(job, numbers.run.unwrap_or(1), numbers.attempt, note);
                    let turn = self.returns.start(job, numbers, large);
                    self.take_turn(turn);
                    self.open_returns();
                }
                JobOrder::Clean { job } => {
                    self.clean(job);
                    self.free_datasets_of(job);
                }
                JobOrder::Forget { job } => {
                    self.forget_inputs(job);
                    self.free_datasets_of(job);
                }
                JobOrder::ReturnCredit { after_job } => self.return_credit(after_job),
            }
        }
        self.send_out();
    }

    /// Sends what transfers had to answer.
    fn send_out(&mut self) {
        let lazy = self.lazy == self.exchange.out.len()
            && self.lazy_due.is_none_or(|due| due > Instant::now());
        if lazy {
            return;
        }
        (self.lazy, self.lazy_due) = (0, None);
        self.uplink.send_all(&mut self.exchange.out);
    }

    fn start(&mut self, offer: Offer, numbers: RunAttempt) {
        let live = Live {
            cancel: CancelToken::default(),
            numbers: Arc::new(std::sync::Mutex::new(numbers)),
        };
        let id = offer.job();
        debug!(job = %id, attempt = numbers.attempt, "running");
        let datasets = self.cache.as_ref().map(|cache| cache.datasets_of(id)).unwrap_or_default();
        let brought = Brought { directory: self.receptions.take(id, &mut self.exchange), datasets };
        // What an earlier run left is in nobody's way: a directory that is held makes the next take
        // another name.
        self.clean(id);
        let (handler, place) = (self.handler.clone(), self.place.clone());
        let (cancel, notes, shared) =
            (live.cancel.clone(), self.notes.clone(), live.numbers.clone());
        let stopped = cancel.clone();
        let (spool, work_dir) = (self.spool.clone(), self.work_dir.clone());
        self.live.insert(id, live);
        self.jobs.spawn(async move {
            let job = Arc::try_unwrap(offer.0).unwrap_or_else(|shared| (*shared).clone());
            let RunAttempt { run, attempt: number, takes_parts } = numbers;
            let job = Job { run: run.unwrap_or(1), attempt: number, takes_parts, ..job };
            let Outcome { mut result, directory, mut attached } =
                attempt(handler, job, &place, cancel, Some(notes), brought).await;
            let numbers = get(&shared);
            result.run = numbers.run;
            result.attempts = numbers.run.map(|_| numbers.attempt);
            match (result.no_directory, &directory) {
                (true, _) => work_dir.failed(&place.work_dir, &first_line(&result.stderr)),
                (false, Some(_)) => work_dir.worked(&place.work_dir),
                (false, None) => {}
            }
            let handed_back = result.status == JobStatus::Cancelled && stopped.reason().is_none();
            if handed_back && numbers.run.is_none() {
                // A leader without leases takes every answer for the job's end.
                (result.status, result.no_room, result.no_directory) = (JobStatus::Failed, false, false);
            }
            let failed = result.status != JobStatus::Ok;
            let given_up = result.status == JobStatus::Cancelled;
            match failed {
                true => info!(job = %id, exec = %result.exec_name, "failed: {}", first_line(&result.stderr)),
                false => debug!(job = %id, exec = %result.exec_name, "done"),
            }
            if given_up {
                attached.clear();
            }
            let spool = spool.filter(|_| !given_up);
            let answer = match attached.is_empty() && spool.is_none() {
                true => fit(result, attached, numbers.attempt),
                false => {
                    let mut lost =
                        JobResult::new(id, &result.client_id, &result.exec_name, JobStatus::Failed);
                    let made = tokio::task::spawn_blocking(move || keep(result, attached, numbers, spool));
                    made.await.unwrap_or_else(|error| {
                        lost.stderr = format!("worker error: the result could not be kept: {error}");
                        encode(lost).into()
                    })
                }
            };
            Ended { job: id, answer, failed, given_up, directory }
        });
    }

    /// What came of a job's inputs is not needed.
    fn forget_inputs(&mut self, job: Uuid) {
        if let Some(directory) = self.receptions.take(job, &mut self.exchange) {
            self.remove(job, directory);
        }
    }

    fn remove(&mut self, job: Uuid, directory: JobDirectory) {
        self.cleaning.spawn_blocking(move || {
            let path = directory.path().to_owned();
            if let Err(error) = directory.remove() {
                warn!(%job, "cannot remove {}: {error}: remove it by hand", path.display());
            }
        });
    }

    fn clean(&mut self, job: Uuid) {
        if let Some(spool) = &self.spool {
            spool.remove(job);
        }
        self.returns.forget(job);
        if let Some(files) = self.files.remove(&job) {
            // Most lie beside the directory and go with it, or went with the spool.
            self.cleaning.spawn_blocking(move || {
                files.iter().for_each(|file| drop(std::fs::remove_file(file)));
            });
        }
        let Some((directory, failed)) = self.directories.remove(&job) else { return };
        if failed && self.config.keep_failed {
            directory.remove_outputs().ok();
            return info!(%job, path = %directory.path().display(), "kept the directory of a failed job");
        }
        self.remove(job, directory);
    }

    /// Sends a frame, with the others that there are, when all that has come is worked off.
    fn say(&mut self, frame: OutFrame) {
        self.exchange.out.push(frame);
    }

    /// Takes back word of how far a job is that has not gone out: it has ended.
    fn unsay_progress(&mut self, job: Uuid) {
        let before = self.exchange.out.len();
        self.exchange.out.retain(|frame| frame.kind != Kind::Progress || frame.msg_id != job);
        self.lazy -= before - self.exchange.out.len();
    }

    /// The same, but a moment later: with the next frame, if there is one by then.
    fn say_lazily(&mut self, frame: OutFrame) {
        self.exchange.out.push(frame);
        self.lazy += 1;
        self.lazy_due.get_or_insert_with(|| Instant::now() + LAZY_WAIT);
    }
}

/// The way to the leader.
fn uplink(config: &WorkerConfig) -> Uplink {
    let settings = Settings {
        leader: config.leader.clone(),
        tuning: config.tuning.clone(),
        connect_max: CONNECT_MAX,
        patience: Patience {
            wait: config.welcome_wait,
            wait_max: config.welcome_wait_max,
            probe: config.probe_backoff,
        },
        backoff: config.reconnect,
        signs: OwnSigns::Heartbeats,
    };
    let hello = hello(config);
    Uplink::new(settings, move || hello.clone())
}

/// What may wait for the leader without a place.
fn backlog(config: &WorkerConfig) -> Backlog {
    let most = Backlog::default();
    let part = |total: u64| most.bytes_max.min(total / RETURNING_DISK_PART);
    let bytes_max = config.returning_bytes_max.or_else(|| {
        let system = rustix::fs::statvfs(&config.work_dir).ok()?;
        Some(part(system.f_blocks.saturating_mul(system.f_frsize)))
    });
    Backlog { bytes_max: bytes_max.unwrap_or(most.bytes_max), ..most }
}

/// Makes a result ready to be sent, and keeps it as files if there is a spool. Blocking.
fn keep(
    result: JobResult,
    attached: Vec<Attachment>,
    numbers: RunAttempt,
    spool: Option<Spool>,
) -> Answer {
    let job = result.job_id;
    let mut answer = fit(result, attached, numbers.attempt);
    if let Some(Err(error)) = spool.map(|spool| spool.save(job, numbers, &mut answer)) {
        warn!(%job, "cannot store the result as files: {error}; a restart of this worker loses it");
    }
    answer
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

fn get(numbers: &std::sync::Mutex<RunAttempt>) -> RunAttempt {
    *numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn set(numbers: &std::sync::Mutex<RunAttempt>, value: RunAttempt) {
    *numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = value;
}
