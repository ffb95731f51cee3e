//! Holds manifests and packs of datasets against `vectors/frames.json`, which a second
//! implementation wrote, and shows what holds for all of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use chunking::dataset::{Cutter, Manifest, ManifestBuilder, Piece, pack::Layout};
use chunking::digest::to_hex;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::{property_config, unhex, vectors};

fn listed(list: &str) -> Vec<Value> {
    vectors("frames.json")[list].as_array().unwrap().clone()
}

/// The error has the expected name, and its text says what a reader needs.
fn check_error(vector: &Value, error: &impl std::error::Error) -> String {
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(', '{']).next().unwrap();
    assert_eq!(vector["expect"]["error"], name, "{}: {error}", vector["name"]);
    for said in vector["expect"]["says"].as_array().unwrap() {
        let said = said.as_str().unwrap();
        assert!(
            error.to_string().contains(said),
            "{}: \"{error}\" does not say {said}",
            vector["name"]
        );
    }
    name.to_owned()
}

#[test]
fn ca09_every_manifest_is_read_and_written_as_its_vector_says() {
    let mut errors = BTreeSet::new();
    for vector in listed("manifests") {
        let bytes = unhex(vector["hex"].as_str().unwrap());
        match Manifest::decode(&bytes) {
            Ok(manifest) => {
                let files = manifest.files().iter().map(|file| {
                    let sha256 = to_hex(&file.sha256);
                    json!({"name": file.name, "size": file.size, "sha256": sha256, "pieces": file.pieces})
                });
                let read = json!({
                    "digest": manifest.digest(), "pieces": manifest.pieces(), "files": files.collect::<Vec<_>>(),
                });
                assert_eq!(read, vector["expect"]["manifest"], "{}", vector["name"]);
                assert_eq!(manifest.encode(), bytes, "{}", vector["name"]);
            }
            Err(error) => {
                errors.insert(check_error(&vector, &error));
            }
        }
    }
    assert_eq!(errors, ["Entry", "Length", "Marker", "Version"].map(str::to_owned).into());
}

#[test]
fn ca09_every_pack_is_read_and_written_as_its_vector_says() {
    let mut errors = BTreeSet::new();
    for vector in listed("packs") {
        let tail = unhex(vector["tail_hex"].as_str().unwrap());
        match Layout::from_tail(&tail, vector["size"].as_u64().unwrap()) {
            Ok(layout) => {
                assert_eq!(
                    json!(layout.pieces()),
                    vector["expect"]["pieces"],
                    "{}",
                    vector["name"]
                );
                assert_eq!(layout.tail(), tail, "{}", vector["name"]);
            }
            Err(error) => {
                errors.insert(check_error(&vector, &error));
            }
        }
    }
    assert_eq!(errors, ["Footer", "Large", "Piece", "Version"].map(str::to_owned).into());
}

/// Contents of a few pieces each; some pieces are the same.
fn files() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let piece = (0u8..6, 1usize..40).prop_map(|(letter, len)| vec![letter; len]);
    btree_map("[a-z計]{1,3}(/[a-z]{1,3})?", vec(piece, 0..6), 0..8)
        .prop_map(|files| files.into_iter().map(|(name, pieces)| (name, pieces.concat())).collect())
}

fn built(files: &[(String, Vec<u8>)], step: usize) -> Manifest {
    let mut builder = ManifestBuilder::default();
    for (name, bytes) in files {
        let pieces = bytes.chunks(step).map(Piece::of).collect();
        builder.file(name.as_str(), chunking::dataset::sha256(bytes), pieces);
    }
    builder.finish().unwrap()
}

proptest! {
    #![proptest_config(property_config(200, 10_000))]

    #[test]
    fn manifests_survive_their_bytes_and_know_content_by_one_digest(files in files(), step in 1usize..20, other in 1usize..20) {
        let manifest = built(&files, step);
        prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest.clone()));
        prop_assert_eq!(manifest.digest(), built(&files, other).digest());
        prop_assert_eq!(manifest.bytes(), files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
        let distinct: BTreeSet<&Piece> = manifest.pieces().iter().collect();
        prop_assert_eq!(distinct.len(), manifest.pieces().len());
        for (file, (name, bytes)) in manifest.files().iter().zip(&files) {
            prop_assert_eq!(&file.name, name);
            for (at, _, piece) in manifest.layout(file) {
                let at = usize::try_from(at).unwrap();
                prop_assert!(piece.is(&bytes[at..at + piece.len as usize]));
            }
        }
    }

    #[test]
    fn manifests_that_are_cut_or_changed_are_never_taken_for_others(
        files in files(), at in any::<prop::sample::Index>(), bit in 0u32..8,
    ) {
        let manifest = built(&files, 7);
        let bytes = manifest.encode();
        let at = at.index(bytes.len());
        prop_assert!(Manifest::decode(&bytes[..at]).is_err());
        let mut changed = bytes;
        changed[at] ^= 1 << bit;
        prop_assert_ne!(Manifest::decode(&changed), Ok(manifest));
    }

    #[test]
    fn packs_know_where_their_pieces_lie(
        lens in vec(1u32..1000, 0..40), from in any::<prop::sample::Index>(), len in 0u64..5000,
    ) {
        let pieces: Vec<Piece> = lens.iter().map(|len| Piece { blake3: [1; 32], len: *len }).collect();
        let layout = Layout::new(pieces).unwrap();
        prop_assert_eq!(Layout::from_tail(&layout.tail(), layout.size()), Ok(layout.clone()));
        let data = usize::try_from(layout.data_bytes()).unwrap();
        let from = from.index(data + 1) as u64;
        let asked = from..from + len;
        let found = layout.pieces_in(asked.clone());
        let touches = |place: &usize| {
            let range = layout.range(*place).unwrap();
            range.start < asked.end && asked.start < range.end
        };
        let expected: Vec<usize> = (0..lens.len()).filter(touches).collect();
        if asked.is_empty() {
            prop_assert!(found.len() <= 1);
        } else {
            prop_assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn cuts_lose_nothing(bytes in vec(any::<u8>(), 0..200_000)) {
        let (mut rest, mut lens) = (bytes.as_slice(), Vec::new());
        while let Some(len) = Cutter.cut(rest, true) {
            lens.push(len);
            rest = &rest[len..];
        }
        prop_assert!(rest.is_empty() && lens.iter().all(|len| *len >= 1));
        prop_assert_eq!(lens.iter().sum::<usize>(), bytes.len());
    }
}
