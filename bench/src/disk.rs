//! The disk by itself: how fast this machine writes large files, and how long it takes to make a
//! small one certain, with nothing of heft in between. What a leader with `--durability disk`
//! reaches is held against it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags};

use crate::actor::incompressible;
use crate::latency::Latencies;

/// Bytes of a write.
const WRITE_BYTES: usize = 1 << 20;

/// Bytes of a file, after which it is synced.
const FILE_BYTES: u64 = 64 << 20;

/// What lies at a multiple of this can be written past the page cache.
const BLOCK_BYTES: usize = 4096;

/// Small syncs in a turn: their median is of hundreds after a few rounds.
const SMALL_SYNCS: u32 = 64;

#[derive(Clone, Debug)]
pub(crate) struct DiskTurn {
    /// Bytes that were written to recycled files, and as many to new ones.
    pub(crate) bytes: u64,
    /// How long that took, with syncs.
    pub(crate) recycled: Duration,
    pub(crate) new: Duration,
    /// How long a block at the end of a file took to be there for certain.
    pub(crate) syncs: Latencies,
    /// Whether large files were written past the page cache.
    pub(crate) direct: bool,
}

/// Files that are written again and again, and memory to write from.
pub(crate) struct DiskAlone {
    dir: PathBuf,
    recycled: Vec<(File, u64)>,
    memory: Aligned,
    direct: bool,
    turns: u32,
}

impl DiskAlone {
    /// Makes the files that are to be recycled, as large as a turn: room is found for them, and all
    /// of it is written once.
    pub(crate) fn new(dir: &Path, bytes: u64) -> anyhow::Result<DiskAlone> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let memory = Aligned::new();
        let direct = open(&dir.join("probe"), true)
            .and_then(|file| memory.write(&file, 0, BLOCK_BYTES))
            .is_ok();
        std::fs::remove_file(dir.join("probe")).ok();
        let mut disk =
            DiskAlone { dir: dir.to_owned(), recycled: Vec::new(), memory, direct, turns: 0 };
        for (number, len) in lens(bytes).enumerate() {
            let path = disk.dir.join(format!("recycled-{number}"));
            let file =
                open(&path, direct).with_context(|| format!("cannot make {}", path.display()))?;
            // Where it cannot be had, what is written below finds the room.
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len).ok();
            disk.memory
                .fill(&file, len)
                .with_context(|| format!("cannot write {}", path.display()))?;
            disk.recycled.push((file, len));
        }
        Ok(disk)
    }

    /// One turn. What comes first changes with each.
    pub(crate) fn measure(&mut self) -> anyhow::Result<DiskTurn> {
        self.turns += 1;
        let (recycled, new) = if self.turns.is_multiple_of(2) {
            let new = self.write_new()?;
            (self.write_recycled()?, new)
        } else {
            (self.write_recycled()?, self.write_new()?)
        };
        let bytes = self.recycled.iter().map(|(_, len)| len).sum();
        Ok(DiskTurn { bytes, recycled, new, syncs: self.sync_small()?, direct: self.direct })
    }

    fn write_recycled(&self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        for (file, len) in &self.recycled {
            self.memory.fill(file, *len).context("cannot write a recycled file")?;
        }
        Ok(start.elapsed())
    }

    fn write_new(&self) -> anyhow::Result<Duration> {
        let paths: Vec<PathBuf> =
            (0..self.recycled.len()).map(|number| self.dir.join(format!("new-{number}"))).collect();
        let start = Instant::now();
        for (path, (_, len)) in paths.iter().zip(&self.recycled) {
            let written = open(path, self.direct).and_then(|file| self.memory.fill(&file, *len));
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        let took = start.elapsed();
        for path in paths {
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(took)
    }

    /// Through the page cache, into a file that grows, as logs are written.
    fn sync_small(&self) -> anyhow::Result<Latencies> {
        let path = self.dir.join("small");
        let failed = || format!("cannot write {}", path.display());
        let file = open(&path, false).with_context(failed)?;
        let mut syncs = Latencies::new()?;
        for number in 0..SMALL_SYNCS {
            let start = Instant::now();
            self.memory
                .write(&file, u64::from(number) * BLOCK_BYTES as u64, BLOCK_BYTES)
                .with_context(failed)?;
            file.sync_data().with_context(failed)?;
            syncs.record(start.elapsed());
        }
        drop(file);
        std::fs::remove_file(&path).with_context(failed)?;
        Ok(syncs)
    }
}

/// The files of so many bytes, rounded up to whole writes.
fn lens(bytes: u64) -> impl Iterator<Item = u64> {
    let bytes = bytes.next_multiple_of(WRITE_BYTES as u64);
    (0..bytes.div_ceil(FILE_BYTES)).map(move |number| (bytes - number * FILE_BYTES).min(FILE_BYTES))
}

fn open(path: &Path, direct: bool) -> io::Result<File> {
    let past = if direct { direct_flag() } else { OFlags::empty() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | past;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

#[cfg(target_os = "linux")]
fn direct_flag() -> OFlags {
    OFlags::DIRECT
}

#[cfg(not(target_os = "linux"))]
fn direct_flag() -> OFlags {
    OFlags::empty()
}

/// Bytes that begin with a page and that no disk makes smaller.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Aligned {
        let mut memory = vec![0; WRITE_BYTES + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        let bytes = incompressible(WRITE_BYTES as u64);
        memory.iter_mut().skip(start).zip(&bytes).for_each(|(to, from)| *to = *from);
        Aligned { memory, start }
    }

    fn write(&self, file: &File, at: u64, len: usize) -> io::Result<()> {
        file.write_all_at(self.memory.get(self.start..self.start + len).unwrap_or_default(), at)
    }

    /// Writes a file from its start and syncs it.
    fn fill(&self, file: &File, len: u64) -> io::Result<()> {
        let mut at = 0;
        while at < len {
            self.write(file, at, WRITE_BYTES)?;
            at += WRITE_BYTES as u64;
        }
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_writes_and_synced_after_64_mib() {
        assert_eq!(lens(256 << 20).collect::<Vec<_>>(), [64 << 20; 4]);
        assert_eq!(lens((64 << 20) + 1).collect::<Vec<_>>(), [64 << 20, 1 << 20]);
        assert_eq!(lens(1).collect::<Vec<_>>(), [1 << 20]);
        assert_eq!(lens(0).count(), 0);
    }

    #[test]
    fn a_turn_writes_its_bytes_twice_and_leaves_only_what_is_recycled() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = DiskAlone::new(dir.path(), 2 << 20).unwrap();
        for _ in 0..2 {
            let turn = disk.measure().unwrap();
            assert_eq!((turn.bytes, turn.syncs.count()), (2 << 20, u64::from(SMALL_SYNCS)));
            assert!(!turn.recycled.is_zero() && !turn.new.is_zero());
        }
        let names: Vec<_> =
            dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["recycled-0"]);
        let written = std::fs::read(dir.path().join("recycled-0")).unwrap();
        assert_eq!(written.len(), 2 << 20);
        assert_eq!(written[..1 << 20], incompressible(1 << 20));
        assert_eq!(written[1 << 20..], incompressible(1 << 20));
    }
}
