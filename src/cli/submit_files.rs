//! Reads the files of `heft submit`: a file is streamed from where it is, what has no size is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::descriptors_hint;
use super::exit::Usage;
use crate::client::Input;
use crate::transfer::Source;
use crate::units::ByteSize;

/// What is read of a file that has no size, such as a pipe, and of one that is sent --raw: what
/// fits one frame, with room for its subject. It bounds memory; the exact limit, which depends on
/// the subject, is the client's and the leader's to say.
const READ_BYTES_MAX: u64 = chunking::limits::FRAME_BODY_BYTES_MAX as u64 - 4_096;

/// The files of the command line. A pipe is read until its end, by a thread of its own: whoever has
/// to write to it may never come, and nothing but the end of the process stops such a read.
pub(super) async fn input_files(files: &[String]) -> anyhow::Result<Vec<Input>> {
    let (named, (read, done)) = (files.to_vec(), tokio::sync::oneshot::channel());
    std::thread::Builder::new().name("inputs".to_owned()).spawn(move || {
        let files = named.iter().map(|file| input_file(file)).collect::<anyhow::Result<Vec<_>>>();
        read.send(files).ok();
    })?;
    done.await?
}

/// Reads `PATH[=NAME]`.
fn input_file(text: &str) -> anyhow::Result<Input> {
    let (path, name) = match text.rsplit_once('=') {
        // A file whose own name holds a `=` is meant if it is there.
        Some((path, name)) if !Path::new(text).exists() => (Path::new(path), name.to_owned()),
        Some(_) | None => {
            let path = Path::new(text);
            (
                path,
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            )
        }
    };
    let shown = path.display();
    if name.is_empty() {
        return Err(Usage(format!("--file {text} gives the file no name: write PATH=NAME")).into());
    }
    let unreadable = |error: io::Error| {
        let path = "check the path, relative paths start at the current directory";
        let hint = descriptors_hint(&error).unwrap_or(path);
        Usage(format!("cannot read input file {shown}: {error}; {hint}"))
    };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_file() {
        return Ok(Input { name, source: Source::file(path).map_err(unreadable)? });
    }
    let mut content = Vec::new();
    file.take(READ_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > READ_BYTES_MAX {
        return Err(Usage(format!(
            "{shown} is not a regular file and yields over {READ_BYTES_MAX} bytes ({}): write it \
             to a file first; regular files may have any size",
            ByteSize(READ_BYTES_MAX)
        ))
        .into());
    }
    Ok(Input { name, source: Source::Memory(content.into()) })
}

/// The bytes of a raw job.
pub(super) fn raw_payload(mut files: Vec<Input>) -> Result<bytes::Bytes, Usage> {
    match (files.pop(), files.len()) {
        (Some(Input { source: Source::Memory(bytes), .. }), 0) => Ok(bytes),
        (Some(Input { source: Source::File(file), .. }), 0) => {
            match file.read_small(READ_BYTES_MAX) {
                Ok(Some(content)) => Ok(content.into()),
                Ok(None) => Err(Usage(format!(
                    "{} has {} bytes; --raw sends at most {READ_BYTES_MAX} in one frame: submit it \
                     without --raw, as a transfer, or make it smaller",
                    file.path().display(),
                    file.size()
                ))),
                Err(error) => Err(Usage(error.to_string())),
            }
        }
        (_, more) => {
            Err(Usage(format!("--raw sends the bytes of one --file; {} were given", more + 1)))
        }
    }
}
