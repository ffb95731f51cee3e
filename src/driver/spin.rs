//! Decides whether to poll for a moment before sleeping. Waking on another core takes longer than
//! most small jobs, so a leader whose next frame arrives soon saves time by not sleeping; otherwise
//! polling wastes time.
//!
//! It learns which is the case: a run of fruitless polls stops it, except for an occasional try,
//! and a small share of successful polls keeps it going. It never polls when others need the
//! processors or while blobs flow, since those leave no time to sleep anyway.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::cpu::CpuMeter;
use crate::units::Span;

/// The longest look by default: what it takes a peer on the same machine to answer.
const LONGEST: Duration = Duration::from_micros(150);

/// The longest look that can be asked for: what waits behind one waits as long.
const LONGEST_ASKED: Duration = Duration::from_millis(1);

/// What a look that finds something is worth, in looks that find nothing.
const FOUND: u32 = 4;

/// Looks in a row that find nothing before there are no more.
const FUTILE_MAX: u32 = 16;

/// So many times nothing is looked for before it is tried again.
const TRY_AGAIN_AFTER: u32 = 64;

/// Processors that are busier than this have no time to spare, in thousandths.
const BUSY_PERMILLE: u16 = 900;

/// How often the processors' use is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// What an operator wants (`--spin`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinMode {
    /// Up to 150 microseconds, where that pays.
    #[default]
    Auto,
    Off,
    /// Up to this long, where that pays.
    UpTo(Duration),
}

impl FromStr for SpinMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(SpinMode::Auto),
            "off" => Ok(SpinMode::Off),
            time => {
                let time: Span = time.parse().map_err(|_| {
                    format!(
                        "\"{time}\" is not a way to spin: use auto, off, or a time such as 50us"
                    )
                })?;
                if time.0 > LONGEST_ASKED {
                    return Err(format!(
                        "{time} is too long to spin: at most {}",
                        Span(LONGEST_ASKED)
                    ));
                }
                Ok(SpinMode::UpTo(time.0))
            }
        }
    }
}

impl fmt::Display for SpinMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpinMode::Auto => f.write_str("auto"),
            SpinMode::Off => f.write_str("off"),
            SpinMode::UpTo(time) => Span(*time).fmt(f),
        }
    }
}

/// Decides how long the next look takes. Time is passed in.
#[derive(Debug)]
pub(super) struct Spinner {
    longest: Duration,
    /// Looks that may still find nothing.
    credit: u32,
    skipped: u32,
    meter: CpuMeter,
    sampled_at: Option<Duration>,
    busy: bool,
}

impl Spinner {
    /// A spinner for a machine with this many processors. With one, polling would delay the process
    /// that should answer.
    pub(super) fn new(mode: SpinMode, processors: usize) -> Self {
        let longest = match mode {
            SpinMode::Auto => LONGEST,
            SpinMode::Off => Duration::ZERO,
            SpinMode::UpTo(longest) => longest,
        };
        let longest = if processors > 1 { longest } else { Duration::ZERO };
        Spinner {
            longest,
            credit: FUTILE_MAX,
            skipped: 0,
            meter: CpuMeter::default(),
            sampled_at: None,
            busy: false,
        }
    }

    /// How long to look after something was done; `None` for not at all.
    pub(super) fn look(&mut self, at: Duration) -> Option<Duration> {
        if self.longest.is_zero() {
            return None;
        }
        if self.sampled_at.is_none_or(|sampled| at.saturating_sub(sampled) >= SAMPLE_EVERY) {
            self.sampled_at = Some(at);
            self.meter.sample();
            self.busy = self.meter.permille().is_some_and(|permille| permille > BUSY_PERMILLE);
        }
        if self.busy {
            return None;
        }
        if self.credit == 0 {
            self.skipped += 1;
            if self.skipped < TRY_AGAIN_AFTER {
                return None;
            }
            self.skipped = 0;
        }
        Some(self.longest)
    }

    /// A look ended: something came, or not.
    pub(super) fn looked(&mut self, found: bool) {
        self.credit = match found {
            true => (self.credit + FOUND).min(FUTILE_MAX),
            false => self.credit.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_millis(1);

    fn idle(mode: SpinMode, processors: usize) -> Spinner {
        Spinner { sampled_at: Some(NOW), ..Spinner::new(mode, processors) }
    }

    #[test]
    fn looks_that_find_nothing_end_but_for_a_try_now_and_then() {
        let mut spinner = idle(SpinMode::Auto, 2);
        let mut looks = 0;
        while let Some(look) = spinner.look(NOW) {
            assert_eq!(look, LONGEST);
            spinner.looked(false);
            looks += 1;
        }
        assert_eq!(looks, FUTILE_MAX);
        let tries = (0..1000).filter(|_| spinner.look(NOW).is_some()).count();
        assert_eq!(tries, 15);
        for found in [true, false, false, false].into_iter().cycle().take(1000) {
            spinner.looked(found);
            assert_eq!(spinner.look(NOW), Some(LONGEST), "one in four is enough");
        }
    }

    #[test]
    fn nobody_looks_on_one_processor_on_a_busy_machine_or_when_told_not_to() {
        assert_eq!(idle(SpinMode::Auto, 1).look(NOW), None);
        assert_eq!(idle(SpinMode::Off, 8).look(NOW), None);
        assert_eq!(Spinner { busy: true, ..idle(SpinMode::Auto, 8) }.look(NOW), None);
        let short = Duration::from_micros(5);
        assert_eq!(idle(SpinMode::UpTo(short), 2).look(NOW), Some(short));
    }

    #[test]
    fn modes_are_read_as_they_are_shown() {
        for text in ["auto", "off", "50us"] {
            assert_eq!(text.parse::<SpinMode>().unwrap().to_string(), text);
        }
        assert!("sometimes".parse::<SpinMode>().unwrap_err().contains("50us"));
        assert_eq!(
            "100ms".parse::<SpinMode>().unwrap_err(),
            "100ms is too long to spin: at most 1ms"
        );
        assert!("1ms".parse::<SpinMode>().is_ok());
    }
}
