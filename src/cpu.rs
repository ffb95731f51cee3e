//! How busy the machine's processors are, from `/proc/stat` (WX07).
//!
//! A reading takes microseconds and never waits: use is what happened between two readings, which
//! workers and drivers take on a timer. Where there is no `/proc/stat` the use is not known, and
//! nothing is ever throttled.

const STAT: &str = "/proc/stat";

/// Watches the use of the processors.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    last: Option<Ticks>,
    permille: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl CpuMeter {
    /// Takes a reading.
    pub(crate) fn sample(&mut self) {
        if let Some(now) = std::fs::read_to_string(STAT).ok().as_deref().and_then(parse) {
            self.take(now);
        }
    }

    fn take(&mut self, now: Ticks) {
        if let Some(last) = self.last {
            let all = now.all.saturating_sub(last.all);
            let busy = now.busy.saturating_sub(last.busy).min(all);
            // Two readings within one tick say nothing.
            self.permille = match all {
                0 => self.permille,
                _ => u16::try_from(busy.saturating_mul(1000) / all).ok(),
            };
        }
        self.last = Some(now);
    }

    /// Use between the last two readings, in thousandths of all processors.
    pub(crate) fn permille(&self) -> Option<u16> {
        self.permille
    }
}

/// The line `cpu  user nice system idle iowait irq softirq steal ...`; guests are part of user.
fn parse(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let [_, _, _, idle, rest @ ..] = ticks.as_slice() else { return None };
    let waiting = rest.first().copied().unwrap_or_default();
    let all = ticks.iter().fold(0u64, |sum, field| sum.saturating_add(*field));
    Some(Ticks { busy: all.saturating_sub(*idle).saturating_sub(waiting), all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wx07_use_is_what_was_not_idle_between_two_readings() {
        let mut meter = CpuMeter::default();
        meter.take(parse("cpu  100 0 100 700 100 0 0 0 5 5\ncpu0 1 2 3 4\n").unwrap());
        assert_eq!(meter.permille(), None, "one reading is none");
        meter.take(parse("cpu  150 0 125 720 105 0 0 0 9 9\n").unwrap());
        assert_eq!(meter.permille(), Some(750));
        meter.take(parse("cpu  150 0 125 720 105 0 0 0 9 9\n").unwrap());
        assert_eq!(meter.permille(), Some(750), "no time has passed");
        meter.take(parse("cpu  1 0 1 1 0 0 0 0\n").unwrap());
        assert_eq!(meter.permille(), Some(750), "a clock that went back says nothing");
        assert_eq!(parse("intr 5\n"), None);
        assert_eq!(parse("cpu  1 2\n"), None);
    }
}
