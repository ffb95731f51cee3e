//! The commands of `heft`: what a person types becomes a configuration, what a role says becomes lines and exit codes.
//! Only `main.rs` calls it.

pub mod leader;
pub mod worker;

use std::io::IsTerminal;

use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

/// Sends log lines to standard error; `HEFT_LOG` is `error`, `warn`, `info` (the default), `debug` or `trace`.
pub fn log_to_stderr() {
    let asked = std::env::var("HEFT_LOG").ok();
    let level = asked.as_deref().and_then(|word| word.parse::<LevelFilter>().ok());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .finish();
    // A second subscriber would be refused; the first then stays, which is as good.
    tracing::subscriber::set_global_default(subscriber).ok();
    if let (Some(word), None) = (asked, level) {
        tracing::warn!("HEFT_LOG is {word:?}: use error, warn, info, debug or trace; taking info");
    }
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
