//! Finds the blobs of a previous run by their maps.

use super::*;

/// A blob of a previous run.
#[derive(Debug)]
pub struct Found {
    pub blob: Uuid,
    /// What is known of it, or why nothing is.
    pub map: Result<Map, StoreError>,
}

/// The blobs of a previous run, and the names of what was not finished. Their bytes are not read:
/// however large they are, it takes no longer.
pub fn scan(disk: &dyn Disk, owner: Owner) -> Result<(Vec<Found>, Vec<String>), StoreError> {
    let failed = |error| StoreError::io("list", disk, BLOBS, error);
    let files = disk.list(BLOBS).map_err(failed)?;
    let lens: HashMap<&str, u64> =
        files.iter().map(|found| (found.name.as_str(), found.len)).collect();
    let (mut all, mut unfinished) = (Vec::new(), Vec::new());
    for found in &files {
        if found.name.ends_with(NEW) {
            unfinished.push(found.name.clone());
            continue;
        }
        let Some(name) = found.name.strip_suffix(MAP) else { continue };
        let Ok(blob) = Uuid::try_parse(name) else { continue };
        let path = format!("{BLOBS}/{}", found.name);
        let opened = disk
            .open(&path, How::Read)
            .map_err(|error| StoreError::io("read", disk, &path, error))?;
        let map = match Map::read(disk, &path, &*opened, owner, blob) {
            // It may be read another time: nothing must be taken for lost.
            Err(error @ StoreError::Io { .. }) => return Err(error),
            Err(error) => Err(error),
            Ok(mut map) => {
                let len = lens.get(name).copied();
                let end = len.unwrap_or_default();
                let before = map.chunks.len();
                map.chunks.retain(|index, (_, bytes)| offset(*index) + u64::from(*bytes) <= end);
                let cut = before - map.chunks.len();
                if cut > 0 {
                    let what = match len {
                        Some(_) => {
                            format!("the file ends there, and {cut} of {before} chunks lie beyond")
                        }
                        None => format!("the file is gone, with {before} chunks"),
                    };
                    let file = full(disk, &format!("{BLOBS}/{name}"));
                    map.damage.push(map::Damage { file, at: end, what });
                }
                Ok(map)
            }
        };
        all.push(Found { blob, map });
    }
    Ok((all, unfinished))
}
