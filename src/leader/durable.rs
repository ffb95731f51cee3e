//! Writes records to the leader's log and acts on the log's progress.

use tracing::{error, warn};

use super::commit_log::LogAction;
use super::payloads::UNLOGGED_BYTES_MAX;
use super::{Leader, Output};
use crate::answers::Durability;
use crate::core::ids::{Index, Micros};
use crate::core::job::{Job, Phase};
use crate::core::{Event, Record};
use crate::store::blobs::DiskOp;
use crate::store::codec::Attached;
use crate::store::journal::LogDone;
use crate::store::replay::Key;
use crate::store::space::Reserve;

/// While more bytes of payloads wait for the log, no large frames are read, and nothing of clients.
const LOG_BEHIND_BYTES: u64 = 16 << 20;

const _: () = assert!(LOG_BEHIND_BYTES < UNLOGGED_BYTES_MAX);

impl Leader {
    /// Commits a record: at once, or when the log has it.
    pub(super) fn commit(&mut self, index: Index, record: Record) {
        let attached = if self.log.is_durable() { self.attached_to(&record) } else { None };
        let sync = record.is_synced_first() || self.is_told(&record);
        self.note_followed(index, &record);
        self.log.append(index, record, attached, sync);
        self.log_on();
    }

    /// Whether forgetting has an effect that cannot be taken back: somebody is told that a dead job
    /// is gone, or files are removed that the log would still refer to.
    fn is_told(&self, record: &Record) -> bool {
        let (Record::Forget { job, .. } | Record::DropInputs { job, .. }) = record else {
            return false;
        };
        let Some(job) = self.broker.state().job(*job) else { return false };
        let has_files = !self.blobs.inputs(job.id()).is_empty() || self.has_parts(job);
        has_files || matches!(job.phase, Phase::Dead { .. })
    }

    /// Whether the result of a job, or of one of its children, has parts that are blobs.
    pub(super) fn has_parts(&self, job: &Job) -> bool {
        self.results_of(job).any(|result| !self.blobs.of_result(result).is_empty())
    }

    /// The payload that goes into the log with a record.
    fn attached_to(&self, record: &Record) -> Option<(Key, Attached)> {
        if let Record::Announce { job, .. } | Record::Enqueue { job, .. } = record {
            // One that was announced has its payload there already.
            let is_announced = self.broker.state().job(job.job).is_some();
            let input = self.payloads.held.input(job.job).filter(|_| !is_announced)?;
            let blobs = self.blobs.inputs(job.job).to_vec();
            let attached = Attached { from_ours: input.from_ours, blobs, payload: input.payload };
            return Some((Key::Input(job.job), attached));
        }
        let Record::Ack { result, .. } = record else { return None };
        let payload = self.payloads.held.result(*result)?;
        let blobs = self.blobs.of_result(*result).to_vec();
        Some((Key::Result(*result), Attached { from_ours: true, blobs, payload }))
    }

    /// The log has done something.
    pub fn log_done(&mut self, now: Micros, done: LogDone) {
        self.pass_time(now);
        self.log.done(done);
        self.log_on();
        self.act();
    }

    /// Does what follows from what the log has, and has done.
    fn log_on(&mut self) {
        while let Some(action) = self.log.poll() {
            match action {
                LogAction::Do(op) => self.outputs.push_back(Output::Log(op)),
                LogAction::Committed(index) => {
                    self.broker.handle(self.now, Event::Committed { index });
                    self.followed_may_have_changed(index);
                }
                LogAction::Placed { key, place } => self.payloads.held.placed(key, place),
                LogAction::Moved { key, from, to } => self.payloads.held.moved(key, &from, to),
                LogAction::Read { key, result } => self.payloads.was_read(key, result),
                LogAction::Measure => self.relay.measure(),
                LogAction::Trouble(trouble) => {
                    match trouble {
                        Some(trouble) => {
                            error!("{trouble}; jobs wait until it can be written");
                            self.outputs.push_back(Output::Disk(DiskOp::MakeRoom));
                        }
                        None => warn!("the log can be written again"),
                    }
                    self.relay.measure();
                    self.answer_those_that_wait();
                }
            }
        }
    }

    /// What is kept free on the disk.
    pub fn disk_reserve(&self) -> Reserve {
        self.config.relay.disk_reserve
    }

    /// The durability that status shows.
    pub(super) fn durability(&self) -> Durability {
        if self.log.is_durable() { Durability::Disk } else { Durability::Memory }
    }

    /// Whether so much waits for the log that nothing more should be read from clients. False while
    /// the log takes nothing: then new jobs are refused, and other messages are still read.
    pub fn is_log_behind(&self) -> bool {
        let unlogged = self.payloads.held.unlogged_bytes();
        self.log.is_durable() && self.log.trouble().is_none() && unlogged > LOG_BEHIND_BYTES
    }

    /// Why the leader has to stop, if it has to: nothing can be committed any more.
    pub fn why_failed(&self) -> Option<&str> {
        self.log.failed()
    }
}
