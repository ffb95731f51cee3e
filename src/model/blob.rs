//! A reference to bytes that travel apart from the JSON: which transfer brings them, how many there are, and
//! what they must hash to. It names bytes and never holds or checks them. Job requests and results carry it
//! between heft peers; a stock peer passes over it.

use std::fmt;

use uuid::Uuid;

use super::error::{ModelError, Place, quote};
use super::json::{JsonModel, Object, ObjectWriter, Schema};

const DIGEST_FORM: &str = "`kind:hex`, such as \"sha256:\" and 64 lower-case hexadecimal digits";
const DIGEST_KIND_BYTES_MAX: usize = 16;
const DIGEST_HEX_BYTES_MAX: usize = 128;

/// A digest in its text form, `kind:hex`. Which kinds a peer can check is settled when capabilities are
/// exchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Digest {
    kind: String,
    hex: String,
}

impl Digest {
    /// A digest of a kind: lower-case letters, digits and `-`. `None` if the kind or the length is not
    /// allowed.
    #[must_use]
    pub fn new(kind: &str, bytes: &[u8]) -> Option<Self> {
        Self::from_parts(kind, &to_hex(bytes))
    }

    /// Reads `kind:hex`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (kind, hex) = text.split_once(':')?;
        Self::from_parts(kind, hex)
    }

    /// The part before the colon.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The part after the colon.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }

    fn from_parts(kind: &str, hex: &str) -> Option<Self> {
        let good_kind = (1..=DIGEST_KIND_BYTES_MAX).contains(&kind.len())
            && kind.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        let good_hex = (2..=DIGEST_HEX_BYTES_MAX).contains(&hex.len())
            && hex.len().is_multiple_of(2)
            && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (good_kind && good_hex).then(|| Self { kind: kind.to_owned(), hex: hex.to_owned() })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.hex)
    }
}

/// A reference to a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRef {
    /// The transfer that brings the bytes.
    pub id: Uuid,
    /// How many bytes there are.
    pub size: u64,
    /// What they hash to; unknown while the sender is still reading them (the transfer's `Done` then says
    /// it).
    pub digest: Option<Digest>,
}

impl JsonModel for BlobRef {
    const SCHEMA: Schema = Schema { name: "Blob", members: &["Id", "Size", "Digest"] };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        let digest = match object.text("Digest")? {
            Some(text) => Some(
                Digest::from_text(&text)
                    .ok_or_else(|| bad_digest(object.place("Digest"), &text, DIGEST_FORM))?,
            ),
            None => None,
        };
        Ok(Self {
            id: object.need("Id", "a Guid string", object.guid("Id")?)?,
            size: object.need("Size", "a whole number", object.whole("Size", 0, u64::MAX)?)?,
            digest,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.guid("Id", self.id);
        object.whole("Size", self.size);
        object.text_if_some("Digest", self.digest.as_ref().map(Digest::to_string).as_deref());
    }
}

pub(super) fn bad_digest(place: Place, found: &str, expected: &'static str) -> ModelError {
    ModelError::BadDigest { place, found: format!("\"{}\"", quote(found)), expected }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xF]);
    nibbles.filter_map(|nibble| char::from_digit(nibble.into(), 16)).collect()
}

pub(super) fn from_hex<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let mut digits = hex.chars().map(|c| c.to_digit(16));
    let mut bytes = [0_u8; N];
    for byte in &mut bytes {
        let value = digits.next()?? << 4 | digits.next()??;
        *byte = u8::try_from(value).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}
