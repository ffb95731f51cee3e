//! The handler of `heft worker`: runs executables from a directory (SPEC 1L without its flaws).
//!
//! A job names a program. Its input files are written to a directory of its own, the program runs
//! there, and its output and files become the result. Programs run in place: nothing is copied for
//! each job, and no job can change the program of the next. The handler knows nothing of leaders; a
//! session or an embedding program calls it as a [`Handler`].

mod archive;
pub(super) mod capture;
mod environment;
pub(super) mod inputs;
mod launch;
mod process;
mod programs;

pub use environment::{PASSED, PassError, check_passed};
pub use launch::{LAUNCH, launch};

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

use bytes::Bytes;
use chunking::message::{Purpose, Stage};
use tokio::task::JoinError;

use self::archive::{Method, Packed, Packing, pack};
use self::capture::Keep;
use self::inputs::{CachePlace, InputError, Inputs, write_all};
use self::process::{Ended, Start};
use self::programs::{find_program, is_of_program};
use super::cache::{KeptDatasets, LinkMode};
use super::directory::{OpenDirectory, outputs_beside};
use super::handler::{Content, Handler, Job, JobContext, ProgramListing};
use super::limits::{
    ARCHIVE_BYTES_MAX, ARCHIVE_FILES_MAX, ARCHIVE_INLINE_BYTES_MAX, OUTPUT_BYTES_MAX,
    STDERR_BYTES_MAX, STDOUT_BYTES_MAX,
};
use super::removal::remove_all;
use super::result_encoding::append_note;
use super::work_dir::is_unusable;
use crate::model::{InputFile, JobResult, JobStatus};
use crate::transfer::is_full;

/// Where executables and cached files are, and what is kept of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecConfig {
    /// The programs: `NAME.exe`, else `NAME` (WX01, C20).
    pub exe_dir: PathBuf,
    /// Files that jobs refer to by CacheId (C02).
    pub cache_dir: PathBuf,
    /// How files of datasets get into job directories.
    pub cache_link: LinkMode,
    /// Pack inputs and the program too, as classic workers mean to (WX04).
    pub zip_all: bool,
    /// What goes inside a result of a program's standard output. A longer one goes as a whole
    /// beside it.
    pub stdout_bytes_max: usize,
    /// The same of its standard error.
    pub stderr_bytes_max: usize,
    /// What is kept of each of them at all.
    pub output_bytes_max: u64,
    /// The largest archive.
    pub archive_bytes_max: u64,
    /// Variables of this process that programs get beyond [`PASSED`].
    pub pass_env: Vec<String>,
    /// The `heft` command, to start programs through [`launch()`], so that they are killed when
    /// this process is; only for a runtime whose threads live as long as the process. Without it,
    /// programs are started as they are.
    pub launcher: Option<PathBuf>,
}

impl Default for ExecConfig {
    fn default() -> Self {
        ExecConfig {
            exe_dir: "/opt/grid/exe".into(),
            cache_dir: "/opt/grid/cache".into(),
            cache_link: LinkMode::Auto,
            zip_all: false,
            stdout_bytes_max: STDOUT_BYTES_MAX,
            stderr_bytes_max: STDERR_BYTES_MAX,
            output_bytes_max: OUTPUT_BYTES_MAX,
            archive_bytes_max: ARCHIVE_BYTES_MAX,
            pass_env: Vec::new(),
            launcher: None,
        }
    }
}

/// Runs executables.
#[derive(Clone, Debug)]
pub struct Exec {
    config: Arc<ExecConfig>,
}

impl Exec {
    /// A handler for the programs of a directory.
    pub fn new(config: ExecConfig) -> Self {
        Exec { config: Arc::new(config) }
    }

    async fn run_request(
        &self,
        job: &Job,
        inputs: Vec<InputFile>,
        context: &JobContext,
    ) -> JobResult {
        let request = match &job.request {
            Ok(request) => request,
            Err(error) => {
                return job.failed(format!(
                    "this worker runs programs, and the job is not a JobRequest: {error}"
                ));
            }
        };
        let program = match find_program(&self.config.exe_dir, &request.exec_name) {
            Ok(program) => program,
            Err(error) if error.is_of_worker() => return job.no_program(error.to_string()),
            Err(error) => return job.failed(error.to_string()),
        };
        let directory = match context.open_directory().await {
            Ok(directory) => directory,
            Err(error) => return not_begun(job, of_directory(&error), error.to_string()),
        };
        let inputs = match self.write_inputs(inputs, &directory, context.datasets.clone()).await {
            Ok(Ok(inputs)) => inputs,
            Ok(Err(error)) => {
                return not_begun(job, of_inputs(&error, &directory), error.to_string());
            }
            Err(error) => return job.failed(format!("writing the input files failed: {error}")),
        };
        if let Some(reason) = context.cancel_token().reason() {
            return job.failed(reason.to_string());
        }
        let outputs = outputs_beside(directory.path());
        let temporary = match Temporary::make(&outputs) {
            Ok(temporary) => temporary,
            Err(error) => return not_begun(job, of_directory(&error), error.to_string()),
        };
        let environment = environment::of_job(
            job,
            context.worker(),
            &temporary.0,
            &self.config.pass_env,
            |name| std::env::var_os(name),
        );
        let keep = |bytes_max, file| Keep {
            bytes_max,
            file: outputs.join(file),
            file_bytes_max: self.config.output_bytes_max,
        };
        let keep = [
            keep(self.config.stdout_bytes_max, "stdout"),
            keep(self.config.stderr_bytes_max, "stderr"),
        ];
        let start = Start {
            program: &program,
            args: &request.args,
            directory: &directory,
            environment: &environment,
            launcher: self.config.launcher.as_deref(),
        };
        let ended = process::run(start, keep, &context.shown, context.cancel_token()).await;
        // There may be much in it.
        tokio::task::spawn_blocking(move || temporary.remove()).await.ok();
        let mut result = match ended {
            Ok(ended) => result_of(job, &ended, context),
            Err(error) => {
                let why = format!("Process error: {}: {error}", program.display());
                return not_begun(job, of_start(&error, &directory), why);
            }
        };
        // Nobody waits for the files of a job that was told to stop.
        if context.cancel_token().reason().is_none() {
            context.progress(Stage::Packing, 0, 0, "");
            let method = if job.takes_parts { Method::Store } else { Method::Deflate };
            match self.pack(directory, inputs, method, program, context.clone()).await {
                Ok(packed) => {
                    result.archive_lost = packed.lost;
                    match packed.archive {
                        Some(Content::Memory(archive)) => {
                            result.output_archive = Some(archive.into())
                        }
                        Some(file @ Content::File(_)) => attach(context, Purpose::Archive, file),
                        None => {}
                    }
                    packed.notes.iter().for_each(|note| append_note(&mut result.stderr, note));
                }
                Err(text) => {
                    append_note(&mut result.stderr, &text);
                    result.status = JobStatus::Failed;
                }
            }
        }
        result
    }

    async fn write_inputs(
        &self,
        files: Vec<InputFile>,
        directory: &OpenDirectory,
        kept: Arc<KeptDatasets>,
    ) -> Result<Result<Inputs, InputError>, JoinError> {
        let (directory, config) = (directory.clone(), self.config.clone());
        tokio::task::spawn_blocking(move || {
            let cache =
                CachePlace { directory: &config.cache_dir, link: config.cache_link, kept: &kept };
            write_all(&files, &directory, cache)
        })
        .await
    }

    async fn pack(
        &self,
        directory: OpenDirectory,
        inputs: Inputs,
        method: Method,
        program: PathBuf,
        context: JobContext,
    ) -> Result<Packed, String> {
        let config = self.config.clone();
        let packed = tokio::task::spawn_blocking(move || {
            let inputs = if config.zip_all { Inputs::new() } else { inputs };
            pack(Packing {
                directory: &directory,
                file: &outputs_beside(directory.path()).join("archive"),
                memory_bytes_max: ARCHIVE_INLINE_BYTES_MAX,
                inputs: &inputs,
                method,
                said: &|done, total| context.progress(Stage::Packing, done, total, ""),
                program: config.zip_all.then_some(program.as_path()),
                bytes_max: config.archive_bytes_max,
                files_max: ARCHIVE_FILES_MAX,
            })
        });
        match packed.await {
            Ok(packed) => packed.map_err(|error| error.to_string()),
            Err(error) => Err(format!("packing the archive failed: {error}")),
        }
    }
}

impl Handler for Exec {
    fn shows_output(&self) -> bool {
        true
    }

    async fn run(&self, mut job: Job, context: JobContext) -> JobResult {
        // Contents go to the disk; they are not kept in memory, twice, for as long as the program
        // runs.
        job.payload = Bytes::new();
        let inputs = match &mut job.request {
            Ok(request) => std::mem::take(&mut request.files),
            Err(_) => Vec::new(),
        };
        self.run_request(&job, inputs, &context).await
    }

    fn programs(&self) -> Option<ProgramListing> {
        Some(programs::list(&self.config.exe_dir))
    }

    fn lacks_program(&self, job: &Job) -> Option<String> {
        let request = job.request.as_ref().ok()?;
        let error = find_program(&self.config.exe_dir, &request.exec_name).err()?;
        error.is_of_worker().then(|| error.to_string())
    }
}

/// Whose doing it is that a job did not begin.
enum Fault {
    /// The job's: no worker can run it.
    Job,
    /// This worker has no room on its disk.
    Room,
    /// This worker cannot use its work directory.
    Directory,
    /// This worker cannot start its program.
    Program,
    /// This worker had inputs of it, and does not have them as they were: they come again, here or
    /// elsewhere.
    Inputs,
}

/// The directory of a job cannot be made, whatever the job is.
fn of_directory(error: &io::Error) -> Fault {
    if is_full(error) { Fault::Room } else { Fault::Directory }
}

fn of_inputs(error: &InputError, directory: &OpenDirectory) -> Fault {
    if error.io().is_some_and(is_full) {
        return Fault::Room;
    }
    if directory.is_gone()
        || matches!(error, InputError::Write { source, .. } if is_unusable(source))
    {
        return Fault::Directory;
    }
    // A dataset is looked at again before the next job of it runs.
    let is_of_dataset = matches!(
        error,
        InputError::Changed { .. }
            | InputError::Removed { .. }
            | InputError::NotHere { .. }
            | InputError::Cache { .. }
    );
    if is_of_dataset { Fault::Inputs } else { Fault::Job }
}

/// A program could not be started.
fn of_start(error: &io::Error, directory: &OpenDirectory) -> Fault {
    match () {
        () if directory.is_gone() => Fault::Directory,
        () if is_of_program(error) => Fault::Program,
        () => Fault::Job,
    }
}

/// The answer for a job that did not begin: where the worker is to blame, another may have it.
fn not_begun(job: &Job, fault: Fault, why: String) -> JobResult {
    match fault {
        Fault::Job => job.failed(why),
        Fault::Room => job.no_room(why),
        Fault::Directory => job.no_directory(why),
        Fault::Program => job.no_program(why),
        Fault::Inputs => {
            tracing::warn!(job = %job.id, "the job is handed back: {why}");
            job.handed_back(why)
        }
    }
}

/// A directory for what a program needs while it runs, beside its own: what is in that is packed.
struct Temporary(PathBuf);

impl Temporary {
    fn make(outputs: &Path) -> io::Result<Self> {
        let path = outputs.join("tmp");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| {
            let text = format!(
                "cannot make the directory for temporary files {}: {error}",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        Ok(Temporary(path))
    }

    /// What cannot be removed now goes with the job's directory.
    fn remove(self) {
        remove_all(&self.0).ok();
        // It stays if there are large parts in it.
        self.0.parent().map(fs::remove_dir);
    }
}

/// A result has all the parts that programs give, so this cannot be refused.
fn attach(context: &JobContext, purpose: Purpose, content: Content) {
    if let Err(error) = context.attach(purpose, content) {
        tracing::warn!("{error}");
    }
}

fn result_of(job: &Job, ended: &Ended, context: &JobContext) -> JobResult {
    let status = if ended.status.success() { JobStatus::Ok } else { JobStatus::Failed };
    let mut result = JobResult {
        stdout: ended.stdout.text(),
        stderr: ended.stderr.text(),
        exit_code: ended.status.code(),
        // Whoever is told to stop is killed, which says nothing of the program.
        signal: ended.status.signal().filter(|_| context.cancel_token().reason().is_none()),
        ..job.result(status)
    };
    let notes = [ended.stdout.note("stdout"), ended.stderr.note("stderr"), exit_note(ended.status)];
    notes.iter().flatten().for_each(|note| append_note(&mut result.stderr, note));
    let outputs =
        [(Purpose::Stdout, &ended.stdout, "stdout"), (Purpose::Stderr, &ended.stderr, "stderr")];
    for (purpose, captured, name) in outputs {
        if let Some(file) = captured.file() {
            attach(context, purpose, Content::File(file.to_owned()));
        }
        if let Some(failure) = captured.failure(name) {
            append_note(&mut result.stderr, &failure);
            result.status = JobStatus::Failed;
        }
    }
    result
}

fn exit_note(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("the program ended with exit code {code}")),
        (None, Some(signal)) => Some(format!("the program was ended by signal {signal}")),
        (None, None) => Some(format!("the program ended: {status}")),
    }
}
