//! Names of the files of a set, as clients write them. They become paths on many systems, so what could lead elsewhere, is no name
//! somewhere or is the same as another there is refused here (C08), before any worker sees it.

use std::collections::HashMap;

use crate::core::ids::is_reserved;
use crate::core::limits::{QUOTED_CHARS_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX};

/// Checks the names of one set, each by itself and all together; gives what is wrong with the first bad one.
pub(super) fn check<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let mut files: HashMap<String, &str> = HashMap::new();
    for name in names {
        if let Some(wrong) = wrong_with(name) {
            return Err(format!("invalid file name: {}: {wrong}", quoted(name)));
        }
        if let Some(other) = files.insert(name.to_lowercase(), name) {
            let (name, other) = (quoted(name), quoted(other));
            return Err(format!("invalid file name: {name} and {other} differ in case alone: rename one"));
        }
    }
    let is_file = |folder: &str| files.get(folder).copied();
    for folded in files.keys() {
        let ends = folded.match_indices('/').map(|(end, _)| end);
        let folders = ends.filter_map(|end| folded.get(..end));
        if let Some(name) = folders.filter_map(is_file).next() {
            let name = quoted(name);
            return Err(format!("invalid file name: {name} is a folder of another file: rename one"));
        }
    }
    Ok(())
}

fn wrong_with(name: &str) -> Option<String> {
    let has_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
        .then_some("it names a drive");
    let character = name.chars().find_map(|char| match char {
        '\\' => Some("it holds '\\': separate folders with '/'"),
        char if char.is_control() => Some("it holds a control character"),
        _ => None,
    });
    if let Some(wrong) = has_drive.or(character) {
        return Some(wrong.to_owned());
    }
    let parts = name.split('/').count();
    if parts > SEGMENTS_MAX {
        return Some(format!("it has {parts} parts; at most {SEGMENTS_MAX} are taken: use fewer folders"));
    }
    name.split('/').find_map(|part| match part {
        "" => {
            Some("it is empty, absolute, ends with '/' or has \"//\": give a plain relative name".to_owned())
        }
        "." | ".." => Some("it holds \".\" or \"..\" as a part: leave that out".to_owned()),
        part if part.ends_with(['.', ' ']) => {
            Some("a part of it ends with '.' or ' ', which some systems leave out".to_owned())
        }
        part if is_reserved(part) => Some("a part of it is the name of a device on some systems".to_owned()),
        part if part.len() > SEGMENT_BYTES_MAX => Some(format!(
            "a part of it has {} bytes; at most {SEGMENT_BYTES_MAX} are taken: shorten it",
            part.len()
        )),
        _ => None,
    })
}

fn quoted(name: &str) -> String {
    let shown: String = name.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    let more = if name.chars().nth(QUOTED_CHARS_MAX).is_some() { "…" } else { "" };
    format!("\"{shown}{more}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c08_names_of_a_set_are_plain_relative_and_cannot_be_taken_for_one_another() {
        assert_eq!(check(["data/a.bin", "cfg/b.cfg", "größe ✓", "a..b"]), Ok(()));
        let long = "x".repeat(256);
        let deep = "d/".repeat(40) + "f";
        for bad in [
            "",
            "/etc/passwd",
            "a//b",
            "a/",
            "..",
            "a/../b",
            "./a",
            "a\\b",
            "a\0b",
            "C:x",
            "nul.txt",
            "a. ",
            "b.",
        ] {
            assert!(check([bad]).is_err(), "{bad:?}");
        }
        assert!(check([long.as_str()]).unwrap_err().contains("256"));
        assert!(check([deep.as_str()]).unwrap_err().contains("41 parts"));
        assert!(check(["a/B", "A/b"]).unwrap_err().contains("case alone"));
        assert!(check(["a/b", "A"]).unwrap_err().contains("folder"));
        assert!(check(["a/b/c", "a/B"]).unwrap_err().contains("folder"));
    }
}
