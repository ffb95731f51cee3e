//! The command `heft`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    heft::cli::command::run()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!(
        "heft: the commands run on Linux alone; on other systems there is the library with the client"
    );
    ExitCode::FAILURE
}
