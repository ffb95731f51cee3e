//! A leader that does what a test tells it to, frame by frame. It stands on the wire format alone.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use chunking::frame::{Head, head_len};
use chunking::message::{
    Answer, AnswerStatus, Ask, Body, Features, LimitId, Refused, Standing, Submitted, Welcome,
};
use chunking::{Decoder, Generation, InboundLimits, Kind};
use heft::client::Options;
use heft::core::retry::Backoff;
use heft::model::{ClientConfig, JobRequest, JobResult, JobStatus, JsonModel};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use uuid::Uuid;

/// No test waits longer for anything: what takes so long does not come.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub const FEATURES: Features = Features::SUBMIT_ANSWERS
    .with(Features::PROGRESS)
    .with(Features::CANCEL)
    .with(Features::ASK)
    .with(Features::REDIRECTS);

pub struct FakeLeader {
    listener: TcpListener,
    pub address: String,
}

impl FakeLeader {
    pub async fn start() -> Self {
        FakeLeader::start_at("127.0.0.1:0").await
    }

    pub async fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        FakeLeader { listener, address }
    }

    /// The next connection, with its hello read.
    pub async fn accept(&self) -> Peer {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("a connection").unwrap();
        let decoder = Decoder::detecting(InboundLimits::CLASSIC);
        let mut peer = Peer { stream, decoder, buffer: Vec::new(), hello: Seen::default() };
        peer.hello = peer.next().await;
        assert_eq!(peer.hello.kind(), Kind::HelloClient);
        peer
    }

    /// The next connection, welcomed as a heft leader does.
    pub async fn welcome(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.welcome().await;
        peer
    }
}

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub code: u8,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    pub subject: String,
    pub payload: Vec<u8>,
}

impl Seen {
    pub fn kind(&self) -> Kind {
        Kind::try_from(self.code).unwrap()
    }

    pub fn config(&self) -> ClientConfig {
        ClientConfig::parse(&self.payload).unwrap()
    }

    pub fn request(&self) -> JobRequest {
        assert_eq!(self.kind(), Kind::SubmitJob);
        let request = JobRequest::parse(&self.payload).unwrap();
        assert_eq!(request.job_id, self.msg_id, "M17");
        request
    }

    pub fn question(&self) -> Value {
        assert_eq!(self.kind(), Kind::Ask);
        serde_json::from_slice(Ask::decode(&self.payload).unwrap().json).unwrap()
    }
}

pub struct Peer {
    stream: TcpStream,
    decoder: Decoder,
    buffer: Vec<u8>,
    pub hello: Seen,
}

impl Peer {
    /// The next frame, which must come.
    pub async fn next(&mut self) -> Seen {
        self.poll().await.expect("a frame")
    }

    /// The next frame, or none at the end of the connection.
    pub async fn poll(&mut self) -> Option<Seen> {
        loop {
            let mut input = &self.buffer[..];
            if let Some(frame) = self.decoder.poll_frame(&mut input).unwrap() {
                let seen = Seen {
                    code: frame.head.code,
                    msg_id: frame.head.msg_id,
                    corr_id: frame.head.corr_id,
                    subject: frame.head.subject.to_owned(),
                    payload: frame.payload.to_vec(),
                };
                let left = input.len();
                self.buffer.drain(..self.buffer.len() - left);
                return Some(seen);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.buffer))
                .await
                .expect("bytes in time");
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub async fn send(
        &mut self,
        kind: Kind,
        msg_id: Uuid,
        corr_id: Uuid,
        subject: &str,
        payload: &[u8],
    ) {
        let payload_len = u32::try_from(payload.len()).unwrap();
        let head = Head { msg_id, corr_id, subject, payload_len, ..Head::new(kind) };
        let mut bytes = Vec::with_capacity(head_len(Generation::F2, subject) + payload.len());
        head.append(Generation::F2, &mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).await.unwrap();
    }

    pub async fn message(&mut self, job: Uuid, message: &impl MessageBody) {
        let mut payload = Vec::new();
        let kind = message.put(&mut payload);
        self.send(kind, job, job, "", &payload).await;
    }

    pub async fn welcome(&mut self) {
        self.welcome_with(FEATURES).await;
    }

    pub async fn welcome_with(&mut self, features: Features) {
        self.welcome_limited(features, &[]).await;
    }

    pub async fn welcome_limited(&mut self, features: Features, limits: &[(LimitId, u64)]) {
        let welcome = Welcome {
            leader: Uuid::new_v4(),
            software: "fake 1".to_owned().try_into().unwrap(),
            features,
            limits: limits.iter().copied().collect(),
        };
        let mut payload = Vec::new();
        welcome.encode(&mut payload);
        self.send(Kind::Welcome, Uuid::nil(), self.hello.msg_id, "", &payload).await;
    }

    pub async fn submitted(&mut self, job: Uuid, standing: Standing, ahead: u32) {
        self.message(job, &Submitted { standing, run: 1, ahead }).await;
    }

    pub async fn refused(&mut self, job: Uuid, refused: Refused) {
        self.message(job, &refused).await;
    }

    pub async fn result(&mut self, result: &JobResult) {
        let job = result.job_id;
        let subject = format!("job.result.{}.{}", result.client_id, job.simple());
        self.send(Kind::Result, job, job, &subject, &result.to_json()).await;
    }

    pub async fn answer(&mut self, ask: &Seen, status: AnswerStatus, json: &Value) {
        let mut payload = Vec::new();
        Answer { status, json: json.to_string().as_bytes() }.encode(&mut payload);
        self.send(Kind::Answer, Uuid::nil(), ask.msg_id, &ask.subject, &payload).await;
    }
}

/// Any message of ours, with the frame that carries it.
pub trait MessageBody {
    fn put(&self, out: &mut Vec<u8>) -> Kind;
}

impl<M: Body> MessageBody for M {
    fn put(&self, out: &mut Vec<u8>) -> Kind {
        self.encode(out);
        M::KIND
    }
}

/// A result that says OK and `stdout`.
pub fn ok(request: &JobRequest, stdout: &str) -> JobResult {
    let mut result =
        JobResult::new(request.job_id, &request.client_id, &request.exec_name, JobStatus::Ok);
    result.stdout = stdout.to_owned();
    result
}

/// Quick to come back, and patient with the announcement: the tests' own leader answers it.
pub fn options() -> Options {
    Options {
        backoff: Backoff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(20),
            jitter_percent: 20,
        },
        welcome_wait: PATIENCE,
        connect_wait: Some(PATIENCE),
        ..Options::new("clientA")
    }
}

/// A job without files.
pub fn calc() -> JobRequest {
    JobRequest { exec_name: "calcA".to_owned(), ..JobRequest::default() }
}
