//! Formats the events of a job as lines for people or for programs.

use std::time::Instant;

use crate::client::JobEvent;
use crate::units::ByteSize;
use chunking::message::{Stage, Standing};
use serde_json::Map;
use uuid::Uuid;

use super::progress::{Meter, Progress, Said, Teller, Worth, moving};
use super::queued::Queued;
use super::{about, say};

/// Tells how a job stands.
pub(crate) struct Line {
    teller: Teller,
    /// What is being done with the job, in a word of [`stage_of`].
    stage: &'static str,
    /// Whether the leader is away.
    away: bool,
    /// What was last said to be waited for: leaders repeat it.
    waited_for: String,
    up: Meter,
    down: Meter,
    unpacked: Meter,
}

impl Line {
    /// `quiet` leaves the terminal alone, unless JSON was asked for.
    pub(crate) fn new(job: Uuid, progress: Progress, quiet: bool) -> Self {
        let mut teller =
            Teller::new(("job", job.to_string()), format!("job {job}"), progress, quiet);
        teller.set_head("sending", None);
        Line {
            teller,
            stage: GATHERING,
            away: false,
            waited_for: String::new(),
            up: Meter::default(),
            down: Meter::default(),
            unpacked: Meter::default(),
        }
    }

    /// Whether there is a line to keep fresh.
    pub(crate) fn is_live(&self) -> bool {
        self.teller.is_live()
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
        self.stage = stage_of(event).unwrap_or(self.stage);
        let said = in_stage(said(event, rate), self.stage);
        let log_if = |is_news: bool| if is_news { Worth::Log } else { Worth::Glance };
        let worth = match event {
            JobEvent::Reconnecting { .. } => log_if(!std::mem::replace(&mut self.away, true)),
            JobEvent::Sent { .. } => log_if(std::mem::replace(&mut self.away, false)),
            JobEvent::Ignored { .. } | JobEvent::ResultMayBeLost { .. } => Worth::Note,
            JobEvent::Waiting { .. } => {
                let is_news = self.waited_for != said.text;
                self.waited_for.clone_from(&said.text);
                log_if(is_news)
            }
            JobEvent::Submitted { .. }
            | JobEvent::Progress { .. }
            | JobEvent::Uploading { .. }
            | JobEvent::Downloading { .. }
            | JobEvent::Moved { .. } => Worth::Glance,
        };
        self.teller.tell(&said, worth);
        self.teller.set_head(&said.text, said.bytes);
        self.teller.draw();
    }

    /// The files that the job made are being unpacked here.
    pub(crate) fn unpacking(&mut self, done: u64, total: u64) {
        let rate = self.unpacked.rate(Instant::now(), done);
        let text = moving("unpacking", done, total, rate);
        let (event, bytes) = ("unpacking", Some((done, total)));
        self.teller.set_head(&text, bytes);
        let said = Said { event, bytes, rate, text, more: Map::new() };
        self.teller.tell(&in_stage(said, UNPACKING), Worth::Glance);
        self.teller.draw();
    }

    /// Why the job is still in its queue.
    pub(crate) fn queued(&mut self, queued: &Queued) {
        let (text, worth) = match queued {
            Queued::Waits(text) => (text, Worth::Glance),
            Queued::Capped(text) => (text, Worth::Log),
        };
        if self.stage != QUEUED || self.waited_for == *text {
            return;
        }
        text.clone_into(&mut self.waited_for);
        let text = format!("queued: {text}");
        self.teller.set_head(&text, None);
        let said = Said { event: "queued", bytes: None, rate: None, text, more: Map::new() };
        self.teller.tell(&in_stage(said, QUEUED), worth);
        self.teller.draw();
    }

    /// Whether the job waits for a worker, and somebody wants to know why; in a log only if it has a
    /// cap.
    pub(crate) fn is_queued(&self, has_cap: bool) -> bool {
        let is_wanted = self.teller.follows() || has_cap && self.teller.is_on();
        self.stage == QUEUED && !self.away && is_wanted
    }

    /// A line that stays, however progress is shown.
    pub(crate) fn note(&mut self, text: &str) {
        self.teller.clear();
        say(text);
    }

    pub(crate) fn draw(&mut self) {
        self.teller.draw();
    }

    pub(crate) fn clear(&mut self) {
        self.teller.clear();
    }
}

const GATHERING: &str = "gathering";
const QUEUED: &str = "queued";
const UNPACKING: &str = "unpacking";

/// The stage that an event begins or shows, if it tells: what of a job is being done, from its
/// files to those of its result.
fn stage_of(event: &JobEvent) -> Option<&'static str> {
    match event {
        JobEvent::Sent { again: false, .. } | JobEvent::Uploading { .. } => Some(GATHERING),
        JobEvent::Submitted { standing, .. } => Some(match standing {
            Standing::Queued => QUEUED,
            Standing::Assigned => "sending",
            Standing::Running => "running",
            Standing::Finished => "receiving",
        }),
        JobEvent::Progress { stage, .. } => match stage {
            Stage::Waiting => None,
            Stage::Receiving => Some("sending"),
            Stage::Running => Some("running"),
            Stage::Packing => Some("packing"),
            Stage::Returning => Some("returning"),
        },
        JobEvent::Downloading { .. } => Some("receiving"),
        JobEvent::Sent { again: true, .. }
        | JobEvent::Waiting { .. }
        | JobEvent::Reconnecting { .. }
        | JobEvent::Moved { .. }
        | JobEvent::Ignored { .. }
        | JobEvent::ResultMayBeLost { .. } => None,
    }
}

/// With the stage as a member, for programs.
fn in_stage(mut said: Said, stage: &'static str) -> Said {
    said.more.insert("stage".to_owned(), stage.into());
    said
}

fn said(event: &JobEvent, rate: Option<u64>) -> Said {
    let (event_name, bytes) = match event {
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
    Said { event: event_name, bytes, rate, text: describe(event, rate), more: Map::new() }
}

fn describe(event: &JobEvent, rate: Option<u64>) -> String {
    match event {
        JobEvent::Sent { leader, again: false } => format!("sent to {leader}"),
        JobEvent::Sent { leader, again: true } => {
            format!("resubmitted to {leader} under the same id")
        }
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
            format!("{leader} is unreachable ({why}); retrying in {}", about(*retry_in))
        }
        JobEvent::Moved { from } => {
            format!("{from} remains unreachable; waiting for another leader")
        }
        JobEvent::Ignored { leader, what } => {
            format!("{leader} has not answered the hello; treating it as a classic leader: {what}")
        }
        JobEvent::ResultMayBeLost { leader } => format!(
            "{leader} is a classic leader, which drops results of disconnected clients: if the job \
             ended meanwhile, its result is lost (stop with Ctrl-C or --timeout, and submit the \
             job again if running it twice does no harm)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn what_moves_is_shown_with_bytes_rate_and_time_left() {
        let text =
            describe(&JobEvent::Uploading { done: 512 * MIB, total: 2048 * MIB }, Some(256 * MIB));
        assert_eq!(text, "uploading 25%, 512 MiB of 2 GiB, 256 MiB/s, 6s left");
        let done = describe(&JobEvent::Downloading { done: 5, total: 5 }, None);
        assert_eq!(done, "downloading 100%, 5 B of 5 B");
        assert!(
            describe(&JobEvent::Uploading { done: 0, total: 0 }, Some(0))
                .contains("0%, 0 B of 0 B")
        );
    }

    #[test]
    fn events_as_json_have_the_documented_members() {
        let job = Uuid::nil();
        let event = JobEvent::Uploading { done: 10, total: 40 };
        let about = ("job", job.to_string());
        let object =
            Said { text: "x".to_owned(), ..said(&event, Some(3)) }.as_json((about.0, &about.1));
        assert_eq!(
            object,
            json!({"event": "uploading", "job": job, "done": 10, "total": 40, "bytes_per_s": 3, "eta_s": 10, "text": "x"})
        );
        let waiting = JobEvent::Waiting {
            reason: chunking::message::Reason::SPOOL_FULL,
            text: "full".to_owned(),
        };
        let object = said(&waiting, None).as_json((about.0, &about.1));
        assert_eq!(
            object,
            json!({"event": "waiting", "job": job, "done": null, "total": null, "bytes_per_s": null, "eta_s": null,
                   "text": "waiting: full"})
        );
    }
}
