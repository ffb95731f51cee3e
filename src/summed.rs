//! A payload with its checksum, from the peer that wrote it to the one that reads it.

use std::ops::Deref;

use bytes::Bytes;

/// A payload and its CRC-32: the one that came with it, or, from a peer that sends none, the one it
/// had when it came. Both stay together in memory, in the log and in the frame that takes the
/// payload on, so that its receiver finds whatever happened to it between.
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

/// A payload that begins with bytes of its own, and goes on with some that others share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fronted {
    front: Vec<u8>,
    rest: Summed,
}

impl Fronted {
    /// These bytes, and those behind them.
    pub const fn new(front: Vec<u8>, rest: Summed) -> Self {
        Fronted { front, rest }
    }

    /// All of its bytes.
    pub fn len(&self) -> usize {
        self.front.len() + self.rest.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of its own.
    pub fn front(&self) -> &[u8] {
        &self.front
    }

    /// The CRC-32 of all of it. The bytes that are shared are not read for it.
    pub fn crc(&self) -> u32 {
        if self.front.is_empty() {
            return self.rest.crc();
        }
        let of = |crc, len: usize| crc32fast::Hasher::new_with_initial_len(crc, len as u64);
        let mut all = of(crc32fast::hash(&self.front), self.front.len());
        all.combine(&of(self.rest.crc(), self.rest.len()));
        all.finalize()
    }

    /// What it shares.
    pub fn into_rest(self) -> Summed {
        self.rest
    }
}

impl From<Summed> for Fronted {
    fn from(payload: Summed) -> Self {
        Fronted::new(Vec::new(), payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_in_two_has_the_checksum_of_both_together() {
        for at in [0, 1, 6, 7] {
            let (front, rest) = b"payload".split_at(at);
            let fronted = Fronted::new(front.to_vec(), rest.to_vec().into());
            assert_eq!((fronted.crc(), fronted.len()), (crc32fast::hash(b"payload"), 7), "{at}");
        }
    }

    #[test]
    fn a_payload_that_changed_behind_its_checksum_is_not_sound() {
        let made = Summed::from(b"payload".to_vec());
        assert!(made.is_sound());
        assert!(!Summed::known(Bytes::from_static(b"pbyload"), made.crc()).is_sound());
        assert!(Summed::default().is_sound());
    }
}
