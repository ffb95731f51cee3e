//! One connection: a reader of whole frames and a writer that many tasks share.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use chunking::frame::head_len;
use chunking::{Decoder, EncodeError, FrameError, Generation, Head, InboundLimits, Kind};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use super::socket::{Tuning, tune};

/// Frames that wait to be written before a sender has to wait too (W15).
pub const OUTBOX_FRAMES_MAX: usize = 1024;

const READ_BYTES: usize = 64 * 1024;

/// Why a connection could not be made, or ended.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The leader could not be reached.
    #[error("cannot connect to {addr}: {source}")]
    Connect {
        /// The address as it was given.
        addr: String,
        /// What the system says.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the leader broke: {0}")]
    Io(#[from] io::Error),
    /// The other side sent what is no frame.
    #[error("the leader sent a bad frame: {0}")]
    Frame(#[from] FrameError),
    /// What was to be sent does not fit a frame.
    #[error("cannot send: {0}")]
    Encode(#[from] EncodeError),
    /// The connection has ended.
    #[error("the connection to the leader is closed")]
    Closed,
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFrame {
    /// The type byte.
    pub code: u8,
    /// Message id.
    pub msg_id: Uuid,
    /// Correlation id.
    pub corr_id: Uuid,
    /// Subject.
    pub subject: String,
    /// Payload.
    pub payload: Bytes,
}

impl InFrame {
    /// What it is; `None` for a type that is not known, which is to be skipped.
    pub fn kind(&self) -> Option<Kind> {
        Kind::try_from(self.code).ok()
    }
}

/// A frame to send. It is always written as F2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutFrame {
    /// What it is.
    pub kind: Kind,
    /// Message id.
    pub msg_id: Uuid,
    /// Correlation id.
    pub corr_id: Uuid,
    /// Subject.
    pub subject: String,
    /// Payload.
    pub payload: Bytes,
}

impl OutFrame {
    /// A frame with nil ids, no subject and this payload.
    pub fn new(kind: Kind, payload: impl Into<Bytes>) -> Self {
        OutFrame {
            kind,
            msg_id: Uuid::nil(),
            corr_id: Uuid::nil(),
            subject: String::new(),
            payload: payload.into(),
        }
    }

    fn encoded_head(&self) -> Result<Bytes, EncodeError> {
        let payload_len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let head = Head {
            msg_id: self.msg_id,
            corr_id: self.corr_id,
            subject: &self.subject,
            payload_len,
            ..Head::new(self.kind)
        };
        let mut out = Vec::with_capacity(head_len(Generation::F2, &self.subject));
        head.append(Generation::F2, &mut out)?;
        Ok(out.into())
    }
}

/// Connects to a leader. The writer's task ends when the connection does.
pub async fn connect(
    addr: impl ToSocketAddrs + ToString,
    tuning: &Tuning,
) -> Result<(LinkReader, LinkWriter), LinkError> {
    let name = addr.to_string();
    let refused = |source| LinkError::Connect { addr: name.clone(), source };
    let stream = TcpStream::connect(addr).await.map_err(refused)?;
    tune(&stream, tuning).map_err(refused)?;
    let (read, write) = stream.into_split();
    let (sender, receiver) = mpsc::channel(OUTBOX_FRAMES_MAX);
    let broken = Arc::new(Mutex::new(None));
    tokio::spawn(write_all(write, receiver, broken.clone()));
    let decoder = Decoder::speaking(Generation::F2, InboundLimits::DIALLED);
    let reader = LinkReader { read, decoder, buffer: BytesMut::with_capacity(READ_BYTES) };
    Ok((reader, LinkWriter { sender, broken }))
}

/// Reads whole frames.
#[derive(Debug)]
pub struct LinkReader {
    read: OwnedReadHalf,
    decoder: Decoder,
    buffer: BytesMut,
}

impl LinkReader {
    /// The next frame; `None` when the other side has closed the connection between frames.
    ///
    /// May be dropped while it waits (in a `select!`) without losing bytes: they stay in the buffer.
    pub async fn next(&mut self) -> Result<Option<InFrame>, LinkError> {
        loop {
            let mut input = &self.buffer[..];
            if let Some(frame) = self.decoder.poll_frame(&mut input)? {
                let payload_end = self.buffer.len() - input.len() - frame.trailing as usize;
                let payload_start = payload_end - frame.payload.len();
                let (code, msg_id, corr_id) = (frame.head.code, frame.head.msg_id, frame.head.corr_id);
                let subject = frame.head.subject.to_owned();
                let rest = input.len();
                let mut whole = self.buffer.split_to(self.buffer.len() - rest);
                whole.truncate(payload_end);
                let payload = whole.split_off(payload_start).freeze();
                return Ok(Some(InFrame { code, msg_id, corr_id, subject, payload }));
            }
            self.buffer.reserve(READ_BYTES);
            if self.read.read_buf(&mut self.buffer).await? == 0 {
                self.decoder.finish(&self.buffer)?;
                return Ok(None);
            }
        }
    }
}

/// Sends frames, in the order in which `send` was called. Clones write to the same connection.
#[derive(Clone, Debug)]
pub struct LinkWriter {
    sender: mpsc::Sender<(Bytes, Bytes)>,
    broken: Arc<Mutex<Option<io::ErrorKind>>>,
}

impl LinkWriter {
    /// Hands a frame to the connection; waits while too many are before it. An error says that this frame was certainly
    /// not sent; success only that it will be tried.
    pub async fn send(&self, frame: OutFrame) -> Result<(), LinkError> {
        let head = frame.encoded_head()?;
        match self.sender.send((head, frame.payload)).await {
            Ok(()) => Ok(()),
            Err(_) => match *self.broken.lock().await {
                Some(kind) => Err(LinkError::Io(kind.into())),
                None => Err(LinkError::Closed),
            },
        }
    }
}

/// Writes what is waiting, several small frames in one call.
async fn write_all(
    mut write: OwnedWriteHalf,
    mut receiver: mpsc::Receiver<(Bytes, Bytes)>,
    broken: Arc<Mutex<Option<io::ErrorKind>>>,
) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, 64).await > 0 {
        let mut pieces: VecDeque<Bytes> = batch
            .drain(..)
            .flat_map(|(head, payload)| [head, payload])
            .filter(|piece| !piece.is_empty())
            .collect();
        while !pieces.is_empty() {
            let slices: Vec<io::IoSlice<'_>> = pieces.iter().map(|piece| io::IoSlice::new(piece)).collect();
            match write.write_vectored(&slices).await {
                Ok(written) if written > 0 => advance(&mut pieces, written),
                Ok(_) => return *broken.lock().await = Some(io::ErrorKind::WriteZero),
                Err(error) => return *broken.lock().await = Some(error.kind()),
            }
        }
    }
    // All writers are gone: tell the other side that nothing more comes.
    write.shutdown().await.ok();
}

fn advance(pieces: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = pieces.front_mut() {
        if written < front.len() {
            bytes::Buf::advance(front, written);
            return;
        }
        written -= front.len();
        pieces.pop_front();
    }
}
