//! Handles the handshake on each connection: the leader's Welcome or its absence, and the
//! heartbeats that follow.

use std::time::Duration;

use chunking::message::{Features, Heartbeat, HeldJobs, LimitId, Welcome};
use tokio::time::Instant;
use tracing::{info, warn};
use uuid::Uuid;

use super::Session;
use crate::peer::OutFrame;
use crate::worker::handler::Handler;
use crate::worker::hello::features;
use crate::worker::limits::{HEARTBEAT, HEARTBEAT_MIN, WORKER_GRACE};

impl<H: Handler> Session<H> {
    /// What the leader can do is known.
    fn on_leader(&mut self, features: Features) {
        let is_first = self.leader.replace(features).is_none();
        if is_first {
            self.offer_room();
        }
    }

    /// The leader is a classic one, as far as we know.
    pub(super) fn on_classic(&mut self) {
        let leader = self.uplink.address();
        info!(%leader, "connected; the leader did not answer the hello: working as a classic \
                        worker");
        if let [first, _, ..] = self.config.patterns.as_slice() {
            warn!(%leader, "a classic leader takes one pattern from a worker: only {first} is served; start a worker for each");
        }
        self.on_leader(Features::default());
        self.table.on_leader(Features::default());
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
        self.on_leader(features);
        // The first heartbeat says what is still held, and goes out before the results that follow.
        self.heartbeat_due = features.has(Features::LEASES).then(Instant::now);
        self.announce_programs();
        self.table.on_leader(features);
        if let Some(cache) = &mut self.cache {
            cache.on_leader(features.has(Features::DATASETS), &mut self.exchange);
        }
    }

    pub(super) fn send_heartbeat(&mut self) {
        self.heartbeat_due = Some(Instant::now() + self.heartbeat_every);
        let beat = Heartbeat {
            cpu_permille: self.cpu.permille().unwrap_or_default(),
            credit: self.purse.given(),
            jobs: HeldJobs::new(self.table.held()),
        };
        self.say(OutFrame::message(Uuid::nil(), &beat));
    }
}
