//! What commands print, in the form that was asked for: a table for people, one JSON document, a
//! JSON object for each row, or ids alone.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::exit::{code_of, hint_of, message_of, word_of};
use super::table::prose;
use super::{Unwritten, note, print, print_json};

/// Names the format if no flag does.
pub(super) const OUTPUT_VARIABLE: &str = "HEFT_OUTPUT";

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON object on a line for each row of a list.
    Jsonl,
    /// The ids of what is listed or made, one on a line.
    Quiet,
}

impl Output {
    /// Whether people read it.
    pub(crate) fn is_for_people(self) -> bool {
        match self {
            Output::Table => true,
            Output::Json | Output::Jsonl | Output::Quiet => false,
        }
    }

    /// Whether it is JSON.
    pub(crate) fn is_json(self) -> bool {
        match self {
            Output::Json | Output::Jsonl => true,
            Output::Table | Output::Quiet => false,
        }
    }
}

/// Where the rows of an answer are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// The member that is the list.
    pub(crate) list: &'static str,
    /// The member of a row that is its id.
    pub(crate) id: &'static str,
}

/// Prints an answer: `table` for people, `json` for programs. A list has `rows`; of anything else
/// `quiet` prints nothing.
pub(crate) fn show(
    output: Output,
    json: &Value,
    rows: Option<Rows>,
    table: impl FnOnce() -> String,
) -> Result<(), Unwritten> {
    let listed = |rows: Rows| json.get(rows.list).and_then(Value::as_array);
    match (output, rows) {
        (Output::Table, _) => print(prose(table()).as_bytes()),
        (Output::Json, _) | (Output::Jsonl, None) => print_json(json),
        (Output::Jsonl, Some(rows)) => {
            for row in listed(rows).into_iter().flatten() {
                print_json(row)?;
            }
            say_more(json);
            Ok(())
        }
        (Output::Quiet, None) => Ok(()),
        (Output::Quiet, Some(rows)) => {
            let ids = listed(rows).into_iter().flatten().filter_map(|row| row.get(rows.id));
            for id in ids.filter_map(Value::as_str) {
                print_id(id)?;
            }
            say_more(json);
            Ok(())
        }
    }
}

/// Prints the id of something on a line.
pub(crate) fn print_id(id: &str) -> Result<(), Unwritten> {
    print(format!("{}\n", id.replace(char::is_control, " ")).as_bytes())
}

/// Rows have no place for it.
fn say_more(json: &Value) {
    if json.get("more").and_then(Value::as_bool) == Some(true) {
        note("the list ends here, and there are more");
    }
}

/// The same failure with its error as programs read it: `error` is the text for people.
pub(crate) fn with_code(mut failure: Value, code: u8) -> Value {
    if let Some(error) = failure.get_mut("error") {
        let message = error.as_str().unwrap_or_default().to_owned();
        *error = error_of(code, &message, None);
    }
    failure
}

/// An error for programs: how the command ends, what went wrong, and the next step if that is not
/// said in the message.
pub(crate) fn error_of(code: u8, message: &str, hint: Option<&str>) -> Value {
    json!({"code": word_of(code), "message": message, "hint": hint})
}

/// An error as programs read it.
pub(crate) fn as_json(error: &anyhow::Error) -> Value {
    error_of(code_of(error), &message_of(error), hint_of(error).as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::{Sourced, Usage};
    use crate::client::ClientError;

    #[test]
    fn an_error_for_programs_has_a_code_a_message_and_a_hint_where_there_is_one() {
        let error = as_json(&Usage("--x is wrong".to_owned()).into());
        assert_eq!(error, json!({"code": "usage", "message": "--x is wrong", "hint": null}));
        let error = as_json(&ClientError::NotFound("no job 7".to_owned()).into());
        let message = "the leader answers: no job 7";
        assert_eq!(error, json!({"code": "not-found", "message": message, "hint": null}));
        let from = "the address is from HEFT_LEADER".to_owned();
        let sourced = Sourced { error: ClientError::Closed, from: from.clone() };
        let error = as_json(&sourced.into());
        let message = "the client is closed";
        assert_eq!(error, json!({"code": "unavailable", "message": message, "hint": from}));
    }
}
