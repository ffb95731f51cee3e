//! Which situations the worlds had. One that never happens is one that is not tested.

use std::fmt;

macro_rules! situations {
    ($($name:ident = $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Seen { $($name,)* }

        const TEXTS: &[&str] = &[$($text,)*];
    };
}

situations! {
    ConflictRepaired = "conflict repair",
    PreVoteRefused = "pre-vote refused",
    PreVoteGranted = "pre-vote granted",
    VoteRefused = "vote refused",
    QuorumLost = "check-quorum step-down",
    Transferred = "transfer",
    JointEntered = "joint enter",
    JointLeft = "joint leave",
    LearnerApplied = "learner",
    Promoted = "promoted",
    Demoted = "demoted",
    Removed = "removed",
    Replaced = "replaced",
    LeaderRemoved = "leader removed",
    Snapshot = "snapshot",
    SnapshotFailed = "snapshot that failed",
    SnapshotWanted = "snapshot that was too old",
    Compacted = "compaction",
    TailLost = "restart with unsynced tail",
    VoteLost = "restart with unsynced vote",
    OneWayCut = "one-way cut",
    Repeated = "message repeated",
    Paused = "pause",
    Converted = "converted log",
    LoneVoter = "lone voter",
    SevenVoters = "seven voters",
    Ahead = "record in pieces",
    Ghost = "removed node that goes on",
    AppliedLate = "applied late",
    NewLeaderJoint = "new leader in a joint configuration",
}

#[derive(Clone, Debug)]
pub(crate) struct Coverage([u64; TEXTS.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Coverage([0; TEXTS.len()])
    }
}

impl Coverage {
    pub(crate) fn saw(&mut self, seen: Seen) {
        self.0[seen as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &Coverage) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    pub(crate) fn never(&self) -> Vec<&'static str> {
        TEXTS.iter().zip(self.0).filter(|(_, count)| *count == 0).map(|(text, _)| *text).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TEXTS.iter().zip(self.0).try_for_each(|(text, count)| writeln!(f, "{count:>10}  {text}"))
    }
}
