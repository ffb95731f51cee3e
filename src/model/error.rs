//! What can be wrong with a peer's JSON, one variant for each kind of fault. An error never holds
//! more of the peer's text than a short quotation and is never worth a second try: the same bytes
//! are wrong again. The reader and the content stream make them; connections and roles show them to
//! users.

use std::fmt;

use super::limits::QUOTE_CHARS_MAX;

/// Where in a message a fault is: which model, which one of several, which member, which item of
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The model's name as SPEC 1C spells it, such as `InputFile`.
    pub model: &'static str,
    /// The model's position, counted from 0, when it stands in a list.
    pub nth: Option<u32>,
    /// The member; `None` when the model as a whole is meant.
    pub member: Option<&'static str>,
    /// The item's position, counted from 0, when the member is a list of plain values.
    pub item: Option<u32>,
}

impl Place {
    /// The model as a whole.
    #[must_use]
    pub const fn model(model: &'static str) -> Self {
        Self { model, nth: None, member: None, item: None }
    }

    /// The `nth` model of a list; a position too large to name is left out.
    #[must_use]
    pub fn nth(model: &'static str, nth: usize) -> Self {
        Self { nth: u32::try_from(nth).ok(), ..Self::model(model) }
    }

    /// A member of the model at this place.
    #[must_use]
    pub const fn member(self, member: &'static str) -> Self {
        Self { member: Some(member), ..self }
    }

    /// An item of the list at this place.
    #[must_use]
    pub fn item(self, item: usize) -> Self {
        Self { item: u32::try_from(item).ok(), ..self }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model)?;
        if let Some(nth) = self.nth {
            write!(f, " [{nth}]")?;
        }
        if let Some(member) = self.member {
            write!(f, " member \"{member}\"")?;
        }
        if let Some(item) = self.item {
            write!(f, " item [{item}]")?;
        }
        Ok(())
    }
}

/// A fault in a peer's JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The bytes are not JSON, or not UTF-8.
    #[error(
        "{place} is not JSON: {reason} at line {line}, column {column} (byte {offset}): send one JSON object in \
         UTF-8"
    )]
    NotJson {
        /// The model that was being read.
        place: Place,
        /// Line of the fault, from 1.
        line: u64,
        /// Column of the fault in bytes, from 1.
        column: u64,
        /// Bytes before the fault.
        offset: u64,
        /// What the parser did not like.
        reason: String,
    },

    /// The JSON is fine, but is not an object.
    #[error("{place} is {found} where an object is expected: send {{...}}")]
    NotObject {
        /// The model that was being read.
        place: Place,
        /// What stood there.
        found: String,
    },

    /// A member that must be there is not.
    #[error("{place} is missing: add it, spelled exactly so (names are case-sensitive)")]
    Missing {
        /// The member.
        place: Place,
    },

    /// A member or an item is null where a value is needed.
    #[error("{place} is null where {expected} is needed: give it a value")]
    Null {
        /// The member or item.
        place: Place,
        /// What is needed.
        expected: &'static str,
    },

    /// A text that must say something is empty.
    #[error("{place} is \"\" where at least one character is needed: give it a value")]
    Empty {
        /// The member.
        place: Place,
    },

    /// A value has another type than the model's.
    #[error("{place} is {found} where {expected} is expected: send {expected}")]
    WrongType {
        /// The member or item.
        place: Place,
        /// What stood there.
        found: String,
        /// What is expected.
        expected: &'static str,
    },

    /// A string escapes half a surrogate pair.
    #[error(
        "{place} is {found}, which holds half a surrogate pair: escape both halves, or send UTF-8"
    )]
    BadText {
        /// The member or item.
        place: Place,
        /// The string as it stood in the JSON.
        found: String,
    },

    /// A Guid is not in D form.
    #[error(
        "{place} is {found}, not a Guid in D form: send 8-4-4-4-12 hexadecimal digits without braces"
    )]
    BadGuid {
        /// The member.
        place: Place,
        /// What stood there.
        found: String,
    },

    /// A base64 text is not standard base64 with padding.
    #[error(
        "{place} is not base64: {reason} at character {offset}: use the alphabet A-Z a-z 0-9 + / and pad with = \
         to a multiple of 4"
    )]
    BadBase64 {
        /// The member.
        place: Place,
        /// Characters of the base64 text before the fault.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },

    /// A digest is not in the form asked for.
    #[error("{place} is {found}, not a digest: send {expected}")]
    BadDigest {
        /// The member.
        place: Place,
        /// What stood there.
        found: String,
        /// The form.
        expected: &'static str,
    },

    /// A word is none of those the member may hold.
    #[error("{place} is {found}: send {expected}, or leave the member out")]
    UnknownWord {
        /// The member.
        place: Place,
        /// What stood there.
        found: String,
        /// The words there are.
        expected: &'static str,
    },

    /// A number is outside the member's range.
    #[error("{place} is {found}, outside {min} to {max}: send a number in that range")]
    OutOfRange {
        /// The member.
        place: Place,
        /// The number as it stood in the JSON.
        found: String,
        /// The smallest allowed.
        min: i64,
        /// The largest allowed.
        max: u64,
    },

    /// A list, a name, the nesting or what remains of a streamed payload is larger than heft takes.
    #[error("{place} has {value} {unit}; at most {limit} are taken: {next}")]
    OverLimit {
        /// The model, member or item.
        place: Place,
        /// How much there is, as far as it was counted.
        value: u64,
        /// How much is taken.
        limit: u64,
        /// What is counted.
        unit: &'static str,
        /// What the sender can do about it.
        next: &'static str,
    },
}

/// A short quotation of a peer's text, fit for one log line.
pub(crate) fn quote(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut quoted: String = chars.by_ref().take(QUOTE_CHARS_MAX).collect();
    if chars.next().is_some() {
        quoted.push('…');
    }
    quoted
}

/// A length as errors carry it.
pub(crate) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
