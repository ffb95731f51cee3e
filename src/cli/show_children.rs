//! Shows the results of a job to all workers, one after the other. What does not fit the one result
//! is fetched worker by worker, so that any number of results of any size needs the room of one.
//! `heft submit --all` and `heft result get` call it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use chunking::message::Purpose;
use serde_json::{Value, json};

use super::children::{Child, Held, lines};
use super::ending::how_it_failed;
use super::exit::FAILED;
use super::files::{Beside, Files, Found};
use super::gaps::{Gap, gaps};
use super::out::OutArgs;
use super::output::error_of;
use super::progress::Progress;
use super::result::fetch;
use super::show::{
    NOT_FETCHED, Show, Shown, as_json, ended_line, exit_code, say_end, say_left_out, show_output,
};
use super::{
    Output, Unwritten, err, note, print, print_json, print_to, printable, say, standard_out,
};
use crate::client::{Client, Finished, Part};
use crate::model::JobResult;

/// Fetches the results of workers.
pub(crate) struct Asker<'a> {
    /// The client.
    pub(crate) client: &'a Client,
    /// How to show how far it is.
    pub(crate) progress: Progress,
}

/// What came of one worker.
struct Got<'a> {
    worker: String,
    result: Cow<'a, JobResult>,
    finished: Finished,
    files: Option<Files>,
    /// What is missing of the parts of its result.
    gaps: Vec<Gap>,
    /// Why the result itself is not here.
    trouble: Option<String>,
}

impl Got<'_> {
    fn complete(&self) -> bool {
        self.trouble.is_none()
            && self.gaps.is_empty()
            && self.result.archive_lost.is_none()
            && self.files.as_ref().is_none_or(Files::complete)
    }

    /// Whether all that there is of it is where it was wanted.
    fn is_safe(&self) -> bool {
        self.trouble.is_none()
            && self.finished.missing.is_empty()
            && !self.files.as_ref().is_some_and(Files::failed)
    }
}

/// Shows what each worker made of a job to all of them.
pub(crate) async fn show_all(
    args: &Show<'_>,
    asker: &Asker<'_>,
    result: &JobResult,
    children: &[Child],
) -> anyhow::Result<Shown> {
    let (mut complete, mut left_files, mut is_safe) = (true, false, true);
    let mut shown = Vec::new();
    // Files of the others are fetched although one of the outputs takes nothing.
    let mut printed = Ok(());
    for child in children {
        let got = get(args, asker, child).await;
        complete &= got.complete();
        is_safe &= got.is_safe();
        left_files |= got.result.archive.is_some();
        match args.output {
            Output::Table => printed = printed.and(show_one(&got)),
            Output::Json | Output::Jsonl => shown.push(one_as_json(child, &got)),
            Output::Quiet => say_one(&got),
        }
    }
    match args.output {
        Output::Table => {
            printed = printed.and(print_to(&mut err(), ended_line(&result.stderr).as_bytes()));
            say_end(args.leader, result);
            if args.out.out.is_none() && left_files {
                note(&format!(
                    "the job's output files were not fetched: use `{} {} --out DIR`",
                    args.leader.command("result get"),
                    result.job_id
                ));
            }
        }
        Output::Json | Output::Jsonl => {
            let mut all = as_json(result);
            if let Value::Object(members) = &mut all {
                members.insert("stdout".to_owned(), json!(lines(children)));
                members.insert("workers".to_owned(), Value::Array(shown));
            }
            print_json(&all)?;
        }
        Output::Quiet => say_end(args.leader, result),
    }
    printed?;
    Ok(Shown { code: exit_code(result, complete), is_safe })
}

/// Gets what one worker made of the job, with what the line does not have.
async fn get<'a>(args: &Show<'_>, asker: &Asker<'_>, child: &'a Child) -> Got<'a> {
    let dir = args.out.out.as_deref().map(|all| child.dir(all));
    let own = OutArgs { out: dir.clone().flatten(), ..OutArgs::default() };
    let wanted = own.downloads(args.output);
    let mut got = Got {
        worker: printable(&child.worker),
        result: Cow::Borrowed(&child.result),
        finished: Finished { payload: Default::default(), parts: Vec::new(), missing: Vec::new() },
        files: None,
        gaps: Vec::new(),
        trouble: None,
    };
    if let Held::Raw(bytes) = child.held {
        got.trouble = Some(format!("its result is {bytes} bytes that are not a JobResult"));
    }
    if let Some(job) = child.to_fetch(&wanted) {
        let fetched = fetch(asker.client, job, &wanted, asker.progress, args.output).await;
        let read = fetched.and_then(|finished| match finished {
            Some(finished) => Ok((finished.result()?, finished)),
            None => anyhow::bail!("the leader no longer has it"),
        });
        match read {
            Ok((result, finished)) => (got.result, got.finished) = (Cow::Owned(result), finished),
            Err(error) => got.trouble = Some(format!("cannot fetch its result: {error:#}")),
        }
    }
    got.gaps = gaps(&got.result, &got.finished);
    got.files = take_files(args, child, &got, dir).await;
    got
}

/// Unpacks what a worker's job left, if that is wanted.
async fn take_files(
    args: &Show<'_>,
    child: &Child,
    got: &Got<'_>,
    dir: Option<Option<PathBuf>>,
) -> Option<Files> {
    match dir? {
        Some(dir) => {
            let archive = match got.finished.part(Purpose::Archive).and_then(Part::path) {
                Some(path) => Beside::File(path),
                None => Beside::Missing(
                    got.gaps.iter().find_map(Gap::of_archive).unwrap_or(NOT_FETCHED),
                ),
            };
            let found = Found::of(&got.result, archive);
            let job = child.job.unwrap_or(got.result.job_id);
            let (rules, retry) = (args.out.rules(), args.retry(job, Some(&dir)));
            Some(Files::take(&found, &dir, rules, &mut args.line(job), retry).await)
        }
        None => {
            let error =
                anyhow::anyhow!("the worker's id {:?} is not a name for a directory", child.worker);
            let job = child.job.unwrap_or(got.result.job_id);
            let all = args.out.out.clone().unwrap_or_default();
            Some(Files::Broken(all, error, args.retry(job, None)))
        }
    }
}

fn show_one(got: &Got<'_>) -> Result<(), Unwritten> {
    let Got { worker, result, finished, .. } = got;
    let how = if result.exit_code == Some(0) { String::new() } else { how_it_failed(result) };
    let head = format!("== worker {worker}: {}{how}\n", printable(result.status.as_str()));
    let end: &[u8] = if ends_line(finished, &result.stdout) { b"" } else { b"\n" };
    let mut printed = print(head.as_bytes())
        .and_then(|()| show_output(finished, Purpose::Stdout, &result.stdout, &mut standard_out()))
        .and_then(|()| print(end));
    if !result.stderr.is_empty() {
        say(&format!("worker {worker}, standard error:"));
        let stderr = &mut err();
        printed = printed.and(show_output(finished, Purpose::Stderr, &result.stderr, stderr));
    }
    say_one(got);
    printed
}

/// Says what became of a worker's result beside what it printed.
fn say_one(got: &Got<'_>) {
    let Got { worker, result, files, gaps, trouble, .. } = got;
    if let Some(trouble) = trouble {
        say(&format!("worker {worker}: {trouble}"));
    }
    let whose = format!("worker {worker}: ");
    match files {
        Some(files) => files.say(&whose),
        None => say_left_out(result, &whose),
    }
    gaps.iter().for_each(|gap| gap.say(&whose));
}

/// Whether what a job printed ends with a line's end, or there is nothing.
fn ends_line(finished: &Finished, text: &str) -> bool {
    let Some(path) = finished.part(Purpose::Stdout).and_then(Part::path) else {
        return text.is_empty() || text.ends_with('\n');
    };
    let mut last = [0];
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)
    });
    read.is_err() || last == *b"\n"
}

/// A worker's part as a program reads it: the members of a result, with the worker and what became
/// of the files.
fn one_as_json(child: &Child, got: &Got<'_>) -> Value {
    let mut shown = as_json(&got.result);
    if let Value::Object(members) = &mut shown {
        members.insert("worker".to_owned(), json!(child.worker));
        members.insert("job_id".to_owned(), json!(child.job));
        if let Some(files) = &got.files {
            files.put(members);
        }
        if !got.gaps.is_empty() {
            members.insert("missing".to_owned(), got.gaps.iter().map(Gap::as_json).collect());
        }
        if let Some(trouble) = &got.trouble {
            members.insert("error".to_owned(), error_of(FAILED, trouble, None));
        }
    }
    shown
}
