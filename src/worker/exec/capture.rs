//! What a program prints to one of its outputs: its beginning in memory, all of it in a file if it
//! is longer, and what of that can be read while it grows.
//!
//! One task fills a [`Captured`]; others read its [`Capture`] at any place, each at its own pace.
//! What lies beyond the file's limit is counted and dropped, but for the last bytes while somebody
//! reads. A capture that nobody reads costs no more than its contents. The runner of programs makes
//! it, follows of the output read it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::inputs::next_step;
use crate::worker::directory::create_output;
use crate::worker::limits::OUTPUT_RING_BYTES;

/// How much of an output is kept, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Keep {
    /// Bytes in memory.
    pub(in crate::worker) bytes_max: usize,
    /// Where all of it goes if it is longer than that.
    pub(in crate::worker) file: PathBuf,
    /// Bytes in the file.
    pub(in crate::worker) file_bytes_max: u64,
}

/// What a program left in one of its outputs.
#[derive(Debug)]
pub(in crate::worker) struct Captured {
    keep: Keep,
    shared: Arc<Capture>,
    file: Option<tokio::fs::File>,
    file_bytes: u64,
    file_error: Option<io::Error>,
    /// Whether somebody still held the pipe when we stopped reading.
    cut_off: bool,
}

impl Captured {
    pub(in crate::worker) fn new(keep: Keep) -> Self {
        Captured {
            keep,
            shared: Arc::default(),
            file: None,
            file_bytes: 0,
            file_error: None,
            cut_off: true,
        }
    }

    /// For those who read it while it grows.
    pub(in crate::worker) fn shared(&self) -> Arc<Capture> {
        self.shared.clone()
    }

    /// Reads to the end. May be dropped while it waits without losing what came, but for a piece
    /// that is on its way to a file.
    pub(in crate::worker) async fn fill(&mut self, mut source: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 64 * 1024];
        let shared = self.shared.clone();
        loop {
            // What was written for nobody may be on its way to the file when the first reader
            // comes.
            let read = tokio::select! {
                biased;
                () = shared.joined.notified(), if self.is_unflushed() => {
                    self.flush().await;
                    continue;
                }
                read = source.read(&mut buffer) => read,
            };
            let Ok(count @ 1..) = read else { break };
            let piece = buffer.get(..count).unwrap_or_default();
            let (room, is_read) = shared.grow(piece, self.keep.bytes_max);
            let rest = piece.get(room..).unwrap_or_default();
            if !rest.is_empty() {
                self.spill(rest).await;
            }
            if is_read {
                self.flush().await;
                shared.grown.notify_waiters();
            }
        }
        self.cut_off = false;
    }

    /// Adds to the file, which begins with what is kept.
    async fn spill(&mut self, rest: &[u8]) {
        if self.file.is_none() && self.file_error.is_none() {
            match create_output(&self.keep.file).and_then(|file| Ok((file.try_clone()?, file))) {
                Ok((reads, file)) => {
                    self.file = Some(file.into());
                    self.shared.lock().file = Some(Arc::new(reads));
                    let kept = self.shared.lock().kept.clone();
                    self.append(&kept).await;
                }
                Err(error) => self.file_error = Some(error),
            }
        }
        let taken = self.append(rest).await;
        let dropped = rest.get(taken..).unwrap_or_default();
        if !dropped.is_empty() {
            // Of a file that failed only what was seen to be there counts.
            let is_sound = self.file_error.is_none();
            self.shared.dropped(dropped, is_sound.then_some(self.file_bytes));
        }
    }

    /// How many of the bytes the file takes.
    async fn append(&mut self, bytes: &[u8]) -> usize {
        let Some(file) = self.file.as_mut().filter(|_| self.file_error.is_none()) else { return 0 };
        let room = self.keep.file_bytes_max.saturating_sub(self.file_bytes);
        let room = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        match file.write_all(bytes.get(..room).unwrap_or_default()).await {
            Ok(()) => {
                self.file_bytes += room as u64;
                room
            }
            Err(error) => {
                self.file_error = Some(error);
                0
            }
        }
    }

    /// Whether bytes are on their way to the file.
    fn is_unflushed(&self) -> bool {
        self.file.is_some() && self.shared.lock().in_file < self.file_bytes
    }

    /// Waits until the file has what was written.
    async fn flush(&mut self) {
        let Some(file) = self.file.as_mut().filter(|_| self.file_error.is_none()) else { return };
        match file.flush().await {
            Ok(()) => self.shared.lock().in_file = self.file_bytes,
            Err(error) => self.file_error = Some(error),
        }
        self.shared.grown.notify_waiters();
    }

    /// Brings the file to its end. One that is not whole is removed.
    pub(in crate::worker) async fn close(&mut self) {
        self.flush().await;
        self.shared.close();
        if self.file.take().is_some() && self.file_error.is_some() {
            tokio::fs::remove_file(&self.keep.file).await.ok();
            self.file_bytes = 0;
        }
    }

    /// As text, as far as it is kept in memory; what is not UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().kept).into_owned()
    }

    /// The file that has all of it, if it is longer than what is kept in memory.
    pub(super) fn file(&self) -> Option<&Path> {
        (self.file_bytes > 0).then_some(self.keep.file.as_path())
    }

    /// What went wrong with the file; that fails the job.
    pub(super) fn failure(&self, output: &str) -> Option<String> {
        let error = self.file_error.as_ref()?;
        let shared = self.shared.lock();
        Some(format!(
            "{output} had {} bytes; the first {} are kept: cannot write all of it to {}: {error}{}",
            shared.seen,
            shared.kept.len(),
            self.keep.file.display(),
            next_step(error)
        ))
    }

    /// What a reader of the output should know.
    pub(super) fn note(&self, output: &str) -> Option<String> {
        let shared = self.shared.lock();
        let kept = self.file_bytes.max(shared.kept.len() as u64);
        if self.file_error.is_none() && shared.seen > kept {
            return Some(format!("{output} had {} bytes; the first {kept} are kept", shared.seen));
        }
        self.cut_off.then(|| {
            format!(
                "{output} was still held open after the program had ended; later output is not \
                 included"
            )
        })
    }
}

/// Its program is not read any more, whatever the reason.
impl Drop for Captured {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// An output as far as it can be read.
#[derive(Debug, Default)]
pub(in crate::worker) struct Capture {
    inner: Mutex<Inner>,
    /// There is more to read, or it has ended.
    grown: Notify,
    /// A reader came.
    joined: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// The beginning.
    kept: Vec<u8>,
    /// Bytes that the program printed.
    seen: u64,
    /// The file that has all of it.
    file: Option<Arc<File>>,
    /// Bytes that are there for certain.
    in_file: u64,
    /// From here on nothing is kept.
    dropped_from: Option<u64>,
    /// The last bytes of that.
    ring: VecDeque<u8>,
    readers: usize,
    is_closed: bool,
}

/// What there is at a place.
#[derive(Debug)]
pub(in crate::worker) enum There {
    /// These bytes, from this place on. Nobody has what is between the two places.
    Here { at: u64, bytes: Bytes },
    /// So many bytes in a file.
    InFile { file: Arc<File>, at: u64, len: usize },
    /// Nothing yet.
    NotYet,
    /// Nothing more: the program has printed so many bytes.
    End(u64),
}

impl There {
    /// Reads what is in a file; blocking.
    pub(in crate::worker) fn read(file: &File, at: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at)?;
        Ok(bytes.into())
    }
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the program printed: how much of it is kept in memory, and whether anybody reads.
    fn grow(&self, piece: &[u8], bytes_max: usize) -> (usize, bool) {
        let mut inner = self.lock();
        let room = bytes_max.saturating_sub(inner.kept.len()).min(piece.len());
        inner.kept.extend_from_slice(piece.get(..room).unwrap_or_default());
        inner.seen = inner.seen.saturating_add(piece.len() as u64);
        (room, inner.readers > 0)
    }

    /// The last bytes that were seen are not kept. So many are, or will be, in the file.
    fn dropped(&self, bytes: &[u8], in_file: Option<u64>) {
        let mut inner = self.lock();
        let stored = in_file.unwrap_or(inner.in_file).max(inner.kept.len() as u64);
        inner.dropped_from.get_or_insert(stored);
        if inner.readers == 0 {
            return;
        }
        let last = bytes.get(bytes.len().saturating_sub(OUTPUT_RING_BYTES)..).unwrap_or_default();
        let ring = &mut inner.ring;
        let over = (ring.len() + last.len()).saturating_sub(OUTPUT_RING_BYTES);
        ring.drain(..over.min(ring.len()));
        ring.extend(last);
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.grown.notify_waiters();
    }

    /// Begins to read.
    pub(in crate::worker) fn reader(self: &Arc<Self>) -> Reader {
        self.lock().readers += 1;
        self.joined.notify_one();
        Reader(self.clone())
    }
}

/// One who reads.
#[derive(Debug)]
pub(in crate::worker) struct Reader(Arc<Capture>);

impl Reader {
    /// What is there, at most so much of it.
    pub(in crate::worker) fn at(&self, from: u64, len_max: usize) -> There {
        let inner = self.0.lock();
        let kept = usize::try_from(from).ok().and_then(|from| inner.kept.get(from..));
        if let Some(kept) = kept.filter(|kept| !kept.is_empty()) {
            let bytes = kept.get(..len_max).unwrap_or(kept);
            return There::Here { at: from, bytes: Bytes::copy_from_slice(bytes) };
        }
        let in_file = inner.in_file.saturating_sub(from);
        if let (Some(file), 1..) = (&inner.file, in_file) {
            let len = usize::try_from(in_file).unwrap_or(usize::MAX).min(len_max);
            return There::InFile { file: file.clone(), at: from, len };
        }
        if inner.dropped_from.is_some_and(|dropped| from >= dropped) {
            let first = inner.seen.saturating_sub(inner.ring.len() as u64);
            let at = from.max(first);
            let skip = usize::try_from(at - first).unwrap_or(usize::MAX);
            if skip < inner.ring.len() {
                let bytes: Vec<u8> = inner.ring.iter().skip(skip).take(len_max).copied().collect();
                return There::Here { at, bytes: bytes.into() };
            }
        }
        match inner.is_closed {
            true => There::End(inner.seen),
            false => There::NotYet,
        }
    }

    /// Ends when more may be there than when this was called.
    pub(in crate::worker) fn grown(&self) -> Notified<'_> {
        self.0.grown.notified()
    }

    /// Bytes that the program has printed by now.
    pub(in crate::worker) fn seen(&self) -> u64 {
        self.0.lock().seen
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.readers = inner.readers.saturating_sub(1);
        if inner.readers == 0 {
            inner.ring = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    fn keep(root: &Path, bytes_max: usize, file_bytes_max: u64) -> Keep {
        Keep { bytes_max, file: root.join("stdout"), file_bytes_max }
    }

    /// A capture that is filled from what is written to the stream.
    fn filled(keep: Keep) -> (DuplexStream, Arc<Capture>, JoinHandle<Captured>) {
        let (program, pipe) = duplex(1 << 20);
        let mut captured = Captured::new(keep);
        let shared = captured.shared();
        let filling = tokio::spawn(async move {
            captured.fill(pipe).await;
            captured.close().await;
            captured
        });
        (program, shared, filling)
    }

    /// Reads on until this place, or the end.
    async fn read_to(reader: &Reader, from: &mut u64, to: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while *from < to {
            let grown = reader.grown();
            let bytes = match reader.at(*from, 1000) {
                There::Here { at, bytes } => {
                    assert_eq!(at, *from, "nothing is lost");
                    bytes
                }
                There::InFile { file, at, len } => There::read(&file, at, len).unwrap(),
                There::NotYet => {
                    grown.await;
                    continue;
                }
                There::End(_) => break,
            };
            *from += bytes.len() as u64;
            all.extend_from_slice(&bytes);
        }
        all
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_full_disk_keeps_the_beginning_and_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("stdout");
        // A link, so that what is removed is never the device.
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        let mut captured =
            Captured::new(Keep { bytes_max: 10, file: file.clone(), file_bytes_max: 1 << 30 });
        captured.fill(&[b'x'; 300_000][..]).await;
        captured.close().await;
        assert_eq!((captured.text().as_str(), captured.file()), ("xxxxxxxxxx", None));
        let text = captured.failure("stdout").unwrap();
        assert!(
            text.starts_with("stdout had 300000 bytes; the first 10 are kept: cannot write all"),
            "{text}"
        );
        assert!(text.contains("No space left") && text.contains("free space there"), "{text}");
        assert_eq!(captured.note("stdout"), None, "said once");
        assert!(std::fs::symlink_metadata(&file).is_err(), "nothing stays");
    }

    #[tokio::test]
    async fn what_is_printed_can_be_read_at_once_in_memory_and_in_the_file_and_again_from_the_start()
     {
        let root = tempfile::tempdir().unwrap();
        let (mut program, shared, filling) = filled(keep(root.path(), 100, 1 << 20));
        let reader = shared.reader();
        let (all, mut at) = (pattern(300_000), 0);
        for step in [7, 93, 1, 50, 5_000, 150_000] {
            let (from, to) = (usize::try_from(at).unwrap(), usize::try_from(at).unwrap() + step);
            program.write_all(&all[from..to]).await.unwrap();
            // It comes although nothing follows it.
            assert_eq!(read_to(&reader, &mut at, to as u64).await, &all[from..to]);
        }
        let (so_far, mut again) = (at, 0);
        assert_eq!(
            read_to(&shared.reader(), &mut again, so_far).await,
            &all[..usize::try_from(so_far).unwrap()]
        );
        assert!(matches!(reader.at(so_far, 10), There::NotYet));
        drop(program);
        let captured = filling.await.unwrap();
        assert!(matches!(reader.at(so_far, 10), There::End(seen) if seen == so_far));
        // The file may be gone by now.
        std::fs::remove_file(captured.file().unwrap()).unwrap();
        let mut late = 0;
        assert_eq!(read_to(&shared.reader(), &mut late, u64::MAX).await.len() as u64, so_far);
    }

    #[tokio::test]
    async fn a_reader_that_comes_late_gets_what_was_written_for_nobody() {
        let root = tempfile::tempdir().unwrap();
        let (mut program, shared, _filling) = filled(keep(root.path(), 10, 1 << 20));
        let all = pattern(200_000);
        program.write_all(&all).await.unwrap();
        let seen = async {
            while shared.lock().seen < 200_000 {
                tokio::task::yield_now().await;
            }
        };
        seen.await;
        // The program prints nothing more, and lives.
        let (reader, mut at) = (shared.reader(), 0);
        assert_eq!(read_to(&reader, &mut at, 200_000).await, all);
    }

    #[tokio::test]
    async fn beyond_what_is_kept_the_last_bytes_are_there_while_somebody_reads_and_a_gap_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let (mut program, shared, filling) = filled(keep(root.path(), 10, 1_000));
        let reader = shared.reader();
        let (all, mut at) = (pattern(5_000), 0);
        program.write_all(&all).await.unwrap();
        assert_eq!(read_to(&reader, &mut at, 5_000).await, all, "more than is kept");
        // More than the ring has, while this one reads nothing.
        let more = vec![b'x'; OUTPUT_RING_BYTES];
        program.write_all(&more).await.unwrap();
        program.write_all(b"the end").await.unwrap();
        drop(program);
        let captured = filling.await.unwrap();
        let total = 5_000 + OUTPUT_RING_BYTES as u64 + 7;
        let There::Here { at, bytes } = reader.at(5_000, 10) else { panic!("the ring") };
        assert_eq!((at, &bytes[..]), (total - OUTPUT_RING_BYTES as u64, &b"xxxxxxxxxx"[..]));
        let There::Here { bytes, .. } = reader.at(total - 7, 10) else { panic!("the ring") };
        assert_eq!(&bytes[..], b"the end");
        assert!(matches!(reader.at(total, 10), There::End(seen) if seen == total));
        assert_eq!(shared.lock().ring.len(), OUTPUT_RING_BYTES);
        drop(reader);
        assert_eq!(shared.lock().ring.capacity(), 0, "nothing for nobody");
        let note = format!("stdout had {total} bytes; the first 1000 are kept");
        assert_eq!(captured.note("stdout"), Some(note));
        assert_eq!(std::fs::read(captured.file().unwrap()).unwrap(), &all[..1_000]);
    }

    #[tokio::test]
    async fn what_nobody_reads_is_dropped_beyond_what_is_kept_and_the_first_reader_hears_of_it() {
        let root = tempfile::tempdir().unwrap();
        let (mut program, shared, filling) = filled(keep(root.path(), 10, 1_000));
        program.write_all(&pattern(5_000)).await.unwrap();
        while shared.lock().dropped_from.is_none() {
            tokio::task::yield_now().await;
        }
        let (reader, mut at) = (shared.reader(), 0);
        assert_eq!(shared.lock().ring.len(), 0);
        assert_eq!(read_to(&reader, &mut at, 1_000).await, &pattern(5_000)[..1_000]);
        assert!(matches!(reader.at(1_000, 10), There::NotYet), "nothing of it is there");
        program.write_all(b"more").await.unwrap();
        while shared.lock().seen < 5_004 {
            tokio::task::yield_now().await;
        }
        drop(program);
        filling.await.unwrap();
        let There::Here { at, bytes } = reader.at(1_000, 10) else { panic!("the ring") };
        assert_eq!((at, &bytes[..]), (5_000, &b"more"[..]));
    }

    #[tokio::test]
    async fn a_capture_whose_program_is_not_read_any_more_has_ended() {
        let root = tempfile::tempdir().unwrap();
        let (_program, shared, filling) = filled(keep(root.path(), 10, 1_000));
        let reader = shared.reader();
        let grown = reader.grown();
        assert!(matches!(reader.at(0, 10), There::NotYet));
        filling.abort();
        grown.await;
        assert!(matches!(reader.at(0, 10), There::End(0)));
    }

    #[tokio::test]
    async fn what_is_kept_stays_when_reading_ends_while_it_goes_to_the_file() {
        let root = tempfile::tempdir().unwrap();
        // More than a file takes at once: the second part waits for the first.
        let (bytes_max, output) = (6 << 20, vec![b'x'; 7 << 20]);
        let mut captured = Captured::new(Keep {
            bytes_max,
            file: root.path().join("stdout"),
            file_bytes_max: 1 << 30,
        });
        tokio::select! {
            biased;
            () = captured.fill(output.as_slice()) => {}
            () = std::future::ready(()) => {}
        }
        assert_eq!(captured.text().len(), bytes_max);
        captured.close().await;
    }
}
