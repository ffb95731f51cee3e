//! Blobs as operators see them: which there are, whether they are as they were written, and files that nothing refers to any
//! more, which are collected after a while, or when somebody asks for it.

use std::collections::HashSet;
use std::time::Duration;

use tracing::info;

use super::ask::LISTED_MAX;
use super::datasets::DatasetEvent;
use super::questions::{Lister, QuestionEvent};
use super::relay::BlobId;
use super::{Leader, Output};
use crate::answers::Collected;
use crate::core::ids::Micros;
use crate::store::blobs::{DiskDone, DiskOp, Listed};

/// How often files that nothing refers to are looked for.
const COLLECT_EVERY: Duration = Duration::from_secs(300);

impl Leader {
    /// The first look for files that nothing refers to: after those that were being brought had time to come again.
    pub(super) fn collect_later(&mut self) {
        self.collect_at = Some(self.now.plus(self.config.blob_grace));
    }

    pub(super) fn collect_when_due(&mut self) {
        let now = self.now;
        if self.collect_at.take_if(|due| *due <= now).is_some() {
            self.collect_at = Some(now.plus(COLLECT_EVERY));
            self.questions(QuestionEvent::List);
        }
    }

    /// A disk operation ended.
    pub fn disk_done(&mut self, now: Micros, done: DiskDone) {
        self.pass_time(now);
        match done {
            DiskDone::Listed { result } => self.questions(QuestionEvent::Listed(result)),
            DiskDone::Checked { blob, result } => {
                self.questions(QuestionEvent::Checked { blob, result: result.clone() });
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

    /// Removes files that nothing refers to, or says which would go.
    pub(super) fn collect(&mut self, lister: Lister, listed: Vec<Listed>) {
        let grace = self.config.blob_grace;
        let is_old =
            |file: &Listed| Micros(file.written_at.saturating_mul(1_000_000)).plus(grace) <= self.now;
        // Who asks does not wait for those either that may bring their dataset again.
        let loose: HashSet<BlobId> = match &lister {
            Lister::Asked { .. } => {
                self.datasets.stale_packs(self.now, &self.facts(), Duration::ZERO).into_iter().collect()
            }
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
                    true => self.dataset_event(DatasetEvent::Unwanted { blob: orphan.blob }),
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
}
