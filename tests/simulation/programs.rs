//! Workers whose program is removed and put back: some list what they have, and some say it only
//! when they are given a job of it.

use heft::core::event::{ClaimedAttempt, Outcome, WorkerClass};
use heft::core::programs::{Programs, ProgramsSaid};
use heft::core::record::Lack;
use heft::core::{Action, Event};

use super::{SECOND, SimWorker, Wake, World};

impl SimWorker {
    /// What it says that it has.
    pub(crate) fn programs(&self) -> Option<Programs> {
        let lists = self.lists_programs && self.class == WorkerClass::Leasing;
        lists.then(|| Programs::new(self.has_program.then_some(self.exec)))
    }

    fn says(&self) -> ProgramsSaid {
        self.programs().map_or(ProgramsSaid::Unlisted, ProgramsSaid::Are)
    }
}

impl World {
    pub(crate) fn programs_change(&mut self, number: usize) {
        let faulty = self.faulty();
        let has_program = !faulty || self.random.chance(40);
        if faulty {
            let next = self.now + self.random.below(20 * SECOND);
            self.at(next, Wake::Programs(number));
        }
        let worker = &mut self.workers[number];
        worker.has_program = has_program;
        let said = worker.says();
        if let Some(conn) = worker.conn {
            self.say(conn, Event::Programs { conn, said, answers: false });
        }
    }

    /// Whether a worker is asked for its programs, or is given a job whose program it does not
    /// have.
    pub(crate) fn hears_of_programs(&mut self, number: usize, action: &Action) -> bool {
        let worker = &self.workers[number];
        let conn = worker.conn.unwrap();
        if let Action::AskPrograms { .. } = action {
            let said = worker.says();
            self.coverage.looks += 1;
            // One that does not answer is not waited for.
            if self.random.chance(90) {
                self.say(conn, Event::Programs { conn, said, answers: true });
            }
            return true;
        }
        let Action::Assign(assignment) = action else { return false };
        let job = assignment.job;
        let knows = worker.running.contains_key(&job) || worker.finished.contains_key(&job);
        // A raw job names none.
        let known = self.broker.state().job(job);
        let is_raw = known.is_some_and(|job| job.submission.exec.is_empty());
        if is_raw || worker.class != WorkerClass::Leasing || worker.has_program || knows {
            return false;
        }
        self.coverage.handed_back += 1;
        self.workers[number].receiving.remove(&job);
        self.say(conn, Event::ProgramRefused { conn, job, why: "not here".into() });
        let (named, outcome) = (ClaimedAttempt::default(), Outcome::Lacks(Lack::Program));
        self.say(conn, Event::Ack { conn, job, named, outcome });
        self.say(conn, Event::Credit { conn, delta: 1 });
        true
    }
}
