//! `heft blob`: the large inputs and parts of results that a leader keeps: which they are, whether they are as they were
//! written, and files that nothing refers to.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use uuid::Uuid;

use super::dlq::cell;
use super::table::{Side, Table};
use super::{FAILED, Output, Reach, print, print_json};
use crate::client::{Client, ClientError};
use crate::units::ByteSize;

const EXAMPLES: &str = "Examples:
  heft blob 127.0.0.1:5000 ls
  heft blob 127.0.0.1:5000 verify
  heft blob 127.0.0.1:5000 verify 00112233-4455-6677-8899-aabbccddeeff
  heft blob 127.0.0.1:5000 gc --dry-run

Files that nothing refers to are also collected by the leader itself, after its --blob-grace. For a leader that is not
running there is `heft-tools log verify DATA`.

Exit codes: 0 done, and for verify: all is as it was written; 1 verify found damage, or the leader answered with an error;
2 the command line is not right; 3 the leader cannot be reached or is a stock one.";

/// Look after the large inputs and parts of results that a leader keeps
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BlobArgs {
    /// The leader.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    #[command(subcommand)]
    what: What,
    /// In which form to print.
    #[arg(long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the blobs that the leader knows.
    Ls {
        /// The most blobs to list.
        #[arg(long, default_value_t = 1_000)]
        limit: usize,
    },
    /// Read blobs from the leader's disk and check every chunk.
    Verify {
        /// Which ones; all of them if none is named.
        #[arg(value_name = "BLOB", value_parser = blob_id)]
        blobs: Vec<Uuid>,
    },
    /// Remove files that nothing refers to, without waiting for the leader's --blob-grace.
    Gc {
        /// Only say which files would go.
        #[arg(long)]
        dry_run: bool,
    },
}

fn blob_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no blob's id: it is a Guid such as 00112233-4455-6677-8899-aabbccddeeff")
    })
}

/// Runs the command.
pub fn run(args: &BlobArgs) -> anyhow::Result<ExitCode> {
    super::block_on(ask(args))
}

async fn ask(args: &BlobArgs) -> anyhow::Result<ExitCode> {
    let client = match &args.what {
        What::Ls { .. } => args.reach.asking(&args.leader).await?,
        What::Verify { .. } | What::Gc { .. } => args.reach.asking_for_long(&args.leader).await?,
    };
    let code = match &args.what {
        What::Ls { limit } => {
            let (blobs, more) = list(&client, *limit).await?;
            match args.output {
                Output::Json => print_json(&json!({ "blobs": blobs, "more": more }))?,
                Output::Table => print(table(&blobs, more).as_bytes())?,
            }
            ExitCode::SUCCESS
        }
        What::Verify { blobs } => verify(&client, blobs, args.output).await?,
        What::Gc { dry_run } => {
            let answer = client.blob_gc(*dry_run).await?;
            match args.output {
                Output::Json => print_json(&answer)?,
                Output::Table => print(collected(&answer).as_bytes())?,
            }
            ExitCode::SUCCESS
        }
    };
    client.close().await;
    Ok(code)
}

/// Blobs, in the order of their ids, and whether there are more.
async fn list(client: &Client, limit: usize) -> Result<(Vec<Value>, bool), ClientError> {
    let (mut blobs, mut more, mut after): (Vec<Value>, bool, Option<Uuid>) = (Vec::new(), true, None);
    while more && blobs.len() < limit {
        let page = client.blob_ls(after).await?;
        let listed = page.get("blobs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        after = listed.last().and_then(id_of);
        more = page.get("more").and_then(Value::as_bool) == Some(true) && after.is_some();
        blobs.extend(listed.iter().cloned());
    }
    more |= blobs.len() > limit;
    blobs.truncate(limit);
    Ok((blobs, more))
}

fn id_of(blob: &Value) -> Option<Uuid> {
    blob.get("blob").and_then(Value::as_str)?.parse().ok()
}

fn table(blobs: &[Value], more: bool) -> String {
    if blobs.is_empty() {
        return "the leader keeps no blobs\n".to_owned();
    }
    let mut table = Table::new(&[
        ("BLOB", Side::Left),
        ("JOB", Side::Left),
        ("PURPOSE", Side::Left),
        ("NAME", Side::Left),
        ("SIZE", Side::Right),
        ("HERE", Side::Right),
        ("STATE", Side::Left),
    ]);
    for blob in blobs {
        let bytes = |member| {
            let bytes = blob.get(member).and_then(Value::as_u64);
            bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string())
        };
        table.row([
            cell(blob, "blob"),
            cell(blob, "job_id"),
            cell(blob, "purpose"),
            cell(blob, "name"),
            bytes("size"),
            bytes("here"),
            cell(blob, "state"),
        ]);
    }
    let more = if more { "there are more: raise --limit\n" } else { "" };
    format!("{}{more}", table.render())
}

/// Has blobs checked one after the other, and says of each what was found.
async fn verify(client: &Client, blobs: &[Uuid], output: Output) -> anyhow::Result<ExitCode> {
    let are_named = !blobs.is_empty();
    let blobs = match are_named {
        true => blobs.to_vec(),
        false => list(client, usize::MAX).await?.0.iter().filter_map(id_of).collect(),
    };
    let (mut answers, mut good, mut bad) = (Vec::new(), 0u64, 0usize);
    for blob in &blobs {
        let answer = match client.blob_verify(*blob).await {
            Ok(answer) => answer,
            // It ended while others were looked at.
            Err(ClientError::Answered(_)) if !are_named => continue,
            Err(error) => return Err(error.into()),
        };
        good += answer.get("good").and_then(Value::as_u64).unwrap_or_default();
        let found = answer.get("bad").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        bad += found.len();
        if output == Output::Table {
            for what in found {
                let what = what.as_str().map_or_else(|| what.to_string(), super::printable);
                print(format!("{blob}: {what}\n").as_bytes())?;
            }
        }
        answers.push(answer);
    }
    match output {
        Output::Json => print_json(&json!({ "blobs": answers, "good": good, "bad": bad }))?,
        Output::Table => {
            let summary =
                format!("{} blobs: {good} chunks are as they were written, {bad} are not\n", answers.len());
            print(summary.as_bytes())?;
        }
    }
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn collected(answer: &Value) -> String {
    let count = answer.get("orphans").and_then(Value::as_u64).unwrap_or_default();
    let bytes = ByteSize(answer.get("bytes").and_then(Value::as_u64).unwrap_or_default());
    let mut text = String::new();
    for blob in answer.get("blobs").and_then(Value::as_array).into_iter().flatten() {
        text.push_str(&format!("{}\n", blob.as_str().map_or_else(|| blob.to_string(), super::printable)));
    }
    let what = match answer.get("removed").and_then(Value::as_bool) {
        Some(true) => "removed",
        Some(false) | None => "would be removed",
    };
    text.push_str(&format!("{count} blobs that nothing refers to, {bytes}: {what}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_shown_in_columns_and_what_was_collected_in_words() {
        let blob = json!({"blob": "b-1", "job_id": "j-1", "purpose": "input", "name": "in.bin", "size": 5 << 20, "here": 1 << 20,
                          "state": "coming"});
        let expected = "\
BLOB  JOB  PURPOSE  NAME     SIZE   HERE  STATE
b-1   j-1  input    in.bin  5 MiB  1 MiB  coming
there are more: raise --limit
";
        assert_eq!(table(&[blob], true), expected);
        assert_eq!(table(&[], false), "the leader keeps no blobs\n");
        let answer = json!({"orphans": 1, "bytes": 4096, "removed": false, "blobs": ["b-2"]});
        assert_eq!(collected(&answer), "b-2\n1 blobs that nothing refers to, 4 KiB: would be removed\n");
    }
}
