//! Puts a directory as a dataset on every worker, ahead of the jobs that use it.
//!
//! ```text
//! cargo run --example put_dataset -- 127.0.0.1:5000 models-v2 ./models
//! ```
//!
//! Jobs name a file of it by `InputFile::cache_id`. Putting a second version moves only what
//! changed.

use std::time::Duration;

use heft::client::Options;
use heft::client::dataset::{DatasetSpec, PutEvent, Wait, put};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [leader, name, directory] = args.as_slice() else {
        return Err("usage: put_dataset HOST:PORT NAME DIRECTORY".into());
    };
    let spec = DatasetSpec::new(name, [directory])?
        .replace(true)
        .wait(Wait::All)
        .timeout(Duration::from_secs(600));
    let report = put(leader, spec, &Options::new("example-put"), |event| {
        if let PutEvent::Ack(ack) = event {
            eprintln!("worker {}: {} {}", ack.worker, ack.status.as_str(), ack.message);
        }
    })
    .await?;
    let spread = &report.spread;
    println!("{name}: {} of {} workers have it", spread.ok + spread.skipped, spread.targets);
    Ok(())
}
