//! What happened in all worlds of the simulation, so that it can be asserted that everything did.

use super::sim_disk::{Act, Seen};

macro_rules! coverage {
    ($($name:ident),* $(,)?) => {
        /// A simulation in which nothing goes wrong proves nothing.
        #[derive(Debug, Default)]
        pub(crate) struct Coverage {
            pub(crate) disk: Seen,
            $(pub(crate) $name: u64,)*
        }

        impl Coverage {
            pub(crate) fn add(&mut self, other: &Coverage) {
                self.disk.add(&other.disk);
                $(self.$name += other.$name;)*
            }

            fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

coverage! {
    lives, died_in_recovery, refused_by_faults, records, records_lost, synced, committed, failed, troubles, troubles_over, reads,
    reads_in_snapshots, rotations, snapshots, snapshots_failed, moved, cuts, large, requests, chunks, chunks_failed,
    chunks_bad, chunks_resumed, sealed, sealed_recovered, seals_full, seals_failed, partial_recovered, maps_unreadable,
    maps_of_before, begun_again, begun_over, removed,
}

impl Coverage {
    /// What never happened.
    pub(crate) fn missing(&self) -> Vec<String> {
        let disk = &self.disk;
        let of_disk = [
            ("power losses", disk.power_losses),
            ("kills", disk.kills),
            ("blocks lost", disk.blocks_lost),
            ("blocks torn", disk.blocks_torn),
            ("blocks kept", disk.blocks_kept),
            ("names lost", disk.names_lost),
            ("names kept", disk.names_kept),
            ("old lengths", disk.lengths_old),
            ("files written again", disk.recycled),
            ("tails that were cut", disk.tails_cut),
        ];
        let all = self.counts().into_iter().chain(of_disk);
        let mut missing: Vec<String> =
            all.filter(|(_, count)| *count == 0).map(|(name, _)| name.to_owned()).collect();
        let all =
            [Act::Open, Act::Create, Act::List, Act::Rename, Act::Remove, Act::SyncDir, Act::Read];
        for act in all.into_iter().chain([Act::Write, Act::Sync]) {
            missing.extend((!disk.eio.contains_key(&act)).then(|| format!("{act:?} failing")));
            missing.extend(
                (!disk.crashed_in.contains_key(&act)).then(|| format!("a crash in {act:?}")),
            );
        }
        for act in [Act::Create, Act::Rename, Act::Write, Act::Allocate, Act::Sync, Act::SyncDir] {
            missing.extend((!disk.full.contains_key(&act)).then(|| format!("no room for {act:?}")));
        }
        missing
    }
}
