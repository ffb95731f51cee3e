//! Columns for people: as wide as what stands in them, numbers to the right.

use std::fmt::Display;

use super::printable;
use super::terminal::{columns, cut, width};

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
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: &[(&'static str, Side)]) -> Self {
        Table { heads: heads.to_vec(), rows: Vec::new() }
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
        let mut widths: Vec<usize> =
            self.heads.iter().enumerate().map(|(column, (head, _))| widest(column, head)).collect();
        if let Some(columns) = columns {
            self.fit(&mut widths, columns);
        }
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| (*head).to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.heads);
            let cells = cells.map(|((cell, width), (_, side))| padded(cell, *width, *side));
            let line = cells.collect::<Vec<_>>().join(GAP);
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Makes the widest column of text narrower until the lines fit. The first column has what a
    /// row is called by, and stays whole.
    fn fit(&self, widths: &mut [usize], columns: usize) {
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        loop {
            let over = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
            let widest = widths.iter_mut().zip(&self.heads).skip(1);
            let widest = widest.filter(|(width, (head, side))| {
                *side == Side::Left && **width > head.len().max(COLUMN_CHARS_MIN)
            });
            let widest = widest.map(|(width, _)| width).max();
            match widest {
                Some(width) if over > 0 => *width -= 1,
                Some(_) | None => return,
            }
        }
    }
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
    fn on_a_terminal_the_widest_text_is_cut_and_the_first_column_never() {
        let heads =
            [("JOB", Side::Left), ("EXEC", Side::Left), ("N", Side::Right), ("WHY", Side::Left)];
        let mut table = Table::new(&heads);
        let cells = ["0123456789", "calculate", "12345", "all workers are busy"];
        table.row(cells.map(str::to_owned));
        let at = |columns| table.render_within(Some(columns)).lines().last().unwrap().to_owned();
        assert_eq!(at(50), "0123456789  calculate  12345  all workers are busy");
        assert_eq!(at(49), "0123456789  calculate  12345  all workers are bu…");
        assert_eq!(at(40), "0123456789  calculate  12345  all worke…");
        assert_eq!(at(36), "0123456789  calcula…  12345  all wo…");
        // No narrower than this.
        assert_eq!(at(1), "0123456789  calcu…  12345  all w…");
        assert_eq!(
            table.render_within(Some(1)).lines().next(),
            Some("JOB         EXEC        N  WHY")
        );
    }
}
