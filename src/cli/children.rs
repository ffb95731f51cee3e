//! The result of a job to all workers: its Stdout is one JSON line for each of them. What does not
//! fit there is a result of its own, which is fetched by the child's id.

use std::path::{Path, PathBuf};

use crate::client::Downloads;
use crate::core::names::SafeName;
use crate::model::{JobResult, JsonModel};
use serde_json::{Value, json};
use uuid::Uuid;

/// What one worker made of the job.
pub(crate) struct Child {
    /// The worker's id.
    pub(crate) worker: String,
    /// The job that it ran, under which its result is kept.
    pub(crate) job: Option<Uuid>,
    /// Its result.
    pub(crate) result: JobResult,
    /// How much of it is here.
    pub(crate) held: Held,
    /// The line with the archive's size in the archive's place.
    line: Value,
}

/// How much of a child's result its line has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// All, but for parts that are blobs.
    Whole,
    /// Only how it ended.
    Status,
    /// Nothing: it is so many bytes that are not a JobResult.
    Raw(u64),
}

impl Child {
    fn read(line: &str) -> Option<Child> {
        let mut line: Value = serde_json::from_str(line).ok()?;
        let worker = line.get("Worker")?.as_str()?.to_owned();
        let job = line.get("Job").and_then(Value::as_str).and_then(|job| job.parse().ok());
        let apart = line.get("Apart").and_then(Value::as_bool) == Some(true);
        let own = line.get_mut("Result").filter(|own| own.is_object())?;
        let result = JobResult::parse(own.to_string().as_bytes()).ok()?;
        let held = match own.get("Raw").and_then(Value::as_u64) {
            Some(bytes) => Held::Raw(bytes),
            None if apart => Held::Status,
            None => Held::Whole,
        };
        // Older leaders name it in the result alone.
        let job = job.or(Some(result.job_id).filter(|job| !job.is_nil()));
        if let (Some(archive), Some(held)) = (&result.output_archive, own.get_mut("OutputArchive"))
        {
            *held = json!(archive.len());
        }
        Some(Child { worker, job, result, held, line })
    }

    /// The job to ask for, if there is more of its result than is here.
    pub(crate) fn to_fetch(&self, downloads: &Downloads) -> Option<Uuid> {
        let more = match self.held {
            Held::Whole => downloads.wants_parts_of(&self.result),
            Held::Status => true,
            Held::Raw(_) => false,
        };
        self.job.filter(|_| more)
    }

    /// Its own directory beneath the one for all; none if its worker's id is not a name for one.
    pub(crate) fn dir(&self, all: &Path) -> Option<PathBuf> {
        let own = SafeName::parse_made(&self.worker).ok()?;
        own.folders().next().is_none().then(|| all.join(own.as_str()))
    }
}

/// The children of a job to all workers; none if the result does not have their form.
pub(crate) fn children(result: &JobResult) -> Option<Vec<Child>> {
    let children: Vec<Child> = result.stdout.lines().map(Child::read).collect::<Option<_>>()?;
    (!children.is_empty()).then_some(children)
}

/// The lines again, without the archives.
pub(crate) fn lines(children: &[Child]) -> String {
    children.iter().map(|child| child.line.to_string()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobStatus;

    fn all(stdout: &str) -> JobResult {
        JobResult {
            stdout: stdout.to_owned(),
            ..JobResult::new(Uuid::nil(), "c", "x", JobStatus::Ok)
        }
    }

    #[test]
    fn each_line_is_a_child_and_archives_become_sizes() {
        let lines_in = r#"{"Worker":"w-1","Result":{"Status":"OK","Stdout":"a","OutputArchive":"AAAA"}}
{"Worker":"../w","Result":{"Status":"FAILED","OutputArchive":null}}"#;
        let read = children(&all(lines_in)).unwrap();
        assert_eq!(read[0].result.output_archive, Some(vec![0; 3]));
        assert_eq!(read[0].dir(Path::new("d")), Some(PathBuf::from("d/w-1")));
        assert_eq!(
            (read[1].dir(Path::new("d")), &read[1].result.status),
            (None, &JobStatus::Failed)
        );
        assert_eq!((read[0].held, read[0].job, read[1].held), (Held::Whole, None, Held::Whole));
        let shown = lines(&read);
        assert!(
            shown.contains(r#""OutputArchive":3"#) && shown.contains(r#""OutputArchive":null"#),
            "{shown}"
        );
    }

    #[test]
    fn what_is_not_in_the_line_is_asked_for_by_the_childs_id() {
        let (id, out) = (Uuid::from_u128(7), Downloads::Directory(PathBuf::from("d")));
        let child = |more: &str, result: &str| {
            let line = format!(
                r#"{{"Worker":"w","Job":"{id}"{more},"Result":{{"Status":"OK"{result}}}}}"#
            );
            children(&all(&line)).unwrap().remove(0)
        };
        assert_eq!(child("", "").to_fetch(&out), None);
        assert_eq!(child(r#","Apart":true"#, "").to_fetch(&Downloads::None), Some(id));
        let blob = format!(r#","Archive":{{"Id":"{id}","Size":9,"Digest":null}}"#);
        assert_eq!(child("", &blob).to_fetch(&out), Some(id));
        assert_eq!(child("", &blob).to_fetch(&Downloads::None), None);
        let raw = child("", r#","Raw":5"#);
        assert_eq!((raw.held, raw.to_fetch(&out)), (Held::Raw(5), None));
    }

    #[test]
    fn another_form_has_no_children() {
        for odd in [
            "",
            "plain text",
            "{}",
            r#"{"Worker":"w","Result":7}"#,
            r#"{"Worker":null,"Result":{}}"#,
        ] {
            assert!(children(&all(odd)).is_none(), "{odd}");
        }
    }
}
