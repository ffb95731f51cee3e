//! Makes a result fit its frame: an AckJob's body has at most 4,194,304 bytes (W05).
//!
//! Excess data goes by transfer: first the archive, then the longer of the two outputs, whose
//! beginning stays as text. For a leader without transfers it is left out, and Stderr states its
//! size and the limit. Both forms are made when an attempt ends, because the leader may be a
//! different one by the time it asks. Blocking, as it reads small archives from files; sessions
//! call it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use chunking::Digest;
use chunking::message::Purpose;
use uuid::Uuid;

use super::handler::{Attachment, Content};
use super::limits::{ARCHIVE_INLINE_BYTES_MAX, RESULT_BYTES_MAX, TEXT_HEAD_BYTES};
use crate::model::blob_id;
use crate::model::{BlobRef, JobResult, JobStatus, JsonModel};

/// A result as it can be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// As one frame; what does not fit is left out.
    pub(super) payload: Bytes,
    /// With parts that go by transfer, if it does not fit.
    pub(super) large: Option<Arc<Large>>,
}

impl<B: Into<Bytes>> From<B> for Answer {
    fn from(payload: B) -> Self {
        Answer { payload: payload.into(), large: None }
    }
}

impl Answer {
    /// Bytes of memory that it takes, without parts that lie in memory: those are bounded by the
    /// places they hold.
    pub(super) fn weight(&self) -> usize {
        let large = self.large.as_ref().map_or(0, |large| large.result.json_bytes());
        self.payload.len().saturating_add(large)
    }
}

/// A result whose large parts go by transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Large {
    /// The result, with a reference to each part.
    pub(super) result: JobResult,
    pub(super) parts: Vec<Part>,
}

/// A part of a result that goes by transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) id: Uuid,
    pub(super) purpose: Purpose,
    pub(super) bytes: u64,
    pub(super) content: Content,
}

/// Where a result refers to its part of this purpose.
pub(super) fn reference(result: &mut JobResult, purpose: Purpose) -> Option<&mut Option<BlobRef>> {
    match purpose {
        Purpose::Archive => Some(&mut result.archive),
        Purpose::Stdout => Some(&mut result.stdout_blob),
        Purpose::Stderr => Some(&mut result.stderr_blob),
        Purpose::Input | Purpose::Dataset | Purpose::Payload => None,
    }
}

impl Large {
    /// The result as JSON, once the digests of its parts are known.
    pub(super) fn payload(&self, digests: &HashMap<Uuid, Digest>) -> Vec<u8> {
        let mut result = self.result.clone();
        for part in &self.parts {
            if let Some(Some(blob)) = reference(&mut result, part.purpose) {
                blob.digest = digests.get(&part.id).copied();
            }
        }
        result.to_json()
    }

    /// Whether parts of it lie in memory. Then its job's place is not free before the leader has
    /// it, or a worker that cannot get rid of its results would fill its memory with more.
    pub(super) fn is_in_memory(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.content, Content::Memory(_)))
    }

    /// Bytes of its parts.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// The files among its parts.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.parts.iter().filter_map(|part| match &part.content {
            Content::File(path) => Some(path.clone()),
            Content::Memory(_) => None,
        })
    }

    fn add(&mut self, job: Uuid, attempt: u32, attached: Attachment, bytes: u64) {
        let Attachment { purpose, content } = attached;
        let id = blob_id(job, attempt, purpose, 0);
        if let Some(blob) = reference(&mut self.result, purpose) {
            *blob = Some(BlobRef { id, size: bytes, digest: None });
            self.parts.push(Part { id, purpose, bytes, content });
        }
    }
}

/// Makes a result and what was attached to it ready to be sent.
pub(super) fn fit(mut result: JobResult, attached: Vec<Attachment>, attempt: u32) -> Answer {
    let mut parts = Vec::new();
    for part in attached {
        match part.content.bytes() {
            Ok(bytes) => parts.push((part, bytes)),
            Err(error) => {
                let note = format!(
                    "the {} that the job attached cannot be read: {error}",
                    word(part.purpose)
                );
                append_note(&mut result.stderr, &note);
                result.status = JobStatus::Failed;
            }
        }
    }
    let archive = parts.iter().position(|(part, _)| part.purpose == Purpose::Archive);
    let mut archive = archive.map(|at| parts.remove(at));
    if let Some(inline) = archive.as_ref().and_then(|(part, bytes)| inline(part, *bytes)) {
        match inline {
            Ok(bytes) => result.output_archive = Some(bytes),
            Err(error) => {
                append_note(
                    &mut result.stderr,
                    &format!("the archive that the job attached cannot be read: {error}"),
                );
                result.status = JobStatus::Failed;
                archive = None;
            }
        }
    }
    let lost =
        archive.as_ref().filter(|_| result.output_archive.is_none()).map(|(_, bytes)| *bytes);
    if parts.is_empty() && lost.is_none() {
        let json = result.to_json();
        if json.len() <= RESULT_BYTES_MAX {
            archive.iter().for_each(|(part, _)| remove(&part.content));
            return json.into();
        }
    }
    let large = enlarge(result.clone(), archive, &parts, attempt);
    let large = large.filter(|large| !large.parts.is_empty()).map(Arc::new);
    Answer { payload: encode(cut(result, lost, &parts)).into(), large }
}

/// The archive's bytes, if they may fit a result.
fn inline(archive: &Attachment, bytes: u64) -> Option<io::Result<Vec<u8>>> {
    let fits = bytes <= ARCHIVE_INLINE_BYTES_MAX as u64;
    fits.then(|| match &archive.content {
        Content::File(path) => fs::read(path),
        Content::Memory(bytes) => Ok(bytes.to_vec()),
    })
}

/// What a result of our own making is replaced by is not needed any more.
fn remove(content: &Content) {
    if let Content::File(path) = content {
        // It lies in a directory that is removed later, if this does not work.
        fs::remove_file(path).ok();
    }
}

/// The result with parts that go by transfer; `None` if it does not fit even so.
fn enlarge(
    mut result: JobResult,
    archive: Option<(Attachment, u64)>,
    parts: &[(Attachment, u64)],
    attempt: u32,
) -> Option<Large> {
    let job = result.job_id;
    let inline = result.output_archive.take();
    let mut large = Large { result, parts: Vec::new() };
    for (part, bytes) in parts {
        if let Some(text) = text(&mut large.result, part.purpose) {
            shorten(text);
        }
        large.add(job, attempt, part.clone(), *bytes);
    }
    large.result.output_archive = inline;
    if large.result.to_json().len() > RESULT_BYTES_MAX {
        let inline = large.result.output_archive.take();
        if let Some((part, bytes)) = archive {
            large.add(job, attempt, part, bytes);
        } else if let Some(archive) = inline {
            let bytes = archive.len() as u64;
            let content = Content::Memory(archive.into());
            large.add(job, attempt, Attachment { purpose: Purpose::Archive, content }, bytes);
        }
    } else if let Some((part, bytes)) = archive {
        match large.result.output_archive {
            Some(_) => remove(&part.content),
            None => large.add(job, attempt, part, bytes),
        }
    }
    while large.result.to_json().len() > RESULT_BYTES_MAX {
        let longer = match large.result.stdout.len() >= large.result.stderr.len() {
            true => Purpose::Stdout,
            false => Purpose::Stderr,
        };
        let is_part = large.parts.iter().any(|part| part.purpose == longer);
        let text = text(&mut large.result, longer)
            .filter(|text| !is_part && text.len() > TEXT_HEAD_BYTES)?;
        let whole = text.clone();
        shorten(text);
        let bytes = whole.len() as u64;
        let content = Content::Memory(whole.into());
        large.add(job, attempt, Attachment { purpose: longer, content }, bytes);
    }
    large.parts.sort_by_key(|part| part.purpose as u8);
    Some(large)
}

/// Leaves the beginning of a text, and our own lines at its end.
fn shorten(text: &mut String) {
    if text.len() <= TEXT_HEAD_BYTES {
        return;
    }
    let (_, tail) =
        text.split_at(text.ceil_char_boundary(text.len().saturating_sub(NOTES_BYTES_MAX)));
    let ours = tail.split_inclusive('\n').rev().take_while(|line| line.starts_with(NOTE));
    let mut ours: Vec<&str> = ours.collect();
    ours.reverse();
    let ours = ours.concat();
    text.truncate(text.floor_char_boundary(TEXT_HEAD_BYTES));
    if !ours.is_empty() {
        text.push('\n');
        text.push_str(&ours);
    }
}

fn text(result: &mut JobResult, purpose: Purpose) -> Option<&mut String> {
    match purpose {
        Purpose::Stdout => Some(&mut result.stdout),
        Purpose::Stderr => Some(&mut result.stderr),
        Purpose::Archive | Purpose::Input | Purpose::Dataset | Purpose::Payload => None,
    }
}

fn word(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Archive => "archive",
        Purpose::Stdout => "stdout",
        Purpose::Stderr => "stderr",
        Purpose::Input | Purpose::Dataset | Purpose::Payload => "part",
    }
}

/// The result without its parts, for a leader that takes no transfers.
fn cut(mut result: JobResult, archive_lost: Option<u64>, parts: &[(Attachment, u64)]) -> JobResult {
    let stdout = result.stdout.len();
    let stderr = result.stderr.len();
    for (part, bytes) in parts {
        let kept = if part.purpose == Purpose::Stdout { stdout } else { stderr };
        let output = word(part.purpose);
        append_note(
            &mut result.stderr,
            &format!("{output} had {bytes} bytes; the first {kept} are kept"),
        );
    }
    if let Some(bytes) = archive_lost {
        result.archive_lost = Some(bytes);
        let note = format!(
            "the archive of {bytes} bytes is left out: this leader takes no transfers, and a result has at most \
             {RESULT_BYTES_MAX} bytes: use a heft leader, or let the job leave fewer or smaller files"
        );
        append_note(&mut result.stderr, &note);
    }
    result
}

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
        // Escapes make a text up to six times longer, differently from place to place: halving
        // finds what fits in a few steps.
        let longer = if result.stdout.len() >= result.stderr.len() {
            &mut result.stdout
        } else {
            &mut result.stderr
        };
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

/// How a line of ours begins.
const NOTE: &str = "heft: ";

/// The longest end of a text that is searched for lines of ours; they are a few, of a few hundred
/// bytes each.
const NOTES_BYTES_MAX: usize = 4096;

/// Adds a line of ours to a program's output.
pub(super) fn append_note(text: &mut String, note: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(NOTE);
    text.push_str(note);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn result() -> JobResult {
        JobResult {
            stdout: "out".into(),
            ..JobResult::new(Uuid::from_u128(1), "c", "x", JobStatus::Ok)
        }
    }

    fn attached(purpose: Purpose, content: Content) -> Attachment {
        Attachment { purpose, content }
    }

    #[test]
    fn a_small_archive_in_a_file_goes_inside_and_the_file_goes() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("archive");
        fs::write(&path, "zip").unwrap();
        let answer =
            fit(result(), vec![attached(Purpose::Archive, Content::File(path.clone()))], 3);
        let read = JobResult::parse(&answer.payload).unwrap();
        assert_eq!((read.output_archive.as_deref(), answer.large), (Some(&b"zip"[..]), None));
        assert!(!path.exists());
        let gone = fit(result(), vec![attached(Purpose::Archive, Content::File(path))], 3);
        let read = JobResult::parse(&gone.payload).unwrap();
        assert_eq!((read.status, gone.large), (JobStatus::Failed, None));
        assert!(
            read.stderr.contains("the archive that the job attached cannot be read"),
            "{}",
            read.stderr
        );
    }

    #[test]
    fn large_parts_are_named_with_size_and_later_digest_and_left_out_for_a_classic_leader() {
        let big = Bytes::from(vec![7; RESULT_BYTES_MAX]);
        let parts = vec![
            attached(Purpose::Archive, Content::Memory(big.clone())),
            attached(Purpose::Stdout, Content::Memory(big.clone())),
        ];
        let long = JobResult { stdout: "o".repeat(100_000), ..result() };
        let answer = fit(long, parts, 3);
        let large = answer.large.clone().unwrap();
        assert!(answer.large.as_ref().is_some_and(|large| large.is_in_memory()));
        assert!(answer.weight() < RESULT_BYTES_MAX);
        let id = blob_id(Uuid::from_u128(1), 3, Purpose::Stdout, 0);
        let digest = Digest { kind: chunking::DigestKind::ChunkList, bytes: [1; 32] };
        let read = JobResult::parse(&large.payload(&[(id, digest)].into())).unwrap();
        assert_eq!(
            read.stdout_blob,
            Some(BlobRef { id, size: big.len() as u64, digest: Some(digest) })
        );
        assert_eq!(read.archive.map(|blob| blob.size), Some(big.len() as u64));
        assert_eq!(
            (read.stdout.len(), read.stderr.as_str(), read.archive_lost),
            (TEXT_HEAD_BYTES, "", None)
        );
        assert_eq!(large.parts.len(), 2);

        let classic = JobResult::parse(&answer.payload).unwrap();
        assert_eq!((classic.stdout.len(), classic.archive_lost), (100_000, Some(big.len() as u64)));
        assert!(
            classic.stderr.contains("stdout had 4194265 bytes; the first 100000 are kept"),
            "{}",
            classic.stderr
        );
        assert!(classic.stderr.contains("takes no transfers"), "{}", classic.stderr);
    }

    #[test]
    fn what_a_handler_gave_inside_a_result_goes_as_parts_too_if_it_must() {
        let big = JobResult {
            output_archive: Some(vec![1; ARCHIVE_INLINE_BYTES_MAX]),
            stdout: "é".repeat(1_500_000),
            ..result()
        };
        let large = fit(big, Vec::new(), 1).large.unwrap();
        let purposes: Vec<_> = large.parts.iter().map(|part| (part.purpose, part.bytes)).collect();
        let archive = ARCHIVE_INLINE_BYTES_MAX as u64;
        assert_eq!(purposes, [(Purpose::Archive, archive), (Purpose::Stdout, 3_000_000)]);
        assert!(large.payload(&HashMap::new()).len() < 1_000_000);

        let mut noisy = JobResult { stderr: "e".repeat(100_000), ..result() };
        append_note(&mut noisy.stderr, "the program ended with exit code 3");
        let parts = vec![attached(Purpose::Stderr, Content::Memory("e".repeat(200_000).into()))];
        let stderr = fit(noisy, parts, 1).large.unwrap().result.stderr.clone();
        assert!(
            stderr.ends_with("e\nheft: the program ended with exit code 3\n")
                && stderr.len() < 66_000
        );

        let with_small = JobResult { output_archive: Some(vec![1; 1000]), ..result() };
        let parts = vec![attached(Purpose::Stderr, Content::Memory("e".repeat(5000).into()))];
        let large = fit(with_small, parts, 1).large.unwrap();
        assert_eq!(
            large.result.output_archive.as_ref().map(Vec::len),
            Some(1000),
            "it fits beside the others"
        );
        assert_eq!(large.parts.len(), 1);
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
        assert_eq!(
            fit(JobResult { exec_name: "x".repeat(RESULT_BYTES_MAX), ..result() }, vec![], 1).large,
            None
        );
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
        assert!(
            read.stderr.starts_with("why\nheft: stdout of 4000000 bytes is cut to "),
            "{}",
            read.stderr
        );
    }
}
