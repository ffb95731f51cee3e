//! The worker's configuration, and the errors of an invalid one.

use std::path::PathBuf;
use std::time::Duration;

use chunking::limits::FIRST_FRAME_BODY_BYTES_MAX;
use thiserror::Error;
use uuid::Uuid;

use super::cache::CacheConfig;
use super::hello::{bytes_of, hello};
use super::limits::{PARALLEL_DEFAULT, PARALLEL_MAX, STOP_GRACE};
use crate::core::retry::Backoff;
use crate::core::subject::{PatternError, WORKER_PATTERN_DEFAULT, announced_patterns};
use crate::model::limits::{NAME_BYTES_MAX, PATTERNS_MAX};
use crate::peer::{PROBE_BACKOFF, WELCOME_WAIT, WELCOME_WAIT_MAX, is_address};
use crate::wire::Tuning;

/// How a worker is set up. `WorkerConfig::new(leader)` has the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// The leader, `host:port`.
    pub leader: String,
    /// The worker's id; the same id after a restart lets the leader know it again.
    pub id: Uuid,
    /// Tells this process from another one under the same id: the leader lets a worker take over
    /// its own connection, and no other's.
    pub instance: Uuid,
    /// What it calls itself in the leader's logs.
    pub name: Option<String>,
    /// What it subscribes to; empty means [`WORKER_PATTERN_DEFAULT`].
    pub patterns: Vec<String>,
    /// Jobs at a time (WX06).
    pub parallel_max: u32,
    /// The share of the processors above which credit is withheld for a moment (WX07, CR07). Off
    /// for handlers that are no programs.
    pub cpu_cap: Option<f64>,
    /// Job directories are made beneath it (WX02).
    pub work_dir: PathBuf,
    /// Where datasets of files are kept that many jobs share; without it the leader sends none.
    pub cache: Option<CacheConfig>,
    /// Keep the cache, and take no jobs (C01).
    pub cache_only: bool,
    /// The classic worker on this host that the cache is kept for.
    pub cache_for: Option<Uuid>,
    /// Take jobs whose payload is not a JobRequest too (M19): any bytes, which the handler has to
    /// make sense of. Off for [`Exec`](super::Exec), which runs programs that requests name.
    pub takes_raw: bool,
    /// Keep results as files in the work directory until the leader has them, so that a worker that
    /// is started again under the same id can send them (C31). Of use only with an id of one's own.
    pub keep_results: bool,
    /// Bytes of results that may wait for the leader while their jobs' places are given to others.
    /// By default [`RETURNING_BYTES_MAX`](super::limits::RETURNING_BYTES_MAX), or a tenth of the
    /// work directory's file system if that is less.
    pub returning_bytes_max: Option<u64>,
    /// Keep the directories of jobs that failed.
    pub keep_failed: bool,
    /// How long a job may run that names no limit itself.
    pub time_limit: Option<Duration>,
    /// How long to wait for a Welcome before a leader that has never sent one counts as a classic
    /// one.
    pub welcome_wait: Duration,
    /// How long a leader that is known for a heft one may take to answer on a new connection before
    /// that is given up for another.
    pub welcome_wait_max: Duration,
    /// When, and how often, a leader that has sent nothing at all is looked for on another
    /// connection: it may be a classic one, or the line is dead.
    pub probe_backoff: Backoff,
    /// How long running jobs may take once the worker was asked to stop.
    pub stop_grace: Duration,
    /// Between attempts to connect (CL08).
    pub reconnect: Backoff,
    /// How the connection is tuned.
    pub tuning: Tuning,
}

impl WorkerConfig {
    /// A worker for this leader, `host:port`, with a random id.
    pub fn new(leader: impl Into<String>) -> Self {
        WorkerConfig {
            leader: leader.into(),
            id: Uuid::new_v4(),
            instance: Uuid::new_v4(),
            name: None,
            patterns: Vec::new(),
            parallel_max: PARALLEL_DEFAULT,
            cpu_cap: None,
            work_dir: "/tmp/jobs".into(),
            cache: None,
            cache_only: false,
            cache_for: None,
            takes_raw: false,
            keep_results: false,
            returning_bytes_max: None,
            keep_failed: false,
            time_limit: None,
            welcome_wait: WELCOME_WAIT,
            welcome_wait_max: WELCOME_WAIT_MAX,
            probe_backoff: PROBE_BACKOFF,
            stop_grace: STOP_GRACE,
            reconnect: Backoff::CONNECT,
            tuning: Tuning::default(),
        }
    }

    pub(super) fn check(mut self) -> Result<Self, ConfigError> {
        if self.patterns.is_empty() {
            self.patterns.push(WORKER_PATTERN_DEFAULT.to_owned());
        }
        // What the leader would refuse is refused here, before anything is dialled.
        if let Some((first, more)) = self.patterns.split_first() {
            announced_patterns(first, more.iter().map(String::as_str))?;
        }
        let over = |what, value, limit| Err(ConfigError::Range { what, value, min: 1, limit });
        if self.patterns.len() > PATTERNS_MAX {
            return over("patterns", self.patterns.len(), PATTERNS_MAX);
        }
        if !(1..=PARALLEL_MAX).contains(&self.parallel_max) {
            return over("jobs at a time", self.parallel_max as usize, PARALLEL_MAX as usize);
        }
        if let Some(name) =
            self.name.as_ref().filter(|name| !(1..=NAME_BYTES_MAX).contains(&name.len()))
        {
            return over("bytes in the worker's name", name.len(), NAME_BYTES_MAX);
        }
        let bytes = bytes_of(&hello(&self, None));
        if bytes > FIRST_FRAME_BODY_BYTES_MAX as usize {
            return over("bytes in the worker's hello", bytes, FIRST_FRAME_BODY_BYTES_MAX as usize);
        }
        if self.cache_only && self.cache.is_none() {
            return Err(ConfigError::Idle);
        }
        match self.cpu_cap {
            Some(cap) if !(0.10..=0.95).contains(&cap) => {
                return Err(ConfigError::CpuCap { value: cap });
            }
            Some(_) | None => {}
        }
        match is_address(&self.leader) {
            true => Ok(self),
            false => Err(ConfigError::Leader { value: self.leader }),
        }
    }
}

/// A set-up that cannot work.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ConfigError {
    /// The leader's address has no host or port.
    #[error("\"{value}\" is not a leader's address: write host:port, such as 127.0.0.1:5000")]
    Leader {
        /// What was given.
        value: String,
    },
    /// A pattern that no leader takes.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// Too many or too few of something.
    #[error("{value} {what}: give {min} to {limit}")]
    Range {
        /// Of what.
        what: &'static str,
        /// How many.
        value: usize,
        /// The fewest.
        min: usize,
        /// The most.
        limit: usize,
    },
    /// A cache that cannot be kept.
    #[error("{text}")]
    Cache {
        /// Why not.
        text: String,
    },
    /// A work directory that this worker cannot use.
    #[error("{text}")]
    WorkDir {
        /// Why not.
        text: String,
    },
    /// A worker without jobs and without a cache.
    #[error("a worker that takes no jobs has nothing to do without a cache: name its directory")]
    Idle,
    /// A share of the processors that makes no sense (ENV03).
    #[error("a processor cap of {value}: give 0.10 to 0.95, the share of all processors")]
    CpuCap {
        /// What was given.
        value: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_said_with_the_next_step() {
        let sound = WorkerConfig::new("localhost:5000");
        let checked = sound.clone().check().unwrap();
        assert_eq!(checked.patterns, ["job.assign.>"], "C09");
        for (config, text) in [
            (WorkerConfig { leader: "localhost".into(), ..sound.clone() }, "write host:port"),
            (WorkerConfig { leader: ":5000".into(), ..sound.clone() }, "write host:port"),
            (WorkerConfig { leader: "h:70000".into(), ..sound.clone() }, "write host:port"),
            (WorkerConfig { leader: "h:0".into(), ..sound.clone() }, "write host:port"),
            (WorkerConfig { leader: "a b:5000".into(), ..sound.clone() }, "write host:port"),
            (
                WorkerConfig { parallel_max: 0, ..sound.clone() },
                "0 jobs at a time: give 1 to 10000",
            ),
            (WorkerConfig { cpu_cap: Some(0.05), ..sound.clone() }, "0.10 to 0.95"),
            (WorkerConfig { cpu_cap: Some(f64::NAN), ..sound.clone() }, "0.10 to 0.95"),
            (WorkerConfig { patterns: vec!["a\nb".into()], ..sound.clone() }, "control character"),
            (
                WorkerConfig { patterns: vec!["a".into(), "".into()], ..sound.clone() },
                "number 2 is empty",
            ),
            (
                WorkerConfig { patterns: vec!["job.assign.>.a".into()], ..sound.clone() },
                "wrong place",
            ),
            (
                WorkerConfig { name: Some("x".repeat(5000)), ..sound.clone() },
                "5000 bytes in the worker's name",
            ),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
