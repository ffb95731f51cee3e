//! Stores the payloads of jobs and results, in memory and, with a log, in the log. Payloads in the
//! log may leave memory: the most recently used ones stay while they fit, the others are read again
//! on demand.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::core::ids::{JobId, ResultId};
use crate::store::format::Place;
use crate::store::replay::{Held, Key};
use crate::summed::Summed;

/// Bytes of payloads that stay in memory although the log has them.
const WARM_BYTES_MAX: u64 = 16 << 20;

/// Bytes of payloads that wait for the log before new jobs are refused: they are in memory.
pub(in crate::leader) const UNLOGGED_BYTES_MAX: u64 = 512 << 20;

/// The payload of a job.
#[derive(Clone, Debug)]
pub(in crate::leader) struct Input {
    pub(in crate::leader) payload: Summed,
    /// Whether a client that announced itself wrote it.
    pub(in crate::leader) from_ours: bool,
}

/// What is known of a payload.
#[derive(Clone, Debug)]
struct Slot {
    /// Where the log has it.
    place: Option<Place>,
    len: u32,
    /// The CRC-32 that it came with.
    crc: u32,
    from_ours: bool,
    /// Whether it was used before. Its first user detects damage itself; before it is used again,
    /// it is checked.
    used: bool,
    /// Whether it cannot be read any more.
    lost: bool,
}

impl Slot {
    fn new(payload: &Summed, from_ours: bool) -> Self {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Slot { place: None, len, crc: payload.crc(), from_ours, used: false, lost: false }
    }
}

impl From<&Held> for Slot {
    fn from(held: &Held) -> Self {
        let Held { place, from_ours, .. } = held;
        Slot {
            place: Some(*place),
            len: place.len,
            crc: place.crc,
            from_ours: *from_ours,
            used: false,
            lost: false,
        }
    }
}

/// Payloads by what they belong to.
#[derive(Debug, Default)]
pub(in crate::leader) struct PayloadStore {
    inputs: HashMap<JobId, Slot>,
    results: HashMap<ResultId, Slot>,
    input_bytes: u64,
    result_bytes: u64,
    next: ResultId,
    /// Payloads that are in memory.
    warm: HashMap<Key, Bytes>,
    warm_bytes: u64,
    /// Bytes of payloads that no log has.
    unlogged_bytes: u64,
    /// Payloads in memory that the log has, too; the first is dropped next.
    order: VecDeque<Key>,
    /// Payloads that are needed, with the number of waiters: they stay in memory.
    pinned: HashMap<Key, u32>,
    /// Why payloads cannot be read.
    lost: HashMap<Key, String>,
}

impl PayloadStore {
    /// The payloads that a log has.
    pub(in crate::leader) fn restore(
        inputs: &HashMap<JobId, Held>,
        results: &HashMap<ResultId, Held>,
        last_result: ResultId,
    ) -> Self {
        let bytes = |held: &Held| u64::from(held.place.len);
        PayloadStore {
            input_bytes: inputs.values().map(bytes).sum(),
            result_bytes: results.values().map(bytes).sum(),
            inputs: inputs.iter().map(|(job, held)| (*job, held.into())).collect(),
            results: results.iter().map(|(result, held)| (*result, held.into())).collect(),
            next: last_result,
            ..PayloadStore::default()
        }
    }

    /// Bytes of jobs that are held, those of failed jobs included.
    pub(in crate::leader) fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Bytes of results that are held.
    pub(in crate::leader) fn result_bytes(&self) -> u64 {
        self.result_bytes
    }

    /// Bytes that are in memory alone.
    pub(in crate::leader) fn unlogged_bytes(&self) -> u64 {
        self.unlogged_bytes
    }

    /// Keeps the payload of a job. A job that is known keeps the one it has: it is the same, or the
    /// job is refused.
    pub(in crate::leader) fn keep_input(&mut self, job: JobId, input: Input) {
        if !self.inputs.contains_key(&job) {
            self.input_bytes += input.payload.len() as u64;
            self.unlogged_bytes += input.payload.len() as u64;
            self.inputs.insert(job, Slot::new(&input.payload, input.from_ours));
            self.warm_up(Key::Input(job), input.payload.into_bytes());
        }
    }

    /// The payload of a job, if it is in memory.
    pub(in crate::leader) fn input(&self, job: JobId) -> Option<Input> {
        let slot = self.inputs.get(&job)?;
        let payload = self.warm.get(&Key::Input(job))?.clone();
        Some(Input { payload: Summed::known(payload, slot.crc), from_ours: slot.from_ours })
    }

    /// Whether a job was submitted by a client of ours.
    pub(in crate::leader) fn is_from_ours(&self, job: JobId) -> bool {
        self.inputs.get(&job).is_some_and(|slot| slot.from_ours)
    }

    /// Drops the payload of a job.
    pub(in crate::leader) fn forget_input(&mut self, job: JobId) {
        if let Some(slot) = self.inputs.remove(&job) {
            self.input_bytes -= u64::from(slot.len);
            self.cool(Key::Input(job), &slot);
        }
    }

    /// Keeps a result.
    pub(in crate::leader) fn keep_result(&mut self, payload: Summed) -> ResultId {
        self.next = self.next.next();
        self.result_bytes += payload.len() as u64;
        self.unlogged_bytes += payload.len() as u64;
        self.results.insert(self.next, Slot::new(&payload, true));
        self.warm_up(Key::Result(self.next), payload.into_bytes());
        self.next
    }

    /// A result, if it is in memory.
    pub(in crate::leader) fn result(&self, result: ResultId) -> Option<Summed> {
        let slot = self.results.get(&result)?;
        let payload = self.warm.get(&Key::Result(result))?.clone();
        Some(Summed::known(payload, slot.crc))
    }

    /// Drops a result.
    pub(in crate::leader) fn forget_result(&mut self, result: ResultId) {
        if let Some(slot) = self.results.remove(&result) {
            self.result_bytes -= u64::from(slot.len);
            self.cool(Key::Result(result), &slot);
        }
    }

    /// Bytes of a payload, in memory or in the log.
    pub(in crate::leader) fn len_of(&self, key: Key) -> u64 {
        self.slot(key).map_or(0, |slot| slot.len.into())
    }

    /// Whether these bytes are those of a payload in memory, and no copy.
    pub(in crate::leader) fn holds(&self, key: Key, bytes: &Bytes) -> bool {
        self.warm.get(&key).is_some_and(|payload| payload.as_ptr() == bytes.as_ptr())
    }

    // --- in the log

    /// Where the log has a payload that is not in memory. `None` if it is, or is nowhere.
    pub(in crate::leader) fn away(&self, key: Key) -> Option<Place> {
        let slot = self.slot(key).filter(|slot| !slot.lost)?;
        slot.place.filter(|_| !self.warm.contains_key(&key))
    }

    /// Why a payload cannot be read.
    pub(in crate::leader) fn why_lost(&self, key: Key) -> Option<&str> {
        self.lost.get(&key).map(String::as_str)
    }

    /// The log has a payload.
    pub(in crate::leader) fn placed(&mut self, key: Key, place: Place) {
        if let Some(slot) = self.slot_mut(key) {
            let len = u64::from(slot.len);
            if slot.place.replace(place).is_none() {
                self.unlogged_bytes -= len;
                self.order.push_back(key);
            }
        }
    }

    /// The log has a payload elsewhere. One that came in its place meanwhile lies where it was
    /// written.
    pub(in crate::leader) fn moved(&mut self, key: Key, from: &Place, to: Place) {
        if let Some(slot) = self.slot_mut(key).filter(|slot| slot.place.as_ref() == Some(from)) {
            slot.place = Some(to);
        }
    }

    /// A payload was read from the log.
    pub(in crate::leader) fn was_read(&mut self, key: Key, payload: Bytes) {
        if self.slot(key).is_some() && !self.warm.contains_key(&key) {
            self.warm_up(key, payload);
            self.order.push_back(key);
        }
    }

    /// A payload cannot be read.
    pub(in crate::leader) fn was_lost(&mut self, key: Key, why: String) {
        if let Some(slot) = self.slot_mut(key) {
            slot.lost = true;
            self.lost.insert(key, why);
            self.cool_one(key);
        }
    }

    /// A payload is about to be used. If it was used before, or nobody after us can, it is compared
    /// with its checksum: what is not sound in memory is read from the log again. An error says
    /// that the log has none.
    pub(in crate::leader) fn look_at(&mut self, key: Key, ends_here: bool) -> Result<(), String> {
        let Some(slot) = self.slot_mut(key) else { return Ok(()) };
        let (crc, is_logged) = (slot.crc, slot.place.is_some());
        let is_due = std::mem::replace(&mut slot.used, true) || ends_here;
        let payload = self.warm.get(&key).filter(|_| is_due);
        if payload.is_none_or(|payload| crc32fast::hash(payload) == crc) {
            return Ok(());
        }
        self.cool_one(key);
        if is_logged {
            return Ok(());
        }
        Err("its bytes changed in the leader's memory, and the log has no copy".to_owned())
    }

    /// Somebody waits for a payload, and others with it: it stays in memory once it is there.
    pub(in crate::leader) fn pin(&mut self, key: Key) {
        *self.pinned.entry(key).or_default() += 1;
    }

    /// Whether somebody waits for it.
    pub(in crate::leader) fn is_pinned(&self, key: Key) -> bool {
        self.pinned.contains_key(&key)
    }

    /// The same no more.
    pub(in crate::leader) fn unpin(&mut self, key: Key) {
        if let Some(count) = self.pinned.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.pinned.remove(&key);
            }
        }
    }

    /// Drops payloads from memory that the log has, as far as there are too many.
    pub(in crate::leader) fn settle(&mut self) {
        for _ in 0..self.order.len() {
            let Some(key) =
                self.order.front().copied().filter(|_| self.warm_bytes > WARM_BYTES_MAX)
            else {
                break;
            };
            self.order.pop_front();
            if self.pinned.contains_key(&key) {
                self.order.push_back(key);
            } else {
                self.cool_one(key);
            }
        }
        if self.order.len() > 64 + 2 * self.warm.len() {
            // Most of what stands there has been forgotten.
            let warm = &self.warm;
            self.order.retain(|key| warm.contains_key(key));
        }
    }

    fn slot(&self, key: Key) -> Option<&Slot> {
        match key {
            Key::Input(job) => self.inputs.get(&job),
            Key::Result(result) => self.results.get(&result),
        }
    }

    fn slot_mut(&mut self, key: Key) -> Option<&mut Slot> {
        match key {
            Key::Input(job) => self.inputs.get_mut(&job),
            Key::Result(result) => self.results.get_mut(&result),
        }
    }

    fn warm_up(&mut self, key: Key, payload: Bytes) {
        self.warm_bytes += payload.len() as u64;
        self.warm.insert(key, payload);
    }

    fn cool_one(&mut self, key: Key) {
        if let Some(payload) = self.warm.remove(&key) {
            self.warm_bytes -= payload.len() as u64;
        }
    }

    /// A payload is not needed any more.
    fn cool(&mut self, key: Key, slot: &Slot) {
        if slot.place.is_none() {
            self.unlogged_bytes -= u64::from(slot.len);
        }
        self.cool_one(key);
        self.lost.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::FileNo;

    #[test]
    fn every_byte_is_counted_once_and_given_back() {
        let mut store = PayloadStore::default();
        let job = JobId(uuid::Uuid::from_u128(1));
        let input = Input { payload: Bytes::from_static(b"abc").into(), from_ours: false };
        store.keep_input(job, input.clone());
        store.keep_input(job, input);
        let result = store.keep_result(Bytes::from_static(b"defgh").into());
        assert_eq!(
            (
                store.input_bytes(),
                store.result_bytes(),
                store.result(result).map(|result| result.len())
            ),
            (3, 5, Some(5))
        );
        store.forget_input(job);
        store.forget_input(job);
        store.forget_result(result);
        store.forget_result(result);
        assert_eq!(
            (store.input_bytes(), store.result_bytes(), store.input(job).is_none()),
            (0, 0, true)
        );
        assert_eq!((store.warm_bytes, store.warm.len(), store.unlogged_bytes), (0, 0, 0));
    }

    #[test]
    fn a_payload_that_changed_in_memory_is_read_again_or_lost_and_not_used_twice() {
        let mut store = PayloadStore::default();
        let jobs: Vec<JobId> = (0..3).map(|number| JobId(uuid::Uuid::from_u128(number))).collect();
        let keys: Vec<Key> = jobs.iter().copied().map(Key::Input).collect();
        let crc = crc32fast::hash(b"as it came");
        for job in &jobs {
            let payload = Summed::known(Bytes::from_static(b"as it is now"), crc);
            store.keep_input(*job, Input { payload, from_ours: true });
        }
        store.placed(keys[0], Place { file: FileNo::log(1), offset: 0, len: 10, crc });
        // Whoever gets it can tell.
        assert_eq!(store.look_at(keys[0], false), Ok(()));
        assert!(store.input(jobs[0]).is_some_and(|input| input.payload.crc() == crc));
        assert_eq!(store.look_at(keys[0], false), Ok(()));
        assert!(store.input(jobs[0]).is_none() && store.away(keys[0]).is_some(), "the log has it");
        store.was_read(keys[0], Bytes::from_static(b"as it came"));
        assert_eq!(store.look_at(keys[0], true), Ok(()));
        assert!(store.input(jobs[0]).is_some_and(|input| input.payload.is_sound()));
        // Nobody after us could.
        assert!(store.look_at(keys[1], true).is_err());
        assert!(store.input(jobs[1]).is_none());
        assert_eq!(store.look_at(keys[2], false), Ok(()));
        assert!(store.look_at(keys[2], false).is_err());
        store.was_lost(keys[2], "it changed".to_owned());
        assert_eq!((store.away(keys[2]), store.why_lost(keys[2])), (None, Some("it changed")));
        jobs.iter().for_each(|job| store.forget_input(*job));
        assert_eq!((store.warm_bytes, store.unlogged_bytes, store.input_bytes()), (0, 0, 0));
    }

    #[test]
    fn what_the_log_has_leaves_the_memory_and_what_it_has_not_stays() {
        let mut store = PayloadStore::default();
        let payload = Bytes::from(vec![7; 4 << 20]);
        let jobs: Vec<JobId> = (0..8).map(|number| JobId(uuid::Uuid::from_u128(number))).collect();
        for (offset, job) in (0u64..).zip(&jobs) {
            store.keep_input(*job, Input { payload: payload.clone().into(), from_ours: true });
            if offset % 2 == 0 {
                let place = Place { file: FileNo::log(1), offset, len: 4 << 20, crc: 0 };
                store.placed(Key::Input(*job), place);
            }
        }
        assert_eq!(store.unlogged_bytes(), 4 * (4 << 20));
        store.settle();
        let warm: Vec<bool> = jobs.iter().map(|job| store.input(*job).is_some()).collect();
        assert_eq!(warm, [false, true, false, true, false, true, false, true]);
        assert!(store.away(Key::Input(jobs[0])).is_some_and(|place| place.offset == 0));
        assert!(store.away(Key::Input(jobs[1])).is_none(), "it is here");
        store.was_read(Key::Input(jobs[0]), payload);
        assert!(store.input(jobs[0]).is_some() && store.away(Key::Input(jobs[0])).is_none());
        store.settle();
        assert!(store.input(jobs[0]).is_none(), "the log still has it");
        store.was_lost(Key::Input(jobs[2]), "damaged".to_owned());
        assert_eq!(
            (store.away(Key::Input(jobs[2])), store.why_lost(Key::Input(jobs[2]))),
            (None, Some("damaged"))
        );
    }
}
