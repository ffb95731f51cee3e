//! Validates untrusted names that become paths: input files, dataset files, cache ids, program
//! names (C08, C20, WX08).
//!
//! A [`SafeName`] proves that a text was checked, and files are only opened by one. Clients, leader
//! and workers all use these checks, so none accepts a name the next refuses. Nothing here touches
//! a file.

mod conflicts;
mod flat;

use std::fmt;

use thiserror::Error;

pub use self::conflicts::{
    Case, Clash, DatasetNameError, InputNamesError, clash, fit_in_dataset, input_names,
    names_of_dataset,
};
pub use self::flat::{FlatError, flattened, is_flat, without_folders};
use super::limits::{MADE_SEGMENTS_MAX, QUOTED_CHARS_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX};

/// What a name is for; it opens the error's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameUse {
    /// A file: an input in the job's directory, or one of a dataset.
    File,
    /// A file that a job made, beneath the directory that a client wants its results in.
    Made,
    /// A dataset in the cache directory, perhaps with a file of it.
    Cache,
    /// A program in the exe directory.
    Program,
}

impl fmt::Display for NameUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameUse::File | NameUse::Made => "file name",
            NameUse::Cache => "cache id",
            NameUse::Program => "exec name",
        })
    }
}

/// The rule that a name breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameRule {
    /// Nothing is left of it.
    #[error("it is empty: give it at least one character")]
    Empty,
    /// It starts at the root.
    #[error("it is absolute: leave out the '/' at the start")]
    Absolute,
    /// It leads upwards.
    #[error("it holds \"..\": leave that out")]
    Parent,
    /// It ends with a slash.
    #[error("it ends with '/', as a directory: name a file")]
    Directory,
    /// It is a path where one file name is needed.
    #[error("it must be one file name in the exe directory, without a path")]
    Path,
    /// It holds NUL, which ends a path for the system, or another character that has no shape.
    #[error("it holds the control character U+{code:04X}: remove it")]
    Control { code: u32 },
    /// It holds what separates paths elsewhere.
    #[error("it holds '\\': separate folders with '/'")]
    Backslash,
    /// It names a drive.
    #[error("it starts with a drive such as \"C:\": give a relative name")]
    Drive,
    /// It is a device on some systems.
    #[error(
        "\"CON\", \"PRN\", \"AUX\", \"NUL\", \"COM1\" to \"LPT9\" are reserved, with any ending: choose another"
    )]
    Reserved,
    /// A segment is longer than a file system takes.
    #[error("a part of it has {bytes} bytes; at most {limit} are taken: shorten it")]
    Long {
        /// Bytes of the segment.
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// Too many folders.
    #[error("it has {segments} parts; at most {limit} are taken: use fewer folders")]
    Deep {
        /// Parts it has.
        segments: usize,
        /// What is taken.
        limit: usize,
    },
    /// It could be written shorter.
    #[error("it is not in its plain form: leave out \".\" and doubled '/'")]
    Form,
    /// A segment ends with what some systems leave out.
    #[error("a part of it ends with '{0}', which some systems leave out: rename it")]
    Trailing(char),
}

/// A name that may not become a path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid {of}: \"{excerpt}\": {rule}")]
pub struct NameError {
    /// What the name was for.
    pub of: NameUse,
    /// The name, escaped and cut.
    pub excerpt: String,
    /// The rule it breaks.
    pub rule: NameRule,
}

/// A relative path whose every segment is harmless, in its plain form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SafeName(String);

impl SafeName {
    /// Checks a name that may have folders. `.` and doubled slashes are taken out.
    pub fn parse(of: NameUse, name: &str) -> Result<Self, NameError> {
        checked(of, name, plain)
    }

    /// Checks a program's name, which must be a single segment and is taken as it is.
    pub fn parse_program(name: &str) -> Result<Self, NameError> {
        let one = |name: &str| {
            if name == ".." || name.contains(['/', '\\']) {
                Err(NameRule::Path)
            } else {
                plain(name)
            }
        };
        checked(NameUse::Program, name, one)
    }

    /// Checks the name of a file of a dataset. It is taken as it is, or not at all: a dataset is
    /// known by its list of names. A dataset goes to many systems, so that what only some of them
    /// take is refused, too. A job's own files go to one worker of ours, and may have such names
    /// (C08).
    pub fn parse_in_dataset(name: &str) -> Result<Self, NameError> {
        checked(NameUse::File, name, plain_everywhere)
    }

    /// Checks the name of a file or directory that a job made, which is taken as it is, or not at
    /// all. It comes from a Linux system and goes to one, where colons and backslashes are
    /// characters like others.
    pub fn parse_made(name: &str) -> Result<Self, NameError> {
        checked(NameUse::Made, name, plain_here)
    }

    /// This name beneath another: `self/inner`.
    pub fn join(&self, inner: &SafeName) -> SafeName {
        SafeName(format!("{self}/{inner}"))
    }

    /// The outermost segment, and what is beneath it.
    pub fn split_first(&self) -> (&str, Option<SafeName>) {
        match self.0.split_once('/') {
            Some((first, inner)) => (first, Some(SafeName(inner.to_owned()))),
            None => (&self.0, None),
        }
    }

    /// The folders, outermost first.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        self.0.rsplit_once('/').into_iter().flat_map(|(folders, _)| folders.split('/'))
    }

    /// The name of another file beside this one.
    pub fn beside(&self, file: &str) -> Result<SafeName, NameError> {
        match self.0.rsplit_once('/') {
            Some((folder, _)) => SafeName::parse_made(&format!("{folder}/{file}")),
            None => SafeName::parse_made(file),
        }
    }

    /// The folders as names of their own, outermost first: `a` and `a/b` of `a/b/c`.
    pub fn ancestors(&self) -> impl Iterator<Item = SafeName> {
        let ends = self.0.match_indices('/').map(|(end, _)| end);
        ends.filter_map(|end| self.0.get(..end)).map(|folder| SafeName(folder.to_owned()))
    }

    /// The folders and what is in the last one.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The last segment.
    pub fn file(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, file)| file)
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SafeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<SafeName> for String {
    fn from(name: SafeName) -> String {
        name.0
    }
}

/// Checks only that a name does not lead out of the directory it is looked for in, on any system.
/// Workers of the older system follow whatever they are given, and may take names that ours do not.
pub fn stays_inside(of: NameUse, name: &str) -> Result<(), NameError> {
    let rule = if name.starts_with(['/', '\\']) {
        NameRule::Absolute
    } else if name.contains('\0') {
        // Where that ends a name, another one is left.
        NameRule::Control { code: 0 }
    } else if name.split(['/', '\\']).any(|segment| segment.trim_end_matches(' ') == "..") {
        // Some systems leave the spaces out.
        NameRule::Parent
    } else if has_drive(name) {
        NameRule::Drive
    } else {
        return Ok(());
    };
    Err(NameError { of, excerpt: excerpt(name), rule })
}

fn checked(
    of: NameUse,
    name: &str,
    rules: impl FnOnce(&str) -> Result<String, NameRule>,
) -> Result<SafeName, NameError> {
    rules(name).map(SafeName).map_err(|rule| NameError { of, excerpt: excerpt(name), rule })
}

fn plain(name: &str) -> Result<String, NameRule> {
    if name.contains('\0') {
        return Err(NameRule::Control { code: 0 });
    }
    if name.contains('\\') {
        return Err(NameRule::Backslash);
    }
    if name.starts_with('/') {
        return Err(NameRule::Absolute);
    }
    let segments: Vec<&str> =
        name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if let Some(rule) = segments.iter().find_map(|segment| broken_rule(segment)) {
        return Err(rule);
    }
    match segments.len() {
        0 => Err(NameRule::Empty),
        _ if name.ends_with('/') || name.ends_with("/.") => Err(NameRule::Directory),
        parts if parts > SEGMENTS_MAX => {
            Err(NameRule::Deep { segments: parts, limit: SEGMENTS_MAX })
        }
        _ => Ok(segments.join("/")),
    }
}

fn plain_everywhere(name: &str) -> Result<String, NameRule> {
    let plain = plain(name)?;
    if plain != name {
        return Err(NameRule::Form);
    }
    if let Some(control) = control(name) {
        return Err(NameRule::Control { code: control.into() });
    }
    match name.split('/').find_map(trailing) {
        Some(last) => Err(NameRule::Trailing(last)),
        None => Ok(plain),
    }
}

/// Only what leads elsewhere is refused, and what makes directories without end.
fn plain_here(name: &str) -> Result<String, NameRule> {
    if name.contains('\0') {
        return Err(NameRule::Control { code: 0 });
    }
    if name.starts_with('/') {
        return Err(NameRule::Absolute);
    }
    if name.is_empty() {
        return Err(NameRule::Empty);
    }
    let segments = name.split('/').count();
    if segments > MADE_SEGMENTS_MAX {
        return Err(NameRule::Deep { segments, limit: MADE_SEGMENTS_MAX });
    }
    let broken = name.split('/').find_map(|segment| match segment {
        ".." => Some(NameRule::Parent),
        "" | "." => Some(NameRule::Form),
        long if long.len() > SEGMENT_BYTES_MAX => {
            Some(NameRule::Long { bytes: long.len(), limit: SEGMENT_BYTES_MAX })
        }
        _ => None,
    });
    broken.map_or_else(|| Ok(name.to_owned()), Err)
}

fn broken_rule(segment: &str) -> Option<NameRule> {
    if segment == ".." {
        return Some(NameRule::Parent);
    }
    if segment.len() > SEGMENT_BYTES_MAX {
        return Some(NameRule::Long { bytes: segment.len(), limit: SEGMENT_BYTES_MAX });
    }
    if has_drive(segment) {
        return Some(NameRule::Drive);
    }
    is_reserved(segment).then_some(NameRule::Reserved)
}

/// The first character that has no shape.
pub(super) fn control(text: &str) -> Option<char> {
    text.chars().find(|char| char.is_control())
}

/// What some systems leave out at the end of a segment.
pub(super) fn trailing(segment: &str) -> Option<char> {
    segment.chars().next_back().filter(|last| matches!(last, '.' | ' '))
}

/// Whether a segment starts with a drive.
pub(super) fn has_drive(segment: &str) -> bool {
    matches!(segment.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

/// Whether a segment is a device on some systems, with any ending.
pub(super) fn is_reserved(segment: &str) -> bool {
    let stem = segment.split('.').next().unwrap_or(segment).trim_end();
    let plain = ["con", "prn", "aux", "nul"].iter().any(|name| stem.eq_ignore_ascii_case(name));
    let numbered = match stem.as_bytes() {
        [a, b, c, b'1'..=b'9'] => {
            let device = [*a, *b, *c];
            device.eq_ignore_ascii_case(b"com") || device.eq_ignore_ascii_case(b"lpt")
        }
        _ => false,
    };
    plain || numbered
}

/// A text as errors show it: escaped, and cut.
pub(super) fn excerpt(text: &str) -> String {
    let mut shown: String =
        text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_job_made_has_any_name_that_stays_beneath_its_directory() {
        for name in
            ["a", "a/b.txt", "12:30.log", "c:\\", "..\\up", "con", "a ", "x\n", "...", "a..b"]
        {
            assert_eq!(SafeName::parse_made(name).as_ref().map(SafeName::as_str), Ok(name));
        }
        let deep = vec!["d"; MADE_SEGMENTS_MAX + 1].join("/");
        let long = "x".repeat(SEGMENT_BYTES_MAX + 1);
        for name in ["", "/a", "..", "a/../b", "./a", "a//b", "a/", "nul\0", &deep, &long] {
            assert!(SafeName::parse_made(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_leads_out_of_a_directory_on_any_system_is_told_from_what_is_only_odd() {
        for name in
            ["calcA", "sub/calcA", "a..b", "..a", "nul", "ab:c", "data\\x", "", "x/", "a//b"]
        {
            assert_eq!(stays_inside(NameUse::Program, name), Ok(()), "{name}");
        }
        for (name, rule) in [
            ("/etc/hostname", NameRule::Absolute),
            ("\\\\host\\share", NameRule::Absolute),
            ("../x", NameRule::Parent),
            ("a/../../x", NameRule::Parent),
            ("a\\..\\x", NameRule::Parent),
            ("..", NameRule::Parent),
            (".. ", NameRule::Parent),
            ("a/..  /x", NameRule::Parent),
            ("..\0", NameRule::Control { code: 0 }),
            ("set\0/x", NameRule::Control { code: 0 }),
            ("c:/x", NameRule::Drive),
        ] {
            assert_eq!(stays_inside(NameUse::Cache, name).unwrap_err().rule, rule, "{name}");
        }
    }

    #[test]
    fn c08_relative_names_are_taken_after_normalisation() {
        for (name, path) in [
            ("input.txt", "input.txt"),
            ("data/a.bin", "data/a.bin"),
            ("./data//./a.bin", "data/a.bin"),
            ("..a/...", "..a/..."),
            ("größe ✓.csv", "größe ✓.csv"),
            ("console/com10/nullable", "console/com10/nullable"),
            ("a:b", "a:b"),
        ] {
            // One letter before a colon is a drive, so the last of them is the exception that
            // proves the rule.
            match SafeName::parse(NameUse::File, name) {
                Ok(safe) => assert_eq!(safe.to_string(), path),
                Err(error) => assert_eq!((name, error.rule), ("a:b", NameRule::Drive)),
            }
        }
        let longest = "x".repeat(255);
        assert_eq!(SafeName::parse(NameUse::File, &longest).unwrap().file(), longest);
    }

    #[test]
    fn c08_names_that_lead_elsewhere_are_refused_with_value_and_rule() {
        let deep = "a/".repeat(32) + "b";
        let long = "x".repeat(300);
        for (name, rule) in [
            ("", NameRule::Empty),
            (".", NameRule::Empty),
            ("./", NameRule::Empty),
            ("/etc/passwd", NameRule::Absolute),
            ("/", NameRule::Absolute),
            ("..", NameRule::Parent),
            ("../x", NameRule::Parent),
            ("a/../../x", NameRule::Parent),
            ("a/b/", NameRule::Directory),
            ("a/.", NameRule::Directory),
            ("a\0b", NameRule::Control { code: 0 }),
            ("..\\x", NameRule::Backslash),
            ("C:x", NameRule::Drive),
            ("a/c:/x", NameRule::Drive),
            ("nul", NameRule::Reserved),
            ("a/Com7.txt", NameRule::Reserved),
            (deep.as_str(), NameRule::Deep { segments: 33, limit: 32 }),
            (long.as_str(), NameRule::Long { bytes: 300, limit: 255 }),
        ] {
            let error = SafeName::parse(NameUse::File, name).unwrap_err();
            assert_eq!(error.rule, rule, "{name:?}");
            let text = error.to_string();
            assert!(text.starts_with("invalid file name: \"") && text.len() < 400, "{text}");
        }
        let text = SafeName::parse(NameUse::File, "a\0\n").unwrap_err().to_string();
        assert!(text.contains(r#""a\0\n""#), "{text}");
    }

    #[test]
    fn c08_a_name_in_a_dataset_is_one_everywhere_and_is_taken_as_it_is() {
        let longest = "x".repeat(255);
        for name in ["data/a.bin", "cfg/b.cfg", "größe ✓", "a..b", ".hidden/..a", " a", &longest]
        {
            assert_eq!(SafeName::parse_in_dataset(name).unwrap().as_str(), name);
        }
        let (deep, long) = ("d/".repeat(40) + "f", "x".repeat(256));
        for (name, rule) in [
            ("", NameRule::Empty),
            (".", NameRule::Empty),
            ("/etc/passwd", NameRule::Absolute),
            ("a//b", NameRule::Form),
            ("./a", NameRule::Form),
            ("a/./b", NameRule::Form),
            ("a/", NameRule::Directory),
            ("..", NameRule::Parent),
            ("a/../b", NameRule::Parent),
            ("a\\b", NameRule::Backslash),
            ("a\0b", NameRule::Control { code: 0 }),
            ("a/b\n", NameRule::Control { code: 10 }),
            ("a\u{85}", NameRule::Control { code: 0x85 }),
            ("C:x", NameRule::Drive),
            ("a/c:/x", NameRule::Drive),
            ("nul.txt", NameRule::Reserved),
            ("b.", NameRule::Trailing('.')),
            ("a. ", NameRule::Trailing(' ')),
            ("sub./x", NameRule::Trailing('.')),
            ("a/...", NameRule::Trailing('.')),
            (&deep, NameRule::Deep { segments: 41, limit: 32 }),
            (&long, NameRule::Long { bytes: 256, limit: 255 }),
        ] {
            let error = SafeName::parse_in_dataset(name).unwrap_err();
            assert_eq!((error.of, error.rule), (NameUse::File, rule), "{name:?}");
        }
        let shown = SafeName::parse_in_dataset("a\n").unwrap_err().to_string();
        assert_eq!(
            shown,
            r#"invalid file name: "a\n": it holds the control character U+000A: remove it"#
        );
    }

    proptest! {
        #[test]
        fn what_is_taken_has_one_spelling_and_leads_nowhere_else(name in "[a-cN./\\\\: \0\n]{0,12}") {
            if let Ok(safe) = SafeName::parse(NameUse::File, &name) {
                prop_assert_eq!(&SafeName::parse(NameUse::File, safe.as_str()).unwrap(), &safe);
                let segments: Vec<&str> = safe.folders().chain([safe.file()]).collect();
                prop_assert_eq!(segments.join("/"), safe.as_str());
                prop_assert!(segments.iter().all(|segment| !["", ".", ".."].contains(segment)));
                let (first, inner) = safe.split_first();
                let whole = inner.map_or(first.to_owned(), |inner| format!("{first}/{inner}"));
                prop_assert_eq!(whole, safe.as_str());
            }
            if let Ok(strict) = SafeName::parse_in_dataset(&name) {
                prop_assert_eq!(strict.as_str(), &name);
                prop_assert_eq!(SafeName::parse(NameUse::File, &name).unwrap(), strict, "a dataset takes no more than a job");
            }
        }
    }

    #[test]
    fn c20_a_program_is_one_segment() {
        assert_eq!(SafeName::parse_program("calcA").unwrap().file(), "calcA");
        for name in ["bin/calcA", "./calcA", "../x", "..", "/bin/sh", "calcA/", "..\\x"] {
            let refused = SafeName::parse_program(name).unwrap_err();
            assert_eq!(refused.rule, NameRule::Path, "{name:?}");
            let text = refused.to_string();
            assert!(text.starts_with("invalid exec name: "), "{text}");
            assert!(
                text.ends_with("it must be one file name in the exe directory, without a path"),
                "{text}"
            );
        }
        assert_eq!(SafeName::parse_program("").unwrap_err().rule, NameRule::Empty);
        assert_eq!(SafeName::parse_program(".").unwrap_err().rule, NameRule::Empty);
    }

    #[test]
    fn names_join_beneath_each_other() {
        let dataset = SafeName::parse(NameUse::Cache, "set/v1").unwrap();
        let file = SafeName::parse(NameUse::File, "data/a.bin").unwrap();
        assert_eq!(dataset.join(&file).to_string(), "set/v1/data/a.bin");
    }
}
