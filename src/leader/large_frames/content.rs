//! One content of a large frame as it arrives: in memory while small, otherwise as the chunks of a
//! blob.

use bytes::Bytes;
use chunking::message::Purpose;
use uuid::Uuid;

use crate::core::ids::JobId;
use crate::leader::parts::TEXT_HEAD_BYTES;
use crate::leader::relay::{BlobId, ChunkRoom, Relay};
use crate::model::BlobRef;
use crate::wire::BUFFER_BYTES;

/// Files up to this size stay in the request.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// All files that stay in a request together, so that it fits a frame in base64.
const FILE_BYTES_SUM_MAX: usize = 2 * 1024 * 1024;

/// All texts of a result that stay in memory while it comes. Those that fit a frame stay in the
/// result, as a client without transfers gets nothing else of them.
const TEXT_BYTES_SUM_MAX: usize = chunking::limits::FRAME_BODY_BYTES_MAX as usize;

/// What a content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// A file or an archive.
    File,
    /// What a program printed: of one that becomes a blob the beginning stays.
    Text,
}

/// Bytes of a frame's contents that are in memory.
#[derive(Debug, Default)]
pub(super) struct Held {
    files: usize,
    texts: usize,
}

impl Held {
    fn of(&mut self, sort: Sort) -> &mut usize {
        match sort {
            Sort::File => &mut self.files,
            Sort::Text => &mut self.texts,
        }
    }
}

#[derive(Debug)]
pub(super) struct Content {
    sort: Sort,
    purpose: Purpose,
    inline: Vec<u8>,
    /// The beginning of a text that became a blob.
    head: String,
    blob: Option<BlobId>,
    chunks: u32,
    buffer: Option<(ChunkRoom, usize)>,
    len: u64,
}

/// What became of a content.
pub(super) enum Part {
    /// It is small.
    Inline(Vec<u8>),
    /// It is a blob; with the beginning of a text.
    Blob { blob: BlobRef, head: String },
}

impl Content {
    pub(super) fn new((sort, purpose): (Sort, Purpose)) -> Self {
        let (inline, head) = (Vec::new(), String::new());
        Content { sort, purpose, inline, head, blob: None, chunks: 0, buffer: None, len: 0 }
    }

    /// Takes the next bytes.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        relay: &mut Relay,
        held: &mut Held,
        make_id: &mut dyn FnMut() -> Uuid,
    ) {
        self.len += bytes.len() as u64;
        let held = held.of(self.sort);
        let fits = match self.sort {
            Sort::File => {
                self.inline.len() + bytes.len() <= FILE_BYTES_MAX
                    && *held + bytes.len() <= FILE_BYTES_SUM_MAX
            }
            Sort::Text => *held + bytes.len() <= TEXT_BYTES_SUM_MAX,
        };
        if self.blob.is_none() && fits {
            *held += bytes.len();
            self.inline.extend_from_slice(bytes);
            return;
        }
        if self.blob.is_none() {
            let blob = make_id();
            self.blob = Some(blob);
            let begun = std::mem::take(&mut self.inline);
            *held -= begun.len();
            if self.sort == Sort::Text {
                self.head = head_of(&begun);
            }
            // Whole chunks go from where they are: there need not be so many buffers.
            let begun = Bytes::from(begun);
            let whole = begun.len() - begun.len() % BUFFER_BYTES;
            self.chunks = gather_chunks(relay, blob, self.purpose, &begun.slice(..whole));
            self.fill(&begun.slice(whole..), relay);
        }
        self.fill(bytes, relay);
    }

    fn fill(&mut self, mut bytes: &[u8], relay: &mut Relay) {
        while !bytes.is_empty() {
            let (buffer, filled) = self.buffer.get_or_insert_with(|| (relay.chunk_room(), 0));
            let part = buffer.copy_in(*filled, bytes);
            *filled += part;
            bytes = bytes.get(part..).unwrap_or_default();
            if *filled == BUFFER_BYTES {
                self.end_chunk(relay);
            }
        }
    }

    /// Hands on what is in the buffer.
    pub(super) fn end_chunk(&mut self, relay: &mut Relay) {
        if let (Some(blob), Some((buffer, filled))) = (self.blob, self.buffer.take()) {
            relay.gather(blob, self.purpose, self.chunks, buffer.freeze(filled));
            self.chunks += 1;
        }
    }

    /// A repetition of the member takes its place.
    pub(super) fn void(self, relay: &mut Relay, held: &mut Held) {
        *held.of(self.sort) -= self.inline.len();
        self.forget(relay);
    }

    pub(super) fn forget(self, relay: &mut Relay) {
        if let Some(blob) = self.blob {
            relay.forget(blob);
        }
    }

    /// All of it has come.
    pub(super) fn into_ref(mut self, relay: &mut Relay, owner: JobId, name: &str) -> Part {
        self.end_chunk(relay);
        let Some(id) = self.blob else { return Part::Inline(self.inline) };
        let digest = relay.gathered(id, owner, self.purpose, name, self.len).ok().flatten();
        Part::Blob { blob: BlobRef { id, size: self.len, digest }, head: self.head }
    }
}

/// The first chunks of a blob; how many they are.
pub(in crate::leader) fn gather_chunks(
    relay: &mut Relay,
    id: BlobId,
    purpose: Purpose,
    bytes: &Bytes,
) -> u32 {
    let mut chunks = 0;
    for start in (0..bytes.len()).step_by(BUFFER_BYTES) {
        let end = bytes.len().min(start + BUFFER_BYTES);
        relay.gather(id, purpose, chunks, bytes.slice(start..end));
        chunks += 1;
    }
    chunks
}

/// The beginning of a text, without a character that is cut.
fn head_of(text: &[u8]) -> String {
    let head = text.get(..TEXT_HEAD_BYTES).unwrap_or(text);
    let head = match str::from_utf8(head) {
        Err(error) if error.error_len().is_none() => {
            head.get(..error.valid_up_to()).unwrap_or_default()
        }
        Ok(_) | Err(_) => head,
    };
    String::from_utf8_lossy(head).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::relay::RelayConfig;

    #[test]
    fn a_content_that_came_whole_needs_no_buffer_of_the_pool() {
        let mut relay = Relay::new(RelayConfig { buffers: 0, ..RelayConfig::default() });
        let mut content = Content::new((Sort::File, Purpose::Input));
        let bytes = vec![7; 2 * BUFFER_BYTES + 9];
        content.take(&bytes, &mut relay, &mut Held::default(), &mut || Uuid::from_u128(1));
        let part = content.into_ref(&mut relay, JobId(Uuid::nil()), "in.bin");
        assert!(matches!(part, Part::Blob { blob, .. } if blob.size == bytes.len() as u64));
        assert_eq!((relay.chunks(Uuid::from_u128(1)).len(), relay.fill().buffers_in_use), (3, 0));
    }

    #[test]
    fn the_beginning_of_a_text_has_whole_characters() {
        let text = "日".repeat(TEXT_HEAD_BYTES);
        let head = head_of(text.as_bytes());
        assert!(text.starts_with(&head) && head.len() == TEXT_HEAD_BYTES - 1, "{}", head.len());
        assert_eq!(head_of(b"short"), "short");
        let odd = [b"a".as_slice(), &[0xFF], &b"b".repeat(TEXT_HEAD_BYTES)].concat();
        let head = head_of(&odd);
        assert!(
            head.starts_with("a\u{FFFD}bb") && head.ends_with("bb"),
            "what is not UTF-8 is marked"
        );
    }
}
