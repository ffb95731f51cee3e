//! The lists of a status in full, page by page, for the commands that list or look for something.

use serde_json::{Map, Value, json};

use crate::answers::{Status, StatusList, ask};
use crate::client::{Answered, Client, ClientError};

/// Rows that are kept of one list: no leader has so many.
const ROWS_MAX: usize = 1_000_000;

/// All rows of a list, as a status that has nothing else.
pub(super) async fn all_of(
    client: &Client,
    list: &StatusList,
) -> Result<Answered<Status>, ClientError> {
    let (mut rows, mut after) = (Vec::new(), None::<String>);
    let is_cut = loop {
        let question = ask::StatusPage { list: list.clone(), after: after.clone() };
        let page = match client.ask(&question).await {
            Ok(page) => page,
            Err(ClientError::Answered(text))
                if after.is_none() && text.contains("is not a question this leader knows") =>
            {
                return client.ask(&ask::Status {}).await;
            }
            Err(error) => return Err(error),
        };
        let mut json = page.json;
        if let Some(Value::Array(more)) = json.get_mut(list.as_str()).map(Value::take) {
            rows.extend(more);
        }
        match page.answer.next {
            None => break false,
            // A place that is not behind the last one would never end.
            Some(next) if rows.len() < ROWS_MAX && after.as_ref().is_none_or(|at| next > *at) => {
                after = Some(next);
            }
            Some(_) => break true,
        }
    };
    let names = StatusList::NAMES.iter().map(|name| ((*name).to_owned(), json!(0)));
    let mut counts = names.collect::<Map<String, Value>>();
    if let Some(count) = counts.get_mut(list.as_str()) {
        *count = json!(rows.len() + usize::from(is_cut));
    }
    let mut members = Map::new();
    members.insert(list.as_str().to_owned(), Value::Array(rows));
    members.insert("counts".to_owned(), Value::Object(counts));
    let json = Value::Object(members);
    let answer = serde_json::from_value(json.clone()).map_err(|error| ClientError::BadAnswer {
        verb: "status.page".to_owned(),
        why: error.to_string(),
    })?;
    Ok(Answered { answer, json })
}
