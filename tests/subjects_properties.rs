//! What holds for all subjects and patterns, on alphabets small enough that they often meet (SPEC
//! 1D, C10, C12). `HEFT_TEST_SCALE=long` runs many more cases.

mod support;

use std::collections::BTreeSet;

use heft::core::subject::{SubjectTree, matches, overlaps, subscriptions};
use proptest::prelude::*;
use proptest::sample::select;
use support::property_config;
use uuid::Uuid;

const WORKER: Uuid = Uuid::from_u128(0x6f1c_8a52_0d3e_4b7a_9c15_2e84_d07b_3f61);
const WORKER_TEXT: &str = "6f1c8a52-0d3e-4b7a-9c15-2e84d07b3f61";

/// Segments joined by one dot, sometimes by two, sometimes with a dot before.
fn dotted(alphabet: &'static [&'static str], length_max: usize) -> impl Strategy<Value = String> {
    let part = (select(alphabet), prop_oneof![4 => Just("."), 1 => Just("..")]);
    let parts = prop::collection::vec(part, 0..=length_max);
    (parts, prop::bool::weighted(0.1)).prop_map(|(parts, leading)| {
        let mut text = String::from(if leading { "." } else { "" });
        for (segment, dot) in parts {
            text.push_str(segment);
            text.push_str(dot);
        }
        if !leading {
            text.truncate(text.trim_end_matches('.').len());
        }
        text
    })
}

fn pattern() -> impl Strategy<Value = String> {
    dotted(&["a", "A", "b", "é", "*", "*", ">", "a>"], 4)
}

fn subject() -> impl Strategy<Value = String> {
    dotted(&["a", "A", "b", "B", "c", "é", "É", "*", ">", "a>"], 5)
}

/// A pattern that may name the worker's id anywhere.
fn pattern_with_id() -> impl Strategy<Value = String> {
    dotted(&["a", "B", "*", "*", ">", WORKER_TEXT, "6F1C8A52-0D3E-4B7A-9C15-2E84D07B3F61"], 5)
}

fn key() -> impl Strategy<Value = String> {
    dotted(&["a", "b", "c", WORKER_TEXT], 4)
}

/// What makes two patterns one subscription, written without the code under test.
fn canonical(pattern: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in pattern.split('.').filter(|part| !part.is_empty()) {
        parts.push(part.to_ascii_lowercase());
        if part == ">" {
            break;
        }
    }
    parts
}

/// All subjects of up to four segments over three letters, one of which no pattern names.
fn small_subjects() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut longest = all.clone();
    for _ in 0..4 {
        longest = longest
            .iter()
            .flat_map(|s| ["a", "b", "c"].map(|letter| format!("{s}.{letter}")))
            .collect();
        all.extend_from_slice(&longest);
    }
    all
}

#[derive(Debug, Clone)]
enum Change {
    Insert(String, u8),
    Remove(String, u8),
    /// Removes the entry that is at this place of the held ones, so that removals often hit.
    RemoveHeld(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        5 => (pattern(), 0..6_u8).prop_map(|(pattern, subscriber)| Change::Insert(pattern, subscriber)),
        1 => (pattern(), 0..6_u8).prop_map(|(pattern, subscriber)| Change::Remove(pattern, subscriber)),
        3 => any::<prop::sample::Index>().prop_map(Change::RemoveHeld),
    ]
}

proptest! {
    #![proptest_config(property_config(500, 20_000))]

    #[test]
    fn the_tree_finds_what_the_plain_matcher_finds(
        changes in prop::collection::vec(change(), 0..40),
        subjects in prop::collection::vec(subject(), 1..8),
    ) {
        let mut tree = SubjectTree::new();
        let mut held: BTreeSet<(Vec<String>, u8)> = BTreeSet::new();
        for change in changes {
            match change {
                Change::Insert(pattern, subscriber) => {
                    let is_new = held.insert((canonical(&pattern), subscriber));
                    prop_assert_eq!(tree.insert(&pattern, subscriber), is_new);
                }
                Change::Remove(pattern, subscriber) => {
                    let was_held = held.remove(&(canonical(&pattern), subscriber));
                    prop_assert_eq!(tree.remove(&pattern, &subscriber), was_held);
                }
                Change::RemoveHeld(place) => {
                    if held.is_empty() {
                        continue;
                    }
                    let entry = held.iter().nth(place.index(held.len())).cloned().expect("an entry");
                    held.remove(&entry);
                    prop_assert!(tree.remove(&entry.0.join("."), &entry.1));
                }
            }
        }
        for subject in subjects {
            let mut expected: Vec<u8> =
                held.iter().filter(|(p, _)| matches(&p.join("."), &subject)).map(|(_, s)| *s).collect();
            expected.sort_unstable();
            let mut visited = Vec::new();
            tree.for_each_match(&subject, |subscriber| visited.push(*subscriber));
            visited.sort_unstable();
            prop_assert_eq!(&visited, &expected, "each entry once for {}", subject);
            expected.dedup();
            tree.matching(&subject, &mut visited);
            prop_assert_eq!(visited, expected, "each subscriber once for {}", subject);
        }
        let prefixes: BTreeSet<&[String]> = held
            .iter()
            .flat_map(|(p, _)| {
                let fixed = p.iter().take_while(|part| *part != ">").count();
                (0..=fixed).map(|length| &p[..length])
            })
            .collect();
        prop_assert_eq!(tree.node_count(), prefixes.len().max(1), "one node for each distinct prefix");
        for (pattern, subscriber) in held {
            prop_assert!(tree.remove(&pattern.join("."), &subscriber));
        }
        prop_assert_eq!(tree.node_count(), 1);
    }

    #[test]
    fn patterns_overlap_if_and_only_if_some_subject_matches_both(
        a in dotted(&["a", "b", "*", ">"], 4),
        b in dotted(&["a", "b", "*", ">"], 4),
    ) {
        let witness = small_subjects().into_iter().find(|s| matches(&a, s) && matches(&b, s));
        prop_assert_eq!(overlaps(&a, &b), witness.is_some(), "witness {:?}", witness);
    }

    #[test]
    fn overlap_is_symmetric(a in pattern(), b in pattern()) {
        prop_assert_eq!(overlaps(&a, &b), overlaps(&b, &a));
    }

    #[test]
    fn a_pattern_matches_its_own_text(a in pattern()) {
        prop_assert!(matches(&a, &a));
        prop_assert!(overlaps(&a, &a));
    }

    #[test]
    fn the_literal_rule_of_cache_targeting_is_implied_by_overlap(target in pattern(), worker in pattern()) {
        if matches(&target, &worker) {
            prop_assert!(overlaps(&target, &worker), "S20 without C12");
        }
    }

    #[test]
    fn a_tail_wildcard_matches_its_own_prefix(prefix in subject(), rest in subject()) {
        let pattern = format!("{prefix}.>");
        prop_assert!(matches(&pattern, &prefix));
        let deeper = format!("{}.{}", prefix, rest);
        prop_assert!(matches(&pattern, &deeper));
    }

    #[test]
    fn a_pattern_without_wildcards_matches_exactly_what_folds_to_it(
        a in dotted(&["a", "A", "b", "é", "É"], 3),
        b in dotted(&["a", "A", "b", "é", "É"], 3),
    ) {
        prop_assert_eq!(matches(&a, &b), canonical(&a) == canonical(&b));
    }

    #[test]
    fn subscriptions_match_the_key_where_the_patterns_match_it_or_the_workers_assign_subject(
        patterns in prop::collection::vec(pattern_with_id(), 0..4),
        key in key(),
    ) {
        let with_id = format!("{key}.{WORKER_TEXT}");
        let eligible = patterns.iter().any(|p| matches(p, &key) || matches(p, &with_id));
        let kept = subscriptions(&patterns, WORKER);
        prop_assert_eq!(kept.iter().any(|p| matches(p, &key)), eligible, "kept {:?}", kept);
    }
}
