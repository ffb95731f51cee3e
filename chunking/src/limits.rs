//! Every limit of the wire format, in one place and with its reason.
//!
//! Limits that an operator may change are defaults here and travel in
//! [`Welcome`](crate::message::Welcome); the others are part of the protocol.

/// The largest frame body we ever send: a classic reader drops the connection above it (W05).
pub const FRAME_BODY_BYTES_MAX: u32 = 4 * 1024 * 1024;

/// Default for what a peer that announced nothing may send in one SubmitJob, AckJob or CachePut
/// (W06, C01). It is the whole range of the classic writer's Int32; such frames are streamed and
/// never gathered.
pub const CLASSIC_INBOUND_BODY_BYTES_MAX: u32 = i32::MAX.unsigned_abs();

/// The largest first frame of a connection. A Hello is a subject and a little JSON; a stranger gets
/// no more room.
pub const FIRST_FRAME_BODY_BYTES_MAX: u32 = 128 * 1024;

/// The largest body a leader may send us, if it is a classic one that passes on a frame of 4 MiB
/// under a longer subject.
pub const DIALLED_BODY_BYTES_MAX: u32 = FRAME_BODY_BYTES_MAX + 64 * 1024;

/// The largest subject: its length field has 16 bits (W10).
pub const SUBJECT_BYTES_MAX: usize = u16::MAX as usize;

/// The largest chunk, and the one we use. 1 MiB beat smaller sizes in every runtime that was
/// measured, and pool buffers have this size.
pub const CHUNK_BYTES_MAX: u32 = 1024 * 1024;

/// The smallest chunk that the format allows: one page, the unit in which stored chunks are padded.
/// The leader takes only chunks of [`CHUNK_BYTES_MAX`].
pub const CHUNK_BYTES_MIN: u32 = 4 * 1024;

/// The most chunks a blob may have: 4 TiB in chunks of 1 MiB. It bounds the bitmap to 512 KiB and
/// the list of checksums to 16 MiB, both in pages that come with the chunks.
pub const BLOB_CHUNKS_MAX: u32 = 1 << 22;

/// The most ranges one message may list. A sender with more fragments lists the first ones: naming
/// less than is held costs a resend, naming less than is missing costs another round, neither costs
/// data.
pub const RANGES_MAX: usize = 1024;

/// The longest name (of a file, a hop, a software) in a message.
pub const NAME_BYTES_MAX: usize = 4096;

/// The longest text for people in a message. Longer ones are cut, they carry no data.
pub const TEXT_BYTES_MAX: usize = 2048;

/// The most limits a Welcome may list.
pub const LIMITS_LISTED_MAX: usize = 256;

/// The most running jobs a heartbeat may list.
pub const HEARTBEAT_JOBS_MAX: usize = 16 * 1024;

/// The most programs that a worker lists. One that has more lists none.
pub const PROGRAMS_LISTED_MAX: usize = 1_000;

/// The smallest, the usual and the largest piece that files of datasets are cut into, by content.
pub const PIECE_BYTES_MIN: u32 = 64 * 1024;
/// See [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_USUAL: u32 = 256 * 1024;
/// See [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_MAX: u32 = 1024 * 1024;

/// The most pieces in a pack; their list fits a message.
pub const PACK_PIECES_MAX: usize = 16 * 1024;

/// The most bytes of pieces in a pack: it is written, checked and sent as a whole.
pub const PACK_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The largest manifest: some 400 GiB in pieces of the usual size. It is read as a whole.
pub const MANIFEST_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The longest CacheId: it is a directory's name, with folders before it if need be.
pub const CACHE_ID_BYTES_MAX: usize = 255;

/// The most datasets in one Have.
pub const DATASETS_LISTED_MAX: usize = 512;

/// The most bytes of a chunk in one Piece: what a connection that breaks costs, and what others
/// wait for on a slow one.
pub const CHUNK_PIECE_BYTES_MAX: u32 = 64 * 1024;

/// The fewest bytes that a sender puts into a Piece, unless they are a chunk's last ones.
pub const CHUNK_PIECE_BYTES_MIN: u32 = 16 * 1024;

/// The most bytes of a program's output in one Output: what others wait for on a slow connection.
pub const OUTPUT_PIECE_BYTES_MAX: u32 = 64 * 1024;

/// The most bytes of records in one AppendEntries. A larger record goes before it, in RecordPieces.
pub const APPEND_BYTES_MAX: usize = 1024 * 1024;

/// The most records in one AppendEntries: small ones, with their heads, fit a frame.
pub const APPEND_ENTRIES_MAX: usize = 64 * 1024;

/// The most bytes of a record that nodes of a cluster send each other: with its head it fits a
/// group of the tail, and of the log.
pub const RECORD_BYTES_MAX: u32 = 32 * 1024 * 1024 - 4096;

/// The most bytes of a record in one RecordPiece.
pub const RECORD_PIECE_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes of a list of members: two lists of nine, with eight addresses each, and 4,096
/// numbers that were removed.
pub const MEMBERS_BYTES_MAX: usize = 128 * 1024;

/// The fewest chunks a window grants to a transfer that is not waiting.
pub const WINDOW_CHUNKS_MIN: u32 = 2;

/// The most chunks one transfer may have under way.
pub const WINDOW_CHUNKS_MAX: u32 = 8;

// A chunk, with its head and the longest frame head, must fit the frame that carries it, and so
// must the longest lists.
const _: () = assert!(CHUNK_BYTES_MAX + 4096 < FRAME_BODY_BYTES_MAX);
const _: () = assert!(HEARTBEAT_JOBS_MAX * 24 + 4096 < FRAME_BODY_BYTES_MAX as usize);
const _: () =
    assert!(PROGRAMS_LISTED_MAX * (2 + NAME_BYTES_MAX) + 4096 < FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(RANGES_MAX * 8 + TEXT_BYTES_MAX + 4096 < FRAME_BODY_BYTES_MAX as usize);
const _: () =
    assert!(CHUNK_BYTES_MIN <= CHUNK_BYTES_MAX && CHUNK_BYTES_MAX.is_multiple_of(CHUNK_BYTES_MIN));
const _: () = assert!(PACK_PIECES_MAX * 36 + 4096 < FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(
    DATASETS_LISTED_MAX * (64 + NAME_BYTES_MAX + TEXT_BYTES_MAX) < FRAME_BODY_BYTES_MAX as usize
);
const _: () =
    assert!(APPEND_BYTES_MAX + APPEND_ENTRIES_MAX * 13 + 4096 < FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(RECORD_PIECE_BYTES_MAX + 4096 < FRAME_BODY_BYTES_MAX as usize);
const _: () = assert!(MEMBERS_BYTES_MAX + 4096 < FRAME_BODY_BYTES_MAX as usize);
