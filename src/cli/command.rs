//! The command `heft`: which commands it has, and who runs each.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;
use tracing::level_filters::LevelFilter;

use crate::cli;
use crate::cli::exit::{USAGE, word_of};
use crate::cli::positions::{self, Line};
use crate::worker::exec::LAUNCH;

/// A job broker for heavy payloads
#[derive(Parser)]
#[command(name = "heft", version, propagate_version = true, after_help = cli::exit::AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say nothing but errors on standard error
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Show what happens underneath; twice: in detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    Leader(cli::leader::LeaderArgs),
    Worker(cli::worker::WorkerArgs),
    Submit(cli::submit::SubmitArgs),
    Job(cli::job::JobArgs),
    Status(cli::status::StatusArgs),
    Workers(cli::workers::WorkersArgs),
    Clients(cli::clients::ClientsArgs),
    Queue(cli::queue::QueueArgs),
    Dlq(cli::dlq::DlqArgs),
    Blob(cli::blob::BlobArgs),
    Dataset(cli::dataset::DatasetArgs),
    Explain(cli::explain::ExplainArgs),
    Cancel(cli::cancel::CancelArgs),
    Result(cli::result::ResultArgs),
    Context(cli::context::ContextArgs),
    Client(cli::client::ClientArgs),
    Clientx(cli::clientx::ClientxArgs),
    Demo(cli::demo::DemoArgs),
    #[command(name = LAUNCH, hide = true)]
    Launch(cli::worker::LaunchArgs),
}

impl Command {
    /// What is logged unless the command line or `HEFT_LOG` says otherwise: a server's log is its
    /// voice, a command's output is its own, and what becomes another program says nothing.
    fn log_level(&self) -> Option<LevelFilter> {
        match self {
            Command::Leader(_) | Command::Worker(_) => Some(LevelFilter::INFO),
            Command::Submit(_)
            | Command::Job(_)
            | Command::Status(_)
            | Command::Workers(_)
            | Command::Clients(_)
            | Command::Queue(_)
            | Command::Dlq(_)
            | Command::Blob(_)
            | Command::Dataset(_)
            | Command::Explain(_)
            | Command::Cancel(_)
            | Command::Result(_)
            | Command::Context(_)
            | Command::Client(_)
            | Command::Clientx(_)
            | Command::Demo(_) => Some(LevelFilter::WARN),
            Command::Launch(_) => None,
        }
    }

    fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Leader(args) => cli::leader::run(args),
            Command::Worker(args) => cli::worker::run(args),
            Command::Submit(args) => cli::submit::run(args),
            Command::Job(args) => cli::job::run(args),
            Command::Status(args) => cli::status::run(args),
            Command::Workers(args) => cli::workers::run(args),
            Command::Clients(args) => cli::clients::run(args),
            Command::Queue(args) => cli::queue::run(args),
            Command::Dlq(args) => cli::dlq::run(args),
            Command::Blob(args) => cli::blob::run(args),
            Command::Dataset(args) => cli::dataset::run(args),
            Command::Explain(args) => cli::explain::run(args),
            Command::Cancel(args) => cli::cancel::run(args),
            Command::Result(args) => cli::result::run(args),
            Command::Context(args) => cli::context::run(args),
            Command::Client(args) => cli::client::run(args),
            Command::Clientx(args) => cli::clientx::run(args),
            Command::Demo(args) => cli::demo::run(args),
            Command::Launch(args) => Ok(cli::worker::launch(args)),
        }
    }
}

/// All commands, as they are read.
pub(crate) fn root() -> clap::Command {
    let mut root = Cli::command();
    root.build();
    root
}

/// The commands that have `--output`, each with its verb, such as `dlq ls`.
pub fn with_output() -> Vec<String> {
    fn walk(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let verbs = || command.get_subcommands().filter(|verb| verb.get_name() != "help");
        for verb in verbs() {
            let path = format!("{path} {}", verb.get_name());
            walk(verb, path.trim_start(), found);
        }
        let prints = command.get_arguments().any(|arg| arg.get_id() == "output");
        if prints && verbs().next().is_none() {
            found.push(path.to_owned());
        }
    }
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    let line = match positions::read(&root(), std::env::args_os().collect()) {
        Ok(line) => line,
        Err((error, is_json)) => return cli::exit::report(&error.into(), is_json),
    };
    let mut grammar = without_empty_variables(Cli::command());
    let matches = grammar.try_get_matches_from_mut(&line.words);
    let read = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let Cli { command, quiet, verbose } = match read {
        Ok(cli) => cli,
        Err(error) => return wrong_line(&line, &error),
    };
    if let Some(usual) = command.log_level() {
        let said = match (quiet, verbose) {
            (true, _) => Some(LevelFilter::ERROR),
            (false, 0) => None,
            (false, 1) => Some(LevelFilter::INFO),
            (false, _) => Some(LevelFilter::DEBUG),
        };
        if quiet {
            cli::be_quiet();
        }
        cli::log::log_as(said, usual);
        cli::outlive_file_limit();
        line.hint();
    }
    command.run().unwrap_or_else(|error| cli::exit::report(&error, line.is_json))
}

/// The grammar without the variables of the environment that are empty: they say nothing.
fn without_empty_variables(mut command: clap::Command) -> clap::Command {
    let is_empty = |arg: &&clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let empty: Vec<clap::Id> =
        command.get_arguments().filter(is_empty).map(|arg| arg.get_id().clone()).collect();
    for id in empty {
        command = command.mut_arg(id, |arg| arg.env(None::<&'static str>));
    }
    let verbs: Vec<String> =
        command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs
        .into_iter()
        .fold(command, |command, verb| command.mut_subcommand(verb, without_empty_variables))
}

/// What clap says, to a program in the answer's place. Help and versions are no errors.
fn wrong_line(line: &Line, error: &clap::Error) -> ExitCode {
    let is_asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !line.is_json || is_asked_for {
        error.exit();
    }
    let text = error.render().to_string();
    let text = text.trim().trim_start_matches("error: ");
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let (message, hint) = match text.split_once("\n\n") {
        _ if is_help => ("a command is missing", Some("`heft --help` lists them")),
        Some((message, hint)) => (message, Some(hint.trim())),
        None => (text, None),
    };
    let error = json!({"code": word_of(USAGE), "message": message, "hint": hint});
    cli::exit::report_json(&error, USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_all_commands_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_that_prints_takes_the_form_and_founding_commands_do_not() {
        let found = with_output();
        for command in ["submit", "job submit", "status", "dlq ls", "dataset put", "result get"] {
            assert!(found.iter().any(|known| known == command), "{command}: {found:?}");
        }
        for command in ["leader", "worker", "client", "clientx", "dlq"] {
            assert!(!found.iter().any(|known| known == command), "{command}");
        }
    }
}
