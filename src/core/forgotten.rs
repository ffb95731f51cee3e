//! Remembers for a while which ended jobs were forgotten, and why: whoever asks for one hears that
//! it was here. Nothing of this outlives the leader.

use std::collections::{HashMap, VecDeque};

use super::action::OperateError;
use super::broker::Broker;
use super::ids::JobId;

/// Forgotten jobs that are remembered. Beyond that the one that was forgotten first is unknown.
pub const FORGOTTEN_MAX: usize = 65_536;

/// Why an ended job is not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyForgotten {
    /// Its time was over.
    Expired,
    /// More jobs have ended since than are known.
    TooMany,
    /// Its result made room for others.
    Room,
    /// Somebody removed it from the dead-letter queue.
    Purged,
}

impl WhyForgotten {
    /// For people, behind what the job did.
    pub const fn text(self) -> &'static str {
        match self {
            WhyForgotten::Expired => "the time for which results are kept (--result-ttl) is over",
            WhyForgotten::TooMany => "more jobs have ended since than the leader keeps",
            WhyForgotten::Room => {
                "its result was dropped to make room (--result-max, --disk-reserve, --spool-max)"
            }
            WhyForgotten::Purged => "it was removed from the dead-letter queue",
        }
    }
}

/// The jobs that were forgotten last.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    why: HashMap<JobId, WhyForgotten>,
    /// The same, the first first.
    order: VecDeque<JobId>,
}

impl Forgotten {
    pub(super) fn note(&mut self, job: JobId, why: WhyForgotten) {
        if self.why.insert(job, why).is_none() {
            self.order.push_back(job);
        }
        while self.order.len() > FORGOTTEN_MAX {
            if let Some(first) = self.order.pop_front() {
                self.why.remove(&first);
            }
        }
    }
}

impl Broker {
    /// Why a job is not known any more, if it was forgotten lately.
    pub fn why_forgotten(&self, job: JobId) -> Option<WhyForgotten> {
        let why = self.results.forgotten.why.get(&job).copied();
        why.filter(|_| self.state.job(job).is_none())
    }

    /// What to say of a job that is not known.
    pub fn not_known(&self, job: JobId) -> OperateError {
        match self.why_forgotten(job) {
            Some(why) => OperateError::Forgotten { job, why },
            None => OperateError::Unknown { job },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_were_forgotten_are_remembered_each_once() {
        let job = |number| JobId(uuid::Uuid::from_u128(number));
        let mut forgotten = Forgotten::default();
        for _ in 0..2 {
            forgotten.note(job(0), WhyForgotten::Expired);
            forgotten.note(job(1), WhyForgotten::Room);
        }
        assert_eq!(forgotten.order.len(), 2);
        (2..=FORGOTTEN_MAX as u128).for_each(|n| forgotten.note(job(n), WhyForgotten::Expired));
        assert_eq!((forgotten.order.len(), forgotten.why.len()), (FORGOTTEN_MAX, FORGOTTEN_MAX));
        assert_eq!(
            (forgotten.why.get(&job(0)), forgotten.why.get(&job(1))),
            (None, Some(&WhyForgotten::Room))
        );
    }
}
