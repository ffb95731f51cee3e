//! Files that nobody has seen before: the bytes of two seeds have nothing in common.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;

const WRITE_BYTES: usize = 1 << 20;

/// Random enough that no codec makes it smaller, and that no two parts are alike.
#[derive(Clone, Debug)]
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Noise {
        // The state must not be zero, and seeds that are near each other should not begin alike.
        Noise(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below this one.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// So many bytes, to somewhere.
    pub(super) fn write(&mut self, len: u64, out: &mut impl io::Write) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let bytes = self.next().to_le_bytes();
            let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            out.write_all(bytes.get(..taken).unwrap_or_default())?;
            left -= taken as u64;
        }
        Ok(())
    }

    /// So many bytes.
    pub(super) fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A vector takes everything.
        self.write(len, &mut bytes).ok();
        bytes
    }
}

/// Makes a file of this size.
pub(super) fn make(path: &Path, size: u64, seed: u64) -> anyhow::Result<()> {
    write(path, |out| Noise::new(seed).write(size, out))
}

/// Makes a file, and waits until it is on the disk: writing it is not to be found in what is
/// measured next.
pub(super) fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let failed = || format!("cannot make {}", path.display());
    let file = File::create(path).with_context(failed)?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, file);
    fill(&mut out).with_context(failed)?;
    out.flush().with_context(failed)?;
    out.get_ref().sync_all().with_context(failed)
}

/// Waits until all that was written is on its disk, so that nobody pays for what another wrote.
pub(super) fn settle() {
    rustix::fs::sync();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_bytes_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        make(&path, 100_003, 7).unwrap();
        let made = std::fs::read(&path).unwrap();
        assert_eq!(made, Noise::new(7).bytes(100_003));
        for other in [0, 6, 8, u64::MAX] {
            let same =
                Noise::new(other).bytes(100_003).iter().zip(&made).filter(|(a, b)| a == b).count();
            assert!(same < 1000, "{same} bytes of seed {other} are those of seed 7");
        }
        assert!((0..100).all(|seed| Noise::new(seed).below(7) < 7));
    }
}
