//! A reference to bytes that travel apart from the JSON: which transfer brings them, how many there
//! are, and what they must hash to. It names bytes and never holds or checks them. Job requests and
//! results carry it between heft peers; a classic peer passes over it.

use chunking::Digest;
use chunking::message::Purpose;
use uuid::Uuid;

use super::error::{ModelError, Place, quote};
use super::json::{JsonModel, Object, ObjectWriter, Schema};

const DIGEST_FORM: &str =
    "`kind:hex`, where kind is chunk-list, sha256 or blake3 and hex has 64 hexadecimal digits";

/// The id of a blob, which is that of the transfers that move it. It is derived, so that who
/// submits a job again, or sends a result again, names the same blobs: the owner is the job,
/// `attempt` is 0 for inputs, and `index` is the place among the blobs of the same purpose.
pub fn blob_id(owner: Uuid, attempt: u32, purpose: Purpose, index: u32) -> Uuid {
    let mut named = Vec::with_capacity(32);
    named.extend_from_slice(owner.as_bytes());
    named.extend_from_slice(&attempt.to_le_bytes());
    named.push(purpose as u8);
    named.extend_from_slice(&index.to_le_bytes());
    let digest = chunking::digest::blake3(&named);
    digest.first_chunk().map_or(Uuid::nil(), |first| Uuid::from_bytes(*first))
}

/// A reference to a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRef {
    /// The transfer that brings the bytes.
    pub id: Uuid,
    /// How many bytes there are.
    pub size: u64,
    /// What they hash to; unknown while the sender is still reading them (the transfer's `Done`
    /// then says it).
    pub digest: Option<Digest>,
}

impl JsonModel for BlobRef {
    const SCHEMA: Schema = Schema { name: "Blob", members: &["Id", "Size", "Digest"] };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        let digest = match object.text("Digest")? {
            Some(text) => Some(
                text.parse().map_err(|_| bad_digest(object.place("Digest"), &text, DIGEST_FORM))?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_has_the_same_id_whenever_it_is_named_and_another_for_each_part() {
        let job = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let id = blob_id(job, 0, Purpose::Input, 0);
        assert_eq!(id, blob_id(job, 0, Purpose::Input, 0));
        assert_eq!(id.to_string(), "b7ed4e6d-4efc-72a0-3151-e516f5a0284c");
        for other in [
            blob_id(Uuid::nil(), 0, Purpose::Input, 0),
            blob_id(job, 1, Purpose::Input, 0),
            blob_id(job, 0, Purpose::Archive, 0),
            blob_id(job, 0, Purpose::Input, 1),
        ] {
            assert_ne!(id, other);
        }
    }
}
