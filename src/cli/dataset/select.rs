//! Which files of datasets a job gets: `--dataset ID[/PATH[=NAME]]` and `--cache` of `heft submit`.
//! The leader is asked before anything is submitted, page by page, so that a dataset may have any
//! number of files and a wrong id or name is said at once, with names that are like it.

use std::collections::BTreeSet;

use chunking::message::Features;

use super::cache_id;
use crate::answers::ask;
use crate::cli::exit::Usage;
use crate::cli::say;
use crate::client::{Client, ClientError};
use crate::core::ids::CacheId;
use crate::core::names::{NameUse, SafeName};
use crate::model::InputFile;
use crate::model::limits::LIST_ITEMS_MAX;

/// How often the list of a dataset's files is read again that is replaced meanwhile.
const TRIES_MAX: usize = 3;

/// Names that are looked through for those that are like a wrong one.
const LOOKED_THROUGH_MAX: usize = 16_384;

/// Names that are suggested.
const SUGGESTED_MAX: usize = 3;

/// Characters in which a suggested name may differ.
const DIFFERENCES_MAX: usize = 6;

/// A file of a dataset, the files in a folder of it, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) id: CacheId,
    /// The file or folder; all files without one.
    pub(crate) inner: Option<String>,
    /// Its name for the job.
    pub(crate) name: Option<String>,
    /// Whether the leader has to know the dataset. If not, a named file may be one that a worker
    /// has in its cache directory.
    pub(crate) is_strict: bool,
}

/// Reads `ID[/PATH[=NAME]]` of `--dataset`.
pub(crate) fn dataset(text: &str) -> Result<Selected, String> {
    selected(text, true)
}

/// The same of `--cache`.
pub(crate) fn cache(text: &str) -> Result<Selected, String> {
    selected(text, false)
}

fn selected(text: &str, is_strict: bool) -> Result<Selected, String> {
    let (id, inner) = match text.split_once('/') {
        Some((id, inner)) => (id, Some(inner)),
        None => (text, None),
    };
    let id = cache_id(id)?;
    let Some(inner) = inner else {
        return Ok(Selected { id, inner: None, name: None, is_strict });
    };
    let (inner, name) = inner.rsplit_once('=').unwrap_or((inner, inner));
    let checked = |name: &str| {
        // A folder may be written as one.
        let name = name.strip_suffix('/').filter(|name| !name.is_empty()).unwrap_or(name);
        SafeName::parse(NameUse::File, name).map_err(|error| error.to_string())
    };
    let (inner, name) = (checked(inner)?.to_string(), checked(name)?.to_string());
    Ok(Selected { id, inner: Some(inner), name: Some(name), is_strict })
}

/// The files as the job names them.
pub(crate) async fn resolve<'a>(
    client: &Client,
    leader: &str,
    selections: impl Iterator<Item = &'a Selected>,
) -> anyhow::Result<Vec<InputFile>> {
    let can_ask = client.can(Features::ASK.with(Features::DATASETS));
    let mut files = Vec::new();
    for selected in selections {
        let id = selected.id.as_str();
        let Some((inner, name)) = selected.inner.as_deref().zip(selected.name.as_deref()) else {
            let names = all_in(id, known(client, leader, id, None).await?)?;
            files.extend(names.into_iter().map(|name| InputFile::cached(name, id)));
            check_count(files.len())?;
            continue;
        };
        if !selected.is_strict && !can_ask {
            files.push(InputFile::cached_as(name, id, inner));
            continue;
        }
        let listing = match known(client, leader, id, Some(inner)).await {
            Err(error) if !selected.is_strict && error.is::<Usage>() => {
                say(&format!(
                    "{error:#}; the job runs only where a worker has {inner:?} in its cache directory"
                ));
                files.push(InputFile::cached_as(name, id, inner));
                continue;
            }
            listing => listing?,
        };
        let found = listing.beneath(inner, name);
        match (found.as_slice(), listing.is_complete) {
            ([], true) => return Err(not_in(client, selected, inner).await.into()),
            // What the leader does not list may be there all the same.
            ([], false) => files.push(InputFile::cached_as(name, id, inner)),
            ([_, ..], false) if !listing.has(inner) => return Err(unlisted(id, &listing).into()),
            ([_, ..], _) => files.extend(
                found.into_iter().map(|(name, inner)| InputFile::cached_as(name, id, inner)),
            ),
        }
        check_count(files.len())?;
    }
    Ok(files)
}

fn check_count(files: usize) -> Result<(), Usage> {
    match files > LIST_ITEMS_MAX {
        true => Err(Usage(format!(
            "the job would get more than {LIST_ITEMS_MAX} files of datasets, the most that a request \
             may name: select folders or files with --dataset ID/PATH"
        ))),
        false => Ok(()),
    }
}

/// Files of a dataset.
#[derive(Debug, Default)]
struct Listing {
    /// Their names.
    names: Vec<String>,
    /// Whether there are no others that were asked for.
    is_complete: bool,
    /// How many files the dataset has.
    files: u64,
}

impl Listing {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|listed| listed == name)
    }

    /// A file, or those in a folder: the job's names for them, and theirs.
    fn beneath(&self, inner: &str, name: &str) -> Vec<(String, String)> {
        if self.has(inner) {
            return vec![(name.to_owned(), inner.to_owned())];
        }
        let beneath = self.names.iter().filter_map(|listed| {
            let rest = listed.strip_prefix(inner)?.strip_prefix('/')?;
            Some((format!("{name}/{rest}"), listed.clone()))
        });
        beneath.collect()
    }
}

/// The files of a dataset that the leader has to know: all, or those that a path means.
async fn known(
    client: &Client,
    leader: &str,
    id: &str,
    within: Option<&str>,
) -> anyhow::Result<Listing> {
    match list(client, id, within).await {
        Ok(listing) => Ok(listing),
        Err(error @ ClientError::Answered(_)) => {
            let ids = dataset_ids(client).await?;
            if ids.iter().any(|known| known == id) {
                return Err(error.into());
            }
            let like = suggest(&like(id, ids.iter().map(String::as_str)));
            Err(Usage(format!(
                "the leader at {leader} has no dataset {id:?} (`heft dataset {leader} ls` lists \
                 them){like}"
            ))
            .into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads pages until there are no more. Stops beyond what a job may name.
async fn list(client: &Client, id: &str, within: Option<&str>) -> Result<Listing, ClientError> {
    let within = within.map(str::to_owned);
    let mut tries = 0;
    'whole: loop {
        tries += 1;
        let (mut listing, mut version, mut after) = (Listing::default(), None, None);
        loop {
            let question =
                ask::DatasetStatus { cache_id: id.to_owned(), after, within: within.clone() };
            let page = client.ask(&question).await?.answer;
            let of = version.get_or_insert_with(|| page.dataset.version.clone());
            if *of != page.dataset.version && tries < TRIES_MAX {
                continue 'whole;
            }
            listing.files = page.dataset.files.unwrap_or_default().into();
            listing.names.extend(page.names.into_iter().map(|file| file.name));
            // An older leader lists the first ones, and says no more of it.
            listing.is_complete = match (page.more, within.is_some()) {
                (more, true) => !more,
                (more, false) => !more && listing.names.len() as u64 == listing.files,
            };
            match page.next.filter(|_| page.more && listing.names.len() <= LIST_ITEMS_MAX) {
                Some(next) => after = Some(next),
                None => return Ok(listing),
            }
        }
    }
}

/// All names in a dataset, if all are listed.
fn all_in(id: &str, listing: Listing) -> Result<Vec<String>, Usage> {
    match listing.names.is_empty() || !listing.is_complete {
        true => Err(unlisted(id, &listing)),
        false => Ok(listing.names),
    }
}

fn unlisted(id: &str, listing: &Listing) -> Usage {
    Usage(format!(
        "--dataset {id} selects files of a dataset of {} files, but the leader lists only {} of \
         them: select single files with --dataset {id}/NAME",
        listing.files,
        listing.names.len()
    ))
}

/// The ids of all datasets that the leader keeps, as far as it lists them.
async fn dataset_ids(client: &Client) -> Result<Vec<String>, ClientError> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = client.ask(&ask::DatasetLs { after }).await?.answer;
        ids.extend(page.datasets.into_iter().map(|dataset| dataset.cache_id));
        match page.next.filter(|_| page.more && ids.len() < LOOKED_THROUGH_MAX) {
            Some(next) => after = Some(next),
            None => return Ok(ids),
        }
    }
}

/// Says that a dataset has nothing of a name, with what is like it.
async fn not_in(client: &Client, selected: &Selected, inner: &str) -> Usage {
    let id = selected.id.as_str();
    let listing = list(client, id, None).await.unwrap_or_default();
    // Folders are names, too.
    let folders = listing.names.iter().take(LOOKED_THROUGH_MAX).flat_map(|name| {
        name.match_indices('/').filter_map(|(end, _)| name.get(..end)).map(str::to_owned)
    });
    let folders: BTreeSet<String> = folders.collect();
    let names = listing.names.iter().take(LOOKED_THROUGH_MAX).chain(&folders);
    let like = suggest(&like(inner, names.map(String::as_str)));
    Usage(format!("dataset {id} has no file or folder {inner:?}{like}"))
}

fn suggest(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [many @ .., last] => format!("; did you mean {} or {last}?", many.join(", ")),
    }
}

/// The names that are most like one, the likest first.
fn like<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let last = |name: &'a str| name.rsplit('/').next().unwrap_or(name);
    let wanted_last = wanted.rsplit('/').next().unwrap_or(wanted);
    let most = (wanted.chars().count() / 3).clamp(1, DIFFERENCES_MAX);
    let mut found: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let far = differences(wanted, name, most);
            // The right name in another folder is about as near as a slip of the pen.
            let elsewhere = (last(name) == wanted_last).then_some(1);
            far.into_iter().chain(elsewhere).min().map(|far| (far, name))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().take(SUGGESTED_MAX).map(|(_, name)| name).collect()
}

/// How many characters have to be changed, added or left out to make one name of the other, capital
/// or not; `None` if more than `most`.
fn differences(one: &str, other: &str, most: usize) -> Option<usize> {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    if one.len().abs_diff(other.len()) > 4 * most {
        return None;
    }
    let (one, other) = (lower(one), lower(other));
    if one.len().abs_diff(other.len()) > most {
        return None;
    }
    // Of the first characters of `one` to the first of `other`, for each number of those.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, a) in one.iter().enumerate() {
        let mut next = vec![index + 1];
        for ((b, above), corner) in other.iter().zip(row.iter().skip(1)).zip(&row) {
            let left = next.last().copied().unwrap_or_default();
            next.push((corner + usize::from(a != b)).min(above + 1).min(left + 1));
        }
        if next.iter().min().is_none_or(|least| *least > most) {
            return None;
        }
        row = next;
    }
    row.last().copied().filter(|far| *far <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ca08_a_file_or_folder_of_a_dataset_is_named_by_its_id_its_path_and_the_jobs_name_for_it() {
        let read =
            |text| dataset(text).map(|found| (found.id.to_string(), found.inner, found.name));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("set-1"), Ok(("set-1".into(), None, None)));
        assert_eq!(read("set-1/a.bin"), Ok(("set-1".into(), some("a.bin"), some("a.bin"))));
        assert_eq!(
            read("set-1/data/a.bin=in.bin"),
            Ok(("set-1".into(), some("data/a.bin"), some("in.bin")))
        );
        assert_eq!(read("set-1/data/=in/"), Ok(("set-1".into(), some("data"), some("in"))));
        assert_eq!(
            read("s/a=b=c"),
            Ok(("s".into(), some("a=b"), some("c"))),
            "the last one divides"
        );
        for (text, why) in [
            ("", "cache id"),
            ("/a", "cache id"),
            ("../a", "cache id"),
            ("s/", "file name"),
            ("s//abs", "it is absolute"),
            ("s/../x", "it holds \"..\""),
            ("s/a=", "file name"),
            ("s/a=../x", "it holds \"..\""),
        ] {
            let error = dataset(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
            assert_eq!(cache(text), Err(error));
        }
        assert!(dataset("s").unwrap().is_strict && !cache("s").unwrap().is_strict);
    }

    #[test]
    fn all_files_of_a_dataset_are_meant_only_if_all_are_known() {
        let listing = |names: &[&str], is_complete| Listing {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            is_complete,
            files: 3,
        };
        assert_eq!(all_in("s", listing(&["a", "b/c", "d"], true)).unwrap(), ["a", "b/c", "d"]);
        for listing in [listing(&["a", "b"], false), listing(&[], true)] {
            let error = all_in("s", listing).unwrap_err().to_string();
            assert!(error.contains("--dataset s/NAME"), "{error}");
        }
        assert!(check_count(LIST_ITEMS_MAX).is_ok());
        assert!(check_count(LIST_ITEMS_MAX + 1).unwrap_err().to_string().contains("65536"));
    }

    #[test]
    fn a_folder_means_what_is_in_it_under_the_jobs_name_for_it() {
        let listing = Listing {
            names: ["data", "data-2/x", "dir/a", "dir/sub/b"].map(str::to_owned).into(),
            is_complete: true,
            files: 4,
        };
        let beneath = |inner, name| listing.beneath(inner, name);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(beneath("data", "in"), [pair("in", "data")]);
        assert_eq!(beneath("dir", "in"), [pair("in/a", "dir/a"), pair("in/sub/b", "dir/sub/b")]);
        assert_eq!(beneath("dir/sub", "x"), [pair("x/b", "dir/sub/b")]);
        assert_eq!(beneath("di", "x"), []);
    }

    #[test]
    fn names_that_are_like_a_wrong_one_are_suggested_the_likest_first() {
        let names = ["models-v1", "models-v2", "tables", "large.bin", "weights/model.bin"];
        let like = |wanted| like(wanted, names.into_iter());
        assert_eq!(like("modls-v2"), ["models-v2", "models-v1"]);
        assert_eq!(like("Tables"), ["tables"]);
        assert_eq!(like("model.bin"), ["weights/model.bin"]);
        assert_eq!(like("data/model.bin"), ["weights/model.bin"]);
        assert_eq!(like("something-else"), [""; 0]);
        assert_eq!(like(""), [""; 0]);
        assert_eq!(suggest(&["a", "b"]), "; did you mean \"a\" or \"b\"?");
        assert_eq!(suggest(&[]), "");
        assert_eq!(differences("kitten", "sitting", 3), Some(3));
        assert_eq!(differences("kitten", "sitting", 2), None);
        assert_eq!(differences(&"x".repeat(300), &"y".repeat(300), 6), None);
    }
}
