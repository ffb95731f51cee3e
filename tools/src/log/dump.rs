//! `heft-tools log dump`: the records of a log as JSON lines (C29, PE03, PE05).
//!
//! Segments are read one after the other and listed anew after each, so a leader that goes on
//! meanwhile, begins segments and removes others does no harm. One group of records is in memory at
//! a time, and the state that they make.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use heft::core::ids::{Index, Micros};
use heft::core::state::{Applied, State};
use heft::store::codec::{Entry, Names, get_entry};
use heft::store::disk::{DataDir, Disk, DiskFile, How};
use heft::store::format::{FileNo, Owner, StoreError, full, missing, read_place};
use heft::store::log::{Logged, Segment};
use heft::store::replay::{Files, UpTo};

use super::event::{self, Line, Payload};
use crate::exit::{Failure, warn, with_codes};
use crate::time::iso;

const EXAMPLES: &str = "Examples:
  heft-tools log dump /var/lib/heft
  heft-tools log dump /var/lib/heft --from 1000 --to 1999 | jq 'select(.type == \"dlq\")'
  heft-tools log dump /var/lib/heft --payloads | jq -r 'select(.type == \"enqueue\") | .job.rawPayload' | base64 -d

A line for each record: `index`, `type`, `at`, and what the event has. A record that names no moment has the latest one before it,
and `atLeast`. One that changed nothing, as it came too late, has `stale`. One in the tail of a member of a cluster, which is not
known to be committed, has `uncommitted`. What a snapshot stands for is not in the log any more.";

#[derive(clap::Args)]
#[command(after_help = with_codes(EXAMPLES))]
pub(crate) struct Args {
    /// Data directory of a leader, which may be running.
    data: PathBuf,

    /// First record to print.
    #[arg(long, value_name = "N", default_value_t = 1)]
    from: u64,

    /// Last record to print.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    to: u64,

    /// Also print payloads: requests and results, in base64.
    #[arg(long)]
    payloads: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.from > args.to {
        return Err(Failure::Usage(format!(
            "--from {} is behind --to {}: swap them",
            args.from, args.to
        ))
        .into());
    }
    let (disk, owner) = super::look(&args.data)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut dump = Dump {
        args,
        disk: &disk,
        owner,
        names: Names::default(),
        next: 0,
        known: None,
        latest: None,
    };
    let done = dump.all(&mut out);
    // What was read before something went wrong is printed.
    out.flush()?;
    done?;
    Ok(ExitCode::SUCCESS)
}

struct Dump<'a> {
    args: &'a Args,
    disk: &'a DataDir,
    owner: Owner,
    names: Names,
    /// The record that comes next.
    next: u64,
    /// The state before it, where that is known.
    known: Option<State>,
    /// The latest moment that a record named.
    latest: Option<Micros>,
}

/// How the reading of a segment ended.
enum End {
    /// All of it was read that was there.
    Read { torn: u64, at: u64 },
    /// Nothing more is wanted.
    Enough,
    /// The leader has removed it meanwhile.
    Gone,
}

impl Dump<'_> {
    fn all(&mut self, out: &mut impl Write) -> anyhow::Result<()> {
        let segments = self.segments()?;
        let begin = segments.iter().rposition(|first| *first <= self.args.from).unwrap_or(0);
        let Some(mut first) = segments.get(begin).copied() else {
            return Err(Failure::from(missing(self.disk, 1, None)).into());
        };
        self.next = first.min(self.args.from);
        if self.next == first {
            self.begin_at(first);
        }
        loop {
            if self.next < first {
                self.gap(first)?;
            }
            let follows = self.segments()?.into_iter().find(|later| *later > first);
            let is_last = follows.is_none();
            let end = self.segment(first, follows, out)?;
            let later = self.segments()?.into_iter().find(|later| *later > first);
            match (end, later) {
                (End::Enough, _) => return Ok(()),
                // Others were begun while it was read as the last: it may have got more before
                // that.
                (End::Read { .. }, Some(_)) if is_last => {}
                (End::Read { .. } | End::Gone, Some(later)) => first = later,
                (End::Read { torn: 0, .. } | End::Gone, None) => break,
                (End::Read { torn, at }, None) => {
                    warn(format_args!(
                        "{}: {torn} bytes from offset {at} on are not whole records: they are \
                         being written, or were when the leader ended; they were never \
                         acknowledged, and the next leader truncates them",
                        full(self.disk, &FileNo::log(first).path())
                    ));
                    break;
                }
            }
        }
        self.tail(out)?;
        if self.args.from >= self.next {
            warn(format_args!(
                "the log ends with record {}: nothing was printed",
                self.next.saturating_sub(1)
            ));
        }
        Ok(())
    }

    fn segments(&self) -> Result<Vec<u64>, Failure> {
        Ok(Files::list(self.disk)?.segments)
    }

    /// Records are missing before `first`: a snapshot stands for them, or they are lost.
    fn gap(&mut self, first: u64) -> Result<(), Failure> {
        let (from, to) = (self.next, first.saturating_sub(1));
        if !Files::list(self.disk)?.snapshots.iter().any(|index| *index >= to) {
            return Err(Failure::Damaged(format!(
                "the log in {} lacks the records {from} to {to}, and no snapshot covers them: the \
                 file {} is missing; restore it from a backup",
                self.disk.root(),
                FileNo::log(from).path()
            )));
        }
        let (from, to) = (from.max(self.args.from), to.min(self.args.to));
        if from <= to {
            warn(format_args!(
                "records {from} to {to} are no longer in the log: a snapshot covers them"
            ));
        }
        self.next = first;
        self.begin_at(first);
        Ok(())
    }

    /// The state before a record.
    fn begin_at(&mut self, first: u64) {
        let Some(before) = first.checked_sub(1).filter(|before| *before > 0) else {
            self.known = Some(State::default());
            return;
        };
        match super::load_steady(self.disk, self.owner, UpTo::Record(before)) {
            Ok(loaded) if loaded.replay.index.0 == before => {
                self.latest =
                    Some(loaded.replay.latest).filter(|at| *at > Micros(0)).max(self.latest);
                self.known = Some(loaded.replay.state);
            }
            Ok(_) | Err(_) => {
                warn(format_args!(
                    "the state before record {first} is not known: clients and workers of jobs that began before it are null"
                ));
                self.known = None;
            }
        }
    }

    fn segment(
        &mut self,
        first: u64,
        follows: Option<u64>,
        out: &mut impl Write,
    ) -> anyhow::Result<End> {
        let path = FileNo::log(first).path();
        let opened = Segment::open(self.disk, self.owner, first).and_then(|segment| {
            let file = self.disk.open(&path, How::Read);
            Ok((segment, file.map_err(|error| StoreError::io("read", self.disk, &path, error))?))
        });
        let (mut segment, file) = match opened {
            Ok(opened) => opened,
            Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(End::Gone);
            }
            Err(error) => return Err(Failure::from(error).into()),
        };
        while let Some(logged) = segment.next(&mut self.names).map_err(Failure::from)? {
            if logged.index.0 > self.args.to {
                return Ok(End::Enough);
            }
            if logged.index.0 >= self.next {
                self.record(&logged, &*file, out)?;
                self.next = logged.index.0 + 1;
            }
        }
        let Some(follows) = follows else {
            let tail = segment.tail().map_err(Failure::from)?;
            return Ok(End::Read { torn: tail.torn, at: tail.at });
        };
        let tail = super::end_before(&mut segment, follows).map_err(Failure::from)?;
        // Records that nobody asked for have been passed over.
        self.next = self.next.max(tail.next);
        Ok(End::Read { torn: 0, at: 0 })
    }

    /// The records that are in the tail only.
    fn tail(&mut self, out: &mut impl Write) -> anyhow::Result<()> {
        let found = super::tail_steady(self.disk, self.owner).map_err(Failure::from)?;
        let Some(found) = found else { return Ok(()) };
        warn(format_args!(
            "the tail has {}, and {}",
            super::vote_text(found.vote),
            super::uncommitted_text(&found)
        ));
        for (place, record) in (0u64..).zip(&found.records.records) {
            let index = Index(found.records.first.0.saturating_add(place));
            // A leader that is running may have committed some since the log was read.
            if index.0 != self.next || index.0 > self.args.to {
                continue;
            }
            let entry = get_entry(&record.bytes, &mut self.names).map_err(|error| {
                Failure::Damaged(format!("record {index} in the tail cannot be read: {error}"))
            })?;
            let payload = entry.attached.as_ref().and_then(|attached| {
                record.bytes.get(attached.payload.clone()).filter(|_| self.args.payloads)
            });
            self.line(index, &entry, payload, true, out)?;
            self.next = index.0.saturating_add(1);
        }
        Ok(())
    }

    fn record(
        &mut self,
        logged: &Logged,
        file: &dyn DiskFile,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let Logged { index, entry, place } = logged;
        let is_wanted = self.args.payloads && index.0 >= self.args.from;
        let bytes = match place.filter(|_| is_wanted) {
            Some(place) => Some(read_place(self.disk, file, &place).map_err(Failure::from)?),
            None => None,
        };
        self.line(*index, entry, bytes.as_deref(), false, out)
    }

    /// Prints a record if it is wanted, and applies it.
    fn line(
        &mut self,
        index: Index,
        entry: &Entry,
        payload: Option<&[u8]>,
        uncommitted: bool,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let moment = entry.record.moment();
        self.latest = moment.max(self.latest);
        let event = (index.0 >= self.args.from).then(|| {
            let payload = Payload::new(entry.attached.as_ref(), payload);
            let nothing = State::default();
            event::event(&entry.record, payload, self.known.as_ref().unwrap_or(&nothing))
        });
        let applied = self.known.as_mut().map(|state| state.apply(&entry.record));
        if let Some(event) = event {
            let line = Line {
                index: index.0,
                name: event::name(&entry.record),
                at: moment.or(self.latest).map(iso),
                at_least: moment.is_none(),
                stale: applied == Some(Applied::Stale),
                uncommitted,
                event,
            };
            serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}
