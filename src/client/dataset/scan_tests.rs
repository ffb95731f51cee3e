use super::*;
use crate::noise::noise;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

fn tree(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

fn scanned(paths: &[&Path]) -> Result<Scanned, ScanError> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| (*path).to_owned()).collect();
    scan(&paths, &Watch::default())
}

fn refused(paths: &[&Path]) -> String {
    scanned(paths).unwrap_err().to_string()
}

fn names(scanned: &Scanned) -> Vec<&str> {
    scanned.manifest.files().iter().map(|file| file.name.as_str()).collect()
}

#[test]
fn one_directory_stands_for_its_content_and_of_several_paths_the_last_part_stays_in_front() {
    let dir = tree(&[
        ("data/a.bin", b"a"),
        ("data/sub/b.bin", b"b"),
        ("model.bin", b"m"),
        ("more/a.bin", b"c"),
    ]);
    let at = |name: &str| dir.path().join(name);
    let (data, model, more) = (at("data"), at("model.bin"), at("more"));
    assert_eq!(names(&scanned(&[&data]).unwrap()), ["a.bin", "sub/b.bin"]);
    assert_eq!(names(&scanned(&[&dir.path().join("data/")]).unwrap()), ["a.bin", "sub/b.bin"]);
    assert_eq!(names(&scanned(&[&model]).unwrap()), ["model.bin"]);
    let several = scanned(&[&data, &model, &more]).unwrap();
    assert_eq!(names(&several), ["data/a.bin", "data/sub/b.bin", "model.bin", "more/a.bin"]);
    let dots = scanned(&[&data.join("sub/.."), &model]).unwrap();
    assert_eq!(
        names(&dots),
        ["data/a.bin", "data/sub/b.bin", "model.bin"],
        "called as the directory it is"
    );
}

#[test]
fn ca09_pieces_files_and_the_dataset_have_their_digests_and_the_pieces_are_where_they_were_found() {
    let large = noise(9 << 20, 1);
    let mut changed = large.clone();
    changed[5 << 20] ^= 1;
    let dir = tree(&[
        ("large", &large),
        ("changed", &changed),
        ("empty", b""),
        ("small", b"x=1"),
        ("same", b"x=1"),
    ]);
    let scanned = scanned(&[dir.path()]).unwrap();
    let manifest = &scanned.manifest;
    assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest.clone()));
    assert_eq!(scanned.digest, manifest.digest());
    for file in manifest.files() {
        let content = fs::read(dir.path().join(&file.name)).unwrap();
        assert_eq!(
            (file.size, file.sha256),
            (content.len() as u64, sha256(&content)),
            "{}",
            file.name
        );
        for (offset, _, piece) in manifest.layout(file) {
            let start = usize::try_from(offset).unwrap();
            assert!(piece.is(&content[start..start + piece.len as usize]));
        }
    }
    for place in 0..u32::try_from(manifest.pieces().len()).unwrap() {
        let (piece, at) = scanned.piece(place).unwrap();
        let content = fs::read(at.file.path()).unwrap();
        let start = usize::try_from(at.offset).unwrap();
        let bytes = &content[start..start + at.len as usize];
        assert!(piece.is(bytes) && crc32fast::hash(bytes) == at.crc);
    }
    assert!(scanned.piece(u32::try_from(manifest.pieces().len()).unwrap()).is_none());
    let unique: u64 = manifest.pieces().iter().map(|piece| u64::from(piece.len)).sum();
    assert!(unique < (9 << 20) + (3 << 20), "two versions share their pieces: {unique}");
    assert_eq!(manifest.files()[1].pieces, [] as [u32; 0], "an empty file has no pieces");
}

#[test]
fn a_scan_of_the_same_files_is_the_same_however_threads_run() {
    let files: Vec<(String, Vec<u8>)> = (0..40)
        .map(|file| (format!("d{}/f{file}", file % 3), noise(file * 100_000, file as u64)))
        .collect();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    let dir = tree(&files);
    let watch = Watch::default();
    let first = scan(&[dir.path().to_owned()], &watch).unwrap();
    let total: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
    assert_eq!(
        (watch.done.load(Ordering::Relaxed), watch.total.load(Ordering::Relaxed)),
        (total, total)
    );
    for _ in 0..3 {
        assert_eq!(scanned(&[dir.path()]).unwrap().manifest, first.manifest);
    }
}

#[test]
fn a_scan_stops_when_nobody_wants_it_any_more() {
    let dir = tree(&[("a", b"a")]);
    let watch = Watch::default();
    watch.stop.store(true, Ordering::Relaxed);
    assert_eq!(scan(&[dir.path().to_owned()], &watch).unwrap_err(), ScanError::Stopped);
}

#[test]
fn links_are_followed_to_regular_files_beneath_the_same_path_and_refused_otherwise() {
    let dir = tree(&[("set/lib.so.1", b"lib"), ("set/sub/x", b"x"), ("outside", b"secret")]);
    let dataset = dir.path().join("set");
    symlink("lib.so.1", dataset.join("lib.so")).unwrap();
    symlink("../lib.so", dataset.join("sub/again")).unwrap();
    let found = scanned(&[&dataset]).unwrap();
    assert_eq!(names(&found), ["lib.so", "lib.so.1", "sub/again", "sub/x"]);
    assert_eq!(found.manifest.pieces().len(), 2, "one content");
    // The path itself may be a link.
    symlink("set", dir.path().join("current")).unwrap();
    assert_eq!(scanned(&[&dir.path().join("current")]).unwrap().manifest, found.manifest);
    for (target, why) in [
        ("../outside", "is a link that leads to ../outside, which is elsewhere"),
        ("/etc/passwd", "leads to /etc/passwd, which is elsewhere"),
        ("nowhere", "leads to nowhere, which cannot be read"),
        ("sub", "leads to sub, which is a directory"),
        ("bad", "cannot be read"),
    ] {
        let link = dataset.join("bad");
        symlink(target, &link).unwrap();
        let text = refused(&[&dataset]);
        assert!(text.contains(&link.display().to_string()) && text.contains(why), "{text}");
        fs::remove_file(link).unwrap();
    }
}

#[test]
fn what_is_no_file_is_refused_with_what_it_is() {
    let dir = tree(&[("a", b"a")]);
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for paths in [dir.path(), &pipe] {
        let text = refused(&[paths]);
        assert!(text.contains("/pipe is not a regular file but a pipe"), "{text}");
    }
    fs::remove_file(&pipe).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let text = refused(&[dir.path()]);
    assert!(text.contains("/socket is not a regular file but a socket"), "{text}");
    let text = refused(&[Path::new("/dev/null")]);
    assert!(text.contains("/dev/null is not a regular file but a device"), "{text}");
    let text = refused(&[&dir.path().join("not there")]);
    assert!(text.contains("not there") && text.contains("relative paths start at"), "{text}");
}

#[test]
fn c08_names_that_are_none_everywhere_are_refused_with_path_and_rule() {
    for (name, rule) in [
        ("a\\b", "it holds '\\'"),
        ("c:x", "a drive"),
        ("line\nfeed", "it holds the control character U+000A"),
        ("sub/nul.txt", "are reserved"),
        ("dot.", "ends with '.', which some systems leave out"),
        ("sub./x", "ends with '.'"),
        ("space ", "ends with ' '"),
    ] {
        let dir = tree(&[("good", b""), (name, b"")]);
        let text = refused(&[dir.path()]);
        assert!(text.contains(rule), "{name:?}: {text}");
        assert!(text.starts_with(&dir.path().display().to_string()), "{text}");
    }
    let dir = tree(&[]);
    let deep = dir.path().join("d/".repeat(33));
    fs::create_dir_all(&deep).unwrap();
    let text = refused(&[dir.path()]);
    assert!(text.contains("at most 32 are taken"), "{text}");
    let odd = tempfile::tempdir().unwrap();
    let not_text = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"a\xFFb");
    fs::write(odd.path().join(not_text), b"").unwrap();
    let text = refused(&[odd.path()]);
    assert!(text.contains("is not UTF-8: rename it"), "{text}");
}

#[test]
fn names_that_differ_only_in_case_or_are_folders_of_others_are_refused_with_both() {
    for (first, second) in [("Data/a", "data/A"), ("STRASSE", "straße"), ("É", "é")] {
        let dir = tree(&[(first, b"1"), (second, b"2")]);
        let text = refused(&[dir.path()]);
        let both = text.contains(&format!("{first:?}")) && text.contains(&format!("{second:?}"));
        assert!(both && text.contains("upper from lower case"), "{text}");
    }
    let dir = tree(&[("a/x", b"1"), ("b/x", b"2"), ("n", b"3"), ("c/N/y", b"4")]);
    let at = |name: &str| dir.path().join(name);
    let text = refused(&[&at("a/x"), &at("b/x")]);
    assert!(text.contains("a/x and ") && text.contains("\"x\" and \"x\" in the dataset"), "{text}");
    let text = refused(&[&at("n"), &at("c/N")]);
    assert!(text.contains("would be the file \"n\"") && text.contains("\"N/y\""), "{text}");
    // Folders that differ in case are one on such systems, and their files still apart.
    let dir = tree(&[("Data/a", b"1"), ("data/b", b"2")]);
    assert_eq!(names(&scanned(&[dir.path()]).unwrap()), ["Data/a", "data/b"]);
}

#[test]
fn an_empty_dataset_is_refused_and_one_of_empty_files_is_not() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("only/folders")).unwrap();
    let text = refused(&[dir.path()]);
    assert!(
        text.contains("there is no file in") && text.contains(&dir.path().display().to_string()),
        "{text}"
    );
    fs::write(dir.path().join("only/folders/empty"), b"").unwrap();
    let scanned = scanned(&[dir.path()]).unwrap();
    assert_eq!((names(&scanned), scanned.manifest.pieces().len()), (vec!["only/folders/empty"], 0));
    assert_eq!(scanned.manifest.files()[0].sha256, sha256(&[]));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused_with_its_name() {
    let dir = tree(&[("a", &noise(5 << 20, 3))]);
    let path = dir.path().join("a");
    let source = FileSource::open(&path).unwrap();
    let change = |how: &dyn Fn(&File)| {
        let table = JobTable::default();
        let (home, free) = sync_channel(8);
        (0..8).for_each(|_| home.try_send(Vec::new()).unwrap());
        let watch = Watch::default();
        let reader = Reader { table: &table, home, free, watch: &watch };
        how(&File::options().write(true).open(&path).unwrap());
        reader.read(0, &source).unwrap_err().to_string()
    };
    let shrunk = change(&|file| file.set_len(1 << 20).unwrap());
    assert!(shrunk.contains("/a shrank from 5242880 bytes to 1048576"), "{shrunk}");
    let grown = change(&|file| file.set_len(6 << 20).unwrap());
    assert!(grown.contains("/a grew from 5242880 bytes"), "{grown}");
    let written = change(&|file| {
        file.set_len(5 << 20).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(9))
            .unwrap();
    });
    assert!(written.contains("/a changed"), "{written}");
}
