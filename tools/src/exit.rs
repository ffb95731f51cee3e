//! How a command ends that reads or writes files of a leader: the reasons it may fail for, and the
//! exit code of each. The commands make them, `main` turns them into a line and a code.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use heft::store::disk::DirError;
use heft::store::format::StoreError;
use thiserror::Error;

/// What stands below the help of these commands.
pub(crate) fn with_codes(examples: &str) -> String {
    format!(
        "{examples}\n\nExit codes: 0 good, 1 damage was found, 2 invalid command line or an input that \
         is not there, 3 a data directory cannot be used, or something cannot be read or written, \
         141 the reader of the output left before its end."
    )
}

// The codes are those of `heft` (docs/reference.md, "Exit codes").

/// Exit code: a file is not what it should be.
pub(crate) const DAMAGED: u8 = 1;
const USAGE: u8 = 2;
/// Exit code: the system does not let us read or write.
pub(crate) const UNAVAILABLE: u8 = 3;

/// Exit code: whoever read the output left before its end, as a shell reports a command that
/// SIGPIPE ended.
const OUTPUT_CLOSED: u8 = 141;

/// Why a command ends without what it was to bring. Each text names the file, what is wrong, and
/// what to do.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A file is not what it should be.
    #[error("{0}")]
    Damaged(String),
    /// What was asked for cannot be.
    #[error("{0}")]
    Usage(String),
    /// The system does not let us read or write.
    #[error("{0}")]
    Unavailable(String),
}

impl Failure {
    /// The system said no.
    pub(crate) fn io(doing: &str, path: &Path, error: &io::Error) -> Self {
        let hints = [
            (io::ErrorKind::NotFound, "; is the path right?"),
            (io::ErrorKind::PermissionDenied, "; run it as the user that owns the files"),
            (io::ErrorKind::StorageFull, "; the disk is full: free space there"),
            (io::ErrorKind::QuotaExceeded, "; the quota is used up: free space there"),
        ];
        let hint =
            hints.iter().find(|(kind, _)| *kind == error.kind()).map_or("", |(_, hint)| hint);
        Failure::Unavailable(format!("cannot {doing} {}: {error}{hint}", path.display()))
    }

    /// A file that the command line names cannot be opened.
    pub(crate) fn named(path: &Path, error: &io::Error) -> Self {
        Failure::Usage(format!("cannot open {}: {error}; check the path", path.display()))
    }

    /// Damage at an offset of a file that another program wrote.
    pub(crate) fn at(path: &Path, offset: u64, what: impl Display) -> Self {
        Failure::Damaged(format!("{} is damaged at offset {offset}: {what}", path.display()))
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Damaged(_) => DAMAGED,
            Failure::Usage(_) => USAGE,
            Failure::Unavailable(_) => UNAVAILABLE,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Io { .. } => Failure::Unavailable(error.to_string()),
            StoreError::Marker { .. }
            | StoreError::Version { .. }
            | StoreError::Node { .. }
            | StoreError::OtherDirectory { .. }
            | StoreError::Damage { .. }
            | StoreError::MissingSegment { .. }
            | StoreError::Member { .. }
            | StoreError::MissingTail { .. }
            | StoreError::MemberDamage { .. }
            | StoreError::SnapshotAhead { .. } => Failure::Damaged(error.to_string()),
        }
    }
}

impl From<DirError> for Failure {
    fn from(error: DirError) -> Self {
        Failure::Unavailable(error.to_string())
    }
}

/// Says what went wrong, and gives the exit code for it.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // Who reads us has seen enough: `| head`. Not all was written, and what was not could have been
    // damage.
    if is_broken_pipe(error) {
        return ExitCode::from(OUTPUT_CLOSED);
    }
    warn(format_args!("{error:#}"));
    match error.downcast_ref::<Failure>() {
        Some(failure) => ExitCode::from(failure.code()),
        None => ExitCode::FAILURE,
    }
}

/// A line for the person at the terminal, who may be gone.
pub(crate) fn warn(text: impl Display) {
    let text: String = text
        .to_string()
        .chars()
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect();
    io::Write::write_fmt(&mut io::stderr(), format_args!("heft-tools: {text}\n")).ok();
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_it = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(is_it)
}
