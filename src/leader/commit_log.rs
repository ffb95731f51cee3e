//! Carries records to the log and back: each is committed when [`Single`](crate::consensus) says
//! so, which is at once, or when it is synced if `leader/durable.rs` asks for that.
//!
//! A state machine of its own. Records go in through [`CommitLog::append`], the log thread reports
//! progress through [`CommitLog::done`], and [`CommitLog::poll`] returns what follows.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::answers::Log;
use crate::consensus::Single;
use crate::core::Record;
use crate::core::ids::Index;
use crate::store::codec::Attached;
use crate::store::format::Place;
use crate::store::journal::{Cost, LogDone, LogOp};
use crate::store::replay::Key;

/// Bytes written to the log before free disk space is measured again.
const MEASURE_AFTER_BYTES: u64 = 1 << 20;

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all of them are the large one, and a box would be one for each record"
)]
pub(super) enum LogAction {
    /// Something for the thread of the log.
    Do(LogOp),
    /// All records up to this one count.
    Committed(Index),
    /// The log has a payload there.
    Placed { key: Key, place: Place },
    /// It has moved one.
    Moved { key: Key, from: Place, to: Place },
    /// It has read one.
    Read { key: Key, result: Result<Bytes, String> },
    /// It is time to look how much room the disk has.
    Measure,
    /// The disk takes nothing, and why; or it takes something again.
    Trouble(Option<String>),
}

/// What records are committed by.
#[derive(Debug, Default)]
pub(super) struct CommitLog {
    disk: Option<Box<OnDisk>>,
    actions: VecDeque<LogAction>,
}

/// A log on the disk, as the leader sees it.
#[derive(Debug, Default)]
struct OnDisk {
    single: Single,
    /// Records whose payloads will have a place.
    placing: HashMap<Index, Key>,
    /// What it took so far.
    cost: Cost,
    /// Bytes that it has written since the room on the disk was measured for it.
    unmeasured: u64,
    /// Why the disk takes nothing, if it does not.
    trouble: Option<String>,
    /// Why nothing can be committed any more.
    failed: Option<String>,
}

impl CommitLog {
    /// A log on the disk. Without one, records count at once and are gone with the leader.
    pub(super) fn on_disk() -> Self {
        CommitLog { disk: Some(Box::default()), actions: VecDeque::new() }
    }

    /// Whether records outlive the leader.
    pub(super) fn is_durable(&self) -> bool {
        self.disk.is_some()
    }

    pub(super) fn describe(&self) -> Log {
        let Some(disk) = &self.disk else { return Log::default() };
        Log {
            log_records: disk.cost.records,
            log_bytes: disk.cost.bytes,
            log_syncs: disk.cost.syncs,
            log_sync_us: disk.cost.sync_us,
            log_trouble: disk.trouble.clone(),
        }
    }

    /// Why the log takes nothing, if it does not.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.disk.as_ref()?.trouble.as_deref()
    }

    /// Why nothing can be committed any more.
    pub(super) fn failed(&self) -> Option<&str> {
        self.disk.as_ref()?.failed.as_deref()
    }

    /// The next thing to do.
    pub(super) fn poll(&mut self) -> Option<LogAction> {
        self.actions.pop_front()
    }

    /// Commits a record, with the payload that goes into the log with it.
    pub(super) fn append(
        &mut self,
        index: Index,
        record: Record,
        attached: Option<(Key, Attached)>,
        sync: bool,
    ) {
        let committed = match &mut self.disk {
            None => Some(index),
            Some(disk) => {
                let attached = attached.map(|(key, attached)| {
                    disk.placing.insert(index, key);
                    attached
                });
                self.actions.push_back(LogAction::Do(LogOp::Append {
                    index,
                    record,
                    attached,
                    sync,
                }));
                disk.single.propose(index, sync)
            }
        };
        self.actions.extend(committed.map(LogAction::Committed));
    }

    /// The thread of the log has done something.
    pub(super) fn done(&mut self, done: LogDone) {
        let (Some(disk), actions) = (&mut self.disk, &mut self.actions) else { return };
        match done {
            LogDone::Written { synced, places, cost } => {
                disk.cost.records += cost.records;
                disk.cost.bytes += cost.bytes;
                disk.cost.syncs += cost.syncs;
                disk.cost.sync_us += cost.sync_us;
                disk.unmeasured += cost.bytes;
                for (index, place) in places {
                    let key = disk.placing.remove(&index);
                    actions.extend(key.map(|key| LogAction::Placed { key, place }));
                }
                let committed = synced.and_then(|index| disk.single.synced(index));
                actions.extend(committed.map(LogAction::Committed));
                if disk.unmeasured >= MEASURE_AFTER_BYTES {
                    disk.unmeasured = 0;
                    actions.push_back(LogAction::Measure);
                }
            }
            LogDone::Read { key, result } => actions.push_back(LogAction::Read { key, result }),
            LogDone::Snapshot(report) => {
                let moved = report.moved.into_iter();
                actions.extend(moved.map(|(key, from, to)| LogAction::Moved { key, from, to }));
                actions.push_back(LogAction::Do(LogOp::Cut));
            }
            LogDone::Trouble(trouble) => {
                disk.trouble.clone_from(&trouble);
                actions.push_back(LogAction::Trouble(trouble));
            }
            LogDone::Failed(why) => disk.failed = Some(why),
            // A leader on its own has no tail.
            LogDone::TailSafe { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::JobId;
    use crate::store::format::FileNo;
    use uuid::Uuid;

    fn record() -> Record {
        Record::Delivered { job: JobId(Uuid::nil()), run: crate::core::ids::Run(1) }
    }

    fn all(log: &mut CommitLog) -> Vec<String> {
        std::iter::from_fn(|| log.poll())
            .map(|action| match action {
                LogAction::Do(LogOp::Append { index, sync, .. }) => {
                    format!("append {} {sync}", index.0)
                }
                LogAction::Do(op) => format!("{op:?}"),
                LogAction::Committed(index) => format!("committed {}", index.0),
                LogAction::Placed { place, .. } => format!("placed at {}", place.offset),
                LogAction::Moved { to, .. } => format!("moved to {}", to.offset),
                LogAction::Read { .. } => "read".to_owned(),
                LogAction::Measure => "measure".to_owned(),
                LogAction::Trouble(trouble) => format!("trouble {trouble:?}"),
            })
            .collect()
    }

    fn written(synced: Option<u64>, places: Vec<(Index, Place)>, bytes: u64) -> LogDone {
        let cost = Cost { records: 1, bytes, ..Cost::default() };
        LogDone::Written { synced: synced.map(Index), places, cost }
    }

    #[test]
    fn without_a_disk_a_record_counts_at_once() {
        let mut log = CommitLog::default();
        log.append(Index(1), record(), None, true);
        assert_eq!(all(&mut log), ["committed 1"]);
        log.done(LogDone::Failed("nothing".to_owned()));
        assert!(all(&mut log).is_empty());
        assert_eq!((log.is_durable(), log.failed()), (false, None));
    }

    #[test]
    fn a_synced_record_counts_when_the_log_has_it_and_those_behind_it_with_it() {
        let mut log = CommitLog::on_disk();
        log.append(Index(1), record(), None, false);
        assert_eq!(all(&mut log), ["append 1 false", "committed 1"]);
        log.append(Index(2), record(), None, true);
        log.append(Index(3), record(), None, false);
        assert_eq!(all(&mut log), ["append 2 true", "append 3 false"]);
        log.done(written(Some(3), Vec::new(), 100));
        assert_eq!(all(&mut log), ["committed 3"]);
        log.done(written(None, Vec::new(), MEASURE_AFTER_BYTES));
        assert_eq!(all(&mut log), ["measure"]);
        assert_eq!(
            (log.describe().log_records, log.describe().log_bytes),
            (2, MEASURE_AFTER_BYTES + 100)
        );
    }

    #[test]
    fn payloads_have_their_place_before_their_record_counts() {
        let mut log = CommitLog::on_disk();
        let key = Key::Input(JobId(Uuid::nil()));
        let attached =
            Attached { from_ours: true, blobs: Vec::new(), payload: Bytes::new().into() };
        log.append(Index(1), record(), Some((key, attached)), true);
        all(&mut log);
        let place = Place { file: FileNo::log(1), offset: 7, len: 0, crc: 0 };
        log.done(written(Some(1), vec![(Index(1), place)], 10));
        assert_eq!(all(&mut log), ["placed at 7", "committed 1"]);
    }

    #[test]
    fn a_disk_that_takes_nothing_is_said_until_it_takes_something() {
        let mut log = CommitLog::on_disk();
        log.done(LogDone::Trouble(Some("full".to_owned())));
        assert_eq!(all(&mut log), ["trouble Some(\"full\")"]);
        assert_eq!(log.trouble(), Some("full"));
        log.done(LogDone::Trouble(None));
        assert_eq!(all(&mut log), ["trouble None"]);
        assert_eq!(log.trouble(), None);
        log.done(LogDone::Failed("a sync failed".to_owned()));
        assert_eq!(log.failed(), Some("a sync failed"));
    }
}
