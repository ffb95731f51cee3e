//! What goes wrong with workers: connections break, processes crash.

use heft::core::event::WorkerClass;
use heft::core::ids::WorkerId;
use uuid::Uuid;

use super::{SECOND, Wake, World};

impl World {
    pub(crate) fn worker_fault(&mut self, number: usize) {
        if !self.faulty() {
            // The last one to be away comes back.
            return self.worker_connects(number);
        }
        let crash = self.random.chance(50);
        let away = self.random.below(12 * SECOND);
        let next = self.random.below(30 * SECOND);
        self.worker_dies(number, crash);
        self.at(self.now + away, Wake::WorkerConnects(number));
        self.at(self.now + away + next, Wake::WorkerFault(number));
    }

    /// Its connection breaks; if it crashes, all it had is gone.
    pub(crate) fn worker_dies(&mut self, number: usize, crash: bool) {
        let worker = &mut self.workers[number];
        let classic = worker.class != WorkerClass::Leasing;
        let conn = worker.conn.take();
        if crash || classic {
            // A classic worker does not reconnect: another process takes its place, under another
            // id.
            worker.life += 1;
            worker.running.clear();
            worker.receiving.clear();
            worker.finished.clear();
            if classic {
                worker.id = WorkerId(Uuid::from_u128(worker.id.0.as_u128() + 100));
            }
        }
        if let Some(conn) = conn {
            self.cut(conn);
        }
    }
}
