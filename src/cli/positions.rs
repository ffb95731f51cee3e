//! The words of a command line before `clap` reads them. Verbs stand before arguments, and the
//! leader is a flag; before that was so, the leader's address was the first word behind the
//! command. Those lines still mean what they meant: an address in the old place becomes the flag.
//!
//! Flags that say where the leader is and how to print may stand before the verb: they are put
//! behind it, where `clap` looks for them.
//!
//! It also puts `heft worker -l HOST:PORT` into the founding form, `heft worker HOST PORT`.

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{Arg, Command, ValueEnum};

use super::exit::Usage;
use super::note;
use super::output::{OUTPUT_VARIABLE, Output};
use super::reach::{Addresses, addresses};
use crate::peer::is_address;

/// The commands that had the leader's address as their first word.
const OLD: [&[&str]; 8] = [
    &["submit"],
    &["status"],
    &["explain"],
    &["cancel"],
    &["dlq"],
    &["blob"],
    &["dataset"],
    &["result", "get"],
];

/// The one where the next word may look like an address and is none: the name of a program.
const SUBMIT: &[&str] = &["submit"];

const WORKER: &[&str] = &["worker"];

/// The flags that may stand before the verb, of those that the command behind it takes.
const LEADING: [&str; 6] =
    ["leader", "context", "output", "connect_wait", "answer_wait", "tcp_congestion"];

/// A command that takes all of them.
const EVERYDAY: &str = "status";

/// A command line as `clap` reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// All words, with the program first.
    pub(super) words: Vec<OsString>,
    /// The address that stood in the old place.
    pub(super) old: Option<String>,
    /// Whether the answer, or an error in its place, is to be JSON.
    pub(super) is_json: bool,
}

impl Line {
    /// Says that an address stands in the old place: to whoever looks at a terminal, and in the
    /// log. A script gets no new line.
    pub(super) fn hint(&self) {
        let Some(address) = &self.old else { return };
        let hint = format!(
            "the leader's address in front is the older form: use -l {address}, HEFT_LEADER or \
             `heft context`"
        );
        match std::io::stderr().is_terminal() {
            true => note(&hint),
            false => tracing::info!("{hint}"),
        }
    }
}

/// Reads the words of a command line. `root` is built: its commands know the flags of those above.
/// An error comes with whether it is to be JSON.
pub(super) fn read(root: &Command, words: Vec<OsString>) -> Result<Line, (Usage, bool)> {
    let words = behind_the_verb(root, words);
    let seen = look(root, &words);
    let variable = || std::env::var(OUTPUT_VARIABLE).ok();
    let output = seen.output.clone().or_else(variable).filter(|_| seen.has_output);
    let output = output.and_then(|output| Output::from_str(&output, false).ok());
    let is_json = output.is_some_and(Output::is_json);
    let line = Line { words, old: None, is_json };
    modern(&seen, line).map_err(|error| (error, is_json))
}

fn modern(seen: &Seen, mut line: Line) -> Result<Line, Usage> {
    if seen.path == WORKER {
        founding_worker(seen, &mut line)?;
    } else if let Some((at, address)) = &seen.address {
        // With a flag beside it the only word can but be the program.
        let is_program = seen.path == SUBMIT && seen.behind == 0;
        match seen.leaders.is_empty() {
            true => {
                if let Some(word) = line.words.get_mut(*at) {
                    *word = format!("--leader={address}").into();
                }
                line.old = Some(address.clone());
            }
            false if is_program => {}
            false => {
                return Err(Usage(format!(
                    "the leader is given twice, with -l and as {address} in front: leave one out"
                )));
            }
        }
    }
    Ok(line)
}

/// Puts flags that stand before the verb behind it. A word that is no command stays before them: it
/// is what is wrong with the line.
fn behind_the_verb(root: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let Some(everyday) = root.find_subcommand(EVERYDAY) else { return words };
    let mut words = words.into_iter();
    let mut placed: Vec<OsString> = words.next().into_iter().collect();
    let (mut moved, mut command) = (Vec::new(), root);
    while command.has_subcommands() {
        let Some(word) = words.next() else { break };
        let text = word.to_str().filter(|text| *text != "--").unwrap_or_default();
        let is_known = |arg: &Arg| command.get_arguments().any(|one| one.get_id() == arg.get_id());
        match flag(everyday, text) {
            Some((Some(arg), value)) if LEADING.contains(&arg.get_id().as_str()) => {
                let value = if value.is_none() { words.next() } else { None };
                let to = if is_known(arg) { &mut placed } else { &mut moved };
                to.push(word);
                to.extend(value);
            }
            Some(_) => placed.push(word),
            None => {
                let verb = command.find_subcommand(text);
                placed.push(word);
                match verb {
                    Some(verb) => command = verb,
                    None => break,
                }
            }
        }
    }
    placed.into_iter().chain(moved).chain(words).collect()
}

/// `worker -l HOST:PORT` becomes `worker HOST PORT`.
fn founding_worker(seen: &Seen, line: &mut Line) -> Result<(), Usage> {
    let [given] = seen.leaders.as_slice() else {
        return match seen.leaders.is_empty() {
            true => Ok(()),
            false => Err(Usage("-l is given more than once".to_owned())),
        };
    };
    let Addresses(named) = addresses(&given.value).map_err(|why| Usage(format!("-l: {why}")))?;
    let [address] = named.as_slice() else {
        return Err(Usage(format!("a worker has one leader, and -l names {}", named.len())));
    };
    if let Some(port) = seen.second.as_ref().filter(|word| word.parse::<u16>().is_ok()) {
        return Err(Usage(format!(
            "the leader is given twice, with -l and as HOST {port}: leave one out"
        )));
    }
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let before = line.words.iter().take(seen.begin);
    let own = given.first..=given.last;
    let rest = line.words.iter().enumerate().skip(seen.begin);
    let rest = rest.filter(|(at, _)| !own.contains(at)).map(|(_, word)| word);
    let founding = [OsString::from(host), OsString::from(port)];
    line.words = before.chain(&founding).chain(rest).cloned().collect();
    Ok(())
}

/// A `--leader` among the words.
#[derive(Debug, PartialEq, Eq)]
struct Given {
    value: String,
    /// The first of its words, and the last.
    first: usize,
    last: usize,
}

/// What stands where in a command line.
#[derive(Debug, Default)]
struct Seen {
    /// The command, with its verb.
    path: Vec<String>,
    /// The word behind it.
    begin: usize,
    /// A word in the old place of the address that is one, and where it stands.
    address: Option<(usize, String)>,
    /// The second word that is neither a flag nor a flag's value.
    second: Option<String>,
    /// How many words of that kind stand behind the address.
    behind: usize,
    leaders: Vec<Given>,
    output: Option<String>,
    /// Whether the command takes `--output`, or none is named that could say so.
    has_output: bool,
}

/// Walks over the words as `clap` will, up to `--`.
fn look(root: &Command, words: &[OsString]) -> Seen {
    let mut seen = Seen { begin: 1, ..Seen::default() };
    let (mut command, mut plain) = (root, 0usize);
    let mut at = 1;
    while let Some(word) = words.get(at) {
        let first = at;
        at += 1;
        let Some(word) = word.to_str() else {
            plain += 1;
            continue;
        };
        if word == "--" {
            break;
        }
        if let Some((name, value)) = flag(command, word) {
            // What kind of error a line is that names no command is read from it, too.
            let everyday = || root.find_subcommand(EVERYDAY).filter(|_| command.has_subcommands());
            let found = name.map(|arg| (arg, value));
            let found = found.or_else(|| {
                let (name, value) = flag(everyday()?, word)?;
                name.filter(|arg| LEADING.contains(&arg.get_id().as_str())).map(|arg| (arg, value))
            });
            let Some((arg, value)) = found else { continue };
            let value = match value {
                Some(value) => value,
                None => {
                    let value = words.get(at).and_then(|word| word.to_str()).unwrap_or_default();
                    at += 1;
                    value
                }
            };
            match arg.get_id().as_str() {
                "leader" => {
                    let value = value.to_owned();
                    seen.leaders.push(Given { value, first, last: at - 1 });
                }
                "output" => seen.output = Some(value.to_owned()),
                _ => {}
            }
            continue;
        }
        if let Some(verb) = command.find_subcommand(word) {
            seen.path.push(verb.get_name().to_owned());
            (command, plain, seen.begin) = (verb, 0, at);
            continue;
        }
        plain += 1;
        if plain == 1 && is_address(word) && OLD.iter().any(|path| seen.path == *path) {
            seen.address = Some((first, word.to_owned()));
        } else if seen.address.is_some() {
            seen.behind += 1;
        }
        if plain == 2 {
            seen.second = Some(word.to_owned());
        }
    }
    let has_output = command.get_arguments().any(|arg| arg.get_id() == "output");
    seen.has_output = has_output || command.has_subcommands();
    seen
}

/// Whether a word is a flag; the argument if it takes a value, and the value if that stands in the
/// same word.
fn flag<'a>(command: &'a Command, word: &'a str) -> Option<(Option<&'a Arg>, Option<&'a str>)> {
    let takes = |arg: &&Arg| arg.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let named = |arg: &&Arg| {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        return Some((command.get_arguments().find(named).filter(takes), value));
    }
    let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty())?;
    // A number is no flag: a word such as -5 stands for itself.
    if letters.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut rest = letters.chars();
    while let Some(letter) = rest.next() {
        let named = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        if let Some(arg) = named.filter(takes) {
            let value = rest.as_str();
            let value = value.strip_prefix('=').unwrap_or(value);
            return Some((Some(arg), Some(value).filter(|value| !value.is_empty())));
        }
    }
    Some((None, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command::root;

    fn read(line: &str) -> Result<Line, Usage> {
        let words = line.split_whitespace().map(OsString::from).collect();
        super::read(&root(), words).map_err(|(error, _)| error)
    }

    fn words(line: &str) -> String {
        let words = read(line).unwrap().words;
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_address_in_its_old_place_becomes_the_flag_and_nothing_else_changes() {
        for (old, new) in [
            ("heft submit a:1 calcA -- b:2", "heft submit --leader=a:1 calcA -- b:2"),
            (
                "heft submit --all --file x:1 a:1 calcA",
                "heft submit --all --file x:1 --leader=a:1 calcA",
            ),
            ("heft submit --priority -5 a:1 calcA", "heft submit --priority -5 --leader=a:1 calcA"),
            (
                "heft submit --file=x:1 [::1]:5000 x:2",
                "heft submit --file=x:1 --leader=[::1]:5000 x:2",
            ),
            ("heft status localhost:5000", "heft status --leader=localhost:5000"),
            ("heft status --watch a:1", "heft status --watch --leader=a:1"),
            ("heft status -ojson a:1", "heft status -ojson --leader=a:1"),
            ("heft status -o json a:1", "heft status -o json --leader=a:1"),
            ("heft explain a:1 x", "heft explain --leader=a:1 x"),
            ("heft cancel a:1 x", "heft cancel --leader=a:1 x"),
            ("heft dlq a:1 ls", "heft dlq --leader=a:1 ls"),
            ("heft blob --output json a:1 ls", "heft blob --output json --leader=a:1 ls"),
            ("heft dataset a:1 put x:1 y:2", "heft dataset --leader=a:1 put x:1 y:2"),
            ("heft result get a:1 x", "heft result get --leader=a:1 x"),
        ] {
            assert_eq!(words(old), new);
            assert!(read(old).unwrap().old.is_some(), "{old}");
        }
    }

    #[test]
    fn flags_before_the_verb_go_behind_it() {
        for (line, behind) in [
            ("heft -l a:1 status", "heft status -l a:1"),
            ("heft --leader=a:1 -o json job ls", "heft job ls --leader=a:1 -o json"),
            ("heft job -l a:1 ls", "heft job ls -l a:1"),
            ("heft job -qojson ls --mine", "heft job ls -qojson --mine"),
            (
                "heft --context x -q submit calcA -- -l b:1",
                "heft -q submit --context x calcA -- -l b:1",
            ),
            ("heft -l a:1 dataset put x y", "heft dataset put -l a:1 x y"),
            ("heft dlq -o json ls", "heft dlq -o json ls"),
            ("heft -o json dlq a:1 ls", "heft dlq --leader=a:1 -o json ls"),
            ("heft -l a:1 worker calcA", "heft worker a 1 calcA"),
            ("heft -o json foo", "heft foo -o json"),
            ("heft -q leader 5000", "heft -q leader 5000"),
        ] {
            assert_eq!(words(line), behind, "{line}");
        }
        let Usage(text) = read("heft -l b:2 status a:1").unwrap_err();
        assert!(text.contains("given twice"), "{text}");
    }

    #[test]
    fn other_words_stay_as_they_are() {
        for line in [
            "heft",
            "heft --help",
            "heft submit calcA a:1",
            "heft submit tool",
            "heft submit -l a:1 tool:80",
            "heft submit tool:80x",
            "heft submit :80 x",
            "heft submit a:0 x",
            "heft submit -- a:1",
            "heft job submit tool:80 -l a:1",
            "heft dataset put x:1 y:2",
            "heft dataset -l a:1 put x:1 y:2",
            "heft dlq show a:1",
            "heft result a:1 get x",
            "heft result get x",
            "heft leader 5000",
            "heft worker 127.0.0.1 5000 a:1",
            "heft client h 1 a:1",
            "heft clientx c a:1 b:2 12",
            "heft nonsense a:1",
        ] {
            assert_eq!(words(line), line);
            assert_eq!(read(line).unwrap().old, None, "{line}");
        }
    }

    #[test]
    fn a_leader_that_is_given_twice_is_refused() {
        for line in [
            "heft status a:1 -l b:2",
            "heft status -lb:2 a:1",
            "heft submit a:1 calcA --leader=b:2",
            "heft submit --leader b:2 a:1 calcA",
            "heft dataset a:1 put x y -l b:2",
            "heft result get a:1 x --leader b:2",
        ] {
            let Usage(text) = read(line).unwrap_err();
            assert!(text.contains("given twice") && text.contains("a:1"), "{line}: {text}");
        }
        assert!(words("heft submit a:1 calcA -- -l b:2").contains("--leader=a:1"));
    }

    #[test]
    fn the_leader_of_a_worker_becomes_host_and_port() {
        for (line, founding) in [
            ("heft worker -l h:1", "heft worker h 1"),
            ("heft worker groupA -l h:1 groupB", "heft worker h 1 groupA groupB"),
            ("heft worker --max-par 9 --leader=h:1", "heft worker h 1 --max-par 9"),
            ("heft worker -l [::1]:7 --name w a", "heft worker [::1] 7 --name w a"),
        ] {
            assert_eq!(words(line), founding);
        }
        for (line, why) in [
            ("heft worker -l h:1 127.0.0.1 5000", "given twice"),
            ("heft worker -l h:1,i:2", "one leader"),
            ("heft worker -l h:1 -l i:2", "more than once"),
            ("heft worker -l h", "\"h\" is not an address"),
        ] {
            let Usage(text) = read(line).unwrap_err();
            assert!(text.contains(why), "{line}: {text}");
        }
    }

    #[test]
    fn the_form_of_the_output_is_seen_where_a_command_has_one() {
        for (line, is_json) in [
            ("heft status -o json", true),
            ("heft status --output=jsonl -l a:1 --nonsense", true),
            ("heft dlq ls -ojson", true),
            ("heft dlq -qo json ls", true),
            ("heft status -o table", false),
            ("heft status -o xml", false),
            ("heft submit x -- -o json", false),
            ("heft leader 5000 -o json", false),
            ("heft -o json leader 5000", false),
            ("heft -o json job ls", true),
            ("heft foo -o json", true),
            ("heft job -ojson foo", true),
            ("heft foo --output=table", false),
        ] {
            assert_eq!(read(line).unwrap().is_json, is_json, "{line}");
        }
        let words = ["heft", "status", "a:1", "-l", "b:1", "-ojson"].map(OsString::from);
        assert!(super::read(&root(), words.into()).unwrap_err().1);
    }
}
