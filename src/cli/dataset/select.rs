//! Which files of datasets a job gets: `--dataset ID[/PATH[=NAME]]` and `--cache` of `heft submit`.
//! The leader is asked before anything is submitted, page by page, so that a dataset may have any
//! number of files and a wrong id or name is said at once, with names that are like it.

use std::collections::BTreeSet;

use chunking::message::Features;

use super::cache_id;
use crate::answers::ask;
use crate::cli::exit::{NotFound, Usage};
use crate::cli::reach::Leader;
use crate::cli::say;
use crate::client::{Client, ClientError};
use crate::core::ids::CacheId;
use crate::core::names::{NameUse, SafeName};
use crate::likeness::did_you_mean;
use crate::model::InputFile;
use crate::model::limits::LIST_ITEMS_MAX;

/// How often the list of a dataset's files is read again that is replaced meanwhile.
const TRIES_MAX: usize = 3;

/// Names that are looked through for those that are like a wrong one.
const LOOKED_THROUGH_MAX: usize = 16_384;

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
    leader: &Leader,
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
            Err(error) if !selected.is_strict && error.is::<NotFound>() => {
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
    leader: &Leader,
    id: &str,
    within: Option<&str>,
) -> anyhow::Result<Listing> {
    match list(client, id, within).await {
        Ok(listing) => Ok(listing),
        // Older leaders say so in `Answered`.
        Err(error @ (ClientError::NotFound(_) | ClientError::Answered(_))) => {
            Err(unknown(client, leader, id, error).await)
        }
        Err(error) => Err(error.into()),
    }
}

/// The error of a question about a dataset: with names that are like it, if the leader has none of
/// this one.
pub(super) async fn unknown(
    client: &Client,
    leader: &Leader,
    id: &str,
    error: ClientError,
) -> anyhow::Error {
    match dataset_ids(client).await {
        Ok(ids) if !ids.iter().any(|known| known == id) => NotFound(format!(
            "the leader at {} has no dataset {id:?} (`{}` lists them){}",
            leader.address(),
            leader.command("dataset ls"),
            did_you_mean(id, ids.iter().map(String::as_str)),
        ))
        .into(),
        Ok(_) | Err(ClientError::Answered(_) | ClientError::NotFound(_)) => error.into(),
        Err(error) => error.into(),
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
async fn not_in(client: &Client, selected: &Selected, inner: &str) -> NotFound {
    let id = selected.id.as_str();
    let listing = list(client, id, None).await.unwrap_or_default();
    // Folders are names, too.
    let folders = listing.names.iter().take(LOOKED_THROUGH_MAX).flat_map(|name| {
        name.match_indices('/').filter_map(|(end, _)| name.get(..end)).map(str::to_owned)
    });
    let folders: BTreeSet<String> = folders.collect();
    let names = listing.names.iter().take(LOOKED_THROUGH_MAX).chain(&folders);
    let like = did_you_mean(inner, names.map(String::as_str));
    NotFound(format!("dataset {id} has no file or folder {inner:?}{like}"))
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
}
