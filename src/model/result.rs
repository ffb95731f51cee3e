//! What became of a job: the result a worker acknowledges with and a client receives (M03, M11). It
//! holds what the JSON says; which of several results counts is the broker's business. Workers
//! write it, leaders read it and add to it, clients read it.

use uuid::Uuid;

use super::blob::BlobRef;
use super::error::ModelError;
use super::job::base64_bytes;
use super::json::{JsonModel, Object, ObjectWriter, Schema};
use super::limits::{NAME_BYTES_MAX, SUBJECT_BYTES_MAX};

/// How a job ended (M11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStatus {
    /// `OK`.
    Ok,
    /// `FAILED`.
    Failed,
    /// `DUPLICATE`: the worker has run this job before and keeps no result of it (C17).
    Duplicate,
    /// `CANCELLED`, ours: the worker gave the job up because it was told to. That is not a result.
    Cancelled,
    /// A word we do not know, kept as it came. Made by `from`, which never puts one of the words
    /// above in here.
    Other(String),
}

impl JobStatus {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ok => "OK",
            Self::Failed => "FAILED",
            Self::Duplicate => "DUPLICATE",
            Self::Cancelled => "CANCELLED",
            Self::Other(word) => word,
        }
    }
}

impl From<String> for JobStatus {
    fn from(word: String) -> Self {
        match word.as_str() {
            "OK" => Self::Ok,
            "FAILED" => Self::Failed,
            "DUPLICATE" => Self::Duplicate,
            "CANCELLED" => Self::Cancelled,
            _ => Self::Other(word),
        }
    }
}

/// Parts of one result that can be lost: archive, standard output and standard error.
const PARTS_MAX: usize = 3;

/// The part of a result of which nothing can be read: how the job ended is all that is known.
pub const WHOLE_RESULT: &str = "result";

/// A part of a result that the leader had and cannot give any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPart {
    /// `archive`, `stdout` or `stderr`; [`WHOLE_RESULT`] if it is all of the result.
    pub part: String,
    /// How many bytes it had.
    pub size: u64,
    /// How many of them the result itself has.
    pub here: u64,
    /// Why it is lost, for people.
    pub why: String,
}

impl JsonModel for LostPart {
    const SCHEMA: Schema = Schema { name: "LostPart", members: &["Part", "Size", "Here", "Why"] };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            part: object.name("Part", NAME_BYTES_MAX)?.unwrap_or_default(),
            size: object.whole("Size", 0, u64::MAX)?.unwrap_or_default(),
            here: object.whole("Here", 0, u64::MAX)?.unwrap_or_default(),
            why: object.text("Why")?.unwrap_or_default(),
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("Part", &self.part);
        object.whole("Size", self.size);
        object.whole("Here", self.here);
        object.text("Why", &self.why);
    }

    fn json_bytes(&self) -> usize {
        self.part.len().saturating_add(self.why.len()).saturating_add(64)
    }
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobResult {
    /// The job.
    pub job_id: Uuid,
    /// The client that asked.
    pub client_id: String,
    /// The program that ran.
    pub exec_name: String,
    /// How it ended.
    pub status: JobStatus,
    /// What the program wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error, or why it did not run.
    pub stderr: String,
    /// The files it left behind, as a ZIP archive.
    pub output_archive: Option<Vec<u8>>,
    /// Ours: the job went to the dead-letter queue.
    pub dead: bool,
    /// Ours, with `CANCELLED`: the worker gave the job up as it had no room on its disk for its
    /// inputs.
    pub no_room: bool,
    /// Ours, with `no_room`, which leaders that do not know this go by: what it has not is a work
    /// directory that it can use.
    pub no_directory: bool,
    /// Ours, with `CANCELLED`: the worker gave the job up as it does not have its program, or
    /// cannot start it. Only leaders that know this get it.
    pub no_program: bool,
    /// Ours: how many attempts were made.
    pub attempts: Option<u32>,
    /// Ours: which run of the job this is the result of.
    pub run: Option<u32>,
    /// Ours: what the program returned.
    pub exit_code: Option<i32>,
    /// Ours: the signal that ended the program, unless its worker sent it.
    pub signal: Option<i32>,
    /// Ours: its worker stopped it, as it ran longer than this many milliseconds.
    pub timed_out_ms: Option<u64>,
    /// Ours: the transfer that brings the archive.
    pub archive: Option<BlobRef>,
    /// Ours: the files it left behind have so many bytes, and were left out since they do not fit.
    pub archive_lost: Option<u64>,
    /// Ours: the transfer that brings the whole standard output; `stdout` then has its beginning.
    pub stdout_blob: Option<BlobRef>,
    /// Ours: the transfer that brings the whole standard error; `stderr` then has its beginning.
    pub stderr_blob: Option<BlobRef>,
    /// Ours: parts that the leader had and lost. The members above do not name them any more.
    pub lost: Vec<LostPart>,
}

impl JobResult {
    /// Whether the leader had it and can read nothing of it any more. Its status is then none of
    /// the job's.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.iter().any(|lost| lost.part == WHOLE_RESULT)
    }

    /// A result without output.
    #[must_use]
    pub fn new(
        job_id: Uuid,
        client_id: impl Into<String>,
        exec_name: impl Into<String>,
        status: JobStatus,
    ) -> Self {
        Self {
            job_id,
            client_id: client_id.into(),
            exec_name: exec_name.into(),
            status,
            stdout: String::new(),
            stderr: String::new(),
            output_archive: None,
            dead: false,
            no_room: false,
            no_directory: false,
            no_program: false,
            attempts: None,
            run: None,
            exit_code: None,
            signal: None,
            timed_out_ms: None,
            archive: None,
            archive_lost: None,
            stdout_blob: None,
            stderr_blob: None,
            lost: Vec::new(),
        }
    }
}

impl JsonModel for JobResult {
    const SCHEMA: Schema = Schema {
        name: "JobResult",
        members: &[
            "JobId",
            "ClientId",
            "ExecName",
            "Status",
            "Stdout",
            "Stderr",
            "OutputArchive",
            "Dead",
            "NoRoom",
            "NoDirectory",
            "NoProgram",
            "Attempts",
            "Run",
            "ExitCode",
            "Signal",
            "TimedOutMs",
            "Archive",
            "ArchiveLost",
            "StdoutBlob",
            "StderrBlob",
            "Lost",
        ],
    };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        object.refuse_null("JobId", "a Guid string")?;
        let blob = |member| -> Result<Option<BlobRef>, ModelError> {
            object.object(member, BlobRef::SCHEMA)?.map(|blob| BlobRef::read(&blob)).transpose()
        };
        let lost = object.list("Lost", PARTS_MAX)?.unwrap_or_default();
        let lost = lost.iter().map(|part| LostPart::read(&part.object(LostPart::SCHEMA)?));
        let lost = lost.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            job_id: object.guid("JobId")?.unwrap_or_default(),
            client_id: object.name("ClientId", SUBJECT_BYTES_MAX)?.unwrap_or_default(),
            exec_name: object.name("ExecName", NAME_BYTES_MAX)?.unwrap_or_default(),
            status: JobStatus::from(object.name("Status", NAME_BYTES_MAX)?.unwrap_or_default()),
            stdout: object.text("Stdout")?.unwrap_or_default(),
            stderr: object.text("Stderr")?.unwrap_or_default(),
            output_archive: object.bytes("OutputArchive")?,
            dead: object.flag("Dead")?.unwrap_or_default(),
            no_room: object.flag("NoRoom")?.unwrap_or_default(),
            no_directory: object.flag("NoDirectory")?.unwrap_or_default(),
            no_program: object.flag("NoProgram")?.unwrap_or_default(),
            attempts: object.whole("Attempts", 0, u32::MAX.into())?,
            run: object.whole("Run", 0, u32::MAX.into())?,
            exit_code: object.int32("ExitCode")?,
            signal: object.int32("Signal")?,
            timed_out_ms: object.whole("TimedOutMs", 0, u64::MAX)?,
            archive: blob("Archive")?,
            archive_lost: object.whole("ArchiveLost", 0, u64::MAX)?,
            stdout_blob: blob("StdoutBlob")?,
            stderr_blob: blob("StderrBlob")?,
            lost,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.guid("JobId", self.job_id);
        object.text("ClientId", &self.client_id);
        object.text("ExecName", &self.exec_name);
        object.text("Status", self.status.as_str());
        object.text("Stdout", &self.stdout);
        object.text("Stderr", &self.stderr);
        object.bytes_or_null("OutputArchive", self.output_archive.as_deref());
        object.flag_if_set("Dead", self.dead);
        object.flag_if_set("NoRoom", self.no_room);
        object.flag_if_set("NoDirectory", self.no_directory);
        object.flag_if_set("NoProgram", self.no_program);
        object.whole_if_some("Attempts", self.attempts);
        object.whole_if_some("Run", self.run);
        object.whole_if_some("ExitCode", self.exit_code);
        object.whole_if_some("Signal", self.signal);
        object.whole_if_some("TimedOutMs", self.timed_out_ms);
        object.model_if_some("Archive", self.archive.as_ref());
        object.whole_if_some("ArchiveLost", self.archive_lost);
        object.model_if_some("StdoutBlob", self.stdout_blob.as_ref());
        object.model_if_some("StderrBlob", self.stderr_blob.as_ref());
        if !self.lost.is_empty() {
            object.models("Lost", &self.lost);
        }
    }

    fn json_bytes(&self) -> usize {
        let texts = self.stdout.len().saturating_add(self.stderr.len());
        base64_bytes(self.output_archive.as_deref()).saturating_add(texts).saturating_add(512)
    }
}
