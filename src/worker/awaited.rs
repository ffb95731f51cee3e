//! The answer to a worker's announcement: how long it is waited for, and what it means when it does not come.
//!
//! A leader that has never answered is taken for a classic one after a short while. One that has, or that must have, since the
//! worker holds work which only a heft leader gives out, is slow: it is waited for, and after a long time another connection
//! is tried. Else a pause of the leader would have a worker give up the large parts of its results. Free of I/O.

use std::time::Duration;

use tokio::time::Instant;

use super::config::WorkerConfig;

/// What to do without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It is a heft leader: go on waiting, for so long in all.
    Wait { wait_max: Duration },
    /// It is one, and so much time has passed: another connection.
    GiveUp { waited: Duration },
    /// It is a classic leader, as far as we know.
    Classic,
}

/// What is known of the leader over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderKind {
    Unknown,
    Heft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is waited for.
    Idle,
    /// The announcement went out; until `due` nothing is to be done.
    Announced { at: Instant, due: Instant },
}

/// The answer that is waited for.
#[derive(Debug)]
pub(super) struct AwaitedWelcome {
    wait: Duration,
    wait_max: Duration,
    kind: LeaderKind,
    state: State,
}

impl AwaitedWelcome {
    pub(super) fn new(config: &WorkerConfig) -> Self {
        AwaitedWelcome {
            wait: config.welcome_wait,
            wait_max: config.welcome_wait_max,
            kind: LeaderKind::Unknown,
            state: State::Idle,
        }
    }

    /// When [`on_due`](Self::on_due) is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Announced { due, .. } => Some(due),
        }
    }

    /// The announcement goes out on a new connection.
    pub(super) fn on_hello(&mut self, now: Instant) {
        let wait = match self.kind {
            LeaderKind::Unknown => self.wait,
            LeaderKind::Heft => self.wait.min(self.wait_max),
        };
        self.state = State::Announced { at: now, due: now + wait };
    }

    pub(super) fn on_welcome(&mut self) {
        self.kind = LeaderKind::Heft;
        self.state = State::Idle;
    }

    pub(super) fn on_lost(&mut self) {
        self.state = State::Idle;
    }

    /// The time is over.
    pub(super) fn on_due(&mut self, now: Instant, holds_work_of_ours: bool) -> Silence {
        let State::Announced { at, .. } = self.state else { return Silence::Classic };
        if self.kind == LeaderKind::Unknown && !holds_work_of_ours {
            self.state = State::Idle;
            return Silence::Classic;
        }
        let waited = now.saturating_duration_since(at);
        if waited >= self.wait_max {
            self.state = State::Idle;
            return Silence::GiveUp { waited };
        }
        self.state = State::Announced { at, due: at + self.wait_max };
        Silence::Wait { wait_max: self.wait_max }
    }
}
