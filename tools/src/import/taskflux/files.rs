//! The three files of a TaskFlux node (TF04-TF10), and the state that they make.
//!
//! The log holds commands that were committed, and is emptied when a snapshot has been made, so a
//! node that starts takes the snapshot and then the whole log. If it was killed between the two,
//! the log still has what is in the snapshot; the caller finds that out.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::{note, open};
use super::bytes::{Bytes, Extent};
use super::heap::Heap;
use crate::exit::Failure;

/// Both generations of markers (TF05): one for all files, later one for each.
const MARKER_OF_ALL: [u8; 4] = [0x2F, 0x6F, 0x0F, 0x2F];
const MARKER_LOG: [u8; 4] = [0x12, 0x76, 0xAD, 0x55];
const MARKER_SNAPSHOT: [u8; 4] = [0xB6, 0x38, 0x0F, 0xC9];
const MARKER_METADATA: [u8; 4] = [0x5A, 0x6E, 0xA0, 0x12];

/// What each record begins with in the layout that came after the one that is read here.
const RECORD_MARKER: [u8; 4] = [0xAA, 0xF5, 0x34, 0xC4];

const VERSION: i32 = 1;

/// TaskFlux makes a snapshot and empties its log at 16 MB (TF07); what is so much longer is not a
/// log, and would take memory for nothing.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a record before its data: term and length.
const RECORD_HEAD_BYTES: u64 = 8;

/// Which file a payload lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Snapshot,
    Log,
}

/// A record of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) file: Where,
    pub(super) payload: Extent,
    /// Its place among all, for those of one key.
    pub(super) order: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// 0 for any number.
    pub(super) size_max: u32,
    pub(super) items: Heap<Item>,
}

/// All queues. The default one, without a name, is always there (TF02).
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) queues: BTreeMap<String, Queue>,
    order: u64,
}

impl Default for State {
    fn default() -> Self {
        State { queues: [(String::new(), Queue::default())].into(), order: 0 }
    }
}

/// Something that a log told a node to do (TF23).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Enqueue {
        queue: String,
        key: i64,
        payload: Extent,
    },
    Dequeue {
        queue: String,
    },
    Create {
        queue: String,
        size_max: u32,
    },
    Delete {
        queue: String,
    },
    /// Counting, listing, and nothing at all.
    Nothing,
}

impl State {
    /// Does what TaskFlux did, also where it refused.
    pub(super) fn apply(&mut self, command: &Command) {
        match command {
            Command::Enqueue { queue, key, payload } => {
                let Some(queue) = self.queues.get_mut(queue) else { return };
                let is_full =
                    queue.size_max > 0 && queue.items.len() as u64 >= u64::from(queue.size_max);
                if !is_full {
                    self.order += 1;
                    queue.items.push(
                        *key,
                        Item { file: Where::Log, payload: *payload, order: self.order },
                    );
                }
            }
            Command::Dequeue { queue } => {
                self.queues.get_mut(queue).and_then(|queue| queue.items.pop());
            }
            Command::Create { queue, size_max } => {
                let new = Queue { size_max: *size_max, ..Queue::default() };
                self.queues.entry(queue.clone()).or_insert(new);
            }
            Command::Delete { queue } if !queue.is_empty() => {
                self.queues.remove(queue);
            }
            Command::Delete { .. } | Command::Nothing => {}
        }
    }

    /// How many records there are in all queues.
    pub(super) fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.items.len()).sum()
    }
}

/// What `raft.metadata` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) term: i32,
    /// The node that was voted for last. Whether 0 is nobody or the node 0 cannot be told (C24): it
    /// is taken for nobody.
    pub(super) vote: Option<i32>,
}

/// What `raft.snapshot` says.
pub(super) struct Snapshot {
    pub(super) bytes: Bytes,
    pub(super) last_index: i32,
    pub(super) last_term: i32,
    pub(super) state: State,
}

/// Opens a file and checks its marker. `None` if it is not there or empty.
fn begin(path: &Path, kind: &str, own: [u8; 4]) -> Result<Option<(Bytes, bool)>, Failure> {
    let Some((file, len)) = open(path)? else { return Ok(None) };
    if len == 0 {
        return Ok(None);
    }
    let mut bytes = Bytes::new(path, file, len);
    let marker = bytes.marker()?;
    if marker != own && marker != MARKER_OF_ALL {
        return Err(bytes.damage(
            0,
            format_args!(
                "it begins with {marker:02X?}, and a {kind} of TaskFlux with {MARKER_OF_ALL:02X?} \
                 or {own:02X?}: it is another file, or was overwritten; restore it from a backup"
            ),
        ));
    }
    Ok(Some((bytes, marker == own)))
}

fn version(bytes: &mut Bytes) -> Result<(), Failure> {
    let at = bytes.at();
    match bytes.int32("its version")? {
        VERSION => Ok(()),
        found => Err(bytes.damage(
            at,
            format_args!("it has version {found} of the format; {VERSION} can be read"),
        )),
    }
}

/// Reads `raft.metadata` (TF08).
pub(super) fn metadata(path: &Path) -> Result<Option<Metadata>, Failure> {
    let Some((mut bytes, has_own_marker)) = begin(path, "metadata file", MARKER_METADATA)? else {
        return Ok(None);
    };
    version(&mut bytes)?;
    let at = bytes.at();
    let term = bytes.int32("its term")?;
    if term < 0 {
        return Err(bytes.damage(at, format_args!("its term is {term}; terms are not negative")));
    }
    let at = bytes.at();
    let vote = match bytes.int32("its vote")? {
        0 => {
            note(
                path,
                "its vote is 0, which stands for nobody and for node 0 alike: it is taken for nobody",
            );
            None
        }
        // The later generation says it so.
        -1 if has_own_marker => None,
        vote if vote < 0 => {
            return Err(
                bytes.damage(at, format_args!("its vote is {vote}; nodes are not negative"))
            );
        }
        vote => Some(vote),
    };
    Ok(Some(Metadata { term, vote }))
}

/// Reads `raft.snapshot` (TF09, TF10).
pub(super) fn snapshot(path: &Path) -> Result<Option<Snapshot>, Failure> {
    let Some((mut bytes, has_own_marker)) = begin(path, "snapshot", MARKER_SNAPSHOT)? else {
        return Ok(None);
    };
    let last_index = bytes.int32("its last index")?;
    let last_term = bytes.int32("its last term")?;
    let mut state = State::default();
    queues(&mut bytes, &mut state).map_err(|failure| later_layout(failure, has_own_marker))?;
    Ok(Some(Snapshot { bytes, last_index, last_term, state }))
}

fn queues(bytes: &mut Bytes, state: &mut State) -> Result<(), Failure> {
    let mut seen_default = false;
    while bytes.left() > 0 {
        let at = bytes.at();
        let name = bytes.name()?;
        let size_max = bytes.uint32("the greatest size of a queue")?;
        let count = bytes.uint32("the size of a queue")?;
        let mut queue = Queue { size_max, ..Queue::default() };
        for _ in 0..count {
            let key = bytes.int64("a key")?;
            let payload = bytes.buffer("a payload")?;
            state.order += 1;
            queue.items.push(key, Item { file: Where::Snapshot, payload, order: state.order });
        }
        let is_default = name.is_empty();
        let is_known = if is_default { seen_default } else { state.queues.contains_key(&name) };
        if is_known {
            return Err(
                bytes.damage(at, format_args!("the queue \"{name}\" is there a second time"))
            );
        }
        seen_default |= is_default;
        state.queues.insert(name, queue);
    }
    Ok(())
}

/// The marker is that of a later TaskFlux, which wrote its files under it in another layout, too.
fn later_layout(failure: Failure, has_own_marker: bool) -> Failure {
    match failure {
        Failure::Damaged(what) if has_own_marker => Failure::Damaged(format!(
            "{what}. If a TaskFlux wrote it that has data/tflux.* files, its layout is another one, which cannot be read"
        )),
        Failure::Damaged(_) | Failure::Usage(_) | Failure::Unavailable(_) => failure,
    }
}

/// `raft.log`, record by record (TF06).
pub(super) struct Log {
    pub(super) bytes: Bytes,
    has_own_marker: bool,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) term: i32,
    pub(super) command: Command,
}

impl Log {
    /// Opens it. `None` if it is not there or empty.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, Failure> {
        let Some((mut bytes, has_own_marker)) = begin(path, "log", MARKER_LOG)? else {
            return Ok(None);
        };
        let len = bytes.at() + bytes.left();
        if len > LOG_BYTES_MAX {
            let what = format!(
                "it has {len} bytes; TaskFlux empties its log at 16 MB, and at most {LOG_BYTES_MAX} are read"
            );
            return Err(bytes.damage(LOG_BYTES_MAX, what));
        }
        version(&mut bytes)?;
        let mut log = Log { bytes, has_own_marker };
        log.refuse_later_layout()?;
        Ok(Some(log))
    }

    /// In the layout that came later, a number of 8 bytes and the marker of a record follow.
    fn refuse_later_layout(&mut self) -> Result<(), Failure> {
        let start = self.bytes.at();
        if self.has_own_marker && self.bytes.left() >= 12 {
            self.bytes.seek(start + 8)?;
            if self.bytes.marker()? == RECORD_MARKER {
                let what = "its records have markers and checksums: a later TaskFlux wrote it, whose layout cannot be read";
                return Err(self.bytes.damage(start + 8, what));
            }
            self.bytes.seek(start)?;
        }
        Ok(())
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Failure> {
        if self.bytes.left() == 0 {
            return Ok(None);
        }
        let at = self.bytes.at();
        if self.bytes.left() < RECORD_HEAD_BYTES {
            let left = self.bytes.left();
            return Err(self.bytes.damage(
                at,
                format_args!("a record has {left} of {RECORD_HEAD_BYTES} bytes of its head"),
            ));
        }
        let term = self.bytes.int32("the term of a record")?;
        if term < 0 {
            return Err(self
                .bytes
                .damage(at, format_args!("a record has the term {term}; terms are not negative")));
        }
        let len = self.bytes.length("a record")?;
        let (start, end) = (self.bytes.at(), self.bytes.at() + u64::from(len));
        let command = self.command(len)?;
        if self.bytes.at() != end {
            let (found, at) = (self.bytes.at() - start, self.bytes.at());
            return Err(self.bytes.damage(
                at,
                format_args!("a record has {len} bytes, and its command takes {found}"),
            ));
        }
        Ok(Some(Record { term, command }))
    }

    fn command(&mut self, len: u32) -> Result<Command, Failure> {
        // A leader may put nothing into the log to begin its term with.
        if len == 0 {
            return Ok(Command::Nothing);
        }
        let at = self.bytes.at();
        Ok(match self.bytes.byte("a command")? {
            b'E' => {
                let (queue, key) = (self.bytes.name()?, self.bytes.int64("the key of an enqueue")?);
                Command::Enqueue {
                    queue,
                    key,
                    payload: self.bytes.buffer("the payload of an enqueue")?,
                }
            }
            b'D' => Command::Dequeue { queue: self.bytes.name()? },
            b'C' => {
                self.bytes.name()?;
                Command::Nothing
            }
            b'Q' => {
                let queue = self.bytes.name()?;
                Command::Create {
                    queue,
                    size_max: self.bytes.uint32("the greatest size of a queue")?,
                }
            }
            b'R' => Command::Delete { queue: self.bytes.name()? },
            b'L' => Command::Nothing,
            other => {
                return Err(self.bytes.damage(
                    at,
                    format_args!("{other} is not a command; they are E, D, C, Q, R and L"),
                ));
            }
        })
    }
}
