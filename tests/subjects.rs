//! The rules of subjects, patterns and routing keys, checked against `vectors/subjects.json` (SPEC
//! 1D, C09-C13). Each vector names the rows it stands for; what JSON cannot hold in reason
//! (lengths) is written out below.

// clippy.toml excuses test functions; their helpers stand outside of them.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::collections::BTreeSet;

use heft::core::subject::{
    GROUP_DEFAULT, PATTERN_SEGMENTS_MAX, PatternError, ROUTING_KEY_BYTES_MAX, RoutingError,
    SUBJECT_BYTES_MAX, SubjectTree, WORKER_PATTERN_DEFAULT, fold, hello_patterns, matches,
    overlaps, routing_key, segments, subscriptions, targets, worker_patterns,
};
use serde_json::Value;
use uuid::Uuid;

/// The rows that must each be named by a vector.
const ROWS: [&str; 16] = [
    "S05", "S07", "S10", "S12", "S13", "S14", "S15", "S16", "S17", "S18", "S19", "S20", "C10",
    "C11", "C12", "C13",
];

/// Calls `check` with each vector of a section and with the text that names the vector in a
/// failure.
fn each(section: &str, check: impl Fn(&Value, &str)) {
    let vectors = support::vectors("subjects.json");
    let vectors = vectors[section].as_array().expect("a section is a list");
    assert!(!vectors.is_empty(), "section {section} is empty");
    for vector in vectors {
        check(vector, &format!("{section}: {} in {vector}", text(vector, "why")));
    }
}

fn text<'a>(vector: &'a Value, field: &str) -> &'a str {
    vector[field].as_str().unwrap_or_else(|| panic!("{field} is not a text in {vector}"))
}

fn flag(vector: &Value, field: &str) -> bool {
    vector[field].as_bool().unwrap_or_else(|| panic!("{field} is not a flag in {vector}"))
}

fn texts(vector: &Value, field: &str) -> Vec<String> {
    let list =
        vector[field].as_array().unwrap_or_else(|| panic!("{field} is not a list in {vector}"));
    list.iter().map(|item| item.as_str().expect("an item is a text").to_owned()).collect()
}

fn worker_id(vector: &Value) -> Uuid {
    text(vector, "worker_id").parse().expect("worker_id is a UUID")
}

#[test]
fn every_row_is_named_by_a_vector() {
    let vectors = support::vectors("subjects.json");
    let sections = vectors.as_object().expect("sections");
    let named: BTreeSet<String> = sections
        .values()
        .flat_map(|section| section.as_array().expect("a section is a list"))
        .flat_map(|vector| texts(vector, "rows"))
        .collect();
    for row in ROWS {
        assert!(named.contains(row), "no vector names {row}");
    }
}

#[test]
fn the_matcher_and_the_tree_agree_with_the_vectors() {
    each("matches", |vector, name| {
        let (pattern, subject) = (text(vector, "pattern"), text(vector, "subject"));
        let expected = flag(vector, "matches");
        assert_eq!(matches(pattern, subject), expected, "{name}");

        let mut tree = SubjectTree::new();
        assert!(tree.insert(pattern, ()), "{name}");
        let mut found = 0;
        tree.for_each_match(subject, |()| found += 1);
        assert_eq!(found, usize::from(expected), "{name}");
        assert!(tree.remove(pattern, &()), "{name}");
        assert_eq!(tree.node_count(), 1, "{name}");
    });
}

#[test]
fn the_overlap_agrees_with_the_vectors_in_either_order() {
    each("overlaps", |vector, name| {
        let (a, b) = (text(vector, "a"), text(vector, "b"));
        assert_eq!(overlaps(a, b), flag(vector, "overlaps"), "{name}");
        assert_eq!(overlaps(b, a), flag(vector, "overlaps"), "{name}");
    });
}

#[test]
fn the_routing_keys_agree_with_the_vectors() {
    each("routing_keys", |vector, name| {
        match routing_key(text(vector, "subject"), vector["exec"].as_str()) {
            Ok(key) => {
                assert_eq!(key.to_string(), text(vector, "key"), "{name}");
                assert_eq!(key.folded(), fold(text(vector, "key")), "{name}");
                assert_eq!(
                    routing_key(key.as_str(), None).as_ref(),
                    Ok(&key),
                    "a key is its own key, {name}"
                );
            }
            Err(error) => {
                let kind = match error {
                    RoutingError::TooLong { .. } => "TooLong",
                    RoutingError::Wildcard { .. } => "Wildcard",
                    RoutingError::ControlCharacter { .. } => "ControlCharacter",
                };
                assert_eq!(kind, text(vector, "error"), "{error}, {name}");
            }
        }
    });
}

#[test]
fn the_worker_patterns_agree_with_the_vectors() {
    each("worker_patterns", |vector, name| match worker_patterns(text(vector, "hello")) {
        Ok(patterns) => assert_eq!(patterns, texts(vector, "patterns"), "{name}"),
        Err(error) => {
            let kind = match error {
                PatternError::TooLong { .. } => "TooLong",
                PatternError::TooManySegments { .. } => "TooManySegments",
                PatternError::TooManyTogether { .. } => "TooManyTogether",
                PatternError::ControlCharacter { .. } => "ControlCharacter",
                PatternError::Empty { .. } => "Empty",
                PatternError::Wildcard { .. } => "Wildcard",
            };
            assert_eq!(kind, text(vector, "error"), "{error}, {name}");
        }
    });
}

#[test]
fn one_lookup_of_the_key_finds_the_workers_the_vectors_call_eligible() {
    each("eligible", |vector, name| {
        let (patterns, id, expected) =
            (texts(vector, "patterns"), worker_id(vector), flag(vector, "eligible"));
        let key = routing_key(text(vector, "key"), None).expect("an eligible vector holds a key");
        assert_eq!(key.as_str(), text(vector, "key"), "{name}");

        let with_id = format!("{key}.{}", id.hyphenated());
        let plain = patterns.iter().any(|p| matches(p, key.as_str()) || matches(p, &with_id));
        assert_eq!(plain, expected, "by the definition, {name}");

        let mut tree = SubjectTree::new();
        for pattern in subscriptions(&patterns, id) {
            tree.insert(&pattern, id);
        }
        let mut found = Vec::new();
        tree.matching(key.as_str(), &mut found);
        assert_eq!(found, if expected { vec![id] } else { vec![] }, "by the tree, {name}");
    });
}

#[test]
fn datasets_go_to_the_workers_the_vectors_call_targeted() {
    each("cache_targets", |vector, name| {
        let patterns = worker_patterns(text(vector, "hello")).expect("a hello");
        let subscriptions = subscriptions(&patterns, worker_id(vector));
        assert_eq!(
            targets(text(vector, "target"), &subscriptions),
            flag(vector, "targeted"),
            "{name}"
        );
    });
}

#[test]
fn keys_are_equal_by_their_folded_text_and_show_the_users_spelling() {
    let given = routing_key("job.submit.CalcA", None).expect("a key");
    let folded = routing_key("job.assign.calca", None).expect("a key");
    assert_eq!(given, folded);
    assert_eq!(given.cmp(&folded), std::cmp::Ordering::Equal);
    assert_eq!(std::collections::HashSet::from([given.clone(), folded]).len(), 1);
    assert_eq!(given.to_string(), "job.assign.CalcA");
    assert!(given < routing_key("calcb", None).expect("a key"));
    assert_ne!(
        routing_key("\u{c9}", None).expect("a key"),
        routing_key("\u{e9}", None).expect("a key"),
        "S17: ASCII only"
    );
}

#[test]
fn the_longest_key_leaves_room_for_the_worker_id() {
    let longest = "x".repeat(ROUTING_KEY_BYTES_MAX - "job.assign.".len());
    let key = routing_key(&longest, None).expect("at the limit");
    assert_eq!(key.as_str().len(), ROUTING_KEY_BYTES_MAX);
    assert_eq!(format!("{key}.{}", Uuid::nil().hyphenated()).len(), SUBJECT_BYTES_MAX);
}

#[test]
fn a_key_over_the_limit_is_refused_with_length_limit_and_next_step() {
    let too_long = "x".repeat(ROUTING_KEY_BYTES_MAX - "job.assign.".len() + 2);
    for (subject, exec, name) in
        [(too_long.as_str(), None, "subject"), ("job.submit", Some(too_long.as_str()), "ExecName")]
    {
        let error = routing_key(subject, exec).expect_err("over the limit");
        assert_eq!(
            error.to_string(),
            format!(
                "{name} makes a routing key of 65500 bytes; the limit is 65498, so that a worker's id fits \
                 behind it: shorten the {name} by 2 bytes"
            )
        );
    }
}

#[test]
fn empty_segments_do_not_count_towards_the_limit_of_a_key() {
    let dots = ".".repeat(SUBJECT_BYTES_MAX);
    assert_eq!(routing_key(&dots, Some("calcA")).expect("a key").as_str(), "job.assign.calcA");
    assert_eq!(
        routing_key(&dots, None).expect("a key").as_str(),
        format!("job.assign.{GROUP_DEFAULT}")
    );
}

#[test]
fn refusals_show_the_text_and_say_what_to_do() {
    assert_eq!(
        routing_key("job.submit.*", None).expect_err("a wildcard").to_string(),
        "subject \"job.submit.*\" holds the wildcard segment \"*\"; only workers' patterns may hold \
         wildcards: submit to one subject, such as job.submit.<exec>"
    );
    assert_eq!(
        routing_key("", Some("a\u{0}b")).expect_err("a NUL").to_string(),
        "ExecName \"a\\0b\" holds the control character U+0000 at byte 1; none are allowed: remove it"
    );
    assert_eq!(
        worker_patterns("job.\u{1b}").expect_err("an escape").to_string(),
        "worker pattern \"job.\\u{1b}\" holds the control character U+001B at byte 4; none are \
         allowed: remove it"
    );
    let long =
        routing_key(&format!("{}.*", "é".repeat(500)), None).expect_err("a wildcard").to_string();
    assert!(long.contains(&format!("\"{}…\"", "é".repeat(80))), "{long}");
}

#[test]
fn a_pattern_over_its_limits_is_refused_with_value_and_limit() {
    let at_limit = ["a"; PATTERN_SEGMENTS_MAX].join(".");
    assert!(worker_patterns(&at_limit).is_ok());
    let error =
        worker_patterns(&format!("{at_limit}.*")).expect_err("too many segments").to_string();
    assert!(
        error.ends_with("has 257 segments; the limit is 256: shorten it, or end it with '>'"),
        "{error}"
    );

    assert!(worker_patterns(&"a".repeat(SUBJECT_BYTES_MAX)).is_ok());
    assert_eq!(
        worker_patterns(&"a".repeat(SUBJECT_BYTES_MAX + 1)).expect_err("too long").to_string(),
        "worker pattern is 65536 bytes; the limit is 65535: shorten it"
    );
}

#[test]
fn our_default_pattern_takes_every_key() {
    for (subject, exec) in
        [("", None), ("groupA", None), ("job.assign.A.1", None), ("", Some("calcA"))]
    {
        let key = routing_key(subject, exec).expect("a key");
        assert!(matches(WORKER_PATTERN_DEFAULT, key.as_str()), "C09: {key}");
    }
}

#[test]
fn the_deepest_subject_takes_no_stack() {
    let deep = ["a"; SUBJECT_BYTES_MAX.div_ceil(2)].join(".");
    assert_eq!(deep.len(), SUBJECT_BYTES_MAX);
    assert_eq!(segments(&deep).count(), 32_768);
    let stars = deep.replace('a', "*");
    assert!(matches(&stars, &deep));
    assert!(overlaps(&stars, &deep));

    let mut tree = SubjectTree::new();
    tree.insert(&deep, 1);
    tree.insert(&stars, 2);
    tree.insert("a.>", 3);
    let mut found = Vec::new();
    tree.matching(&deep.to_ascii_uppercase(), &mut found);
    assert_eq!(found, [1, 2, 3]);
    drop(tree.clone());
    assert!(tree.remove(&deep, &1));
    assert!(tree.remove(&stars, &2));
    assert!(tree.remove("A.>.anything", &3));
    assert_eq!(tree.node_count(), 1);
}

#[test]
fn the_tree_reports_an_entry_once_and_a_subscriber_once_for_each_pattern() {
    let mut tree = SubjectTree::new();
    assert!(tree.insert("job.assign.A", 7));
    assert!(!tree.insert("JOB..assign.A.", 7), "the same pattern by S16 and S17");
    assert!(tree.insert("job.assign.A.>", 7));
    assert!(!tree.insert("job.assign.A.>.x", 7), "the same pattern by S14");
    assert!(tree.insert("job.assign.*", 7));

    let mut visits = 0;
    tree.for_each_match("job.assign.a", |subscriber| {
        assert_eq!(*subscriber, 7);
        visits += 1;
    });
    assert_eq!(visits, 3);
    let mut found = vec![99];
    tree.matching("job.assign.a", &mut found);
    assert_eq!(found, [7]);
}

#[test]
fn removing_what_the_tree_does_not_hold_changes_nothing() {
    let mut tree = SubjectTree::new();
    tree.insert("a.b", 1);
    assert!(!tree.remove("a.b", &2), "another subscriber");
    assert!(!tree.remove("a", &1), "a prefix");
    assert!(!tree.remove("a.b.>", &1), "a tail");
    assert!(!tree.remove("a.*", &1), "a wildcard");
    assert!(!tree.remove("a.b.c", &1), "deeper");
    assert_eq!(tree.node_count(), 3);
    assert!(tree.remove("a.b", &1));
    assert!(!tree.remove("a.b", &1), "a second time");
    assert_eq!(tree.node_count(), 1);
}

#[test]
fn s21_a_hello_may_name_several_subjects_but_not_without_end() {
    let several = hello_patterns(["job.assign.A.*", "groupB", "job.assign.A.*"]).expect("patterns");
    assert_eq!(several, ["job.assign.A.*", "job.assign.groupB", "job.assign.groupB.>"]);
    let long: Vec<String> =
        (0..900).map(|number| format!("a{number}{}", ".b".repeat(61))).collect();
    let refused = hello_patterns(long.iter().map(String::as_str)).expect_err("too many");
    assert!(matches!(refused, PatternError::TooManyTogether { limit: 4096, .. }), "{refused}");
}

#[test]
fn a_tree_that_was_large_finds_what_is_left_when_it_has_given_back_its_memory() {
    let mut tree = SubjectTree::new();
    let pattern = |n: u32| format!("a.{n}.*.{}.>", n % 7);
    for n in 0..5_000 {
        tree.insert(&pattern(n), n);
    }
    for n in (0..5_000).filter(|n| n % 500 != 3) {
        assert!(tree.remove(&pattern(n), &n));
    }
    let mut found = Vec::new();
    for n in 0..5_000 {
        tree.matching(&format!("A.{n}.x.{}.y.z", n % 7), &mut found);
        assert_eq!(found, if n % 500 == 3 { vec![n] } else { vec![] });
    }
    assert_eq!(tree.node_count(), 2 + 3 * 10);
    tree.insert("a.3.*", 9);
    tree.matching("a.3.x", &mut found);
    assert_eq!(found, [9]);
}
