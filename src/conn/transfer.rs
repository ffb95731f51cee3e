//! Decodes and encodes transfer messages: inputs and results use the same ones in both directions.

use bytes::Bytes;
use chunking::limits::CHUNK_PIECE_BYTES_MAX;
use chunking::message::{Abort, Body, Done, Features, Grant, HeldPart, Open, Piece, Verdict, Void};
use chunking::{ChunkHead, Kind, MessageError};
use uuid::Uuid;

use super::{Session, WireFrame};

/// A message of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferSays {
    /// It begins, or goes on.
    Open(Open),
    /// There is room for more chunks.
    Grant(Grant),
    /// All chunks were sent.
    Done(Done),
    /// What the receiver makes of it.
    Verdict(Verdict),
    /// It ends without a blob.
    Abort(Abort),
    /// The chunk that went before must not be used.
    Void(Void),
}

impl TransferSays {
    /// Reads a message; `None` if it is none of a transfer.
    pub(super) fn decode(kind: Kind, payload: &[u8]) -> Option<Result<Self, MessageError>> {
        match (kind, payload) {
            (Kind::Open, payload) => Some(Open::decode(payload).map(TransferSays::Open)),
            (Kind::Grant, payload) => Some(Grant::decode(payload).map(TransferSays::Grant)),
            (Kind::Done, payload) => Some(Done::decode(payload).map(TransferSays::Done)),
            (Kind::Verdict, payload) => Some(Verdict::decode(payload).map(TransferSays::Verdict)),
            (Kind::Abort, payload) => Some(Abort::decode(payload).map(TransferSays::Abort)),
            (Kind::Void, payload) => Some(Void::decode(payload).map(TransferSays::Void)),
            (_, _) => None,
        }
    }
}

impl Session {
    /// A message of a transfer; `None` if the peer knows none.
    pub fn transfer(&self, id: Uuid, says: &TransferSays) -> Option<WireFrame> {
        let needs = Features::TRANSFERS;
        match says {
            TransferSays::Open(open) => self.ours(needs, id, Uuid::nil(), open),
            TransferSays::Grant(grant) if !grant.part.is_none() && !self.has(Features::PIECES) => {
                let grant = Grant { part: HeldPart::default(), ..grant.clone() };
                self.ours(needs, id, Uuid::nil(), &grant)
            }
            TransferSays::Grant(grant) => self.ours(needs, id, Uuid::nil(), grant),
            TransferSays::Done(done) => self.ours(needs, id, Uuid::nil(), done),
            TransferSays::Verdict(verdict) => self.ours(needs, id, Uuid::nil(), verdict),
            TransferSays::Abort(abort) => self.ours(needs, id, Uuid::nil(), abort),
            TransferSays::Void(void) => self.ours(needs, id, Uuid::nil(), void),
        }
    }

    /// A chunk, in the bytes that it came in. `from` says how many of them the peer has.
    pub fn chunk(&self, id: Uuid, head: &ChunkHead, bytes: Bytes, from: u32) -> WireChunk {
        let cut = match (self.has(Features::PIECES), self.has(Features::CHECKSUMS)) {
            (false, _) => Cut::Never,
            (true, false) => Cut::Plain,
            (true, true) => Cut::Summed,
        };
        // A peer without `pieces` gets the chunk whole.
        let from = if cut == Cut::Never { 0 } else { from };
        let sent_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        WireChunk { transfer: id, head: *head, sent_len, bytes, base: 0, is_copy: false, from, cut }
    }

    /// A chunk of `sent_len` bytes that are not here yet: they are requested as the connection can
    /// send them.
    pub fn chunk_elsewhere(
        &self,
        id: Uuid,
        head: &ChunkHead,
        sent_len: u32,
        from: u32,
    ) -> WireChunk {
        let chunk = self.chunk(id, head, Bytes::new(), from);
        WireChunk { sent_len, base: chunk.from, ..chunk }
    }
}

/// Whether a chunk may be sent in pieces, and what ends their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Never,
    Plain,
    Summed,
}

/// A chunk as it goes to the socket: whole, or in pieces for a peer that knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireChunk {
    transfer: Uuid,
    head: ChunkHead,
    /// All of its bytes.
    sent_len: u32,
    /// The bytes that are here, and their offset in the chunk.
    bytes: Bytes,
    base: u32,
    /// Whether `bytes` is a copy of its own, outside of the pool.
    is_copy: bool,
    /// Bytes that are out, or that the peer has.
    from: u32,
    cut: Cut,
}

/// Bytes of a chunk that are to go out next, and are not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The transfer's id.
    pub transfer: Uuid,
    /// Where the chunk begins in its blob.
    pub offset: u64,
    /// From which of its bytes on.
    pub from: u32,
    /// Whether all of them have to be there at once, as the peer knows no pieces.
    pub whole: bool,
}

impl WireChunk {
    /// Bytes that are still to go.
    pub fn left(&self) -> usize {
        self.sent_len.saturating_sub(self.from) as usize
    }

    /// The transfer's id, and where the chunk begins in its blob.
    pub fn name(&self) -> (Uuid, u64) {
        (self.transfer, self.head.offset)
    }

    /// The bytes that are here and not out.
    pub fn here(&self) -> &[u8] {
        let out = self.from.saturating_sub(self.base) as usize;
        self.bytes.get(out..).unwrap_or_default()
    }

    /// Whether its bytes are nobody else's.
    pub fn is_copy(&self) -> bool {
        self.is_copy
    }

    /// The same bytes as [`WireChunk::here`], elsewhere.
    pub fn go_on_from(&mut self, copy: Bytes) {
        (self.bytes, self.base, self.is_copy) = (copy, self.from, true);
    }

    /// Lets go of its bytes; they are asked for when they are needed. Not of one that is being sent
    /// as a whole.
    pub fn let_go(&mut self) {
        (self.bytes, self.base) = (Bytes::new(), self.from);
    }

    /// What has to be here before the next frame, if it is not.
    pub fn wants(&self) -> Option<Want> {
        let here = self.from >= self.base && (self.from - self.base) as usize <= self.bytes.len();
        let has_some = here && self.bytes.len() > (self.from - self.base) as usize;
        let whole = !self.may_be_cut();
        let is_whole = self.base == 0 && self.bytes.len() == self.sent_len as usize;
        let lacks = self.left() > 0 && (!has_some || whole && !is_whole);
        let (transfer, offset, from) = (self.transfer, self.head.offset, self.from);
        lacks.then_some(Want { transfer, offset, from, whole })
    }

    /// Bytes that were asked for are here. False if it is another chunk's.
    pub fn supply(&mut self, want: &Want, bytes: Bytes) -> bool {
        let fits = self.wants() == Some(*want) && !bytes.is_empty();
        if fits {
            (self.bytes, self.base, self.is_copy) = (bytes, want.from, true);
        }
        fits
    }

    /// Whether it is the one that this is asked for.
    pub fn is_asked_for(&self, want: &Want) -> bool {
        (self.transfer, self.head.offset) == (want.transfer, want.offset)
    }

    /// Whether the peer has some of it, or some of it is out.
    pub fn is_begun(&self) -> bool {
        self.from > 0
    }

    /// Whether it may go in pieces.
    pub fn may_be_cut(&self) -> bool {
        self.cut != Cut::Never
    }

    /// The next frame: all of the chunk, if nothing of it is out and `piece_bytes` does not say
    /// otherwise, else a piece of at most so many bytes. `None` when all is out.
    pub fn next_frame(&mut self, piece_bytes: Option<u32>) -> Option<WireFrame> {
        if self.left() == 0 {
            return None;
        }
        match piece_bytes.filter(|_| self.may_be_cut()) {
            None if self.from == 0 && self.bytes.len() == self.sent_len as usize => self.whole(),
            piece_bytes => self.piece(piece_bytes.unwrap_or(CHUNK_PIECE_BYTES_MAX)),
        }
    }

    fn whole(&mut self) -> Option<WireFrame> {
        let head = self.head.frame_head(self.transfer, self.sent_len).ok()?;
        self.from = self.sent_len;
        let payload = self.bytes.clone();
        Some(WireFrame { head: Bytes::copy_from_slice(&head), payload, trailer: Bytes::new() })
    }

    fn piece(&mut self, most: u32) -> Option<WireFrame> {
        let sent_len = self.sent_len;
        let at = self.from.checked_sub(self.base)?;
        let here = u32::try_from(self.bytes.len()).ok()?.checked_sub(at)?;
        let len = most.clamp(1, CHUNK_PIECE_BYTES_MAX).min(here);
        let bytes = self.bytes.slice(at as usize..(at + len) as usize);
        let piece = Piece { head: self.head, sent_len, from: self.from, bytes: &bytes };
        let (head, trailer) = piece.frame(self.transfer, self.cut == Cut::Summed).ok()?;
        self.from += len;
        Some(WireFrame { head: head.into(), payload: bytes, trailer: trailer.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Role;
    use crate::core::ids::{ClientId, ConnId};
    use chunking::message::{PartOf, Reason};
    use chunking::{Decoder, Generation, InboundLimits};

    const ID: Uuid = Uuid::from_u128(5);

    fn session(features: Features) -> Session {
        let role = Role::Client { id: ClientId::from("c") };
        Session { role, features: Some(features), ..Session::new(ConnId(1), Generation::F2) }
    }

    fn grant(part: Option<PartOf>) -> TransferSays {
        let (reason, text, held) = (Reason::NONE, "".into(), Default::default());
        TransferSays::Grant(Grant { window: 3, reason, text, held, part: HeldPart(part) })
    }

    const OLD: Features = Features::TRANSFERS.with(Features::CHECKSUMS);
    const PART: PartOf = PartOf { index: 1, bytes: 7, crc_sent: 9 };

    #[test]
    fn peers_that_know_no_pieces_get_and_send_what_they_always_did() {
        let (old, new) = (session(OLD), session(OLD.with(Features::PIECES)));
        let plain = old.transfer(ID, &grant(None));
        assert_eq!(plain.as_ref().unwrap().payload.len(), 1 + 4 + 2 + 2 + 2);
        assert_eq!(old.transfer(ID, &grant(Some(PART))), plain);
        assert_ne!(new.transfer(ID, &grant(Some(PART))), plain);
        assert_eq!(old.understood(grant(Some(PART))), grant(None));
        assert_eq!(new.understood(grant(Some(PART))), grant(Some(PART)));
        let bytes = Bytes::from(vec![7; 200_000]);
        let head = ChunkHead::plain(0, &bytes);
        let mut chunk = old.chunk(ID, &head, bytes.clone(), 100);
        // Also if the line is slow, and whatever it is said to have.
        let frame = chunk.next_frame(Some(16_384)).unwrap();
        assert_eq!(&frame.head[..], head.frame_head(ID, 200_000).unwrap());
        assert_eq!((frame.payload, frame.trailer.len(), chunk.next_frame(None)), (bytes, 0, None));
    }

    #[test]
    fn a_chunk_in_pieces_is_all_of_its_bytes_in_frames_with_checksums_that_can_be_read() {
        let bytes = Bytes::from(crate::noise::noise(200_000, 3));
        let head = ChunkHead::plain(1 << 20, &bytes);
        for (features, from, piece_bytes) in [
            (OLD.with(Features::PIECES), 0, Some(16_384)),
            (OLD.with(Features::PIECES), 12_345, None),
            (Features::TRANSFERS.with(Features::PIECES), 199_999, None),
            (OLD.with(Features::PIECES), 0, Some(u32::MAX)),
        ] {
            let mut chunk = session(features).chunk(ID, &head, bytes.clone(), from);
            let mut came = bytes[..from as usize].to_vec();
            while let Some(frame) = chunk.next_frame(piece_bytes) {
                let wire = [frame.head, frame.payload, frame.trailer].concat();
                let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
                if features.has(Features::CHECKSUMS) {
                    decoder.set_trailers(chunking::frame::Trailers::Required);
                }
                let frame = decoder.poll_frame(&mut &wire[..]).unwrap().unwrap();
                assert_eq!((frame.head.kind(), frame.head.msg_id), (Ok(Kind::Piece), ID));
                let piece = Piece::decode(frame.payload).unwrap();
                assert_eq!(
                    (piece.head, piece.sent_len, piece.from as usize),
                    (head, 200_000, came.len())
                );
                came.extend_from_slice(piece.bytes);
            }
            assert_eq!(came, bytes);
        }
    }
}
