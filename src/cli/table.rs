//! Columns for people: as wide as what stands in them, numbers to the right.

use std::fmt::Display;

use super::printable;
use super::terminal::{columns, cut, width, wrap};

/// No column is cut to less than this, as long as there is another to leave out in its favour.
const COLUMN_CHARS_USEFUL: usize = 12;

/// No column is cut to less than this.
const COLUMN_CHARS_MIN: usize = 6;

/// What stands between two columns.
const GAP: &str = "  ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

pub(crate) struct Table {
    heads: Vec<(&'static str, Side)>,
    /// The columns that a narrow terminal leaves out, the first of them first.
    going: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: &[(&'static str, Side)]) -> Self {
        Table { heads: heads.to_vec(), going: &[], rows: Vec::new() }
    }

    /// The columns that go first where there is no room for all. The others follow from the right;
    /// the first column has what a row is called by, and stays.
    pub(crate) fn may_go(self, heads: &'static [&'static str]) -> Self {
        debug_assert!(heads.iter().all(|head| self.heads.iter().any(|(known, _)| known == head)));
        Table { going: heads, ..self }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let line = |cell: String| printable(&cell).replace('\n', " ");
        self.rows.push(cells.into_iter().map(line).collect());
    }

    /// The table as text; nothing if there are no rows. On a terminal it is as wide as that, unless
    /// it cannot be.
    pub(crate) fn render(&self) -> String {
        self.render_within(stdout_columns())
    }

    fn render_within(&self, columns: Option<usize>) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let widest = |column: usize, head: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell));
            cells.chain([head.len()]).max().unwrap_or(0)
        };
        let column = |(at, (head, side)): (usize, &(&'static str, Side))| Column {
            at,
            head,
            side: *side,
            width: widest(at, head),
        };
        let mut shown: Vec<Column> = self.heads.iter().enumerate().map(column).collect();
        if let Some(columns) = columns {
            shown = self.fit(shown, columns);
        }
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| (*head).to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let cells = shown.iter().filter_map(|column| Some((column, row.get(column.at)?)));
            let cells = cells.map(|(column, cell)| padded(cell, column.width, column.side));
            let line = cells.collect::<Vec<_>>().join(GAP);
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// What is shown of the columns on so many of the terminal: texts are cut, and if that is not
    /// enough, columns are left out.
    fn fit(&self, mut shown: Vec<Column>, columns: usize) -> Vec<Column> {
        loop {
            let has = |head: &&&str| shown.iter().skip(1).any(|column| column.head == **head);
            let goes = self.going.iter().find(has).copied();
            let least = if goes.is_some() { COLUMN_CHARS_USEFUL } else { COLUMN_CHARS_MIN };
            let narrow = narrowed(shown.clone(), columns, least);
            if narrow.len() <= 1 || line_width(&narrow) <= columns {
                return narrow;
            }
            match goes {
                Some(head) => shown.retain(|column| column.head != head),
                None => shown.truncate(shown.len() - 1),
            }
        }
    }
}

/// A column as it is shown.
#[derive(Clone, Copy, Debug)]
struct Column {
    /// Its place in a row.
    at: usize,
    head: &'static str,
    side: Side,
    width: usize,
}

fn line_width(shown: &[Column]) -> usize {
    let widths: usize = shown.iter().map(|column| column.width).sum();
    widths + GAP.len() * shown.len().saturating_sub(1)
}

/// Makes the widest column of text narrower until the lines fit, or there is none left that is
/// wider than `least`.
fn narrowed(mut shown: Vec<Column>, columns: usize, least: usize) -> Vec<Column> {
    while line_width(&shown) > columns {
        let texts = shown.iter_mut().skip(1).filter(|column| {
            column.side == Side::Left && column.width > column.head.len().max(least)
        });
        // Of those that are as wide, the last.
        let Some(widest) = texts.max_by_key(|column| column.width) else { break };
        widest.width -= 1;
    }
    shown
}

/// A cell with blanks up to so many columns.
fn padded(cell: &str, columns: usize, side: Side) -> String {
    let cell = match side {
        Side::Left => cut(cell, columns),
        Side::Right => cell.into(),
    };
    let blanks = " ".repeat(columns.saturating_sub(width(&cell)));
    match side {
        Side::Left => format!("{cell}{blanks}"),
        Side::Right => format!("{blanks}{cell}"),
    }
}

/// How wide standard output is, if that is a terminal.
fn stdout_columns() -> Option<usize> {
    // What a test expects does not depend on where it runs.
    if cfg!(test) { None } else { columns(&std::io::stdout()) }
}

/// Lines for people: wrapped between words on a terminal, and as they are in a pipe.
pub(crate) fn prose(text: String) -> String {
    match stdout_columns() {
        Some(columns) => wrap(&text, columns),
        None => text,
    }
}

/// A text of a leader as people read it; `-` if it says nothing.
pub(super) fn text(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { printable(text) }
}

/// A value as people read it; `-` if the leader does not say it.
pub(super) fn said<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| text(&value.to_string()))
}

pub(super) fn yes_or_no(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_stands_in_them() {
        let mut table = Table::new(&[("NAME", Side::Left), ("N", Side::Right)]);
        assert_eq!(table.render(), "");
        table.row(["a".to_owned(), "7".to_owned()]);
        table.row(["grün\u{1b}[2J".to_owned(), "1000".to_owned()]);
        table.row(["x".repeat(80), String::new()]);
        table.row(["処理".to_owned(), "3".to_owned()]);
        let text = table.render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[4], format!("処理{}     3", " ".repeat(76)), "they are twice as wide");
        assert_eq!(lines[0], format!("{:<80}     N", "NAME"));
        assert_eq!(lines[1], format!("{:<80}     7", "a"));
        assert_eq!(lines[2], format!("{:<80}  1000", "grün [2J"));
        assert_eq!(lines[3], "x".repeat(80), "what is piped is not cut");
    }

    #[test]
    fn on_a_terminal_texts_are_cut_then_columns_go_and_the_first_one_never() {
        let heads =
            [("JOB", Side::Left), ("EXEC", Side::Left), ("N", Side::Right), ("WHY", Side::Left)];
        let mut table = Table::new(&heads).may_go(&["EXEC"]);
        let cells = ["0123456789", "calculate", "12345", "all workers are busy"];
        table.row(cells.map(str::to_owned));
        let at = |columns| table.render_within(Some(columns)).lines().last().unwrap().to_owned();
        assert_eq!(at(50), "0123456789  calculate  12345  all workers are busy");
        assert_eq!(at(49), "0123456789  calculate  12345  all workers are bu…");
        assert_eq!(at(42), "0123456789  calculate  12345  all workers…");
        // No narrower than this as long as there is a column that may go.
        assert_eq!(at(41), "0123456789  12345  all workers are busy");
        // And then no narrower than this: the others go from the right.
        assert_eq!(at(25), "0123456789  12345  all w…");
        assert_eq!(at(24), "0123456789  12345");
        assert_eq!((at(12), at(1)), ("0123456789".to_owned(), "0123456789".to_owned()));
        assert_eq!(table.render_within(Some(20)).lines().next(), Some("JOB             N"));
        for columns in 10..60 {
            let shown = table.render_within(Some(columns));
            assert!(shown.lines().all(|line| width(line) <= columns), "{columns}: {shown}");
        }
    }
}
