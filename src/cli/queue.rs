//! `heft queue`: the queues of a leader. They are part of what `heft status` shows.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::output::{self, OUTPUT_VARIABLE};
use super::status::{cut_short, queues_table};
use super::table::text;
use super::workers::{absent, count_of, part};
use super::{Output, Reach, Rows};
use crate::answers::{QueueRow, Status, StatusList};
use crate::client::Answered;
use crate::likeness::did_you_mean;

const EXAMPLES: &str = "Examples:
  heft queue ls
  heft queue ls -o jsonl
  heft queue show calcA

A queue is named by its key, or by what follows job.assign. in it.";

/// What the key of a program's queue begins with.
const ASSIGN_PREFIX: &str = "job.assign.";

/// What is listed.
const QUEUES: Rows = Rows { list: "queues", id: "key" };

/// Show the queues of a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct QueueArgs {
    #[command(subcommand)]
    what: What,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the queues that have jobs.
    Ls,
    /// Show a queue that has jobs.
    Show {
        /// Its key.
        key: String,
    },
}

/// Runs the command.
pub fn run(args: &QueueArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(look(args))
}

async fn look(args: &QueueArgs) -> anyhow::Result<ExitCode> {
    let status = args.reach.listed(StatusList::Queues).await?;
    match &args.what {
        What::Ls => {
            let table = || {
                let queues = &status.answer.queues;
                let table = queues_table(queues).render();
                let count = count_of(&status, "queues").unwrap_or_default();
                let cut = cut_short("queues", queues.len(), count).unwrap_or_default();
                if table.is_empty() { "no queues\n".to_owned() } else { table + &cut }
            };
            output::show(args.output, &part(&status, "queues"), Some(QUEUES), table)?;
        }
        What::Show { key } => {
            let (found, json) = find(&status, key)?;
            output::show(args.output, json, None, || shown(found))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The queue of this key, or of this program.
fn find<'a>(
    status: &'a Answered<Status>,
    wanted: &str,
) -> anyhow::Result<(&'a QueueRow, &'a Value)> {
    let rows = status.json.get("queues").and_then(Value::as_array).into_iter().flatten();
    let mut queues = status.answer.queues.iter().zip(rows);
    let of_program = format!("{ASSIGN_PREFIX}{wanted}");
    queues.find(|(queue, _)| queue.key == wanted || queue.key == of_program).ok_or_else(|| {
        let hint = did_you_mean(wanted, status.answer.queues.iter().map(|row| row.key.as_str()));
        let text = format!(
            "no jobs wait in a queue {wanted:?}{hint}: `heft queue ls` lists the queues that have \
             jobs"
        );
        absent(status, "queues", text)
    })
}

fn shown(queue: &QueueRow) -> String {
    format!("queue   {}\nqueued  {}\n", text(&queue.key), queue.queued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::{NOT_FOUND, code_of};
    use serde_json::json;

    #[test]
    fn a_queue_is_found_by_its_key_or_its_program_and_shown() {
        let json = json!({"queues": [{"key": "job.assign.calcA", "queued": 3}]});
        let status = Answered { answer: serde_json::from_value(json.clone()).unwrap(), json };
        for wanted in ["calcA", "job.assign.calcA"] {
            let (queue, _) = find(&status, wanted).unwrap();
            assert_eq!(shown(queue), "queue   job.assign.calcA\nqueued  3\n");
        }
        let error = find(&status, "calc").unwrap_err();
        assert_eq!(code_of(&error), NOT_FOUND, "{error}");
    }
}
