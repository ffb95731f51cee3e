//! Knows which programs workers have: the lists that they announce, and the pairs of worker and
//! program of which the worker handed a job back.
//!
//! A worker lacks a program if its list does not have it, or if it handed a job of it back and
//! nothing has changed there since. A worker without a list (a classic one, or a handler that says
//! nothing) lacks only what it handed back. What follows for jobs is decided in
//! `missing_programs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::broker::Broker;
use super::ids::{Micros, WorkerId};
use super::job::Job;
use super::names::excerpt;
use super::worker::Worker;

/// A worker is not given a program that it handed back for so long, unless it connects or announces
/// its programs anew before: what it lacked may be no file of its own.
pub const PROGRAM_AVOIDED_FOR: Duration = Duration::from_secs(600);

/// Pairs of worker and program that are avoided. Beyond that the oldest is tried again.
pub const REFUSALS_MAX: usize = 16_384;

/// Bytes of their names and reasons. Beyond that the oldest is tried again, too.
pub const REFUSALS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Characters of a worker's reason that are kept.
pub const REFUSAL_CHARS_MAX: usize = 256;

/// Names that are looked through for one that is like another.
pub(super) const LIKENESS_LOOKS_MAX: usize = 2_048;

/// Names longer than this are not compared.
pub(super) const LIKENESS_BYTES_MAX: usize = 64;

/// The programs that a worker lists: all that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Programs(Arc<[Box<str>]>);

impl Programs {
    /// These, each once.
    pub fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut names: Vec<Box<str>> = names.into_iter().map(|name| name.as_ref().into()).collect();
        names.sort_unstable();
        names.dedup();
        Programs(names.into())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.binary_search_by(|known| (**known).cmp(name)).is_ok()
    }

    /// In the order of their bytes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a list takes in memory.
    pub fn bytes(&self) -> u64 {
        self.names().map(|name| (name.len() + size_of::<Box<str>>()) as u64).sum()
    }

    /// Whether it is the same list in memory, not only one of the same names.
    pub(super) fn is_same(&self, other: &Programs) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// How many hold this list.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// What a worker says of its programs while it is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramsSaid {
    /// It has these, and something is other than before.
    Are(Programs),
    /// It lists none, and something is other than before.
    Unlisted,
    /// Nothing has changed since it said so last.
    Same,
}

/// A worker handed a job back for want of its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it said, cut.
    pub why: Arc<str>,
    pub at: Micros,
    /// Its place among all.
    number: u64,
}

/// The pairs of worker and program that are avoided.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    of: BTreeMap<WorkerId, BTreeMap<Arc<str>, Refusal>>,
    /// The oldest first.
    order: BTreeMap<u64, (WorkerId, Arc<str>)>,
    next: u64,
    bytes: usize,
}

impl Refusals {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn get(&self, worker: WorkerId, exec: &str) -> Option<&Refusal> {
        self.of.get(&worker)?.get(exec)
    }

    /// The programs that a worker handed back.
    pub(super) fn of(&self, worker: WorkerId) -> impl Iterator<Item = (&Arc<str>, &Refusal)> {
        self.of.get(&worker).into_iter().flatten()
    }

    pub(super) fn insert(&mut self, worker: WorkerId, exec: &Arc<str>, why: &str, at: Micros) {
        self.remove(worker, exec);
        let why: Arc<str> = excerpt_line(why).into();
        self.bytes += exec.len() + why.len();
        self.next += 1;
        let refusal = Refusal { why, at, number: self.next };
        self.order.insert(self.next, (worker, exec.clone()));
        self.of.entry(worker).or_default().insert(exec.clone(), refusal);
        while self.order.len() > REFUSALS_MAX || self.bytes > REFUSALS_BYTES_MAX {
            let Some((_, (worker, exec))) = self.order.first_key_value() else { return };
            let (worker, exec) = (*worker, exec.clone());
            self.remove(worker, &exec);
        }
    }

    fn remove(&mut self, worker: WorkerId, exec: &str) {
        let Some(its) = self.of.get_mut(&worker) else { return };
        let Some((exec, refusal)) = its.remove_entry(exec) else { return };
        if its.is_empty() {
            self.of.remove(&worker);
        }
        self.order.remove(&refusal.number);
        self.bytes -= exec.len() + refusal.why.len();
    }

    /// A worker may have other programs now. Says whether any was avoided.
    pub(super) fn clear(&mut self, worker: WorkerId) -> bool {
        let its: Vec<Arc<str>> = self.of(worker).map(|(exec, _)| exec.clone()).collect();
        its.iter().for_each(|exec| self.remove(worker, exec));
        !its.is_empty()
    }

    /// When the oldest of them has been avoided for long enough.
    pub(super) fn next_end(&self) -> Option<Micros> {
        let (worker, exec) = self.order.first_key_value().map(|(_, pair)| pair)?;
        Some(self.get(*worker, exec)?.at.plus(PROGRAM_AVOIDED_FOR))
    }

    /// Drops what has been avoided for long enough; gives the workers that may be tried again.
    pub(super) fn expire(&mut self, now: Micros) -> Vec<WorkerId> {
        let mut workers = Vec::new();
        while self.next_end().is_some_and(|end| end <= now) {
            let Some((_, (worker, exec))) = self.order.first_key_value() else { break };
            let (worker, exec) = (*worker, exec.clone());
            self.remove(worker, &exec);
            workers.push(worker);
        }
        workers.sort_unstable();
        workers.dedup();
        workers
    }
}

/// The first line of a worker's reason, as far as it is kept and shown.
fn excerpt_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut kept: String =
        line.chars().take(REFUSAL_CHARS_MAX).filter(|c| !c.is_control()).collect();
    if line.chars().nth(REFUSAL_CHARS_MAX).is_some() {
        kept.push('…');
    }
    if kept.is_empty() { "it does not have it".to_owned() } else { kept }
}

/// Why a worker is not given a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProgram {
    /// Its list, which has so many, does not have it.
    NotListed { listed: usize },
    /// It handed a job of it back.
    Refused(Refusal),
}

impl NoProgram {
    /// For people, behind the worker's name.
    pub fn text(&self) -> String {
        match self {
            NoProgram::NotListed { listed: 0 } => "has no programs".to_owned(),
            NoProgram::NotListed { listed: 1 } => "has 1 program, and not this one".to_owned(),
            NoProgram::NotListed { listed } => format!("has {listed} programs, and not this one"),
            NoProgram::Refused(refusal) => format!("handed it back: {}", refusal.why),
        }
    }
}

impl Broker {
    /// Why a worker is not given a program, if it is not.
    pub(super) fn no_program(&self, worker: &Worker, exec: &str) -> Option<NoProgram> {
        if exec.is_empty() {
            return None;
        }
        if let Some(refusal) = self.placement.refusals.get(worker.id, exec) {
            return Some(NoProgram::Refused(refusal.clone()));
        }
        let listed = worker.programs.as_ref().filter(|programs| !programs.has(exec))?;
        Some(NoProgram::NotListed { listed: listed.len() })
    }

    /// Whether a worker lacks the program of a job, as far as is known.
    pub(super) fn lacks_program(&self, job: &Job, worker: &Worker) -> bool {
        let exec = &*job.submission.exec;
        !exec.is_empty()
            && (worker.programs.as_ref().is_some_and(|programs| !programs.has(exec))
                || self.placement.refusals.get(worker.id, exec).is_some())
    }

    /// What a worker said when it handed back a job of this program, as long as it is avoided.
    pub fn refusal(&self, worker: WorkerId, exec: &str) -> Option<&Refusal> {
        self.placement.refusals.get(worker, exec)
    }

    /// The pairs that are avoided at a worker.
    pub fn avoided_at(&self, worker: WorkerId) -> impl Iterator<Item = (&Arc<str>, &Refusal)> {
        self.placement.refusals.of(worker)
    }
}

/// How people call a worker: by its name, where it has one, and its id.
pub(super) fn called(worker: &Worker) -> String {
    match &*worker.name {
        "" => format!("worker {}", worker.id),
        name => format!("worker {} ({})", excerpt(name), worker.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn worker(number: u128) -> WorkerId {
        WorkerId(Uuid::from_u128(number))
    }

    #[test]
    fn a_list_has_each_name_once_and_tells_case() {
        let programs = Programs::new(["b", "a", "b"]);
        assert_eq!(programs.names().collect::<Vec<_>>(), ["a", "b"]);
        assert!(programs.has("a") && !programs.has("A") && !programs.has(""));
    }

    #[test]
    fn refusals_end_by_time_by_worker_by_number_and_by_bytes() {
        let mut refusals = Refusals::default();
        refusals.insert(worker(1), &"a".into(), "no\nsecond line", Micros(5));
        refusals.insert(worker(2), &"b".into(), "", Micros(6));
        assert_eq!(refusals.get(worker(1), "a").map(|refusal| &*refusal.why), Some("no"));
        assert_eq!(refusals.next_end(), Some(Micros(5).plus(PROGRAM_AVOIDED_FOR)));
        // Said again, it is not the oldest any more.
        refusals.insert(worker(1), &"a".into(), "still", Micros(7));
        assert_eq!(refusals.expire(Micros(6).plus(PROGRAM_AVOIDED_FOR)), [worker(2)]);
        assert!(refusals.clear(worker(1)) && !refusals.clear(worker(1)));
        assert_eq!((refusals.len(), refusals.bytes, refusals.of.len()), (0, 0, 0));

        for number in 0..REFUSALS_MAX as u128 + 3 {
            refusals.insert(worker(number), &"x".into(), "y", Micros(1));
        }
        assert_eq!(refusals.len(), REFUSALS_MAX);
        assert!(refusals.get(worker(2), "x").is_none() && refusals.get(worker(3), "x").is_some());
        for number in 0..3_000 {
            let long: Arc<str> = format!("{number}{}", "z".repeat(4_000)).into();
            refusals.insert(worker(1), &long, &"w".repeat(10_000), Micros(1));
            assert!(refusals.bytes <= REFUSALS_BYTES_MAX);
        }
        let (_, last) = refusals.of(worker(1)).next().unwrap();
        assert_eq!(last.why.chars().count(), REFUSAL_CHARS_MAX + 1, "cut, and marked");
    }
}
