//! The client's task: drives [`Dispatch`] with reports from connections and callers, and executes
//! its actions. One task owns all state of a client; callers send it commands and never wait for a
//! connection inside it.

mod parked;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use chunking::Kind;
use chunking::message::{
    Body as _, Cancel, Features, Progress, Reason, Received, Refused, Stage, Submitted,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::arrivals::Arrivals;
use super::ask::Questions;
use super::connection::{self, Mode, News, Outgoing, Reporter};
use super::dispatch::{Action, Conn, Dispatch, Event, split_cap};
use super::downloads::{Downloads, Finished, Named, named_in};
use super::error::{ClientError, JobError, Refusal};
use super::follows::{FOLLOWS_MAX, Follows};
use super::inputs::{Failed, Inputs};
use super::job::{Ending, JobEvent};
use super::receipts::{Receipt, Receipts};
use super::remote::{self, Command, Ended, JOBS_UNFINISHED_MAX, Permit, Remote, Sink};
use super::spec::Prepared;
use super::{LATE_WELCOME_WAIT, LinkState, Options, QUESTIONS_MAX};
use crate::core::ids::Micros;
use crate::model::{JobResult, JsonModel};
use crate::peer::{InFrame, LinkWriter, OutFrame, PROBE_BACKOFF, silent};
use crate::transfer::{Report, Uploads, Waiting, Wire};

/// Commands and news that wait for the event loop.
const COMMANDS_MAX: usize = 256;

/// Frames one connection's outbox may hold: every job once, a Cancel and a receipt for each, the
/// questions, and of each output that is followed what makes room for a window.
const OUTBOX_MAX: usize = 3 * JOBS_UNFINISHED_MAX + QUESTIONS_MAX + 4 * FOLLOWS_MAX;

/// The connection of clients that follow outputs: they have one.
const FOLLOWED_CONN: Conn = 0;

/// How long connections get to send what is left when the client closes.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

struct Job {
    prepared: Prepared,
    inputs: Inputs,
    sink: Sink,
    permit: Permit,
    cancel: Option<String>,
    /// Which run of it the leader took; 0 until that is known.
    run: u32,
    /// Its result, while parts of it are still to come.
    result: Option<(Bytes, Vec<Named>)>,
    /// It needs a heft leader, and the one it is meant for has not said that it is one: when to
    /// give up.
    parked: Option<(Conn, Instant)>,
}

impl Job {
    /// Whether it is the leader's alone: it was to be left, and the leader has it. One that is
    /// cancelled is waited for.
    fn is_left(&self) -> bool {
        self.prepared.detached && self.run > 0 && self.cancel.is_none()
    }
}

struct Connection {
    address: String,
    up: Option<Up>,
    /// When the leader got the hello of the present connection.
    greeted: Instant,
    /// Whether anything has come over it.
    heard: bool,
    /// Blobs of jobs that were sent on it and have not ended: the leader counts them until then.
    blobs: usize,
    /// Jobs that wait until others have ended, since the leader takes no more blobs on a
    /// connection.
    held: VecDeque<Uuid>,
}

impl Connection {
    fn new(address: String, up: Option<Up>) -> Self {
        Connection {
            address,
            up,
            greeted: Instant::now(),
            heard: false,
            blobs: 0,
            held: VecDeque::new(),
        }
    }

    /// How long nothing at all has come since the hello: what the leader is, or whether it is
    /// there, is not known.
    fn silent_for(&self) -> Option<Duration> {
        let is_silent = !self.heard && self.up.as_ref().is_some_and(|up| up.mode == Mode::Classic);
        is_silent.then(|| self.greeted.elapsed())
    }
}

/// A connection that is up.
#[derive(Clone)]
struct Up {
    mode: Mode,
    outbox: mpsc::Sender<Outgoing>,
    writer: LinkWriter,
}

/// What comes to the event loop from tasks and threads of transfers.
struct Transfers {
    /// Blobs of this client whose uploads have news.
    uploads: mpsc::UnboundedReceiver<Uuid>,
    /// Jobs whose parts have news.
    arrivals: mpsc::UnboundedReceiver<Uuid>,
    /// What threads have done for downloads.
    reports: mpsc::UnboundedReceiver<Report>,
}

/// Starts a client over these leaders.
pub(super) fn start(
    leaders: &[String],
    options: &Options,
) -> Result<(Remote, mpsc::Receiver<Ended>), ClientError> {
    remote::check(leaders, options)?;
    let (commands, command_queue) = mpsc::channel(COMMANDS_MAX);
    let (news_sender, news) = mpsc::channel(COMMANDS_MAX);
    let (ended, ended_queue) = mpsc::channel(JOBS_UNFINISHED_MAX);
    let (stop, stopped) = watch::channel(false);
    let connecting = |leader: &String| LinkState::connecting(leader);
    let (states, states_seen) = watch::channel(leaders.iter().map(connecting).collect());
    let (upload_news, uploads) = mpsc::unbounded_channel();
    let (arrival_news, arrivals_seen) = mpsc::unbounded_channel();
    let (report_sender, reports) = mpsc::unbounded_channel();
    let arrivals = Arrivals::new(report_sender, arrival_news);
    let transfers = Transfers { uploads, arrivals: arrivals_seen, reports };
    let mut tasks = JoinSet::new();
    let caps = split_cap(options.desired.max(1), leaders.len());
    for (conn, (leader, cap)) in leaders.iter().zip(caps).enumerate() {
        let reporter = Reporter { conn, news: news_sender.clone(), arrivals: arrivals.clone() };
        let uplink = connection::uplink(leader, cap, options);
        tasks.spawn(connection::keep(uplink, reporter, OUTBOX_MAX, stopped.clone()));
    }
    let event_loop = EventLoop {
        started: Instant::now(),
        dispatch: Dispatch::new(leaders.len(), options.policy, options.grace),
        conns: leaders.iter().map(|leader| Connection::new(leader.clone(), None)).collect(),
        jobs: HashMap::new(),
        uploads: Uploads::new(upload_news),
        parked: HashSet::new(),
        late_welcome_wait: options.connect_wait.unwrap_or(LATE_WELCOME_WAIT),
        downloads: options.downloads.clone(),
        arrivals: arrivals.clone(),
        questions: Questions::default(),
        follows: Follows::default(),
        arrived: None,
        receipts: Receipts::default(),
        receipt: options.receipt,
        ended,
        states,
    };
    tokio::spawn(run(event_loop, command_queue, news, transfers, stop, tasks));
    Ok((Remote::new(commands, states_seen, arrivals, options.answer_wait), ended_queue))
}

async fn run(
    mut event_loop: EventLoop,
    mut commands: mpsc::Receiver<Command>,
    mut news: mpsc::Receiver<(Conn, News)>,
    mut transfers: Transfers,
    stop: watch::Sender<bool>,
    mut tasks: JoinSet<()>,
) {
    let done = loop {
        let deadline = event_loop.next_deadline();
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Close { done }) => break Some(done),
                Some(command) => event_loop.take_command(command),
                None => break None,
            },
            Some((conn, news)) = news.recv() => event_loop.take_news(conn, news),
            Some(blob) = transfers.uploads.recv() => event_loop.look_at_upload(blob),
            Some(job) = transfers.arrivals.recv() => event_loop.look_at_parts(job),
            Some(report) = transfers.reports.recv() => event_loop.arrivals.report(report),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                event_loop.handle(Event::Tick);
                event_loop.give_up_parked();
                event_loop.send_questions();
            }
        }
    };
    stop.send(true).ok();
    event_loop.arrivals.clear();
    drop(event_loop);
    // What comes now is not for anyone any more, but has to be taken so that connections can end.
    let drained = async {
        loop {
            tokio::select! {
                Some(_) = news.recv() => {}
                ended = tasks.join_next() => if ended.is_none() { return },
            }
        }
    };
    timeout(CLOSE_WAIT, drained).await.ok();
    if let Some(done) = done {
        done.send(()).ok();
    }
}

struct EventLoop {
    started: Instant,
    dispatch: Dispatch,
    conns: Vec<Connection>,
    jobs: HashMap<Uuid, Job>,
    /// The blobs that are being sent, by job.
    uploads: Uploads<Uuid>,
    /// Jobs that are, or were, held back.
    parked: HashSet<Uuid>,
    /// How long such a job waits for a leader's first Welcome.
    late_welcome_wait: Duration,
    downloads: Downloads,
    arrivals: Arrivals,
    questions: Questions,
    follows: Follows,
    /// The end that is being handled; `Deliver` takes it.
    arrived: Option<Ending>,
    receipts: Receipts,
    receipt: Receipt,
    ended: mpsc::Sender<Ended>,
    states: watch::Sender<Vec<LinkState>>,
}

impl EventLoop {
    fn now(&self) -> Micros {
        Micros::default().plus(self.started.elapsed())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let grace =
            self.dispatch.next_deadline().map(|due| self.started + due.since(Micros::default()));
        let parked =
            self.parked.iter().filter_map(|job| self.jobs.get(job)?.parked).map(|(_, until)| until);
        let silent = self.conns.iter().enumerate().filter(|(conn, connection)| {
            let is_silent = |up: &Up| matches!(up.mode, Mode::Classic);
            let is_asked = || self.questions.wait_for(*conn) || self.follows.wait();
            connection.up.as_ref().is_some_and(is_silent) && is_asked()
        });
        let silent = silent.map(|(_, connection)| self.welcome_due(connection));
        parked.chain(grace).chain(silent).min()
    }

    fn take_command(&mut self, command: Command) {
        match command {
            Command::Submit { job, sink, permit, reply } => {
                reply.send(self.submit(job, sink, permit)).unwrap_or_default();
            }
            Command::Cancel { job, why, reply } => {
                let known = self.cancel(job, why);
                if let Some(reply) = reply {
                    reply.send(known).ok();
                }
            }
            Command::Received { job } => {
                self.receipts.stored(job);
                self.confirm(job);
            }
            Command::Ask(question) => {
                self.questions.add(question);
                self.send_questions();
            }
            Command::Follow { id, spec, shared } => {
                self.follows.add(id, spec, shared);
                self.send_questions();
            }
            Command::FollowMore { id } => self.on_followed(|follows, to| follows.more(id, to)),
            Command::Unfollow { id } => self.on_followed(|follows, to| follows.end(id, to)),
            // Ends the loop, and so never comes here.
            Command::Close { done } => done.send(()).unwrap_or_default(),
        }
    }

    fn submit(
        &mut self,
        mut prepared: Prepared,
        sink: Sink,
        permit: Permit,
    ) -> Result<(), ClientError> {
        let id = prepared.id;
        if self.jobs.contains_key(&id) {
            return Err(ClientError::JobIdInUse(id));
        }
        let blobs = std::mem::take(&mut prepared.blobs);
        let inputs = Inputs::start(id, blobs, &mut self.uploads);
        self.arrivals.want(id, &self.downloads);
        let (cancel, run, result, parked) = (None, 0, None, None);
        let job = Job { prepared, inputs, sink, permit, cancel, run, result, parked };
        self.jobs.insert(id, job);
        self.handle(Event::Submit(id));
        Ok(())
    }

    /// Says to the leader that a job is not wanted any more; a job that no leader has seen ends
    /// here.
    fn cancel(&mut self, id: Uuid, why: String) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        let held = self.conns.iter().any(|connection| connection.held.contains(&id));
        if !self.dispatch.was_sent(id) || job.parked.is_some() || held {
            self.end(id, Err(JobError::CancelledUnsent { job: id }));
            return true;
        }
        job.cancel = Some(why);
        self.stop_inputs(id);
        if let Some(conn) = self.dispatch.conn_of(id) {
            self.send_cancel(conn, id);
            if self.up(conn).is_some_and(|up| up.mode == Mode::Classic) {
                let leader = self.address(conn);
                let text = format!(
                    "the job's end: {leader} is treated as a classic leader, which cannot cancel \
                     jobs"
                );
                self.tell(id, JobEvent::Waiting { reason: Reason::NONE, text });
            }
        }
        true
    }

    fn send_cancel(&self, conn: Conn, id: Uuid) {
        let Some(why) = self.jobs.get(&id).and_then(|job| job.cancel.clone()) else { return };
        let Some(up) = self.up(conn) else { return };
        if !up.mode.has(Features::CANCEL) {
            return;
        }
        let cancel = Cancel { attempt: 0, text: why.into() };
        let frame = OutFrame { corr_id: id, ..OutFrame::message(id, &cancel) };
        // A connection that takes nothing ends soon, and the wish is kept for the next one.
        up.outbox.try_send(Outgoing::plain(frame)).ok();
    }

    /// Stops sending a job's files; those of jobs that had to wait may go now.
    fn stop_inputs(&mut self, id: Uuid) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let on = job.inputs.on();
        let stopped = job.inputs.stop(&mut self.uploads);
        let Some((conn, connection)) = on.and_then(|conn| Some((conn, self.conns.get_mut(conn)?)))
        else {
            return;
        };
        connection.blobs = connection.blobs.saturating_sub(stopped);
        if connection.up.is_none() {
            return;
        }
        for job in std::mem::take(&mut connection.held) {
            // Jobs that still do not fit are held again, in the same order.
            if self.dispatch.conn_of(job) == Some(conn) {
                self.send(conn, job, false);
            }
        }
    }

    fn up(&self, conn: Conn) -> Option<&Up> {
        self.conns.get(conn).and_then(|conn| conn.up.as_ref())
    }

    fn handle(&mut self, event: Event) {
        self.dispatch.handle(self.now(), event);
        while let Some(action) = self.dispatch.poll_action() {
            match action {
                Action::Send { conn, job, again } => self.send(conn, job, again),
                Action::Moved { from, job } => {
                    let from = self.address(from);
                    tracing::info!(%job, leader = %from,
                        "the leader remains unreachable: the job goes to another");
                    self.tell(job, JobEvent::Moved { from });
                }
                Action::Deliver(job) => self.deliver(job),
            }
        }
    }

    fn send(&mut self, conn: Conn, id: Uuid, again: bool) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(Connection { up: Some(up), blobs: on_it, held, .. }) = self.conns.get_mut(conn)
        else {
            self.dispatch.handle(self.now(), Event::NotSent(conn, id));
            return;
        };
        if job.needs_more_than(&up.mode) {
            return self.park(conn, id);
        }
        job.parked = None;
        let ignored = job.prepared.wishes.ignored().filter(|_| up.mode == Mode::Classic);
        let (blobs, blobs_max) = (job.inputs.len(), up.mode.blobs_max());
        // A job with more than there may be at all is for the leader to judge.
        if blobs > 0 && *on_it > 0 && on_it.saturating_add(blobs) > blobs_max {
            held.push_back(id);
            return;
        }
        *on_it = on_it.saturating_add(blobs);
        let frame = OutFrame {
            msg_id: id,
            subject: job.prepared.subject.clone(),
            ..OutFrame::new(Kind::SubmitJob, job.prepared.payload.clone())
        };
        let wire = Wire { features: up.mode.features(), loopback: up.writer.is_loopback() };
        let opens = job.inputs.connected(conn, &up.writer, wire, &mut self.uploads);
        if up.outbox.try_send(Outgoing { frame, opens, job: Some(id) }).is_err() {
            self.dispatch.handle(self.now(), Event::NotSent(conn, id));
            return;
        }
        let classic = up.mode == Mode::Classic;
        let leader = self.address(conn);
        self.tell(id, JobEvent::Sent { leader: leader.clone(), again });
        let silent_for = self.conns.get(conn).and_then(Connection::silent_for);
        // Sooner than that it is told to all jobs.
        if let Some(waited) = silent_for.filter(|waited| *waited > PROBE_BACKOFF.first) {
            self.tell(
                id,
                JobEvent::Waiting { reason: Reason::NONE, text: silent(&leader, waited) },
            );
        }
        if let Some(what) = ignored {
            tracing::warn!(job = %id, %leader,
                "treating the leader as a classic one, which does not support all options of the \
                 job: {what}");
            self.tell(id, JobEvent::Ignored { leader: leader.clone(), what });
        }
        if again && classic {
            tracing::info!(job = %id, %leader,
                "submitted again to a classic leader, which drops results of disconnected clients");
            self.tell(id, JobEvent::ResultMayBeLost { leader });
        }
        self.send_cancel(conn, id);
    }

    fn take_news(&mut self, conn: Conn, news: News) {
        match news {
            News::Greeting { address } => {
                if let Some(connection) = self.conns.get_mut(conn) {
                    connection.greeted = Instant::now();
                    connection.heard = false;
                }
                self.set_state(conn, LinkState::Greeting { leader: address });
            }
            News::Unanswered { text } => {
                self.tell_waiting(conn, &JobEvent::Waiting { reason: Reason::NONE, text });
            }
            News::Up { mode, address, outbox, writer } => {
                tracing::info!(leader = %address, ?mode, "connected");
                self.set_state(conn, LinkState::Up { leader: address.clone(), mode: mode.clone() });
                if let Some(connection) = self.conns.get_mut(conn) {
                    let greeted = connection.greeted;
                    *connection = Connection {
                        greeted,
                        ..Connection::new(address, Some(Up { mode, outbox, writer }))
                    };
                }
                self.handle(Event::Up(conn));
                self.send_questions();
            }
            News::Down { why, retry_in, unsent } => {
                if let Some(connection) = self.conns.get_mut(conn) {
                    connection.up = None;
                }
                for job in self.jobs.values_mut() {
                    job.inputs.disconnected(conn);
                    job.parked.take_if(|(on, _)| *on == conn);
                }
                self.uploads.lost(conn);
                self.arrivals.disconnected();
                let leader = self.address(conn);
                self.questions.fail(conn, &leader, &why);
                self.follows.lost(&leader, &why);
                self.set_state(conn, LinkState::Down { leader: leader.clone(), why: why.clone() });
                self.handle(Event::Down(conn, unsent));
                self.tell_waiting(conn, &JobEvent::Reconnecting { leader, why, retry_in });
            }
            News::Welcome { mode } => self.take_late_welcome(conn, mode),
            News::Frame(frame) => {
                if let Some(connection) = self.conns.get_mut(conn) {
                    connection.heard = true;
                }
                self.take_frame(conn, &frame);
            }
        }
    }

    fn take_frame(&mut self, conn: Conn, frame: &InFrame) {
        // Result and job control carry the job in both ids; a classic leader too (T05).
        let job = if frame.corr_id.is_nil() { frame.msg_id } else { frame.corr_id };
        let read = match frame.kind() {
            // Whoever left it fetches the result later: without a receipt the leader keeps it.
            Some(Kind::Result) if self.jobs.get(&job).is_some_and(Job::is_left) => Ok(()),
            Some(Kind::Result) => {
                self.receipts.came(job, conn);
                self.take_result(conn, job, frame.payload.clone());
                Ok(())
            }
            Some(Kind::Grant | Kind::Verdict | Kind::Abort) => {
                self.uploads.on_frame(conn, frame).map(drop)
            }
            Some(Kind::Submitted) => Submitted::decode(&frame.payload).map(|submitted| {
                let Submitted { standing, run, ahead } = submitted;
                // Its inputs are all there: that is told first.
                self.look_at_uploads(job);
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.run = run;
                }
                self.tell(job, JobEvent::Submitted { standing, run, ahead });
            }),
            Some(Kind::Progress) => Progress::decode(&frame.payload).map(|progress| {
                let Progress { attempt, stage, done, total, text, .. } = progress;
                let text = text.as_str().to_owned();
                self.tell(
                    job,
                    match stage {
                        Stage::Waiting => JobEvent::Waiting { reason: Reason::NONE, text },
                        Stage::Receiving | Stage::Running | Stage::Packing | Stage::Returning => {
                            JobEvent::Progress { attempt, stage, done, total, text }
                        }
                    },
                );
            }),
            Some(Kind::Refused) => Refused::decode(&frame.payload)
                .map(|refused| self.take_refused(conn, frame, refused)),
            Some(Kind::Answer) => {
                self.questions.take_answer(frame);
                Ok(())
            }
            Some(Kind::Output) => self.on_followed(|follows, outbox| follows.take(frame, outbox)),
            Some(other) => {
                tracing::debug!(leader = %self.address(conn), kind = %other, "skipped a frame that is not for clients");
                Ok(())
            }
            None => Ok(()),
        };
        if let Err(error) = read {
            tracing::warn!(leader = %self.address(conn), %job, %error, "skipped a message that cannot be read");
        }
    }

    /// Passes on what an upload has to tell; one that has failed for good ends its job.
    fn look_at_upload(&mut self, blob: Uuid) {
        if let Some(id) = self.uploads.owner(blob).copied() {
            self.look_at_uploads(id);
        }
    }

    fn look_at_uploads(&mut self, id: Uuid) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let told = job.inputs.look(std::time::Instant::now(), &self.uploads);
        if let Some((done, total)) = told.progress {
            self.tell(id, JobEvent::Uploading { done, total });
        }
        if let Some(Waiting { reason, text }) = told.waiting {
            self.tell(id, JobEvent::Waiting { reason, text });
        }
        if let Some(Failed { name, reason, why }) = told.failed {
            self.cancel(id, format!("its file {name:?} cannot be sent: {why}"));
            self.end(id, Err(JobError::InputLost { job: id, name, reason, why }));
        }
    }

    /// A result came: the job ends with it, once its parts are here.
    fn take_result(&mut self, conn: Conn, id: Uuid, payload: Bytes) {
        let may_name = self.up(conn).is_some_and(|up| up.mode.has(Features::TRANSFERS));
        let named = match self.downloads {
            Downloads::None => Vec::new(),
            Downloads::Directory(_) | Downloads::Outputs(_) | Downloads::Sink(_) if !may_name => {
                Vec::new()
            }
            Downloads::Directory(_) | Downloads::Outputs(_) | Downloads::Sink(_) => {
                // What cannot be read names nothing; whoever waits for the result gets the error.
                JobResult::parse(&payload).map(|result| named_in(&result)).unwrap_or_default()
            }
        };
        match self.jobs.get_mut(&id) {
            Some(job) if !named.is_empty() => {
                job.result = Some((payload, named));
                self.look_at_parts(id);
            }
            Some(_) | None => self.end(id, Ok(Finished::plain(payload))),
        }
    }

    /// Passes on how far the parts of a job's result are, and ends the job when they are here.
    fn look_at_parts(&mut self, id: Uuid) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (done, total) = self.arrivals.progress(id);
        let settled = job.result.as_ref().and_then(|(_, named)| self.arrivals.settle(id, named));
        let ended = settled.and_then(|settled| Some((settled, job.result.take()?)));
        if total > 0 {
            self.tell(id, JobEvent::Downloading { done, total });
        }
        if let Some(((parts, missing), (payload, _))) = ended {
            self.end(id, Ok(Finished { payload, parts, missing }));
        }
    }

    fn take_refused(&mut self, conn: Conn, frame: &InFrame, refused: Refused) {
        let refusal = Refusal::from(refused);
        let named = [frame.msg_id, frame.corr_id].into_iter().find(|id| self.jobs.contains_key(id));
        let Some(job) = named else {
            if !self.questions.refuse(frame, &refusal) {
                tracing::warn!(leader = %self.address(conn), %refusal, "the leader refused something");
            }
            return;
        };
        if refusal.reason == Reason::DRAINING && self.dispatch.conn_of(job) == Some(conn) {
            tracing::info!(%job, leader = %self.address(conn), "the leader is stopping: the job waits for another");
            self.handle(Event::TurnedAway(conn, job));
            return;
        }
        self.end(job, Err(JobError::Refused { job, refusal }));
    }

    /// The first end of a job is given out, later ones are counted (C07).
    fn end(&mut self, id: Uuid, ending: Ending) {
        self.arrived = Some(ending);
        self.handle(Event::Ended(id));
        if self.arrived.take().is_some() {
            tracing::debug!(job = %id, late = self.dispatch.late(),
                "dropped a late result, or one of another client");
        }
        self.confirm(id);
    }

    /// Confirms a result to the leader that sent it, once the caller has it.
    fn confirm(&mut self, id: Uuid) {
        let Some((conn, run)) = self.receipts.due(id, self.jobs.contains_key(&id)) else { return };
        let Some(up) = self.up(conn).filter(|up| up.mode.has(Features::RECEIPTS)) else { return };
        let frame = OutFrame::message(id, &Received { run });
        // Without it the result comes again.
        up.outbox.try_send(Outgoing::plain(frame)).ok();
    }

    fn deliver(&mut self, id: Uuid) {
        self.stop_inputs(id);
        let (Some(job), Some(ending)) = (self.jobs.remove(&id), self.arrived.take()) else {
            return;
        };
        self.arrivals.forget(id);
        let receipt = match job.sink {
            Sink::Handle { .. } => self.receipt,
            Sink::Stream => Receipt::AtOnce,
        };
        self.receipts.ended(id, job.run, receipt);
        match job.sink {
            // Nobody waits any more: that is the caller's choice.
            Sink::Handle { ending: sink, .. } => sink.send(ending).unwrap_or_else(drop),
            Sink::Stream => {
                let ended = Ended::new(id, ending, job.permit);
                // It has a place for every job there can be.
                self.ended.try_send(ended).ok();
            }
        }
    }

    /// When a leader that has not answered the hello is taken for a classic one.
    fn welcome_due(&self, connection: &Connection) -> Instant {
        connection.greeted + self.late_welcome_wait
    }

    fn send_questions(&mut self) {
        for (conn, connection) in self.conns.iter().enumerate() {
            if let Some(Up { mode, outbox, .. }) = &connection.up {
                let is_given_up = self.welcome_due(connection) <= Instant::now();
                self.questions.send(conn, &connection.address, mode, outbox, is_given_up);
                if conn == FOLLOWED_CONN {
                    self.follows.send(&connection.address, mode, outbox, is_given_up);
                }
            }
        }
    }

    /// Does something about outputs that are followed, with where frames go if that is up.
    fn on_followed<T>(
        &mut self,
        what: impl FnOnce(&mut Follows, Option<&mpsc::Sender<Outgoing>>) -> T,
    ) -> T {
        let up = self.conns.get(FOLLOWED_CONN).and_then(|conn| conn.up.as_ref());
        what(&mut self.follows, up.map(|up| &up.outbox))
    }

    fn tell(&self, job: Uuid, event: JobEvent) {
        match self.jobs.get(&job).map(|job| &job.sink) {
            Some(Sink::Handle { events, .. }) => {
                events.try_send(event).ok();
            }
            Some(Sink::Stream) | None => {}
        }
    }

    /// Tells the jobs that wait for a connection: those in flight on it, and all that are pending.
    fn tell_waiting(&self, conn: Conn, event: &JobEvent) {
        for id in self.jobs.keys() {
            match self.dispatch.conn_of(*id) {
                Some(on) if on != conn => {}
                Some(_) | None => self.tell(*id, event.clone()),
            }
        }
    }

    fn set_state(&self, conn: Conn, state: LinkState) {
        self.states.send_modify(|states| {
            if let Some(slot) = states.get_mut(conn) {
                *slot = state;
            }
        });
    }

    fn address(&self, conn: Conn) -> String {
        self.conns.get(conn).map(|conn| conn.address.clone()).unwrap_or_default()
    }
}
