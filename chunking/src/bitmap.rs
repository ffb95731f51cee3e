//! Records which chunks of a blob are present, and which must be sent again.
//!
//! A [`Bitmap`] grows with the chunks received, not with the size a peer claims. [`Ranges`] is its
//! form on the wire.

use crate::limits::{BLOB_CHUNKS_MAX, RANGES_MAX};
use crate::pages::Pages;
use serde::Serialize;

const WORD_BITS: u32 = u64::BITS;

/// A run of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ChunkRange {
    /// Index of the first.
    pub first: u32,
    /// How many; never 0 in [`Ranges`].
    pub count: u32,
}

impl ChunkRange {
    fn end(self) -> Option<u32> {
        self.first.checked_add(self.count)
    }
}

/// Runs of chunks in ascending order, apart from each other and not empty; at most [`RANGES_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Ranges(Vec<ChunkRange>);

impl TryFrom<Vec<ChunkRange>> for Ranges {
    /// The first range that breaks the rules.
    type Error = ChunkRange;

    fn try_from(ranges: Vec<ChunkRange>) -> Result<Self, ChunkRange> {
        // Each range has to begin behind a gap after the one before, or they would be one range.
        let mut first_min = 0;
        for (place, range) in ranges.iter().enumerate() {
            match range.end() {
                Some(end)
                    if range.count > 0
                        && range.first >= first_min
                        && end <= BLOB_CHUNKS_MAX
                        && place < RANGES_MAX =>
                {
                    first_min = end.saturating_add(1);
                }
                Some(_) | None => return Err(*range),
            }
        }
        Ok(Ranges(ranges))
    }
}

impl Ranges {
    pub fn as_slice(&self) -> &[ChunkRange] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Chunks in all runs together.
    pub fn chunk_count(&self) -> u32 {
        self.0.iter().fold(0, |sum, range| sum.saturating_add(range.count))
    }

    /// Every chunk's index.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|range| range.first..range.first.saturating_add(range.count))
    }
}

/// The set of the chunks of one blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Pages<u64>,
    count: u32,
    held: u32,
}

impl Bitmap {
    /// Of a blob of `count` chunks, none of them here. Takes no memory yet.
    pub const fn new(count: u32) -> Self {
        Bitmap { words: Pages::new(), count, held: 0 }
    }

    /// Chunks the blob has.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Chunks that are here.
    pub const fn held_count(&self) -> u32 {
        self.held
    }

    /// Whether all are.
    pub const fn is_complete(&self) -> bool {
        self.held == self.count
    }

    /// Whether this one is.
    pub fn contains(&self, index: u32) -> bool {
        let (word, bit) = place(index);
        self.words.get(word) & bit != 0
    }

    /// Notes that a chunk has come. False if it was here before, or if the blob has no such chunk.
    pub fn insert(&mut self, index: u32) -> bool {
        if index >= self.count {
            return false;
        }
        let (word, bit) = place(index);
        self.set(word, bit) == 1
    }

    /// Notes that a chunk has to come again. False if it was not here.
    pub fn remove(&mut self, index: u32) -> bool {
        let (word, bit) = place(index);
        if self.words.get(word) & bit == 0 {
            return false;
        }
        let Some(word) = self.words.at_mut(word) else { return false };
        *word &= !bit;
        self.held -= 1;
        true
    }

    /// Notes that runs of chunks have come, as a peer reported them. Whole words at a time: a run
    /// may name millions.
    pub fn insert_all(&mut self, ranges: &Ranges) {
        for range in ranges.as_slice() {
            let end = range.first.saturating_add(range.count).min(self.count);
            let mut at = range.first;
            while at < end {
                let next_word = (at / WORD_BITS + 1) * WORD_BITS;
                let bits = end.min(next_word) - at;
                let mask = (u64::MAX >> (WORD_BITS - bits)) << (at % WORD_BITS);
                let (word, _) = place(at);
                self.set(word, mask);
                at = next_word;
            }
        }
    }

    /// Sets bits of a word; says how many were not set before.
    fn set(&mut self, word: usize, bits: u64) -> u32 {
        let Some(word) = self.words.at_mut(word) else { return 0 };
        let new = (bits & !*word).count_ones();
        *word |= bits;
        self.held += new;
        new
    }

    /// What is here, up to [`RANGES_MAX`] runs.
    pub fn held(&self) -> Ranges {
        self.runs(true)
    }

    /// What is not, up to [`RANGES_MAX`] runs.
    pub fn missing(&self) -> Ranges {
        self.runs(false)
    }

    /// The first chunk that is not here.
    pub fn first_missing(&self) -> Option<u32> {
        self.next(0, false)
    }

    fn runs(&self, held: bool) -> Ranges {
        let mut runs = Vec::new();
        let mut at = 0;
        while let Some(first) = self.next(at, held) {
            let end = self.next(first, !held).unwrap_or(self.count);
            runs.push(ChunkRange { first, count: end - first });
            if runs.len() == RANGES_MAX {
                break;
            }
            at = end;
        }
        Ranges(runs)
    }

    /// The first chunk from `from` on that is here, or that is not. Words without one are passed
    /// over whole.
    fn next(&self, from: u32, held: bool) -> Option<u32> {
        let mut at = from;
        while at < self.count {
            let (word, _) = place(at);
            let word = self.words.get(word);
            let wanted = if held { word } else { !word };
            let shifted = wanted >> (at % WORD_BITS);
            if shifted != 0 {
                let found = at + shifted.trailing_zeros();
                return (found < self.count).then_some(found);
            }
            at = (at / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }
}

fn place(index: u32) -> (usize, u64) {
    (usize::try_from(index / WORD_BITS).unwrap_or(usize::MAX), 1 << (index % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u32, u32)]) -> Ranges {
        let listed: Vec<_> =
            list.iter().map(|&(first, count)| ChunkRange { first, count }).collect();
        Ranges::try_from(listed).unwrap()
    }

    #[test]
    fn a_blob_without_chunks_is_complete_at_once() {
        let map = Bitmap::new(0);
        assert!(map.is_complete());
        assert!(map.missing().is_empty() && map.held().is_empty());
    }

    #[test]
    fn what_is_missing_is_named_in_runs() {
        let mut map = Bitmap::new(200);
        assert_eq!(map.missing(), ranges(&[(0, 200)]));
        for index in [0, 1, 63, 64, 65, 128, 199] {
            assert!(map.insert(index));
            assert!(!map.insert(index), "a second arrival is not news");
        }
        assert_eq!(map.held(), ranges(&[(0, 2), (63, 3), (128, 1), (199, 1)]));
        assert_eq!(map.missing(), ranges(&[(2, 61), (66, 62), (129, 70)]));
        assert_eq!((map.first_missing(), Bitmap::new(0).first_missing()), (Some(2), None));
        assert!(map.remove(64) && !map.remove(64));
        assert_eq!(map.held_count(), 6);
    }

    #[test]
    fn a_chunk_behind_the_end_is_not_taken() {
        let mut map = Bitmap::new(64);
        assert!(!map.insert(64));
        map.insert_all(&ranges(&[(60, 1000)]));
        assert_eq!(map.held(), ranges(&[(60, 4)]));
    }

    #[test]
    fn a_claimed_size_costs_nothing_until_chunks_come() {
        let mut map = Bitmap::new(BLOB_CHUNKS_MAX);
        assert_eq!(map.words.held_bytes(), 0);
        map.insert(BLOB_CHUNKS_MAX - 1);
        assert!(map.words.held_bytes() < 8 * 1024, "{}", map.words.held_bytes());
        assert_eq!(map.missing(), ranges(&[(0, BLOB_CHUNKS_MAX - 1)]));
    }

    #[test]
    fn more_runs_than_a_message_lists_are_named_in_rounds() {
        let mut map = Bitmap::new(8192);
        (0..4096).for_each(|odd| assert!(map.insert(odd * 2 + 1)));
        let first_round = map.missing();
        assert_eq!(first_round.as_slice().len(), RANGES_MAX);
        map.insert_all(&first_round);
        assert_eq!(map.missing().as_slice().first(), Some(&ChunkRange { first: 2048, count: 1 }));
    }

    #[test]
    fn ranges_that_touch_overlap_descend_or_overflow_are_refused() {
        for bad in [
            vec![(0, 0)],
            vec![(0, 2), (2, 1)],
            vec![(5, 2), (6, 1)],
            vec![(9, 1), (3, 1)],
            vec![(u32::MAX, 2)],
            vec![(0, BLOB_CHUNKS_MAX + 1)],
        ] {
            let listed: Vec<_> =
                bad.iter().map(|&(first, count)| ChunkRange { first, count }).collect();
            assert_eq!(Ranges::try_from(listed.clone()), Err(*listed.last().unwrap()), "{bad:?}");
        }
    }
}
