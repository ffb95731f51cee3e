//! Where the files of a run lie: in a directory that is removed when it ends, however it does,
//! short of being killed.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::{Builder, TempDir};

/// The exit code of a bench that was interrupted, as shells have it.
const INTERRUPTED: i32 = 130;

/// What `statfs(2)` says of a file system that is in memory.
#[cfg(target_os = "linux")]
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Makes it: in this directory, or beside this program, or else where it was started. The system's
/// directory for temporary files would be in memory on many machines, and a disk leader there would
/// be measured without a disk.
pub(crate) fn make(data: Option<&Path>) -> anyhow::Result<TempDir> {
    let in_dir = |dir: &Path| {
        let made = Builder::new().prefix("heft-bench-").tempdir_in(dir);
        made.with_context(|| {
            format!("cannot make a directory for data in {}; give another --data", dir.display())
        })
    };
    let scratch = match (data, beside_this_program()) {
        (Some(data), _) => {
            std::fs::create_dir_all(data)
                .with_context(|| format!("cannot make {}", data.display()))?;
            in_dir(data)?
        }
        (None, Some(beside)) => in_dir(&beside).or_else(|_| in_dir(Path::new(".")))?,
        (None, None) => in_dir(Path::new("."))?,
    };
    clean_up_when_interrupted(scratch.path().to_owned());
    Ok(scratch)
}

fn beside_this_program() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Removes files before an interrupt or SIGTERM ends the bench. Its processes end by themselves
/// when it is gone.
fn clean_up_when_interrupted(scratch: PathBuf) {
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(heft::cli::stop_signal());
        std::fs::remove_dir_all(&scratch).ok();
        std::process::exit(INTERRUPTED);
    });
}

/// Whether what is written there is on no disk.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == TMPFS)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_memory(_path: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_where_it_was_asked_for_and_goes_away() {
        let outer = tempfile::tempdir().unwrap();
        let data = outer.path().join("a/b");
        let made = make(Some(&data)).unwrap();
        assert!(made.path().starts_with(&data) && made.path().is_dir());
        let path = made.path().to_owned();
        drop(made);
        assert!(!path.exists() && data.exists());
        std::fs::write(outer.path().join("file"), b"").unwrap();
        let error = make(Some(&outer.path().join("file"))).unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
    }
}
