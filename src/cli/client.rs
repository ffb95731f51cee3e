//! `heft client`: the founding documents' sample client (CL02, CLI03). Three jobs to `calcA`, three results.

use std::process::ExitCode;

use crate::client::{Client, JobError};
use crate::model::hello::CLIENT_CAP_DEFAULT;
use crate::model::{InputFile, JobRequest, JobResult, JobStatus};
use clap::Args;
use uuid::Uuid;

use super::{FAILED, Reach, Usage, print, printable, say};

/// Jobs that the samples send.
pub(crate) const SAMPLES: u32 = 3;

const EXAMPLES: &str = "Examples:
  heft client 127.0.0.1 5000 clientA
  heft client 127.0.0.1 5000 clientA 8
  CLIENT_DESIRED_PAR=8 heft client 127.0.0.1 5000 clientA";

/// Send three sample jobs to `calcA` and print their results
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ClientArgs {
    /// The leader's host.
    host: String,
    /// The leader's port.
    port: u16,
    /// Who the client is.
    client_id: String,
    /// How many of its jobs may run at a time; without it CLIENT_DESIRED_PAR, else 4.
    desired: Option<i64>,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &ClientArgs) -> anyhow::Result<ExitCode> {
    super::block_on(samples(args))
}

async fn samples(args: &ClientArgs) -> anyhow::Result<ExitCode> {
    let environment = std::env::var("CLIENT_DESIRED_PAR").ok();
    let mut options = args.reach.options(&args.client_id);
    options.desired = desired(args.desired, environment.as_deref())?;
    let host = if args.host.contains(':') { format!("[{}]", args.host) } else { args.host.clone() };
    let client = Client::connect(&format!("{host}:{}", args.port), &options).await?;
    let mut jobs = Vec::new();
    for number in 0..SAMPLES {
        jobs.push(client.submit(sample("calcA", number)).await?);
    }
    let mut all_ok = true;
    for job in &mut jobs {
        let id = job.id();
        all_ok &= show(id, job.wait().await)?;
    }
    client.close().await;
    Ok(if all_ok { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The cap: the argument before the environment before the default, at least 1 (CP02, ENV01).
pub(crate) fn desired(argument: Option<i64>, environment: Option<&str>) -> Result<u32, Usage> {
    let wanted = match (argument, environment) {
        (Some(number), _) => number,
        (None, Some(text)) => text.trim().parse().map_err(|_| {
            Usage(format!(
                "CLIENT_DESIRED_PAR is {text:?}, not a number: set it to one such as 4, or unset it"
            ))
        })?,
        (None, None) => CLIENT_CAP_DEFAULT.into(),
    };
    Ok(u32::try_from(wanted.clamp(1, i32::MAX.into())).unwrap_or(1))
}

/// A sample job (CL02); the first is number 0.
pub(crate) fn sample(exec_name: &str, number: u32) -> JobRequest {
    JobRequest {
        exec_name: exec_name.to_owned(),
        args: vec!["--mode=fast".to_owned(), format!("--seed={number}")],
        files: vec![InputFile::inline("input.txt", format!("hello-{number}"))],
        ..JobRequest::default()
    }
}

/// Prints a result; whether it is OK.
pub(crate) fn show(job: Uuid, result: Result<JobResult, JobError>) -> anyhow::Result<bool> {
    let result = match result {
        Ok(result) => result,
        Err(error) => {
            say(&error.to_string());
            return Ok(false);
        }
    };
    let archive = result.output_archive.as_ref().map_or(0, Vec::len);
    let mut text = format!("{job}  {}  archive {archive} B\n", printable(result.status.as_str()));
    for (name, output) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        for line in output.lines() {
            text.push_str(&format!("  {name}  {}\n", printable(line)));
        }
    }
    print(text.as_bytes())?;
    Ok(result.status == JobStatus::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cp02_the_argument_goes_before_the_environment_before_four_and_one_is_the_least() {
        let desired = |argument, environment| desired(argument, environment).unwrap();
        assert_eq!(desired(None, None), 4);
        assert_eq!(desired(None, Some("9")), 9);
        assert_eq!(desired(Some(2), Some("9")), 2);
        assert_eq!(desired(Some(0), None), 1);
        assert_eq!(desired(Some(-7), None), 1);
        assert_eq!(desired(None, Some("0")), 1);
        assert_eq!(desired(Some(i64::MAX), None), 2_147_483_647);
        let error = super::desired(None, Some("many")).unwrap_err().to_string();
        assert!(error.contains("\"many\""), "{error}");
    }

    #[test]
    fn cl02_the_samples_are_those_of_the_founding_documents() {
        let job = sample("calcA", 2);
        assert_eq!(
            (job.exec_name.as_str(), job.args),
            ("calcA", vec!["--mode=fast".into(), "--seed=2".into()])
        );
        assert_eq!(job.files, [InputFile::inline("input.txt", "hello-2")]);
    }
}
