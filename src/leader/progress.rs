//! Passes on to clients how far workers are with their jobs: stage, bytes and the handler's own
//! words.
//!
//! A worker may say more than a client wants to hear: of each job a word passes when it comes to
//! another stage, and otherwise once in a while, the latest for those between; of a connection with
//! many jobs so many a second. What the broker makes of progress is not decided here. Children of a
//! job to all workers are not told about: their client knows the parent alone.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use chunking::message::{Progress, Stage};

use super::Leader;
use crate::core::ids::{ConnId, JobId, Micros};
use crate::core::job::Phase;

/// Between two words about a job that stays in its stage.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Words to one connection in [`WINDOW`].
const PROGRESS_WORDS_MAX: u32 = 64;

const WINDOW: Duration = Duration::from_secs(1);

/// Jobs of which it is known what their clients were told; further ones are not told about.
const PROGRESS_JOBS_MAX: usize = 65_536;

/// What passes of a handler's words, in bytes.
const PROGRESS_TEXT_BYTES_MAX: usize = 512;

/// What a client was told of a job.
#[derive(Debug)]
struct Told {
    attempt: u32,
    stage: Stage,
    at: Micros,
    /// The latest that it was not, and when it will be.
    next: Option<(Micros, Progress)>,
}

/// What clients were told, and what waits to be.
#[derive(Debug, Default)]
pub(super) struct Progresses {
    jobs: HashMap<JobId, Told>,
    /// When what waits is due.
    due: BTreeSet<(Micros, JobId)>,
    /// Since when so many words went to a connection.
    windows: HashMap<ConnId, (Micros, u32)>,
}

impl Progresses {
    /// A worker says how far a job is, whose client is on this connection. Gives what is to be
    /// said now.
    fn take(
        &mut self,
        now: Micros,
        conn: ConnId,
        job: JobId,
        mut word: Progress,
    ) -> Option<Progress> {
        let text = word.text.as_str();
        if text.len() > PROGRESS_TEXT_BYTES_MAX {
            let cut = text.get(..text.floor_char_boundary(PROGRESS_TEXT_BYTES_MAX));
            word.text = cut.unwrap_or_default().into();
        }
        let from = match self.jobs.get(&job) {
            None if self.jobs.len() >= PROGRESS_JOBS_MAX => return None,
            None => now,
            Some(told) if word.attempt < told.attempt => return None,
            Some(told) if (word.attempt, word.stage) != (told.attempt, told.stage) => now,
            Some(told) => told.at.plus(PROGRESS_EVERY),
        };
        self.say_from(now, from, conn, job, word)
    }

    /// Says a word when it is time, and no sooner than its connection takes one more.
    fn say_from(
        &mut self,
        now: Micros,
        from: Micros,
        conn: ConnId,
        job: JobId,
        word: Progress,
    ) -> Option<Progress> {
        let window = self.windows.entry(conn).or_insert((now, 0));
        if now.since(window.0) >= WINDOW {
            *window = (now, 0);
        }
        let from = match window.1 < PROGRESS_WORDS_MAX {
            true => from,
            false => from.max(window.0.plus(WINDOW)),
        };
        let said = from <= now;
        window.1 += u32::from(said);
        let told = self.jobs.entry(job).or_insert(Told {
            attempt: word.attempt,
            stage: word.stage,
            at: now,
            next: None,
        });
        if let Some((due, _)) = told.next.take() {
            self.due.remove(&(due, job));
        }
        if said {
            (told.attempt, told.stage, told.at) = (word.attempt, word.stage, now);
            return Some(word);
        }
        told.next = Some((from, word));
        self.due.insert((from, job));
        None
    }

    /// A job whose word is due; the word.
    fn next_due(&mut self, now: Micros) -> Option<(JobId, Progress)> {
        let (due, job) = self.due.first().copied().filter(|(due, _)| *due <= now)?;
        self.due.remove(&(due, job));
        let (_, word) = self.jobs.get_mut(&job)?.next.take()?;
        Some((job, word))
    }

    /// When something is due.
    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A job has ended.
    pub(super) fn forget(&mut self, job: JobId) {
        if let Some((due, _)) = self.jobs.remove(&job).and_then(|told| told.next) {
            self.due.remove(&(due, job));
        }
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, conn: ConnId) {
        self.windows.remove(&conn);
    }
}

impl Leader {
    /// A worker says how far a job is.
    pub(super) fn pass_on(&mut self, from: ConnId, job: JobId, word: Progress) {
        // That it runs was said already.
        let says_more = (word.done, word.total) != (0, 0) || !word.text.as_str().is_empty();
        if word.stage == Stage::Running && !says_more {
            return;
        }
        if self.is_at(from, job, word.attempt)
            && let Some(conn) = self.watcher_of(job)
            && let Some(word) = self.progresses.take(self.now, conn, job, word)
        {
            self.tell_lazily(conn, |session| session.progress(job, &word));
        }
    }

    /// Says what was held back, and is due.
    pub(super) fn pass_on_what_is_due(&mut self) {
        while let Some((job, word)) = self.progresses.next_due(self.now) {
            // Nobody is there any more, or the job is not where it was.
            let Some(conn) = self.watcher_of(job) else { continue };
            let is_current = self.broker.state().job(job).is_some_and(|job| {
                matches!(job.phase, Phase::Leased { attempt, .. } if attempt.0 == word.attempt)
            });
            let now = self.now;
            if is_current && let Some(word) = self.progresses.say_from(now, now, conn, job, word) {
                self.tell_lazily(conn, |session| session.progress(job, &word));
            }
        }
    }

    /// Whether a job is with the worker on this connection, for this attempt.
    fn is_at(&self, conn: ConnId, job: JobId, attempt: u32) -> bool {
        let at = self.peers.worker_at(conn);
        self.broker.state().job(job).is_some_and(|job| {
            job.child_of.is_none()
                && matches!(job.phase, Phase::Leased { worker, attempt: held, .. }
                    if Some(worker) == at && held.0 == attempt)
        })
    }

    /// The connection on which a job's client waits for it.
    fn watcher_of(&self, job: JobId) -> Option<ConnId> {
        let client = &self.broker.state().job(job)?.submission.client;
        self.broker.submitter_of(job, client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const CONN: ConnId = ConnId(1);

    fn id(number: u128) -> JobId {
        JobId(Uuid::from_u128(number))
    }

    fn word(attempt: u32, stage: Stage, done: u64) -> Progress {
        Progress { run: 1, attempt, stage, done, total: 100, text: "step".into() }
    }

    fn at(millis: u64) -> Micros {
        Micros(1_000_000 + millis * 1000)
    }

    /// What is said at a moment of what waited: jobs and bytes done.
    fn due(told: &mut Progresses, now: Micros) -> Vec<(JobId, u64)> {
        let mut said = Vec::new();
        while let Some((job, word)) = told.next_due(now) {
            if let Some(word) = told.say_from(now, now, CONN, job, word) {
                said.push((job, word.done));
            }
        }
        said
    }

    #[test]
    fn another_stage_passes_at_once_and_of_what_comes_in_between_the_latest() {
        let mut told = Progresses::default();
        let mut take =
            |millis, word| told.take(at(millis), CONN, id(1), word).map(|word: Progress| word.done);
        assert_eq!(take(0, word(1, Stage::Running, 1)), Some(1));
        assert_eq!(take(10, word(1, Stage::Running, 2)), None);
        assert_eq!(take(20, word(1, Stage::Running, 3)), None);
        assert_eq!(told.next_deadline(), Some(at(250)));
        assert_eq!(due(&mut told, at(249)), []);
        assert_eq!(due(&mut told, at(250)), [(id(1), 3)]);
        assert_eq!(told.next_deadline(), None, "and nothing after it");
        let mut take =
            |millis, word| told.take(at(millis), CONN, id(1), word).map(|word: Progress| word.done);
        assert_eq!(take(260, word(1, Stage::Running, 4)), None);
        assert_eq!(take(270, word(1, Stage::Packing, 5)), Some(5));
        assert_eq!(told.next_deadline(), None, "what the stage left behind is not said");
        let mut take =
            |millis, word| told.take(at(millis), CONN, id(1), word).map(|word: Progress| word.done);
        assert_eq!(take(280, word(2, Stage::Packing, 6)), Some(6), "another attempt");
        assert_eq!(take(900, word(1, Stage::Returning, 7)), None, "that one is over");
        assert_eq!(take(900, word(2, Stage::Packing, 8)), Some(8));
    }

    #[test]
    fn a_connection_with_many_jobs_hears_so_many_words_a_second_and_then_the_latest_of_the_others()
    {
        let mut told = Progresses::default();
        let jobs = u128::from(PROGRESS_WORDS_MAX) + 10;
        let said = |told: &mut Progresses, millis, done| {
            let words = (0..jobs).filter_map(|job| {
                told.take(at(millis), CONN, id(job), word(1, Stage::Running, done))
            });
            words.count()
        };
        assert_eq!(said(&mut told, 0, 1), PROGRESS_WORDS_MAX as usize);
        assert_eq!(said(&mut told, 500, 2), 0);
        assert_eq!(due(&mut told, at(999)), []);
        let rest = due(&mut told, at(1000));
        assert_eq!(rest.len(), PROGRESS_WORDS_MAX as usize);
        assert!(rest.iter().all(|(_, done)| *done == 2));
        assert_eq!(told.next_deadline(), Some(at(2000)));
        // Another connection has its own.
        let other = told.take(at(1000), ConnId(2), id(1000), word(1, Stage::Running, 1));
        assert!(other.is_some());
        (0..jobs).for_each(|job| told.forget(id(job)));
        told.forget(id(1000));
        told.closed(CONN);
        told.closed(ConnId(2));
        assert!(told.jobs.is_empty() && told.due.is_empty() && told.windows.is_empty());
    }

    #[test]
    fn texts_are_cut_and_jobs_are_limited() {
        let mut told = Progresses::default();
        let long = Progress { text: "ä".repeat(1000).into(), ..word(1, Stage::Running, 1) };
        let said = told.take(at(0), CONN, id(0), long).unwrap();
        assert_eq!(said.text.as_str().len(), PROGRESS_TEXT_BYTES_MAX);
        for job in 1..PROGRESS_JOBS_MAX as u128 + 10 {
            told.take(at(0), CONN, id(job), word(1, Stage::Running, 1));
        }
        assert_eq!(told.jobs.len(), PROGRESS_JOBS_MAX);
    }
}
