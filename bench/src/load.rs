//! When jobs are started. Closed loop: one when another has ended. Open loop: at a rate, whatever
//! becomes of earlier ones, and a job's time counts from when it was due, so that a stall shows in
//! every job that it delayed.
//!
//! Both kinds of clients, heft's and the relay's, take their jobs from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc};

/// Jobs that are due and that no lane has taken yet. The pacer waits beyond it and nothing is lost:
/// what is late counts from when it was due.
const DUE_MAX: usize = 1_024;

/// When a run of jobs is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Until {
    /// After so many.
    Count(u64),
    /// No job is started after this time.
    Time(Duration),
    /// When the director says so.
    Stop,
}

/// A run of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Bytes of a job.
    pub(crate) size: u64,
    pub(crate) in_flight: u32,
    pub(crate) until: Until,
    /// Jobs in a second; closed loop without it.
    pub(crate) rate: Option<f64>,
}

/// Hands out jobs to lanes.
pub(crate) enum Tickets {
    /// A lane's next job is due as soon as it is free.
    Closed { left: Option<AtomicU64>, ends: Option<Instant>, stop: Arc<AtomicBool> },
    /// Due as the pacer says.
    Open(Mutex<mpsc::Receiver<Instant>>),
}

impl Tickets {
    pub(crate) fn new(load: &Load, stop: Arc<AtomicBool>) -> Arc<Tickets> {
        let start = Instant::now();
        let (count, ends) = match load.until {
            Until::Count(count) => (Some(count), None),
            Until::Time(time) => (None, Some(start + time)),
            Until::Stop => (None, None),
        };
        let tickets = match load.rate {
            None => Tickets::Closed { left: count.map(AtomicU64::new), ends, stop },
            Some(rate) => {
                let (due, taken) = mpsc::channel(DUE_MAX);
                std::thread::spawn(move || pace(start, rate, count, ends, &stop, &due));
                Tickets::Open(Mutex::new(taken))
            }
        };
        Arc::new(tickets)
    }

    /// When the next job is due for a lane that has been free since then, or none if there are no
    /// more. Waits until it is due.
    pub(crate) async fn next(&self, free_since: Instant) -> Option<Instant> {
        match self {
            Tickets::Closed { .. } => self.next_closed(free_since),
            Tickets::Open(taken) => taken.lock().await.recv().await,
        }
    }

    /// The same on a thread of its own.
    pub(crate) fn next_blocking(&self, free_since: Instant) -> Option<Instant> {
        match self {
            Tickets::Closed { .. } => self.next_closed(free_since),
            Tickets::Open(taken) => taken.blocking_lock().blocking_recv(),
        }
    }

    /// In a closed loop a job is due when the one before it has ended, even if its lane cannot send
    /// it at once.
    fn next_closed(&self, free_since: Instant) -> Option<Instant> {
        let Tickets::Closed { left, ends, stop } = self else { return None };
        if stop.load(Ordering::Relaxed) || ends.is_some_and(|ends| Instant::now() >= ends) {
            return None;
        }
        if let Some(left) = left {
            let less = |left: u64| left.checked_sub(1);
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        }
        Some(free_since)
    }
}

/// Says when jobs are due. A thread of its own, since the timers of async runtimes are a
/// millisecond coarse.
fn pace(
    start: Instant,
    rate: f64,
    count: Option<u64>,
    ends: Option<Instant>,
    stop: &AtomicBool,
    lanes: &mpsc::Sender<Instant>,
) {
    for index in 0..count.unwrap_or(u64::MAX) {
        let due = start + due_after(index, rate);
        if ends.is_some_and(|ends| due >= ends) || stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if lanes.blocking_send(due).is_err() {
            return;
        }
    }
}

/// When the job with this number is due after the start.
fn due_after(index: u64, rate: f64) -> Duration {
    // A bench of days at the highest rate stays far below 2^53.
    Duration::from_secs_f64(index as f64 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(until: Until, rate: Option<f64>, stop: &Arc<AtomicBool>) -> Arc<Tickets> {
        Tickets::new(&Load { size: 1, in_flight: 1, until, rate }, stop.clone())
    }

    fn take(tickets: &Tickets) -> Option<Instant> {
        tickets.next_blocking(Instant::now())
    }

    #[test]
    fn a_closed_loop_hands_out_as_many_jobs_as_it_should() {
        let stop = Arc::default();
        let counted = tickets(Until::Count(3), None, &stop);
        assert_eq!(std::iter::from_fn(|| take(&counted)).count(), 3);
        assert!(take(&counted).is_none());
        assert!(take(&tickets(Until::Time(Duration::ZERO), None, &stop)).is_none());
        let endless = tickets(Until::Stop, None, &stop);
        assert!(take(&endless).is_some());
        stop.store(true, Ordering::Relaxed);
        assert!(take(&endless).is_none());
    }

    #[test]
    fn an_open_loop_says_when_jobs_were_due_and_not_when_they_were_taken() {
        let stop = Arc::default();
        let tickets = tickets(Until::Count(3), Some(1_000.0), &stop);
        let due: Vec<Instant> = std::iter::from_fn(|| {
            std::thread::sleep(Duration::from_millis(3));
            take(&tickets)
        })
        .collect();
        let gaps: Vec<Duration> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps, [Duration::from_millis(1); 2]);
    }

    #[test]
    fn an_open_loop_ends_with_its_time() {
        let stop = Arc::default();
        let tickets = tickets(Until::Time(Duration::from_millis(10)), Some(500.0), &stop);
        assert_eq!(std::iter::from_fn(|| take(&tickets)).count(), 5, "at 0, 2, 4, 6 and 8 ms");
    }
}
