//! `heft clientx`: the sample jobs over several leaders at a time, to `calcA` and `calcB` in turn
//! (SPEC 1M, CLI04).

use std::process::ExitCode;

use crate::client::{MultiClient, Options, Policy};
use crate::model::hello::CLIENT_CAP_DEFAULT;
use clap::Args;

use super::client::{SAMPLES, sample, show};
use super::exit::{FAILED, Usage};

const EXAMPLES: &str = "Examples:
  heft clientx clientA 127.0.0.1:5000 127.0.0.1:5001 127.0.0.1:5002 12
  heft clientx clientA 127.0.0.1:5000 127.0.0.1:5001 --policy least-in-flight

Leaders that are away are tried again after 0.5 s, doubling to 30 s. A job whose leader stays
away for 10 s goes to another under the same id.";

/// Send sample jobs to `calcA` and `calcB` over several leaders at a time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "heft clientx [OPTIONS] <CLIENT_ID> <HOST:PORT>... [DESIRED_TOTAL]")]
pub struct ClientxArgs {
    /// Client id.
    client_id: String,
    /// Leader addresses; a number after them is the maximum of concurrent jobs over all leaders
    /// (default 4).
    #[arg(required = true, value_name = "HOST:PORT")]
    leaders: Vec<String>,
    /// How to choose a leader for each job: round-robin or least-in-flight.
    #[arg(long, default_value_t)]
    policy: Policy,
    /// TCP congestion control.
    #[arg(long, value_name = "NAME", value_parser = super::congestion)]
    tcp_congestion: Option<String>,
}

/// Runs the command.
pub fn run(args: &ClientxArgs) -> anyhow::Result<ExitCode> {
    super::block_on(samples(args))
}

async fn samples(args: &ClientxArgs) -> anyhow::Result<ExitCode> {
    let (leaders, desired) = leaders_and_total(args.leaders.clone())?;
    let mut options =
        Options { desired, policy: args.policy, ..Options::new(args.client_id.as_str()) };
    options.tuning.congestion.clone_from(&args.tcp_congestion);
    let mut client = MultiClient::connect(&leaders, &options).await?;
    for number in 0..SAMPLES {
        let exec_name = if number % 2 == 0 { "calcA" } else { "calcB" };
        client.send(sample(exec_name, number)).await?;
    }
    let mut all_ok = true;
    for _ in 0..SAMPLES {
        let Some((job, result)) = client.next().await else { break };
        all_ok &= show(job, result)?;
    }
    client.close().await;
    Ok(if all_ok { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// A whole number at the end is the total (CLI04).
fn leaders_and_total(mut words: Vec<String>) -> Result<(Vec<String>, u32), Usage> {
    let total = match words.last().map(|word| word.parse::<i64>()) {
        Some(Ok(total)) => {
            words.pop();
            u32::try_from(total.clamp(1, i32::MAX.into())).unwrap_or(1)
        }
        Some(Err(_)) | None => CLIENT_CAP_DEFAULT,
    };
    if words.is_empty() {
        return Err(Usage(
            "no leader is named: write at least one host:port before the number".to_owned(),
        ));
    }
    Ok((words, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli04_a_number_at_the_end_is_the_total() {
        let read = |words: &[&str]| {
            leaders_and_total(words.iter().map(|word| (*word).to_owned()).collect())
        };
        let (leaders, total) = read(&["a:1", "b:2", "12"]).unwrap();
        assert_eq!((leaders, total), (vec!["a:1".to_owned(), "b:2".to_owned()], 12));
        assert_eq!(read(&["a:1"]).unwrap().1, 4);
        assert_eq!(read(&["a:1", "0"]).unwrap().1, 1);
        assert_eq!(read(&["a:1", "-3"]).unwrap().1, 1);
        assert!(read(&["12"]).unwrap_err().to_string().contains("no leader"));
    }
}
