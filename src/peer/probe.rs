//! Tests whether a heft leader answers at an address: a separate connection says hello as a client,
//! waits for the answer and closes. It submits and takes no job, so it is harmless whatever listens
//! there.

use std::time::Duration;

use chunking::Kind;
use chunking::message::Features;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::announcement;
use super::link::{Item, LinkError, OutFrame, connect};
use crate::model::{ClientConfig, JsonModel};
use crate::wire::Tuning;

/// Who asks. It is the same for all: a classic leader may keep an entry for each id that it has
/// ever seen.
pub const PROBE_CLIENT_ID: &str = "heft-probe";

/// How long an answer is waited for. A leader that takes longer answers later probes, and the
/// connection that is asked about.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// A probe under way. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Probe(JoinHandle<bool>);

impl Probe {
    pub(crate) fn start(leader: String, tuning: &Tuning) -> Self {
        let tuning = tuning.clone();
        Probe(tokio::spawn(async move {
            let answered = timeout(PROBE_WAIT, ask(&leader, &tuning)).await;
            let is_answered = matches!(answered, Ok(Ok(true)));
            tracing::debug!(%leader, is_answered, "probed");
            is_answered
        }))
    }

    /// Whether a heft node answered; waits for ever without a probe. May be dropped while it waits.
    pub(crate) async fn end(probe: &mut Option<Probe>) -> bool {
        match probe {
            Some(Probe(task)) => {
                let is_answered = task.await.unwrap_or(false);
                *probe = None;
                is_answered
            }
            None => std::future::pending().await,
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(leader: &str, tuning: &Tuning) -> Result<bool, LinkError> {
    let (mut reader, writer) = connect(leader, tuning).await?;
    let config = ClientConfig {
        client_id: PROBE_CLIENT_ID.to_owned(),
        desired_parallelism: 1,
        cap: None,
        heft: Some(announcement(Features::REDIRECTS, None)),
    };
    let hello = OutFrame {
        msg_id: uuid::Uuid::new_v4(),
        subject: PROBE_CLIENT_ID.to_owned(),
        ..OutFrame::new(Kind::HelloClient, config.to_json())
    };
    writer.send(hello).await?;
    while let Some(item) = reader.next().await? {
        match item {
            // A node that does not lead is a heft one, too, and says more to the next hello.
            Item::Frame(frame) if matches!(frame.kind(), Some(Kind::Welcome | Kind::NotLeader)) => {
                return Ok(true);
            }
            Item::Frame(_) | Item::Chunk(_) => {}
        }
    }
    Ok(false)
}
