//! The codec of how a job's inputs come, which datasets it names, and its tag.

use super::*;

pub(super) fn put_inputs(
    inputs: Inputs,
    names: FileNames,
    datasets: &[CacheId],
    job_tag: Option<&str>,
    out: &mut Vec<u8>,
) {
    let kind = match (inputs, datasets.is_empty()) {
        (Inputs::Here, true) => tag::HERE,
        (Inputs::Expected, true) => tag::EXPECTED,
        (Inputs::Here, false) => tag::HERE_WITH_DATASETS,
        (Inputs::Expected, false) => tag::EXPECTED_WITH_DATASETS,
    };
    let names = match names {
        FileNames::Plain => 0,
        FileNames::Folders => tag::IN_FOLDERS,
        FileNames::Flattened => tag::FLATTENED,
    };
    let tagged = if job_tag.is_some() { tag::TAGGED } else { 0 };
    put_u8(kind + names + tagged, out);
    if !datasets.is_empty() {
        put_len(datasets.len(), out);
        datasets.iter().for_each(|cache| put_str(cache.as_str(), out));
    }
    job_tag.iter().for_each(|tag| put_str(tag, out));
}

/// What the byte of a job's inputs says, and what follows it.
pub(super) struct Named {
    pub(super) inputs: Inputs,
    pub(super) file_names: FileNames,
    pub(super) datasets: Vec<CacheId>,
    pub(super) tag: Option<Arc<str>>,
}

pub(super) fn get_inputs(reader: &mut Reader<'_>, names: &mut Names) -> Result<Named, CodecError> {
    let start = reader.at();
    let found = reader.u8()?;
    let (untagged, is_tagged) = match found > tag::TAGGED {
        true => (found - tag::TAGGED, true),
        false => (found, false),
    };
    let (kind, file_names) = match () {
        () if untagged > tag::FLATTENED => (untagged - tag::FLATTENED, FileNames::Flattened),
        () if untagged > tag::IN_FOLDERS => (untagged - tag::IN_FOLDERS, FileNames::Folders),
        () => (untagged, FileNames::Plain),
    };
    let (inputs, has_datasets) = match kind {
        tag::HERE => (Inputs::Here, false),
        tag::EXPECTED => (Inputs::Expected, false),
        tag::HERE_WITH_DATASETS => (Inputs::Here, true),
        tag::EXPECTED_WITH_DATASETS => (Inputs::Expected, true),
        _ => return Err(unknown_tag(start, "kind of inputs", found)),
    };
    let listed = reader.at();
    let datasets = match has_datasets {
        true => reader.list(TEXT_BYTES_MIN, |reader| reader.cache(names))?,
        false => Vec::new(),
    };
    if has_datasets && datasets.is_empty() {
        return Err(CodecError {
            at: listed,
            what: "a job that names datasets names none".to_owned(),
        });
    }
    let tag_at = reader.at();
    let tag = if is_tagged { Some(names.text(reader.str()?)) } else { None };
    if tag.as_ref().is_some_and(|tag| tag.is_empty()) {
        return Err(CodecError { at: tag_at, what: "a job that has a tag has none".to_owned() });
    }
    Ok(Named { inputs, file_names, datasets, tag })
}
