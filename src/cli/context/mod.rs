//! `heft context`: leaders under names, so that no command has to be told the address. Only
//! commands that talk to one leader use them; the founding commands never do.

mod file;

pub(crate) use file::{Contexts, check_leaders};

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::exit::{UNAVAILABLE, Usage};
use super::output::{self, OUTPUT_VARIABLE};
use super::reach::{Addresses, Connect, addresses};
use super::table::{Side, Table, said, text};
use super::{Output, Rows, about, note};
use crate::answers::ask;
use crate::client::{Client, ClientError};
use file::{Context, check_client_id, check_name};

const EXAMPLES: &str = "Examples:
  heft context add prod -l leader-1:5000,leader-2:5000 --client-id alice
  heft context use prod
  heft context ls
  heft context test prod
  heft status --context prod

Contexts are in $XDG_CONFIG_HOME/heft/config.toml (~/.config/heft/config.toml).";

/// What is listed.
const CONTEXTS: Rows = Rows { list: "contexts", id: "name" };

/// Manage contexts: leaders under names
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ContextArgs {
    #[command(subcommand)]
    what: What,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t, global = true)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Add a context; the first one is selected.
    Add(AddArgs),
    /// List contexts.
    Ls,
    /// Show a context.
    Show {
        /// Its name (default: the selected one).
        name: Option<String>,
    },
    /// Select a context.
    Use {
        /// Its name.
        name: String,
    },
    /// Remove a context.
    Rm {
        /// Its name.
        name: String,
    },
    /// Connect to each leader of a context and ask for its status.
    Test(TestArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Name: letters, digits, -, _ and .
    #[arg(value_parser = name)]
    name: String,
    /// Leader addresses, in the order in which they are tried.
    #[arg(short, long, value_name = "HOST:PORT[,HOST:PORT...]", value_parser = addresses)]
    leader: Addresses,
    /// Client id of jobs submitted in this context.
    #[arg(long, value_name = "ID", value_parser = check_client_id)]
    client_id: Option<String>,
    /// Select it.
    #[arg(long = "use")]
    selects: bool,
    /// Replace the context of this name.
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Args)]
struct TestArgs {
    /// Its name (default: the selected one).
    name: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

/// Runs the command.
pub fn run(args: &ContextArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Add(add_args) => {
            let (mut contexts, _changing) = Contexts::read_to_change()?;
            let is_first = contexts.all.is_empty();
            add(&mut contexts, add_args)?;
            let said = match (is_first, contexts.current.as_deref() == Some(&*add_args.name)) {
                (true, true) => "it is the first one and selected",
                (false, true) => "it is selected",
                (_, false) => "select it with `heft context use`",
            };
            shown(args, &contexts, &add_args.name, |name| format!("context {name} added: {said}\n"))
        }
        What::Ls => {
            let contexts = Contexts::read()?;
            let all: Vec<Value> =
                contexts.all.iter().map(|(name, _)| as_json(&contexts, name)).collect();
            let path = contexts.path.display().to_string();
            let listed = json!({"contexts": all, "current": contexts.current, "path": path});
            output::show(args.output, &listed, Some(CONTEXTS), || table(&contexts))?;
            Ok(ExitCode::SUCCESS)
        }
        What::Show { name } => {
            let contexts = Contexts::read()?;
            let name = wanted(&contexts, name.as_deref())?;
            shown(args, &contexts, &name, |name| lines(&contexts, name))
        }
        What::Use { name } => {
            let (mut contexts, _changing) = Contexts::read_to_change()?;
            contexts.find(name)?;
            contexts.select(name);
            contexts.write()?;
            warn_of_variables();
            shown(args, &contexts, name, |name| format!("context {name} selected\n"))
        }
        What::Rm { name } => {
            let (mut contexts, _changing) = Contexts::read_to_change()?;
            contexts.find(name)?;
            contexts.remove(name);
            contexts.write()?;
            let removed = json!({"name": name, "removed": true});
            output::show(args.output, &removed, None, || format!("context {name} removed\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        What::Test(test_args) => {
            let contexts = Contexts::read()?;
            let name = wanted(&contexts, test_args.name.as_deref())?;
            super::block_on_until_stopped(test(
                args.output,
                &name,
                contexts.find(&name)?,
                &test_args.connect,
            ))
        }
    }
}

fn add(contexts: &mut Contexts, args: &AddArgs) -> Result<(), Usage> {
    let AddArgs { name, leader: Addresses(leaders), client_id, selects, replace } = args;
    if !replace && contexts.find(name).is_ok() {
        return Err(Usage(format!(
            "there is a context {name:?} already: choose another name, or replace it with --replace"
        )));
    }
    let selects = *selects || contexts.all.is_empty();
    let context = Context { leaders: leaders.clone(), client_id: client_id.clone() };
    contexts.set(name, &context);
    if selects {
        contexts.select(name);
    }
    contexts.write()
}

/// The named context, or the selected one.
fn wanted(contexts: &Contexts, name: Option<&str>) -> Result<String, Usage> {
    let name = name.or(contexts.current.as_deref()).map(str::to_owned);
    let name = name.ok_or_else(|| {
        Usage("no context is selected: name one, or select one with `heft context use`".to_owned())
    })?;
    contexts.find(&name)?;
    Ok(name)
}

/// A selection that something else goes before.
fn warn_of_variables() {
    for variable in ["HEFT_LEADER", "HEFT_CONTEXT"] {
        if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            note(&format!("{variable} is set and goes before the selected context: unset it"));
        }
    }
}

fn shown(
    args: &ContextArgs,
    contexts: &Contexts,
    name: &str,
    table: impl FnOnce(&str) -> String,
) -> anyhow::Result<ExitCode> {
    output::show(args.output, &as_json(contexts, name), None, || table(name))?;
    Ok(ExitCode::SUCCESS)
}

/// A context as programs read it.
fn as_json(contexts: &Contexts, name: &str) -> Value {
    let context = contexts.find(name).cloned().unwrap_or_default();
    let is_current = contexts.current.as_deref() == Some(name);
    json!({"name": name, "leaders": context.leaders, "client_id": context.client_id, "current": is_current})
}

fn table(contexts: &Contexts) -> String {
    let mut table = Table::new(&[
        ("CONTEXT", Side::Left),
        ("SELECTED", Side::Left),
        ("LEADERS", Side::Left),
        ("CLIENT ID", Side::Left),
    ]);
    for (name, context) in &contexts.all {
        let is_current = contexts.current.as_ref() == Some(name);
        let mark = if is_current { "*" } else { "" };
        table.row([
            name.clone(),
            mark.to_owned(),
            text(&context.leaders.join(",")),
            said(context.client_id.as_ref()),
        ]);
    }
    match contexts.all.is_empty() {
        true => format!("no contexts in {}\n", contexts.path.display()),
        false => table.render(),
    }
}

fn lines(contexts: &Contexts, name: &str) -> String {
    let context = contexts.find(name).cloned().unwrap_or_default();
    let selected = if contexts.current.as_deref() == Some(name) { ", selected" } else { "" };
    format!(
        "context    {name}{selected}\nleaders    {}\nclient id  {}\nfile       {}\n",
        text(&context.leaders.join(", ")),
        said(context.client_id.as_ref()),
        contexts.path.display()
    )
}

/// What a leader answered, and after how long.
struct Tried<'a> {
    address: &'a str,
    took: Duration,
    software: Result<String, ClientError>,
}

impl Tried<'_> {
    fn as_json(&self) -> Value {
        let Tried { address, took, software } = self;
        json!({
            "address": address,
            "reached": software.is_ok(),
            "software": software.as_ref().ok(),
            "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            "error": software.as_ref().err().map(ToString::to_string),
        })
    }
}

async fn test(
    output: Output,
    name: &str,
    context: &Context,
    connect: &Connect,
) -> anyhow::Result<ExitCode> {
    let mut tried = Vec::new();
    for address in &context.leaders {
        let started = Instant::now();
        let software = software(address, connect).await;
        tried.push(Tried { address, took: started.elapsed(), software });
    }
    let all: Vec<Value> = tried.iter().map(Tried::as_json).collect();
    let rows = Rows { list: "leaders", id: "address" };
    let table = || {
        let mut table = Table::new(&[
            ("LEADER", Side::Left),
            ("SOFTWARE", Side::Left),
            ("TOOK", Side::Right),
            ("WHY", Side::Left),
        ]);
        for Tried { address, took, software } in &tried {
            let why = software.as_ref().err().map(ToString::to_string);
            let software = said(software.as_ref().ok());
            table.row([text(address), software, about(*took), said(why)]);
        }
        table.render()
    };
    output::show(output, &json!({"name": name, "leaders": all}), Some(rows), table)?;
    let is_good = tried.iter().all(|tried| tried.software.is_ok());
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) })
}

/// What a leader says it is. It is asked without a client id: results are for those that submit.
async fn software(address: &str, connect: &Connect) -> Result<String, ClientError> {
    let client = Client::connect(address, &connect.asking_options("")).await?;
    let status = client.ask(&ask::Status {}).await?;
    client.close().await;
    Ok(status.answer.leader.software)
}
