//! What is known of the terminal, if there is one.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What stands between a label at the beginning of a line and what it is of, at least.
const LABEL_GAP: &str = "  ";

/// No label is wider.
const LABEL_COLUMNS_MAX: usize = 16;

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

/// A text in lines that fit so many columns. A line goes on below its own beginning; a word that is
/// wider than a line, such as a path, stays whole.
pub(crate) fn wrap(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        wrap_line(line, columns, &mut wrapped);
        wrapped.push_str(end);
    }
    wrapped
}

/// Blanks before what a line goes on with: those that it begins with, or the width of its label.
fn indent_of(line: &str) -> usize {
    let after_blanks = line.trim_start_matches(' ');
    if after_blanks.len() < line.len() {
        return line.len() - after_blanks.len();
    }
    match line.split_once(LABEL_GAP) {
        Some((label, rest)) if width(label) <= LABEL_COLUMNS_MAX => {
            width(label) + LABEL_GAP.len() + (rest.len() - rest.trim_start_matches(' ').len())
        }
        Some(_) | None => 0,
    }
}

fn wrap_line(line: &str, columns: usize, wrapped: &mut String) {
    if width(line) <= columns {
        return wrapped.push_str(line);
    }
    let indent = indent_of(line).min(columns / 2);
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
        assert_eq!(wrap("one two", 7), "one two");
        assert_eq!(wrap("one two\nthree four", 7), "one two\nthree\nfour");
        assert_eq!(wrap("why   all of them", 12), "why   all of\n      them");
        assert_eq!(wrap("why   /a/long/path", 12), "why   /a/long/path");
        assert_eq!(wrap("処理 処理 ok\n", 9), "処理 処理\nok\n");
        assert_eq!(wrap("    two  blanks", 80), "    two  blanks");
        assert_eq!(wrap("    two  blanks here", 15), "    two  blanks\n    here");
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
