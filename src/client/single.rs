//! A client of one leader.

use std::time::Duration;

use bytes::Bytes;
use chunking::message::Features;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use uuid::Uuid;

use super::Options;
use super::ask::{Answered, Question};
use super::connection::Mode;
use super::dispatch::Conn;
use super::downloads::{Downloads, Finished};
use super::error::ClientError;
use super::event_loop;
use super::fetch::fetch;
use super::follows::{FollowSpec, Following};
use super::job::{EVENTS_KEPT_MAX, JobHandle};
use super::remote::{Command, Remote, Sink};
use super::spec::{JobSpec, Prepared, payload_room, prepared, too_large};
use super::unsupported::Wishes;
use crate::answers::ask::Ask;
use crate::units::Span;

/// How a connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Not tried to the end yet.
    Connecting {
        /// The leader's address.
        leader: String,
    },
    /// Connected; the leader has not answered the hello yet.
    Greeting {
        /// The leader's address, which a redirect may have changed.
        leader: String,
    },
    /// Connected.
    Up {
        /// The leader's address, which a redirect may have changed.
        leader: String,
        /// What the leader is to us.
        mode: Mode,
    },
    /// Not connected; it is tried again.
    Down {
        /// The leader's address.
        leader: String,
        /// Why.
        why: String,
    },
}

impl LinkState {
    /// The leader's address.
    pub fn leader(&self) -> &str {
        match self {
            LinkState::Connecting { leader }
            | LinkState::Greeting { leader }
            | LinkState::Up { leader, .. }
            | LinkState::Down { leader, .. } => leader,
        }
    }

    pub(super) fn connecting(leader: &str) -> Self {
        LinkState::Connecting { leader: leader.to_owned() }
    }

    /// Whether jobs can be sent.
    pub fn is_up(&self) -> bool {
        match self {
            LinkState::Up { .. } => true,
            LinkState::Connecting { .. } | LinkState::Greeting { .. } | LinkState::Down { .. } => {
                false
            }
        }
    }
}

/// A client of one leader. Clones are the same client.
#[derive(Clone, Debug)]
pub struct Client {
    remote: Remote,
    client_id: String,
}

impl Client {
    /// Starts a client and returns at once; the connection is made, and made again, beside it.
    pub fn start(leader: &str, options: &Options) -> Result<Client, ClientError> {
        let (remote, _ended) = event_loop::start(&[leader.to_owned()], options)?;
        Ok(Client { remote, client_id: options.client_id.clone() })
    }

    /// Starts a client and waits until the leader is reached, for `connect_wait` at most.
    pub async fn connect(leader: &str, options: &Options) -> Result<Client, ClientError> {
        let client = Client::start(leader, options)?;
        reached(client.remote.states.clone(), options.connect_wait).await?;
        Ok(client)
    }

    /// How the connection stands.
    pub fn state(&self) -> LinkState {
        self.remote.states.borrow().first().cloned().unwrap_or_else(|| LinkState::connecting(""))
    }

    /// Whether the leader, as it stands now, can do this.
    pub fn can(&self, features: Features) -> bool {
        match self.state() {
            LinkState::Up { mode, .. } => mode.has(features),
            LinkState::Connecting { .. } | LinkState::Greeting { .. } | LinkState::Down { .. } => {
                false
            }
        }
    }

    /// Waits for room, then submits a job: a [`JobRequest`](crate::model::JobRequest), or a
    /// [`JobSpec`] with files of any size. A nil `job_id` is replaced by a new one, an empty
    /// `client_id` by this client's.
    pub async fn submit(&self, job: impl Into<JobSpec>) -> Result<JobHandle, ClientError> {
        let spec = job.into();
        let subject = format!("job.submit.{}", spec.request.exec_name);
        self.submit_to(&subject, spec).await
    }

    /// The same, to a subject of one's own: a group or `job.assign....` (C11).
    pub async fn submit_to(
        &self,
        subject: &str,
        job: impl Into<JobSpec>,
    ) -> Result<JobHandle, ClientError> {
        let prepared = prepared(job.into(), subject, &self.client_id).await?;
        handle(&self.remote, prepared).await
    }

    /// Submits any bytes as a job (M19). Its result is had with [`JobHandle::wait_raw`].
    pub async fn submit_raw(
        &self,
        subject: &str,
        payload: impl Into<Bytes>,
    ) -> Result<JobHandle, ClientError> {
        handle(&self.remote, raw_job(subject, payload.into())?).await
    }

    /// The same for a job that this client leaves with the leader, as [`JobSpec::detached`] says.
    pub async fn submit_raw_detached(
        &self,
        subject: &str,
        payload: impl Into<Bytes>,
    ) -> Result<JobHandle, ClientError> {
        let job = raw_job(subject, payload.into())?;
        let wishes = job.wishes.detached(true);
        handle(&self.remote, Prepared { detached: true, wishes, ..job }).await
    }

    /// Asks the leader to end a job that this client submitted; whether it is one of its unfinished
    /// ones. The job's end still comes by its handle.
    pub async fn cancel(&self, job: Uuid, why: impl Into<String>) -> bool {
        self.remote.cancel(job, why.into()).await
    }

    /// Asks the leader, and gathers an answer that comes in parts. Waits for the connection, and
    /// for the answer, as long as [`Options::answer_wait`] says.
    pub async fn ask<Q: Ask>(&self, question: &Q) -> Result<Answered<Q::Answer>, ClientError> {
        ask(&self.remote, 0, question).await
    }

    /// Follows an output of any job while it runs. It rides out leaders and workers that go away,
    /// and goes on where it was.
    pub async fn follow(&self, spec: FollowSpec) -> Result<Following, ClientError> {
        let (following, id, shared) = Following::new(self.remote.commands.clone());
        let follow = Command::Follow { id, spec, shared };
        self.remote.commands.send(follow).await.map_err(|_| ClientError::Closed)?;
        Ok(following)
    }

    /// The result of any job that has ended, with the parts that are wanted; `None` if the leader
    /// has none of it. Rides out leaders that go away, and goes on where it was.
    pub async fn fetch(
        &self,
        job: Uuid,
        downloads: &Downloads,
    ) -> Result<Option<Finished>, ClientError> {
        fetch(&self.remote, job, downloads).await
    }

    /// How far [`fetch`](Self::fetch) is with a job: bytes that came, bytes of all parts that were
    /// begun.
    pub fn fetched(&self, job: Uuid) -> (u64, u64) {
        self.remote.arrivals.progress(job)
    }

    /// Sends what is waiting and closes the connection. Jobs without a result stay with the leader.
    pub async fn close(&self) {
        self.remote.close().await;
    }
}

/// Waits until one of the leaders is up.
pub(super) async fn reached(
    mut states: watch::Receiver<Vec<LinkState>>,
    wait: Option<Duration>,
) -> Result<(), ClientError> {
    let up = states.wait_for(|states| states.iter().any(LinkState::is_up));
    let up = match wait {
        Some(wait) => timeout(wait, up).await.map(|up| up.map(drop)),
        None => Ok(up.await.map(drop)),
    };
    let (Some(wait), Err(_)) = (wait, &up) else {
        return up.unwrap_or(Ok(())).map_err(|_| ClientError::Closed);
    };
    let waited_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let seen = states.borrow();
    let greeted = seen.iter().find_map(|state| match state {
        LinkState::Greeting { leader } => Some(leader.clone()),
        LinkState::Connecting { .. } | LinkState::Up { .. } | LinkState::Down { .. } => None,
    });
    if let Some(leader) = greeted {
        return Err(ClientError::NoWelcome { leader, waited: Span(wait) });
    }
    let (leaders, whys): (Vec<String>, Vec<String>) = seen
        .iter()
        .map(|state| match state {
            LinkState::Connecting { leader } | LinkState::Greeting { leader } => {
                (leader.clone(), "no answer yet".to_owned())
            }
            LinkState::Down { leader, why } => (leader.clone(), why.clone()),
            LinkState::Up { leader, .. } => (leader.clone(), "connected".to_owned()),
        })
        .unzip();
    Err(ClientError::Unreachable { leader: leaders.join(", "), why: whys.join("; "), waited_ms })
}

pub(super) async fn handle(remote: &Remote, job: Prepared) -> Result<JobHandle, ClientError> {
    let (news, events) = mpsc::channel(EVENTS_KEPT_MAX);
    let (end, ending) = oneshot::channel();
    let (id, upload_bytes) = (job.id, job.upload_bytes());
    remote.submit(job, Sink::Handle { events: news, ending: end }).await?;
    Ok(JobHandle {
        id,
        upload_bytes,
        events,
        ending: Some(ending),
        commands: remote.commands.clone(),
    })
}

/// A job of any bytes (M19). They go in one frame: there is no request that could name a blob.
pub(super) fn raw_job(subject: &str, payload: Bytes) -> Result<Prepared, ClientError> {
    let (bytes, room) = (payload.len() as u64, payload_room(subject)?);
    if bytes > room {
        return Err(too_large(bytes, room));
    }
    let wishes = Wishes::of_raw(&payload, subject);
    Ok(Prepared {
        id: Uuid::new_v4(),
        subject: subject.to_owned(),
        payload,
        blobs: Vec::new(),
        wishes,
        detached: false,
    })
}

pub(super) async fn ask<Q: Ask>(
    remote: &Remote,
    conn: Conn,
    question: &Q,
) -> Result<Answered<Q::Answer>, ClientError> {
    let bad = |error: serde_json::Error| ClientError::BadAnswer {
        verb: Q::VERB.to_string(),
        why: error.to_string(),
    };
    let (reply, answer) = oneshot::channel();
    let json = serde_json::to_vec(question).map_err(bad)?;
    let question = Command::Ask(Question { conn, verb: Q::VERB, json, reply });
    let answered = async {
        remote.commands.send(question).await.map_err(|_| ClientError::Closed)?;
        answer.await.unwrap_or(Err(ClientError::Closed))
    };
    let json = match remote.answer_wait {
        None => answered.await?,
        Some(wait) => timeout(wait, answered).await.unwrap_or_else(|_| {
            let leader = remote
                .states
                .borrow()
                .get(conn)
                .map(|state| state.leader().to_owned())
                .unwrap_or_default();
            Err(ClientError::NoAnswer { leader, verb: Q::VERB.to_string(), waited: Span(wait) })
        })?,
    };
    Ok(Answered { answer: Q::Answer::deserialize(&json).map_err(bad)?, json })
}
