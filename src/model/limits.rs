//! The limits of the models, each with a name. They are checked here and in the reader, never
//! silently applied: what is over one is refused with the value and the limit. The reader, the
//! models and the content stream use them.

/// The most that may remain of a streamed payload once its contents are taken out: what else a job
/// request, result or put has is names and arguments.
pub const RESIDUE_BYTES_MAX: usize = chunking::limits::FRAME_BODY_BYTES_MAX as usize;

/// The largest run of decoded content given out at once.
pub const CONTENT_PIECE_BYTES_MAX: usize = 48 * 1024;

/// How deep objects and lists may nest. System.Text.Json stops at 64 too, so a deeper text could
/// not be read by a classic worker anyway.
pub const NEST_DEPTH_MAX: u32 = 64;

/// What a result has as text of an output that goes by transfer: enough to see what the job is
/// about.
pub const TEXT_HEAD_BYTES: usize = 64 * 1024;

/// The longest file name, cache id, program name, feature or announced name: all of them end up in
/// paths or log lines, and Linux takes no longer path.
pub const NAME_BYTES_MAX: usize = chunking::limits::NAME_BYTES_MAX;

// The longest client id, subject pattern or URL is the longest subject of a frame (W10).
pub use chunking::limits::SUBJECT_BYTES_MAX;

/// The longest id of a client that announces itself: ids are kept with jobs, in the log and in
/// answers. Classic clients may have longer ones, as long as a subject.
pub const CLIENT_ID_BYTES_MAX: usize = 255;

/// The longest tag of a job: it is kept with the job, in the log and in answers.
pub const TAG_BYTES_MAX: usize = 255;

/// The most arguments, files or cache entries in one message.
pub const LIST_ITEMS_MAX: usize = 65_536;

/// The most subject patterns one worker may subscribe to in its hello (S21).
pub const PATTERNS_MAX: usize = 1_024;

// The most programs that a worker lists in its hello: as many as in the message that follows it.
pub use chunking::limits::PROGRAMS_LISTED_MAX;

/// Bytes of the names in such a list, each counted with 16 more. One that has more is as good as
/// none.
pub const PROGRAMS_BYTES_MAX: u64 = 64 * 1024;

/// The longest name of a program in a worker's list: what Linux file systems take.
pub const PROGRAM_NAME_BYTES_MAX: usize = 255;

/// The most features one peer may announce.
pub const FEATURES_MAX: usize = 256;

/// The most characters of a peer's value that an error quotes: errors end up in logs and in
/// results.
pub const QUOTE_CHARS_MAX: usize = 64;

// The nesting stack is one bit a level in a u64, and pieces are whole base64 quads.
const _: () = assert!(NEST_DEPTH_MAX <= u64::BITS);
const _: () = assert!(CONTENT_PIECE_BYTES_MAX.is_multiple_of(3) && CONTENT_PIECE_BYTES_MAX > 0);
const _: () = assert!(NAME_BYTES_MAX <= SUBJECT_BYTES_MAX);
