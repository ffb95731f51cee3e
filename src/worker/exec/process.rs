//! Runs one program in its own process group and reads its output (WX03, WX11).
//!
//! Both streams are read concurrently to their ends, so the program never blocks on a full pipe
//! (see `capture.rs`). Processes left in the group are killed when the program ends, when it is
//! stopped, or when the future is dropped. It knows programs, not jobs; the executable handler
//! calls it.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::time::timeout;

use super::capture::{Captured, Keep};
use super::launch::{self, Report};
use crate::worker::directory::OpenDirectory;
use crate::worker::handler::{CancelToken, Shown};
use crate::worker::limits::DRAIN_MAX;

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
    shown: &Shown,
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
    shown.show([stdout.shared(), stderr.shared()]);
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
