//! Feeds mutated vectors to every reader, seeded, and bounds what they may allocate.
//!
//! A failing case prints the target, the seed and the bytes. `HEFT_FUZZ_SEED=n scripts/test fuzz`
//! runs that seed alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/data_dir.rs"]
mod data_dir;
#[path = "support/file_targets.rs"]
mod file_targets;
#[path = "support/log_records.rs"]
mod log_records;
mod support;
#[path = "support/targets.rs"]
mod targets;

use chunking::Kind;
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

/// Targets, and what the mutations start from that they are given: for what comes by the wire, and
/// for what lies on disks.
fn all() -> [(&'static [targets::Target], Vec<Vec<u8>>); 2] {
    [(targets::ALL, corpus()), (file_targets::ALL, files())]
}

/// What a mutation starts from: the vectors, whole and as payloads, and the texts of the models.
fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    let frames = vectors("frames.json");
    for vector in frames["vectors"].as_array().unwrap() {
        let bytes = unhex(vector["hex"].as_str().unwrap());
        if bytes.len() < 10_000 {
            corpus.extend(bytes.get(43..).map(<[u8]>::to_vec));
            corpus.extend(bytes.get(43 + 20..).map(<[u8]>::to_vec));
            corpus.push(bytes);
        }
    }
    for (list, member) in [("manifests", "hex"), ("packs", "tail_hex")] {
        let listed = frames[list].as_array().unwrap().iter();
        corpus.extend(listed.map(|vector| unhex(vector[member].as_str().unwrap())));
    }
    let models = vectors("models.json");
    for vector in models.as_object().unwrap().values().filter_map(Value::as_array).flatten() {
        corpus.extend(vector["json"].as_str().map(|json| json.as_bytes().to_vec()));
    }
    corpus
}

/// The files of a data directory, and the entries and jobs in them.
fn files() -> Vec<Vec<u8>> {
    let data = tempfile::tempdir().unwrap();
    data_dir::make(data.path(), true);
    let files = data_dir::tree(data.path()).into_values().filter(|bytes| bytes.len() < 64 * 1024);
    let mut files: Vec<Vec<u8>> = files.collect();
    for number in 1..=3 {
        let (enqueued, ended) = (log_records::enqueue(number, 40), log_records::ack(number, 1));
        for log_records::Append { record, attached, .. } in [enqueued, ended] {
            let mut entry = Vec::new();
            heft::store::codec::put_entry(&record, attached.as_ref(), &mut entry);
            files.push(entry);
        }
    }
    files.extend(data_dir::tail());
    let (_, opened) = data_dir::open(data.path()).unwrap();
    for job in opened.replay.state.jobs().step_by(9) {
        let mut bytes = Vec::new();
        heft::store::codec::put_job(job, &mut bytes);
        files.push(bytes);
    }
    files
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
                let edge = EDGES[random.below(EDGES.len())];
                let width = [1, 2, 4, 8][random.below(4)];
                // Numbers are little-endian on the wire and big-endian in files.
                let (little, big) = (edge.to_le_bytes(), edge.to_be_bytes());
                let edge = if random.below(2) == 0 { &little[..width] } else { &big[8 - width..] };
                for (byte, edge) in bytes.iter_mut().skip(at).zip(edge) {
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

/// What a target may hold at one time for an input of that length. The decoder holds nothing at
/// all; messages what they carry, twice, since a round trip is checked; inflating 64 KiB of room
/// and the codec's working memory, of which brotli's window of 16 MiB is the largest.
fn allowance(target: &str, input: usize) -> usize {
    match target {
        "decoder" => 0,
        "messages" => 64 * 1024 + 12 * input,
        "chunks" | "inflate" => (1 << 20) + (18 << 20),
        // A member costs a borrowed name and value, an item of a list a string: some tens of bytes
        // for each byte pair.
        "json" => 256 * 1024 + 40 * input,
        // The lists as they are read and as they are checked, each of them some times what it takes
        // on the wire.
        "manifest" | "pack" => (64 << 10) + 16 * input,
        // What is read of the file, and a window in which groups are looked for.
        "segment" | "tail" => (2 << 20) + 16 * input,
        // A job takes more room than its bytes do, and so does a text that says which of many
        // entries is damaged.
        "snapshot" | "map" | "entries" => (256 << 10) + 16 * input,
        "metadata" => (16 << 10) + 2 * input,
        other => panic!("no allowance for {other}"),
    }
}

fn run_seed(seed: u64, targets: &[targets::Target], corpus: &[Vec<u8>]) {
    let mut random = Random(seed);
    for _ in 0..100 {
        let bytes = mutate(&mut random, corpus);
        for (name, target) in targets {
            let mut panicked = true;
            let peak = peak_of(|| panicked = std::panic::catch_unwind(|| target(&bytes)).is_err());
            let allowed = allowance(name, bytes.len());
            let shown = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            assert!(!panicked, "{name} panicked; HEFT_FUZZ_SEED={seed}; bytes {}", shown());
            assert!(
                peak <= allowed,
                "{name} held {peak} bytes of {allowed}; HEFT_FUZZ_SEED={seed}; bytes {}",
                shown()
            );
        }
    }
}

#[test]
fn fuzz_mutated_vectors_and_noise_never_panic_and_never_allocate_more_than_they_should() {
    for (targets, corpus) in all() {
        match std::env::var("HEFT_FUZZ_SEED") {
            Ok(seed) => {
                run_seed(seed.parse().expect("HEFT_FUZZ_SEED is a number"), targets, &corpus)
            }
            Err(_) => {
                (0..u64::from(scaled(50, 5000))).for_each(|seed| run_seed(seed, targets, &corpus))
            }
        }
    }
}

#[test]
fn fuzz_every_vector_passes_every_target() {
    let corpus: Vec<Vec<u8>> = all().into_iter().flat_map(|(_, corpus)| corpus).collect();
    for bytes in &corpus {
        for (_, target) in targets::ALL.iter().chain(file_targets::ALL) {
            target(bytes);
        }
    }
}

/// Counts that nothing stands behind, where datasets have them.
#[test]
fn ca09_a_count_in_a_dataset_reserves_no_memory_before_its_bytes_were_seen() {
    let front = |pieces: u32, files: u32| {
        [&b"HFMF\x02\0\0\0"[..], &pieces.to_le_bytes(), &files.to_le_bytes()].concat()
    };
    let places = [&front(0, 1)[..], &[1, 0, b'a'], &[0; 40], &u32::MAX.to_le_bytes()].concat();
    for bytes in [front(u32::MAX, 0), front(0, u32::MAX), front(u32::MAX, u32::MAX), places] {
        let peak = peak_of(|| assert!(chunking::dataset::Manifest::decode(&bytes).is_err()));
        // Room for the one file whose entry could be there.
        assert!(peak <= 128, "{peak} bytes for {bytes:?}");
    }
    let footer = [&b"HFPK\x02\0\0\0"[..], &16_384u32.to_le_bytes(), &[0; 4]].concat();
    let peak =
        peak_of(|| assert!(chunking::dataset::pack::Layout::from_tail(&footer, 16).is_err()));
    assert_eq!(peak, 0);
    let pack = [&[1][..], &16_384u16.to_le_bytes(), &[0; 36]].concat();
    let have = [&[1, 1][..], &[0; 16], &512u16.to_le_bytes(), &[0; 38]].concat();
    let lack = [&[1, 2][..], &[0; 8], &1024u16.to_le_bytes(), &[0; 8]].concat();
    for (kind, bytes) in [(Kind::Pack, pack), (Kind::Have, have), (Kind::Lack, lack)] {
        let peak = peak_of(|| assert!(chunking::Message::decode(kind, &bytes).is_err()));
        assert_eq!(peak, 0, "{kind}");
    }
}

/// Counts that are right by their checksums, and that nothing stands behind.
#[test]
fn c29_a_count_in_a_file_reserves_no_memory_before_its_bytes_were_seen() {
    let block = |kind: u8, body: &[u8]| {
        let mut block = vec![kind, 0, 0, 0];
        block.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        block.extend_from_slice(&[0; 8]);
        block.extend_from_slice(body);
        block
    };
    // So many jobs, after nothing at all; and as many files beside it.
    let jobs = [&u64::MAX.to_be_bytes()[..], &[0; 24], &0u32.to_be_bytes()].concat();
    let pins = [&[0; 32][..], &u32::MAX.to_be_bytes()].concat();
    // A payload of 4 GiB, and one that names as many blobs.
    let mut payload = vec![2, 0, 0, 0, 0, 0, 0, 0, 7, 1];
    let blobs = [&payload[..], &u32::MAX.to_be_bytes()].concat();
    payload.extend_from_slice(&[0; 4]);
    payload.extend_from_slice(&[0; 16]);
    payload.extend_from_slice(&u32::MAX.to_be_bytes());
    payload.extend_from_slice(&[0; 4]);
    let none = [0u64.to_be_bytes(); 4].concat();
    let empty = [&none[..], &0u32.to_be_bytes()].concat();
    let snapshots = [
        vec![block(1, &jobs)],
        vec![block(1, &pins)],
        vec![block(1, &empty), block(5, &payload), block(6, &2u64.to_be_bytes())],
        vec![block(1, &empty), block(5, &blobs)],
        vec![block(1, &empty), block(6, &u64::MAX.to_be_bytes())],
    ];
    for blocks in snapshots {
        let bytes = [vec![0; 64], blocks.concat()].concat();
        let peak = peak_of(|| file_targets::read_snapshot(&bytes));
        assert!(peak <= allowance("snapshot", bytes.len()), "{peak} bytes for {bytes:?}");
    }
    // A blob of as many chunks as can be counted, none of which is there.
    let open = chunking::message::Open { size: u64::MAX, chunk_bytes: 1, ..data_dir::blob_open(1) };
    let bytes = heft::store::map::front(file_targets::OWNER, file_targets::BLOB, &open);
    let peak = peak_of(|| file_targets::map(&bytes));
    assert!(peak <= allowance("map", bytes.len()), "{peak} bytes for a map");
}
