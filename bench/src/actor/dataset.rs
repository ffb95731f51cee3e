//! heft's own put of a dataset, embedded as any program embeds it. What the bench knows of that API
//! stands here.

use std::path::Path;
use std::time::{Duration, Instant};

use heft::client::Options;
use heft::client::dataset::{DatasetSpec, PutReport, Wait, put as put_set};

use crate::control::{Answer, Fanned, answer, fans};

/// How long a put may take; the director gives up long before.
const PUT_MAX: Duration = Duration::from_secs(3600);

/// How long the first connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How a dataset is put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// How many workers must have it; `None` for all.
    pub(crate) wait: Option<u32>,
    /// Whether other content under its CacheId goes.
    pub(crate) replace: bool,
    /// Whether the leader alone is to have it.
    pub(crate) at_leader: bool,
}

/// Puts what the director says.
pub(super) fn client(port: u16) -> anyhow::Result<()> {
    let fans = fans();
    answer(&Answer::Ready { ports: Vec::new() })?;
    for fan in fans {
        let began = Instant::now();
        let how = How { wait: Some(fan.wait), replace: false, at_leader: false };
        let report = put(port, &fan.cache_id, &fan.path, how)?;
        let (elapsed, spread) = (began.elapsed(), report.spread);
        let (received, moved) = (Some(spread.received), Some(spread.moved));
        answer(&Answer::Fanned(Fanned { elapsed, right: spread.ok, received, moved }))?;
    }
    Ok(())
}

/// Puts a dataset, on a connection of its own.
pub(crate) fn put(port: u16, cache_id: &str, path: &Path, how: How) -> anyhow::Result<PutReport> {
    let spec = DatasetSpec::new(cache_id, [path])?
        .wait(how.wait.map_or(Wait::All, Wait::Count))
        .replace(how.replace)
        .timeout(PUT_MAX);
    let spec = if how.at_leader { spec.target_none() } else { spec };
    let options = Options { connect_wait: Some(CONNECT_MAX), ..Options::new("bench") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(put_set(&format!("127.0.0.1:{port}"), spec, &options, |_| {}))?)
}
