//! A leader's end of a connection, for tests that say frame by frame what the leader does.
#![allow(dead_code, unreachable_pub)]

use std::time::Duration;

use bytes::{Buf, BytesMut};
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    Body, Features, Heartbeat, LimitId, LimitList, Progress, Settled, Stage, Start, StartFlags,
    Welcome, parse_credit,
};
use chunking::{ChunkHead, Decoder, Generation, Head, InboundLimits, Kind};
use heft::model::{JobResult, JsonModel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

/// No test waits longer for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Got {
    pub kind: Kind,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    pub subject: String,
    pub payload: Vec<u8>,
}

/// The leader's end of a connection.
pub struct Conn {
    pub stream: TcpStream,
    decoder: Decoder,
    buffer: BytesMut,
}

impl Conn {
    pub fn new(stream: TcpStream) -> Self {
        let decoder = Decoder::detecting(InboundLimits::ANNOUNCED);
        Conn { stream, decoder, buffer: BytesMut::new() }
    }

    pub async fn read(&mut self) -> Option<Got> {
        loop {
            let mut input = &self.buffer[..];
            if let Some(frame) = self.decoder.poll_frame(&mut input).unwrap() {
                let got = Got {
                    kind: Kind::try_from(frame.head.code).unwrap(),
                    msg_id: frame.head.msg_id,
                    corr_id: frame.head.corr_id,
                    subject: frame.head.subject.to_owned(),
                    payload: frame.payload.to_vec(),
                };
                let used = self.buffer.len() - input.len();
                self.buffer.advance(used);
                return Some(got);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await;
            if read.expect("a frame should have come").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The next frame of this kind; heartbeats before it are skipped, and word of how far a job is,
    /// which a job that ends at once may leave out. Anything else is a fault.
    pub async fn expect(&mut self, kind: Kind) -> Got {
        loop {
            let got = self.read().await.unwrap_or_else(|| panic!("closed before {kind}"));
            if got.kind == kind {
                return got;
            }
            assert!(
                matches!(got.kind, Kind::Heartbeat | Kind::Progress),
                "{} came where {kind} was due",
                got.kind
            );
        }
    }

    pub async fn heartbeat(&mut self) -> Heartbeat {
        Heartbeat::decode(&self.expect(Kind::Heartbeat).await.payload).unwrap()
    }

    pub async fn credit(&mut self) -> i32 {
        parse_credit(&self.expect(Kind::Credit).await.payload).unwrap()
    }

    /// The result of this job.
    pub async fn result(&mut self, job: Uuid) -> JobResult {
        let ack = self.expect(Kind::AckJob).await;
        assert_eq!((ack.corr_id, ack.msg_id, ack.subject.as_str()), (job, Uuid::nil(), ""), "T03");
        JobResult::parse(&ack.payload).unwrap()
    }

    pub async fn running(&mut self, job: Uuid) -> (u32, u32) {
        let frame = self.expect(Kind::Progress).await;
        let progress = Progress::decode(&frame.payload).unwrap();
        assert_eq!((frame.msg_id, progress.stage), (job, Stage::Running));
        (progress.run, progress.attempt)
    }

    pub async fn send(&mut self, kind: Kind, id: Uuid, payload: &[u8]) {
        self.send_as(kind, id, id, payload).await;
    }

    pub async fn send_as(&mut self, kind: Kind, msg_id: Uuid, corr_id: Uuid, payload: &[u8]) {
        let head = Head {
            msg_id,
            corr_id,
            subject: "",
            payload_len: payload.len().try_into().unwrap(),
            ..Head::new(kind)
        };
        let mut out = Vec::new();
        head.append(Generation::F2, &mut out).unwrap();
        out.extend_from_slice(payload);
        self.stream.write_all(&out).await.unwrap();
    }

    pub async fn say<M: Body>(&mut self, id: Uuid, message: &M) {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        self.send(M::KIND, id, &payload).await;
    }

    pub async fn welcome(&mut self) {
        self.welcome_with(Features::default(), &[]).await;
    }

    /// A Welcome with more than the least that our leaders can do.
    pub async fn welcome_with(&mut self, more: Features, limits: &[(LimitId, u64)]) {
        let limits: LimitList =
            [(LimitId::HEARTBEAT_MS, 20)].iter().chain(limits).copied().collect();
        let features = Features::LEASES.with(Features::PROGRESS).with(Features::CANCEL).with(more);
        let software = "test".to_owned().try_into().unwrap();
        self.say(Uuid::nil(), &Welcome { leader: Uuid::new_v4(), software, features, limits })
            .await;
    }

    /// The next frame of this kind, about this transfer; what else comes between is skipped.
    pub async fn about<M: Body>(&mut self, transfer: Uuid) -> M {
        let got = self
            .find(&M::KIND.to_string(), |got| got.kind == M::KIND && got.msg_id == transfer)
            .await;
        M::decode(&got.payload).unwrap()
    }

    /// The next frame that is sought; what else comes between is skipped.
    pub async fn find(&mut self, what: &str, is_it: impl Fn(&Got) -> bool) -> Got {
        let found = async {
            loop {
                let got = self.read().await.unwrap_or_else(|| panic!("closed before {what}"));
                if is_it(&got) {
                    return got;
                }
            }
        };
        timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{what} should have come"))
    }

    /// Sends a chunk of a blob, perhaps damaged on the way.
    pub async fn chunk(&mut self, transfer: Uuid, blob: &[u8], index: usize, damage: bool) {
        let mut frame = chunk_frame(transfer, blob, index);
        if damage && let Some(last) = frame.last_mut() {
            *last ^= 1;
        }
        self.stream.write_all(&frame).await.unwrap();
    }

    pub async fn assign(&mut self, job: Uuid, payload: &str) {
        self.send(Kind::AssignJob, job, payload.as_bytes()).await;
    }

    pub async fn start(&mut self, job: Uuid, run: u32, attempt: u32) {
        let flags = StartFlags::default();
        self.say(job, &Start { run, attempt, lease_ms: 30_000, flags }).await;
    }

    /// The same for a job whose client takes large parts of its result beside it.
    pub async fn start_with_parts(&mut self, job: Uuid, run: u32, attempt: u32) {
        let flags = StartFlags::TAKES_PARTS;
        self.say(job, &Start { run, attempt, lease_ms: 30_000, flags }).await;
    }

    pub async fn settle(&mut self, job: Uuid, run: u32) {
        self.say(job, &Settled { run }).await;
    }
}

/// A Chunk frame with the chunk at `index`.
pub fn chunk_frame(transfer: Uuid, blob: &[u8], index: usize) -> Vec<u8> {
    let size = usize::try_from(CHUNK_BYTES_MAX).unwrap();
    let raw = blob.chunks(size).nth(index).unwrap();
    let head = ChunkHead::plain((index * size) as u64, raw);
    let mut frame = head.frame_head(transfer, raw.len().try_into().unwrap()).unwrap().to_vec();
    frame.extend_from_slice(raw);
    frame
}
