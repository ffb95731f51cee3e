//! Chooses whose payloads are parked on disk, and which peer is disconnected, when data queued for
//! peers that do not read uses memory others need. The driver reports the queues and carries out
//! the choice.

use std::time::Duration;

use crate::core::ids::ConnId;

/// A payload that a socket has not taken after this time goes to the disk, if others wait for its
/// memory.
const PARK_AFTER: Duration = Duration::from_millis(50);

/// Where the disk takes none, a peer that has not taken its payloads after this time is cut off.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// The peer whose payloads go to the disk first: the one that has left them unread for longest, and
/// for at least [`PARK_AFTER`].
pub(crate) fn to_park(waiting: impl Iterator<Item = (ConnId, Duration)>) -> Option<ConnId> {
    let longest = waiting.filter(|(_, since)| *since >= PARK_AFTER).max_by_key(|(_, since)| *since);
    longest.map(|(conn, _)| conn)
}

/// Whether a peer is cut off that has left its payloads unread for this long, if they cannot go to
/// the disk.
pub(crate) fn is_given_up(waits: Duration) -> bool {
    waits >= TAKEN_WITHIN
}

/// The peer that is cut off if too many answers wait for all peers: the one with the most bytes
/// waiting.
pub(crate) fn has_most_answers(bytes: impl Iterator<Item = (ConnId, usize)>) -> Option<ConnId> {
    bytes.max_by_key(|(_, bytes)| *bytes).map(|(conn, _)| conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unread_goes_to_the_disk_and_the_fullest_is_cut_off() {
        let [a, b, c] = [1, 2, 3].map(ConnId);
        let millis = Duration::from_millis;
        assert_eq!(to_park([(a, millis(49)), (b, millis(0))].into_iter()), None);
        assert_eq!(
            to_park([(a, millis(50)), (b, millis(900)), (c, millis(60))].into_iter()),
            Some(b)
        );
        assert!(!is_given_up(millis(4_999)) && is_given_up(millis(5_000)));
        assert_eq!(has_most_answers([(a, 3), (b, 2)].into_iter()), Some(a));
        assert_eq!(has_most_answers(std::iter::empty()), None);
    }
}
