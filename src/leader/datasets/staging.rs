//! Inputs of jobs that become datasets (C01). A stock worker takes no transfers and no frame over 4 MiB, but the agent beside it can be sent
//! a set: the blobs of a job are read, chunk by chunk, into packs, and put under an id that only the leader gives. When the job has
//! ended the set is removed, and with it what agents hold of it.
//!
//! One job at a time, one chunk at a time, as far as there are buffers. The broker says for which jobs; see `core::staging`.

use chunking::Inflater;
use chunking::dataset::ManifestBuilder;
use chunking::message::Name;
use tracing::{info, warn};

use super::classic::put_of;
use super::make::PackMaker;
use super::names;
use super::put::Putting;
use crate::core::Event;
use crate::core::dataset::TARGET_NONE;
use crate::core::ids::{CacheId, JobId};
use crate::core::job::{Job, Phase};
use crate::leader::durable::Then;
use crate::leader::relay::BlobId;
use crate::leader::transfers::named_in;
use crate::leader::{Leader, Output};
use crate::model::{JobRequest, JsonModel};
use crate::store::blobs::DiskOp;
use crate::store::look::LookAt;
use crate::store::replay::Key;
use crate::units::ByteSize;

/// The inputs of a job on their way into a set.
pub(super) struct Staging {
    job: JobId,
    files: Vec<(String, BlobId)>,
    maker: PackMaker,
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

impl Leader {
    /// A set is to be made of a job's inputs.
    pub(in crate::leader) fn stage_inputs(&mut self, job: JobId) {
        self.when_here(vec![Key::Input(job)], Then::Stage { job });
    }

    /// Makes a set of a job's inputs; its payload is here.
    pub(in crate::leader) fn stage(&mut self, job: JobId) {
        let cache = CacheId::of_inputs(job);
        if let Some(dataset) = self.broker.state().dataset(&cache).cloned() {
            // It was made before, and the job was with a worker when it was.
            return self.broker.handle(self.now, Event::PutDataset { dataset });
        }
        match self.inputs_to_stage(job) {
            Ok(files) => {
                info!(%job, %cache, files = files.len(), "inputs for a stock worker become a dataset");
                let maker = PackMaker::new((self.make_id)());
                let (file, chunk, is_reading) = (0, 0, false);
                let inflater = Inflater::default();
                self.datasets.stagings.push_back(Staging {
                    job,
                    files,
                    maker,
                    file,
                    chunk,
                    is_reading,
                    inflater,
                });
            }
            Err(why) => self.not_staged(job, &why),
        }
    }

    /// The files of a job that are blobs here.
    fn inputs_to_stage(&self, job: JobId) -> Result<Vec<(String, BlobId)>, String> {
        let payload = self.store.input(job).ok_or("its request cannot be read")?.payload;
        let blobs = named_in(&JobRequest::parse(&payload).map_err(|error| error.to_string())?);
        names::check(blobs.iter().map(|(_, name, _)| name.as_str()))?;
        if let Some((_, name, _)) = blobs.iter().find(|(blob, _, _)| !self.relay.has_arrived(*blob)) {
            return Err(format!("\"{name}\" is not here"));
        }
        let bytes = blobs.iter().fold(0u64, |sum, (_, _, size)| sum.saturating_add(*size));
        let (held, room) = (self.relay.fill().bytes, self.config.relay.spool_bytes_max);
        if held.saturating_add(bytes) > room {
            return Err(format!(
                "its inputs have {}, and the leader holds {} of at most {} (--spool-max)",
                ByteSize(bytes),
                ByteSize(held),
                ByteSize(room)
            ));
        }
        Ok(blobs.into_iter().map(|(blob, name, _)| (name, blob)).collect())
    }

    /// Goes on with the first of the jobs whose inputs become sets, as far as that goes now; says whether it did anything.
    pub(in crate::leader) fn stage_on(&mut self) -> bool {
        let mut did = false;
        while self.stage_next() {
            did = true;
        }
        did
    }

    fn stage_next(&mut self) -> bool {
        let takes_more = self.relay.takes_more();
        let Some(staging) = self.datasets.stagings.front_mut() else { return false };
        if staging.is_reading || !takes_more {
            return false;
        }
        let Some((name, blob)) = staging.files.get(staging.file).cloned() else {
            self.stage_ends();
            return true;
        };
        if staging.chunk == 0 {
            staging.maker.begin(staging.file);
        }
        let offset = u64::from(staging.chunk) * u64::from(chunking::limits::CHUNK_BYTES_MAX);
        if offset >= self.relay.size(blob) {
            staging.maker.end();
            (staging.file, staging.chunk) = (staging.file + 1, 0);
            return true;
        }
        match self.relay.chunk_here(blob, staging.chunk) {
            None => self.stage_fails(&format!("a chunk of \"{name}\" is not here")),
            Some((head, _, Some(sent))) => {
                let mut scratch = Vec::new();
                let raw = head.raw(&sent, &mut staging.inflater, &mut scratch);
                match raw.map(<[u8]>::to_vec).map_err(|error| error.to_string()) {
                    Ok(raw) => self.stage_bytes(&raw),
                    Err(why) => self.stage_fails(&format!("\"{name}\": {why}")),
                }
            }
            Some((head, len, None)) => {
                staging.is_reading = true;
                let (chunks, at) =
                    (vec![(staging.chunk, head, len)], LookAt::Bytes { reader: staging.job.0 });
                self.outputs.push_back(Output::Disk(DiskOp::Look { blob, chunks, at }));
            }
        }
        true
    }

    /// A chunk was read from the disk.
    pub(super) fn input_read(&mut self, job: JobId, found: Result<Vec<u8>, String>) {
        let Some(staging) = self.datasets.stagings.front_mut() else { return };
        if staging.job != job || !std::mem::take(&mut staging.is_reading) {
            return;
        }
        match found {
            Ok(raw) => self.stage_bytes(&raw),
            Err(why) => self.stage_fails(&why),
        }
    }

    fn stage_bytes(&mut self, raw: &[u8]) {
        if let Some(staging) = self.datasets.stagings.front_mut() {
            staging.maker.bytes(raw, &mut self.relay, &mut *self.make_id);
            staging.chunk += 1;
        }
    }

    fn stage_fails(&mut self, why: &str) {
        if let Some(staging) = self.datasets.stagings.pop_front() {
            staging.maker.forget(&mut self.relay);
            self.not_staged(staging.job, why);
        }
    }

    /// All bytes are in packs: the set is put.
    fn stage_ends(&mut self) {
        let Some(Staging { job, files, maker, .. }) = self.datasets.stagings.pop_front() else { return };
        let key = maker.owner();
        let made = maker.finish(&mut self.relay).and_then(|(made, packs)| {
            let mut builder = ManifestBuilder::default();
            for ((name, _), made) in files.into_iter().zip(made.into_values()) {
                builder.file(name, made.sha256, made.pieces);
            }
            let packs = self.packs_made(key, packs)?;
            Ok((builder.finish().map_err(|error| error.to_string())?, packs))
        });
        match made {
            Ok((manifest, packs)) => {
                let (cache, generation) = (CacheId::of_inputs(job), (self.make_id)());
                let target = Name::try_from(TARGET_NONE.to_owned()).unwrap_or_default();
                let put = put_of(&cache, &manifest, generation, &target);
                let coming = self.still_coming(packs);
                self.put_made(key, Putting::of_inputs(job, cache, put, coming), &manifest);
                self.watch_datasets();
            }
            Err(why) => self.not_staged(job, &why),
        }
    }

    /// There is no set of a job's inputs, and will be none.
    pub(super) fn not_staged(&mut self, job: JobId, why: &str) {
        warn!(%job, "no dataset is made of its inputs, so no stock worker can have it: {why}");
        self.broker.handle(self.now, Event::NotStaged { job });
    }

    /// Sets of jobs that ended as an earlier life did.
    pub(super) fn forget_stale_staged(&mut self) {
        let sets = self.broker.state().datasets().filter_map(|dataset| dataset.cache.job());
        let over: Vec<JobId> = sets.filter(|job| self.is_over(*job)).collect();
        over.into_iter().for_each(|job| self.forget_staged(job));
    }

    /// A job has ended: its inputs are nobody's any more.
    pub(in crate::leader) fn forget_staged(&mut self, job: JobId) {
        if let Some(at) = self.datasets.stagings.iter().position(|staging| staging.job == job)
            && let Some(staging) = self.datasets.stagings.remove(at)
        {
            staging.maker.forget(&mut self.relay);
        }
        self.end_put_of(job);
        let cache = CacheId::of_inputs(job);
        if self.broker.state().dataset(&cache).is_some() {
            self.broker.handle(self.now, Event::RemoveDataset { cache });
        }
    }

    /// A set is kept. If it is the inputs of a job that ended meanwhile, it goes again.
    pub(super) fn staged(&mut self, cache: &CacheId) {
        if let Some(job) = cache.job().filter(|job| self.is_over(*job)) {
            self.forget_staged(job);
        }
    }

    /// Whether nothing of a job's inputs is needed any more.
    fn is_over(&self, job: JobId) -> bool {
        let is_over = |job: &Job| job.has_ended() && !matches!(job.phase, Phase::Dead { .. });
        self.broker.state().job(job).is_none_or(is_over)
    }
}
