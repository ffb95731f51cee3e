//! Limits of consensus, with their reasons.

use chunking::limits::{APPEND_BYTES_MAX, RECORD_BYTES_MAX};

/// Records that a leader has proposed and that are not committed. More would only wait longer.
pub const UNCOMMITTED_RECORDS_MAX: u64 = 20_000;

/// Bytes of them: each node has them in memory.
pub const UNCOMMITTED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one record: it has to be sent to every node.
pub const PROPOSED_BYTES_MAX: usize = RECORD_BYTES_MAX as usize;

/// Appends that are on their way to one follower: 8 MiB.
pub const APPENDS_IN_FLIGHT_MAX: usize = 8;

/// Bytes of committed records that are given out at once.
pub const COMMIT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The highest term and the highest place of a record that are taken from another node. Counting on
/// from there never runs over.
pub const NUMBER_MAX: u64 = u64::MAX / 4;

const _: () = assert!(APPEND_BYTES_MAX <= PROPOSED_BYTES_MAX);
const _: () = assert!(PROPOSED_BYTES_MAX <= UNCOMMITTED_BYTES_MAX);
