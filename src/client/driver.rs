//! The task behind a client: it drives [`Dispatch`] with what connections and callers report, and does what it says. One
//! task owns all state of a client; callers reach it by commands and never wait for a connection inside it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use chunking::Kind;
use chunking::message::{Body as _, Cancel, Features, Progress, Reason, Refused, Submitted};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::ask::Questions;
use super::connection::{self, Mode, News, Outgoing, Reporter};
use super::dispatch::{Action, Conn, Dispatch, Event, split_cap};
use super::error::{ClientError, JobError, Refusal};
use super::job::{Ending, JobEvent};
use super::remote::{self, Command, Ended, JOBS_UNFINISHED_MAX, NewJob, Permit, Remote, Sink};
use super::{LinkState, Options, QUESTIONS_MAX};
use crate::core::ids::Micros;
use crate::peer::{InFrame, OutFrame};

/// Commands and news that wait for the driver.
const COMMANDS_MAX: usize = 256;

/// Frames one connection's outbox may hold: every job once, a Cancel for each, and the questions.
const OUTBOX_MAX: usize = 2 * JOBS_UNFINISHED_MAX + QUESTIONS_MAX;

/// How long connections get to send what is left when the client closes.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

struct Job {
    subject: String,
    payload: Bytes,
    sink: Sink,
    permit: Permit,
    cancel: Option<String>,
}

struct Connection {
    address: String,
    up: Option<(Mode, mpsc::Sender<Outgoing>)>,
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
    let mut tasks = JoinSet::new();
    let caps = split_cap(options.desired.max(1), leaders.len());
    for (conn, (leader, cap)) in leaders.iter().zip(caps).enumerate() {
        let reporter = Reporter { conn, news: news_sender.clone() };
        let kept =
            connection::keep(leader.clone(), cap, options.clone(), reporter, OUTBOX_MAX, stopped.clone());
        tasks.spawn(kept);
    }
    let driver = Driver {
        started: Instant::now(),
        dispatch: Dispatch::new(leaders.len(), options.policy, options.grace),
        conns: leaders.iter().map(|leader| Connection { address: leader.clone(), up: None }).collect(),
        jobs: HashMap::new(),
        questions: Questions::default(),
        arrived: None,
        ended,
        states,
    };
    tokio::spawn(run(driver, command_queue, news, stop, tasks));
    Ok((Remote::new(commands, states_seen), ended_queue))
}

async fn run(
    mut driver: Driver,
    mut commands: mpsc::Receiver<Command>,
    mut news: mpsc::Receiver<(Conn, News)>,
    stop: watch::Sender<bool>,
    mut tasks: JoinSet<()>,
) {
    let done = loop {
        let deadline = driver.next_deadline();
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Close { done }) => break Some(done),
                Some(command) => driver.take_command(command),
                None => break None,
            },
            Some((conn, news)) = news.recv() => driver.take_news(conn, news),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                driver.handle(Event::Tick);
            }
        }
    };
    stop.send(true).ok();
    drop(driver);
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

struct Driver {
    started: Instant,
    dispatch: Dispatch,
    conns: Vec<Connection>,
    jobs: HashMap<Uuid, Job>,
    questions: Questions,
    /// The end that is being handled; `Deliver` takes it.
    arrived: Option<Ending>,
    ended: mpsc::Sender<Ended>,
    states: watch::Sender<Vec<LinkState>>,
}

impl Driver {
    fn now(&self) -> Micros {
        Micros::default().plus(self.started.elapsed())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.dispatch.next_deadline().map(|due| self.started + due.since(Micros::default()))
    }

    fn take_command(&mut self, command: Command) {
        match command {
            Command::Submit { job, reply } => reply.send(self.submit(job)).unwrap_or_default(),
            Command::Cancel { job, why, reply } => {
                let known = self.cancel(job, why);
                if let Some(reply) = reply {
                    reply.send(known).ok();
                }
            }
            Command::Ask(question) => {
                self.questions.add(question);
                self.send_questions();
            }
            // Ends the loop, and so never comes here.
            Command::Close { done } => done.send(()).unwrap_or_default(),
        }
    }

    fn submit(&mut self, new: NewJob) -> Result<(), ClientError> {
        if self.jobs.contains_key(&new.id) {
            return Err(ClientError::JobIdInUse(new.id));
        }
        let NewJob { id, subject, payload, sink, permit } = new;
        self.jobs.insert(id, Job { subject, payload, sink, permit, cancel: None });
        self.handle(Event::Submit(id));
        Ok(())
    }

    /// Says to the leader that a job is not wanted any more; a job that no leader has seen ends here.
    fn cancel(&mut self, id: Uuid, why: String) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        if !self.dispatch.was_sent(id) {
            self.end(id, Err(JobError::CancelledUnsent { job: id }));
            return true;
        }
        job.cancel = Some(why);
        if let Some(conn) = self.dispatch.conn_of(id) {
            self.send_cancel(conn, id);
        }
        true
    }

    fn send_cancel(&self, conn: Conn, id: Uuid) {
        let Some(why) = self.jobs.get(&id).and_then(|job| job.cancel.clone()) else { return };
        let Some((mode, outbox)) = self.conns.get(conn).and_then(|conn| conn.up.as_ref()) else { return };
        if !mode.has(Features::CANCEL) {
            return;
        }
        let mut payload = Vec::new();
        Cancel { attempt: 0, text: why.into() }.encode(&mut payload);
        let frame = OutFrame { msg_id: id, corr_id: id, ..OutFrame::new(Kind::Cancel, payload) };
        // A connection that takes nothing ends soon, and the wish is kept for the next one.
        outbox.try_send(Outgoing { frame, job: None }).ok();
    }

    fn handle(&mut self, event: Event) {
        self.dispatch.handle(self.now(), event);
        while let Some(action) = self.dispatch.poll_action() {
            match action {
                Action::Send { conn, job, again } => self.send(conn, job, again),
                Action::Moved { from, job } => {
                    let from = self.address(from);
                    tracing::info!(%job, leader = %from, "the leader stays away: the job goes to another");
                    self.tell(job, JobEvent::Moved { from });
                }
                Action::Deliver(job) => self.deliver(job),
            }
        }
    }

    fn send(&mut self, conn: Conn, id: Uuid, again: bool) {
        let Some(job) = self.jobs.get(&id) else { return };
        let up = self.conns.get(conn).and_then(|conn| conn.up.as_ref());
        let frame = OutFrame {
            msg_id: id,
            subject: job.subject.clone(),
            ..OutFrame::new(Kind::SubmitJob, job.payload.clone())
        };
        let taken = up.is_some_and(|(_, outbox)| outbox.try_send(Outgoing { frame, job: Some(id) }).is_ok());
        if !taken {
            self.dispatch.handle(self.now(), Event::NotSent(conn, id));
            return;
        }
        let leader = self.address(conn);
        let classic = up.is_some_and(|(mode, _)| *mode == Mode::Classic);
        self.tell(id, JobEvent::Sent { leader: leader.clone(), again });
        if again && classic {
            tracing::info!(job = %id, %leader, "submitted again to a stock leader, which loses results of clients that are away");
            self.tell(id, JobEvent::ResultMayBeLost { leader });
        }
        self.send_cancel(conn, id);
    }

    fn take_news(&mut self, conn: Conn, news: News) {
        match news {
            News::Greeting { address } => self.set_state(conn, LinkState::Greeting { leader: address }),
            News::Up { mode, address, outbox } => {
                tracing::info!(leader = %address, ?mode, "connected");
                self.set_state(conn, LinkState::Up { leader: address.clone(), mode: mode.clone() });
                if let Some(connection) = self.conns.get_mut(conn) {
                    *connection = Connection { address, up: Some((mode, outbox)) };
                }
                self.handle(Event::Up(conn));
                self.send_questions();
            }
            News::Down { why, retry_in, unsent } => {
                if let Some(connection) = self.conns.get_mut(conn) {
                    connection.up = None;
                }
                let leader = self.address(conn);
                self.questions.fail(conn, &leader, &why);
                self.set_state(conn, LinkState::Down { leader: leader.clone(), why: why.clone() });
                self.handle(Event::Down(conn, unsent));
                self.tell_waiting(conn, &JobEvent::Reconnecting { leader, why, retry_in });
            }
            News::Frame(frame) => self.take_frame(conn, &frame),
        }
    }

    fn take_frame(&mut self, conn: Conn, frame: &InFrame) {
        // Result and job control carry the job in both ids; a stock leader too (T05).
        let job = if frame.corr_id.is_nil() { frame.msg_id } else { frame.corr_id };
        let Some(kind) = frame.kind() else { return };
        let read = match kind {
            Kind::Result => {
                self.end(job, Ok(frame.payload.clone()));
                Ok(())
            }
            Kind::Submitted => Submitted::decode(&frame.payload).map(|submitted| {
                let Submitted { standing, run, ahead } = submitted;
                self.tell(job, JobEvent::Submitted { standing, run, ahead });
            }),
            Kind::Progress => Progress::decode(&frame.payload).map(|progress| {
                let Progress { attempt, stage, done, total, text, .. } = progress;
                let text = text.as_str().to_owned();
                self.tell(job, JobEvent::Progress { attempt, stage, done, total, text });
            }),
            Kind::Refused => {
                Refused::decode(&frame.payload).map(|refused| self.take_refused(conn, frame, refused))
            }
            Kind::Answer => {
                self.questions.take_answer(frame);
                Ok(())
            }
            Kind::Welcome => {
                self.take_late_welcome(conn, frame);
                Ok(())
            }
            other @ (Kind::SubmitJob
            | Kind::AssignJob
            | Kind::AckJob
            | Kind::Credit
            | Kind::CachePut
            | Kind::CacheAck
            | Kind::HelloClient
            | Kind::HelloWorker
            | Kind::NotLeader
            | Kind::LeaderHello
            | Kind::AppendEntries
            | Kind::AppendResp
            | Kind::RequestVote
            | Kind::VoteResp
            | Kind::InstallSnapshot
            | Kind::InstallSnapResp
            | Kind::Open
            | Kind::Grant
            | Kind::Chunk
            | Kind::Done
            | Kind::Verdict
            | Kind::Abort
            | Kind::Void
            | Kind::Start
            | Kind::Heartbeat
            | Kind::Cancel
            | Kind::Settled
            | Kind::Ask) => {
                tracing::debug!(leader = %self.address(conn), kind = %other, "skipped a frame that is not for clients");
                Ok(())
            }
        };
        if let Err(error) = read {
            tracing::warn!(leader = %self.address(conn), %job, %error, "skipped a message that cannot be read");
        }
    }

    /// A heft leader that was slower than the wait: from now on it is one.
    fn take_late_welcome(&mut self, conn: Conn, frame: &InFrame) {
        let Some(mode) = Mode::of_welcome(&frame.payload) else { return };
        let Some(connection) = self.conns.get_mut(conn) else { return };
        let Some((known, _)) = &mut connection.up else { return };
        known.clone_from(&mode);
        let leader = connection.address.clone();
        self.set_state(conn, LinkState::Up { leader, mode });
        self.send_questions();
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
            tracing::debug!(job = %id, late = self.dispatch.late(), "dropped a result that came late or is not ours");
        }
    }

    fn deliver(&mut self, id: Uuid) {
        let (Some(job), Some(ending)) = (self.jobs.remove(&id), self.arrived.take()) else { return };
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

    fn send_questions(&mut self) {
        for (conn, connection) in self.conns.iter().enumerate() {
            if let Some((mode, outbox)) = &connection.up {
                self.questions.send(conn, &connection.address, mode, outbox);
            }
        }
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
