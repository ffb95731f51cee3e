//! Measures free disk space and computes the reserve: the log must still be writable when uploads
//! have filled the rest, so that jobs can end, be cancelled and free their space.

use super::blobs::Class;
use super::log::AHEAD_BYTES;
use crate::units::ByteSize;

/// What is kept free by default, unless a tenth of the file system is less.
pub const RESERVE_BYTES: u64 = 256 << 20;

/// The part of a file system that is kept free at the most.
const PART: u64 = 10;

/// The room of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that can be written.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What is kept free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// [`RESERVE_BYTES`], or a tenth of the file system if that is less.
    #[default]
    Auto,
    /// So many bytes.
    Bytes(u64),
}

impl Reserve {
    /// What is kept free of a file system of this size.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Reserve::Auto => RESERVE_BYTES.min(total / PART),
            Reserve::Bytes(bytes) => bytes.min(total),
        }
    }

    /// What is kept free from blobs of a class. Uploads may use none of the reserve. Parts of
    /// results may use half of it: they end jobs, whose inputs make room.
    pub fn kept_from(self, class: Class, total: u64) -> u64 {
        match class {
            Class::Upload => self.of(total),
            Class::Result => self.of(total) / 2,
        }
    }

    /// The most bytes of a class that a file system of this size could ever have: all of it, less
    /// what is kept free and the room that the log has taken beforehand.
    pub fn room_at_most(self, class: Class, total: u64) -> u64 {
        let log = match class {
            // It has its part of the reserve.
            Class::Upload => 0,
            Class::Result => AHEAD_BYTES,
        };
        total.saturating_sub(self.kept_from(class, total)).saturating_sub(log)
    }

    /// What is kept free from new jobs, which go into the log: the rest is for the ends of those
    /// that are there. It is more than is kept from their results, or new jobs would take the room
    /// that the others need to end.
    pub fn kept_from_jobs(self, total: u64) -> u64 {
        self.of(total) / 4 * 3
    }

    /// Why more bytes of a class do not fit, for people.
    pub fn why_short(self, class: Class, space: Space, bytes: u64) -> String {
        let what = match class {
            Class::Upload => "an upload",
            Class::Result => "a part of a result",
        };
        format!(
            "the leader's disk has {} free of {}, and {} of it are reserved for its log{} \
             (--disk-reserve): there is no room for {what} of {}",
            ByteSize(space.free),
            ByteSize(space.total),
            ByteSize(self.kept_from(class, space.total)),
            match class {
                Class::Upload => " and for results",
                Class::Result => "",
            },
            ByteSize(bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_grows_with_the_disk_up_to_its_limit_and_results_may_use_half_of_it() {
        assert_eq!(Reserve::Auto.of(64 << 20), (64 << 20) / 10);
        assert_eq!(Reserve::Auto.of(1 << 40), RESERVE_BYTES);
        assert_eq!(Reserve::Bytes(1 << 30).of(1 << 40), 1 << 30);
        let kept = |class| Reserve::Auto.kept_from(class, 1 << 40);
        assert_eq!((kept(Class::Upload), kept(Class::Result)), (256 << 20, 128 << 20));
        assert_eq!(Reserve::Auto.kept_from_jobs(1 << 40), 192 << 20);
        let most = |class| Reserve::Bytes(10 << 20).room_at_most(class, 100 << 20);
        assert_eq!((most(Class::Upload), most(Class::Result)), (90 << 20, 87 << 20));
        assert_eq!(Reserve::Auto.room_at_most(Class::Result, 1 << 20), 0);
        let text = Reserve::Auto.why_short(
            Class::Upload,
            Space { free: 5 << 20, total: 64 << 20 },
            9 << 20,
        );
        assert!(text.contains("5 MiB free of 64 MiB") && text.contains("--disk-reserve"), "{text}");
    }
}
