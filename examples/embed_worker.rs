//! A worker inside a program: no executables, a function runs the jobs.
//!
//! ```text
//! heft leader 5000
//! cargo run --example embed_worker -- 127.0.0.1:5000
//! ```
//!
//! It serves jobs named `measure`: counts the bytes and lines of `input.bin`, reports progress on
//! the way, and stops early if the job is cancelled.

use std::io;
use std::path::Path;

use heft::model::{JobResult, JobStatus};
use heft::worker::{Job, JobContext, Stage, Worker, WorkerConfig};
use tokio::fs::File;
use tokio::io::AsyncReadExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let leader = std::env::args().nth(1).ok_or("usage: embed_worker HOST:PORT")?;
    let config = WorkerConfig {
        patterns: vec!["job.assign.measure".into()],
        parallel_max: 2,
        work_dir: std::env::temp_dir().join(format!("heft-example-{}", std::process::id())),
        ..WorkerConfig::new(leader)
    };
    let work_dir = config.work_dir.clone();
    let worker = Worker::new(config, measure)?;
    let summary = worker.run(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await;
    eprintln!("{summary:?}");
    std::fs::remove_dir_all(work_dir)?;
    Ok(())
}

/// Runs one job. An error of the job is a result, too: `JobStatus::Failed`.
async fn measure(job: Job, context: JobContext) -> JobResult {
    let counted = async {
        // Inputs are in the job's own directory, whole and checked, before the job starts.
        let input = context.directory().await?.join("input.bin");
        count(&input, &context).await
    };
    tokio::select! {
        counted = counted => match counted {
            Ok((bytes, lines)) => {
                let stdout = format!("{bytes} bytes, {lines} lines\n");
                JobResult { stdout, ..job.result(JobStatus::Ok) }
            }
            Err(error) => job.failed(format!("input.bin: {error}")),
        },
        reason = context.cancelled() => job.failed(reason.to_string()),
    }
}

async fn count(path: &Path, context: &JobContext) -> io::Result<(u64, u64)> {
    let mut file = File::open(path).await?;
    let total = file.metadata().await?.len();
    let mut buffer = vec![0; 1 << 20];
    let (mut bytes, mut lines) = (0, 0);
    loop {
        let read = file.read(&mut buffer).await?;
        if read == 0 {
            return Ok((bytes, lines));
        }
        bytes += read as u64;
        lines += buffer.iter().take(read).filter(|byte| **byte == b'\n').count() as u64;
        // Never blocks. News that comes faster than the line takes it is dropped.
        context.progress(Stage::Running, bytes, total, "counting");
    }
}
