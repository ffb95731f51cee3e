//! The worker: takes jobs from a leader, runs them and returns the results.
//!
//! `heft worker` runs executables with it; a Rust program embeds it with a [`Handler`] of its own.
//! It talks to one leader at a time, ours or a classic one, and never loses a running job to a
//! broken connection. It has no queue: it requests only jobs it has a slot for.
//!
//! ```no_run
//! use heft::model::{JobResult, JobStatus};
//! use heft::worker::{Job, JobContext, Worker, WorkerConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = WorkerConfig { patterns: vec!["job.assign.upper".into()], ..WorkerConfig::new("127.0.0.1:5000") };
//! let worker = Worker::new(config, |job: Job, _context: JobContext| async move {
//!     let text = String::from_utf8_lossy(&job.payload).to_uppercase();
//!     JobResult { stdout: text, ..job.result(JobStatus::Ok) }
//! })?;
//! worker.run(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await;
//! # Ok(())
//! # }
//! ```
//!
//! | file | does |
//! |---|---|
//! | `session` | the task that owns a worker |
//! | `job_table` | decides what is run, answered, stopped; free of I/O |
//! | `input_download` | downloads of inputs |
//! | `result_upload` | uploads of results with large parts |
//! | `store` | results to resend, and to answer duplicates with |
//! | `spool` | the same as files, for a worker restarted under its id |
//! | `attempt` | one job through one handler |
//! | `exec` | the handler that runs executables |
//! | `cache` | datasets |
//! | `directory`, `result_encoding` | job directories; results that fit a frame |
//! | `backlog` | how many results may wait for the leader without a slot |
//! | `follows` | which outputs are followed while their programs run |
//! | `credit`, `hello` | credit, and when it is withheld; the announcement |
//! | `announced` | which programs the leader was told of |

mod announced;
mod attempt;
mod backlog;
mod cache;
mod config;
mod credit;
mod directory;
mod exchange;
pub mod exec;
mod follows;
mod handler;
mod hello;
mod identity;
mod input_download;
mod job_table;
pub mod limits;
mod removal;
mod result_encoding;
mod result_upload;
mod session;
mod spool;
mod store;
mod work_dir;

use std::future::Future;
use std::io;
use std::sync::Arc;

pub use chunking::message::{Purpose, Stage};

pub use crate::core::retry::Backoff;
pub use crate::transfer::ChunkSink;
pub use crate::wire::Tuning;
pub use attempt::{Outcome, Workplace, run_once};
pub use cache::{CacheConfig, LinkMode, check_link};
pub use config::{ConfigError, WorkerConfig};
pub use directory::{Abandoned, JobDirectory, remove_abandoned};
pub use exec::{Exec, ExecConfig};
pub use handler::{
    AttachError, CancelToken, Content, Handler, Job, JobContext, ProgramListing, StopReason,
};
pub use result_encoding::encode as encode_result;
pub use session::Summary;
use spool::Spool;

/// A worker, ready to run.
#[derive(Debug)]
pub struct Worker<H> {
    config: WorkerConfig,
    cache: Option<cache::Opened>,
    spool: Option<Spool>,
    handler: Arc<H>,
    programs: Option<ProgramListing>,
}

impl<H: Handler> Worker<H> {
    /// A worker with this handler. Its cache and its kept results are opened, for it alone; nothing
    /// is dialled yet.
    pub fn new(config: WorkerConfig, handler: H) -> Result<Self, ConfigError> {
        let config = config.check()?;
        let unusable = |error: io::Error| ConfigError::WorkDir { text: error.to_string() };
        directory::claim_own(&config.work_dir).map_err(unusable)?;
        let spool = match config.keep_results.then(|| Spool::open(&config.work_dir, config.id)) {
            Some(Ok(spool)) => Some(spool),
            Some(Err(error)) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(unusable(error));
            }
            Some(Err(error)) => {
                tracing::warn!(
                    "cannot store results in {}: {error}; a restart loses results that the leader \
                     does not have",
                    config.work_dir.display()
                );
                None
            }
            None => None,
        };
        let cache = config.cache.as_ref().map(cache::Opened::open).transpose();
        let cache = cache.map_err(|error| ConfigError::Cache { text: error.to_string() })?;
        let programs = (!config.cache_only).then(|| handler.programs()).flatten();
        Ok(Worker { config, cache, spool, handler: Arc::new(handler), programs })
    }

    /// The worker's set-up, with its id.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Works until `shutdown` ends and running jobs have finished, or their grace is over. It goes
    /// on through every failure of connection and leader.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let handler = (self.handler, self.programs);
        session::Session::run(self.config, (self.cache, self.spool), handler, shutdown).await
    }
}
