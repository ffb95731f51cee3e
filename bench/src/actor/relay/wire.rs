//! Jobs on a lane: heads, bodies from memory, and a reader that drops or writes bodies.

use std::io::{self, IoSlice, Read, Write};

use super::BUFFER_BYTES;

/// A head is as long as that of heft's chunks, so that both sides' bytes lie alike in memory pages.
const HEAD_BYTES: usize = 64;

/// Where buffers start: a copy by the kernel is slower into the middle of a page.
const PAGE_BYTES: usize = 4096;

/// What a job, or its answer, consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes that follow.
    pub(super) body: u64,
    /// Bytes that the answer is to have.
    pub(super) wanted: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let numbers = self.body.to_le_bytes().into_iter().chain(self.wanted.to_le_bytes());
        bytes.iter_mut().zip(numbers).for_each(|(place, byte)| *place = byte);
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Head> {
        let (body, rest) = bytes.split_first_chunk()?;
        let (wanted, _) = rest.split_first_chunk()?;
        Some(Head { body: u64::from_le_bytes(*body), wanted: u64::from_le_bytes(*wanted) })
    }
}

/// Writes a head and the bytes that belong to it, repeating what is held of them.
pub(super) fn send(stream: &mut impl Write, head: Head, held: &[u8]) -> io::Result<()> {
    let bytes = head.encode();
    let mut left = head.body;
    let mut pieces = held.chunks(BUFFER_BYTES).cycle().map_while(|piece| {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        left -= len as u64;
        piece.get(..len).filter(|piece| !piece.is_empty())
    });
    // The head and the first bytes in one call: a small job is one packet.
    let first = pieces.next().unwrap_or_default();
    let written = stream.write_vectored(&[IoSlice::new(&bytes), IoSlice::new(first)])?;
    stream.write_all(bytes.get(written..).unwrap_or_default())?;
    stream.write_all(first.get(written.saturating_sub(HEAD_BYTES)..).unwrap_or_default())?;
    pieces.try_for_each(|piece| stream.write_all(piece))
}

/// A buffer that starts with a page.
pub(super) struct Buffer {
    space: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(super) fn new() -> Buffer {
        let space = vec![0; BUFFER_BYTES + PAGE_BYTES];
        let start = space.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Buffer { space, start }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.space
            .get_mut(self.start..)
            .and_then(|space| space.get_mut(..BUFFER_BYTES))
            .unwrap_or_default()
    }
}

/// Reads jobs or answers: as much at once as there is.
pub(super) struct Inbox<R> {
    stream: R,
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl<R: Read> Inbox<R> {
    pub(super) fn new(stream: R) -> Inbox<R> {
        Inbox { stream, buffer: Buffer::new(), start: 0, end: 0 }
    }

    /// The next head; none at the end of the connection.
    pub(super) fn head(&mut self) -> io::Result<Option<Head>> {
        let mut bytes = [0; HEAD_BYTES];
        let mut have = 0;
        while let Some(place) = bytes.get_mut(have..).filter(|place| !place.is_empty()) {
            let taken = self.take(place.len() as u64)?;
            let len = taken.len();
            place.iter_mut().zip(taken).for_each(|(place, byte)| *place = *byte);
            match len {
                0 if have == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => have += len,
            }
        }
        Ok(Head::decode(&bytes))
    }

    /// Reads a body and gives it to `sink` piece by piece.
    pub(super) fn body(
        &mut self,
        len: u64,
        mut sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let piece = self.take(left)?;
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= piece.len() as u64;
            sink(piece)?;
        }
        Ok(())
    }

    /// What is there, or comes next; at most `max` bytes of it, none at the end.
    fn take(&mut self, max: u64) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.start = 0;
            self.end = self.stream.read(self.buffer.bytes())?;
        }
        let len = (self.end - self.start).min(usize::try_from(max).unwrap_or(usize::MAX));
        let piece = self.buffer.bytes().get(self.start..self.start + len).unwrap_or_default();
        self.start += len;
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, as a socket may.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(50);
            self.0.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn jobs_are_read_as_they_were_sent() {
        let mut sent = Slow(Vec::new());
        let heads = [
            Head { body: 1000, wanted: 5 },
            Head { body: 0, wanted: 7 },
            Head { body: 130, wanted: 0 },
        ];
        for head in heads {
            send(&mut sent, head, &[1, 2, 3]).unwrap();
        }
        let mut inbox = Inbox::new(sent.0.as_slice());
        for head in heads {
            assert_eq!(inbox.head().unwrap(), Some(head));
            let mut body = Vec::new();
            inbox.body(head.body, |piece| body.write_all(piece)).unwrap();
            let repeated: Vec<u8> = [1, 2, 3].into_iter().cycle().take(body.len()).collect();
            assert_eq!(
                (body.len() as u64, &body),
                (head.body, &repeated),
                "a larger job repeats what is held"
            );
        }
        assert_eq!(inbox.head().unwrap(), None);
    }

    #[test]
    fn a_connection_that_ends_inside_a_job_is_an_error() {
        let mut sent = Vec::new();
        send(&mut sent, Head { body: 100, wanted: 0 }, &[9; 100]).unwrap();
        let mut cut = Inbox::new(&sent[..120]);
        let head = cut.head().unwrap().unwrap();
        assert!(cut.body(head.body, |_| Ok(())).is_err());
        assert!(Inbox::new(&sent[..20]).head().is_err());
    }

    #[test]
    fn buffers_start_with_a_page() {
        let mut buffer = Buffer::new();
        assert_eq!(
            (buffer.bytes().as_ptr() as usize % PAGE_BYTES, buffer.bytes().len()),
            (0, BUFFER_BYTES)
        );
    }
}
