//! What was found of leaders that begin where others ended.

use std::time::Duration;

use heft::units::ByteSize;
use serde_json::{Value, json};

use super::figures::{Spread, rounded};
use super::{Machine, per};

/// A start is to take seconds, not minutes.
const START_MAX: Duration = Duration::from_secs(60);

/// Bytes of memory that a job in the queue may take.
const RSS_PER_JOB_MAX: f64 = 600.0;

/// One start of a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    /// From before the process was started until it said where it listens.
    pub(crate) listens: Duration,
    /// Until it had answered a question.
    pub(crate) answers: Duration,
    /// Jobs that were there.
    pub(crate) jobs: u64,
    /// Memory after that, and the most until then.
    pub(crate) rss: u64,
    pub(crate) rss_peak: u64,
}

impl Started {
    /// For the log.
    pub(crate) fn line(&self) -> String {
        format!(
            "listens after {:.2} s, answers after {:.2} s, {} jobs, RSS {} (peak {})",
            self.listens.as_secs_f64(),
            self.answers.as_secs_f64(),
            self.jobs,
            ByteSize(self.rss),
            ByteSize(self.rss_peak),
        )
    }
}

/// Starts with the same data.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) name: &'static str,
    /// Bytes of the log, of snapshots and of maps.
    pub(crate) log_bytes: u64,
    pub(crate) blob_bytes: u64,
    pub(crate) all: Vec<Started>,
}

impl Start {
    fn median(&self, of: impl Fn(&Started) -> f64) -> f64 {
        Spread::of(self.all.iter().map(of)).map_or(0.0, |spread| spread.median)
    }

    fn listens(&self) -> f64 {
        self.median(|start| start.listens.as_secs_f64())
    }

    fn answers(&self) -> f64 {
        self.median(|start| start.answers.as_secs_f64())
    }

    fn rss(&self) -> f64 {
        self.median(|start| start.rss as f64)
    }

    fn rss_peak(&self) -> f64 {
        self.median(|start| start.rss_peak as f64)
    }

    fn jobs(&self) -> f64 {
        self.median(|start| start.jobs as f64)
    }

    /// Bytes that a job takes, beside what a leader without jobs has.
    fn rss_per_job(&self, empty: f64) -> Option<f64> {
        per(self.rss() - empty, self.jobs())
    }
}

/// Jobs that were run in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) jobs: u64,
    pub(crate) took: Duration,
    /// The most memory of the leader, which may have made a snapshot meanwhile.
    pub(crate) rss_peak: u64,
}

/// All that was found.
pub(crate) struct RecoveryReport {
    pub(crate) count: u64,
    /// Bytes of a request.
    pub(crate) size: u64,
    /// The first is that of a leader without jobs.
    pub(crate) starts: Vec<Start>,
    pub(crate) ran: Option<Ran>,
    pub(crate) machine: Machine,
}

impl RecoveryReport {
    fn empty_rss(&self) -> f64 {
        self.starts.first().map_or(0.0, Start::rss)
    }

    fn slowest(&self) -> f64 {
        self.starts.iter().map(Start::answers).fold(0.0, f64::max)
    }

    fn heaviest(&self) -> f64 {
        let empty = self.empty_rss();
        self.starts.iter().skip(1).filter_map(|start| start.rss_per_job(empty)).fold(0.0, f64::max)
    }

    fn is_quick(&self) -> bool {
        self.slowest() < START_MAX.as_secs_f64()
    }

    fn is_light(&self) -> bool {
        self.heaviest() <= RSS_PER_JOB_MAX
    }

    /// One object with everything.
    pub(crate) fn json(&self) -> Value {
        let empty = self.empty_rss();
        let start = |start: &Start| {
            json!({
                "name": start.name,
                "jobs": start.jobs(),
                "log_bytes": start.log_bytes,
                "blob_bytes": start.blob_bytes,
                "listens_s": rounded(start.listens()),
                "answers_s": rounded(start.answers()),
                "rss_bytes": start.rss(),
                "rss_peak_bytes": start.rss_peak(),
                "rss_bytes_per_job": start.rss_per_job(empty).map(rounded),
                "starts": start.all.len(),
            })
        };
        json!({
            "workload": "recovery",
            "load": {"jobs": self.count, "size_bytes": self.size},
            "starts": self.starts.iter().map(start).collect::<Vec<_>>(),
            "ran": self.ran.map(|ran| {
                json!({"jobs": ran.jobs, "seconds": rounded(ran.took.as_secs_f64()), "rss_peak_bytes": ran.rss_peak})
            }),
            "goals": {
                "answers_s": {"limit": START_MAX.as_secs(), "found": rounded(self.slowest()), "met": self.is_quick()},
                "rss_bytes_per_job": {
                    "limit": RSS_PER_JOB_MAX, "found": rounded(self.heaviest()), "met": self.is_light(),
                },
            },
            "command": self.machine.command,
            "commit": self.machine.commit,
            "kernel": self.machine.kernel,
            "cores": self.machine.cores,
            "cpu": self.machine.cpu,
            "debug_build": cfg!(debug_assertions),
        })
    }

    pub(crate) fn table(&self) -> String {
        let mut text = format!("\nrecovery: {} jobs of {}\n", self.count, ByteSize(self.size));
        let rounds = self.starts.iter().map(|start| start.all.len()).max().unwrap_or_default();
        text += &format!("medians of {rounds} starts; {}\n\n", self.machine.line());
        text += &row([
            "a leader with",
            "jobs",
            "log",
            "blobs",
            "listens",
            "answers",
            "RSS",
            "peak",
            "for a job",
        ]);
        let empty = self.empty_rss();
        for start in &self.starts {
            let jobs = format!("{:.0}", start.jobs());
            let (listens, answers) =
                (format!("{:.2} s", start.listens()), format!("{:.2} s", start.answers()));
            let (rss, peak) = (mib(start.rss()), mib(start.rss_peak()));
            let each =
                start.rss_per_job(empty).map_or("-".to_owned(), |bytes| format!("{bytes:.0} B"));
            let (log, blobs) =
                (ByteSize(start.log_bytes).to_string(), ByteSize(start.blob_bytes).to_string());
            text += &row([start.name, &jobs, &log, &blobs, &listens, &answers, &rss, &peak, &each]);
        }
        if let Some(ran) = &self.ran {
            text += &format!(
                "\na worker ran {} of the jobs in {:.2} s; the leader's RSS was {} at most\n",
                ran.jobs,
                ran.took.as_secs_f64(),
                mib(ran.rss_peak as f64)
            );
        }
        let met = |is_met: bool| if is_met { "met" } else { "not met" };
        text += &format!(
            "\ngoal: seconds, not minutes, until it answers: {:.2} s, {}\n",
            self.slowest(),
            met(self.is_quick())
        );
        text += &format!(
            "goal: at most {RSS_PER_JOB_MAX:.0} bytes of memory for a job: {:.0}, {}\n",
            self.heaviest(),
            met(self.is_light())
        );
        text
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / super::MIB)
}

fn row([name, cells @ ..]: [&str; 9]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
    format!("{name:20}{cells}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(name: &'static str, jobs: u64, seconds: [u64; 3], rss: u64) -> Start {
        let started = |seconds| Started {
            listens: Duration::from_secs(seconds),
            answers: Duration::from_secs(seconds + 1),
            jobs,
            rss,
            rss_peak: 2 * rss,
        };
        Start { name, log_bytes: 1 << 30, blob_bytes: 0, all: seconds.map(started).to_vec() }
    }

    fn report(rss: u64) -> RecoveryReport {
        let starts =
            vec![start("nothing", 0, [0; 3], 10 << 20), start("log", 1 << 20, [9, 2, 3], rss)];
        let ran = Some(Ran { jobs: 1000, took: Duration::from_millis(500), rss_peak: 3 * rss });
        RecoveryReport { count: 1 << 20, size: 1024, starts, ran, machine: Machine::default() }
    }

    #[test]
    fn a_job_costs_what_a_leader_has_beside_one_without_jobs() {
        let light = report(510 << 20).json();
        assert_eq!(light["starts"][1]["rss_bytes_per_job"], 500.0);
        assert!(light["starts"][0]["rss_bytes_per_job"].is_null(), "{light}");
        assert_eq!(
            (&light["starts"][1]["listens_s"], &light["starts"][1]["answers_s"]),
            (&3.0.into(), &4.0.into())
        );
        assert_eq!(light["goals"]["rss_bytes_per_job"]["met"], true);
        assert_eq!(light["goals"]["answers_s"]["met"], true);
        assert_eq!(light["ran"]["jobs"], 1000);
        assert_eq!(report(700 << 20).json()["goals"]["rss_bytes_per_job"]["met"], false);
    }

    #[test]
    fn the_table_has_a_line_for_each_start_and_for_each_goal() {
        let table = report(700 << 20).table();
        for part in [
            "recovery: 1048576 jobs of 1 KiB",
            "\nnothing ",
            "\nlog ",
            "690 B",
            "ran 1000 of the jobs",
            "4.00 s, met",
            "690, not met",
        ] {
            assert!(table.contains(part), "{part} is missing:\n{table}");
        }
        assert!(table.lines().all(|line| line.len() <= 110), "{table}");
    }
}
