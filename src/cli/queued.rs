//! Why a job is still in its queue: asks the leader once in a while, for those who watch.

use std::pin::Pin;
use std::time::Duration;

use chunking::message::Features;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::explain::position;
use crate::answers::ask;
use crate::client::Client;

/// When the leader is first asked. Most jobs do not wait that long.
const FIRST: Duration = Duration::from_secs(2);

/// How often at the least; in between the time doubles.
const EVERY_MAX: Duration = Duration::from_secs(60);

/// Asks for one job.
pub(crate) struct Why {
    client: Client,
    job: Uuid,
    every: Duration,
    due: Instant,
    /// The question that is under way.
    asking: Option<Pin<Box<dyn Future<Output = Option<String>> + Send>>>,
}

impl Why {
    pub(crate) fn new(client: &Client, job: Uuid) -> Self {
        let (client, due) = (client.clone(), Instant::now() + FIRST);
        Why { client, job, every: FIRST, due, asking: None }
    }

    /// The next answer. May be dropped while it waits: the question goes on.
    pub(crate) async fn next(&mut self) -> Option<String> {
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

async fn why(client: &Client, job: Uuid) -> Option<String> {
    if !client.can(Features::ASK) {
        return None;
    }
    let explained = client.ask(&ask::Explain { job_id: job }).await.ok()?.answer;
    let why = explained.waits.map(|waits| waits.text).filter(|text| !text.is_empty());
    let ahead = explained.ahead.map(|ahead| format!("{} ahead", position(ahead)));
    match (why, ahead) {
        (Some(why), Some(ahead)) => Some(format!("{why} ({ahead})")),
        (why, ahead) => why.or(ahead),
    }
}
