//! `heft client`: the founding documents' sample client (CL02, CLI03). Three jobs to `calcA`, three
//! results.

use std::process::ExitCode;

use crate::client::{Client, JobError};
use crate::model::hello::CLIENT_CAP_DEFAULT;
use crate::model::{InputFile, JobRequest, JobResult, JobStatus};
use clap::Args;
use uuid::Uuid;

use super::exit::{FAILED, Usage};
use super::{Connect, print, printable, say};

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
    /// Client id.
    client_id: String,
    /// Maximum concurrent jobs (default: CLIENT_DESIRED_PAR, else 4).
    desired: Option<i64>,
    #[command(flatten)]
    connect: Connect,
}

/// Runs the command.
pub fn run(args: &ClientArgs) -> anyhow::Result<ExitCode> {
    super::block_on(samples(args))
}

async fn samples(args: &ClientArgs) -> anyhow::Result<ExitCode> {
    let environment = std::env::var("CLIENT_DESIRED_PAR").ok().filter(|text| !text.is_empty());
    let mut options = args.connect.options(&args.client_id);
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
    print(as_text(job, &result).as_bytes())?;
    Ok(result.status == JobStatus::Ok)
}

/// A result as the samples print it. They fetch no parts: of those that stay at the leader it is
/// said how large they are, and how they are had.
fn as_text(job: Uuid, result: &JobResult) -> String {
    let archive = match (&result.output_archive, &result.archive, result.archive_lost) {
        (Some(archive), _, _) => format!("{} B", archive.len()),
        (None, Some(part), _) => {
            format!("{} B, kept at the leader: see `heft result get`", part.size)
        }
        (None, None, Some(bytes)) => format!("of {bytes} B left out, as it did not fit"),
        (None, None, None) => "0 B".to_owned(),
    };
    let mut text = format!("{job}  {}  archive {archive}\n", printable(result.status.as_str()));
    let outputs = [
        ("stdout", &result.stdout, &result.stdout_blob),
        ("stderr", &result.stderr, &result.stderr_blob),
    ];
    for (name, output, part) in outputs {
        for line in output.lines() {
            text.push_str(&format!("  {name}  {}\n", printable(line)));
        }
        if let Some(part) = part {
            text.push_str(&format!("  {name}  [{} B in all: see `heft result get`]\n", part.size));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BlobRef;

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
    fn parts_that_stay_at_the_leader_are_not_said_to_be_empty() {
        let part = |size| Some(BlobRef { id: Uuid::nil(), size, digest: None });
        let mut result = JobResult::new(Uuid::nil(), "c", "calcA", JobStatus::Ok);
        result.stdout = "a\n".to_owned();
        assert!(as_text(Uuid::nil(), &result).ends_with("  OK  archive 0 B\n  stdout  a\n"));
        (result.archive, result.stdout_blob) = (part(5_000_000), part(7_000_000));
        let text = as_text(Uuid::nil(), &result);
        assert!(
            text.contains("archive 5000000 B, kept at the leader: see `heft result get`\n"),
            "{text}"
        );
        assert!(
            text.ends_with("  stdout  a\n  stdout  [7000000 B in all: see `heft result get`]\n"),
            "{text}"
        );
        (result.archive, result.output_archive) = (None, Some(vec![0; 3]));
        assert!(as_text(Uuid::nil(), &result).contains("  archive 3 B\n"));
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
