//! Names that come from strangers and become paths: input files, cache ids, program names (C08, C20, WX08).
//!
//! A [`SafeName`] is the proof that a text was checked; files are only ever opened by one. Nothing here touches a file.

use std::fmt;

use thiserror::Error;

use crate::core::ids::is_reserved;
use crate::model::limits::QUOTE_CHARS_MAX;
use crate::worker::limits::{SEGMENT_BYTES_MAX, SEGMENTS_MAX};

/// What a name is for; it opens the error's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameUse {
    /// An input file in the job's directory.
    File,
    /// A dataset in the cache directory.
    Cache,
    /// A program in the exe directory.
    Program,
}

impl fmt::Display for NameUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameUse::File => "file name",
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
    /// It holds a byte that ends a path for the system.
    #[error("it holds a NUL byte: remove it")]
    Nul,
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

/// A relative path whose every segment is harmless.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SafeName {
    folders: Vec<String>,
    file: String,
}

impl SafeName {
    /// Checks a name that may have folders. `.` and doubled slashes are taken out.
    pub fn parse(of: NameUse, name: &str) -> Result<Self, NameError> {
        let refused = |rule| NameError { of, excerpt: excerpt(name), rule };
        let segments = check(name).map_err(refused)?;
        let Some((file, folders)) = segments.split_last() else { return Err(refused(NameRule::Empty)) };
        Ok(SafeName {
            folders: folders.iter().map(|folder| (*folder).to_owned()).collect(),
            file: (*file).to_owned(),
        })
    }

    /// Checks a program's name, which must be a single segment and is taken as it is.
    pub fn parse_program(name: &str) -> Result<Self, NameError> {
        let of = NameUse::Program;
        if name == ".." || name.contains(['/', '\\']) {
            return Err(NameError { of, excerpt: excerpt(name), rule: NameRule::Path });
        }
        Self::parse(of, name)
    }

    /// This name beneath another: `self/inner`.
    pub fn join(&self, inner: &SafeName) -> SafeName {
        let mut folders = self.folders.clone();
        folders.push(self.file.clone());
        folders.extend(inner.folders.iter().cloned());
        SafeName { folders, file: inner.file.clone() }
    }

    /// The outermost segment, and what is beneath it.
    pub fn split_first(&self) -> (&str, Option<SafeName>) {
        match self.folders.split_first() {
            Some((first, folders)) => {
                (first, Some(SafeName { folders: folders.to_vec(), file: self.file.clone() }))
            }
            None => (&self.file, None),
        }
    }

    /// The folders, outermost first.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        self.folders.iter().map(String::as_str)
    }

    /// The last segment.
    pub fn file(&self) -> &str {
        &self.file
    }
}

impl fmt::Display for SafeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for folder in &self.folders {
            write!(f, "{folder}/")?;
        }
        f.write_str(&self.file)
    }
}

fn check(name: &str) -> Result<Vec<&str>, NameRule> {
    if name.contains('\0') {
        return Err(NameRule::Nul);
    }
    if name.contains('\\') {
        return Err(NameRule::Backslash);
    }
    if name.starts_with('/') {
        return Err(NameRule::Absolute);
    }
    let segments: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if let Some(rule) = segments.iter().find_map(|segment| broken_rule(segment)) {
        return Err(rule);
    }
    match segments.len() {
        0 => Err(NameRule::Empty),
        _ if name.ends_with('/') || name.ends_with("/.") => Err(NameRule::Directory),
        parts if parts > SEGMENTS_MAX => Err(NameRule::Deep { segments: parts, limit: SEGMENTS_MAX }),
        _ => Ok(segments),
    }
}

fn broken_rule(segment: &str) -> Option<NameRule> {
    if segment == ".." {
        return Some(NameRule::Parent);
    }
    if segment.len() > SEGMENT_BYTES_MAX {
        return Some(NameRule::Long { bytes: segment.len(), limit: SEGMENT_BYTES_MAX });
    }
    match segment.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => return Some(NameRule::Drive),
        _ => {}
    }
    is_reserved(segment).then_some(NameRule::Reserved)
}

fn excerpt(name: &str) -> String {
    let mut shown: String = name.chars().take(QUOTE_CHARS_MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(QUOTE_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // One letter before a colon is a drive, so the last of them is the exception that proves the rule.
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
            ("a\0b", NameRule::Nul),
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
        let set = SafeName::parse(NameUse::Cache, "set/v1").unwrap();
        let file = SafeName::parse(NameUse::File, "data/a.bin").unwrap();
        assert_eq!(set.join(&file).to_string(), "set/v1/data/a.bin");
    }
}
