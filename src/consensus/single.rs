//! Consensus of a single node: a record is committed when it is synced to the log, or, if its
//! effect need not wait for that, as soon as all records before it are committed.

use std::collections::VecDeque;

use crate::core::ids::Index;

/// Records on their way to the disk.
#[derive(Debug, Default)]
pub struct Single {
    /// Those that are not committed, and whether they wait for the disk.
    waiting: VecDeque<(Index, bool)>,
}

impl Single {
    /// A record goes to the log. Gives the last record that is committed by that, if any is.
    pub fn propose(&mut self, index: Index, waits_for_disk: bool) -> Option<Index> {
        if self.waiting.is_empty() && !waits_for_disk {
            return Some(index);
        }
        self.waiting.push_back((index, waits_for_disk));
        None
    }

    /// The log has all records up to this one on the disk. Gives the last record that is committed
    /// by that, if any is.
    pub fn synced(&mut self, up_to: Index) -> Option<Index> {
        let mut last = None;
        while let Some((index, waits)) = self.waiting.front().copied() {
            if waits && index > up_to {
                break;
            }
            self.waiting.pop_front();
            last = Some(index);
        }
        last
    }

    /// Records that are not committed.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c30_what_need_not_wait_is_committed_at_once_and_never_before_what_does() {
        let mut single = Single::default();
        assert_eq!(single.propose(Index(1), false), Some(Index(1)));
        assert_eq!(single.propose(Index(2), true), None);
        assert_eq!(single.propose(Index(3), false), None, "it is behind one that waits");
        assert_eq!(single.propose(Index(4), true), None);
        assert_eq!(single.propose(Index(5), false), None);
        assert_eq!(single.synced(Index(2)), Some(Index(3)));
        assert_eq!(single.synced(Index(2)), None);
        assert_eq!(single.propose(Index(6), false), None);
        assert_eq!(single.synced(Index(5)), Some(Index(6)));
        assert_eq!(single.waiting(), 0);
    }
}
