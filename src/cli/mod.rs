//! The commands of `heft`: arguments, help, and what is shown to people. What they do is in the rooms below.

pub mod leader;

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Logs to standard error: what `HEFT_LOG` says, else `info` and above.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("HEFT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false).init();
}

/// Waits until someone wants the process to stop: Ctrl-C, or SIGTERM.
pub async fn stop_signal() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
        }
        Err(_) => {
            tokio::signal::ctrl_c().await.ok();
        }
    }
}
