//! The grammar of the command line, with the built `heft`: both forms of every command, where the
//! leader's address is from, contexts, forms of output, exit codes, and what a terminal shows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/command.rs"]
mod command;
#[path = "support/leader.rs"]
mod leader;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/schema.rs"]
mod schema;

#[path = "client_grammar/contexts.rs"]
mod contexts;
#[path = "client_grammar/errors.rs"]
mod errors;
#[path = "client_grammar/forms.rs"]
mod forms;
#[path = "client_grammar/schemas.rs"]
mod schemas;
#[path = "client_grammar/terminal.rs"]
mod terminal;

use chunking::Kind;
use chunking::message::AnswerStatus;
use command::{Ended, end};
use leader::{FakeLeader, ok};
use serde_json::{Value, json};

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// What a leader once answered to this question.
fn answer_to(verb: &str) -> Value {
    let path = procs::root().join("tests/vectors/answers.json");
    let vectors: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let found = vectors.into_iter().find(|vector| vector["verb"] == verb);
    found.unwrap_or_else(|| panic!("no vector answers {verb}"))["answer"].clone()
}

/// What does not end by itself.
enum Never {}

/// A leader that answers every question as a leader once did, and every job with OK.
async fn serve(leader: &FakeLeader) -> Never {
    serve_with(leader, answer_to).await
}

/// The same with other answers.
async fn serve_with(leader: &FakeLeader, answer_to: impl Fn(&str) -> Value) -> Never {
    loop {
        let mut peer = leader.welcome().await;
        while let Some(frame) = peer.poll().await {
            if frame.kind() == Kind::Ask {
                let answer = answer_to(&frame.subject);
                peer.answer(&frame, AnswerStatus::Whole, &answer).await;
            } else if frame.kind() == Kind::SubmitJob {
                let request = frame.request();
                let mut result = ok(&request, "forty-two\n");
                result.exit_code = Some(0);
                peer.result(&result).await;
            }
        }
    }
}

/// The same, that answers every question with an error.
async fn refuse(leader: &FakeLeader, error: &Value) -> Never {
    loop {
        let mut peer = leader.welcome().await;
        while let Some(frame) = peer.poll().await {
            if frame.kind() == Kind::Ask {
                peer.answer(&frame, AnswerStatus::Error, error).await;
            } else if frame.kind() == Kind::SubmitJob {
                let request = frame.request();
                let mut result = ok(&request, "forty-two\n");
                result.exit_code = Some(0);
                peer.result(&result).await;
            }
        }
    }
}

/// Runs a command while a leader does its part.
async fn beside(command: tokio::process::Command, leader: impl Future<Output = Never>) -> Ended {
    tokio::select! {
        ended = end(command) => ended,
        never = leader => match never {},
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The object that an error is, with its code and its text.
fn error_of(ended: &Ended) -> (String, String) {
    let shown = ended.json();
    let faults = schema::faults(&schema::schema("error"), &shown);
    assert!(faults.is_empty(), "{faults:#?}");
    let text = |name: &str| shown["error"][name].as_str().unwrap().to_owned();
    (text("code"), text("message"))
}

/// The error that an unknown thing is, as leaders say it.
fn not_found() -> Value {
    json!({"error": "it is unknown here", "code": "not-found"})
}
