//! Every limit of the worker, with its reason. Configurable limits are members of the configuration
//! and only have their defaults here.

use std::time::Duration;

use chunking::frame::head_len;
use chunking::limits::FRAME_BODY_BYTES_MAX;
use chunking::{Generation, frame::LENGTH_BYTES};

pub use crate::model::limits::TEXT_HEAD_BYTES;

/// The payload of an AckJob: what a frame without a subject leaves of the largest body that may be
/// sent (W05).
pub const RESULT_BYTES_MAX: usize =
    FRAME_BODY_BYTES_MAX as usize - (head_len(Generation::F2, "") - LENGTH_BYTES);

/// Jobs at a time, by default (WX06).
pub const PARALLEL_DEFAULT: u32 = 4;

/// The most jobs at a time: a leader takes no more credit in one message (CR04), and a heartbeat
/// can list them all.
pub const PARALLEL_MAX: u32 = 10_000;

/// Between heartbeats, if the leader's Welcome does not say.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// The shortest time between heartbeats, whatever a Welcome says.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

/// How long a leader may take to accept a connection. It is longer than a client's: nobody waits
/// for a worker, and the system asks a busy leader for the fourth time after 7 s.
pub const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long a frame that is in no hurry waits for another to go along with.
pub const LAZY_WAIT: Duration = Duration::from_millis(1);

/// How long running jobs may take to finish once the worker was asked to stop.
pub const STOP_GRACE: Duration = Duration::from_secs(30);

/// How long a stopping worker without running jobs waits for its last results to be settled.
pub const SETTLE_MAX: Duration = Duration::from_secs(2);

/// How long a leaving worker waits for the leader to close its side, and for directories to be
/// removed.
pub const LEAVE_MAX: Duration = Duration::from_secs(2);

/// How long a handler may go on after its job was cancelled before it is dropped.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// The longest time for which credit is withheld because the processors are busy (CR07).
pub const CREDIT_WITHHELD_MAX: Duration = Duration::from_secs(1);

/// How often the use of the processors is looked at.
pub const CPU_SAMPLE: Duration = Duration::from_millis(500);

/// Results kept to answer repeated assignments and to be sent again (C17, C31), by number.
pub const RESULTS_KEPT_MAX: usize = 4_096;

/// Results kept, by bytes: sixteen of the largest.
pub const RESULTS_KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Jobs that were assigned and do not run yet. A leader that keeps to the credit never gets near
/// it.
pub const ASSIGNED_MAX: usize = PARALLEL_MAX as usize;

/// Bytes of jobs that were assigned and do not run yet, beyond what the credit allows by rights.
pub const ASSIGNED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What goes inside a result of a program's standard output; a longer one goes as a whole by
/// transfer.
pub const STDOUT_BYTES_MAX: usize = 1024 * 1024;

/// The same of its standard error.
pub const STDERR_BYTES_MAX: usize = 1024 * 1024;

/// What is kept of each output of a program at all, by default, so that one that runs wild does not
/// fill the disk.
pub const OUTPUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// The last bytes of an output of which nothing more is kept, while somebody follows it.
pub const OUTPUT_RING_BYTES: usize = 1024 * 1024;

/// Outputs of jobs that are followed at a time: each has a piece of output in memory.
pub const FOLLOWS_MAX: usize = 256;

/// The same of one job.
pub const FOLLOWS_PER_JOB_MAX: usize = 32;

/// Pieces of output that wait to be sent, of all that are followed.
pub const OUTPUT_PIECES_WAITING_MAX: usize = 4;

/// How long inputs that came by transfer are kept after a lost connection, if the leader's Welcome
/// does not say how long it waits for a worker.
pub const WORKER_GRACE: Duration = Duration::from_secs(30);

/// Inputs that are being received at a time, each with an open file. Leaders keep to less.
pub const TRANSFERS_MAX: usize = 8192;

/// Parts of results that are being sent at a time, whatever the leader takes: each has a file open,
/// and more would not be faster.
pub const UPLOADS_MAX: usize = 16;

/// The same with those that wait until the leader has room for them, if it takes so many.
pub const UPLOADS_OPEN_MAX: usize = 256;

/// Results with parts that go by transfer that may wait for the leader without keeping the places
/// of their jobs, whatever their size.
pub const RETURNING_MAX: usize = 16;

/// The same in bytes, by default: these are files on the worker's disk.
pub const RETURNING_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// The part of the work directory's file system that they may have at the most, by default.
pub const RETURNING_DISK_PART: u64 = 10;

/// How long a job's pipes are read after its program has ended. Who still holds them then has left
/// the process group.
pub const DRAIN_MAX: Duration = Duration::from_millis(500);

/// The largest archive inside a result: in base64 it fills one.
pub const ARCHIVE_INLINE_BYTES_MAX: usize = RESULT_BYTES_MAX / 4 * 3;

/// The largest archive, by default: what a job leaves behind by mistake should not fill the disks
/// on its way.
pub const ARCHIVE_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;

/// The most files in an archive: what the classic ZIP directory can count.
pub const ARCHIVE_FILES_MAX: usize = 65_535;

/// Directories with the name of one job, if other workers on this machine hold the first ones.
pub const DIRECTORY_TRIES_MAX: u32 = 64;

/// How often a dataset is looked for that is replaced again and again while it is opened.
pub const DATASET_OPEN_TRIES_MAX: u32 = 16;

/// Files of a dataset that are brought to the disk one by one; for more, all that the file system
/// has not written yet is.
pub const SYNCED_ONE_BY_ONE_MAX: usize = 64;

/// Files of a dataset that are open at a time while its pieces come.
pub const STAGED_FILES_OPEN_MAX: usize = 64;

/// Packs of a dataset that were announced and are not open yet.
pub const PACKS_ANNOUNCED_MAX: usize = 64;

/// Datasets that were given up and are remembered, so that a leader does not push them back: as
/// many as one message lists.
pub const GIVEN_UP_MAX: usize = chunking::limits::DATASETS_LISTED_MAX;

/// What is kept of the reason of each, in characters.
pub const GIVEN_UP_TEXT_MAX: usize = 256;

/// The most that is read of the file that they stand in: 2 KiB for each, which the longest names
/// and reasons do not fill.
pub const GIVEN_UP_FILE_BYTES_MAX: u64 = 2048 * GIVEN_UP_MAX as u64;

/// Puts of classic leaders that wait for their turn, each with a frame of files in memory.
pub const PUTS_WAITING_MAX: usize = 16;

/// How often a worker looks which programs it has.
pub const PROGRAMS_LOOK: Duration = Duration::from_secs(1);

/// The pause between two looks is at least so many times as long as the last one took: a directory
/// on a slow network is not looked at all the time.
pub const PROGRAMS_LOOK_TIMES: u32 = 50;

/// Questions for programs that are answered by one look; a leader has one open at a time.
pub const PROGRAMS_ASKS_MAX: usize = 16;

const _: () =
    assert!(PARALLEL_MAX as usize + RETURNING_MAX <= chunking::limits::HEARTBEAT_JOBS_MAX);
/// All of them go out at once on a new connection.
const _: () = assert!(2 * RESULTS_KEPT_BYTES_MAX as u64 <= crate::peer::BACKLOG_BYTES_MAX);
const _: () = assert!(ARCHIVE_INLINE_BYTES_MAX / 3 * 4 <= RESULT_BYTES_MAX);
