//! The file of contexts: where leaders are, under names that people choose. It is read whole and
//! checked whole; it is written beside itself and then put in its place.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};
use uuid::Uuid;

use crate::cli::exit::Usage;
use crate::likeness::did_you_mean;
use crate::peer::is_address;

/// The longest file that is read.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// How long a command waits for another one that changes the file, and how often it looks.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The longest name of a context.
const NAME_BYTES_MAX: usize = 64;

/// The most leaders of one context, or of `--leader`.
const LEADERS_MAX: usize = 16;

const CURRENT: &str = "current";
const CONTEXT: &str = "context";
const LEADERS: &str = "leaders";
const CLIENT_ID: &str = "client_id";

/// A named place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context {
    /// Addresses of leaders, in the order in which they are tried.
    pub(crate) leaders: Vec<String>,
    /// The client id of commands that use it.
    pub(crate) client_id: Option<String>,
}

/// The file of contexts.
#[derive(Clone, Debug)]
pub(crate) struct Contexts {
    /// Where it is, or would be.
    pub(crate) path: PathBuf,
    /// The selected context.
    pub(crate) current: Option<String>,
    /// All of them, in the order of the file.
    pub(crate) all: Vec<(String, Context)>,
    document: DocumentMut,
}

impl Contexts {
    /// Reads the user's file. One that is not there has no contexts.
    pub(crate) fn read() -> Result<Contexts, Usage> {
        Contexts::read_from(&Contexts::place()?)
    }

    /// Reads the file in order to change it. Nobody else changes it meanwhile.
    pub(super) fn read_to_change() -> Result<(Contexts, Changing), Usage> {
        let path = Contexts::place()?;
        let changing = Changing::begin(&path)?;
        Ok((Contexts::read_from(&path)?, changing))
    }

    /// Where the user's file is, or would be.
    fn place() -> Result<PathBuf, Usage> {
        let home = || std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        // A relative one is to be ignored, says the XDG Base Directory Specification.
        let config = config.filter(|path| path.is_absolute());
        let Some(config) = config.or_else(|| home().map(|home| home.join(".config"))) else {
            return Err(Usage(
                "there is no place for the file of contexts: neither XDG_CONFIG_HOME nor HOME is set"
                    .to_owned(),
            ));
        };
        Ok(config.join("heft").join("config.toml"))
    }

    pub(in crate::cli) fn read_from(path: &Path) -> Result<Contexts, Usage> {
        let wrong = |why: &dyn Display| Usage(format!("{}: {why}", path.display()));
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => {
                let most = FILE_BYTES_MAX as u64 + 1;
                let read = file.take(most).read_to_end(&mut bytes);
                read.map_err(|error| wrong(&format!("cannot read it: {error}")))?;
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(wrong(&format!("cannot read it: {error}"))),
        }
        if bytes.len() > FILE_BYTES_MAX {
            return Err(wrong(&format!(
                "it has more than {FILE_BYTES_MAX} bytes, the limit: remove contexts from it"
            )));
        }
        let text = String::from_utf8(bytes).map_err(|_| wrong(&"it is not UTF-8"))?;
        let document: DocumentMut =
            text.parse().map_err(|error| wrong(&format!("it is not TOML: {error}")))?;
        let (current, all) = content(&document).map_err(|why| wrong(&why))?;
        Ok(Contexts { path: path.to_owned(), current, all, document })
    }

    /// The context of this name.
    pub(crate) fn find(&self, name: &str) -> Result<&Context, Usage> {
        let found = self.all.iter().find(|(known, _)| known == name);
        found.map(|(_, context)| context).ok_or_else(|| {
            let hint = did_you_mean(name, self.all.iter().map(|(known, _)| known.as_str()));
            let path = self.path.display();
            let text = match self.all.is_empty() {
                true => format!(
                    "there is no context {name:?} in {path}: add one with `heft context add`"
                ),
                false => format!(
                    "there is no context {name:?} in {path}{hint}: `heft context ls` lists all"
                ),
            };
            Usage(text)
        })
    }

    /// Adds a context, or replaces one.
    pub(super) fn set(&mut self, name: &str, context: &Context) {
        let mut leaders = Array::new();
        leaders.extend(context.leaders.iter().map(String::as_str));
        let contexts = self.document.entry(CONTEXT).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        if let Some(contexts) = contexts.as_table_like_mut() {
            // What a person wrote beside the values stays.
            if contexts.get(name).is_none_or(|old| !old.is_table_like()) {
                contexts.insert(name, Item::Table(Table::new()));
            }
            if let Some(table) = contexts.get_mut(name).and_then(Item::as_table_like_mut) {
                table.insert(LEADERS, value(leaders));
                match &context.client_id {
                    Some(id) => drop(table.insert(CLIENT_ID, value(id))),
                    None => drop(table.remove(CLIENT_ID)),
                }
            }
        }
        match self.all.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => old.clone_from(context),
            None => self.all.push((name.to_owned(), context.clone())),
        }
    }

    /// Removes a context. If it was selected, none is from then on.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(contexts) = self.document.get_mut(CONTEXT).and_then(Item::as_table_like_mut) {
            contexts.remove(name);
        }
        self.all.retain(|(known, _)| known != name);
        if self.current.as_deref() == Some(name) {
            self.document.remove(CURRENT);
            self.current = None;
        }
    }

    /// Selects a context.
    pub(super) fn select(&mut self, name: &str) {
        self.document.insert(CURRENT, value(name));
        self.current = Some(name.to_owned());
    }

    /// Writes the file: whoever reads it at this moment sees the old one or the new one, whole.
    pub(in crate::cli) fn write(&self) -> Result<(), Usage> {
        let text = self.document.to_string();
        // Somebody may keep it elsewhere, behind a link.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let failed = |error: io::Error| {
            Usage(format!(
                "cannot write {}: {error}; check the rights of its directory, or name another with \
                 XDG_CONFIG_HOME",
                path.display()
            ))
        };
        if text.len() > FILE_BYTES_MAX {
            return Err(Usage(format!(
                "{} would have {} bytes; the limit is {FILE_BYTES_MAX}: remove contexts from it",
                path.display(),
                text.len()
            )));
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let beside = directory.join(format!(".config.toml.{}", Uuid::new_v4().simple()));
        let written = (|| {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &path)?;
            File::open(directory)?.sync_all()
        })();
        written.map_err(|error| {
            fs::remove_file(&beside).ok();
            failed(error)
        })
    }
}

/// Keeps other commands from changing the file of contexts until it is dropped. Whoever only reads
/// it needs no lock: the file is replaced in one step.
pub(in crate::cli) struct Changing {
    _lock: OwnedFd,
}

impl Changing {
    /// Waits for the command that changes the file now, if there is one. The lock is that of its
    /// directory: the file itself is replaced.
    pub(in crate::cli) fn begin(path: &Path) -> Result<Changing, Usage> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = path.parent().unwrap_or(Path::new("."));
        let failed = |error: io::Error| {
            Usage(format!(
                "cannot lock {}: {error}; check its rights, or name another directory with \
                 XDG_CONFIG_HOME",
                directory.display()
            ))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let lock = OwnedFd::from(File::open(directory).map_err(failed)?);
        let began = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Changing { _lock: lock }),
                Err(Errno::WOULDBLOCK) if began.elapsed() < LOCK_WAIT => sleep(LOCK_PAUSE),
                // Not every file system has locks.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {
                    return Ok(Changing { _lock: lock });
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What the file says: the selected context, and all.
type Content = (Option<String>, Vec<(String, Context)>);

fn content(document: &DocumentMut) -> Result<Content, String> {
    let (mut current, mut all) = (None, Vec::new());
    for (key, item) in document.iter() {
        match key {
            CURRENT => current = Some(string(key, item)?),
            CONTEXT => {
                let contexts = item.as_table_like();
                let contexts = contexts.ok_or_else(|| {
                    format!("{CONTEXT:?} must hold tables such as [context.prod]")
                })?;
                for (name, item) in contexts.iter() {
                    check_name(name)?;
                    let table = item.as_table_like();
                    let table = table.ok_or_else(|| format!("[context.{name}] must be a table"))?;
                    let context =
                        context(table).map_err(|why| format!("[context.{name}]: {why}"))?;
                    all.push((name.to_owned(), context));
                }
            }
            key => {
                let hint = did_you_mean(key, [CURRENT, CONTEXT]);
                return Err(format!("the key {key:?} is unknown{hint}"));
            }
        }
    }
    if let Some(current) = &current
        && !all.iter().any(|(name, _)| name == current)
    {
        let hint = did_you_mean(current, all.iter().map(|(name, _)| name.as_str()));
        return Err(format!(
            "it selects the context {current:?}, which it does not have{hint}: select another with \
             `heft context use`"
        ));
    }
    Ok((current, all))
}

fn context(table: &dyn TableLike) -> Result<Context, String> {
    let mut context = Context::default();
    for (key, item) in table.iter() {
        match key {
            LEADERS => {
                let listed = item.as_array().map(|array| array.iter().map(Value::as_str));
                let listed = listed.and_then(|texts| texts.collect::<Option<Vec<&str>>>());
                let listed = listed.ok_or_else(|| {
                    format!("{LEADERS} must be a list of addresses such as [\"127.0.0.1:5000\"]")
                })?;
                context.leaders = check_leaders(listed)?;
            }
            CLIENT_ID => context.client_id = Some(check_client_id(&string(key, item)?)?),
            key => {
                let hint = did_you_mean(key, [LEADERS, CLIENT_ID]);
                return Err(format!("the key {key:?} is unknown{hint}"));
            }
        }
    }
    if context.leaders.is_empty() {
        return Err(format!("{LEADERS} is missing: name at least one address"));
    }
    Ok(context)
}

fn string(key: &str, item: &Item) -> Result<String, String> {
    item.as_str().map(str::to_owned).ok_or_else(|| format!("{key} must be a text in quotes"))
}

/// Checks addresses of leaders.
pub(crate) fn check_leaders<'a>(
    leaders: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<String>, String> {
    let mut checked: Vec<String> = Vec::new();
    for leader in leaders {
        let leader = leader.trim();
        if !is_address(leader) {
            return Err(format!(
                "{leader:?} is not an address: write host:port, such as 127.0.0.1:5000"
            ));
        }
        if checked.len() == LEADERS_MAX {
            return Err(format!("more than {LEADERS_MAX} leaders are named, the limit"));
        }
        checked.push(leader.to_owned());
    }
    match checked.is_empty() {
        true => Err("no leader is named".to_owned()),
        false => Ok(checked),
    }
}

/// Checks the name of a context.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match name.len() <= NAME_BYTES_MAX && starts_plain && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is not a name for a context: use at most {NAME_BYTES_MAX} letters, digits, -, \
             _ and ., with a letter or digit first"
        )),
    }
}

/// Checks a client id. How long it may be the client says.
pub(super) fn check_client_id(id: &str) -> Result<String, String> {
    match id.is_empty() || id.contains(char::is_control) {
        true => Err(format!(
            "{CLIENT_ID} is {id:?}: it must have a visible character, and no control character"
        )),
        false => Ok(id.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn read(text: &str) -> Result<Contexts, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, text).unwrap();
        Contexts::read_from(&path).map_err(|Usage(text)| text)
    }

    fn named(leaders: &[&str]) -> Context {
        let leaders = leaders.iter().map(|leader| (*leader).to_owned()).collect();
        Context { leaders, client_id: None }
    }

    #[test]
    fn a_file_has_contexts_with_leaders_and_a_client_id_and_selects_one() {
        let text = "current = \"prod\"\n[context.prod]\nleaders = [\"a:5000\", \"[::1]:5001\"]\nclient_id = \"alice\"\n\
                    [context]\ntest = { leaders = [\"b:1\"] }\n";
        let contexts = read(text).unwrap();
        assert_eq!(contexts.current.as_deref(), Some("prod"));
        let prod =
            Context { client_id: Some("alice".to_owned()), ..named(&["a:5000", "[::1]:5001"]) };
        assert_eq!(contexts.find("prod").unwrap(), &prod);
        assert_eq!(contexts.find("test").unwrap(), &named(&["b:1"]));
        let Usage(error) = contexts.find("prd").unwrap_err();
        assert!(error.contains("did you mean \"prod\"?"), "{error}");
        assert!(read("").unwrap().all.is_empty());
        let absent = Contexts::read_from(Path::new("/nowhere/config.toml")).unwrap();
        assert!(absent.all.is_empty() && absent.current.is_none());
    }

    #[test]
    fn what_is_wrong_in_a_file_is_said_with_its_path_and_the_key() {
        let long = format!("# {}", "x".repeat(FILE_BYTES_MAX));
        for (text, why) in [
            ("curent = \"a\"", "the key \"curent\" is unknown; did you mean \"current\"?"),
            ("current = 5", "current must be a text"),
            ("current = \"a\"", "it selects the context \"a\", which it does not have"),
            ("context = 5", "must hold tables"),
            ("[context]\na = 5", "[context.a] must be a table"),
            ("[context.a]", "[context.a]: leaders is missing"),
            ("[context.a]\nleaders = []", "[context.a]: no leader is named"),
            ("[context.a]\nleaders = \"a:1\"", "[context.a]: leaders must be a list"),
            ("[context.a]\nleaders = [1]", "[context.a]: leaders must be a list"),
            ("[context.a]\nleaders = [\"a\"]", "[context.a]: \"a\" is not an address"),
            (
                "[context.a]\nleader = [\"a:1\"]",
                "[context.a]: the key \"leader\" is unknown; did you mean \"leaders\"?",
            ),
            ("[context.a]\nleaders = [\"a:1\"]\ntls = true", "the key \"tls\" is unknown"),
            ("[context.a]\nleaders = [\"a:1\"]\nclient_id = \"\"", "client_id is \"\""),
            ("[context.\"a b\"]\nleaders = [\"a:1\"]", "\"a b\" is not a name for a context"),
            ("[context", "it is not TOML"),
            (long.as_str(), "it has more than 65536 bytes, the limit"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("config.toml: "), "{error}");
        }
        let many = vec!["a:1"; LEADERS_MAX + 1];
        assert!(check_leaders(many).unwrap_err().contains("more than 16 leaders"));
    }

    #[test]
    fn a_change_keeps_what_a_person_wrote_and_the_file_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/config.toml");
        let mut contexts = Contexts::read_from(&path).unwrap();
        contexts.set("a", &named(&["a:1"]));
        contexts.select("a");
        contexts.write().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "current = \"a\"\n\n[context.a]\nleaders = [\"a:1\"]\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        fs::write(&path, format!("# mine\n{text}")).unwrap();
        // Behind a link it stays where it is.
        let link = dir.path().join("config.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut contexts = Contexts::read_from(&link).unwrap();
        contexts.set("b", &Context { client_id: Some("me".to_owned()), ..named(&["b:1", "c:2"]) });
        contexts.remove("a");
        contexts.write().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("[context.b]\nleaders = [\"b:1\", \"c:2\"]\nclient_id = \"me\"\n"),
            "{text}"
        );
        assert!(!text.contains("current") && !text.contains("context.a"), "{text}");
        let again = Contexts::read_from(&path).unwrap();
        assert_eq!((again.current, again.all), (contexts.current, contexts.all));
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no file is left over"
        );
    }
}
