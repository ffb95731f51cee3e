//! The answer to `explain`.

use serde::{Deserialize, Serialize};

use super::{Flagged, JobState, WorkerClass};

words! {
    /// Where a job stands.
    Phase {
        Queued = "queued", Running = "running", Returning = "returning", Gathering = "gathering",
        Done = "done", Dead = "dead",
    }
}

words! {
    /// What a job waits for.
    WaitsFor {
        BackOff = "back-off", WorkerDisk = "worker-disk", WorkerDirectory = "worker-directory",
        WorkerProgram = "worker-program", Program = "program",
        WorkerCache = "worker-cache", Client = "client", InputRoom = "input-room",
        Cap = "cap", Data = "data", Nearer = "nearer", Worker = "worker", CapableWorker = "capable-worker",
        RequestWorker = "request-worker", FoldersWorker = "folders-worker", RawWorker = "raw-worker",
        Agent = "agent", Room = "room", ResultRoom = "result-room", Stop = "stop", Turn = "turn", Log = "log",
    }
}

words! {
    /// Whether a worker gets a job, and if not, why.
    Verdict {
        HasIt = "has-it", First = "first", WaitedFor = "waited-for", Possible = "possible",
        NoRoom = "no-room", DiskFull = "disk-full", NoDirectory = "no-directory",
        NoProgram = "no-program", Silent = "silent", OwesAnswer = "owes-answer",
        LostThere = "lost-there", ByAgent = "by-agent", NoRequests = "no-requests",
        NoFolders = "no-folders", NoRaw = "no-raw", NoTransfers = "no-transfers",
        NoDatasets = "no-datasets", NoMatch = "no-match", ForAnother = "for-another", Ended = "ended",
    }
}

words! {
    /// How a worker has a dataset that a job names.
    DatasetState { Held = "held", Coming = "coming", Expected = "expected", Missing = "missing", }
}

/// Why a job is where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    pub job_id: String,
    /// Which run of it.
    pub run: u32,
    /// Whose it is.
    pub client_id: String,
    /// Where it belongs.
    pub key: String,
    /// Where it stands.
    pub phase: Phase,
    /// The same as `heft job ls` says it, which tells a job that failed from one that is OK.
    /// Older leaders omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Who or what ended it, if no worker returned a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The worker that runs it.
    pub worker: Option<String>,
    /// By what its worker is chosen.
    pub policy: String,
    /// The datasets it names.
    pub datasets: Vec<NamedDataset>,
    /// What it waits for, if it waits.
    pub waits: Option<Waits>,
    /// How many jobs of its client and key are served before it, if it is queued; at most 1,000 are
    /// counted.
    pub ahead: Option<u64>,
    /// The workers that are connected, at most 1,000.
    pub workers: Vec<SeenWorker>,
    /// Whether there are more.
    pub more: bool,
}

/// A dataset that a job names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedDataset {
    pub cache_id: String,
    /// Whether the leader has it.
    pub known: bool,
    /// How large it is.
    pub bytes: Option<u64>,
    /// Which content the leader has.
    #[serde(rename = "generation")]
    pub version: Option<String>,
}

/// What a job waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    /// In a word.
    #[serde(rename = "for")]
    pub what: WaitsFor,
    pub text: String,
    /// The worker it waits for.
    pub worker: Option<String>,
    /// How long it has waited.
    pub waited_ms: Option<u64>,
    /// How much longer it waits at most.
    pub left_ms: Option<u64>,
}

/// A worker, as seen for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenWorker {
    pub id: String,
    /// What it calls itself.
    pub name: Option<String>,
    /// What it is.
    pub class: WorkerClass,
    /// Whether it asked for the job's key.
    pub matches: bool,
    /// What it asked for.
    pub patterns: Vec<String>,
    /// What it has to do.
    #[serde(flatten)]
    pub load: Load,
    /// Whether it lost the job's result before.
    pub lost_there: bool,
    /// Whether it has the job's program, if it says so.
    pub has_program: Option<bool>,
    /// Whether the program fails there far more often than on others.
    pub flagged: Option<Flagged>,
    /// What it takes.
    #[serde(flatten)]
    pub takes: Takes,
    /// The agent that holds datasets for it.
    pub agent: Option<String>,
    /// What it has of each dataset.
    #[serde(rename = "sets")]
    pub datasets: Vec<DatasetAt>,
    /// What it would have to get.
    #[serde(flatten)]
    pub cost: MoveCost,
    /// What comes of all that, in a word.
    pub verdict: Verdict,
    /// And for people.
    pub text: String,
}

/// What a worker has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Whether it can be given a job.
    pub room: bool,
    /// Jobs it may be given.
    pub credit: Option<u32>,
    /// Jobs it has that have not ended there.
    pub running: Option<u64>,
    /// Jobs that have ended there and whose results are on their way.
    pub returning: Option<u64>,
}

/// What a worker takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Takes {
    /// Inputs as transfers.
    pub transfers: bool,
    pub takes_datasets: bool,
    /// Files in folders.
    pub takes_folders: bool,
    pub takes_raw: bool,
}

/// What a worker would have to get for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveCost {
    /// Bytes that it does not have.
    pub missing_bytes: Option<u64>,
    /// Those that are not on their way.
    pub unsent_bytes: Option<u64>,
    /// What getting them is thought to take.
    pub move_ms: Option<u64>,
}

/// How a worker has one dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetAt {
    /// The dataset's id.
    pub cache_id: String,
    pub state: DatasetState,
    /// Bytes that it lacks, if that is known.
    pub missing: Option<u64>,
}
