//! A reference to bytes that travel apart from the JSON: which transfer brings them, how many there are, and
//! what they must hash to. It names bytes and never holds or checks them. Job requests and results carry it
//! between heft peers; a stock peer passes over it.

use chunking::Digest;
use uuid::Uuid;

use super::error::{ModelError, Place, quote};
use super::json::{JsonModel, Object, ObjectWriter, Schema};

const DIGEST_FORM: &str =
    "`kind:hex`, where kind is chunk-list, sha256 or blake3 and hex has 64 hexadecimal digits";

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
            Some(text) => {
                Some(text.parse().map_err(|_| bad_digest(object.place("Digest"), &text, DIGEST_FORM))?)
            }
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
