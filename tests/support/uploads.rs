//! A client of a test's own that uploads: its messages on a bare connection, good ones and bad
//! ones.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use chunking::message::{Body, Grant, Open, OpenFlags, Purpose};
use chunking::{ChunkHead, Codec, DigestKind, Kind};
use heft::model::blob_id;
use heft::model::{BlobRef, InputFile, JobRequest, JsonModel};
use uuid::Uuid;

use crate::raw::{Frame, Raw};

/// Sends a message of a transfer.
pub fn say<B: Body>(raw: &mut Raw, id: Uuid, message: &B) {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    raw.send(B::KIND, id, Uuid::nil(), "", &payload);
}

pub fn send_chunk(raw: &mut Raw, id: Uuid, offset: usize, bytes: &[u8]) {
    let head = ChunkHead::plain(offset as u64, bytes);
    raw.send(Kind::Chunk, id, Uuid::nil(), "", &[&head.encode()[..], bytes].concat());
}

/// The bytes of the frame of a chunk, by its place among chunks of 1 MiB.
pub fn chunk_frame(id: Uuid, index: usize, bytes: &[u8]) -> Vec<u8> {
    let head = ChunkHead::plain((index << 20) as u64, bytes);
    [&head.frame_head(id, u32::try_from(bytes.len()).unwrap()).unwrap()[..], bytes].concat()
}

/// The next frame of a kind; others are passed over.
pub fn next_of(raw: &mut Raw, kind: Kind) -> Frame {
    loop {
        let frame = raw.next().unwrap_or_else(|| panic!("hung up on before a {kind:?}"));
        if frame.kind == kind {
            return frame;
        }
    }
}

/// Submits a job with one blob and opens it; gives the job, the blob and the window.
pub fn upload(raw: &mut Raw, bytes: usize) -> (Uuid, Uuid, u32) {
    let job = Uuid::new_v4();
    let (id, grant) = upload_of(raw, job, bytes);
    (job, id, grant.window)
}

/// The same for a job of the test's choice, also one that goes on; gives the blob and the first
/// Grant.
pub fn upload_of(raw: &mut Raw, job: Uuid, bytes: usize) -> (Uuid, Grant) {
    upload_to(raw, job, "digests", bytes)
}

/// The same for a program of the test's choice.
pub fn upload_to(raw: &mut Raw, job: Uuid, exec: &str, bytes: usize) -> (Uuid, Grant) {
    let id = blob_id(job, 0, Purpose::Input, 0);
    let size = bytes as u64;
    let blob = Some(BlobRef { id, size, digest: None });
    let files = vec![InputFile { name: "in.bin".to_owned(), blob, ..InputFile::default() }];
    let request =
        JobRequest { job_id: job, exec_name: exec.to_owned(), files, ..JobRequest::default() };
    raw.send(Kind::SubmitJob, job, Uuid::nil(), &format!("job.submit.{exec}"), &request.to_json());
    let open = Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: chunking::limits::CHUNK_BYTES_MAX,
        size,
        owner: job,
        attempt: 0,
        name: "in.bin".to_owned().try_into().unwrap(),
    };
    say(raw, id, &open);
    let grant = Grant::decode(&next_of(raw, Kind::Grant).payload).unwrap();
    (id, grant)
}
