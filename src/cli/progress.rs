//! How something stands while it runs: lines that are written over and over on a terminal, with a
//! bar, a rate and the time that is left while bytes move; or a JSON object for each event;
//! elsewhere only what a log needs. `job_line.rs` shows jobs so, and `dataset/board.rs` puts.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::units::ByteSize;
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::terminal::{columns, cut, width};
use super::{about, err, is_quiet, printable, say};

/// Columns of a line where the terminal does not say how many it has, and on wider ones.
const COLUMNS_MAX: usize = 120;

/// The least and the most characters between the brackets of a bar. Below the least there is no
/// bar.
const BAR_CHARS: (usize, usize) = (8, 20);

/// Columns of a name that has to make room for what there is to say.
const NAME_COLUMNS_MIN: usize = 13;

/// What the rate is measured over: long enough to be steady, short enough to follow a change.
const RATE_OVER: Duration = Duration::from_secs(5);

/// How to show how far something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Progress {
    /// As a line on a terminal, elsewhere only what a log needs.
    #[default]
    Auto,
    /// As one JSON object for each event, on standard error.
    Json,
    /// Not at all.
    None,
}

/// Bytes that move: how fast, and how long until all have.
#[derive(Debug, Default)]
pub(super) struct Meter {
    seen: VecDeque<(Instant, u64)>,
}

impl Meter {
    /// Notes that so many bytes are done; gives the bytes a second of the last while, once there is
    /// one.
    pub(super) fn rate(&mut self, now: Instant, done: u64) -> Option<u64> {
        // After a break less may be done than before.
        if self.seen.back().is_some_and(|(_, before)| *before > done) {
            self.seen.clear();
        }
        self.seen.push_back((now, done));
        while self.seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_OVER) {
            self.seen.pop_front();
        }
        let (since, before) = *self.seen.front()?;
        let millis = now.duration_since(since).as_millis();
        let moved = u128::from(done.saturating_sub(before)) * 1000;
        moved.checked_div(millis).map(|rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// Seconds until all bytes have moved.
fn eta_s(done: u64, total: u64, rate: Option<u64>) -> Option<u64> {
    rate.filter(|rate| *rate > 0).map(|rate| total.saturating_sub(done).div_ceil(rate))
}

/// Where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Terminal,
    Log,
    Json,
    Nothing,
}

/// Where an event is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// Only on a terminal.
    Glance,
    /// Also in a log.
    Log,
    /// Everybody: it stays.
    Note,
}

/// Something that happened.
#[derive(Debug)]
pub(super) struct Said {
    /// In a word, for programs.
    pub(super) event: &'static str,
    /// Bytes that have moved, of how many.
    pub(super) bytes: Option<(u64, u64)>,
    /// How many do in a second.
    pub(super) rate: Option<u64>,
    /// For people.
    pub(super) text: String,
    /// What only this kind of event has, for programs.
    pub(super) more: Map<String, Value>,
}

impl Said {
    /// As a program reads it: `event`, what it is about, `done`, `total`, `bytes_per_s`, `eta_s`
    /// and `text`, null where they say nothing.
    pub(super) fn as_json(&self, (kind, id): (&str, &str)) -> Value {
        let mut members = self.more.clone();
        let eta = self.bytes.and_then(|(done, total)| eta_s(done, total, self.rate));
        members.extend(
            [
                ("event", json!(self.event)),
                (kind, json!(id)),
                ("done", json!(self.bytes.map(|(done, _)| done))),
                ("total", json!(self.bytes.map(|(_, total)| total))),
                ("bytes_per_s", json!(self.rate)),
                ("eta_s", json!(eta)),
                ("text", json!(self.text)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        Value::Object(members)
    }
}

/// Says how one thing stands.
#[derive(Debug)]
pub(super) struct Teller {
    /// What it is, as a member of JSON objects.
    about: (&'static str, String),
    /// How lines call it.
    called: String,
    form: Form,
    started: Instant,
    head: String,
    /// Bytes that have moved, of how many, behind the head.
    bar: Option<(u64, u64)>,
    /// Lines below the first.
    rows: Vec<String>,
    /// Lines that are on the terminal.
    drawn: usize,
}

impl Teller {
    /// `quiet` leaves the terminal alone, unless JSON was asked for.
    pub(super) fn new(
        about: (&'static str, String),
        called: String,
        progress: Progress,
        quiet: bool,
    ) -> Self {
        let form = match progress {
            Progress::None => Form::Nothing,
            Progress::Json => Form::Json,
            Progress::Auto if is_quiet() => Form::Nothing,
            Progress::Auto if !quiet && io::stderr().is_terminal() => Form::Terminal,
            Progress::Auto => Form::Log,
        };
        let (started, head) = (Instant::now(), String::new());
        Teller { about, called, form, started, head, bar: None, rows: Vec::new(), drawn: 0 }
    }

    /// Whether there are lines to keep fresh.
    pub(super) fn is_live(&self) -> bool {
        self.form == Form::Terminal
    }

    /// Whether anybody wants to know.
    pub(super) fn is_on(&self) -> bool {
        self.form != Form::Nothing
    }

    /// Whether there is a use for what changes all the time.
    pub(super) fn follows(&self) -> bool {
        matches!(self.form, Form::Terminal | Form::Json)
    }

    /// What stands in the first line when it is drawn again, with a bar if bytes move.
    pub(super) fn set_head(&mut self, text: &str, bar: Option<(u64, u64)>) {
        text.clone_into(&mut self.head);
        self.bar = bar.filter(|(_, total)| *total > 0);
    }

    /// What stands below it.
    pub(super) fn set_rows(&mut self, rows: Vec<String>) {
        self.rows = rows;
    }

    /// Something happened. On a terminal what stands in its lines shows it.
    pub(super) fn tell(&mut self, said: &Said, worth: Worth) {
        match (self.form, worth) {
            (Form::Json, _) => self.write_json(&said.as_json((self.about.0, &self.about.1))),
            (Form::Log, Worth::Log | Worth::Note) | (Form::Terminal, Worth::Note) => {
                self.note(&format!("{}: {}", self.called, said.text));
            }
            (Form::Nothing, _)
            | (Form::Log, Worth::Glance)
            | (Form::Terminal, Worth::Glance | Worth::Log) => {}
        }
    }

    /// A line that stays.
    pub(super) fn note(&mut self, text: &str) {
        match self.form {
            Form::Nothing => {}
            Form::Json => {
                let (kind, id) = &self.about;
                self.write_json(&json!({"event": "note", *kind: id, "text": text}));
            }
            Form::Terminal | Form::Log => {
                self.clear();
                say(text);
            }
        }
    }

    fn write_json(&self, object: &Value) {
        err().write_all(format!("{object}\n").as_bytes()).ok();
    }

    /// Writes the lines over those that are there.
    pub(super) fn draw(&mut self) {
        if self.form != Form::Terminal {
            return;
        }
        let elapsed = about(Duration::from_secs(self.started.elapsed().as_secs()));
        // The last column stays free: what comes behind a full line depends on the terminal.
        let fits = columns(&io::stderr()).map_or(COLUMNS_MAX, |columns| columns.saturating_sub(1));
        let most = fits.min(COLUMNS_MAX);
        let plain = |line: &str| printable(line).replace('\n', " ");
        let first = first_line(&self.called, &elapsed, &plain(&self.head), self.bar, most);
        let rows = self.rows.iter().map(|row| cut(&plain(row), most).into_owned());
        let lines = std::iter::once(first).chain(rows).map(|line| format!("{line}\x1b[K"));
        // What was there before and is not any more goes at the end.
        let text = format!("{}{}\x1b[J", self.to_first(), lines.collect::<Vec<_>>().join("\n\r"));
        self.write(&text);
        self.drawn = self.rows.len() + 1;
    }

    /// Takes the lines off the terminal.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            self.write(&format!("{}\x1b[J", self.to_first()));
            self.drawn = 0;
        }
    }

    /// Moves to the beginning of the first line that is there.
    fn to_first(&self) -> String {
        match self.drawn {
            0 | 1 => "\r".to_owned(),
            lines => format!("\x1b[{}A\r", lines - 1),
        }
    }

    fn write(&self, text: &str) {
        err().write_all(text.as_bytes()).ok();
    }
}

/// The line that is drawn: the name makes room for what there is to say, and the bar has what is
/// left.
fn first_line(
    called: &str,
    elapsed: &str,
    head: &str,
    bar: Option<(u64, u64)>,
    columns: usize,
) -> String {
    let rest = format!("  {elapsed}  {head}");
    let brackets = " []".len();
    let least = if bar.is_some() { brackets + BAR_CHARS.0 } else { 0 };
    let for_name = columns.saturating_sub(width(&rest) + least).max(NAME_COLUMNS_MIN);
    let line = format!("{}{rest}", cut(called, for_name));
    let left = columns.saturating_sub(width(&line) + brackets).min(BAR_CHARS.1);
    match bar.filter(|_| left >= BAR_CHARS.0) {
        Some((done, total)) => format!("{line} [{}]", bar_of(done, total, left)),
        None => cut(&line, columns).into_owned(),
    }
}

/// So much of `of` as is done of the total.
fn share(done: u64, total: u64, of: u64) -> u64 {
    u64::try_from(u128::from(done) * u128::from(of) / u128::from(total.max(1))).unwrap_or(of)
}

fn bar_of(done: u64, total: u64, chars: usize) -> String {
    let filled = usize::try_from(share(done, total, chars as u64)).unwrap_or(chars).min(chars);
    std::iter::repeat_n('#', filled).chain(std::iter::repeat('-')).take(chars).collect()
}

/// How much has moved, the rate and the time that is left.
pub(super) fn moving(what: &str, done: u64, total: u64, rate: Option<u64>) -> String {
    let percent = share(done, total, 100);
    let mut text = format!("{what} {percent}%, {} of {}", ByteSize(done), ByteSize(total));
    if let Some(rate) = rate {
        text.push_str(&format!(", {}/s", ByteSize(rate)));
    }
    if let Some(eta) = eta_s(done, total, rate).filter(|_| done < total) {
        text.push_str(&format!(", {} left", about(Duration::from_secs(eta))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_line_fits_its_terminal_and_what_matters_most_is_there_on_all() {
        let called = "job 9aa6c89e-47e7-42c8-89ff-18edee83e619";
        let head = moving("uploading", 512 * MIB, 2048 * MIB, Some(256 * MIB));
        let line = |head: &str, bar, columns| first_line(called, "2s", head, bar, columns);
        let bar = Some((512 * MIB, 2048 * MIB));
        assert_eq!(line(&head, bar, 39), "job 9aa6c89e…  2s  uploading 25%, 512 …");
        assert_eq!(
            line(&head, bar, 79),
            "job 9aa6c89e…  2s  uploading 25%, 512 MiB of 2 GiB, 256 MiB/s, 6s left"
        );
        assert_eq!(
            line(&head, bar, 120),
            "job 9aa6c89e-47e7-42c8-89ff-18edee83e619  2s  uploading 25%, 512 MiB of 2 GiB, \
             256 MiB/s, 6s left [#####---------------]"
        );
        assert_eq!(line("running", None, 79), format!("{called}  2s  running"));
        let japanese = first_line("処理", "2s", "実行中：二番目の段階", Some((1, 2)), 39);
        assert_eq!(japanese, "処理  2s  実行中：二番目の段階");
        let japanese = first_line("処理", "2s", "実行中：二番目の段階", Some((1, 2)), 42);
        assert_eq!(japanese, "処理  2s  実行中：二番目の段階 [####-----]");
        assert_eq!(width(&japanese), 42);
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_starts_anew_when_less_is_done() {
        let mut meter = Meter::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(meter.rate(at(0), 0), None);
        assert_eq!(meter.rate(at(500), 50 * MIB), Some(100 * MIB));
        for second in 1..=20 {
            let rate = meter.rate(at(500 + second * 1000), 50 * MIB + second * 10 * MIB);
            if second > 6 {
                assert_eq!(rate, Some(10 * MIB), "only the last seconds count");
            }
        }
        assert_eq!(meter.rate(at(22_000), 5), None, "after a break");
        assert_eq!(meter.rate(at(23_000), 1005), Some(1000));
    }
}
