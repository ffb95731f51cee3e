//! The files of the log: segments, snapshots, and the payloads that the state needs. Called by
//! `verify` with the files that were there when it began to look.

use std::collections::BTreeMap;
use std::io;

use heft::core::ids::JobId;
use heft::core::job::{Ending, Job, Phase};
use heft::store::codec::Names;
use heft::store::disk::{Disk, How};
use heft::store::format::{self, FileNo, Kind, NEW, Owner, Place, StoreError, full, read_place};
use heft::store::log::{Segment, Tail};
use heft::store::replay::{Files, Key, Loaded, Replay, UpTo, load};
use heft::store::snapshot;
use heft::store::tail::{self, read::FileFound};
use heft::units::{ByteSize, Count};

use super::super::{end_before, uncommitted_text};
use super::{Found, Problem};

const SEGMENT_REMEDY: &str =
    "restore the file from a backup; without it a leader refuses to start, and changes nothing";
const SNAPSHOT_REMEDY: &str = "nothing, if there is an older snapshot and all of the log behind \
                               it: a leader begins with those, and puts this one aside. Otherwise \
                               restore it from a backup";

const TAIL_REMEDY: &str = "if other members are up, replace this one with `heft cluster replace`; \
                           else restore the whole directory from a backup. A tail from a backup \
                           alone would bring back votes of before";

const PAYLOAD_REMEDY: &str = "restore the file from a backup; without it the job ends FAILED when \
                              it is assigned, or its result is unavailable: then submit it again";

/// Checks them all. Gives what a leader would begin with, if it would.
pub(super) fn check(
    disk: &dyn Disk,
    owner: Owner,
    files: &Files,
) -> anyhow::Result<(Found, Option<Loaded>)> {
    let mut found = Found::default();
    let lens: BTreeMap<String, u64> =
        disk.list(format::CONSENSUS)?.into_iter().map(|file| (file.name, file.len)).collect();
    let len_of = |file: FileNo| {
        let path = file.path();
        let name = path.rsplit('/').next().unwrap_or_default();
        ByteSize(lens.get(name).copied().unwrap_or_default())
    };
    segments(disk, owner, files, &len_of, &mut found);
    let mut needed: BTreeMap<(FileNo, u64), (Place, String)> = BTreeMap::new();
    snapshots(disk, owner, files, &len_of, &mut found, &mut needed);
    others(disk, &lens, &mut found);
    let loaded = load(disk, owner, UpTo::End).and_then(|loaded| match loaded.tail {
        Some(_) => Ok(loaded),
        // Where there is an owner, there has been a log.
        None => Err(format::missing(disk, 1, None)),
    });
    let loaded = match loaded {
        Ok(loaded) => Some(loaded),
        Err(error) => {
            found.problem(Problem::of(&error, disk, "consensus", SEGMENT_REMEDY));
            None
        }
    };
    tails(disk, owner, files, loaded.as_ref(), &mut found);
    if let Some(loaded) = &loaded {
        need(&loaded.replay, &mut needed);
        all_are_there(disk, loaded, &mut found);
    }
    payloads(disk, needed, &mut found);
    Ok((found, loaded))
}

fn segments(
    disk: &dyn Disk,
    owner: Owner,
    files: &Files,
    len_of: &dyn Fn(FileNo) -> ByteSize,
    found: &mut Found,
) {
    // What is before the older of the two snapshots that are kept may have been removed; some files
    // stay for their payloads.
    let cut_to = files.snapshots.iter().rev().take(2).min().copied().unwrap_or(0);
    let mut expected: Option<u64> = None;
    for (place, first) in files.segments.iter().enumerate() {
        if let Some(expected) = expected.filter(|expected| expected < first)
            && first.saturating_sub(1) > cut_to
        {
            let file = FileNo::log(expected);
            let what = format!(
                "the file with the records {expected} to {} is missing",
                first.saturating_sub(1)
            );
            found.problem(Problem::new(full(disk, &file.path()), None, what, SEGMENT_REMEDY));
        }
        let (file, mut names) = (FileNo::log(*first), Names::default());
        let mut last = None;
        let follows = files.segments.get(place + 1);
        let read = Segment::open(disk, owner, *first).and_then(|mut segment| {
            while let Some(logged) = segment.next(&mut names)? {
                last = Some(logged.index.0);
            }
            match follows {
                Some(follows) => end_before(&mut segment, *follows),
                None => segment.tail(),
            }
        });
        let records = match last {
            Some(last) => format!("records {first} to {last}"),
            None => "no records".to_owned(),
        };
        let line = match (&read, follows) {
            (Ok(Tail { torn: 0, .. }), _) => format!("{records}, {}", len_of(file)),
            (Ok(_), Some(_)) => {
                format!(
                    "{records}, {}; the mark that another file follows is torn, which is harmless",
                    len_of(file)
                )
            }
            (Ok(Tail { torn, at, .. }), None) => format!(
                "{records}, {}; {torn} bytes from offset {at} on are not whole records: being \
                 written, or truncated by the next leader",
                len_of(file)
            ),
            (Err(error), _) => {
                found.problem(Problem::of(error, disk, &file.path(), SEGMENT_REMEDY));
                format!("{records} can be read, {}; see below", len_of(file))
            }
        };
        found.line(&file.path(), line);
        expected = read.ok().map(|tail| tail.next);
    }
}

fn snapshots(
    disk: &dyn Disk,
    owner: Owner,
    files: &Files,
    len_of: &dyn Fn(FileNo) -> ByteSize,
    found: &mut Found,
    needed: &mut BTreeMap<(FileNo, u64), (Place, String)>,
) {
    for (age, index) in files.snapshots.iter().rev().enumerate() {
        let file = FileNo::snapshot(*index);
        let read = snapshot::read(disk, owner, *index, &mut Names::default());
        match (snapshot::verify(disk, owner, *index), &read) {
            // A leader may begin with one of the newest two, and sees to it that what these need is
            // there.
            (Ok(jobs), _) if age >= 2 => {
                found.line(
                    &file.path(),
                    format_args!("{jobs} jobs, {}; the next cut removes it", len_of(file)),
                );
                continue;
            }
            (Ok(jobs), _) => {
                found.line(&file.path(), format_args!("{jobs} jobs, {}", len_of(file)))
            }
            (Err(error), read) => {
                found.line(&file.path(), format_args!("{}; see below", len_of(file)));
                let remedy = if read.is_ok() { PAYLOAD_REMEDY } else { SNAPSHOT_REMEDY };
                found.problem(Problem::of(&error, disk, &file.path(), remedy));
            }
        }
        if let Ok(replay) = &read {
            need(replay, needed);
        }
        for pin in snapshot::pins(disk, owner, *index).unwrap_or_default() {
            let is_there = match pin.kind() {
                Kind::Log => files.segments.contains(&pin.number()),
                Kind::Snapshot => files.snapshots.contains(&pin.number()),
                Kind::Metadata | Kind::Map | Kind::Tail => true,
            };
            if !is_there {
                let what = format!("it is missing, and {} needs payloads in it", file.path());
                found.problem(Problem::new(full(disk, &pin.path()), None, what, SEGMENT_REMEDY));
            }
        }
    }
}

/// The tail of a member of a cluster: its votes and what is not committed.
fn tails(disk: &dyn Disk, owner: Owner, files: &Files, loaded: Option<&Loaded>, found: &mut Found) {
    let Some(Loaded { replay, .. }) = loaded else {
        for number in &files.tails {
            found.line(&tail::path(*number), "is not checked, as the log cannot be read");
        }
        return;
    };
    if files.tails.is_empty() {
        if replay.state.cluster().members.is_some() {
            let error = tail::read::missing(disk, owner, 1);
            found.problem(Problem::of(&error, disk, &tail::path(1), TAIL_REMEDY));
        }
        return;
    }
    match tail::read::read(disk, owner, &files.tails, replay.index, &replay.terms) {
        Ok(read) => {
            for FileFound { number, at, torn, groups } in &read.files {
                let torn = match torn {
                    0 => String::new(),
                    torn => format!(
                        "; {torn} bytes from offset {at} on are not whole: being written, or \
                         truncated by the next start"
                    ),
                };
                let groups = Count(*groups, "group");
                found.line(&tail::path(*number), format_args!("{groups} of the tail{torn}"));
            }
            let (vote, records) = (super::super::vote_text(read.vote), uncommitted_text(&read));
            found.line("the tail", format_args!("{vote}, {records}"));
        }
        Err(error) => {
            for number in &files.tails {
                found.line(&tail::path(*number), "a file of the tail; see below");
            }
            found.problem(Problem::of(&error, disk, &tail::path(0), TAIL_REMEDY));
        }
    }
}

/// Files that are none of the log's, or not any more.
fn others(disk: &dyn Disk, lens: &BTreeMap<String, u64>, found: &mut Found) {
    for (name, len) in lens {
        let path = format!("{}/{name}", format::CONSENSUS);
        let what = match name.as_str() {
            "metadata" => continue,
            name if FileNo::from_name(name).is_some() => continue,
            name if tail::number_in(name).is_some() => continue,
            name if name.ends_with(NEW) => "was not finished; the next leader removes it",
            name if name.ends_with(".bad") => "was put aside by a leader that could not read it",
            _ => "is not a file of the leader and is ignored",
        };
        found.line(&path, format_args!("{what}, {}", ByteSize(*len)));
    }
    if let Ok(spool) = disk.list(heft::store::blobs::SPOOL)
        && !spool.is_empty()
    {
        let bytes = ByteSize(spool.iter().map(|file| file.len).sum());
        found.line(
            heft::store::blobs::SPOOL,
            format_args!("{} files of a leader that keeps nothing, {bytes}", spool.len()),
        );
    }
}

/// The payloads that a state needs.
fn need(replay: &Replay, needed: &mut BTreeMap<(FileNo, u64), (Place, String)>) {
    for (key, held) in replay.held() {
        let what = match key {
            Key::Input(job) => format!("the request of job {job}"),
            Key::Result(result) => format!("result {result}"),
        };
        needed.insert((held.place.file, held.place.offset), (held.place, what));
    }
}

fn payloads(disk: &dyn Disk, needed: BTreeMap<(FileNo, u64), (Place, String)>, found: &mut Found) {
    let mut files: BTreeMap<FileNo, Vec<(Place, String)>> = BTreeMap::new();
    for (place, what) in needed.into_values() {
        files.entry(place.file).or_default().push((place, what));
    }
    for (file, payloads) in files {
        let path = file.path();
        let opened = disk.open(&path, How::Read).and_then(|file| Ok((file.len()?, file)));
        let (len, opened) = match opened {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let such = payloads.first().map(|(_, what)| what.as_str()).unwrap_or_default();
                let what = format!(
                    "it is missing, and {} payloads are in it, such as {such}",
                    payloads.len()
                );
                found.problem(Problem::new(full(disk, &path), None, what, PAYLOAD_REMEDY));
                continue;
            }
            Err(error) => {
                let error = StoreError::io("read", disk, &path, error);
                found.problem(Problem::of(&error, disk, &path, PAYLOAD_REMEDY));
                continue;
            }
        };
        for (place, what) in payloads {
            // Before memory is asked for.
            let read = if place.offset.saturating_add(place.len.into()) > len {
                Err(StoreError::damage(disk, &path, place.offset, "a payload is cut off"))
            } else {
                read_place(disk, &*opened, &place)
            };
            match read {
                Ok(_) => {}
                Err(StoreError::Damage { file, offset, what: how, .. }) => {
                    let what = format!("{how}: it is {what}");
                    found.problem(Problem::new(file, Some(offset), what, PAYLOAD_REMEDY));
                }
                Err(error) => found.problem(Problem::of(&error, disk, &path, PAYLOAD_REMEDY)),
            }
        }
    }
}

/// A job that may run needs its request, and one that returned a result that result.
fn all_are_there(disk: &dyn Disk, loaded: &Loaded, found: &mut Found) {
    let replay = &loaded.replay;
    for job in replay.state.jobs() {
        let lacks = match &job.phase {
            Phase::Queued { .. }
            | Phase::Leased { .. }
            | Phase::Gathering { .. }
            | Phase::Dead { .. } => {
                let owner = request_of(job);
                (!replay.inputs.contains_key(&owner))
                    .then(|| format!("no record has the request of job {owner}"))
            }
            Phase::Done { ending: Ending::Returned { result, .. }, .. } => {
                (!replay.results.contains_key(result))
                    .then(|| format!("no record has result {result} of job {}", job.id()))
            }
            Phase::Done {
                ending:
                    Ending::Cancelled { .. }
                    | Ending::Gathered { .. }
                    | Ending::Orphaned
                    | Ending::Failed { .. },
                ..
            } => None,
        };
        if let Some(what) = lacks {
            let remedy = "this is a defect in heft: keep a copy of the directory, report it, and \
                          submit the job again";
            // Not one place, so each is told.
            found.problems.push(Problem::new(full(disk, format::CONSENSUS), None, what, remedy));
        }
    }
}

/// A child of a job to all workers has its parent's request.
fn request_of(job: &Job) -> JobId {
    job.child_of.map_or(job.id(), |(parent, _)| parent)
}
