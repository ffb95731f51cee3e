//! What the content stream is told and what it tells: the shape of the payload, the events, the
//! residue. Plain data without rules of its own. Connections use it with the stream.

use crate::model::error::Place;

/// Which model arrives, and with it which members hold contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `Files[i].Content`.
    JobRequest,
    /// `OutputArchive`, `Stdout` and `Stderr`, as the slots of [`ResultSlot`].
    JobResult,
    /// `Entries[i].Content`.
    CachePutRequest,
}

/// The contents of a result. What a program printed may be as long as its archive, so it is handed
/// out too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResultSlot {
    /// `OutputArchive`.
    Archive,
    /// `Stdout`.
    Stdout,
    /// `Stderr`.
    Stderr,
}

impl ResultSlot {
    /// All of them, in the order of their slots.
    pub const ALL: [ResultSlot; 3] = [ResultSlot::Archive, ResultSlot::Stdout, ResultSlot::Stderr];

    /// Its number among the slots.
    #[must_use]
    pub const fn slot(self) -> usize {
        match self {
            Self::Archive => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    /// The member that holds it.
    #[must_use]
    pub const fn member(self) -> &'static str {
        match self {
            Self::Archive => "OutputArchive",
            Self::Stdout => "Stdout",
            Self::Stderr => "Stderr",
        }
    }

    const fn coding(self) -> Coding {
        match self {
            Self::Archive => Coding::Base64,
            Self::Stdout | Self::Stderr => Coding::Text,
        }
    }
}

/// How the bytes of a content stand in its string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// In base64.
    Base64,
    /// As text, in UTF-8 with escapes.
    Text,
}

impl Shape {
    /// The content that a member of the object itself holds, as slot and coding.
    pub(super) fn content_beside(self, is: impl Fn(&str) -> bool) -> Option<(usize, Coding)> {
        match self {
            Self::JobRequest | Self::CachePutRequest => None,
            Self::JobResult => ResultSlot::ALL
                .into_iter()
                .find(|slot| is(slot.member()))
                .map(|slot| (slot.slot(), slot.coding())),
        }
    }

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

    pub(super) fn content_place(self, slot: usize) -> Place {
        match self {
            Self::JobRequest => Place::nth("InputFile", slot).member(LISTED),
            // Of its contents only the archive is in base64, which is all that can be wrong with
            // one.
            Self::JobResult => Place::model("JobResult").member(ResultSlot::Archive.member()),
            Self::CachePutRequest => Place::nth("CacheEntry", slot).member(LISTED),
        }
    }
}

/// The member of a file or an entry that is its content.
pub(super) const LISTED: &str = "Content";

/// Something that happened to a content. The slot is the position in the list, or that of a
/// [`ResultSlot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentEvent<'a> {
    /// A content begins. If the slot had one before, that one is void: of a repeated member the
    /// last counts.
    Begin {
        /// Which content.
        slot: usize,
    },
    /// The next bytes of the content, at most `CONTENT_PIECE_BYTES_MAX` of them.
    Bytes {
        /// Which content.
        slot: usize,
        /// The decoded bytes: those of base64, or a text in UTF-8.
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
    /// How long each slot's content is. A slot that is not here, or `None`, has no content: if one
    /// was handed out, a later repetition of the member took its place, and the receiver throws it
    /// away.
    pub lens: Vec<Option<u64>>,
}

impl Residue {
    /// How long the content of a slot is; `None` if it has none.
    #[must_use]
    pub fn len_of(&self, slot: usize) -> Option<u64> {
        self.lens.get(slot).copied().flatten()
    }
}
