//! What is known of the terminal, if there is one.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether colours are wanted on standard error: it is a terminal, and NO_COLOR is not set.
pub(crate) fn has_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

/// How many characters fit a line of the terminal behind this output.
pub(crate) fn columns(out: &(impl AsFd + IsTerminal)) -> Option<usize> {
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    // Some terminals do not know.
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// How many columns a text takes: East Asian characters take two.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// What fits so many columns; what is left out is an ellipsis.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return text.into();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |char: &char| {
        let rest = left.checked_sub(char.width().unwrap_or(0));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let mut kept: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        kept.push('…');
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_columns_and_not_to_characters() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 5), "abcd…");
        assert_eq!(cut("処理中です", 10), "処理中です");
        assert_eq!(cut("処理中です", 9), "処理中で…");
        assert_eq!(cut("処理中です", 6), "処理…");
        assert_eq!((cut("abc", 1), cut("abc", 0)), ("…".into(), "".into()));
        assert_eq!((width("処理"), width("grün"), width("приём")), (4, 4, 5));
    }
}
