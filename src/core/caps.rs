//! Remembers clients' caps. Clients may never return, so the least recently named caps are
//! forgotten beyond a limit. A connected client always has the cap of its hello.
//!
//! The caps are part of the logged state, so what is forgotten depends on the order of records
//! alone.

use std::collections::{BTreeMap, VecDeque};

use super::broken;
use super::ids::ClientId;

/// Caps that are kept.
pub const CAPS_MAX: usize = 4096;

/// Bytes of the ids of their clients.
pub const CAPS_BYTES_MAX: usize = 1024 * 1024;

/// The caps of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    by_client: BTreeMap<ClientId, u32>,
    /// The clients, the one that was named longest ago first.
    order: VecDeque<ClientId>,
    bytes: usize,
}

impl Caps {
    /// A client's cap.
    pub fn get(&self, client: &ClientId) -> Option<u32> {
        self.by_client.get(client).copied()
    }

    /// All of them, the one that was named longest ago first.
    pub fn iter(&self) -> impl Iterator<Item = (&ClientId, u32)> {
        self.order.iter().filter_map(|client| Some((client, self.get(client)?)))
    }

    /// A client names its cap.
    pub fn insert(&mut self, client: &ClientId, cap: u32) {
        if self.by_client.insert(client.clone(), cap).is_some() {
            self.order.retain(|known| known != client);
        } else {
            self.bytes += client.0.len();
        }
        self.order.push_back(client.clone());
        while self.order.len() > CAPS_MAX || self.bytes > CAPS_BYTES_MAX && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else {
                return broken!("more caps are kept than there are");
            };
            self.bytes -= oldest.0.len();
            self.by_client.remove(&oldest);
        }
    }
}

impl FromIterator<(ClientId, u32)> for Caps {
    fn from_iter<I: IntoIterator<Item = (ClientId, u32)>>(named: I) -> Self {
        let mut caps = Caps::default();
        named.into_iter().for_each(|(client, cap)| caps.insert(&client, cap));
        caps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_named_are_kept_by_number_and_by_bytes() {
        let mut caps = Caps::default();
        caps.insert(&"first".into(), 7);
        (0..CAPS_MAX - 1).for_each(|n| caps.insert(&n.to_string().as_str().into(), 2));
        assert_eq!(caps.get(&"first".into()), Some(7));
        // Named again, it is not the oldest any more.
        caps.insert(&"first".into(), 8);
        caps.insert(&"one more".into(), 3);
        assert_eq!(
            (caps.get(&"first".into()), caps.get(&"0".into()), caps.iter().count()),
            (Some(8), None, CAPS_MAX)
        );
        let again: Caps = caps.iter().map(|(client, cap)| (client.clone(), cap)).collect();
        assert_eq!(again, caps);

        for n in 0..100 {
            caps.insert(&format!("{n}-{}", "x".repeat(65_000)).as_str().into(), 1);
        }
        let bytes: usize = caps.iter().map(|(client, _)| client.0.len()).sum();
        assert!(bytes <= CAPS_BYTES_MAX && caps.bytes == bytes, "{bytes}");
        assert_eq!(caps.iter().count(), 16);
    }
}
