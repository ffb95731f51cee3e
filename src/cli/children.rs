//! The result of a job to all workers: its Stdout is one JSON line for each of them.

use std::path::{Path, PathBuf};

use crate::model::{JobResult, JsonModel};
use serde_json::{Value, json};

use super::unpack::safe_path;

/// What one worker made of the job.
pub(crate) struct Child {
    /// The worker's id.
    pub(crate) worker: String,
    /// Its result.
    pub(crate) result: JobResult,
    /// The line with the archive's size in the archive's place.
    line: Value,
}

impl Child {
    fn read(line: &str) -> Option<Child> {
        let mut line: Value = serde_json::from_str(line).ok()?;
        let worker = line.get("Worker")?.as_str()?.to_owned();
        let own = line.get_mut("Result").filter(|own| own.is_object())?;
        let result = JobResult::parse(own.to_string().as_bytes()).ok()?;
        if let (Some(archive), Some(held)) = (&result.output_archive, own.get_mut("OutputArchive")) {
            *held = json!(archive.len());
        }
        Some(Child { worker, result, line })
    }

    /// Its own directory beneath the one for all; none if its worker's id is no name for one.
    pub(crate) fn dir(&self, all: &Path) -> Option<PathBuf> {
        let own = safe_path(&self.worker).ok()?;
        (own.components().count() == 1).then(|| all.join(own))
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
    use uuid::Uuid;

    fn all(stdout: &str) -> JobResult {
        JobResult { stdout: stdout.to_owned(), ..JobResult::new(Uuid::nil(), "c", "x", JobStatus::Ok) }
    }

    #[test]
    fn each_line_is_a_child_and_archives_become_sizes() {
        let lines_in = r#"{"Worker":"w-1","Result":{"Status":"OK","Stdout":"a","OutputArchive":"AAAA"}}
{"Worker":"../w","Result":{"Status":"FAILED","OutputArchive":null}}"#;
        let read = children(&all(lines_in)).unwrap();
        assert_eq!(read[0].result.output_archive, Some(vec![0; 3]));
        assert_eq!(read[0].dir(Path::new("d")), Some(PathBuf::from("d/w-1")));
        assert_eq!((read[1].dir(Path::new("d")), &read[1].result.status), (None, &JobStatus::Failed));
        let shown = lines(&read);
        assert!(
            shown.contains(r#""OutputArchive":3"#) && shown.contains(r#""OutputArchive":null"#),
            "{shown}"
        );
    }

    #[test]
    fn another_form_has_no_children() {
        for odd in ["", "plain text", "{}", r#"{"Worker":"w","Result":7}"#, r#"{"Worker":null,"Result":{}}"#]
        {
            assert!(children(&all(odd)).is_none(), "{odd}");
        }
    }
}
