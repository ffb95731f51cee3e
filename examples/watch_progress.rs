//! Follows a job from upload to result.
//!
//! ```text
//! cargo run --example watch_progress -- 127.0.0.1:5000 big.bin
//! ```
//!
//! Needs the worker of the example `embed_worker`.

// A program need not handle every kind of event.
#![allow(clippy::wildcard_enum_match_arm)]

use heft::client::{Client, Downloads, JobEvent, JobSpec, Options};
use heft::model::JobRequest;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(leader), Some(path)) = (args.next(), args.next()) else {
        return Err("usage: watch_progress HOST:PORT FILE".into());
    };
    // Large parts of results come as files into this directory.
    let results = std::env::temp_dir().join(format!("heft-results-{}", std::process::id()));
    let downloads = Downloads::Directory(results.clone());
    let options = Options { downloads, ..Options::new("example-watch") };
    let client = Client::connect(&leader, &options).await?;

    let request = JobRequest { exec_name: "measure".into(), ..JobRequest::default() };
    let mut job = client.submit(JobSpec::from(request).file("input.bin", path)?).await?;
    // Events end when the job has. Reading them is optional: they never hold the job up.
    while let Some(event) = job.event().await {
        match event {
            JobEvent::Submitted { ahead, .. } => eprintln!("taken, {ahead} jobs ahead"),
            JobEvent::Uploading { done, total } => eprintln!("uploading {done} of {total} bytes"),
            JobEvent::Progress { stage, done, total, text, .. } => {
                eprintln!("{stage:?} {done} of {total} {text}");
            }
            JobEvent::Waiting { text, .. } => eprintln!("waiting: {text}"),
            JobEvent::Reconnecting { leader, why, .. } => eprintln!("{leader} is away: {why}"),
            other => eprintln!("{other:?}"),
        }
    }
    let finished = job.finish().await?;
    print!("{}", finished.result()?.stdout);
    for part in &finished.parts {
        println!("{:?}: {} bytes", part.purpose, part.size);
    }
    client.close().await;
    if results.exists() {
        std::fs::remove_dir_all(results)?;
    }
    Ok(())
}
