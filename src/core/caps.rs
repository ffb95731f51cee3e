//! Remembers clients' caps. Clients may never return, so of those that have no jobs the least
//! recently named caps are forgotten beyond a limit. The cap of a client with jobs is kept as long
//! as they have not ended: it holds them back. A connected client always has the cap of its hello.
//!
//! The caps are part of the logged state, so what is forgotten depends on the order of records
//! alone.

use std::collections::BTreeMap;

use super::ids::ClientId;

/// Caps of clients without jobs that are kept.
pub const CAPS_MAX: usize = 4096;

/// Bytes of the ids of those clients.
pub const CAPS_BYTES_MAX: usize = 1024 * 1024;

/// A cap, and its place among all in the order in which they were named last.
#[derive(Clone, Copy, Debug)]
struct Named {
    cap: u32,
    place: u64,
}

/// The caps of clients.
#[derive(Clone, Debug, Default)]
pub struct Caps {
    by_client: BTreeMap<ClientId, Named>,
    /// The clients without jobs, the one that was named longest ago first.
    idle: BTreeMap<u64, ClientId>,
    /// Bytes of their ids.
    idle_bytes: usize,
    /// The last place.
    last: u64,
}

impl Caps {
    /// A client's cap.
    pub fn get(&self, client: &ClientId) -> Option<u32> {
        self.by_client.get(client).map(|named| named.cap)
    }

    /// All of them, the one that was named longest ago first.
    pub fn iter(&self) -> impl Iterator<Item = (&ClientId, u32)> {
        let mut all: Vec<(u64, &ClientId, u32)> =
            self.by_client.iter().map(|(id, named)| (named.place, id, named.cap)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, client, cap)| (client, cap))
    }

    /// A client names its cap.
    pub fn insert(&mut self, client: &ClientId, cap: u32, has_jobs: bool) {
        self.mark_busy(client);
        self.last += 1;
        self.by_client.insert(client.clone(), Named { cap, place: self.last });
        if !has_jobs {
            self.mark_idle(client);
        }
    }

    /// A client has a job.
    pub fn mark_busy(&mut self, client: &ClientId) {
        let named = self.by_client.get(client);
        if named.and_then(|named| self.idle.remove(&named.place)).is_some() {
            self.idle_bytes -= client.0.len();
        }
    }

    /// All jobs of a client have ended.
    pub fn mark_idle(&mut self, client: &ClientId) {
        let Some((client, named)) = self.by_client.get_key_value(client) else { return };
        if self.idle.insert(named.place, client.clone()).is_none() {
            self.idle_bytes += client.0.len();
        }
        let is_over = |caps: &Caps| {
            caps.idle.len() > CAPS_MAX || caps.idle_bytes > CAPS_BYTES_MAX && caps.idle.len() > 1
        };
        while is_over(self) {
            let Some((_, oldest)) = self.idle.pop_first() else { return };
            self.idle_bytes -= oldest.0.len();
            self.by_client.remove(&oldest);
        }
    }
}

/// The places themselves are counted from the start of a leader.
impl PartialEq for Caps {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter()) && self.idle.values().eq(other.idle.values())
    }
}

impl Eq for Caps {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_named_are_kept_by_number_and_by_bytes() {
        let mut caps = Caps::default();
        caps.insert(&"first".into(), 7, false);
        (0..CAPS_MAX - 1).for_each(|n| caps.insert(&n.to_string().as_str().into(), 2, false));
        assert_eq!(caps.get(&"first".into()), Some(7));
        // Named again, it is not the oldest any more.
        caps.insert(&"first".into(), 8, false);
        caps.insert(&"one more".into(), 3, false);
        assert_eq!(
            (caps.get(&"first".into()), caps.get(&"0".into()), caps.iter().count()),
            (Some(8), None, CAPS_MAX)
        );
        let mut again = Caps::default();
        caps.iter().for_each(|(client, cap)| again.insert(client, cap, false));
        assert_eq!(again, caps);

        for n in 0..100 {
            caps.insert(&format!("{n}-{}", "x".repeat(65_000)).as_str().into(), 1, false);
        }
        let bytes: usize = caps.iter().map(|(client, _)| client.0.len()).sum();
        assert!(bytes <= CAPS_BYTES_MAX && caps.idle_bytes == bytes, "{bytes}");
        assert_eq!(caps.iter().count(), 16);
    }

    #[test]
    fn a_cap_stays_as_long_as_its_client_has_jobs_and_then_has_its_old_place() {
        let (mut caps, busy) = (Caps::default(), ClientId::from("busy"));
        caps.insert(&busy, 1, true);
        for n in 0..2 * CAPS_MAX {
            caps.insert(&n.to_string().as_str().into(), 2, false);
        }
        assert_eq!((caps.get(&busy), caps.iter().count()), (Some(1), CAPS_MAX + 1));
        assert_eq!(caps.iter().next(), Some((&busy, 1)));
        // Nobody was named longer ago.
        caps.mark_idle(&busy);
        caps.mark_idle(&"never named".into());
        assert_eq!((caps.get(&busy), caps.iter().count()), (None, CAPS_MAX));
        let oldest = CAPS_MAX.to_string().as_str().into();
        caps.mark_busy(&oldest);
        caps.insert(&busy, 1, false);
        caps.insert(&"another".into(), 1, false);
        assert_eq!((caps.get(&oldest), caps.get(&busy)), (Some(2), Some(1)));
        assert_eq!((caps.idle.len(), caps.by_client.len()), (CAPS_MAX, CAPS_MAX + 1));
    }
}
