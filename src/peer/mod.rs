//! A worker's or client's end of a connection to a leader: dialling, reading frames, writing
//! frames.
//!
//! Portable (tokio). It knows frames, not jobs; workers, clients and the command line build on it.
//! The leader's side is `conn` and `driver`.

mod address;
mod awaited;
mod link;
mod probe;
mod resolve;
mod route;
mod uplink;

pub use address::{is_address, redirect_in};
pub use awaited::PROBE_BACKOFF;
pub(crate) use awaited::{Patience, silent};
pub use link::{InFrame, Item, LinkError, LinkReader, LinkWriter, OutFrame, connect};
pub use probe::PROBE_CLIENT_ID;
pub use resolve::{is_unknown_host, look_up};
pub use route::REDIRECTS_MAX;
pub use uplink::BACKLOG_BYTES_MAX;
pub(crate) use uplink::{News, OwnSigns, Settings, Uplink};

use std::time::Duration;

use chunking::message::Features;

use crate::model::Announcement;

/// The version of the protocol that this build announces.
pub const PROTOCOL_VERSION: u32 = 1;

/// How long a leader that has never answered the hello may take to do so before it is taken for a
/// classic one. Its answer still counts when it comes later.
pub const WELCOME_WAIT: Duration = Duration::from_millis(500);

/// How long a leader that is known for a heft one may take to answer the hello before another
/// connection is tried. A leader that is paused, or whose disk stalls for a minute, is not cut off
/// for it; a line that died just then is given up after all.
pub const WELCOME_WAIT_MAX: Duration = Duration::from_secs(90);

/// What a peer of this build announces in its Hello.
pub fn announcement(features: Features, name: Option<String>) -> Announcement {
    let features = features.names().map(str::to_owned).collect();
    Announcement { version: PROTOCOL_VERSION, features, name }
}
