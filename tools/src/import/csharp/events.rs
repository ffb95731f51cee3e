//! The event log of the C# system (PE04, PE05), and what is left alive after it.
//!
//! That log is never cut, and its leader replays all of it on top of the newest snapshot, so that
//! finished jobs run again (PE10). Here the snapshot is what counts for everything before it, an
//! `ack` ends a job for good wherever it stands, and a `dlq` does not let it run again. Events of
//! one job may stand in any order: that leader acts first and writes then, from several threads.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use uuid::Uuid;

use super::super::Standing;
use super::lines::Line;
use super::members::Members;
use super::snapshot::Snapshot;
use crate::exit::Failure;

/// A snapshot's name has whole seconds, and is made up after the snapshot itself: what is this much
/// older may not be in it.
const MARGIN_US: i64 = 2_000_000;

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Enqueue,
    Assign { worker: Option<Uuid>, attempt: u32 },
    Requeue,
    Dlq,
    Ack,
}

/// Where a job's data lies in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InLog {
    pub(super) at: u64,
    pub(super) line: u64,
}

/// What is known of a job.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Its place in the snapshot.
    pub(super) in_snapshot: Option<usize>,
    pub(super) in_log: Option<InLog>,
    /// When it was submitted, in microseconds since 1970.
    pub(super) enqueued_at: Option<i64>,
    pub(super) standing: Standing,
    /// Its place among all: those of the snapshot first.
    pub(super) order: u64,
    /// Whether it was there when that system ended. What only events before the snapshot speak of
    /// was not.
    is_alive: bool,
}

/// Why an event cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadEvent(pub(super) String);

/// The jobs, while the log is read.
pub(super) struct Jobs {
    known: HashMap<Uuid, Known>,
    ended: HashSet<Uuid>,
    /// What is older is in the snapshot.
    since: i64,
    /// When the snapshot was made.
    snapshot_at: Option<i64>,
    /// Places that the snapshot's jobs have.
    first_order: u64,
    /// Events of types that are not known.
    pub(super) unknown: u64,
    pub(super) events: u64,
}

impl Jobs {
    /// The jobs of a snapshot that was made then, if there is one.
    pub(super) fn new(snapshot: &Snapshot<'_>, at: Option<i64>) -> Self {
        let known = snapshot.jobs.iter().enumerate().map(|(place, held)| {
            let known = Known {
                in_snapshot: Some(place),
                in_log: None,
                enqueued_at: None,
                standing: held.standing,
                order: place as u64,
                is_alive: true,
            };
            (held.id, known)
        });
        Jobs {
            known: known.collect(),
            ended: HashSet::new(),
            since: at.map_or(i64::MIN, |at| at.saturating_sub(MARGIN_US)),
            snapshot_at: at,
            first_order: snapshot.jobs.len() as u64,
            unknown: 0,
            events: 0,
        }
    }

    /// Takes a line of the log.
    pub(super) fn line(&mut self, line: &Line) -> Result<(), BadEvent> {
        if line.bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        if line.is_too_long {
            let limit = super::lines::LINE_BYTES_MAX;
            return Err(BadEvent(format!("it is longer than {limit} bytes, and no event is")));
        }
        let event = Members::parse(&line.bytes).map_err(BadEvent)?;
        self.events += 1;
        let Some((kind, id)) = read(&event).map_err(BadEvent)? else {
            self.unknown += 1;
            return Ok(());
        };
        let at = event.moment("at").map_err(BadEvent)?;
        let at = at.ok_or_else(|| BadEvent("it has no \"at\"".to_owned()))?;
        self.event(kind, id, at, InLog { at: line.at, line: line.number });
        Ok(())
    }

    fn event(&mut self, kind: Kind, id: Uuid, at: i64, place: InLog) {
        if self.ended.contains(&id) {
            return;
        }
        if kind == Kind::Ack {
            self.known.remove(&id);
            self.ended.insert(id);
            return;
        }
        let is_newer = at >= self.since;
        let order = self.first_order + place.line;
        let known = self.known.entry(id).or_insert(Known {
            in_snapshot: None,
            in_log: None,
            enqueued_at: None,
            standing: Standing::Queued,
            order,
            is_alive: false,
        });
        known.is_alive |= is_newer;
        let is_dead = matches!(known.standing, Standing::Dead { .. });
        match kind {
            Kind::Enqueue => {
                known.in_log.get_or_insert(place);
                known.enqueued_at.get_or_insert(at);
            }
            // Dead for good, whenever that was.
            Kind::Dlq if is_dead => {}
            Kind::Dlq => {
                known.standing =
                    Standing::Dead { attempt: attempt(known.standing), since: Some(at) };
            }
            Kind::Assign { worker, attempt } if is_newer && !is_dead => {
                known.standing = Standing::InFlight { worker, attempt };
            }
            // A resend is not written as `assign` by the time of its `timeout_requeue`: a worker
            // may have it, or not. It runs again either way.
            Kind::Requeue if is_newer && !is_dead => known.standing = Standing::Queued,
            Kind::Assign { .. } | Kind::Requeue | Kind::Ack => {}
        }
    }

    /// The jobs that were there when that system ended, in their order, and how many only older
    /// events speak of.
    pub(super) fn left(self) -> (Vec<(Uuid, Known)>, u64) {
        let snapshot_at = self.snapshot_at;
        let (mut alive, old): (Vec<_>, Vec<_>) =
            self.known.into_iter().partition(|(_, known)| known.is_alive);
        for (_, known) in &mut alive {
            known.enqueued_at = known.enqueued_at.or(snapshot_at);
        }
        alive.sort_unstable_by_key(|(id, known)| (known.order, *id));
        (alive, old.len() as u64)
    }

    /// How many jobs have ended.
    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }
}

fn attempt(standing: Standing) -> u32 {
    match standing {
        Standing::Queued => 1,
        Standing::InFlight { attempt, .. } | Standing::Dead { attempt, .. } => attempt,
    }
}

/// What an event is and whose; `None` if its type is not known.
fn read(event: &Members<'_>) -> Result<Option<(Kind, Uuid)>, String> {
    let name = event.text("type")?.ok_or("it has no \"type\"")?;
    let kind = match name.as_str() {
        "enqueue" => Kind::Enqueue,
        "assign" => {
            let attempt = event.count("attempt")?.unwrap_or(1).max(1);
            Kind::Assign { worker: event.guid("workerId")?, attempt }
        }
        "timeout_requeue" | "worker_down_requeue" => Kind::Requeue,
        "dlq" => Kind::Dlq,
        "ack" => Kind::Ack,
        _ => return Ok(None),
    };
    let id = match kind {
        Kind::Enqueue => event.object("job")?.guid("jobId")?,
        Kind::Assign { .. } | Kind::Requeue | Kind::Dlq | Kind::Ack => event.guid("jobId")?,
    };
    let id = id.filter(|id| !id.is_nil()).ok_or_else(|| format!("its {name} names no job"))?;
    Ok(Some((kind, id)))
}

/// What to say of a line that cannot be used.
pub(super) fn damaged(path: &Path, line: &Line, BadEvent(what): &BadEvent) -> Failure {
    Failure::Damaged(format!(
        "{} cannot be used from line {} (offset {}) on: {what}. Repair that line, or give \
         --skip-damaged to continue without it",
        path.display(),
        line.number,
        line.at
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse_iso;

    const A: &str = "00000000-0000-0000-0000-00000000000a";

    fn line(number: u64, text: &str) -> Line {
        Line {
            number,
            at: number * 100,
            bytes: text.as_bytes().to_vec(),
            is_too_long: false,
            is_last: false,
        }
    }

    fn event(kind: &str, second: u32) -> String {
        match kind {
            "enqueue" => format!(
                r#"{{"type":"enqueue","at":"2025-10-19T12:00:{second:02}Z","job":{{"jobId":"{A}"}}}}"#
            ),
            _ => format!(
                r#"{{"type":"{kind}","at":"2025-10-19T12:00:{second:02}Z","jobId":"{A}","attempt":2}}"#
            ),
        }
    }

    /// What is left of one job after these events, with an empty snapshot of 12:00:30 if there is
    /// one.
    fn left(with_snapshot: bool, events: &[(&str, u32)]) -> Option<Standing> {
        let at = parse_iso("2025-10-19T12:00:30Z").filter(|_| with_snapshot);
        let mut jobs = Jobs::new(&Snapshot::default(), at);
        for (number, (kind, second)) in (1..).zip(events) {
            jobs.line(&line(number, &event(kind, *second))).unwrap();
        }
        jobs.left().0.first().map(|(_, known)| known.standing)
    }

    #[test]
    fn pe10_what_is_older_than_the_snapshot_makes_no_job() {
        assert_eq!(left(false, &[("enqueue", 10)]), Some(Standing::Queued));
        assert_eq!(left(true, &[("enqueue", 10)]), None);
        assert_eq!(left(true, &[("enqueue", 10), ("assign", 11), ("timeout_requeue", 12)]), None);
        assert_eq!(left(true, &[("enqueue", 40)]), Some(Standing::Queued));
        // It was being sent while the snapshot was made: the event behind it tells.
        let sent = Some(Standing::InFlight { worker: None, attempt: 2 });
        assert_eq!(left(true, &[("enqueue", 10), ("assign", 31)]), sent);
        // The name of a snapshot is a little younger than what it holds.
        assert_eq!(left(true, &[("enqueue", 29)]), Some(Standing::Queued));
    }

    #[test]
    fn pe10_what_ended_does_not_rise_again() {
        for with_snapshot in [false, true] {
            assert_eq!(
                left(
                    with_snapshot,
                    &[("enqueue", 40), ("ack", 41), ("enqueue", 42), ("assign", 43)]
                ),
                None
            );
            // An `ack` may even stand first: that leader acts before it writes.
            assert_eq!(left(with_snapshot, &[("ack", 41), ("enqueue", 40)]), None);
            let since = parse_iso("2025-10-19T12:00:42Z");
            let dead = Some(Standing::Dead { attempt: 2, since });
            let events = [
                ("enqueue", 40),
                ("assign", 41),
                ("dlq", 42),
                ("timeout_requeue", 43),
                ("enqueue", 44),
            ];
            assert_eq!(left(with_snapshot, &events), dead);
        }
    }

    #[test]
    fn pe05_what_is_no_event_is_refused_and_other_types_are_counted() {
        let mut jobs = Jobs::new(&Snapshot::default(), None);
        for (text, what) in [
            ("{", "EOF"),
            ("[]", "invalid type"),
            ("{}", "it has no \"type\""),
            (r#"{"type":"ack","at":"2025-10-19T12:00:00Z"}"#, "its ack names no job"),
            (
                r#"{"type":"enqueue","at":"2025-10-19T12:00:00Z","job":{"jobId":null}}"#,
                "its enqueue names no job",
            ),
            (&format!(r#"{{"type":"ack","jobId":"{A}"}}"#), "it has no \"at\""),
            (&format!(r#"{{"type":"ack","jobId":"{A}","at":"noon"}}"#), "not a moment"),
        ] {
            let BadEvent(found) = jobs.line(&line(1, text)).unwrap_err();
            assert!(found.contains(what), "{text}: {found}");
        }
        jobs.line(&line(1, r#"{"type":"snapshot_marker"}"#)).unwrap();
        jobs.line(&line(1, "  ")).unwrap();
        assert_eq!(jobs.unknown, 1);
    }
}
