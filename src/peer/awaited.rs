//! Decides how long a worker or client waits for the leader's Welcome, and what its absence means.
//! It has no I/O; time is passed in.
//!
//! A leader that has never answered is taken for a classic one after a short time, since classic
//! leaders never answer. A leader that has answered before, or whose work the peer holds, is slow:
//! the peer keeps waiting, and after a long time tries another connection. Otherwise a pause of the
//! leader would cost features only a heft leader has.
//!
//! Silence alone does not distinguish either from a connection that is dead above TCP. So while
//! nothing at all has arrived, the address is probed on a separate connection, at growing intervals
//! (see [`probe`](super::probe)). If a heft leader answers the probe but not the connection itself,
//! that connection is dead and is replaced. A slow leader answers both. A classic leader answers
//! neither, and no job has been submitted to it twice.

use std::time::Duration;

use tokio::time::Instant;

use crate::core::retry::Backoff;
use crate::units::Span;
use crate::wire::SILENCE_MAX;

/// Between probes of an address whose leader has sent nothing: 2 s after the hello, doubling to a
/// minute.
pub const PROBE_BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(2), max: Duration::from_secs(60), jitter_percent: 20 };

/// How long the answer on the connection itself may come behind the one to a probe. A leader that
/// was slow works off what has come within it; one that takes longer costs a reconnect and nothing
/// else.
const BEHIND_PROBE_MAX: Duration = Duration::from_secs(1);

/// How long an answer to the hello is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Of a leader that has never answered.
    pub(crate) wait: Duration,
    /// Of one that has.
    pub(crate) wait_max: Duration,
    /// When a leader that has never answered is probed. One that has is first probed after its own
    /// silence limit.
    pub(crate) probe: Backoff,
}

/// What to do without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It is a heft leader: go on waiting, for so long in all.
    Wait { wait_max: Duration },
    /// It is one, and so much time has passed: another connection.
    GiveUp { waited: Duration },
    /// It is a classic leader, as far as we know.
    Classic,
    /// Nothing has come for so long: see whether it answers a probe. `tell` if that is news to
    /// people.
    Probe { waited: Duration, tell: bool },
    /// It has answered a probe, and has been silent here for so long: another connection.
    Dead { waited: Duration },
}

/// What is known of the leader over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderKind {
    /// It has never answered: a classic one, a slow one, or a dead line.
    Unknown,
    /// It has answered. Its connections are dead after this silence.
    Heft { silence: Duration },
}

/// What the connection is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// That is open.
    Hello,
    /// The connection of a heft leader that is slow.
    Slow,
    /// One of a classic leader.
    Classic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probing {
    /// The next one is due.
    At(Instant),
    /// One is under way.
    Out,
    /// One was answered; the connection itself has until then.
    Answered(Instant),
    /// The connection is not silent: there is nothing to find out.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is waited for.
    Idle,
    /// The hello went out at `since`.
    Greeted { since: Instant, stage: Stage, probing: Probing, probes: u32 },
}

/// The answer that is waited for.
#[derive(Debug)]
pub(crate) struct AwaitedWelcome {
    patience: Patience,
    kind: LeaderKind,
    state: State,
}

impl AwaitedWelcome {
    pub(crate) fn new(patience: Patience) -> Self {
        AwaitedWelcome { patience, kind: LeaderKind::Unknown, state: State::Idle }
    }

    /// When [`on_due`](Self::on_due) is to be called.
    pub(crate) fn due(&self) -> Option<Instant> {
        let State::Greeted { since, stage, probing, .. } = self.state else { return None };
        let probing = match probing {
            Probing::At(due) | Probing::Answered(due) => Some(due),
            Probing::Out | Probing::Over => None,
        };
        self.stage_due(since, stage).into_iter().chain(probing).min()
    }

    fn stage_due(&self, since: Instant, stage: Stage) -> Option<Instant> {
        let Patience { wait, wait_max, .. } = self.patience;
        let wait = match (stage, self.kind) {
            (Stage::Hello, LeaderKind::Unknown) => Some(wait),
            (Stage::Hello, LeaderKind::Heft { .. }) => Some(wait.min(wait_max)),
            (Stage::Slow, _) => Some(wait_max),
            (Stage::Classic, _) => None,
        };
        wait.and_then(|wait| since.checked_add(wait))
    }

    /// The hello goes out on a new connection.
    pub(crate) fn on_hello(&mut self, now: Instant) {
        let first = match self.kind {
            LeaderKind::Unknown => self.patience.probe.delay(1, entropy()),
            LeaderKind::Heft { silence } => silence,
        };
        self.state = State::Greeted {
            since: now,
            stage: Stage::Hello,
            probing: Probing::At(now + first),
            probes: 0,
        };
    }

    /// The answer is here; the leader's connections are dead after this silence, if it said so.
    pub(crate) fn on_welcome(&mut self, silence: Option<Duration>) {
        self.kind = LeaderKind::Heft { silence: silence.unwrap_or(SILENCE_MAX) };
        self.state = State::Idle;
    }

    /// Something else came: whatever the leader is, the line is not dead.
    pub(crate) fn on_heard(&mut self) {
        match &mut self.state {
            State::Idle => {}
            State::Greeted { stage: Stage::Classic, .. } => self.state = State::Idle,
            State::Greeted { stage: Stage::Hello | Stage::Slow, probing, .. } => {
                *probing = Probing::Over
            }
        }
    }

    pub(crate) fn on_lost(&mut self) {
        self.state = State::Idle;
    }

    /// The probe is over.
    pub(crate) fn on_probe(&mut self, now: Instant, is_answered: bool) {
        let State::Greeted { probing, probes, .. } = &mut self.state else { return };
        if *probing != Probing::Out {
            return;
        }
        *probing = match is_answered {
            true => {
                if self.kind == LeaderKind::Unknown {
                    self.kind = LeaderKind::Heft { silence: SILENCE_MAX };
                }
                Probing::Answered(now + BEHIND_PROBE_MAX)
            }
            false => {
                Probing::At(now + self.patience.probe.delay(probes.saturating_add(1), entropy()))
            }
        };
    }

    /// The time is over. `holds_work_of_ours`: only a heft leader can have given out what the peer
    /// holds.
    pub(crate) fn on_due(&mut self, now: Instant, holds_work_of_ours: bool) -> Option<Silence> {
        let State::Greeted { since, stage, probing, probes } = self.state else { return None };
        let waited = now.saturating_duration_since(since);
        let is_unknown = self.kind == LeaderKind::Unknown && !holds_work_of_ours;
        if matches!(probing, Probing::Answered(until) if until <= now) {
            self.state = State::Idle;
            return Some(Silence::Dead { waited });
        }
        if self.stage_due(since, stage).is_some_and(|due| due <= now) {
            let then = match stage {
                Stage::Hello if is_unknown => Stage::Classic,
                Stage::Hello | Stage::Slow | Stage::Classic => Stage::Slow,
            };
            let wait_max = self.patience.wait_max;
            self.state = State::Greeted { since, stage: then, probing, probes };
            return Some(match then {
                Stage::Classic if probing == Probing::Over => {
                    self.state = State::Idle;
                    Silence::Classic
                }
                Stage::Classic => Silence::Classic,
                Stage::Hello | Stage::Slow if waited >= wait_max => {
                    self.state = State::Idle;
                    Silence::GiveUp { waited }
                }
                Stage::Hello | Stage::Slow => Silence::Wait { wait_max },
            });
        }
        if !matches!(probing, Probing::At(due) if due <= now) {
            return None;
        }
        let probes = probes.saturating_add(1);
        self.state = State::Greeted { since, stage, probing: Probing::Out, probes };
        // More and more seldom: a worker may be idle at a classic leader for days.
        Some(Silence::Probe { waited, tell: probes.is_power_of_two() })
    }
}

/// Says that a heft leader lets us wait for its answer to the hello.
pub(super) fn unanswered(leader: &str, waited: Duration, wait_max: Duration) -> String {
    let (waited, wait_max) = (Span::rounded(waited), Span::rounded(wait_max));
    format!(
        "{leader} is a heft leader, but has not answered the hello for {waited}; waiting up to \
         {wait_max}"
    )
}

/// Says that a leader has sent nothing at all, and what is done about it.
pub(crate) fn silent(leader: &str, waited: Duration) -> String {
    let waited = Span::rounded(waited);
    format!(
        "{leader} accepted the connection {waited} ago and has sent nothing since: it is an idle \
         classic leader, it is overloaded, or the connection is dead; trying a second connection"
    )
}

/// Says that a connection is dead while its leader is not.
pub(crate) fn dead_line(leader: &str, waited: Duration) -> String {
    let waited = Span::rounded(waited);
    format!(
        "{leader} answers on a second connection, but has sent nothing on the first for {waited}: \
         the first is dead"
    )
}

fn entropy() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PATIENCE: Patience = Patience {
        wait: Duration::from_millis(500),
        wait_max: Duration::from_secs(90),
        probe: Backoff { jitter_percent: 0, ..PROBE_BACKOFF },
    };

    /// Runs for so many seconds; what is done, and when. Probes take a second and are answered from
    /// `answers_from` on.
    fn run(awaited: &mut AwaitedWelcome, seconds: u32, answers_from: u32) -> Vec<(u32, Silence)> {
        let start = Instant::now();
        awaited.on_hello(start);
        let mut said = Vec::new();
        let mut probe_ends = None;
        for ms in (0..seconds * 1000).step_by(100) {
            let now = start + ms * MS;
            if probe_ends == Some(ms) {
                probe_ends = None;
                awaited.on_probe(now, ms >= answers_from * 1000);
            }
            while awaited.due().is_some_and(|due| due <= now) {
                let Some(silence) = awaited.on_due(now, false) else { break };
                if matches!(silence, Silence::Probe { .. }) {
                    probe_ends = Some(ms + 1000);
                }
                said.push((ms, silence));
            }
        }
        said
    }

    fn probes(said: &[(u32, Silence)]) -> Vec<u32> {
        let is_probe = |said: &&(u32, Silence)| matches!(said.1, Silence::Probe { .. });
        said.iter().filter(is_probe).map(|(ms, _)| *ms).collect()
    }

    #[test]
    fn a_leader_that_never_answered_is_classic_and_is_probed_more_and_more_seldom() {
        let mut awaited = AwaitedWelcome::new(PATIENCE);
        let said = run(&mut awaited, 300, u32::MAX / 1000);
        assert_eq!(said[0], (500, Silence::Classic));
        // After each a second for the probe itself.
        assert_eq!(probes(&said), [2000, 7000, 16_000, 33_000, 66_000, 127_000, 188_000, 249_000]);
        let told =
            said.iter().filter(|(_, silence)| matches!(silence, Silence::Probe { tell: true, .. }));
        assert_eq!(told.count(), 4, "1, 2, 4 and 8");
        assert_eq!(said.len(), 9, "and nothing else");
    }

    #[test]
    fn a_connection_is_dead_when_the_leader_answers_a_probe_and_not_there() {
        let mut awaited = AwaitedWelcome::new(PATIENCE);
        let said = run(&mut awaited, 60, 5);
        assert_eq!(probes(&said), [2000, 7000]);
        assert_eq!(said.last(), Some(&(9000, Silence::Dead { waited: 9000 * MS })));
        // From now on it is known for a heft one.
        let said = run(&mut awaited, 60, 0);
        assert_eq!(said[0], (500, Silence::Wait { wait_max: PATIENCE.wait_max }));
        assert_eq!(probes(&said), [20_000], "after the silence limit");
        assert_eq!(said.last().unwrap().1, Silence::Dead { waited: 22_000 * MS });
    }

    #[test]
    fn a_heft_leader_that_is_slow_is_waited_for_and_in_the_end_given_up() {
        let mut awaited = AwaitedWelcome::new(PATIENCE);
        awaited.on_welcome(None);
        let said = run(&mut awaited, 100, u32::MAX / 1000);
        assert_eq!(said.last(), Some(&(90_000, Silence::GiveUp { waited: 90_000 * MS })));
        let start = Instant::now();
        awaited.on_hello(start);
        awaited.on_due(start + 25_000 * MS, false);
        awaited.on_due(start + 25_000 * MS, false);
        awaited.on_probe(start + 26_000 * MS, true);
        awaited.on_welcome(None);
        assert_eq!(awaited.due(), None, "it has answered both");
    }

    #[test]
    fn a_leader_that_has_sent_anything_is_not_probed() {
        let mut awaited = AwaitedWelcome::new(PATIENCE);
        let start = Instant::now();
        awaited.on_hello(start);
        awaited.on_heard();
        assert_eq!(awaited.due(), Some(start + 500 * MS));
        assert_eq!(awaited.on_due(start + 500 * MS, false), Some(Silence::Classic));
        assert_eq!(awaited.due(), None);
        awaited.on_hello(start);
        assert_eq!(awaited.on_due(start + 500 * MS, false), Some(Silence::Classic));
        awaited.on_heard();
        assert_eq!(awaited.due(), None);
        awaited.on_probe(start, true);
        assert_eq!(awaited.due(), None, "a probe that comes too late");
    }

    #[test]
    fn work_of_a_heft_leader_makes_it_one() {
        let mut awaited = AwaitedWelcome::new(PATIENCE);
        let start = Instant::now();
        awaited.on_hello(start);
        let wait_max = PATIENCE.wait_max;
        assert_eq!(awaited.on_due(start + 500 * MS, true), Some(Silence::Wait { wait_max }));
        assert!(matches!(awaited.on_due(start + 2000 * MS, true), Some(Silence::Probe { .. })));
    }
}
