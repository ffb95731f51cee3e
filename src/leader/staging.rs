//! Stages job inputs as datasets (C01). A classic worker takes no transfers and no frame over 4
//! MiB, but its agent can receive a dataset. The job's blobs are read chunk by chunk into packs and
//! put under an id only the leader assigns. The dataset is removed when the job ends, when the job
//! goes to a worker that takes its inputs directly, or when part of the dataset is damaged.
//!
//! It stages one job at a time, one chunk at a time, at the disk's speed. The broker chooses the
//! jobs; see `core::staging`.
//!
//! A state machine of its own: [`Stagings::go_on`] does the next step and returns what follows. It
//! reads from and writes to the relay, and sees neither the broker nor the datasets.

use std::collections::VecDeque;

use chunking::Inflater;
use chunking::dataset::ManifestBuilder;
use chunking::dataset::pack::Layout;
use chunking::limits::{CHUNK_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use tracing::info;
use uuid::Uuid;

use super::datasets::StagedInputs;
use super::pack_writer::PackWriter;
use super::relay::{BlobId, Relay};
use super::request::{by_dataset, named_in, with_paths};
use crate::conn::Session;
use crate::core::ids::{CacheId, JobId, Micros};
use crate::core::job::Job;
use crate::core::names::{SafeName, is_flat, names_of_dataset};
use crate::core::payload::FileNames;
use crate::model::{InputFile, JobRequest, JsonModel, Source};
use crate::store::blobs::DiskOp;
use crate::store::verify::VerifyRequest;
use crate::units::ByteSize;

/// Chunks of a pack that may wait for the disk before more are read.
const UNWRITTEN_MAX: usize = 4;

/// What came of a step.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing: there is no job, or the disk has to do something first.
    Idle,
    /// It went on: others may have to hear of it.
    Went,
    /// A chunk went into a pack. Hashing takes a while: others have their turn before the next one.
    Packed,
    /// Read a chunk; then [`Stagings::was_read`].
    Read(DiskOp),
    /// All bytes are in packs: the dataset is put.
    Made { inputs: StagedInputs, packs: Vec<(BlobId, Layout)> },
    /// There is no dataset.
    Failed(NotStaged),
}

/// Why no dataset is made of a job's inputs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotStaged {
    pub(super) job: JobId,
    pub(super) why: String,
    /// Whether it may be tried again.
    pub(super) again: bool,
}

/// A file that becomes one of a dataset.
#[derive(Clone, Debug)]
pub(super) struct StagedFile {
    name: SafeName,
    blob: BlobId,
    size: u64,
}

/// Inputs of jobs that become datasets, one after the other.
#[derive(Debug)]
pub(super) struct Stagings {
    spool_bytes_max: u64,
    queue: VecDeque<Staging>,
    /// When the next chunk is due: others have their turn before.
    go_on_at: Option<Micros>,
}

/// The inputs of a job on their way into a dataset.
struct Staging {
    job: JobId,
    /// Tells what was read for it from what was read for an earlier one of the same job.
    key: Uuid,
    files: Vec<StagedFile>,
    maker: PackWriter,
    /// Whether a place for it was found.
    begun: bool,
    /// The file that is read, and its next chunk.
    file: usize,
    chunk: u32,
    is_reading: bool,
    inflater: Inflater,
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Staging { job, file, chunk, is_reading, .. } = self;
        write!(f, "Staging of {job} at chunk {chunk} of file {file}, reading: {is_reading}")
    }
}

/// Why a step failed, and whether the job may be tried again.
type Fault = (String, bool);

impl Stagings {
    pub(super) fn new(spool_bytes_max: u64) -> Self {
        Stagings { spool_bytes_max, queue: VecDeque::new(), go_on_at: None }
    }

    /// When to go on.
    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.go_on_at
    }

    /// The leader is about to stop: what is not read is left.
    pub(super) fn pause(&mut self) {
        self.go_on_at = None;
    }

    /// A dataset is to be made of these files, under this key.
    pub(super) fn add(&mut self, job: JobId, files: Vec<StagedFile>, key: Uuid) {
        let (maker, inflater) = (PackWriter::new(key), Inflater::default());
        let (begun, is_reading) = (false, false);
        self.queue.push_back(Staging {
            job,
            key,
            files,
            maker,
            begun,
            file: 0,
            chunk: 0,
            is_reading,
            inflater,
        });
    }

    /// Stops the staging of a job's inputs.
    pub(super) fn forget(&mut self, job: JobId, relay: &mut Relay) {
        if let Some(at) = self.queue.iter().position(|staging| staging.job == job)
            && let Some(staging) = self.queue.remove(at)
        {
            staging.maker.forget(relay);
        }
    }

    /// Goes on with the first job. `is_wanted` says whether a job still waits for its dataset,
    /// `is_first` that there is no other such dataset.
    pub(super) fn go_on(
        &mut self,
        now: Micros,
        is_wanted: impl Fn(JobId) -> bool,
        is_first: bool,
        relay: &mut Relay,
        make_id: &mut dyn FnMut() -> Uuid,
    ) -> Step {
        self.go_on_at = None;
        let Some(staging) = self.queue.front_mut().filter(|staging| !staging.is_reading) else {
            return Step::Idle;
        };
        let trouble = match is_wanted(staging.job) {
            true => relay.disk_trouble().map(str::to_owned),
            false => Some("the job went to another worker".to_owned()),
        };
        let step = match trouble {
            Some(trouble) => Err((trouble, true)),
            None if !staging.begun => staging.begin(is_first, self.spool_bytes_max, relay),
            None => staging.next(relay, make_id),
        };
        match step {
            Ok(Some(step)) => {
                self.go_on_at = matches!(step, Step::Packed).then_some(now);
                step
            }
            Ok(None) => self.end(relay, make_id),
            Err(fault) => self.fail(fault, relay),
        }
    }

    /// A chunk was read from the disk, or cannot be.
    pub(super) fn was_read(
        &mut self,
        key: Uuid,
        found: Result<Vec<u8>, String>,
        relay: &mut Relay,
        make_id: &mut dyn FnMut() -> Uuid,
    ) -> Step {
        let first = self.queue.front_mut().filter(|staging| staging.key == key);
        let Some(staging) = first.filter(|staging| staging.is_reading) else { return Step::Idle };
        staging.is_reading = false;
        match found {
            Ok(raw) => {
                staging.maker.bytes(&raw, relay, make_id);
                staging.chunk += 1;
                Step::Went
            }
            Err(why) => self.fail((why, true), relay),
        }
    }

    fn fail(&mut self, (why, again): Fault, relay: &mut Relay) -> Step {
        let Some(Staging { job, maker, .. }) = self.queue.pop_front() else { return Step::Idle };
        maker.forget(relay);
        Step::Failed(NotStaged { job, why, again })
    }

    /// All bytes are in packs.
    fn end(&mut self, relay: &mut Relay, make_id: &mut dyn FnMut() -> Uuid) -> Step {
        let Some(Staging { job, files, maker, .. }) = self.queue.pop_front() else {
            return Step::Idle;
        };
        let never = |why: String| Step::Failed(NotStaged { job, why, again: false });
        let key = maker.owner();
        let (made, packs) = match maker.finish(relay) {
            Ok(made) => made,
            Err(why) => return never(why),
        };
        let mut builder = ManifestBuilder::default();
        for (file, made) in files.into_iter().zip(made.into_values()) {
            builder.file(file.name, made.sha256, made.pieces);
        }
        match builder.finish() {
            Ok(manifest) => Step::Made {
                inputs: StagedInputs { job, key, version: make_id(), manifest },
                packs,
            },
            Err(error) => {
                packs.iter().for_each(|(pack, _)| relay.forget(*pack));
                never(error.to_string())
            }
        }
    }
}

impl Staging {
    /// Finds a place for the dataset, within `--spool-max`. The first is let in however full that
    /// is, so that what waits here for nothing else comes to its end.
    fn begin(&mut self, is_first: bool, room: u64, relay: &Relay) -> Result<Option<Step>, Fault> {
        let bytes = self.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size));
        if !is_first && !relay.has_room_for(bytes) {
            let why = format!(
                "they have {} more, and the leader holds {} of at most {} (--spool-max)",
                ByteSize(bytes),
                ByteSize(relay.fill().bytes),
                ByteSize(room)
            );
            return Err((why, true));
        }
        self.begun = true;
        info!(job = %self.job, files = self.files.len(), bytes, "inputs for a classic worker become a dataset");
        Ok(Some(Step::Went))
    }

    /// The next chunk, or the end of a file; none after the last.
    fn next(
        &mut self,
        relay: &mut Relay,
        make_id: &mut dyn FnMut() -> Uuid,
    ) -> Result<Option<Step>, Fault> {
        let unwritten = self.maker.open_pack().map_or(0, |pack| relay.unwritten(pack));
        if unwritten >= UNWRITTEN_MAX {
            return Ok(Some(Step::Idle));
        }
        let Some(StagedFile { name, blob, size }) = self.files.get(self.file) else {
            return Ok(None);
        };
        if self.chunk == 0 {
            self.maker.begin(self.file);
        }
        if u64::from(self.chunk) * u64::from(CHUNK_BYTES_MAX) >= *size {
            self.maker.end();
            (self.file, self.chunk) = (self.file + 1, 0);
            return Ok(Some(Step::Went));
        }
        let Some((head, len, sent)) = relay.chunk_here(*blob, self.chunk) else {
            return Err((format!("a part of \"{name}\" is not at the leader"), false));
        };
        let Some(sent) = sent else {
            self.is_reading = true;
            let (chunks, at) =
                (vec![(self.chunk, head, len)], VerifyRequest::Bytes { reader: self.key });
            return Ok(Some(Step::Read(DiskOp::Look { blob: *blob, chunks, at })));
        };
        let mut scratch = Vec::new();
        let raw = head.raw(&sent, &mut self.inflater, &mut scratch);
        let raw = raw.map_err(|error| (format!("\"{name}\": {error}"), false))?;
        self.maker.bytes(raw, relay, make_id);
        self.chunk += 1;
        Ok(Some(Step::Packed))
    }
}

/// The files of a job that are blobs here. An error says why no classic worker could have the job.
pub(super) fn files_to_stage(
    job: &Job,
    payload: &[u8],
    relay: &Relay,
) -> Result<Vec<StagedFile>, String> {
    let mut request = JobRequest::parse(payload).map_err(|error| error.to_string())?;
    // What such a worker would refuse it is not sent (C08, WX08).
    if let Some(file) =
        request.files.iter().find(|file| !is_for_classic(file, job.submission.names))
    {
        return Err(format!(
            "a classic worker does not accept the file \"{}\"",
            file.name.escape_debug()
        ));
    }
    let blobs = named_in(&request);
    let names = names_of_dataset(blobs.iter().map(|(_, name, _)| name.as_str()));
    let names = names.map_err(|error| error.to_string())?;
    let is_here = |blob: BlobId, size: u64| relay.has_arrived(blob) && relay.size(blob) == size;
    if let Some((_, name, _)) = blobs.iter().find(|(blob, _, size)| !is_here(*blob, *size)) {
        return Err(format!("\"{name}\" is not at the leader"));
    }
    by_dataset(&mut request, &CacheId::of_inputs(job.id()));
    let written = with_paths(&request, |_| true).unwrap_or(request).to_json();
    let body = Session::assign_body_len(job.submission.key.as_str(), written.len());
    if body > FRAME_BODY_BYTES_MAX as usize {
        return Err(format!(
            "the request without its files needs a frame of {body} bytes; a classic worker takes \
             at most {FRAME_BODY_BYTES_MAX}"
        ));
    }
    let files = names.into_iter().zip(blobs);
    Ok(files.map(|(name, (blob, _, size))| StagedFile { name, blob, size }).collect())
}

/// Whether a classic worker takes a file under this name, and from where it comes (WX08).
fn is_for_classic(file: &InputFile, names: FileNames) -> bool {
    let is_taken = match names {
        FileNames::Plain | FileNames::Folders => is_flat(&file.name),
        FileNames::Flattened => true,
    };
    is_taken && !matches!(file.source(), Source::Url(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::relay::RelayConfig;
    use crate::noise::noise;
    use chunking::dataset::sha256;
    use chunking::message::Purpose;

    const JOB: JobId = JobId(Uuid::from_u128(7));
    const NOW: Micros = Micros(5);

    const KEY: Uuid = Uuid::from_u128(99);

    struct Rig {
        relay: Relay,
        stagings: Stagings,
        last_id: u128,
    }

    impl Rig {
        /// With files of a job that are blobs here, and wait for their dataset.
        fn new(contents: &[Vec<u8>]) -> Self {
            let mut relay = Relay::new(RelayConfig::default());
            let mut files = Vec::new();
            for (number, content) in (1u128..).zip(contents) {
                let blob = Uuid::from_u128(number);
                for (index, chunk) in (0..).zip(content.chunks(CHUNK_BYTES_MAX as usize)) {
                    relay.gather(blob, Purpose::Input, index, chunk.to_vec().into());
                }
                let size = content.len() as u64;
                relay.gathered(blob, JOB, Purpose::Input, "", size).unwrap();
                let name = SafeName::parse_in_dataset(&format!("{number}.bin")).unwrap();
                files.push(StagedFile { name, blob, size });
            }
            let mut stagings = Stagings::new(1 << 30);
            stagings.add(JOB, files, KEY);
            Rig { relay, stagings, last_id: 100 }
        }

        fn go_on(&mut self, is_wanted: bool, is_first: bool) -> Step {
            let Rig { relay, stagings, last_id } = self;
            let mut make_id = || {
                *last_id += 1;
                Uuid::from_u128(*last_id)
            };
            stagings.go_on(NOW, |_| is_wanted, is_first, relay, &mut make_id)
        }

        fn was_read(&mut self, key: Uuid, found: Result<Vec<u8>, String>) -> Step {
            let Rig { relay, stagings, .. } = self;
            stagings.was_read(key, found, relay, &mut || Uuid::from_u128(200))
        }

        fn blobs(&self) -> usize {
            self.relay.fill().blobs
        }
    }

    #[track_caller]
    fn failed(step: Step) -> (String, bool) {
        let Step::Failed(NotStaged { job: JOB, why, again }) = step else { panic!("{step:?}") };
        (why, again)
    }

    #[test]
    fn files_become_a_dataset_chunk_by_chunk_and_others_have_their_turn_between() {
        let contents = [noise(3_000_000, 1), noise(5, 2)];
        let mut rig = Rig::new(&contents);
        let (mut packed, mut steps) = (0, 0);
        let (inputs, packs) = loop {
            steps += 1;
            match rig.go_on(true, true) {
                Step::Made { inputs, packs } => break (inputs, packs),
                Step::Packed => {
                    packed += 1;
                    assert_eq!(rig.stagings.next_deadline(), Some(NOW));
                }
                Step::Went => assert_eq!(rig.stagings.next_deadline(), None),
                other @ (Step::Idle | Step::Read(_) | Step::Failed(_)) => panic!("{other:?}"),
            }
        };
        assert_eq!((packed, steps), (4, 8), "a begin, four chunks, two ends of files, and the end");
        assert_eq!((inputs.job, inputs.key), (JOB, Uuid::from_u128(99)));
        let sums: Vec<_> = inputs.manifest.files().iter().map(|file| file.sha256).collect();
        assert_eq!(sums, contents.each_ref().map(|content| sha256(content)));
        assert!(packs.iter().all(|(pack, _)| rig.relay.has_arrived(*pack)) && packs.len() == 1);
        assert!(matches!(rig.go_on(true, true), Step::Idle), "nothing is left");
    }

    #[test]
    fn what_is_not_wanted_any_more_or_is_forgotten_leaves_nothing() {
        let mut rig = Rig::new(&[noise(2_000_000, 1)]);
        (0..2).for_each(|_| drop(rig.go_on(true, true)));
        assert_eq!(rig.blobs(), 2, "the input and a pack");
        assert_eq!(
            failed(rig.go_on(false, true)),
            ("the job went to another worker".to_owned(), true)
        );
        assert_eq!(rig.blobs(), 1);

        let mut rig = Rig::new(&[noise(2_000_000, 1)]);
        (0..2).for_each(|_| drop(rig.go_on(true, true)));
        rig.stagings.forget(JOB, &mut rig.relay);
        assert_eq!(rig.blobs(), 1);
        assert!(matches!(rig.go_on(true, true), Step::Idle));
    }

    #[test]
    fn an_input_that_is_lost_ends_it_for_good() {
        let mut rig = Rig::new(&[noise(9, 1)]);
        assert!(matches!(rig.go_on(true, true), Step::Went));
        rig.relay.forget(Uuid::from_u128(1));
        let lost = "a part of \"1.bin\" is not at the leader".to_owned();
        assert_eq!(failed(rig.go_on(true, true)), (lost, false));
    }

    #[test]
    fn only_the_first_dataset_is_made_without_room_for_it() {
        let mut rig = Rig::new(&[noise(9, 1)]);
        let config = RelayConfig { spool_bytes_max: 0, ..RelayConfig::default() };
        let full = Relay::new(config);
        rig.relay = full;
        let (why, again) = failed(rig.go_on(true, false));
        assert!(why.starts_with("they have 9 B more") && again, "{why}");
        let mut rig = Rig { relay: rig.relay, ..Rig::new(&[noise(9, 1)]) };
        assert!(matches!(rig.go_on(true, true), Step::Went));
    }

    #[test]
    fn a_chunk_that_is_on_the_disk_is_read_and_nothing_happens_before() {
        let mut rig = Rig::new(&[noise(9, 1)]);
        rig.go_on(true, true);
        let staging = rig.stagings.queue.front_mut().unwrap();
        staging.maker.begin(0);
        staging.is_reading = true;
        assert!(matches!(rig.go_on(true, true), Step::Idle));
        assert!(matches!(rig.was_read(Uuid::nil(), Ok(vec![1])), Step::Idle), "another's");
        assert!(matches!(rig.was_read(KEY, Ok(noise(9, 1))), Step::Went));
        assert!(matches!(rig.was_read(KEY, Ok(noise(9, 1))), Step::Idle), "once");
        assert!(matches!(rig.go_on(true, true), Step::Went), "the end of the file");
        let staging = rig.stagings.queue.front_mut().unwrap();
        staging.is_reading = true;
        assert_eq!(
            failed(rig.was_read(KEY, Err("damaged".to_owned()))),
            ("damaged".to_owned(), true)
        );
    }
}
