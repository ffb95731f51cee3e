//! Builds a worker's hello, and reads the answer of a node that is not the leader.

use chunking::Kind;
use chunking::message::Features;

use super::config::WorkerConfig;
use crate::model::{JsonModel, WorkerHello};
use crate::peer::{OutFrame, announcement};

/// What our workers can do.
const FEATURES: Features = Features::LEASES
    .with(Features::PROGRESS)
    .with(Features::CANCEL)
    .with(Features::SUBMIT_ANSWERS)
    .with(Features::REDIRECTS)
    .with(Features::TRANSFERS)
    .with(Features::ZSTD)
    .with(Features::BROTLI)
    .with(Features::GZIP)
    .with(Features::CHECKSUMS)
    .with(Features::KEEPALIVE)
    .with(Features::PIECES)
    .with(Features::FOLLOW);

/// What a worker that is set up so can do.
pub(super) fn features(config: &WorkerConfig) -> Features {
    match config.cache {
        Some(_) => FEATURES.with(Features::DATASETS),
        None => FEATURES,
    }
}

/// The Hello: the first pattern is its subject, as classic workers have it, the others stand in the
/// announcement (S21).
pub(super) fn hello(config: &WorkerConfig) -> OutFrame {
    let mut patterns = config.patterns.iter().cloned();
    let subject = patterns.next().unwrap_or_default();
    let hello = WorkerHello {
        heft: announcement(features(config), config.name.clone()),
        patterns: patterns.collect(),
        max_parallel: Some(config.parallel_max),
        cache_only: config.cache_only,
        cache_for: config.cache_for.map(|worker| worker.to_string()),
        raw: config.takes_raw,
        instance: Some(config.instance.to_string()),
    };
    OutFrame { msg_id: config.id, subject, ..OutFrame::new(Kind::HelloWorker, hello.to_json()) }
}
