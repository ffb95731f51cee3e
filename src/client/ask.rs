//! Tracks questions to a leader (60, 61), and assembles answers that arrive in parts. It has no
//! I/O; the event loop passes it connections and frames.

use std::collections::HashMap;

use chunking::Kind;
use chunking::message::{Answer, AnswerStatus, Ask, Features};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::connection::{Mode, Outgoing};
use super::dispatch::Conn;
use super::error::{ClientError, Refusal};
use crate::answers::ask::Verb;
use crate::answers::{Failure, FailureCode};
use crate::peer::{InFrame, OutFrame};

/// Questions of one client that wait for their answer.
pub const QUESTIONS_MAX: usize = 64;

/// All parts of one answer together.
pub const QUESTION_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// An answer: what is known of it here, and all of it as the leader wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered<A> {
    /// What is known of it.
    pub answer: A,
    /// All of it, with members that only a newer leader has.
    pub json: Value,
}

/// What is to be asked.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) conn: Conn,
    pub(super) verb: Verb,
    pub(super) json: Vec<u8>,
    pub(super) reply: oneshot::Sender<Result<Value, ClientError>>,
}

struct Open {
    question: Question,
    asked: bool,
    parts: Map<String, Value>,
    bytes: usize,
}

impl Open {
    fn close(self, answer: Result<Value, ClientError>) {
        self.question.reply.send(answer).ok();
    }
}

/// The questions of one client.
#[derive(Default)]
pub(super) struct Questions {
    open: HashMap<Uuid, Open>,
}

impl Questions {
    /// Takes a question in; it is sent as soon as its connection is up.
    pub(super) fn add(&mut self, question: Question) {
        // Those that nobody waits for any more make room.
        self.open.retain(|_, open| !open.question.reply.is_closed());
        if self.open.len() >= QUESTIONS_MAX {
            question.reply.send(Err(ClientError::Busy { limit: QUESTIONS_MAX })).ok();
            return;
        }
        self.open
            .insert(Uuid::new_v4(), Open { question, asked: false, parts: Map::new(), bytes: 0 });
    }

    /// Whether questions wait for this connection.
    pub(super) fn wait_for(&self, conn: Conn) -> bool {
        self.open.values().any(|open| open.question.conn == conn && !open.asked)
    }

    /// Sends what waits for this connection. A leader that has not said what it knows may be a slow
    /// heft leader: unless it `is_given_up`, questions wait for its Welcome.
    pub(super) fn send(
        &mut self,
        conn: Conn,
        address: &str,
        mode: &Mode,
        outbox: &mpsc::Sender<Outgoing>,
        is_given_up: bool,
    ) {
        if matches!(mode, Mode::Classic) && !is_given_up {
            return;
        }
        let waiting =
            self.open.iter().filter(|(_, open)| open.question.conn == conn && !open.asked);
        let ids: Vec<Uuid> = waiting.map(|(id, _)| *id).collect();
        for id in ids {
            let Some(open) = self.open.get_mut(&id) else { continue };
            if !mode.has(Features::ASK) {
                let leader = address.to_owned();
                self.close(id, Err(ClientError::NotSupported { leader, feature: "ask" }));
                continue;
            }
            let mut payload = Vec::with_capacity(open.question.json.len() + 1);
            Ask { json: &open.question.json }.encode(&mut payload);
            let subject = open.question.verb.to_string();
            let frame = OutFrame { msg_id: id, subject, ..OutFrame::new(Kind::Ask, payload) };
            open.asked = outbox.try_send(Outgoing::plain(frame)).is_ok();
        }
    }

    /// The connection ended: what was asked on it is not answered any more.
    pub(super) fn fail(&mut self, conn: Conn, leader: &str, why: &str) {
        let lost = self.open.iter().filter(|(_, open)| open.question.conn == conn && open.asked);
        let ids: Vec<Uuid> = lost.map(|(id, _)| *id).collect();
        for id in ids {
            let (leader, why) = (leader.to_owned(), why.to_owned());
            self.close(id, Err(ClientError::Disconnected { leader, why }));
        }
    }

    /// Takes an answer, or a part of one.
    pub(super) fn take_answer(&mut self, frame: &InFrame) {
        let Some(open) = self.open.get_mut(&frame.corr_id) else { return };
        let verb = open.question.verb.to_string();
        let bad = |why: String| ClientError::BadAnswer { verb, why };
        let answer = match Answer::decode(&frame.payload) {
            Ok(answer) => answer,
            Err(error) => return self.close(frame.corr_id, Err(bad(error.to_string()))),
        };
        open.bytes = open.bytes.saturating_add(answer.json.len());
        if open.bytes > QUESTION_ANSWER_BYTES_MAX {
            let why =
                format!("it exceeds the limit of {QUESTION_ANSWER_BYTES_MAX} bytes: ask for less");
            return self.close(frame.corr_id, Err(bad(why)));
        }
        let part: Map<String, Value> = match serde_json::from_slice(answer.json) {
            Ok(part) => part,
            Err(error) => return self.close(frame.corr_id, Err(bad(error.to_string()))),
        };
        match answer.status {
            AnswerStatus::MoreFollows => join(&mut open.parts, part),
            AnswerStatus::Whole => {
                join(&mut open.parts, part);
                let whole = Value::Object(std::mem::take(&mut open.parts));
                self.close(frame.corr_id, Ok(whole));
            }
            AnswerStatus::Error => {
                let failure: Failure =
                    serde_json::from_value(Value::Object(part)).unwrap_or_default();
                let text = Some(failure.error).filter(|text| !text.is_empty());
                let text = text.unwrap_or_else(|| "an error without a text".to_owned());
                let error = match failure.code {
                    Some(FailureCode::NotFound) => ClientError::NotFound(text),
                    Some(FailureCode::Other(_)) | None => ClientError::Answered(text),
                };
                self.close(frame.corr_id, Err(error));
            }
        }
    }

    /// Whether the refused frame was a question.
    pub(super) fn refuse(&mut self, frame: &InFrame, refusal: &Refusal) -> bool {
        let asked = [frame.corr_id, frame.msg_id].into_iter().find(|id| self.open.contains_key(id));
        let Some(id) = asked else { return false };
        self.close(id, Err(ClientError::Answered(refusal.to_string())));
        true
    }

    fn close(&mut self, id: Uuid, answer: Result<Value, ClientError>) {
        if let Some(open) = self.open.remove(&id) {
            open.close(answer);
        }
    }
}

/// Adds a part to those before it: lists are joined, of any other member the last counts.
fn join(whole: &mut Map<String, Value>, part: Map<String, Value>) {
    for (name, value) in part {
        match (whole.get_mut(&name), value) {
            (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
            (_, value) => {
                whole.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_of_an_answer_join_their_lists_and_the_last_of_other_members_counts() {
        let mut whole = Map::new();
        for part in
            [json!({"jobs": [1, 2], "more": true}), json!({"jobs": [3], "more": false, "x": null})]
        {
            let Value::Object(part) = part else { panic!("an object") };
            join(&mut whole, part);
        }
        assert_eq!(Value::Object(whole), json!({"jobs": [1, 2, 3], "more": false, "x": null}));
    }
}
