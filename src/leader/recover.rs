//! Restores a leader from a previous run (PE08, PE11): jobs, results, the dead-letter queue and
//! caps from the log, blobs from their files, and unfinished uploads up to the last stored chunk.

use std::collections::{HashMap, HashSet};

use chunking::ChunkPlan;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::Purpose;
use tracing::{error, info};
use uuid::Uuid;

use super::commit_log::CommitLog;
use super::payloads::{PayloadStore, Payloads};
use super::relay::{BlobId, announced};
use super::request::named_in;
use super::{Leader, LeaderConfig};
use crate::core::ids::{Attempt, JobId, Micros};
use crate::core::job::Job;
use crate::core::{Broker, Config, Event};
use crate::model::{JobRequest, JsonModel};
use crate::store::blobs::Found;
use crate::store::map::Map;
use crate::store::replay::{Held, Replay};

/// What a previous run left.
#[derive(Debug, Default)]
pub struct Recovered {
    /// What the log says.
    pub replay: Replay,
    /// The blobs that have files.
    pub blobs: Vec<Found>,
    /// The requests of jobs that were announced and not taken.
    pub requests: HashMap<JobId, Vec<u8>>,
}

impl Leader {
    /// A leader that goes on, and whose records go to a log.
    pub fn recover(
        config: LeaderConfig,
        now: Micros,
        make_id: Box<dyn FnMut() -> Uuid>,
        recovered: Recovered,
    ) -> Self {
        let broker = Config { durable: true, ..config.broker.clone() };
        let mut leader = Leader::new(LeaderConfig { broker, ..config }, now, make_id);
        let Recovered { replay, blobs, requests } = recovered;
        let Replay { state, index, inputs, results, last_result, .. } = replay;
        leader.log = CommitLog::on_disk();
        leader.counters.recovered_jobs = state.job_count();
        leader.payloads = Payloads::new(PayloadStore::restore(&inputs, &results, last_result));
        let (mut maps, mut bad) = (HashMap::new(), HashMap::new());
        for Found { blob, map } in blobs {
            match map {
                Ok(map) => {
                    maps.insert(blob, map);
                }
                Err(error) => {
                    error!(%blob, "a blob cannot be used: {error}");
                    bad.insert(blob, error.to_string());
                }
            }
        }
        leader.broker = Broker::restore(leader.config.broker.clone(), state, index, now);
        let (mut lost, mut gone) = (Vec::new(), Vec::new());
        for (job, held) in inputs.iter().filter(|(_, held)| !held.blobs.is_empty()) {
            let blobs = held.blobs.to_vec();
            let has_failed = leader.broker.state().job(*job).is_some_and(Job::retains_inputs);
            let why = leader.restore_inputs(*job, &blobs, &mut maps, &bad, requests.get(job));
            if has_failed { &mut gone } else { &mut lost }.extend(why);
            leader.blobs.inputs.insert(*job, blobs);
        }
        for (result, held) in results.iter().filter(|(_, held)| !held.blobs.is_empty()) {
            for blob in &held.blobs {
                leader.blobs.name_part(*result, *blob);
                if let Err(why) = leader.restore_found(*blob, &mut maps, &bad) {
                    error!(%blob, "a part of a result is lost: {why}");
                    leader.blobs.lost.insert(*blob, why);
                }
            }
        }
        leader.restore_datasets(&mut maps);
        leader.restore_coming(maps);
        leader.take_what_is_whole(&inputs);
        leader.restore_retained(&inputs, gone.into_iter().map(|(job, _)| job).collect());
        for (job, why) in lost {
            error!(%job, "an input is lost: {why}");
            let why = format!("an input is lost at the leader: {why}").into();
            leader.broker.handle(now, Event::InputsFailed { job, why });
        }
        // After those that were being brought had time to come again.
        leader.questions.list_from(now.plus(leader.config.blob_grace));
        leader.relay.measure();
        leader.act();
        leader
    }

    /// Failed jobs that may run again, and those of which inputs are not here: files may be gone
    /// before the record that says so is on the disk, and older leaders kept none.
    fn restore_retained(&mut self, inputs: &HashMap<JobId, Held>, gone: HashSet<JobId>) {
        let retained: Vec<JobId> = self.broker.state().retained().map(Job::id).collect();
        for job in retained {
            if gone.contains(&job) || !inputs.contains_key(&job) {
                self.broker.handle(self.now, Event::DropInputs { job });
            } else {
                self.retain_inputs(job);
            }
        }
    }

    /// Jobs whose inputs had all come, and that had not been taken yet. One to all workers waits
    /// for its client: there are no workers yet.
    fn take_what_is_whole(&mut self, inputs: &HashMap<JobId, Held>) {
        let is_announced = |job: &JobId| {
            self.broker
                .state()
                .job(*job)
                .is_some_and(|job| job.is_announced() && !job.has_ended() && !job.submission.to_all)
        };
        let announced: Vec<JobId> =
            inputs.keys().filter(|job| is_announced(job)).copied().collect();
        announced.into_iter().for_each(|job| self.input_arrived(job));
    }

    /// The inputs of a job: whole, if the job was taken; else as far as they came. Gives the job
    /// and why if one is lost.
    fn restore_inputs(
        &mut self,
        job: JobId,
        blobs: &[BlobId],
        maps: &mut HashMap<BlobId, Map>,
        bad: &HashMap<BlobId, String>,
        request: Option<&Vec<u8>>,
    ) -> Option<(JobId, String)> {
        let is_announced = self.broker.state().job(job).is_some_and(|job| job.is_announced());
        if !is_announced {
            for blob in blobs {
                if let Err(why) = self.restore_found(*blob, maps, bad) {
                    return Some((job, why));
                }
            }
            return None;
        }
        let named = request.and_then(|request| JobRequest::parse(request).ok());
        let named = named.as_ref().map(named_in).unwrap_or_default();
        for (id, name, size) in &named {
            let (id, size) = (*id, *size);
            match maps.remove(&id).filter(|map| map.open.size == size && map.open.owner == job.0) {
                Some(map) => self.restore_coming_blob(id, map),
                None => {
                    if let Ok(plan) = ChunkPlan::new(size, CHUNK_BYTES_MAX) {
                        self.relay.expect(id, announced(job, name, size), plan, true);
                    }
                }
            }
        }
        self.relay.restore_places(&named.iter().map(|(id, _, _)| *id).collect::<Vec<_>>());
        None
    }

    /// A blob that has to be here whole. An error says why it is not.
    fn restore_found(
        &mut self,
        blob: BlobId,
        maps: &mut HashMap<BlobId, Map>,
        bad: &HashMap<BlobId, String>,
    ) -> Result<(), String> {
        match maps.remove(&blob) {
            Some(map) => self.restore_whole(blob, map),
            None if self.relay.knows(blob) => Ok(()),
            None => Err(bad.get(&blob).cloned().unwrap_or_else(|| no_map(blob))),
        }
    }

    pub(super) fn restore_whole(&mut self, id: BlobId, map: Map) -> Result<(), String> {
        let plan = ChunkPlan::new(map.open.size, map.open.chunk_bytes)
            .map_err(|error| error.to_string())?;
        if let Some(damage) = map.damage.first() {
            return Err(damage.to_string());
        }
        let Some(digest) = map.seal.filter(|_| map.is_whole()) else {
            return Err(format!(
                "blob {id} was acknowledged, but its map says that it is incomplete"
            ));
        };
        self.relay.restore(id, map.open, plan, map.chunks, Some(digest));
        Ok(())
    }

    /// A blob that nothing refers to yet. If all of it was durable, its sender may have been told
    /// so and does not send it again.
    fn restore_coming_blob(&mut self, id: BlobId, map: Map) {
        let digest = map.seal.filter(|_| map.is_whole() && map.damage.is_empty());
        if let Ok(plan) = ChunkPlan::new(map.open.size, map.open.chunk_bytes) {
            self.relay.restore(id, map.open, plan, map.chunks, digest);
        }
    }

    /// Parts of results that nobody has acknowledged: their workers may go on with them.
    fn restore_coming(&mut self, maps: HashMap<BlobId, Map>) {
        let mut left = 0;
        for (id, map) in maps {
            let owner = JobId(map.open.owner);
            let is_part = match map.open.purpose {
                Purpose::Archive | Purpose::Stdout | Purpose::Stderr => true,
                Purpose::Input | Purpose::Payload | Purpose::Dataset => false,
            };
            // Of an attempt that the log does not know, another may be made under the same number;
            // and a job that is not taken has not run: that was an earlier one of its id.
            let is_known = |job: &Job| {
                !job.has_ended() && !job.is_announced() && map.open.attempt <= job.attempt.0
            };
            let may_end = self.broker.state().job(owner).is_some_and(is_known);
            // What was gathered from a large frame cannot be gone on with.
            if is_part && may_end && map.open.attempt > 0 {
                self.blobs.comes(owner, Attempt(map.open.attempt), id);
                self.restore_coming_blob(id, map);
            } else {
                left += 1;
            }
        }
        if left > 0 {
            info!(blobs = left, "orphaned blob files are collected after a while");
        }
    }
}

/// Why a blob is lost that has no map.
pub(super) fn no_map(blob: BlobId) -> String {
    format!("blobs/{}.map is gone from the data directory", blob.simple())
}
