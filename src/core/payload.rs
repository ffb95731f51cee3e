//! Payload kinds, by what they require of a worker. The leader determines the kind once, at
//! submission; routing compares it with the kinds workers read. Nothing here reads a payload.

/// A kind of payload, ordered by what it asks of a worker: a worker that reads one kind also reads
/// the kinds before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PayloadKind {
    /// A JobRequest, which every worker takes.
    Request,
    /// A JobRequest with files in folders. A classic F2 worker fails it: it takes no such names
    /// (C08, WX08).
    Folders,
    /// Bytes that are not a JobRequest (M19). A classic F2 worker drops them without an answer, and
    /// `heft worker` runs programs, which they do not name.
    Raw,
}

impl PayloadKind {
    /// What a worker for it takes, in a sentence for people.
    pub const fn text(self) -> &'static str {
        match self {
            PayloadKind::Request => "job requests",
            PayloadKind::Folders => "files in folders, or with \"..\" in their names",
            PayloadKind::Raw => "raw payloads",
        }
    }

    /// What is to be done where no worker takes it.
    pub const fn next_step(self) -> &'static str {
        match self {
            PayloadKind::Request => "start a worker",
            PayloadKind::Folders => {
                "start a heft worker, or, so that classic workers can have the job, give its files plain names or submit it with \
                 --flatten, which leaves out the folders"
            }
            PayloadKind::Raw => {
                "start one that does (a program with a heft handler that says so; for job.assign.default also an F0 or F1 \
                 worker), or submit a JobRequest"
            }
        }
    }
}

/// What the names of a job's files are to classic workers (C08).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileNames {
    /// They take all of them.
    Plain,
    /// They do not.
    Folders,
    /// They get them without their folders, as the request says.
    Flattened,
}

impl FileNames {
    /// What a request with such names asks of a worker.
    pub(super) const fn kind(self) -> PayloadKind {
        match self {
            FileNames::Plain | FileNames::Flattened => PayloadKind::Request,
            FileNames::Folders => PayloadKind::Folders,
        }
    }
}
