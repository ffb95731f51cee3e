//! Decides whether one pattern matches one subject.
//!
//! It is the reference against which the tree, the overlap and the subscriptions are tested. It
//! never allocates and handles one pattern at a time; `SubjectTree` handles many.

use super::{WILDCARD_ONE, WILDCARD_TAIL, same_segment, segments};

/// Whether `pattern` matches `subject` (S05, S12-S19).
///
/// `*` stands for exactly one segment and `>` for the rest, which may be empty; both count only as
/// whole segments. Without `>` both must have the same number of segments. The subject is text
/// only: a `*` in it stands for itself.
pub fn matches(pattern: &str, subject: &str) -> bool {
    let mut subject = segments(subject);
    for wanted in segments(pattern) {
        if wanted == WILDCARD_TAIL {
            return true;
        }
        let Some(found) = subject.next() else { return false };
        if wanted != WILDCARD_ONE && !same_segment(wanted, found) {
            return false;
        }
    }
    subject.next().is_none()
}
