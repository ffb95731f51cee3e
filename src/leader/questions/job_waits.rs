//! Tracks questions that are held open until jobs have ended (`job.wait`): which jobs each waits
//! for, and how many there may be. It sees no broker; [`Questions`](super::Questions) has jobs
//! watched and passes their ends on.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Asked;
use crate::answers::{JobState, LISTED_MAX, Waited, WaitedJob};
use crate::core::capacity::give_back;
use crate::core::ids::{ConnId, JobId};

/// Jobs that questions of one connection wait for. Our own commands wait for as many as one
/// question may name, and with `--any` for sixteen times as many.
pub(super) const WAITED_OF_CONN_MAX: usize = 16_384;

/// Jobs that all questions wait for; a job that two wait for counts twice. Each takes about 200
/// bytes.
pub(super) const WAITED_ALL_MAX: usize = 131_072;

const _: () = assert!(LISTED_MAX <= WAITED_OF_CONN_MAX && WAITED_OF_CONN_MAX < WAITED_ALL_MAX);

/// A question that waits.
#[derive(Debug)]
struct Wait {
    by: Asked,
    /// Whether the first end answers it.
    any: bool,
    left: BTreeSet<JobId>,
    ended: Vec<WaitedJob>,
}

/// Questions that wait for the ends of jobs.
#[derive(Debug, Default)]
pub(super) struct JobWaits {
    open: BTreeMap<u64, Wait>,
    last: u64,
    /// Who waits for a job.
    of_job: HashMap<JobId, BTreeSet<u64>>,
    /// How many jobs the questions of a connection wait for.
    of_conn: HashMap<ConnId, usize>,
    /// How many all of them wait for.
    all: usize,
}

/// A question that has its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) by: Asked,
    pub(super) waited: Waited,
}

impl JobWaits {
    /// A question waits for these jobs; `ended` have ended already. Gives the jobs that nobody
    /// waited for before. An error says what there is too much of.
    pub(super) fn add(
        &mut self,
        by: Asked,
        any: bool,
        ended: Vec<WaitedJob>,
        left: BTreeSet<JobId>,
    ) -> Result<Vec<JobId>, String> {
        let of_conn = self.of_conn.get(&by.conn).copied().unwrap_or(0);
        let next = "wait for fewer at a time, or ask again when some have ended";
        if of_conn + left.len() > WAITED_OF_CONN_MAX {
            return Err(format!(
                "questions of this connection wait for {of_conn} jobs, and this one for {} more; \
                 the limit is {WAITED_OF_CONN_MAX}: {next}",
                left.len()
            ));
        }
        if self.all + left.len() > WAITED_ALL_MAX {
            return Err(format!(
                "questions wait for {} jobs at this leader, and this one for {} more; the limit \
                 is {WAITED_ALL_MAX}: {next}",
                self.all,
                left.len()
            ));
        }
        self.last += 1;
        let number = self.last;
        let mut new = Vec::new();
        for job in &left {
            let waiting = self.of_job.entry(*job).or_default();
            if waiting.is_empty() {
                new.push(*job);
            }
            waiting.insert(number);
        }
        self.all += left.len();
        *self.of_conn.entry(by.conn).or_default() += left.len();
        self.open.insert(number, Wait { by, any, left, ended });
        Ok(new)
    }

    /// A job has ended: gives the questions that have their answer by that, and the jobs that
    /// nobody waits for any more because of it.
    pub(super) fn ended(&mut self, job: JobId, state: &JobState) -> (Vec<Answered>, Vec<JobId>) {
        let (mut answered, mut unwanted) = (Vec::new(), Vec::new());
        for number in self.of_job.remove(&job).unwrap_or_default() {
            let Some(wait) = self.open.get_mut(&number) else { continue };
            wait.left.remove(&job);
            wait.ended.push(WaitedJob { job_id: job.to_string(), state: state.clone(), why: None });
            let (conn, is_over) = (wait.by.conn, wait.any || wait.left.is_empty());
            self.count_down(conn, 1);
            if is_over && let Some(wait) = self.close(number, &mut unwanted) {
                answered.push(Answered { by: wait.by, waited: Waited { jobs: wait.ended } });
            }
        }
        give_back(&mut self.of_job);
        (answered, unwanted)
    }

    /// A connection ended: gives the jobs that nobody waits for any more.
    pub(super) fn closed(&mut self, conn: ConnId) -> Vec<JobId> {
        let mut unwanted = Vec::new();
        if !self.of_conn.contains_key(&conn) {
            return unwanted;
        }
        let its = self.open.iter().filter(|(_, wait)| wait.by.conn == conn);
        let its: Vec<u64> = its.map(|(number, _)| *number).collect();
        for number in its {
            self.close(number, &mut unwanted);
        }
        self.of_conn.remove(&conn);
        give_back(&mut self.of_job);
        unwanted
    }

    /// A question waits no more.
    fn close(&mut self, number: u64, unwanted: &mut Vec<JobId>) -> Option<Wait> {
        let wait = self.open.remove(&number)?;
        for job in &wait.left {
            if let Some(waiting) = self.of_job.get_mut(job) {
                waiting.remove(&number);
                if waiting.is_empty() {
                    self.of_job.remove(job);
                    unwanted.push(*job);
                }
            }
        }
        self.count_down(wait.by.conn, wait.left.len());
        Some(wait)
    }

    fn count_down(&mut self, conn: ConnId, jobs: usize) {
        self.all = self.all.saturating_sub(jobs);
        if let Some(count) = self.of_conn.get_mut(&conn) {
            *count = count.saturating_sub(jobs);
            if *count == 0 {
                self.of_conn.remove(&conn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn id(number: u128) -> JobId {
        JobId(Uuid::from_u128(number))
    }

    fn jobs(numbers: std::ops::Range<u128>) -> BTreeSet<JobId> {
        numbers.map(id).collect()
    }

    fn by(conn: u64, question: u128) -> Asked {
        let verb = "job.wait".to_owned().into();
        Asked { conn: ConnId(conn), verb, id: Uuid::from_u128(question) }
    }

    fn row(number: u128, state: JobState) -> WaitedJob {
        WaitedJob { job_id: id(number).to_string(), state, why: None }
    }

    fn is_empty(waits: &JobWaits) -> bool {
        waits.open.is_empty()
            && waits.of_job.is_empty()
            && waits.of_conn.is_empty()
            && waits.all == 0
    }

    #[test]
    fn a_question_is_answered_by_the_last_of_its_jobs_or_by_the_first_if_any_will_do() {
        let mut waits = JobWaits::default();
        let before = vec![row(9, JobState::Dead)];
        assert_eq!(waits.add(by(1, 1), false, before, jobs(1..3)), Ok(vec![id(1), id(2)]));
        assert_eq!(waits.add(by(2, 2), true, Vec::new(), jobs(2..5)), Ok(vec![id(3), id(4)]));
        assert_eq!(waits.ended(id(1), &JobState::Done), (Vec::new(), Vec::new()));
        let (answered, unwanted) = waits.ended(id(2), &JobState::Failed);
        let all = vec![row(9, JobState::Dead), row(1, JobState::Done), row(2, JobState::Failed)];
        let any = vec![row(2, JobState::Failed)];
        let answer = |by, jobs| Answered { by, waited: Waited { jobs } };
        assert_eq!(answered, [answer(by(1, 1), all), answer(by(2, 2), any)]);
        assert_eq!(unwanted, [id(3), id(4)], "nobody waits for those any more");
        assert!(is_empty(&waits));
        assert_eq!(waits.ended(id(3), &JobState::Done), (Vec::new(), Vec::new()), "it was late");
    }

    #[test]
    fn what_a_connection_waited_for_goes_with_it_unless_others_wait_for_it_too() {
        let mut waits = JobWaits::default();
        waits.add(by(1, 1), false, Vec::new(), jobs(1..4)).unwrap();
        waits.add(by(1, 2), true, Vec::new(), jobs(3..5)).unwrap();
        waits.add(by(2, 3), false, Vec::new(), jobs(2..3)).unwrap();
        assert_eq!(waits.closed(ConnId(7)), []);
        assert_eq!(waits.closed(ConnId(1)), [id(1), id(3), id(4)]);
        assert_eq!(waits.all, 1);
        let (answered, _) = waits.ended(id(2), &JobState::Cancelled);
        assert_eq!(answered.len(), 1);
        assert!(is_empty(&waits));
    }

    #[test]
    fn a_connection_and_all_together_wait_for_so_many_jobs_and_no_more() {
        let mut waits = JobWaits::default();
        let most = WAITED_OF_CONN_MAX as u128;
        let conns = (WAITED_ALL_MAX / WAITED_OF_CONN_MAX) as u64;
        waits.add(by(1, 1), false, Vec::new(), jobs(0..most)).unwrap();
        let error = waits.add(by(1, 2), false, Vec::new(), jobs(0..1)).unwrap_err();
        assert!(error.contains("wait for 16384 jobs, and this one for 1 more"), "{error}");
        assert!(error.contains("the limit is 16384"), "{error}");
        for conn in 2..=conns {
            waits.add(by(conn, 1), false, Vec::new(), jobs(0..most)).unwrap();
        }
        let error = waits.add(by(99, 1), false, Vec::new(), jobs(0..1)).unwrap_err();
        assert!(error.contains("131072 jobs at this leader"), "{error}");
        waits.closed(ConnId(1));
        assert_eq!(waits.add(by(99, 1), false, Vec::new(), jobs(0..1)), Ok(Vec::new()));
        (2..=conns).chain([99]).for_each(|conn| drop(waits.closed(ConnId(conn))));
        assert!(is_empty(&waits));
        let small = waits.of_job.capacity();
        assert!(small < WAITED_OF_CONN_MAX, "its memory is given back: {small}");
    }
}
