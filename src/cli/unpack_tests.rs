//! What is unpacked of good, odd and hostile archives.

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

/// Unpacks what is in memory, by these rules.
fn unpack_by(rules: Rules, archive: &[u8], dir: &Path) -> anyhow::Result<Unpacked> {
    unpack(&Archive::Memory(archive.to_vec()), dir, rules, &Watch::default())
}

fn unpack_new(archive: &[u8], dir: &Path) -> anyhow::Result<Unpacked> {
    unpack_by(Rules::default(), archive, dir)
}

/// Replaces all bytes in an archive that are so.
fn with(archive: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut changed = archive.to_vec();
    for at in 0..=changed.len() - from.len() {
        if changed[at..].starts_with(from) {
            changed[at..at + from.len()].copy_from_slice(to);
        }
    }
    changed
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("heft-unpack-{name}-{}", std::process::id()));
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
fn files_land_beneath_the_directory_and_replace_what_is_there_only_by_force() {
    let dir = Dir::new("good");
    let out = dir.0.join("new/out");
    let zipped = archive(|zip| {
        zip.add_directory("empty/", SimpleFileOptions::default()).unwrap();
        zip.start_file("a.txt", SimpleFileOptions::default()).unwrap();
        zip.write_all(b"one").unwrap();
        zip.start_file("sub/deep/b.txt", SimpleFileOptions::default()).unwrap();
        zip.write_all(&[7; 100_000]).unwrap();
    });
    for force in [false, true] {
        let watch = Watch::default();
        let rules = Rules { force, bytes_max: None };
        let unpacked = unpack(&Archive::Memory(zipped.clone()), &out, rules, &watch).unwrap();
        assert_eq!(
            (unpacked.files, unpacked.skipped),
            (vec!["a.txt".into(), "sub/deep/b.txt".into()], vec![])
        );
        assert_eq!(watch.far(), (100_003, 100_003));
        fs::write(out.join("a.txt"), "other").unwrap();
    }
    let error = unpack_new(&zipped, &out).unwrap_err().to_string();
    assert!(
        error.contains("\"a.txt\", \"sub/deep/b.txt\" are there already")
            && error.contains("--force"),
        "{error}"
    );
    assert_eq!(fs::read(out.join("a.txt")).unwrap(), b"other");
    unpack_by(Rules { force: true, bytes_max: None }, &zipped, &out).unwrap();
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3, "and nothing else is in it");
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
    unpack_new(&zipped, &dir.0).unwrap();
    let mode = |name: &str| fs::metadata(dir.0.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("run"), mode("data") | (mode("data") & 0o444) >> 2);
    assert_eq!(mode("data") & 0o7111, 0);
}

#[test]
fn names_and_folders_have_limits_and_what_fits_them_is_unpacked() {
    let dir = Dir::new("limits");
    // Longer than any path, in segments that are not.
    let long = vec!["d".repeat(250); 17].join("/");
    let zipped = archive(|zip| {
        zip.start_file(long.as_str(), SimpleFileOptions::default()).unwrap();
        zip.start_file("good.txt", SimpleFileOptions::default()).unwrap();
    });
    let unpacked = unpack_new(&zipped, &dir.0.join("long")).unwrap();
    assert_eq!(unpacked.files, ["good.txt"]);
    let (name, why) = &unpacked.skipped[0];
    assert_eq!(name.len(), SKIPPED_NAME_CHARS_MAX);
    assert_eq!(why, "the name has 4266 bytes; at most 4096 are taken");
    // Few entries, and a folder for every other character of their names.
    let zipped = archive(|zip| {
        for number in 0..FOLDERS_MAX / 20 {
            let name = format!("{number}/{}f", "d/".repeat(20));
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
        }
    });
    let out = dir.0.join("many");
    let error = unpack_new(&zipped, &out).unwrap_err().to_string();
    assert!(error.contains("makes more than 65536 folders"), "{error}");
    assert!(!out.exists(), "nothing was made");
    let zipped = archive(|zip| {
        for number in 0..NAMES_BYTES_MAX / 4_000 + 1 {
            let name = format!("{number:05}{}", "/dddddddd".repeat(6)) + &"x".repeat(100);
            let name = format!("{name}/{}", vec!["y".repeat(240); 16].join("/"));
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
        }
    });
    let error = unpack_new(&zipped, &out).unwrap_err().to_string();
    assert!(error.contains("names in the job's archive have more than 32 MiB"), "{error}");
}

#[test]
fn names_that_lead_elsewhere_are_skipped_and_the_rest_is_unpacked() {
    let dir = Dir::new("evil");
    let out = dir.0.join("out");
    for name in ["../evil", "a/../../evil", "/etc/evil", "a//b", "./a", "..", "nul\0", ""] {
        fs::remove_file(out.join("good.txt")).ok();
        let zipped = archive(|zip| {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.start_file("good.txt", SimpleFileOptions::default()).unwrap();
        });
        let unpacked = unpack_new(&zipped, &out).unwrap();
        assert_eq!(unpacked.files, ["good.txt"], "{name:?}");
        let [(skipped, why)] = &unpacked.skipped[..] else { panic!("{name:?}: {unpacked:?}") };
        assert!(skipped == name && why.starts_with("the name "), "{name:?}: {why}");
    }
    let linked =
        archive(|zip| zip.add_symlink("link", "/etc", SimpleFileOptions::default()).unwrap());
    let unpacked = unpack_new(&linked, &out).unwrap();
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
        assert_eq!(unpack_new(&with_file(name, b"x"), &dir.0).unwrap().files, [name]);
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
    let force = Rules { force: true, bytes_max: None };
    let error = unpack_by(force, &with_file("sub/x", b"x"), &out).unwrap_err().to_string();
    assert!(error.contains("something else stands in the place of \"sub/x\""), "{error}");
    assert!(unpack_new(&with_file("file", b"new"), &out).is_err());
    unpack_by(force, &with_file("file", b"new"), &out).unwrap();
    assert_eq!(fs::read(out.join("file")).unwrap(), b"new");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
}

#[test]
fn what_unpacks_to_more_than_the_limit_or_the_room_is_refused_before_anything_is_written() {
    let dir = Dir::new("bomb");
    let (out, bomb) = (dir.0.join("out"), with_file("zeros", &[0; 5000]));
    let over = Rules { force: false, bytes_max: Some(4999) };
    let error = unpack_by(over, &bomb, &out).unwrap_err().to_string();
    assert!(
        error.contains("unpacks to 4.88 KiB, over the limit of 4.88 KiB (--max-unpacked)")
            || error.contains("the limit of 4.8 KiB (--max-unpacked)"),
        "{error}"
    );
    let room = |free| Room { free, total: 1 << 40 };
    let need = 1 << 30;
    room(need + DISK_RESERVE_BYTES).check(need, &out, Rules::default()).unwrap();
    let short = room(need + DISK_RESERVE_BYTES - 1).check(need, &out, Rules::default());
    let error = short.unwrap_err().to_string();
    assert!(error.contains("unpacks to 1 GiB") && error.contains("64 MiB stay free"), "{error}");
    let small = Room { free: 100, total: 100 };
    small.check(90, &out, Rules::default()).unwrap();
    small.check(91, &out, Rules::default()).unwrap_err();
    assert!(!out.exists(), "nothing was made");
    unpack_by(Rules { force: false, bytes_max: Some(5000) }, &bomb, &out).unwrap();
    for odd in [&b""[..], b"PK", b"not a zip at all, but long enough to hold an end record"] {
        assert!(unpack_new(odd, &dir.0).unwrap_err().to_string().contains("not a ZIP file"));
    }
}

#[test]
fn an_entry_that_lies_about_its_size_is_stopped_and_nothing_stays() {
    let dir = Dir::new("liar");
    let out = dir.0.join("out");
    let honest = archive(|zip| {
        let deflated = SimpleFileOptions::default();
        let stored = deflated.compression_method(zip::CompressionMethod::Stored);
        zip.start_file("new/deep/first", stored).unwrap();
        zip.write_all(b"first").unwrap();
        zip.start_file("second", deflated).unwrap();
        zip.write_all(&[0; 70_001]).unwrap();
    });
    let size = 70_001_u32.to_le_bytes();
    for (claim, why) in [
        (1_u32, "larger than its declared uncompressed size"),
        (80_000, "it has 70001 bytes, and the archive's directory names 80000"),
    ] {
        let liar = with(&honest, &size, &claim.to_le_bytes());
        let error = unpack_new(&liar, &out).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(error.ends_with("what had been unpacked is removed again"), "{error}");
        assert!(!out.exists(), "{why}");
    }
    // What was there before stays as it was, also what was to be replaced.
    fs::create_dir_all(out.join("new")).unwrap();
    fs::write(out.join("second"), "before").unwrap();
    let damaged = with(&honest, b"first", b"fi_st");
    for archive in [with(&honest, &size, &[1, 0, 0, 0]), damaged] {
        let force = Rules { force: true, bytes_max: None };
        unpack_by(force, &archive, &out).unwrap_err();
        assert_eq!(fs::read(out.join("second")).unwrap(), b"before");
        assert_eq!(fs::read_dir(out.join("new")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    }
    unpack_by(Rules { force: true, bytes_max: None }, &honest, &out).unwrap();
    assert_eq!(fs::read(out.join("second")).unwrap(), [0; 70_001]);
}

#[test]
fn an_unpacking_that_nobody_waits_for_ends_and_removes_what_it_made() {
    let dir = Dir::new("stopped");
    let (out, zipped) = (dir.0.join("out"), with_file("a", &[7; 100_000]));
    let watch = Watch::default();
    watch.stop();
    let archive = Archive::Memory(zipped);
    let error = unpack(&archive, &out, Rules::default(), &watch).unwrap_err().to_string();
    assert!(error.contains("unpacking was stopped"), "{error}");
    assert!(!out.exists());
}

#[test]
fn two_entries_of_one_name_and_more_entries_than_the_limit_are_not_unpacked() {
    let dir = Dir::new("twice");
    let twice = with(
        &archive(|zip| {
            for name in ["name-1", "name-2"] {
                zip.start_file(name, SimpleFileOptions::default()).unwrap();
                zip.write_all(name.as_bytes()).unwrap();
            }
        }),
        b"name-2",
        b"name-1",
    );
    // The content of the second is damaged by that, but it is not looked at.
    let unpacked = unpack_new(&twice, &dir.0.join("twice")).unwrap();
    assert_eq!(unpacked.files, ["name-1"]);
    assert_eq!(
        unpacked.skipped,
        [("name-1".to_owned(), "another entry has the same name".to_owned())]
    );
    let many = archive(|zip| {
        for number in 0..=ENTRIES_MAX {
            zip.start_file(number.to_string(), SimpleFileOptions::default()).unwrap();
        }
    });
    let out = dir.0.join("many");
    let error = unpack_new(&many, &out).unwrap_err().to_string();
    assert!(error.contains("has 65537 entries; at most 65536"), "{error}");
    assert!(!out.exists());
}

#[test]
fn the_zip64_form_is_read_and_what_is_over_4_gib_is_unpacked_whole() {
    let dir = Dir::new("zip64");
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true);
    let small = archive(|zip| {
        zip.start_file("a", options).unwrap();
        zip.write_all(b"one").unwrap();
    });
    unpack_new(&small, &dir.0.join("small")).unwrap();
    assert_eq!(fs::read(dir.0.join("small/a")).unwrap(), b"one");
    if std::env::var("HEFT_TEST_SCALE").as_deref() != Ok("long") {
        return eprintln!("skipped: HEFT_TEST_SCALE=long unpacks more than 4 GiB");
    }
    let (path, bytes) = (dir.0.join("large.zip"), (4_u64 << 30) + 12_345);
    let mut zip = ZipWriter::new(File::create(&path).unwrap());
    zip.start_file("large.bin", options).unwrap();
    io::copy(&mut io::repeat(0).take(bytes), &mut zip).unwrap();
    zip.start_file("behind.txt", options).unwrap();
    zip.write_all(b"behind").unwrap();
    zip.finish().unwrap();
    let (out, watch) = (dir.0.join("large"), Watch::default());
    unpack(&Archive::File(path), &out, Rules::default(), &watch).unwrap();
    assert_eq!(watch.far(), (bytes + 6, bytes + 6));
    assert_eq!(fs::metadata(out.join("large.bin")).unwrap().len(), bytes);
    assert_eq!(fs::read(out.join("behind.txt")).unwrap(), b"behind");
}

#[test]
fn an_archive_in_a_file_is_unpacked_from_there() {
    let dir = Dir::new("file");
    let path = dir.0.join("archive.part");
    fs::write(&path, with_file("a.txt", b"one")).unwrap();
    let unpack_file = |path: PathBuf, to: &Path| {
        unpack(&Archive::File(path), to, Rules::default(), &Watch::default())
    };
    assert_eq!(unpack_file(path, &dir.0.join("out")).unwrap().files, ["a.txt"]);
    assert_eq!(fs::read(dir.0.join("out/a.txt")).unwrap(), b"one");
    let error = unpack_file(dir.0.join("none"), &dir.0).unwrap_err().to_string();
    assert!(error.contains("cannot open the job's archive"), "{error}");
}
