//! Runs one program in its own process group and reads what it says (WX03, WX11).
//!
//! Both outputs are read together and to their ends, so the program never blocks on a full pipe; what is over the limit is
//! counted and dropped. Whatever the program leaves running in its group is killed when it ends, is stopped, or when the
//! future is dropped. It knows programs and nothing of jobs; the handler of executables calls it.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::launch::{self, Report};
use crate::worker::handler::CancelToken;
use crate::worker::limits::DRAIN_MAX;

/// How much of each output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) stdout_bytes: usize,
    pub(super) stderr_bytes: usize,
}

/// What a program left in one of its outputs.
#[derive(Debug)]
pub(super) struct Captured {
    kept: Vec<u8>,
    seen_bytes: u64,
    bytes_max: usize,
    /// Whether somebody still held the pipe when we stopped reading.
    cut_off: bool,
}

impl Captured {
    fn new(bytes_max: usize) -> Self {
        Captured { kept: Vec::new(), seen_bytes: 0, bytes_max, cut_off: true }
    }

    /// Reads to the end. May be dropped while it waits without losing what came.
    async fn fill(&mut self, mut source: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match source.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    let room = self.bytes_max.saturating_sub(self.kept.len()).min(count);
                    self.kept.extend_from_slice(buffer.get(..room).unwrap_or_default());
                    self.seen_bytes = self.seen_bytes.saturating_add(count as u64);
                }
            }
        }
        self.cut_off = false;
    }

    /// As text; what is no UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }

    /// What a reader of the text should know.
    pub(super) fn note(&self, output: &str) -> Option<String> {
        let kept = self.kept.len();
        if self.seen_bytes > kept as u64 {
            return Some(format!("{output} had {} bytes; the first {kept} are kept", self.seen_bytes));
        }
        self.cut_off.then(|| {
            format!("{output} was still held open after the program had ended; what came later is not here")
        })
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
    pub(super) directory: &'a Path,
    pub(super) launcher: Option<&'a Path>,
}

impl Start<'_> {
    fn command(&self) -> io::Result<(std::process::Command, Option<Report>)> {
        let launcher = self.launcher.filter(|launcher| launch::can_launch(launcher, self.program));
        if let Some(launcher) = launcher {
            return launch::command(launcher, self.program).map(|(command, report)| (command, Some(report)));
        }
        let mut command = std::process::Command::new(self.program);
        command.stdin(Stdio::null());
        Ok((command, None))
    }
}

/// Runs a program to its end, or until `cancel` says stop, which kills its group.
///
/// With a launcher the program lives no longer than the thread that polls this first: it is for runtimes with one thread.
pub(super) async fn run(start: Start<'_>, keep: Keep, cancel: &CancelToken) -> io::Result<Ended> {
    let (command, report) = start.command()?;
    let mut child = Command::from(command)
        .args(start.args)
        .current_dir(start.directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let mut group = Group::of(child.id());
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("the system gave no pipes for the program's output"));
    };

    let (mut stdout, mut stderr) = (Captured::new(keep.stdout_bytes), Captured::new(keep.stderr_bytes));
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
        // Grandchildren may hold the pipes, and would outlive the job. After this the group's number may become somebody
        // else's, so it is not used again.
        group.kill();
        group.0 = None;
        if !read {
            timeout(DRAIN_MAX, reading).await.ok();
        }
        status
    };
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

    /// Kills whoever is left in the group. When nobody is, the system says so, and that is what we want.
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
