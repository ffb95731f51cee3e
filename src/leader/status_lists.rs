//! The lists of a status: workers, clients and queues, the first of each or page by page.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::Leader;
use super::questions::answer_frames::cut;
use crate::answers::ask;
use crate::answers::{
    Avoided, ClientRow, Failure, Flagged, LISTED_MAX, Lack, Lacks, QueueRow, StatusList,
    StatusRows, WorkerRow,
};
use crate::core;
use crate::core::ids::{ClientId, WorkerId};
use crate::core::worker::Worker;
use crate::model::hello::UNCAPPED;

/// How long a status shows that a worker returned a job. Jobs that no other worker takes are tried
/// there again more often than this.
const LACK_SHOWN_FOR: Duration = Duration::from_secs(600);

/// Patterns of a worker that a status lists.
const PATTERNS_LISTED_MAX: usize = 20;

/// Programs of a worker that a status lists.
const PROGRAMS_LISTED_MAX: usize = 20;

/// Programs of a worker that a status lists as avoided, and as flagged.
const REMARKS_LISTED_MAX: usize = 16;

/// Where programs fail more often than elsewhere.
pub(super) type Flags = HashMap<WorkerId, Vec<Flagged>>;

/// How many jobs of each client are queued.
pub(super) type QueuedBy<'a> = HashMap<&'a ClientId, usize>;

impl Leader {
    /// A page of one list, in the order of its ids: rows that come and go meanwhile do not move the
    /// others to another page.
    pub(super) fn status_page(&self, question: &ask::StatusPage) -> Result<StatusRows, Failure> {
        let mut page = StatusRows::default();
        let after = question.after.as_deref();
        match &question.list {
            StatusList::Workers => {
                let mut flags = self.flags();
                let all = self.broker.workers().map(|worker| (worker.id.to_string(), worker));
                let (rows, next) = page_of(all, after);
                page.workers =
                    rows.into_iter().map(|worker| self.worker_row(worker, &mut flags)).collect();
                page.next = next;
            }
            StatusList::Clients => {
                let queued_by = self.broker.queues().len_by_client();
                let all = self.clients_and_queued(&queued_by).into_iter();
                let (rows, next) = page_of(all.map(|client| (cut(&client.0), client)), after);
                page.clients =
                    rows.into_iter().map(|client| self.client_row(client, &queued_by)).collect();
                page.next = next;
            }
            StatusList::Queues => {
                let all = self.broker.queues().keys();
                let all = all.map(|(key, jobs)| {
                    let key = cut(key.as_str());
                    (key.clone(), QueueRow { key, queued: jobs as u64 })
                });
                (page.queues, page.next) = page_of(all, after);
            }
            StatusList::Other(list) => {
                return Err(format!(
                    "\"{list}\" is not a list of a status: ask for one of {}",
                    StatusList::NAMES.join(", ")
                )
                .into());
            }
        }
        Ok(page)
    }

    pub(super) fn flags(&self) -> Flags {
        let mut flags = Flags::new();
        for (worker, exec, flag) in self.broker.flags() {
            let flagged = Flagged { program: Some(exec.to_string()), ..flag.into() };
            flags.entry(worker).or_default().push(flagged);
        }
        flags
    }

    pub(super) fn worker_row(&self, worker: &Worker, flags: &mut Flags) -> WorkerRow {
        WorkerRow {
            id: worker.id.to_string(),
            name: Some(worker.name.to_string()),
            class: worker.class.into(),
            patterns: worker
                .patterns
                .iter()
                .take(PATTERNS_LISTED_MAX)
                .map(|text| cut(text))
                .collect(),
            patterns_more: worker.patterns.len().saturating_sub(PATTERNS_LISTED_MAX) as u64,
            credit: worker.credit,
            running: (worker.held.len() - worker.returning()) as u64,
            returning: worker.returning() as u64,
            cpu_permille: Some(worker.cpu_permille),
            connected: worker.conn().is_some(),
            lacks: self.lacks(worker),
            programs: worker.programs.as_ref().map(|programs| {
                programs.names().take(PROGRAMS_LISTED_MAX).map(str::to_owned).collect()
            }),
            programs_more: worker
                .programs
                .as_ref()
                .map_or(0, |programs| programs.len().saturating_sub(PROGRAMS_LISTED_MAX) as u64),
            avoided: self.avoided(worker.id),
            flagged: flags.remove(&worker.id).map_or_else(Vec::new, |mut flags| {
                flags.truncate(REMARKS_LISTED_MAX);
                flags
            }),
        }
    }

    /// Clients that are connected, and those that left their jobs here and went.
    pub(super) fn clients_and_queued<'a>(
        &'a self,
        queued_by: &QueuedBy<'a>,
    ) -> BTreeSet<&'a ClientId> {
        let mut clients = self.broker.clients();
        clients.extend(queued_by.keys());
        clients
    }

    pub(super) fn client_row(&self, client: &ClientId, queued_by: &QueuedBy<'_>) -> ClientRow {
        ClientRow {
            id: cut(&client.0),
            cap: Some(self.broker.cap_of(client)).filter(|cap| *cap != UNCAPPED).unwrap_or(0),
            in_flight: self.broker.state().running(client),
            queued: queued_by.get(client).copied().unwrap_or(0) as u64,
            connections: self.broker.connections_of(client) as u64,
        }
    }

    /// The programs that a worker is not given for a while.
    fn avoided(&self, worker: WorkerId) -> Vec<Avoided> {
        let avoided = self.broker.avoided_at(worker).take(REMARKS_LISTED_MAX);
        let avoided = avoided.map(|(program, refusal)| Avoided {
            program: cut(program),
            why: refusal.why.to_string(),
            ago_ms: u64::try_from(self.now.since(refusal.at).as_millis()).unwrap_or(u64::MAX),
        });
        avoided.collect()
    }

    /// What a worker lacked for a job that it handed back lately.
    fn lacks(&self, worker: &Worker) -> Option<Lacks> {
        let avoided = self.broker.avoided_at(worker.id).map(|(_, refusal)| refusal.at).max();
        let program = avoided.map(|at| (core::record::Lack::Program, at));
        let (lack, at) = worker.lacked.into_iter().chain(program).max_by_key(|(_, at)| *at)?;
        let ago = Some(self.now.since(at)).filter(|ago| *ago <= LACK_SHOWN_FOR)?;
        let what = match lack {
            core::record::Lack::Room => Lack::Room,
            core::record::Lack::Directory => Lack::Directory,
            core::record::Lack::Program => Lack::Program,
        };
        Some(Lacks { what, ago_ms: u64::try_from(ago.as_millis()).unwrap_or(u64::MAX) })
    }
}

/// The rows behind an id, in the order of their ids, and the id of the last one if more follow. Ids
/// are cut as answers cut them: otherwise the id that comes back would not be the one that left.
fn page_of<T>(
    all: impl Iterator<Item = (String, T)>,
    after: Option<&str>,
) -> (Vec<T>, Option<String>) {
    let mut behind: Vec<(String, T)> =
        all.filter(|(id, _)| after.is_none_or(|after| id.as_str() > after)).collect();
    behind.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let is_longer = behind.len() > LISTED_MAX;
    behind.truncate(LISTED_MAX);
    let next = behind.last().filter(|_| is_longer).map(|(id, _)| id.clone());
    (behind.into_iter().map(|(_, row)| row).collect(), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_every_row_once_and_the_last_one_has_no_next() {
        for rows in [0, 1, LISTED_MAX, LISTED_MAX + 1, 2 * LISTED_MAX, 2 * LISTED_MAX + 7] {
            let all = || (0..rows).rev().map(|number| (format!("{number:05}"), number));
            let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
            loop {
                let (page, next) = page_of(all(), after.as_deref());
                assert!(page.len() <= LISTED_MAX);
                seen.extend(page);
                pages += 1;
                match next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            assert_eq!(seen, (0..rows).collect::<Vec<_>>());
            assert_eq!(pages, rows.div_ceil(LISTED_MAX).max(1));
        }
    }
}
