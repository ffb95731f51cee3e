//! Configurable limits with their defaults, and the broker's fixed limits.

use std::time::Duration;

use super::choose::Policy;

/// The most credit that one message may offer; more is cut to this (CR04).
pub const CREDIT_PER_MESSAGE_MAX: i32 = 10_000;

/// Jobs that one pass gives out for one routing key before the others have their turn (SC09).
pub const ASSIGNMENTS_PER_PASS_MAX: usize = 1_000;

/// Attempts without a result that are recorded for one run of a job. Far fewer of them count toward
/// the limit; of the others the oldest is dropped first.
pub const HISTORY_MAX: usize = 64;

/// Attempts of a job at workers without room for its inputs, when there is no other worker to wait
/// for. With [`Backoff::NO_ROOM`](super::retry::Backoff::NO_ROOM) between them that takes about ten
/// minutes.
pub const NO_ROOM_ATTEMPTS_MAX: usize = 16;

/// Workers without its program that a job is handed back by without a pause. Each is avoided from
/// then on; beyond this number [`Backoff::NO_ROOM`](super::retry::Backoff::NO_ROOM) is between
/// them.
pub const HANDED_BACK_AT_ONCE_MAX: usize = 8;

/// Pairs of client and routing key for which the policy `sticky` remembers a worker. When there are
/// more, all are forgotten.
pub const STICKY_MAX: usize = 65_536;

/// Bytes of the client ids and routing keys of those pairs.
pub const STICKY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Added to the bytes of a job when clients share a key, so that small jobs have a cost, too.
pub const JOB_COST_BYTES: u64 = 64 * 1024;

/// Bytes of jobs that a client may have assigned before the next client's turn.
pub const LANE_QUANTUM_BYTES: u64 = 1024 * 1024;

/// Datasets that one job may name. Each is looked up for every worker that could have the job.
pub const DATASETS_PER_JOB_MAX: usize = 256;

/// Characters of a peer's text that an error quotes.
pub const QUOTED_CHARS_MAX: usize = 64;

/// The longest part of a name between two slashes: what Linux file systems take.
pub const SEGMENT_BYTES_MAX: usize = 255;

/// The most parts of the name of a file that a job made: it is unpacked where somebody asked for
/// it, however deep.
pub const MADE_SEGMENTS_MAX: usize = 1024;

/// The most parts of a name between slashes, so that a name cannot make thousands of directories.
pub const SEGMENTS_MAX: usize = 32;

/// How the broker behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How a worker is chosen among those that may have a job.
    pub policy: Policy,
    /// Whether its state outlives it.
    pub durable: bool,
    /// How long a worker that leases holds a job without a sign of life (C06).
    pub lease: Duration,
    /// How long a worker that leases may be away before its jobs go elsewhere.
    pub worker_grace: Duration,
    /// Deliveries of a job before it goes to the dead-letter queue (RT03).
    pub attempts_max: u32,
    /// Take jobs away from classic workers that do not answer in time, as the founding system does
    /// (C06).
    pub classic_ack_timeout: bool,
    /// Jobs of a client at a time that named no number (CP02).
    pub cap_default: u32,
    /// How long a result is kept.
    pub result_ttl: Duration,
    /// Results that are kept.
    pub results_max: usize,
    /// Jobs in all: waiting, running, ended and dead.
    pub jobs_max: usize,
    /// Bytes of the names of all jobs, which are in memory as long as the jobs are known.
    pub names_bytes_max: u64,
    /// How long a job that waits for inputs outlives its client's connection.
    pub input_wait: Duration,
    /// After this time a worker that runs nothing, offers nothing and has answered is taken to have
    /// lost a credit (CR09).
    pub credit_leak_after: Duration,
    /// If no connected worker has their program: how long jobs wait for a worker that left, for
    /// those of the leader's previous run, and, where they were there first, for those that follow
    /// workers that connect.
    pub placement_wait: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            policy: Policy::Locality,
            durable: false,
            lease: Duration::from_secs(30),
            worker_grace: Duration::from_secs(5),
            attempts_max: 6,
            classic_ack_timeout: false,
            cap_default: 4,
            result_ttl: Duration::from_secs(3600),
            results_max: 100_000,
            jobs_max: 1_000_000,
            names_bytes_max: 256 << 20,
            input_wait: Duration::from_secs(60),
            credit_leak_after: Duration::from_secs(5),
            placement_wait: Duration::from_secs(60),
        }
    }
}
