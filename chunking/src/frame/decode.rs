//! The incremental decoder: bytes in, heads and pieces of payload out.
//!
//! It holds no bytes. A head must lie in one piece (at most 65,578 bytes, and 43 for the frames
//! that carry chunks); a payload may come in any pieces, or pass by the decoder altogether, read or
//! spliced elsewhere by a driver that then reports it with [`Decoder::skip_payload`].

use super::trailer::body_crc;
use super::{FrameError, Generation, Head, LENGTH_BYTES, TRAILER_BYTES, Trailers};
use crate::kind::Kind;
use crate::limits;
use uuid::Uuid;

/// What a connection accepts. What we send is bounded by [`limits::FRAME_BODY_BYTES_MAX`] whatever
/// is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundLimits {
    /// For any frame that no other limit covers.
    pub body_bytes_max: u32,
    /// For SubmitJob, AckJob and CachePut of a peer that announced nothing (W06); equal to
    /// `body_bytes_max` for one that did.
    pub classic_bulk_bytes_max: u32,
    /// For the first frame of a connection whose generation is not known yet.
    pub first_body_bytes_max: u32,
}

impl InboundLimits {
    /// For a peer that may be a classic one: its bulk frames may be large, they are streamed.
    pub const CLASSIC: InboundLimits = InboundLimits {
        body_bytes_max: limits::FRAME_BODY_BYTES_MAX,
        classic_bulk_bytes_max: limits::CLASSIC_INBOUND_BODY_BYTES_MAX,
        first_body_bytes_max: limits::FIRST_FRAME_BODY_BYTES_MAX,
    };

    /// For a peer that announced itself, and so sends big payloads in chunks.
    pub const ANNOUNCED: InboundLimits = InboundLimits {
        classic_bulk_bytes_max: limits::FRAME_BODY_BYTES_MAX,
        ..InboundLimits::CLASSIC
    };

    /// For a connection that we dialled: a classic leader passes on what a classic peer sent it, up
    /// to 4 MiB, under a subject that may be longer.
    pub const DIALLED: InboundLimits = InboundLimits {
        body_bytes_max: limits::DIALLED_BODY_BYTES_MAX,
        ..InboundLimits::ANNOUNCED
    };

    fn any_body_max(&self) -> u32 {
        self.body_bytes_max.max(self.classic_bulk_bytes_max)
    }

    fn body_max(&self, code: u8) -> u32 {
        match Kind::try_from(code) {
            Ok(kind) if kind.is_classic_bulk() => self.classic_bulk_bytes_max,
            Ok(_) | Err(_) => self.body_bytes_max,
        }
    }
}

/// What the decoder found at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Not yet. Of a head nothing was consumed, of bytes to skip all that there were.
    NeedMore {
        /// Bytes that the next call must be able to see, from where the input starts now.
        bytes: usize,
    },
    /// A frame begins. Its payload, if any, follows in [`Step::Payload`] pieces, then comes
    /// [`Step::End`].
    Head(Head<'a>),
    /// A piece of the payload, in place.
    Payload(&'a [u8]),
    /// The frame is over.
    End {
        /// Bytes that stood behind the payload inside the body. They are counted, and skipped (C04)
        /// unless they are a checksum, which was right.
        trailing: u32,
    },
}

/// A frame that lies in the input as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub head: Head<'a>,
    /// The payload, in place.
    pub payload: &'a [u8],
    /// Bytes that stood behind the payload inside the body (C04).
    pub trailing: u32,
    /// CRC-32 of the payload, if the frame ended with a checksum: it was right.
    pub payload_crc: Option<u32>,
}

/// What is left of the frame whose head was read.
#[derive(Clone, Debug)]
struct Body {
    code: u8,
    payload_left: u32,
    trailing: u32,
    trailing_left: u32,
    sum: Option<Sum>,
}

/// The checksum of a frame that comes in pieces.
#[derive(Clone, Debug)]
struct Sum {
    crc: crc32fast::Hasher,
    /// What stands behind the payload, the last byte that came on top.
    trailer: u32,
}

impl Sum {
    fn over(head: &[u8]) -> Self {
        let mut crc = crc32fast::Hasher::new();
        crc.update(head);
        Sum { crc, trailer: 0 }
    }

    fn take_trailer(&mut self, bytes: &[u8]) {
        self.trailer = bytes
            .iter()
            .fold(self.trailer, |trailer, byte| (trailer >> 8) | (u32::from(*byte) << 24));
    }
}

/// Decodes one connection's inbound bytes.
#[derive(Clone, Debug)]
pub struct Decoder {
    limits: InboundLimits,
    generation: Option<Generation>,
    trailers: Trailers,
    body: Option<Body>,
}

/// A head at the front of the input, or how many bytes it takes to see one.
enum Parsed<'a> {
    NeedMore(usize),
    Head { generation: Generation, head: Head<'a>, head_bytes: usize, trailing: u32 },
}

impl Decoder {
    /// For a connection whose first frame tells the generation (W18).
    pub fn detecting(limits: InboundLimits) -> Self {
        Decoder { limits, generation: None, trailers: Trailers::Skipped, body: None }
    }

    /// For a connection whose generation is known: the one we dialled with, or one that was
    /// detected before.
    pub fn speaking(generation: Generation, limits: InboundLimits) -> Self {
        Decoder { limits, generation: Some(generation), trailers: Trailers::Skipped, body: None }
    }

    /// The generation, once the first head has been read.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// Changes what is accepted from the next head on: a peer that announced itself loses the
    /// classic allowance.
    pub fn set_limits(&mut self, limits: InboundLimits) {
        self.limits = limits;
    }

    /// Changes what is expected behind the payloads of the frames that follow.
    pub fn set_trailers(&mut self, trailers: Trailers) {
        self.trailers = trailers;
    }

    /// What is expected behind the payloads of the frames that follow.
    pub fn trailers(&self) -> Trailers {
        self.trailers
    }

    /// Payload bytes of the current frame that have not been taken yet.
    pub fn payload_left(&self) -> u32 {
        self.body.as_ref().map_or(0, |body| body.payload_left)
    }

    /// Takes the next step, advancing `input` past what it consumed.
    ///
    /// An error is final: the stream has no boundary left to go on from (W08).
    pub fn poll<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, FrameError> {
        let Some(body) = &mut self.body else {
            return Ok(match self.parse_head(input)? {
                Parsed::NeedMore(bytes) => Step::NeedMore { bytes },
                Parsed::Head { generation, head, head_bytes, trailing } => {
                    self.generation = Some(generation);
                    let has_sum = self.trailers.has_sum(head.code, trailing)?;
                    let written = advance(input, head_bytes);
                    self.body = Some(Body {
                        code: head.code,
                        payload_left: head.payload_len,
                        trailing,
                        trailing_left: trailing,
                        sum: has_sum
                            .then(|| Sum::over(written.get(LENGTH_BYTES..).unwrap_or_default())),
                    });
                    Step::Head(head)
                }
            });
        };
        if body.payload_left > 0 {
            let piece = advance(input, in_memory(body.payload_left));
            if piece.is_empty() {
                return Ok(Step::NeedMore { bytes: 1 });
            }
            body.payload_left = body.payload_left.saturating_sub(length(piece));
            if let Some(sum) = &mut body.sum {
                sum.crc.update(piece);
            }
            return Ok(Step::Payload(piece));
        }
        if body.trailing_left > 0 {
            let skipped = advance(input, in_memory(body.trailing_left));
            body.trailing_left = body.trailing_left.saturating_sub(length(skipped));
            if let Some(sum) = &mut body.sum {
                sum.take_trailer(skipped);
            }
            if body.trailing_left > 0 {
                return Ok(Step::NeedMore { bytes: 1 });
            }
        }
        let trailing = body.trailing;
        if let Some(Body { code, sum, .. }) = self.body.take() {
            let has_sum = sum.is_some();
            if let Some(Sum { crc, trailer }) = sum {
                same(code, crc.finalize(), trailer)?;
            }
            self.trailers = self.trailers.after(code, has_sum);
        }
        Ok(Step::End { trailing })
    }

    /// The next frame, if the input holds the whole of it. For small frames; `Ok(None)` is "not
    /// yet".
    ///
    /// Must not be called while [`Decoder::poll`] is inside a frame; it then answers `Ok(None)`
    /// too.
    pub fn poll_frame<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Frame<'a>>, FrameError> {
        if self.body.is_some() {
            return Ok(None);
        }
        let Parsed::Head { generation, head, head_bytes, trailing } = self.parse_head(input)?
        else {
            return Ok(None);
        };
        let payload_end = head_bytes.saturating_add(in_memory(head.payload_len));
        let frame_end = payload_end.saturating_add(in_memory(trailing));
        let has_sum = self.trailers.has_sum(head.code, trailing)?;
        let (Some(payload), Some(behind)) =
            (input.get(head_bytes..payload_end), input.get(payload_end..frame_end))
        else {
            return Ok(None);
        };
        let mut payload_crc = None;
        if has_sum {
            let written = input.get(LENGTH_BYTES..head_bytes).unwrap_or_default();
            let crc = crc32fast::hash(payload);
            let sent =
                behind.first_chunk::<{ TRAILER_BYTES as usize }>().copied().unwrap_or_default();
            same(head.code, body_crc(written, head.payload_len, crc), u32::from_le_bytes(sent))?;
            payload_crc = Some(crc);
        }
        self.generation = Some(generation);
        self.trailers = self.trailers.after(head.code, has_sum);
        advance(input, frame_end);
        Ok(Some(Frame { head, payload, trailing, payload_crc }))
    }

    /// Tells the decoder that the next `bytes` of the payload went elsewhere: into a pooled buffer,
    /// or from socket to socket. Returns how many of them belonged to the payload; more than that
    /// was the caller's mistake.
    pub fn skip_payload(&mut self, bytes: u32) -> u32 {
        let Some(body) = &mut self.body else { return 0 };
        let taken = bytes.min(body.payload_left);
        body.payload_left = body.payload_left.saturating_sub(taken);
        taken
    }

    /// Says whether the connection may end here, with `input` left over.
    pub fn finish(&self, input: &[u8]) -> Result<(), FrameError> {
        let need = match (&self.body, input) {
            (Some(body), _) => {
                in_memory(body.payload_left).saturating_add(in_memory(body.trailing_left))
            }
            (None, []) => 0,
            (None, _) => match self.parse_head(input)? {
                Parsed::NeedMore(need) => need,
                Parsed::Head { head, head_bytes, trailing, .. } => head_bytes
                    .saturating_add(in_memory(head.payload_len))
                    .saturating_add(in_memory(trailing)),
            },
        };
        match need.saturating_sub(input.len()) {
            0 => Ok(()),
            missing => Err(FrameError::Truncated { missing }),
        }
    }

    fn parse_head<'a>(&self, input: &'a [u8]) -> Result<Parsed<'a>, FrameError> {
        let Some((length_field, after_length)) = input.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(Parsed::NeedMore(LENGTH_BYTES));
        };
        let len = self.checked_len(*length_field)?;
        let Some(code) = after_length.first().copied() else {
            return Ok(Parsed::NeedMore(LENGTH_BYTES + 1));
        };
        let limit = self.limits.body_max(code).saturating_add(self.trailers.beyond_limit());
        if len > limit {
            return Err(FrameError::LengthOver { len, limit, code: Some(code) });
        }
        let body = after_length.get(..in_memory(len)).unwrap_or(after_length);
        match self.generation {
            Some(generation) if len < generation.body_bytes_min() => {
                Err(FrameError::LengthUnder { len, min: generation.body_bytes_min(), generation })
            }
            Some(Generation::F0) => head_f0(len, code, body),
            Some(Generation::F1) => head_f1(len, code, body),
            Some(Generation::F2) => head_f2(len, code, body),
            None => detect(len, code, body),
        }
    }

    /// The length, if any frame at all may have it here. Costs nothing whatever the peer wrote.
    fn checked_len(&self, field: [u8; LENGTH_BYTES]) -> Result<u32, FrameError> {
        let signed = i32::from_le_bytes(field);
        let len = u32::try_from(signed).map_err(|_| FrameError::LengthNegative { len: signed })?;
        let any = self.limits.any_body_max().saturating_add(self.trailers.beyond_limit());
        let first = self.limits.first_body_bytes_max;
        match self.generation {
            _ if len == 0 => Err(FrameError::LengthZero),
            None if len > first => Err(FrameError::FirstLengthOver { len, limit: first }),
            Some(_) if len > any => Err(FrameError::LengthOver { len, limit: any, code: None }),
            None | Some(_) => Ok(len),
        }
    }
}

fn same(code: u8, found: u32, expected: u32) -> Result<(), FrameError> {
    if found == expected { Ok(()) } else { Err(FrameError::Damaged { code, found, expected }) }
}

/// Finds the generation of a first frame: the first layout whose lengths add up to the body exactly
/// (W18).
///
/// The order is the one in which the layouts can be told from the fewest bytes. That a frame fits
/// two of them takes an accident of one in 2^32 in its ids: see the notes on detection in
/// `docs/protocol.md`.
fn detect(len: u32, code: u8, body: &[u8]) -> Result<Parsed<'_>, FrameError> {
    let no_generation = Err(FrameError::NoGeneration { len, code });

    if len < Generation::F0.body_bytes_min() {
        return no_generation;
    }
    let Some(f0_payload) = le32_at(body, 1) else { return Ok(Parsed::NeedMore(LENGTH_BYTES + 5)) };
    if f0_payload.checked_add(Generation::F0.body_bytes_min()) == Some(len) {
        return head_f0(len, code, body);
    }
    if len < Generation::F1.body_bytes_min() {
        return no_generation;
    }
    let Some(f1_payload) = le32_at(body, 33) else {
        return Ok(Parsed::NeedMore(LENGTH_BYTES + 37));
    };
    if f1_payload.checked_add(Generation::F1.body_bytes_min()) == Some(len) {
        return head_f1(len, code, body);
    }
    if len < Generation::F2.body_bytes_min() {
        return no_generation;
    }
    match head_f2(len, code, body) {
        Ok(Parsed::Head { trailing, .. }) if trailing > 0 => no_generation,
        Err(FrameError::SubjectOverrun { .. } | FrameError::PayloadOverrun { .. }) => no_generation,
        fits_or_waits => fits_or_waits,
    }
}

// The three layouts. `body` is what has come of a body of `len` bytes, and `len` holds at least the
// fixed fields.

fn head_f0(len: u32, code: u8, body: &[u8]) -> Result<Parsed<'_>, FrameError> {
    let Some(payload_len) = le32_at(body, 1) else { return Ok(Parsed::NeedMore(LENGTH_BYTES + 5)) };
    let head = Head { code, msg_id: Uuid::nil(), corr_id: Uuid::nil(), subject: "", payload_len };
    whole_head(Generation::F0, head, len)
}

fn head_f1(len: u32, code: u8, body: &[u8]) -> Result<Parsed<'_>, FrameError> {
    let (Some(msg_id), Some(corr_id), Some(payload_len)) =
        (guid_at(body, 1), guid_at(body, 17), le32_at(body, 33))
    else {
        return Ok(Parsed::NeedMore(LENGTH_BYTES + 37));
    };
    whole_head(Generation::F1, Head { code, msg_id, corr_id, subject: "", payload_len }, len)
}

fn head_f2(len: u32, code: u8, body: &[u8]) -> Result<Parsed<'_>, FrameError> {
    let (Some(msg_id), Some(corr_id), Some(subject_len)) =
        (guid_at(body, 1), guid_at(body, 17), le16_at(body, 33))
    else {
        return Ok(Parsed::NeedMore(LENGTH_BYTES + 35));
    };
    let room = len.saturating_sub(Generation::F2.body_bytes_min());
    if u32::from(subject_len) > room {
        return Err(FrameError::SubjectOverrun { len: u32::from(subject_len), room });
    }
    let subject_end = 35 + usize::from(subject_len);
    let (Some(subject), Some(payload_len)) =
        (body.get(35..subject_end), le32_at(body, subject_end))
    else {
        return Ok(Parsed::NeedMore(LENGTH_BYTES + subject_end + 4));
    };
    let subject = str::from_utf8(subject).map_err(|error| FrameError::SubjectNotUtf8 {
        at: error.valid_up_to(),
        len: subject.len(),
    })?;
    whole_head(Generation::F2, Head { code, msg_id, corr_id, subject, payload_len }, len)
}

/// Checks the payload length of a head against the body that holds it.
fn whole_head<'a>(
    generation: Generation,
    head: Head<'a>,
    len: u32,
) -> Result<Parsed<'a>, FrameError> {
    let subject_len = u32::try_from(head.subject.len()).unwrap_or(u32::MAX);
    let fixed = generation.body_bytes_min().saturating_add(subject_len);
    let room = len.saturating_sub(fixed);
    let Some(trailing) = room.checked_sub(head.payload_len) else {
        return Err(FrameError::PayloadOverrun { len: head.payload_len, room });
    };
    Ok(Parsed::Head { generation, head, head_bytes: LENGTH_BYTES + in_memory(fixed), trailing })
}

fn le16_at(body: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*body.get(at..)?.first_chunk()?))
}

fn le32_at(body: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?))
}

/// Frames carry Guids as .NET lays them out: the first three fields little-endian (W09).
fn guid_at(body: &[u8], at: usize) -> Option<Uuid> {
    Some(Uuid::from_bytes_le(*body.get(at..)?.first_chunk()?))
}

/// Splits up to `bytes` off the front of `input`.
fn advance<'a>(input: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (front, rest) = input.split_at_checked(bytes).unwrap_or((input, &[]));
    *input = rest;
    front
}

/// A frame length as an index. Saturates where `usize` has 16 bits; the comparison that follows
/// then fails safely.
fn in_memory(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// The length of a piece that was cut to fit a `u32` before.
fn length(piece: &[u8]) -> u32 {
    u32::try_from(piece.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
