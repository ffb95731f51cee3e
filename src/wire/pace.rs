//! Measures how fast the other side of a connection takes data, by its acknowledgements. Chunks to
//! a slow peer are sent in fragments, so that other frames do not wait for whole chunks.

use std::time::{Duration, Instant};

use chunking::limits::{CHUNK_BYTES_MAX, CHUNK_PIECE_BYTES_MAX, CHUNK_PIECE_BYTES_MIN};

/// A chunk that takes longer than this makes a line a slow one.
const CHUNK_WAIT: Duration = Duration::from_secs(2);

/// A slow line that takes a chunk within this time is one no more.
const CHUNK_QUICK: Duration = Duration::from_secs(1);

/// What the system may hold of what is not on its way, until it is known that the line is fast.
const UNSENT_BYTES_UNKNOWN: u32 = 128 * 1024;

/// The same, of a slow line.
const UNSENT_BYTES_SLOW: u32 = 16 * 1024;

/// How fast a line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Speed {
    /// Nothing was sent that would show it.
    #[default]
    Unknown,
    /// It takes a chunk in a moment.
    Fast,
    /// It takes this many bytes a second.
    Slow(u64),
}

impl Speed {
    /// How long pieces of chunks are to be: what the line takes in a second, within limits. `None`
    /// if chunks go whole.
    pub(crate) fn piece_bytes(self) -> Option<u32> {
        match self {
            Speed::Unknown | Speed::Fast => None,
            Speed::Slow(bytes_s) => {
                let bytes = u32::try_from(bytes_s).unwrap_or(u32::MAX);
                Some(bytes.clamp(CHUNK_PIECE_BYTES_MIN, CHUNK_PIECE_BYTES_MAX))
            }
        }
    }

    /// What the system may hold of what is not on its way (TCP_NOTSENT_LOWAT).
    pub(crate) fn unsent_bytes_max(self) -> u32 {
        match self {
            Speed::Unknown => UNSENT_BYTES_UNKNOWN,
            Speed::Fast => u32::MAX,
            Speed::Slow(_) => UNSENT_BYTES_SLOW,
        }
    }
}

/// One line's speed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    speed: Speed,
    /// When something was first seen to be on its way, and what the other side had then.
    since: Option<(Instant, u64)>,
}

impl Pace {
    pub(crate) fn speed(&self) -> Speed {
        self.speed
    }

    /// The other side has taken `taken` bytes in all; `is_busy` says whether more are on their way
    /// to it.
    pub(crate) fn look(&mut self, now: Instant, taken: u64, is_busy: bool) {
        let Some((since, before)) = self.since.filter(|_| is_busy) else {
            self.since = Some((now, taken));
            return;
        };
        let (time, bytes) = (now.saturating_duration_since(since), taken.saturating_sub(before));
        let chunk = u64::from(CHUNK_BYTES_MAX);
        if bytes < chunk && time < CHUNK_WAIT {
            return;
        }
        // The time for a chunk is what a rate comes to.
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let bytes_s = bytes.saturating_mul(1_000_000) / micros;
        let limit = match self.speed {
            Speed::Unknown | Speed::Fast => CHUNK_WAIT,
            Speed::Slow(_) => CHUNK_QUICK,
        };
        let is_slow =
            u128::from(bytes) * limit.as_micros() < u128::from(chunk) * u128::from(micros);
        self.speed = if is_slow { Speed::Slow(bytes_s) } else { Speed::Fast };
        self.since = Some((now, taken));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that takes so many bytes in a second, looked at so often, for so many seconds.
    fn after(pace: &mut Pace, start: Instant, bytes_s: u64, looks_s: u64, seconds: u64) -> Speed {
        for look in 0..=looks_s * seconds {
            let now = start + Duration::from_micros(look * 1_000_000 / looks_s);
            pace.look(now, bytes_s * look / looks_s, true);
        }
        pace.speed()
    }

    #[test]
    fn a_line_is_slow_if_it_takes_long_for_a_chunk_and_pieces_are_what_it_takes_in_a_second() {
        let start = Instant::now();
        for (bytes_s, slow) in
            [(10_000_000, false), (600_000, false), (500_000, true), (20_000, true), (0, true)]
        {
            for looks_s in [1, 3, 50] {
                let speed = after(&mut Pace::default(), start, bytes_s, looks_s, 10);
                assert_eq!(matches!(speed, Speed::Slow(_)), slow, "{bytes_s} bytes/s: {speed:?}");
            }
        }
        let piece = |bytes_s| Speed::Slow(bytes_s).piece_bytes();
        assert_eq!(
            (piece(0), piece(20_000), piece(500_000)),
            (Some(16_384), Some(20_000), Some(65_536))
        );
        assert_eq!((Speed::Fast.piece_bytes(), Speed::Unknown.piece_bytes()), (None, None));
    }

    #[test]
    fn a_slow_line_that_gets_fast_is_fast_and_one_in_between_stays_what_it_was() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(matches!(after(&mut pace, start, 20_000, 5, 10), Speed::Slow(20_000)));
        pace.since = None;
        assert!(matches!(after(&mut pace, start, 700_000, 5, 10), Speed::Slow(_)));
        pace.since = None;
        assert_eq!(after(&mut pace, start, 3_000_000, 5, 10), Speed::Fast);
        pace.since = None;
        assert_eq!(after(&mut pace, start, 700_000, 5, 10), Speed::Fast);
    }

    #[test]
    fn a_line_with_nothing_to_take_shows_nothing() {
        let start = Instant::now();
        let mut pace = Pace::default();
        for second in 0..100 {
            pace.look(start + Duration::from_secs(second), second * 100, false);
        }
        assert_eq!(pace.speed(), Speed::Unknown);
    }
}
