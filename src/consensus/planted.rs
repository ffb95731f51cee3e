//! Defects that tests plant: each turns over one decision of the production path, if the feature
//! `bugs` is on. The simulation has to find every one of them, or it proves nothing.

/// What may be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Answers leave before what they promise is on the disk.
    ReplyBeforeSync,
    /// A leader counts itself before its own sync.
    SelfCountedEarly,
    /// A vote goes to the disk without a sync.
    VoteNotSynced,
    /// After a restart it is not known for whom this node voted.
    VoteForgotten,
    /// A lone voter leads, and says so, before its vote is on the disk.
    LeadsBeforeVote,
    /// A record is committed as soon as the leader has it on its own disk.
    CommittedAlone,
    /// A snapshot is offered with the members of now.
    SnapshotMembers,
    /// A snapshot is offered with the term of now.
    SnapshotTerm,
    /// The number of a node that was removed is given out again.
    NumberAgain,
    /// The office is handed to a node that lacks records.
    TransferLagging,
    /// Answers that wait for a vote's sync are dropped.
    HeldDropped,
    /// What a new leader's records replace is kept behind them.
    TailKept,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 12] = [
        Bug::ReplyBeforeSync,
        Bug::SelfCountedEarly,
        Bug::VoteNotSynced,
        Bug::VoteForgotten,
        Bug::LeadsBeforeVote,
        Bug::CommittedAlone,
        Bug::SnapshotMembers,
        Bug::SnapshotTerm,
        Bug::NumberAgain,
        Bug::TransferLagging,
        Bug::HeldDropped,
        Bug::TailKept,
    ];
}

/// Which bug is planted in a node, if one is. Without the feature `bugs` there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
}

impl Planted {
    /// Plants a bug.
    #[cfg(feature = "bugs")]
    pub const fn with(bug: Bug) -> Self {
        Planted { bug: Some(bug) }
    }

    /// Whether this bug is planted.
    #[cfg(feature = "bugs")]
    pub fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether this bug is planted: no.
    #[cfg(not(feature = "bugs"))]
    pub const fn has(self, _: Bug) -> bool {
        false
    }
}
