//! The small state under the content stream: how deep it stands, which name it is reading, how far
//! an escape has come. Every part has a fixed size. Only the content stream uses it.

use crate::model::json::scan::plain_run;

/// The open objects and lists, one bit a level.
#[derive(Debug, Default)]
pub(super) struct Nest {
    objects: u64,
    depth: u32,
}

impl Nest {
    /// How many objects and lists are open.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether the innermost open one is an object.
    pub(super) fn in_object(&self) -> bool {
        self.depth > 0 && self.objects & 1 == 1
    }

    /// Opens one; the caller has checked the depth.
    pub(super) fn open(&mut self, object: bool) {
        self.objects = self.objects << 1 | u64::from(object);
        self.depth = self.depth.saturating_add(1);
    }

    /// Closes the innermost.
    pub(super) fn close(&mut self) {
        self.objects >>= 1;
        self.depth = self.depth.saturating_sub(1);
    }
}

/// What a part of a string took of the bytes it was given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// How many bytes.
    pub(super) used: usize,
    /// Whether the closing quote was among them.
    pub(super) ended: bool,
}

/// An escape that JSON does not have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadEscape {
    /// How many bytes were good.
    pub(super) used: usize,
}

/// The longest name that matters, `OutputArchive`, and one character to tell a longer one from it.
const KEY_BYTES_MAX: usize = 14;

/// A member name while it is read. Only its first characters are kept: a longer one is none of
/// ours.
#[derive(Debug, Default)]
pub(super) struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
    escape: Escape,
}

impl Key {
    /// Takes the name's next bytes.
    pub(super) fn take(&mut self, rest: &[u8]) -> Result<Taken, BadEscape> {
        let mut used = 0_usize;
        while let Some(&byte) = rest.get(used) {
            if self.escape.is_open() {
                // A character that is not ASCII becomes one that no name of ours has.
                let unit = self.escape.step(byte).ok_or(BadEscape { used })?;
                used = used.saturating_add(1);
                if let Some(unit) = unit {
                    self.add(&[u8::try_from(unit).unwrap_or(u8::MAX)]);
                }
                continue;
            }
            let open = rest.get(used..).unwrap_or_default();
            let run = plain_run(open);
            self.add(open.get(..run).unwrap_or_default());
            used = used.saturating_add(run);
            match open.get(run) {
                Some(b'"') => return Ok(Taken { used: used.saturating_add(1), ended: true }),
                Some(_) => {
                    self.escape = Escape::Start;
                    used = used.saturating_add(1);
                }
                None => {}
            }
        }
        Ok(Taken { used, ended: false })
    }

    /// Whether the name is `name`.
    pub(super) fn is(&self, name: &str) -> bool {
        self.bytes.get(..self.len) == Some(name.as_bytes())
    }

    fn add(&mut self, bytes: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.len).zip(bytes) {
            *place = *byte;
        }
        self.len = self.len.saturating_add(bytes.len()).min(KEY_BYTES_MAX);
    }
}

/// How far an escape in a string has been read.
#[derive(Debug, Default)]
pub(super) enum Escape {
    /// There is none.
    #[default]
    None,
    /// Behind the backslash.
    Start,
    /// Behind `\u`.
    Hex {
        /// Digits still to come.
        left: u8,
        /// The digits so far.
        unit: u16,
    },
}

impl Escape {
    /// Whether the next byte belongs to an escape.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Takes the next byte of an escape: the UTF-16 unit when it is complete, `None` inside if more
    /// must come, `None` outside if JSON has no such escape.
    pub(super) fn step(&mut self, byte: u8) -> Option<Option<u16>> {
        let unit = match *self {
            Self::None => return None,
            Self::Start => match byte {
                b'u' => {
                    *self = Self::Hex { left: 4, unit: 0 };
                    return Some(None);
                }
                b'"' | b'\\' | b'/' => u16::from(byte),
                b'b' => 0x08,
                b'f' => 0x0C,
                b'n' => 0x0A,
                b'r' => 0x0D,
                b't' => 0x09,
                _ => return None,
            },
            Self::Hex { left, unit } => {
                let digit =
                    char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok())?;
                let unit = unit << 4 | digit;
                if left > 1 {
                    *self = Self::Hex { left: left.saturating_sub(1), unit };
                    return Some(None);
                }
                unit
            }
        };
        *self = Self::None;
        Some(Some(unit))
    }
}
