//! How `heft job logs` writes an output of a job: as the program wrote it, or in pieces that are
//! JSON objects, one on a line.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{err, standard_out};
use crate::client::Stream;

/// One output.
#[derive(Debug)]
pub(super) struct Pieces {
    job: Uuid,
    stream: Stream,
    is_json: bool,
    /// The attempt whose output it is, if that is known.
    attempt: Option<u32>,
    /// The beginning of a character whose rest has not come yet. Only JSON waits for it.
    begun: Vec<u8>,
}

impl Pieces {
    pub(super) fn new(job: Uuid, stream: Stream, is_json: bool) -> Self {
        Pieces { job, stream, is_json, attempt: None, begun: Vec::new() }
    }

    /// What follows is the output of this attempt.
    pub(super) fn begin(&mut self, attempt: Option<u32>) -> io::Result<()> {
        self.end()?;
        self.attempt = attempt;
        Ok(())
    }

    /// Nothing follows of this attempt.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.begun.is_empty() {
            return Ok(());
        }
        let begun = STANDARD.encode(std::mem::take(&mut self.begun));
        let line = self.line("base64", &json!(begun));
        self.put(line.as_bytes())
    }

    /// Bytes of it are nowhere.
    pub(super) fn lose(&mut self, bytes: u64) -> io::Result<()> {
        self.end()?;
        match self.is_json {
            true => self.put(self.line("lost_bytes", &json!(bytes)).as_bytes()),
            false => Ok(()),
        }
    }

    /// The next bytes as they are to be written.
    pub(super) fn shape(&mut self, bytes: Bytes) -> Bytes {
        if !self.is_json || bytes.is_empty() {
            return bytes;
        }
        let mut whole = std::mem::take(&mut self.begun);
        whole.extend_from_slice(&bytes);
        let (valid, is_cut) = match str::from_utf8(&whole) {
            Ok(_) => (whole.len(), false),
            Err(error) => (error.valid_up_to(), error.error_len().is_none()),
        };
        if is_cut {
            self.begun = whole.split_off(valid);
        }
        let line = match str::from_utf8(&whole) {
            Ok("") => String::new(),
            Ok(text) => self.line("text", &json!(text)),
            Err(_) => self.line("base64", &json!(STANDARD.encode(&whole))),
        };
        Bytes::from(line)
    }

    /// Where it goes: JSON of both outputs is the standard output of the command.
    pub(super) fn is_stderr(&self) -> bool {
        self.stream == Stream::Stderr && !self.is_json
    }

    fn line(&self, name: &str, value: &Value) -> String {
        let (job, stream, attempt) = (self.job, self.stream.name(), self.attempt);
        let piece = json!({"job_id": job, "stream": stream, "attempt": attempt, name: value});
        format!("{piece}\n")
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        match self.is_stderr() {
            true => err().write_all(bytes),
            false => standard_out().write_all(bytes),
        }
    }
}

/// All of what is given is taken.
impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_json {
            let shaped = self.shape(Bytes::copy_from_slice(bytes));
            self.put(&shaped)?;
        } else {
            self.put(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(pieces: &mut Pieces, bytes: &[u8]) -> Vec<Value> {
        let shaped = pieces.shape(Bytes::copy_from_slice(bytes));
        let lines = str::from_utf8(&shaped).unwrap().lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn pieces_are_cut_between_characters_and_bytes_that_are_no_text_are_base64() {
        let job = Uuid::from_u128(7);
        let mut pieces = Pieces::new(job, Stream::Stdout, true);
        pieces.begin(Some(2)).unwrap();
        let all = "größe\n".as_bytes();
        let (one, two) = all.split_at(3);
        let first = json!({"job_id": job, "stream": "stdout", "attempt": 2, "text": "gr"});
        assert_eq!(shaped(&mut pieces, one), [first]);
        assert_eq!(shaped(&mut pieces, two)[0]["text"], "öße\n");
        assert_eq!(shaped(&mut pieces, &[0xe2]), [] as [Value; 0]);
        assert_eq!(
            shaped(&mut pieces, &[0x28, 0xff])[0]["base64"],
            STANDARD.encode([0xe2, 0x28, 0xff])
        );
        assert_eq!(pieces.begun, Vec::<u8>::new());
        let mut raw = Pieces::new(job, Stream::Stderr, false);
        assert_eq!(raw.shape(Bytes::from_static(&[0xff, b'a'])), [0xff, b'a'].as_slice());
        assert!(raw.is_stderr() && !pieces.is_stderr());
    }
}
