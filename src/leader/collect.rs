//! Blobs as operators see them: which there are, whether they are as they were written, and files that nothing refers to any
//! more, which are collected after a while, or when somebody asks for it.

use std::collections::HashSet;
use std::time::Duration;

use tracing::{info, warn};

use super::ask::LISTED_MAX;
use super::relay::BlobId;
use super::{Asked, Leader, Output};
use crate::answers::{BlobPage, Checked, Collected};
use crate::core::ids::Micros;
use crate::store::blobs::{DiskDone, DiskOp, Listed};

/// How often files that nothing refers to are looked for.
const COLLECT_EVERY: Duration = Duration::from_secs(300);

/// Who wants to know which blobs have files.
#[derive(Debug)]
pub(super) enum Lister {
    /// The leader itself, from time to time.
    Own,
    /// Somebody who asked.
    Asked {
        /// Whom to answer.
        by: Asked,
        /// Whether nothing is to be removed.
        dry_run: bool,
    },
}

impl Lister {
    /// Whom to answer.
    pub(super) fn by(&self) -> Option<&Asked> {
        match self {
            Lister::Own => None,
            Lister::Asked { by, .. } => Some(by),
        }
    }
}

impl Leader {
    /// The first look for files that nothing refers to: after those that were being brought had time to come again.
    pub(super) fn collect_later(&mut self) {
        self.collect_at = Some(self.now.plus(self.config.blob_grace));
    }

    pub(super) fn collect_when_due(&mut self) {
        let now = self.now;
        if self.collect_at.take_if(|due| *due <= now).is_some() {
            self.collect_at = Some(now.plus(COLLECT_EVERY));
            self.list_files(Lister::Own);
        }
    }

    fn list_files(&mut self, lister: Lister) {
        self.listers.push_back(lister);
        self.outputs.push_back(Output::Disk(DiskOp::List));
    }

    /// A disk operation ended.
    pub fn disk_done(&mut self, now: Micros, done: DiskDone) {
        self.pass_time(now);
        match done {
            DiskDone::Listed { result } => self.listed(result),
            DiskDone::Checked { blob, result } => {
                self.answer_checked(blob, &result);
                self.relay.disk_done(DiskDone::Checked { blob, result });
            }
            DiskDone::Looked { blob, result } => self.looked(blob, result),
            DiskDone::Measured { .. } => {
                self.relay.disk_done(done);
                self.give_up_what_never_fits();
            }
            DiskDone::Written { .. } | DiskDone::Read { .. } | DiskDone::Sealed { .. } => {
                self.relay.disk_done(done);
            }
        }
        self.act();
    }

    fn listed(&mut self, result: Result<Vec<Listed>, String>) {
        let Some(lister) = self.listers.pop_front() else { return };
        let listed = match (result, &lister) {
            (Ok(listed), _) => listed,
            (Err(error), Lister::Own) => {
                return warn!("files that nothing refers to are not looked for: {error}");
            }
            (Err(error), Lister::Asked { by, .. }) => {
                return self.answer_error(by, &error);
            }
        };
        let grace = self.config.blob_grace;
        let is_old =
            |file: &Listed| Micros(file.written_at.saturating_mul(1_000_000)).plus(grace) <= self.now;
        // Who asks does not wait for those either that may bring their dataset again.
        let loose: HashSet<BlobId> = match &lister {
            Lister::Asked { .. } => self.stale_packs(Duration::ZERO).into_iter().collect(),
            Lister::Own => HashSet::new(),
        };
        let orphans: Vec<Listed> = listed
            .into_iter()
            .filter(|file| !self.relay.knows(file.blob) || loose.contains(&file.blob))
            .filter(|file| matches!(lister, Lister::Asked { .. }) || is_old(file))
            .collect();
        let bytes: u64 = orphans.iter().map(|file| file.bytes).sum();
        let dry_run = matches!(lister, Lister::Asked { dry_run: true, .. });
        if !dry_run {
            for orphan in &orphans {
                match loose.contains(&orphan.blob) {
                    true => self.forget_part(orphan.blob),
                    false => self.outputs.push_back(Output::Disk(DiskOp::Remove { blob: orphan.blob })),
                }
            }
            if !orphans.is_empty() {
                info!(blobs = orphans.len(), bytes, "removed files of blobs that nothing refers to");
            }
        }
        if let Lister::Asked { by, .. } = lister {
            let blobs = orphans.iter().take(LISTED_MAX).map(|orphan| orphan.blob.to_string()).collect();
            let collected = Collected { orphans: orphans.len() as u64, bytes, removed: !dry_run, blobs };
            self.answer(&by, &collected);
        }
    }

    // --- questions

    /// `blob.ls`: the blobs that are known, in the order of their ids.
    pub(super) fn blob_ls(&self, after: Option<BlobId>) -> BlobPage {
        let (blobs, more) = self.relay.list(after, LISTED_MAX);
        BlobPage { blobs, more, durability: self.durability() }
    }

    /// `blob.gc`: files that nothing refers to.
    pub(super) fn blob_gc(&mut self, by: Asked, dry_run: bool) {
        if !self.config.relay.durable {
            return self.answer_error(
                &by,
                "this leader keeps nothing (--durability memory), so there is nothing to collect",
            );
        }
        if !dry_run {
            // Files that only wait to be written again are nobody's, either.
            self.outputs.push_back(Output::Disk(DiskOp::MakeRoom));
            self.relay.measure();
        }
        self.list_files(Lister::Asked { by, dry_run });
    }

    /// `blob.verify`: reads a blob and checks it.
    pub(super) fn blob_verify(&mut self, by: Asked, blob: BlobId) {
        if !self.config.relay.durable {
            return self.answer_error(
                &by,
                "this leader keeps nothing (--durability memory), so there is nothing to verify",
            );
        }
        if !self.relay.knows(blob) {
            return self
                .answer_error(&by, &format!("no blob {blob} is known here: `heft blob ls` lists them"));
        }
        if !self.relay.has_file(blob) {
            return self.answer(&by, &Checked { blob: blob.to_string(), ..Checked::default() });
        }
        self.checks.entry(blob).or_default().push(by);
        self.outputs.push_back(Output::Disk(DiskOp::Check { blob }));
    }

    fn answer_checked(&mut self, blob: BlobId, result: &Result<(Vec<u32>, Vec<String>), String>) {
        let (good, bad) = match result {
            Ok((good, bad)) => (good.len() as u64, bad.clone()),
            Err(error) => (0, vec![error.clone()]),
        };
        let checked = Checked { blob: blob.to_string(), good, bad };
        for by in self.checks.remove(&blob).unwrap_or_default() {
            self.answer(&by, &checked);
        }
    }
}
