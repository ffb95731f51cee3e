//! The worker's line to its leader: dialling, waiting between attempts, following redirects, reading (CL08, RD02).
//!
//! It says what happened and sends what it is given; what frames mean is the session's business.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use chunking::Kind;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{info, warn};

use super::config::WorkerConfig;
use super::limits::{
    BACKLOG_BYTES_MAX, BACKLOG_FRAMES_MAX, CONNECT_MAX, LEAVE_MAX, READ_REST, REDIRECTS_AT_ONCE_MAX,
};
use crate::peer::{InFrame, Item, LinkError, LinkReader, LinkWriter, OutFrame, connect};
use crate::wire::{InChunk, Part, Signs};
use uuid::Uuid;

/// How long a connection to which nothing can be sent any more is still read: its end is there, or on its way.
const READ_OUT_MAX: Duration = Duration::from_millis(500);

type Dialled = Result<(LinkReader, LinkWriter), LinkError>;

enum State {
    Waiting(Instant),
    Dialling(JoinHandle<Dialled>),
    Up {
        reader: Box<LinkReader>,
        writer: LinkWriter,
        backlog: Option<Backlog>,
    },
    /// Nothing more can be sent; what came before that is still read.
    Ending {
        reader: Box<LinkReader>,
        until: Instant,
        why: String,
    },
    Left,
}

/// What the connection could not take at once. It goes out while the worker reads on: were it waited for, a leader that sends
/// meanwhile would see its bytes taken by nobody, and end the connection.
struct Backlog {
    flush: Pin<Box<dyn Future<Output = Result<(), LinkError>> + Send>>,
    /// Frames that were queued since it began.
    frames: usize,
    /// Whether one of them is a heartbeat.
    beats: bool,
}

impl Backlog {
    fn new(writer: LinkWriter) -> Self {
        Backlog { flush: Box::pin(async move { writer.flush().await }), frames: 0, beats: false }
    }

    /// Whether nothing more is to be read, as that makes more to send.
    fn is_full(&self, writer: &LinkWriter) -> bool {
        self.frames >= BACKLOG_FRAMES_MAX || writer.backlog() >= BACKLOG_BYTES_MAX
    }

    /// How it went out; waits for ever if there is none.
    async fn sent(backlog: &mut Option<Backlog>) -> Result<(), LinkError> {
        match backlog {
            Some(backlog) => backlog.flush.as_mut().await,
            None => pending().await,
        }
    }
}

/// What happened on the line.
#[derive(Debug)]
pub(super) enum News {
    /// A connection is there; the Hello is due.
    Connected,
    /// A frame came.
    Frame(InFrame),
    /// A chunk came.
    Chunk(InChunk),
    /// The connection is gone; the next one is being made.
    Lost,
}

/// A line to the leader.
pub(super) struct Line {
    config: WorkerConfig,
    state: State,
    /// Where to dial next, if a leader said so.
    redirect: Option<String>,
    /// Where it was dialled last.
    address: String,
    failures: u32,
    redirects: u32,
    /// What the last connection brought of a chunk that is not whole.
    cut: Option<Part>,
}

impl Line {
    pub(super) fn new(config: WorkerConfig) -> Self {
        let (state, address) = (State::Waiting(Instant::now()), config.leader.clone());
        Line { config, state, redirect: None, address, failures: 0, redirects: 0, cut: None }
    }

    /// The leader at the other end, which a redirect may have named.
    pub(super) fn address(&self) -> String {
        self.address.clone()
    }

    pub(super) fn is_up(&self) -> bool {
        match self.state {
            State::Up { .. } => true,
            State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left => false,
        }
    }

    /// What happens next. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> News {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    self.dial();
                }
                State::Dialling(dialled) => match dialled.await {
                    Ok(Ok((reader, writer))) => {
                        self.state = State::Up { reader: Box::new(reader), writer, backlog: None };
                        return News::Connected;
                    }
                    Ok(Err(error)) => self.failed(&error.to_string()),
                    Err(error) => self.failed(&error.to_string()),
                },
                State::Up { reader, writer, backlog } => {
                    let is_full = backlog.as_ref().is_some_and(|backlog| backlog.is_full(writer));
                    if is_full {
                        reader.rest();
                    }
                    let item = tokio::select! {
                        item = reader.next(), if !is_full => item,
                        sent = Backlog::sent(backlog) => match sent {
                            Ok(()) => {
                                *backlog = None;
                                continue;
                            }
                            Err(error) => {
                                self.read_out(error.to_string());
                                continue;
                            }
                        },
                        () = sleep(READ_REST), if is_full => continue,
                    };
                    match item {
                        Ok(Some(Item::Frame(frame))) => return News::Frame(frame),
                        Ok(Some(Item::Chunk(chunk))) => return News::Chunk(chunk),
                        Ok(None) => return self.lose("the leader closed the connection"),
                        Err(error) => return self.lose(&error.to_string()),
                    }
                }
                State::Ending { reader, until, why } => match timeout_at(*until, reader.next()).await {
                    Ok(Ok(Some(Item::Frame(frame)))) => return News::Frame(frame),
                    Ok(Ok(Some(Item::Chunk(chunk)))) => return News::Chunk(chunk),
                    Ok(Ok(None) | Err(_)) | Err(_) => {
                        let why = std::mem::take(why);
                        return self.lose(&why);
                    }
                },
                State::Left => pending().await,
            }
        }
    }

    /// Nothing more can be sent: the connection ends when what came before that is read, or soon.
    fn read_out(&mut self, why: String) {
        match std::mem::replace(&mut self.state, State::Left) {
            State::Up { reader, .. } => {
                self.state = State::Ending { reader, until: Instant::now() + READ_OUT_MAX, why };
            }
            other @ (State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left) => {
                self.state = other;
            }
        }
    }

    /// What the connection that was lost brought of a chunk that is not whole.
    pub(super) fn take_cut(&mut self) -> Option<Part> {
        self.cut.take()
    }

    /// The leader sends something at least every now and then.
    pub(super) fn expect_signs(&mut self, signs: Signs) {
        match &mut self.state {
            State::Up { reader, .. } => reader.expect_signs(signs),
            State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left => {}
        }
    }

    /// The connection's writer, for transfers that send by themselves.
    pub(super) fn writer(&self) -> Option<&LinkWriter> {
        match &self.state {
            State::Up { writer, .. } => Some(writer),
            State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left => None,
        }
    }

    /// Whether the connection is over, and what came before its end is being read. What is sent now is lost.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending { .. })
    }

    /// Whether something waits to go out: what can wait as well is better not sent now.
    pub(super) fn is_behind(&self) -> bool {
        match &self.state {
            State::Up { backlog, .. } => backlog.is_some(),
            State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left => false,
        }
    }

    /// Sends frames in one go; what the connection does not take at once goes out while [`Line::next`] waits. Without a connection
    /// they are dropped.
    pub(super) fn send_all(&mut self, frames: &mut Vec<OutFrame>) {
        let State::Up { writer, backlog, .. } = &mut self.state else {
            return frames.clear();
        };
        let queued = frames.drain(..).try_for_each(|frame| {
            if let Some(backlog) = backlog {
                let is_beat = frame.kind == Kind::Heartbeat;
                if is_beat && backlog.beats {
                    // One that waits says as much as two.
                    return Ok(());
                }
                backlog.beats |= is_beat;
                backlog.frames += 1;
            }
            writer.queue(frame)
        });
        match queued {
            // Most of the time there is room, and nothing to wait for.
            Ok(()) if backlog.is_some() || writer.try_flush() => {}
            Ok(()) => *backlog = Some(Backlog::new(writer.clone())),
            Err(error) => self.read_out(error.to_string()),
        }
    }

    /// The leader is one: the next failure counts as the first.
    pub(super) fn on_sound(&mut self) {
        self.failures = 0;
        self.redirects = 0;
    }

    /// Another node leads (RD02). Without an address the worker waits and tries again.
    pub(super) fn redirect(&mut self, to: Option<String>) -> News {
        self.redirects += 1;
        let at_once = to.is_some() && self.redirects <= REDIRECTS_AT_ONCE_MAX;
        info!(to = to.as_deref().unwrap_or("nobody yet"), at_once, "redirected: this node does not lead");
        self.redirect = to;
        if at_once {
            self.state = State::Waiting(Instant::now());
        } else {
            self.wait();
        }
        News::Lost
    }

    /// Says goodbye: what was sent goes out, then the connection ends.
    pub(super) async fn leave(&mut self) {
        match std::mem::replace(&mut self.state, State::Left) {
            State::Up { mut reader, writer, backlog } => {
                let sent = async {
                    if let Some(backlog) = backlog {
                        backlog.flush.await.ok();
                    }
                    drop(writer);
                };
                let closed = async { while let Ok(Some(_)) = reader.next().await {} };
                timeout(LEAVE_MAX, async { tokio::join!(sent, closed) }).await.ok();
            }
            State::Dialling(dialled) => dialled.abort(),
            State::Waiting(_) | State::Ending { .. } | State::Left => {}
        }
    }

    fn dial(&mut self) {
        let address = self.redirect.take().unwrap_or_else(|| self.config.leader.clone());
        self.address.clone_from(&address);
        let tuning = self.config.tuning.clone();
        self.state = State::Dialling(tokio::spawn(async move {
            let refused = || {
                let text = format!("no answer within {} s", CONNECT_MAX.as_secs());
                std::io::Error::new(std::io::ErrorKind::TimedOut, text)
            };
            match timeout(CONNECT_MAX, connect(address.as_str(), &tuning)).await {
                Ok(dialled) => dialled,
                Err(_) => Err(LinkError::Connect { addr: address, source: refused() }),
            }
        }));
    }

    /// Ends the connection, if there is one; the next is made after a wait.
    pub(super) fn lose(&mut self, why: &str) -> News {
        self.failed(why);
        News::Lost
    }

    fn failed(&mut self, why: &str) {
        let wait = self.wait();
        warn!(leader = %self.config.leader, wait_ms = wait, "no connection: {why}; running jobs go on, trying again");
    }

    fn wait(&mut self) -> u128 {
        if let State::Up { reader, .. } | State::Ending { reader, .. } = &mut self.state {
            self.cut = reader.cut();
        }
        self.failures = self.failures.saturating_add(1);
        let (entropy, _) = Uuid::new_v4().as_u64_pair();
        let delay = self.config.reconnect.delay(self.failures, entropy);
        self.state = State::Waiting(Instant::now() + delay);
        delay.as_millis()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let State::Dialling(dialled) = &self.state {
            dialled.abort();
        }
    }
}
