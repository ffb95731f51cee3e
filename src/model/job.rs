//! What a client asks for: a job request and its input files (M01, M02, M15, CA08, C28, C32). It
//! holds what the JSON says and checks its form; whether a name is safe to open or a program may
//! run is the worker's business. Clients write it, leaders and workers read it.

use uuid::Uuid;

use super::blob::BlobRef;
use super::error::{ModelError, quote};
use super::json::{JsonModel, Object, ObjectWriter, Schema};
use super::limits::{LIST_ITEMS_MAX, NAME_BYTES_MAX, SUBJECT_BYTES_MAX, TAG_BYTES_MAX};

/// One input file of a job, as it stands on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputFile {
    /// The name in the job's directory.
    pub name: String,
    /// The dataset that holds the file.
    pub cache_id: Option<String>,
    /// The file itself.
    pub content: Option<Vec<u8>>,
    /// Ours: the transfer that brings the file.
    pub blob: Option<BlobRef>,
    /// Ours: where the worker can fetch the file (C32).
    pub url: Option<String>,
    /// Ours: the file's name in the dataset, where the job knows it by another one (CA08);
    /// [`name_in_dataset`](InputFile::name_in_dataset) reads it.
    pub cache_name: Option<String>,
}

/// Where an input file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// The bytes are in the request; there may be none of them (C19).
    Inline(&'a [u8]),
    /// The bytes were in the request and have been taken out by a `ContentStream`.
    Streamed {
        /// How many there were.
        bytes: u64,
    },
    /// A file of this dataset, pushed ahead of time (CA08).
    Cache(&'a str),
    /// A transfer brings the bytes.
    Blob(&'a BlobRef),
    /// The worker fetches the bytes.
    Url(&'a str),
    /// The request does not say.
    Nothing,
}

impl InputFile {
    /// A file whose bytes go with the request.
    #[must_use]
    pub fn inline(name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), content: Some(content.into()), ..Self::default() }
    }

    /// A file of a dataset.
    #[must_use]
    pub fn cached(name: impl Into<String>, cache_id: impl Into<String>) -> Self {
        Self { name: name.into(), cache_id: Some(cache_id.into()), ..Self::default() }
    }

    /// A file of a dataset that the job knows by a name of its own.
    #[must_use]
    pub fn cached_as(
        name: impl Into<String>,
        cache_id: impl Into<String>,
        name_in_dataset: impl Into<String>,
    ) -> Self {
        let file = Self::cached(name, cache_id);
        let cache_name = Some(name_in_dataset.into()).filter(|inner| *inner != file.name);
        Self { cache_name, ..file }
    }

    /// The file's name in its dataset (CA08): its own, unless the request says another.
    #[must_use]
    pub fn name_in_dataset(&self) -> &str {
        self.cache_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&self.name)
    }

    /// Where the file comes from. Content wins unless it is empty (CA12), and then the dataset, as
    /// for a classic worker; an empty content counts only if nothing else is named (C19).
    #[must_use]
    pub fn source(&self) -> Source<'_> {
        match &self.content {
            Some(content) if !content.is_empty() => Source::Inline(content),
            Some(_) => self.elsewhere().unwrap_or(Source::Inline(&[])),
            None => self.elsewhere().unwrap_or(Source::Nothing),
        }
    }

    /// `source` for a file read from a `Residue`, whose slot tells how much content was taken out.
    #[must_use]
    pub fn source_streamed(&self, taken_out: Option<u64>) -> Source<'_> {
        match taken_out {
            Some(bytes) if bytes > 0 => Source::Streamed { bytes },
            Some(_) | None => self.source(),
        }
    }

    fn elsewhere(&self) -> Option<Source<'_>> {
        let cache = self.cache_id.as_deref().filter(|id| !id.is_empty()).map(Source::Cache);
        let blob = || self.blob.as_ref().map(Source::Blob);
        let url = || self.url.as_deref().filter(|url| !url.is_empty()).map(Source::Url);
        cache.or_else(blob).or_else(url)
    }
}

impl JsonModel for InputFile {
    const SCHEMA: Schema = Schema {
        name: "InputFile",
        members: &["Name", "CacheId", "Content", "Blob", "Url", "CacheName"],
    };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            name: object.needed_name("Name", NAME_BYTES_MAX)?,
            cache_id: object.name("CacheId", NAME_BYTES_MAX)?,
            content: object.bytes("Content")?,
            blob: object
                .object("Blob", BlobRef::SCHEMA)?
                .map(|blob| BlobRef::read(&blob))
                .transpose()?,
            url: object.name("Url", SUBJECT_BYTES_MAX)?,
            cache_name: object.name("CacheName", NAME_BYTES_MAX)?,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("Name", &self.name);
        object.text_or_null("CacheId", self.cache_id.as_deref());
        object.bytes_or_null("Content", self.content.as_deref());
        object.model_if_some("Blob", self.blob.as_ref());
        object.text_if_some("Url", self.url.as_deref());
        object.text_if_some("CacheName", self.cache_name.as_deref());
    }

    fn json_bytes(&self) -> usize {
        let names = self.name.len().saturating_add(self.cache_name.as_ref().map_or(0, String::len));
        base64_bytes(self.content.as_deref()).saturating_add(names).saturating_add(256)
    }
}

/// How many workers get a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Deliver {
    /// One of those that match. The default, and all that a classic peer knows.
    #[default]
    One,
    /// Every worker that matches.
    All,
}

/// A job as its client asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRequest {
    /// The job; nil if the request does not say, as in .NET.
    pub job_id: Uuid,
    /// The client that asks.
    pub client_id: String,
    /// The program to run.
    pub exec_name: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its input files.
    pub files: Vec<InputFile>,
    /// Ours: smaller goes first (C28).
    pub priority: i64,
    /// Ours: how many workers get the job.
    pub deliver: Deliver,
    /// Ours: how long the program may run.
    pub time_limit_ms: Option<u64>,
    /// Ours: refuse the job if no connected worker could take it, instead of waiting for one.
    pub require_worker: bool,
    /// Ours: classic workers get the names of files without their folders, if they differ without
    /// them (C08).
    pub flatten: bool,
    /// Ours: the group of jobs it belongs to; never empty.
    pub tag: Option<String>,
}

impl JsonModel for JobRequest {
    const SCHEMA: Schema = Schema {
        name: "JobRequest",
        members: &[
            "JobId",
            "ClientId",
            "ExecName",
            "Args",
            "Files",
            "Priority",
            "Deliver",
            "TimeLimitMs",
            "RequireWorker",
            "Flatten",
            "Tag",
        ],
    };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        object.refuse_null("JobId", "a Guid string")?;
        let args = object.list("Args", LIST_ITEMS_MAX)?.unwrap_or_default();
        let files = object.list("Files", LIST_ITEMS_MAX)?.unwrap_or_default();
        Ok(Self {
            job_id: object.guid("JobId")?.unwrap_or_default(),
            client_id: object.name("ClientId", SUBJECT_BYTES_MAX)?.unwrap_or_default(),
            exec_name: object.needed_name("ExecName", NAME_BYTES_MAX)?,
            args: args.iter().map(|arg| arg.text()).collect::<Result<_, _>>()?,
            files: files
                .iter()
                .map(|file| InputFile::read(&file.object(InputFile::SCHEMA)?))
                .collect::<Result<_, _>>()?,
            priority: object.int64("Priority")?.unwrap_or_default(),
            deliver: read_deliver(object)?,
            // A limit of 0 could mean "at once" or "none"; it is refused rather than guessed at.
            time_limit_ms: object.whole("TimeLimitMs", 1, i64::MAX.unsigned_abs())?,
            require_worker: object.flag("RequireWorker")?.unwrap_or_default(),
            flatten: object.flag("Flatten")?.unwrap_or_default(),
            tag: object.name("Tag", TAG_BYTES_MAX)?.filter(|tag| !tag.is_empty()),
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.guid("JobId", self.job_id);
        object.text("ClientId", &self.client_id);
        object.text("ExecName", &self.exec_name);
        // Both lists are always there: a classic worker fails a job that lacks one (M15).
        object.texts("Args", &self.args);
        object.models("Files", &self.files);
        object.whole_if_some("Priority", Some(self.priority).filter(|&priority| priority != 0));
        match self.deliver {
            Deliver::One => {}
            Deliver::All => object.text("Deliver", "all"),
        }
        object.whole_if_some("TimeLimitMs", self.time_limit_ms);
        object.flag_if_set("RequireWorker", self.require_worker);
        object.flag_if_set("Flatten", self.flatten);
        object.text_if_some("Tag", self.tag.as_deref());
    }

    fn json_bytes(&self) -> usize {
        let args = self.args.iter().map(|arg| arg.len().saturating_add(8));
        let files = self.files.iter().map(InputFile::json_bytes);
        args.chain(files).fold(512, usize::saturating_add)
    }
}

fn read_deliver(object: &Object<'_>) -> Result<Deliver, ModelError> {
    match object.text("Deliver")?.as_deref() {
        None => Ok(Deliver::One),
        Some("all") => Ok(Deliver::All),
        Some(word) => Err(ModelError::UnknownWord {
            place: object.place("Deliver"),
            found: format!("\"{}\"", quote(word)),
            expected: "\"all\"",
        }),
    }
}

/// How long a content is in base64.
pub(super) fn base64_bytes(content: Option<&[u8]>) -> usize {
    content.map_or(0, |content| content.len().div_ceil(3).saturating_mul(4))
}
