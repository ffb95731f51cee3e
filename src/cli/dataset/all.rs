//! All datasets of a leader: pages of `dataset.ls` put together, and how each dataset stands.

use serde_json::{Value, json};

use crate::answers::{AtWorker, AtWorkerState, DatasetPage, DatasetRow, ask};
use crate::client::{Answered, Client, ClientError};

/// How a dataset stands.
pub(super) struct State {
    pub(super) dataset: DatasetRow,
    /// The workers that are to have it and do not, as far as the leader lists them.
    pub(super) lacking: Vec<AtWorker>,
}

/// All datasets, and the same as JSON. An older leader lists the first of them, and that there are
/// more.
pub(super) async fn list(client: &Client) -> Result<(Value, DatasetPage), ClientError> {
    let Answered { mut answer, mut json } = client.ask(&ask::DatasetLs { after: None }).await?;
    while let Some(after) = answer.next.take() {
        let next = client.ask(&ask::DatasetLs { after: Some(after) }).await?;
        answer.datasets.extend(next.answer.datasets);
        (answer.more, answer.next) = (next.answer.more, next.answer.next);
        let rows = next.json.get("sets").and_then(Value::as_array).cloned().unwrap_or_default();
        if let Some(Value::Array(all)) = json.get_mut("sets") {
            all.extend(rows);
        }
        if let Value::Object(members) = &mut json {
            members.insert("more".to_owned(), json!(answer.more));
            members.remove("next");
        }
    }
    Ok((json, answer))
}

/// How all datasets stand, and the same as JSON: each with the workers that do not have it.
pub(super) async fn states(client: &Client) -> Result<(Value, Vec<State>), ClientError> {
    let (mut json, page) = list(client).await?;
    let mut states = Vec::new();
    for dataset in page.datasets {
        let lacking = lacking(client, &dataset).await?;
        states.push(State { dataset, lacking });
    }
    if let Some(Value::Array(rows)) = json.get_mut("sets") {
        for (row, state) in rows.iter_mut().zip(&states) {
            if let Value::Object(members) = row {
                members.insert("workers".to_owned(), json!(state.lacking));
            }
        }
    }
    Ok((json, states))
}

async fn lacking(client: &Client, dataset: &DatasetRow) -> Result<Vec<AtWorker>, ClientError> {
    let counts = [dataset.coming, dataset.missing, dataset.failed];
    if counts.iter().flatten().all(|workers| *workers == 0) {
        return Ok(Vec::new());
    }
    // Its files are not wanted: none has an empty name.
    let (cache_id, within) = (dataset.cache_id.clone(), Some(String::new()));
    let question = ask::DatasetStatus { cache_id, after: None, within };
    match client.ask(&question).await {
        Ok(shown) => {
            let workers = shown.answer.workers.into_iter();
            Ok(workers.filter(|at| at.state != AtWorkerState::Held).collect())
        }
        // It was removed meanwhile.
        Err(ClientError::NotFound(_) | ClientError::Answered(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
