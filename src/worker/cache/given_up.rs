//! Remembers evicted and invalid datasets that nobody has requested since.
//!
//! A restarted leader does not know about them and would push them back, which would evict others.
//! So each leader is told about them together with the cache's contents, also by later runs of this
//! worker: they are stored in a small file, one line each, `digest, tab, CacheId, tab, text`. The
//! file is only a hint: unreadable lines are dropped.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use chunking::Digest;
use tracing::warn;

use super::CacheId;
use crate::worker::limits::{GIVEN_UP_FILE_BYTES_MAX, GIVEN_UP_MAX, GIVEN_UP_TEXT_MAX};

/// The datasets, those that went first in front.
#[derive(Debug)]
pub(super) struct GivenUp {
    path: PathBuf,
    datasets: VecDeque<One>,
}

/// A dataset that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct One {
    pub(super) cache: CacheId,
    pub(super) digest: Digest,
    pub(super) text: String,
}

impl GivenUp {
    /// Reads the file, but for datasets that are here.
    pub(super) fn load(path: PathBuf, is_here: impl Fn(&CacheId) -> bool) -> Self {
        let mut bytes = Vec::new();
        match File::open(&path)
            .and_then(|file| file.take(GIVEN_UP_FILE_BYTES_MAX).read_to_end(&mut bytes))
        {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!("cannot read {}: {error}", path.display()),
        }
        let lines = String::from_utf8_lossy(&bytes);
        let datasets = lines.lines().filter_map(One::read).filter(|one| !is_here(&one.cache));
        let datasets = datasets.take(GIVEN_UP_MAX).collect();
        GivenUp { path, datasets }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &One> {
        self.datasets.iter()
    }

    /// A dataset is given up. Of too many the first are forgotten.
    pub(super) fn insert(&mut self, cache: &CacheId, digest: Digest, text: &str) {
        self.datasets.retain(|one| one.cache != *cache);
        let line = |c: char| if c.is_control() { ' ' } else { c };
        let text = text.chars().take(GIVEN_UP_TEXT_MAX).map(line).collect();
        self.datasets.push_back(One { cache: cache.clone(), digest, text });
        while self.datasets.len() > GIVEN_UP_MAX {
            self.datasets.pop_front();
        }
        self.save();
    }

    /// A dataset is here again, on its way because somebody asked, or not wanted any more.
    pub(super) fn remove(&mut self, cache: &CacheId) {
        let before = self.datasets.len();
        self.datasets.retain(|one| one.cache != *cache);
        if self.datasets.len() < before {
            self.save();
        }
    }

    fn save(&self) {
        let line = |one: &One| format!("{}\t{}\t{}\n", one.digest, one.cache, one.text);
        let lines: String = self.datasets.iter().map(line).collect();
        let unfinished = self.path.with_extension("new");
        let saved =
            fs::write(&unfinished, lines).and_then(|()| fs::rename(&unfinished, &self.path));
        if let Err(error) = saved {
            warn!("cannot note in {} which datasets were given up: {error}", self.path.display());
        }
    }
}

impl One {
    fn read(line: &str) -> Option<Self> {
        let (digest, rest) = line.split_once('\t')?;
        let (cache, text) = rest.split_once('\t')?;
        Some(One {
            cache: CacheId::parse(cache).ok()?,
            digest: digest.parse().ok()?,
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::DigestKind;

    fn id(text: &str) -> CacheId {
        CacheId::parse(text).unwrap()
    }

    fn names(datasets: &GivenUp) -> Vec<String> {
        datasets.iter().map(|one| one.cache.to_string()).collect()
    }

    #[test]
    fn they_outlive_the_worker_up_to_a_limit_and_damage_costs_what_it_hits() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("given-up");
        let load = || GivenUp::load(path.clone(), |cache| cache.as_str() == "here");
        let digest = Digest { kind: DigestKind::Sha256, bytes: [7; 32] };
        let mut datasets = load();
        for name in ["a", "here", "b", "a"] {
            datasets.insert(&id(name), digest, "to make\nroom");
        }
        assert_eq!(names(&datasets), ["here", "b", "a"]);
        let mut datasets = load();
        let a = One { cache: id("a"), digest, text: "to make room".to_owned() };
        assert_eq!(
            (names(&datasets), datasets.iter().last()),
            (vec!["b".to_owned(), "a".to_owned()], Some(&a))
        );
        datasets.remove(&id("b"));
        let mut bytes = fs::read(&path).unwrap();
        bytes.splice(0..0, b"no digest\tx\tx\n\xff\xfe\nsha256:00\ty\t\n".iter().copied());
        fs::write(&path, bytes).unwrap();
        assert_eq!(names(&load()), ["a"]);
        for number in 0..GIVEN_UP_MAX {
            datasets.insert(&id(&format!("set-{number}")), digest, "");
        }
        let datasets = load();
        assert_eq!(
            (datasets.iter().count(), names(&datasets)[0].as_str()),
            (GIVEN_UP_MAX, "set-0")
        );
    }
}
