//! Decides which pieces share a pack. Pure: it sees positions and lengths of pieces, not files or
//! connections.

use std::ops::RangeInclusive;

use chunking::dataset::Piece;
use chunking::dataset::pack::FOOTER_BYTES;
use chunking::limits::{PACK_BYTES_MAX, PACK_PIECES_MAX};

/// How many packs all that lacks is to be divided into, so that the first are checked and passed on
/// while the others come.
pub const PACKS_WANTED: u64 = 8;

/// Packs are not made smaller than this, or each would cost more than it brings.
pub const PACK_BYTES_LEAST: u64 = 8 * 1024 * 1024;

/// Nor larger.
pub const PACK_BYTES_MOST: u64 = PACK_BYTES_MAX;

const PACK_BYTES: RangeInclusive<u64> = PACK_BYTES_LEAST..=PACK_BYTES_MOST;

/// Divides pieces, in the order of their places, into packs: neighbours stay together. `lacking`
/// are the bytes of all that lacks, of which these may be the first.
pub(super) fn plan(pieces: impl IntoIterator<Item = (u32, Piece)>, lacking: u64) -> Vec<Vec<u32>> {
    let bytes_max = (lacking / PACKS_WANTED).clamp(*PACK_BYTES.start(), *PACK_BYTES.end());
    let (mut packs, mut pack, mut bytes) = (Vec::new(), Vec::new(), FOOTER_BYTES as u64);
    for (place, piece) in pieces {
        // With its list a pack of the wanted size is a whole number of chunks.
        let more = u64::from(piece.len) + Piece::ENTRY_BYTES as u64;
        if !pack.is_empty() && (bytes + more > bytes_max || pack.len() >= PACK_PIECES_MAX) {
            packs.push(std::mem::take(&mut pack));
            bytes = FOOTER_BYTES as u64;
        }
        pack.push(place);
        bytes += more;
    }
    if !pack.is_empty() {
        packs.push(pack);
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::dataset::pack::Layout;

    const MIB: u64 = 1 << 20;

    fn pieces(count: u32, len: u32) -> Vec<(u32, Piece)> {
        (0..count).map(|place| (place, Piece { blake3: [0; 32], len })).collect()
    }

    fn sizes(packs: &[Vec<u32>]) -> Vec<usize> {
        packs.iter().map(Vec::len).collect()
    }

    #[test]
    fn packs_are_an_eighth_of_what_lacks_within_their_bounds() {
        let of = |count, len, lacking| sizes(&plan(pieces(count, len), lacking));
        assert_eq!(of(0, 1, 0), [] as [usize; 0]);
        assert_eq!(of(4, 256 << 10, MIB), [4]);
        // 31 pieces and their list, since 32 of them would leave no room for it.
        assert_eq!(of(70, 256 << 10, 16 * MIB), [31, 31, 8]);
        assert_eq!(of(130, 1 << 20, 800 * MIB), [63, 63, 4], "no pack is larger than one may be");
        assert_eq!(
            of(130, 1 << 20, 128 * MIB),
            [15; 8].iter().chain(&[10]).copied().collect::<Vec<_>>()
        );
        assert_eq!(of(40_000, 1, 40_000), [16_384, 16_384, 7_232]);
        assert_eq!(of(2, 1 << 20, 0), [2], "what the leader says is taken as a hint");
    }

    #[test]
    fn every_pack_is_one_that_is_taken_and_every_piece_is_in_one() {
        for (count, len, lacking) in
            [(1000, 1 << 20, 1000 * MIB), (300, 70_000, 21_000_000), (20_000, 5, 100_000)]
        {
            let packs = plan(pieces(count, len), lacking);
            for pack in &packs {
                let pieces = pack.iter().map(|_| Piece { blake3: [0; 32], len }).collect();
                let layout = Layout::new(pieces).unwrap();
                assert!(layout.size() <= PACK_BYTES_MOST);
            }
            assert_eq!(packs.concat(), (0..count).collect::<Vec<_>>());
        }
    }
}
