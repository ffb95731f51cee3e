//! Handles puts of classic leaders: a few files in one frame (CachePut, CA05, M12). They become an
//! ordinary dataset of the existing files, which are not overwritten, and the new ones. Blocking.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use chunking::dataset::{Cutter, ManifestBuilder, Piece, sha256};
use thiserror::Error;
use uuid::Uuid;

use super::CacheId;
use super::contents::{Contents, ContentsError};
use super::disk::{Disk, Entry};
use super::seal::Seal;
use super::staged::{Donor, Staged};
use crate::core::names::{NameError, NameUse, SafeName};
use crate::model::{CacheEntry, CachePutRequest};

/// A put that cannot be stored.
#[derive(Debug, Error)]
pub(in crate::worker) enum PutError {
    #[error(transparent)]
    Contents(#[from] ContentsError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("\"{name}\" does not hash to the SHA-256 that came with it: send it again")]
    Digest { name: String },
    #[error("cannot store the files: {0}")]
    Io(#[from] io::Error),
}

/// What became of a put.
#[derive(Debug)]
pub(in crate::worker) struct Stored {
    pub(super) added: u64,
    pub(super) skipped: u64,
    /// The dataset, if it is a new one.
    pub(super) dataset: Option<Made>,
}

/// A dataset that is visible now.
#[derive(Debug)]
pub(in crate::worker) struct Made {
    pub(super) version: Uuid,
    pub(super) contents: Arc<Contents>,
    pub(super) seals: Vec<Seal>,
}

/// Bytes of files that a dataset does not have.
pub(super) fn new_bytes(request: &CachePutRequest, before: Option<&Contents>) -> u64 {
    let is_new = |entry: &&CacheEntry| parse(entry).ok().is_none_or(|name| is_new(&name, before));
    let new = request.entries.iter().filter(is_new);
    new.map(|entry| entry.content.len() as u64).fold(0, u64::saturating_add)
}

/// A classic client's name may be written longer than it is (C08). What a dataset cannot have is
/// refused with the dataset.
fn parse(entry: &CacheEntry) -> Result<SafeName, NameError> {
    SafeName::parse(NameUse::File, &entry.name)
}

fn is_new(name: &SafeName, before: Option<&Contents>) -> bool {
    before.is_none_or(|before| before.find(name.as_str()).is_none())
}

/// Stores the files that are new.
pub(super) fn store(
    disk: &Disk,
    cache: &CacheId,
    request: &CachePutRequest,
    before: Option<&Donor>,
) -> Result<Stored, PutError> {
    let mut entries = Vec::with_capacity(request.entries.len());
    for entry in &request.entries {
        let name = parse(entry)?;
        if entry.sha256.is_some_and(|said| said != sha256(&entry.content)) {
            return Err(PutError::Digest { name: entry.name.clone() });
        }
        entries.push((name, entry.content.as_slice()));
    }
    let count = entries.len() as u64;
    if before.is_none() && disk.entry(cache)? == Entry::Theirs {
        return theirs(disk, cache, &entries).map(|()| Stored {
            added: 0,
            skipped: count,
            dataset: None,
        });
    }
    if let Some(before) = before {
        disk.mend_link(cache, before.version)?;
    }
    let known = before.map(|donor| &*donor.contents);
    let new: Vec<&(SafeName, &[u8])> =
        entries.iter().filter(|(name, _)| is_new(name, known)).collect();
    let (added, skipped) = (new.len() as u64, count - new.len() as u64);
    if new.is_empty() {
        return Ok(Stored { added, skipped, dataset: None });
    }
    let mut builder = ManifestBuilder::default();
    for (_, entry) in known.iter().flat_map(|known| known.files()) {
        let pieces =
            entry.pieces.iter().filter_map(|piece| known.and_then(|known| known.piece(*piece)));
        builder.file(&entry.name, entry.sha256, pieces.collect());
    }
    for (name, content) in &new {
        builder.file(name.as_str(), sha256(content), cut(content).map(Piece::of).collect());
    }
    let manifest = builder.finish().map_err(ContentsError::from)?;
    let contents = Arc::new(Contents::new(manifest)?);
    let version = Uuid::new_v4();
    let staged =
        Staged::prepare(disk, version, contents.clone(), before.map_or(&[], std::slice::from_ref));
    let shown = staged.and_then(|staged| {
        for (name, content) in &new {
            let file = contents.find(name.as_str());
            let Some((_, listed)) = file.and_then(|file| contents.file(file)) else { continue };
            for (piece, bytes) in listed.pieces.iter().zip(cut(content)) {
                if staged.lacks(*piece) {
                    staged.spread(*piece, None, bytes)?;
                }
            }
        }
        staged.show(disk, cache)
    });
    match shown {
        Ok((seals, _)) => {
            Ok(Stored { added, skipped, dataset: Some(Made { version, contents, seals }) })
        }
        Err(error) => {
            disk.discard_staged(version).ok();
            Err(error.into())
        }
    }
}

/// A directory or file that others made: all is there already, or nothing is done.
fn theirs(disk: &Disk, cache: &CacheId, entries: &[(SafeName, &[u8])]) -> Result<(), PutError> {
    let root = disk.root().join(cache.as_str());
    let same = |path: &Path, content: &[u8]| fs::read(path).is_ok_and(|found| found == content);
    let all = entries.iter().all(|(name, content)| {
        same(&root.join(name.as_str()), content) || entries.len() == 1 && same(&root, content)
    });
    if all { Ok(()) } else { disk.before(cache).map(|_| ()).map_err(PutError::from) }
}

fn cut(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (piece, left) = rest.split_at_checked(Cutter.cut(rest, true)?)?;
        rest = left;
        Some(piece)
    })
}
