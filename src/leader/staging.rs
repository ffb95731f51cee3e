//! Inputs of jobs that become datasets (C01). A stock worker takes no transfers and no frame over 4 MiB, but the agent beside it can be sent
//! a set: the blobs of a job are read, chunk by chunk, into packs, and put under an id that only the leader gives. The set goes when the
//! job has ended, when the job goes to a worker that takes its inputs as they are, or when a part of it is damaged.
//!
//! One job at a time, one chunk at a time, as far as the disk keeps up. The broker says for which jobs; see `core::staging`.

use std::collections::VecDeque;

use chunking::Inflater;
use chunking::dataset::ManifestBuilder;
use chunking::limits::{CHUNK_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use tracing::{info, warn};

use super::datasets::{DatasetEvent, StagedInputs};
use super::pack_maker::PackMaker;
use super::relay::BlobId;
use super::submit::{by_path, by_set};
use super::tasks::{Task, Turn};
use super::{Leader, Output};
use crate::conn::Session;
use crate::core::Event;
use crate::core::ids::{CacheId, ConnId, JobId, Micros};
use crate::core::job::{Job, Phase};
use crate::core::names::{SafeName, is_flat, names_of_set};
use crate::core::payload::FileNames;
use crate::model::{InputFile, JobRequest, JsonModel, Source};
use crate::store::blobs::DiskOp;
use crate::store::look::LookAt;
use crate::units::ByteSize;

/// Chunks of a pack that may wait for the disk before more are read.
const UNWRITTEN_MAX: usize = 4;

/// Inputs of jobs that become sets, one after the other.
#[derive(Debug, Default)]
pub(super) struct Stagings {
    queue: VecDeque<Staging>,
    /// When the next chunk is due: others have their turn before.
    go_on_at: Option<Micros>,
}

impl Stagings {
    /// When to go on.
    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.go_on_at
    }
}

/// The inputs of a job on their way into a set.
struct Staging {
    job: JobId,
    files: Vec<(SafeName, BlobId, u64)>,
    maker: PackMaker,
    /// Whether a place for it was found.
    begun: bool,
    /// The file that is read, and its next chunk.
    file: usize,
    chunk: u32,
    is_reading: bool,
    inflater: Inflater,
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Staging { job, file, chunk, is_reading, .. } = self;
        write!(f, "Staging of {job} at chunk {chunk} of file {file}, reading: {is_reading}")
    }
}

/// Why no set is made of a job's inputs.
enum NotStaged {
    /// It never can be.
    Never(String),
    /// It cannot be at the moment.
    Later(String),
}

impl Leader {
    /// A set is to be made of a job's inputs.
    pub(super) fn stage_inputs(&mut self, job: JobId) {
        self.when_here(Turn { task: Task::Stage { job }, bytes: 0 });
        self.payloads_on();
    }

    /// Makes a set of a job's inputs; its payload is here.
    pub(super) fn stage(&mut self, job: JobId) {
        match self.inputs_to_stage(job) {
            Ok(files) => {
                let (maker, inflater) = (PackMaker::new((self.make_id)()), Inflater::default());
                let staging = Staging {
                    job,
                    files,
                    maker,
                    begun: false,
                    file: 0,
                    chunk: 0,
                    is_reading: false,
                    inflater,
                };
                self.stagings.queue.push_back(staging);
            }
            Err(why) => self.not_staged(job, &why, false),
        }
    }

    /// The files of a job that are blobs here: name, blob and size of each. An error says why no stock worker could have the job.
    fn inputs_to_stage(&self, id: JobId) -> Result<Vec<(SafeName, BlobId, u64)>, String> {
        let payload = self.payloads.held.input(id).ok_or("the request cannot be read")?.payload;
        let request = JobRequest::parse(&payload).map_err(|error| error.to_string())?;
        // What such a worker would refuse it is not sent (C08, WX08).
        let names = self.broker.state().job(id).map_or(FileNames::Plain, |job| job.submission.names);
        if let Some(file) = request.files.iter().find(|file| !is_for_stock(file, names)) {
            return Err(format!(
                "the file \"{}\" is none that a stock worker takes",
                file.name.escape_debug()
            ));
        }
        let blobs = request.files.iter().filter_map(|file| match file.source() {
            Source::Blob(blob) => Some((file.name.as_str(), blob.id, blob.size)),
            Source::Inline(_)
            | Source::Streamed { .. }
            | Source::Cache(_)
            | Source::Url(_)
            | Source::Nothing => None,
        });
        let blobs: Vec<(&str, BlobId, u64)> = blobs.collect();
        let names =
            names_of_set(blobs.iter().map(|(name, _, _)| *name)).map_err(|error| error.to_string())?;
        let is_here = |blob: BlobId, size: u64| self.relay.has_arrived(blob) && self.relay.size(blob) == size;
        if let Some((name, _, _)) = blobs.iter().find(|(_, blob, size)| !is_here(*blob, *size)) {
            return Err(format!("\"{name}\" is not at the leader"));
        }
        let key =
            self.broker.state().job(id).map(|job| job.submission.key.clone()).ok_or("the job is gone")?;
        let by_set = by_set(&payload, &CacheId::of_inputs(id));
        let written = by_path(&by_set, |_| true).unwrap_or(by_set);
        let body = Session::assign_body_len(key.as_str(), written.len());
        if body > FRAME_BODY_BYTES_MAX as usize {
            return Err(format!(
                "what is left of the request takes a frame of {body} bytes, and a stock worker takes {FRAME_BODY_BYTES_MAX}"
            ));
        }
        Ok(names.into_iter().zip(blobs).map(|(name, (_, blob, size))| (name, blob, size)).collect())
    }

    /// Whether a job still waits for a set of its inputs.
    fn is_to_be_staged(&self, job: JobId) -> bool {
        let waits = |job: &Job| matches!(job.phase, Phase::Queued { .. }) && job.needs_transfers();
        self.broker.state().job(job).is_some_and(waits)
    }

    /// Goes on with the first of the jobs whose inputs become sets; says whether it did anything that others may have to hear of.
    pub(super) fn stage_on(&mut self) -> bool {
        self.stagings.go_on_at = None;
        let Some(staging) = self.stagings.queue.front() else { return false };
        let (job, begun, is_reading) = (staging.job, staging.begun, staging.is_reading);
        if is_reading || self.broker.is_draining() {
            return false;
        }
        let result = match () {
            () if !self.is_to_be_staged(job) => {
                Err(NotStaged::Later("the job went to another worker".to_owned()))
            }
            () if !begun => self.stage_begins(),
            () => self.stage_next(),
        };
        match result {
            Ok(did) => did,
            Err(why) => {
                self.stage_fails(&why);
                true
            }
        }
    }

    /// Finds a place for the set, within `--spool-max`. The first is let in however full that is, so that what waits here for nothing else
    /// comes to its end.
    fn stage_begins(&mut self) -> Result<bool, NotStaged> {
        let is_first = self.broker.state().staged_sets().next().is_none();
        let (fill, room) = (self.relay.fill().bytes, self.config.relay.spool_bytes_max);
        let Some(staging) = self.stagings.queue.front_mut() else { return Ok(false) };
        let bytes = staging.files.iter().fold(0u64, |sum, (_, _, size)| sum.saturating_add(*size));
        if let Some(trouble) = self.relay.disk_trouble() {
            return Err(NotStaged::Later(trouble.to_owned()));
        }
        if !is_first && !self.relay.has_room_for(bytes) {
            return Err(NotStaged::Later(format!(
                "they have {} more, and the leader holds {} of at most {} (--spool-max)",
                ByteSize(bytes),
                ByteSize(fill),
                ByteSize(room)
            )));
        }
        staging.begun = true;
        info!(job = %staging.job, files = staging.files.len(), bytes, "inputs for a stock worker become a dataset");
        Ok(true)
    }

    /// The next chunk, or the end of a file, or of all.
    fn stage_next(&mut self) -> Result<bool, NotStaged> {
        let Some(staging) = self.stagings.queue.front_mut() else { return Ok(false) };
        if let Some(trouble) = self.relay.disk_trouble() {
            return Err(NotStaged::Later(trouble.to_owned()));
        }
        let unwritten = staging.maker.open_pack().map_or(0, |pack| self.relay.unwritten(pack));
        if unwritten >= UNWRITTEN_MAX {
            return Ok(false);
        }
        let Some((name, blob, size)) = staging.files.get(staging.file).cloned() else {
            self.stage_ends();
            return Ok(true);
        };
        if staging.chunk == 0 {
            staging.maker.begin(staging.file);
        }
        if u64::from(staging.chunk) * u64::from(CHUNK_BYTES_MAX) >= size {
            staging.maker.end();
            (staging.file, staging.chunk) = (staging.file + 1, 0);
            return Ok(true);
        }
        let Some((head, len, sent)) = self.relay.chunk_here(blob, staging.chunk) else {
            return Err(NotStaged::Never(format!("a part of \"{name}\" is not at the leader")));
        };
        let Some(sent) = sent else {
            staging.is_reading = true;
            let (chunks, at) = (vec![(staging.chunk, head, len)], LookAt::Bytes { reader: staging.job.0 });
            self.outputs.push_back(Output::Disk(DiskOp::Look { blob, chunks, at }));
            return Ok(true);
        };
        let mut scratch = Vec::new();
        let raw = head.raw(&sent, &mut staging.inflater, &mut scratch);
        let raw = raw.map_err(|error| NotStaged::Never(format!("\"{name}\": {error}")))?;
        staging.maker.bytes(raw, &mut self.relay, &mut *self.make_id);
        staging.chunk += 1;
        // Others have their turn before the next one: hashing takes a while.
        self.relay_on();
        self.stagings.go_on_at = Some(self.now);
        Ok(false)
    }

    /// A chunk was read from the disk.
    pub(super) fn input_read(&mut self, job: JobId, found: Result<Vec<u8>, String>) {
        let Some(staging) = self.stagings.queue.front_mut().filter(|staging| staging.job == job) else {
            return;
        };
        if !std::mem::take(&mut staging.is_reading) {
            return;
        }
        match found {
            Ok(raw) => {
                staging.maker.bytes(&raw, &mut self.relay, &mut *self.make_id);
                staging.chunk += 1;
            }
            Err(why) => self.stage_fails(&NotStaged::Later(why)),
        }
    }

    fn stage_fails(&mut self, why: &NotStaged) {
        if let Some(staging) = self.stagings.queue.pop_front() {
            staging.maker.forget(&mut self.relay);
            match why {
                NotStaged::Never(why) => self.not_staged(staging.job, why, false),
                NotStaged::Later(why) => self.not_staged(staging.job, why, true),
            }
        }
    }

    /// All bytes are in packs: the set is put.
    fn stage_ends(&mut self) {
        let Some(Staging { job, files, maker, .. }) = self.stagings.queue.pop_front() else { return };
        let key = maker.owner();
        let (made, packs) = match maker.finish(&mut self.relay) {
            Ok(made) => made,
            Err(why) => return self.not_staged(job, &why, false),
        };
        let mut builder = ManifestBuilder::default();
        for ((name, _, _), made) in files.into_iter().zip(made.into_values()) {
            builder.file(name, made.sha256, made.pieces);
        }
        let manifest = match builder.finish() {
            Ok(manifest) => manifest,
            Err(error) => {
                packs.iter().for_each(|(pack, _)| self.relay.forget(*pack));
                return self.not_staged(job, &error.to_string(), false);
            }
        };
        match self.packs_are_here(&packs) {
            Ok(()) => {
                let inputs = StagedInputs { job, key, generation: (self.make_id)(), manifest };
                self.dataset_event(DatasetEvent::Staged { inputs, packs });
            }
            Err(why) => self.not_staged(job, &why, true),
        }
    }

    /// There is no set of a job's inputs: its client hears why.
    pub(super) fn not_staged(&mut self, job: JobId, why: &str, again: bool) {
        if self.is_to_be_staged(job) {
            warn!(%job, again, "no dataset is made of a job's inputs, so no stock worker can have it: {why}");
        }
        self.broker.handle(self.now, Event::NotStaged { job, why: why.into(), again });
    }

    /// A job has ended: what is being made of its inputs is nobody's any more. What was made goes by itself.
    pub(super) fn forget_staging(&mut self, job: JobId) {
        if let Some(at) = self.stagings.queue.iter().position(|staging| staging.job == job)
            && let Some(staging) = self.stagings.queue.remove(at)
        {
            staging.maker.forget(&mut self.relay);
        }
        self.dataset_event(DatasetEvent::StagingOver { job });
    }

    /// A job went to a worker. One that takes its inputs as they are needs no set of them.
    pub(super) fn unstage_for(&mut self, conn: ConnId, job: JobId) {
        let is_staged = self.broker.state().job(job).is_some_and(Job::is_staged);
        if is_staged && self.takes_transfers(conn) {
            self.broker.handle(self.now, Event::RemoveDataset { cache: CacheId::of_inputs(job) });
        }
    }
}

/// Whether a stock worker takes a file under this name, and from where it comes (WX08).
fn is_for_stock(file: &InputFile, names: FileNames) -> bool {
    let is_taken = match names {
        FileNames::Plain | FileNames::Folders => is_flat(&file.name),
        FileNames::Flattened => true,
    };
    is_taken && !matches!(file.source(), Source::Url(_))
}
