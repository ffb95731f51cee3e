//! Feeds mutated vectors to every reader, seeded, and bounds what they may allocate.
//!
//! A failing case prints the target, the seed and the bytes. `HEFT_FUZZ_SEED=n scripts/test fuzz` runs that seed alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

#[path = "support/counting.rs"]
mod counting;
mod support;
#[path = "support/targets.rs"]
mod targets;

use counting::{Counting, peak_of};
use serde_json::Value;
use support::{scaled, unhex, vectors};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A small generator: the same seed gives the same bytes on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// What a mutation starts from: the vectors, whole and as payloads, and the texts of the models.
fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for vector in vectors("frames.json")["vectors"].as_array().unwrap() {
        let bytes = unhex(vector["hex"].as_str().unwrap());
        if bytes.len() < 10_000 {
            corpus.extend(bytes.get(43..).map(<[u8]>::to_vec));
            corpus.extend(bytes.get(43 + 20..).map(<[u8]>::to_vec));
            corpus.push(bytes);
        }
    }
    let models = vectors("models.json");
    for vector in models.as_object().unwrap().values().filter_map(Value::as_array).flatten() {
        corpus.extend(vector["json"].as_str().map(|json| json.as_bytes().to_vec()));
    }
    corpus
}

/// Values that lengths and counts break on.
const EDGES: [u64; 12] =
    [0, 1, 4, 5, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x40_0000, 0x40_0001, 0x7FFF_FFFF, 0xFFFF_FFFF];

fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    if random.below(8) == 0 {
        return (0..random.below(500)).map(|_| random.next() as u8).collect();
    }
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.next() as u8),
            4 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                for (byte, edge) in bytes.iter_mut().skip(at).zip(&edge[..width]) {
                    *byte = *edge;
                }
            }
            5 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            6 if at < bytes.len() => {
                bytes.remove(at);
            }
            _ => {
                let end = at + random.below(bytes.len() - at + 1).min(32);
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes.truncate(64 * 1024);
    bytes
}

/// What a target may hold at one time for an input of that length. The decoder holds nothing at all; messages what they
/// carry, twice, since a round trip is checked; inflating 64 KiB of room and the codec's working memory, of which brotli's
/// window of 16 MiB is the largest.
fn allowance(target: &str, input: usize) -> usize {
    match target {
        "decoder" => 0,
        "messages" => 64 * 1024 + 12 * input,
        "chunks" | "inflate" => (1 << 20) + (18 << 20),
        // A member costs a borrowed name and value, an item of a list a string: some tens of bytes for each byte pair.
        "json" => 256 * 1024 + 40 * input,
        other => panic!("no allowance for {other}"),
    }
}

fn run_seed(seed: u64, corpus: &[Vec<u8>]) {
    let mut random = Random(seed);
    for _ in 0..100 {
        let bytes = mutate(&mut random, corpus);
        for (name, target) in targets::ALL {
            let mut panicked = true;
            let peak = peak_of(|| panicked = std::panic::catch_unwind(|| target(&bytes)).is_err());
            let allowed = allowance(name, bytes.len());
            let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!panicked, "{name} panicked; HEFT_FUZZ_SEED={seed}; bytes {shown}");
            assert!(
                peak <= allowed,
                "{name} held {peak} bytes of {allowed}; HEFT_FUZZ_SEED={seed}; bytes {shown}"
            );
        }
    }
}

#[test]
fn fuzz_mutated_vectors_and_noise_never_panic_and_never_allocate_more_than_they_should() {
    let corpus = corpus();
    match std::env::var("HEFT_FUZZ_SEED") {
        Ok(seed) => run_seed(seed.parse().expect("HEFT_FUZZ_SEED is a number"), &corpus),
        Err(_) => (0..u64::from(scaled(50, 5000))).for_each(|seed| run_seed(seed, &corpus)),
    }
}

#[test]
fn fuzz_every_vector_passes_every_target() {
    for bytes in corpus() {
        for (_, target) in targets::ALL {
            target(&bytes);
        }
    }
}
