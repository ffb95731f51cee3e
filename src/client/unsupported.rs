//! Finds the features of a job that a classic leader does not know. Such a leader accepts the job
//! and silently does something else. A job that depends on such a feature is not sent there; for
//! the others the client gets a warning.

use crate::core::names::is_flat;
use crate::core::subject::routing_key;
use crate::model::{Deliver, JobRequest, JsonModel as _};

/// What a classic leader would do with a job that it is not meant to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    /// The job would come out wrong, or never end.
    needed: Vec<String>,
    /// The job would run all the same.
    ignored: Vec<&'static str>,
}

impl Wishes {
    pub(super) fn of<'a>(
        request: &'a JobRequest,
        inputs: impl IntoIterator<Item = &'a str>,
        subject: &str,
    ) -> Self {
        let JobRequest {
            exec_name,
            files,
            priority,
            deliver,
            time_limit_ms,
            require_worker,
            flatten,
            tag,
            ..
        } = request;
        let mut needed = Vec::new();
        if *deliver == Deliver::All {
            needed.push("it runs a job at one worker (--all)".to_owned());
        }
        if *require_worker {
            needed.push(
                "it keeps a job until there is a worker for it (--require-worker)".to_owned(),
            );
        }
        let mut names = files.iter().map(|file| file.name.as_str()).chain(inputs);
        if *flatten && names.any(|name| !is_flat(name)) {
            needed.push("it passes names of files on with their folders (--flatten)".to_owned());
        }
        // A subject that is not a key is refused by a heft leader, with what is wrong with it.
        let by_name = routing_key(&format!("job.submit.{exec_name}"), Some(exec_name));
        if routing_key(subject, Some(exec_name)) != by_name {
            needed.push(format!(
                "it goes by the program's name {exec_name:?} alone (--subject {subject})"
            ));
        }
        let ignored = [
            (*priority != 0, "jobs run in the order in which they came (--priority)"),
            (
                time_limit_ms.is_some(),
                "only a heft worker that gets the job ends it in time (--time-limit)",
            ),
            (
                files.iter().any(|file| file.cache_name.is_some()),
                "only a heft worker finds a file of a dataset that the job knows by another name (--cache)",
            ),
            (tag.is_some(), "nobody can find the job by its tag (--tag)"),
        ];
        let ignored =
            ignored.into_iter().filter_map(|(is_so, text)| is_so.then_some(text)).collect();
        Wishes { needed, ignored }
    }

    /// The same of a job whose client leaves it with the leader.
    pub(super) fn detached(mut self, is_so: bool) -> Self {
        if is_so {
            let text = "it drops results of clients that are not connected (--detach)";
            self.needed.push(text.to_owned());
        }
        self
    }

    /// Unsupported features of a raw job.
    pub(super) fn of_raw(payload: &[u8], subject: &str) -> Self {
        match JobRequest::parse(payload) {
            Ok(request) => Wishes::of(&request, [], subject),
            Err(_) => {
                let text = "it hangs up when a payload is not a JobRequest (--raw)".to_owned();
                Wishes { needed: vec![text], ignored: Vec::new() }
            }
        }
    }

    /// Why a job must not go to a classic leader, if so.
    pub(super) fn needed(&self) -> Option<String> {
        (!self.needed.is_empty()).then(|| self.needed.join(", and "))
    }

    /// What a classic leader ignores of a job, if there is anything.
    pub(super) fn ignored(&self) -> Option<String> {
        (!self.ignored.is_empty()).then(|| self.ignored.join(", and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::InputFile;

    fn calc() -> JobRequest {
        JobRequest { exec_name: "calcA".to_owned(), ..JobRequest::default() }
    }

    fn wishes(request: &JobRequest) -> Wishes {
        Wishes::of(request, [], "job.submit.calcA")
    }

    #[test]
    fn a_job_that_asks_for_nothing_may_go_anywhere() {
        let plain = JobRequest { files: vec![InputFile::cached("a", "set")], ..calc() };
        assert_eq!(wishes(&plain), Wishes::default());
        for subject in ["", "calcA", "job.submit.calcA", "job.assign.CALCA"] {
            assert_eq!(Wishes::of(&plain, ["b"], subject), Wishes::default(), "{subject}");
        }
        assert_eq!(Wishes::of_raw(plain.to_json().as_ref(), "calcA"), Wishes::default());
    }

    #[test]
    fn what_would_come_out_wrong_needs_a_heft_leader() {
        let needed = |request: &JobRequest| wishes(request).needed().unwrap_or_default();
        assert!(needed(&JobRequest { deliver: Deliver::All, ..calc() }).contains("--all"));
        assert!(
            needed(&JobRequest { require_worker: true, ..calc() }).contains("--require-worker")
        );
        let flat = JobRequest { flatten: true, ..calc() };
        assert_eq!(needed(&flat), "", "there is nothing to flatten");
        let beside = Wishes::of(&flat, ["data/a.bin"], "calcA");
        assert!(beside.needed().unwrap().contains("--flatten"));
        let elsewhere = Wishes::of(&calc(), [], "job.assign.groupB").needed().unwrap();
        assert!(elsewhere.contains("--subject job.assign.groupB"), "{elsewhere}");
        assert!(Wishes::of_raw(b"bytes", "groupA").needed().unwrap().contains("--raw"));
        let left = wishes(&calc()).detached(true).needed().unwrap();
        assert!(left.contains("--detach") && wishes(&calc()).detached(false).needed().is_none());
        let both = JobRequest { deliver: Deliver::All, require_worker: true, ..calc() };
        assert!(needed(&both).contains("--all") && needed(&both).contains("--require-worker"));
    }

    #[test]
    fn what_is_ignored_is_told() {
        let request = JobRequest {
            priority: 3,
            time_limit_ms: Some(5),
            files: vec![InputFile::cached_as("a", "set", "b")],
            tag: Some("night".to_owned()),
            ..calc()
        };
        let wishes = wishes(&request);
        let ignored = wishes.ignored().unwrap();
        for option in ["--priority", "--time-limit", "--cache", "--tag"] {
            assert!(ignored.contains(option), "{ignored}");
        }
        assert_eq!(wishes.needed(), None);
    }
}
