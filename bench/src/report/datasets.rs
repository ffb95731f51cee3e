//! What was found of datasets that change, and of jobs that share datasets.

use std::time::Duration;

use heft::units::ByteSize;
use serde_json::{Value, json};

use super::figures::rounded;
use super::{Machine, per};

/// What may move of a dataset in which a few runs have changed.
const CHANGED_MAX: f64 = 0.03;

/// What may move with the policy that knows where datasets are, of what moves with one that does
/// not.
const LOCALITY_MAX: f64 = 0.35;

/// A put, and the bytes that it moved.
#[derive(Clone, Debug)]
pub(crate) struct DeltaStep {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) from_client: u64,
    pub(crate) to_workers: Vec<u64>,
}

impl DeltaStep {
    fn to_worker_max(&self) -> u64 {
        self.to_workers.iter().max().copied().unwrap_or_default()
    }

    /// For the log.
    pub(crate) fn line(&self) -> String {
        let (client, worker) = (ByteSize(self.from_client), ByteSize(self.to_worker_max()));
        let seconds = self.took.as_secs_f64();
        format!(
            "{}: {seconds:.2} s, {client} from the client, {worker} to a worker at most",
            self.name
        )
    }
}

/// A dataset that was put, put again, and put when it had changed.
pub(crate) struct DeltaReport {
    pub(crate) size: u64,
    pub(crate) workers: u32,
    /// Bytes that are new in the last version.
    pub(crate) changed_bytes: u64,
    pub(crate) steps: Vec<DeltaStep>,
    /// The leader's memory.
    pub(crate) rss_peak: u64,
    pub(crate) machine: Machine,
}

impl DeltaReport {
    fn share(&self, bytes: u64) -> f64 {
        per(bytes as f64, self.size as f64).unwrap_or_default()
    }

    /// The most that moved of the last version, on either way.
    fn changed(&self) -> f64 {
        let last = self.steps.last();
        self.share(last.map_or(0, |step| step.from_client.max(step.to_worker_max())))
    }

    fn is_met(&self) -> bool {
        self.changed() <= CHANGED_MAX
    }

    /// One object with everything.
    pub(crate) fn json(&self) -> Value {
        let step = |step: &DeltaStep| {
            json!({
                "name": step.name,
                "seconds": rounded(step.took.as_secs_f64()),
                "from_client_bytes": step.from_client,
                "from_client_share": rounded(self.share(step.from_client)),
                "to_worker_bytes": step.to_workers,
                "to_worker_share": rounded(self.share(step.to_worker_max())),
            })
        };
        self.machine.add_to(json!({
            "workload": "delta",
            "load": {"size_bytes": self.size, "workers": self.workers, "changed_bytes": self.changed_bytes},
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "leader": {"rss_peak_bytes": self.rss_peak},
            "goals": {"changed": {"limit": CHANGED_MAX, "found": rounded(self.changed()), "met": self.is_met()}},
        }))
    }

    pub(crate) fn table(&self) -> String {
        let (size, changed) = (ByteSize(self.size), ByteSize(self.changed_bytes));
        let mut text = format!(
            "\ndelta: a dataset of {size} for {} workers; {changed} of the last version are new\n",
            self.workers
        );
        text += &format!("{}\n\n", self.machine.line());
        let row = |[name, cells @ ..]: [&str; 6]| {
            let cells: String = cells.iter().map(|cell| format!("{cell:>14}")).collect();
            format!("{name:14}{cells}\n")
        };
        text += &row(["", "time", "from client", "share", "to a worker", "share"]);
        for step in &self.steps {
            let percent = |bytes| format!("{:.2} %", 100.0 * self.share(bytes));
            let worker = step.to_worker_max();
            text += &row([
                step.name,
                &format!("{:.2} s", step.took.as_secs_f64()),
                &ByteSize(step.from_client).to_string(),
                &percent(step.from_client),
                &ByteSize(worker).to_string(),
                &percent(worker),
            ]);
        }
        let met = if self.is_met() { "met" } else { "not met" };
        text += &format!(
            "\nevery worker had exactly what was put, each time; the leader's RSS was {} at most\n",
            ByteSize(self.rss_peak)
        );
        text += &format!(
            "goal: at most {:.0} % of a changed dataset move: {:.2} %, {met}\n",
            100.0 * CHANGED_MAX,
            100.0 * self.changed()
        );
        text
    }
}

/// Jobs that a leader placed by one policy.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) policy: String,
    /// Bytes to all workers.
    pub(crate) moved: u64,
    pub(crate) took: Duration,
}

impl Placed {
    /// For the log.
    pub(crate) fn line(&self, size: u64) -> String {
        let sets = per(self.moved as f64, size as f64).unwrap_or_default();
        let (moved, seconds) = (ByteSize(self.moved), self.took.as_secs_f64());
        format!(
            "{}: {moved} to workers, as much as {sets:.1} datasets, in {seconds:.2} s",
            self.policy
        )
    }
}

/// The same jobs by several policies.
pub(crate) struct LocalityReport {
    pub(crate) jobs: u64,
    pub(crate) sets: u64,
    pub(crate) size: u64,
    pub(crate) workers: u32,
    /// Datasets that fit a worker.
    pub(crate) room: u64,
    /// The first is compared with the last.
    pub(crate) placed: Vec<Placed>,
    pub(crate) machine: Machine,
}

impl LocalityReport {
    fn ratio(&self) -> Option<f64> {
        per(self.placed.first()?.moved as f64, self.placed.last()?.moved as f64)
    }

    fn is_met(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio <= LOCALITY_MAX)
    }

    /// One object with everything.
    pub(crate) fn json(&self) -> Value {
        let placed = |placed: &Placed| {
            json!({
                "policy": placed.policy,
                "moved_bytes": placed.moved,
                "sets_moved": per(placed.moved as f64, self.size as f64).map(rounded),
                "seconds": rounded(placed.took.as_secs_f64()),
            })
        };
        self.machine.add_to(json!({
            "workload": "locality",
            "load": {
                "jobs": self.jobs, "sets": self.sets, "size_bytes": self.size, "workers": self.workers, "room": self.room,
            },
            "policies": self.placed.iter().map(placed).collect::<Vec<_>>(),
            "ratio": self.ratio().map(rounded),
            "goals": {"moved": {"limit": LOCALITY_MAX, "found": self.ratio().map(rounded), "met": self.is_met()}},
        }))
    }

    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "\nlocality: {} jobs over {} datasets of {}, {} workers with room for {} each\n{}\n\n",
            self.jobs,
            self.sets,
            ByteSize(self.size),
            self.workers,
            self.room,
            self.machine.line()
        );
        for placed in &self.placed {
            text += &format!("{}\n", placed.line(self.size));
        }
        if let Some(ratio) = self.ratio() {
            let met = if self.is_met() { "met" } else { "not met" };
            text +=
                &format!("\ngoal: at most {LOCALITY_MAX} of the bytes move: {ratio:.2}, {met}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_judged_by_the_larger_of_both_ways() {
        let step = |name, from_client, to_workers: &[u64]| DeltaStep {
            name,
            took: Duration::from_secs(2),
            from_client,
            to_workers: to_workers.to_vec(),
        };
        let report = |to_worker| DeltaReport {
            size: 1000,
            workers: 2,
            changed_bytes: 10,
            steps: vec![step("put", 1010, &[1005, 1000]), step("put changed", 20, &[5, to_worker])],
            rss_peak: 1 << 20,
            machine: Machine::default(),
        };
        let found = report(30).json();
        assert_eq!(
            (&found["goals"]["changed"]["found"], &found["goals"]["changed"]["met"]),
            (&json!(0.03), &json!(true))
        );
        assert_eq!(found["steps"][0]["to_worker_share"], 1.005);
        assert_eq!(report(31).json()["goals"]["changed"]["met"], false);
        let text = report(31).table();
        assert!(text.contains("3.10 %, not met"), "{text}");
    }

    #[test]
    fn policies_are_compared_by_what_moves() {
        let placed = |policy: &str, moved| Placed {
            policy: policy.to_owned(),
            moved,
            took: Duration::from_secs(1),
        };
        let report = LocalityReport {
            jobs: 200,
            sets: 20,
            size: 100,
            workers: 4,
            room: 8,
            placed: vec![placed("locality", 3000), placed("least-load", 12_000)],
            machine: Machine::default(),
        };
        let found = report.json();
        assert_eq!(
            (&found["ratio"], &found["goals"]["moved"]["met"]),
            (&json!(0.25), &json!(true))
        );
        assert!(report.table().contains("as much as 30.0 datasets"), "{}", report.table());
    }
}
