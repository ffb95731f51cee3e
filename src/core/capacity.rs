//! Shrinks maps that were large once. A hash map keeps its peak capacity, and memory that peers
//! caused to be allocated must not stay allocated for good.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Maps with less room than this keep it.
const KEPT: usize = 1024;

/// Gives back the room of a map that has become all but empty. To be called after something was
/// removed; it costs nothing most of the time, and in the long run no more than the insertions did.
pub(crate) fn give_back<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > KEPT && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_was_large_gets_small_and_a_small_one_stays() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        for n in 0..99_990 {
            map.remove(&n);
            give_back(&mut map);
        }
        assert!(map.capacity() <= KEPT, "{}", map.capacity());
        assert_eq!((map.len(), map.get(&99_999)), (10, Some(&99_999)));
        let mut small: HashMap<u32, u32> = (0..100).map(|n| (n, n)).collect();
        small.clear();
        let before = small.capacity();
        give_back(&mut small);
        assert_eq!(small.capacity(), before);
    }
}
