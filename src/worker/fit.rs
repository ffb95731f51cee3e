//! Makes a result fit the frame that carries it: an AckJob's body has at most 4,194,304 bytes (W05).
//!
//! What is left out is said in Stderr with its size and the limit. The archive goes first, then the ends of the longer of
//! the two outputs. Attempts call it when they end.

use super::limits::RESULT_BYTES_MAX;
use crate::model::{JobResult, JobStatus, JsonModel};

/// The result as JSON of at most [`RESULT_BYTES_MAX`] bytes.
pub fn encode(result: JobResult) -> Vec<u8> {
    encode_within(result, RESULT_BYTES_MAX)
}

fn encode_within(mut result: JobResult, bytes_max: usize) -> Vec<u8> {
    let mut json = result.to_json();
    if json.len() <= bytes_max {
        return json;
    }
    if let Some(archive) = result.output_archive.take() {
        result.archive_lost = Some(archive.len() as u64);
        let note = format!(
            "the archive of {} bytes is left out: with it the result has {} bytes, and at most {bytes_max} can be \
             sent: let the job leave fewer or smaller files",
            archive.len(),
            json.len()
        );
        append_note(&mut result.stderr, &note);
        json = result.to_json();
    }
    let (stdout_len, stderr_len) = (result.stdout.len(), result.stderr.len());
    while json.len() > bytes_max && result.stdout.len().max(result.stderr.len()) > 0 {
        // Escapes make a text up to six times longer, differently from place to place: halving finds what fits
        // in a few steps.
        let longer =
            if result.stdout.len() >= result.stderr.len() { &mut result.stdout } else { &mut result.stderr };
        longer.truncate(longer.floor_char_boundary(longer.len() / 2));
        let mut cut = result.clone();
        let note = format!(
            "stdout of {stdout_len} bytes is cut to {}, stderr of {stderr_len} to {}: a result has at most {bytes_max} bytes",
            result.stdout.len(),
            result.stderr.len()
        );
        append_note(&mut cut.stderr, &note);
        json = cut.to_json();
    }
    if json.len() > bytes_max {
        // Only a handler that made up its own names or status gets here.
        let why = format!(
            "the result has {} bytes without its outputs; at most {bytes_max} can be sent",
            json.len()
        );
        let bare = JobResult {
            stderr: why,
            archive_lost: result.archive_lost,
            ..JobResult::new(result.job_id, "", "", JobStatus::Failed)
        };
        json = bare.to_json();
    }
    json
}

/// Adds a line of ours to a program's output.
pub(super) fn append_note(text: &mut String, note: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str("heft: ");
    text.push_str(note);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn result() -> JobResult {
        JobResult { stdout: "out".into(), ..JobResult::new(Uuid::from_u128(1), "c", "x", JobStatus::Ok) }
    }

    #[test]
    fn what_fits_is_not_touched_to_the_last_byte() {
        let long = JobResult { stdout: "o".repeat(1000), ..result() };
        let exact = long.to_json().len();
        assert_eq!(encode_within(long.clone(), exact), long.to_json());
        assert!(encode_within(long, exact - 1).len() < exact);
    }

    #[test]
    fn a_result_that_cannot_be_made_to_fit_still_ends_its_job() {
        let endless = JobResult { exec_name: "x".repeat(RESULT_BYTES_MAX), ..result() };
        let read = JobResult::parse(&encode(endless)).unwrap();
        assert_eq!((read.job_id, read.status), (Uuid::from_u128(1), JobStatus::Failed));
        assert!(read.stderr.contains("at most 4194265"), "{}", read.stderr);
    }

    #[test]
    fn w05_the_archive_goes_first_and_its_size_is_said() {
        let big = JobResult { output_archive: Some(vec![0; RESULT_BYTES_MAX]), ..result() };
        let json = encode(big);
        let read = JobResult::parse(&json).unwrap();
        assert_eq!((read.output_archive, read.stdout.as_str()), (None, "out"));
        assert_eq!(read.archive_lost, Some(RESULT_BYTES_MAX as u64));
        assert!(read.stderr.contains("archive of 4194265 bytes is left out"), "{}", read.stderr);
        assert!(read.stderr.contains("at most 4194265"), "{}", read.stderr);
    }

    #[test]
    fn w05_then_the_longer_output_is_cut_between_characters() {
        // Each of these is six bytes of JSON.
        let long = JobResult { stdout: "é".repeat(2_000_000), stderr: "why".into(), ..result() };
        let json = encode(long);
        assert!(json.len() <= RESULT_BYTES_MAX);
        let read = JobResult::parse(&json).unwrap();
        assert!(read.stdout.len() >= 500_000 && read.stdout.chars().all(|c| c == 'é'));
        assert!(read.stderr.starts_with("why\nheft: stdout of 4000000 bytes is cut to "), "{}", read.stderr);
    }
}
