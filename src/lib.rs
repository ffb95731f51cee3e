//! heft: a job broker for heavy payloads.
//!
//! Jobs carry inputs and results of any size, and share datasets. A *leader* takes jobs from
//! clients and assigns them to workers. This crate is the `heft` command and the library behind it;
//! programs that embed heft use three modules:
//!
//! | module | for |
//! |---|---|
//! | [`client`] | submit jobs with files of any size, follow them, fetch results, put datasets |
//! | [`worker`] | run jobs inside your own program, or run executables as `heft worker` does |
//! | [`model`] | the JSON of jobs and results that both share |
//!
//! ```no_run
//! use heft::client::{Client, JobSpec, Options};
//! use heft::model::JobRequest;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("127.0.0.1:5000", &Options::new("my-program")).await?;
//! let request = JobRequest { exec_name: "wordcount".into(), ..JobRequest::default() };
//! let mut job = client.submit(JobSpec::from(request).file("book.txt", "/data/book.txt")?).await?;
//! println!("{}", job.wait().await?.stdout);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/` has complete programs: `submit_file`, `embed_worker`, `put_dataset`,
//! `watch_progress`. The leader is a process of its own: `heft leader 5000`.
//!
//! Everything else is internal and may change at any time. It is hidden here, and public only for
//! the tests, the bench and the tools of this workspace; `docs/architecture.md` describes it. Ids
//! such as C07 or W18 in comments and names of tests are rows of `docs/spec.md`. The
//! client and what it needs build for any system; the leader, the worker and the commands need
//! Linux.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
pub mod model;
#[cfg(target_os = "linux")]
pub mod worker;

#[doc(hidden)]
pub mod answers;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod conn;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod consensus;
#[doc(hidden)]
pub mod core;
#[cfg(target_os = "linux")]
mod cpu;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod driver;
#[cfg(target_os = "linux")]
mod fs;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod leader;
mod likeness;
#[cfg(test)]
mod noise;
#[doc(hidden)]
pub mod peer;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod summed;
#[doc(hidden)]
pub mod transfer;
#[cfg(test)]
mod transitions;
#[doc(hidden)]
pub mod units;
#[doc(hidden)]
pub mod wire;

/// The examples in Rust of the documents, compiled by `cargo test --doc`.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide.md")]
    struct Guide;
}
