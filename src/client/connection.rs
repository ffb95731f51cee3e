//! Runs one connection of a client, maintained by an [`Uplink`]: sends the event loop's outbox and
//! passes every received frame to the event loop. It knows nothing about jobs.
//! The back-off between attempts is in `peer/route.rs`.

use std::time::Duration;

use chunking::Kind;
use chunking::message::{Features, LimitId, Welcome};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::Options;
use super::arrivals::Arrivals;
use super::dispatch::Conn;
use crate::model::hello::{CLIENT_CAP_DEFAULT, UNCAPPED};
use crate::model::{ClientConfig, JsonModel};
use crate::peer::{
    self, InFrame, LinkError, LinkWriter, OutFrame, OwnSigns, Patience, Settings, Uplink,
};
use crate::wire::Part;

/// How long a connection is read on after its last frame was sent, so that the other side has it.
const CLOSE_WAIT: Duration = Duration::from_millis(300);

/// What the client announces.
const FEATURES: Features = Features::SUBMIT_ANSWERS
    .with(Features::PROGRESS)
    .with(Features::CANCEL)
    .with(Features::ASK)
    .with(Features::REDIRECTS)
    .with(Features::TRANSFERS)
    .with(Features::GZIP)
    .with(Features::BROTLI)
    .with(Features::ZSTD)
    .with(Features::DATASETS)
    .with(Features::CHECKSUMS)
    .with(Features::RECEIPTS)
    .with(Features::KEEPALIVE)
    .with(Features::PIECES)
    .with(Features::FOLLOW);

/// What a leader is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A heft leader that answered the announcement.
    Announced {
        /// The leader's id, new with each of its starts.
        leader: Uuid,
        /// Its software.
        software: String,
        /// What both can do.
        features: Features,
        /// Transfers that one connection may have, if it said so.
        transfers_max: Option<u64>,
    },
    /// A classic leader, as far as we know.
    Classic,
}

impl Mode {
    /// Whether both can do `features`.
    pub fn has(&self, features: Features) -> bool {
        self.features().has(features)
    }

    /// What both can do.
    pub fn features(&self) -> Features {
        match self {
            Mode::Announced { features, .. } => *features,
            Mode::Classic => Features::default(),
        }
    }

    /// Blobs of jobs that may be on one connection: half of its transfers, the other half is for
    /// parts of results.
    pub(super) fn blobs_max(&self) -> usize {
        match self {
            Mode::Announced { transfers_max: Some(max), .. } => {
                usize::try_from(max / 2).unwrap_or(usize::MAX).max(1)
            }
            Mode::Announced { transfers_max: None, .. } | Mode::Classic => usize::MAX,
        }
    }

    pub(super) fn of_welcome(welcome: &Welcome) -> Mode {
        let software = welcome.software.as_str().to_owned();
        let transfers_max = welcome.limits.value(LimitId::TRANSFERS);
        Mode::Announced {
            leader: welcome.leader,
            software,
            features: welcome.features,
            transfers_max,
        }
    }
}

/// A frame to send; `job` for those whose loss must be known.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) frame: OutFrame,
    /// Frames that go right behind it: the job's transfers are opened once the leader has the job.
    pub(super) opens: Vec<OutFrame>,
    pub(super) job: Option<Uuid>,
}

impl Outgoing {
    /// A frame whose loss does no harm.
    pub(super) fn plain(frame: OutFrame) -> Self {
        Outgoing { frame, opens: Vec::new(), job: None }
    }
}

/// What a connection tells the event loop, in order.
#[derive(Debug)]
pub(super) enum News {
    /// The leader took the connection and has the hello; its answer is waited for.
    Greeting { address: String },
    /// The leader has not answered the hello: what is waited for, and for how long already.
    Unanswered { text: String },
    /// It is ready; frames go into `outbox`, and chunks to `writer`.
    Up { mode: Mode, address: String, outbox: mpsc::Sender<Outgoing>, writer: LinkWriter },
    /// A leader that was taken for a classic one has answered the hello after all.
    Welcome { mode: Mode },
    /// A frame came.
    Frame(InFrame),
    /// It is not connected (any more) and tries again after `retry_in`. `unsent` were in the
    /// outbox.
    Down { why: String, retry_in: Duration, unsent: Vec<Uuid> },
}

/// Where the news go.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    pub(super) conn: Conn,
    pub(super) news: mpsc::Sender<(Conn, News)>,
    /// Takes the frames of downloads, which do not go by the event loop.
    pub(super) arrivals: Arrivals,
}

impl Reporter {
    /// An error only when the event loop is gone.
    async fn report(&self, news: News) -> Result<(), Gone> {
        self.news.send((self.conn, news)).await.map_err(|_| Gone)
    }
}

/// The event loop is gone.
struct Gone;

/// The uplink to a leader, with the number of jobs that may run at a time.
pub(super) fn uplink(leader: &str, desired: u32, options: &Options) -> Uplink {
    let settings = Settings {
        leader: leader.to_owned(),
        tuning: options.tuning.clone(),
        connect_max: options.connect_timeout,
        patience: Patience {
            wait: options.welcome_wait,
            wait_max: options.welcome_wait_max,
            probe: options.probe_backoff,
        },
        backoff: options.backoff,
        signs: OwnSigns::Keepalives,
    };
    // A classic leader knows only wishes, and is told the default (CP02).
    let (told, cap) = match desired {
        UNCAPPED => (CLIENT_CAP_DEFAULT, Some(0)),
        desired => (desired, None),
    };
    let config = ClientConfig {
        client_id: options.client_id.clone(),
        desired_parallelism: i32::try_from(told.max(1)).unwrap_or(i32::MAX),
        cap,
        heft: Some(peer::announcement(FEATURES, None)),
    };
    Uplink::new(settings, move || OutFrame {
        msg_id: Uuid::new_v4(),
        subject: config.client_id.clone(),
        ..OutFrame::new(Kind::HelloClient, config.to_json())
    })
}

/// Keeps a connection up until the event loop stops it.
pub(super) async fn keep(
    uplink: Uplink,
    reporter: Reporter,
    outbox_max: usize,
    mut stop: watch::Receiver<bool>,
) {
    let mut connection = Connection { uplink, reporter, unreported: None };
    loop {
        let mode = tokio::select! {
            mode = connection.connect() => mode,
            _ = stop.changed() => return,
        };
        let Ok(mode) = mode else { return };
        if connection.serve(mode, outbox_max).await.is_err() {
            return;
        }
    }
}

/// The end of a connection.
struct Lost {
    why: String,
    retry_in: Duration,
    /// What came of a chunk that is not whole.
    cut: Option<Part>,
}

struct Connection {
    uplink: Uplink,
    reporter: Reporter,
    /// What came and has not been reported yet: whoever reads may be dropped while it waits for
    /// that.
    unreported: Option<News>,
}

impl Connection {
    /// Tries until a leader is there.
    async fn connect(&mut self) -> Result<Mode, Gone> {
        loop {
            let news = match self.uplink.next(|| false).await {
                peer::News::Greeted => News::Greeting { address: self.uplink.address().to_owned() },
                peer::News::Unanswered { text } => News::Unanswered { text },
                peer::News::Classic => return Ok(Mode::Classic),
                peer::News::Welcome(welcome) => return Ok(Mode::of_welcome(&welcome)),
                peer::News::Frame(frame) => News::Frame(frame),
                peer::News::Chunk(_) => continue,
                peer::News::Failed { why, retry_in } | peer::News::Lost { why, retry_in, .. } => {
                    tracing::debug!(leader = %self.uplink.address(), %why, ?retry_in, "not connected");
                    News::Down { why, retry_in, unsent: Vec::new() }
                }
            };
            self.reporter.report(news).await?;
        }
    }

    /// Sends and reads, as long as the connection lasts.
    async fn serve(&mut self, mut mode: Mode, outbox_max: usize) -> Result<(), Gone> {
        let Some(writer) = self.uplink.writer().cloned() else { return Ok(()) };
        let (outbox, mut queue) = mpsc::channel(outbox_max);
        let address = self.uplink.address().to_owned();
        let up = News::Up { mode: mode.clone(), address, outbox, writer: writer.clone() };
        self.reporter.report(up).await?;
        let mut unsent = Vec::new();
        // Two loops side by side: reading must go on while a full outbox waits, or both ends could
        // wait for each other.
        let lost = tokio::select! {
            lost = self.read(&writer, &mut mode) => lost,
            sent = forward(&mut queue, &writer, &mut unsent) => match sent {
                Ok(()) => {
                    // All was handed over; the other side closes when it has read it.
                    drop(writer);
                    self.uplink.leave(CLOSE_WAIT).await;
                    return Err(Gone);
                }
                Err(error) => {
                    self.uplink.broke(error.to_string());
                    self.read(&writer, &mut mode).await
                }
            },
        };
        let Lost { why, retry_in, cut } = lost?;
        if let Some(part) = cut.filter(|_| mode.has(Features::PIECES)) {
            self.reporter.arrivals.keep(part);
        }
        queue.close();
        while let Ok(left) = queue.try_recv() {
            unsent.extend(left.job);
        }
        self.reporter.report(News::Down { why, retry_in, unsent }).await
    }

    /// Gives every frame to the event loop. May be dropped while it waits.
    async fn read(&mut self, writer: &LinkWriter, mode: &mut Mode) -> Result<Lost, Gone> {
        loop {
            let Reporter { conn, news, arrivals } = &self.reporter;
            if self.unreported.is_some() {
                let place = news.reserve().await.map_err(|_| Gone)?;
                if let Some(news) = self.unreported.take() {
                    place.send((*conn, news));
                }
            }
            self.unreported = match self.uplink.next(|| false).await {
                peer::News::Unanswered { text } => Some(News::Unanswered { text }),
                peer::News::Welcome(welcome) => {
                    mode.clone_from(&Mode::of_welcome(&welcome));
                    Some(News::Welcome { mode: mode.clone() })
                }
                peer::News::Frame(frame) if arrivals.frame(*conn, writer, &frame) => None,
                peer::News::Frame(frame) => Some(News::Frame(frame)),
                peer::News::Chunk(chunk) => {
                    arrivals.chunk(*conn, writer, chunk);
                    None
                }
                peer::News::Lost { why, retry_in, cut } => return Ok(Lost { why, retry_in, cut }),
                // There is a connection already, and what the leader is was said.
                peer::News::Greeted | peer::News::Classic | peer::News::Failed { .. } => None,
            };
        }
    }
}

/// Sends what the event loop puts into the outbox. Ends when the event loop closes it, or when the
/// connection takes no more.
async fn forward(
    queue: &mut mpsc::Receiver<Outgoing>,
    writer: &LinkWriter,
    unsent: &mut Vec<Uuid>,
) -> Result<(), LinkError> {
    while let Some(outgoing) = queue.recv().await {
        if let Err(error) = writer.send(outgoing.frame).await {
            unsent.extend(outgoing.job);
            return Err(error);
        }
        for open in outgoing.opens {
            writer.send(open).await?;
        }
    }
    Ok(())
}
