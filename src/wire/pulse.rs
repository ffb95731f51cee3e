//! Decides whether the other side of a connection is alive, by the bytes it sends. It has no I/O;
//! time is passed in.
//!
//! TCP keeps a connection for ever if the other end is stopped or a middlebox has forgotten it. So
//! peers that both support Keepalive send one when they have nothing else to send, and a connection
//! silent for the silence limit is considered dead. Whatever the peer, a frame that has begun must
//! make progress. Progress is judged per window, not in total, so a slow connection is not taken
//! for dead. A frame whose length was damaged receives nothing but the small frames behind it, and
//! is detected by that.
//!
//! No verdict is passed before pending data in our own socket has been read: after the limit there
//! is an extra moment, and a process that was itself stopped, and so checks late, takes another.
//! Leaders, workers and clients use it.

use std::time::Duration;

use chunking::message::{Features, LimitId, Welcome};
use thiserror::Error;
use tokio::time::Instant;

/// The longest time in which a frame that has begun has to bring [`FRAME_BYTES_PER_SECOND_MIN`] on
/// average, or its end.
pub const FRAME_WINDOW_MAX: Duration = Duration::from_secs(30);

/// See [`FRAME_WINDOW_MAX`]. It is far below any line that is of use, and far above what keepalives
/// and heartbeats make.
pub const FRAME_BYTES_PER_SECOND_MIN: u64 = 1024;

/// Between two signs of life, unless the leader's Welcome says. It is that of heartbeats.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// A quarter of this is the time between two signs of life, so that a peer may be stopped for some
/// seconds and lose one or two.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The shortest silence that counts, whatever a Welcome says.
pub const SILENCE_MIN: Duration = Duration::from_millis(100);

/// The shortest time between two signs, whatever a Welcome says.
const EVERY_MIN: Duration = Duration::from_millis(10);

/// The most that is waited after a limit, for what may wait in our own socket.
const MOMENT_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(SILENCE_MAX.as_secs() >= 3 * KEEPALIVE_EVERY.as_secs());

/// What a leader and a peer that both know Keepalive have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signs {
    /// How often something is sent at least.
    pub every: Duration,
    /// A connection that is silent for this long is dead.
    pub silence: Duration,
}

impl Signs {
    /// What a Welcome says, if both sides know Keepalive.
    pub fn in_welcome(welcome: &Welcome) -> Option<Self> {
        let ms =
            |id: LimitId| welcome.limits.value(id).filter(|ms| *ms > 0).map(Duration::from_millis);
        let silence = ms(LimitId::SILENCE_MS).unwrap_or(SILENCE_MAX).max(SILENCE_MIN);
        let every =
            ms(LimitId::HEARTBEAT_MS).unwrap_or(KEEPALIVE_EVERY).clamp(EVERY_MIN, silence / 3);
        welcome.features.has(Features::KEEPALIVE).then_some(Signs { every, silence })
    }
}

/// Why the other side counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Dead {
    #[error("nothing arrived for {} ms, not even a keepalive: the connection is dead, or the peer \
             hangs", .silence.as_millis())]
    Silent { silence: Duration },
    /// A frame does not go on.
    #[error(
        "an unfinished frame got {bytes} bytes in {} ms, and the minimum is {}: the peer stopped \
         sending, or the frame's length was damaged on the way",
        .window.as_millis(), bytes_min(*.window)
    )]
    HalfFrame {
        /// Bytes that came.
        bytes: u64,
        /// In this time.
        window: Duration,
    },
}

/// What a frame that is not whole has to bring in this time.
fn bytes_min(window: Duration) -> u64 {
    let millis = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
    millis.saturating_mul(FRAME_BYTES_PER_SECOND_MIN) / 1000
}

/// The window of frames where connections are dead after this silence.
pub fn frame_window(silence: Duration) -> Duration {
    silence.saturating_mul(3).min(2 * FRAME_WINDOW_MAX) / 2
}

/// Something that is to happen within a limit.
#[derive(Clone, Copy, Debug)]
struct Watch {
    since: Instant,
    /// The limit is over; until then something may still be found in our own socket.
    last_moment: Option<Instant>,
}

impl Watch {
    fn new(since: Instant) -> Self {
        Watch { since, last_moment: None }
    }

    fn due(&self, limit: Duration) -> Instant {
        self.last_moment.unwrap_or(self.since + limit)
    }

    fn is_over(&mut self, now: Instant, limit: Duration) -> bool {
        let moment = (limit / 8).min(MOMENT_MAX);
        match self.last_moment {
            None if now < self.since + limit => false,
            Some(until) if now < until => false,
            Some(until) if now < until + moment => true,
            // Now it is over, or we have been away ourselves: what came meanwhile has not been
            // looked at.
            None | Some(_) => {
                self.last_moment = Some(now + moment);
                false
            }
        }
    }
}

/// The frame that is under way.
#[derive(Clone, Copy, Debug)]
struct Under {
    watch: Watch,
    bytes: u64,
}

/// The signs of life of one connection's other side.
#[derive(Debug)]
pub struct Pulse {
    silence: Option<Duration>,
    frame_window: Duration,
    quiet: Option<Watch>,
    frame: Option<Under>,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse::with_window(FRAME_WINDOW_MAX)
    }
}

impl Pulse {
    /// Of a peer whose frames have this window.
    pub fn with_window(frame_window: Duration) -> Self {
        Pulse { silence: None, frame_window, quiet: None, frame: None }
    }

    /// From now on the other side sends something at least every now and then.
    pub fn expect(&mut self, silence: Duration) {
        self.silence = Some(silence.max(SILENCE_MIN));
    }

    /// The window of frames from now on.
    pub fn set_window(&mut self, frame_window: Duration) {
        self.frame_window = frame_window;
    }

    /// Something is about to be read, perhaps in the middle of a frame. Gives until when that may
    /// take; then [`Pulse::late`].
    pub fn waits(&mut self, now: Instant, inside_frame: bool) -> Option<Instant> {
        match inside_frame {
            true => {
                self.frame.get_or_insert(Under { watch: Watch::new(now), bytes: 0 });
            }
            false => self.frame = None,
        }
        let frame = self.frame.map(|frame| frame.watch.due(self.frame_window));
        let quiet =
            self.silence.map(|silence| self.quiet.get_or_insert(Watch::new(now)).due(silence));
        frame.into_iter().chain(quiet).min()
    }

    /// So many bytes came.
    pub fn came(&mut self, bytes: usize) {
        self.quiet = None;
        if let Some(frame) = &mut self.frame {
            frame.bytes = frame.bytes.saturating_add(bytes as u64);
        }
    }

    /// A frame is whole; the next one has its own time.
    pub fn frame_ended(&mut self) {
        self.frame = None;
    }

    /// Nothing was read for a while, for reasons of our own.
    pub fn rested(&mut self) {
        (self.quiet, self.frame) = (None, None);
    }

    /// The time that [`Pulse::waits`] gave has come, and nothing else: whether the other side is
    /// dead.
    pub fn late(&mut self, now: Instant) -> Option<Dead> {
        if let (Some(silence), Some(quiet)) = (self.silence, &mut self.quiet)
            && quiet.is_over(now, silence)
        {
            return Some(Dead::Silent { silence });
        }
        let window = self.frame_window;
        let frame = self.frame.as_mut()?;
        if now >= frame.watch.since + window && frame.bytes >= bytes_min(window) {
            *frame = Under { watch: Watch::new(now), bytes: 0 };
            return None;
        }
        frame.watch.is_over(now, window).then_some(Dead::HalfFrame { bytes: frame.bytes, window })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// A second by second run: what came in each, and whether that is inside a frame. Says when it
    /// was found dead.
    fn run(
        pulse: &mut Pulse,
        seconds: u32,
        came: impl Fn(u32) -> (usize, bool),
    ) -> Option<(u32, Dead)> {
        let start = Instant::now();
        let mut inside = false;
        for second in 0..seconds {
            let now = start + S * second;
            let due = pulse.waits(now, inside);
            let (bytes, then_inside) = came(second);
            if bytes > 0 {
                pulse.came(bytes);
                if !then_inside {
                    pulse.frame_ended();
                }
                inside = then_inside;
            } else if due.is_some_and(|due| due <= now)
                && let Some(dead) = pulse.late(now)
            {
                return Some((second, dead));
            }
        }
        None
    }

    #[test]
    fn silence_is_dead_after_the_limit_and_a_moment_and_a_sign_every_now_and_then_is_life() {
        let mut pulse = Pulse::default();
        assert_eq!(
            run(&mut pulse, 10_000, |_| (0, false)),
            None,
            "a classic peer may be idle for ever"
        );
        pulse.expect(SILENCE_MAX);
        assert_eq!(
            run(&mut pulse, 1000, |second| (usize::from(second.is_multiple_of(19)), false)),
            None
        );
        let mut pulse = Pulse::default();
        pulse.expect(SILENCE_MAX);
        let dead = run(&mut pulse, 100, |_| (0, false));
        assert_eq!(dead, Some((21, Dead::Silent { silence: SILENCE_MAX })));
    }

    #[test]
    fn half_a_frame_is_dead_and_one_that_goes_on_slowly_is_not() {
        let mut pulse = Pulse::default();
        let broken =
            run(&mut pulse, 100, |second| if second == 5 { (100, true) } else { (0, true) });
        assert_eq!(broken, Some((37, Dead::HalfFrame { bytes: 0, window: FRAME_WINDOW_MAX })));
        // 20 KB in a second, for as long as it takes.
        let mut slow = Pulse::default();
        slow.expect(SILENCE_MAX);
        assert_eq!(run(&mut slow, 1000, |_| (20_000, true)), None);
        assert_eq!(
            run(&mut slow, 1000, |second| (usize::from(second.is_multiple_of(10)) * 20_000, true)),
            None
        );
    }

    #[test]
    fn a_frame_that_gets_nothing_but_keepalives_is_dead_although_bytes_come() {
        let mut pulse = Pulse::default();
        pulse.expect(SILENCE_MAX);
        let beat = |second: u32| if second.is_multiple_of(5) { (44, true) } else { (0, true) };
        let (second, dead) = run(&mut pulse, 100, beat).unwrap();
        assert!(
            matches!(dead, Dead::HalfFrame { .. }) && (31..40).contains(&second),
            "{second} {dead}"
        );
    }

    #[test]
    fn who_was_stopped_itself_reads_before_it_judges() {
        let start = Instant::now();
        let mut pulse = Pulse::default();
        pulse.expect(SILENCE_MAX);
        pulse.waits(start, false);
        // A minute later, with everything in the socket that came meanwhile.
        let now = start + 60 * S;
        assert_eq!(pulse.late(now), None);
        assert_eq!(pulse.waits(now, false), Some(now + S));
        // And stopped again.
        let now = now + 60 * S;
        assert_eq!(pulse.late(now), None);
        pulse.came(44);
        assert_eq!(pulse.waits(now, false), Some(now + SILENCE_MAX));
        // What we did not read says nothing of the other side.
        pulse.rested();
        assert_eq!(pulse.waits(now + 100 * S, true), Some(now + 120 * S));
    }

    #[test]
    fn frames_that_come_one_after_the_other_have_each_their_own_time() {
        let mut pulse = Pulse::default();
        let start = Instant::now();
        for second in 0..100 {
            // Every read ends inside of the next frame.
            let now = start + S * second;
            assert!(pulse.waits(now, true).is_some_and(|due| due > now));
            pulse.came(100);
            pulse.frame_ended();
        }
    }
}
