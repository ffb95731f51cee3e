//! Subjects, the dotted addresses of jobs, and the patterns workers subscribe with.
//!
//! This module decides which workers a job or a dataset is for. It keeps no queue, does not pick
//! among eligible workers and reads no frames.
//!
//! A subject is split at dots and empty segments are removed, so `a..b` and `.a.b.` are both `a.b`
//! (S16). Only ASCII case is ignored: every peer does that much, whatever its runtime, while case
//! folding of other letters differs between runtimes (S17). So `A` equals `a`, and `É` differs from
//! `é`.

mod matcher;
mod overlap;
mod routing;
mod subscription;
mod tree;

use std::borrow::Cow;
use std::mem;

pub use chunking::limits::SUBJECT_BYTES_MAX;
use uuid::fmt::Hyphenated;

pub use matcher::matches;
pub use overlap::overlaps;
pub use routing::{KeySource, RoutingError, RoutingKey, routing_key};
pub use subscription::{
    PatternError, announced_patterns, hello_patterns, subscriptions, targets, worker_patterns,
};
pub use tree::SubjectTree;

/// The most bytes a routing key may have. The leader appends `.<workerId>` to make the subject of
/// AssignJob (T02), and that subject has to fit a frame as well.
pub const ROUTING_KEY_BYTES_MAX: usize = SUBJECT_BYTES_MAX - 1 - Hyphenated::LENGTH;

/// The most segments a worker's pattern may have. Each one can cost the tree a node of some hundred
/// bytes, so without this limit one hello of 64 KiB would take megabytes of the leader.
pub const PATTERN_SEGMENTS_MAX: usize = 256;

/// The most segments all patterns of one worker may have together, for the same reason.
pub const WORKER_SEGMENTS_MAX: usize = 4096;

/// What our own workers subscribe to unless told otherwise (C09). What a peer sends is honoured as
/// sent.
pub const WORKER_PATTERN_DEFAULT: &str = "job.assign.>";

/// The group of peers and jobs that name none (S02).
pub const GROUP_DEFAULT: &str = "default";

/// In a pattern, as a whole segment: exactly one segment, whatever it is (S15).
const WILDCARD_ONE: &str = "*";

/// In a pattern, as a whole segment: the rest of the subject, also an empty rest (S13). What
/// follows it is ignored (S14).
const WILDCARD_TAIL: &str = ">";

/// The first two segments of every routing key.
const ASSIGN: [&str; 2] = ["job", "assign"];

/// The segments of a subject or pattern, in order, without the empty ones (S16).
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    rest: &'a str,
}

/// Splits a subject or pattern into its segments.
pub fn segments(text: &str) -> Segments<'_> {
    Segments { rest: text }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        while let Some((head, rest)) = self.rest.split_once('.') {
            self.rest = rest;
            if !head.is_empty() {
                return Some(head);
            }
        }
        let last = mem::take(&mut self.rest);
        (!last.is_empty()).then_some(last)
    }
}

/// Whether two segments are equal: by ASCII case-insensitive comparison, other letters exactly
/// (S17).
pub fn same_segment(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// The form in which texts that [`same_segment`] calls equal are one: ASCII letters in lower case
/// (S17).
pub fn fold(text: &str) -> Cow<'_, str> {
    if is_folded(text) { Cow::Borrowed(text) } else { Cow::Owned(text.to_ascii_lowercase()) }
}

fn is_folded(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Wildcards count only as whole segments: `a>` is a literal (S19).
fn is_wildcard(segment: &str) -> bool {
    segment == WILDCARD_ONE || segment == WILDCARD_TAIL
}

/// The first control character of a text and the byte at which it stands.
fn control_character(text: &str) -> Option<(usize, char)> {
    text.char_indices().find(|(_, character)| character.is_control())
}

/// The text as an error shows it: escaped, and cut where a reader has seen enough to know it again.
fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
