//! Tracks incoming blobs by transfer id: the owner and connection of each, and incomplete chunks.
//! Owners decide where the bytes go, and what follows when a blob is complete or cannot come.
//! Nothing is sent here: answers go to a list that the owner sends.

use std::collections::HashMap;

use chunking::message::{Abort, Body as _, Done, Open, Piece, Reason, Verdict, Void};
use chunking::{Kind, MessageError, PlanError, Ranges};
use thiserror::Error;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Conn;
use super::download::{Download, DownloadState, Report};
use super::sink::ChunkSink;
use crate::peer::{InFrame, OutFrame};
use crate::wire::{InChunk, Part, Parts};

struct Coming<K> {
    owner: K,
    /// Where it was opened last; what others say of it does not count.
    on: Conn,
    download: Download,
}

/// What a frame led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is of no transfer that is open here, on its connection.
    Unknown,
    /// Nothing that matters to the owner.
    Nothing,
    /// The blob is here, as a whole, and right.
    Whole,
    /// It cannot be taken. The sender was told.
    Failed(String),
    /// The sender ended the transfer.
    Ended(Abort),
}

/// A transfer that is to be taken.
pub(crate) struct Opened<K> {
    pub(crate) id: Uuid,
    pub(crate) open: Open,
    pub(crate) owner: K,
    pub(crate) on: Conn,
    pub(crate) sink: Box<dyn ChunkSink>,
    /// Chunks that need not come, into a sink that knows what each part must be.
    pub(crate) not_needed: Option<Ranges>,
}

/// Why a transfer is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotTaken {
    /// There are enough.
    #[error("{under_way} transfers are under way here; the limit is {open_max}")]
    Busy {
        /// Those that are.
        under_way: usize,
        open_max: usize,
    },
    /// Its blob cannot be cut into chunks so.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl NotTaken {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            NotTaken::Busy { .. } => Reason::BUSY,
            NotTaken::Plan(_) => Reason::INVALID,
        }
    }
}

/// The downloads of one peer.
pub(crate) struct Downloads<K> {
    coming: HashMap<Uuid, Coming<K>>,
    /// First bytes of chunks that are not whole.
    parts: Parts,
    open_max: usize,
    reports: mpsc::UnboundedSender<Report>,
}

impl<K> std::fmt::Debug for Downloads<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Downloads").field("coming", &self.coming.len()).finish_non_exhaustive()
    }
}

impl<K> Downloads<K> {
    /// None yet, and at most so many at a time. Threads report to `reports`, which has to come back
    /// by [`on_report`](Self::on_report).
    pub(crate) fn new(open_max: usize, reports: mpsc::UnboundedSender<Report>) -> Self {
        Downloads { coming: HashMap::new(), parts: Parts::default(), open_max, reports }
    }

    fn check_room(&self) -> Result<(), NotTaken> {
        let open_max = self.open_max;
        if self.coming.len() < open_max {
            return Ok(());
        }
        let is_under_way =
            |coming: &&Coming<K>| *coming.download.state() == DownloadState::Receiving;
        let under_way = self.coming.values().filter(is_under_way).count();
        if under_way < open_max { Ok(()) } else { Err(NotTaken::Busy { under_way, open_max }) }
    }

    /// Takes a transfer, and grants it room. One under the same id is over.
    pub(crate) fn start(
        &mut self,
        opened: Opened<K>,
        out: &mut Vec<OutFrame>,
    ) -> Result<(), NotTaken> {
        self.check_room()?;
        let Opened { id, open, owner, on, sink, not_needed } = opened;
        let reports = self.reports.clone();
        let mut download = match not_needed {
            Some(not_needed) => Download::start_by_parts(id, open, &not_needed, sink, reports),
            None => Download::start(id, open, sink, reports),
        }?;
        download.holds(&self.parts);
        download.grant(out);
        self.coming.insert(id, Coming { owner, on, download });
        Ok(())
    }

    /// A transfer opens again; gives back the Open of one that is not known.
    pub(crate) fn reopen(
        &mut self,
        conn: Conn,
        id: Uuid,
        open: Open,
        out: &mut Vec<OutFrame>,
    ) -> Option<Open> {
        let Some(Coming { on, download, .. }) = self.coming.get_mut(&id) else { return Some(open) };
        *on = conn;
        download.holds(&self.parts);
        download.reopen(open, out);
        None
    }

    /// A frame came.
    pub(crate) fn on_frame(
        &mut self,
        conn: Conn,
        frame: &InFrame,
        out: &mut Vec<OutFrame>,
    ) -> Result<Turn, MessageError> {
        let id = frame.msg_id;
        match frame.kind() {
            Some(Kind::Done) => {
                let done = Done::decode(&frame.payload)?;
                Ok(self.feed(Some(conn), id, |download| download.on_done(&done, out)))
            }
            Some(Kind::Void) => {
                let void = Void::decode(&frame.payload)?;
                Ok(self.feed(Some(conn), id, |download| download.on_void(&void, out)))
            }
            Some(Kind::Piece) => {
                let piece = Piece::decode(&frame.payload)?;
                match self.coming.get(&id) {
                    Some(Coming { on, download, .. })
                        if *on == conn && *download.state() == DownloadState::Receiving => {}
                    Some(_) | None => return Ok(Turn::Unknown),
                }
                Ok(match self.parts.piece(id, &piece) {
                    Some(chunk) => self.on_chunk(conn, chunk, out),
                    None => Turn::Nothing,
                })
            }
            Some(Kind::Abort) if self.coming.get(&id).is_some_and(|coming| coming.on == conn) => {
                let abort = Abort::decode(&frame.payload)?;
                self.parts.forget(id);
                Ok(Turn::Ended(abort))
            }
            Some(_) | None => Ok(Turn::Unknown),
        }
    }

    /// A chunk came. One of an unknown transfer is dropped: its sender has been told, or will be at
    /// its Done.
    pub(crate) fn on_chunk(&mut self, conn: Conn, chunk: InChunk, out: &mut Vec<OutFrame>) -> Turn {
        self.feed(Some(conn), chunk.transfer, |download| {
            download.on_chunk(chunk.head, chunk.crc(), chunk.bytes, out);
        })
    }

    /// A thread has done something.
    pub(crate) fn on_report(&mut self, report: Report, out: &mut Vec<OutFrame>) -> Turn {
        self.feed(None, report.transfer, |download| download.on_report(report, out))
    }

    fn feed(&mut self, conn: Option<Conn>, id: Uuid, feed: impl FnOnce(&mut Download)) -> Turn {
        let coming = self.coming.get_mut(&id);
        let Some(Coming { download, .. }) =
            coming.filter(|coming| conn.is_none_or(|conn| coming.on == conn))
        else {
            return Turn::Unknown;
        };
        let was_receiving = *download.state() == DownloadState::Receiving;
        feed(download);
        let turn = match download.state() {
            DownloadState::Receiving => return Turn::Nothing,
            DownloadState::Whole | DownloadState::Failed { .. } if !was_receiving => {
                return Turn::Nothing;
            }
            DownloadState::Whole => Turn::Whole,
            DownloadState::Failed { text, .. } => Turn::Failed(text.clone()),
        };
        self.parts.forget(id);
        turn
    }

    /// A connection ended in the middle of a chunk: the next one goes on with it.
    pub(crate) fn keep(&mut self, part: Part) {
        if self.get(part.transfer).is_some_and(|(_, download)| !download.is_whole()) {
            self.parts.keep(part);
        }
    }

    /// A transfer, and whose it is.
    pub(crate) fn get(&self, id: Uuid) -> Option<(&K, &Download)> {
        self.coming.get(&id).map(|coming| (&coming.owner, &coming.download))
    }

    /// Whose a transfer is.
    pub(crate) fn owner_mut(&mut self, id: Uuid) -> Option<&mut K> {
        self.coming.get_mut(&id).map(|coming| &mut coming.owner)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Uuid, &K, &Download)> {
        self.coming.iter().map(|(id, coming)| (*id, &coming.owner, &coming.download))
    }

    /// A transfer is over; whose it was, and what came of it.
    pub(crate) fn remove(&mut self, id: Uuid) -> Option<(K, Download)> {
        self.parts.forget(id);
        self.coming.remove(&id).map(|coming| (coming.owner, coming.download))
    }

    /// All but these are over.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(Uuid, &K) -> bool) {
        let Downloads { coming, parts, .. } = self;
        coming.retain(|id, coming| {
            let is_wanted = is_wanted(*id, &coming.owner);
            if !is_wanted {
                parts.forget(*id);
            }
            is_wanted
        });
    }

    /// Interrupts the downloads of these owners; they may be resumed with the parts of chunks that
    /// are here.
    pub(crate) fn interrupt(&mut self, is_over: impl Fn(&K) -> bool) {
        self.coming.retain(|_, coming| !is_over(&coming.owner));
    }

    /// Nothing that is here of chunks is needed any more, but for transfers that are not over.
    pub(crate) fn forget_parts(&mut self) {
        self.parts.retain(|id| self.coming.contains_key(&id));
    }
}

/// Says that a transfer is not taken.
pub(crate) fn refusal(id: Uuid, reason: Reason, text: impl Into<String>) -> OutFrame {
    let text: String = text.into();
    OutFrame::message(id, &Verdict::Failed { reason, text: text.into() })
}

#[cfg(test)]
#[path = "downloads_tests.rs"]
mod tests;
