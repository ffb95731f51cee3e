//! Decides which failed jobs lose their inputs before their time (`--result-ttl`). As long as a
//! failed job has them, it can run again without another upload.
//!
//! Inputs of failed jobs make room after orphaned packs and before results. They go as soon as the
//! disk is nearly full, before anything is refused, and count toward no limit that new jobs,
//! uploads or datasets meet. [`Retained`] decides from the sizes reported to it, and sees nothing
//! else of the leader.

use std::collections::{BTreeMap, HashMap};

use super::Leader;
use super::relay::KnownBlobs;
use crate::answers::Payloads;
use crate::core::Event;
use crate::core::ids::JobId;

/// Bytes of requests that a leader without a log retains: they are in its memory.
const RETAINED_IN_MEMORY_MAX: u64 = 64 << 20;

/// Large inputs that are retained. What is known of each is in memory, too.
const RETAINED_BLOBS_MAX: usize = 65_536;

/// The inputs of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inputs {
    job: JobId,
    /// Bytes of its request.
    request: u64,
    blobs: KnownBlobs,
    blob_bytes: u64,
}

/// The inputs of failed jobs.
#[derive(Debug, Default)]
pub(super) struct Retained {
    /// In the order in which the jobs failed.
    order: BTreeMap<u64, Inputs>,
    /// The same of those with large inputs.
    with_blobs: BTreeMap<u64, JobId>,
    at: HashMap<JobId, u64>,
    last: u64,
    request_bytes: u64,
    blobs: KnownBlobs,
    blob_bytes: u64,
    /// The job whose inputs are being dropped: until that is committed nothing is gained by
    /// dropping more.
    dropping: Option<JobId>,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Short {
    /// Others wait for room on the disk, or in the spool, or would; or too many large files are
    /// known.
    room: bool,
    /// Bytes that requests take, and may take.
    requests: (u64, u64),
    /// Whether requests outlive the leader. Else they are in memory.
    durable: bool,
}

impl Retained {
    /// A job failed, and its inputs stay.
    fn add(&mut self, inputs: Inputs) {
        self.remove(inputs.job);
        self.last += 1;
        self.at.insert(inputs.job, self.last);
        if inputs.blobs.count > 0 {
            self.with_blobs.insert(self.last, inputs.job);
        }
        self.request_bytes += inputs.request;
        self.blobs.count += inputs.blobs.count;
        self.blobs.names_bytes += inputs.blobs.names_bytes;
        self.blob_bytes += inputs.blob_bytes;
        self.order.insert(self.last, inputs);
    }

    /// A job runs again, or its inputs are gone.
    pub(super) fn remove(&mut self, job: JobId) {
        self.dropping.take_if(|dropping| *dropping == job);
        let Some(at) = self.at.remove(&job) else { return };
        self.with_blobs.remove(&at);
        if let Some(inputs) = self.order.remove(&at) {
            self.request_bytes -= inputs.request;
            self.blobs.count -= inputs.blobs.count;
            self.blobs.names_bytes -= inputs.blobs.names_bytes;
            self.blob_bytes -= inputs.blob_bytes;
        }
    }

    /// Whether inputs are being dropped, which may be all that is needed.
    pub(super) fn is_dropping(&self) -> bool {
        self.dropping.is_some()
    }

    /// Bytes of requests.
    pub(super) fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    /// How much is known of large inputs.
    pub(super) fn blobs(&self) -> KnownBlobs {
        self.blobs
    }

    /// Bytes of large inputs.
    pub(super) fn blob_bytes(&self) -> u64 {
        self.blob_bytes
    }

    /// Whose inputs go next: those of the job that failed first, of those that help.
    fn next_to_go(&self, short: Short) -> Option<JobId> {
        if self.dropping.is_some() {
            return None;
        }
        let (taken, limit) = short.requests;
        let too_many_requests =
            taken > limit || !short.durable && self.request_bytes > RETAINED_IN_MEMORY_MAX;
        if short.room || self.blobs.count > RETAINED_BLOBS_MAX {
            let first = self.with_blobs.first_key_value();
            if let Some((_, job)) = first {
                return Some(*job);
            }
        }
        let first = self.order.first_key_value().filter(|_| too_many_requests);
        first.map(|(_, inputs)| inputs.job)
    }
}

impl Leader {
    /// A job has failed, and what it was made of stays for another run.
    pub(super) fn retain_inputs(&mut self, job: JobId) {
        let blobs = self.blobs.inputs(job);
        self.retained.add(Inputs {
            job,
            request: self.payloads.held.len_of(self.payload_of_job(job)),
            blobs: KnownBlobs {
                count: blobs.len(),
                names_bytes: blobs.iter().map(|blob| self.relay.name_bytes(*blob)).sum(),
            },
            blob_bytes: blobs.iter().map(|blob| self.relay.size(*blob)).sum(),
        });
    }

    /// Bytes of requests whose jobs have not ended, or are dead.
    pub(super) fn request_bytes(&self) -> u64 {
        self.payloads.held.input_bytes().saturating_sub(self.retained.request_bytes())
    }

    /// What is held, for status.
    pub(super) fn describe_payloads(&self) -> Payloads {
        Payloads {
            payload_bytes: self.request_bytes(),
            result_bytes: self.payloads.held.result_bytes(),
            retained_jobs: Some(self.retained.order.len() as u64),
            retained_bytes: Some(self.retained.request_bytes() + self.retained.blob_bytes()),
        }
    }

    /// Drops inputs of failed jobs while others need the room, or are about to.
    pub(super) fn drop_retained(&mut self) {
        while !self.retained.order.is_empty() {
            let next = self.retained.next_to_go(Short {
                room: self.lacks_room(),
                requests: (self.payloads.held.input_bytes(), self.config.payload_bytes_max),
                durable: self.log.is_durable(),
            });
            let Some(job) = next else { break };
            self.retained.dropping = Some(job);
            self.broker.handle(self.now, Event::DropInputs { job });
            if self.log.trouble().is_some() && !self.broker.is_to_run_again(job) {
                // The log may need the very room to take the record. If the leader ends before it
                // does, the next one finds that the files are gone.
                self.retained.remove(job);
                self.forget_inputs(job);
            }
            self.act_once();
        }
    }

    /// Whether there is too little room for what others bring, or will be for the next of them.
    fn lacks_room(&self) -> bool {
        self.relay.is_nearly_full()
            || self.relay.is_short()
            || self.relay.too_many(0, 0, KnownBlobs::default()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const ENOUGH: Short = Short { room: false, requests: (0, 100), durable: true };
    const NO_ROOM: Short = Short { room: true, ..ENOUGH };

    fn id(number: u64) -> JobId {
        JobId(Uuid::from_u128(number.into()))
    }

    fn inputs(number: u64, request: u64, blob_bytes: u64) -> Inputs {
        let blobs = KnownBlobs { count: usize::from(blob_bytes > 0), names_bytes: 3 };
        Inputs { job: id(number), request, blobs, blob_bytes }
    }

    /// The order in which these go, one after the other.
    fn order(retained: &mut Retained, short: Short) -> Vec<u128> {
        let mut gone = Vec::new();
        while let Some(job) = retained.next_to_go(short) {
            retained.remove(job);
            gone.push(job.0.as_u128());
        }
        gone
    }

    #[test]
    fn for_room_those_with_large_inputs_go_the_oldest_first() {
        let mut retained = Retained::default();
        for (number, bytes) in [(1, 0), (2, 50), (3, 0), (4, 70)] {
            retained.add(inputs(number, 10, bytes));
        }
        assert_eq!((retained.request_bytes(), retained.blob_bytes()), (40, 120));
        assert_eq!(order(&mut retained, ENOUGH), [0; 0]);
        assert_eq!(order(&mut retained, NO_ROOM), [2, 4]);
        assert_eq!((retained.request_bytes(), retained.blob_bytes()), (20, 0));
    }

    #[test]
    fn for_requests_any_go_as_far_as_they_have_to() {
        let mut retained = Retained::default();
        (1..=3).for_each(|number| retained.add(inputs(number, 10, number % 2)));
        let short = |retained: &Retained| Short {
            requests: (85 + retained.request_bytes(), 100),
            ..ENOUGH
        };
        let first = retained.next_to_go(short(&retained));
        assert_eq!(first, Some(id(1)));
        retained.remove(id(1));
        retained.remove(id(2));
        assert_eq!(retained.next_to_go(short(&retained)), None);
        retained.add(inputs(4, RETAINED_IN_MEMORY_MAX, 0));
        let memory = Short { durable: false, ..ENOUGH };
        assert_eq!(retained.next_to_go(memory), Some(id(3)), "in memory there is less room");
    }

    #[test]
    fn one_goes_at_a_time_and_one_that_ran_again_and_failed_is_the_youngest() {
        let mut retained = Retained::default();
        (1..=3).for_each(|number| retained.add(inputs(number, 10, 1)));
        retained.remove(id(1));
        retained.add(inputs(1, 10, 1));
        assert_eq!(retained.next_to_go(NO_ROOM), Some(id(2)));
        retained.dropping = Some(id(2));
        assert_eq!(retained.next_to_go(NO_ROOM), None);
        retained.remove(id(2));
        assert_eq!(order(&mut retained, NO_ROOM), [3, 1]);
        assert!(retained.order.is_empty() && retained.at.is_empty());
        assert_eq!(retained.blobs(), KnownBlobs::default());
    }
}
