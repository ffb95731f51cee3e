//! The receiving end of a connection, without the socket: says where to read to, and returns what
//! arrived.
//!
//! Small frames are gathered in one small buffer. A chunk's head is returned first; the caller
//! supplies a pool buffer, and the bytes are read directly into it, together with the next frame's
//! head in the same call. The CRC is computed over each slice while it is in the CPU cache. A large
//! frame of a classic peer is returned in slices and never gathered. Leaders, workers and clients
//! use it; a driver supplies the socket.

mod aside;

use std::io::IoSliceMut;

use bytes::{Bytes, BytesMut};
use chunking::chunk::{CHUNK_FRAME_HEAD_BYTES, CHUNK_HEAD_BYTES};
use chunking::frame::Trailers;
use chunking::{ChunkHead, Decoder, Frame, FrameError, Generation, InboundLimits, Kind};
use uuid::Uuid;

use super::buffers::{BUFFER_BYTES, PoolBuf};
use super::partial_chunks::Part;
use aside::Aside;

/// What a connection without traffic holds.
const IDLE_BYTES: usize = 4 * 1024;
const READ_BYTES: usize = 64 * 1024;

/// A chunk is about to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkStart {
    /// The transfer's id.
    pub transfer: Uuid,
    pub head: ChunkHead,
    /// Bytes on the wire.
    pub sent_len: u32,
}

/// A chunk that has come. Its place and its checksum have not been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InChunk {
    /// The transfer's id.
    pub transfer: Uuid,
    pub head: ChunkHead,
    /// CRC-32 of the bytes as they came; `None` if nobody wanted it made.
    pub crc: Option<u32>,
    /// The bytes as they came.
    pub bytes: Bytes,
}

/// What has come.
#[derive(Debug)]
pub enum Step<'a> {
    /// Nothing whole: read on.
    Read,
    Frame(Generation, Frame<'a>),
    /// A chunk begins: call [`Inlet::take`] or [`Inlet::skip`].
    Chunk(ChunkStart),
    /// A chunk is here.
    Came(InChunk),
    /// A frame too large to be gathered begins; its payload follows in pieces. Only where
    /// [`Inlet::stream_over`] was called.
    Bulk(Generation, chunking::Head<'a>),
    /// A piece of it.
    Piece(&'a [u8]),
    /// That was all of it.
    BulkEnd,
}

#[derive(Debug)]
enum State {
    /// Between frames, or inside one that is gathered.
    Frames,
    /// A chunk's head was shown.
    Offered(ChunkStart),
    /// Who passes a chunk on reads it.
    Splicing(ChunkStart),
    /// A chunk is read into its buffer, up to `end`. Of one that was passed on in part, the buffer
    /// has the rest alone.
    Filling {
        start: ChunkStart,
        memory: Memory,
        have: usize,
        end: usize,
        is_rest: bool,
        crc: Option<crc32fast::Hasher>,
    },
    /// A chunk that nobody wants, or what stands behind a payload, passes by.
    Dropping,
    /// A large frame comes in pieces.
    Streaming,
}

/// Where a chunk that comes is read to.
#[derive(Debug)]
enum Memory {
    /// A buffer of the pool.
    Pooled(PoolBuf),
    /// Memory of its own, which grows as the chunk comes.
    Own(BytesMut),
    /// Nowhere: what comes is read over what came before.
    Dropped(BytesMut),
}

impl Memory {
    /// Room for what comes next, behind what is here.
    fn room(&mut self, have: usize, end: usize) -> &mut [u8] {
        let most = end.min(have.saturating_add(READ_BYTES));
        match self {
            Memory::Pooled(buffer) => buffer.room(have..end).unwrap_or_default(),
            Memory::Own(own) => {
                own.resize(most, 0);
                own.get_mut(have..).unwrap_or_default()
            }
            Memory::Dropped(scratch) => {
                scratch.resize(most - have, 0);
                scratch
            }
        }
    }

    /// Bytes that are here, up to `have`, or the last of them.
    fn get(&self, from: usize, have: usize) -> &[u8] {
        match self {
            Memory::Pooled(buffer) => buffer.get(from..have).unwrap_or_default(),
            Memory::Own(own) => own.get(from..have).unwrap_or_default(),
            Memory::Dropped(scratch) => {
                scratch.get(..have.saturating_sub(from)).unwrap_or_default()
            }
        }
    }

    fn freeze(self, len: usize) -> Bytes {
        match self {
            Memory::Pooled(buffer) => buffer.freeze(len),
            Memory::Own(mut own) => {
                own.truncate(len);
                own.freeze()
            }
            Memory::Dropped(_) => Bytes::new(),
        }
    }
}

/// One connection's receiving end.
#[derive(Debug)]
pub struct Inlet {
    decoder: Decoder,
    bulk_over: Option<u32>,
    small: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether a chunk was read last: then another one is likely, and is read into the front of its
    /// buffer.
    after_chunk: bool,
    /// The frame that is gathered, if its first bytes are elsewhere.
    aside: Option<Aside>,
    state: State,
}

impl InChunk {
    /// CRC-32 of the bytes as they came.
    pub fn crc(&self) -> u32 {
        self.crc.unwrap_or_else(|| crc32fast::hash(&self.bytes))
    }
}

impl Inlet {
    /// For a connection that shows its generation with its first frame.
    pub fn detecting(limits: InboundLimits) -> Self {
        Inlet::new(Decoder::detecting(limits))
    }

    /// For a connection whose generation is known.
    pub fn speaking(generation: Generation, limits: InboundLimits) -> Self {
        Inlet::new(Decoder::speaking(generation, limits))
    }

    fn new(decoder: Decoder) -> Self {
        Inlet {
            decoder,
            bulk_over: None,
            small: Vec::new(),
            start: 0,
            end: 0,
            after_chunk: false,
            aside: None,
            state: State::Frames,
        }
    }

    /// Bulk frames (W06) with payloads over so many bytes come in pieces from now on.
    pub fn stream_over(&mut self, payload_bytes: u32) {
        self.bulk_over = Some(payload_bytes);
    }

    /// Changes what is accepted from the next frame on.
    pub fn set_limits(&mut self, limits: InboundLimits) {
        self.decoder.set_limits(limits);
    }

    /// We dialled and announced `checksums`: the leader's Welcome says whether its frames have one.
    pub fn offer_checksums(&mut self) {
        self.decoder.set_trailers(Trailers::Offered);
    }

    /// The peer announced `checksums`: its frames have one as soon as it has read our Welcome.
    pub fn expect_checksums(&mut self) {
        if self.decoder.trailers() == Trailers::Skipped {
            self.decoder.set_trailers(Trailers::Announced);
        }
    }

    /// Whether every frame that comes has a checksum.
    pub fn has_checksums(&self) -> bool {
        self.decoder.trailers() == Trailers::Required
    }

    /// What has come. An error is final.
    pub fn poll(&mut self) -> Result<Step<'_>, FrameError> {
        loop {
            match self.state {
                State::Frames if self.aside.is_some() => return Ok(Step::Read),
                State::Frames => match self.next_chunk()? {
                    Some(start) => self.state = State::Offered(start),
                    None if matches!(self.state, State::Dropping) => {}
                    None => return self.gathered(),
                },
                State::Offered(start) | State::Splicing(start) => return Ok(Step::Chunk(start)),
                State::Filling { have, end, .. } if have < end => return Ok(Step::Read),
                State::Filling { .. } => {
                    if let State::Filling { start, memory, have, crc, .. } =
                        std::mem::replace(&mut self.state, State::Dropping)
                    {
                        self.after_chunk = true;
                        let ChunkStart { transfer, head, .. } = start;
                        let bytes = memory.freeze(have);
                        return Ok(Step::Came(InChunk {
                            transfer,
                            head,
                            crc: crc.map(crc32fast::Hasher::finalize),
                            bytes,
                        }));
                    }
                }
                State::Dropping => {
                    if !self.dropped()? {
                        return Ok(Step::Read);
                    }
                }
                State::Streaming => return self.streamed(),
            }
        }
    }

    /// Reads the chunk that was shown into this buffer, and makes its CRC.
    pub fn take(&mut self, buffer: PoolBuf) {
        self.fill(Memory::Pooled(buffer), Some(crc32fast::Hasher::new()));
    }

    /// The same into memory of its own, which grows as the chunk comes.
    pub fn take_apart(&mut self) {
        self.fill(Memory::Own(BytesMut::new()), Some(crc32fast::Hasher::new()));
    }

    /// The chunk that comes leaves the pool: what is here of it is copied, and the rest is read to
    /// behind that.
    pub fn leave_pool(&mut self) {
        if let State::Filling { memory, have, .. } = &mut self.state
            && let Memory::Pooled(buffer) = memory
        {
            *memory = Memory::Own(buffer.get(..*have).unwrap_or_default().into());
        }
    }

    /// Nothing is kept of the chunk that comes: it is one that did not come whole.
    pub fn drop_chunk(&mut self) {
        if let State::Filling { memory, .. } = &mut self.state {
            *memory = Memory::Dropped(BytesMut::new());
        }
    }

    /// Bytes that are here of the chunk that comes, and whether they are in a buffer of the pool.
    pub fn filling(&self) -> Option<(usize, bool)> {
        match &self.state {
            State::Filling { memory, have, end, .. } if have < end => {
                Some((*have, matches!(memory, Memory::Pooled(_))))
            }
            State::Filling { .. }
            | State::Frames
            | State::Offered(_)
            | State::Splicing(_)
            | State::Dropping
            | State::Streaming => None,
        }
    }

    /// Reads the chunk that was shown into this buffer, for whoever passes it on to one that makes
    /// its CRC.
    pub fn take_unchecked(&mut self, buffer: PoolBuf) {
        self.fill(Memory::Pooled(buffer), None);
    }

    fn fill(&mut self, mut memory: Memory, mut crc: Option<crc32fast::Hasher>) {
        let State::Offered(start) = self.state else { return };
        let wanted = in_memory(start.sent_len);
        if wanted > BUFFER_BYTES {
            // No chunk is so long. It is missed when the transfer is done.
            return self.state = State::Dropping;
        }
        let here = self.small.get(self.start..self.end).unwrap_or_default();
        let here = here.get(..wanted.min(here.len())).unwrap_or_default();
        let have = match &mut memory {
            Memory::Pooled(buffer) => buffer.copy_in(0, here),
            Memory::Own(own) | Memory::Dropped(own) => {
                own.extend_from_slice(here);
                here.len()
            }
        };
        update(&mut crc, here);
        self.start += have;
        self.decoder.skip_payload(start.sent_len);
        self.state = State::Filling { start, memory, have, end: wanted, is_rest: false, crc };
    }

    /// The chunk that was shown is read by the caller, who passes it on as it comes. What is here
    /// of it already goes to the front of this buffer; says how much that is. Then
    /// [`Inlet::passed`] or [`Inlet::take_rest`].
    pub fn begin_splice(&mut self, buffer: &mut PoolBuf) -> usize {
        let State::Offered(start) = self.state else { return 0 };
        self.state = State::Splicing(start);
        let here = self.small.get(self.start..self.end).unwrap_or_default();
        let here = here.get(..in_memory(start.sent_len).min(here.len())).unwrap_or_default();
        let have = buffer.copy_in(0, here);
        self.start += have;
        have
    }

    /// So much of the chunk was read by the caller; if that is not all, the rest passes by.
    pub fn end_splice(&mut self, bytes: u32) {
        if let State::Splicing(_) = self.state {
            self.decoder.skip_payload(bytes);
            self.after_chunk = true;
            self.state = State::Dropping;
        }
    }

    /// The caller does not go on: what is left of the chunk is read into this buffer, from `have`
    /// to `end`. All of the buffer up to there then comes as the chunk.
    pub fn take_rest(&mut self, buffer: PoolBuf, have: usize, end: usize) {
        if let State::Splicing(start) = self.state {
            self.decoder.skip_payload(start.sent_len);
            let end = end.min(BUFFER_BYTES);
            let memory = Memory::Pooled(buffer);
            self.state = State::Filling { start, memory, have, end, is_rest: true, crc: None };
        }
    }

    /// Whether chunks are likely to come next: then no more is read at a time than up to where one
    /// may begin, so that their bytes are read to where they belong and nowhere else.
    pub fn expect_chunks(&mut self, likely: bool) {
        self.after_chunk = likely;
    }

    /// Lets the chunk that was shown pass by.
    pub fn skip(&mut self) {
        if let State::Offered(_) = self.state {
            self.state = State::Dropping;
        }
    }

    /// Where to read to: one piece, or a chunk's buffer and the place of the next head behind it.
    pub fn room(&mut self) -> [IoSliceMut<'_>; 2] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if !matches!(self.state, State::Filling { .. }) {
            self.make_room();
        } else if self.small.is_empty() {
            self.small.resize(IDLE_BYTES, 0);
        }
        let most =
            if self.after_chunk && self.aside.is_none() && matches!(self.state, State::Frames) {
                self.before_next_chunk()
            } else {
                usize::MAX
            };
        match &mut self.state {
            State::Filling { memory, have, end, .. } => {
                let missing = *end - *have;
                let chunk = memory.room(*have, *end);
                // What follows the chunk is read with it only if all of it can be.
                let behind = if chunk.len() < missing { 0 } else { CHUNK_FRAME_HEAD_BYTES };
                let behind = self.small.get_mut(..behind).unwrap_or_default();
                [IoSliceMut::new(chunk), IoSliceMut::new(behind)]
            }
            State::Frames
            | State::Offered(_)
            | State::Splicing(_)
            | State::Dropping
            | State::Streaming => {
                let free = self.small.get_mut(self.end..).unwrap_or_default();
                let most = most.min(free.len());
                [
                    IoSliceMut::new(free.get_mut(..most).unwrap_or_default()),
                    IoSliceMut::new(&mut []),
                ]
            }
        }
    }

    /// Bytes that can be read without any of the next chunk's. The frame that is gathered is none,
    /// or its head would have been shown; behind it there may be a chunk's head.
    fn before_next_chunk(&self) -> usize {
        let held = self.small.get(self.start..self.end).unwrap_or_default();
        let missing = CHUNK_FRAME_HEAD_BYTES.saturating_sub(held.len());
        match held.first_chunk() {
            Some(length) if missing == 0 => {
                let whole = in_memory(u32::from_le_bytes(*length)).saturating_add(size_of::<u32>());
                whole.saturating_sub(held.len()).saturating_add(CHUNK_FRAME_HEAD_BYTES)
            }
            Some(_) | None => missing,
        }
    }

    fn make_room(&mut self) {
        let (held, idle) = (self.end - self.start, self.start == self.end);
        if idle && self.small.len() > READ_BYTES {
            // A peer that was busy once does not keep a large buffer for ever.
            self.small = Vec::new();
        }
        let bulky = matches!(self.state, State::Dropping | State::Streaming);
        let wanted = if idle && !bulky { IDLE_BYTES } else { READ_BYTES };
        if self.small.len() - self.end < wanted {
            self.small.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            // Twice as much, so that a large frame is not moved over and over.
            let len = self.small.len();
            if len - held < wanted {
                let least = held + wanted;
                // No more than the frame has, and what may stand behind it.
                let most = least.max(self.gathers().saturating_add(READ_BYTES));
                let room = least.max(if idle { 0 } else { 2 * len }).min(most);
                self.small.reserve_exact(room.saturating_sub(len));
                self.small.resize(room, 0);
            }
        }
    }

    /// So many bytes were read to where [`Inlet::room`] said.
    pub fn filled(&mut self, bytes: usize) {
        let behind = match &mut self.state {
            State::Filling { memory, have, end, crc, .. } => {
                let read = (*have + bytes).min(*end);
                update(crc, memory.get(*have, read));
                let behind = bytes - (read - *have);
                *have = read;
                behind
            }
            State::Frames
            | State::Offered(_)
            | State::Splicing(_)
            | State::Dropping
            | State::Streaming => bytes,
        };
        self.end = (self.end + behind).min(self.small.len());
    }

    /// The other side has closed the connection: whether that was between frames.
    pub fn finish(&self) -> Result<(), FrameError> {
        if let State::Filling { have, end, .. } = &self.state {
            return Err(FrameError::Truncated { missing: end - have });
        }
        if let Some(Aside { len, whole }) = self.aside {
            return Err(FrameError::Truncated {
                missing: whole.saturating_sub(len + self.end - self.start),
            });
        }
        self.decoder.finish(self.small.get(self.start..self.end).unwrap_or_default())
    }

    /// Whether a chunk is being read into its buffer, and is not whole.
    pub fn is_filling(&self) -> bool {
        matches!(self.state, State::Filling { have, end, .. } if have < end)
    }

    /// The connection is over: gives what is here of the chunk in whose middle it ended. The next
    /// one goes on with it.
    pub fn cut(&mut self) -> Option<Part> {
        match &self.state {
            State::Filling { memory: Memory::Dropped(_), .. } => None,
            State::Filling { start, memory, have, is_rest: false, .. } => {
                // If all of it came and nobody looked any more, its last byte has to come again.
                let most = in_memory(start.sent_len).saturating_sub(1);
                let here = memory.get(0, most.min(*have));
                Part::new(start.transfer, start.head, start.sent_len, here)
            }
            State::Filling { .. }
            | State::Frames
            | State::Offered(_)
            | State::Splicing(_)
            | State::Dropping
            | State::Streaming => None,
        }
    }

    /// The type of the frame that has begun and is not whole, if its head is here.
    pub fn begun(&self) -> Option<u8> {
        let mut input = self.small.get(self.start..self.end).unwrap_or_default();
        match self.decoder.clone().poll(&mut input) {
            Ok(chunking::Step::Head(head)) => Some(head.code),
            Ok(
                chunking::Step::NeedMore { .. }
                | chunking::Step::Payload(_)
                | chunking::Step::End { .. },
            )
            | Err(_) => None,
        }
    }

    /// Whether a frame has begun and is not whole.
    pub fn is_inside_frame(&self) -> bool {
        self.finish().is_err()
    }

    /// Lets bytes pass by; says whether the frame is over.
    fn dropped(&mut self) -> Result<bool, FrameError> {
        loop {
            let mut input = self.small.get(self.start..self.end).unwrap_or_default();
            let before = input.len();
            let step = self.decoder.poll(&mut input)?;
            self.start += before - input.len();
            match step {
                chunking::Step::End { .. } => {
                    self.state = State::Frames;
                    return Ok(true);
                }
                chunking::Step::NeedMore { .. } => return Ok(false),
                chunking::Step::Payload(_) | chunking::Step::Head(_) => {}
            }
        }
    }

    /// The chunk that is next, if one is and its head is here. One whose head makes no sense is
    /// dropped.
    fn next_chunk(&mut self) -> Result<Option<ChunkStart>, FrameError> {
        if self.chunk_is_next() { self.chunk_head() } else { Ok(None) }
    }

    fn chunk_is_next(&self) -> bool {
        let held = self.small.get(self.start..self.end).unwrap_or_default();
        let long_enough = held.first_chunk().is_some_and(|length| {
            u32::from_le_bytes(*length) as usize + size_of::<u32>() >= CHUNK_FRAME_HEAD_BYTES
        });
        self.decoder.generation() == Some(Generation::F2)
            && held.get(size_of::<u32>()) == Some(&Kind::Chunk.code())
            && held.len() >= CHUNK_FRAME_HEAD_BYTES
            && long_enough
    }

    fn chunk_head(&mut self) -> Result<Option<ChunkStart>, FrameError> {
        let mut input = self.small.get(self.start..self.end).unwrap_or_default();
        let before = input.len();
        let chunking::Step::Head(frame) = self.decoder.poll(&mut input)? else { return Ok(None) };
        let (transfer, payload_len) = (frame.msg_id, frame.payload_len);
        self.start += before - input.len();
        match ChunkHead::decode(input) {
            Ok((head, _)) if in_memory(payload_len) >= CHUNK_HEAD_BYTES => {
                let head_len = u32::try_from(CHUNK_HEAD_BYTES).unwrap_or(u32::MAX);
                self.decoder.skip_payload(head_len);
                self.start += CHUNK_HEAD_BYTES;
                Ok(Some(ChunkStart { transfer, head, sent_len: payload_len - head_len }))
            }
            // Its head makes no sense: it passes by, and is missed when the transfer is done.
            Ok(_) | Err(_) => {
                self.state = State::Dropping;
                Ok(None)
            }
        }
    }

    /// The next frame of those that are gathered, or the head of one that is not.
    fn gathered(&mut self) -> Result<Step<'_>, FrameError> {
        if let Some(limit) = self.bulk_over
            && self.bulk_is_next(limit)?
        {
            let mut input = self.small.get(self.start..self.end).unwrap_or_default();
            let before = input.len();
            if let chunking::Step::Head(head) = self.decoder.poll(&mut input)? {
                self.start += before - input.len();
                self.state = State::Streaming;
                let generation = self.decoder.generation().unwrap_or(Generation::F2);
                return Ok(Step::Bulk(generation, head));
            }
            return Ok(Step::Read);
        }
        let mut input = self.small.get(self.start..self.end).unwrap_or_default();
        let before = input.len();
        match self.decoder.poll_frame(&mut input)? {
            Some(frame) => {
                self.start += before - input.len();
                self.after_chunk = false;
                Ok(Step::Frame(self.decoder.generation().unwrap_or(Generation::F2), frame))
            }
            None => Ok(Step::Read),
        }
    }

    fn bulk_is_next(&self, limit: u32) -> Result<bool, FrameError> {
        let mut input = self.small.get(self.start..self.end).unwrap_or_default();
        match self.decoder.clone().poll(&mut input)? {
            chunking::Step::Head(head) => {
                Ok(head.payload_len > limit && head.kind().is_ok_and(Kind::is_classic_bulk))
            }
            chunking::Step::NeedMore { .. }
            | chunking::Step::Payload(_)
            | chunking::Step::End { .. } => Ok(false),
        }
    }

    fn streamed(&mut self) -> Result<Step<'_>, FrameError> {
        let mut input = self.small.get(self.start..self.end).unwrap_or_default();
        let before = input.len();
        let step = self.decoder.poll(&mut input)?;
        self.start += before - input.len();
        match step {
            chunking::Step::Payload(piece) => Ok(Step::Piece(piece)),
            chunking::Step::End { .. } => {
                self.state = State::Frames;
                Ok(Step::BulkEnd)
            }
            chunking::Step::NeedMore { .. } | chunking::Step::Head(_) => Ok(Step::Read),
        }
    }
}

fn update(crc: &mut Option<crc32fast::Hasher>, bytes: &[u8]) {
    if let Some(crc) = crc {
        crc.update(bytes);
    }
}

fn in_memory(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "inlet_tests.rs"]
mod tests;
