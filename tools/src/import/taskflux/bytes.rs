//! The numbers and arrays of TaskFlux's files (TF01, TF21), big-endian, each length held against
//! what the file still has.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Where bytes lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) at: u64,
    pub(super) len: u32,
}

/// A file, read from its start.
pub(super) struct Bytes {
    path: PathBuf,
    reader: BufReader<File>,
    at: u64,
    len: u64,
}

impl Bytes {
    pub(super) fn new(path: &Path, file: File, len: u64) -> Self {
        Bytes {
            path: path.to_owned(),
            reader: BufReader::with_capacity(64 * 1024, file),
            at: 0,
            len,
        }
    }

    /// Where the next byte is.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    /// Damage at the byte that would be read next, or at another.
    pub(super) fn damage(&self, at: u64, what: impl std::fmt::Display) -> Failure {
        Failure::at(&self.path, at, what)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        if self.left() < N as u64 {
            return Err(self.damage(
                self.at,
                format_args!("{what} has {} of {N} bytes: the file is cut off", self.left()),
            ));
        }
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        match self.reader.read_exact(bytes) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damage(
                self.at,
                "the file became shorter while it was read; is TaskFlux running?",
            )),
            Err(error) => Err(Failure::io("read", &self.path, &error)),
        }
    }

    pub(super) fn marker(&mut self) -> Result<[u8; 4], Failure> {
        self.array("its marker")
    }

    pub(super) fn byte(&mut self, what: &str) -> Result<u8, Failure> {
        Ok(u8::from_be_bytes(self.array(what)?))
    }

    pub(super) fn int32(&mut self, what: &str) -> Result<i32, Failure> {
        Ok(i32::from_be_bytes(self.array(what)?))
    }

    pub(super) fn uint32(&mut self, what: &str) -> Result<u32, Failure> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    pub(super) fn int64(&mut self, what: &str) -> Result<i64, Failure> {
        Ok(i64::from_be_bytes(self.array(what)?))
    }

    /// An Int32 that is a length of bytes that follow.
    pub(super) fn length(&mut self, what: &str) -> Result<u32, Failure> {
        let at = self.at;
        let found = self.int32(what)?;
        let length = u32::try_from(found).map_err(|_| {
            self.damage(
                at,
                format_args!("{what} has a length of {found}, which is less than nothing"),
            )
        })?;
        if u64::from(length) > self.left() {
            let left = self.left();
            return Err(self.damage(
                at,
                format_args!(
                    "{what} has a length of {length} bytes, and {left} are left in the file"
                ),
            ));
        }
        Ok(length)
    }

    /// An array of bytes, which stays where it is.
    pub(super) fn buffer(&mut self, what: &str) -> Result<Extent, Failure> {
        let len = self.length(what)?;
        let at = self.at;
        self.seek(at + u64::from(len))?;
        Ok(Extent { at, len })
    }

    /// The name of a queue (TF01): empty for the default one.
    pub(super) fn name(&mut self) -> Result<String, Failure> {
        let at = self.at;
        let len = self.byte("the name of a queue")?;
        if u64::from(len) > self.left() {
            let left = self.left();
            return Err(self.damage(
                at,
                format_args!(
                    "the name of a queue has {len} bytes, and {left} are left in the file"
                ),
            ));
        }
        let mut bytes = vec![0; usize::from(len)];
        self.fill(&mut bytes)?;
        if let Some((place, byte)) =
            bytes.iter().enumerate().find(|(_, byte)| !(33..=126).contains(*byte))
        {
            let at = at + 1 + place as u64;
            return Err(self.damage(
                at,
                format_args!(
                    "the name of a queue has the byte {byte}; its characters are 33 to 126"
                ),
            ));
        }
        Ok(bytes.into_iter().map(char::from).collect())
    }

    /// Goes to an offset.
    pub(super) fn seek(&mut self, at: u64) -> Result<(), Failure> {
        let by =
            i64::try_from(at).ok().zip(i64::try_from(self.at).ok()).map(|(to, from)| to - from);
        let moved = match by {
            Some(by) => self.reader.seek_relative(by),
            None => self.reader.seek(SeekFrom::Start(at)).map(|_| ()),
        };
        moved.map_err(|error| Failure::io("read", &self.path, &error))?;
        self.at = at;
        Ok(())
    }

    /// Reads what was found before.
    pub(super) fn read(&mut self, extent: Extent) -> Result<Vec<u8>, Failure> {
        self.seek(extent.at)?;
        let len = usize::try_from(extent.len).unwrap_or(usize::MAX);
        if u64::from(extent.len) > self.left() {
            return Err(self.damage(
                extent.at,
                "the file became shorter while it was read; is TaskFlux running?",
            ));
        }
        let mut bytes = vec![0; len];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
}
