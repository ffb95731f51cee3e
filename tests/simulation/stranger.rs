//! A worker that is given nothing and answers for what others have. Nothing may come of it.

use heft::core::Event;
use heft::core::event::{ClaimedAttempt, Outcome, WorkerClass};
use heft::core::ids::{Attempt, JobId, Run, WorkerId};
use heft::core::payload::PayloadKind;
use heft::core::worker::Hello;
use uuid::Uuid;

use super::{SECOND, Wake, World};

/// How long after a leader's start a result may be of an attempt that it does not know.
const LEASE: u64 = 30 * SECOND;

impl World {
    pub(crate) fn stranger_speaks(&mut self) {
        if !self.faulty() {
            return;
        }
        let next = self.now + self.random.below(2 * SECOND);
        self.at(next, Wake::Stranger);
        let Some(conn) = self.stranger.filter(|conn| self.conns.contains_key(conn)) else {
            let conn = self.open();
            self.stranger = Some(conn);
            let class =
                if self.random.chance(50) { WorkerClass::Leasing } else { WorkerClass::Classic };
            let hello = Event::WorkerHello(Hello {
                conn,
                worker: WorkerId(Uuid::from_u128(1)),
                name: "stranger".into(),
                class,
                patterns: vec!["job.assign.nothing".to_owned()],
                parallel_max: None,
                transfers: true,
                datasets: true,
                reads: PayloadKind::Request,
                programs: None,
            });
            return self.say(conn, hello);
        };
        let jobs: Vec<(JobId, Run, Attempt)> =
            self.broker.state().jobs().map(|job| (job.id(), job.run, job.attempt)).collect();
        if jobs.is_empty() {
            return;
        }
        let (job, run, attempt) = jobs[self.random.below(jobs.len() as u64) as usize];
        if self.random.chance(20) {
            return self.say(
                conn,
                Event::Heartbeat {
                    conn,
                    cpu_permille: 0,
                    credit: 0,
                    held: vec![(job, run, attempt)],
                },
            );
        }
        let above = if self.now > LEASE { self.random.below(3) as u32 } else { 0 };
        let named = match self.random.below(3) {
            0 => ClaimedAttempt::default(),
            1 => ClaimedAttempt { run: Some(run), attempt: None },
            _ => ClaimedAttempt { run: Some(run), attempt: Some(Attempt(attempt.0 + above)) },
        };
        let outcome = match self.random.below(4) {
            0 => Outcome::ResultLost,
            1 => Outcome::GivenUp,
            _ => Outcome::Returned { result: self.new_result(), ok: true },
        };
        self.say(conn, Event::Ack { conn, job, named, outcome });
    }
}
