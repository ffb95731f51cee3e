//! `heft-tools import taskflux`: the queues of a TaskFlux node (TF01-TF11, TF23) as jobs with a
//! routing key for each queue (C27) and raw payloads (M19).
//!
//! Payloads stay in their files until they are written, so memory goes with the number of records,
//! not with their size.

mod bytes;
mod files;
mod heap;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use heft::core::ids::Micros;
use heft::core::subject::{GROUP_DEFAULT, RoutingKey, routing_key};
use uuid::Uuid;

use super::write::Target;
use super::{Imported, Into, Standing, Summary, note};
use crate::exit::{Failure, with_codes};
use files::{Command, Item, Log, Queue, Snapshot, State, Where};

const EXAMPLES: &str = "Examples:
  heft-tools import taskflux /var/lib/tflux --data /var/lib/heft --dry-run
  heft-tools import taskflux /var/lib/tflux --data /var/lib/heft && heft leader 5000 --data /var/lib/heft

Stop that node first, and take the one that was the leader: it has all that was committed. A queue `mail` becomes the routing key
`job.assign.mail`, the default queue `job.assign.default`; `.`, `*`, `>` and `%` in a name become %2E, %2A, %3E and %25. Workers get the bytes of a
record as they are.";

/// TaskFlux has no limit of jobs at a time for a client.
const CAP: u32 = u32::MAX;

#[derive(clap::Args)]
#[command(after_help = with_codes(EXAMPLES))]
pub(crate) struct Args {
    /// Directory that contains `consensus/raft.log`, or `consensus` itself.
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    #[command(flatten)]
    into: Into,

    /// Client id of the jobs; a client with this id receives their results.
    #[arg(long, default_value = "taskflux", value_name = "NAME")]
    client: String,

    /// Treat every log record as newer than the snapshot, even if the first records produce exactly
    /// its content.
    #[arg(long)]
    whole_log: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut target = Target::new(&args.into)?;
    let within = args.dir.join("consensus");
    let dir = if within.is_dir() { within } else { args.dir.clone() };
    let (log_path, snapshot_path) = (dir.join("raft.log"), dir.join("raft.snapshot"));
    let metadata = files::metadata(&dir.join("raft.metadata"))?;
    let snapshot = files::snapshot(&snapshot_path)?;
    let log = Log::open(&log_path)?;
    if log.is_none() && snapshot.is_none() {
        return Err(Failure::Usage(format!(
            "{} has neither raft.log nor raft.snapshot with anything in it: name the directory of a TaskFlux node",
            dir.display()
        )).into());
    }
    let mut summary = Summary::default();
    let mut sources = Sources { snapshot: None, log };
    let mut commands = Vec::new();
    if let Some(log) = &mut sources.log {
        commands = read_log(log, &log_path, args.into.skip_damaged, &mut summary)?;
    }
    let (mut state, mut already) = (State::default(), 0);
    let mut from = "there is no snapshot".to_owned();
    if let Some(Snapshot { bytes, last_index, last_term, state: held }) = snapshot {
        from = format!(
            "{} records in {} (index {last_index}, term {last_term})",
            held.len(),
            snapshot_path.display()
        );
        sources.snapshot = Some(bytes);
        if !args.whole_log {
            already = sources.already_in(&held, last_index, last_term, &commands)?;
        }
        state = held;
    }
    let later = commands.get(already..).unwrap_or_default();
    later.iter().for_each(|(_, command)| state.apply(command));
    target.cap(&args.client, CAP, &mut summary)?;
    let now =
        Micros::default().plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let mut keys: BTreeMap<RoutingKey, String> = BTreeMap::new();
    for (name, queue) in state.queues {
        let key = key_of(&name)?;
        if let Some(other) = keys.insert(key.clone(), name.clone()) {
            note(
                &dir,
                format_args!(
                    "the queues {other:?} and {name:?} become one, {key}: heft does not tell their names apart"
                ),
            );
        }
        let Queue { size_max, items } = queue;
        if size_max > 0 {
            note(
                &dir,
                format_args!(
                    "the queue {name:?} takes at most {size_max} records there; {key} takes any number"
                ),
            );
        }
        let mut items = items.into_items();
        items.sort_unstable_by_key(|(key, item)| (*key, item.order));
        for (priority, item) in items {
            let payload = sources.payload(&item)?;
            let job = Imported {
                id: Uuid::new_v4(),
                client: args.client.clone(),
                key: key.clone(),
                exec: String::new(),
                priority,
                at: now,
                standing: Standing::Queued,
                payload,
            };
            target.job(job, &mut summary)?;
        }
    }
    target.finish()?;
    let mut out = io::stdout().lock();
    writeln!(out, "read {} records of {}; {from}", commands.len(), log_path.display())?;
    if already > 0 {
        writeln!(
            out,
            "  the first {already} records of the log are in the snapshot already: they make exactly what it holds"
        )?;
    }
    if let Some(metadata) = metadata {
        let vote = metadata.vote.map_or("nobody".to_owned(), |node| format!("node {node}"));
        writeln!(
            out,
            "  its term was {}, and it had voted for {vote}; a heft leader needs neither",
            metadata.term
        )?;
    }
    Ok(summary.print(&target, &mut out)?)
}

/// All commands, with their terms. One that cannot be read ends the log.
fn read_log(
    log: &mut Log,
    path: &Path,
    skip_damaged: bool,
    summary: &mut Summary,
) -> Result<Vec<(i32, Command)>, Failure> {
    let mut commands = Vec::new();
    loop {
        match log.next() {
            Ok(None) => return Ok(commands),
            Ok(Some(record)) => commands.push((record.term, record.command)),
            Err(Failure::Damaged(what)) if skip_damaged => {
                // Records have no marks of their own, so where the next begins is not known.
                note(path, format_args!("{what}; this and all behind it is left out"));
                summary.skip(
                    "the end of the log from a record on that cannot be read",
                    format_args!("record {}", commands.len()),
                );
                return Ok(commands);
            }
            Err(Failure::Damaged(what)) => {
                return Err(Failure::Damaged(format!(
                    "{what} (record {}). Restore the file from a backup, or give --skip-damaged to \
                     continue without this record and all after it",
                    commands.len()
                )));
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The routing key of a queue (C27). `%` is encoded, too, so that no two names become one.
fn key_of(name: &str) -> Result<RoutingKey, Failure> {
    let mut encoded = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '.' | '*' | '>' | '%' => encoded.push_str(&format!("%{:02X}", u32::from(character))),
            other => encoded.push(other),
        }
    }
    let group = if encoded.is_empty() { GROUP_DEFAULT } else { &encoded };
    routing_key(&format!("job.assign.{group}"), None)
        .map_err(|error| Failure::Damaged(error.to_string()))
}

/// The files that payloads lie in.
struct Sources {
    snapshot: Option<bytes::Bytes>,
    log: Option<Log>,
}

impl Sources {
    fn payload(&mut self, item: &Item) -> Result<Vec<u8>, Failure> {
        let bytes = match item.file {
            Where::Snapshot => self.snapshot.as_mut(),
            Where::Log => self.log.as_mut().map(|log| &mut log.bytes),
        };
        bytes.map_or(Ok(Vec::new()), |bytes| bytes.read(item.payload))
    }

    /// How many of the first commands are in the snapshot. A node that is killed after it has made
    /// its snapshot and before it has emptied its log leaves both; nothing but what they hold tells
    /// that.
    fn already_in(
        &mut self,
        held: &State,
        last_index: i32,
        last_term: i32,
        commands: &[(i32, Command)],
    ) -> Result<usize, Failure> {
        let Some(count) = usize::try_from(last_index).ok().and_then(|index| index.checked_add(1))
        else {
            return Ok(0);
        };
        let Some(first) = commands.get(..count) else { return Ok(0) };
        if first.last().is_none_or(|(term, _)| *term != last_term) {
            return Ok(0);
        }
        let mut made = State::default();
        first.iter().for_each(|(_, command)| made.apply(command));
        let is_it = made.len() == held.len() && self.contents(&made)? == self.contents(held)?;
        Ok(if is_it { count } else { 0 })
    }

    /// What the queues hold, whatever file it lies in.
    fn contents(&mut self, state: &State) -> Result<Vec<(String, i64, [u8; 32])>, Failure> {
        let mut contents = Vec::with_capacity(state.len());
        for (name, queue) in &state.queues {
            for (key, item) in queue.items.items() {
                contents.push((name.clone(), *key, chunking::digest::blake3(&self.payload(item)?)));
            }
        }
        contents.sort_unstable();
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c27_names_of_queues_become_routing_keys_and_no_two_the_same() {
        for (name, key) in [
            ("", "job.assign.default"),
            ("mail", "job.assign.mail"),
            ("a.b", "job.assign.a%2Eb"),
            ("*", "job.assign.%2A"),
            (">", "job.assign.%3E"),
            ("%2A", "job.assign.%252A"),
            ("...", "job.assign.%2E%2E%2E"),
            ("!~", "job.assign.!~"),
        ] {
            assert_eq!(key_of(name).unwrap().as_str(), key);
        }
        assert_eq!(key_of(&"*".repeat(255)).unwrap().as_str().len(), "job.assign.".len() + 3 * 255);
    }
}
