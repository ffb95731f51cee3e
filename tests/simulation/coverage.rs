//! What happened in all worlds of the simulation, so that it can be asserted that everything did.

use std::collections::BTreeMap;

use heft::core::Record;

/// What happened in all worlds: a simulation in which nothing goes wrong proves nothing.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) results: u64,
    pub(crate) requeues: BTreeMap<String, u64>,
    pub(crate) dead: u64,
    pub(crate) orphans: u64,
    pub(crate) stale_results: u64,
    pub(crate) acks_refused: u64,
    pub(crate) abandoned: u64,
    pub(crate) to_all: u64,
    pub(crate) refused: u64,
    pub(crate) announced: u64,
    pub(crate) withdrawn: u64,
    pub(crate) failed: u64,
    pub(crate) started: u64,
    pub(crate) resumed: u64,
    pub(crate) waiting: u64,
    pub(crate) revived: u64,
    pub(crate) retried: u64,
    pub(crate) inputs_dropped: u64,
    pub(crate) datasets: u64,
    pub(crate) waits_for_data: u64,
    pub(crate) lets_nearer_go_first: u64,
    pub(crate) stranded: u64,
    pub(crate) undelivered: u64,
    pub(crate) returned_late: u64,
    pub(crate) handed_back: u64,
    pub(crate) looks: u64,
    pub(crate) failed_for_program: u64,
}

impl Coverage {
    pub(crate) fn note(&mut self, record: &Record) {
        match record {
            Record::Ack { .. } => self.results += 1,
            Record::Requeue { why, .. } => {
                *self.requeues.entry(format!("{why:?}")).or_default() += 1
            }
            Record::Dlq { .. } => self.dead += 1,
            Record::Orphan { .. } => self.orphans += 1,
            Record::Enqueue { job, .. } => self.to_all += u64::from(job.to_all),
            Record::Announce { .. } => self.announced += 1,
            Record::Withdraw { .. } => self.withdrawn += 1,
            Record::Fail { why, .. } if why.contains("has the program") => {
                self.failed_for_program += 1;
            }
            Record::Fail { .. } => self.failed += 1,
            Record::DropInputs { .. } => self.inputs_dropped += 1,
            Record::Assign { .. }
            | Record::Cancel { .. }
            | Record::Revive { .. }
            | Record::Delivered { .. }
            | Record::Forget { .. }
            | Record::Cap { .. }
            | Record::Dataset { .. }
            | Record::Stage { .. }
            | Record::DatasetGone { .. }
            | Record::Term { .. }
            | Record::Members { .. }
            | Record::Level { .. }
            | Record::Mark { .. }
            | Record::Office { .. } => {}
        }
    }

    pub(crate) fn add(&mut self, other: Coverage) {
        self.results += other.results;
        self.dead += other.dead;
        self.orphans += other.orphans;
        self.stale_results += other.stale_results;
        self.acks_refused += other.acks_refused;
        self.abandoned += other.abandoned;
        self.to_all += other.to_all;
        self.refused += other.refused;
        self.announced += other.announced;
        self.withdrawn += other.withdrawn;
        self.failed += other.failed;
        self.started += other.started;
        self.resumed += other.resumed;
        self.waiting += other.waiting;
        self.revived += other.revived;
        self.retried += other.retried;
        self.inputs_dropped += other.inputs_dropped;
        self.datasets += other.datasets;
        self.waits_for_data += other.waits_for_data;
        self.lets_nearer_go_first += other.lets_nearer_go_first;
        self.stranded += other.stranded;
        self.undelivered += other.undelivered;
        self.returned_late += other.returned_late;
        self.handed_back += other.handed_back;
        self.looks += other.looks;
        self.failed_for_program += other.failed_for_program;
        for (why, count) in other.requeues {
            *self.requeues.entry(why).or_default() += count;
        }
    }
}
