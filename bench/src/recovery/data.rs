//! Makes the data directory of a leader that ended with many jobs in its queue: by the store that
//! the leader itself writes with, the records that it would have written, but without a sync for
//! each few of them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{Name, Open, OpenFlags, Purpose};
use chunking::{ChunkHead, ChunkPlan, Codec, DigestKind, digest};
use heft::core::Record;
use heft::core::event::{Inputs, Submission};
use heft::core::ids::{ClientId, Index, JobId, Micros};
use heft::core::payload::FileNames;
use heft::core::subject::{RoutingKey, routing_key};
use heft::model::blob_id;
use heft::model::{BlobRef, InputFile, JobRequest, JsonModel as _};
use heft::store::blobs::BLOBS;
use heft::store::codec::Attached;
use heft::store::disk::{DataDir, Disk, How};
use heft::store::format::{self, CONSENSUS, Owner};
use heft::store::journal::{LogDone, LogOp};
use heft::store::log::{Append, Log};
use heft::store::replay::Files;
use heft::store::{map, snapshot};
use uuid::Uuid;

use super::GROUP;
use crate::actor::incompressible;

/// The node whose data it is: the leader's default.
const NODE: i32 = 0;

/// Records that go to the log at a time: as many as come while it syncs, with 64 submitters.
const TOGETHER: usize = 64;

/// Bytes of a segment: the leader's own, or less where there would be none that is finished.
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENTS_MIN: u64 = 4;

/// Bytes of a blob.
const BLOB_BYTES: u64 = 64 << 20;

/// What is behind the name of a blob's file in that of its map.
const MAP: &str = ".map";

/// What all jobs have.
struct Maker {
    client: ClientId,
    key: RoutingKey,
    at: Micros,
}

impl Maker {
    fn new() -> anyhow::Result<Maker> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let key = routing_key(&format!("job.submit.{GROUP}"), Some(GROUP))?;
        Ok(Maker {
            client: ClientId("bench-recovery".into()),
            key,
            at: Micros::default().plus(since),
        })
    }

    /// As a leader has it that read this request.
    fn submission(&self, job: Uuid, payload: &[u8], blob_bytes: Option<u64>) -> Submission {
        Submission {
            job: JobId(job),
            client: self.client.clone(),
            key: self.key.clone(),
            exec: GROUP.into(),
            priority: 0,
            to_all: false,
            size: payload.len() as u64 + blob_bytes.unwrap_or_default(),
            fingerprint: digest::blake3(payload),
            inputs: if blob_bytes.is_some() { Inputs::Expected } else { Inputs::Here },
            needs_transfers: blob_bytes.is_some(),
            require_worker: false,
            names: FileNames::Plain,
            tag: None,
            datasets: Vec::new(),
        }
    }

    fn request(&self, job: Uuid, file: InputFile) -> JobRequest {
        JobRequest {
            job_id: job,
            client_id: self.client.to_string(),
            exec_name: GROUP.to_owned(),
            args: vec!["0".to_owned()],
            files: vec![file],
            ..JobRequest::default()
        }
    }

    /// A request of about that many bytes, in JSON.
    fn payload(&self, job: Uuid, content: &[u8]) -> Bytes {
        self.request(job, InputFile::inline("input.bin", content)).to_json().into()
    }

    /// Bytes of content that make a request of so many bytes: each three are four in JSON.
    fn content_for(&self, size: u64) -> Bytes {
        let empty = self.payload(Uuid::nil(), &[]).len() as u64;
        incompressible(size.saturating_sub(empty) / 4 * 3)
    }

    fn enqueue(&self, index: u64, content: &[u8]) -> Append {
        let job = Uuid::new_v4();
        let payload = self.payload(job, content);
        let job = self.submission(job, &payload, None);
        let record = Record::Enqueue { at: self.at, job, children: Vec::new(), kept: true };
        let attached =
            Some(Attached { from_ours: true, blobs: Vec::new(), payload: payload.into() });
        Append { index: Index(index), record, attached }
    }
}

/// Makes a data directory with so many jobs, whose requests have about so many bytes each.
pub(super) fn queue(data: &Path, count: u64, size: u64) -> anyhow::Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data)?);
    let owner = Owner { node: NODE, dir: Uuid::new_v4() };
    disk.make_dir(CONSENSUS)?;
    let (maker, failed) = (Maker::new()?, || format!("cannot write the log in {}", data.display()));
    let content = maker.content_for(size);
    let segment =
        (count.saturating_mul(size) / SEGMENTS_MIN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES);
    let mut log = Log::begin(disk.clone(), owner, segment, 1)?;
    format::claim(&*disk, owner)?;
    // The first that a leader hears of a client is how many of its jobs may run.
    let cap = Record::Cap { client: maker.client.clone(), cap: u32::MAX };
    let mut together = vec![Append { index: Index(1), record: cap, attached: None }];
    for index in 2..count + 2 {
        together.push(maker.enqueue(index, &content));
        if together.len() >= TOGETHER {
            log.append(&together).with_context(failed)?;
            log.rotate().with_context(failed)?;
            together.clear();
        }
    }
    log.append(&together).with_context(failed)?;
    log.sync().with_context(failed)?;
    log.note_synced().with_context(failed)
}

/// Makes the snapshot that a leader would have made of all segments but the last. Gives its bytes,
/// if there was anything to make it of.
pub(super) fn snapshot(data: &Path) -> anyhow::Result<Option<u64>> {
    let disk = DataDir::claim(data)?;
    let owner = format::owner_of(&disk)?.context("it is nobody's data directory")?;
    let open = Files::list(&disk)?.segments.last().copied().unwrap_or_default();
    Ok(snapshot::make(&disk, owner, open, u64::MAX)?.map(|made| made.bytes))
}

/// Adds jobs with blobs of so many bytes in all. Their files have holes where the bytes would be,
/// and maps that say so: all is as it would be after clients had sent zeros. Gives the number of
/// blobs.
pub(super) fn add_blobs(data: &Path, bytes: u64) -> anyhow::Result<u64> {
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data)?);
    let mut opened = heft::store::open(&disk, NODE, Uuid::new_v4(), SEGMENT_BYTES)?;
    disk.make_dir(BLOBS)?;
    let maker = Maker::new()?;
    let (count, mut index) = (bytes.div_ceil(BLOB_BYTES), opened.replay.index.0);
    let mut operations = Vec::new();
    for number in 0..count {
        let size = (bytes - number * BLOB_BYTES).min(BLOB_BYTES);
        let job = Uuid::new_v4();
        let blob = blob_id(job, 0, Purpose::Input, 0);
        write_blob(&*disk, opened.owner, blob, job, size)
            .with_context(|| format!("cannot write a blob in {}", data.display()))?;
        let reference = BlobRef { id: blob, size, digest: None };
        let file = InputFile {
            name: "input.bin".to_owned(),
            blob: Some(reference),
            ..InputFile::default()
        };
        let payload: Bytes = maker.request(job, file).to_json().into();
        let job = maker.submission(job, &payload, Some(size));
        let attached = Attached { from_ours: true, blobs: vec![blob], payload: payload.into() };
        let announced = Record::Announce { at: maker.at, job: job.clone() };
        let taken = Record::Enqueue { at: maker.at, job, children: Vec::new(), kept: true };
        for (record, attached) in [(announced, Some(attached)), (taken, None)] {
            index += 1;
            operations.push(LogOp::Append { index: Index(index), record, attached, sync: true });
        }
    }
    disk.sync_dir(BLOBS)?;
    for done in opened.journal.run(operations, &|| 0) {
        match done {
            LogDone::Written { .. }
            | LogDone::Snapshot(_)
            | LogDone::Read { .. }
            | LogDone::TailSafe { .. }
            | LogDone::Trouble(None) => {}
            LogDone::Trouble(Some(why)) | LogDone::Failed(why) => bail!(why),
        }
    }
    Ok(count)
}

/// A blob that is whole and sealed, and is nothing but a hole.
fn write_blob(
    disk: &dyn Disk,
    owner: Owner,
    blob: Uuid,
    job: Uuid,
    size: u64,
) -> anyhow::Result<()> {
    let open = Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: CHUNK_BYTES_MAX,
        size,
        owner: job,
        attempt: 0,
        name: Name::try_from("input.bin".to_owned())?,
    };
    let plan = ChunkPlan::new(size, CHUNK_BYTES_MAX)?;
    let path = format!("{BLOBS}/{}", blob.simple());
    let mut file = disk.open(&path, How::Create)?;
    file.set_len(size.next_multiple_of(heft::store::disk::BLOCK_BYTES as u64))?;
    file.sync()?;
    let mut map = disk.open(&format!("{path}{MAP}"), How::Create)?;
    map.write_at(0, &map::front(owner, blob, &open))?;
    let zeros = vec![0; CHUNK_BYTES_MAX as usize];
    let whole = ChunkHead::plain(0, &zeros);
    let mut crcs = digest::ChunkCrcs::default();
    for index in 0..plan.count() {
        let (offset, len) = (plan.offset_of(index), plan.len_of(index));
        let head = match len {
            CHUNK_BYTES_MAX => ChunkHead { offset, ..whole },
            _ => ChunkHead::plain(offset, zeros.get(..len as usize).unwrap_or_default()),
        };
        crcs.insert(&plan, index, head.crc_raw);
        map.write_at(map::entry_at(index), &map::entry(blob, index, &head, len))?;
    }
    let (at, seal) = map::seal(blob, &crcs.digest(&plan));
    map.write_at(at, &seal)?;
    map.sync()?;
    Ok(())
}

/// Bytes of all files but those of blobs: log, snapshots, and the maps of blobs.
pub(super) fn log_bytes(data: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    each_file(data, |path, len| {
        let is_blob = path.starts_with(data.join(BLOBS)) && path.extension().is_none();
        bytes += if is_blob { 0 } else { len };
        Ok(())
    })?;
    Ok(bytes)
}

/// Has the system forget what it holds of the files in memory, as after a restart of the machine.
/// Where it does not, they are read from there.
pub(super) fn forget_pages(data: &Path) -> anyhow::Result<()> {
    each_file(data, |path, _| {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        forget(&file);
        Ok(())
    })
}

#[cfg(target_os = "linux")]
fn forget(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).ok();
}

#[cfg(not(target_os = "linux"))]
fn forget(_file: &File) {}

fn each_file(
    data: &Path,
    mut each: impl FnMut(&Path, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for dir in [CONSENSUS, BLOBS].map(|name| data.join(name)) {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot list {}", dir.display()));
            }
        };
        for entry in entries {
            let entry = entry?;
            each(&entry.path(), entry.metadata()?.len())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use heft::core::job::Phase;
    use heft::store::replay::{UpTo, load};

    #[test]
    fn a_leader_finds_what_it_would_have_written() {
        let data = tempfile::tempdir().unwrap();
        queue(data.path(), 300, 1024).unwrap();
        assert!(snapshot(data.path()).unwrap().is_some_and(|bytes| bytes > 1000));
        assert_eq!(add_blobs(data.path(), BLOB_BYTES + 5_000_000).unwrap(), 2);
        let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data.path()).unwrap());
        let owner = format::owner_of(&*disk).unwrap().unwrap();
        let loaded = load(&*disk, owner, UpTo::End).unwrap();
        assert!(loaded.snapshot.is_some() && loaded.bad_snapshots.is_empty());
        let replay = &loaded.replay;
        assert_eq!(
            (replay.state.job_count(), replay.inputs.len(), replay.index.0),
            (302, 302, 1 + 300 + 4)
        );
        assert!(
            replay
                .state
                .jobs()
                .all(|job| matches!(job.phase, Phase::Queued { .. }) && !job.is_announced())
        );
        let mut log =
            Log::go_on(disk.clone(), owner, SEGMENT_BYTES, &loaded.tail.unwrap()).unwrap();
        for (job, held) in &replay.inputs {
            let payload = log.read(&held.place).unwrap();
            let request = JobRequest::parse(&payload).unwrap();
            assert_eq!((request.job_id, request.exec_name.as_str()), (job.0, GROUP));
            assert_eq!(
                replay.state.job(*job).unwrap().submission.fingerprint,
                digest::blake3(&payload)
            );
            assert!(
                !held.blobs.is_empty() || (1000..=1024).contains(&payload.len()),
                "{}",
                payload.len()
            );
        }
    }

    #[test]
    fn blobs_are_whole_and_take_no_room() {
        let data = tempfile::tempdir().unwrap();
        let bytes = BLOB_BYTES + 5_000_000;
        add_blobs(data.path(), bytes).unwrap();
        let disk = DataDir::look(data.path()).unwrap();
        let owner = format::owner_of(&disk).unwrap().unwrap();
        let (found, unfinished) = heft::store::blobs::scan(&disk, owner).unwrap();
        assert_eq!((found.len(), unfinished.len()), (2, 0));
        for found in found {
            let map = found.map.unwrap();
            assert!(map.is_whole() && map.seal.is_some() && map.damage.is_empty());
        }
        assert!(log_bytes(data.path()).unwrap() < 100_000);
        forget_pages(data.path()).unwrap();
    }
}
