//! The log: lines on standard error, one for each event, whatever a peer put into its names.
//!
//! Nearly every line holds something that a peer chose: an id, a subject, an error that quotes one.
//! So control characters are escaped and long values are cut here, where every line passes, and not
//! where lines are written.

use std::fmt::{self, Write as _};
use std::io;

use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use super::terminal::has_colour;

/// Characters of the text of one line.
const TEXT_CHARS_MAX: usize = 2_000;

/// Characters of one value beside the text.
const VALUE_CHARS_MAX: usize = 300;

/// Sends log lines to standard error, as `HEFT_LOG` says; without it `usual` counts.
pub fn log_to_stderr(usual: LevelFilter) {
    log_as(None, usual);
}

/// Sends log lines to standard error. What the command line says (`-q`, `-v`) goes before
/// `HEFT_LOG`, which is `error`, `warn`, `info`, `debug` or `trace`; without both `usual` counts.
pub(super) fn log_as(said: Option<LevelFilter>, usual: LevelFilter) {
    let asked = std::env::var("HEFT_LOG").ok();
    let asked = asked.filter(|word| said.is_none() && !word.is_empty());
    let level = asked.as_deref().and_then(|word| word.parse::<LevelFilter>().ok());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(said.or(level).unwrap_or(usual))
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_writer(io::stderr)
        .with_ansi(has_colour())
        .with_target(false)
        .finish();
    // A second subscriber would be refused; the first then stays, which is as good.
    tracing::subscriber::set_global_default(subscriber).ok();
    if let (Some(word), None) = (asked, level) {
        tracing::warn!(
            "HEFT_LOG is {word:?}: use error, warn, info, debug or trace; taking {usual}"
        );
    }
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let left = match field.name() {
        "message" => TEXT_CHARS_MAX,
        name => {
            match writer.has_ansi_escapes() {
                true => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
                false => write!(writer, "{name}=")?,
            }
            VALUE_CHARS_MAX
        }
    };
    let mut plain = Plain { out: writer, left, cut: 0 };
    write!(plain, "{value:?}")?;
    plain.finish()
}

/// Writes text so that it stays on its line and within its length.
struct Plain<'a, W> {
    out: &'a mut W,
    /// Characters that may still be written.
    left: usize,
    /// Bytes that were not.
    cut: usize,
}

impl<W: fmt::Write> fmt::Write for Plain<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.left == 0 {
                self.cut += c.len_utf8();
                continue;
            }
            self.left -= 1;
            match moves(c) {
                true => write!(self.out, "{}", c.escape_default())?,
                false => self.out.write_char(c)?,
            }
        }
        Ok(())
    }
}

impl<W: fmt::Write> Plain<'_, W> {
    fn finish(self) -> fmt::Result {
        match self.cut {
            0 => Ok(()),
            cut => write!(self.out, "… ({cut} bytes more)"),
        }
    }
}

/// Whether a character does something to what stands around it: ends the line, moves the cursor,
/// changes the direction.
pub(super) fn moves(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str, left: usize) -> String {
        let mut out = String::new();
        let mut plain = Plain { out: &mut out, left, cut: 0 };
        plain.write_str(text).unwrap();
        plain.finish().unwrap();
        out
    }

    #[test]
    fn what_a_peer_chose_stays_on_its_line_and_within_its_length() {
        assert_eq!(plain("größe \"a\"", 100), "größe \"a\"");
        assert_eq!(plain("a\r\nb\x1b[2Jc\u{202e}d\0", 100), r"a\r\nb\u{1b}[2Jc\u{202e}d\u{0}");
        assert_eq!(plain("äöüxyz", 4), "äöüx… (2 bytes more)");
        assert_eq!(plain(&"\n".repeat(10), 2), r"\n\n… (8 bytes more)");
    }
}
