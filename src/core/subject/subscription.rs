//! Reads a worker's subscriptions from its hello (C13) and derives the patterns the leader keeps
//! for it (C10).
//!
//! Rules that the founding documents apply at each lookup are resolved once, when the worker joins,
//! so one lookup of a routing key finds every eligible worker. The leader keeps the patterns in its
//! `SubjectTree`.

use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::{
    ASSIGN, GROUP_DEFAULT, PATTERN_SEGMENTS_MAX, SUBJECT_BYTES_MAX, WILDCARD_ONE, WILDCARD_TAIL,
    WORKER_SEGMENTS_MAX, control_character, excerpt, is_wildcard, overlaps, same_segment, segments,
};

/// Why the subject of a hello makes no pattern. Sending the same again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// More bytes than a subject can have.
    #[error("worker pattern is {bytes} bytes; the limit is {limit}: shorten it")]
    TooLong {
        /// The bytes it has.
        bytes: usize,
        /// The most it may have.
        limit: usize,
    },
    /// More segments than the leader keeps for one pattern.
    #[error(
        "worker pattern \"{excerpt}\" has {segments} segments; the limit is {limit}: shorten it, or end it \
         with '>'"
    )]
    TooManySegments {
        /// The pattern, escaped and cut.
        excerpt: String,
        /// The segments it has.
        segments: usize,
        /// The most it may have.
        limit: usize,
    },
    /// More segments than the leader keeps for one worker.
    #[error(
        "the worker's patterns have {segments} segments together; the limit is {limit}: ask for fewer"
    )]
    TooManyTogether {
        /// The segments they have.
        segments: usize,
        /// The most they may have.
        limit: usize,
    },
    /// A control character, which logs and terminals would not show as sent and no routing key
    /// holds.
    #[error(
        "worker pattern \"{excerpt}\" holds the control character U+{:04X} at byte {at}; none are \
         allowed: remove it",
        u32::from(*character)
    )]
    ControlCharacter {
        /// The pattern, escaped and cut.
        excerpt: String,
        character: char,
        /// The byte of the pattern at which it stands.
        at: usize,
    },
    /// A pattern without a segment, which would be the group of those that name none.
    #[error("worker pattern number {nth} is empty: leave it out, or name the group \"default\"")]
    Empty {
        /// Which of the worker's patterns, from 1.
        nth: usize,
    },
    /// A wildcard that would not do what its writer meant.
    #[error(
        "worker pattern \"{excerpt}\" has a wildcard in a wrong place: '*' stands for a whole segment, '>' \
         for the whole of the last: correct it"
    )]
    Wildcard {
        /// The pattern, escaped and cut.
        excerpt: String,
    },
}

/// The patterns a worker asks for with the subject of its hello (C13).
///
/// A text without wildcard and without the prefix `job.` is a group `G`, which means `job.assign.G`
/// and all below it; an empty one is the group [`GROUP_DEFAULT`] (S02). Any other is the pattern
/// itself, as sent (C09).
pub fn worker_patterns(hello_subject: &str) -> Result<Vec<String>, PatternError> {
    check(hello_subject)?;
    let group: Vec<&str> = segments(hello_subject).collect();
    Ok(match group.as_slice() {
        [] => group_patterns(GROUP_DEFAULT),
        [job, _, ..] if same_segment(job, ASSIGN[0]) => vec![hello_subject.to_owned()],
        _ if group.iter().any(|segment| is_wildcard(segment)) => vec![hello_subject.to_owned()],
        _ => group_patterns(&group.join(".")),
    })
}

/// The patterns of a hello that names several subjects (S21): those of each, once.
pub fn hello_patterns<'a>(
    subjects: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<String>, PatternError> {
    let (mut patterns, mut together) = (Vec::new(), 0);
    for subject in subjects {
        for pattern in worker_patterns(subject)? {
            together += segments(&pattern).count();
            if together > WORKER_SEGMENTS_MAX {
                return Err(PatternError::TooManyTogether {
                    segments: together,
                    limit: WORKER_SEGMENTS_MAX,
                });
            }
            if !patterns.contains(&pattern) {
                patterns.push(pattern);
            }
        }
    }
    Ok(patterns)
}

/// The same for the hello of a worker that announces itself: its subject, and the patterns in the
/// announcement.
///
/// What classic workers are allowed, as theirs have always been read so, is refused here: nobody
/// means a group by an empty entry of a list (S02), by `a.>.b` the same as by `a.>` (S14), or by
/// `a>` no wildcard (S19).
pub fn announced_patterns<'a>(
    subject: &'a str,
    more: impl IntoIterator<Item = &'a str> + Clone,
) -> Result<Vec<String>, PatternError> {
    check_wildcards(subject)?;
    for (at, pattern) in more.clone().into_iter().enumerate() {
        if segments(pattern).next().is_none() {
            return Err(PatternError::Empty { nth: at + 2 });
        }
        check_wildcards(pattern)?;
    }
    hello_patterns([subject].into_iter().chain(more))
}

fn check_wildcards(pattern: &str) -> Result<(), PatternError> {
    let mut tail_seen = false;
    for segment in segments(pattern) {
        if tail_seen || (segment.contains(['*', '>']) && !is_wildcard(segment)) {
            return Err(PatternError::Wildcard { excerpt: excerpt(pattern) });
        }
        tail_seen = segment == WILDCARD_TAIL;
    }
    Ok(())
}

fn check(pattern: &str) -> Result<(), PatternError> {
    if pattern.len() > SUBJECT_BYTES_MAX {
        return Err(PatternError::TooLong { bytes: pattern.len(), limit: SUBJECT_BYTES_MAX });
    }
    let count = segments(pattern).count();
    if count > PATTERN_SEGMENTS_MAX {
        let excerpt = excerpt(pattern);
        return Err(PatternError::TooManySegments {
            excerpt,
            segments: count,
            limit: PATTERN_SEGMENTS_MAX,
        });
    }
    match control_character(pattern) {
        Some((at, character)) => {
            Err(PatternError::ControlCharacter { excerpt: excerpt(pattern), character, at })
        }
        None => Ok(()),
    }
}

fn group_patterns(group: &str) -> Vec<String> {
    let [job, assign] = ASSIGN;
    vec![format!("{job}.{assign}.{group}"), format!("{job}.{assign}.{group}.{WILDCARD_TAIL}")]
}

/// The patterns under which a worker is kept, such that one of them matches a routing key exactly
/// if one of `patterns` matches the key or `key.<workerId>` (C10).
///
/// Only the end of a pattern can match the appended id. So a pattern that ends with `*` or with
/// this worker's own id is kept a second time without that last segment. A `>` behind it goes too:
/// if the last segment before the `>` takes the id, then nothing of the key is left for the `>`.
/// The answer may name a pattern twice; to the tree that is one subscription.
pub fn subscriptions(patterns: &[String], worker_id: Uuid) -> Vec<String> {
    let mut id_bytes = [0; Hyphenated::LENGTH];
    let id: &str = worker_id.hyphenated().encode_lower(&mut id_bytes);
    let shortened = patterns.iter().filter_map(|pattern| {
        let fixed: Vec<&str> =
            segments(pattern).take_while(|segment| *segment != WILDCARD_TAIL).collect();
        let (last, before) = fixed.split_last()?;
        (*last == WILDCARD_ONE || same_segment(last, id)).then(|| before.join("."))
    });
    patterns.iter().cloned().chain(shortened).collect()
}

/// Whether a dataset pushed to the pattern `target` is for the worker with these [`subscriptions`]
/// (C12).
///
/// The worker's subscriptions, not its patterns as sent: a worker of `job.assign.calcA.*` is given
/// the jobs of `job.assign.calcA` (C10), so a push to `job.assign.*` must reach it, although those
/// two patterns share no subject.
pub fn targets(target: &str, subscriptions: &[String]) -> bool {
    subscriptions.iter().any(|subscription| overlaps(target, subscription))
}
