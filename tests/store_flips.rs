//! Bits that flip and files that are cut, in every kind of byte of every file of a data directory.
//! What opens is what was written, or it is said what is not and where; nothing else is ever
//! served, and nothing is passed over in silence.
//!
//! What cannot be told from a crash is shown, too: the last group of the log, if nothing behind it
//! says that it was synced.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

#[path = "store_flips/classes.rs"]
mod classes;
#[path = "support/data_dir.rs"]
mod data_dir;
#[path = "support/log_records.rs"]
mod log_records;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use classes::Class;
use data_dir::{PARTIAL, SEALED, View, look, make, restore, tree, tree_of};
use heft::store::codec::Names;
use heft::store::disk::{DataDir, Disk};
use heft::store::format::{FileNo, Owner, StoreError};
use heft::store::log::Segment;
use heft::store::replay::Files;
use heft::store::snapshot;
use support::scaled;
use tempfile::TempDir;

type Tree = BTreeMap<String, Vec<u8>>;

/// A data directory, as it was made and as it is.
struct Original {
    dir: TempDir,
    tree: Tree,
    view: View,
}

impl Original {
    fn new(comes_to_rest: bool) -> Self {
        // In memory a sync costs nothing, and there are many.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        make(dir.path(), comes_to_rest);
        Self::taken(dir)
    }

    fn taken(dir: TempDir) -> Self {
        let tree = tree(dir.path());
        let view = look(dir.path()).unwrap();
        assert_eq!(
            data_dir::tree(dir.path()),
            tree,
            "who opens it and does nothing changes nothing"
        );
        Original { dir, tree, view }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The last file with such a name.
    fn newest(&self, part: &str) -> String {
        self.tree.keys().rfind(|name| name.contains(part)).unwrap().clone()
    }

    /// Whether a file is a segment that is read at start.
    fn is_behind_snapshot(&self, file: &str) -> bool {
        file.contains("/log-") && file.replace("/log-", "/snapshot-") > self.newest("/snapshot-")
    }

    /// Changes one file, opens the directory, and makes it as it was.
    fn with(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> Verdict {
        let mut bytes = self.tree[file].clone();
        change(&mut bytes);
        std::fs::write(self.path().join(file), &bytes).unwrap();
        let found = verify(self.path());
        let seen = look(self.path());
        let after = tree_of(self.path(), file.split('/').next().unwrap());
        if let Err(error) = &seen {
            let mut expected = self.tree.clone();
            expected.insert(file.to_owned(), bytes);
            expected.retain(|name, _| name.split('/').next() == file.split('/').next());
            assert!(after == expected, "{file}: refused and changed: {error}");
        }
        restore(self.path(), &after, &self.tree);
        let name = file.rsplit('/').next().unwrap();
        match self.judge(name, seen) {
            Verdict::Same if after.contains_key(&format!("{file}.bad")) => Verdict::PutAside,
            Verdict::Same if found.iter().any(|error| error.contains(name)) => Verdict::Verified,
            verdict => verdict,
        }
    }

    fn judge(&self, name: &str, seen: Result<View, String>) -> Verdict {
        let view = match seen {
            Ok(view) => view,
            Err(error) => {
                // A log that ends too early may be told by the snapshot that knows more.
                let says = error.contains(name) || error.contains("the log in");
                return if says { Verdict::Refused(error) } else { Verdict::Silent(error) };
            }
        };
        if view.index != self.view.index || view.state != self.view.state {
            return Verdict::Silent(format!(
                "it ends with record {} of {}",
                view.index, self.view.index
            ));
        }
        let mut told = Vec::new();
        for (key, original) in &self.view.payloads {
            match view.payloads.get(key) {
                Some(same) if same == original => {}
                Some(Err(error)) if error.contains(name) && error.contains("offset") => {
                    told.push(error.clone())
                }
                other => return Verdict::Silent(format!("the payload of {key:?} is {other:?}")),
            }
        }
        if view.payloads.len() != self.view.payloads.len() || view.requests != self.view.requests {
            return Verdict::Silent("there are other payloads".to_owned());
        }
        for (blob, original) in &self.view.blobs {
            let Some(seen) = view.blobs.get(blob) else {
                return Verdict::Silent(format!("blob {blob} is not there"));
            };
            if seen.chunks.iter().any(|(index, bytes)| original.chunks.get(index) != Some(bytes)) {
                return Verdict::Silent(format!("blob {blob} has other bytes"));
            }
            if *blob == SEALED && seen.is_whole && seen.chunks.len() < 2 && seen.wrong.is_empty() {
                return Verdict::Silent(format!("blob {blob} lacks chunks"));
            }
            told.extend(seen.wrong.iter().cloned());
            if (*blob == PARTIAL && seen.chunks.len() < 2) || (*blob == SEALED && !seen.is_whole) {
                told.push("it comes again, or is told to be lost".to_owned());
            }
        }
        if told.is_empty() { Verdict::Same } else { Verdict::Told(told) }
    }
}

/// Reads all of the log and of the snapshots, as somebody does who doubts them.
fn verify(path: &Path) -> Vec<String> {
    let disk: Arc<dyn Disk> = Arc::new(DataDir::look(path).unwrap());
    let owner = Owner { node: data_dir::NODE, dir: data_dir::DIR };
    let files = Files::list(&*disk).unwrap();
    let segment = |first: u64| {
        let mut segment = Segment::open(&*disk, owner, first)?;
        let mut names = Names::default();
        while segment.next(&mut names)?.is_some() {}
        let is_whole = |torn| match torn {
            0 => Ok(()),
            torn => {
                Err(StoreError::damage(&*disk, &FileNo::log(first).path(), torn, "its end is torn"))
            }
        };
        segment.tail().and_then(|tail| is_whole(tail.torn))
    };
    let segments = files.segments.iter().map(|first| segment(*first));
    let snapshots =
        files.snapshots.iter().map(|index| snapshot::verify(&*disk, owner, *index).map(|_| ()));
    segments
        .chain(snapshots)
        .filter_map(|found| found.err().map(|error| error.to_string()))
        .collect()
}

#[derive(Debug)]
enum Verdict {
    /// All is as it was.
    Same,
    /// All is as it was, as an older snapshot and the log say the same; the bad one is put aside.
    PutAside,
    /// All is as it was, as nothing of it was needed. Who looks at everything finds it.
    Verified,
    /// The directory is not opened.
    Refused(String),
    /// What is damaged is not served, and it is said.
    Told(Vec<String>),
    /// Something else is there, and nobody was told.
    Silent(String),
}

impl Verdict {
    fn name(&self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::PutAside => "put aside",
            Verdict::Verified => "found by who looks at everything",
            Verdict::Refused(_) => "refused",
            Verdict::Told(_) => "told",
            Verdict::Silent(_) => "silent",
        }
    }
}

/// Which bytes of a class: one in the middle, or more, if there is time.
fn places(class: &Class) -> BTreeSet<usize> {
    let (start, end) = (class.bytes.start, class.bytes.end);
    let parts = usize::try_from(scaled(2, 16)).unwrap();
    (1..parts).map(|part| start + (end - start) * part / parts).collect()
}

/// The number of the group that a class belongs to.
fn group(class: &Class) -> Option<usize> {
    let (front, number) = class.name.rsplit_once(' ')?;
    (front.ends_with(" group") || front.ends_with(" mark")).then(|| number.parse().unwrap())
}

/// The classes of these files. Of a segment only the second group and the last ones are looked at,
/// unless there is time.
fn chosen(original: &Original, pick: impl Fn(&str) -> bool) -> Vec<Class> {
    let classes = classes::all(&original.tree);
    let last =
        |file: &str| classes.iter().filter(|class| class.file == file).filter_map(group).max();
    let is_chosen = |class: &&Class| match (group(class), last(&class.file)) {
        (Some(number), Some(last)) => scaled(0, 1) == 1 || number == 1 || number + 3 > last,
        _ => true,
    };
    classes.iter().filter(|class| pick(&class.file)).filter(is_chosen).cloned().collect()
}

/// Flips each bit of at least one byte of each class of these files; `expected` says what may come
/// of a class by its name.
fn flip(
    original: &Original,
    pick: impl Fn(&str) -> bool,
    expected: impl Fn(&str) -> &'static [&'static str],
) {
    let classes = chosen(original, pick);
    assert!(!classes.is_empty());
    for class in classes {
        for (place, bit) in
            places(&class).into_iter().flat_map(|place| (0..8).map(move |bit| (place, bit)))
        {
            let verdict = original.with(&class.file, |bytes| bytes[place] ^= 1 << bit);
            let Class { file, name, .. } = &class;
            let expected = expected(name);
            assert!(
                expected.contains(&verdict.name()),
                "{file} at {place}, bit {bit}, {name}: {verdict:?}"
            );
        }
    }
}

/// Whether a class has records, and not only marks of how far the log is synced.
fn is_mark(name: &str) -> bool {
    name.contains(" of mark ")
}

#[test]
fn c29_a_flipped_bit_in_the_metadata_or_in_the_log_behind_the_newest_snapshot_is_refused() {
    let original = Original::new(true);
    let is_needed = |file: &str| file.ends_with("/metadata") || original.is_behind_snapshot(file);
    // What a mark says, others say, too; none of them has a record.
    flip(&original, is_needed, |name| {
        if is_mark(name) { &["found by who looks at everything"] } else { &["refused"] }
    });
}

#[test]
fn c29_a_flipped_bit_in_a_segment_that_is_not_read_at_start_is_told_when_its_payload_is_wanted() {
    let original = Original::new(true);
    let kept: Vec<&String> = original
        .tree
        .keys()
        .filter(|file| file.contains("/log-") && !original.is_behind_snapshot(file))
        .collect();
    // The first is there for its payloads alone, the last for the older snapshot.
    let is_kept = |file: &str| file == kept[0] || file == kept[kept.len() - 1];
    flip(&original, is_kept, |name| match name.contains("payload") {
        true => &["told", "found by who looks at everything"],
        false => &["found by who looks at everything"],
    });
    // All payloads of the first segment are needed.
    let first = original.tree.keys().find(|name| name.contains("/log-")).unwrap();
    let payload = chosen(&original, |file| file == first);
    let payload = payload.iter().find(|class| class.name.contains("payload")).unwrap();
    let verdict = original.with(first, |bytes| bytes[payload.bytes.start] ^= 1);
    assert!(matches!(&verdict, Verdict::Told(told) if told.len() == 1), "{verdict:?}");
}

#[test]
fn c29_a_flipped_bit_in_a_snapshot_is_made_up_for_by_an_older_one_and_the_log() {
    let original = Original::new(true);
    let newest = original.newest("/snapshot-");
    flip(
        &original,
        |file| file == newest,
        |name| match name {
            // A payload is looked at when it is wanted.
            "body of block 2" => &["told"],
            _ => &["put aside"],
        },
    );
    let is_older = |file: &str| file.contains("/snapshot-") && file != newest;
    flip(&original, is_older, |name| match name {
        "body of block 2" => &["told", "found by who looks at everything"],
        _ => &["found by who looks at everything"],
    });
}

#[test]
fn pe08_a_flipped_bit_in_a_blob_or_its_map_is_told_and_its_bytes_are_not_served() {
    let original = Original::new(true);
    flip(
        &original,
        |file| file.starts_with("blobs/"),
        |name| match name {
            "nothing" | "bytes behind a chunk" => &["same"],
            _ => &["told"],
        },
    );
}

/// Cuts a file at each of these lengths.
fn cut(
    original: &Original,
    file: &str,
    lens: impl IntoIterator<Item = usize>,
    expected: impl Fn(usize, &Verdict),
) {
    for len in lens {
        let verdict = original.with(file, |bytes| bytes.truncate(len));
        if let Verdict::Refused(text) = &verdict {
            assert!(
                text.contains("offset") || text.contains("missing"),
                "{file} cut at {len}: {text}"
            );
        }
        expected(len, &verdict);
    }
}

#[test]
fn c29_a_file_that_is_cut_is_found_wherever_it_is_cut() {
    let original = Original::new(true);
    let classes = classes::all(&original.tree);
    let newest = original.newest("/snapshot-");
    let last = original.newest("/log-");
    for (file, bytes) in &original.tree {
        let starts =
            classes.iter().filter(|class| class.file == *file).map(|class| class.bytes.start);
        let middles = starts.clone().map(|start| (start + 1).min(bytes.len() - 1));
        let mut lens: BTreeSet<usize> = starts.chain(middles).collect();
        if file.ends_with("/metadata") {
            lens.extend(0..bytes.len());
        }
        if *file == last {
            continue;
        }
        let marks = classes.iter().rfind(|class| class.file == *file && is_mark(&class.name));
        let records_end = marks.map_or(bytes.len(), |mark| mark.bytes.end - 32);
        let step = usize::try_from(scaled(3, 1)).unwrap();
        cut(&original, file, lens.into_iter().step_by(step), |len, verdict| {
            let allowed: &[&str] = match () {
                () if file.ends_with("/metadata") => &["refused"],
                // The mark that another segment follows is not a record.
                () if original.is_behind_snapshot(file) && len >= records_end => {
                    &["same", "found by who looks at everything"]
                }
                () if original.is_behind_snapshot(file) => &["refused"],
                // A segment that is there for its payloads, or for the older snapshot, says itself
                // that it goes on.
                () if file.contains("/log-") => {
                    &["same", "told", "found by who looks at everything"]
                }
                () if *file == newest => &["put aside"],
                () if file.contains("/snapshot-") => &["told", "found by who looks at everything"],
                () => &["told", "same"],
            };
            assert!(
                allowed.contains(&verdict.name()),
                "{file} cut at {len} of {}: {verdict:?}",
                bytes.len()
            );
        });
    }
}

/// Where the last segment is cut: behind a group that others say was synced, nothing shows that
/// there was more.
#[test]
fn c29_a_last_segment_that_is_cut_opens_with_what_is_left_and_that_cannot_be_told_from_a_crash() {
    let original = Original::new(true);
    let last = original.newest("/log-");
    let len = original.tree[&last].len();
    for at in (0..len).step_by(usize::try_from(scaled(7, 1)).unwrap()) {
        match original.with(&last, |bytes| bytes.truncate(at)) {
            Verdict::Refused(text) => {
                assert!(at < 64 && text.contains(&last), "cut at {at}: {text}")
            }
            // Only what is behind the cut is missing, and the snapshot is not.
            Verdict::Silent(text) => {
                assert!(at >= 64 && text.starts_with("it ends with record"), "{text}")
            }
            Verdict::Same | Verdict::Verified => assert!(at >= len - 32, "cut at {at} of {len}"),
            other => panic!("cut at {at}: {other:?}"),
        }
    }
}

/// Where the leader ended right behind a sync, nothing in the file says yet that its last groups
/// were synced: if they are damaged, they look as if they had been on their way, and are cut. Of
/// all that is before them this is not so.
#[test]
fn c29_only_what_the_last_sync_brought_and_no_mark_vouches_for_passes_for_what_was_on_its_way() {
    let original = Original::new(false);
    let last = original.newest("/log-");
    let classes = chosen(&original, |file| file == last);
    // The last sync brought two groups, as nobody had waited for the first of them.
    let last_group = classes.iter().filter_map(group).max().unwrap();
    for class in classes {
        let verdict = original.with(&last, |bytes| bytes[class.bytes.start] ^= 4);
        let number = group(&class).unwrap_or(0);
        match verdict {
            Verdict::Refused(_) => assert!(number + 1 < last_group, "{class:?}"),
            Verdict::Silent(text) => {
                let ends = original.view.index - 1 - (last_group - number) as u64;
                assert_eq!(
                    text,
                    format!("it ends with record {ends} of {}", original.view.index),
                    "{class:?}"
                );
                assert!(number + 1 >= last_group, "{class:?}: {text}");
            }
            other => panic!("{class:?}: {other:?}"),
        }
    }
    // The next leader notes it as soon as it comes to rest, even if it does nothing else.
    let (_disk, mut opened) = data_dir::open(original.path()).unwrap();
    opened.journal.rest();
    drop((_disk, opened));
    let original = Original::taken(original.dir);
    flip(
        &original,
        |file| file == last,
        |name| {
            if is_mark(name) { &["found by who looks at everything"] } else { &["refused"] }
        },
    );
}

#[test]
fn c29_what_was_not_finished_is_removed_and_what_is_not_ours_stays() {
    let original = Original::new(true);
    let left = [
        "consensus/log-00000000000000ff.new",
        "consensus/snapshot-0000000000000001.new",
        "consensus/metadata.new",
    ];
    let blob = format!("blobs/{}.map.new", PARTIAL.simple());
    for name in left.into_iter().chain([blob.as_str()]) {
        std::fs::write(original.path().join(name), b"half of it").unwrap();
    }
    std::fs::write(original.path().join("consensus/notes.txt"), b"mine").unwrap();
    assert_eq!(look(original.path()).unwrap(), original.view);
    let mut now = tree(original.path());
    assert_eq!(now.remove("consensus/notes.txt").as_deref(), Some(&b"mine"[..]));
    assert_eq!(now.keys().collect::<Vec<_>>(), original.tree.keys().collect::<Vec<_>>());
}
