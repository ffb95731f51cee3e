//! The answer to `status`. Each part of the leader fills in its own section.

use serde::{Deserialize, Serialize};

words! {
    /// What outlives a leader.
    Durability { Disk = "disk", Memory = "memory", }
}

words! {
    /// What a worker is. `stock` is the older name of the class of classic workers; scripts know
    /// it.
    WorkerClass { Heft = "heft", Classic = "stock", Minimal = "minimal", }
}

/// What a leader does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The leader itself.
    pub leader: LeaderStatus,
    /// How many jobs there are.
    pub jobs: Jobs,
    /// The workers it knows, at most 1,000.
    pub workers: Vec<WorkerRow>,
    /// The clients that are connected, at most 1,000.
    pub clients: Vec<ClientRow>,
    /// The queues that are not empty, at most 1,000.
    pub queues: Vec<QueueRow>,
    /// How long those lists would be in full. Older leaders do not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

words! {
    /// The lists of a status.
    StatusList { Workers = "workers", Clients = "clients", Queues = "queues", }
}

/// The answer to `status.page`: rows of the list that was asked for, at most 1,000.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusRows {
    pub workers: Vec<WorkerRow>,
    pub clients: Vec<ClientRow>,
    pub queues: Vec<QueueRow>,
    /// The id behind which the next page begins, if there is one.
    pub next: Option<String>,
}

/// How many there are of what a status lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub workers: u64,
    pub clients: u64,
    pub queues: u64,
}

/// The leader itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaderStatus {
    /// Its name and version.
    pub software: String,
    /// How long it runs.
    pub uptime_ms: u64,
    /// The driver of its sockets.
    pub driver: String,
    /// What outlives it.
    pub durability: Durability,
    /// Whether it takes no new jobs.
    pub draining: bool,
    /// Connections, with those that have not said anything yet.
    pub connections: u64,
    /// Frames that were not what their senders sent.
    pub frames_damaged: u64,
    /// Results that did not count.
    pub acks_refused: u64,
    /// Bytes of the names that jobs have.
    pub job_names_bytes: u64,
    /// Bytes of the names in peers' hellos.
    pub peer_names_bytes: u64,
    /// Jobs whose results wait for room.
    pub results_waiting: u64,
    /// Jobs that a previous run left.
    pub recovered_jobs: u64,
    /// How long it took to read them.
    pub recovery_ms: u64,
    /// Blobs on their way.
    #[serde(flatten)]
    pub spool: Spool,
    #[serde(flatten)]
    pub log: Log,
    /// The disk beneath it.
    #[serde(flatten)]
    pub disk: Disk,
    /// Payloads in memory.
    #[serde(flatten)]
    pub payloads: Payloads,
}

/// Blobs on their way, and the buffers for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spool {
    /// Bytes of blobs that are here.
    pub spool_bytes: u64,
    /// Bytes that may be.
    pub spool_bytes_max: u64,
    /// Blobs that are known.
    pub blobs: u64,
    /// Buffers in all.
    pub buffers: u64,
    /// Those in use.
    pub buffers_in_use: u64,
    /// Chunks that senders may send and have not.
    pub buffers_promised: u64,
    /// Chunks that passed through while they came.
    pub chunks_passed_through: u64,
    /// Chunks that broke on their way through.
    pub chunks_voided: u64,
    /// Bytes of chunks that were copied on their way.
    pub chunk_bytes_copied: u64,
}

/// What the log took so far, and why it takes nothing, if it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Log {
    pub log_records: u64,
    pub log_bytes: u64,
    /// How often it was synced.
    pub log_syncs: u64,
    /// What that took in all.
    pub log_sync_us: u64,
    /// Why it takes nothing.
    pub log_trouble: Option<String>,
}

/// The disk beneath the leader. Nothing is said of it by one that keeps nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// What waits for room, and what would help.
    pub disk_trouble: Option<String>,
    /// Bytes that are free.
    pub disk_free: Option<u64>,
    /// Bytes in all.
    pub disk_bytes: Option<u64>,
    /// Bytes that are kept for the log and for results.
    pub disk_reserve: Option<u64>,
    /// Uploads that wait for room.
    pub uploads_waiting: Option<u64>,
    /// Bytes of files that are not needed and wait to be written again, which is faster than making
    /// new ones. They are given back when something waits for room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recycled_bytes: Option<u64>,
    /// What those may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recycled_bytes_max: Option<u64>,
}

/// Payloads that are held in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Payloads {
    /// Bytes of jobs that have not ended, or are dead.
    pub payload_bytes: u64,
    /// Bytes of results.
    pub result_bytes: u64,
    /// Failed jobs that may run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_jobs: Option<u64>,
    /// Bytes of those, with their large inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_bytes: Option<u64>,
}

/// How many jobs there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Jobs {
    /// Those that wait for a worker.
    pub queued: u64,
    /// Those with one.
    pub running: u64,
    /// Those that have ended.
    pub done: u64,
    /// Those that used up their attempts.
    pub dead: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerRow {
    pub id: String,
    /// What it calls itself.
    pub name: Option<String>,
    /// What it is.
    pub class: WorkerClass,
    /// What it asked for, as far as it is listed.
    pub patterns: Vec<String>,
    /// Patterns that are not listed.
    pub patterns_more: u64,
    /// Jobs it may be given.
    pub credit: u32,
    /// Jobs it has that have not ended there.
    pub running: u64,
    /// Jobs that have ended there and whose results are on their way.
    pub returning: u64,
    /// How busy its processors are.
    pub cpu_permille: Option<u16>,
    /// Whether it is connected.
    pub connected: bool,
    /// What it lacked for a job that it handed back lately.
    pub lacks: Option<Lacks>,
    /// The programs that it has, as far as they are listed; none if it does not say.
    pub programs: Option<Vec<String>>,
    /// Programs that are not listed.
    pub programs_more: u64,
    /// Programs that it is not given, as it handed jobs of them back; at most 16.
    pub avoided: Vec<Avoided>,
    /// Programs that fail there far more often than on others; at most 16.
    pub flagged: Vec<Flagged>,
}

words! {
    /// What a worker lacks.
    Lack { Room = "room", Directory = "directory", Program = "program", }
}

/// What a worker lacked for a job that it handed back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lacks {
    /// In a word.
    pub what: Lack,
    /// How long ago that was.
    pub ago_ms: u64,
}

/// A program that a worker is not given for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Avoided {
    pub program: String,
    /// What the worker said.
    pub why: String,
    /// How long ago that was.
    pub ago_ms: u64,
}

/// A program that fails on a worker far more often than on others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flagged {
    /// The program; not said where it is the job's.
    pub program: Option<String>,
    /// Its results there, as far as they are counted.
    pub ended: u32,
    /// Those that are not OK.
    pub failed: u32,
    /// The same in thousandths, of the worker in the middle.
    pub median_permille: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientRow {
    pub id: String,
    /// Jobs of it that may be at workers; 0 if as many as workers take.
    pub cap: u32,
    /// Those that are.
    pub in_flight: u32,
    /// Those that wait.
    pub queued: u64,
    pub connections: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueRow {
    pub key: String,
    /// Jobs in it.
    pub queued: u64,
}
