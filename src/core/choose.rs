//! Which worker gets a job, among those that may have it: the named policies (SC04-SC07, C14).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::ids::{ClientId, WorkerId};
use super::limits::{STUCK_BYTES_MAX, STUCK_MAX};
use super::subject::RoutingKey;
use super::worker::Worker;

/// The workers that had the last jobs of clients, by client and key, for [`Policy::Sticky`].
#[derive(Debug, Default)]
pub(super) struct Stuck {
    of: HashMap<(ClientId, RoutingKey), WorkerId>,
    /// Bytes of the names.
    bytes: usize,
}

impl Stuck {
    /// The worker that had a client's last job of a key.
    pub(super) fn get(&self, client: &ClientId, key: &RoutingKey) -> Option<WorkerId> {
        self.of.get(&(client.clone(), key.clone())).copied()
    }

    /// A worker gets a job. Where too much is remembered, it begins anew.
    pub(super) fn insert(&mut self, client: ClientId, key: RoutingKey, worker: WorkerId) {
        let bytes = client.0.len() + key.bytes();
        if self.of.len() >= STUCK_MAX || self.bytes.saturating_add(bytes) > STUCK_BYTES_MAX {
            *self = Stuck::default();
        }
        if self.of.insert((client, key), worker).is_none() {
            self.bytes += bytes;
        }
    }
}

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The one that must move the fewest bytes of the job's datasets; then, and for jobs without any, as least-load (C14).
    #[default]
    Locality,
    /// Fewest running, then most credit (SC05).
    LeastLoad,
    /// Most credit, then fewest running (SC04).
    CreditFirst,
    /// Each in its turn.
    RoundRobin,
    /// The one that had this client's last job of the same key, if it has room; else the least loaded.
    Sticky,
    /// By processor use and running jobs together (SC06).
    LoadScore,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 6] = [
        Policy::Locality,
        Policy::LeastLoad,
        Policy::CreditFirst,
        Policy::RoundRobin,
        Policy::Sticky,
        Policy::LoadScore,
    ];

    /// The name in flags.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Locality => "locality",
            Policy::LeastLoad => "least-load",
            Policy::CreditFirst => "credit-first",
            Policy::RoundRobin => "round-robin",
            Policy::Sticky => "sticky",
            Policy::LoadScore => "load-score",
        }
    }

    /// The best of the workers that have room. Among equals, the one that waited longest.
    pub(super) fn choose<'a>(
        self,
        workers: impl Iterator<Item = &'a Worker>,
        stuck_to: Option<WorkerId>,
    ) -> Option<&'a Worker> {
        let least_load = |worker: &Worker| (worker.held.len(), Reverse(worker.credit), worker.last_assigned);
        match self {
            // For jobs without datasets; those with them are `locality`'s matter.
            Policy::Locality | Policy::LeastLoad => workers.min_by_key(|worker| least_load(worker)),
            Policy::CreditFirst => {
                workers.min_by_key(|worker| (Reverse(worker.credit), worker.held.len(), worker.last_assigned))
            }
            Policy::RoundRobin => workers.min_by_key(|worker| worker.last_assigned),
            Policy::Sticky => workers.min_by_key(|worker| (Some(worker.id) != stuck_to, least_load(worker))),
            Policy::LoadScore => workers.min_by_key(|worker| (load_permille(worker), worker.last_assigned)),
        }
    }
}

/// Processor use, and how much of its room is taken, both in thousandths.
fn load_permille(worker: &Worker) -> u64 {
    let held = worker.held.len() as u64;
    let room = held.saturating_add(worker.credit.into()).max(1);
    u64::from(worker.cpu_permille).saturating_add(held.saturating_mul(1000) / room)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is no policy: use locality, least-load, credit-first, round-robin, sticky or load-score")]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| PolicyError(name.to_owned()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::core::subject::routing_key;

    #[test]
    fn what_clients_stick_to_is_forgotten_by_number_and_by_bytes() {
        let worker = WorkerId(uuid::Uuid::from_u128(1));
        let key = |name: &str| routing_key(&format!("job.submit.{name}"), None).unwrap();
        let mut stuck = Stuck::default();
        for number in 0..STUCK_MAX {
            stuck.insert(number.to_string().as_str().into(), key("x"), worker);
        }
        assert_eq!(stuck.get(&"0".into(), &key("x")), Some(worker));
        stuck.insert("0".into(), key("y"), worker);
        assert_eq!((stuck.get(&"0".into(), &key("x")), stuck.of.len()), (None, 1));
        for number in 0..1000 {
            stuck.insert("c".into(), key(&format!("{number}{}", "z".repeat(60_000))), worker);
            assert!(stuck.bytes <= STUCK_BYTES_MAX && !stuck.of.is_empty());
        }
    }
}
