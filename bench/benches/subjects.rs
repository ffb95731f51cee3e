//! What a lookup of a routing key costs, and that it does not grow with the number of subscriptions
//! (S23).

use divan::{Bencher, black_box};
use heft::core::subject::{
    SubjectTree, matches, overlaps, routing_key, subscriptions, worker_patterns,
};
use uuid::Uuid;

fn main() {
    divan::main();
}

const SUBSCRIPTIONS: [usize; 4] = [10, 1_000, 10_000, 100_000];

/// Iterations for each reading of the clock, many enough that its own precision does not show.
const SAMPLE_SIZE: u32 = 1_000;

/// Workers that take any job, whatever the size of the installation: what a lookup finds stays the
/// same, so that only the number of the others is measured.
const TAKE_ALL: [&str; 4] = ["job.assign.>", "job.assign.*", "job.assign.>", ">"];

/// The patterns of an installation: a few workers for everything, else one exec, one group, one
/// exec with `*`, a part of a group, or any group's urgent jobs.
fn patterns(count: usize) -> Vec<String> {
    let mixed = (0..).map(|n| match n % 8 {
        0..=2 => format!("job.assign.calc{n}"),
        3 => format!("job.assign.group{n}.>"),
        4 => format!("job.assign.group{n}.*.fast"),
        5 => format!("job.assign.calc{n}.*"),
        6 => format!("job.assign.Group{n}.eu.>"),
        _ => format!("job.assign.*.urgent{n}"),
    });
    TAKE_ALL.map(str::to_owned).into_iter().chain(mixed).take(count).collect()
}

fn tree(patterns: &[String]) -> SubjectTree<usize> {
    let mut tree = SubjectTree::new();
    for (subscriber, pattern) in patterns.iter().enumerate() {
        tree.insert(pattern, subscriber);
    }
    tree
}

/// Keys of jobs that 10 subscriptions already know, asked for in turn.
const KEYS: [&str; 4] =
    ["job.assign.calc0", "job.assign.group3.eu", "job.assign.calc1", "job.assign.group4.eu.fast"];

const KEYS_MIXED_CASE: [&str; 4] =
    ["job.assign.Calc0", "job.assign.GROUP3.eu", "job.assign.calcX", "Job.Assign.group4.eu.fast"];

fn look_up(bencher: Bencher, patterns: &[String], keys: &[&str]) {
    let tree = tree(patterns);
    let mut found = Vec::new();
    let mut keys = keys.iter().cycle();
    bencher.bench_local(|| {
        if let Some(key) = keys.next() {
            tree.matching(black_box(key), &mut found);
        }
        found.len()
    });
}

#[divan::bench(args = SUBSCRIPTIONS, sample_size = SAMPLE_SIZE)]
fn tree_lookup(bencher: Bencher, count: usize) {
    look_up(bencher, &patterns(count), &KEYS);
}

#[divan::bench(args = SUBSCRIPTIONS, sample_size = SAMPLE_SIZE)]
fn tree_lookup_mixed_case(bencher: Bencher, count: usize) {
    look_up(bencher, &patterns(count), &KEYS_MIXED_CASE);
}

/// Keys spread over the whole tree, so that most lookups miss the processor's caches.
#[divan::bench(args = SUBSCRIPTIONS, sample_size = SAMPLE_SIZE)]
fn tree_lookup_scattered(bencher: Bencher, count: usize) {
    // A step that shares no factor with the counts visits every number before it repeats.
    let keys: Vec<String> =
        (0..count).map(|n| format!("job.assign.calc{}", n * 7_919 % count)).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    look_up(bencher, &patterns(count), &keys);
}

/// Every worker takes the job: here time has to grow, with what is found.
#[divan::bench(args = [10, 1_000], sample_size = SAMPLE_SIZE)]
fn tree_lookup_all_match(bencher: Bencher, count: usize) {
    let mut patterns = patterns(0);
    patterns.resize(count, "job.assign.>".to_owned());
    look_up(bencher, &patterns, &KEYS);
}

/// What the tree replaces: the plain matcher over every subscription.
#[divan::bench(args = [10, 1_000, 10_000])]
fn plain_scan(bencher: Bencher, count: usize) {
    let patterns = patterns(count);
    let mut keys = KEYS.iter().cycle();
    bencher.bench_local(|| {
        let key = keys.next().copied().unwrap_or_default();
        patterns.iter().filter(|pattern| matches(pattern, black_box(key))).count()
    });
}

#[divan::bench(args = SUBSCRIPTIONS, sample_size = SAMPLE_SIZE)]
fn tree_insert_and_remove(bencher: Bencher, count: usize) {
    let mut tree = tree(&patterns(count));
    bencher.bench_local(|| {
        tree.insert(black_box("job.assign.newcomer.*"), usize::MAX);
        tree.remove(black_box("job.assign.newcomer.*"), &usize::MAX)
    });
}

const PATTERNS: [&str; 4] =
    ["job.assign.calcA", "job.assign.*", "job.assign.>", "job.assign.CALCB.*"];

#[divan::bench(args = PATTERNS, sample_size = SAMPLE_SIZE)]
fn plain_match(pattern: &str) -> bool {
    matches(black_box(pattern), black_box("job.assign.calcA"))
}

#[divan::bench(sample_size = SAMPLE_SIZE)]
fn plain_overlap() -> bool {
    overlaps(black_box("job.assign.*"), black_box("job.assign.calcA.*"))
}

#[divan::bench(args = ["job.submit.calcA", "groupA", ""], sample_size = SAMPLE_SIZE)]
fn make_routing_key(subject: &str) -> bool {
    routing_key(black_box(subject), black_box(Some("calcA"))).is_ok()
}

#[divan::bench(args = ["groupA", "job.assign.calcA.*"], sample_size = SAMPLE_SIZE)]
fn read_hello(hello: &str) -> usize {
    let patterns = worker_patterns(black_box(hello)).unwrap_or_default();
    subscriptions(&patterns, black_box(Uuid::max())).len()
}
