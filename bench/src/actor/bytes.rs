//! The bytes that jobs carry: random enough that no codec makes them smaller, made once.

use bytes::Bytes;

/// What is held of a job's bytes; a larger job repeats them. It is larger than the caches of
/// processors, so that a sender reads memory as a real one would.
pub(super) const HELD_MAX: u64 = 256 << 20;

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// So many bytes, or as many as are held.
pub(crate) fn incompressible(size: u64) -> Bytes {
    let len = usize::try_from(size.min(HELD_MAX)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    let mut state = SEED;
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_value_is_frequent() {
        let bytes = incompressible(100_003);
        assert_eq!(bytes.len(), 100_003);
        let mut counts = [0u32; 256];
        bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        assert!(counts.iter().all(|count| (250..550).contains(count)), "{counts:?}");
        assert!(incompressible(0).is_empty());
    }
}
