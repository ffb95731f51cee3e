//! The disk beneath the leader's spool: slow, in order, sometimes full, sometimes forgetful.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use heft::store::blobs::{DiskDone, DiskOp};
use uuid::Uuid;

use super::{Coverage, Faults, Random};

#[derive(Default)]
pub(crate) struct Disk {
    files: HashMap<Uuid, BTreeMap<u32, Bytes>>,
    /// When the last operation that was asked for is done.
    busy_until: u64,
    /// Writes that will fail, in a row.
    failing: u32,
}

impl Disk {
    /// When an operation that is asked for now is done: after all that were asked for before.
    pub(crate) fn due(&mut self, now: u64, random: &mut Random) -> u64 {
        let takes = [100, 1000, 20_000][random.below(3) as usize];
        self.busy_until = self.busy_until.max(now) + 1 + random.below(takes);
        self.busy_until
    }

    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn execute(
        &mut self,
        operation: DiskOp,
        random: &mut Random,
        faults: &Faults,
        seen: &mut Coverage,
    ) -> Option<DiskDone> {
        match operation {
            DiskOp::Write { blob, index, bytes, .. } => {
                let file = self.files.entry(blob).or_default();
                if faults.disk_writes && self.failing == 0 && random.chance(20) {
                    self.failing = 1 + random.below(4) as u32;
                }
                if self.failing > 0 {
                    self.failing -= 1;
                    seen.disk_faults += 1;
                    return Some(DiskDone::Written {
                        blob,
                        index,
                        result: Err("no space left".into()),
                    });
                }
                seen.spooled += 1;
                file.insert(index, Bytes::copy_from_slice(&bytes));
                Some(DiskDone::Written { blob, index, result: Ok(()) })
            }
            DiskOp::Read { blob, index, len, crc, conn, mut buffer } => {
                let stored = self.files.get(&blob).and_then(|file| file.get(&index));
                let result = match stored {
                    Some(bytes) if bytes.len() >= len as usize => {
                        let room = buffer.room(0..len as usize).unwrap();
                        room.copy_from_slice(&bytes[..len as usize]);
                        let wrong = faults.disk_reads && random.chance(10);
                        seen.disk_faults += u64::from(wrong);
                        if wrong && random.chance(50) {
                            Err("bad sector".to_owned())
                        } else {
                            room[0] ^= u8::from(wrong);
                            let bytes = buffer.freeze(len as usize);
                            if crc32fast::hash(&bytes) == crc {
                                Ok(bytes)
                            } else {
                                Err("bad bytes".to_owned())
                            }
                        }
                    }
                    Some(_) | None => panic!("chunk {index} of {blob} is read and was not written"),
                };
                Some(DiskDone::Read { blob, index, conn, result })
            }
            DiskOp::Remove { blob } => {
                self.files.remove(&blob);
                None
            }
            DiskOp::Begin { .. }
            | DiskOp::Seal { .. }
            | DiskOp::Check { .. }
            | DiskOp::Look { .. }
            | DiskOp::List
            | DiskOp::Measure { .. }
            | DiskOp::MakeRoom => {
                panic!("nothing outlives this leader, and it has no datasets: {operation:?}")
            }
        }
    }
}
