//! What a job's request says to the leader, and how it is rewritten for classic workers.

use std::time::Duration;

use bytes::Bytes;
use chunking::limits::FRAME_BODY_BYTES_MAX;
use uuid::Uuid;

use super::children::for_child;
use super::relay::BlobId;
use crate::conn::{Session, SubmitBody};
use crate::core::event::{Inputs, Submission};
use crate::core::ids::{CacheId, JobId};
use crate::core::limits::DATASETS_PER_JOB_MAX;
use crate::core::names::{self, NameUse, SafeName};
use crate::core::payload::FileNames;
use crate::core::subject::{ROUTING_KEY_BYTES_MAX, routing_key};
use crate::model::{BlobRef, Deliver, InputFile, JobRequest, JsonModel, ModelError, Source};

/// Inputs that came with the job and are blobs here.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) blobs: Vec<BlobId>,
    /// What tells a repetition, whatever ids the blobs have.
    pub(super) fingerprint: [u8; 32],
}

/// The blobs that a request names: id, name and size of each.
pub(super) fn named_in(request: &JobRequest) -> Vec<(BlobId, String, u64)> {
    let blob = |file: &InputFile| {
        let Source::Blob(BlobRef { id, size, .. }) = file.source() else { return None };
        Some((*id, file.name.clone(), *size))
    };
    request.files.iter().filter_map(blob).collect()
}

/// The id of a job: that of its request, else that of its frame, else a new one.
pub(super) fn job_id(
    named: Option<Uuid>,
    msg_id: Uuid,
    make_id: &mut dyn FnMut() -> Uuid,
) -> JobId {
    let id = named.into_iter().chain([msg_id]).find(|id| !id.is_nil());
    JobId(id.unwrap_or_else(make_id))
}

/// What the broker is to know of a job, but for what is known of its inputs.
pub(super) fn submission(
    job: JobId,
    body: &SubmitBody,
    request: Option<&JobRequest>,
    from_ours: bool,
) -> Result<Submission, String> {
    let exec = request.map_or("", |request| request.exec_name.as_str());
    let key = routing_key(&body.subject, Some(exec)).map_err(|error| error.to_string())?;
    request.map_or(Ok(()), stays_inside).map_err(|error| error.to_string())?;
    let datasets = request.map(datasets_in).unwrap_or_default();
    let names = request.map_or(FileNames::Plain, file_names);
    if datasets.len() > DATASETS_PER_JOB_MAX {
        return Err(format!(
            "the job names {} datasets; the limit is {DATASETS_PER_JOB_MAX}: put files that are \
             used together into one dataset",
            datasets.len()
        ));
    }
    let sent = request.map(|request| classic_len(request, &body.payload, names, from_ours));
    let fits_classic = sent.is_none_or(|sent| fits_assignment(key.as_str(), sent));
    Ok(Submission {
        job,
        client: body.client.clone(),
        key,
        exec: exec.into(),
        priority: request.map_or(0, |request| request.priority),
        to_all: request.is_some_and(|request| request.deliver == Deliver::All),
        size: 0,
        fingerprint: [0; 32],
        inputs: Inputs::Here,
        needs_transfers: !fits_classic,
        require_worker: request.is_some_and(|request| request.require_worker),
        datasets,
        names,
        tag: request.and_then(|request| request.tag.as_deref()).map(Into::into),
    })
}

/// How long a job may run, if its request says so.
pub(super) fn time_limit_in(payload: &[u8]) -> Option<Duration> {
    let member = b"TimeLimitMs";
    // Most name none, and need not be read for it.
    let names_one = payload.windows(member.len()).any(|window| window == member);
    let request = names_one.then(|| JobRequest::parse(payload).ok()).flatten()?;
    request.time_limit_ms.map(Duration::from_millis)
}

/// Whether a payload of this size can be sent to a worker: the frame's body has its limit, whatever
/// the job came in.
pub(super) fn fits_assignment(key: &str, payload_bytes: usize) -> bool {
    Session::assign_body_len(key, payload_bytes) <= FRAME_BODY_BYTES_MAX as usize
}

/// Bytes of a payload as a worker is sent it. A child travels under its own id, in JSON of our own
/// writing, which may be longer.
pub(super) fn sent_len(payload: &Bytes, to_all: bool) -> usize {
    if to_all { for_child(payload, JobId(Uuid::nil())).len() } else { payload.len() }
}

/// The same of a request for a classic worker, in the longest of the forms that it may be sent in:
/// with the path of each cached file in its CacheId (C02), which a classic client's is sent in only
/// if that fits, and without folders. Those are JSON of our own writing.
pub(super) fn classic_len(
    request: &JobRequest,
    payload: &[u8],
    names: FileNames,
    from_ours: bool,
) -> usize {
    let is_flat = names == FileNames::Flattened;
    let with_paths = if from_ours { with_paths(request, |_| true) } else { None };
    let forms = [with_paths, is_flat.then(|| request.clone())];
    let lens = forms.into_iter().flatten().map(|request| in_json(request, is_flat).len());
    lens.max().unwrap_or(payload.len())
}

/// Whether a job fits no assignment as it came, and has contents that can go apart from it.
pub(super) fn is_to_be_taken_apart(body: &SubmitBody) -> bool {
    // Most are so small that they need not be read for it.
    let most = Session::assign_body_len("", body.payload.len())
        .saturating_add(ROUTING_KEY_BYTES_MAX)
        .saturating_add(ID_MEMBER_BYTES);
    if most <= FRAME_BODY_BYTES_MAX as usize {
        return false;
    }
    let Ok(request) = JobRequest::parse(&body.payload) else { return false };
    let Ok(key) = routing_key(&body.subject, Some(&request.exec_name)) else { return false };
    let id = if request.job_id.is_nil() { ID_MEMBER_BYTES } else { 0 };
    let sent = sent_len(&body.payload, request.deliver == Deliver::All).saturating_add(id);
    let has_content =
        |file: &InputFile| matches!(file.source(), Source::Inline(content) if !content.is_empty());
    request.files.iter().any(has_content) && !fits_assignment(key.as_str(), sent)
}

/// A request with the path of each cached file in its CacheId, for the ids for which `is_dataset`
/// holds; `None` if there is no such file.
pub(super) fn with_paths(
    request: &JobRequest,
    is_dataset: impl Fn(&str) -> bool,
) -> Option<JobRequest> {
    let path = |file: &InputFile| {
        let Source::Cache(id) = file.source() else { return None };
        is_dataset(id).then(|| format!("{id}/{}", file.name_in_dataset()))
    };
    let paths: Vec<Option<String>> = request.files.iter().map(path).collect();
    paths.iter().any(Option::is_some).then(|| {
        let mut request = request.clone();
        for (file, path) in request.files.iter_mut().zip(paths) {
            file.cache_id = path.or(file.cache_id.take());
        }
        request
    })
}

/// A request as a classic worker gets it: without the folders of its files, where it says so.
pub(super) fn in_json(mut request: JobRequest, is_flat: bool) -> Bytes {
    for file in request.files.iter_mut().filter(|_| is_flat) {
        file.name = names::without_folders(&file.name).to_owned();
    }
    request.to_json().into()
}

/// What the names of a request's files are to classic workers. What no worker takes is not told
/// apart: any says what is wrong with it.
pub(super) fn file_names(request: &JobRequest) -> FileNames {
    let names = || request.files.iter().map(|file| file.name.as_str());
    let is_in_folder =
        |name: &str| !names::is_flat(name) && SafeName::parse(NameUse::File, name).is_ok();
    match () {
        () if !names().any(is_in_folder) => FileNames::Plain,
        () if request.flatten && names::flattened(names()).is_ok() => FileNames::Flattened,
        () => FileNames::Folders,
    }
}

/// Makes files of a dataset of a request's large inputs.
pub(super) fn by_dataset(request: &mut JobRequest, cache: &CacheId) {
    for file in request.files.iter_mut().filter(|file| matches!(file.source(), Source::Blob(_))) {
        (file.blob, file.content) = (None, None);
        (file.cache_id, file.cache_name) = (Some(cache.as_str().to_owned()), None);
    }
}

/// A request without an id, under this one. A classic worker acks the id that the request names,
/// not the frame's, so one without is never heard of again. All else stays as it is, and of two
/// equal names the last counts (M14).
pub(super) fn with_id(payload: &Bytes, id: JobId) -> Bytes {
    let Some(end) = payload.iter().rposition(|byte| *byte == b'}') else { return payload.clone() };
    let (before, after) = payload.split_at(end);
    let member = format!(",\"JobId\":\"{id}\"");
    debug_assert_eq!(member.len(), ID_MEMBER_BYTES);
    [before, member.as_bytes(), after].concat().into()
}

/// Bytes that this adds.
pub(super) const ID_MEMBER_BYTES: usize = ",\"JobId\":\"\"".len() + uuid::fmt::Hyphenated::LENGTH;

/// The datasets that a request's files are of, each once. What cannot be one's id is a file's own,
/// in the flat form (C02).
pub(super) fn datasets_in(request: &JobRequest) -> Vec<CacheId> {
    let cache = |file: &InputFile| {
        let Source::Cache(cache_id) = file.source() else { return None };
        // Clients may not name the leader's internal staged-input datasets.
        CacheId::parse(cache_id).ok().filter(|cache| !cache.is_the_leaders())
    };
    let files = request.files.iter().filter(|file| file.blob.is_none());
    let mut datasets: Vec<CacheId> = files.filter_map(cache).collect();
    datasets.sort_unstable();
    datasets.dedup();
    datasets
}

/// Names that a worker looks for in a directory of its own lead nowhere else. Classic workers do
/// not check that.
pub(super) fn stays_inside(request: &JobRequest) -> Result<(), names::NameError> {
    names::stays_inside(NameUse::Program, &request.exec_name)?;
    for file in &request.files {
        if let Source::Cache(cache) = file.source() {
            names::stays_inside(NameUse::Cache, cache)?;
            names::stays_inside(NameUse::File, file.name_in_dataset())?;
        }
    }
    Ok(())
}

/// Whether a payload is not a JobRequest at all, rather than a bad one.
pub(super) fn is_another_thing(error: &ModelError) -> bool {
    let names_no_program =
        matches!(error, ModelError::Missing { place, .. } if place.member == Some("ExecName"));
    names_no_program || matches!(error, ModelError::NotJson { .. } | ModelError::NotObject { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ca12_a_job_names_the_datasets_of_files_that_bring_no_content_of_their_own() {
        let cached = |name: &str, id: &str| InputFile::cached(name, id);
        let blob = BlobRef { id: Uuid::from_u128(1), size: 1, digest: None };
        let request = JobRequest {
            files: vec![
                cached("b.bin", "set-b"),
                cached("a.bin", "set-a"),
                cached("a2.bin", "set-a"),
                InputFile { content: Some(b"inline".to_vec()), ..cached("c.bin", "inline-wins") },
                InputFile { content: Some(Vec::new()), ..cached("d.bin", "empty-does-not") },
                InputFile { blob: Some(blob), ..cached("e.bin", "by-transfer") },
                cached("f.bin", "flat/form"),
                cached("g.bin", ""),
                InputFile::inline("h.bin", b"x".to_vec()),
            ],
            ..JobRequest::default()
        };
        let named: Vec<String> = datasets_in(&request).iter().map(ToString::to_string).collect();
        assert_eq!(named, ["empty-does-not", "set-a", "set-b"]);
    }
}
