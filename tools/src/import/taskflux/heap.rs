//! A queue of TaskFlux, which takes out the same records in the same order as TaskFlux did.
//!
//! Its queues are heaps in which a node has four children (TF25), and such a heap is not fair:
//! which of several records of one key comes out first depends on how the heap came to be. The log
//! says only that one was taken, so the same heap has to be built again to know which. Written from
//! the rules of that heap: a record rises past its parent only if its key is smaller, and sinks
//! below the first of its smallest children only if its own is larger.

/// Children of a node.
const ARITY: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Heap<T> {
    nodes: Vec<(i64, T)>,
}

impl<T> Default for Heap<T> {
    fn default() -> Self {
        Heap { nodes: Vec::new() }
    }
}

impl<T> Heap<T> {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What is in it, in no order.
    pub(super) fn into_items(self) -> Vec<(i64, T)> {
        self.nodes
    }

    pub(super) fn items(&self) -> &[(i64, T)] {
        &self.nodes
    }

    pub(super) fn push(&mut self, key: i64, item: T) {
        self.nodes.push((key, item));
        let mut at = self.nodes.len() - 1;
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.key(parent).is_none_or(|above| key >= above) {
                break;
            }
            self.nodes.swap(at, parent);
            at = parent;
        }
    }

    /// Takes out the record with the smallest key.
    pub(super) fn pop(&mut self) -> Option<(i64, T)> {
        let last = self.nodes.len().checked_sub(1)?;
        self.nodes.swap(0, last);
        let taken = self.nodes.pop();
        let mut at = 0;
        while let Some(key) = self.key(at) {
            let first = at * ARITY + 1;
            let children =
                (first..first + ARITY).filter_map(|child| Some((self.key(child)?, child)));
            // The first of several that are smallest.
            let Some((smallest, child)) = children.min_by_key(|(key, _)| *key) else { break };
            if key <= smallest {
                break;
            }
            self.nodes.swap(at, child);
            at = child;
        }
        taken
    }

    fn key(&self, at: usize) -> Option<i64> {
        self.nodes.get(at).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf25_c28_the_smallest_key_comes_first_over_the_whole_range() {
        let mut heap = Heap::default();
        for key in [5, i64::MIN, 0, i64::MAX, -7, 5] {
            heap.push(key, ());
        }
        let keys: Vec<i64> = std::iter::from_fn(|| heap.pop()).map(|(key, ())| key).collect();
        assert_eq!(keys, [i64::MIN, -7, 0, 5, 5, i64::MAX]);
    }

    #[test]
    fn tf25_records_of_one_key_come_in_the_order_of_such_a_heap_not_in_that_of_a_queue() {
        let mut heap = Heap::default();
        for name in ["a", "b", "c", "d", "e", "f"] {
            heap.push(1, name);
        }
        // The last takes the place of the one that goes, and sinks below nothing of the same key.
        let names: Vec<&str> = std::iter::from_fn(|| heap.pop()).map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "f", "e", "d", "c", "b"]);
    }

    #[test]
    fn tf10_what_is_put_in_as_it_lay_there_lies_there_again() {
        let mut heap = Heap::default();
        for key in [9, 3, 7, 1, 8, 2, 6, 4, 5, 0] {
            heap.push(key, key);
        }
        heap.pop();
        let mut again = Heap::default();
        heap.items().iter().for_each(|(key, item)| again.push(*key, *item));
        assert_eq!(heap.items(), again.items());
    }
}
