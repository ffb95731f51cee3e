//! The processes that the director starts: this program again, one for each role. Every answer is
//! waited for with a limit, and every process is ended, by closing its input and, if that does not
//! help, by killing it.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::actor::Role;
use crate::control::{Answer, Command};
use crate::usage;
use crate::variant::{Driver, Variant};

/// How long a process may take until it can be used.
const START_MAX: Duration = Duration::from_secs(15);

/// How long a process may take to end by itself.
const END_MAX: Duration = Duration::from_secs(2);

/// Lines of one process that wait to be read.
const LINES_MAX: usize = 16;

/// How long the last words of a process that has ended may take.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// Lines of a process that are kept until it can be used; more are shown at once.
const KEPT_MAX: usize = 64;

/// What this program puts before its errors.
const OWN_NAME: &str = "heft-bench: ";

/// How the leader says where it listens.
const LISTENING: &str = "heft leader listening on ";

/// How it says in the same line which driver it has.
const DRIVER: &str = "(driver ";

/// Where a worker has its cache, beneath its directory, and where its programs.
pub(crate) const CACHE: &str = "cache";
pub(crate) const EXE: &str = "exe";

/// A process and the pipes to it.
pub(crate) struct Actor {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Errors,
}

impl Actor {
    /// Starts an actor and waits until it can be used; gives the ports it listens on.
    pub(crate) fn start(name: &'static str, role: &Role) -> anyhow::Result<(Actor, Vec<u16>)> {
        let role = serde_json::to_string(role)?;
        let mut actor = Actor::spawn(name, this_program()?.args(["actor", &role]))?;
        match actor.answer_within(START_MAX)? {
            Some(Answer::Ready { ports }) => {
                actor.errors.show();
                Ok((actor, ports))
            }
            Some(Answer::Done(_) | Answer::Fanned(_) | Answer::Failed { .. }) | None => {
                bail!(actor.not_ready(START_MAX))
            }
        }
    }

    /// Starts a leader, with this directory for its data, and waits until it listens; gives its
    /// port.
    pub(crate) fn start_leader(variant: Variant, data: &Path) -> anyhow::Result<(Actor, u16)> {
        Actor::start_leader_within(variant, data, START_MAX)
    }

    /// The same with more words for it.
    pub(crate) fn start_leader_with(
        variant: Variant,
        data: &Path,
        more: &[&str],
    ) -> anyhow::Result<(Actor, u16)> {
        Actor::start_leader_told(variant, data, more, START_MAX)
    }

    /// The same with a limit of one's own, for one that has much to read first.
    pub(crate) fn start_leader_within(
        variant: Variant,
        data: &Path,
        limit: Duration,
    ) -> anyhow::Result<(Actor, u16)> {
        Actor::start_leader_told(variant, data, &[], limit)
    }

    fn start_leader_told(
        variant: Variant,
        data: &Path,
        more: &[&str],
        limit: Duration,
    ) -> anyhow::Result<(Actor, u16)> {
        let mut program = this_program()?;
        program.args(["leader", "0", "--data"]).arg(data).args(variant.leader_args()).args(more);
        let mut leader = Actor::spawn("leader", &mut program)?;
        let port = leader.port(variant.driver, limit)?;
        leader.errors.show();
        Ok((leader, port))
    }

    /// Starts a worker that is `heft worker` itself, with its directories beneath this one. Whether
    /// it has come to the leader, the leader knows.
    pub(crate) fn start_worker(leader: u16, dir: &Path, more: &[String]) -> anyhow::Result<Actor> {
        let mut program = this_program()?;
        program.args(["worker", "127.0.0.1", &leader.to_string()]);
        // A worker makes no directory of programs that is named.
        std::fs::create_dir_all(dir.join(EXE))?;
        for (flag, name) in [("--cache-dir", CACHE), ("--work-dir", "work"), ("--exe-dir", EXE)] {
            program.arg(flag).arg(dir.join(name));
        }
        let worker = Actor::spawn("worker", program.args(more))?;
        worker.errors.show();
        Ok(worker)
    }

    /// Waits until a leader says where it listens. If it says that its driver is not the one it was
    /// to have, its figures would be taken for those of another.
    fn port(&mut self, driver: Driver, limit: Duration) -> anyhow::Result<u16> {
        let line = self.line_within(limit)?.with_context(|| self.not_ready(limit))?;
        let address = line.strip_prefix(LISTENING).and_then(|rest| rest.split_whitespace().next());
        let port = address
            .and_then(|address| address.rsplit_once(':'))
            .and_then(|(_, port)| port.parse().ok());
        let port = port.with_context(|| format!("the leader does not say its port: {line:?}"))?;
        let said = line.split_once(DRIVER).and_then(|(_, rest)| rest.split([',', ')', ' ']).next());
        match said {
            Some(said) if said != driver.name() => {
                bail!("the leader is to have the driver {} and says {line:?}", driver.name())
            }
            Some(_) | None => Ok(port),
        }
    }

    fn spawn(name: &'static str, program: &mut Program) -> anyhow::Result<Actor> {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the process {name}"))?;
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sender, lines) = sync_channel(LINES_MAX);
        let mut actor = Actor { name, child, input, lines, errors: Errors::of(errors) };
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
        input
            .write_all(line.as_bytes())
            .with_context(|| format!("{name} takes no commands any more"))
    }

    /// The next answer, if it comes in time; that the actor gives up is an error.
    pub(crate) fn answer_within(&mut self, time: Duration) -> anyhow::Result<Option<Answer>> {
        let name = self.name;
        let Some(line) = self.line_within(time)? else { return Ok(None) };
        match serde_json::from_str(&line) {
            Ok(Answer::Failed { why }) => bail!("{name}: {why}"),
            Ok(answer) => Ok(Some(answer)),
            Err(error) => bail!("{name} says {line:?}, which is not an answer: {error}"),
        }
    }

    fn line_within(&mut self, time: Duration) -> anyhow::Result<Option<String>> {
        match self.lines.recv_timeout(time) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!(self.ended()),
        }
    }

    /// How it ended, and why if it has said so. For one that has closed its output: if it lives
    /// nevertheless, it is killed.
    fn ended(&mut self) -> String {
        self.end();
        let status =
            self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let (name, said) = (self.name, self.errors.last_words());
        match said.is_empty() {
            true => format!("{name} ended: {status}"),
            false => format!("{name} ended ({status}): {said}"),
        }
    }

    fn not_ready(&self, limit: Duration) -> String {
        let (name, pid, limit) = (self.name, self.child.id(), limit.as_secs());
        format!("{name} (process {pid}) is not ready after {limit} s; it is killed")
    }

    /// An error if the actor has ended or gives up. For those that are not expected to say
    /// anything.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.lines.try_recv() {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Answer::Failed { why }) => bail!("{}: {why}", self.name),
                Ok(Answer::Ready { .. } | Answer::Done(_) | Answer::Fanned(_)) | Err(_) => {
                    bail!("{} says {line:?}", self.name)
                }
            },
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => bail!(self.ended()),
        }
    }

    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        usage::cpu(self.child.id())
    }

    pub(crate) fn rss_peak(&self) -> anyhow::Result<u64> {
        usage::rss_peak(self.child.id())
    }

    /// The memory it holds now.
    pub(crate) fn rss(&self) -> anyhow::Result<u64> {
        usage::rss(self.child.id())
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
        self.errors.show();
    }
}

/// What a process says on its standard error. It is kept until the process can be used: if that
/// ends before, it is the reason. All else is shown.
struct Errors {
    /// None when lines are shown as they come.
    kept: Arc<Mutex<Option<Vec<String>>>>,
    /// Disconnected when there will be no more.
    open: Receiver<()>,
}

impl Errors {
    fn of(stream: Option<impl Read + Send + 'static>) -> Errors {
        let kept = Arc::new(Mutex::new(Some(Vec::new())));
        let (sender, open) = sync_channel(1);
        if let Some(stream) = stream {
            let kept = kept.clone();
            std::thread::spawn(move || Errors::read(stream, &kept, &sender));
        }
        Errors { kept, open }
    }

    /// To the end. The sender says by its life that there may be more.
    fn read(stream: impl Read, kept: &Mutex<Option<Vec<String>>>, _more: &SyncSender<()>) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            match kept.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                Some(kept) if kept.len() < KEPT_MAX => kept.push(line),
                Some(_) | None => eprintln!("{line}"),
            }
        }
    }

    fn take(&self) -> Vec<String> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Shows what was kept and all that comes.
    fn show(&self) {
        self.take().iter().for_each(|line| eprintln!("{line}"));
    }

    /// What was kept of a process that has ended, without the name of this program.
    fn last_words(&self) -> String {
        // Nothing is ever sent: this waits for the end.
        self.open.recv_timeout(LAST_WORDS_MAX).ok();
        let said = self.take().join("\n");
        said.strip_prefix(OWN_NAME).unwrap_or(&said).trim().to_owned()
    }
}

/// To start it again.
fn this_program() -> anyhow::Result<Program> {
    Ok(Program::new(std::env::current_exe().context("cannot find this program to start it again")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Actor {
        Actor::spawn("leader", Program::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn a_leader_says_its_port() {
        let mut leader =
            shell("echo 'heft leader listening on 127.0.0.1:4711 (driver portable, x)'; cat");
        assert_eq!(leader.port(Driver::Portable, START_MAX).unwrap(), 4711);
        leader.check_alive().unwrap();
        let error = shell("echo 'heft leader listening on 127.0.0.1:4711 (driver uring, x)'; cat")
            .port(Driver::Portable, START_MAX);
        assert!(error.unwrap_err().to_string().contains("the driver portable"));
        let error =
            shell("echo nothing; cat").port(Driver::Portable, START_MAX).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    }

    #[test]
    fn a_leader_that_ends_at_once_says_why() {
        let began = Instant::now();
        let error = shell("echo 'heft-bench: no io_uring here' >&2; exit 3")
            .port(Driver::Portable, START_MAX)
            .unwrap_err();
        assert_eq!(error.to_string(), "leader ended (exit status: 3): no io_uring here");
        let error = shell("exit 4").port(Driver::Portable, START_MAX).unwrap_err();
        assert_eq!(error.to_string(), "leader ended: exit status: 4");
        assert!(began.elapsed() < START_MAX, "nobody waits for what has ended");
    }

    #[test]
    fn what_ends_later_is_noticed() {
        let mut leader =
            shell("echo 'heft leader listening on 127.0.0.1:1 (x)'; read line; exit 5");
        leader.port(Driver::Portable, START_MAX).unwrap();
        leader.errors.show();
        leader.tell(&Command::Stop).unwrap();
        while leader.check_alive().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = leader.check_alive().unwrap_err().to_string();
        assert_eq!(error, "leader ended: exit status: 5");
    }
}
