//! What a leader can be asked: the one table of verbs, with the members of each question and the
//! answer that belongs to it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    BlobPage, Cancelled, Checked, Collected, DatasetPage, DatasetShown, DeadPage, DeadShown,
    Explained, Found, Inspected, JobPage, JobShown, JobState, Purged, Pushed, Removed, Requeued,
    Retried, StatusList, Waited,
};

/// A question, and what answers it.
pub trait Ask: Serialize + DeserializeOwned {
    /// How it is called on the wire.
    const VERB: Verb;

    type Answer: Serialize + DeserializeOwned;
}

macro_rules! questions {
    ($($(#[$doc:meta])* $name:ident = $verb:literal {
        $($(#[$member_doc:meta])* $member:ident: $type:ty,)*
    } -> $answer:ty;)+) => {
        words! {
            /// What a question is called on the wire.
            Verb { $($name = $verb,)+ }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
            pub struct $name { $($(#[$member_doc])* pub $member: $type,)* }

            impl Ask for $name {
                const VERB: Verb = Verb::$name;
                type Answer = $answer;
            }
        )+

        /// A question that came to a leader.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Question {
            $(#[doc = concat!("`", $verb, "`")] $name($name),)+
        }

        impl Question {
            /// Reads a question. The error is a sentence for whoever asked.
            pub fn read(verb: &Verb, json: &[u8]) -> Result<Question, String> {
                let members = match serde_json::from_slice(json) {
                    Ok(Value::Null) => Value::Object(Map::new()),
                    Ok(members) => members,
                    Err(_) if json.is_empty() => Value::Object(Map::new()),
                    Err(error) => return Err(format!("the question is not valid JSON: {error}")),
                };
                let wrong = |error: serde_json::Error| format!("the question {verb} cannot be read: {error}");
                match verb {
                    $(Verb::$name => serde_json::from_value(members).map(Question::$name).map_err(wrong),)+
                    Verb::Other(other) => Err(format!(
                        "\"{other}\" is not a question this leader knows: ask one of {}", Verb::NAMES.join(", ")
                    )),
                }
            }
        }
    };
}

questions! {
    /// What the leader does.
    Status = "status" {} -> super::Status;
    /// A page of one of the lists of a status, in the order of its ids.
    StatusPage = "status.page" {
        list: StatusList,
        /// The id behind which the page begins.
        #[serde(default, skip_serializing_if = "Option::is_none")] after: Option<String>,
    } -> super::StatusRows;
    /// The result of a job that has ended. Its parts follow as transfers.
    GetResult = "result" {
        /// The job, which may be a child of a job to all workers.
        #[serde(deserialize_with = "job_id")] job_id: Uuid,
    } -> Found;
    /// A page of the dead-letter queue.
    DlqLs = "dlq.ls" {
        /// The most jobs to list.
        #[serde(default, skip_serializing_if = "Option::is_none")] limit: Option<u64>,
        /// The job behind which the page begins.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "job_id_or_none")]
        after: Option<Uuid>,
    } -> DeadPage;
    /// One dead job with its history.
    DlqShow = "dlq.show" {
        #[serde(deserialize_with = "job_id")] job_id: Uuid,
    } -> DeadShown;
    /// A new run of a dead job, or of all of them.
    DlqRequeue = "dlq.requeue" {
        #[serde(flatten)] which: Which,
    } -> Requeued;
    /// Forgets a dead job, or all of them.
    DlqPurge = "dlq.purge" {
        #[serde(flatten)] which: Which,
    } -> Purged;
    /// A page of the blobs that the leader keeps, in the order of their ids.
    BlobLs = "blob.ls" {
        /// The blob behind which the page begins.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "blob_id_or_none")]
        after: Option<Uuid>,
    } -> BlobPage;
    /// Reads a blob from the leader's disk, and checks it.
    BlobVerify = "blob.verify" {
        #[serde(deserialize_with = "blob_id")] blob: Uuid,
    } -> Checked;
    /// Removes files of blobs that nothing refers to.
    BlobGc = "blob.gc" {
        /// Only says which would go.
        #[serde(default)] dry_run: bool,
    } -> Collected;
    /// The datasets that the leader keeps, in the order of their ids, and the puts that are under
    /// way.
    DatasetLs = "dataset.ls" {
        /// The id behind which the page begins.
        #[serde(default, skip_serializing_if = "Option::is_none")] after: Option<String>,
    } -> DatasetPage;
    /// One dataset: its files, and how each worker has it.
    DatasetStatus = "dataset.status" {
        cache_id: String,
        /// The file behind which the page of files begins.
        #[serde(default, skip_serializing_if = "Option::is_none")] after: Option<String>,
        /// Only this file, or the files in this folder.
        #[serde(default, skip_serializing_if = "Option::is_none")] within: Option<String>,
    } -> DatasetShown;
    /// Removes a dataset from the leader and from all workers.
    DatasetRm = "dataset.rm" {
        cache_id: String,
    } -> Removed;
    /// Has a dataset read and checked at the leader and at every worker that has it.
    DatasetVerify = "dataset.verify" {
        cache_id: String,
    } -> Inspected;
    /// Has a dataset pushed to the workers that do not have it.
    DatasetPush = "dataset.push" {
        cache_id: String,
        /// The workers, by a pattern; those of the dataset's own target if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")] target: Option<String>,
    } -> Pushed;
    /// Why a job is where it is, worker by worker.
    Explain = "explain" {
        #[serde(deserialize_with = "job_id")] job_id: Uuid,
    } -> Explained;
    /// Ends any job the leader knows.
    Cancel = "cancel" {
        #[serde(deserialize_with = "job_id")] job_id: Uuid,
        /// Who asks, as the job's client will read it. Without it the leader names the connection.
        #[serde(default, skip_serializing_if = "Option::is_none")] by: Option<String>,
    } -> Cancelled;
    /// A page of the jobs, the newest first.
    JobLs = "job.ls" {
        /// Those that are in one of these states; all if there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")] states: Vec<JobState>,
        /// Those of this client id, and of the ids that begin with it and a slash.
        #[serde(default, skip_serializing_if = "Option::is_none")] client: Option<String>,
        /// Those that name this program.
        #[serde(default, skip_serializing_if = "Option::is_none")] exec: Option<String>,
        /// Those with this tag.
        #[serde(default, skip_serializing_if = "Option::is_none")] tag: Option<String>,
        /// Those that were submitted at most so long ago.
        #[serde(default, skip_serializing_if = "Option::is_none")] since_ms: Option<u64>,
        /// The most jobs to list.
        #[serde(default, skip_serializing_if = "Option::is_none")] limit: Option<u64>,
        /// The place behind which the page begins, as the page before said it.
        #[serde(default, skip_serializing_if = "Option::is_none")] after: Option<u64>,
    } -> JobPage;
    /// Everything about one job.
    JobShow = "job.show" {
        #[serde(deserialize_with = "job_id")] job_id: Uuid,
    } -> JobShown;
    /// Another run of a job that failed or is dead, from the inputs that the leader has.
    JobRetry = "job.retry" {
        #[serde(deserialize_with = "job_id")] job_id: Uuid,
    } -> Retried;
    /// Is answered when jobs have ended.
    JobWait = "job.wait" {
        /// The jobs, at most 1,000.
        #[serde(deserialize_with = "job_ids")] job_ids: Vec<Uuid>,
        /// Whether the first that ends is enough.
        #[serde(default)] any: bool,
    } -> Waited;
}

/// One dead job, or all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "OneOrAll", into = "OneOrAll")]
pub enum Which {
    One(Uuid),
    All,
}

impl From<Option<Uuid>> for Which {
    fn from(job: Option<Uuid>) -> Self {
        job.map_or(Which::All, Which::One)
    }
}

/// [`Which`] as members.
#[derive(Serialize, Deserialize)]
struct OneOrAll {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "job_id_or_none")]
    job_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    all: Option<bool>,
}

impl TryFrom<OneOrAll> for Which {
    type Error = &'static str;

    fn try_from(members: OneOrAll) -> Result<Self, Self::Error> {
        match members {
            OneOrAll { all: Some(true), .. } => Ok(Which::All),
            OneOrAll { job_id: Some(job), .. } => Ok(Which::One(job)),
            OneOrAll { job_id: None, .. } => Err("it names no job_id, and does not say `all`"),
        }
    }
}

impl From<Which> for OneOrAll {
    fn from(which: Which) -> Self {
        match which {
            Which::One(job) => OneOrAll { job_id: Some(job), all: None },
            Which::All => OneOrAll { job_id: None, all: Some(true) },
        }
    }
}

fn guid<E: serde::de::Error>(what: &str, text: &str) -> Result<Uuid, E> {
    text.parse().map_err(|_| {
        E::custom(format!("\"{text}\" is not a valid {what}: it is a Guid such as {}", Uuid::nil()))
    })
}

fn job_id<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
    guid("job id", &String::deserialize(from)?)
}

fn job_ids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Uuid>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| guid("job id", text)).collect()
}

fn job_id_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Uuid>, D::Error> {
    Option::<String>::deserialize(from)?.map(|text| guid("job id", &text)).transpose()
}

fn blob_id<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
    guid("blob id", &String::deserialize(from)?)
}

fn blob_id_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Uuid>, D::Error> {
    Option::<String>::deserialize(from)?.map(|text| guid("blob id", &text)).transpose()
}
