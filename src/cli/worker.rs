//! `heft worker`: takes jobs from a leader and runs executables.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use crate::fs::own_dir::check_programs;
use crate::units::{ByteSize, Span};
use crate::wire::Tuning;
use crate::worker::exec;
use crate::worker::limits::{
    ARCHIVE_BYTES_MAX, OUTPUT_BYTES_MAX, PARALLEL_DEFAULT, PARALLEL_MAX, STDERR_BYTES_MAX,
    STDOUT_BYTES_MAX, STOP_GRACE,
};
use crate::worker::{
    Abandoned, CacheConfig, ConfigError, Exec, ExecConfig, LinkMode, Worker, WorkerConfig,
    check_link, remove_abandoned,
};

use super::exit::Usage;
use super::{check_own, not_safe, time_limit};

/// Where programs are (FS01).
const EXE_DIR_DEFAULT: &str = "/opt/grid/exe";

/// Where datasets are kept (FS01).
const CACHE_DIR_DEFAULT: &str = "/opt/grid/cache";

const EXAMPLES: &str = "\
Examples:
  heft worker 127.0.0.1 5000
      takes every job of the leader on this machine, four at a time
  heft worker leader.example 5000 job.assign.calcA 'job.assign.common.>' --max-par 16
      takes the jobs of calcA and those of the group common
  heft worker 127.0.0.1 5000 --exe-dir ./exe --work-dir ./jobs --time-limit 10m --keep-failed
      runs programs from ./exe, each for at most ten minutes, and keeps what failed jobs left
  heft worker -l leader.example:5000 groupA
      the leader as other commands take it, in place of host and port
  heft worker leader.example 5000 --cache-only --cache-dir /opt/grid/cache
      takes no jobs, and keeps the cache of the classic worker on this host

A job's ExecName is a file in the exe directory: NAME.exe, or else NAME. It runs in a directory of
its own with the job's input files, and the files it makes there go back with its output.
SIGTERM or Ctrl-C lets running jobs finish; a second one does not. Log lines go to standard error;
HEFT_LOG=debug shows more.";

/// Take jobs from a leader and run executables
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WorkerArgs {
    /// The leader, in place of HOST and PORT
    #[arg(short, long, value_name = "HOST:PORT")]
    pub leader: Option<String>,
    /// The leader's host
    pub host: String,
    /// The leader's port
    pub port: u16,
    /// Subject patterns or group names to take jobs from [default: job.assign.>]
    pub patterns: Vec<String>,
    /// Directory of executables, which has to be there; the default one is created [default:
    /// /opt/grid/exe]
    #[arg(long, value_name = "DIR")]
    pub exe_dir: Option<PathBuf>,
    /// Parent of job directories, which are created in `heft` beneath it
    #[arg(long, value_name = "DIR", default_value = "/tmp/jobs")]
    pub work_dir: PathBuf,
    /// Dataset cache directory, one per worker [default: /opt/grid/cache]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the cache; the least recently used dataset is evicted first [default: half
    /// of what the file system has for it]
    #[arg(long, value_name = "SIZE")]
    pub cache_budget: Option<ByteSize>,
    /// How dataset files get into job directories, read-only: auto, reflink, hardlink or copy; auto
    /// uses reflinks, otherwise copies; with hard links a job can change the dataset for later jobs
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub cache_link: LinkMode,
    /// Take no jobs, only keep the dataset cache for a classic worker on this host, which then gets
    /// datasets and inputs of any size
    #[arg(long)]
    pub cache_only: bool,
    /// Id of the classic worker, if the leader cannot match it by address
    #[arg(long = "for", value_name = "WORKER-ID", requires = "cache_only")]
    pub cache_for: Option<Uuid>,
    /// Accept a work, cache or exe directory that another user owns or can write to; such a user
    /// can redirect the worker's files, or make it run programs
    #[arg(long)]
    pub allow_shared_dirs: bool,
    /// Maximum concurrent jobs
    #[arg(long, value_name = "N", env = "WORKER_MAX_PAR", default_value_t = PARALLEL_DEFAULT, value_parser = max_par)]
    pub max_par: u32,
    /// Processor load above which a free slot is offered up to a second later, 0.10 to 0.95; 1 for
    /// no limit
    #[arg(long, value_name = "SHARE", env = "WORKER_CPU_CAP", default_value_t = 0.75, value_parser = cpu_cap)]
    pub cpu_cap: f64,
    /// Worker id, a Guid; a worker restarted under the same id returns the results the leader does
    /// not have yet [default: random]
    #[arg(long, value_name = "GUID")]
    pub id: Option<Uuid>,
    /// Name in the leader's logs and status
    #[arg(long)]
    pub name: Option<String>,
    /// Time limit for jobs that do not set one, such as 30s or 10m [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub time_limit: Option<Span>,
    /// Time running jobs have to finish after SIGTERM
    #[arg(long, value_name = "TIME", default_value_t = Span(STOP_GRACE))]
    pub stop_grace: Span,
    /// Keep the directories of jobs that failed
    #[arg(long)]
    pub keep_failed: bool,
    /// Return input files and the executable too, not only files the job created
    #[arg(long)]
    pub zip_all: bool,
    /// Maximum bytes of stdout inside the result; longer output is sent separately
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(STDOUT_BYTES_MAX as u64))]
    pub stdout_max: ByteSize,
    /// Maximum bytes of stderr inside the result; longer output is sent separately
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(STDERR_BYTES_MAX as u64))]
    pub stderr_max: ByteSize,
    /// Maximum bytes kept of each of stdout and stderr; the rest is discarded
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(OUTPUT_BYTES_MAX))]
    pub output_max: ByteSize,
    /// Maximum size of the archive of files a job created; a larger archive is left out, and the
    /// result states its size
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(ARCHIVE_BYTES_MAX))]
    pub archive_max: ByteSize,
    /// Maximum bytes of results, at most 16, that wait for the leader without occupying their jobs'
    /// slots; each further result keeps its slot [default: 8 GiB, or a tenth of the work
    /// directory's file system if that is less]
    #[arg(long, value_name = "SIZE")]
    pub returning_max: Option<ByteSize>,
    /// Pass this environment variable of the worker to programs; repeatable. Programs always get
    /// PATH, HOME, LANG and TZ, and TMPDIR, HEFT_JOB_ID, HEFT_ATTEMPT, HEFT_CLIENT, HEFT_EXEC and
    /// HEFT_WORKER for their job
    #[arg(long, value_name = "NAME", value_parser = pass_env)]
    pub pass_env: Vec<String>,
    /// TCP congestion control, such as cubic or bbr [default: the system's; cubic to this machine]
    #[arg(long, value_name = "NAME", value_parser = super::congestion)]
    pub tcp_congestion: Option<String>,
}

impl WorkerArgs {
    fn worker_config(&self) -> WorkerConfig {
        let host = match self.host.contains(':') && !self.host.starts_with('[') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let defaults = WorkerConfig::new(format!("{host}:{}", self.port));
        WorkerConfig {
            id: self.id.unwrap_or(defaults.id),
            name: self.name.clone(),
            patterns: self.patterns.clone(),
            parallel_max: self.max_par,
            cpu_cap: Some(self.cpu_cap).filter(|share| *share < NO_CPU_CAP),
            work_dir: std::path::absolute(&self.work_dir).unwrap_or_else(|_| self.work_dir.clone()),
            cache: Some(CacheConfig {
                directory: self.cache_dir(),
                budget: self.cache_budget.map(|size| size.0),
                link: self.cache_link,
            }),
            cache_only: self.cache_only,
            cache_for: self.cache_for,
            // A random id does not come back.
            keep_results: self.id.is_some(),
            returning_bytes_max: self.returning_max.map(|size| size.0),
            keep_failed: self.keep_failed,
            time_limit: self.time_limit.map(|span| span.0),
            stop_grace: self.stop_grace.0,
            tuning: Tuning { congestion: self.tcp_congestion.clone() },
            ..defaults
        }
    }

    fn cache_dir(&self) -> PathBuf {
        let given = self.cache_dir.as_deref().unwrap_or(Path::new(CACHE_DIR_DEFAULT));
        std::path::absolute(given).unwrap_or_else(|_| given.to_owned())
    }

    fn exe_dir(&self) -> &Path {
        self.exe_dir.as_deref().unwrap_or(Path::new(EXE_DIR_DEFAULT))
    }

    fn exec_config(&self) -> ExecConfig {
        let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX);
        ExecConfig {
            exe_dir: self.exe_dir().to_owned(),
            cache_dir: self.cache_dir(),
            cache_link: self.cache_link,
            zip_all: self.zip_all,
            stdout_bytes_max: bytes(self.stdout_max),
            stderr_bytes_max: bytes(self.stderr_max),
            output_bytes_max: self.output_max.0,
            archive_bytes_max: self.archive_max.0,
            pass_env: self.pass_env.clone(),
            launcher: None,
        }
    }
}

/// Reads how many jobs may run at a time.
fn max_par(text: &str) -> Result<u32, String> {
    let number = text.trim().parse().ok().filter(|number| (1..=PARALLEL_MAX).contains(number));
    number.ok_or_else(|| {
        format!("--max-par, or else WORKER_MAX_PAR, takes a whole number from 1 to {PARALLEL_MAX}")
    })
}

/// The share at which no load withholds a slot.
const NO_CPU_CAP: f64 = 1.0;

/// Reads a share of the processors (ENV03).
fn cpu_cap(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok();
    let share = share.filter(|share| (0.10..=0.95).contains(share) || *share == NO_CPU_CAP);
    let form = || {
        "--cpu-cap, or else WORKER_CPU_CAP, takes a share of all processors from 0.10 to 0.95, or 1 \
         for no limit"
            .to_owned()
    };
    share.ok_or_else(form)
}

/// Reads the name of a variable.
fn pass_env(name: &str) -> Result<String, exec::PassError> {
    exec::check_passed(name).map(|()| name.to_owned())
}

/// Runs a worker until it is told to stop.
pub fn run(args: &WorkerArgs) -> Result<ExitCode> {
    keep_secrets();
    let is_cache_named = args.cache_dir.is_some();
    let allowed = args.allow_shared_dirs;
    make_programs(args.exe_dir(), args.exe_dir.is_some(), allowed || args.cache_only)?;
    // The classic worker has to be able to read the cache.
    let cache_mode = if args.cache_only { 0o755 } else { 0o700 };
    let cache_dir = make_own(&args.cache_dir(), "cache", "--cache-dir", cache_mode, allowed)?;
    let work_dir = make_own(&args.work_dir, "work", "--work-dir", 0o700, allowed)?;
    let args = &WorkerArgs { work_dir, cache_dir: Some(cache_dir.clone()), ..args.clone() };
    if !args.cache_only {
        tell_open_cache(&cache_dir);
    }
    let exec = ExecConfig { launcher: this_program(), ..absolute(args.exec_config())? };
    let worker = open(args, is_cache_named, Exec::new(exec))?;
    check_link(&cache_dir, &args.work_dir, args.cache_link).map_err(|error| {
        Usage(format!(
            "--cache-link does not work from {} to {}: {error}; put both on one file system that \
             supports it, or use --cache-link auto",
            cache_dir.display(),
            args.work_dir.display()
        ))
    })?;
    clear(args);
    for name in args.pass_env.iter().filter(|name| std::env::var_os(name).is_none()) {
        tracing::warn!(
            "--pass-env {name}: not set in the worker's environment, so programs do not get it"
        );
    }
    // One thread, which lives as long as the worker: programs that it launched are killed when it
    // ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let config = worker.config();
        if config.cache_only {
            let worker = config.cache_for.map_or("the classic worker on this host".to_owned(), |id| format!("worker {id}"));
            tracing::info!(cache = %cache_dir.display(),
                "this worker takes no jobs: it manages the dataset cache for {worker}");
        }
        tracing::info!(id = %config.id, leader = %config.leader, patterns = ?config.patterns,
            max_par = config.parallel_max, exe_dir = %args.exe_dir().display(), "worker starts");
        let mut asked = false;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut stop = Some(stop);
        let mut working = std::pin::pin!(worker.run(async { stopped.await.unwrap_or_default() }));
        loop {
            tokio::select! {
                summary = &mut working => {
                    return Ok(if summary.killed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            if asked {
                tracing::warn!("asked to stop twice: leaving at once; running jobs are killed");
                return Ok(ExitCode::FAILURE);
            }
            asked = true;
            stop.take().map(|stop| stop.send(()));
        }
    })
}

/// Opens the worker with its cache. Several workers of one machine may use the directory that is
/// the default; the first keeps it, and the others read what is there, as they always could. A
/// directory that was named is wanted for this worker.
fn open(args: &WorkerArgs, is_cache_named: bool, exec: Exec) -> Result<Worker<Exec>> {
    let config = args.worker_config();
    match Worker::new(config.clone(), exec.clone()) {
        Ok(worker) => Ok(worker),
        Err(ConfigError::Cache { text }) if !is_cache_named && !args.cache_only => {
            tracing::warn!("{text}. This worker uses the cache read-only and receives no datasets");
            let config = WorkerConfig { cache: None, ..config };
            Ok(Worker::new(config, exec).map_err(|error| Usage(error.to_string()))?)
        }
        Err(error) => Err(Usage(error.to_string()).into()),
    }
}

/// Closes this process's memory and environment to others of its user: programs of jobs could read
/// there what they are not passed. It costs core dumps. Nothing is closed to root.
fn keep_secrets() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("jobs can read this worker's environment: {error}");
    }
}

/// This `heft`, even when another has been installed in its place since.
fn this_program() -> Option<PathBuf> {
    let link = Path::new("/proc/self/exe");
    let found = link.exists().then(|| link.to_owned());
    if found.is_none() {
        tracing::warn!(
            "there is no {}: if this worker is killed, its programs keep running",
            link.display()
        );
    }
    found
}

/// Start a program that ends with its worker; `heft worker` calls it
#[derive(Args, Clone, Debug)]
pub struct LaunchArgs {
    /// The worker's process id
    worker: u32,
    /// The program
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program. Nothing is logged: standard error is the program's.
pub fn launch(args: &LaunchArgs) -> ExitCode {
    match args.command.split_first() {
        Some((program, rest)) => exec::launch(args.worker, Path::new(program), rest),
        None => ExitCode::FAILURE,
    }
}

/// Programs run with their job's directory as the current one, so paths must not depend on it.
fn absolute(config: ExecConfig) -> Result<ExecConfig> {
    let whole = |path: &Path| {
        std::path::absolute(path)
            .with_context(|| format!("cannot make {} an absolute path", path.display()))
    };
    Ok(ExecConfig {
        exe_dir: whole(&config.exe_dir)?,
        cache_dir: whole(&config.cache_dir)?,
        ..config
    })
}

/// Makes a directory that is not there yet (FS01).
fn make(path: &Path, what: &str, flag: &str, mode: u32) -> Result<(), Usage> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|error| {
        Usage(format!(
            "cannot create the {what} directory {}: {error}; create it, or name another with {flag}",
            path.display()
        ))
    })
}

/// Makes a directory that is not there yet, unless other users could lead what is written there
/// elsewhere. Gives its path without links: one that is made to lead elsewhere later is of no
/// effect.
fn make_own(
    path: &Path,
    what: &str,
    flag: &str,
    mode: u32,
    allowed: bool,
) -> Result<PathBuf, Usage> {
    if allowed {
        make(path, what, flag, mode)?;
        return Ok(path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    }
    let path = check_own(what, flag, path)?;
    make(&path, what, flag, mode)?;
    // Somebody else may have been quicker.
    check_own(what, flag, &path)
}

/// Checks the directory of programs that was given: a worker with a mistyped one would hand every
/// job back. The default one is made, if it is not there yet (FS01). None is taken where other
/// users could put programs: those would run with the rights of this worker. Links to it are
/// followed for each job, so that it can be exchanged by those who may.
fn make_programs(path: &Path, is_given: bool, allowed: bool) -> Result<(), Usage> {
    let check = || match allowed {
        true => Ok(()),
        false => check_programs(path).map_err(|error| {
            let Usage(text) = not_safe("exe", "--exe-dir", path, &error);
            Usage(format!("{text}; programs put there run with the rights of this worker"))
        }),
    };
    check()?;
    if !is_given && !path.exists() {
        make(path, "exe", "--exe-dir", 0o755)?;
        // Somebody else may have been quicker.
        check()?;
    }
    is_listed(path)
}

/// Whether the directory of programs is one that can be read; if not, what to do.
fn is_listed(path: &Path) -> Result<(), Usage> {
    let text = match path.metadata() {
        Ok(found) if found.is_dir() => match path.read_dir() {
            Ok(_) => return Ok(()),
            Err(error) => format!(
                "the exe directory {} cannot be read: {error}; give this user the right to read it, or name another with \
                 --exe-dir",
                path.display()
            ),
        },
        Ok(_) => format!(
            "the exe directory {} is not a directory: name the directory that the program is in with --exe-dir",
            path.display()
        ),
        Err(error) => format!(
            "the exe directory {} cannot be used: {error}; create it and put the programs there, or name another with \
             --exe-dir",
            path.display()
        ),
    };
    Err(Usage(text))
}

/// A directory that was there keeps its mode: a worker of another user may read what is in it.
fn tell_open_cache(cache_dir: &Path) {
    let Ok(found) = cache_dir.metadata() else { return };
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o055 != 0 {
        tracing::warn!(
            "other users of this machine may read the cache directory {} (its mode is {mode:04o}): chmod 700 it, unless a worker \
             of another user reads it",
            cache_dir.display()
        );
    }
}

/// Removes what killed workers left in the work directory, unless what failed jobs leave is wanted.
fn clear(args: &WorkerArgs) {
    if args.keep_failed {
        return;
    }
    match remove_abandoned(&args.work_dir) {
        Ok(Abandoned { removed, foreign }) => {
            if removed > 0 {
                tracing::info!(count = removed, "removed unused job directories");
            }
            if foreign > 0 {
                tracing::info!(
                    count = foreign,
                    "{} has job directories of classic workers, or of an earlier heft; they are left alone: remove them \
                     by hand when no worker uses them",
                    args.work_dir.display()
                );
            }
        }
        Err(error) => {
            tracing::warn!(
                "cannot look for old job directories in {}: {error}",
                args.work_dir.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        worker: WorkerArgs,
    }

    #[test]
    fn cli02_the_founding_form_has_the_founding_defaults() {
        let args = Cli::try_parse_from(["worker", "localhost", "5000"]).unwrap().worker;
        let config = args.worker_config();
        assert_eq!(config.leader, "localhost:5000");
        assert_eq!((config.parallel_max, config.cpu_cap, config.time_limit), (4, Some(0.75), None));
        assert_eq!(config.work_dir, Path::new("/tmp/jobs"));
        let exec = args.exec_config();
        assert_eq!(
            (exec.exe_dir.to_str(), exec.cache_dir.to_str()),
            (Some("/opt/grid/exe"), Some("/opt/grid/cache"))
        );
        assert_eq!(exec, ExecConfig::default());
    }

    #[test]
    fn flags_reach_the_configuration() {
        let line = "worker ::1 7000 groupA job.assign.B.* --max-par 9 --cpu-cap 0.5 --time-limit 1.5s --stop-grace 2m \
                    --id 00112233-4455-6677-8899-aabbccddeeff --name w1 --keep-failed --zip-all --stdout-max 2MiB \
                    --output-max 3MiB --archive-max 5GiB \
                    --tcp-congestion reno";
        let args = Cli::try_parse_from(line.split_whitespace()).unwrap().worker;
        let config = args.worker_config();
        assert_eq!(config.leader, "[::1]:7000");
        assert_eq!(config.patterns, ["groupA", "job.assign.B.*"]);
        assert_eq!((config.parallel_max, config.keep_failed), (9, true));
        assert_eq!(config.time_limit, Some(Duration::from_millis(1500)));
        assert_eq!(config.stop_grace, Duration::from_secs(120));
        assert_eq!(config.id, Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
        assert!(args.exec_config().zip_all && args.exec_config().stdout_bytes_max == 2 << 20);
        let exec = args.exec_config();
        assert_eq!((exec.output_bytes_max, exec.archive_bytes_max), (3 << 20, 5 << 30));
    }

    #[test]
    fn c01_the_caches_flags_reach_the_configuration() {
        let id = Uuid::from_u128(7);
        let line = format!(
            "worker h 1 --cache-dir /c --cache-budget 5GiB --cache-link copy --cache-only --for {id}"
        );
        let args = Cli::try_parse_from(line.split_whitespace()).unwrap().worker;
        let config = args.worker_config();
        assert_eq!(
            config.cache,
            Some(CacheConfig {
                directory: "/c".into(),
                budget: Some(5 << 30),
                link: LinkMode::Copy
            })
        );
        assert_eq!((config.cache_only, config.cache_for), (true, Some(id)));
        assert_eq!(args.exec_config().cache_link, LinkMode::Copy);
        assert!(Cli::try_parse_from(["worker", "h", "1", "--for", &id.to_string()]).is_err());
        assert!(Cli::try_parse_from(["worker", "h", "1", "--cache-link", "move"]).is_err());
    }

    #[test]
    fn bad_flags_are_refused_with_the_range() {
        for (flags, text) in [
            (
                "--max-par 0",
                "--max-par, or else WORKER_MAX_PAR, takes a whole number from 1 to 10000",
            ),
            ("--max-par 10001", "from 1 to 10000"),
            (
                "--cpu-cap 0.99",
                "--cpu-cap, or else WORKER_CPU_CAP, takes a share of all processors from 0.10 to 0.95, or 1 for no limit",
            ),
            ("--cpu-cap NaN", "from 0.10 to 0.95"),
            ("--time-limit 0s", "lets no program run"),
            ("--time-limit soon", "is not a time"),
            ("--stdout-max big", "is not a size"),
            ("--id x", "invalid value"),
        ] {
            let line = format!("worker h 1 {flags}");
            let error = Cli::try_parse_from(line.split_whitespace()).err().unwrap().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn old_job_directories_go_at_the_start_unless_failed_ones_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let id = Uuid::from_u128(5).simple().to_string();
        let (old, classic) = (root.path().join("heft").join(&id), root.path().join(&id));
        std::fs::create_dir_all(&old).unwrap();
        std::fs::create_dir(&classic).unwrap();
        let path = root.path().to_str().unwrap();
        let args = |more: &[&str]| {
            let line = [&["worker", "h", "1", "--work-dir", path], more].concat();
            Cli::try_parse_from(line).unwrap().worker
        };
        clear(&args(&["--keep-failed"]));
        assert!(old.exists());
        clear(&args(&[]));
        assert!(!old.exists());
        assert!(classic.exists(), "a classic worker may be using it");
    }

    #[test]
    fn fs01_an_exe_directory_that_was_given_has_to_be_there_and_the_default_one_is_made() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("exes");
        let refused =
            |path: &Path, is_given| make_programs(path, is_given, true).unwrap_err().to_string();
        let text = refused(&missing, true);
        assert!(
            text.contains("exes cannot be used: No such file") && text.contains("--exe-dir"),
            "{text}"
        );
        assert!(!missing.exists());
        make_programs(&missing, false, true).unwrap();
        assert!(missing.is_dir());
        make_programs(&missing, true, true).unwrap();
        let file = root.path().join("calcA");
        std::fs::write(&file, "").unwrap();
        for is_given in [true, false] {
            assert!(
                refused(&file, is_given).contains("calcA is not a directory: name the directory")
            );
        }
        // Root reads what nobody may.
        if !rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&missing, std::fs::Permissions::from_mode(0o300)).unwrap();
            assert!(refused(&missing, true).contains("cannot be read: Permission denied"));
            std::fs::set_permissions(&missing, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn fs01_a_directory_that_cannot_be_made_is_said_with_its_flag() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        let path = root.path().join("file/exe");
        let error = make(&path, "exe", "--exe-dir", 0o755).unwrap_err().to_string();
        assert!(error.contains("--exe-dir") && error.contains("file/exe"), "{error}");
        make(&root.path().join("a/b"), "exe", "--exe-dir", 0o755).unwrap();
        make(&root.path().join("a/b"), "exe", "--exe-dir", 0o755).unwrap();
    }
}
