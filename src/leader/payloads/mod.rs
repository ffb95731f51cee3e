//! Decides which payloads are in memory, and queues tasks whose payloads are not.
//!
//! A state machine of its own: a task names the payloads it needs ([`Payloads::want`]) and is
//! returned when they are in memory or cannot be read ([`PayloadAction::Ready`]). Concurrent reads
//! from the log are bounded, so a client that returns for many results does not bring all of them
//! into memory at once.

mod held;

pub(super) use held::{Input, PayloadStore, UNLOGGED_BYTES_MAX};

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tracing::warn;

use super::children::Commons;
use crate::store::format::Place;
use crate::store::replay::Key;

/// Payloads that are read at a time.
const READS_MAX: usize = 32;

/// Bytes that are read at a time. A single larger payload is read alone.
const READ_BYTES_MAX: u64 = 16 << 20;

/// What the payloads want done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PayloadAction<T> {
    /// Read one from the log; then [`Payloads::was_read`].
    Read { key: Key, place: Place },
    /// Go on with a task: what it needs is in memory, or is lost.
    Ready(T),
    /// Nobody has the bytes of one any more.
    Lost { key: Key, why: String },
}

/// What a task wants payloads for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To go on with their job: one that cannot be read is lost.
    Use,
    /// To show what is there. That has no effect: one that cannot be read may be read the next
    /// time, and whoever needs it finds out.
    Show,
}

/// A task that waits.
#[derive(Debug)]
struct Waiting<T> {
    /// All that it needs.
    keys: Vec<Key>,
    /// How many of them are not here.
    missing: usize,
    purpose: Purpose,
    task: T,
}

/// All payloads, and who waits for them.
#[derive(Debug)]
pub(super) struct Payloads<T> {
    pub(super) held: PayloadStore,
    /// What the workers of one job get alike.
    pub(super) commons: Commons,
    /// Payloads that are being read, or will be, with the tasks that wait for them.
    wanted: HashMap<Key, Vec<u64>>,
    /// Those that will be.
    to_read: VecDeque<Key>,
    /// Those that are being read, with their bytes.
    reading: HashMap<Key, u64>,
    waiting: HashMap<u64, Waiting<T>>,
    last_task: u64,
    actions: VecDeque<PayloadAction<T>>,
}

impl<T> Default for Payloads<T> {
    fn default() -> Self {
        Payloads::new(PayloadStore::default())
    }
}

impl<T> Payloads<T> {
    pub(super) fn new(held: PayloadStore) -> Self {
        Payloads {
            held,
            commons: Commons::default(),
            wanted: HashMap::new(),
            to_read: VecDeque::new(),
            reading: HashMap::new(),
            waiting: HashMap::new(),
            last_task: 0,
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub(super) fn poll(&mut self) -> Option<PayloadAction<T>> {
        self.actions.pop_front()
    }

    /// A task needs payloads. `ends_here` says that nobody behind the leader can compare them with
    /// the checksums they came with: then that is done now, and what is not sound is read again.
    pub(super) fn want(&mut self, keys: Vec<Key>, ends_here: bool, task: T) {
        for key in &keys {
            if let Err(why) = self.held.look_at(*key, ends_here) {
                self.lose(*key, why);
            }
        }
        self.when_here(keys, Purpose::Use, task);
    }

    /// A task shows payloads, as far as they are there.
    pub(super) fn want_to_show(&mut self, keys: Vec<Key>, task: T) {
        self.when_here(keys, Purpose::Show, task);
    }

    fn when_here(&mut self, keys: Vec<Key>, purpose: Purpose, task: T) {
        let away: Vec<Key> =
            keys.iter().copied().filter(|key| self.held.away(*key).is_some()).collect();
        if away.is_empty() {
            return self.actions.push_back(PayloadAction::Ready(task));
        }
        keys.iter().for_each(|key| self.held.pin(*key));
        self.last_task += 1;
        self.waiting.insert(self.last_task, Waiting { keys, missing: away.len(), purpose, task });
        for key in away {
            let waiters = self.wanted.entry(key).or_insert_with(|| {
                self.to_read.push_back(key);
                Vec::new()
            });
            waiters.push(self.last_task);
        }
        self.read_on();
    }

    /// The log has read a payload, or cannot.
    pub(super) fn was_read(&mut self, key: Key, result: Result<Bytes, String>) {
        self.reading.remove(&key);
        match result {
            Ok(payload) => self.held.was_read(key, payload),
            Err(why) if self.is_needed(key) => self.lose(key, why),
            Err(why) => warn!(?key, "a payload cannot be read to show it: {why}"),
        }
        self.settle(key);
        self.read_on();
    }

    /// Whether a payload that is being read is to be used, and not only shown.
    fn is_needed(&self, key: Key) -> bool {
        let waiters = self.wanted.get(&key).into_iter().flatten();
        let mut waiters = waiters.filter_map(|id| self.waiting.get(id));
        waiters.any(|waiting| waiting.purpose == Purpose::Use)
    }

    fn lose(&mut self, key: Key, why: String) {
        self.held.was_lost(key, why.clone());
        self.actions.push_back(PayloadAction::Lost { key, why });
    }

    /// Has payloads read, as far as few enough are.
    fn read_on(&mut self) {
        while self.reading.len() < READS_MAX && self.reading.values().sum::<u64>() < READ_BYTES_MAX
        {
            let Some(key) = self.to_read.pop_front() else { break };
            match self.held.away(key) {
                Some(place) => {
                    self.reading.insert(key, place.len.into());
                    self.actions.push_back(PayloadAction::Read { key, place });
                }
                None => self.settle(key),
            }
        }
    }

    /// A payload is here, or will never be: a task that waited for it alone goes on.
    fn settle(&mut self, key: Key) {
        for id in self.wanted.remove(&key).unwrap_or_default() {
            let Some(waiting) = self.waiting.get_mut(&id) else { continue };
            waiting.missing = waiting.missing.saturating_sub(1);
            if waiting.missing == 0
                && let Some(Waiting { keys, task, .. }) = self.waiting.remove(&id)
            {
                // Nothing leaves the memory before the task had its turn.
                keys.iter().for_each(|key| self.held.unpin(*key));
                self.actions.push_back(PayloadAction::Ready(task));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::JobId;
    use crate::store::format::FileNo;
    use crate::summed::Summed;
    use uuid::Uuid;

    const LEN: u32 = 4 << 20;

    /// So many payloads that the log has and the memory has not.
    fn away(count: u128) -> (Payloads<&'static str>, Vec<Key>, Bytes) {
        let payload = Bytes::from(vec![7; LEN as usize]);
        let mut payloads = Payloads::default();
        let keys: Vec<Key> =
            (0..count).map(|number| Key::Input(JobId(Uuid::from_u128(number)))).collect();
        for (offset, key) in (0..).zip(&keys) {
            let Key::Input(job) = key else { continue };
            payloads
                .held
                .keep_input(*job, Input { payload: payload.clone().into(), from_ours: true });
            let place =
                Place { file: FileNo::log(1), offset, len: LEN, crc: crc32fast::hash(&payload) };
            payloads.held.placed(*key, place);
        }
        // One more, so that all of those go.
        let large = vec![0; 17 << 20];
        let warm = payloads.held.keep_result(large.into());
        payloads.held.settle();
        payloads.held.forget_result(warm);
        (payloads, keys, payload)
    }

    fn all(payloads: &mut Payloads<&'static str>) -> Vec<PayloadAction<&'static str>> {
        std::iter::from_fn(|| payloads.poll()).collect()
    }

    fn reads(actions: &[PayloadAction<&'static str>]) -> Vec<Key> {
        let key = |action: &PayloadAction<_>| match action {
            PayloadAction::Read { key, .. } => Some(*key),
            PayloadAction::Ready(_) | PayloadAction::Lost { .. } => None,
        };
        actions.iter().filter_map(key).collect()
    }

    #[test]
    fn a_task_goes_on_at_once_with_what_is_in_memory_and_else_when_all_of_it_was_read() {
        let (mut payloads, keys, payload) = away(2);
        payloads.want(Vec::new(), true, "nothing");
        assert_eq!(all(&mut payloads), [PayloadAction::Ready("nothing")]);
        payloads.want(keys.clone(), false, "both");
        payloads.want(keys[..1].to_vec(), false, "one");
        assert_eq!(reads(&all(&mut payloads)), keys, "each is read once");
        payloads.was_read(keys[0], Ok(payload.clone()));
        assert_eq!(all(&mut payloads), [PayloadAction::Ready("one")]);
        payloads.was_read(keys[1], Ok(payload));
        assert_eq!(all(&mut payloads), [PayloadAction::Ready("both")]);
        assert!(
            payloads.wanted.is_empty()
                && payloads.waiting.is_empty()
                && payloads.reading.is_empty()
        );
    }

    #[test]
    fn few_bytes_are_read_at_a_time_and_the_others_follow() {
        let (mut payloads, keys, payload) = away(10);
        keys.iter().for_each(|key| payloads.want(vec![*key], false, "it"));
        let mut reading: VecDeque<Key> = reads(&all(&mut payloads)).into();
        assert_eq!(reading.len() as u64, READ_BYTES_MAX / u64::from(LEN));
        let mut done = 0;
        while let Some(key) = reading.pop_front() {
            payloads.was_read(key, Ok(payload.clone()));
            let actions = all(&mut payloads);
            done +=
                actions.iter().filter(|action| matches!(action, PayloadAction::Ready(_))).count();
            reading.extend(reads(&actions));
            assert!(reading.len() <= 4);
        }
        assert_eq!(done, keys.len());
    }

    #[test]
    fn what_cannot_be_read_is_lost_and_its_tasks_go_on_to_say_so() {
        let (mut payloads, keys, _) = away(1);
        payloads.want(keys.clone(), false, "it");
        all(&mut payloads);
        payloads.was_read(keys[0], Err("damaged".to_owned()));
        let lost = PayloadAction::Lost { key: keys[0], why: "damaged".to_owned() };
        assert_eq!(all(&mut payloads), [lost, PayloadAction::Ready("it")]);
        payloads.want(keys.clone(), false, "again");
        assert_eq!(all(&mut payloads), [PayloadAction::Ready("again")], "it is not read again");
    }

    #[test]
    fn what_is_only_shown_is_not_lost_when_it_cannot_be_read() {
        let (mut payloads, keys, payload) = away(1);
        payloads.want_to_show(keys.clone(), "show");
        all(&mut payloads);
        payloads.was_read(keys[0], Err("damaged".to_owned()));
        assert_eq!(all(&mut payloads), [PayloadAction::Ready("show")]);
        assert_eq!(payloads.held.why_lost(keys[0]), None);
        // Whoever needs it tries again, and a read that serves both counts.
        payloads.want_to_show(keys.clone(), "show");
        payloads.want(keys.clone(), false, "use");
        assert_eq!(reads(&all(&mut payloads)), keys);
        payloads.was_read(keys[0], Err("damaged".to_owned()));
        let lost = PayloadAction::Lost { key: keys[0], why: "damaged".to_owned() };
        let ready = [PayloadAction::Ready("show"), PayloadAction::Ready("use")];
        let [first, others @ ..] = &all(&mut payloads)[..] else { panic!("three") };
        assert_eq!((first, others), (&lost, &ready[..]));

        // In memory, too, nothing changes: here it is damaged, and no log has it.
        let (job, crc) = (JobId(Uuid::from_u128(99)), crc32fast::hash(b"as it came"));
        let damaged = Summed::known(payload.slice(..4), crc);
        payloads.held.keep_input(job, Input { payload: damaged, from_ours: true });
        payloads.want_to_show(vec![Key::Input(job)], "show");
        assert_eq!(all(&mut payloads), [PayloadAction::Ready("show")]);
        assert!(payloads.held.input(job).is_some_and(|input| !input.payload.is_sound()));
    }

    #[test]
    fn a_payload_that_was_forgotten_meanwhile_holds_nobody_up() {
        let (mut payloads, keys, _) = away(40);
        keys.iter().for_each(|key| payloads.want(vec![*key], false, "it"));
        let first = reads(&all(&mut payloads));
        for key in &keys {
            let Key::Input(job) = key else { continue };
            payloads.held.forget_input(*job);
        }
        first.iter().for_each(|key| payloads.was_read(*key, Ok(Bytes::new())));
        let actions = all(&mut payloads);
        assert_eq!((actions.len(), reads(&actions).len()), (keys.len(), 0));
        assert!(payloads.waiting.is_empty() && payloads.to_read.is_empty());
    }
}
