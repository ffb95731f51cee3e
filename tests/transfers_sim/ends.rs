//! The ends of transfers, for clients and workers alike: the pure halves of `heft::transfer` over
//! contents that follow from ids.

use bytes::Bytes;
use chunking::message::{Body, Done, Grant, Open, OpenFlags, Piece, Purpose, Reason, Verdict};
use chunking::{Bitmap, ChunkHead, ChunkPlan, Digest, DigestKind, Generation, Head, Kind};
use heft::transfer::{Arrival, Incoming, Outgoing, Ruling, Work};
use heft::wire::{InChunk, Parts};
use uuid::Uuid;

use super::content;

/// What goes to the other side.
#[derive(Clone, Debug)]
pub(crate) enum Out {
    Frame(Bytes),
    Chunk {
        head: Vec<u8>,
        payload: Bytes,
    },
    /// The last piece of a chunk, or all of them.
    Pieces(Bytes),
}

/// A frame as it stands on the wire.
pub(crate) fn frame(head: Head<'_>, payload: &[u8]) -> Out {
    let mut bytes = Vec::new();
    let head = Head { payload_len: payload.len() as u32, ..head };
    head.append(Generation::F2, &mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    Out::Frame(bytes.into())
}

pub(crate) fn say<M: Body>(id: Uuid, message: &M) -> Out {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    frame(Head { msg_id: id, ..Head::new(M::KIND) }, &payload)
}

pub(crate) fn chunk_frame(id: Uuid, head: &ChunkHead, payload: Bytes) -> Out {
    let head = head.frame_head(id, payload.len() as u32).unwrap().to_vec();
    Out::Chunk { head, payload }
}

/// A chunk in pieces, from this byte on.
fn pieces(id: Uuid, head: ChunkHead, payload: &[u8], from: usize) -> Out {
    let mut bytes = Vec::new();
    let mut at = from;
    while at < payload.len() {
        let to = (at + 65_536 - at % 1000).min(payload.len());
        let (sent_len, from) = (payload.len() as u32, at as u32);
        let piece = Piece { head, sent_len, from, bytes: &payload[at..to] };
        bytes.extend_from_slice(&piece.frame(id, false).unwrap().0);
        bytes.extend_from_slice(&payload[at..to]);
        at = to;
    }
    Out::Pieces(bytes.into())
}

/// A blob that goes.
pub(crate) struct Sending {
    pub(crate) id: Uuid,
    pub(crate) outgoing: Outgoing,
    plan: ChunkPlan,
    kind: DigestKind,
    /// Times that it will say a wrong digest.
    pub(crate) lies: u32,
    pub(crate) arrived: bool,
    /// Chunks of which the other side had a part.
    pub(crate) went_on: u64,
    pub(crate) failed: Option<(Reason, String)>,
}

impl Sending {
    pub(crate) fn new(
        id: Uuid,
        owner: Uuid,
        attempt: u32,
        purpose: Purpose,
        size: u64,
        kind: DigestKind,
    ) -> Self {
        let open = Open {
            purpose,
            codec: chunking::Codec::None,
            digest: kind,
            flags: OpenFlags::KEEPS_SOURCE,
            chunk_bytes: chunking::limits::CHUNK_BYTES_MAX,
            size,
            owner,
            attempt,
            name: String::new().try_into().unwrap(),
        };
        let outgoing = Outgoing::new(open).unwrap();
        let plan = *outgoing.plan();
        Sending { id, outgoing, plan, kind, lies: 0, arrived: false, went_on: 0, failed: None }
    }

    pub(crate) fn plan(&self) -> &ChunkPlan {
        &self.plan
    }

    pub(crate) fn connected(&mut self) -> Out {
        self.arrived = false;
        say(self.id, self.outgoing.on_connected(chunking::Codec::None))
    }

    /// The next chunk, or Done.
    pub(crate) fn next(&mut self) -> Option<Out> {
        while let Some(work) = self.outgoing.next_work() {
            match work {
                Work::Digest { .. } => {}
                Work::Send { index, .. } => {
                    let (head, len) =
                        (content::head(self.id, &self.plan, index), self.plan.len_of(index));
                    let from = self.outgoing.goes_on_from(&head, len as usize);
                    self.went_on += u64::from(from > 0);
                    // Some as if the line were slow.
                    if from == 0 && index % 3 != 2 {
                        return Some(self.chunk(index));
                    }
                    return Some(pieces(
                        self.id,
                        head,
                        &content::chunk(self.id, index, len),
                        from as usize,
                    ));
                }
            }
        }
        if !self.outgoing.is_done_due() {
            return None;
        }
        self.outgoing.on_done_sent();
        let mut digest = self.digest();
        if self.lies > 0 {
            self.lies -= 1;
            digest.bytes[7] ^= 1;
        }
        Some(say(self.id, &Done { digest }))
    }

    pub(crate) fn chunk(&self, index: u32) -> Out {
        let head = content::head(self.id, &self.plan, index);
        chunk_frame(self.id, &head, content::chunk(self.id, index, self.plan.len_of(index)))
    }

    pub(crate) fn digest(&self) -> Digest {
        content::digest(self.id, &self.plan, self.kind)
    }

    pub(crate) fn on_verdict(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Failed { reason, text } => {
                self.failed = Some((*reason, text.as_str().to_owned()))
            }
            Verdict::Resend(_) => self.arrived = false,
            Verdict::Ok => {}
        }
        self.outgoing.on_verdict(verdict);
        self.arrived |= self.outgoing.is_arrived();
    }
}

/// A blob that comes.
pub(crate) struct Receiving {
    pub(crate) id: Uuid,
    pub(crate) open: Open,
    incoming: Incoming,
    /// Chunks whose bytes are those of the blob.
    right: Bitmap,
    pub(crate) failed: Option<Reason>,
}

impl Receiving {
    pub(crate) fn new(id: Uuid, open: &Open) -> Self {
        let incoming = Incoming::new(open, chunking::limits::WINDOW_CHUNKS_MAX).unwrap();
        let right = Bitmap::new(incoming.plan().count());
        Receiving { id, open: open.clone(), incoming, right, failed: None }
    }

    pub(crate) fn grant(&mut self, parts: &Parts) -> Out {
        let part = parts.held(self.id, self.incoming.plan(), |index| self.incoming.has(index));
        say(self.id, &Grant { part, ..self.incoming.first_grant() })
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.incoming.is_whole()
    }

    pub(crate) fn held_chunks(&self) -> u32 {
        self.right.held_count()
    }

    fn granted(&self, grant: Option<Grant>, out: &mut Vec<Out>) {
        out.extend(grant.map(|grant| say(self.id, &grant)));
    }

    pub(crate) fn on_chunk(&mut self, chunk: &InChunk, out: &mut Vec<Out>) {
        let len = chunk.bytes.len() as u32;
        match self.incoming.check(&chunk.head, len) {
            Arrival::Wanted { index } => {
                let head = &chunk.head;
                let grant = if head.check_sent(chunk.crc()).is_ok() && head.crc_raw == head.crc_sent
                {
                    // A flipped bit in the head may bring a chunk to another's place; the digest
                    // finds that.
                    if chunk.bytes == content::chunk(self.id, index, len) {
                        self.right.insert(index);
                    } else {
                        self.right.remove(index);
                    }
                    self.incoming.accept(index, head.crc_raw)
                } else {
                    self.incoming.reject(index)
                };
                self.granted(grant, out);
                let ruling = self.incoming.rule();
                self.follow(ruling, out);
            }
            Arrival::Doubled(grant) | Arrival::Bad(_, grant) => self.granted(grant, out),
            Arrival::Uninvited(verdict) => self.answer(verdict, out),
            Arrival::Late => {}
        }
    }

    pub(crate) fn on_done(&mut self, done: &Done, out: &mut Vec<Out>) {
        let ruling = self.incoming.on_done(done);
        self.follow(ruling, out);
    }

    pub(crate) fn on_void(&mut self, void: &chunking::message::Void) {
        if let Some(index) = self.incoming.on_void(void) {
            self.right.remove(index);
        }
    }

    fn follow(&mut self, ruling: Ruling, out: &mut Vec<Out>) {
        match ruling {
            Ruling::Later => {}
            Ruling::NeedsDigest => {
                let plan = *self.incoming.plan();
                let mut found = content::digest(self.id, &plan, self.open.digest);
                if !self.right.is_complete() {
                    found.bytes[0] ^= 1;
                }
                let ruling = self.incoming.on_digest(found);
                self.follow(ruling, out);
            }
            Ruling::Whole => {
                assert!(self.right.is_complete(), "blob {} is taken for whole and is not", self.id);
                self.answer(Verdict::Ok, out);
            }
            Ruling::Again(verdict) => {
                self.right = Bitmap::new(self.right.count());
                self.answer(verdict, out);
            }
            Ruling::Answer(verdict) => self.answer(verdict, out),
        }
    }

    /// The receiver's disk is full.
    pub(crate) fn fail(&mut self, reason: Reason, out: &mut Vec<Out>) {
        self.answer(Verdict::Failed { reason, text: "no room".into() }, out);
    }

    fn answer(&mut self, verdict: Verdict, out: &mut Vec<Out>) {
        out.push(say(self.id, &verdict));
        if let Verdict::Failed { reason, .. } = verdict {
            self.incoming.fail();
            self.failed = Some(reason);
        }
    }
}

/// A Hello or another frame with JSON.
pub(crate) fn json_frame(kind: Kind, id: Uuid, corr: Uuid, subject: &str, payload: &[u8]) -> Out {
    frame(Head { msg_id: id, corr_id: corr, subject, ..Head::new(kind) }, payload)
}

/// A frame for people.
pub(crate) fn describe(out: &Out) -> String {
    match out {
        Out::Frame(bytes) => {
            let mut decoder =
                chunking::Decoder::speaking(Generation::F2, chunking::InboundLimits::DIALLED);
            let Ok(Some(frame)) = decoder.poll_frame(&mut &bytes[..]) else {
                return "no frame".to_owned();
            };
            let message =
                frame.head.kind().ok().map(|kind| chunking::Message::decode(kind, frame.payload));
            format!("{:?} {} {message:?}", frame.head.kind(), frame.head.msg_id)
        }
        Out::Pieces(bytes) => format!("pieces in {} bytes", bytes.len()),
        Out::Chunk { head, payload } => {
            format!(
                "chunk {:?} of {} bytes",
                ChunkHead::decode(&head[43..]).map(|(head, _)| head.offset),
                payload.len()
            )
        }
    }
}
