//! Builds a worker's hello, and reads the answer of a node that is not the leader.

use chunking::frame::head_len;
use chunking::limits::FIRST_FRAME_BODY_BYTES_MAX;
use chunking::message::Features;
use chunking::{Generation, Kind};

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
    .with(Features::FOLLOW)
    .with(Features::PROGRAMS);

/// What a worker that is set up so can do.
pub(super) fn features(config: &WorkerConfig) -> Features {
    match config.cache {
        Some(_) => FEATURES.with(Features::DATASETS),
        None => FEATURES,
    }
}

/// The Hello: the first pattern is its subject, as classic workers have it, the others stand in the
/// announcement (S21). Programs that do not fit in follow later; says whether they are in it.
pub(super) fn hello_with(config: &WorkerConfig, programs: Option<&[String]>) -> (OutFrame, bool) {
    let frame = hello(config, programs);
    match bytes_of(&frame) <= FIRST_FRAME_BODY_BYTES_MAX as usize {
        true => (frame, programs.is_some()),
        false => (hello(config, None), false),
    }
}

/// Bytes of the body of a hello.
pub(super) fn bytes_of(frame: &OutFrame) -> usize {
    frame.payload.len() + head_len(Generation::F2, &frame.subject)
}

/// The same with all programs, whatever their size.
pub(super) fn hello(config: &WorkerConfig, programs: Option<&[String]>) -> OutFrame {
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
        programs: programs.map(<[String]>::to_vec),
    };
    OutFrame { msg_id: config.id, subject, ..OutFrame::new(Kind::HelloWorker, hello.to_json()) }
}
