//! What a leader says of itself when it is asked.

use std::time::Duration;

use anyhow::Context as _;
use heft::answers::ask::{self, Ask};
use heft::answers::{Log, Status};
use heft::client::{Client, Options};

/// What a leader's log took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCost {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) syncs: u64,
    /// How long all of them took.
    pub(crate) sync_us: u64,
}

impl LogCost {
    /// What a status says of the log.
    pub(crate) fn of(log: &Log) -> LogCost {
        LogCost {
            records: log.log_records,
            bytes: log.log_bytes,
            syncs: log.log_syncs,
            sync_us: log.log_sync_us,
        }
    }

    /// What it took between two readings.
    pub(crate) fn since(&self, before: &LogCost) -> LogCost {
        LogCost {
            records: self.records.saturating_sub(before.records),
            bytes: self.bytes.saturating_sub(before.bytes),
            syncs: self.syncs.saturating_sub(before.syncs),
            sync_us: self.sync_us.saturating_sub(before.sync_us),
        }
    }

    pub(crate) fn plus(&self, other: &LogCost) -> LogCost {
        LogCost {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
            syncs: self.syncs + other.syncs,
            sync_us: self.sync_us + other.sync_us,
        }
    }
}

/// Asks the leader at this port for its status, and waits so long for the answer. Nothing of it
/// goes into the leader's log.
pub(crate) fn ask(port: u16, within: Duration) -> anyhow::Result<Status> {
    question(port, &ask::Status {}, within)
}

/// Asks it something else.
pub(crate) fn question<Q: Ask>(
    port: u16,
    asked: &Q,
    within: Duration,
) -> anyhow::Result<Q::Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let options = Options {
            connect_wait: Some(within),
            welcome_wait: within + within,
            ..Options::new("")
        };
        let asked = async {
            let client = Client::connect(&format!("127.0.0.1:{port}"), &options).await?;
            let answer = client.ask(asked).await?.answer;
            client.close().await;
            anyhow::Ok(answer)
        };
        let answered = tokio::time::timeout(within, asked).await;
        answered.with_context(|| format!("the leader says nothing for {} s", within.as_secs()))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_what_it_took_between_two_readings() {
        let log = |records: u64| Log {
            log_records: records,
            log_bytes: 10 * records,
            log_syncs: 2,
            log_sync_us: 9,
            log_trouble: None,
        };
        let (before, after) = (LogCost::of(&log(5)), LogCost::of(&log(8)));
        assert_eq!(after.since(&before), LogCost { records: 3, bytes: 30, syncs: 0, sync_us: 0 });
        assert_eq!(before.plus(&after).records, 13);
    }
}
