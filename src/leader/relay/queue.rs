//! A queue that holds each item at most once.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// Waiting entries, each once, the longest waiting first.
#[derive(Debug)]
pub(super) struct Queue<T> {
    order: VecDeque<T>,
    members: HashSet<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { order: VecDeque::new(), members: HashSet::new() }
    }
}

impl<T: Copy + Eq + Hash> Queue<T> {
    /// At the end. One that waits keeps its place.
    pub(super) fn push(&mut self, one: T) {
        if self.members.insert(one) {
            self.order.push_back(one);
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.order.pop_front()?;
        self.members.remove(&first);
        Some(first)
    }

    pub(super) fn remove(&mut self, one: &T) {
        if self.members.remove(one) {
            self.order.retain(|other| other != one);
        }
    }

    pub(super) fn contains(&self, one: &T) -> bool {
        self.members.contains(one)
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.order.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_place_and_a_new_one_once_it_had_its_turn() {
        let mut queue = Queue::default();
        [1, 2, 1, 3].into_iter().for_each(|one| queue.push(one));
        assert_eq!((queue.pop(), queue.contains(&1), queue.len()), (Some(1), false, 2));
        queue.push(1);
        queue.remove(&2);
        assert_eq!(queue.iter().copied().collect::<Vec<_>>(), [3, 1]);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(3), Some(1), None]);
        assert!(queue.is_empty());
    }
}
