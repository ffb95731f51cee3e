//! `heft job logs`: prints what a job prints, while it runs and when it has ended. What was not
//! printed while it ran is taken from its result.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::process::ExitCode;

use chunking::message::Reason;
use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::exit::{FAILED, NOT_FOUND};
use super::gaps::gaps;
use super::last::{JobRef, job_ref};
use super::log_pieces::Pieces;
use super::output::{self, OUTPUT_VARIABLE};
use super::printed::{Printed, Rest};
use super::reach::Leader;
use super::show::{ended_line, say_end, show_output};
use super::{Output, Reach, Unwritten, err, print_json, print_to, say, standard_out};
use crate::answers::ask;
use crate::client::{
    Client, ClientError, Downloads, Finished, FollowEvent, FollowSpec, Following, Part, Purpose,
    Stream,
};
use crate::model::JobResult;

const EXAMPLES: &str = "Examples:
  heft job logs last -f
  heft job logs 00112233-4455-6677-8899-aabbccddeeff --stderr
  heft job logs last -f -o jsonl | jq -rj 'select(.stream == \"stdout\").text'

As json and jsonl each piece of the output is an object on a line as it comes; the last line has the
job's state. As quiet it is the output without lines of heft's own.

Exit codes: 0 all of the output was printed, however the job ended; 1 some of it was not, or cannot
be had, 2 invalid command line, 3 the leader cannot be reached or is a classic one, 5 the leader
does not know the job, 141 the reader of the output left.";

/// Print what a job prints, while it runs and when it has ended
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LogsArgs {
    /// Job id, or `last`.
    #[arg(value_name = "JOBID", value_parser = job_ref)]
    job: JobRef,
    /// Go on until the job has ended, over all of its attempts. Without it, print what is there.
    #[arg(short, long)]
    follow: bool,
    /// Only the job's standard output.
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only the job's standard error.
    #[arg(long)]
    stderr: bool,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

impl LogsArgs {
    fn streams(&self) -> &'static [Stream] {
        match (self.stdout, self.stderr) {
            (true, _) => &[Stream::Stdout],
            (false, true) => &[Stream::Stderr],
            (false, false) => &[Stream::Stdout, Stream::Stderr],
        }
    }
}

/// Runs the command.
pub(super) async fn logs(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let client = args.reach.asking(&leader).await?;
    let job = args.job.resolve(leader.address())?;
    let mut logs = Logs::follow(args, job, &client).await?;
    while let Some((at, event)) = logs.next().await {
        logs.take(at, event).await?;
    }
    if logs.outputs.iter().any(|output| output.end == Some(End::JobEnded)) {
        logs.finish(&leader, &client).await?;
    }
    logs.pieces.iter_mut().try_for_each(Pieces::end).map_err(Unwritten::from)?;
    logs.outputs.iter().filter(|log| log.gaps > 1).for_each(say_lost);
    let is_complete = logs.is_complete && logs.outputs.iter().all(Log::is_complete);
    if args.output.is_json() {
        logs.print_end(is_complete, &client).await?;
    }
    client.close().await;
    Ok(ExitCode::from(match (is_complete, logs.is_unknown) {
        (true, _) => 0,
        (false, true) => NOT_FOUND,
        (false, false) => FAILED,
    }))
}

/// How a follow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// That is all that there is now.
    Present,
    /// What is left is in the job's result.
    JobEnded,
    /// Nothing can be had.
    Refused,
}

/// One output.
struct Log {
    stream: Stream,
    following: Following,
    /// The attempt, and the one under which the program began that printed it; 0 before that.
    attempt: u32,
    began: u32,
    /// What was printed of it here, without gaps.
    printed: Printed,
    /// Bytes that are nowhere, and in how many places.
    lost: u64,
    gaps: u32,
    /// Bytes that the program printed, once it has ended.
    total: Option<u64>,
    end: Option<End>,
}

impl Log {
    /// Whether it was all printed, as far as it should have been.
    fn is_complete(&self) -> bool {
        self.lost == 0 && self.end != Some(End::Refused)
    }

    /// Whether all of the program's output came while it ran.
    fn is_whole(&self) -> bool {
        self.total == Some(self.printed.bytes().saturating_add(self.lost))
    }

    fn purpose(&self) -> Purpose {
        match self.stream {
            Stream::Stdout => Purpose::Stdout,
            Stream::Stderr => Purpose::Stderr,
        }
    }
}

/// The outputs that are printed.
struct Logs {
    job: Uuid,
    form: Output,
    outputs: Vec<Log>,
    /// How they are written, each in its turn.
    pieces: Vec<Pieces>,
    /// Why something cannot be had, for programs.
    error: Option<String>,
    /// What is missing of the result, for programs.
    missing: Vec<Value>,
    /// What was said last of why nothing comes.
    said: String,
    /// The attempt whose beginning was said last.
    said_began: u32,
    /// Whether nothing of the result is missing.
    is_complete: bool,
    /// Whether the leader does not know the job.
    is_unknown: bool,
}

impl Logs {
    async fn follow(args: &LogsArgs, job: Uuid, client: &Client) -> Result<Self, ClientError> {
        let (mut outputs, mut pieces) = (Vec::new(), Vec::new());
        for stream in args.streams() {
            let spec = FollowSpec { job, stream: *stream, stays: args.follow };
            pieces.push(Pieces::new(job, *stream, args.output.is_json()));
            outputs.push(Log {
                stream: *stream,
                following: client.follow(spec).await?,
                attempt: 0,
                began: 0,
                printed: Printed::default(),
                lost: 0,
                gaps: 0,
                total: None,
                end: None,
            });
        }
        Ok(Logs {
            job,
            form: args.output,
            outputs,
            pieces,
            error: None,
            missing: Vec::new(),
            said: String::new(),
            said_began: 0,
            is_complete: true,
            is_unknown: false,
        })
    }

    /// What happens next to one of them, and to which; `None` when all have ended.
    async fn next(&mut self) -> Option<(usize, FollowEvent)> {
        match self.outputs.as_mut_slice() {
            [one] => Some((0, one.following.next().await?)),
            [one, other] => tokio::select! {
                Some(event) = one.following.next() => Some((0, event)),
                Some(event) = other.following.next() => Some((1, event)),
                else => None,
            },
            _ => None,
        }
    }

    async fn take(&mut self, at: usize, event: FollowEvent) -> anyhow::Result<()> {
        let Some((log, pieces)) = self.outputs.get_mut(at).zip(self.pieces.get_mut(at)) else {
            return Ok(());
        };
        match event {
            FollowEvent::Begins { attempt, began, worker } => {
                let is_another = log.began != 0 && log.began != began;
                (log.attempt, log.began) = (attempt, began);
                if log.printed.bytes() == 0 || is_another {
                    pieces.begin(Some(attempt)).map_err(Unwritten::from)?;
                }
                if is_another {
                    log.printed = Printed::default();
                    (log.lost, log.gaps, log.total) = (0, 0, None);
                    if self.said_began != began {
                        self.said_began = began;
                        say_unless_quiet(
                            self.form,
                            &format!(
                                "attempt {attempt} on {worker} begins; its output follows from \
                                 the start"
                            ),
                        );
                    }
                }
                self.said.clear();
            }
            FollowEvent::Bytes(bytes) => {
                log.printed.add(&bytes);
                let (bytes, is_stderr) = (pieces.shape(bytes), pieces.is_stderr());
                // Elsewhere: whoever reads it may take a long time, and the connection lives on.
                tokio::task::spawn_blocking(move || match is_stderr {
                    false => print_to(&mut standard_out(), &bytes),
                    true => print_to(&mut err(), &bytes),
                })
                .await??;
            }
            FollowEvent::Lost(bytes) => {
                // One who is too slow for it may miss many pieces: how much that was is said in the
                // end.
                if log.lost == 0 {
                    say(&format!(
                        "{bytes} bytes of {} are lost here: the job prints more than its worker \
                         keeps (--output-max)",
                        log.stream.name()
                    ));
                }
                log.lost = log.lost.saturating_add(bytes);
                log.gaps += 1;
                pieces.lose(bytes).map_err(Unwritten::from)?;
            }
            FollowEvent::Ends(total) => log.total = Some(total),
            FollowEvent::Waits(why) => self.say_once(&why),
            FollowEvent::Reconnecting { leader, why } => {
                self.say_once(&format!("no connection to {leader}: {why}; trying again"));
            }
            FollowEvent::Present => log.end = Some(End::Present),
            FollowEvent::JobEnded => log.end = Some(End::JobEnded),
            FollowEvent::Refused { reason, text } => {
                log.end = Some(End::Refused);
                self.is_unknown |= reason == Reason::UNKNOWN;
                self.fail(text);
            }
            FollowEvent::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn say_once(&mut self, text: &str) {
        if self.said != text {
            text.clone_into(&mut self.said);
            say_unless_quiet(self.form, text);
        }
    }

    /// Something cannot be had: said to people now, and to programs in the last line.
    fn fail(&mut self, text: String) {
        if !self.form.is_json() && self.error.as_ref() != Some(&text) {
            say(&text);
        }
        self.error = Some(text);
    }

    /// The last line for programs.
    async fn print_end(&self, is_complete: bool, client: &Client) -> Result<(), Unwritten> {
        let shown = client.ask(&ask::JobShow { job_id: self.job }).await.ok();
        let state = shown.map(|shown| shown.answer.job.state);
        let state = state.as_ref().map(|state| state.as_str());
        let mut end = serde_json::Map::from_iter([
            ("job_id".to_owned(), json!(self.job)),
            ("state".to_owned(), json!(state)),
            ("complete".to_owned(), json!(is_complete)),
        ]);
        if !self.missing.is_empty() {
            end.insert("missing".to_owned(), json!(self.missing));
        }
        if let Some(text) = &self.error {
            let code = if self.is_unknown { NOT_FOUND } else { FAILED };
            end.insert("error".to_owned(), output::error_of(code, text, None));
        }
        print_json(&Value::Object(end))
    }

    /// The job has ended: prints what is left of its output from its result.
    async fn finish(&mut self, leader: &Leader, client: &Client) -> anyhow::Result<()> {
        let Some(finished) = client.fetch(self.job, &Downloads::None).await? else {
            let is_whole = self.outputs.iter().all(Log::is_whole);
            if !is_whole {
                self.is_complete = false;
                self.fail(format!(
                    "job {} has ended, and the leader has no result of it any more: what was not \
                     printed of its output is lost",
                    self.job
                ));
            }
            return Ok(());
        };
        let result = finished.result()?;
        // What is too large for the result itself is fetched only if it is printed.
        let is_apart = |log: &Log| match log.stream {
            Stream::Stdout => result.stdout_blob.is_some(),
            Stream::Stderr => result.stderr_blob.is_some(),
        };
        let is_wanted = |log: &Log| is_apart(log) && left(log, &result) != Left::Notes;
        let ended = |log: &&Log| log.end == Some(End::JobEnded);
        let finished = match self.outputs.iter().filter(ended).any(is_wanted) {
            true => {
                let downloads = Downloads::Outputs(std::env::temp_dir());
                client.fetch(self.job, &downloads).await?.unwrap_or(finished)
            }
            false => finished,
        };
        let mut said_other = false;
        let outputs = self.outputs.iter_mut().zip(&mut self.pieces);
        for (log, to) in outputs.filter(|(log, _)| log.end == Some(End::JobEnded)) {
            let left = left(log, &result);
            if matches!(left, Left::All | Left::OtherAttempt) {
                to.begin(result.attempts).map_err(Unwritten::from)?;
            }
            if left == Left::OtherAttempt && !said_other {
                said_other = true;
                let attempt = result.attempts.unwrap_or_default();
                say_unless_quiet(
                    self.form,
                    &format!(
                        "the result is of attempt {attempt}; its output follows from the start"
                    ),
                );
            }
            print_left(log, left, &result, &finished, to)?;
        }
        // Parts that nobody wanted are not missing.
        let gaps = gaps(&result, &finished);
        for gap in gaps.iter().filter(|gap| {
            self.outputs.iter().any(|log| gap.is_of(log.stream.name())) || gap.is_of_all()
        }) {
            self.is_complete = false;
            match self.form.is_json() {
                true => self.missing.push(gap.as_json()),
                false => gap.say(""),
            }
        }
        if self.form.is_for_people() {
            say_end(leader, &result);
        }
        Ok(())
    }
}

/// What is left to print of an output when its job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// All of it: nothing came while it ran.
    All,
    /// What was not printed.
    Rest,
    /// The result is another attempt's: all of its output.
    OtherAttempt,
    /// Only lines of heft's own.
    Notes,
    /// The leader's own words: no worker returned a result.
    Words,
}

fn left(log: &Log, result: &JobResult) -> Left {
    match result.attempts.filter(|_| !result.dead) {
        _ if log.began == 0 => Left::All,
        None => Left::Words,
        Some(attempt) if attempt != log.attempt => Left::OtherAttempt,
        Some(_) if log.is_whole() => Left::Notes,
        Some(_) => Left::Rest,
    }
}

/// Prints what is left of an output.
fn print_left(
    log: &mut Log,
    left: Left,
    result: &JobResult,
    finished: &Finished,
    to: &mut Pieces,
) -> Result<(), Unwritten> {
    let (text, blob) = match log.stream {
        Stream::Stdout => (result.stdout.as_str(), result.stdout_blob.as_ref()),
        Stream::Stderr => (result.stderr.as_str(), result.stderr_blob.as_ref()),
    };
    match left {
        Left::All => show_output(finished, log.purpose(), text, to),
        Left::OtherAttempt => {
            log.lost = 0;
            show_output(finished, log.purpose(), text, to)
        }
        Left::Words => {
            if !log.is_whole() {
                // Nobody knows what else it printed.
                log.lost = log.lost.max(1);
                say(&format!(
                    "the end of {} is lost: no worker returned a result",
                    log.stream.name()
                ));
            }
            match log.stream {
                Stream::Stdout => Ok(()),
                Stream::Stderr => print_to(to, ended_line(text).as_bytes()),
            }
        }
        Left::Notes => match (log.stream, blob) {
            (Stream::Stdout, _) => Ok(()),
            (Stream::Stderr, None) => {
                let rest = log.printed.rest_of(text).unwrap_or_default();
                print_to(to, rest)
            }
            (Stream::Stderr, Some(_)) => print_to(to, notes(text).as_bytes()),
        },
        // What is lost lies behind all that its worker keeps, so nothing is left there.
        Left::Rest if log.lost > 0 => {
            log.lost = log.total.map_or(log.lost, |total| total - log.printed.bytes().min(total));
            log.gaps += 1;
            Ok(())
        }
        Left::Rest => match finished.part(log.purpose()).and_then(Part::path) {
            Some(path) => {
                let mut file = File::open(path)?;
                let from = match log.printed.rest_in(&mut file)? {
                    Rest::From(from) => from,
                    Rest::Other => {
                        say_differs(log.stream);
                        0
                    }
                };
                file.seek(SeekFrom::Start(from))?;
                let stored = from.saturating_add(io::copy(&mut file, to)?);
                log.lost = log.total.map_or(0, |total| total.saturating_sub(stored));
                if log.lost > 0 {
                    say_lost(log);
                }
                match log.stream {
                    Stream::Stdout => Ok(()),
                    Stream::Stderr => print_to(to, notes(text).as_bytes()),
                }
            }
            None => match log.printed.rest_of(text) {
                Some(rest) => print_to(to, rest),
                // What did not come is said with the other gaps.
                None if blob.is_some() => Ok(()),
                None => {
                    say_differs(log.stream);
                    print_to(to, text.as_bytes())
                }
            },
        },
    }
}

/// A line of use that tells of no loss.
fn say_unless_quiet(form: Output, text: &str) {
    if form != Output::Quiet {
        say(text);
    }
}

fn say_lost(log: &Log) {
    say(&format!(
        "{} bytes of {} are lost: its worker keeps only the beginning (--output-max)",
        log.lost,
        log.stream.name()
    ));
}

fn say_differs(stream: Stream) {
    say(&format!(
        "the stored {} begins otherwise than what was printed; it follows from the start",
        stream.name()
    ));
}

/// The lines of heft's own at the end of a text.
fn notes(text: &str) -> String {
    let lines = text.split_inclusive('\n').rev();
    let mut notes: Vec<&str> = lines.take_while(|line| line.starts_with("heft: ")).collect();
    notes.reverse();
    notes.concat()
}
