//! Jobs that end at their workers, and how their results get to the broker: at once, or while other
//! jobs run.

use heft::core::Event;
use heft::core::event::{Doing, WorkerClass};
use heft::core::ids::{ConnId, JobId};

use super::{SECOND, Wake, World, returned};

impl World {
    pub(crate) fn takes(&mut self) -> u64 {
        let takes = if self.random.chance(10) { 45 * SECOND } else { 2 * SECOND };
        self.random.below(takes)
    }

    pub(crate) fn job_ends(&mut self, number: usize, life: u64, job: JobId) {
        let result = self.new_result();
        let ok = self.random.chance(80);
        let worker = &mut self.workers[number];
        if worker.life != life {
            return;
        }
        let Some((run, attempt)) = worker.running.remove(&job) else { return };
        worker.finished.insert(job, (run, attempt, ok));
        let is_leasing = worker.class == WorkerClass::Leasing;
        let Some(conn) = worker.conn else { return };
        if is_leasing && self.random.chance(25) {
            // It is large, or the leader has no room for it yet.
            self.say(conn, Event::Progress { conn, job, run, attempt, doing: Doing::Returning });
            let at = self.now + self.random.below(10 * SECOND);
            self.at(at, Wake::ResultComes(number, life, conn, job));
        } else {
            self.say(conn, returned(conn, job, (run, attempt), result, ok));
        }
        self.say(conn, Event::Credit { conn, delta: 1 });
    }

    pub(crate) fn result_comes(&mut self, number: usize, life: u64, conn: ConnId, job: JobId) {
        let result = self.new_result();
        let worker = &self.workers[number];
        let is_there = worker.life == life && worker.conn == Some(conn);
        if let Some((run, attempt, ok)) = worker.finished.get(&job).copied().filter(|_| is_there) {
            self.coverage.returned_late += 1;
            self.say(conn, returned(conn, job, (run, attempt), result, ok));
        }
    }
}
