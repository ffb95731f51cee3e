//! Finds names that cannot share a directory: they are the same file there, or one is a folder of
//! the other.
//!
//! It takes names that were validated one by one and does not look at a disk. File scans, dataset
//! puts and the layout of job inputs use it.

use std::borrow::Cow;
use std::collections::HashMap;

use thiserror::Error;

use super::{NameError, NameUse, SafeName, excerpt};

/// Whether names that differ in case alone are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// They are two.
    Told,
    /// They are one, as on some systems.
    Folded,
}

/// Two that cannot lie in one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash<'a, T> {
    /// They are one file.
    Same {
        /// The one that was given first.
        first: &'a T,
        second: &'a T,
    },
    /// One is a folder of the other.
    Folder {
        file: &'a T,
        /// What is beneath it.
        inner: &'a T,
    },
}

/// Finds two that cannot lie in one directory.
pub fn clash<T>(items: &[T], name: impl Fn(&T) -> &SafeName, case: Case) -> Option<Clash<'_, T>> {
    let spelled: Vec<Cow<'_, str>> = items
        .iter()
        .map(|item| match case {
            Case::Told => name(item).as_str().into(),
            Case::Folded => folded(name(item).as_str()).into(),
        })
        .collect();
    let mut taken: HashMap<&str, &T> = HashMap::with_capacity(items.len());
    for (spelled, second) in spelled.iter().zip(items) {
        if let Some(first) = taken.insert(spelled, second) {
            return Some(Clash::Same { first, second });
        }
    }
    let is_file = |folder: &str| taken.get(folder).copied();
    spelled.iter().zip(items).find_map(|(spelled, inner)| {
        let mut folders = spelled.match_indices('/').filter_map(|(end, _)| spelled.get(..end));
        folders.find_map(is_file).map(|file| Clash::Folder { file, inner })
    })
}

/// What a name is where case is not told apart: all that any system takes for one becomes one. "ẞ"
/// is "ß" in small letters, and only that is "SS" in large ones.
pub(super) fn folded(name: &str) -> String {
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let small = name.chars().flat_map(char::to_lowercase);
    small.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Names that cannot be those of one job's input files.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InputNamesError {
    /// One of them is not safe by itself.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two are the same.
    #[error("invalid file name: \"{name}\" is given twice: give each input file its own name")]
    Twice { name: SafeName },
    /// One is the folder of another.
    #[error(
        "invalid file name: \"{name}\" is a folder of another input file: give each its own name"
    )]
    Folder {
        /// The name of the file that would have to be a folder.
        name: SafeName,
    },
}

/// Judges the names of all input files of a job together, before a byte of any is written.
pub fn input_names<'a>(
    files: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<SafeName>, InputNamesError> {
    let names = files.into_iter().map(|name| SafeName::parse(NameUse::File, name));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    // They lie on the worker's disk alone, which tells case apart, and jobs that classic workers
    // take may have both.
    match clash(&names, |name| name, Case::Told) {
        Some(Clash::Same { second, .. }) => Err(InputNamesError::Twice { name: second.clone() }),
        Some(Clash::Folder { file, .. }) => Err(InputNamesError::Folder { name: file.clone() }),
        None => Ok(names),
    }
}

/// Names that cannot be those of one dataset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DatasetNameError {
    /// One of them cannot be by itself.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two are one on some systems.
    #[error(
        "invalid file name: \"{}\" and \"{}\" differ in case alone: rename one",
        excerpt(name.as_str()), excerpt(other.as_str())
    )]
    Case { name: SafeName, other: SafeName },
    /// One is a folder of another.
    #[error("invalid file name: \"{}\" is a folder of another file: rename one", excerpt(name.as_str()))]
    Folder { name: SafeName },
}

/// Checks the names of all files of a dataset, each by itself and all together.
pub fn names_of_dataset<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<SafeName>, DatasetNameError> {
    let names = names.into_iter().map(SafeName::parse_in_dataset).collect::<Result<Vec<_>, _>>()?;
    fit_in_dataset(&names)?;
    Ok(names)
}

/// Checks names that are those of files of a dataset, all together. Which systems the dataset goes
/// to nobody knows.
pub fn fit_in_dataset<'a>(
    names: impl IntoIterator<Item = &'a SafeName>,
) -> Result<(), DatasetNameError> {
    let names: Vec<&SafeName> = names.into_iter().collect();
    match clash(&names, |name| name, Case::Folded) {
        None => Ok(()),
        Some(Clash::Same { first, second }) => {
            Err(DatasetNameError::Case { name: (*second).clone(), other: (*first).clone() })
        }
        Some(Clash::Folder { file, .. }) => Err(DatasetNameError::Folder { name: (*file).clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::names::NameUse;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn text(names: &[&str]) -> String {
        names_of_dataset(names.iter().copied()).unwrap_err().to_string()
    }

    #[test]
    fn c08_names_of_a_dataset_cannot_be_taken_for_one_another() {
        let fit = ["data/a.bin", "data/b.bin", "Data/c.bin", "data.bin", "größe ✓"];
        let names = names_of_dataset(fit).unwrap();
        assert_eq!(names.iter().map(SafeName::as_str).collect::<Vec<_>>(), fit);
        for (names, said) in [
            (
                &["a/B", "A/b"][..],
                r#"invalid file name: "A/b" and "a/B" differ in case alone: rename one"#,
            ),
            (&["a/b", "A"], r#"invalid file name: "A" is a folder of another file: rename one"#),
            (
                &["a/B", "a/b/c"],
                r#"invalid file name: "a/B" is a folder of another file: rename one"#,
            ),
            (&["a", "../x"], r#"invalid file name: "../x": it holds "..": leave that out"#),
        ] {
            assert_eq!(text(names), said);
        }
        let (long, other) = ("x".repeat(200), "X".repeat(200));
        assert!(text(&[&long, &other]).len() < 250, "no more is quoted than a reader needs");
    }

    #[test]
    fn what_any_system_takes_for_one_is_one() {
        for same in [
            &["straße", "STRASSE", "STRAẞE"][..],
            &["ΟΔΟΣ", "οδος", "οδοσ"],
            &["É", "é"],
            &["K", "k"],
        ] {
            for pair in same.windows(2) {
                assert!(text(pair).contains("differ in case alone"), "{pair:?}");
            }
        }
        let changes =
            |char: &char| !char.to_uppercase().eq([*char]) || !char.to_lowercase().eq([*char]);
        for char in ('\0'..=char::MAX).filter(changes) {
            let (upper, lower) = (char.to_uppercase().to_string(), char.to_lowercase().to_string());
            let name = folded(&char.to_string());
            assert_eq!((folded(&upper), folded(&lower)), (name.clone(), name), "{char}");
        }
    }

    #[test]
    fn where_case_is_told_only_equal_names_are_one() {
        let names =
            ["a", "A", "B/c", "b"].map(|name| SafeName::parse(NameUse::File, name).unwrap());
        assert_eq!(clash(&names, |name| name, Case::Told), None);
        let twice = ["a", "b", "./a"].map(|name| SafeName::parse(NameUse::File, name).unwrap());
        let [first, _, second] = &twice;
        assert_eq!(clash(&twice, |name| name, Case::Told), Some(Clash::Same { first, second }));
        let beneath = ["a/b/c", "a/b"].map(|name| SafeName::parse(NameUse::File, name).unwrap());
        let [inner, file] = &beneath;
        assert_eq!(clash(&beneath, |name| name, Case::Told), Some(Clash::Folder { file, inner }));
    }

    proptest! {
        #[test]
        fn two_clash_among_many_if_two_of_them_do_alone(names in vec("[abAB]{1,2}(/[abA]){0,2}", 0..6), told: bool) {
            let case = if told { Case::Told } else { Case::Folded };
            let names: Vec<SafeName> = names.iter().map(|name| SafeName::parse_in_dataset(name).unwrap()).collect();
            let spelled = |name: &SafeName| if told { name.to_string() } else { name.as_str().to_lowercase() };
            let cannot = |one: &SafeName, other: &SafeName| {
                let (one, other) = (spelled(one), spelled(other));
                one == other || one.starts_with(&format!("{other}/")) || other.starts_with(&format!("{one}/"))
            };
            let any = names.iter().enumerate().any(|(at, one)| names[..at].iter().any(|other| cannot(one, other)));
            prop_assert_eq!(clash(&names, |name| name, case).is_some(), any);
        }
    }
}
