//! Pushing files to workers ahead of the jobs that need them: the put and its acknowledgement
//! (M05-M07, M12, M18, CA05). It holds what the JSON says; where a file may be stored is the
//! worker's business. Clients write puts and read acknowledgements, workers the other way round,
//! leaders read both.

use chunking::digest::{from_hex, to_hex};

use super::blob::bad_digest;
use super::error::ModelError;
use super::job::base64_bytes;
use super::json::{JsonModel, Object, ObjectWriter, Schema};
use super::limits::{LIST_ITEMS_MAX, NAME_BYTES_MAX, SUBJECT_BYTES_MAX};

/// One file of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// The name under the cache id; it may have folders (`data/a.bin`).
    pub name: String,
    /// The file itself.
    pub content: Vec<u8>,
    /// Ours (M18): what the content hashes to; on the wire 64 hexadecimal digits.
    pub sha256: Option<[u8; 32]>,
}

impl JsonModel for CacheEntry {
    const SCHEMA: Schema = Schema { name: "CacheEntry", members: &["Name", "Content", "Sha256"] };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        let sha256 = match object.text("Sha256")? {
            Some(hex) => Some(from_hex(&hex).ok_or_else(|| {
                bad_digest(object.place("Sha256"), &hex, "a SHA-256 as 64 hexadecimal digits")
            })?),
            None => None,
        };
        Ok(Self {
            name: object.needed_name("Name", NAME_BYTES_MAX)?,
            content: object.need("Content", "a base64 string", object.bytes("Content")?)?,
            sha256,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("Name", &self.name);
        object.bytes("Content", &self.content);
        object.text_if_some("Sha256", self.sha256.map(|sha256| to_hex(&sha256)).as_deref());
    }

    fn json_bytes(&self) -> usize {
        base64_bytes(Some(&self.content)).saturating_add(self.name.len()).saturating_add(128)
    }
}

/// Files for every worker that matches a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePutRequest {
    /// The dataset the files belong to.
    pub cache_id: String,
    /// The files.
    pub entries: Vec<CacheEntry>,
    /// Which workers get them; empty if the request does not say (the frame's subject names it
    /// too).
    pub target_pattern: String,
    /// Ours (M18): which part of a put over several frames this is.
    pub part_no: Option<u32>,
    /// Ours (M18): how many parts there are.
    pub part_count: Option<u32>,
}

impl JsonModel for CachePutRequest {
    const SCHEMA: Schema = Schema {
        name: "CachePutRequest",
        members: &["CacheId", "Entries", "TargetPattern", "PartNo", "PartCount"],
    };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        let entries = object.need("Entries", "a list", object.list("Entries", LIST_ITEMS_MAX)?)?;
        Ok(Self {
            cache_id: object.needed_name("CacheId", NAME_BYTES_MAX)?,
            entries: entries
                .iter()
                .map(|entry| CacheEntry::read(&entry.object(CacheEntry::SCHEMA)?))
                .collect::<Result<_, _>>()?,
            target_pattern: object.name("TargetPattern", SUBJECT_BYTES_MAX)?.unwrap_or_default(),
            part_no: object.whole("PartNo", 0, i32::MAX.unsigned_abs().into())?,
            part_count: object.whole("PartCount", 0, i32::MAX.unsigned_abs().into())?,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("CacheId", &self.cache_id);
        object.models("Entries", &self.entries);
        object.text("TargetPattern", &self.target_pattern);
        object.whole_if_some("PartNo", self.part_no);
        object.whole_if_some("PartCount", self.part_count);
    }

    fn json_bytes(&self) -> usize {
        self.entries.iter().map(CacheEntry::json_bytes).fold(512, usize::saturating_add)
    }
}

/// How a put ended at one worker (M11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheStatus {
    /// `OK`: at least one file is new.
    Ok,
    /// `SKIPPED`: every file was there already.
    Skipped,
    /// `FAILED`.
    Failed,
    /// A word we do not know, kept as it came. Made by `from`, which never puts one of the words
    /// above in here.
    Other(String),
}

impl CacheStatus {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ok => "OK",
            Self::Skipped => "SKIPPED",
            Self::Failed => "FAILED",
            Self::Other(word) => word,
        }
    }
}

impl From<String> for CacheStatus {
    fn from(word: String) -> Self {
        match word.as_str() {
            "OK" => Self::Ok,
            "SKIPPED" => Self::Skipped,
            "FAILED" => Self::Failed,
            _ => Self::Other(word),
        }
    }
}

/// The payload of CacheAck: what one worker did with a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePutResult {
    /// The dataset.
    pub cache_id: String,
    /// How it ended.
    pub status: CacheStatus,
    /// The counts, or what went wrong.
    pub message: String,
    /// Ours (C18): whose acknowledgement it is, for a client that gets those of many workers: the
    /// worker's id, and behind a space its name, if it has one.
    pub worker: Option<String>,
}

impl CachePutResult {
    /// The acknowledgement of a put that went well, in the founding documents' words (CA05, M12).
    #[must_use]
    pub fn stored(cache_id: impl Into<String>, added: u64, skipped: u64) -> Self {
        let (status, message) = match (added, skipped) {
            (1.., 0) => (CacheStatus::Ok, format!("added={added}")),
            (0, 1..) => (CacheStatus::Skipped, format!("already-present={skipped}")),
            // A put without entries ends here too, as in the founding documents' worker.
            (0, 0) | (1.., 1..) => (CacheStatus::Ok, format!("added={added}, skipped={skipped}")),
        };
        Self { cache_id: cache_id.into(), status, message, worker: None }
    }

    /// How many files of a put that went well are new, and how many were there before, if its words
    /// say so.
    #[must_use]
    pub fn counts(&self) -> Option<(u64, u64)> {
        let (added, skipped) = match self.message.split_once(", ") {
            Some((added, skipped)) => {
                (added.strip_prefix("added=")?, skipped.strip_prefix("skipped=")?)
            }
            None => match self.message.strip_prefix("already-present=") {
                Some(skipped) => ("0", skipped),
                None => (self.message.strip_prefix("added=")?, "0"),
            },
        };
        Some((added.parse().ok()?, skipped.parse().ok()?))
    }

    /// The acknowledgement of a put that failed.
    #[must_use]
    pub fn failed(cache_id: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            cache_id: cache_id.into(),
            status: CacheStatus::Failed,
            message: message.into(),
            worker: None,
        }
    }

    /// The same, and whose it is.
    #[must_use]
    pub fn of_worker(mut self, id: impl std::fmt::Display, name: Option<&str>) -> Self {
        let name =
            name.filter(|name| !name.is_empty()).map(|name| format!(" {name}")).unwrap_or_default();
        self.worker = Some(format!("{id}{name}"));
        self
    }
}

impl JsonModel for CachePutResult {
    const SCHEMA: Schema =
        Schema { name: "CachePutResult", members: &["CacheId", "Status", "Message", "Worker"] };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            cache_id: object.name("CacheId", NAME_BYTES_MAX)?.unwrap_or_default(),
            status: CacheStatus::from(object.name("Status", NAME_BYTES_MAX)?.unwrap_or_default()),
            message: object.text("Message")?.unwrap_or_default(),
            worker: object.name("Worker", NAME_BYTES_MAX)?,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("CacheId", &self.cache_id);
        object.text("Status", self.status.as_str());
        object.text("Message", &self.message);
        object.text_if_some("Worker", self.worker.as_deref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m12_the_words_of_a_put_say_how_many_files_are_new_and_how_many_were_there() {
        for counts in [(2, 0), (0, 3), (1, 4), (0, 0)] {
            assert_eq!(CachePutResult::stored("set", counts.0, counts.1).counts(), Some(counts));
        }
        for words in [
            "",
            "added",
            "added=",
            "added=x",
            "added=1, present=1",
            "skipped=1",
            "added=-1",
            "disk full",
        ] {
            assert_eq!(CachePutResult::failed("set", words).counts(), None, "{words}");
        }
    }
}
