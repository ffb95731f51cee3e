//! Submits a job with a file of any size and waits for its result.
//!
//! ```text
//! heft leader 5000
//! cargo run --example embed_worker -- 127.0.0.1:5000
//! cargo run --example submit_file -- 127.0.0.1:5000 big.bin
//! ```
//!
//! The file streams from the disk to the leader and on to the worker in checked chunks. It is never
//! held in memory, and a broken connection costs no more than the chunks on their way.

use heft::client::{Client, JobSpec, Options};
use heft::model::{JobRequest, JobStatus};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(leader), Some(path)) = (args.next(), args.next()) else {
        return Err("usage: submit_file HOST:PORT FILE".into());
    };

    let client = Client::connect(&leader, &Options::new("example-submit")).await?;
    let request = JobRequest { exec_name: "measure".into(), ..JobRequest::default() };
    let spec = JobSpec::from(request).file("input.bin", path)?;
    let mut job = client.submit(spec).await?;
    eprintln!("job {}", job.id());

    let result = job.wait().await?;
    print!("{}", result.stdout);
    client.close().await;
    if result.status != JobStatus::Ok {
        return Err(format!("the job ended {}: {}", result.status.as_str(), result.stderr).into());
    }
    Ok(())
}
