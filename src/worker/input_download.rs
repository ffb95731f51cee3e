//! Downloads job inputs: one reception per assigned job whose inputs are still being sent.
//!
//! Names are validated before the first byte. Files are created in the job's directory when their
//! transfers open, and are not visible to anyone until the job runs, which requires all of them to
//! be complete. After a lost connection, received data is kept for a while; the next Open of the
//! same blob resumes there, whichever attempt it is for. Sinks that do not block are written by the
//! frame reader. Nothing is sent here: answers go to the [`Exchange`], which also has the
//! transfers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chunking::message::{Abort, Open, Purpose, Reason, Verdict};
use tokio::time::Instant;
use tracing::{debug, warn};
use uuid::Uuid;

use super::attempt::Workplace;
use super::directory::JobDirectory;
use super::exchange::{Exchange, Owner};
use super::exec::inputs;
use super::handler::{Handler, Job};
use super::work_dir::{WorkDirState, is_unusable};
use crate::core::names::{SafeName, input_names};
use crate::peer::OutFrame;
use crate::transfer::throttle::{AT_WORKER, Throttle};
use crate::transfer::{ChunkSink, FileSink, ONLY, Opened, Turn, is_full, refusal};

/// The inputs of one job on their way.
struct Reception {
    job: Arc<Job>,
    /// The names of all files, or what is wrong with them.
    names: Result<Vec<SafeName>, String>,
    directory: Option<JobDirectory>,
    /// Blobs that are not whole.
    missing: usize,
    /// When it is given up, if the leader does not go on with it.
    kept_until: Option<Instant>,
    /// When the leader was last told how far it is.
    throttle: Throttle<Instant>,
}

/// A blob of one of the jobs.
struct Incoming {
    job: Uuid,
    /// Its place among the job's files.
    file: usize,
    size: u64,
    /// Counted as here.
    whole: bool,
}

/// What a frame of a transfer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing that matters to the job.
    Nothing,
    /// All inputs of this job are here.
    Received(Uuid),
}

/// How far the inputs of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputProgress {
    pub(super) job: Uuid,
    pub(super) done: u64,
    pub(super) total: u64,
}

/// The receptions of a worker.
pub(super) struct Receptions {
    jobs: HashMap<Uuid, Reception>,
    blobs: HashMap<Uuid, Incoming>,
    work_dir: WorkDirState,
}

impl Receptions {
    pub(super) fn new(work_dir: WorkDirState) -> Self {
        Receptions { jobs: HashMap::new(), blobs: HashMap::new(), work_dir }
    }

    /// A job was assigned, perhaps again. Gives whether inputs of it are still to come; `None` if
    /// none come by transfer.
    pub(super) fn assign(&mut self, job: &Arc<Job>, out: &mut Exchange) -> Option<bool> {
        job.blobs().next()?;
        let listed: HashMap<Uuid, u64> =
            job.blobs().map(|(_, _, blob)| (blob.id, blob.size)).collect();
        let same = self.jobs.contains_key(&job.id)
            && self.blobs.iter().filter(|(_, held)| held.job == job.id).count() == listed.len()
            && listed.iter().all(|(id, size)| {
                self.blobs.get(id).is_some_and(|held| held.job == job.id && held.size == *size)
            });
        if same && let Some(reception) = self.jobs.get_mut(&job.id) {
            reception.job = job.clone();
            reception.kept_until = None;
            return Some(reception.missing > 0);
        }
        drop(self.take(job.id, out));
        let files =
            job.request.as_ref().map(|request| request.files.as_slice()).unwrap_or_default();
        let mut names = input_names(files.iter().map(|file| file.name.as_str()))
            .map_err(|error| error.to_string());
        for (file, input, blob) in job.blobs() {
            if self.blobs.contains_key(&blob.id) {
                names = Err(format!(
                    "input file \"{}\" names a blob that another file names too",
                    input.name
                ));
                continue;
            }
            let incoming = Incoming { job: job.id, file, size: blob.size, whole: false };
            self.blobs.insert(blob.id, incoming);
        }
        let reception = Reception {
            job: job.clone(),
            names,
            directory: None,
            missing: listed.len(),
            kept_until: None,
            throttle: Throttle::after(AT_WORKER, Instant::now()),
        };
        self.jobs.insert(job.id, reception);
        Some(true)
    }

    /// A transfer opens. Gives the job whose input it is, if it is one. `is_past` says of a job
    /// whether it has all of its inputs and runs, or has run: the leader, which may not have heard
    /// it on a connection that broke, need not send them again.
    pub(super) fn open<H: Handler>(
        &mut self,
        id: Uuid,
        open: Open,
        is_past: impl FnOnce(Uuid) -> bool,
        handler: &H,
        place: &Workplace,
        out: &mut Exchange,
    ) -> Option<Uuid> {
        let known = match self.blobs.get(&id) {
            Some(blob) if open.purpose == Purpose::Input && open.owner == blob.job => Some(blob),
            Some(_) | None => None,
        };
        let Some(blob) = known else {
            if open.purpose == Purpose::Input && is_past(open.owner) {
                out.push(OutFrame::message(id, &Verdict::Ok));
                return None;
            }
            let text = format!(
                "transfer {id} is not an input of a job that waits here (job {})",
                open.owner
            );
            let unknown = Abort { reason: Reason::UNKNOWN, text: text.into() };
            out.push(OutFrame::message(id, &unknown));
            return None;
        };
        let job = blob.job;
        let reception = self.jobs.get_mut(&job)?;
        reception.kept_until = None;
        let Some(open) = out.downloads.reopen(ONLY, id, open, &mut out.out) else {
            return Some(job);
        };
        if open.size != blob.size {
            let text = format!(
                "transfer {id} has {} bytes; the job's request says {}",
                open.size, blob.size
            );
            out.push(refusal(id, Reason::INVALID, text));
            return Some(job);
        }
        let file = blob.file;
        let started = reception.sink(file, handler, place).and_then(|sink| {
            let opened =
                Opened { id, open, owner: Owner::Input(job), on: ONLY, sink, not_needed: None };
            out.start(opened).map_err(|error| {
                reception.remove_file(file);
                (error.reason(), error.to_string())
            })
        });
        if let Err((reason, text)) = started {
            match reason {
                Reason::NO_DIRECTORY => self.work_dir.failed(&place.work_dir, &text),
                _ => warn!(%job, "cannot take an input: {text}"),
            }
            out.push(refusal(id, reason, text));
        }
        Some(job)
    }

    /// A frame of a transfer led to something.
    pub(super) fn on_turn(&mut self, id: Uuid, turn: Turn, out: &mut Exchange) -> Step {
        if matches!(turn, Turn::Unknown | Turn::Nothing) {
            return Step::Nothing;
        }
        let Some(blob) = self.blobs.get_mut(&id) else { return Step::Nothing };
        let (job, file) = (blob.job, blob.file);
        let Some(reception) = self.jobs.get_mut(&job) else { return Step::Nothing };
        match turn {
            Turn::Unknown | Turn::Nothing => return Step::Nothing,
            Turn::Whole => {
                if std::mem::replace(&mut blob.whole, true) {
                    return Step::Nothing;
                }
                reception.missing = reception.missing.saturating_sub(1);
                return if reception.missing == 0 { Step::Received(job) } else { Step::Nothing };
            }
            Turn::Failed(text) => warn!(%job, "refused an input: {text}"),
            Turn::Ended(abort) => {
                debug!(%job, transfer = %id, "the leader ends a transfer: {}", abort.text);
                if blob.whole {
                    return Step::Nothing;
                }
            }
        }
        // The leader takes the job elsewhere, or opens the transfer again: nothing of it is kept.
        out.downloads.remove(id);
        reception.remove_file(file);
        Step::Nothing
    }

    /// Whether inputs of a job are still to come.
    pub(super) fn lacks(&self, job: Uuid) -> bool {
        self.jobs.get(&job).is_some_and(|reception| reception.missing > 0)
    }

    /// How far the job of a transfer is, if it is time to say so again.
    pub(super) fn far(&mut self, id: Uuid, out: &Exchange) -> Option<InputProgress> {
        let job = self.blobs.get(&id)?.job;
        let reception = self.jobs.get_mut(&job)?;
        if reception.missing == 0 || !reception.throttle.passes(Instant::now(), false) {
            return None;
        }
        let blobs = self.blobs.iter().filter(|(_, blob)| blob.job == job);
        let (done, total) = blobs.fold((0, 0), |(done, total), (id, blob)| {
            let here = out.downloads.get(*id).map_or(0, |(_, download)| download.progress().0);
            (done + here, total + blob.size)
        });
        Some(InputProgress { job, done, total })
    }

    /// The connection is lost: received bytes are kept for `grace`.
    pub(super) fn lost(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        self.jobs.values_mut().for_each(|reception| reception.kept_until = Some(until));
    }

    /// When the next one is given up.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.jobs.values().filter_map(|reception| reception.kept_until).min()
    }

    /// Jobs whose inputs nobody came back for.
    pub(super) fn abandoned(&self) -> Vec<Uuid> {
        let now = Instant::now();
        let over = |reception: &Reception| reception.kept_until.is_some_and(|until| until <= now);
        self.jobs.iter().filter(|(_, reception)| over(reception)).map(|(job, _)| *job).collect()
    }

    /// The job runs, or is not wanted: its transfers are over. Gives the directory with what came.
    pub(super) fn take(&mut self, job: Uuid, out: &mut Exchange) -> Option<JobDirectory> {
        let reception = self.jobs.remove(&job)?;
        self.blobs.retain(|_, blob| blob.job != job);
        out.downloads.retain(|_, owner| !matches!(owner, Owner::Input(of) if *of == job));
        reception.directory
    }
}

impl Reception {
    /// Where a file goes, made ready to be written.
    fn sink<H: Handler>(
        &mut self,
        file: usize,
        handler: &H,
        place: &Workplace,
    ) -> Result<Box<dyn ChunkSink>, (Reason, String)> {
        let failed = |reason: Reason, text: String| (reason, text);
        let names = self.names.as_ref().map_err(|text| failed(Reason::INVALID, text.clone()))?;
        let input = self.job.request.as_ref().ok().and_then(|request| request.files.get(file));
        let (Some(input), Some(name)) = (input, names.get(file)) else {
            return Err(failed(Reason::INVALID, format!("the job has no input file {file}")));
        };
        if let Some(sink) = handler.sink(&self.job, input) {
            return Ok(sink);
        }
        // A few calls to the system, once for each job: they do not hold up the frames.
        if self.directory.is_none() {
            let made = JobDirectory::make(&place.work_dir, self.job.id);
            self.directory = Some(made.map_err(|error| {
                let reason = if is_full(&error) { Reason::DISK_FULL } else { Reason::NO_DIRECTORY };
                failed(reason, error.to_string())
            })?);
        }
        let Some(directory) = &self.directory else {
            return Err(failed(Reason::IO, "the job has no directory".into()));
        };
        let created = inputs::create(directory.open(), name);
        let created = created.map_err(|error| {
            failed(error.io().map_or(Reason::INVALID, reason), error.to_string())
        })?;
        let place = format!("in {}", directory.path().display());
        Ok(Box::new(FileSink::new(created, place)))
    }

    /// Removes what came of a file, so that it can come again.
    fn remove_file(&self, file: usize) {
        let name = self.names.as_ref().ok().and_then(|names| names.get(file));
        if let (Some(directory), Some(name)) = (&self.directory, name) {
            // Nothing but our own files is in there yet. One that stays is in the way of the next,
            // which says so.
            std::fs::remove_file(directory.path().join(name.to_string())).ok();
        }
    }
}

fn reason(error: &std::io::Error) -> Reason {
    match () {
        () if is_full(error) => Reason::DISK_FULL,
        () if is_unusable(error) => Reason::NO_DIRECTORY,
        () => Reason::IO,
    }
}
