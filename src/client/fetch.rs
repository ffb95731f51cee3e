//! Fetching the result of a job that has ended, which need not be one of this client's own.

use bytes::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use super::arrivals::Arrivals;
use super::downloads::{Downloads, Finished, named_in};
use super::error::ClientError;
use super::remote::Remote;
use super::single::ask;
use crate::model::{JobResult, JsonModel};

const VERB: &str = "result";

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

/// Asks for a result and waits for its parts. When the connection breaks it asks again: the leader opens the parts anew,
/// and what came before is not sent again.
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
        let answer = match ask(remote, 0, VERB, &json!({"job_id": job})).await {
            Ok(answer) => answer,
            Err(ClientError::Disconnected { .. }) => continue,
            Err(error) => return Err(error),
        };
        let Some(payload) = result_in(&answer)? else { return Ok(None) };
        let bad = |why: String| ClientError::BadAnswer { verb: VERB.to_owned(), why };
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

fn result_in(answer: &Value) -> Result<Option<Bytes>, ClientError> {
    let bad = |why: String| ClientError::BadAnswer { verb: VERB.to_owned(), why };
    match (answer.get("found").and_then(Value::as_bool), answer.get("result")) {
        (Some(false), _) => Ok(None),
        (Some(true), Some(result @ Value::Object(_))) => Ok(Some(result.to_string().into())),
        (Some(true) | None, _) => Err(bad("it has no members `found` and `result`".to_owned())),
    }
}
