//! `last`: the newest job that this user submitted to a leader, as a job id on the command line.
//!
//! Submit notes each job that a leader has taken in `heft/last` beneath `$XDG_STATE_HOME`
//! (`~/.local/state`), the newest first, one for each leader. The file is replaced in one step, so
//! a reader never sees half of it; of two submits at the same moment one may be missing.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::exit::Usage;

/// Leaders that are remembered; the one that was used longest ago goes.
const LEADERS_MAX: usize = 32;

/// What is read of the file. Nothing that submit writes is longer.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// The longest address that is noted.
const ADDRESS_BYTES_MAX: usize = 1024;

const _: () = assert!(LEADERS_MAX * (ADDRESS_BYTES_MAX + 64) <= FILE_BYTES_MAX);

const WORD: &str = "last";

/// A job on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobRef {
    Id(Uuid),
    Last,
}

/// Reads a job's id, or `last`.
pub(crate) fn job_ref(text: &str) -> Result<JobRef, String> {
    if text == WORD {
        return Ok(JobRef::Last);
    }
    super::job_id(text).map(JobRef::Id).map_err(|error| format!("{error}, or `last`"))
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobRef::Id(id) => id.fmt(f),
            JobRef::Last => f.write_str(WORD),
        }
    }
}

impl JobRef {
    /// The job that is meant at this leader.
    pub(crate) fn resolve(self, leader: &str) -> Result<Uuid, Usage> {
        match self {
            JobRef::Id(id) => Ok(id),
            JobRef::Last => {
                let path = path().map_err(|why| Usage(format!("`last` is not known: {why}")))?;
                newest(&path, leader)
            }
        }
    }
}

/// Notes a job that a leader has taken. Whoever cannot write there has no `last`, and that alone.
pub(crate) fn note(leader: &str, job: Uuid) {
    let noted = path().and_then(|path| {
        note_in(&path, leader, job).map_err(|error| format!("{}: {error}", path.display()))
    });
    if let Err(why) = noted {
        tracing::debug!(%job, "the job is not noted as `last`: {why}");
    }
}

/// Where the file is.
fn path() -> Result<PathBuf, String> {
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = named("XDG_STATE_HOME")
        .or_else(|| Some(named("HOME")?.join(".local/state")))
        .ok_or("neither XDG_STATE_HOME nor HOME names a directory")?;
    Ok(state.join("heft").join("last"))
}

/// The jobs that the file has, with their leaders, the newest first. What is not a line of ours is
/// skipped.
fn read(path: &Path) -> io::Result<Vec<(Uuid, String)>> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX as u64).read_to_string(&mut text)?;
    let line = |line: &str| {
        let (job, leader) = line.split_once(' ')?;
        Some((job.parse().ok()?, leader.to_owned()))
    };
    Ok(text.lines().filter_map(line).take(LEADERS_MAX).collect())
}

fn newest(path: &Path, leader: &str) -> Result<Uuid, Usage> {
    let unknown = |why: String| Usage(format!("no last job is known for {leader}: {why}"));
    let noted = match read(path) {
        Ok(noted) => noted,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let why = "`heft submit` notes the jobs that a leader has taken, and there is none yet";
            return Err(unknown(why.to_owned()));
        }
        Err(error) => return Err(unknown(format!("cannot read {}: {error}", path.display()))),
    };
    if let Some((job, _)) = noted.iter().find(|(_, at)| at == leader) {
        return Ok(*job);
    }
    let others: Vec<&str> = noted.iter().map(|(_, leader)| leader.as_str()).collect();
    Err(unknown(match others.as_slice() {
        [] => format!("{} names no job", path.display()),
        others => format!("jobs were submitted to {}; name a job by its id", others.join(", ")),
    }))
}

fn note_in(path: &Path, leader: &str, job: Uuid) -> io::Result<()> {
    if leader.len() > ADDRESS_BYTES_MAX || leader.contains('\n') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut noted = read(path).unwrap_or_default();
    noted.retain(|(_, at)| at != leader);
    noted.truncate(LEADERS_MAX - 1);
    let lines = std::iter::once((job, leader.to_owned())).chain(noted);
    let text: String = lines.map(|(job, leader)| format!("{job} {leader}\n")).collect();
    // No two processes write the same file, and none follows what another put there.
    let beside = path.with_file_name(format!("last.{}", Uuid::new_v4().simple()));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| drop(fs::remove_file(&beside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn text(result: Result<Uuid, Usage>) -> String {
        let Err(Usage(text)) = result else { panic!("an error") };
        text
    }

    #[test]
    fn the_newest_job_of_each_leader_is_known_and_the_oldest_leader_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/heft/last");
        assert!(text(newest(&path, "a:1")).contains("there is none yet"));
        note_in(&path, "a:1", job(1)).unwrap();
        note_in(&path, "b:2", job(2)).unwrap();
        note_in(&path, "a:1", job(3)).unwrap();
        let of = |leader| newest(&path, leader).map_err(|Usage(text)| text);
        assert_eq!((of("a:1"), of("b:2")), (Ok(job(3)), Ok(job(2))));
        let said = text(newest(&path, "c:3"));
        assert!(said.contains("for c:3: jobs were submitted to a:1, b:2"), "{said}");
        for number in 0..40 {
            note_in(&path, &format!("x:{number}"), job(number)).unwrap();
        }
        assert_eq!(read(&path).unwrap().len(), LEADERS_MAX);
        assert!(newest(&path, "a:1").is_err() && of("x:39") == Ok(job(39)));
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn what_somebody_else_wrote_there_is_skipped_and_what_does_not_fit_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last");
        fs::write(&path, format!("nonsense\n{} a:1\n\u{1b}[2J x\n", job(7))).unwrap();
        assert_eq!(read(&path).unwrap(), [(job(7), "a:1".to_owned())]);
        assert!(note_in(&path, &"x".repeat(ADDRESS_BYTES_MAX + 1), job(1)).is_err());
        assert!(note_in(&path, "a\nb", job(1)).is_err());
        fs::write(&path, [0xFF; 100]).unwrap();
        assert!(text(newest(&path, "a:1")).contains("cannot read"));
        note_in(&path, "a:1", job(1)).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1, "it is written anew");
    }

    #[test]
    fn a_job_is_named_by_its_id_or_as_the_last() {
        assert_eq!(job_ref("last"), Ok(JobRef::Last));
        assert_eq!(job_ref(&job(5).to_string()), Ok(JobRef::Id(job(5))));
        let error = job_ref("first").unwrap_err();
        assert!(error.contains("\"first\" is not a valid job id") && error.ends_with("or `last`"));
    }
}
