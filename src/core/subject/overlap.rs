//! Decides whether two patterns overlap, which selects the workers of a dataset (C12).
//!
//! It never constructs a common subject, it only decides whether one can exist. `targets` calls it
//! with the dataset's target pattern and each subscription of a worker.

use super::{WILDCARD_ONE, WILDCARD_TAIL, same_segment, segments};

/// Whether there is a subject that both patterns match (C12).
///
/// The founding system ran its matcher with the worker's pattern in the place of the subject (S20).
/// That rule needs no code of its own: a pattern always matches its own text, so if `a` matches the
/// text of `b`, then that text is a subject that both match.
pub fn overlaps(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (segments(a), segments(b));
    loop {
        match (a.next(), b.next()) {
            // All before this agreed, and the tail takes whatever the other asks for next, or
            // nothing.
            (Some(WILDCARD_TAIL), _) | (_, Some(WILDCARD_TAIL)) => return true,
            (Some(a), Some(b)) => {
                if a != WILDCARD_ONE && b != WILDCARD_ONE && !same_segment(a, b) {
                    return false;
                }
            }
            (None, None) => return true,
            (Some(_), None) | (None, Some(_)) => return false,
        }
    }
}
