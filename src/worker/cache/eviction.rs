//! Decides what is evicted from the cache to make room. Pure.
//!
//! Room is made before bytes move. Datasets that a job uses or waits for are never evicted. The
//! rest go in this order: partial downloads nobody sends any more, then the least recently used
//! dataset. A dataset about to be replaced goes last, since jobs can use it until then.

use std::time::SystemTime;

use uuid::Uuid;

use crate::core::ids::CacheId;
use crate::units::ByteSize;

/// Something that takes room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) what: What,
    pub(super) bytes: u64,
    /// Whether it must stay.
    pub(super) pinned: bool,
    pub(super) last_use: SystemTime,
}

/// What takes room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A dataset that is there for jobs.
    Dataset(CacheId),
    /// What has come of one.
    Part(Uuid),
}

/// There is not enough room, whatever goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom {
    pub(super) needs: u64,
    pub(super) budget: u64,
    pub(super) pinned: u64,
}

impl std::fmt::Display for NoRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "no room: needs {}, the cache may hold {}, {} are in use; raise --cache-budget or put a smaller dataset",
            ByteSize(self.needs),
            ByteSize(self.budget),
            ByteSize(self.pinned)
        )
    }
}

/// What has to go so that `needs` bytes fit for the dataset `cache`, in this order.
pub(super) fn victims(
    mut loads: Vec<Load>,
    budget: u64,
    needs: u64,
    cache: &CacheId,
) -> Result<Vec<What>, NoRoom> {
    let mut used: u64 = loads.iter().map(|load| load.bytes).fold(0, u64::saturating_add);
    let pinned =
        loads.iter().filter(|load| load.pinned).map(|load| load.bytes).fold(0, u64::saturating_add);
    if pinned.saturating_add(needs) > budget {
        return Err(NoRoom { needs, budget, pinned });
    }
    let rank = |what: &What| match what {
        What::Part(_) => 0,
        What::Dataset(other) if other != cache => 1,
        What::Dataset(_) => 2,
    };
    loads.retain(|load| !load.pinned);
    loads.sort_by_key(|load| (rank(&load.what), load.last_use));
    let mut victims = Vec::new();
    for load in loads {
        if used.saturating_add(needs) <= budget {
            break;
        }
        used -= load.bytes;
        victims.push(load.what);
    }
    Ok(victims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn id(text: &str) -> CacheId {
        CacheId::parse(text).unwrap()
    }

    fn dataset(name: &str, bytes: u64, used: u64, pinned: bool) -> Load {
        Load {
            what: What::Dataset(id(name)),
            bytes,
            pinned,
            last_use: UNIX_EPOCH + Duration::from_secs(used),
        }
    }

    #[test]
    fn the_longest_unused_goes_first_and_the_replaced_one_last() {
        let part = What::Part(Uuid::from_u128(1));
        let loads = vec![
            dataset("new", 10, 9, false),
            dataset("old", 10, 1, false),
            dataset("mine", 10, 0, false),
            dataset("busy", 10, 0, true),
            Load { what: part.clone(), bytes: 10, pinned: false, last_use: UNIX_EPOCH },
        ];
        let gone = |needs| victims(loads.clone(), 60, needs, &id("mine")).unwrap();
        assert_eq!(gone(10), []);
        assert_eq!(gone(11), std::slice::from_ref(&part));
        assert_eq!(gone(30), [part.clone(), What::Dataset(id("old"))]);
        let all =
            [part, What::Dataset(id("old")), What::Dataset(id("new")), What::Dataset(id("mine"))];
        assert_eq!(gone(50), all);
        let error = victims(loads.clone(), 60, 51, &id("mine")).unwrap_err();
        assert_eq!(error, NoRoom { needs: 51, budget: 60, pinned: 10 });
        assert_eq!(
            error.to_string(),
            "no room: needs 51 B, the cache may hold 60 B, 10 B are in use; raise --cache-budget or put a smaller dataset"
        );
    }
}
