//! Decides what happens to a job that `heft submit` leaves before its end, by what the leader has
//! of it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use super::reach::Leader;
use crate::client::{Finished, JobError, JobEvent, JobHandle};
use crate::model::JobStatus;
use crate::units::ByteSize;

/// How long the leader has to answer when a job is withdrawn, or is about to be taken.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How far a job has come, as its events say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It waits here for a connection, or for its turn.
    #[default]
    Nothing,
    /// It was sent; the leader has not said that it has it.
    Sent,
    /// The same, and `done` bytes of its large files were sent.
    Uploading {
        /// Bytes that were sent.
        done: u64,
    },
    /// The leader had it, and was away since: whether it has it now is not known.
    InDoubt,
    /// The leader has it, with all of its files.
    Taken,
}

impl Reached {
    /// Something happened.
    pub(crate) fn take(&mut self, event: &JobEvent) {
        match event {
            // To a leader that does not have its files, or to another one.
            JobEvent::Sent { again: false, .. } | JobEvent::Moved { .. } => *self = Reached::Sent,
            JobEvent::Sent { again: true, .. } => {
                if *self == Reached::Nothing {
                    *self = Reached::Sent;
                }
            }
            JobEvent::Reconnecting { .. } => {
                if matches!(self, Reached::Taken) {
                    *self = Reached::InDoubt;
                }
            }
            JobEvent::Uploading { done, .. } => {
                if !matches!(self, Reached::Taken) {
                    *self = Reached::Uploading { done: *done };
                }
            }
            // Parts of a result come before the job has ended.
            JobEvent::Submitted { .. } | JobEvent::Downloading { .. } => *self = Reached::Taken,
            JobEvent::Progress { .. }
            | JobEvent::Waiting { .. }
            | JobEvent::Ignored { .. }
            | JobEvent::ResultMayBeLost { .. } => {}
        }
    }
}

/// What becomes of a job that is left.
#[derive(Debug)]
pub(crate) enum Left {
    /// It goes on.
    GoesOn,
    /// It never left here.
    NeverSent,
    /// Its files had not all come, so it was withdrawn: nothing of it runs.
    Withdrawn {
        /// Bytes of its files that were sent, and bytes in all.
        sent: (u64, u64),
    },
    /// It was to be withdrawn, and the leader did not answer: it may have all of the files, and
    /// then the job goes on.
    Unanswered,
    /// It was sent, and nothing was heard of it since.
    Unknown,
}

impl Left {
    /// In a word, for programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Left::GoesOn => "taken",
            Left::NeverSent => "unsent",
            Left::Withdrawn { .. } => "withdrawn",
            Left::Unanswered | Left::Unknown => "unknown",
        }
    }

    /// For people: what is true, and the next step. A job that was withdrawn needs something else
    /// when it is submitted `again`.
    pub(crate) fn text(&self, leader: &Leader, job: Uuid, again: &str) -> String {
        let (get, cancel) = (leader.command("result get"), leader.command("cancel"));
        let explain = leader.command("explain");
        let of = |(sent, all): &(u64, u64)| match all {
            0 => "it".to_owned(),
            _ => format!("{} of {} of its files", ByteSize(*sent), ByteSize(*all)),
        };
        match self {
            Left::GoesOn => format!(
                "the job continues: `{get} {job}` fetches its result when it has ended, \
                 `{cancel} {job}` cancels it"
            ),
            Left::NeverSent => "the job was not sent: the leader has nothing of it".to_owned(),
            Left::Withdrawn { sent } => format!(
                "the job was withdrawn after {} had been sent; submit it again with {again}",
                of(sent)
            ),
            Left::Unanswered => format!(
                "the leader does not answer: the job continues if all its files have arrived; \
                 otherwise the leader drops it after its --input-wait (60s by default) without its \
                 client. `{explain} {job}` shows its state, `{cancel} {job}` cancels it"
            ),
            Left::Unknown => format!(
                "it is unknown whether the leader has the job: `{explain} {job}` shows its state, \
                 `{cancel} {job}` cancels it"
            ),
        }
    }

    /// The same for programs.
    pub(crate) fn as_json(&self, job: Uuid, text: &str) -> Value {
        json!({"job_id": job, "status": "ERROR", "left": self.word(), "error": text})
    }
}

/// How leaving ended.
pub(crate) enum Leaving {
    /// The job was left.
    Left(Left),
    /// Its result came in the last moment.
    Ended(Finished),
}

/// Leaves a job. One whose files have not all come cannot go on without this client, and nobody
/// else could bring the rest: it is withdrawn, so that it takes no room until the leader gives it
/// up.
pub(crate) async fn leave(job: &mut JobHandle, mut reached: Reached, why: &str) -> Leaving {
    let all = job.upload_bytes();
    // What has happened already, and nobody has looked at.
    while let Ok(event) = timeout(Duration::ZERO, job.event()).await {
        match event {
            Some(event) => reached.take(&event),
            None => match job.finish().await {
                Ok(finished) => return Leaving::Ended(finished),
                Err(_) => break,
            },
        }
    }
    if reached == (Reached::Uploading { done: all }) {
        // It may be taken at this moment.
        timeout(ANSWER_WITHIN, until_taken(job, &mut reached)).await.ok();
    }
    match reached {
        Reached::Taken => return Leaving::Left(Left::GoesOn),
        Reached::InDoubt => return Leaving::Left(Left::Unknown),
        Reached::Sent if all == 0 => return Leaving::Left(Left::Unknown),
        // One that waits here would go out if a connection came up before this client has ended.
        Reached::Nothing | Reached::Sent | Reached::Uploading { .. } => {}
    }
    job.cancel(format!("{why} at heft submit")).await;
    let ended = timeout(ANSWER_WITHIN, async {
        while let Some(event) = job.event().await {
            reached.take(&event);
        }
        job.finish().await
    });
    let ended = ended.await;
    let sent = match reached {
        Reached::Nothing | Reached::Sent | Reached::InDoubt => (0, all),
        Reached::Uploading { done } => (done, all),
        Reached::Taken => (all, all),
    };
    match ended {
        Ok(Ok(finished))
            if finished.result().is_ok_and(|result| result.status == JobStatus::Ok) =>
        {
            Leaving::Ended(finished)
        }
        Ok(Err(JobError::CancelledUnsent { .. })) if reached == Reached::Nothing => {
            Leaving::Left(Left::NeverSent)
        }
        Ok(Ok(_) | Err(_)) => Leaving::Left(Left::Withdrawn { sent }),
        Err(_) if all == 0 => Leaving::Left(Left::Unknown),
        Err(_) => Leaving::Left(Left::Unanswered),
    }
}

async fn until_taken(job: &mut JobHandle, reached: &mut Reached) {
    while !matches!(reached, Reached::Taken) {
        let Some(event) = job.event().await else { return };
        reached.take(&event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, Options};
    use crate::model::JobRequest;
    use socket2::{Domain, Socket, Type};
    use std::net::{Ipv4Addr, SocketAddr};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    /// An address where nobody listens yet.
    fn closed() -> (Socket, String) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
        (socket, address)
    }

    /// A classic leader that takes all that comes on one connection, and gives it when that ends.
    fn listen(socket: Socket) -> JoinHandle<Vec<u8>> {
        socket.listen(8).unwrap();
        socket.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut came = Vec::new();
            stream.read_to_end(&mut came).await.unwrap();
            came
        })
    }

    fn client(address: &str) -> Client {
        let options = Options { welcome_wait: Duration::from_millis(20), ..Options::new("c") };
        Client::start(address, &options).unwrap()
    }

    fn request() -> JobRequest {
        JobRequest { exec_name: "left-behind".to_owned(), ..JobRequest::default() }
    }

    async fn until_up(client: &Client) {
        while !client.state().is_up() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn has_job(came: &[u8]) -> bool {
        came.windows(11).any(|window| window == b"left-behind")
    }

    #[tokio::test]
    async fn a_job_that_was_said_not_to_be_sent_does_not_go_out_when_a_leader_comes_up_then() {
        let (socket, address) = closed();
        let client = client(&address);
        let mut job = client.submit(request()).await.unwrap();
        let left = leave(&mut job, Reached::Nothing, "--timeout").await;
        assert!(matches!(left, Leaving::Left(Left::NeverSent)));
        let leader = listen(socket);
        until_up(&client).await;
        client.close().await;
        assert!(!has_job(&leader.await.unwrap()));
    }

    #[tokio::test]
    async fn a_job_that_went_out_unnoticed_is_not_said_to_be_unsent() {
        let (socket, address) = closed();
        let leader = listen(socket);
        let client = client(&address);
        until_up(&client).await;
        let mut job = client.submit(request()).await.unwrap();
        let left = leave(&mut job, Reached::Nothing, "--timeout").await;
        client.close().await;
        assert!(has_job(&leader.await.unwrap()));
        assert!(matches!(left, Leaving::Left(Left::Unknown)));
    }
}
