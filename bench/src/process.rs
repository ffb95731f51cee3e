//! The processes that the director starts: this program again, one for each role. Every answer is waited for with a limit,
//! and every process is ended, by closing its input and, if that does not help, by killing it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::actor::Role;
use crate::control::{Answer, Command};
use crate::usage;

/// How long a process may take until it can be used.
const START_MAX: Duration = Duration::from_secs(15);

/// How long a process may take to end by itself.
const END_MAX: Duration = Duration::from_secs(2);

/// Lines of one process that wait to be read.
const LINES_MAX: usize = 16;

/// How the leader says where it listens.
const LISTENING: &str = "heft leader listening on ";

/// A process and the pipes to it.
pub(crate) struct Actor {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Actor {
    /// Starts an actor and waits until it can be used; gives the ports it listens on.
    pub(crate) fn start(name: &'static str, role: &Role) -> anyhow::Result<(Actor, Vec<u16>)> {
        let role = serde_json::to_string(role)?;
        let mut actor = Actor::spawn(name, &["actor".as_ref(), role.as_ref()])?;
        match actor.answer_within(START_MAX)? {
            Some(Answer::Ready { ports }) => Ok((actor, ports)),
            Some(Answer::Done(_) | Answer::Failed { .. }) | None => bail!(actor.not_ready()),
        }
    }

    /// Starts a leader and waits until it listens; gives its port.
    pub(crate) fn start_leader(args: &[&OsStr]) -> anyhow::Result<(Actor, u16)> {
        let words: Vec<&OsStr> =
            ["leader".as_ref(), "0".as_ref()].into_iter().chain(args.iter().copied()).collect();
        let mut leader = Actor::spawn("leader", &words)?;
        let line = leader.line_within(START_MAX)?.with_context(|| leader.not_ready())?;
        let address = line.strip_prefix(LISTENING).and_then(|rest| rest.split_whitespace().next());
        let port =
            address.and_then(|address| address.rsplit_once(':')).and_then(|(_, port)| port.parse().ok());
        Ok((leader, port.with_context(|| format!("the leader does not say its port: {line:?}"))?))
    }

    fn spawn(name: &'static str, words: &[&OsStr]) -> anyhow::Result<Actor> {
        let program = std::env::current_exe().context("cannot find this program to start it again")?;
        let mut child = Program::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the process {name}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = sync_channel(LINES_MAX);
        let mut actor = Actor { name, child, input, lines };
        let Some(output) = output else {
            actor.end();
            bail!("the process {name} has no output to read");
        };
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(actor)
    }

    pub(crate) fn tell(&mut self, command: &Command) -> anyhow::Result<()> {
        let name = self.name;
        let input = self.input.as_mut().with_context(|| format!("{name} was ended already"))?;
        let line = format!("{}\n", serde_json::to_string(command)?);
        input.write_all(line.as_bytes()).with_context(|| format!("{name} takes no commands any more"))
    }

    /// The next answer, if it comes in time; that the actor gives up is an error.
    pub(crate) fn answer_within(&mut self, time: Duration) -> anyhow::Result<Option<Answer>> {
        let name = self.name;
        let Some(line) = self.line_within(time)? else { return Ok(None) };
        match serde_json::from_str(&line) {
            Ok(Answer::Failed { why }) => bail!("{name}: {why}"),
            Ok(answer) => Ok(Some(answer)),
            Err(error) => bail!("{name} says {line:?}, which is no answer: {error}"),
        }
    }

    fn line_within(&mut self, time: Duration) -> anyhow::Result<Option<String>> {
        match self.lines.recv_timeout(time) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map(|status| status.to_string());
                bail!("{} ended: {}", self.name, status.unwrap_or_else(|error| error.to_string()))
            }
        }
    }

    fn not_ready(&self) -> String {
        let (name, pid, limit) = (self.name, self.child.id(), START_MAX.as_secs());
        format!("{name} (process {pid}) is not ready after {limit} s; it is killed")
    }

    /// An error if the actor has ended or gives up. For those that are not expected to say anything.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.lines.try_recv() {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Answer::Failed { why }) => bail!("{}: {why}", self.name),
                Ok(Answer::Ready { .. } | Answer::Done(_)) | Err(_) => bail!("{} says {line:?}", self.name),
            },
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => bail!("{} ended", self.name),
        }
    }

    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        usage::cpu(self.child.id())
    }

    pub(crate) fn rss_peak(&self) -> anyhow::Result<u64> {
        usage::rss_peak(self.child.id())
    }

    /// Ends it by the end of its input, or kills it.
    fn end(&mut self) {
        self.input = None;
        let until = Instant::now() + END_MAX;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() >= until {
                self.child.kill().ok();
                self.child.wait().ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.end();
    }
}
