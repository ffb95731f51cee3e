//! Decodes one text after another from JSON into UTF-8, through one buffer of fixed size. What a
//! program printed is worth more than its spelling: half of a surrogate pair becomes U+FFFD, as
//! .NET writes it, and bytes that are not UTF-8 pass as they are. Only the content stream uses it.

use super::token::{BadEscape, Escape, Taken};
use crate::model::error::count;
use crate::model::json::scan::plain_run;
use crate::model::limits::CONTENT_PIECE_BYTES_MAX;

/// The text that is being read.
#[derive(Debug, Default)]
pub(super) struct Text {
    escape: Escape,
    /// The first half of a surrogate pair, whose second has not come.
    high: Option<u16>,
    /// Bytes decoded.
    bytes: u64,
    /// Decoded and not yet handed out.
    out: Vec<u8>,
}

impl Text {
    /// Begins the next text.
    pub(super) fn begin(&mut self) {
        // The buffer is made at the first text and kept for all.
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        out.reserve_exact(CONTENT_PIECE_BYTES_MAX);
        *self = Self { out, ..Self::default() };
    }

    /// How many bytes the text has so far.
    pub(super) fn len(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes of the string; they are all handed out when it ends, but not all
    /// before.
    pub(super) fn take(
        &mut self,
        rest: &[u8],
        emit: &mut impl FnMut(&[u8]),
    ) -> Result<Taken, BadEscape> {
        let mut used = 0_usize;
        while let Some(&byte) = rest.get(used) {
            if self.escape.is_open() {
                let unit = self.escape.step(byte).ok_or(BadEscape { used })?;
                used = used.saturating_add(1);
                if let Some(unit) = unit {
                    self.unit(unit, emit);
                }
                continue;
            }
            let open = rest.get(used..).unwrap_or_default();
            let run = plain_run(open);
            if run > 0 {
                self.give_up_half(emit);
                self.put(open.get(..run).unwrap_or_default(), emit);
            }
            used = used.saturating_add(run);
            match open.get(run) {
                Some(b'"') => {
                    self.give_up_half(emit);
                    self.flush(emit);
                    return Ok(Taken { used: used.saturating_add(1), ended: true });
                }
                Some(_) => {
                    self.escape = Escape::Start;
                    used = used.saturating_add(1);
                }
                None => {}
            }
        }
        Ok(Taken { used, ended: false })
    }

    /// Hands out what is decoded.
    pub(super) fn flush(&mut self, emit: &mut impl FnMut(&[u8])) {
        if !self.out.is_empty() {
            emit(&self.out);
            self.out.clear();
        }
    }

    /// A UTF-16 unit that was escaped.
    fn unit(&mut self, unit: u16, emit: &mut impl FnMut(&[u8])) {
        let whole = match (self.high.take(), unit) {
            (Some(high), 0xDC00..=0xDFFF) => char::decode_utf16([high, unit])
                .next()
                .and_then(Result::ok)
                .unwrap_or(char::REPLACEMENT_CHARACTER),
            (high, unit) => {
                if high.is_some() {
                    self.put_char(char::REPLACEMENT_CHARACTER, emit);
                }
                if matches!(unit, 0xD800..=0xDBFF) {
                    self.high = Some(unit);
                    return;
                }
                char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
        };
        self.put_char(whole, emit);
    }

    /// A first half that no second one follows.
    fn give_up_half(&mut self, emit: &mut impl FnMut(&[u8])) {
        if self.high.take().is_some() {
            self.put_char(char::REPLACEMENT_CHARACTER, emit);
        }
    }

    fn put_char(&mut self, char: char, emit: &mut impl FnMut(&[u8])) {
        self.put(char.encode_utf8(&mut [0; 4]).as_bytes(), emit);
    }

    fn put(&mut self, bytes: &[u8], emit: &mut impl FnMut(&[u8])) {
        self.bytes = self.bytes.saturating_add(count(bytes.len()));
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = CONTENT_PIECE_BYTES_MAX.saturating_sub(self.out.len());
            if room == 0 {
                self.flush(emit);
                continue;
            }
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            self.out.extend_from_slice(now);
            rest = later;
        }
    }
}
