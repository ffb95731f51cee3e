//! Columns for people: as wide as what stands in them, numbers to the right.

use std::fmt::Display;

use super::printable;

/// The longest cell; what is longer is cut, and `--output json` has all of it.
const CELL_CHARS_MAX: usize = 60;

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
        let cut = |cell: String| {
            let cell = printable(&cell).replace('\n', " ");
            match cell.char_indices().nth(CELL_CHARS_MAX) {
                Some(_) => cell.chars().take(CELL_CHARS_MAX - 1).chain(['…']).collect(),
                None => cell,
            }
        };
        self.rows.push(cells.into_iter().map(cut).collect());
    }

    /// The table as text; nothing if there are no rows.
    pub(crate) fn render(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let width = |column: usize, head: &str| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([head.len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> =
            self.heads.iter().enumerate().map(|(column, (head, _))| width(column, head)).collect();
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| (*head).to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.heads).map(
                |((cell, width), (_, side))| match side {
                    Side::Left => format!("{cell:<width$}"),
                    Side::Right => format!("{cell:>width$}"),
                },
            );
            let line = cells.collect::<Vec<_>>().join("  ");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
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
        let text = table.render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("{:<60}     N", "NAME"));
        assert_eq!(lines[1], format!("{:<60}     7", "a"));
        assert_eq!(lines[2], format!("{:<60}  1000", "grün [2J"));
        assert_eq!(lines[3].chars().filter(|c| *c == 'x').count(), 59);
    }
}
