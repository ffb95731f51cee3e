//! The layout of message fields in a payload, shared by all messages.
//!
//! A payload opens with a version byte. The fields follow without padding: integers little-endian,
//! Guids in .NET order, names and texts as a 16-bit length and UTF-8. A later version may only
//! append fields, so a reader takes the fields it knows from any version it has not been told to
//! refuse, and skips the rest.

use crate::bitmap::{ChunkRange, Ranges};
use crate::codec::Codec;
use crate::digest::Digest;
use crate::kind::Kind;
use crate::limits::{NAME_BYTES_MAX, RANGES_MAX, TEXT_BYTES_MAX};
use serde::Serialize;
use std::fmt;
use thiserror::Error;
use uuid::Uuid;

/// The version every layout has today.
pub const VERSION: u8 = 1;

/// What is wrong with a message whose frame was sound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The payload ends before a field does.
    #[error("{message}: the payload ends inside `{field}`: {need} bytes needed, {have} left")]
    Short {
        message: Kind,
        field: &'static str,
        /// Bytes the field takes.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },

    /// No version is below 1.
    #[error("{message}: layout version {version} does not exist; versions start at 1")]
    Version {
        message: Kind,
        /// The version byte.
        version: u8,
    },

    /// A field has a value that it may not have.
    #[error("{message}: `{field}` is {value}; {expected}")]
    Value {
        message: Kind,
        field: &'static str,
        value: u64,
        /// What it may be.
        expected: &'static str,
    },

    /// A list or a text is longer than its limit.
    #[error("{message}: `{field}` has length {len}, over the limit of {limit}")]
    Over {
        message: Kind,
        field: &'static str,
        /// Its length: bytes of a text, entries of a list.
        len: usize,
        limit: usize,
    },

    /// A text is not UTF-8.
    #[error("{message}: `{field}` is not UTF-8: byte {at} starts no valid character")]
    NotUtf8 {
        message: Kind,
        field: &'static str,
        /// Offset of the first bad byte.
        at: usize,
    },

    /// The frame's kind carries no layout of ours.
    #[error("{message} frames carry no transfer or control message")]
    NotOurs { message: Kind },
}

/// Takes fields off the front of a payload.
pub struct Reader<'a> {
    message: Kind,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts on a payload, past its version byte.
    pub fn new(message: Kind, payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader { message, rest: payload };
        match reader.field::<u8>("version")? {
            0 => Err(MessageError::Version { message, version: 0 }),
            _ => Ok(reader),
        }
    }

    /// Takes the next field.
    pub fn field<T: Field>(&mut self, name: &'static str) -> Result<T, MessageError> {
        T::get(self, name)
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn bytes(
        &mut self,
        need: usize,
        field: &'static str,
    ) -> Result<&'a [u8], MessageError> {
        let have = self.rest.len();
        let (front, rest) = self.rest.split_at_checked(need).ok_or(MessageError::Short {
            message: self.message,
            field,
            need,
            have,
        })?;
        self.rest = rest;
        Ok(front)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], MessageError> {
        let have = self.rest.len();
        let (front, rest) = self.rest.split_first_chunk::<N>().ok_or(MessageError::Short {
            message: self.message,
            field,
            need: N,
            have,
        })?;
        self.rest = rest;
        Ok(*front)
    }

    pub(super) fn bad_value(
        &self,
        field: &'static str,
        value: u64,
        expected: &'static str,
    ) -> MessageError {
        MessageError::Value { message: self.message, field, value, expected }
    }

    pub(super) fn over(&self, field: &'static str, len: usize, limit: usize) -> MessageError {
        MessageError::Over { message: self.message, field, len, limit }
    }

    /// Whether that many bytes are left.
    pub(super) fn has(&self, need: usize, field: &'static str) -> Result<(), MessageError> {
        let have = self.rest.len();
        if need > have {
            return Err(MessageError::Short { message: self.message, field, need, have });
        }
        Ok(())
    }

    fn text(&mut self, field: &'static str, limit: usize) -> Result<String, MessageError> {
        let len = usize::from(u16::get(self, field)?);
        self.within(field, len, limit)?;
        let bytes = self.bytes(len, field)?;
        let text = str::from_utf8(bytes).map_err(|error| MessageError::NotUtf8 {
            message: self.message,
            field,
            at: error.valid_up_to(),
        })?;
        Ok(text.to_owned())
    }

    /// Reads a list: a 16-bit count, checked against the limit and against the bytes that came
    /// before room for it is made, then the entries.
    pub(super) fn list<T>(
        &mut self,
        field: &'static str,
        limit: usize,
        entry_bytes: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, MessageError>,
    ) -> Result<Vec<T>, MessageError> {
        let len = usize::from(u16::get(self, field)?);
        self.within(field, len, limit)?;
        self.has(len.saturating_mul(entry_bytes), field)?;
        (0..len).map(|_| entry(self)).collect()
    }

    fn within(&self, field: &'static str, len: usize, limit: usize) -> Result<(), MessageError> {
        if len > limit { Err(self.over(field, len, limit)) } else { Ok(()) }
    }
}

/// A value that has one layout wherever it stands.
pub trait Field: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it back.
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError>;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Field for $int {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
                Ok(<$int>::from_le_bytes(reader.array(field)?))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl Field for Uuid {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes_le());
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        Ok(Uuid::from_bytes_le(reader.array(field)?))
    }
}

impl Field for Codec {
    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let code = u8::get(reader, field)?;
        Codec::try_from(code).map_err(|_| {
            reader.bad_value(field, code.into(), "codecs are 0 none, 1 gzip, 2 brotli, 3 zstd")
        })
    }
}

impl Field for crate::digest::DigestKind {
    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let code = u8::get(reader, field)?;
        Self::from_code(code).ok_or_else(|| {
            reader.bad_value(field, code.into(), "digests are 0 chunk list, 1 SHA-256, 2 BLAKE3")
        })
    }
}

impl Field for Digest {
    fn put(&self, out: &mut Vec<u8>) {
        self.kind.put(out);
        out.extend_from_slice(&self.bytes);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        Ok(Digest { kind: reader.field(field)?, bytes: reader.array(field)? })
    }
}

impl Field for Ranges {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.as_slice().len(), out);
        for range in self.as_slice() {
            range.first.put(out);
            range.count.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let listed = reader.list(field, RANGES_MAX, 8, |reader| {
            Ok(ChunkRange { first: reader.field(field)?, count: reader.field(field)? })
        })?;
        Ranges::try_from(listed).map_err(|bad| {
            let expected =
                "ranges are ascending, apart from each other, not empty and within the blob limit";
            reader.bad_value(field, bad.first.into(), expected)
        })
    }
}

/// Writes the count of a list whose type keeps it within 16 bits.
pub(super) fn put_count(len: usize, out: &mut Vec<u8>) {
    u16::try_from(len).unwrap_or(u16::MAX).put(out);
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_count(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// A name: data, so it is never cut. At most [`NAME_BYTES_MAX`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Name(String);

/// A name that is too long for a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the name has {len} bytes; at most {limit} fit a message: shorten it")]
pub struct NameOver {
    pub len: usize,
    pub limit: usize,
}

impl TryFrom<String> for Name {
    type Error = NameOver;

    fn try_from(name: String) -> Result<Self, NameOver> {
        match name.len() {
            len if len > NAME_BYTES_MAX => Err(NameOver { len, limit: NAME_BYTES_MAX }),
            _ => Ok(Name(name)),
        }
    }
}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Field for Name {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(&self.0, out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader.text(field, NAME_BYTES_MAX).map(Name)
    }
}

/// A sentence for people. Nothing depends on its end, so a longer one is cut to [`TEXT_BYTES_MAX`]
/// bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Text(String);

impl Text {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<S: Into<String>> From<S> for Text {
    fn from(text: S) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        Text(text)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Field for Text {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(&self.0, out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader.text(field, TEXT_BYTES_MAX).map(Text)
    }
}

/// A message with a layout of ours.
pub trait Body: Sized {
    /// The frame that carries it.
    const KIND: Kind;

    /// Appends the fields.
    fn put_fields(&self, out: &mut Vec<u8>);

    /// Reads the fields.
    fn get_fields(reader: &mut Reader<'_>) -> Result<Self, MessageError>;

    /// Appends the payload: version, then fields.
    fn encode(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        self.put_fields(out);
    }

    /// Reads a payload. What stands behind the fields belongs to a later version and is skipped.
    fn decode(payload: &[u8]) -> Result<Self, MessageError> {
        Self::get_fields(&mut Reader::new(Self::KIND, payload)?)
    }
}

/// Defines a message as the list of its fields, which is its layout.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, ::serde::Serialize)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $crate::message::Body for $name {
            const KIND: $crate::Kind = $crate::Kind::$name;

            fn put_fields(&self, out: &mut Vec<u8>) {
                $($crate::message::Field::put(&self.$field, out);)*
            }

            fn get_fields(
                reader: &mut $crate::message::Reader<'_>,
            ) -> Result<Self, $crate::message::MessageError> {
                Ok($name { $($field: reader.field(stringify!($field))?,)* })
            }
        }
    };
}

/// Defines an enum that travels as one byte.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident, $expected:literal, { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ::serde::Serialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code,)* }

        impl $crate::message::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }

            fn get(
                reader: &mut $crate::message::Reader<'_>,
                field: &'static str,
            ) -> Result<Self, $crate::message::MessageError> {
                match reader.field::<u8>(field)? {
                    $($code => Ok($name::$variant),)*
                    other => Err(reader.bad_value(field, other.into(), $expected)),
                }
            }
        }
    };
}

/// Defines a set of bits that travels as 16 of them.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $flag:ident = $bit:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ::serde::Serialize)]
        pub struct $name(pub u16);

        impl $name {
            $($(#[$fdoc])* pub const $flag: $name = $name($bit);)*

            /// Whether all of `flags` are set. Bits that are not known are skipped.
            pub const fn has(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }
        }

        impl $crate::message::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn get(
                reader: &mut $crate::message::Reader<'_>,
                field: &'static str,
            ) -> Result<Self, $crate::message::MessageError> {
                reader.field(field).map($name)
            }
        }
    };
}

pub(super) use {byte_enum, flags, message};
