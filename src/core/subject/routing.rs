//! Routing keys: the canonical form of a submit subject (C11).
//!
//! A key is made once, at submission; queues and worker lookups use it. Nothing here chooses a
//! worker.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::{
    ASSIGN, GROUP_DEFAULT, ROUTING_KEY_BYTES_MAX, Segments, control_character, excerpt, fold,
    is_wildcard, same_segment, segments,
};

const SUBMIT: &str = "submit";

/// Where a job belongs: `job.assign.` and at least one more segment, without wildcards or control
/// characters, and short enough that a worker's id can be appended.
///
/// Two keys are equal if their ASCII-folded texts are (S17). `Display` and [`RoutingKey::as_str`]
/// give the user's spelling.
#[derive(Debug, Clone)]
pub struct RoutingKey {
    text: Arc<str>,
    /// The same text where it is the same: most keys are written in lower case.
    folded: Arc<str>,
}

impl RoutingKey {
    /// The key in the user's spelling, without empty segments.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let is_one = Arc::ptr_eq(&self.text, &self.folded);
        self.text.len() + if is_one { 0 } else { self.folded.len() }
    }

    /// Its spelling, and the folded one.
    pub(in crate::core) fn texts(&self) -> [&Arc<str>; 2] {
        [&self.text, &self.folded]
    }

    pub(in crate::core) fn texts_mut(&mut self) -> [&mut Arc<str>; 2] {
        [&mut self.text, &mut self.folded]
    }

    /// The key in the form that equality, order and hash go by.
    pub fn folded(&self) -> &str {
        &self.folded
    }
}

impl fmt::Display for RoutingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for RoutingKey {
    fn eq(&self, other: &Self) -> bool {
        self.folded == other.folded
    }
}

impl Eq for RoutingKey {}

impl Hash for RoutingKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.folded.hash(state);
    }
}

impl Ord for RoutingKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.folded.cmp(&other.folded)
    }
}

impl PartialOrd for RoutingKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a routing key was made from, for the error that refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    /// The subject of the submit frame.
    Subject,
    /// The `ExecName` of the job request, as the subject was empty.
    ExecName,
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeySource::Subject => "subject",
            KeySource::ExecName => "ExecName",
        })
    }
}

/// Why a submit subject, or the exec name that stands in for it, makes no routing key. Sending the
/// same again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutingError {
    /// The key would leave no room for the worker's id in the subject of AssignJob.
    #[error(
        "{source_text} makes a routing key of {key_bytes} bytes; the limit is {limit}, so that a worker's id \
         fits behind it: shorten the {source_text} by {} bytes",
        key_bytes - limit
    )]
    TooLong {
        /// What the key was made from.
        source_text: KeySource,
        /// The bytes the key would have.
        key_bytes: usize,
        /// The most it may have.
        limit: usize,
    },
    /// A whole segment is `*` or `>`: a job goes to one subject (S24 is not offered).
    #[error(
        "{source_text} \"{excerpt}\" holds the wildcard segment \"{wildcard}\"; only workers' patterns may \
         hold wildcards: submit to one subject, such as job.submit.<exec>"
    )]
    Wildcard {
        /// What the key was made from.
        source_text: KeySource,
        /// Its text, escaped and cut.
        excerpt: String,
        wildcard: String,
    },
    /// A control character, which logs and terminals would not show as sent.
    #[error(
        "{source_text} \"{excerpt}\" holds the control character U+{:04X} at byte {at}; none are \
         allowed: remove it",
        u32::from(*character)
    )]
    ControlCharacter {
        /// What the key was made from.
        source_text: KeySource,
        /// Its text, escaped and cut.
        excerpt: String,
        character: char,
        /// The byte of the text at which it stands.
        at: usize,
    },
}

/// The routing key of a job (C11).
///
/// `job.assign.X` stays as it is, `job.submit.X` becomes `job.assign.X`, and any other text is a
/// group or exec name `G` and becomes `job.assign.G`. If nothing is left behind the prefix, `exec`
/// is the name, and without it the group is [`GROUP_DEFAULT`].
pub fn routing_key(subject: &str, exec: Option<&str>) -> Result<RoutingKey, RoutingError> {
    let whole = segments(subject);
    let mut behind = whole.clone();
    let (head, tail) = match (behind.next(), behind.next()) {
        (Some(job), Some(verb)) if is_prefix([job, verb], ASSIGN) => ([job, verb], behind),
        (Some(job), Some(verb)) if is_prefix([job, verb], [ASSIGN[0], SUBMIT]) => (ASSIGN, behind),
        _ => (ASSIGN, whole),
    };
    if !is_empty(&tail) {
        return checked(head, tail, KeySource::Subject, subject);
    }
    match exec {
        Some(exec) if !is_empty(&segments(exec)) => {
            checked(ASSIGN, segments(exec), KeySource::ExecName, exec)
        }
        Some(_) | None => checked(ASSIGN, segments(GROUP_DEFAULT), KeySource::Subject, subject),
    }
}

fn is_prefix(found: [&str; 2], wanted: [&str; 2]) -> bool {
    found.iter().zip(wanted).all(|(found, wanted)| same_segment(found, wanted))
}

fn is_empty(tail: &Segments<'_>) -> bool {
    tail.clone().next().is_none()
}

/// Checks `tail`, which stems from `text`, and puts `head` before it.
fn checked(
    head: [&str; 2],
    tail: Segments<'_>,
    source_text: KeySource,
    text: &str,
) -> Result<RoutingKey, RoutingError> {
    let parts = || head.into_iter().chain(tail.clone());
    // One dot fewer than segments. Counted before the key is allocated.
    let key_bytes = parts().map(|segment| segment.len() + 1).sum::<usize>() - 1;
    if key_bytes > ROUTING_KEY_BYTES_MAX {
        return Err(RoutingError::TooLong { source_text, key_bytes, limit: ROUTING_KEY_BYTES_MAX });
    }
    if let Some((at, character)) = control_character(text) {
        return Err(RoutingError::ControlCharacter {
            source_text,
            excerpt: excerpt(text),
            character,
            at,
        });
    }
    if let Some(wildcard) = tail.clone().find(|segment| is_wildcard(segment)) {
        let wildcard = wildcard.to_owned();
        return Err(RoutingError::Wildcard { source_text, excerpt: excerpt(text), wildcard });
    }
    let text: Arc<str> = parts().collect::<Vec<_>>().join(".").into();
    let folded = fold(&text);
    let folded = if *folded == *text { text.clone() } else { Arc::from(&*folded) };
    Ok(RoutingKey { text, folded })
}
