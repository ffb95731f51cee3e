//! `heft clients`: the clients that a leader knows. They are part of what `heft status` shows.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::exit::Usage;
use super::output::{self, OUTPUT_VARIABLE};
use super::status::{clients_table, cut_short};
use super::table::text;
use super::workers::{absent, count_of, part};
use super::{Output, Reach, Rows};
use crate::answers::{ClientRow, Status, StatusList};
use crate::client::Answered;
use crate::likeness::did_you_mean;

const EXAMPLES: &str = "Examples:
  heft clients ls
  heft clients ls -o json | jq '.clients[].queued'
  heft clients show ann@host-1

A client is named by its id, or by what its id begins with before a slash.";

/// What is listed.
const CLIENTS: Rows = Rows { list: "clients", id: "id" };

/// Show the clients of a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ClientsArgs {
    #[command(subcommand)]
    what: What,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the clients.
    Ls,
    /// Show a client.
    Show {
        /// Its id.
        client: String,
    },
}

/// Runs the command.
pub fn run(args: &ClientsArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(look(args))
}

async fn look(args: &ClientsArgs) -> anyhow::Result<ExitCode> {
    let status = args.reach.listed(StatusList::Clients).await?;
    match &args.what {
        What::Ls => {
            let table = || {
                let clients = &status.answer.clients;
                let table = clients_table(clients).render();
                let count = count_of(&status, "clients").unwrap_or_default();
                let cut = cut_short("clients", clients.len(), count).unwrap_or_default();
                if table.is_empty() { "no clients\n".to_owned() } else { table + &cut }
            };
            output::show(args.output, &part(&status, "clients"), Some(CLIENTS), table)?;
        }
        What::Show { client } => {
            let (found, json) = find(&status, client)?;
            output::show(args.output, json, None, || shown(found))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The client of this id, or the only one whose id begins with it and a slash.
fn find<'a>(
    status: &'a Answered<Status>,
    wanted: &str,
) -> anyhow::Result<(&'a ClientRow, &'a Value)> {
    let rows = status.json.get("clients").and_then(Value::as_array).into_iter().flatten();
    let clients: Vec<_> = status.answer.clients.iter().zip(rows).collect();
    let is_of = |id: &str| id.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('/'));
    let by_id = clients.iter().find(|(client, _)| client.id == wanted);
    let begin: Vec<_> = clients.iter().copied().filter(|(client, _)| is_of(&client.id)).collect();
    match (by_id.copied(), begin.as_slice()) {
        (Some(found), _) => Ok(found),
        (None, [found]) => Ok(*found),
        (None, []) => {
            let ids = clients.iter().map(|(client, _)| client.id.as_str());
            let hint = did_you_mean(wanted, ids);
            let text = format!(
                "the leader knows no client {wanted:?}{hint}: `heft clients ls` lists those that \
                 are connected or have jobs"
            );
            Err(absent(status, "clients", text))
        }
        (None, several) => Err(Usage(format!(
            "the ids of {} clients begin with {wanted:?}: name one in full",
            several.len()
        ))
        .into()),
    }
}

fn shown(client: &ClientRow) -> String {
    let cap = if client.cap == 0 { "none".to_owned() } else { client.cap.to_string() };
    let lines = [
        ("client", text(&client.id)),
        ("cap", cap),
        ("in flight", client.in_flight.to_string()),
        ("queued", client.queued.to_string()),
        ("connections", client.connections.to_string()),
    ];
    lines.map(|(label, what)| format!("{label:<11} {what}\n")).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::{NOT_FOUND, USAGE, code_of};
    use serde_json::json;

    #[test]
    fn a_client_is_found_by_its_id_or_by_the_only_beginning_and_shown_line_by_line() {
        let json = json!({"clients": [
            {"id": "ann@host-1/5f", "cap": 0, "in_flight": 2, "queued": 3, "connections": 1},
            {"id": "bob@host-1/1"}, {"id": "bob@host-1/2"},
        ]});
        let status = Answered { answer: serde_json::from_value(json.clone()).unwrap(), json };
        let (ann, _) = find(&status, "ann@host-1").unwrap();
        let lines = "client      ann@host-1/5f\ncap         none\nin flight   2\nqueued      3\n\
                     connections 1\n";
        assert_eq!(shown(ann), lines);
        assert_eq!(find(&status, "bob@host-1/2").unwrap().1["id"], "bob@host-1/2");
        assert_eq!(code_of(&find(&status, "bob@host-1").unwrap_err()), USAGE);
        assert_eq!(code_of(&find(&status, "ann").unwrap_err()), NOT_FOUND);
    }
}
