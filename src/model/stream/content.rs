//! Decodes the base64 of one content after another, in bulk, through one buffer of fixed size. It
//! knows nothing of where in the JSON it stands. Only the content stream uses it.

use super::token::{BadEscape, Escape, Taken};
use crate::model::error::count;
use crate::model::json::base64;
use crate::model::json::scan::plain_run;
use crate::model::limits::CONTENT_PIECE_BYTES_MAX;

/// Why a content cannot be decoded.
#[derive(Debug)]
pub(super) enum Fault {
    /// An escape that JSON does not have.
    Escape(BadEscape),
    /// Not base64.
    Base64 {
        /// Characters before the fault.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
}

/// The content that is being read.
#[derive(Debug, Default)]
pub(super) struct Content {
    escape: Escape,
    /// The characters of a quad that is not complete yet.
    quad: [u8; 4],
    held: usize,
    /// Padding has been seen: nothing may follow.
    closed: bool,
    /// Characters decoded, those in `quad` not counted.
    chars: u64,
    /// Bytes decoded.
    bytes: u64,
    /// Decoded and not yet handed out: the first `filled` bytes.
    out: Vec<u8>,
    filled: usize,
}

impl Content {
    /// Begins the next content.
    pub(super) fn begin(&mut self) {
        // The buffer is made at the first content and kept for all.
        let mut out = std::mem::take(&mut self.out);
        out.resize(CONTENT_PIECE_BYTES_MAX, 0);
        *self = Self { out, ..Self::default() };
    }

    /// How many bytes the content has so far.
    pub(super) fn len(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes of the string; they are all decoded when it ends, but not all handed
    /// out before.
    pub(super) fn take(
        &mut self,
        rest: &[u8],
        emit: &mut impl FnMut(&[u8]),
    ) -> Result<Taken, Fault> {
        let mut used = 0_usize;
        while let Some(&byte) = rest.get(used) {
            if self.escape.is_open() {
                let unit = self.escape.step(byte).ok_or(Fault::Escape(BadEscape { used }))?;
                used = used.saturating_add(1);
                if let Some(unit) = unit {
                    // Not ASCII, so not base64 either; any such byte makes the decoder say so.
                    self.decode(&[u8::try_from(unit).unwrap_or(u8::MAX)], emit)?;
                }
                continue;
            }
            let open = rest.get(used..).unwrap_or_default();
            let run = plain_run(open);
            self.decode(open.get(..run).unwrap_or_default(), emit)?;
            used = used.saturating_add(run);
            match open.get(run) {
                Some(b'"') => {
                    self.end(emit)?;
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
        if self.filled > 0 {
            emit(self.out.get(..self.filled).unwrap_or_default());
            self.filled = 0;
        }
    }

    fn end(&mut self, emit: &mut impl FnMut(&[u8])) -> Result<(), Fault> {
        if self.held > 0 {
            // An incomplete quad is always a fault; the decoder knows which.
            let held = self.quad.get(..self.held).unwrap_or_default();
            let fault =
                base64::decode(held).err().unwrap_or_else(|| base64::missing_padding(self.held));
            return Err(self.fault(fault));
        }
        self.flush(emit);
        Ok(())
    }

    fn decode(&mut self, run: &[u8], emit: &mut impl FnMut(&[u8])) -> Result<(), Fault> {
        let mut rest = run;
        if self.held > 0 {
            rest = self.hold(rest);
            if self.held < self.quad.len() {
                return Ok(());
            }
            let quad = self.quad;
            self.held = 0;
            self.decode_quads(&quad, emit)?;
        }
        let (quads, tail) = rest.split_at_checked(rest.len() & !3).unwrap_or((rest, &[]));
        self.decode_quads(quads, emit)?;
        self.hold(tail);
        Ok(())
    }

    /// Fills the open quad and gives back what did not fit.
    fn hold<'r>(&mut self, run: &'r [u8]) -> &'r [u8] {
        let room = self.quad.len().saturating_sub(self.held);
        let (fits, rest) = run.split_at_checked(room).unwrap_or((run, &[]));
        for (place, byte) in self.quad.iter_mut().skip(self.held).zip(fits) {
            *place = *byte;
        }
        self.held = self.held.saturating_add(fits.len());
        rest
    }

    fn decode_quads(&mut self, quads: &[u8], emit: &mut impl FnMut(&[u8])) -> Result<(), Fault> {
        let mut rest = quads;
        while let Some(&first) = rest.first() {
            if self.closed {
                return Err(self.fault(base64::bad_byte(0, first)));
            }
            let room = self.out.len().saturating_sub(self.filled) / 3 * 4;
            if room == 0 {
                self.flush(emit);
                continue;
            }
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            let out = self.out.get_mut(self.filled..).unwrap_or_default();
            let made = base64::decode_into(now, out).map_err(|fault| self.fault(fault))?;
            // A quad with padding is the last of what the engine takes, and gives fewer bytes than
            // it could.
            self.closed = made < now.len() / 4 * 3;
            self.filled = self.filled.saturating_add(made);
            self.chars = self.chars.saturating_add(count(now.len()));
            self.bytes = self.bytes.saturating_add(count(made));
            rest = later;
        }
        Ok(())
    }

    fn fault(&self, fault: base64::Fault) -> Fault {
        Fault::Base64 {
            offset: self.chars.saturating_add(count(fault.offset)),
            reason: fault.reason,
        }
    }
}
