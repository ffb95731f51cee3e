//! A prefix tree of patterns that finds all subscribers of a subject in one walk (S23).
//!
//! A lookup visits only prefixes that match the beginning of the subject, so its time depends on
//! the depth and the matches, not on the number of subscriptions. It does not choose among
//! subscribers and does not validate patterns: `worker_patterns` enforces the limits. The broker
//! keeps its workers in one.

use std::collections::HashMap;
use std::str;

use super::{Segments, WILDCARD_ONE, WILDCARD_TAIL, fold, is_folded, segments};

/// Subjects up to this length are folded without an allocation.
const FOLD_BYTES_INLINE: usize = 256;

/// A tree of up to so many nodes keeps their memory.
const NODES_KEPT: usize = 1024;

type NodeId = usize;

const ROOT: NodeId = 0;

/// A set of (pattern, subscriber) entries, looked up by subject.
///
/// Patterns that differ only in ASCII case, in empty segments or in what follows a `>` match the
/// same subjects and are one pattern here.
#[derive(Debug, Clone)]
pub struct SubjectTree<T> {
    /// All nodes, the root first. They name each other by index, so that neither walking nor
    /// dropping a deep tree takes stack.
    nodes: Vec<Node<T>>,
    /// Empty nodes that no other names, for use again.
    free: Vec<NodeId>,
}

/// What is known of the patterns that begin with the same segments. Subscribers are sorted, for
/// quick removal and so that a lookup always reports them in the same order.
#[derive(Debug, Clone)]
struct Node<T> {
    /// The order of this map is random and is never seen: children are only looked up by name.
    literals: HashMap<Box<str>, NodeId>,
    any_one: Option<NodeId>,
    /// Subscribers of the pattern that ends here.
    ending: Vec<T>,
    /// Subscribers of the pattern that goes on with `>`.
    tail: Vec<T>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Node { literals: HashMap::new(), any_one: None, ending: Vec::new(), tail: Vec::new() }
    }
}

impl<T> Node<T> {
    fn child(&self, folded_segment: &str) -> Option<NodeId> {
        if folded_segment == WILDCARD_ONE {
            self.any_one
        } else {
            self.literals.get(folded_segment).copied()
        }
    }

    fn subscribers(&mut self, has_tail: bool) -> &mut Vec<T> {
        if has_tail { &mut self.tail } else { &mut self.ending }
    }

    fn is_empty(&self) -> bool {
        self.literals.is_empty()
            && self.any_one.is_none()
            && self.ending.is_empty()
            && self.tail.is_empty()
    }
}

impl<T> Default for SubjectTree<T> {
    fn default() -> Self {
        SubjectTree { nodes: vec![Node::default()], free: Vec::new() }
    }
}

impl<T> SubjectTree<T> {
    /// A tree without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many nodes are in use, the root among them. A tree without entries has one.
    pub fn node_count(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Calls `visit` once for each entry whose pattern matches `subject`, in an order that depends
    /// only on the entries. A subscriber that matches by several of its patterns is reported for
    /// each.
    pub fn for_each_match(&self, subject: &str, mut visit: impl FnMut(&T)) {
        with_folded(subject, |subject| self.visit_folded(segments(subject), &mut visit));
    }

    fn visit_folded(&self, subject: Segments<'_>, visit: &mut impl FnMut(&T)) {
        // The branches still to walk, each with what is left of the subject: never more than the
        // subject is deep.
        let mut branches = Vec::new();
        let mut next = Some((ROOT, subject));
        while let Some((id, mut rest)) = next.take().or_else(|| branches.pop()) {
            let Some(node) = self.nodes.get(id) else { continue };
            node.tail.iter().for_each(&mut *visit);
            let Some(segment) = rest.next() else {
                node.ending.iter().for_each(&mut *visit);
                continue;
            };
            let literal = node.literals.get(segment).map(|child| (*child, rest.clone()));
            let any_one = node.any_one.map(|child| (child, rest));
            if literal.is_some() {
                branches.extend(any_one);
                next = literal;
            } else {
                next = any_one;
            }
        }
    }
}

impl<T: Ord> SubjectTree<T> {
    /// Adds an entry. False if the tree held it already.
    pub fn insert(&mut self, pattern: &str, subscriber: T) -> bool {
        let pattern = fold(pattern);
        let (fixed, has_tail) = parts(&pattern);
        let mut id = ROOT;
        for segment in fixed {
            id = self.child_or_new(id, segment);
        }
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let subscribers = node.subscribers(has_tail);
        match subscribers.binary_search(&subscriber) {
            Ok(_) => false,
            Err(place) => {
                subscribers.insert(place, subscriber);
                true
            }
        }
    }

    /// Removes an entry, and every node that served it alone. False if the tree does not hold it.
    pub fn remove(&mut self, pattern: &str, subscriber: &T) -> bool {
        let pattern = fold(pattern);
        let (fixed, has_tail) = parts(&pattern);
        let mut path = Vec::new();
        let mut id = ROOT;
        for segment in fixed {
            let Some(child) = self.nodes.get(id).and_then(|node| node.child(segment)) else {
                return false;
            };
            path.push((id, segment));
            id = child;
        }
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let subscribers = node.subscribers(has_tail);
        let Ok(place) = subscribers.binary_search(subscriber) else { return false };
        subscribers.remove(place);
        self.prune(id, path);
        if self.nodes.len() > NODES_KEPT && self.node_count() < self.nodes.len() / 8 {
            self.compact();
        }
        true
    }

    /// Gives back the memory of nodes that are not in use. All others get new places.
    fn compact(&mut self) {
        let (mut nodes, mut order) = (Vec::with_capacity(self.node_count() * 2), vec![ROOT]);
        while let Some(node) = order.get(nodes.len()).and_then(|id| self.nodes.get_mut(*id)) {
            let mut node = std::mem::take(node);
            for child in node.literals.values_mut().chain(&mut node.any_one) {
                order.push(*child);
                *child = order.len() - 1;
            }
            node.literals.shrink_to_fit();
            nodes.push(node);
        }
        (self.nodes, self.free) = (nodes, Vec::new());
    }

    /// Frees the node at the end of `path` if it is empty, then its parent if that became empty,
    /// and so on.
    fn prune(&mut self, mut id: NodeId, mut path: Vec<(NodeId, &str)>) {
        while self.nodes.get(id).is_some_and(Node::is_empty) {
            let Some((parent, segment)) = path.pop() else { return };
            if let Some(node) = self.nodes.get_mut(id) {
                // An empty map or list may still own memory.
                *node = Node::default();
            }
            self.free.push(id);
            if let Some(parent) = self.nodes.get_mut(parent) {
                if segment == WILDCARD_ONE {
                    parent.any_one = None;
                } else {
                    parent.literals.remove(segment);
                }
            }
            id = parent;
        }
    }

    fn child_or_new(&mut self, id: NodeId, segment: &str) -> NodeId {
        if let Some(child) = self.nodes.get(id).and_then(|node| node.child(segment)) {
            return child;
        }
        let child = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        });
        if let Some(node) = self.nodes.get_mut(id) {
            if segment == WILDCARD_ONE {
                node.any_one = Some(child);
            } else {
                node.literals.insert(segment.into(), child);
            }
        }
        child
    }
}

impl<T: Copy + Ord> SubjectTree<T> {
    /// Puts the subscribers of `subject` into `out`, in order and each once. What `out` held before
    /// is dropped; its memory is used again.
    pub fn matching(&self, subject: &str, out: &mut Vec<T>) {
        out.clear();
        self.for_each_match(subject, |subscriber| out.push(*subscriber));
        out.sort_unstable();
        out.dedup();
    }
}

/// The segments of a pattern before its first `>`, and whether there is one.
fn parts(pattern: &str) -> (impl Iterator<Item = &str>, bool) {
    let has_tail = segments(pattern).any(|segment| segment == WILDCARD_TAIL);
    (segments(pattern).take_while(|segment| *segment != WILDCARD_TAIL), has_tail)
}

/// Calls `with` with the folded subject. Allocates only for a long subject that holds upper-case
/// letters.
fn with_folded(subject: &str, with: impl FnOnce(&str)) {
    if is_folded(subject) {
        return with(subject);
    }
    let mut inline = [0; FOLD_BYTES_INLINE];
    if let Some(copy) = inline.get_mut(..subject.len()) {
        copy.copy_from_slice(subject.as_bytes());
        copy.make_ascii_lowercase();
        // Folding ASCII letters keeps UTF-8 valid, so this holds; without unsafe code it has to be
        // asked.
        if let Ok(folded) = str::from_utf8(copy) {
            return with(folded);
        }
    }
    with(&subject.to_ascii_lowercase());
}
