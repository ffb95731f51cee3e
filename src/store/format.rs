//! File headers, names and errors of the store (TF04-TF09).
//!
//! A file begins with a marker of its kind, the format version, the node and the directory it
//! belongs to, and a checksum over these. Numbers are big-endian, as in the founding formats.
//! `docs/storage.md` has the layouts.

use std::io;

use thiserror::Error;
use uuid::Uuid;

use super::disk::{Disk, DiskFile, Found, How, hint, read_exact};

/// Bytes before the first record of a file.
pub const HEADER_BYTES: usize = 64;

/// Bytes up to and with the version: they are the same in every version.
const VERSION_END: usize = 8;

/// The version of the formats. 1 is TaskFlux's (TF06).
pub const VERSION: i32 = 2;

/// Where log and snapshots are.
pub const CONSENSUS: &str = "consensus";

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A segment of the log.
    Log,
    Snapshot,
    /// What the directory is.
    Metadata,
    /// What is known of a blob: its bitmap and checksums.
    Map,
    /// Records of a member of a cluster that are not committed, and its votes.
    Tail,
}

impl Kind {
    /// The first four bytes: TF05's, and one of our own.
    pub const fn marker(self) -> [u8; 4] {
        match self {
            Kind::Log => [0x12, 0x76, 0xAD, 0x55],
            Kind::Snapshot => [0xB6, 0x38, 0x0F, 0xC9],
            Kind::Metadata => [0x5A, 0x6E, 0xA0, 0x12],
            Kind::Map => [0x7C, 0x4D, 0x41, 0x50],
            Kind::Tail => [0x3D, 0x74, 0x61, 0x69],
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Snapshot => "snapshot",
            Kind::Metadata => "metadata",
            Kind::Map => "blob map",
            Kind::Tail => "tail",
        }
    }
}

/// What is wrong with a data directory. Nothing in it was changed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The system said no.
    #[error("cannot {doing} {file}: {error}{hint}")]
    Io {
        /// What was to be done.
        doing: &'static str,
        file: String,
        error: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// A file of another kind, or of nothing we know.
    #[error(
        "{file} does not begin with the marker of a {kind} ({expected:02X?}), but with \
         {found:02X?}: it is not a heft file, or it is damaged at offset 0; check it with \
         `heft-tools log verify {root}`"
    )]
    Marker {
        file: String,
        /// What it should be.
        kind: &'static str,
        /// What it should begin with.
        expected: [u8; 4],
        /// What it begins with.
        found: [u8; 4],
        /// The data directory.
        root: String,
    },
    /// A file of another version.
    #[error(
        "{file} has version {found} of the format, and this heft reads version {VERSION}: {hint}"
    )]
    Version {
        file: String,
        found: i32,
        /// What to do.
        hint: &'static str,
    },
    /// The directory is another node's.
    #[error(
        "{root} belongs to node {found}, and this is node {node}: give --node {found}, or another --data"
    )]
    Node {
        root: String,
        /// Whose it is.
        found: i32,
        node: i32,
    },
    /// A file was put here from another directory.
    #[error(
        "{file} belongs to another data directory ({found}; this one is {dir}): put it back where it was"
    )]
    OtherDirectory {
        file: String,
        /// Where it belongs.
        found: Uuid,
        /// Where it is.
        dir: Uuid,
    },
    /// Something in the middle of a file is not as it was written.
    #[error(
        "{file} is damaged at offset {offset}: {what}; nothing was changed. Check it with \
         `heft-tools log verify {root}`, and restore the file from a backup"
    )]
    Damage {
        file: String,
        offset: u64,
        /// What is wrong.
        what: String,
        /// The data directory.
        root: String,
    },
    /// Records are missing between two files.
    #[error(
        "the log in {root} lacks the records {which}: the file {file} is missing; restore it from \
         a backup"
    )]
    MissingSegment {
        /// The data directory.
        root: String,
        which: String,
        /// The file they should be in.
        file: String,
    },
    /// The snapshot knows more than the log.
    #[error(
        "the snapshot {file} stands at record {snapshot}, and the log in {root} ends at {log}: the \
         newest part of the log is missing; restore it from a backup"
    )]
    SnapshotAhead {
        /// The data directory.
        root: String,
        file: String,
        snapshot: u64,
        /// The log's last.
        log: u64,
    },
    /// A leader on its own is started on the directory of a member.
    #[error(
        "{root} belongs to a member of a cluster ({file} is there), and this leader would be on its \
         own: start it as that member, or give another --data"
    )]
    Member {
        /// The data directory.
        root: String,
        /// By what that is known.
        file: String,
    },
    /// A file of the tail is missing, and perhaps votes with it.
    #[error(
        "{file} is missing, and perhaps votes of this node with it; nothing was changed. If other \
         members are up, replace this one with `heft cluster replace {node} HOST:PORT`; else \
         restore all of {root} from a backup"
    )]
    MissingTail {
        /// The data directory.
        root: String,
        file: String,
        node: i32,
    },
    /// The same as `Damage`, in the directory of a member: it may have lost what it acknowledged.
    #[error(
        "{file} is damaged at offset {offset}: {what}; nothing was changed. Check it with \
         `heft-tools log verify {root}`. If other members are up, replace this one with `heft \
         cluster replace {node} HOST:PORT`; else restore all of {root} from a backup"
    )]
    MemberDamage {
        file: String,
        offset: u64,
        /// What is wrong.
        what: String,
        /// The data directory.
        root: String,
        node: i32,
    },
}

impl StoreError {
    /// An error of the system.
    pub fn io(doing: &'static str, disk: &dyn Disk, path: &str, error: io::Error) -> Self {
        let hint = hint(&error);
        StoreError::Io { doing, file: full(disk, path), error, hint }
    }

    /// The same error, for a member of a cluster: it is replaced, as a backup would bring back
    /// votes of before.
    #[must_use]
    pub fn of_member(self, node: i32) -> Self {
        let StoreError::Damage { file, offset, what, root } = self else { return self };
        StoreError::MemberDamage { file, offset, what, root, node }
    }

    pub fn damage(disk: &dyn Disk, path: &str, offset: u64, what: impl Into<String>) -> Self {
        StoreError::Damage { file: full(disk, path), offset, what: what.into(), root: disk.root() }
    }
}

/// The error for records that should be there, and are in no file.
pub fn missing(disk: &dyn Disk, from: u64, to: Option<u64>) -> StoreError {
    let which = match to {
        Some(to) => format!("{from} to {to}"),
        None => format!("{from} and those behind it"),
    };
    StoreError::MissingSegment {
        root: disk.root(),
        which,
        file: full(disk, &FileNo::log(from).path()),
    }
}

/// A file's whole path, for texts.
pub fn full(disk: &dyn Disk, path: &str) -> String {
    format!("{}/{path}", disk.root())
}

/// What a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub node: i32,
    pub dir: Uuid,
}

/// The header of a file: `number` is the first record of a segment, the last one of a snapshot, and
/// 0 elsewhere.
pub fn header(kind: Kind, owner: Owner, number: u64) -> [u8; HEADER_BYTES] {
    let mut fields = Vec::with_capacity(HEADER_BYTES);
    fields.extend_from_slice(&kind.marker());
    fields.extend_from_slice(&VERSION.to_be_bytes());
    fields.extend_from_slice(&owner.node.to_be_bytes());
    fields.extend_from_slice(owner.dir.as_bytes());
    fields.extend_from_slice(&number.to_be_bytes());
    fields.resize(HEADER_BYTES - 4, 0);
    let crc = crc32fast::hash(&fields);
    fields.extend_from_slice(&crc.to_be_bytes());
    let mut header = [0; HEADER_BYTES];
    header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    header
}

/// Reads a header; gives whose it is and its number.
pub fn read_header(
    disk: &dyn Disk,
    path: &str,
    file: &dyn DiskFile,
    kind: Kind,
) -> Result<(Owner, u64), StoreError> {
    let mut bytes = [0; HEADER_BYTES];
    let read =
        file.read_at(0, &mut bytes).map_err(|error| StoreError::io("read", disk, path, error))?;
    let (marker, rest) = bytes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let is_cut = || {
        let what = format!("its header has {read} of {HEADER_BYTES} bytes");
        StoreError::damage(disk, path, read as u64, what)
    };
    if *marker != kind.marker() {
        if marker.iter().take(read).eq(kind.marker().iter().take(read)) {
            return Err(is_cut());
        }
        let (file, root) = (full(disk, path), disk.root());
        let (expected, found) = (kind.marker(), *marker);
        return Err(StoreError::Marker { file, kind: kind.name(), expected, found, root });
    }
    let (version, rest) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let found = i32::from_be_bytes(*version);
    if read >= VERSION_END && found != VERSION {
        if is_of_this_version(bytes) {
            let what = format!("it says version {found}, and all the rest says {VERSION}");
            return Err(StoreError::damage(disk, path, 4, what));
        }
        let hint = match found {
            1 => "version 1 is TaskFlux's; bring it over with `heft-tools import taskflux`",
            _ => "use the heft that wrote it, or give another --data",
        };
        return Err(StoreError::Version { file: full(disk, path), found, hint });
    }
    if read < HEADER_BYTES {
        return Err(is_cut());
    }
    let (fields, crc) = bytes.split_at(HEADER_BYTES - 4);
    if crc != crc32fast::hash(fields).to_be_bytes() {
        return Err(StoreError::damage(disk, path, 8, "the checksum of its header is wrong"));
    }
    let (node, rest) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let (dir, rest) = rest.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
    let (number, _) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let owner = Owner { node: i32::from_be_bytes(*node), dir: Uuid::from_bytes(*dir) };
    Ok((owner, u64::from_be_bytes(*number)))
}

/// Whether a header would be right if it named this version: then it is damaged, and no other heft
/// wrote it.
fn is_of_this_version(mut bytes: [u8; HEADER_BYTES]) -> bool {
    let version = bytes.iter_mut().skip(VERSION_END - 4);
    version.zip(VERSION.to_be_bytes()).for_each(|(to, from)| *to = from);
    let (fields, crc) = bytes.split_at(HEADER_BYTES - 4);
    crc == crc32fast::hash(fields).to_be_bytes()
}

/// The same, for a file of this directory.
pub fn expect_header(
    disk: &dyn Disk,
    path: &str,
    file: &dyn DiskFile,
    kind: Kind,
    owner: Owner,
) -> Result<u64, StoreError> {
    let (found, number) = read_header(disk, path, file, kind)?;
    if found.dir != owner.dir {
        return Err(StoreError::OtherDirectory {
            file: full(disk, path),
            found: found.dir,
            dir: owner.dir,
        });
    }
    Ok(number)
}

const METADATA: &str = "consensus/metadata";

/// The owner of the data directory; `None` if it is new and empty. An error if it belongs to
/// another node.
pub fn owner_for(disk: &dyn Disk, node: i32) -> Result<Option<Owner>, StoreError> {
    if let Some(owner) = owner_of(disk)? {
        if owner.node != node {
            return Err(StoreError::Node { root: disk.root(), found: owner.node, node });
        }
        return Ok(Some(owner));
    }
    let left =
        disk.list(CONSENSUS).map_err(|error| StoreError::io("list", disk, CONSENSUS, error))?;
    // A directory that was being made has its first segment, without a record, before it has an
    // owner.
    let is_new = |found: &Found| {
        found.name.ends_with(NEW)
            || (FileNo::from_name(&found.name) == Some(FileNo::log(1))
                && found.len <= HEADER_BYTES as u64)
    };
    match left.iter().find(|found| !is_new(found)) {
        None => Ok(None),
        Some(other) => {
            let what = format!("it is missing, and {} is there", other.name);
            Err(StoreError::damage(disk, METADATA, 0, what))
        }
    }
}

/// Makes a data directory somebody's. Its first segment is there.
pub fn claim(disk: &dyn Disk, owner: Owner) -> Result<(), StoreError> {
    write_new(disk, METADATA, &header(Kind::Metadata, owner, 0))
}

/// Whose the data directory is, if it is anybody's.
pub fn owner_of(disk: &dyn Disk) -> Result<Option<Owner>, StoreError> {
    match disk.open(METADATA, How::Read) {
        Ok(file) => {
            read_header(disk, METADATA, &*file, Kind::Metadata).map(|(owner, _)| Some(owner))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", disk, METADATA, error)),
    }
}

/// What files are called while they are being written.
pub const NEW: &str = ".new";

/// Writes a small file beside, syncs it and gives it its name: it is there whole, or not at all.
pub fn write_new(disk: &dyn Disk, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let new = format!("{path}{NEW}");
    let failed = |error| StoreError::io("write", disk, path, error);
    let write = || {
        let mut file = disk.open(&new, How::Create)?;
        file.write_at(0, bytes)?;
        file.sync()?;
        settle_new(disk, path)
    };
    write().inspect_err(|_| drop(disk.remove(&new))).map_err(failed)
}

/// Gives a file that was written beside and synced its name, for certain.
pub fn settle_new(disk: &dyn Disk, path: &str) -> io::Result<()> {
    disk.rename(&format!("{path}{NEW}"), path)?;
    disk.sync_dir(path.rsplit_once('/').map_or(".", |(dir, _)| dir))
}

/// A file that payloads lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileNo(u64);

/// Set in the number of a snapshot.
const IS_SNAPSHOT: u64 = 1 << 63;

impl FileNo {
    /// The segment that begins with this record.
    pub const fn log(first: u64) -> Self {
        FileNo(first & !IS_SNAPSHOT)
    }

    /// The snapshot after this record.
    pub const fn snapshot(index: u64) -> Self {
        FileNo(index | IS_SNAPSHOT)
    }

    /// From what [`FileNo::to_bits`] gave.
    pub const fn from_bits(bits: u64) -> Self {
        FileNo(bits)
    }

    /// As a number.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// What it is.
    pub const fn kind(self) -> Kind {
        if self.0 & IS_SNAPSHOT == 0 { Kind::Log } else { Kind::Snapshot }
    }

    /// The record it is named by.
    pub const fn number(self) -> u64 {
        self.0 & !IS_SNAPSHOT
    }

    pub fn path(self) -> String {
        format!("{CONSENSUS}/{}-{:016x}", self.kind().name(), self.number())
    }

    /// The one that is called so, beneath [`CONSENSUS`].
    pub fn from_name(name: &str) -> Option<Self> {
        let (kind, number) = name.split_once('-')?;
        let number =
            u64::from_str_radix(number, 16).ok().filter(|number| number & IS_SNAPSHOT == 0)?;
        let file = match kind {
            "log" => FileNo::log(number),
            "snapshot" => FileNo::snapshot(number),
            _ => return None,
        };
        (file.path().strip_prefix(CONSENSUS)?.strip_prefix('/')? == name).then_some(file)
    }
}

/// Where a payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// In which file.
    pub file: FileNo,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
    pub crc: u32,
}

/// Reads a payload, and checks it.
pub fn read_place(
    disk: &dyn Disk,
    file: &dyn DiskFile,
    place: &Place,
) -> Result<Vec<u8>, StoreError> {
    let path = place.file.path();
    let failed = |error| StoreError::io("read", disk, &path, error);
    let len = usize::try_from(place.len).unwrap_or(usize::MAX);
    // Before memory is asked for.
    if place.offset.saturating_add(u64::from(place.len)) > file.len().map_err(failed)? {
        let what = format!("a payload of {len} bytes is cut off");
        return Err(StoreError::damage(disk, &path, place.offset, what));
    }
    let mut bytes = vec![0; len];
    read_exact(file, place.offset, &mut bytes).map_err(failed)?;
    if crc32fast::hash(&bytes) != place.crc {
        return Err(StoreError::damage(
            disk,
            &path,
            place.offset,
            "the checksum of a payload is wrong",
        ));
    }
    Ok(bytes)
}
