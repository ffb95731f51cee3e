//! A disk in memory that keeps only what was synced, and fails when it is told to. The same seed
//! fails in the same way.
//!
//! What was written and not synced is lost block by block when the power goes, or torn, or kept; a
//! file is as long as it was at any moment since its last sync. Names that were made, changed and
//! removed since their directory was synced are kept up to some moment: a journal on the disk keeps
//! their order. A sync that fails drops what it should have written, though readers see it as long
//! as the machine runs, as on Linux. A killed process loses nothing but its open files.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use heft::core::retry::mix;
use heft::store::disk::{BLOCK_BYTES, Disk, DiskFile, Found, How};
use heft::store::space::Space;

/// A small generator: the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    pub fn of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { items.get(self.below(items.len() as u64) as usize) }
    }
}

/// What is done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    Open,
    Create,
    List,
    MakeDir,
    Rename,
    Remove,
    SyncDir,
    Len,
    Read,
    Write,
    SetLen,
    Allocate,
    Sync,
}

/// What may go wrong while the machine runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Operations in ten thousand that fail with an I/O error.
    pub eio: u64,
    /// Whether there is no room.
    pub full: bool,
    /// Syncs in a hundred that fail while there is no room, as where blocks are found only then.
    pub full_syncs: u64,
}

/// How often what happened.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub eio: BTreeMap<Act, u64>,
    pub full: BTreeMap<Act, u64>,
    pub crashed_in: BTreeMap<Act, u64>,
    pub power_losses: u64,
    pub kills: u64,
    pub blocks_lost: u64,
    pub blocks_torn: u64,
    pub blocks_kept: u64,
    pub names_lost: u64,
    pub names_kept: u64,
    pub lengths_old: u64,
    /// Files of blobs that were written again for another.
    pub recycled: u64,
    /// Segments of the log that were cut.
    pub tails_cut: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        let all = [(&mut self.eio, &other.eio), (&mut self.full, &other.full)];
        for (into, from) in all.into_iter().chain([(&mut self.crashed_in, &other.crashed_in)]) {
            from.iter().for_each(|(act, count)| *into.entry(*act).or_default() += count);
        }
        self.power_losses += other.power_losses;
        self.kills += other.kills;
        self.blocks_lost += other.blocks_lost;
        self.blocks_torn += other.blocks_torn;
        self.blocks_kept += other.blocks_kept;
        self.names_lost += other.names_lost;
        self.names_kept += other.names_kept;
        self.lengths_old += other.lengths_old;
        self.recycled += other.recycled;
        self.tails_cut += other.tails_cut;
    }
}

/// The disk. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Inner>>);

type Block = Vec<u8>;

#[derive(Clone, Debug, Default)]
struct Content {
    len: u64,
    /// Blocks that are not all zeros, or were not always.
    blocks: BTreeMap<u64, Block>,
}

#[derive(Debug, Default)]
struct Inode {
    /// As readers see it.
    now: Content,
    /// As it is after the power went.
    sure: Content,
    /// What blocks were since the last sync, the latest last.
    dirty: BTreeMap<u64, Vec<Block>>,
    /// What the length was since the last sync.
    lens: Vec<u64>,
    written_at: u64,
}

#[derive(Clone, Debug)]
enum NameOp {
    Make(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug, Default)]
struct Folder {
    now: BTreeMap<String, u64>,
    sure: BTreeMap<String, u64>,
    pending: Vec<NameOp>,
    /// Whether the folder itself is certain.
    is_sure: bool,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    block: usize,
    life: u64,
    /// Operations until the machine stops.
    crash_in: Option<u64>,
    /// The operation in which it stops, and whether that is done first.
    crash_at: Option<(u64, bool)>,
    is_dead: bool,
    faults: Faults,
    /// Bytes that it has, if that is known.
    capacity: Option<u64>,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    folders: BTreeMap<String, Folder>,
    ops: u64,
    /// Numbers of operations after which more is certain than before.
    points: Vec<u64>,
    failed: Vec<(Act, String)>,
    /// What fails next, where, and with which error.
    to_fail: Vec<(Act, String, i32, u64)>,
    seen: Seen,
}

/// What becomes of an operation.
enum Turn {
    Go,
    /// It is done, and nobody hears of it.
    DoneAndDead,
}

fn dead() -> io::Error {
    io::Error::other("the machine stopped")
}

impl SimDisk {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(mix(seed ^ 0xD15C));
        let block = if random.chance(50) { 512 } else { 4096 };
        let root = Folder { is_sure: true, ..Folder::default() };
        SimDisk(Arc::new(Mutex::new(Inner {
            random,
            block,
            life: 0,
            crash_in: None,
            crash_at: None,
            is_dead: false,
            faults: Faults::default(),
            capacity: None,
            inodes: BTreeMap::new(),
            next_inode: 1,
            folders: BTreeMap::from([(".".to_owned(), root)]),
            ops: 0,
            points: Vec::new(),
            failed: Vec::new(),
            to_fail: Vec::new(),
            seen: Seen::default(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// As the store wants it.
    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// The machine stops in the operation after so many, or never.
    pub fn crash_in(&self, ops: Option<u64>) {
        self.inner().crash_in = ops;
    }

    /// The machine stops in the operation with this number, before it is done or after.
    pub fn crash_at(&self, op: u64, is_done: bool) {
        self.inner().crash_at = Some((op, is_done));
    }

    pub fn is_dead(&self) -> bool {
        self.inner().is_dead
    }

    /// The disk has so many bytes, and says so.
    pub fn has_bytes(&self, capacity: u64) {
        self.inner().capacity = Some(capacity);
    }

    pub fn faults(&self, faults: Faults) {
        self.inner().faults = faults;
    }

    /// The next such operation with a path that holds `path` fails: with an I/O error, or as there
    /// is no room.
    pub fn fail_next(&self, act: Act, path: &str, error: i32) {
        self.fail_after(0, act, path, error);
    }

    /// The same, after so many of them that do not.
    pub fn fail_after(&self, others: u64, act: Act, path: &str, error: i32) {
        self.inner().to_fail.push((act, path.to_owned(), error, others));
    }

    pub fn seen(&self) -> Seen {
        self.inner().seen.clone()
    }

    /// Operations so far.
    pub fn ops(&self) -> u64 {
        self.inner().ops
    }

    /// The operations after which more is certain than before.
    pub fn points(&self) -> Vec<u64> {
        self.inner().points.clone()
    }

    /// What failed since this was asked last, because it was told to.
    pub fn failed(&self) -> Vec<(Act, String)> {
        std::mem::take(&mut self.inner().failed)
    }

    /// The process ends. What it wrote is there, certain or not.
    pub fn kill(&self) {
        let mut inner = self.inner();
        inner.seen.kills += 1;
        inner.restart();
    }

    /// The power goes, and comes back. Sometimes all that was not certain is lost, sometimes
    /// nothing.
    pub fn power_loss(&self) {
        let lost = [0, 100, 50, 20, 80][self.inner().random.below(5) as usize];
        self.power_loss_of(lost);
    }

    /// The same; of a hundred blocks that are not certain so many are lost, and of names as many.
    pub fn power_loss_of(&self, lost: u64) {
        let mut inner = self.inner();
        inner.seen.power_losses += 1;
        inner.forget(lost);
        inner.restart();
    }

    /// All files, with what a reader sees.
    pub fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        let inner = self.inner();
        let mut tree = BTreeMap::new();
        for (dir, folder) in &inner.folders {
            for (name, inode) in &folder.now {
                let now = &inner.inodes[inode].now;
                tree.insert(format!("{dir}/{name}"), inner.read(now, 0, now.len as usize));
            }
        }
        tree
    }
}

impl Inner {
    fn restart(&mut self) {
        self.life += 1;
        self.is_dead = false;
        self.crash_in = None;
        self.failed.clear();
        let named: BTreeSet<u64> = self
            .folders
            .values()
            .flat_map(|folder| {
                folder.now.values().chain(folder.sure.values()).copied().collect::<Vec<_>>()
            })
            .chain(self.folders.values().flat_map(|folder| {
                folder.pending.iter().filter_map(|op| match op {
                    NameOp::Make(_, inode) => Some(*inode),
                    NameOp::Rename(..) | NameOp::Remove(_) => None,
                })
            }))
            .collect();
        self.inodes.retain(|inode, _| named.contains(inode));
    }

    /// What is not certain is lost, torn or kept.
    fn forget(&mut self, lost: u64) {
        let mut random = Random(self.random.next());
        let block = self.block;
        for inode in self.inodes.values_mut() {
            let mut content = inode.sure.clone();
            for (number, versions) in std::mem::take(&mut inode.dirty) {
                if random.chance(lost) {
                    self.seen.blocks_lost += 1;
                    continue;
                }
                let latest = versions.len() as u64 - 1;
                let version = if lost == 0 || random.chance(70) {
                    latest
                } else {
                    random.below(versions.len() as u64)
                };
                if version == latest {
                    self.seen.blocks_kept += 1;
                } else {
                    self.seen.blocks_torn += 1;
                }
                content.blocks.insert(number, versions[version as usize].clone());
            }
            let mut lens = std::mem::take(&mut inode.lens);
            if !random.chance(lost)
                && let Some(len) = lens.pop()
            {
                let older = random.of(&lens).copied().filter(|_| lost > 0 && random.chance(30));
                content.len = older.unwrap_or(len);
            } else if content.len != inode.now.len {
                self.seen.lengths_old += 1;
            }
            cut(&mut content, block);
            inode.now = content.clone();
            inode.sure = content;
        }
        self.folders.retain(|_, folder| folder.is_sure);
        for folder in self.folders.values_mut() {
            let pending = std::mem::take(&mut folder.pending);
            let kept = match random.below(3) {
                _ if lost == 100 => 0,
                _ if lost == 0 => pending.len(),
                0 => 0,
                1 => pending.len(),
                _ => random.below(pending.len() as u64 + 1) as usize,
            };
            self.seen.names_kept += kept as u64;
            self.seen.names_lost += (pending.len() - kept) as u64;
            for op in pending.into_iter().take(kept) {
                match op {
                    NameOp::Make(name, inode) => {
                        folder.sure.insert(name, inode);
                    }
                    NameOp::Rename(from, to) => {
                        if let Some(inode) = folder.sure.remove(&from) {
                            folder.sure.insert(to, inode);
                        }
                    }
                    NameOp::Remove(name) => {
                        folder.sure.remove(&name);
                    }
                }
            }
            folder.now = folder.sure.clone();
        }
    }

    /// Counts an operation, and says what becomes of it.
    fn turn(&mut self, act: Act, path: &str, life: u64) -> io::Result<Turn> {
        if self.is_dead || life != self.life {
            return Err(dead());
        }
        self.ops += 1;
        if matches!(act, Act::Sync | Act::SyncDir | Act::Rename | Act::MakeDir) {
            self.points.push(self.ops);
        }
        if let Some((_, is_done)) = self.crash_at.filter(|(op, _)| *op == self.ops) {
            self.is_dead = true;
            *self.seen.crashed_in.entry(act).or_default() += 1;
            return if is_done { Ok(Turn::DoneAndDead) } else { Err(dead()) };
        }
        // What only looks is not worth as many crashes.
        let looks =
            matches!(act, Act::Open | Act::List | Act::Len | Act::Read) && self.random.chance(80);
        if let Some(left) = self.crash_in.as_mut().filter(|left| !looks || **left == 0) {
            if *left == 0 {
                self.is_dead = true;
                *self.seen.crashed_in.entry(act).or_default() += 1;
                return if self.random.chance(50) { Ok(Turn::DoneAndDead) } else { Err(dead()) };
            }
            *left -= 1;
        }
        let is_it = |(what, part, ..): &(Act, String, i32, u64)| {
            *what == act && path.contains(part.as_str())
        };
        if let Some(told) = self.to_fail.iter().position(is_it) {
            match &mut self.to_fail[told].3 {
                0 => {
                    let (_, _, error, _) = self.to_fail.remove(told);
                    self.failed.push((act, path.to_owned()));
                    return Err(io::Error::from_raw_os_error(error));
                }
                others => *others -= 1,
            }
        }
        if self.faults.eio > 0 && self.random.below(10_000) < self.faults.eio {
            *self.seen.eio.entry(act).or_default() += 1;
            self.failed.push((act, path.to_owned()));
            return Err(io::Error::from_raw_os_error(5));
        }
        let full = match act {
            Act::Create | Act::MakeDir => 30,
            Act::Rename => 10,
            Act::Sync | Act::SyncDir => self.faults.full_syncs,
            Act::Open
            | Act::List
            | Act::Remove
            | Act::Len
            | Act::Read
            | Act::Write
            | Act::SetLen
            | Act::Allocate => 0,
        };
        if self.faults.full && self.random.chance(full) {
            return Err(self.no_room(act, path));
        }
        Ok(Turn::Go)
    }

    /// Bytes that files have, and bytes that are left.
    fn room(&self) -> Option<Space> {
        let total = self.capacity?;
        let len = |inode: &u64| self.inodes[inode].now.len.next_multiple_of(self.block as u64);
        let used: u64 = self.folders.values().flat_map(|folder| folder.now.values()).map(len).sum();
        Some(Space { free: total.saturating_sub(used), total })
    }

    /// Whether a file that gets this long finds no room.
    fn is_too_long(&self, inode: u64, len: u64) -> bool {
        let more =
            len.next_multiple_of(self.block as u64).saturating_sub(self.inodes[&inode].now.len);
        self.room().is_some_and(|room| more > room.free)
    }

    fn no_room(&mut self, act: Act, path: &str) -> io::Error {
        *self.seen.full.entry(act).or_default() += 1;
        self.failed.push((act, path.to_owned()));
        io::Error::from_raw_os_error(28)
    }

    fn read(&self, content: &Content, at: u64, len: usize) -> Vec<u8> {
        let len = (content.len.saturating_sub(at)).min(len as u64);
        let mut bytes = vec![0; len as usize];
        let block = self.block as u64;
        for (number, from) in content.blocks.range(at / block..=(at + len) / block) {
            let (start, end) = ((number * block).max(at), (number * block + block).min(at + len));
            if start < end {
                let within = (start - number * block) as usize..(end - number * block) as usize;
                bytes[(start - at) as usize..(end - at) as usize].copy_from_slice(&from[within]);
            }
        }
        bytes
    }

    fn write(&mut self, inode: u64, at: u64, bytes: &[u8]) {
        let block = self.block;
        let written_at = self.ops;
        let Some(inode) = self.inodes.get_mut(&inode) else { return };
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let (number, from) = (place / block as u64, (place % block as u64) as usize);
            let len = (block - from).min(bytes.len() - done);
            let now = inode.now.blocks.entry(number).or_insert_with(|| vec![0; block]);
            now[from..from + len].copy_from_slice(&bytes[done..done + len]);
            let versions = inode.dirty.entry(number).or_default();
            if versions.len() >= 4 {
                versions.remove(0);
            }
            versions.push(now.clone());
            done += len;
        }
        inode.now.len = inode.now.len.max(at + bytes.len() as u64);
        inode.lens.push(inode.now.len);
        inode.written_at = written_at;
    }

    fn set_len(&mut self, inode: u64, len: u64) {
        let block = self.block;
        let Some(inode) = self.inodes.get_mut(&inode) else { return };
        let before: Vec<u64> = inode.now.blocks.keys().copied().collect();
        inode.now.len = len;
        let last = len / block as u64;
        cut(&mut inode.now, block);
        for number in before.into_iter().filter(|number| *number >= last) {
            let left = inode.now.blocks.get(&number).cloned().unwrap_or_else(|| vec![0; block]);
            inode.dirty.entry(number).or_default().push(left);
        }
        inode.lens.push(len);
    }

    fn sync(&mut self, inode: u64) {
        let Some(inode) = self.inodes.get_mut(&inode) else { return };
        for number in std::mem::take(&mut inode.dirty).into_keys() {
            match inode.now.blocks.get(&number) {
                Some(now) => inode.sure.blocks.insert(number, now.clone()),
                None => inode.sure.blocks.remove(&number),
            };
        }
        inode.sure.len = inode.now.len;
        inode.lens.clear();
    }

    /// Some of it is written, the rest never will be, though readers see it.
    fn drop_dirty(&mut self, inode: u64) {
        let mut random = Random(self.random.next());
        let Some(inode) = self.inodes.get_mut(&inode) else { return };
        for number in std::mem::take(&mut inode.dirty).into_keys() {
            if let Some(now) = inode.now.blocks.get(&number).filter(|_| random.chance(50)) {
                inode.sure.blocks.insert(number, now.clone());
            }
        }
        if random.chance(50) {
            inode.sure.len = inode.now.len;
        }
        inode.lens.clear();
    }

    fn folder(&mut self, path: &str) -> io::Result<(&mut Folder, String)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        let folder = self.folders.get_mut(dir).ok_or(io::ErrorKind::NotFound)?;
        Ok((folder, name.to_owned()))
    }

    fn find(&self, path: &str) -> Option<u64> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        self.folders.get(dir)?.now.get(name).copied()
    }
}

/// Nothing is behind the end.
fn cut(content: &mut Content, block: usize) {
    let len = content.len;
    let last = len / block as u64;
    content.blocks.retain(|number, _| {
        *number < last || (*number == last && !len.is_multiple_of(block as u64))
    });
    if let Some(bytes) = content.blocks.get_mut(&last) {
        bytes[(len % block as u64) as usize..].fill(0);
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.inner();
        let found = inner.find(path);
        let life = inner.life;
        let makes = found.is_none() && !matches!(how, How::Read | How::Write);
        let turn = inner.turn(if makes { Act::Create } else { Act::Open }, path, life)?;
        let inode = match found {
            Some(inode) => inode,
            None if makes => {
                let number = inner.next_inode;
                let (folder, name) = inner.folder(path)?;
                folder.now.insert(name.clone(), number);
                folder.pending.push(NameOp::Make(name, number));
                inner.next_inode += 1;
                inner.inodes.insert(number, Inode::default());
                number
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        if how == How::Create && found.is_some() {
            inner.set_len(inode, 0);
        }
        match turn {
            Turn::Go => {
                let (path, disk) = (path.to_owned(), self.clone());
                Ok(Box::new(SimFile { disk, path, inode, life, direct: how == How::Direct }))
            }
            Turn::DoneAndDead => Err(dead()),
        }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let mut inner = self.inner();
        let life = inner.life;
        inner.turn(Act::List, dir, life)?;
        let Some(folder) = inner.folders.get(dir) else { return Ok(Vec::new()) };
        let found = folder.now.iter().map(|(name, inode)| {
            let inode = &inner.inodes[inode];
            Found { name: name.clone(), len: inode.now.len, written_at: inode.written_at }
        });
        Ok(found.collect())
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let mut inner = self.inner();
        let life = inner.life;
        // Made, and then made certain.
        for is_sure in [false, true] {
            let turn = inner.turn(Act::MakeDir, dir, life)?;
            inner.folders.entry(dir.to_owned()).or_default().is_sure |= is_sure;
            if let Turn::DoneAndDead = turn {
                return Err(dead());
            }
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner();
        let life = inner.life;
        let turn = inner.turn(Act::Rename, &format!("{from} to {to}"), life)?;
        inner.seen.recycled += u64::from(from.contains("/free-"));
        let (folder, from) = inner.folder(from)?;
        let to = to.rsplit_once('/').map_or(to, |(_, name)| name).to_owned();
        let inode = folder.now.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        folder.now.insert(to.clone(), inode);
        folder.pending.push(NameOp::Rename(from, to));
        if let Turn::Go = turn { Ok(()) } else { Err(dead()) }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut inner = self.inner();
        let life = inner.life;
        let turn = inner.turn(Act::Remove, path, life)?;
        let (folder, name) = inner.folder(path)?;
        folder.now.remove(&name).ok_or(io::ErrorKind::NotFound)?;
        folder.pending.push(NameOp::Remove(name));
        if let Turn::Go = turn { Ok(()) } else { Err(dead()) }
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut inner = self.inner();
        let life = inner.life;
        let turn = inner.turn(Act::SyncDir, dir, life)?;
        let folder = inner.folders.get_mut(dir).ok_or(io::ErrorKind::NotFound)?;
        folder.pending.clear();
        folder.sure = folder.now.clone();
        if let Turn::Go = turn { Ok(()) } else { Err(dead()) }
    }

    fn space(&self) -> io::Result<Space> {
        self.inner().room().ok_or(io::ErrorKind::Unsupported.into())
    }

    fn root(&self) -> String {
        "sim".to_owned()
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    path: String,
    inode: u64,
    life: u64,
    direct: bool,
}

impl SimFile {
    /// The disk, and whether the machine stops when this is done.
    fn turn(&self, act: Act) -> io::Result<(MutexGuard<'_, Inner>, bool)> {
        let mut inner = self.disk.inner();
        let turn = inner.turn(act, &self.path, self.life)?;
        Ok((inner, matches!(turn, Turn::DoneAndDead)))
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let (inner, dies) = self.turn(Act::Len)?;
        if dies { Err(dead()) } else { Ok(inner.inodes[&self.inode].now.len) }
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.direct {
            let blocks = [at as usize, into.len(), into.as_ptr().align_offset(BLOCK_BYTES)];
            assert!(
                blocks.iter().all(|number| number.is_multiple_of(BLOCK_BYTES)),
                "{blocks:?} past the cache"
            );
        }
        let (inner, dies) = self.turn(Act::Read)?;
        let bytes = inner.read(&inner.inodes[&self.inode].now, at, into.len());
        into[..bytes.len()].copy_from_slice(&bytes);
        if dies { Err(dead()) } else { Ok(bytes.len()) }
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.to_vec();
        if self.direct {
            assert!(at.is_multiple_of(BLOCK_BYTES as u64), "a write at {at} past the cache");
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        }
        let (mut inner, dies) = match self.turn(Act::Write) {
            Ok(turn) => turn,
            Err(error) => {
                let mut inner = self.disk.inner();
                // What failed was written in part.
                if error.raw_os_error().is_some() && self.life == inner.life {
                    let part = inner.random.below(bytes.len() as u64 + 1) as usize;
                    inner.write(self.inode, at, &bytes[..part]);
                }
                return Err(error);
            }
        };
        if inner.is_too_long(self.inode, at + bytes.len() as u64) {
            let path = self.path.clone();
            return Err(inner.no_room(Act::Write, &path));
        }
        if inner.faults.full {
            let block = inner.block as u64;
            let blocks = &inner.inodes[&self.inode].now.blocks;
            let mut places = at / block..=(at + bytes.len() as u64).saturating_sub(1) / block;
            if let Some(beyond) = places.find(|number| !blocks.contains_key(number)) {
                let part = (beyond * block).saturating_sub(at).min(bytes.len() as u64) as usize;
                inner.write(self.inode, at, &bytes[..part]);
                let path = self.path.clone();
                return Err(inner.no_room(Act::Write, &path));
            }
        }
        inner.write(self.inode, at, &bytes);
        if dies { Err(dead()) } else { Ok(()) }
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let (mut inner, dies) = self.turn(Act::SetLen)?;
        inner.seen.tails_cut += u64::from(self.path.contains("/log-"));
        inner.set_len(self.inode, len);
        if dies { Err(dead()) } else { Ok(()) }
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        let (mut inner, dies) = self.turn(Act::Allocate)?;
        if inner.inodes[&self.inode].now.len < len {
            if inner.faults.full || inner.is_too_long(self.inode, len) {
                let path = self.path.clone();
                return Err(inner.no_room(Act::Allocate, &path));
            }
            inner.set_len(self.inode, len);
        }
        if dies { Err(dead()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.turn(Act::Sync) {
            Ok((mut inner, dies)) => {
                inner.sync(self.inode);
                if dies { Err(dead()) } else { Ok(()) }
            }
            Err(error) => {
                let mut inner = self.disk.inner();
                if error.raw_os_error().is_some() && self.life == inner.life {
                    inner.drop_dirty(self.inode);
                }
                Err(error)
            }
        }
    }
}
