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

/// A text in lines that fit so many columns. Lines that go on are indented; a word that is wider
/// than a line, such as a path, stays whole.
pub(crate) fn wrap(text: &str, columns: usize, indent: usize) -> String {
    let mut wrapped = String::new();
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        wrap_line(line, columns, indent, &mut wrapped);
        wrapped.push_str(end);
    }
    wrapped
}

fn wrap_line(line: &str, columns: usize, indent: usize, wrapped: &mut String) {
    let mut words = line.split(' ');
    let mut at = String::from(words.next().unwrap_or_default());
    for word in words {
        let is_room = width(&at) + 1 + width(word) <= columns;
        if is_room || width(&at) < indent {
            at.push(' ');
        } else {
            wrapped.push_str(at.trim_end());
            wrapped.push('\n');
            at = " ".repeat(indent);
        }
        at.push_str(word);
    }
    wrapped.push_str(&at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_wrapped_between_words_and_goes_on_below_its_beginning() {
        assert_eq!(wrap("one two", 7, 2), "one two");
        assert_eq!(wrap("one two\nthree four", 7, 2), "one two\nthree\n  four");
        assert_eq!(wrap("why     all of them", 12, 8), "why     all\n        of\n        them");
        assert_eq!(wrap("why     /a/long/path", 12, 8), "why     /a/long/path");
        assert_eq!(wrap("処理 処理 ok\n", 9, 0), "処理 処理\nok\n");
        assert_eq!(wrap("    two  blanks", 80, 4), "    two  blanks");
    }

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
