//! Tells how much of a stored output was printed before: what a program printed is stored with its
//! job's result, as bytes, or as text with other bytes replaced, and perhaps with lines of heft's
//! own around it. `heft job logs` goes on from there when the job has ended.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// What stands for bytes that are not UTF-8 in a text.
const REPLACEMENT: &str = "\u{fffd}";

/// How a stored output compares with what was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// What was printed ends at this byte of it.
    From(u64),
    /// It begins otherwise.
    Other,
}

/// Bytes of an output that were printed, counted and summed: as they are, and as the text that a
/// result has of them.
#[derive(Debug, Default)]
pub(super) struct Printed {
    raw: Sum,
    text: Sum,
    /// The beginning of a character whose rest was not printed yet.
    begun: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    bytes: u64,
    crc: crc32fast::Hasher,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc.update(bytes);
    }

    /// Whether this is what was summed up.
    fn is_of(&self, bytes: &[u8]) -> bool {
        self.crc.clone().finalize() == crc32fast::hash(bytes)
    }
}

impl Printed {
    /// Bytes that were printed.
    pub(super) fn bytes(&self) -> u64 {
        self.raw.bytes
    }

    /// These were printed.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.raw.add(bytes);
        let joined = [self.begun.as_slice(), bytes].concat();
        let mut rest = joined.as_slice();
        self.begun.clear();
        loop {
            let error = match str::from_utf8(rest) {
                Ok(text) => return self.text.add(text.as_bytes()),
                Err(error) => error,
            };
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            self.text.add(valid);
            let Some(len) = error.error_len() else {
                self.begun = invalid.to_vec();
                return;
            };
            self.text.add(REPLACEMENT.as_bytes());
            rest = invalid.get(len..).unwrap_or_default();
        }
    }

    /// What of a text is left to print. A line of heft's own may stand before it.
    pub(super) fn rest_of<'a>(&self, text: &'a str) -> Option<&'a [u8]> {
        let len = usize::try_from(self.text.bytes).ok()?;
        let second = text.find('\n').map(|end| end + 1);
        let starts = [Some(0), second].into_iter().flatten();
        let mut rests = starts.filter_map(|start| {
            let (printed, rest) = text.as_bytes().get(start..)?.split_at_checked(len)?;
            self.text.is_of(printed).then_some(rest)
        });
        let rest = rests.next()?;
        Some(rest.strip_prefix(self.begun.as_slice()).unwrap_or(rest))
    }

    /// The same of a file, where nothing stands before it.
    pub(super) fn rest_in(&self, file: &mut File) -> io::Result<Rest> {
        for sum in [&self.raw, &self.text] {
            file.seek(SeekFrom::Start(0))?;
            let mut crc = crc32fast::Hasher::new();
            let mut printed = (&mut *file).take(sum.bytes);
            let (mut buffer, mut bytes) = (vec![0; 64 * 1024], 0);
            loop {
                let read = printed.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                bytes += read as u64;
                crc.update(buffer.get(..read).unwrap_or_default());
            }
            if bytes == sum.bytes && crc.finalize() == sum.crc.clone().finalize() {
                return Ok(Rest::From(bytes));
            }
        }
        Ok(Rest::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn printed(pieces: &[&[u8]]) -> Printed {
        let mut printed = Printed::default();
        pieces.iter().for_each(|piece| printed.add(piece));
        printed
    }

    #[test]
    fn the_rest_of_a_text_begins_where_printing_ended_however_the_bytes_were_cut() {
        let all = "größe \u{1f980}\nend".as_bytes();
        for cut in 0..=all.len() {
            for again in cut..=all.len() {
                let printed = printed(&[&all[..cut], &all[cut..again]]);
                assert_eq!(printed.bytes(), again as u64);
                let text = str::from_utf8(all).unwrap();
                assert_eq!(printed.rest_of(text), Some(&all[again..]), "{cut} {again}");
            }
        }
    }

    #[test]
    fn bytes_that_are_replaced_in_the_text_are_found_as_such() {
        let all = b"a\xff\xfeb\xe2\x82c\xf0\x9f";
        let text = String::from_utf8_lossy(all);
        for cut in 0..all.len() {
            let (before, rest) = (printed(&[&all[..cut]]), printed(&[&all[..cut], &all[cut..]]));
            assert!(before.rest_of(&text).is_some() || !before.begun.is_empty(), "{cut}");
            // What a text ends with that is not a whole character is replaced there.
            assert_eq!(rest.rest_of(&text), Some(REPLACEMENT.as_bytes()));
        }
    }

    #[test]
    fn a_line_before_it_and_notes_behind_it_are_not_what_was_printed() {
        let printed = printed(&[b"one\ntwo\n"]);
        let text = "cancelled: by clientA\none\ntwo\nheft: the program was ended by signal 9\n";
        let rest = printed.rest_of(text).unwrap();
        assert_eq!(rest, b"heft: the program was ended by signal 9\n");
        assert_eq!(printed.rest_of("one\ntwo"), None, "less than was printed");
        assert_eq!(printed.rest_of("One\ntwo\nthree\n"), None, "of another attempt");
    }

    #[test]
    fn a_file_goes_on_where_printing_ended() {
        let mut file = tempfile::tempfile().unwrap();
        let all: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        file.write_all(&all).unwrap();
        assert_eq!(printed(&[]).rest_in(&mut file).unwrap(), Rest::From(0));
        assert_eq!(printed(&[&all[..300_001]]).rest_in(&mut file).unwrap(), Rest::From(300_001));
        assert_eq!(printed(&[&all, b"x"]).rest_in(&mut file).unwrap(), Rest::Other);
        assert_eq!(printed(&[b"other"]).rest_in(&mut file).unwrap(), Rest::Other);
        // One that was made of a text.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all("a\u{fffd}b and more".as_bytes()).unwrap();
        assert_eq!(printed(&[b"a\xffb"]).rest_in(&mut file).unwrap(), Rest::From(5));
    }
}
