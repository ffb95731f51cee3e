//! Bytes of a result that are not here, and why: the leader lost them, or they did not come.

use std::fs::File;
use std::io::{self, Read, Write};

use chunking::message::Purpose;
use serde_json::{Value, json};

use super::{Unwritten, say};
use crate::client::{Finished, Missing};
use crate::model::{JobResult, WHOLE_RESULT};
use crate::units::ByteSize;

/// A part of a result of which bytes are missing.
pub(crate) struct Gap {
    /// `archive`, `stdout`, `stderr`, or `result` for all of it.
    part: &'static str,
    size: u64,
    /// How many of them are here.
    here: u64,
    why: String,
}

/// What is missing of a result.
pub(crate) fn gaps(result: &JobResult, finished: &Finished) -> Vec<Gap> {
    let head = |purpose| match purpose {
        Purpose::Stdout => result.stdout.len() as u64,
        Purpose::Stderr => result.stderr.len() as u64,
        Purpose::Archive | Purpose::Input | Purpose::Payload | Purpose::Dataset => 0,
    };
    let lost = result.lost.iter().filter_map(|lost| {
        let known = [Purpose::Archive, Purpose::Stdout, Purpose::Stderr].map(name);
        let part = known.into_iter().chain([WHOLE_RESULT]).find(|part| *part == lost.part)?;
        let why = format!("the leader has lost it: {}", lost.why);
        Some(Gap { part, size: lost.size, here: lost.here.min(lost.size), why })
    });
    let missing = finished.missing.iter().map(|missing| Gap {
        part: name(missing.purpose),
        size: missing.size,
        here: missing.here.max(head(missing.purpose)).min(missing.size),
        why: missing.why.clone(),
    });
    lost.chain(missing).collect()
}

fn name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Archive => "archive",
        Purpose::Stdout => "stdout",
        Purpose::Stderr => "stderr",
        Purpose::Input | Purpose::Payload | Purpose::Dataset => "part",
    }
}

impl Gap {
    /// Why the archive is missing, if it is one.
    pub(crate) fn of_archive(&self) -> Option<&str> {
        (self.part == name(Purpose::Archive)).then_some(self.why.as_str())
    }

    /// Whether it is one of this part.
    pub(crate) fn is_of(&self, part: &str) -> bool {
        self.part == part
    }

    /// Whether it is the whole result.
    pub(crate) fn is_of_all(&self) -> bool {
        self.part == WHOLE_RESULT
    }

    /// Says it to the person at the terminal; `whose` stands before it.
    pub(crate) fn say(&self, whose: &str) {
        let Gap { part, size, here, why } = self;
        let here = match here {
            0 => "nothing".to_owned(),
            here => format!("only {here}"),
        };
        say(&format!(
            "{whose}the job's {part} is incomplete: {here} of {size} bytes ({}) received: {why}",
            ByteSize(*size)
        ));
    }

    /// The same for programs.
    pub(crate) fn as_json(&self) -> Value {
        json!({"part": self.part, "bytes": self.size, "here": self.here, "why": self.why})
    }
}

/// Prints what came of an output that did not come whole: from the file, if there is more in it
/// than in the result itself.
pub(crate) fn print_beginning(
    missing: &Missing,
    text: &str,
    to: &mut dyn Write,
) -> Result<(), Unwritten> {
    match missing.path().filter(|_| missing.here > text.len() as u64) {
        Some(path) => {
            let file = File::open(path)?;
            io::copy(&mut file.take(missing.here), to).map(drop)?;
        }
        None => to.write_all(text.as_bytes())?,
    }
    Ok(to.flush()?)
}
