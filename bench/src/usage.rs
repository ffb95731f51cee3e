//! What a process has used, from `/proc`: processor time, the most memory it ever held, and what it
//! holds now.

use std::time::Duration;

use anyhow::Context as _;

/// The unit of the times in `/proc/PID/stat`: USER_HZ, which is 100 on every Linux whatever the
/// kernel's own clock.
const TICK: Duration = Duration::from_millis(10);

/// Processor time of a process so far, its own and the kernel's for it.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    cpu_in(&stat).with_context(|| format!("{path} has no processor times"))
}

/// The most memory a process has held, in bytes.
pub(crate) fn rss_peak(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    bytes_in(&status, "VmHWM:").with_context(|| format!("{path} has no VmHWM"))
}

/// The memory a process holds now, in bytes.
pub(crate) fn rss(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    bytes_in(&status, "VmRSS:").with_context(|| format!("{path} has no VmRSS"))
}

/// utime and stime stand in places 14 and 15; the name in place 2 may hold anything, so it is
/// counted from its end.
fn cpu_in(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let ticks = u32::try_from(user.checked_add(system)?).ok()?;
    TICK.checked_mul(ticks)
}

fn bytes_in(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_process_and_of_the_kernel_for_it() {
        let stat = "77 (a ) b) S 1 77 77 0 -1 4194304 100 0 0 0 150 25 9 9 20 0 1 0 5 6 7";
        assert_eq!(cpu_in(stat), Some(Duration::from_millis(1750)));
        assert_eq!(cpu_in("77 (short) S 1"), None);
        assert!(cpu(std::process::id()).is_ok());
    }

    #[test]
    fn memory_is_the_most_that_was_ever_held_or_what_is_held_now() {
        let status = "VmPeak:\t 99 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(
            (bytes_in(status, "VmHWM:"), bytes_in(status, "VmRSS:")),
            (Some(2 << 20), Some(1024))
        );
        assert_eq!(bytes_in("VmRSS:\t 1 kB\n", "VmHWM:"), None);
        let pid = std::process::id();
        assert!(rss_peak(pid).unwrap() > 100_000 && rss(pid).unwrap() > 100_000);
    }
}
