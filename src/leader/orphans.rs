//! Collects orphaned files: after a delay, or on an operator's request.

use std::collections::HashSet;
use std::time::Duration;

use tracing::info;

use super::datasets::DatasetEvent;
use super::questions::Lister;
use super::relay::BlobId;
use super::{Leader, Output};
use crate::answers::Collected;
use crate::answers::LISTED_MAX;
use crate::core::ids::Micros;
use crate::store::blobs::{DiskOp, Listed};

impl Leader {
    /// Removes files that nothing refers to, or says which would go.
    pub(super) fn collect(&mut self, lister: Lister, listed: Vec<Listed>) {
        let grace = self.config.blob_grace;
        let is_old = |file: &Listed| {
            Micros(file.written_at.saturating_mul(1_000_000)).plus(grace) <= self.now
        };
        // An operator's `gc` also removes packs of interrupted puts, whose clients may still
        // return.
        let loose: HashSet<BlobId> = match &lister {
            Lister::Asked { .. } => self
                .datasets
                .stale_packs(self.now, &self.facts(), Duration::ZERO)
                .into_iter()
                .collect(),
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
                    false => {
                        self.outputs.push_back(Output::Disk(DiskOp::Remove { blob: orphan.blob }))
                    }
                }
            }
            if !orphans.is_empty() {
                info!(blobs = orphans.len(), bytes, "removed orphaned blob files");
            }
        }
        if let Lister::Asked { by, .. } = lister {
            let blobs =
                orphans.iter().take(LISTED_MAX).map(|orphan| orphan.blob.to_string()).collect();
            let collected =
                Collected { orphans: orphans.len() as u64, bytes, removed: !dry_run, blobs };
            self.answer(&by, &collected);
        }
    }
}
