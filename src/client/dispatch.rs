//! Decides which connection a job is sent on, and when it moves to another (CL03-CL10). It sees
//! only job ids and connection numbers: no socket, clock or payload. The client's event loop
//! reports events and executes its actions; a client of one leader is the same with one connection.
//!
//! A job is *pending* until it is sent on a live connection, and *in flight* from then on, on
//! exactly one connection. It leaves a dead connection, under the same id, once the grace time is
//! over (CL07). A restored connection gets its jobs again at once: leaders recognise a job by its
//! id and do not run it twice (DD04), and a leader that has forgotten the job must receive it
//! again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

use crate::core::ids::Micros;
use crate::model::hello::UNCAPPED;

/// How long a connection may be away before its jobs go to others (CL07).
pub const GRACE: Duration = Duration::from_secs(10);

/// How a live connection is chosen for a job (CL04).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest jobs of ours; in turn where several have as few.
    LeastInFlight,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 2] = [Policy::RoundRobin, Policy::LeastInFlight];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::LeastInFlight => "least-in-flight",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            format!("\"{text}\" is not a policy: use round-robin or least-in-flight")
        })
    }
}

/// A connection, by its place in the list of leaders.
pub type Conn = usize;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new job.
    Submit(Uuid),
    /// The connection is ready for jobs.
    Up(Conn),
    /// The connection ended; these jobs were certainly not sent.
    Down(Conn, Vec<Uuid>),
    /// The job could not be handed to the connection, which is about to end (CL05).
    NotSent(Conn, Uuid),
    /// The leader does not take the job because it is about to stop; it has to go elsewhere, or
    /// wait for the next leader.
    TurnedAway(Conn, Uuid),
    /// A result or a refusal came, from whichever connection (CL10).
    Ended(Uuid),
    /// The deadline has come.
    Tick,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hand the job to the connection. `again`: a leader may have it already.
    Send {
        /// Where to.
        conn: Conn,
        /// Which job.
        job: Uuid,
        /// Whether it was sent before.
        again: bool,
    },
    /// The grace of the connection is over and the job waits for another (CL07).
    Moved {
        /// Where it was.
        from: Conn,
        /// Which job.
        job: Uuid,
    },
    /// This is the job's first result: give it out. Later ones yield nothing (C07).
    Deliver(Uuid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    /// Connected, but the leader takes nothing new.
    Draining,
    Down {
        since: Micros,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Pending,
    InFlight(Conn),
}

/// Whether a connection may have brought a job to its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    No,
    Perhaps,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    /// Its place in the order of submission.
    number: u64,
    place: Place,
    /// A connection before the present one may have brought it to a leader.
    sent_before: bool,
}

/// The jobs of one client over its connections.
#[derive(Debug)]
pub struct Dispatch {
    policy: Policy,
    grace: Duration,
    links: Vec<Link>,
    in_flight: Vec<usize>,
    /// Where the next round begins.
    turn: Conn,
    jobs: HashMap<Uuid, Job>,
    pending: BTreeMap<u64, Uuid>,
    submitted: u64,
    late: u64,
    actions: VecDeque<Action>,
}

impl Dispatch {
    /// No jobs, and `conns` connections that are not up yet.
    pub fn new(conns: usize, policy: Policy, grace: Duration) -> Self {
        Dispatch {
            policy,
            grace,
            links: vec![Link::Down { since: Micros::default() }; conns],
            in_flight: vec![0; conns],
            turn: 0,
            jobs: HashMap::new(),
            pending: BTreeMap::new(),
            submitted: 0,
            late: 0,
            actions: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Micros, event: Event) {
        match event {
            Event::Submit(job) => {
                if self.jobs.contains_key(&job) {
                    return;
                }
                self.submitted += 1;
                let number = self.submitted;
                self.jobs.insert(job, Job { number, place: Place::Pending, sent_before: false });
                self.pending.insert(number, job);
            }
            Event::Up(conn) => {
                self.set_link(conn, Link::Up);
                self.send_again(conn);
            }
            Event::Down(conn, unsent) => {
                for job in unsent {
                    self.take_back(conn, job, Sent::No);
                }
                self.mark_down(now, conn);
            }
            Event::NotSent(conn, job) => {
                self.take_back(conn, job, Sent::No);
                self.mark_down(now, conn);
            }
            Event::TurnedAway(conn, job) => {
                if self.links.get(conn) == Some(&Link::Up) {
                    self.set_link(conn, Link::Draining);
                }
                self.take_back(conn, job, Sent::No);
            }
            Event::Ended(job) => self.end(job),
            Event::Tick => {}
        }
        self.move_after_grace(now);
        self.pump();
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When `Tick` is due: the end of the next grace.
    pub fn next_deadline(&self) -> Option<Micros> {
        let holding = self.links.iter().zip(&self.in_flight).filter(|(_, count)| **count > 0);
        holding.filter_map(|(link, _)| self.grace_end(*link)).min()
    }

    /// Jobs that wait for a live connection.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Jobs in flight on a connection.
    pub fn in_flight(&self, conn: Conn) -> usize {
        self.in_flight.get(conn).copied().unwrap_or(0)
    }

    /// Jobs without a result.
    pub fn unfinished(&self) -> usize {
        self.jobs.len()
    }

    /// Results that came after the first one, or for jobs that are not ours.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Where a job is in flight.
    pub fn conn_of(&self, job: Uuid) -> Option<Conn> {
        match self.jobs.get(&job)?.place {
            Place::InFlight(conn) => Some(conn),
            Place::Pending => None,
        }
    }

    /// Whether a job may be known to a leader.
    pub fn was_sent(&self, job: Uuid) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.sent_before || job.place != Place::Pending)
    }

    fn set_link(&mut self, conn: Conn, link: Link) {
        if let Some(slot) = self.links.get_mut(conn) {
            *slot = link;
        }
    }

    /// The grace counts from the first sign that the connection is gone.
    fn mark_down(&mut self, now: Micros, conn: Conn) {
        match self.links.get_mut(conn) {
            Some(link @ (Link::Up | Link::Draining)) => *link = Link::Down { since: now },
            Some(Link::Down { .. }) | None => {}
        }
    }

    fn grace_end(&self, link: Link) -> Option<Micros> {
        match link {
            Link::Down { since } => Some(since.plus(self.grace)),
            Link::Up | Link::Draining => None,
        }
    }

    /// Takes a job from the connection it is in flight on back to pending.
    fn take_back(&mut self, conn: Conn, id: Uuid, sent: Sent) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.place != Place::InFlight(conn) {
            return;
        }
        job.place = Place::Pending;
        job.sent_before |= sent == Sent::Perhaps;
        self.pending.insert(job.number, id);
        if let Some(count) = self.in_flight.get_mut(conn) {
            *count = count.saturating_sub(1);
        }
    }

    fn jobs_on(&self, conn: Conn) -> Vec<Uuid> {
        let mut held: Vec<(u64, Uuid)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.place == Place::InFlight(conn))
            .map(|(id, job)| (job.number, *id))
            .collect();
        held.sort_unstable();
        held.into_iter().map(|(_, id)| id).collect()
    }

    fn send_again(&mut self, conn: Conn) {
        for id in self.jobs_on(conn) {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.sent_before = true;
            }
            self.actions.push_back(Action::Send { conn, job: id, again: true });
        }
    }

    fn move_after_grace(&mut self, now: Micros) {
        for conn in 0..self.links.len() {
            let over = self
                .links
                .get(conn)
                .and_then(|link| self.grace_end(*link))
                .is_some_and(|end| end <= now);
            if !over || self.in_flight(conn) == 0 {
                continue;
            }
            for job in self.jobs_on(conn) {
                self.take_back(conn, job, Sent::Perhaps);
                self.actions.push_back(Action::Moved { from: conn, job });
            }
        }
    }

    fn end(&mut self, id: Uuid) {
        let Some(job) = self.jobs.remove(&id) else {
            self.late += 1;
            return;
        };
        match job.place {
            Place::Pending => {
                self.pending.remove(&job.number);
            }
            Place::InFlight(conn) => {
                if let Some(count) = self.in_flight.get_mut(conn) {
                    *count = count.saturating_sub(1);
                }
            }
        }
        self.actions.push_back(Action::Deliver(id));
    }

    /// Hands out what is pending, oldest first, as long as there is a live connection.
    fn pump(&mut self) {
        while let Some((&number, &id)) = self.pending.first_key_value() {
            let Some(conn) = self.choose() else { return };
            self.pending.remove(&number);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.place = Place::InFlight(conn);
            let again = job.sent_before;
            if let Some(count) = self.in_flight.get_mut(conn) {
                *count += 1;
            }
            self.actions.push_back(Action::Send { conn, job: id, again });
        }
    }

    fn choose(&mut self) -> Option<Conn> {
        let conns = self.links.len();
        let in_turn = (0..conns).map(|step| (self.turn + step) % conns);
        let mut live = in_turn.filter(|conn| self.links.get(*conn) == Some(&Link::Up));
        let chosen = match self.policy {
            Policy::RoundRobin => live.next(),
            // The first of equals is taken, and they are looked at in turn.
            Policy::LeastInFlight => live.min_by_key(|conn| self.in_flight(*conn)),
        }?;
        self.turn = (chosen + 1) % conns;
        Some(chosen)
    }
}

/// Divides a cap over connections (CP06): evenly, at least one each, the remainder to the first
/// ones. A total below the number of connections gives each one job. No cap is none at each.
pub fn split_cap(total: u32, conns: usize) -> Vec<u32> {
    if total == UNCAPPED {
        return vec![UNCAPPED; conns];
    }
    let count = u32::try_from(conns).unwrap_or(u32::MAX).max(1);
    let base = (total / count).max(1);
    let extra = if total >= count { total % count } else { 0 };
    (0..count).take(conns).map(|conn| base + u32::from(conn < extra)).collect()
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
