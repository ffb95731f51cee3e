//! Writes frame heads. Payload bytes are never touched: the caller sends them after the head, from
//! where they are.

use super::trailer::body_crc;
use super::{Generation, Head, LENGTH_BYTES, TRAILER_BYTES};
use crate::limits::{FRAME_BODY_BYTES_MAX, SUBJECT_BYTES_MAX};
use thiserror::Error;

/// Why a head could not be written. Each is a mistake on our side, found before a byte leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The frame would be one that no classic reader takes (W05).
    #[error(
        "frame body would have {len} bytes; at most {limit} may be sent: send the payload as a transfer"
    )]
    BodyOver {
        /// What the body would have.
        len: u64,
        /// What may be sent.
        limit: u32,
    },

    /// The subject does not fit its length field (W10).
    #[error("subject has {len} bytes; at most {limit} fit a frame: shorten it")]
    SubjectOver {
        /// The subject's length.
        len: usize,
        limit: usize,
    },

    /// The caller's buffer is smaller than [`head_len`] said.
    #[error("the buffer has {have} bytes; the frame head needs {need}")]
    BufferSmall {
        /// The buffer's size.
        have: usize,
        /// The head's size.
        need: usize,
    },
}

/// Bytes of a head on the wire: the length field and all that stands before the payload.
pub const fn head_len(generation: Generation, subject: &str) -> usize {
    match generation {
        Generation::F0 => LENGTH_BYTES + 5,
        Generation::F1 => LENGTH_BYTES + 37,
        Generation::F2 => LENGTH_BYTES + 39 + subject.len(),
    }
}

impl Head<'_> {
    /// Writes the head to the front of `out` and returns its length. The payload goes right behind
    /// it.
    pub fn encode(&self, generation: Generation, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.write(generation, 0, out)
    }

    fn write(
        &self,
        generation: Generation,
        trailer: u32,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let have = out.len();
        let need = head_len(generation, self.subject);
        // The limit is for what the frame says; the trailer stands beyond it.
        let body_len = self.body_len(generation)?.saturating_add(trailer);
        let Some(out) = out.get_mut(..need) else {
            return Err(EncodeError::BufferSmall { have, need });
        };

        let mut out = Cursor { rest: out };
        out.put(&body_len.to_le_bytes());
        out.put(&[self.code]);
        match generation {
            Generation::F0 => {}
            Generation::F1 => out.put_ids(self),
            Generation::F2 => {
                out.put_ids(self);
                let subject_len =
                    u16::try_from(self.subject.len()).map_err(|_| subject_over(self.subject))?;
                out.put(&subject_len.to_le_bytes());
                out.put(self.subject.as_bytes());
            }
        }
        out.put(&self.payload_len.to_le_bytes());
        Ok(need)
    }

    /// The same, appended to a vector.
    pub fn append(&self, generation: Generation, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.append_with(generation, 0, out).map(|_| ())
    }

    /// The same for a frame that ends with a checksum, which is returned and goes behind the
    /// payload. `payload_crc` is the CRC-32 of the payload: who kept it need not read the payload
    /// again.
    pub fn append_summed(
        &self,
        generation: Generation,
        payload_crc: u32,
        out: &mut Vec<u8>,
    ) -> Result<[u8; TRAILER_BYTES as usize], EncodeError> {
        let start = self.append_with(generation, TRAILER_BYTES, out)?;
        let head = out.get(start + LENGTH_BYTES..).unwrap_or_default();
        Ok(body_crc(head, self.payload_len, payload_crc).to_le_bytes())
    }

    /// The checksum that the frame would end with, if it had one.
    pub fn checksum(&self, generation: Generation, payload_crc: u32) -> Result<u32, EncodeError> {
        self.append_summed(generation, payload_crc, &mut Vec::new()).map(u32::from_le_bytes)
    }

    /// Appends the head of a frame with so many bytes behind its payload; returns where it starts.
    fn append_with(
        &self,
        generation: Generation,
        trailer: u32,
        out: &mut Vec<u8>,
    ) -> Result<usize, EncodeError> {
        self.body_len(generation)?;
        let start = out.len();
        out.resize(start + head_len(generation, self.subject), 0);
        self.write(generation, trailer, out.get_mut(start..).unwrap_or_default())?;
        Ok(start)
    }

    /// The length field's value, if the frame may be sent at all.
    fn body_len(&self, generation: Generation) -> Result<u32, EncodeError> {
        if generation == Generation::F2 && self.subject.len() > SUBJECT_BYTES_MAX {
            return Err(subject_over(self.subject));
        }
        let fixed = (head_len(generation, self.subject) - LENGTH_BYTES) as u64;
        let len = fixed + u64::from(self.payload_len);
        match u32::try_from(len) {
            Ok(len) if len <= FRAME_BODY_BYTES_MAX => Ok(len),
            Ok(_) | Err(_) => Err(EncodeError::BodyOver { len, limit: FRAME_BODY_BYTES_MAX }),
        }
    }
}

fn subject_over(subject: &str) -> EncodeError {
    EncodeError::SubjectOver { len: subject.len(), limit: SUBJECT_BYTES_MAX }
}

/// Fills a slice that was cut to the exact size, front to back.
struct Cursor<'a> {
    rest: &'a mut [u8],
}

impl Cursor<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some((front, rest)) =
            std::mem::take(&mut self.rest).split_at_mut_checked(bytes.len())
        {
            front.copy_from_slice(bytes);
            self.rest = rest;
        }
    }

    fn put_ids(&mut self, head: &Head<'_>) {
        self.put(&head.msg_id.to_bytes_le());
        self.put(&head.corr_id.to_bytes_le());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use uuid::uuid;

    fn head(subject: &str, payload_len: u32) -> Head<'_> {
        let id = uuid!("00112233-4455-6677-8899-aabbccddeeff");
        Head { msg_id: id, corr_id: id, subject, payload_len, ..Head::new(Kind::AssignJob) }
    }

    #[test]
    fn w05_a_body_of_exactly_the_limit_is_written_and_one_byte_more_is_not() {
        let room = FRAME_BODY_BYTES_MAX - 39;
        let mut out = [0; 64];
        assert_eq!(head("", room).encode(Generation::F2, &mut out), Ok(43));
        assert_eq!(out[..4], 4_194_304_u32.to_le_bytes());
        let over = EncodeError::BodyOver { len: 4_194_305, limit: 4_194_304 };
        assert_eq!(head("", room + 1).encode(Generation::F2, &mut out), Err(over));
        assert_eq!(
            head("", u32::MAX).append(Generation::F0, &mut Vec::new()).unwrap_err(),
            EncodeError::BodyOver { len: u64::from(u32::MAX) + 5, limit: 4_194_304 }
        );
    }

    #[test]
    fn w09_ids_are_written_in_dotnet_order() {
        let mut out = [0; 64];
        head("", 0).encode(Generation::F1, &mut out).unwrap();
        let dotnet = [
            0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD,
            0xEE, 0xFF,
        ];
        assert_eq!(out[5..21], dotnet);
        assert_eq!(out[21..37], dotnet);
    }

    #[test]
    fn w10_a_subject_that_does_not_fit_its_length_field_is_refused() {
        let longest = "s".repeat(SUBJECT_BYTES_MAX);
        let mut out = Vec::new();
        head(&longest, 0).append(Generation::F2, &mut out).unwrap();
        assert_eq!(out.len(), 43 + SUBJECT_BYTES_MAX);
        let longer = format!("{longest}s");
        let refused = EncodeError::SubjectOver { len: 65_536, limit: 65_535 };
        assert_eq!(head(&longer, 0).append(Generation::F2, &mut out), Err(refused));
        assert_eq!(out.len(), 43 + SUBJECT_BYTES_MAX, "a refused head leaves nothing behind");
    }

    #[test]
    fn a_buffer_that_is_too_small_is_said_and_left_alone() {
        let mut out = [7; 42];
        let refused = EncodeError::BufferSmall { have: 42, need: 43 };
        assert_eq!(head("", 0).encode(Generation::F2, &mut out), Err(refused));
        assert_eq!(out, [7; 42]);
    }

    #[test]
    fn w01_older_generations_leave_out_what_they_cannot_hold() {
        let mut out = Vec::new();
        head("job.assign.calcA", 3).append(Generation::F0, &mut out).unwrap();
        assert_eq!(out, [8, 0, 0, 0, 2, 3, 0, 0, 0]);
    }
}
