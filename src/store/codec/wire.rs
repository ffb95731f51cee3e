//! Encodes and decodes the primitives of records and jobs: numbers, ids, texts and lists.

use uuid::Uuid;

/// Why bytes are not what they should be. Reading them again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {what}")]
pub struct CodecError {
    /// Where, counted from the first byte that was given.
    pub at: usize,
    /// What was found and what was expected.
    pub what: String,
}

/// Appends a byte.
pub fn put_u8(value: u8, out: &mut Vec<u8>) {
    out.push(value);
}

/// Appends two bytes.
pub fn put_u16(value: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends four bytes.
pub fn put_u32(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends eight bytes.
pub fn put_u64(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends eight bytes.
pub fn put_i64(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a byte of 0 or 1.
pub fn put_bool(value: bool, out: &mut Vec<u8>) {
    out.push(u8::from(value));
}

/// Appends the 16 bytes of an id.
pub fn put_uuid(value: Uuid, out: &mut Vec<u8>) {
    out.extend_from_slice(value.as_bytes());
}

/// Appends a text with its length.
pub fn put_str(text: &str, out: &mut Vec<u8>) {
    put_len(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a length or a count. All that is stored came in a frame, whose length is a u32, so none
/// is larger.
pub fn put_len(len: usize, out: &mut Vec<u8>) {
    debug_assert!(u32::try_from(len).is_ok(), "{len} does not fit the format");
    put_u32(u32::try_from(len).unwrap_or(u32::MAX), out);
}

/// Reads what the `put_` functions wrote.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader of these bytes, from their start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// How many bytes have been read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many bytes have not been read.
    pub fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// The next byte, which is not read by that.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// An error at the byte that would be read next.
    pub fn error(&self, what: impl Into<String>) -> CodecError {
        CodecError { at: self.at, what: what.into() }
    }

    /// The next `len` bytes, where they lie.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let found = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end));
        let found = found.ok_or_else(|| {
            self.error(format!("{len} bytes are expected and {} are left", self.left()))
        })?;
        self.at += len;
        Ok(found)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (bytes, left) = (self.bytes, self.left());
        let found = bytes.get(self.at..).and_then(<[u8]>::first_chunk::<N>);
        let found = *found
            .ok_or_else(|| self.error(format!("{N} bytes are expected and {left} are left")))?;
        self.at += N;
        Ok(found)
    }

    pub fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, CodecError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A byte of 0 or 1.
    pub fn bool(&mut self) -> Result<bool, CodecError> {
        let start = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(CodecError {
                at: start,
                what: format!("{other} is neither 0 (no) nor 1 (yes)"),
            }),
        }
    }

    pub fn uuid(&mut self) -> Result<Uuid, CodecError> {
        Ok(Uuid::from_bytes(self.array()?))
    }

    /// A text, where it lies.
    pub fn str(&mut self) -> Result<&'a str, CodecError> {
        let len = self.count(1)?;
        let start = self.at;
        let bytes = self.bytes(len)?;
        str::from_utf8(bytes).map_err(|error| CodecError {
            at: start.saturating_add(error.valid_up_to()),
            what: format!("the text of {len} bytes is not UTF-8"),
        })
    }

    /// A length or a count of items that take at least `item_bytes` each: as many as the bytes that
    /// are left can hold.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, CodecError> {
        let start = self.at;
        let len = self.number()?;
        if len.checked_mul(item_bytes).is_none_or(|bytes| bytes > self.left()) {
            let what = match item_bytes {
                0 | 1 => format!("{len} bytes are announced and {} are left", self.left()),
                _ => format!(
                    "{len} items of at least {item_bytes} bytes are announced, but {} bytes are left",
                    self.left()
                ),
            };
            return Err(CodecError { at: start, what });
        }
        Ok(len)
    }

    /// A count, and as many items, each of at least `item_bytes`.
    pub fn list<T>(
        &mut self,
        item_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Vec<T>, CodecError> {
        let len = self.count(item_bytes.max(1))?;
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A number that [`put_len`] wrote and that no bytes stand for.
    pub fn number(&mut self) -> Result<usize, CodecError> {
        let number = self.u32()?;
        usize::try_from(number)
            .map_err(|_| self.error(format!("{number} is too large for this machine")))
    }
}
