//! A connection to a real leader that speaks frames of the test's choice.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;

use chunking::message::{Answer, AnswerStatus, Body, Progress, Stage, Welcome};
use chunking::{Decoder, Generation, Head, InboundLimits, Kind};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::procs::{Leader, PATIENCE};

/// A connection that speaks bytes.
pub struct Raw {
    pub stream: TcpStream,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// Frames that came while an answer was waited for.
    aside: VecDeque<Frame>,
    /// What jobs were said to wait for.
    pub waits: Vec<String>,
}

#[derive(Debug)]
pub struct Frame {
    pub kind: Kind,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    pub payload: Vec<u8>,
}

impl Raw {
    pub fn connect(leader: &Leader) -> Raw {
        Raw::on(TcpStream::connect(leader.addr()).unwrap())
    }

    /// On a connection that the test has made.
    pub fn on(stream: TcpStream) -> Raw {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
        Raw { stream, decoder, buffer: Vec::new(), aside: VecDeque::new(), waits: Vec::new() }
    }

    pub fn send(&mut self, kind: Kind, msg_id: Uuid, corr_id: Uuid, subject: &str, payload: &[u8]) {
        let payload_len = u32::try_from(payload.len()).unwrap();
        let mut bytes = Vec::new();
        let head = Head { msg_id, corr_id, subject, payload_len, ..Head::new(kind) };
        head.append(Generation::F2, &mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        // A leader that has hung up already is an answer, too.
        self.stream.write_all(&bytes).ok();
    }

    /// The next frame; `None` if the leader hung up.
    pub fn next(&mut self) -> Option<Frame> {
        self.aside.pop_front().or_else(|| self.read())
    }

    fn read(&mut self) -> Option<Frame> {
        loop {
            let mut input = self.buffer.as_slice();
            if let Some(frame) = self.decoder.poll_frame(&mut input).unwrap() {
                let found = Frame {
                    kind: frame.head.kind().unwrap(),
                    msg_id: frame.head.msg_id,
                    corr_id: frame.head.corr_id,
                    payload: frame.payload.to_vec(),
                };
                let consumed = self.buffer.len() - input.len();
                self.buffer.drain(..consumed);
                let told = Progress::decode(&found.payload)
                    .ok()
                    .filter(|told| told.stage == Stage::Waiting);
                if let (Kind::Progress, Some(told)) = (found.kind, told) {
                    self.waits.push(told.text.as_str().to_owned());
                    // That a job waits for a worker is told whenever that changes; it is not an
                    // answer to anything.
                    continue;
                }
                return Some(found);
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) | Err(_) => return None,
                Ok(got) => self.buffer.extend_from_slice(&piece[..got]),
            }
        }
    }

    pub fn is_hung_up_on(&mut self) -> bool {
        self.next().is_none()
    }

    /// Says hello as an announced client and takes the Welcome.
    pub fn client(leader: &Leader, id: &str) -> Raw {
        let mut raw = Raw::connect(leader);
        let features = r#"["submit-answers","progress","cancel","ask","transfers","datasets"]"#;
        let config = format!(
            r#"{{"ClientId":"{id}","DesiredParallelism":4,"Heft":{{"Version":1,"Features":{features}}}}}"#
        );
        raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), id, config.as_bytes());
        let welcome = raw.next().unwrap();
        assert_eq!(welcome.kind, Kind::Welcome);
        assert!(Welcome::decode(&welcome.payload).unwrap().software.as_str().starts_with("heft "));
        raw
    }

    /// Says hello as an announced worker that takes transfers, and takes the Welcome. It offers to
    /// run one job.
    pub fn worker(leader: &Leader, id: Uuid, pattern: &str) -> Raw {
        Raw::connect(leader).hello_worker(id, pattern)
    }

    /// The same on a connection that is there.
    pub fn hello_worker(self, id: Uuid, pattern: &str) -> Raw {
        let mut raw = self;
        let hello = format!(
            r#"{{"Heft":{{"Version":1,"Features":["leases","progress","cancel","transfers","ask","datasets"]}},"Patterns":["{pattern}"]}}"#
        );
        raw.send(Kind::HelloWorker, id, Uuid::nil(), pattern, hello.as_bytes());
        assert_eq!(raw.next().unwrap().kind, Kind::Welcome);
        raw.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
        raw
    }

    pub fn submit(&mut self, job: Uuid, exec: &str, args: &[&str]) {
        let request =
            json!({"JobId": job, "ClientId": "c", "ExecName": exec, "Args": args, "Files": []});
        self.send(
            Kind::SubmitJob,
            job,
            Uuid::nil(),
            &format!("job.submit.{exec}"),
            request.to_string().as_bytes(),
        );
    }

    pub fn ask(&mut self, verb: &str, question: &Value) -> Value {
        let payload = [&[1], question.to_string().as_bytes()].concat();
        self.send(Kind::Ask, Uuid::from_u128(7), Uuid::nil(), verb, &payload);
        // A long answer comes in parts, whose lists are joined.
        let mut whole = serde_json::Map::new();
        loop {
            let frame = self.read().unwrap();
            if frame.kind != Kind::Answer {
                self.aside.push_back(frame);
                continue;
            }
            let answer = Answer::decode(&frame.payload).unwrap();
            let part: serde_json::Map<String, Value> = serde_json::from_slice(answer.json).unwrap();
            for (name, value) in part {
                match (whole.get_mut(&name), value) {
                    (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                    (_, value) => drop(whole.insert(name, value)),
                }
            }
            if answer.status != AnswerStatus::MoreFollows {
                return Value::Object(whole);
            }
        }
    }
}
