//! The clients: they hand jobs in, go away and come back, and submit again what they have no result
//! of.

use heft::core::Event;
use heft::core::action::{Action, Refusal};
use heft::core::event::{ClientPeer, Inputs, Submission};

use super::{CAP, SECOND, Wake, World};

impl World {
    pub(crate) fn client_connects(&mut self, number: usize) {
        if self.clients[number].conn.is_some() {
            return;
        }
        let conn = self.open();
        let client = &mut self.clients[number];
        client.conn = Some(conn);
        let id = client.id.clone();
        // A classic client whose jobs are all with the leader waits for their results. Whatever it
        // submits makes it a new run of its program, to which those are not sent.
        let waits = !client.asks_again
            && client.to_submit.is_empty()
            && client.open.keys().all(|job| client.taken.contains(job));
        let again: Vec<Submission> =
            if waits { Vec::new() } else { client.open.values().cloned().collect() };
        let peer = if client.asks_again { ClientPeer::Heft } else { ClientPeer::Classic };
        self.say(conn, Event::ClientHello { conn, client: id, cap: Some(CAP), peer });
        for job in again {
            self.submits(conn, job);
        }
        self.at(self.now + 1, Wake::ClientSubmits(number));
    }

    pub(crate) fn client_submits(&mut self, number: usize) {
        let pause = self.random.below(SECOND / self.hurry);
        let client = &mut self.clients[number];
        let Some(conn) = client.conn else { return };
        if let Some(job) = client.to_submit.pop() {
            client.open.insert(job.job, job.clone());
            self.submits(conn, job);
            self.at(self.now + pause, Wake::ClientSubmits(number));
        }
    }

    pub(crate) fn client_hears(&mut self, number: usize, action: &Action) {
        let client = &mut self.clients[number];
        match action {
            Action::Deliver { conn, job, run } => {
                client.open.remove(job);
                self.ended_at_client.insert(*job);
                let (conn, job, run) = (*conn, *job, *run);
                self.say(conn, Event::Delivered { job, run });
            }
            Action::Refuse { job, refusal, .. } => {
                let expected = matches!(
                    refusal,
                    Refusal::NoWorker { .. }
                        | Refusal::NoCapableWorker { .. }
                        | Refusal::NoDatasets { .. }
                        | Refusal::NoReader { .. }
                        | Refusal::NoProgram(_)
                );
                assert!(expected, "{refusal}");
                self.coverage.refused += 1;
                client.open.remove(job);
            }
            Action::Waiting { .. } => self.coverage.waiting += 1,
            Action::Submitted { job, .. } => {
                if let Some(job) = client.open.get_mut(job).filter(|_| !client.asks_again) {
                    client.taken.extend((job.inputs == Inputs::Here).then_some(job.job));
                }
            }
            Action::Running { .. } => {}
            other => panic!("a client hears {other:?}"),
        }
    }

    pub(crate) fn client_fault(&mut self, number: usize) {
        if !self.faulty() {
            return self.client_connects(number);
        }
        if let Some(conn) = self.clients[number].conn.take() {
            self.cut(conn);
        }
        let away = self.random.below(8 * SECOND);
        let next = self.random.below(40 * SECOND);
        self.at(self.now + away, Wake::ClientConnects(number));
        self.at(self.now + away + next, Wake::ClientFault(number));
    }
}
