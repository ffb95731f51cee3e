//! Builds results that no worker wrote, and replaces results that cannot be sent as written.

use uuid::Uuid;

use super::gathered;
use super::payloads::PayloadStore;
use crate::core::Broker;
use crate::core::ids::{JobId, ResultId};
use crate::core::job::{Ending, Job, Phase};
use crate::model::{BlobRef, JobResult, JobStatus, JsonModel, LostPart, WHOLE_RESULT};
use crate::store::replay::Key;
use crate::summed::Summed;

/// The result of a worker whose acks carry nothing (C03).
pub(super) fn plain_ok(job: Option<&Job>, id: JobId) -> Summed {
    let (client, exec) =
        job.map_or(("", ""), |job| (&*job.submission.client.0, &*job.submission.exec));
    JobResult::new(id.0, client, exec, JobStatus::Ok).to_json().into()
}

/// The result of a job that has ended.
pub(super) fn result_of(
    broker: &Broker,
    store: &PayloadStore,
    job: &Job,
    address: &str,
    announced: bool,
) -> Summed {
    let mut result = JobResult::new(
        job.id().0,
        &*job.submission.client.0,
        &*job.submission.exec,
        JobStatus::Failed,
    );
    match &job.phase {
        Phase::Done { ending: Ending::Returned { result: stored, ok, .. }, .. } => {
            if let Some(stored) = store.result(*stored) {
                return stored;
            }
            let key = Key::Result(*stored);
            let why = store.why_lost(key).unwrap_or("it is no longer held");
            let ended = if *ok { "OK" } else { "FAILED" };
            result.stderr =
                format!("heft: the job ended {ended}, but its result can no longer be read: {why}");
            // The status is FAILED: a client that does not know the member Lost must not take this
            // for a result.
            if announced {
                let (part, why) = (WHOLE_RESULT.to_owned(), why.to_owned());
                result.lost.push(LostPart { part, size: store.len_of(key), here: 0, why });
            }
        }
        Phase::Done { ending: Ending::Cancelled { by }, .. } => {
            result.stderr = format!("heft: cancelled by {by}")
        }
        Phase::Done { ending: Ending::Failed { why }, .. } => {
            result.stderr = format!("heft: {why}")
        }
        Phase::Done { ending: Ending::Orphaned, .. } => {
            result.stderr = "heft: the worker is gone".to_owned()
        }
        Phase::Done { ending: Ending::Gathered { ok }, .. } => {
            let lines = gathered::lines(broker, store, job, address);
            if *ok && lines.unlisted == 0 {
                result.status = JobStatus::Ok;
            }
            result.stdout = lines.text;
            if lines.unlisted > 0 {
                result.stderr = format!(
                    "heft: the job went to {} workers; {} of them are not listed here, because the \
                     list must fit a frame",
                    job.children.len(),
                    lines.unlisted
                );
            }
        }
        Phase::Dead { why, .. } => {
            let workers: Vec<String> = job
                .history
                .iter()
                .map(|note| {
                    format!(
                        "attempt {} at worker {}: {}",
                        note.attempt,
                        note.worker,
                        note.why.text()
                    )
                })
                .collect();
            result.stderr = format!(
                "heft: {} after {} attempts\n{}",
                why.text(),
                job.spent,
                workers.join("\n")
            );
            // What a classic client gets is what .NET would write.
            if announced {
                result.dead = true;
                result.attempts = Some(job.spent);
                result.run = Some(job.run.0);
            }
        }
        Phase::Queued { .. } | Phase::Leased { .. } | Phase::Gathering { .. } => {
            result.stderr = "heft: the job has not ended".to_owned();
        }
    }
    result.to_json().into()
}

/// The result that a worker returned for a job.
pub(super) fn returned(job: &Job) -> Option<ResultId> {
    job.returned().map(|(_, result)| result)
}

/// The result for a client that takes no transfers: it says where the rest is (C01).
pub(super) fn without_parts(whole: Summed, address: &str) -> Summed {
    let Ok(mut result) = JobResult::parse(&whole) else { return whole };
    let sizes = [
        ("archive", &result.archive),
        ("stdout", &result.stdout_blob),
        ("stderr", &result.stderr_blob),
    ];
    let parts: Vec<String> = sizes
        .iter()
        .filter_map(|(name, part)| {
            part.as_ref().map(|part| format!("{name} ({} bytes)", part.size))
        })
        .collect();
    if parts.is_empty() {
        // Others got it with parts that were made of it.
        return whole;
    }
    let note = format!(
        "\nheft: {} did not fit this connection's frames of {} bytes and is kept at the leader: fetch it with `heft \
         result get -l {address} {} --out DIR`",
        parts.join(", "),
        chunking::limits::FRAME_BODY_BYTES_MAX,
        result.job_id
    );
    result.stderr.push_str(&note);
    (result.archive, result.stdout_blob, result.stderr_blob) = (None, None, None);
    result.to_json().into()
}

/// The result of a job to all workers for a client that cannot ask for what is apart: it says how
/// to fetch it.
pub(super) fn with_results_apart(whole: Summed, job: JobId, address: &str) -> Summed {
    let Ok(mut result) = JobResult::parse(&whole) else { return whole };
    result.stderr.push_str(&format!(
        "\nheft: results that exceed this connection's frames of {} bytes are kept at the leader: \
         fetch the results of all workers with `heft result get -l {address} {job} --out DIR`",
        chunking::limits::FRAME_BODY_BYTES_MAX
    ));
    result.to_json().into()
}

/// The result without parts that the leader has lost: it says so, and why.
pub(super) fn without_lost(whole: Summed, lost: &[(Uuid, String)]) -> Summed {
    if lost.is_empty() {
        return whole;
    }
    let Ok(mut result) = JobResult::parse(&whole) else { return whole };
    let is_lost = |part: &mut BlobRef| lost.iter().any(|(id, _)| *id == part.id);
    let archive = result.archive.take_if(is_lost);
    result.archive_lost = archive.as_ref().map(|archive| archive.size).or(result.archive_lost);
    let (stdout, stderr) = (result.stdout.len() as u64, result.stderr.len() as u64);
    let parts = [
        ("archive", archive, 0),
        ("stdout", result.stdout_blob.take_if(is_lost), stdout),
        ("stderr", result.stderr_blob.take_if(is_lost), stderr),
    ];
    for (part, blob, here) in parts {
        let Some(blob) = blob else { continue };
        let why = lost
            .iter()
            .find(|(id, _)| *id == blob.id)
            .map(|(_, why)| why.as_str())
            .unwrap_or_default();
        let note = format!(
            "\nheft: the leader has lost the {part} of the result ({} bytes): {why}; submit the job anew",
            blob.size
        );
        result.stderr.push_str(&note);
        result.lost.push(LostPart {
            part: part.to_owned(),
            size: blob.size,
            here,
            why: why.to_owned(),
        });
    }
    result.to_json().into()
}

/// What is left of Stdout and Stderr, each, when a result has to be cut. In JSON a byte takes six
/// at the most.
const CUT_TEXT_BYTES: usize = 256 * 1024;

/// The result in smaller and smaller forms: without archives, with its texts cut, and at last only
/// that it was too large. What is left out is kept, and can be fetched.
pub(super) fn cut_down(job: &Job, whole: &[u8], address: &str) -> impl Iterator<Item = Summed> {
    let mut forms = Vec::new();
    if let Ok(mut result) = JobResult::parse(whole) {
        let mut left_out = Vec::new();
        if let Some(archive) = result.output_archive.take().filter(|archive| !archive.is_empty()) {
            left_out.push(format!("its archive ({} bytes)", archive.len()));
            result.archive_lost = Some(archive.len() as u64);
        }
        if !left_out.is_empty() {
            forms.push(with_note(job, result.clone(), &left_out, address));
        }
        for (name, text) in [("Stdout", &mut result.stdout), ("Stderr", &mut result.stderr)] {
            if text.len() > CUT_TEXT_BYTES {
                left_out.push(format!("the rest of {name} ({} bytes in all)", text.len()));
                text.truncate(text.floor_char_boundary(CUT_TEXT_BYTES));
            }
        }
        forms.push(with_note(job, result, &left_out, address));
    }
    let mut failed = JobResult::new(job.id().0, "", "", JobStatus::Failed);
    failed.stderr = format!(
        "heft: the job ended, but its result of {} bytes does not fit a frame of {} bytes",
        whole.len(),
        chunking::limits::FRAME_BODY_BYTES_MAX
    );
    forms.push(failed.to_json().into());
    forms.into_iter()
}

/// A result of which something was left out, with how to fetch it.
fn with_note(job: &Job, mut result: JobResult, left_out: &[String], address: &str) -> Summed {
    result.stderr.push_str(&format!(
        "\nheft: {} did not fit a frame of {} bytes and is kept at the leader: fetch the whole result with `heft result get \
         -l {address} {} --out DIR`",
        left_out.join(", "),
        chunking::limits::FRAME_BODY_BYTES_MAX,
        job.id()
    ));
    result.to_json().into()
}
