//! Bytes that look like nothing in particular: they neither repeat nor compress. The same seed
//! gives the same on every machine. Tests inside the crate use them too.
#![allow(dead_code, unreachable_pub, clippy::indexing_slicing)]

/// `len` pseudo-random bytes.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Noise::new(seed).fill(&mut bytes);
    bytes
}

/// What the next of them follow from.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        // Nothing follows from zero.
        Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next ones; the rest of a last word that does not fit is left out.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}
