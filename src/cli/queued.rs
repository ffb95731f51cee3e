//! Why a job is still in its queue: asks the leader once in a while, for those who watch.

use std::pin::Pin;
use std::time::Duration;

use chunking::message::Features;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::explain::position;
use crate::answers::{WaitsFor, ask};
use crate::client::Client;

/// When the leader is first asked. Most jobs do not wait that long.
const FIRST: Duration = Duration::from_secs(2);

/// How often at the least; in between the time doubles.
const EVERY_MAX: Duration = Duration::from_secs(60);

/// Why a job waits.
#[derive(Clone, Debug)]
pub(crate) enum Queued {
    /// For its turn, or for something that people see elsewhere.
    Waits(String),
    /// For other jobs of its client, which a cap holds back: a log says that, too.
    Capped(String),
}

/// Asks for one job.
pub(crate) struct Why {
    client: Client,
    job: Uuid,
    every: Duration,
    due: Instant,
    /// The question that is under way.
    asking: Option<Pin<Box<dyn Future<Output = Option<Queued>> + Send>>>,
}

impl Why {
    pub(crate) fn new(client: &Client, job: Uuid) -> Self {
        let (client, due) = (client.clone(), Instant::now() + FIRST);
        Why { client, job, every: FIRST, due, asking: None }
    }

    /// The next answer. May be dropped while it waits: the question goes on.
    pub(crate) async fn next(&mut self) -> Option<Queued> {
        if self.asking.is_none() {
            sleep_until(self.due).await;
            let (client, job) = (self.client.clone(), self.job);
            self.asking = Some(Box::pin(async move { why(&client, job).await }));
        }
        let said = match &mut self.asking {
            Some(asking) => asking.await,
            None => None,
        };
        self.asking = None;
        self.every = (self.every * 2).min(EVERY_MAX);
        self.due = Instant::now() + self.every;
        said
    }
}

async fn why(client: &Client, job: Uuid) -> Option<Queued> {
    if !client.can(Features::ASK) {
        return None;
    }
    let explained = client.ask(&ask::Explain { job_id: job }).await.ok()?.answer;
    let waits = explained.waits.filter(|waits| !waits.text.is_empty());
    let is_capped = waits.as_ref().is_some_and(|waits| waits.what == WaitsFor::Cap);
    let ahead = explained.ahead.map(|ahead| format!("{} ahead", position(ahead)));
    let text = match (waits.map(|waits| waits.text), ahead) {
        (Some(why), Some(ahead)) if !is_capped => format!("{why} ({ahead})"),
        (why, ahead) => why.or(ahead)?,
    };
    Some(if is_capped { Queued::Capped(text) } else { Queued::Waits(text) })
}
