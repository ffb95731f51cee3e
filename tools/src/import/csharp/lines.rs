//! The lines of a file, one at a time, with where they begin. A line that never ends costs no more
//! memory than the longest that may be.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// A job that fits a frame of 4 MiB takes 5.6 MiB in base64.
pub(super) const LINE_BYTES_MAX: usize = 16 << 20;

/// The lines of a file.
pub(super) struct Lines {
    reader: BufReader<File>,
    at: u64,
    number: u64,
}

pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: u64,
    /// Where it begins.
    pub(super) at: u64,
    /// Without its end; cut, if it is too long.
    pub(super) bytes: Vec<u8>,
    pub(super) is_too_long: bool,
    /// Whether nothing follows.
    pub(super) is_last: bool,
}

impl Lines {
    pub(super) fn new(file: File) -> Self {
        Lines { reader: BufReader::with_capacity(256 * 1024, file), at: 0, number: 0 }
    }

    /// The next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line>> {
        if self.reader.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let at = self.at;
        let (mut bytes, mut is_too_long, mut ended) = (Vec::new(), false, false);
        while !ended {
            let seen = self.reader.fill_buf()?;
            if seen.is_empty() {
                break;
            }
            let end = seen.iter().position(|byte| *byte == b'\n');
            let piece = seen.get(..end.unwrap_or(seen.len())).unwrap_or_default();
            let room = LINE_BYTES_MAX.saturating_sub(bytes.len());
            is_too_long |= piece.len() > room;
            bytes.extend(piece.iter().take(room));
            let consumed = piece.len() + usize::from(end.is_some());
            ended = end.is_some();
            self.reader.consume(consumed);
            self.at += consumed as u64;
        }
        self.number += 1;
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        // .NET writers may begin a file with a mark.
        if at == 0 && bytes.starts_with(BOM) {
            bytes.drain(..BOM.len());
        }
        let is_last = self.reader.fill_buf()?.is_empty();
        Ok(Some(Line { number: self.number, at, bytes, is_too_long, is_last }))
    }
}

/// The mark that .NET writers may begin a text with.
pub(super) const BOM: &[u8] = "\u{feff}".as_bytes();

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn lines(bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>, bool, bool)> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        let mut lines = Lines::new(file);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push((line.number, line.at, line.bytes, line.is_too_long, line.is_last));
        }
        found
    }

    #[test]
    fn pe04_lines_know_where_they_begin_and_which_is_the_last() {
        assert_eq!(lines(b""), []);
        assert_eq!(
            lines(b"\xef\xbb\xbfa\r\n\nbc"),
            [
                (1, 0, b"a".to_vec(), false, false),
                (2, 6, b"".to_vec(), false, false),
                (3, 7, b"bc".to_vec(), false, true),
            ]
        );
        assert_eq!(lines(b"a\n"), [(1, 0, b"a".to_vec(), false, true)]);
    }

    #[test]
    fn pe04_a_line_without_an_end_costs_no_more_than_the_longest_that_may_be() {
        let mut bytes = vec![b'x'; LINE_BYTES_MAX + 10];
        bytes.extend_from_slice(b"\nnext\n");
        let found = lines(&bytes);
        assert_eq!((found[0].2.len(), found[0].3), (LINE_BYTES_MAX, true));
        assert_eq!(
            (found[1].1, found[1].2.as_slice(), found[1].3),
            (bytes.len() as u64 - 5, &b"next"[..], false)
        );
    }
}
