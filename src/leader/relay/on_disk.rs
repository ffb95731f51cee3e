//! Tracks a blob's file and whether its content is synced.

/// A blob's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum File {
    /// There is none.
    #[default]
    Unmade,
    /// Something is being written to it, or was; nobody has told that it has room for all of the
    /// blob.
    Begun,
    /// It has room for all of the blob.
    Made,
    /// The file does not exist yet and grows as it is written, because the size of the blob is not
    /// known.
    UnmadeGrows,
    /// It has room for what was written to it.
    Grows,
}

/// How far a blob is on the disk, where that matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Seal {
    /// It is still coming.
    #[default]
    Open,
    /// All of it has arrived and has to be synced.
    Wanted,
    /// That is being done.
    Asked,
    /// It is synced.
    Set,
}

/// What of a blob is on the disk, as far as that has been told.
#[derive(Clone, Debug, Default)]
pub(super) struct OnDisk {
    pub(super) file: File,
    pub(super) seal: Seal,
    /// Times that the disk did not keep it.
    pub(super) unsealed: u32,
    /// Bytes of the file that it is still to get and that count already, as it was let in.
    pub(super) charged: u64,
}

impl OnDisk {
    /// Whether there is a file, or will be in a moment.
    pub(super) fn has_file(&self) -> bool {
        !matches!(self.file, File::Unmade | File::UnmadeGrows)
    }

    /// Whether the file is still to be made, with room for all of it.
    pub(super) fn lacks_room(&self) -> bool {
        matches!(self.file, File::Unmade | File::Begun)
    }

    /// Something goes to the file. Says whether it is the first.
    pub(super) fn begin(&mut self) -> bool {
        let is_first = !self.has_file();
        if is_first {
            self.file = if self.lacks_room() { File::Begun } else { File::Grows };
        }
        is_first
    }

    /// The file goes, and another one may follow. Says whether there was one.
    pub(super) fn remove(&mut self) -> bool {
        let is_there = self.has_file();
        if is_there {
            (self.file, self.seal) = (File::Unmade, Seal::Open);
        }
        is_there
    }

    /// All of it has come: it is to be made certain.
    pub(super) fn want_seal(&mut self) {
        if self.seal == Seal::Open {
            self.seal = Seal::Wanted;
        }
    }

    /// That begins: the disk is asked for it.
    pub(super) fn ask_seal(&mut self) {
        if self.seal == Seal::Wanted {
            self.begin();
            self.seal = Seal::Asked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transitions::{Event, State, assert_table};

    fn on_disk(file: File, seal: Seal) -> OnDisk {
        OnDisk { file, seal, ..OnDisk::default() }
    }

    #[test]
    fn transition_table_on_disk() {
        let states: [State<OnDisk>; 8] = [
            ("Unmade, Open", OnDisk::default),
            ("Begun, Open", || on_disk(File::Begun, Seal::Open)),
            ("Made, Open", || on_disk(File::Made, Seal::Open)),
            ("UnmadeGrows, Open", || on_disk(File::UnmadeGrows, Seal::Open)),
            ("Grows, Open", || on_disk(File::Grows, Seal::Open)),
            ("Made, Wanted", || on_disk(File::Made, Seal::Wanted)),
            ("Made, Asked", || on_disk(File::Made, Seal::Asked)),
            ("Made, Set", || on_disk(File::Made, Seal::Set)),
        ];
        let events: [Event<OnDisk>; 4] = [
            ("something is written", |disk| {
                let had_file = disk.has_file();
                assert_eq!((disk.begin(), disk.begin(), disk.has_file()), (!had_file, false, true));
            }),
            ("the file goes", |disk| {
                assert_eq!((disk.has_file(), false), (disk.remove(), disk.remove()));
            }),
            ("it has come", OnDisk::want_seal),
            ("the disk is asked", OnDisk::ask_seal),
        ];
        let name = |disk: &OnDisk| format!("{:?}, {:?}", disk.file, disk.seal);
        assert_table("src/leader/relay/on_disk.transitions.txt", &states, &events, name);
    }
}
