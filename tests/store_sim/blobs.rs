//! The blobs of the simulated leader: what was written to which, and what must be there again.

use std::collections::BTreeMap;

use bytes::Bytes;
use chunking::message::{Open, OpenFlags, Purpose};
use chunking::{ChunkHead, Codec, Digest, DigestKind};
use heft::core::ids::ConnId;
use heft::store::blobs::{BlobFiles, DiskDone, DiskOp, Found};
use heft::wire::Pool;
use uuid::Uuid;

use super::coverage::Coverage;
use super::sim_disk::{Act, Random, SimDisk};

const MIB: u64 = 1 << 20;

/// A blob, as its leader knows it.
#[derive(Debug)]
struct Blob {
    open: Open,
    /// All that was ever written as a chunk of it, the latest last.
    versions: BTreeMap<u32, Vec<(ChunkHead, Bytes)>>,
    /// What it was opened as before.
    opens: Vec<Open>,
    /// Chunks that were written, and heard to be, or were found to be good: which version.
    here: BTreeMap<u32, usize>,
    /// Whether it was heard to be whole.
    is_sealed: bool,
    /// Whether it is not wanted any more.
    is_removed: bool,
    /// Whether its files are of a previous run, and have not been looked at.
    is_unchecked: bool,
    /// Whether the leader knows of files.
    on_disk: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    all: BTreeMap<Uuid, Blob>,
    made: u64,
}

fn digest_of(blob: Uuid, open: &Open) -> Digest {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(blob.as_bytes());
    bytes[16..24].copy_from_slice(&open.size.to_be_bytes());
    Digest { kind: DigestKind::ChunkList, bytes }
}

fn count(open: &Open) -> u32 {
    open.size.div_ceil(u64::from(open.chunk_bytes)) as u32
}

impl Blobs {
    /// Does something with one of them.
    pub(crate) fn step(
        &mut self,
        random: &mut Random,
        files: &mut BlobFiles,
        disk: &SimDisk,
        pool: &Pool,
        seen: &mut Coverage,
    ) {
        let alive: Vec<Uuid> =
            self.all.iter().filter(|(_, blob)| !blob.is_removed).map(|(id, _)| *id).collect();
        if alive.is_empty() || (alive.len() < 6 && random.chance(15)) {
            self.begin(random, seen);
            return;
        }
        let id = *random.of(&alive).unwrap();
        let blob = self.all.get_mut(&id).unwrap();
        if blob.is_unchecked {
            return blob.look(id, random, files, disk, pool, seen);
        }
        if random.chance(10) {
            files.execute(DiskOp::Remove { blob: id });
            (blob.is_removed, blob.is_sealed, blob.on_disk) = (true, false, false);
            seen.removed += 1;
            return;
        }
        let missing: Vec<u32> =
            (0..count(&blob.open)).filter(|index| !blob.here.contains_key(index)).collect();
        match random.of(&missing).copied() {
            Some(index) => blob.write(id, index, random, files, disk, seen),
            None if !blob.is_sealed => blob.seal(id, random, files, disk, seen),
            None if random.chance(20) => {
                let checked = files.execute(DiskOp::Check { blob: id });
                blob.expect_all_good(id, checked, disk);
            }
            None => blob.read(id, random, files, disk, pool),
        }
        // Sometimes one that is here comes again.
        if random.chance(10)
            && let Some(blob) =
                self.all.get_mut(&id).filter(|blob| !blob.is_sealed && !blob.here.is_empty())
        {
            let index = *blob.here.keys().next().unwrap();
            blob.here.remove(&index);
            blob.write(id, index, random, files, disk, seen);
        }
    }

    /// A new one, or one that was removed comes again under its id.
    fn begin(&mut self, random: &mut Random, seen: &mut Coverage) {
        let gone: Vec<Uuid> =
            self.all.iter().filter(|(_, blob)| blob.is_removed).map(|(id, _)| *id).collect();
        let again = random.of(&gone).copied().filter(|_| random.chance(30));
        let id = again.unwrap_or_else(|| {
            self.made += 1;
            Uuid::from_u128(u128::from(self.made) << 32 | 0xB10B)
        });
        let open = opened(id, random);
        match self.all.get_mut(&id) {
            Some(blob) => {
                seen.begun_again += 1;
                blob.begin(open);
            }
            None => {
                let blob = Blob {
                    open,
                    versions: BTreeMap::new(),
                    opens: Vec::new(),
                    here: BTreeMap::new(),
                    is_sealed: false,
                    is_removed: false,
                    is_unchecked: false,
                    on_disk: false,
                };
                self.all.insert(id, blob);
            }
        }
    }

    /// A new life found these. What was heard to be whole has to be, and nothing may be there that
    /// was never written.
    pub(crate) fn recovered(&mut self, found: Vec<Found>, seen: &mut Coverage) {
        let mut found: BTreeMap<Uuid, Found> =
            found.into_iter().map(|found| (found.blob, found)).collect();
        for (id, blob) in &mut self.all {
            let here = std::mem::take(&mut blob.here);
            blob.is_unchecked = true;
            blob.on_disk = true;
            let map = match found.remove(id).map(|found| found.map) {
                Some(Ok(map)) => map,
                other => {
                    assert!(!blob.is_sealed, "sealed blob {id} is lost: {other:?}");
                    seen.maps_unreadable += u64::from(other.is_some());
                    // It comes from the start, or is not wanted.
                    (blob.is_unchecked, blob.on_disk) = (false, false);
                    continue;
                }
            };
            let is_known = map.open == blob.open || blob.opens.contains(&map.open);
            assert!(is_known, "blob {id} was never {:?}", map.open);
            if blob.is_sealed {
                assert_eq!(map.seal, Some(digest_of(*id, &blob.open)), "the seal of {id}");
                assert!(map.is_whole() && map.damage.is_empty(), "sealed blob {id}: {map:?}");
                assert_eq!(map.open, blob.open);
                for (index, version) in &here {
                    let (head, bytes) = &blob.versions[index][*version];
                    let (found, len) = &map.chunks[index];
                    assert_eq!(
                        (head, bytes.len()),
                        (found, *len as usize),
                        "chunk {index} of sealed {id}"
                    );
                }
                blob.here = here;
                seen.sealed_recovered += 1;
            } else if blob.is_removed {
                // It may be there again, or a part of it. It is removed again, or comes again.
                (blob.is_unchecked, blob.on_disk) = (false, false);
            } else if map.open != blob.open {
                (blob.is_unchecked, blob.on_disk) = (false, false);
                seen.maps_of_before += 1;
            } else {
                seen.partial_recovered += 1;
            }
            for (index, (head, len)) in &map.chunks {
                let versions = blob.versions.get(index).map(Vec::as_slice).unwrap_or_default();
                let is_known = versions.iter().any(|(known, bytes)| {
                    (known.crc_sent, known.codec, bytes.len())
                        == (head.crc_sent, head.codec, *len as usize)
                });
                assert!(is_known, "chunk {index} of {id} was never {head:?}");
            }
        }
        assert!(found.is_empty(), "invented: {found:?}");
    }

    /// Reads all that is said to be good.
    pub(crate) fn check_all(&mut self, files: &mut BlobFiles, pool: &Pool) {
        for (id, blob) in &mut self.all {
            let Some(DiskDone::Checked { result, .. }) = files.execute(DiskOp::Check { blob: *id })
            else {
                panic!("a check says something")
            };
            let Ok((good, bad)) = result else {
                assert!(!blob.is_sealed, "{id}: {result:?}");
                continue;
            };
            if blob.is_sealed {
                assert_eq!(good, (0..count(&blob.open)).collect::<Vec<u32>>(), "{id}: {bad:?}");
            }
            for index in good {
                let version = blob.version(*id, index, files, pool);
                assert!(version.is_some(), "chunk {index} of {id} is good, and was never written");
                assert!(
                    !blob.is_sealed || version == blob.here.get(&index).copied(),
                    "chunk {index} of {id}"
                );
            }
        }
    }
}

fn opened(id: Uuid, random: &mut Random) -> Open {
    // Chunks of a blob that does not compress are small here; those of one that does are of a
    // megabyte.
    let chunk_bytes = if random.chance(50) { MIB } else { 8192 };
    let chunks = random.below(5);
    let size = (chunks * chunk_bytes).saturating_sub(random.below(4000));
    Open {
        purpose: Purpose::Input,
        codec: Codec::Zstd,
        digest: DigestKind::ChunkList,
        flags: OpenFlags(0),
        chunk_bytes: chunk_bytes as u32,
        size,
        owner: id,
        attempt: 0,
        name: "n".repeat(random.below(700) as usize).try_into().unwrap(),
    }
}

impl Blob {
    /// It comes from the start.
    fn begin(&mut self, open: Open) {
        self.opens.push(std::mem::replace(&mut self.open, open));
        self.here.clear();
        (self.is_sealed, self.is_removed, self.is_unchecked, self.on_disk) =
            (false, false, false, false);
    }

    /// Files of a previous run: they are looked at and gone on with, begun again, or removed.
    fn look(
        &mut self,
        id: Uuid,
        random: &mut Random,
        files: &mut BlobFiles,
        disk: &SimDisk,
        pool: &Pool,
        seen: &mut Coverage,
    ) {
        match random.below(10) {
            0 if !self.is_sealed => {
                files.execute(DiskOp::Remove { blob: id });
                (self.is_removed, self.on_disk) = (true, false);
            }
            1 if !self.is_sealed => {
                // Nobody knows any more what was here.
                self.begin(opened(id, random));
                seen.begun_over += 1;
            }
            _ => {
                let checked = files.execute(DiskOp::Check { blob: id });
                if self.is_sealed {
                    self.expect_all_good(id, checked, disk);
                } else {
                    let Some(DiskDone::Checked { result, .. }) = checked else {
                        panic!("{checked:?}")
                    };
                    let (good, bad) = result.unwrap_or_default();
                    seen.chunks_bad += bad.len() as u64;
                    seen.chunks_resumed += good.len() as u64;
                    for index in good {
                        match self.version(id, index, files, pool) {
                            Some(version) => drop(self.here.insert(index, version)),
                            None if disk.is_dead() || !disk.failed().is_empty() => {}
                            None => panic!("chunk {index} of {id} is good, and was never written"),
                        }
                    }
                }
            }
        }
        self.is_unchecked = false;
    }

    fn write(
        &mut self,
        id: Uuid,
        index: u32,
        random: &mut Random,
        files: &mut BlobFiles,
        disk: &SimDisk,
        seen: &mut Coverage,
    ) {
        let bytes = Bytes::from(random.bytes(1 + random.clone().below(8192) as usize));
        let offset = u64::from(index) * u64::from(self.open.chunk_bytes);
        let codec = if random.chance(50) { Codec::Zstd } else { Codec::None };
        let head = ChunkHead { codec, crc_raw: 7, ..ChunkHead::plain(offset, &bytes) };
        self.versions.entry(index).or_default().push((head, bytes.clone()));
        if !std::mem::replace(&mut self.on_disk, true) {
            files.execute(DiskOp::Begin { blob: id, open: Box::new(self.open.clone()) });
        }
        disk.failed();
        match files.execute(DiskOp::Write { blob: id, index, head, bytes }) {
            Some(DiskDone::Written { result: Ok(()), .. }) => {
                self.here.insert(index, self.versions[&index].len() - 1);
                seen.chunks += 1;
            }
            Some(DiskDone::Written { result: Err(error), .. }) => {
                assert!(disk.is_dead() || !disk.failed().is_empty(), "{error}");
                seen.chunks_failed += 1;
            }
            other => panic!("{other:?}"),
        }
    }

    fn seal(
        &mut self,
        id: Uuid,
        random: &mut Random,
        files: &mut BlobFiles,
        disk: &SimDisk,
        seen: &mut Coverage,
    ) {
        disk.failed();
        let (open, digest) = (Box::new(self.open.clone()), digest_of(id, &self.open));
        let Some(DiskDone::Sealed { result, .. }) =
            files.execute(DiskOp::Seal { blob: id, open, digest })
        else {
            panic!("a seal says something")
        };
        self.on_disk = true;
        let failed = disk.failed();
        match result {
            _ if disk.is_dead() => {}
            Ok(()) => {
                let sync = failed.iter().find(|(act, _)| matches!(act, Act::Sync | Act::SyncDir));
                assert_eq!(sync, None, "sealed though a sync failed");
                self.is_sealed = true;
                seen.sealed += 1;
            }
            Err(error) if error.is_full && !error.is_lost => {
                assert!(!failed.is_empty(), "{error:?}");
                seen.seals_full += 1;
            }
            Err(error) => {
                // One whose last write of a chunk failed is refused, too, though an earlier write
                // may have brought it.
                let is_unwritten = error.text.contains("could not be written");
                assert!(!failed.is_empty() || is_unwritten, "{error:?}");
                seen.seals_failed += 1;
                // What of it is on the disk is not known: it has to come again, or is given up.
                files.execute(DiskOp::Remove { blob: id });
                if random.chance(50) {
                    self.begin(self.open.clone());
                } else {
                    (self.is_removed, self.on_disk) = (true, false);
                }
            }
        }
    }

    fn expect_all_good(&self, id: Uuid, checked: Option<DiskDone>, disk: &SimDisk) {
        let Some(DiskDone::Checked { result, .. }) = checked else { panic!("{checked:?}") };
        if disk.is_dead() || !disk.failed().is_empty() {
            return;
        }
        let all: Vec<u32> = (0..count(&self.open)).collect();
        assert_eq!(result, Ok((all, Vec::new())), "{id}");
    }

    fn read(
        &self,
        id: Uuid,
        random: &mut Random,
        files: &mut BlobFiles,
        disk: &SimDisk,
        pool: &Pool,
    ) {
        let here: Vec<(u32, usize)> =
            self.here.iter().map(|(index, version)| (*index, *version)).collect();
        let Some((index, version)) = random.of(&here).copied() else { return };
        disk.failed();
        let (head, bytes) = &self.versions[&index][version];
        match read(id, index, head, bytes.len(), files, pool) {
            Ok(read) => assert_eq!(read, *bytes, "chunk {index} of {id}"),
            Err(error) => {
                assert!(
                    disk.is_dead() || !disk.failed().is_empty(),
                    "chunk {index} of {id}: {error}"
                )
            }
        }
    }

    /// Which of the versions of a chunk is there.
    fn version(&self, id: Uuid, index: u32, files: &mut BlobFiles, pool: &Pool) -> Option<usize> {
        let versions = self.versions.get(&index)?;
        versions.iter().rposition(|(head, bytes)| {
            read(id, index, head, bytes.len(), files, pool).is_ok_and(|read| read == *bytes)
        })
    }
}

fn read(
    id: Uuid,
    index: u32,
    head: &ChunkHead,
    len: usize,
    files: &mut BlobFiles,
    pool: &Pool,
) -> Result<Bytes, String> {
    let (len, crc, conn) = (u32::try_from(len).unwrap(), head.crc_sent, ConnId(1));
    let buffer = pool.take().unwrap();
    match files.execute(DiskOp::Read { blob: id, index, len, crc, conn, buffer }) {
        Some(DiskDone::Read { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}
