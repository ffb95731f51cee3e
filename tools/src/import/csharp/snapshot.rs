//! The newest snapshot of the C# system (PE04, PE06). It is written in place there, so the newest
//! may be half of one: then the one before it is taken.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use uuid::Uuid;

use super::super::{Standing, note};
use super::lines::BOM;
use super::members::{Members, guid, read};
use crate::exit::Failure;
use crate::time::parse_stamp;

/// .NET could not have made a larger one: no array there has more bytes.
const SNAPSHOT_BYTES_MAX: u64 = 2 << 30;

/// The bytes of a snapshot, and when it was made.
pub(super) struct Text {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
    /// Microseconds since 1970; its name has whole seconds.
    pub(super) at: i64,
}

/// A job that is in a snapshot.
pub(super) struct Held<'a> {
    pub(super) id: Uuid,
    pub(super) standing: Standing,
    pub(super) job: &'a RawValue,
}

/// What a snapshot says.
#[derive(Default)]
pub(super) struct Snapshot<'a> {
    /// In the order in which they are to run: those that ran, those that waited, those that are
    /// dead.
    pub(super) jobs: Vec<Held<'a>>,
    pub(super) caps: Vec<(String, i64)>,
    /// Jobs that were there more than once.
    pub(super) repeated: u64,
}

/// The snapshots in a directory, the newest first.
pub(super) fn names(dir: &Path) -> Result<Vec<(String, i64)>, Failure> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::io("read", dir, &error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| Failure::io("read", dir, &error))?.file_name();
        let Some(name) = name.to_str() else { continue };
        let stamp = name.strip_prefix("state-").and_then(|name| name.strip_suffix(".json"));
        if let Some(at) = stamp.and_then(parse_stamp) {
            names.push((name.to_owned(), at));
        }
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}

/// Reads the newest that can be read. Those that cannot are named.
pub(super) fn newest(dir: &Path) -> Result<Option<Text>, Failure> {
    for (name, at) in names(dir)? {
        let path = dir.join(name);
        let bytes = load(&path)?;
        match Snapshot::parse(&bytes) {
            Ok(_) => return Ok(Some(Text { path, bytes, at })),
            Err(what) => {
                note(&path, format_args!("cannot be read; the one before it is used: {what}"))
            }
        }
    }
    Ok(None)
}

fn load(path: &Path) -> Result<Vec<u8>, Failure> {
    let Some((file, len)) = super::super::open(path)? else { return Ok(Vec::new()) };
    if len > SNAPSHOT_BYTES_MAX {
        return Err(Failure::Damaged(format!(
            "{} has {len} bytes; .NET writes at most {SNAPSHOT_BYTES_MAX}, so it is not a snapshot: move it away",
            path.display()
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    file.take(SNAPSHOT_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::io("read", path, &error))?;
    if bytes.starts_with(BOM) {
        bytes.drain(..BOM.len());
    }
    Ok(bytes)
}

impl<'a> Snapshot<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let members = Members::parse(bytes)?;
        let mut snapshot = Snapshot::default();
        let mut places: HashMap<Uuid, usize> = HashMap::new();
        let mut add = |id: Option<Uuid>, standing: Standing, job: &'a RawValue| {
            // What came back from a log with names in another case has no id (PE10): it cannot be
            // told from others.
            let Some(id) = id.filter(|id| !id.is_nil()) else { return };
            if places.insert(id, snapshot.jobs.len()).is_some() {
                snapshot.repeated += 1;
                return;
            }
            snapshot.jobs.push(Held { id, standing, job });
        };
        for (key, value) in members.object("inflight")?.iter() {
            let inflight: Members<'a> = read(key, value)?;
            let job =
                inflight.get("job").ok_or_else(|| format!("inflight {key} has no \"job\""))?;
            let worker = inflight.guid("ownerWorker")?;
            let attempt = inflight.count("attempt")?.unwrap_or(1).max(1);
            add(Some(guid("inflight", key)?), Standing::InFlight { worker, attempt }, job);
        }
        for (exec, value) in members.object("queues")?.iter() {
            for job in read::<Vec<&'a RawValue>>(exec, value)? {
                let members: Members<'a> = read(exec, job)?;
                add(members.guid("jobId")?, Standing::Queued, job);
            }
        }
        for job in members.list("dlq")? {
            let members: Members<'a> = read("dlq", job)?;
            add(members.guid("jobId")?, Standing::Dead { attempt: 1, since: None }, job);
        }
        for (client, value) in members.object("clientCap")?.iter() {
            snapshot.caps.push((client.to_owned(), read("clientCap", value)?));
        }
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pe06_a_snapshot_has_queues_inflight_dlq_and_caps_and_a_job_is_there_once() {
        let id = |number: u128| Uuid::from_u128(number);
        let job = |number: u128| {
            format!(r#"{{"jobId":"{}","clientId":"c","execName":"e","rawPayload":""}}"#, id(number))
        };
        let text = format!(
            r#"{{"Queues":{{"e":[{},{},{}],"f":[]}},"inflight":{{"{}":{{"job":{},"ownerWorker":"{}","dueAt":"2025-10-19T12:00:00.0000000Z","timeout":"00:00:01","attempt":3}}}},"dlq":[{}],"clientCap":{{"c":4}},"clientInflight":{{"c":1}}}}"#,
            job(1),
            job(1),
            job(2),
            id(2),
            job(2),
            id(9),
            job(3)
        );
        let snapshot = Snapshot::parse(text.as_bytes()).unwrap();
        let jobs: Vec<(Uuid, Standing)> =
            snapshot.jobs.iter().map(|held| (held.id, held.standing)).collect();
        assert_eq!(
            jobs,
            [
                (id(2), Standing::InFlight { worker: Some(id(9)), attempt: 3 }),
                (id(1), Standing::Queued),
                (id(3), Standing::Dead { attempt: 1, since: None }),
            ]
        );
        assert_eq!((snapshot.caps, snapshot.repeated), (vec![("c".to_owned(), 4)], 2));
    }

    #[test]
    fn pe06_half_a_snapshot_is_none() {
        for text in [
            "",
            "{",
            r#"{"queues":[]}"#,
            r#"{"inflight":{"x":{"job":{}}}}"#,
            r#"{"inflight":{"x":{}}}"#,
        ] {
            assert!(Snapshot::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
