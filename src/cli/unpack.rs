//! Unpacks a job's archive beneath a directory. The archive comes from a worker and may be hostile:
//! every entry is judged before the first byte is written and those that are not safe are skipped,
//! names stay beneath the directory, links are never made or followed, and what it inflates to is
//! bounded.

use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::core::names::SafeName;
use crate::fs::dirfd;
use crate::units::ByteSize;
use anyhow::{Context, bail, ensure};
use zip::ZipArchive;

/// Files and directories in one archive.
const ENTRIES_MAX: usize = 65_536;

/// What any archive may inflate to. Deflate makes at most a thousand times as much of it.
const UNPACKED_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// What a large one may, for each of its bytes: 1 GiB for 4 MiB, as for those that come in a frame.
const UNPACKED_RATIO_MAX: u64 = 256;

/// What an archive held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// The names of the files that were unpacked.
    pub(crate) files: Vec<String>,
    /// The names of those that were not, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

/// Unpacks what is safe of the archive.
pub(crate) fn unpack(archive: &[u8], dir: &Path) -> anyhow::Result<Unpacked> {
    unpack_bounded(Cursor::new(archive), dir, UNPACKED_BYTES_MAX)
}

/// The same with an archive in a file, of which only the list of entries is ever in memory.
pub(crate) fn unpack_file(archive: &Path, dir: &Path) -> anyhow::Result<Unpacked> {
    let open = || format!("cannot open the job's archive {}", archive.display());
    let file = File::open(archive).with_context(open)?;
    let bytes = file.metadata().with_context(open)?.len();
    let bytes_max = bytes.saturating_mul(UNPACKED_RATIO_MAX).max(UNPACKED_BYTES_MAX);
    unpack_bounded(BufReader::new(file), dir, bytes_max)
}

fn unpack_bounded(
    archive: impl Read + Seek,
    dir: &Path,
    bytes_max: u64,
) -> anyhow::Result<Unpacked> {
    let mut zip =
        ZipArchive::new(archive).context("the job's archive is not a ZIP file that can be read")?;
    let entries = zip.len();
    ensure!(
        entries <= ENTRIES_MAX,
        "the job's archive has {entries} entries; at most {ENTRIES_MAX} are unpacked"
    );
    let mut unpacked = Unpacked::default();
    let mut plan = Vec::with_capacity(entries);
    for index in 0..entries {
        let entry = zip
            .by_index_raw(index)
            .with_context(|| format!("entry {index} of the job's archive"))?;
        let name = entry
            .name()
            .with_context(|| format!("entry {index} of the job's archive"))?
            .into_owned();
        let judged = if entry.is_symlink() {
            Err("it is a symbolic link".to_owned())
        } else if entry.encrypted() {
            Err("it is encrypted".to_owned())
        } else {
            // A directory's name ends with a slash.
            SafeName::parse_made(name.trim_end_matches('/')).map_err(|error| {
                match error.rule.to_string().strip_prefix("it ") {
                    Some(rule) => format!("the name {rule}"),
                    None => format!("the name is not taken: {}", error.rule),
                }
            })
        };
        match judged {
            // Not `entry.is_dir()`, to which a backslash at the end is one too.
            Ok(safe) => {
                let is_dir = name.ends_with('/');
                plan.push((index, name, safe, is_dir));
            }
            Err(why) => unpacked.skipped.push((name, why)),
        }
    }
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let root = dirfd::open_root(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    let mut left = bytes_max;
    for (index, name, safe, is_dir) in plan {
        let target = dir.join(safe.as_str());
        if is_dir {
            dirfd::make_dir(&root, &safe)
                .with_context(|| format!("cannot make the directory {}", target.display()))?;
            continue;
        }
        let mut entry = zip.by_index(index).with_context(|| format!("cannot unpack {name:?}"))?;
        let mut file = dirfd::replace(&root, &safe)
            .with_context(|| format!("cannot create {}", target.display()))?;
        let copied = io::copy(&mut (&mut entry).take(left + 1), &mut file)
            .with_context(|| format!("cannot unpack {name:?} to {}", target.display()))?;
        if copied > left {
            dirfd::remove(&root, &safe).ok();
            bail!("the job's archive inflates to more than the limit of {}", ByteSize(bytes_max));
        }
        left -= copied;
        make_executable(&file, entry.unix_mode())
            .with_context(|| format!("cannot make {} executable", target.display()))?;
        unpacked.files.push(name);
    }
    Ok(unpacked)
}

/// Gives a program its x bits back: where the archive has one, who may read the file may run it.
/// Nothing else of the archive's modes counts, such as set-user-ID.
fn make_executable(file: &File, archived: Option<u32>) -> io::Result<()> {
    if archived.is_some_and(|mode| mode & 0o111 != 0) {
        let mode = file.metadata()?.permissions().mode() & 0o777;
        file.set_permissions(fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn archive(build: impl FnOnce(&mut ZipWriter<Cursor<Vec<u8>>>)) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        build(&mut zip);
        zip.finish().unwrap().into_inner()
    }

    fn with_file(name: &str, content: &[u8]) -> Vec<u8> {
        archive(|zip| {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        })
    }

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("heft-unpack-{name}-{}", std::process::id()));
            fs::remove_dir_all(&dir).ok();
            fs::create_dir(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn files_land_beneath_the_directory_and_replace_what_is_there() {
        let dir = Dir::new("good");
        let out = dir.0.join("new/out");
        let zipped = archive(|zip| {
            zip.add_directory("empty/", SimpleFileOptions::default()).unwrap();
            zip.start_file("a.txt", SimpleFileOptions::default()).unwrap();
            zip.write_all(b"one").unwrap();
            zip.start_file("sub/deep/b.txt", SimpleFileOptions::default()).unwrap();
            zip.write_all(&[7; 100_000]).unwrap();
        });
        for _ in 0..2 {
            let unpacked = unpack(&zipped, &out).unwrap();
            assert_eq!(
                (unpacked.files, unpacked.skipped),
                (vec!["a.txt".into(), "sub/deep/b.txt".into()], vec![])
            );
        }
        assert_eq!(fs::read(out.join("a.txt")).unwrap(), b"one");
        assert_eq!(fs::read(out.join("sub/deep/b.txt")).unwrap(), [7; 100_000]);
        assert!(out.join("empty").is_dir());
    }

    #[test]
    fn programs_stay_executable_and_get_no_other_rights_from_the_archive() {
        let dir = Dir::new("modes");
        let zipped = archive(|zip| {
            for (name, mode) in [("run", 0o4711), ("data", 0o666)] {
                zip.start_file(name, SimpleFileOptions::default().unix_permissions(mode)).unwrap();
            }
        });
        unpack(&zipped, &dir.0).unwrap();
        let mode =
            |name: &str| fs::metadata(dir.0.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("run"), mode("data") | (mode("data") & 0o444) >> 2);
        assert_eq!(mode("data") & 0o7111, 0);
    }

    #[test]
    fn names_that_lead_elsewhere_are_skipped_and_the_rest_is_unpacked() {
        let dir = Dir::new("evil");
        let out = dir.0.join("out");
        for name in ["../evil", "a/../../evil", "/etc/evil", "a//b", "./a", "..", "nul\0", ""] {
            let zipped = archive(|zip| {
                zip.start_file(name, SimpleFileOptions::default()).unwrap();
                zip.start_file("good.txt", SimpleFileOptions::default()).unwrap();
            });
            let unpacked = unpack(&zipped, &out).unwrap();
            assert_eq!(unpacked.files, ["good.txt"], "{name:?}");
            let [(skipped, why)] = &unpacked.skipped[..] else { panic!("{name:?}: {unpacked:?}") };
            assert!(skipped == name && why.starts_with("the name "), "{name:?}: {why}");
        }
        let linked =
            archive(|zip| zip.add_symlink("link", "/etc", SimpleFileOptions::default()).unwrap());
        let unpacked = unpack(&linked, &out).unwrap();
        assert_eq!(unpacked.skipped, [("link".to_owned(), "it is a symbolic link".to_owned())]);
        assert_eq!(
            (fs::read_dir(&dir.0).unwrap().count(), fs::read_dir(&out).unwrap().count()),
            (1, 1)
        );
    }

    #[test]
    fn colons_and_backslashes_are_characters_like_others() {
        let dir = Dir::new("odd");
        for name in ["12:30.log", "a\\b", "c:\\", "..\\up"] {
            assert_eq!(unpack(&with_file(name, b"x"), &dir.0).unwrap().files, [name]);
            assert_eq!(fs::read(dir.0.join(name)).unwrap(), b"x", "{name}");
        }
    }

    #[test]
    fn links_that_are_there_already_are_not_followed() {
        let dir = Dir::new("links");
        let (out, outside) = (dir.0.join("out"), dir.0.join("outside"));
        fs::create_dir_all(&out).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), b"kept").unwrap();
        std::os::unix::fs::symlink(&outside, out.join("sub")).unwrap();
        std::os::unix::fs::symlink(outside.join("kept"), out.join("file")).unwrap();
        assert!(unpack(&with_file("sub/x", b"x"), &out).is_err());
        unpack(&with_file("file", b"new"), &out).unwrap();
        assert_eq!(fs::read(out.join("file")).unwrap(), b"new");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    }

    #[test]
    fn what_inflates_over_the_limit_or_is_no_archive_is_refused() {
        let dir = Dir::new("bomb");
        let bomb = with_file("zeros", &[0; 5000]);
        let error = unpack_bounded(Cursor::new(&bomb), &dir.0, 4999).unwrap_err().to_string();
        assert!(error.contains("the limit of 4.8 KiB"), "{error}");
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
        unpack_bounded(Cursor::new(&bomb), &dir.0, 5000).unwrap();
        for odd in [&b""[..], b"PK", b"not a zip at all, but long enough to hold an end record"] {
            assert!(unpack(odd, &dir.0).unwrap_err().to_string().contains("not a ZIP file"));
        }
    }

    #[test]
    fn an_archive_in_a_file_is_unpacked_from_there() {
        let dir = Dir::new("file");
        let path = dir.0.join("archive.part");
        fs::write(&path, with_file("a.txt", b"one")).unwrap();
        assert_eq!(unpack_file(&path, &dir.0.join("out")).unwrap().files, ["a.txt"]);
        assert_eq!(fs::read(dir.0.join("out/a.txt")).unwrap(), b"one");
        let error = unpack_file(&dir.0.join("none"), &dir.0).unwrap_err().to_string();
        assert!(error.contains("cannot open the job's archive"), "{error}");
    }
}
