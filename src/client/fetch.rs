//! Fetches the result of an ended job, whoever submitted it.

use bytes::Bytes;
use uuid::Uuid;

use super::arrivals::Arrivals;
use super::downloads::{Downloads, Finished, named_in};
use super::error::ClientError;
use super::remote::Remote;
use super::single::{LinkState, ask};
use crate::answers::Found;
use crate::answers::ask::{Ask as _, GetResult};
use crate::model::{JobResult, JsonModel};

/// Parts are wanted as long as somebody waits for them.
struct Wanted<'a> {
    arrivals: &'a Arrivals,
    job: Uuid,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.arrivals.forget(self.job);
    }
}

fn is_up(remote: &Remote) -> bool {
    remote.states.borrow().first().is_some_and(LinkState::is_up)
}

/// Asks for a result and waits for its parts. When the connection breaks it asks again: the leader
/// opens the parts anew, and what came before is not sent again.
pub(super) async fn fetch(
    remote: &Remote,
    job: Uuid,
    downloads: &Downloads,
) -> Result<Option<Finished>, ClientError> {
    let arrivals = &remote.arrivals;
    arrivals.want(job, downloads);
    let _wanted = Wanted { arrivals, job };
    loop {
        let downs = arrivals.downs();
        let was_up = is_up(remote);
        let answer = match ask(remote, 0, &GetResult { job_id: job }).await {
            Ok(answered) => answered.answer,
            Err(ClientError::Disconnected { .. }) => continue,
            // It was away for some of the time that it had for an answer, or still is: the
            // connection is made again beside this.
            Err(ClientError::NoAnswer { .. }) if !was_up || !is_up(remote) => continue,
            Err(error) => return Err(error),
        };
        let Found { found: true, result } = answer else { return Ok(None) };
        let payload = Bytes::from(result.to_string());
        let bad = |why: String| ClientError::BadAnswer { verb: GetResult::VERB.to_string(), why };
        let result = JobResult::parse(&payload).map_err(|error| bad(error.to_string()))?;
        let named = named_in(&result);
        loop {
            let bell = arrivals.bell();
            let changed = bell.notified();
            if let Some((parts, missing)) = arrivals.settle(job, &named) {
                return Ok(Some(Finished { payload, parts, missing }));
            }
            if arrivals.downs() != downs {
                break;
            }
            changed.await;
        }
    }
}
