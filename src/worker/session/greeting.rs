//! How a session begins on each connection: the hello, the leader's answer or its absence, and the heartbeats that follow.

use std::time::Duration;

use chunking::Kind;
use chunking::message::{Features, Heartbeat, HeldJobs, LimitId, Welcome};
use tokio::time::Instant;
use tracing::{info, warn};
use uuid::Uuid;

use super::Session;
use crate::peer::{InFrame, OutFrame, Probe, Silence, dead_line, silent};
use crate::units::Span;
use crate::wire::Signs;
use crate::worker::handler::Handler;
use crate::worker::hello::{features, hello};
use crate::worker::limits::{HEARTBEAT, HEARTBEAT_MIN, WORKER_GRACE};
use crate::worker::line::News;

impl<H: Handler> Session<H> {
    pub(super) fn say_hello(&mut self) {
        let frame = hello(&self.config);
        self.welcome.on_hello(Instant::now());
        self.say(frame);
    }

    /// What the leader can do is known.
    fn on_leader(&mut self, features: Features) {
        let is_first = self.leader.replace(features).is_none();
        self.line.on_sound();
        if is_first {
            self.offer_room();
        }
    }

    pub(super) fn on_no_welcome(&mut self, now: Instant) {
        let leader = self.line.address();
        let Some(silence) = self.welcome.on_due(now, self.desk.holds_work_of_ours()) else { return };
        match silence {
            Silence::Wait { wait_max } => info!(
                %leader, held = self.desk.held().len(), wait_max_ms = wait_max.as_millis(),
                "connected; the leader has not answered our announcement yet, and is a heft one: waiting for it; jobs go on"
            ),
            Silence::GiveUp { waited } => {
                let why = format!(
                    "{leader} took the connection, but did not answer our announcement within {}; if a classic leader has \
                     taken its place, start this worker anew, and without results of the other one",
                    Span::rounded(waited)
                );
                self.lose(&why);
            }
            Silence::Probe { waited, tell } => {
                if tell {
                    info!("{}", silent(&leader, waited));
                }
                self.probe = Some(Probe::start(leader, &self.config.tuning));
            }
            Silence::Dead { waited } => self.lose(&dead_line(&leader, waited)),
            Silence::Classic => {
                info!(%leader, "connected; the leader does not answer our announcement: working as a classic worker");
                if let [first, _, ..] = self.config.patterns.as_slice() {
                    warn!(%leader, "a classic leader takes one pattern from a worker: only {first} is served; start a worker for each");
                }
                self.on_leader(Features::default());
                self.desk.on_leader(Features::default());
            }
        }
    }

    fn lose(&mut self, why: &str) {
        if let News::Lost = self.line.lose(why) {
            self.on_lost();
        }
    }

    /// A frame came: the line is not dead.
    pub(super) fn on_heard(&mut self, frame: &InFrame) {
        if frame.kind() != Some(Kind::Welcome) {
            self.welcome.on_heard();
            self.probe = None;
        }
    }

    pub(super) fn on_welcome(&mut self, welcome: &Welcome) {
        let features = welcome.features.common(features(&self.config));
        let listed = welcome.limits.value(LimitId::HEARTBEAT_MS).filter(|ms| *ms > 0);
        self.heartbeat_every = listed.map_or(HEARTBEAT, Duration::from_millis).max(HEARTBEAT_MIN);
        let grace = welcome.limits.value(LimitId::WORKER_GRACE_MS);
        self.worker_grace = grace.map_or(WORKER_GRACE, Duration::from_millis);
        self.returns.on_limit(welcome.limits.value(LimitId::TRANSFERS));
        info!(leader = %self.config.leader, id = %welcome.leader, software = welcome.software.as_str(),
            heartbeat_ms = self.heartbeat_every.as_millis(), "connected");
        self.welcome.on_welcome(Signs::in_welcome(welcome).map(|signs| signs.silence));
        self.probe = None;
        // Its own signs of life are its heartbeats.
        if let Some(signs) = Signs::in_welcome(welcome).filter(|_| features.has(Features::LEASES)) {
            self.line.expect_signs(signs);
        }
        self.on_leader(features);
        // The first heartbeat says what is still held, and goes out before the results that follow.
        self.heartbeat_due = features.has(Features::LEASES).then(Instant::now);
        self.desk.on_leader(features);
        if let Some(cache) = &mut self.cache {
            cache.on_leader(features.has(Features::DATASETS), &mut self.out);
        }
    }

    pub(super) fn send_heartbeat(&mut self) {
        self.heartbeat_due = Some(Instant::now() + self.heartbeat_every);
        let beat = Heartbeat {
            cpu_permille: self.cpu.permille().unwrap_or_default(),
            credit: self.purse.given(),
            jobs: HeldJobs::new(self.desk.held()),
        };
        self.say(OutFrame::message(Uuid::nil(), &beat));
    }
}
