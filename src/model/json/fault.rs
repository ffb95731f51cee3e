//! The reader's own faults put into words: where a text stops being JSON, what was found in a
//! value's place, what is over a limit. It quotes at most a few characters of what a peer sent. The
//! reader and the content stream use it.

use crate::model::error::{ModelError, Place, count, quote};
use crate::model::limits::NEST_DEPTH_MAX;

/// What a value is, in words, with the start of it.
pub(crate) fn describe(json: &str) -> String {
    match json.bytes().next() {
        Some(b'{') => "an object".to_owned(),
        Some(b'[') => "a list".to_owned(),
        Some(b'"') => format!("the string {}", quote(json)),
        Some(b'-' | b'0'..=b'9') => format!("the number {}", quote(json)),
        Some(_) | None => quote(json),
    }
}

/// The fault that serde found in `text`.
pub(super) fn syntax_error(place: Place, text: &str, error: &serde_json::Error) -> ModelError {
    let full = error.to_string();
    // The place goes into fields of its own, so it is cut off the sentence.
    let reason = full.split(" at line ").next().unwrap_or_default().to_owned();
    let before = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let lines = before.map(str::len).sum::<usize>();
    // At the end of the text serde names the last character, otherwise the bad one.
    let column = if error.is_eof() { error.column().saturating_add(1) } else { error.column() };
    let offset = lines.saturating_add(column.saturating_sub(1));
    ModelError::NotJson {
        place,
        line: count(error.line()),
        column: count(column),
        offset: count(offset.min(text.len())),
        reason,
    }
}

/// The fault of a payload of which only the first `good` bytes are UTF-8.
pub(super) fn not_utf8(place: Place, payload: &[u8], good: usize) -> ModelError {
    let before = payload.get(..good).unwrap_or_default();
    let lines = before.iter().filter(|&&byte| byte == b'\n').count();
    let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count();
    ModelError::NotJson {
        place,
        line: count(lines).saturating_add(1),
        column: count(column).saturating_add(1),
        offset: count(good),
        reason: "bytes that are not UTF-8".to_owned(),
    }
}

/// The fault of a text that nests deeper than the limit.
pub(crate) fn too_deep(place: Place, depth: u32) -> ModelError {
    ModelError::OverLimit {
        place,
        value: depth.into(),
        limit: NEST_DEPTH_MAX.into(),
        unit: "levels of nesting",
        next: "flatten the members you add",
    }
}

/// The fault of a list that is longer than the limit.
pub(crate) fn too_many_items(place: Place, items: usize, items_max: usize) -> ModelError {
    ModelError::OverLimit {
        place,
        value: count(items),
        limit: count(items_max),
        unit: "items",
        next: "split it over several messages",
    }
}
