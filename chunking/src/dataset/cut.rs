//! Cuts a file into pieces by content (FastCDC) as it is read.

use fastcdc::v2020::FastCDC;

use crate::limits::{PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECE_BYTES_USUAL};

/// Finds the ends of pieces in bytes that come one part after the other. The cuts do not depend on
/// how the bytes come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cutter;

impl Cutter {
    /// The length of the first piece in `bytes`, which begin where the last piece ended. `None` if
    /// more bytes are needed to tell; with `is_end` there are no more, and what is left is cut all
    /// the same.
    pub fn cut(self, bytes: &[u8], is_end: bool) -> Option<usize> {
        let (min, usual, max) = (PIECE_BYTES_MIN, PIECE_BYTES_USUAL, PIECE_BYTES_MAX);
        if bytes.is_empty() || !is_end && bytes.len() < max as usize {
            return None;
        }
        let (_, end) =
            FastCDC::new(bytes, min as usize, usual as usize, max as usize).cut(0, bytes.len());
        Some(end.clamp(1, bytes.len().min(max as usize)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, mut seed: u64) -> Vec<u8> {
        std::iter::repeat_with(|| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed.to_be_bytes()[0]
        })
        .take(len)
        .collect()
    }

    fn cuts(bytes: &[u8]) -> Vec<Vec<u8>> {
        let (mut pieces, mut rest) = (Vec::new(), bytes);
        while let Some(len) = Cutter.cut(rest, true) {
            let (piece, left) = rest.split_at(len);
            pieces.push(piece.to_vec());
            rest = left;
        }
        pieces
    }

    #[test]
    fn pieces_keep_their_sizes_and_lose_nothing() {
        let bytes = noise(20 << 20, 7);
        let pieces = cuts(&bytes);
        assert_eq!(pieces.concat(), bytes);
        let (last, others) = pieces.split_last().unwrap();
        assert!(!last.is_empty());
        assert!(others.iter().all(|piece| (64 << 10..=1 << 20).contains(&piece.len())));
        assert!((40..=160).contains(&pieces.len()), "{} pieces of 20 MiB", pieces.len());
        assert!(cuts(&[]).is_empty());
        assert_eq!(cuts(&[1, 2, 3]), [vec![1, 2, 3]]);
    }

    #[test]
    fn what_is_inserted_changes_the_pieces_around_it_only() {
        let before = noise(20 << 20, 9);
        let mut after = before.clone();
        after.splice(7_000_000..7_000_000, noise(100, 1));
        let (before, after) = (cuts(&before), cuts(&after));
        let new: usize = after.iter().filter(|piece| !before.contains(piece)).map(Vec::len).sum();
        assert!(new <= 3 << 20, "{new} bytes are new");
    }

    #[test]
    fn cuts_do_not_depend_on_how_the_bytes_come() {
        let bytes = noise(6 << 20, 3);
        let whole = cuts(&bytes);
        for step in [1 << 20, 1_300_000, 5 << 20] {
            let (mut held, mut pieces) = (Vec::new(), Vec::new());
            let mut parts = bytes.chunks(step).peekable();
            while let Some(part) = parts.next() {
                held.extend_from_slice(part);
                while let Some(len) = Cutter.cut(&held, parts.peek().is_none()) {
                    pieces.push(held.drain(..len).collect::<Vec<_>>());
                }
            }
            assert_eq!(pieces, whole);
        }
    }
}
