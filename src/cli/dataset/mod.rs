//! `heft dataset`: files that many jobs share: put them, see who has them, check and remove them.

mod all;
mod board;
mod put;
pub(super) mod select;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::exit::FAILED;
use super::output::{self, OUTPUT_VARIABLE};
use super::progress::Progress;
use super::reach::Leader;
use super::submit::CompressChoice;
use super::{Output, Reach, Rows, time_limit};
use crate::answers::ask::{self, Ask};
use crate::client::dataset::{TARGET_ALL, Wait};
use crate::client::{Answered, Client, ClientError};
use crate::core::ids::CacheId;
use crate::units::Span;

const EXAMPLES: &str = "Examples:
  heft dataset put models-v2 ./models
  heft dataset put models-v2 ./models ./extra.cfg --target 'job.assign.calcA.>' --wait 0.9 --timeout 10m
  heft dataset put archive-2024 ./archive --target none
  heft dataset status models-v2
  heft dataset status --all
  heft submit calcA --dataset models-v2/large.bin=model.bin

A dataset is sent to the leader once. The leader stores it and sends it to the workers,
including workers that join later. For a new version only the changed pieces are sent.";

const PUT_HELP: &str = "Names: a file is known by its own name. A single directory stands for its contents, with names relative to it; \
with several PATHs names keep the last component of their PATH as a prefix, so `put ID ./data ./model.bin` makes data/... and model.bin.
Directories without files are omitted.

Links: a PATH that is a link is followed. A link in a directory is followed if it leads to a regular file beneath the same PATH;
any other link is refused, as are pipes, sockets and devices, names that are invalid on other systems, and two names that differ
only in case. Files must not change until they are sent.

Repeating a put of the same content under the same CACHE_ID sends only missing pieces, so an interrupted put resumes. Other content
is refused unless --replace is given; jobs then see either the old dataset or the new one, never a mixture.

If no worker matches --target, put reports that at once and the leader stores the dataset for workers that join later.
`--wait all`, `0` or a ratio then exits 0; `--wait N` exits 1.

Exit codes: 0 enough workers have it, 1 a worker FAILED or --wait was not reached, 2 invalid command line or file, 3 the leader refused it
or cannot be reached, 4 --timeout ran out, 130 interrupted.";

/// What is listed.
const DATASETS: Rows = Rows { list: "sets", id: "cache_id" };

/// Manage datasets: files shared by many jobs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DatasetArgs {
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
    /// Store files and directories under an id, at the leader and at workers.
    #[command(after_help = PUT_HELP)]
    Put(PutArgs),
    /// List datasets.
    Ls,
    /// Show a dataset: its files, and its state at each worker; or the state of all.
    Status {
        /// Dataset id.
        #[arg(value_name = "CACHE_ID", value_parser = cache_id, required_unless_present = "all")]
        id: Option<CacheId>,
        /// All datasets, with the workers that do not have them.
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
    /// Remove a dataset from the leader and from all workers.
    Rm {
        /// Dataset id.
        #[arg(value_name = "CACHE_ID", value_parser = cache_id)]
        id: CacheId,
    },
    /// Check every byte of a dataset, at the leader and at the workers.
    Verify {
        /// Dataset id.
        #[arg(value_name = "CACHE_ID", value_parser = cache_id)]
        id: CacheId,
    },
    /// Push a dataset to the workers that do not have it.
    Push {
        /// Dataset id.
        #[arg(value_name = "CACHE_ID", value_parser = cache_id)]
        id: CacheId,
        /// Pattern of workers to push to (default: the dataset's own target).
        #[arg(long, value_name = "PATTERN")]
        target: Option<String>,
    },
}

/// What `put` takes.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// Dataset id used by jobs: one name without folders.
    #[arg(value_name = "CACHE_ID", value_parser = cache_id)]
    id: CacheId,
    /// Files and directories, with all their contents.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Push to workers with a pattern that overlaps this one; none keeps the dataset at the leader
    /// until a job names it.
    #[arg(long, value_name = "PATTERN|none", default_value = TARGET_ALL)]
    target: String,
    /// Number of workers to wait for: all, a number, or a ratio such as 0.9.
    #[arg(long, value_name = "all|N|RATIO", default_value_t)]
    wait: Wait,
    /// Time limit of the whole put, such as 10m (default: no limit).
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    timeout: Option<Span>,
    /// Replace other content under the same CACHE_ID.
    #[arg(long)]
    replace: bool,
    /// Compression on the way to the leader.
    #[arg(long, value_enum, default_value_t)]
    compress: CompressChoice,
    /// Progress output: a table on a terminal and lines elsewhere, JSON objects on standard error,
    /// or none.
    #[arg(long, value_enum, default_value_t)]
    progress: Progress,
}

/// Reads a CacheId from the command line.
pub(super) fn cache_id(text: &str) -> Result<CacheId, String> {
    CacheId::parse(text).map_err(|error| error.to_string())
}

/// Runs the command.
pub fn run(args: &DatasetArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Put(what) => super::block_on(put::run(args, what)),
        What::Ls
        | What::Status { .. }
        | What::Rm { .. }
        | What::Verify { .. }
        | What::Push { .. } => super::block_on_until_stopped(look(args)),
    }
}

async fn look(args: &DatasetArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let client = match &args.what {
        What::Verify { .. } => args.reach.asking_for_long(&leader).await?,
        What::Put(_) | What::Ls | What::Status { .. } | What::Rm { .. } | What::Push { .. } => {
            args.reach.asking(&leader).await?
        }
    };
    let id_of = |id: &CacheId| id.as_str().to_owned();
    let mut rows = None;
    let (json, text, good) = match &args.what {
        // Handled by the caller: it is more than one question.
        What::Put(_) => return Ok(ExitCode::SUCCESS),
        What::Ls => {
            let (json, answer) = all::list(&client).await?;
            rows = Some(DATASETS);
            (json, show::list(&answer), true)
        }
        What::Status { id: Some(id), .. } => {
            let question = ask::DatasetStatus { cache_id: id_of(id), after: None, within: None };
            let Answered { answer, json } = ask_of(&client, &leader, id, &question).await?;
            (json, show::status(&answer), true)
        }
        What::Status { id: None, .. } => {
            let (json, states) = all::states(&client).await?;
            rows = Some(DATASETS);
            (json, show::states(&states), true)
        }
        What::Rm { id } => {
            let question = ask::DatasetRm { cache_id: id_of(id) };
            let Answered { answer, json } = ask_of(&client, &leader, id, &question).await?;
            (json, show::removed(id.as_str(), &answer), true)
        }
        What::Verify { id } => {
            let question = ask::DatasetVerify { cache_id: id_of(id) };
            let Answered { answer, json } = ask_of(&client, &leader, id, &question).await?;
            let (text, good) = show::verified(id.as_str(), &answer);
            (json, text, good)
        }
        What::Push { id, target } => {
            let question = ask::DatasetPush { cache_id: id_of(id), target: target.clone() };
            let Answered { answer, json } = ask_of(&client, &leader, id, &question).await?;
            (json, show::pushed(id.as_str(), &answer, &leader), true)
        }
    };
    client.close().await;
    output::show(args.output, &json, rows, || text)?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Asks about a dataset. If the leader has none of this id, the error has those that are like it.
async fn ask_of<Q: Ask>(
    client: &Client,
    leader: &Leader,
    id: &CacheId,
    question: &Q,
) -> anyhow::Result<Answered<Q::Answer>> {
    match client.ask(question).await {
        Ok(answered) => Ok(answered),
        // Older leaders say so in `Answered`.
        Err(error @ (ClientError::NotFound(_) | ClientError::Answered(_))) => {
            Err(select::unknown(client, leader, id.as_str(), error).await)
        }
        Err(error) => Err(error.into()),
    }
}
