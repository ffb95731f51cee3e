//! Keeps each text that jobs have in common once: routing keys, clients, programs, tags, and why
//! jobs ended. Thousands of jobs mostly name the same few, and each comes with its own copy from
//! its client, the log or a snapshot.
//!
//! A text is known as long as a job has it.

use std::collections::HashMap;
use std::sync::Arc;

use super::broken;
use super::capacity::give_back;
use super::job::{Ending, Job, Phase};

/// The texts of all jobs, with how many have each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Texts(HashMap<Arc<str>, usize>);

impl Texts {
    /// How many texts there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A job comes: what others have, too, it has in common with them.
    pub(super) fn take(&mut self, job: &mut Job) {
        let submission = &mut job.submission;
        submission.key.texts_mut().into_iter().for_each(|text| self.share(text));
        self.share(&mut submission.client.0);
        self.share(&mut submission.exec);
        submission.tag.iter_mut().for_each(|tag| self.share(tag));
        self.take_end(&mut job.phase);
    }

    /// A job goes.
    pub(super) fn leave(&mut self, job: &Job) {
        of(job).for_each(|text| self.drop_one(text));
    }

    /// A job has ended.
    pub(super) fn take_end(&mut self, phase: &mut Phase) {
        if let Phase::Done { ending, .. } = phase
            && let Ending::Failed { why: text } | Ending::Cancelled { by: text } = ending
        {
            self.share(text);
        }
    }

    /// It runs again.
    pub(super) fn leave_end(&mut self, phase: &Phase) {
        of_end(phase).into_iter().for_each(|text| self.drop_one(text));
    }

    /// Says what is wrong, if jobs have other texts than are known, or copies of them.
    pub(super) fn check<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> Result<(), String> {
        let mut counts: HashMap<*const str, usize> = HashMap::new();
        for text in jobs.flat_map(of) {
            *counts.entry(Arc::as_ptr(text)).or_default() += 1;
        }
        let known = self.0.iter().map(|(text, count)| (Arc::as_ptr(text), *count));
        if known.collect::<HashMap<_, _>>() != counts {
            return Err(format!(
                "jobs have {} texts, and {} are known, or have others",
                counts.len(),
                self.0.len()
            ));
        }
        Ok(())
    }

    fn share(&mut self, text: &mut Arc<str>) {
        match self.0.get_key_value(text).map(|(known, _)| known.clone()) {
            Some(known) => *text = known,
            None => drop(self.0.insert(text.clone(), 0)),
        }
        if let Some(count) = self.0.get_mut(text) {
            *count += 1;
        }
    }

    fn drop_one(&mut self, text: &Arc<str>) {
        let Some(count) = self.0.get_mut(text) else {
            return broken!("\"{text}\" of a job is not among the texts of jobs");
        };
        *count -= 1;
        if *count == 0 {
            self.0.remove(text);
            give_back(&mut self.0);
        }
    }
}

/// The texts of a job.
fn of(job: &Job) -> impl Iterator<Item = &Arc<str>> {
    let submission = &job.submission;
    let texts = submission.key.texts().into_iter().chain(&submission.tag);
    texts.chain([&submission.client.0, &submission.exec]).chain(of_end(&job.phase))
}

/// Why it has ended.
fn of_end(phase: &Phase) -> Option<&Arc<str>> {
    if let Phase::Done { ending, .. } = phase
        && let Ending::Failed { why: text } | Ending::Cancelled { by: text } = ending
    {
        return Some(text);
    }
    None
}
