//! What the content stream is told and what it tells: the shape of the payload, the events, the residue.
//! Plain data without rules of its own. Connections use it with the stream.

use crate::model::error::Place;

/// Which model arrives, and with it which members hold contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `Files[i].Content`.
    JobRequest,
    /// `OutputArchive`, as slot 0.
    JobResult,
    /// `Entries[i].Content`.
    CachePutRequest,
}

impl Shape {
    pub(super) fn model(self) -> &'static str {
        match self {
            Self::JobRequest => "JobRequest",
            Self::JobResult => "JobResult",
            Self::CachePutRequest => "CachePutRequest",
        }
    }

    pub(super) fn list(self) -> Option<&'static str> {
        match self {
            Self::JobRequest => Some("Files"),
            Self::JobResult => None,
            Self::CachePutRequest => Some("Entries"),
        }
    }

    pub(super) fn content(self) -> &'static str {
        match self {
            Self::JobRequest | Self::CachePutRequest => "Content",
            Self::JobResult => "OutputArchive",
        }
    }

    pub(super) fn content_place(self, slot: usize) -> Place {
        match self {
            Self::JobRequest => Place::nth("InputFile", slot),
            Self::JobResult => Place::model("JobResult"),
            Self::CachePutRequest => Place::nth("CacheEntry", slot),
        }
        .member(self.content())
    }
}

/// Something that happened to a content. The slot is the position in the list, or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentEvent<'a> {
    /// A content begins. If the slot had one before, that one is void: of a repeated member the last counts.
    Begin {
        /// Which content.
        slot: usize,
    },
    /// The next bytes of the content, at most `CONTENT_PIECE_BYTES_MAX` of them.
    Bytes {
        /// Which content.
        slot: usize,
        /// The decoded bytes.
        bytes: &'a [u8],
    },
    /// The content is complete.
    End {
        /// Which content.
        slot: usize,
        /// How many bytes it has in all.
        len: u64,
    },
}

/// What is left of a payload when its contents have been taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residue {
    /// The payload with `""` in the place of every content that was handed out.
    pub json: Vec<u8>,
    /// How long each slot's content is. A slot that is not here, or `None`, has no content: if one was handed
    /// out, a later repetition of the member took its place, and the receiver throws it away.
    pub lens: Vec<Option<u64>>,
}

impl Residue {
    /// How long the content of a slot is; `None` if it has none.
    #[must_use]
    pub fn len_of(&self, slot: usize) -> Option<u64> {
        self.lens.get(slot).copied().flatten()
    }
}
