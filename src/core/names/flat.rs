//! Names for classic workers, which take no folders (WX08): which names they accept, and how other
//! names are flattened (C08).

use std::collections::HashMap;

use thiserror::Error;

use super::conflicts::folded;
use super::excerpt;

/// Whether a classic worker takes an input file of this name.
pub fn is_flat(name: &str) -> bool {
    !name.trim().is_empty() && !name.contains(['/', '\\']) && !name.contains("..")
}

/// What is left of a name without its folders.
pub fn without_folders(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, file)| file)
}

/// Names that cannot be without their folders.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FlatError {
    /// Two would be one, perhaps only where case is not told apart.
    #[error(
        "\"{}\" and \"{}\" would be the same file without their folders: rename one, or leave the folders",
        excerpt(first),
        excerpt(second)
    )]
    Same {
        /// The one that was given first.
        first: String,
        second: String,
    },
    /// What is left is not a name that a classic worker takes.
    #[error(
        "a classic worker does not accept the name of \"{}\" without its folders: rename it",
        excerpt(name)
    )]
    Refused {
        /// The whole name.
        name: String,
    },
}

/// The names without their folders, in the same order.
pub fn flattened<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'a str>, FlatError> {
    let mut taken: HashMap<String, &str> = HashMap::new();
    let flat = names.into_iter().map(|name| {
        let flat = without_folders(name);
        if !is_flat(flat) {
            return Err(FlatError::Refused { name: name.to_owned() });
        }
        match taken.insert(folded(flat), name) {
            Some(first) => {
                Err(FlatError::Same { first: first.to_owned(), second: name.to_owned() })
            }
            None => Ok(flat),
        }
    });
    flat.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wx08_what_classic_workers_take() {
        let taken = ["a", "a.bin", " a", "データ.txt", "a:b", "."].map(is_flat);
        assert_eq!(taken, [true; 6]);
        assert_eq!(["", " \t", "a/b", "/a", "a\\b", "..", "a..b"].map(is_flat), [false; 7]);
    }

    #[test]
    fn c08_names_lose_their_folders_if_they_stay_apart() {
        assert_eq!(flattened(["data/a.bin", "b", "x/y/c"]).unwrap(), ["a.bin", "b", "c"]);
        for (names, says) in [
            (["data/a.bin", "cfg/a.bin"], "\"data/a.bin\" and \"cfg/a.bin\" would be the same"),
            (["data/A.bin", "a.BIN"], "would be the same"),
            (["data/a..b", "c"], "a classic worker does not accept the name"),
            (["data/", "c"], "a classic worker does not accept the name"),
        ] {
            let error = flattened(names).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
