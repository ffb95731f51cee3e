//! Runs one program in its own process group and reads its output (WX03, WX11).
//!
//! Both streams are read concurrently to their ends, so the program never blocks on a full pipe.
//! Their beginnings are kept in memory; longer output goes to a file as a whole, and bytes beyond
//! the file's limit are counted and dropped. Processes left in the group are killed when the
//! program ends, when it is stopped, or when the future is dropped. It knows programs, not jobs;
//! the executable handler calls it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::inputs::next_step;
use super::launch::{self, Report};
use crate::worker::directory::{OpenDirectory, create_output};
use crate::worker::handler::CancelToken;
use crate::worker::limits::DRAIN_MAX;

/// How much of an output is kept, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    /// Bytes in memory.
    pub(super) bytes_max: usize,
    /// Where all of it goes if it is longer than that.
    pub(super) file: PathBuf,
    /// Bytes in the file.
    pub(super) file_bytes_max: u64,
}

/// What a program left in one of its outputs.
#[derive(Debug)]
pub(super) struct Captured {
    keep: Keep,
    kept: Vec<u8>,
    seen_bytes: u64,
    file: Option<tokio::fs::File>,
    file_bytes: u64,
    file_error: Option<io::Error>,
    /// Whether somebody still held the pipe when we stopped reading.
    cut_off: bool,
}

impl Captured {
    fn new(keep: Keep) -> Self {
        Captured {
            keep,
            kept: Vec::new(),
            seen_bytes: 0,
            file: None,
            file_bytes: 0,
            file_error: None,
            cut_off: true,
        }
    }

    /// Reads to the end. May be dropped while it waits without losing what came, but for a piece
    /// that is on its way to a file.
    async fn fill(&mut self, mut source: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match source.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    let piece = buffer.get(..count).unwrap_or_default();
                    let room = self.keep.bytes_max.saturating_sub(self.kept.len()).min(count);
                    let (kept, rest) = piece.split_at(room);
                    self.kept.extend_from_slice(kept);
                    self.seen_bytes = self.seen_bytes.saturating_add(count as u64);
                    if !rest.is_empty() && self.file_error.is_none() {
                        self.spill(rest).await;
                    }
                }
            }
        }
        self.cut_off = false;
    }

    /// Adds to the file, which begins with what is kept.
    async fn spill(&mut self, rest: &[u8]) {
        if self.file.is_none() {
            match create_output(&self.keep.file) {
                Ok(file) => self.file = Some(file.into()),
                Err(error) => return self.file_error = Some(error),
            }
            // What is kept stays in place, so that nothing is lost if this is dropped meanwhile.
            let Captured { keep, kept, file, file_bytes, file_error, .. } = self;
            append(file, file_bytes, file_error, keep.file_bytes_max, kept).await;
        }
        let Captured { keep, file, file_bytes, file_error, .. } = self;
        append(file, file_bytes, file_error, keep.file_bytes_max, rest).await;
    }

    /// Brings the file to its end. One that is not whole is removed.
    async fn close(&mut self) {
        let Some(mut file) = self.file.take() else { return };
        if let Err(error) = file.flush().await {
            self.file_error.get_or_insert(error);
        }
        if self.file_error.is_some() {
            tokio::fs::remove_file(&self.keep.file).await.ok();
            self.file_bytes = 0;
        }
    }

    /// As text, as far as it is kept in memory; what is not UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }

    /// The file that has all of it, if it is longer than what is kept in memory.
    pub(super) fn file(&self) -> Option<&Path> {
        (self.file_bytes > 0).then_some(self.keep.file.as_path())
    }

    /// What went wrong with the file; that fails the job.
    pub(super) fn failure(&self, output: &str) -> Option<String> {
        let error = self.file_error.as_ref()?;
        Some(format!(
            "{output} had {} bytes; the first {} are kept: cannot write all of it to {}: {error}{}",
            self.seen_bytes,
            self.kept.len(),
            self.keep.file.display(),
            next_step(error)
        ))
    }

    /// What a reader of the output should know.
    pub(super) fn note(&self, output: &str) -> Option<String> {
        let kept = self.file_bytes.max(self.kept.len() as u64);
        if self.file_error.is_none() && self.seen_bytes > kept {
            return Some(format!(
                "{output} had {} bytes; the first {kept} are kept",
                self.seen_bytes
            ));
        }
        self.cut_off.then(|| {
            format!(
                "{output} was still held open after the program had ended; later output is not \
                 included"
            )
        })
    }
}

/// Adds to the file of an output, up to its limit.
async fn append(
    file: &mut Option<tokio::fs::File>,
    file_bytes: &mut u64,
    file_error: &mut Option<io::Error>,
    file_bytes_max: u64,
    bytes: &[u8],
) {
    let Some(file) = file else { return };
    let room = file_bytes_max.saturating_sub(*file_bytes);
    let room = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
    match file.write_all(bytes.get(..room).unwrap_or_default()).await {
        Ok(()) => *file_bytes += room as u64,
        Err(error) => *file_error = Some(error),
    }
}

/// How a program ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Captured,
    pub(super) stderr: Captured,
}

/// What to run, where, and through which launcher, if any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    pub(super) args: &'a [String],
    pub(super) directory: &'a OpenDirectory,
    /// All that the program gets; nothing of this process's own.
    pub(super) environment: &'a [(String, OsString)],
    pub(super) launcher: Option<&'a Path>,
}

impl Start<'_> {
    fn command(&self) -> io::Result<(std::process::Command, Option<Report>)> {
        let launcher = self.launcher.filter(|launcher| launch::can_launch(launcher, self.program));
        if let Some(launcher) = launcher {
            return launch::command(launcher, self.program)
                .map(|(command, report)| (command, Some(report)));
        }
        let mut command = std::process::Command::new(self.program);
        command.stdin(Stdio::null());
        Ok((command, None))
    }
}

/// Runs a program to its end, or until `cancel` says stop, which kills its group.
///
/// With a launcher the program lives no longer than the thread that polls this first: it is for
/// runtimes with one thread.
pub(super) async fn run(
    start: Start<'_>,
    [stdout, stderr]: [Keep; 2],
    cancel: &CancelToken,
) -> io::Result<Ended> {
    let (command, report) = start.command()?;
    let mut child = Command::from(command)
        .args(start.args)
        .current_dir(start.directory.as_current())
        .env_clear()
        .envs(start.environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let mut group = Group::of(child.id());
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("the system gave no pipes for the program's output"));
    };

    let (mut stdout, mut stderr) = (Captured::new(stdout), Captured::new(stderr));
    let status = {
        let mut reading = pin!(async {
            tokio::join!(stdout.fill(out), stderr.fill(err));
        });
        let mut read = false;
        let mut stopped = false;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                () = &mut reading, if !read => read = true,
                _ = cancel.cancelled(), if !stopped => {
                    stopped = true;
                    group.kill();
                }
            }
        };
        // Grandchildren may hold the pipes, and would outlive the job. After this the group's
        // number may become somebody else's, so it is not used again.
        group.kill();
        group.0 = None;
        if !read {
            timeout(DRAIN_MAX, reading).await.ok();
        }
        status
    };
    stdout.close().await;
    stderr.close().await;
    match report.and_then(Report::failure) {
        Some(error) => Err(error),
        None => Ok(Ended { status, stdout, stderr }),
    }
}

/// A process group that does not outlive this value.
struct Group(Option<Pid>);

impl Group {
    fn of(child: Option<u32>) -> Self {
        Group(child.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Kills whoever is left in the group. When nobody is, the system says so, and that is what we
    /// want.
    fn kill(&self) {
        if let Some(group) = self.0 {
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_keeps_the_beginning_and_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("stdout");
        // A link, so that what is removed is never the device.
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        let mut captured =
            Captured::new(Keep { bytes_max: 10, file: file.clone(), file_bytes_max: 1 << 30 });
        captured.fill(&[b'x'; 300_000][..]).await;
        captured.close().await;
        assert_eq!((captured.text().as_str(), captured.file()), ("xxxxxxxxxx", None));
        let text = captured.failure("stdout").unwrap();
        assert!(
            text.starts_with("stdout had 300000 bytes; the first 10 are kept: cannot write all"),
            "{text}"
        );
        assert!(text.contains("No space left") && text.contains("free space there"), "{text}");
        assert_eq!(captured.note("stdout"), None, "said once");
        assert!(std::fs::symlink_metadata(&file).is_err(), "nothing stays");
    }

    #[tokio::test]
    async fn what_is_kept_stays_when_reading_ends_while_it_goes_to_the_file() {
        let root = tempfile::tempdir().unwrap();
        // More than a file takes at once: the second part waits for the first.
        let (bytes_max, output) = (6 << 20, vec![b'x'; 7 << 20]);
        let mut captured = Captured::new(Keep {
            bytes_max,
            file: root.path().join("stdout"),
            file_bytes_max: 1 << 30,
        });
        tokio::select! {
            biased;
            () = captured.fill(output.as_slice()) => {}
            () = std::future::ready(()) => {}
        }
        assert_eq!(captured.text().len(), bytes_max);
        captured.close().await;
    }
}
