//! The new data directory. It is written in a directory of its own within, through the store's
//! writer, synced, and only then moved to where a leader finds it: so there is all of it or
//! nothing. A dry run takes the same way, and writes nothing.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chunking::limits::FRAME_BODY_BYTES_MAX;
use heft::conn::Session;
use heft::core::Record;
use heft::core::event::{Inputs, Submission, WorkerClass};
use heft::core::ids::{Attempt, ClientId, Index, JobId, Run, WorkerId};
use heft::core::payload::FileNames;
use heft::core::record::AttemptEnd;
use heft::store::codec::Attached;
use heft::store::disk::{DataDir, Disk};
use heft::store::format::{CONSENSUS, Owner, claim};
use heft::store::log::{Append, Log};
use uuid::Uuid;

use super::{Imported, Into, Standing, Summary, not_later_than_now};
use crate::exit::Failure;

/// Bytes of a segment, as a leader writes them by default.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Records are written when their payloads have so many bytes, or there are so many of them.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_RECORDS: usize = 4096;

/// The directory within that is written to.
const WORK: &str = "import";

/// What may be in a directory that is empty to people.
const MAY_BE_THERE: &str = "lost+found";

/// Where jobs go.
pub(super) enum Target {
    Dry,
    /// Into a new directory.
    New(Box<NewDirectory>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Dry => write!(f, "nothing was written (--dry-run); there would be"),
            Target::New(new) => write!(f, "{} has now, for node {}", new.data.display(), new.node),
        }
    }
}

/// A directory in the making.
pub(super) struct NewDirectory {
    data: PathBuf,
    node: i32,
    /// Whether it was not there before.
    made: bool,
    is_finished: bool,
    /// Held, so that no leader begins with it meanwhile.
    _lock: DataDir,
    log: Log,
    index: u64,
    batch: Vec<Append>,
    batch_bytes: usize,
}

impl Target {
    /// Makes the directory, unless nothing is to be written.
    pub(super) fn new(into: &Into) -> Result<Self, Failure> {
        let made = is_to_be_made(&into.data)?;
        if into.dry_run {
            return Ok(Target::Dry);
        }
        NewDirectory::new(&into.data, into.node, made).map(|new| Target::New(Box::new(new)))
    }

    /// A client's cap.
    pub(super) fn cap(
        &mut self,
        client: &str,
        cap: u32,
        summary: &mut Summary,
    ) -> Result<(), Failure> {
        self.record(Record::Cap { client: client.into(), cap }, None)?;
        summary.caps += 1;
        Ok(())
    }

    /// A job, with what brings it to where it stood. One that no worker could be sent is left out.
    pub(super) fn job(&mut self, job: Imported, summary: &mut Summary) -> Result<(), Failure> {
        let Imported { id, client, key, exec, priority, at, standing, payload } = job;
        let (body, limit) =
            (Session::assign_body_len(key.as_str(), payload.len()), FRAME_BODY_BYTES_MAX as usize);
        if body > limit {
            let reason = format!(
                "too large: a job goes to a worker in a frame of at most {limit} bytes; submit it again with `heft submit --file`"
            );
            summary.skip(reason, format_args!("{id} ({body} bytes)"));
            return Ok(());
        }
        let (job, run) = (JobId(id), Run(1));
        let submission = Submission {
            job,
            client: ClientId(client.into()),
            key,
            exec: exec.into(),
            priority,
            to_all: false,
            size: payload.len() as u64,
            fingerprint: chunking::digest::blake3(&payload),
            inputs: Inputs::Here,
            needs_transfers: false,
            require_worker: false,
            names: FileNames::Plain,
            tag: None,
            datasets: Vec::new(),
        };
        summary.bytes += payload.len() as u64;
        let attached = Attached { from_ours: false, blobs: Vec::new(), payload: payload.into() };
        self.record(
            Record::Enqueue { at, job: submission, children: Vec::new(), kept: true },
            Some(attached),
        )?;
        let assign = |worker: Option<Uuid>, attempt: u32| {
            let (worker, attempt) = (WorkerId(worker.unwrap_or_default()), Attempt(attempt));
            Record::Assign { at: None, job, run, attempt, worker, class: WorkerClass::Classic }
        };
        match standing {
            Standing::Queued => summary.queued += 1,
            Standing::InFlight { worker, attempt } => {
                self.record(assign(worker, attempt), None)?;
                // That its leader went away is not the job's fault.
                let (attempt, why) = (Attempt(attempt), AttemptEnd::WorkerLost);
                self.record(
                    Record::Requeue {
                        at: None,
                        job,
                        run,
                        attempt,
                        why,
                        counts: false,
                        not_before: at,
                    },
                    None,
                )?;
                summary.in_flight += 1;
            }
            Standing::Dead { attempt, since } => {
                self.record(assign(None, attempt), None)?;
                let at = since.map_or(at, |since| not_later_than_now(since).max(at));
                let (attempt, why) = (Attempt(attempt), AttemptEnd::TimedOut);
                self.record(Record::Dlq { at, job, run, attempt, why }, None)?;
                summary.dead += 1;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: Record, attached: Option<Attached>) -> Result<(), Failure> {
        match self {
            Target::Dry => Ok(()),
            Target::New(new) => new.record(record, attached),
        }
    }

    /// Makes certain all that was written, and gives it to the leader that comes.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        match self {
            Target::Dry => Ok(()),
            Target::New(new) => new.finish(),
        }
    }
}

/// Whether the directory is not there yet. An error if there is something in it.
fn is_to_be_made(data: &Path) -> Result<bool, Failure> {
    let entries = match fs::read_dir(data) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Failure::Usage(format!(
                "{} is not a directory: give another --data",
                data.display()
            )));
        }
        Err(error) => return Err(Failure::io("read", data, &error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Failure::io("read", data, &error))?.file_name();
        if name == WORK {
            return Err(Failure::Usage(format!(
                "{} holds the remains of an unfinished import: remove it and try again; nothing of \
                 it was ever used",
                data.display()
            )));
        }
        if name != MAY_BE_THERE {
            return Err(Failure::Usage(format!(
                "{} is not empty: {} is in it. An import makes a new data directory and never adds to one: give another --data",
                data.display(),
                name.display()
            )));
        }
    }
    Ok(false)
}

impl NewDirectory {
    fn new(data: &Path, node: i32, made: bool) -> Result<Self, Failure> {
        let lock = DataDir::claim(data)?;
        let begun = DataDir::claim(&data.join(WORK)).map_err(Failure::from).and_then(|disk| {
            let disk: Arc<dyn Disk> = Arc::new(disk);
            let owner = Owner { node, dir: Uuid::new_v4() };
            disk.make_dir(CONSENSUS)
                .map_err(|error| Failure::io("make a directory in", data, &error))?;
            let log = Log::begin(disk.clone(), owner, SEGMENT_BYTES, 1)?;
            claim(&*disk, owner)?;
            Ok(log)
        });
        let log = begun.inspect_err(|_| clean(data, made))?;
        Ok(NewDirectory {
            data: data.to_owned(),
            node,
            made,
            is_finished: false,
            _lock: lock,
            log,
            index: 0,
            batch: Vec::new(),
            batch_bytes: 0,
        })
    }

    fn record(&mut self, record: Record, attached: Option<Attached>) -> Result<(), Failure> {
        self.index += 1;
        self.batch_bytes += attached.as_ref().map_or(0, |attached| attached.payload.len());
        self.batch.push(Append { index: Index(self.index), record, attached });
        if self.batch_bytes < BATCH_BYTES && self.batch.len() < BATCH_RECORDS {
            return Ok(());
        }
        self.write().map_err(|error| self.failed(&error))
    }

    fn write(&mut self) -> io::Result<()> {
        self.log.append(&self.batch)?;
        self.batch.clear();
        self.batch_bytes = 0;
        self.log.rotate()?;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.write().and_then(|()| self.settle()).map_err(|error| self.failed(&error))?;
        self.is_finished = true;
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        self.log.sync()?;
        self.log.note_synced()?;
        self.log.sync()?;
        let work = self.data.join(WORK);
        fs::rename(work.join(CONSENSUS), self.data.join(CONSENSUS))?;
        File::open(&self.data)?.sync_all()?;
        // From here on it counts; what is left over is only untidy.
        fs::remove_dir_all(work).ok();
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::io("write the new log in", &self.data, error)
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        if !self.is_finished {
            clean(&self.data, self.made);
        }
    }
}

/// Removes what was made, and nothing else.
fn clean(data: &Path, made: bool) {
    fs::remove_dir_all(data.join(WORK)).ok();
    fs::remove_file(data.join("lock")).ok();
    if made {
        fs::remove_dir(data).ok();
    }
}
