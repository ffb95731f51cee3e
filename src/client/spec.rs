//! A job as submitted: the request, its files, and how each file is sent.
//!
//! A job that fits one classic frame carries its files inside the request, so any leader takes it.
//! Otherwise every file that is not small becomes a blob, named in the request and sent separately.
//! The choice depends on the job alone, so a resubmission names the same bytes in the same way.
//! Small files are read here; large ones are read by their uploads.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use chunking::limits::{CHUNK_BYTES_MAX, FRAME_BODY_BYTES_MAX, SUBJECT_BYTES_MAX};
use chunking::message::{Name, Purpose};
use chunking::{ChunkPlan, DigestKind, Generation};
use uuid::Uuid;

use super::error::ClientError;
use super::unsupported::Wishes;
use crate::core::subject::routing_key;
use crate::model::blob_id;
use crate::model::{BlobRef, InputFile, JobRequest, JsonModel};
use crate::transfer::{Blob, Compression, Source};

/// Files of up to this size stay inside the request of a job that has blobs: a transfer of their
/// own would take longer.
const INLINE_BYTES_MAX: u64 = 64 * 1024;

/// An input file of a job and where its bytes are.
#[derive(Clone, Debug)]
pub struct Input {
    /// The name in the job's directory.
    pub name: String,
    /// The bytes.
    pub source: Source,
}

/// A job to be submitted. A [`JobRequest`] alone is one, too.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// What is asked for. Its own files come before `inputs`.
    pub request: JobRequest,
    /// Files that go with it, of any size. Those on disk must not change before the job has ended.
    pub inputs: Vec<Input>,
    /// The digest of files that go as blobs.
    pub digest: DigestKind,
    /// How their chunks are compressed.
    pub compression: Compression,
    /// Whether this client leaves the job with the leader once that has it: then the leader keeps
    /// the files for as long as the job needs them, and the result until somebody fetches it. The
    /// job's events end with [`JobEvent::Submitted`](super::JobEvent::Submitted). A classic leader
    /// is sent no such job.
    pub detached: bool,
}

impl From<JobRequest> for JobSpec {
    fn from(request: JobRequest) -> Self {
        JobSpec {
            request,
            inputs: Vec::new(),
            digest: DigestKind::ChunkList,
            compression: Compression::default(),
            detached: false,
        }
    }
}

impl JobSpec {
    /// Adds a file on disk, as it is now.
    pub fn file(mut self, name: impl Into<String>, path: impl Into<PathBuf>) -> io::Result<Self> {
        let source = Source::file(path)?;
        self.inputs.push(Input { name: name.into(), source });
        Ok(self)
    }

    /// Adds a file whose bytes are in memory. They are never copied unless they go inside the
    /// request.
    #[must_use]
    pub fn bytes(mut self, name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        self.inputs.push(Input { name: name.into(), source: Source::Memory(bytes.into()) });
        self
    }
}

/// A job that is ready to be sent.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) id: Uuid,
    pub(super) subject: String,
    pub(super) payload: Bytes,
    pub(super) blobs: Vec<Blob>,
    pub(super) wishes: Wishes,
    /// Whether its result is left with the leader.
    pub(super) detached: bool,
}

impl Prepared {
    /// Bytes of files that go as transfers.
    pub(super) fn upload_bytes(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.source.size()).fold(0, u64::saturating_add)
    }

    /// Bytes that are kept in memory until the job ends.
    pub(super) fn memory_bytes(&self) -> usize {
        let blobs = self.blobs.iter().map(|blob| blob.source.memory_bytes());
        blobs.fold(self.payload.len(), usize::saturating_add)
    }
}

/// What a frame with this subject leaves for its payload.
pub(super) fn payload_room(subject: &str) -> Result<u64, ClientError> {
    if subject.len() > SUBJECT_BYTES_MAX {
        return Err(ClientError::SubjectTooLong { bytes: subject.len(), limit: SUBJECT_BYTES_MAX });
    }
    let head = chunking::frame::head_len(Generation::F2, subject) - chunking::frame::LENGTH_BYTES;
    Ok(u64::from(FRAME_BODY_BYTES_MAX).saturating_sub(head as u64))
}

/// What the frame leaves for it in which a leader sends it on: that has another subject, which
/// names the worker too (T02).
fn assigned_room(subject: &str, exec: &str) -> u64 {
    // A subject that is not a key is refused by the leader, with what is wrong with it.
    let key = routing_key(subject, Some(exec)).map_or(0, |key| key.as_str().len());
    let assigned = key + 1 + uuid::fmt::Hyphenated::LENGTH;
    let head =
        chunking::frame::head_len(Generation::F2, "") - chunking::frame::LENGTH_BYTES + assigned;
    u64::from(FRAME_BODY_BYTES_MAX).saturating_sub(head as u64)
}

/// Fills in what the request leaves to the client, and decides how its files go. JobId and MsgId
/// are the same (M17).
pub(super) async fn prepared(
    mut spec: JobSpec,
    subject: &str,
    client_id: &str,
) -> Result<Prepared, ClientError> {
    if spec.request.job_id.is_nil() {
        spec.request.job_id = Uuid::new_v4();
    }
    if spec.request.client_id.is_empty() {
        client_id.clone_into(&mut spec.request.client_id);
    }
    let (id, subject) = (spec.request.job_id, subject.to_owned());
    let inputs = spec.inputs.iter().map(|input| input.name.as_str());
    let detached = spec.detached;
    let wishes = Wishes::of(&spec.request, inputs, &subject).detached(detached);
    let room = payload_room(&subject)?.min(assigned_room(&subject, &spec.request.exec_name));
    let on_disk = |input: &Input| matches!(input.source, Source::File(_));
    let (payload, blobs) = match spec.inputs.iter().any(on_disk) {
        true => {
            let built = tokio::task::spawn_blocking(move || build(spec, room)).await;
            built.unwrap_or(Err(ClientError::Closed))?
        }
        false => build(spec, room)?,
    };
    Ok(Prepared { id, subject, payload, blobs, wishes, detached })
}

/// A file of the job, with its bytes apart.
struct Part {
    file: InputFile,
    source: Option<Source>,
}

/// The request, and the files that go beside it.
fn build(spec: JobSpec, room: u64) -> Result<(Bytes, Vec<Blob>), ClientError> {
    if spec.inputs.is_empty() && spec.request.json_bytes() as u64 <= room {
        let payload = Bytes::from(spec.request.to_json());
        if payload.len() as u64 <= room {
            return Ok((payload, Vec::new()));
        }
    }
    let JobSpec { mut request, inputs, digest, compression, detached } = spec;
    let own = std::mem::take(&mut request.files).into_iter().map(|mut file| {
        let content = file.content.take_if(|content| !content.is_empty());
        Part { file, source: content.map(|content| Source::Memory(content.into())) }
    });
    let beside = inputs.into_iter().map(|input| {
        let file = InputFile { name: input.name, ..InputFile::default() };
        Part { file, source: Some(input.source) }
    });
    let parts = own.chain(beside).collect();
    let builder = Builder { parts, request, digest, compression, keeps_source: !detached };
    let sizes = builder.parts.iter().filter_map(|part| part.source.as_ref()).map(Source::size);
    let inline_bytes = sizes.fold(0, |sum: u64, size| sum.saturating_add(base64_bytes(size)));
    // All inside; all but the small ones as blobs; all as blobs.
    let mut smallest = inline_bytes;
    for inline_max in [u64::MAX, INLINE_BYTES_MAX, 0] {
        if inline_max == u64::MAX && inline_bytes > room {
            continue;
        }
        let (payload, blobs) = builder.built(inline_max)?;
        if payload.len() as u64 <= room {
            return Ok((payload, blobs));
        }
        smallest = payload.len() as u64;
    }
    Err(too_large(smallest, room))
}

/// Of a payload that does not fit what its frame leaves for it.
pub(super) fn too_large(payload_bytes: u64, room: u64) -> ClientError {
    let limit = u64::from(FRAME_BODY_BYTES_MAX);
    ClientError::TooLarge { bytes: payload_bytes.saturating_add(limit.saturating_sub(room)), limit }
}

fn base64_bytes(size: u64) -> u64 {
    size.div_ceil(3).saturating_mul(4)
}

struct Builder {
    parts: Vec<Part>,
    request: JobRequest,
    digest: DigestKind,
    compression: Compression,
    keeps_source: bool,
}

impl Builder {
    /// The job with files of up to `inline_max` bytes inside.
    fn built(&self, inline_max: u64) -> Result<(Bytes, Vec<Blob>), ClientError> {
        let mut request = self.request.clone();
        let mut blobs = Vec::new();
        for (place, part) in (0..).zip(&self.parts) {
            let mut file = part.file.clone();
            match &part.source {
                Some(source) if source.size() > inline_max => {
                    let blob = self.blob(place, &file.name, source)?;
                    file.blob = Some(BlobRef { id: blob.id, size: source.size(), digest: None });
                    blobs.push(blob);
                }
                Some(source) => file.content = Some(content(&file.name, source, inline_max)?),
                None => {}
            }
            request.files.push(file);
        }
        Ok((request.to_json().into(), blobs))
    }

    fn blob(&self, place: u32, name: &str, source: &Source) -> Result<Blob, ClientError> {
        let bad = |why: String| ClientError::BadInput { name: name.to_owned(), why };
        ChunkPlan::new(source.size(), CHUNK_BYTES_MAX).map_err(|error| bad(error.to_string()))?;
        Ok(Blob {
            id: blob_id(self.request.job_id, 0, Purpose::Input, place),
            purpose: Purpose::Input,
            owner: self.request.job_id,
            attempt: 0,
            name: Name::try_from(name.to_owned()).map_err(|error| bad(error.to_string()))?,
            digest: self.digest,
            compression: self.compression,
            keeps_source: self.keeps_source,
            source: source.clone(),
        })
    }
}

fn content(name: &str, source: &Source, limit: u64) -> Result<Vec<u8>, ClientError> {
    match source {
        Source::Memory(bytes) => Ok(bytes.to_vec()),
        Source::File(file) => {
            let read = file.read_small(limit);
            let read = read.map_err(|error| ClientError::BadInput {
                name: name.to_owned(),
                why: error.to_string(),
            })?;
            Ok(read.unwrap_or_default())
        }
        Source::Pieces(pieces) => pieces.read_all().map_err(|error| ClientError::BadInput {
            name: name.to_owned(),
            why: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> JobRequest {
        JobRequest {
            job_id: Uuid::from_u128(7),
            exec_name: "calcA".to_owned(),
            ..JobRequest::default()
        }
    }

    fn prepare(spec: JobSpec) -> (JobRequest, Vec<Blob>) {
        let room = payload_room("job.submit.calcA").unwrap();
        let (payload, blobs) = build(spec, room).unwrap();
        assert!(payload.len() as u64 <= room);
        (JobRequest::parse(&payload).unwrap(), blobs)
    }

    const MIB: usize = 1024 * 1024;

    #[test]
    fn what_fits_a_frame_goes_inside_and_what_does_not_as_blobs() {
        let small = JobSpec::from(request()).bytes("a", vec![1; 3 * MIB - 4096]);
        let (inside, blobs) = prepare(small);
        assert_eq!(
            (inside.files[0].content.as_ref().map(Vec::len), blobs.len()),
            (Some(3 * MIB - 4096), 0)
        );
        let large = JobSpec::from(request())
            .bytes("a", vec![1; 3 * MIB + 1])
            .bytes("b", vec![2; 64 * 1024])
            .bytes("c", vec![]);
        let (named, blobs) = prepare(large);
        let blob = named.files[0].blob.as_ref().unwrap();
        assert_eq!((blob.size, blob.digest), (3 * MIB as u64 + 1, None));
        assert_eq!(blob.id, blob_id(Uuid::from_u128(7), 0, Purpose::Input, 0));
        assert_eq!(named.files[0].content, None);
        assert_eq!(named.files[1].content, Some(vec![2; 64 * 1024]), "small ones stay inside");
        assert_eq!((&named.files[2].content, &named.files[2].blob), (&Some(vec![]), &None));
        assert_eq!((blobs.len(), blobs[0].id, blobs[0].name.as_str()), (1, blob.id, "a"));
    }

    #[tokio::test]
    async fn t02_what_fits_the_submit_and_not_the_assignment_goes_as_a_blob() {
        for subject in ["job.submit.calcA", "job.assign.calcA", "calcA", ""] {
            let blobs = async |gap: usize| {
                let mut request = request();
                request.args = vec!["x".repeat(gap)];
                let spec = JobSpec::from(request).bytes("a", vec![1; 3_000_000]);
                prepared(spec, subject, "c").await.unwrap()
            };
            let (key, id) = ("job.assign.calcA", Uuid::nil());
            let whole = blobs(0).await.payload.len() + 39 + format!("{key}.{id}").len();
            let gap = FRAME_BODY_BYTES_MAX as usize - whole;
            assert_eq!(blobs(gap).await.blobs.len(), 0, "{subject}: fits to the last byte");
            assert_eq!(blobs(gap + 1).await.blobs.len(), 1, "{subject}");
        }
    }

    #[test]
    fn files_of_the_request_itself_become_blobs_too_and_places_are_counted_over_all() {
        let mut request = request();
        request.files.push(InputFile::cached("ref", "set-1"));
        request.files.push(InputFile::inline("own", vec![7; 2 * MIB]));
        let (named, blobs) = prepare(JobSpec::from(request).bytes("beside", vec![8; 2 * MIB]));
        assert_eq!(named.files[0], InputFile::cached("ref", "set-1"));
        let ids: Vec<Uuid> =
            named.files.iter().filter_map(|file| file.blob.as_ref()).map(|blob| blob.id).collect();
        let id = |place| blob_id(Uuid::from_u128(7), 0, Purpose::Input, place);
        assert_eq!(ids, [id(1), id(2)]);
        assert_eq!(blobs.iter().map(|blob| blob.id).collect::<Vec<_>>(), ids);
    }

    #[test]
    fn many_small_files_that_do_not_fit_together_become_blobs() {
        let spec = (0..80).fold(JobSpec::from(request()), |spec, file| {
            spec.bytes(format!("f{file}"), vec![0; 60_000])
        });
        let (named, blobs) = prepare(spec);
        assert_eq!((named.files.len(), blobs.len()), (80, 80));
    }

    #[test]
    fn a_request_that_is_too_large_without_its_files_is_refused_with_the_limit() {
        let mut request = request();
        request.args = vec!["x".repeat(1000); 5000];
        let room = payload_room("job.submit.calcA").unwrap();
        let refused = build(JobSpec::from(request).bytes("a", vec![0; 10]), room).unwrap_err();
        assert!(
            matches!(refused, ClientError::TooLarge { bytes, limit } if bytes > 5_000_000 && limit == 4_194_304)
        );
        assert!(matches!(
            payload_room(&"s".repeat(70_000)),
            Err(ClientError::SubjectTooLong { .. })
        ));
    }

    #[test]
    fn a_file_of_more_than_the_largest_blob_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = std::fs::File::create(&path).unwrap();
        if file.set_len((4 << 40) + 1).is_err() {
            return; // Not every file system has files of that size.
        }
        let spec = JobSpec::from(request()).file("sparse", path).unwrap();
        let error = build(spec, 4_000_000).unwrap_err().to_string();
        assert!(error.contains("sparse") && error.contains("4398046511105"), "{error}");
    }
}
