//! Id types, one per kind, so that one cannot be passed for another.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use super::cache_id::{CacheId, CacheIdError, CacheIdRule};

/// A moment, in microseconds since the Unix epoch. The driver's clock never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// The moment that much later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Micros {
        Micros(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; nothing if it is still to come.
    pub fn since(self, earlier: Micros) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

uuid_ids! {
    /// A job, by the id its client gave it, or the leader where the client could not.
    JobId;
    /// A worker, by the id it says hello with. The same after a reconnect.
    WorkerId;
}

macro_rules! number_ids {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $type);

        impl $name {
            /// The one that follows.
            #[must_use]
            pub fn next(self) -> Self {
                $name(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number_ids! {
    /// A connection. The driver never uses one twice.
    ConnId: u64;
    /// A run of a job: 1, and one more for each requeue from the dead-letter queue.
    Run: u32;
    /// A delivery of a job to a worker. Counts on over all runs, so that it fences every late
    /// answer.
    Attempt: u32;
    /// A result that a worker returned; the driver holds its bytes under this number.
    ResultId: u64;
    /// An operator's question that waits for its answer.
    Token: u64;
    /// A place in the sequence of records.
    Index: u64;
    /// The number of a node of a cluster. It is never given to another node.
    Node: u32;
    /// A period with at most one leader of the cluster. Records from before there was a cluster
    /// have term 1; only what comes before the first record has term 0.
    Term: u64;
    /// Which kinds of records may be written: those that all members read.
    Level: u32;
}

/// A client, by the id it says hello with. Several connections may share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub Arc<str>);

impl From<&str> for ClientId {
    fn from(id: &str) -> Self {
        ClientId(id.into())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
