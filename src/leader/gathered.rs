//! Builds the combined result of a job for all workers: one line of JSON per worker. Each worker's
//! own result stays stored under the child's id. A line contains the whole result while all lines
//! fit one frame; after that it says to fetch the result by the child's id. The leader therefore
//! never holds all workers' results at once.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::parts::RESULT_BYTES_MAX;
use super::payloads::PayloadStore;
use super::{Leader, outcome};
use crate::core::Broker;
use crate::core::ids::{ConnId, JobId};
use crate::core::job::{Ending, Job, Phase};
use crate::model::{JobResult, JobStatus};
use crate::store::replay::Key;

/// Bytes of results that are read to stand in the lines.
const READ_BYTES_MAX: u64 = 1024 * 1024;

/// What the lines may have as a JSON string: the rest of a result is small.
const LINES_BYTES_MAX: usize = RESULT_BYTES_MAX - 256 * 1024;

/// What a byte of a result takes in a line at the most: an escape.
const COST_MAX: usize = 6;

/// What a line has beside the result, with room to spare.
const LINE_BYTES: usize = 4096;

/// The lines, and what they leave out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// One for each worker.
    pub(super) text: String,
    /// Workers whose results have to be asked for.
    pub(super) apart: usize,
    /// Workers that have no line: there are too many.
    pub(super) unlisted: usize,
}

impl Lines {
    /// Whether some results have to be asked for.
    fn leave_something_out(&self) -> bool {
        self.apart > 0 || self.unlisted > 0
    }
}

/// The children whose results stand in the lines, as far as their sizes say.
pub(super) fn read_for_lines<'a>(
    broker: &'a Broker,
    store: &'a PayloadStore,
    parent: &'a Job,
) -> impl Iterator<Item = &'a Job> {
    let mut left = READ_BYTES_MAX;
    children(broker, parent).filter(move |child| {
        let bytes = outcome::returned(child).map_or(0, |result| store.len_of(Key::Result(result)));
        let fits = bytes <= left;
        if fits {
            left -= bytes;
        }
        fits
    })
}

pub(super) fn children<'a>(broker: &'a Broker, parent: &'a Job) -> impl Iterator<Item = &'a Job> {
    parent.children.iter().filter_map(|child| broker.state().job(*child))
}

/// The lines of a job to all workers that has ended. Of its children only those of
/// [`read_for_lines`] need be in memory.
pub(super) fn lines(broker: &Broker, store: &PayloadStore, parent: &Job, address: &str) -> Lines {
    let read: HashSet<JobId> =
        read_for_lines(broker, store, parent).map(|child| child.id()).collect();
    let mut lines: Vec<(String, usize)> = Vec::new();
    let mut bytes = 0;
    for child in children(broker, parent) {
        let line = apart(child, address);
        let cost = cost(&line);
        if bytes + cost > LINES_BYTES_MAX {
            break;
        }
        bytes += cost;
        lines.push((line, cost));
    }
    let (mut apart, unlisted) = (lines.len(), parent.children.len().saturating_sub(lines.len()));
    for (child, (line, shorter)) in children(broker, parent).zip(&mut lines) {
        if !read.contains(&child.id()) {
            continue;
        }
        let whole = whole(child, &outcome::result_of(broker, store, child, address, true));
        let longer = cost(&whole);
        if bytes - *shorter + longer <= LINES_BYTES_MAX {
            bytes = bytes - *shorter + longer;
            *line = whole;
            apart -= 1;
        }
    }
    let text = lines.into_iter().map(|(line, _)| line).collect::<Vec<_>>().join("\n");
    Lines { text, apart, unlisted }
}

/// The line of a child with its result.
fn whole(child: &Job, own: &[u8]) -> String {
    let result = serde_json::from_slice(own).unwrap_or_else(
        |_| json!({ "Status": "OK", "Raw": own.len(), "JobId": child.id().to_string() }),
    );
    line(child, result, false)
}

/// The line of a child without it.
fn apart(child: &Job, address: &str) -> String {
    let ok = matches!(child.phase, Phase::Done { ending: Ending::Returned { ok: true, .. }, .. });
    let status = if ok { JobStatus::Ok } else { JobStatus::Failed };
    let mut result = JobResult::new(child.id().0, "", "", status);
    result.stderr = format!("heft: kept apart: `heft result get -l {address} {}`", child.id());
    let result = json!({
        "JobId": result.job_id, "Status": result.status.as_str(), "Stdout": "", "Stderr": result.stderr, "OutputArchive": null,
    });
    line(child, result, true)
}

fn line(child: &Job, result: Value, apart: bool) -> String {
    let worker = child.child_of.map(|(_, worker)| worker.to_string());
    let mut line = json!({ "Worker": worker, "Job": child.id().to_string(), "Result": result });
    if let (true, Value::Object(members)) = (apart, &mut line) {
        members.insert("Apart".to_owned(), true.into());
    }
    line.to_string()
}

/// What a line takes at the most in a JSON string, with its end.
fn cost(line: &str) -> usize {
    let of = |c: char| match c {
        '"' | '&' | '\'' | '+' | '<' | '>' | '`' => 6,
        '\\' => 2,
        ' '..='~' => 1,
        _ => 6 * c.len_utf16(),
    };
    line.chars().map(of).sum::<usize>() + 2
}

impl Leader {
    /// Whether a job is to all workers, and its client has to ask for some of their results. What
    /// stands in its lines has to be in memory.
    pub(super) fn has_results_apart(&self, job: &Job) -> bool {
        if !self.may_have_results_apart(job) {
            return false;
        }
        let lines = || lines(&self.broker, &self.payloads.held, job, &self.config.address);
        self.has_parts(job) || lines().leave_something_out()
    }

    /// The same as far as sizes say, without a look at the results: it may say so where all of them
    /// fit after all.
    fn may_have_results_apart(&self, job: &Job) -> bool {
        if job.children.is_empty() {
            return false;
        }
        let read = read_for_lines(&self.broker, &self.payloads.held, job);
        let (count, bytes) = read.fold((0, 0usize), |(count, bytes), child| {
            let len = outcome::returned(child)
                .map_or(0, |result| self.payloads.held.len_of(Key::Result(result)));
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            (
                count + 1,
                bytes.saturating_add(len.saturating_mul(COST_MAX)).saturating_add(LINE_BYTES),
            )
        });
        count < job.children.len() || bytes > LINES_BYTES_MAX || self.has_parts(job)
    }

    /// Somebody has the list of the workers' results, or one of them: the others are asked for
    /// next.
    pub(super) fn hold_children(&mut self, conn: ConnId, job: JobId) {
        let Some(found) = self.broker.state().job(job) else { return };
        let parent = found.child_of.map_or(job, |(parent, _)| parent);
        if self.broker.state().job(parent).is_some_and(|parent| self.may_have_results_apart(parent))
        {
            self.retention.hold(self.now, conn, parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_takes_more_than_is_reckoned() {
        use crate::model::{JobResult, JsonModel};
        let odd: String = ('\0'..='\u{2FF}').chain("日😀".chars()).collect();
        for text in [odd.as_str(), "plain", "", "\"\"\"", "\n\\\t"] {
            let with = |text: &str| {
                let result = JobResult::new(uuid::Uuid::nil(), "", "", JobStatus::Ok);
                JobResult { stdout: text.to_owned(), ..result }.to_json().len()
            };
            assert!(with(text) - with("") <= cost(text), "{text:?}");
        }
    }
}
