//! A payload with its checksum, from the peer that wrote it to the one that reads it.

use std::ops::Deref;

use bytes::Bytes;

/// A payload and its CRC-32: the one that came with it, or, from a peer that sends none, the one it had when it came. Both stay
/// together in memory, in the log and in the frame that takes the payload on, so that its receiver finds whatever happened
/// to it between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summed {
    bytes: Bytes,
    crc: u32,
}

impl Summed {
    /// A payload whose CRC-32 is known. It is not compared.
    pub const fn known(bytes: Bytes, crc: u32) -> Self {
        Summed { bytes, crc }
    }

    /// The CRC-32.
    pub const fn crc(&self) -> u32 {
        self.crc
    }

    /// The payload alone.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Whether the bytes are still those that the checksum was made of. It reads all of them.
    pub fn is_sound(&self) -> bool {
        crc32fast::hash(&self.bytes) == self.crc
    }
}

impl From<Bytes> for Summed {
    fn from(bytes: Bytes) -> Self {
        Summed { crc: crc32fast::hash(&bytes), bytes }
    }
}

impl From<Vec<u8>> for Summed {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl Deref for Summed {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_changed_behind_its_checksum_is_not_sound() {
        let made = Summed::from(b"payload".to_vec());
        assert!(made.is_sound());
        assert!(!Summed::known(Bytes::from_static(b"pbyload"), made.crc()).is_sound());
        assert!(Summed::default().is_sound());
    }
}
