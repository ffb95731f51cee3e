//! The blobs: their maps, the bytes of their chunks, and whether those that the log refers to are
//! whole. Called by `verify` with what the log says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use chunking::ChunkPlan;
use chunking::DigestKind;
use chunking::digest::ChunkCrcs;
use chunking::limits::CHUNK_BYTES_MAX;
use heft::core::ids::{CacheId, JobId};
use heft::core::job::{Ending, Phase};
use heft::store::blobs::BLOBS;
use heft::store::disk::{Disk, How, read_exact};
use heft::store::format::{HEADER_BYTES, NEW, Owner, StoreError, full};
use heft::store::map::Map;
use heft::store::replay::{Loaded, Replay, UpTo};
use heft::units::ByteSize;
use uuid::Uuid;

use super::super::{STEADY_TRIES, load_steady};
use super::{Found, Problem};

const MAP: &str = ".map";
const FREE: &str = "free-";

/// Where the seal is in a map, behind its header.
const SEAL_AT: u64 = HEADER_BYTES as u64;

/// What refers to a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    /// A job that was taken: its input has to be whole.
    Input(JobId),
    /// A job that was announced: its input may still be coming.
    Coming(JobId),
    /// A result that is kept: its part has to be whole.
    Part(JobId),
    /// A dataset: its manifest and its packs have to be whole.
    Dataset(CacheId),
}

impl Use {
    fn text(&self) -> String {
        match self {
            Use::Input(job) => format!("an input of job {job}"),
            Use::Coming(job) => format!("an input of job {job}, which was announced"),
            Use::Part(job) => format!("a part of the result of job {job}"),
            Use::Dataset(cache) => format!("a part of the dataset {cache}"),
        }
    }

    /// What to do if it is lost.
    const fn remedy(&self) -> &'static str {
        match self {
            Use::Input(_) => {
                "restore its two files from a backup; without them the job ends FAILED when a \
                 leader starts or sends it: then submit it again"
            }
            Use::Coming(_) => "nothing: the client is asked for what is missing",
            Use::Part(_) => {
                "restore its two files from a backup; without them that part of the result can no \
                 longer be fetched"
            }
            Use::Dataset(_) => {
                "restore its two files from a backup, or put the dataset again; without them the \
                 dataset cannot be sent to workers"
            }
        }
    }
}

/// A place that is not as it was written: file, offset, what.
type Bad = (String, u64, String);

/// What was found of one blob.
#[derive(Default)]
struct Verified {
    lines: Vec<(String, String)>,
    problems: Vec<Problem>,
}

/// What one blob is looked at with.
struct Look<'a> {
    disk: &'a dyn Disk,
    owner: Owner,
    /// Whether the bytes of chunks are read.
    with_chunks: bool,
    /// What refers to blobs, if the log could be read.
    uses: Option<HashMap<Uuid, Use>>,
    scratch: Vec<u8>,
}

/// Checks all blobs. What refers to them is known only if the log could be read.
pub(super) fn check(
    disk: &dyn Disk,
    owner: Owner,
    loaded: Option<&Loaded>,
    with_chunks: bool,
) -> io::Result<Found> {
    let uses = loaded.map(|loaded| uses(&loaded.replay));
    let mut names: BTreeMap<Uuid, BTreeSet<String>> = BTreeMap::new();
    for blob in uses.iter().flat_map(HashMap::keys) {
        names.insert(*blob, BTreeSet::new());
    }
    let mut found = Found::default();
    let (mut free, mut free_bytes) = (0, 0);
    for file in disk.list(BLOBS)? {
        let stem = file.name.strip_suffix(NEW).unwrap_or(&file.name);
        match Uuid::try_parse(stem.strip_suffix(MAP).unwrap_or(stem)) {
            Ok(blob) => {
                names.entry(blob).or_default().insert(file.name);
            }
            Err(_) if file.name.starts_with(FREE) => {
                (free, free_bytes) = (free + 1, free_bytes + file.len)
            }
            Err(_) => found.line(
                &format!("{BLOBS}/{}", file.name),
                format_args!("is not a file of the leader and is ignored, {}", ByteSize(file.len)),
            ),
        }
    }
    let mut look =
        Look { disk, owner, with_chunks, uses, scratch: vec![0; CHUNK_BYTES_MAX as usize] };
    let mut looked: BTreeMap<Uuid, Verified> = BTreeMap::new();
    for (blob, names) in &names {
        looked.insert(*blob, look.at(*blob, names));
    }
    // A leader that runs may have removed or finished some since the log was read: these are looked
    // at again.
    for _ in 0..STEADY_TRIES {
        let bad: Vec<Uuid> = looked
            .iter()
            .filter(|(_, looked)| !looked.problems.is_empty())
            .map(|(blob, _)| *blob)
            .collect();
        if bad.is_empty() || look.uses.is_none() {
            break;
        }
        let Ok(again) = load_steady(disk, owner, UpTo::End) else { break };
        look.uses = Some(self::uses(&again.replay));
        let listed = disk.list(BLOBS)?;
        for blob in bad {
            let stem = blob.simple().to_string();
            let names = listed.iter().map(|file| file.name.clone());
            let names = names.filter(|name| name.starts_with(&stem)).collect();
            looked.insert(blob, look.at(blob, &names));
        }
    }
    for looked in looked.into_values() {
        looked.lines.iter().for_each(|(file, what)| found.line(file, what));
        found.problems.extend(looked.problems);
    }
    if free > 0 {
        let what = format!("{free} files wait to be written again, {}", ByteSize(free_bytes));
        found.line(&format!("{BLOBS}/{FREE}*"), what);
    }
    Ok(found)
}

/// What refers to blobs.
fn uses(replay: &Replay) -> HashMap<Uuid, Use> {
    let mut uses = HashMap::new();
    for (job, held) in &replay.inputs {
        let is_announced = replay.state.job(*job).is_some_and(|job| job.is_announced());
        let of = if is_announced { Use::Coming(*job) } else { Use::Input(*job) };
        uses.extend(held.blobs.iter().map(|blob| (*blob, of.clone())));
    }
    let owners = replay.state.jobs().filter_map(|job| match &job.phase {
        Phase::Done { ending: Ending::Returned { result, .. }, .. } => Some((*result, job.id())),
        Phase::Queued { .. }
        | Phase::Leased { .. }
        | Phase::Gathering { .. }
        | Phase::Done { .. }
        | Phase::Dead { .. } => None,
    });
    let owners: HashMap<_, _> = owners.collect();
    for (result, held) in &replay.results {
        let job = owners.get(result).copied().unwrap_or(JobId(Uuid::nil()));
        uses.extend(held.blobs.iter().map(|blob| (*blob, Use::Part(job))));
    }
    for dataset in replay.state.datasets() {
        uses.extend(dataset.blobs().map(|blob| (blob, Use::Dataset(dataset.cache.clone()))));
    }
    uses
}

impl Look<'_> {
    /// Looks at one blob, which has files of these names.
    fn at(&mut self, blob: Uuid, names: &BTreeSet<String>) -> Verified {
        let disk = self.disk;
        let stem = blob.simple().to_string();
        let (path, map_path) = (format!("{BLOBS}/{stem}"), format!("{BLOBS}/{stem}{MAP}"));
        let (has_data, has_map) = (names.contains(&stem), names.contains(&format!("{stem}{MAP}")));
        let (used, what_for) = match &self.uses {
            None => (None, "its owner is unknown".to_owned()),
            Some(uses) => match uses.get(&blob) {
                Some(used) => (Some(used.clone()), used.text()),
                None => (None, "it is an orphan: it is collected after a while".to_owned()),
            },
        };
        // What nothing refers to, and what is still coming, may be as it is.
        let must_be_good = match &used {
            Some(Use::Input(_) | Use::Part(_) | Use::Dataset(_)) => true,
            Some(Use::Coming(_)) => false,
            None => self.uses.is_none(),
        };
        let remedy = used.as_ref().map_or("restore its two files from a backup", Use::remedy);
        let mut looked = Verified::default();
        for name in names.iter().filter(|name| name.ends_with(NEW)) {
            let what = "was not finished; the next leader removes it".to_owned();
            looked.lines.push((format!("{BLOBS}/{name}"), what));
        }
        if !has_map {
            if has_data {
                looked.lines.push((path, format!("has no map; {what_for}")));
            }
            if must_be_good && used.is_some() {
                let what = format!("it is missing, and the blob is {what_for}");
                looked.problems.push(Problem::new(full(disk, &map_path), None, what, remedy));
            }
            return looked;
        }
        let opened = disk.open(&map_path, How::Read);
        if used.is_none()
            && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            looked.lines.push((map_path, "was removed while this was looked at".to_owned()));
            return looked;
        }
        let read = opened
            .map_err(|error| StoreError::io("read", disk, &map_path, error))
            .and_then(|file| Map::read(disk, &map_path, &*file, self.owner, blob));
        let map = match read {
            Ok(map) => map,
            Err(error) => {
                looked.lines.push((map_path.clone(), format!("cannot be used; {what_for}")));
                if must_be_good {
                    looked.problems.push(Problem::of(&error, disk, &map_path, remedy));
                }
                return looked;
            }
        };
        let standing = match (&map.seal, map.is_whole()) {
            (Some(seal), true) => format!("sealed with {}", seal.kind),
            (Some(_), false) => "sealed, and not whole".to_owned(),
            (None, true) => "partial: all chunks, no seal".to_owned(),
            (None, false) => "partial".to_owned(),
        };
        let mut bad = map_problems(&map, &map_path, blob);
        let bad_chunks = self.chunks(&map, &path);
        let read = match (self.with_chunks, bad_chunks.len()) {
            (false, 0) => "its bytes were not read".to_owned(),
            (true, 0) => "every chunk is intact".to_owned(),
            (_, 1) => "1 chunk is damaged".to_owned(),
            (_, bad) => format!("{bad} chunks are damaged"),
        };
        bad.extend(bad_chunks);
        let mut line = format!("{standing}, {} of {}, {what_for}", map.chunks.len(), about(&map));
        if !must_be_good && !bad.is_empty() {
            line = format!("{line}; damaged places: {}", bad.len());
        }
        looked.lines.push((map_path.clone(), line));
        if has_data {
            looked.lines.push((path, read));
        }
        if !must_be_good {
            return looked;
        }
        if bad.is_empty() && used.is_some() && (map.seal.is_none() || !map.is_whole()) {
            bad.push((
                map_path,
                SEAL_AT,
                format!("the blob is {what_for}, and its map says: {standing}"),
            ));
        }
        // Without the log a partial cannot be told from what has to be whole.
        if used.is_none() && map.seal.is_none() {
            return looked;
        }
        let problems = bad
            .into_iter()
            .map(|(path, at, what)| Problem::new(full(disk, &path), Some(at), what, remedy));
        looked.problems.extend(problems);
        looked
    }

    /// Chunks whose bytes are not as they were written, or not there.
    fn chunks(&mut self, map: &Map, path: &str) -> Vec<Bad> {
        if map.chunks.is_empty() {
            return Vec::new();
        }
        let opened = self.disk.open(path, How::Read).and_then(|file| Ok((file.len()?, file)));
        let (file_len, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return vec![(path.to_owned(), 0, format!("it cannot be read: {error}"))],
        };
        let mut bad = Vec::new();
        for (index, (head, len)) in &map.chunks {
            let at = u64::from(*index) * u64::from(CHUNK_BYTES_MAX);
            let room = usize::try_from(*len).ok().and_then(|len| self.scratch.get_mut(..len));
            let what = match room {
                None => Some(format!(
                    "chunk {index} would have {len} bytes; a chunk has at most {CHUNK_BYTES_MAX}"
                )),
                Some(_) if at + u64::from(*len) > file_len => Some(format!(
                    "chunk {index} of {len} bytes is cut off: the file has {file_len}"
                )),
                Some(_) if !self.with_chunks => None,
                Some(room) => match read_exact(&*file, at, room) {
                    Ok(()) => head
                        .check_sent(crc32fast::hash(room))
                        .err()
                        .map(|error| format!("chunk {index}: {error}")),
                    Err(error) => Some(format!("chunk {index} cannot be read: {error}")),
                },
            };
            bad.extend(what.map(|what| (path.to_owned(), at, what)));
        }
        bad
    }
}

fn about(map: &Map) -> String {
    let chunks = map.open.size.div_ceil(u64::from(map.open.chunk_bytes.max(1)));
    let plural = if chunks == 1 { "chunk" } else { "chunks" };
    format!("{chunks} {plural}, {}", ByteSize(map.open.size))
}

/// Places of a map that are not as they should be.
fn map_problems(map: &Map, path: &str, blob: Uuid) -> Vec<Bad> {
    let mut bad: Vec<Bad> =
        map.damage.iter().map(|damage| (path.to_owned(), damage.at, damage.what.clone())).collect();
    let plan = match ChunkPlan::new(map.open.size, map.open.chunk_bytes) {
        Ok(plan) => plan,
        Err(error) => {
            bad.push((path.to_owned(), SEAL_AT, format!("blob {blob} cannot be: {error}")));
            return bad;
        }
    };
    // The list of checksums is what this digest is made of.
    if let Some(seal) = map.seal.filter(|seal| seal.kind == DigestKind::ChunkList && map.is_whole())
    {
        let mut crcs = ChunkCrcs::default();
        map.chunks.iter().for_each(|(index, (head, _))| crcs.insert(&plan, *index, head.crc_raw));
        if crcs.digest(&plan) != seal {
            bad.push((
                path.to_owned(),
                SEAL_AT,
                "the seal does not fit the checksums of the chunks".to_owned(),
            ));
        }
    }
    bad
}
