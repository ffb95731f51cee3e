//! The validated id of a dataset. It becomes a directory name on every worker, so ids that could
//! escape the directory or are not valid names on some system are refused at the boundary (C08).
//! Code that holds a [`CacheId`] need not check again.

use std::fmt;
use std::sync::Arc;

use chunking::limits::CACHE_ID_BYTES_MAX;
use thiserror::Error;
use uuid::Uuid;

use super::ids::JobId;
use super::names::{control, excerpt, has_drive, is_reserved, trailing};

/// A dataset's id: one segment of a path, harmless everywhere. Two that differ in case are two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheId(Arc<str>);

/// What the ids of datasets begin with that are the inputs of a job.
const OF_JOB: &str = "heft-job-";

/// The rule that an id breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CacheIdRule {
    /// There is nothing.
    #[error("it is empty: give it at least one character")]
    Empty,
    /// It is longer than a file system takes.
    #[error("it has {bytes} bytes; at most {limit} are taken: shorten it")]
    Long {
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// It is a path.
    #[error("it holds '{0}', as a path: give one name without folders")]
    Path(char),
    /// It holds NUL or another character that has no shape.
    #[error("it holds the control character U+{code:04X}: remove it")]
    Control { code: u32 },
    /// It begins with a dot: `.`, `..`, or hidden and kept for the cache's own files.
    #[error("it begins with '.': such names are the cache's own, choose another")]
    LeadingDot,
    /// It ends with what some systems leave out.
    #[error("it ends with '{0}', which some systems leave out: remove that")]
    Trailing(char),
    /// It names a drive.
    #[error("it starts with a drive such as \"C:\": choose another")]
    Drive,
    /// It is a device on some systems.
    #[error(
        "\"CON\", \"PRN\", \"AUX\", \"NUL\", \"COM1\" to \"LPT9\" are reserved, with any ending: choose another"
    )]
    Reserved,
}

/// A text that is not a dataset's id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid cache id: \"{excerpt}\": {rule}")]
pub struct CacheIdError {
    /// The text, escaped and cut.
    pub excerpt: String,
    /// The rule it breaks.
    pub rule: CacheIdRule,
}

impl CacheId {
    /// Checks a text. It is taken as it is, or not at all.
    pub fn parse(text: &str) -> Result<Self, CacheIdError> {
        check(text).map(|()| CacheId(text.into()))
    }

    /// The same for a text that is shared already.
    pub fn parse_shared(text: Arc<str>) -> Result<Self, CacheIdError> {
        check(&text).map(|()| CacheId(text))
    }

    /// The id of the dataset that a job's inputs are made, for the agents of classic workers (C01).
    pub fn of_inputs(job: JobId) -> Self {
        CacheId(format!("{OF_JOB}{}", job.0.simple()).into())
    }

    /// The job in the id of such a dataset. Logs from before
    /// [`Record::Stage`](super::record::Record::Stage) say it by nothing else; everywhere else the
    /// state knows.
    pub fn job_in_name(&self) -> Option<JobId> {
        let job = Uuid::parse_str(self.0.strip_prefix(OF_JOB)?).ok().map(JobId)?;
        (CacheId::of_inputs(job) == *self).then_some(job)
    }

    /// Whether the id is one of those that only the leader gives.
    pub fn is_the_leaders(&self) -> bool {
        self.0.starts_with(OF_JOB)
    }

    /// As it is spelled.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(text: &str) -> Result<(), CacheIdError> {
    broken_rule(text).map_or(Ok(()), |rule| Err(CacheIdError { excerpt: excerpt(text), rule }))
}

fn broken_rule(text: &str) -> Option<CacheIdRule> {
    if text.is_empty() {
        return Some(CacheIdRule::Empty);
    }
    if text.len() > CACHE_ID_BYTES_MAX {
        return Some(CacheIdRule::Long { bytes: text.len(), limit: CACHE_ID_BYTES_MAX });
    }
    if let Some(control) = control(text) {
        return Some(CacheIdRule::Control { code: control.into() });
    }
    if let Some(separator) = text.chars().find(|char| matches!(char, '/' | '\\')) {
        return Some(CacheIdRule::Path(separator));
    }
    if text.starts_with('.') {
        return Some(CacheIdRule::LeadingDot);
    }
    if let Some(last) = trailing(text) {
        return Some(CacheIdRule::Trailing(last));
    }
    if has_drive(text) {
        return Some(CacheIdRule::Drive);
    }
    is_reserved(text).then_some(CacheIdRule::Reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c08_a_cache_id_is_one_harmless_segment_taken_as_it_is() {
        let longest = "x".repeat(255);
        for text in ["dataset-2025", "größe ✓", "a..b", "console", "com10", "a b", "Set", &longest]
        {
            assert_eq!(CacheId::parse(text).unwrap().as_str(), text);
        }
        assert_ne!(CacheId::parse("set"), CacheId::parse("SET"));
    }

    #[test]
    fn c08_what_could_lead_elsewhere_is_refused_with_value_rule_and_what_to_do() {
        let long = "x".repeat(300);
        for (text, rule) in [
            ("", CacheIdRule::Empty),
            (".", CacheIdRule::LeadingDot),
            ("..", CacheIdRule::LeadingDot),
            (".hidden", CacheIdRule::LeadingDot),
            ("a/b", CacheIdRule::Path('/')),
            ("/etc", CacheIdRule::Path('/')),
            ("../x", CacheIdRule::Path('/')),
            ("a\\b", CacheIdRule::Path('\\')),
            ("a\0b", CacheIdRule::Control { code: 0 }),
            ("a\nb", CacheIdRule::Control { code: 10 }),
            ("a\u{85}b", CacheIdRule::Control { code: 0x85 }),
            ("set.", CacheIdRule::Trailing('.')),
            ("set ", CacheIdRule::Trailing(' ')),
            ("C:x", CacheIdRule::Drive),
            ("NUL", CacheIdRule::Reserved),
            ("com7.data", CacheIdRule::Reserved),
            (&long, CacheIdRule::Long { bytes: 300, limit: 255 }),
        ] {
            let error = CacheId::parse(text).unwrap_err();
            assert_eq!(error.rule, rule, "{text:?}");
            let shown = error.to_string();
            assert!(shown.starts_with("invalid cache id: \"") && shown.len() < 400, "{shown}");
        }
        let shown = CacheId::parse("a\0").unwrap_err().to_string();
        assert_eq!(
            shown,
            r#"invalid cache id: "a\0": it holds the control character U+0000: remove it"#
        );
    }
}
