//! Questions and answers as leaders and clients of today write them: the types read them, and write
//! the same again (docs/protocol.md, "Questions").

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use heft::answers::ask::{self, Ask, Question, Verb, Which};
use heft::answers::{Explained, Phase, Status, WaitsFor};
use serde_json::{Value, json};
use uuid::Uuid;

/// Questions and answers that were taken from a leader and its clients.
fn vectors() -> Vec<(String, Value, Value)> {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("vectors/answers.json")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    vectors
        .into_iter()
        .map(|row| (text(&row["verb"]), row["question"].clone(), row["answer"].clone()))
        .collect()
}

/// Both sides as they are written again.
fn again<Q: Ask>(question: &Value, answer: &Value) -> (Value, Value) {
    let question: Q = serde_json::from_value(question.clone()).unwrap();
    let answer: Q::Answer = serde_json::from_value(answer.clone()).unwrap();
    (serde_json::to_value(question).unwrap(), serde_json::to_value(answer).unwrap())
}

#[test]
fn what_leaders_and_clients_write_is_read_and_written_the_same() {
    let mut seen = Vec::new();
    for (verb, question, answer) in vectors() {
        let written =
            match Question::read(&verb.clone().into(), question.to_string().as_bytes()).unwrap() {
                Question::Status(_) => again::<ask::Status>(&question, &answer),
                Question::StatusPage(_) => again::<ask::StatusPage>(&question, &answer),
                Question::GetResult(_) => again::<ask::GetResult>(&question, &answer),
                Question::DlqLs(_) => again::<ask::DlqLs>(&question, &answer),
                Question::DlqShow(_) => again::<ask::DlqShow>(&question, &answer),
                Question::DlqRequeue(_) => again::<ask::DlqRequeue>(&question, &answer),
                Question::DlqPurge(_) => again::<ask::DlqPurge>(&question, &answer),
                Question::BlobLs(_) => again::<ask::BlobLs>(&question, &answer),
                Question::BlobVerify(_) => again::<ask::BlobVerify>(&question, &answer),
                Question::BlobGc(_) => again::<ask::BlobGc>(&question, &answer),
                Question::DatasetLs(_) => again::<ask::DatasetLs>(&question, &answer),
                Question::DatasetStatus(_) => again::<ask::DatasetStatus>(&question, &answer),
                Question::DatasetRm(_) => again::<ask::DatasetRm>(&question, &answer),
                Question::DatasetVerify(_) => again::<ask::DatasetVerify>(&question, &answer),
                Question::DatasetPush(_) => again::<ask::DatasetPush>(&question, &answer),
                Question::Explain(_) => again::<ask::Explain>(&question, &answer),
                Question::Cancel(_) => again::<ask::Cancel>(&question, &answer),
                Question::JobLs(_) => again::<ask::JobLs>(&question, &answer),
                Question::JobShow(_) => again::<ask::JobShow>(&question, &answer),
                Question::JobWait(_) => again::<ask::JobWait>(&question, &answer),
                Question::JobRetry(_) => again::<ask::JobRetry>(&question, &answer),
            };
        assert_eq!(written, (question, answer), "{verb}");
        seen.push(verb);
    }
    for verb in Verb::NAMES {
        assert!(seen.iter().any(|seen| seen == verb), "there is no vector of {verb}");
    }
}

#[test]
fn answers_of_other_versions_are_read_as_far_as_they_are_known() {
    let old: Status =
        serde_json::from_value(json!({"leader": {"uptime_ms": 5}, "jobs": {}})).unwrap();
    assert_eq!((old.leader.uptime_ms, old.leader.disk.disk_bytes, old.workers.len()), (5, None, 0));
    let new = json!({"phase": "resting", "waits": {"for": "rain", "since": 1}, "mood": ["good"]});
    let new: Explained = serde_json::from_value(new).unwrap();
    assert_eq!(new.phase, Phase::Other("resting".to_owned()));
    assert_eq!(new.waits.unwrap().what, WaitsFor::Other("rain".to_owned()));
}

#[test]
fn a_question_that_cannot_be_read_says_what_is_wrong_with_it() {
    let read = |verb: &str, json: &str| Question::read(&verb.to_owned().into(), json.as_bytes());
    for (verb, json, why) in [
        ("explain", "{", "is not valid JSON"),
        ("explain", "{}", "missing field `job_id`"),
        ("cancel", r#"{"job_id": "x"}"#, "\"x\" is not a valid job id: it is a Guid such as 0"),
        ("dlq.ls", r#"{"after": "x"}"#, "\"x\" is not a valid job id"),
        ("dlq.purge", "{}", "it names no job_id"),
        ("blob.verify", r#"{"blob": "x"}"#, "\"x\" is not a valid blob"),
        (
            "nonsense",
            "{}",
            "\"nonsense\" is not a question this leader knows: ask one of status, status.page, result",
        ),
    ] {
        let error = read(verb, json).unwrap_err();
        assert!(error.contains(why), "{verb} {json}: {error}");
    }
    // Whoever has nothing to add may send nothing at all.
    for nothing in ["", "null", "{}", r#"{"unknown": 1}"#] {
        assert_eq!(read("status", nothing), Ok(Question::Status(ask::Status {})));
    }
    let which = |json: &str| match read("dlq.requeue", json) {
        Ok(Question::DlqRequeue(ask::DlqRequeue { which })) => which,
        other => panic!("{other:?}"),
    };
    assert_eq!(which(r#"{"all": true}"#), Which::All);
    assert_eq!(
        which(&json!({"job_id": Uuid::nil(), "all": false}).to_string()),
        Which::One(Uuid::nil())
    );
}
