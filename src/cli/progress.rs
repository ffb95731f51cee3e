//! How a job stands: one line that is written over and over on a terminal, with a bar, a rate and the time that is left
//! while bytes move; or a JSON object for each event. Elsewhere only what a log needs is said: that the leader went away,
//! and what a job waits for.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::client::JobEvent;
use crate::units::ByteSize;
use chunking::message::{Stage, Standing};
use clap::ValueEnum;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{about, printable, say};

/// What fits most terminals without breaking the line.
pub(super) const LINE_CHARS_MAX: usize = 120;

/// Characters of the bar.
const BAR_CHARS: usize = 20;

/// What the rate is measured over: long enough to be steady, short enough to follow a change.
const RATE_OVER: Duration = Duration::from_secs(5);

/// How to show how far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Progress {
    /// As a line on a terminal, elsewhere only what a log needs.
    #[default]
    Auto,
    /// As one JSON object for each event, on standard error.
    Json,
    /// Not at all.
    None,
}

/// Bytes that move: how fast, and how long until all have.
#[derive(Debug, Default)]
pub(super) struct Meter {
    seen: VecDeque<(Instant, u64)>,
}

impl Meter {
    /// Notes that so many bytes are done; gives the bytes a second of the last while, once there is one.
    pub(super) fn rate(&mut self, now: Instant, done: u64) -> Option<u64> {
        // After a break less may be done than before.
        if self.seen.back().is_some_and(|(_, before)| *before > done) {
            self.seen.clear();
        }
        self.seen.push_back((now, done));
        while self.seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_OVER) {
            self.seen.pop_front();
        }
        let (since, before) = *self.seen.front()?;
        let millis = now.duration_since(since).as_millis();
        let moved = u128::from(done.saturating_sub(before)) * 1000;
        moved.checked_div(millis).map(|rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// Seconds until all bytes have moved.
pub(super) fn eta_s(done: u64, total: u64, rate: Option<u64>) -> Option<u64> {
    rate.filter(|rate| *rate > 0).map(|rate| total.saturating_sub(done).div_ceil(rate))
}

pub(crate) struct Line {
    job: Uuid,
    started: Instant,
    progress: Progress,
    terminal: bool,
    shown: bool,
    away: bool,
    text: String,
    /// What was last said to be waited for: leaders repeat it.
    waited_for: String,
    up: Meter,
    down: Meter,
}

impl Line {
    /// `quiet` leaves the terminal alone, unless JSON was asked for.
    pub(crate) fn new(job: Uuid, progress: Progress, quiet: bool) -> Self {
        let terminal = progress == Progress::Auto && io::stderr().is_terminal() && !quiet;
        Line {
            job,
            started: Instant::now(),
            progress,
            terminal,
            shown: false,
            away: false,
            text: "sending".to_owned(),
            waited_for: String::new(),
            up: Meter::default(),
            down: Meter::default(),
        }
    }

    /// Whether there is a line to keep fresh.
    pub(crate) fn is_live(&self) -> bool {
        self.terminal
    }

    pub(crate) fn take(&mut self, event: &JobEvent) {
        let now = Instant::now();
        let rate = match event {
            JobEvent::Uploading { done, .. } => self.up.rate(now, *done),
            JobEvent::Downloading { done, .. } => self.down.rate(now, *done),
            // From here on its files move.
            JobEvent::Sent { .. } => {
                self.up.rate(now, 0);
                None
            }
            JobEvent::Submitted { .. }
            | JobEvent::Progress { .. }
            | JobEvent::Waiting { .. }
            | JobEvent::Reconnecting { .. }
            | JobEvent::Moved { .. }
            | JobEvent::Ignored { .. }
            | JobEvent::ResultMayBeLost { .. } => None,
        };
        let text = describe(event, rate);
        match self.progress {
            Progress::None => return,
            Progress::Json => {
                writeln!(io::stderr(), "{}", as_json(self.job, event, rate, &text)).ok();
                return;
            }
            Progress::Auto => {}
        }
        self.text = text;
        match event {
            JobEvent::Reconnecting { .. } => {
                self.log_unless(self.away);
                self.away = true;
            }
            JobEvent::Ignored { .. } | JobEvent::ResultMayBeLost { .. } => {
                let text = format!("job {}: {}", self.job, self.text);
                self.note(&text);
            }
            JobEvent::Waiting { .. } => {
                self.log_unless(self.text == self.waited_for);
                self.waited_for.clone_from(&self.text);
            }
            JobEvent::Sent { .. } => {
                self.log_unless(!self.away);
                self.away = false;
            }
            JobEvent::Submitted { .. }
            | JobEvent::Progress { .. }
            | JobEvent::Uploading { .. }
            | JobEvent::Downloading { .. }
            | JobEvent::Moved { .. } => {}
        }
        self.draw();
    }

    fn log_unless(&self, known: bool) {
        if !known && !self.terminal {
            say(&format!("job {}: {}", self.job, self.text));
        }
    }

    /// A line that stays.
    pub(crate) fn note(&mut self, text: &str) {
        self.clear();
        say(text);
    }

    pub(crate) fn draw(&mut self) {
        if !self.terminal {
            return;
        }
        let elapsed = about(Duration::from_secs(self.started.elapsed().as_secs()));
        let line = printable(&format!("job {}  {elapsed}  {}", self.job, self.text)).replace('\n', " ");
        let line: String = line.chars().take(LINE_CHARS_MAX).collect();
        let mut out = io::stderr().lock();
        write!(out, "\r{line}\x1b[K").and_then(|()| out.flush()).ok();
        self.shown = true;
    }

    pub(crate) fn clear(&mut self) {
        if self.shown {
            let mut out = io::stderr().lock();
            write!(out, "\r\x1b[K").and_then(|()| out.flush()).ok();
            self.shown = false;
        }
    }
}

/// Bytes, a bar, the rate and the time that is left.
pub(super) fn moving(what: &str, done: u64, total: u64, rate: Option<u64>) -> String {
    let share =
        |of: u64| u64::try_from(u128::from(done) * u128::from(of) / u128::from(total.max(1))).unwrap_or(of);
    let filled = usize::try_from(share(BAR_CHARS as u64)).unwrap_or(BAR_CHARS).min(BAR_CHARS);
    let bar: String =
        std::iter::repeat_n('#', filled).chain(std::iter::repeat('-')).take(BAR_CHARS).collect();
    let mut text = format!("{what} [{bar}] {}% {} of {}", share(100), ByteSize(done), ByteSize(total));
    if let Some(rate) = rate {
        text.push_str(&format!(", {}/s", ByteSize(rate)));
    }
    if let Some(eta) = eta_s(done, total, rate).filter(|_| done < total) {
        text.push_str(&format!(", {} left", about(Duration::from_secs(eta))));
    }
    text
}

/// An event as a program reads it: `event`, `job`, `done`, `total`, `bytes_per_s`, `eta_s` and `text`, null where they say
/// nothing.
fn as_json(job: Uuid, event: &JobEvent, rate: Option<u64>, text: &str) -> Value {
    let (name, bytes) = match event {
        JobEvent::Sent { .. } => ("sent", None),
        JobEvent::Submitted { .. } => ("submitted", None),
        JobEvent::Uploading { done, total } => ("uploading", Some((*done, *total))),
        JobEvent::Downloading { done, total } => ("downloading", Some((*done, *total))),
        JobEvent::Waiting { .. } => ("waiting", None),
        JobEvent::Progress { stage, done, total, .. } => {
            let name = match stage {
                Stage::Waiting => "waiting",
                Stage::Receiving => "receiving",
                Stage::Running => "running",
                Stage::Packing => "packing",
                Stage::Returning => "returning",
            };
            (name, Some((*done, *total)).filter(|bytes| *bytes != (0, 0)))
        }
        JobEvent::Reconnecting { .. } => ("reconnecting", None),
        JobEvent::Moved { .. } => ("moved", None),
        JobEvent::Ignored { .. } => ("ignored", None),
        JobEvent::ResultMayBeLost { .. } => ("result-may-be-lost", None),
    };
    json!({
        "event": name,
        "job": job,
        "done": bytes.map(|(done, _)| done),
        "total": bytes.map(|(_, total)| total),
        "bytes_per_s": rate,
        "eta_s": bytes.and_then(|(done, total)| eta_s(done, total, rate)),
        "text": text,
    })
}

fn describe(event: &JobEvent, rate: Option<u64>) -> String {
    match event {
        JobEvent::Sent { leader, again: false } => format!("sent to {leader}"),
        JobEvent::Sent { leader, again: true } => format!("handed to {leader} again under the same id"),
        JobEvent::Submitted { standing, run, ahead } => {
            let run = if *run > 1 { format!(" (run {run})") } else { String::new() };
            match standing {
                Standing::Queued => format!("queued, {ahead} ahead{run}"),
                Standing::Assigned => format!("with a worker{run}"),
                Standing::Running => format!("running{run}"),
                Standing::Finished => format!("finished, fetching the result{run}"),
            }
        }
        JobEvent::Uploading { done, total } => moving("uploading", *done, *total, rate),
        JobEvent::Downloading { done, total } => moving("downloading", *done, *total, rate),
        JobEvent::Waiting { text, reason } if text.is_empty() => format!("waiting ({reason})"),
        JobEvent::Waiting { text, .. } => format!("waiting: {text}"),
        JobEvent::Progress { attempt, stage, done, total, text } => {
            let stage = match stage {
                Stage::Waiting => "waiting",
                Stage::Receiving => "receiving inputs",
                Stage::Running => "running",
                Stage::Packing => "packing results",
                Stage::Returning => "returning results",
            };
            let attempt = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
            let bytes = match (*done, *total) {
                (0, 0) => String::new(),
                (done, 0) => format!(", {}", ByteSize(done)),
                (done, total) => format!(", {} of {}", ByteSize(done), ByteSize(total)),
            };
            let text = if text.is_empty() { String::new() } else { format!(": {text}") };
            format!("{stage}{attempt}{bytes}{text}")
        }
        JobEvent::Reconnecting { leader, why, retry_in } => {
            format!("{leader} is away ({why}); trying again in {}", about(*retry_in))
        }
        JobEvent::Moved { from } => format!("{from} stays away; waiting for another leader"),
        JobEvent::Ignored { leader, what } => {
            format!("{leader} has not answered the hello and is taken for a classic leader: there {what}")
        }
        JobEvent::ResultMayBeLost { leader } => format!(
            "{leader} is a stock leader, and those drop the results of clients that are away: if the job ended \
             meanwhile, no result comes (stop with Ctrl-C or --timeout, and submit it anew if running it twice does no harm)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_starts_anew_when_less_is_done() {
        let mut meter = Meter::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(meter.rate(at(0), 0), None);
        assert_eq!(meter.rate(at(500), 50 * MIB), Some(100 * MIB));
        for second in 1..=20 {
            let rate = meter.rate(at(500 + second * 1000), 50 * MIB + second * 10 * MIB);
            if second > 6 {
                assert_eq!(rate, Some(10 * MIB), "only the last seconds count");
            }
        }
        assert_eq!(meter.rate(at(22_000), 5), None, "after a break");
        assert_eq!(meter.rate(at(23_000), 1005), Some(1000));
    }

    #[test]
    fn what_moves_is_shown_with_bar_bytes_rate_and_time_left() {
        let text = describe(&JobEvent::Uploading { done: 512 * MIB, total: 2048 * MIB }, Some(256 * MIB));
        assert_eq!(text, "uploading [#####---------------] 25% 512 MiB of 2 GiB, 256 MiB/s, 6s left");
        let done = describe(&JobEvent::Downloading { done: 5, total: 5 }, None);
        assert_eq!(done, "downloading [####################] 100% 5 B of 5 B");
        assert!(describe(&JobEvent::Uploading { done: 0, total: 0 }, Some(0)).contains("0% 0 B of 0 B"));
    }

    #[test]
    fn events_as_json_have_the_documented_members() {
        let job = Uuid::nil();
        let event = JobEvent::Uploading { done: 10, total: 40 };
        let object = as_json(job, &event, Some(3), "x");
        assert_eq!(
            object,
            json!({"event": "uploading", "job": job, "done": 10, "total": 40, "bytes_per_s": 3, "eta_s": 10, "text": "x"})
        );
        let waiting =
            JobEvent::Waiting { reason: chunking::message::Reason::SPOOL_FULL, text: "full".to_owned() };
        let text = describe(&waiting, None);
        let object = as_json(job, &waiting, None, &text);
        assert_eq!(
            object,
            json!({"event": "waiting", "job": job, "done": null, "total": null, "bytes_per_s": null, "eta_s": null,
                   "text": "waiting: full"})
        );
    }
}
