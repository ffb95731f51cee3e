//! A node that writes a tail, and what it was told.

use bytes::Bytes;
use heft::core::Record;
use heft::core::ids::{Index, Node, Term};
use heft::core::retry::mix;
use heft::store::codec::put_entry;
use heft::store::journal::{Journal, LogDone, LogOp};
use heft::store::tail::{TailRecord, TailRecords, TailWrite, Vote};
use heft::store::{self, Opened};
use uuid::Uuid;

use super::sim_disk::{Faults, Random, SimDisk};

pub(crate) const NODE: i32 = 2;
pub(crate) const DIR: Uuid = Uuid::from_u128(0xD1);

/// A record of the cluster's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) term: u64,
    /// What it says; 0 if it begins the term.
    pub(crate) salt: u32,
    pub(crate) bytes: usize,
}

impl Logged {
    pub(crate) fn record(&self) -> Record {
        match self.salt {
            0 => Record::Term { term: Term(self.term) },
            cap => Record::Cap { client: "c".repeat(self.bytes).as_str().into(), cap },
        }
    }

    pub(crate) fn in_tail(&self) -> TailRecord {
        let mut bytes = Vec::new();
        put_entry(&self.record(), None, &mut bytes);
        TailRecord { term: Term(self.term), bytes: Bytes::from(bytes) }
    }
}

/// What a node has after a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Has {
    vote: Vote,
    /// All records, committed or not.
    records: Vec<Logged>,
}

/// What happened, so that it is seen if something never does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage {
    lives: u64,
    votes: u64,
    replaced: u64,
    committed: u64,
    told_safe: u64,
    /// Writes that were not told to be safe and are gone; or are there.
    lost: u64,
    kept: u64,
    /// Ends of files that were torn.
    torn: u64,
    /// Records that a start found in the tail.
    survivors: u64,
    /// Starts that found several files.
    several_files: u64,
    /// Records of the log that a power loss took, and that the tail had.
    back_from_tail: u64,
    died_in_recovery: u64,
    full: u64,
    failed: u64,
}

impl Coverage {
    fn all(&mut self) -> [(&'static str, &mut u64); 14] {
        [
            ("lives", &mut self.lives),
            ("votes", &mut self.votes),
            ("replaced", &mut self.replaced),
            ("committed", &mut self.committed),
            ("told safe", &mut self.told_safe),
            ("lost", &mut self.lost),
            ("kept", &mut self.kept),
            ("torn", &mut self.torn),
            ("survivors", &mut self.survivors),
            ("several files", &mut self.several_files),
            ("back from the tail", &mut self.back_from_tail),
            ("died in recovery", &mut self.died_in_recovery),
            ("full", &mut self.full),
            ("failed", &mut self.failed),
        ]
    }

    pub(crate) fn add(&mut self, other: &Coverage) {
        let mut other = other.clone();
        for ((_, into), (_, from)) in self.all().into_iter().zip(other.all()) {
            *into += *from;
        }
    }

    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let mut this = self.clone();
        this.all().into_iter().filter(|(_, count)| **count == 0).map(|(name, _)| name).collect()
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) disk: SimDisk,
    pub(crate) seen: Coverage,
    segment_bytes: u64,
    /// What it had after each write; the number of a write is its place here.
    states: Vec<Has>,
    /// The last write that was said to be safe.
    safe: usize,
    /// Records that were given to the log.
    committed: usize,
    salt: u32,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(mix(seed));
        World {
            disk: SimDisk::new(seed),
            seen: Coverage::default(),
            segment_bytes: [200, 900, 5000][random.below(3) as usize],
            states: vec![Has::default()],
            safe: 0,
            committed: 0,
            salt: 0,
            random,
        }
    }

    /// Lives until the last, which finds no trouble.
    pub(crate) fn run(&mut self, lives: u64) {
        for _ in 0..lives {
            let steps = 5 + self.random.below(60);
            if self.random.chance(80) {
                let ops = self.random.below(steps * 4);
                self.disk.crash_in(Some(ops));
            }
            let eio = if self.random.chance(30) { 1 + self.random.below(60) } else { 0 };
            let full_syncs = self.random.below(2) * 5;
            self.disk.faults(Faults { eio, full_syncs, ..Faults::default() });
            self.live_once(steps);
            self.die();
        }
        self.disk.faults(Faults::default());
        self.open().expect("it opens");
    }

    /// A life as long as it goes.
    pub(crate) fn live_once(&mut self, steps: u64) {
        let Some(mut journal) = self.open() else { return };
        for _ in 0..steps {
            if self.random.chance(4) {
                let full = self.random.chance(60);
                self.disk.faults(Faults { full, ..Faults::default() });
            }
            if !self.step(&mut journal) {
                return;
            }
        }
    }

    /// The process ends in one way or the other.
    pub(crate) fn die(&mut self) {
        self.disk.faults(Faults::default());
        if self.random.chance(70) { self.disk.power_loss() } else { self.disk.kill() }
    }

    /// Opens the directory. It may stop or fail on the way only if the disk did.
    pub(crate) fn open(&mut self) -> Option<Journal> {
        loop {
            self.disk.failed();
            let opened = store::open_member(&self.disk.shared(), NODE, DIR, self.segment_bytes);
            match opened {
                Ok(opened) => return Some(self.opened(opened)),
                Err(_) if self.disk.is_dead() => {
                    self.seen.died_in_recovery += 1;
                    return None;
                }
                Err(error) => {
                    assert!(!self.disk.failed().is_empty(), "refused after a crash: {error}");
                    self.disk.faults(Faults::default());
                    self.disk.kill();
                }
            }
        }
    }

    /// Compares what was found to what was told.
    fn opened(&mut self, opened: Opened) -> Journal {
        let Opened { journal, replay, tail, .. } = opened;
        let in_log = replay.index.0 as usize;
        assert!(in_log <= self.committed, "{in_log} are in the log, {} committed", self.committed);
        self.seen.lives += 1;
        let (vote, rest) = match &tail {
            Some(found) => {
                assert_eq!(found.records.first, Index(replay.index.0 + 1));
                self.seen.torn += found.files.iter().filter(|file| file.torn > 0).count() as u64;
                self.seen.several_files += u64::from(found.files.len() > 1);
                (found.vote, found.records.records.clone())
            }
            None => (Vote::default(), Vec::new()),
        };
        self.seen.survivors += rest.len() as u64;
        self.seen.back_from_tail += (self.committed - in_log) as u64;
        let is_it = |has: &Has| {
            let behind = has.records.get(in_log..).unwrap_or_default();
            has.vote == vote
                && has.records.len() == in_log + rest.len()
                && behind.iter().map(Logged::in_tail).eq(rest.iter().cloned())
        };
        let found = self.states[self.safe..].iter().rposition(is_it);
        let Some(found) = found.map(|place| self.safe + place) else {
            panic!(
                "after write {} of {} there were {:?}, and found are {in_log} in the log, {vote:?} \
                 and {} records",
                self.safe,
                self.states.len() - 1,
                self.states[self.safe],
                rest.len()
            )
        };
        self.seen.lost += (self.states.len() - 1 - found) as u64;
        self.seen.kept += (found - self.safe) as u64;
        let has = self.states[found].clone();
        let terms = tail.map_or(replay.terms, |found| found.terms);
        for (place, record) in (1..).zip(&has.records) {
            assert_eq!(terms.of(Index(place)), Some(Term(record.term)), "record {place}");
        }
        (self.states, self.safe, self.committed) = (vec![has], 0, in_log);
        journal
    }

    /// False once nothing more can be written.
    fn step(&mut self, journal: &mut Journal) -> bool {
        let mut ops = Vec::new();
        for _ in 0..=self.random.below(3) {
            if self.random.chance(35) {
                self.commit(&mut ops);
            } else {
                let write = self.write();
                ops.push(LogOp::Tail { number: self.states.len() as u64 - 1, write });
            }
        }
        for done in journal.run(ops, &|| 0) {
            match done {
                LogDone::TailSafe { number, .. } => {
                    self.seen.told_safe += 1;
                    self.safe = number as usize;
                }
                LogDone::Failed(why) => {
                    let excused = self.disk.is_dead() || !self.disk.failed().is_empty();
                    assert!(excused, "{why}");
                    self.seen.failed += 1;
                    return false;
                }
                LogDone::Trouble(Some(why)) => {
                    assert!(why.contains("full"), "{why}");
                    self.seen.full += 1;
                }
                LogDone::Trouble(None) | LogDone::Written { .. } => {}
                LogDone::Snapshot(_) | LogDone::Read { .. } => panic!("nobody asked"),
            }
        }
        if self.random.chance(30) && !journal.is_stuck() {
            journal.rest();
        }
        !self.disk.is_dead()
    }

    /// Gives the log what is safe.
    fn commit(&mut self, ops: &mut Vec<LogOp>) {
        // No majority has what a write replaces that is on its way.
        let is_certain = |place: usize| {
            let record = self.states[self.safe].records.get(place);
            record.is_some()
                && self.states[self.safe..].iter().all(|has| has.records.get(place) == record)
        };
        let more = (self.committed..).take_while(|place| is_certain(*place)).count();
        let more = self.random.below(more as u64 + 1) as usize;
        for place in self.committed..self.committed + more {
            let record = self.states[self.safe].records[place].record();
            let index = Index(place as u64 + 1);
            ops.push(LogOp::Append { index, record, attached: None, sync: false });
        }
        self.committed += more;
        self.seen.committed += more as u64;
    }

    /// What the node writes next.
    fn write(&mut self) -> TailWrite {
        let mut has = self.states.last().unwrap().clone();
        let mut write = TailWrite::default();
        if self.random.chance(30) {
            let node = self.random.chance(70).then(|| Node(self.random.below(3) as u32));
            let node = has.vote.node.or(node).filter(|_| self.random.chance(40));
            let is_new = node.is_none() || self.random.chance(80);
            let term = Term(has.vote.term.0 + u64::from(is_new));
            let node = if is_new { node } else { has.vote.node.or(node) };
            has.vote = Vote { term, node };
            write.vote = Some(has.vote);
            self.seen.votes += 1;
        }
        if write.vote.is_none() || self.random.chance(60) {
            if has.records.len() > self.committed && self.random.chance(15) {
                let left = has.records.len() - self.committed;
                has.records.truncate(self.committed + self.random.below(left as u64) as usize);
                self.seen.replaced += 1;
            }
            let first = has.records.len();
            for _ in 0..self.random.below(4) {
                let before = has.records.last().map_or(1, |record| record.term);
                self.salt += 1;
                let term = has.vote.term.0;
                let salt = if term > before { 0 } else { self.salt };
                let bytes = [3, 40, 400][self.random.below(3) as usize];
                has.records.push(Logged { term, salt, bytes });
            }
            let records = has.records[first..].iter().map(Logged::in_tail).collect();
            write.records = Some(TailRecords { first: Index(first as u64 + 1), records });
        }
        self.states.push(has);
        write
    }
}
