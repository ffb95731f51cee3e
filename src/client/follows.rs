//! Follows the output of jobs while they run (62, 63): keeps the place in it over every break of
//! the connection, and lets no more come than whoever reads has room for.
//!
//! [`Follows`] is the driver's part and has no I/O: the driver passes it connections and frames.
//! [`Following`] is the reader's end.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use chunking::limits::OUTPUT_PIECE_BYTES_MAX;
use chunking::message::{Features, Follow, FollowFlags, Output, OutputSays, Reason, Stream};
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::connection::{Mode, Outgoing};
use super::error::ClientError;
use super::remote::Command;
use crate::peer::{InFrame, OutFrame};

/// Outputs that one client follows at a time.
pub const FOLLOWS_MAX: usize = 64;

/// Bytes of one output that may wait to be read, or be on their way.
pub const FOLLOW_WINDOW_BYTES: u64 = 256 * 1024;

/// News of one output that wait to be read. A leader that keeps to the rules never gets near it.
const NEWS_WAITING_MAX: usize = 1_024;

/// Which output of a job to follow, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowSpec {
    /// The job.
    pub job: Uuid,
    /// Its standard output, or its standard error.
    pub stream: Stream,
    /// Whether it goes on after what is there now, until the job has ended.
    pub stays: bool,
}

/// News of an output that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowEvent {
    /// A program's output follows. It is that of another program than before, from its start,
    /// unless `began` is the same.
    Begins {
        /// The attempt.
        attempt: u32,
        /// The attempt under which the program began.
        began: u32,
        /// The worker that runs it.
        worker: String,
    },
    /// The next bytes.
    Bytes(Bytes),
    /// The next bytes, so many, are nowhere: more was printed than is kept.
    Lost(u64),
    /// The program has ended, and had printed so many bytes. What did not come of them is in the
    /// job's result, as far as it is kept.
    Ends(u64),
    /// Nothing comes at the moment, and why.
    Waits(String),
    /// The leader is away; the client tries again, and goes on where it was.
    Reconnecting {
        /// The leader's address.
        leader: String,
        /// What happened.
        why: String,
    },
    /// There is no more now. Nothing follows.
    Present,
    /// The job has ended; what did not come is in its result. Nothing follows.
    JobEnded,
    /// The output cannot be had. Nothing follows.
    Refused {
        /// Why, for programs.
        reason: Reason,
        /// The same for people.
        text: String,
    },
    /// The leader cannot be asked. Nothing follows.
    Failed(ClientError),
}

impl FollowEvent {
    /// Whether nothing follows.
    fn is_last(&self) -> bool {
        match self {
            FollowEvent::Begins { .. }
            | FollowEvent::Bytes(_)
            | FollowEvent::Lost(_)
            | FollowEvent::Ends(_)
            | FollowEvent::Waits(_)
            | FollowEvent::Reconnecting { .. } => false,
            FollowEvent::Present
            | FollowEvent::JobEnded
            | FollowEvent::Refused { .. }
            | FollowEvent::Failed(_) => true,
        }
    }
}

/// What came and was not read.
#[derive(Debug, Default)]
struct Inbox {
    news: VecDeque<News>,
    /// Whose output was read, and how far.
    began: u32,
    taken: u64,
    /// Nobody reads any more.
    is_left: bool,
}

/// Bytes are gathered: a program may print them one by one.
#[derive(Debug)]
enum News {
    Bytes(BytesMut),
    Other(FollowEvent),
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    came: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds news. Of several that say only how things are the last one counts.
    fn put(&self, event: FollowEvent) {
        let is_state = |event: &FollowEvent| {
            matches!(event, FollowEvent::Waits(_) | FollowEvent::Reconnecting { .. })
        };
        let mut inbox = self.lock();
        if let Some(News::Other(last)) = inbox.news.back_mut()
            && is_state(last)
            && is_state(&event)
        {
            *last = event;
        } else {
            inbox.news.push_back(News::Other(event));
        }
        drop(inbox);
        self.came.notify_one();
    }

    fn put_bytes(&self, bytes: &[u8]) {
        let mut inbox = self.lock();
        match inbox.news.back_mut() {
            Some(News::Bytes(last))
                if last.len() + bytes.len() <= OUTPUT_PIECE_BYTES_MAX as usize =>
            {
                last.extend_from_slice(bytes);
            }
            Some(News::Bytes(_) | News::Other(_)) | None => {
                inbox.news.push_back(News::Bytes(BytesMut::from(bytes)));
            }
        }
        drop(inbox);
        self.came.notify_one();
    }
}

/// An output that is followed. It is followed no more when this is dropped.
#[derive(Debug)]
pub struct Following {
    id: Uuid,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    /// Bytes that were read since the leader heard of it.
    unsaid: u64,
    has_ended: bool,
}

impl Following {
    pub(super) fn new(commands: mpsc::Sender<Command>) -> (Self, Uuid, Arc<Shared>) {
        let (id, shared) = (Uuid::new_v4(), Arc::new(Shared::default()));
        let following =
            Following { id, shared: shared.clone(), commands, unsaid: 0, has_ended: false };
        (following, id, shared)
    }

    /// What comes next; `None` after the last. What it gives counts as read, and makes room for
    /// more with one of the next calls. May be dropped while it waits.
    pub async fn next(&mut self) -> Option<FollowEvent> {
        if self.has_ended {
            return None;
        }
        if self.unsaid >= FOLLOW_WINDOW_BYTES / 2 {
            if self.commands.send(Command::FollowMore { id: self.id }).await.is_err() {
                self.has_ended = true;
                return Some(FollowEvent::Failed(ClientError::Closed));
            }
            self.unsaid = 0;
        }
        loop {
            if let Some(event) = self.take() {
                self.has_ended = event.is_last();
                return Some(event);
            }
            tokio::select! {
                () = self.shared.came.notified() => {}
                () = self.commands.closed() => {
                    self.has_ended = true;
                    return Some(FollowEvent::Failed(ClientError::Closed));
                }
            }
        }
    }

    fn take(&mut self) -> Option<FollowEvent> {
        let mut inbox = self.shared.lock();
        let event = match inbox.news.pop_front()? {
            News::Bytes(bytes) => FollowEvent::Bytes(bytes.freeze()),
            News::Other(event) => event,
        };
        // Where the place has jumped, the leader has to hear of it before more can come.
        let read = match &event {
            FollowEvent::Bytes(bytes) => bytes.len() as u64,
            FollowEvent::Lost(bytes) => *bytes,
            FollowEvent::Begins { began, .. } if *began != inbox.began => {
                (inbox.began, inbox.taken) = (*began, 0);
                self.unsaid = FOLLOW_WINDOW_BYTES;
                0
            }
            FollowEvent::Begins { .. }
            | FollowEvent::Ends(_)
            | FollowEvent::Waits(_)
            | FollowEvent::Reconnecting { .. }
            | FollowEvent::Present
            | FollowEvent::JobEnded
            | FollowEvent::Refused { .. }
            | FollowEvent::Failed(_) => 0,
        };
        inbox.taken = inbox.taken.saturating_add(read);
        let said = if let FollowEvent::Lost(_) = event { FOLLOW_WINDOW_BYTES } else { read };
        self.unsaid = self.unsaid.saturating_add(said);
        Some(event)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.shared.lock().is_left = true;
        // If there is no room for it, the next output that comes shows it.
        self.commands.try_send(Command::Unfollow { id: self.id }).ok();
    }
}

/// An output as the driver knows it.
#[derive(Debug)]
struct Open {
    spec: FollowSpec,
    shared: Arc<Shared>,
    /// Whether the leader of the present connection was asked.
    is_asked: bool,
    /// The attempt, and the one under which the program began whose output came.
    attempt: u32,
    began: u32,
    /// How far it came, and how far it may come.
    at: u64,
    until: u64,
}

impl Open {
    fn follow(&self, flags: FollowFlags, from: u64) -> Follow {
        let FollowSpec { job, stream, .. } = self.spec;
        Follow { job, attempt: 0, began: self.began, stream, flags, from, until: self.until }
    }

    fn flags(&self) -> FollowFlags {
        if self.spec.stays { FollowFlags::STAYS } else { FollowFlags::default() }
    }

    /// Takes what came; what is wrong with it, if something is. Nothing follows an event of the
    /// last kind.
    fn take(&mut self, output: &Output<'_>) -> Result<(), &'static str> {
        if self.shared.lock().news.len() >= NEWS_WAITING_MAX {
            return Err("it says more than can be read");
        }
        let event = match output.says {
            OutputSays::Begins => {
                let is_another = output.began != self.began;
                if output.offset != if is_another { 0 } else { self.at } {
                    return Err("it begins at another place");
                }
                if !is_another && output.attempt == self.attempt {
                    return Ok(());
                }
                if is_another {
                    (self.began, self.at, self.until) = (output.began, 0, FOLLOW_WINDOW_BYTES);
                }
                self.attempt = output.attempt;
                let worker = output.text().to_owned();
                FollowEvent::Begins { attempt: output.attempt, began: output.began, worker }
            }
            OutputSays::Bytes => {
                let end = output.offset.saturating_add(output.bytes.len() as u64);
                if output.began != self.began || output.offset != self.at {
                    return Err("it is of another place");
                }
                if end > self.until {
                    return Err("it is more than there was room for");
                }
                self.at = end;
                self.shared.put_bytes(output.bytes);
                return Ok(());
            }
            OutputSays::Lost => {
                if output.began != self.began || output.offset <= self.at {
                    return Err("it is lost and came");
                }
                let lost = output.offset - self.at;
                self.at = output.offset;
                FollowEvent::Lost(lost)
            }
            // An end that is not of what came says nothing of it.
            OutputSays::Ends if output.began != self.began || output.offset < self.at => {
                return Ok(());
            }
            OutputSays::Ends => FollowEvent::Ends(output.offset),
            OutputSays::Waits => FollowEvent::Waits(output.text().to_owned()),
            OutputSays::Present => FollowEvent::Present,
            OutputSays::JobEnded => FollowEvent::JobEnded,
            OutputSays::Refused => {
                FollowEvent::Refused { reason: output.reason, text: output.text().to_owned() }
            }
        };
        self.shared.put(event);
        Ok(())
    }
}

/// The outputs that one client follows.
#[derive(Debug, Default)]
pub(super) struct Follows {
    open: HashMap<Uuid, Open>,
}

impl Follows {
    /// Takes one in; it is asked for as soon as the connection is up.
    pub(super) fn add(&mut self, id: Uuid, spec: FollowSpec, shared: Arc<Shared>) {
        self.open.retain(|_, open| !open.shared.lock().is_left);
        if self.open.len() >= FOLLOWS_MAX {
            return shared
                .put(FollowEvent::Failed(ClientError::TooManyFollows { limit: FOLLOWS_MAX }));
        }
        let open = Open {
            spec,
            shared,
            is_asked: false,
            attempt: 0,
            began: 0,
            at: 0,
            until: FOLLOW_WINDOW_BYTES,
        };
        self.open.insert(id, open);
    }

    /// Whether one waits to be asked for.
    pub(super) fn wait(&self) -> bool {
        self.open.values().any(|open| !open.is_asked)
    }

    /// Asks for those that wait. A leader that has not said what it knows may be a slow heft
    /// leader: unless it `is_given_up`, they wait for its Welcome.
    pub(super) fn send(
        &mut self,
        leader: &str,
        mode: &Mode,
        outbox: &mpsc::Sender<Outgoing>,
        is_given_up: bool,
    ) {
        if matches!(mode, Mode::Classic) && !is_given_up {
            return;
        }
        if !mode.has(Features::FOLLOW) {
            for (_, open) in self.open.drain() {
                let leader = leader.to_owned();
                let error = ClientError::NotSupported { leader, feature: "follow" };
                open.shared.put(FollowEvent::Failed(error));
            }
            return;
        }
        for (id, open) in self.open.iter_mut().filter(|(_, open)| !open.is_asked) {
            let taken = {
                let inbox = open.shared.lock();
                if inbox.began == open.began { inbox.taken } else { 0 }
            };
            // What came and was not read takes room.
            open.until = taken.saturating_add(FOLLOW_WINDOW_BYTES).max(open.at);
            let follow = open.follow(open.flags(), open.at);
            let frame = OutFrame::message(*id, &follow);
            open.is_asked = outbox.try_send(Outgoing::plain(frame)).is_ok();
        }
    }

    /// Something was read: there is room for more.
    pub(super) fn more(&mut self, id: Uuid, outbox: Option<&mpsc::Sender<Outgoing>>) {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.is_asked) else { return };
        let (began, taken) = {
            let inbox = open.shared.lock();
            (inbox.began, inbox.taken)
        };
        if began != open.began {
            // It has yet to read that another program's output begins.
            return;
        }
        open.until = open.until.max(taken.saturating_add(FOLLOW_WINDOW_BYTES));
        tell(outbox, OutFrame::message(id, &open.follow(open.flags(), taken)));
    }

    /// Nobody reads it any more.
    pub(super) fn end(&mut self, id: Uuid, outbox: Option<&mpsc::Sender<Outgoing>>) {
        let Some(open) = self.open.remove(&id).filter(|open| open.is_asked) else { return };
        tell(outbox, OutFrame::message(id, &open.follow(FollowFlags::OVER, open.at)));
    }

    /// The connection ended: they are asked for again on the next.
    pub(super) fn lost(&mut self, leader: &str, why: &str) {
        for open in self.open.values_mut() {
            open.is_asked = false;
            let (leader, why) = (leader.to_owned(), why.to_owned());
            open.shared.put(FollowEvent::Reconnecting { leader, why });
        }
    }

    /// Something came.
    pub(super) fn take(
        &mut self,
        frame: &InFrame,
        outbox: Option<&mpsc::Sender<Outgoing>>,
    ) -> Result<(), chunking::MessageError> {
        let id = frame.msg_id;
        let Some(open) = self.open.get_mut(&id).filter(|open| open.is_asked) else { return Ok(()) };
        let output = Output::decode(&frame.payload)?;
        if open.shared.lock().is_left {
            self.end(id, outbox);
            return Ok(());
        }
        match open.take(&output) {
            Ok(()) => {
                let is_last = matches!(
                    output.says,
                    OutputSays::Present | OutputSays::JobEnded | OutputSays::Refused
                );
                if is_last {
                    self.open.remove(&id);
                }
            }
            Err(why) => {
                let why = format!("output of job {} makes no sense: {why}", open.spec.job);
                let error = ClientError::BadAnswer { verb: "follow".to_owned(), why };
                open.shared.put(FollowEvent::Failed(error));
                self.end(id, outbox);
            }
        }
        Ok(())
    }
}

/// Sends a frame if there is a connection. It has a place: a follow has a few on their way.
fn tell(outbox: Option<&mpsc::Sender<Outgoing>>, frame: OutFrame) {
    if let Some(outbox) = outbox {
        outbox.try_send(Outgoing::plain(frame)).ok();
    }
}

#[cfg(test)]
#[path = "follows_tests.rs"]
mod tests;
