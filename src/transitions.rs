//! Tables of state machines as text: which state follows on which event. A file beside the machine
//! has its table, so that a change of the machine is a change that a reader sees, cell by cell.

use std::fmt::Write as _;

/// A state: its name, and how a machine gets there.
pub(crate) type State<M> = (&'static str, fn() -> M);

/// An event: its name, and how it is told.
pub(crate) type Event<M> = (&'static str, fn(&mut M));

/// Set to write the tables anew.
const UPDATE: &str = "HEFT_UPDATE_TABLES";

/// Compares the table of a machine to the one in the file at this path in the repository.
pub(crate) fn assert_table<M>(
    path: &str,
    states: &[State<M>],
    events: &[Event<M>],
    name: impl Fn(&M) -> String,
) {
    let found = table(states, events, name);
    let file = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&file, &found).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        known == found,
        "the machine's transitions are not those in {path}. If that is meant, write the table anew with\n\n    \
         {UPDATE}=1 cargo nextest run -p heft --lib transition_table\n\nand see in `git diff` what changed. Now they are:\n\n{found}"
    );
}

fn table<M>(states: &[State<M>], events: &[Event<M>], name: impl Fn(&M) -> String) -> String {
    let mut rows: Vec<Vec<String>> = vec![["event".to_owned()].into()];
    rows[0].extend(states.iter().map(|(state, _)| (*state).to_owned()));
    for (event, tell) in events {
        let mut row = vec![(*event).to_owned()];
        for (state, make) in states {
            let mut machine = make();
            assert_eq!(name(&machine), *state, "a state is not what it is called");
            tell(&mut machine);
            let next = name(&machine);
            row.push(if next == *state { "-".to_owned() } else { next });
        }
        rows.push(row);
    }
    let widths: Vec<usize> =
        (0..=states.len()).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap()).collect();
    let mut text =
        "Which state follows (columns: before; `-`: the same). Written by a test.\n\n".to_owned();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join(" | ");
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_event_and_a_column_for_each_state() {
        let states: [State<u32>; 2] = [("zero", || 0), ("one", || 1)];
        let events: [Event<u32>; 2] = [("up", |n| *n += 1), ("reset", |n| *n = 0)];
        let name = |n: &u32| ["zero", "one", "more"][*n as usize].to_owned();
        let lines: Vec<String> =
            table(&states, &events, name).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(lines, ["event | zero | one", "up    | one  | more", "reset | -    | zero"]);
    }
}
