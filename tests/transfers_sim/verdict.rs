//! What has to be so when a world is over: each job has the end it should have, no more moved than
//! had to, and nothing is left.

use bytes::Bytes;
use chunking::message::{Ask, Reason};
use chunking::{Head, Kind};
use heft::core::ids::ConnId;

use super::client::{Ending, SimClient};
use super::durable::Kept;
use super::{ADMIN, Conn, SECOND, Wake, World, sim_disk};

impl World {
    /// What became of the jobs is what should have.
    pub(crate) fn judge(&mut self) {
        let faults = &self.faults;
        let is_roomy = self.config.relay.spool_bytes_max >= 1 << 30;
        for job in
            self.clients.iter().filter(|client| !client.rogue).flat_map(|client| &client.jobs)
        {
            let Some(ending) = &job.ending else { continue };
            assert_eq!(job.results, 1, "job {}", job.id);
            match ending {
                Ending::Whole => self.seen.whole += 1,
                // Workers that are away, or go, have their say in what becomes of it.
                _ if job.to_all => {}
                _ if job.lies => self.seen.refused += 1,
                // A digest that is wrong is with the job from when it was taken, and a leader that
                // was started again does not know who doubted it.
                _ if self.kept.is_some() && faults.lying => self.seen.refused += 1,
                // There was no room, and the result, which had been sent, was being forgotten when
                // its client came back for it.
                Ending::Parts(_) | Ending::Refused(Reason::UNKNOWN, _)
                    if self.kept.is_some() && (faults.disk_writes || !is_roomy) =>
                {
                    self.seen.refused += 1
                }
                // Its inputs are more than the leader may keep.
                Ending::Refused(Reason::TOO_LARGE, _) if self.kept.is_some() => {
                    self.seen.refused += 1
                }
                _ if faults.disk_reads => self.seen.refused += 1,
                other => panic!("job {} ended with {other:?}; {faults:?}", job.id),
            }
        }
    }

    /// Only what was on its way when a connection broke has moved again.
    pub(crate) fn check_what_moved(&mut self) {
        let sent: u64 = self.clients.iter().map(|client| client.chunks_sent).sum();
        let needed: u64 = self.clients.iter().map(SimClient::chunks_needed).sum();
        if self.only_cuts && self.seen.reassigned == 0 {
            self.seen.only_cuts += 1;
            let lost = self.chunks_lost + self.conns.values().map(Conn::on_the_way).sum::<u64>();
            assert!(
                sent <= needed + lost,
                "{sent} chunks were sent; {needed} are needed, {lost} were lost"
            );
        }
    }

    /// All peers go and time passes: nothing is left.
    pub(crate) fn leave_nothing_behind(&mut self) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        self.conns.clear();
        for id in ids {
            self.leader.closed(self.micros(), id);
            self.work_off();
        }
        if let Some(kept) = &self.kept {
            kept.disk.crash_in(None);
            kept.disk.faults(sim_disk::Faults::default());
        }
        let stays = |wake: &Wake| {
            matches!(wake, Wake::Disk(..) | Wake::Log(_) | Wake::Snapshot(..) | Wake::Tick)
        };
        self.agenda.retain(|_, wake| stays(wake));
        // A leader looks for files that nothing refers to from time to time, for ever.
        let until = self.now + 3600 * SECOND;
        self.purge();
        let mut purged = 0;
        for _ in 0..100_000 {
            if let Some(((at, _), wake)) =
                self.agenda.pop_first().filter(|((at, _), _)| *at < until)
            {
                self.now = self.now.max(at);
                self.wake(wake);
            } else if purged < 3 {
                purged += 1;
                self.purge();
            } else {
                break;
            }
        }
        assert_eq!(self.pool.in_use(), 0, "a peer holds a buffer");
        let fill = self.leader.fill();
        let left = (fill.blobs, fill.bytes, fill.in_memory, fill.buffers_in_use, fill.promised);
        assert_eq!(left, (0, 0, 0, 0, 0), "left behind: {fill:?}");
        assert_eq!(
            (fill.connections, fill.chunks_out, fill.parts),
            (0, 0, 0),
            "left behind: {fill:?}"
        );
        let files = self.kept.as_ref().map_or_else(|| self.disk.files(), Kept::blob_files);
        assert_eq!(
            files,
            0,
            "a file is left behind: {:?}",
            self.kept.as_ref().map(|kept| kept.disk.tree().keys().cloned().collect::<Vec<_>>())
        );
    }

    /// Somebody cancels what is left, and empties the dead-letter queue.
    fn purge(&mut self) {
        let now = self.micros();
        self.leader.connected(ADMIN, chunking::Generation::F2, None);
        let hello = br#"{"ClientId":"admin","DesiredParallelism":1,"Heft":{"Version":1,"Features":["ask"]}}"#;
        let head = Head { subject: "admin", ..Head::new(Kind::HelloClient) };
        self.leader.frame(now, ADMIN, &head, Bytes::from_static(hello)).unwrap();
        let jobs = self.clients.iter().flat_map(|client| &client.jobs);
        let cancels = jobs.map(|job| ("cancel", format!(r#"{{"job_id":"{}"}}"#, job.id)));
        // The ages of the disk's files are not of this world's time.
        let collects = self.kept.iter().map(|_| ("blob.gc", "{}".to_owned()));
        let asks: Vec<(&str, String)> =
            cancels.chain([("dlq.purge", r#"{"all":true}"#.to_owned())]).chain(collects).collect();
        for (verb, json) in asks {
            let mut payload = Vec::new();
            Ask { json: json.as_bytes() }.encode(&mut payload);
            let head = Head { subject: verb, ..Head::new(Kind::Ask) };
            self.leader.frame(now, ADMIN, &head, payload).unwrap();
        }
        self.leader.closed(now, ADMIN);
        self.work_off();
    }
}
