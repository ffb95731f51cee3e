//! `heft blob`: the large inputs and parts of results that a leader keeps: which they are, whether
//! they are as they were written, and files that nothing refers to.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use uuid::Uuid;

use super::exit::FAILED;
use super::output::{OUTPUT_VARIABLE, show};
use super::table::{Side, Table, prose, said, text};
use super::{Output, Reach, Rows, print, printable};
use crate::answers::{BlobRow, Collected, ask};
use crate::client::{Client, ClientError};
use crate::units::ByteSize;

const EXAMPLES: &str = "Examples:
  heft blob ls
  heft blob verify
  heft blob verify 00112233-4455-6677-8899-aabbccddeeff
  heft blob gc --dry-run

The leader also collects orphaned files itself, after its --blob-grace. If the leader is not
running, use `heft-tools log verify DATA`.

Exit codes: 0 done, and verify found no damage, 1 verify found damage, or the leader answered
with an error, 2 invalid command line, 3 the leader cannot be reached or is a classic one, 5
there is no such blob.";

/// What is listed.
const BLOBS: Rows = Rows { list: "blobs", id: "blob" };

/// Manage blobs: the large inputs and parts of results at a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BlobArgs {
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
    /// List blobs.
    Ls {
        /// Maximum number of blobs to list.
        #[arg(long, default_value_t = 1_000)]
        limit: usize,
    },
    /// Read blobs from the leader's disk and check every chunk.
    Verify {
        /// Blobs to verify (default: all).
        #[arg(value_name = "BLOB", value_parser = blob_id)]
        blobs: Vec<Uuid>,
    },
    /// Remove orphaned files, without waiting for the leader's --blob-grace.
    Gc {
        /// Only list the files that would be removed.
        #[arg(long)]
        dry_run: bool,
    },
}

fn blob_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not a valid blob id: it is a Guid such as 00112233-4455-6677-8899-aabbccddeeff")
    })
}

/// Runs the command.
pub fn run(args: &BlobArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(look(args))
}

async fn look(args: &BlobArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let client = match &args.what {
        What::Ls { .. } => args.reach.asking(&leader).await?,
        What::Verify { .. } | What::Gc { .. } => args.reach.asking_for_long(&leader).await?,
    };
    let code = match &args.what {
        What::Ls { limit } => {
            let (blobs, more) = list(&client, *limit).await?;
            let listed = json!({ "blobs": blobs, "more": more });
            show(args.output, &listed, Some(BLOBS), || table(&blobs, more))?;
            ExitCode::SUCCESS
        }
        What::Verify { blobs } => verify(&client, blobs, args.output).await?,
        What::Gc { dry_run } => {
            let answered = client.ask(&ask::BlobGc { dry_run: *dry_run }).await?;
            show(args.output, &answered.json, None, || collected(&answered.answer))?;
            ExitCode::SUCCESS
        }
    };
    client.close().await;
    Ok(code)
}

/// Blobs, in the order of their ids, and whether there are more.
async fn list(client: &Client, limit: usize) -> Result<(Vec<BlobRow>, bool), ClientError> {
    let (mut blobs, mut more, mut after): (Vec<BlobRow>, bool, Option<Uuid>) =
        (Vec::new(), true, None);
    while more && blobs.len() < limit {
        let page = client.ask(&ask::BlobLs { after }).await?.answer;
        after = page.blobs.last().and_then(id_of);
        more = page.more && after.is_some();
        blobs.extend(page.blobs);
    }
    more |= blobs.len() > limit;
    blobs.truncate(limit);
    Ok((blobs, more))
}

fn id_of(blob: &BlobRow) -> Option<Uuid> {
    blob.blob.parse().ok()
}

fn table(blobs: &[BlobRow], more: bool) -> String {
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
    ])
    .may_go(&["PURPOSE", "HERE", "JOB", "NAME"]);
    for blob in blobs {
        table.row([
            text(&blob.blob),
            text(&blob.job_id),
            text(&blob.purpose),
            text(&blob.name),
            said(blob.size.map(ByteSize)),
            said(blob.here.map(ByteSize)),
            text(blob.state.as_str()),
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
        let answer = match client.ask(&ask::BlobVerify { blob: *blob }).await {
            Ok(answered) => answered,
            // It ended while others were looked at.
            Err(ClientError::NotFound(_) | ClientError::Answered(_)) if !are_named => continue,
            Err(error) => return Err(error.into()),
        };
        good += answer.answer.good;
        bad += answer.answer.bad.len();
        if output.is_for_people() {
            for what in &answer.answer.bad {
                print(prose(format!("{blob}: {}\n", printable(what))).as_bytes())?;
            }
        }
        answers.push(answer.json);
    }
    let (count, summed) = (answers.len(), json!({ "blobs": answers, "good": good, "bad": bad }));
    show(output, &summed, None, || {
        format!("{count} blobs: {good} chunks intact, {bad} damaged\n")
    })?;
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn collected(collected: &Collected) -> String {
    let mut text = String::new();
    for blob in &collected.blobs {
        text.push_str(&format!("{}\n", printable(blob)));
    }
    let what = if collected.removed { "removed" } else { "would be removed" };
    let (count, bytes) = (collected.orphans, ByteSize(collected.bytes));
    text.push_str(&format!("{count} orphaned blobs, {bytes}: {what}\n"));
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
        assert_eq!(table(&[serde_json::from_value(blob).unwrap()], true), expected);
        assert_eq!(table(&[], false), "the leader keeps no blobs\n");
        let answer = json!({"orphans": 1, "bytes": 4096, "removed": false, "blobs": ["b-2"]});
        let answer = serde_json::from_value(answer).unwrap();
        assert_eq!(collected(&answer), "b-2\n1 orphaned blobs, 4 KiB: would be removed\n");
    }
}
