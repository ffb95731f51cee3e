//! Standard output, and what it means that it cannot be written: whoever reads what a command
//! prints must be able to tell a whole answer from the beginning of one.

use std::io::{self, Write};

use serde_json::Value;
use thiserror::Error;

/// Why not all of a command's output was written.
#[derive(Debug, Error)]
pub(crate) enum Unwritten {
    /// Its reader has left, as `head` does. That is said by the exit code alone.
    #[error("the output was closed before all of it was written")]
    Closed,
    /// The system did not take it.
    #[error("cannot write the output: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        match error.kind() == io::ErrorKind::BrokenPipe {
            true => Unwritten::Closed,
            false => Unwritten::Failed(error),
        }
    }
}

/// Prints to standard output.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Unwritten> {
    print_to(&mut io::stdout().lock(), bytes)
}

/// Prints one JSON object on a line.
pub(crate) fn print_json(value: &Value) -> Result<(), Unwritten> {
    print(format!("{value}\n").as_bytes())
}

/// Prints to one of the standard outputs.
pub(crate) fn print_to(out: &mut dyn Write, bytes: &[u8]) -> Result<(), Unwritten> {
    out.write_all(bytes)?;
    Ok(out.flush()?)
}
