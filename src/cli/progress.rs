//! How a job stands, in one line that is written over and over on a terminal. Elsewhere only what a log needs is said: that
//! the leader went away.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::client::JobEvent;
use crate::units::ByteSize;
use chunking::message::{Stage, Standing};
use uuid::Uuid;

use super::{about, printable, say};

/// What fits most terminals without breaking the line.
const LINE_CHARS_MAX: usize = 100;

pub(crate) struct Line {
    job: Uuid,
    started: Instant,
    terminal: bool,
    shown: bool,
    away: bool,
    text: String,
}

impl Line {
    pub(crate) fn new(job: Uuid, quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal() && !quiet;
        Line { job, started: Instant::now(), terminal, shown: false, away: false, text: "sending".to_owned() }
    }

    /// Whether there is a line to keep fresh.
    pub(crate) fn is_live(&self) -> bool {
        self.terminal
    }

    pub(crate) fn take(&mut self, event: &JobEvent) {
        self.text = describe(event);
        match event {
            JobEvent::Reconnecting { .. } => {
                if !self.away && !self.terminal {
                    say(&format!("job {}: {}", self.job, self.text));
                }
                self.away = true;
            }
            JobEvent::ResultMayBeLost { .. } => self.note(&format!("job {}: {}", self.job, describe(event))),
            JobEvent::Sent { .. } => {
                if self.away && !self.terminal {
                    say(&format!("job {}: {}", self.job, self.text));
                }
                self.away = false;
            }
            JobEvent::Submitted { .. } | JobEvent::Progress { .. } | JobEvent::Moved { .. } => {}
        }
        self.draw();
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

fn describe(event: &JobEvent) -> String {
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
        JobEvent::ResultMayBeLost { leader } => format!(
            "{leader} is a stock leader, and those drop the results of clients that are away: if the job ended \
             meanwhile, no result comes (stop with Ctrl-C or --timeout, and submit it anew if running it twice does no harm)"
        ),
    }
}
