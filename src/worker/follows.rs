//! Sends what programs print to those who follow it while they run: which outputs are followed, and
//! how far each is.
//!
//! A follow waits until its attempt runs, then a task of its own reads the output, at the pace that
//! the leader's window allows, and hands over pieces. The session sends them when nothing else
//! waits to go out. A follow ends with its attempt, with the connection, or when the leader says
//! so. Nobody follows most jobs; those cost nothing here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use chunking::Kind;
use chunking::limits::OUTPUT_PIECE_BYTES_MAX;
use chunking::message::{Follow, FollowFlags, Output, OutputSays, Reason, Stream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::exec::capture::{Reader, There};
use super::handler::Captures;
use super::limits::{FOLLOWS_MAX, FOLLOWS_PER_JOB_MAX};
use crate::peer::OutFrame;

/// What a job is here, as far as its output is concerned.
#[derive(Clone, Debug)]
pub(super) enum JobHere {
    /// It is not here, or does not run yet.
    NotYet,
    Runs(Running),
    /// It has ended, and its result is on its way.
    Ended {
        attempt: u32,
    },
}

/// A running job.
#[derive(Clone, Debug)]
pub(super) struct Running {
    /// The attempt that it is now.
    pub(super) attempt: u32,
    /// The attempt that it was when it was started.
    pub(super) began: u32,
    pub(super) shown: watch::Receiver<Option<Captures>>,
}

/// A piece of output, or the last word on it.
#[derive(Debug)]
pub(super) struct Piece {
    id: Uuid,
    frame: OutFrame,
    is_last: bool,
}

/// What a task is told.
#[derive(Clone, Copy, Debug)]
struct Orders {
    /// Up to here it may send.
    until: u64,
    /// The attempt is over: no room is waited for any more.
    is_over: bool,
}

#[derive(Debug)]
struct Followed {
    follow: Follow,
    /// Under which attempt the program began; 0 before it runs.
    began: u32,
    orders: watch::Sender<Orders>,
    /// None while the attempt does not run.
    task: Option<Task>,
}

/// A task that ends when nobody wants its pieces any more.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The outputs that are followed.
#[derive(Debug)]
pub(super) struct Follows {
    all: HashMap<Uuid, Followed>,
    pieces: mpsc::Sender<Piece>,
    /// How long pieces are on the present line.
    piece_bytes: Arc<AtomicU32>,
}

impl Follows {
    /// Pieces go to `pieces`.
    pub(super) fn new(pieces: mpsc::Sender<Piece>) -> Self {
        let piece_bytes = Arc::new(AtomicU32::new(OUTPUT_PIECE_BYTES_MAX));
        Follows { all: HashMap::new(), pieces, piece_bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The leader wants an output, or says more of that. `shows`: whether this worker's jobs show
    /// any. What is to be answered at once, if something is.
    pub(super) fn on_follow(
        &mut self,
        id: Uuid,
        follow: Follow,
        here: JobHere,
        shows: bool,
    ) -> Option<OutFrame> {
        let is_over = follow.flags.has(FollowFlags::OVER);
        if is_over {
            self.all.remove(&id);
            return None;
        }
        if let Some(followed) = self.all.get(&id) {
            followed.go_on(&follow);
            return None;
        }
        let of_job = self.all.values().filter(|other| other.follow.job == follow.job).count();
        let refusal = match () {
            () if !shows => Some((
                Reason::INVALID,
                "this worker's handler shows no output before the end: it comes with the result"
                    .to_owned(),
            )),
            () if of_job >= FOLLOWS_PER_JOB_MAX => Some((
                Reason::BUSY,
                format!(
                    "{FOLLOWS_PER_JOB_MAX} outputs of the job are followed at its worker, which is \
                     the limit: its output comes with the result"
                ),
            )),
            () if self.all.len() >= FOLLOWS_MAX => Some((
                Reason::BUSY,
                format!(
                    "{FOLLOWS_MAX} outputs of jobs are followed at the worker, which is the limit: \
                     the job's output comes with its result"
                ),
            )),
            () => None,
        };
        if let Some((reason, text)) = refusal {
            return Some(refused(id, &follow, reason, &text));
        }
        let stays = follow.flags.has(FollowFlags::STAYS);
        match here {
            JobHere::Ended { attempt } if attempt >= follow.attempt => Some(has_ended(id, &follow)),
            JobHere::Runs(running) if running.attempt > follow.attempt => {
                Some(has_ended(id, &follow))
            }
            JobHere::NotYet | JobHere::Ended { .. } | JobHere::Runs(_)
                if !stays && !here.runs_as(follow.attempt) =>
            {
                let present =
                    Output::new(OutputSays::Present, follow.attempt, follow.began, follow.from);
                Some(frame(id, &present))
            }
            JobHere::NotYet | JobHere::Ended { .. } | JobHere::Runs(_) => {
                let orders = Orders { until: follow.until, is_over: false };
                let (orders, _) = watch::channel(orders);
                let followed = Followed { follow, began: 0, orders, task: None };
                self.all.insert(id, followed);
                match here {
                    JobHere::Runs(running) => self.start(id, running),
                    JobHere::NotYet | JobHere::Ended { .. } => {}
                }
                None
            }
        }
    }

    /// A job runs as this attempt: those who wait for it get its output. What is to be answered to
    /// those who waited for an earlier one.
    pub(super) fn on_running(&mut self, job: Uuid, running: &Running) -> Vec<OutFrame> {
        let waiting = self
            .all
            .iter()
            .filter(|(_, followed)| followed.follow.job == job && followed.task.is_none());
        let waiting: Vec<(Uuid, u32)> =
            waiting.map(|(id, followed)| (*id, followed.follow.attempt)).collect();
        let mut late = Vec::new();
        for (id, attempt) in waiting {
            match attempt.cmp(&running.attempt) {
                std::cmp::Ordering::Equal => self.start(id, running.clone()),
                std::cmp::Ordering::Greater => {}
                std::cmp::Ordering::Less => {
                    let gone = self.all.remove(&id);
                    late.extend(gone.map(|gone| has_ended(id, &gone.follow)));
                }
            }
        }
        late
    }

    /// The leader has the job's result, or does not want it: who follows its output gets what there
    /// is room for, and its end.
    pub(super) fn on_over(&mut self, job: Uuid) {
        let started = self.all.values().filter(|followed| followed.task.is_some());
        for followed in started.filter(|followed| followed.follow.job == job) {
            followed.orders.send_modify(|orders| orders.is_over = true);
        }
    }

    /// The connection is lost, and with it everybody who followed.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// The frame of a piece, if it is still wanted.
    pub(super) fn on_piece(&mut self, piece: Piece) -> Option<OutFrame> {
        if !self.all.contains_key(&piece.id) {
            return None;
        }
        if piece.is_last {
            self.all.remove(&piece.id);
        }
        Some(piece.frame)
    }

    /// The line takes pieces of this size, or as long as there may be.
    pub(super) fn set_piece_bytes(&self, bytes: Option<u32>) {
        let bytes = bytes.unwrap_or(OUTPUT_PIECE_BYTES_MAX).clamp(1, OUTPUT_PIECE_BYTES_MAX);
        self.piece_bytes.store(bytes, Ordering::Relaxed);
    }

    fn start(&mut self, id: Uuid, running: Running) {
        let Some(followed) = self.all.get_mut(&id) else { return };
        followed.began = running.began;
        if followed.is_another() {
            let from = followed.follow.from;
            followed.orders.send_modify(|orders| orders.until = orders.until.saturating_sub(from));
        }
        let pump = Pump {
            id,
            stays: followed.follow.flags.has(FollowFlags::STAYS),
            stream: followed.follow.stream,
            attempt: running.attempt,
            began: running.began,
            at: if followed.is_another() { 0 } else { followed.follow.from },
            orders: followed.orders.subscribe(),
            pieces: self.pieces.clone(),
            piece_bytes: self.piece_bytes.clone(),
        };
        followed.task = Some(Task(tokio::spawn(pump.run(running.shown))));
    }
}

impl JobHere {
    fn runs_as(&self, attempt: u32) -> bool {
        match self {
            JobHere::Runs(running) => running.attempt == attempt,
            JobHere::NotYet | JobHere::Ended { .. } => false,
        }
    }
}

impl Followed {
    /// Whether what is known of the output is of another program.
    fn is_another(&self) -> bool {
        self.began != self.follow.began
    }

    /// There is more room. The leader may not know yet that it is another program's output, and
    /// counts from where it asked.
    fn go_on(&self, more: &Follow) {
        let is_of_asked = more.began == self.follow.began;
        let until = match () {
            () if self.began == 0 || more.began == self.began => more.until,
            () if is_of_asked => more.until.saturating_sub(self.follow.from),
            () => return,
        };
        self.orders.send_modify(|orders| orders.until = orders.until.max(until));
    }
}

fn frame(id: Uuid, output: &Output<'_>) -> OutFrame {
    let mut payload = Vec::new();
    output.encode(&mut payload);
    OutFrame { msg_id: id, ..OutFrame::new(Kind::Output, payload) }
}

fn refused(id: Uuid, follow: &Follow, reason: Reason, text: &str) -> OutFrame {
    let output = Output::new(OutputSays::Refused, follow.attempt, follow.began, follow.from);
    frame(id, &Output { reason, ..output }.with_text(text))
}

fn has_ended(id: Uuid, follow: &Follow) -> OutFrame {
    let text = "the program has ended: its output comes with the result";
    refused(id, follow, Reason::UNKNOWN, text)
}

/// Reads an output, and hands over pieces.
struct Pump {
    id: Uuid,
    stays: bool,
    stream: Stream,
    attempt: u32,
    began: u32,
    /// What was handed over ends here.
    at: u64,
    orders: watch::Receiver<Orders>,
    pieces: mpsc::Sender<Piece>,
    piece_bytes: Arc<AtomicU32>,
}

/// Nobody takes pieces any more.
struct Gone;

/// What a look at an output showed.
enum Looked {
    Bytes(u64, bytes::Bytes),
    NoRoom,
    NotYet,
    End(u64),
}

impl Pump {
    async fn run(mut self, shown: watch::Receiver<Option<Captures>>) {
        // Its session is gone, or wants nothing more.
        self.pump(shown).await.unwrap_or(());
    }

    async fn pump(&mut self, mut shown: watch::Receiver<Option<Captures>>) -> Result<(), Gone> {
        // None for an attempt that ends before it has started a program.
        let captures = match self.stays {
            true => shown.wait_for(Option::is_some).await.ok().and_then(|shown| shown.clone()),
            false => shown.borrow().clone(),
        };
        drop(shown);
        self.say(OutputSays::Begins).await?;
        let Some([stdout, stderr]) = captures else {
            return self.say(if self.stays { OutputSays::Ends } else { OutputSays::Present }).await;
        };
        let reader = match self.stream {
            Stream::Stdout => stdout.reader(),
            Stream::Stderr => stderr.reader(),
        };
        drop((stdout, stderr));
        loop {
            let grown = reader.grown();
            let orders = *self.orders.borrow_and_update();
            match self.look(&reader, orders.until).await {
                Looked::Bytes(at, bytes) => {
                    if at > self.at {
                        self.at = at;
                        // How much room there is now, the receiver has to say.
                        self.say(OutputSays::Lost).await?;
                        continue;
                    }
                    self.hand_over(bytes).await?;
                }
                Looked::NotYet if !self.stays => return self.say(OutputSays::Present).await,
                Looked::NotYet => tokio::select! {
                    () = grown => {}
                    changed = self.orders.changed() => changed.map_err(|_| Gone)?,
                },
                Looked::NoRoom if orders.is_over => {
                    self.at = reader.seen();
                    return self.say(OutputSays::Ends).await;
                }
                Looked::NoRoom => self.orders.changed().await.map_err(|_| Gone)?,
                Looked::End(seen) => {
                    self.at = self.at.max(seen);
                    return self.say(OutputSays::Ends).await;
                }
            }
        }
    }

    async fn look(&self, reader: &Reader, until: u64) -> Looked {
        let room = usize::try_from(until.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let piece_bytes = self.piece_bytes.load(Ordering::Relaxed) as usize;
        match reader.at(self.at, room.min(piece_bytes).max(1)) {
            There::NotYet => Looked::NotYet,
            There::End(seen) => Looked::End(seen),
            // That something is lost is said whether there is room or not.
            There::Here { at, bytes } if at > self.at => Looked::Bytes(at, bytes),
            There::Here { .. } | There::InFile { .. } if room == 0 => Looked::NoRoom,
            There::Here { at, bytes } => Looked::Bytes(at, bytes),
            There::InFile { file, at, len } => {
                let read = tokio::task::spawn_blocking(move || There::read(&file, at, len)).await;
                match read {
                    Ok(Ok(bytes)) => Looked::Bytes(at, bytes),
                    // The file is not what it was: what it had is lost.
                    Ok(Err(_)) | Err(_) => Looked::End(reader.seen()),
                }
            }
        }
    }

    async fn hand_over(&mut self, bytes: bytes::Bytes) -> Result<(), Gone> {
        let output = Output { bytes: &bytes, ..self.output(OutputSays::Bytes) };
        let piece = Piece { id: self.id, frame: frame(self.id, &output), is_last: false };
        self.at = self.at.saturating_add(bytes.len() as u64);
        self.pieces.send(piece).await.map_err(|_| Gone)
    }

    async fn say(&self, says: OutputSays) -> Result<(), Gone> {
        let is_last = matches!(says, OutputSays::Ends | OutputSays::Present);
        let piece = Piece { id: self.id, frame: frame(self.id, &self.output(says)), is_last };
        self.pieces.send(piece).await.map_err(|_| Gone)
    }

    fn output(&self, says: OutputSays) -> Output<'static> {
        Output::new(says, self.attempt, self.began, self.at)
    }
}

#[cfg(test)]
#[path = "follows_tests.rs"]
mod tests;
