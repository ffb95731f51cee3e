//! Holds what a worker exchanges with its leader beyond single frames: incoming transfers of inputs
//! and datasets, and the queued answers. It finds the owner of a transfer frame by the transfer's
//! id.

use chunking::MessageError;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::cache::DatasetPart;
use super::limits::TRANSFERS_MAX;
use crate::peer::{InFrame, OutFrame};
use crate::transfer::{Downloads, NotTaken, ONLY, Opened, Report, Turn};
use crate::wire::InChunk;

/// Whose a transfer is.
#[derive(Debug)]
pub(super) enum Owner {
    /// An input of this job.
    Input(Uuid),
    Dataset(DatasetPart),
}

/// What goes to the leader, and what comes from it piece by piece.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Frames that go out together.
    pub(super) out: Vec<OutFrame>,
    pub(super) downloads: Downloads<Owner>,
}

impl Exchange {
    /// Threads that write what comes report to `reports`.
    pub(super) fn new(reports: mpsc::UnboundedSender<Report>) -> Self {
        Exchange { out: Vec::new(), downloads: Downloads::new(TRANSFERS_MAX, reports) }
    }

    pub(super) fn push(&mut self, frame: OutFrame) {
        self.out.push(frame);
    }

    pub(super) fn start(&mut self, opened: Opened<Owner>) -> Result<(), NotTaken> {
        self.downloads.start(opened, &mut self.out)
    }

    pub(super) fn on_frame(&mut self, frame: &InFrame) -> Result<Turn, MessageError> {
        self.downloads.on_frame(ONLY, frame, &mut self.out)
    }

    pub(super) fn on_chunk(&mut self, chunk: InChunk) -> Turn {
        self.downloads.on_chunk(ONLY, chunk, &mut self.out)
    }

    pub(super) fn on_report(&mut self, report: Report) -> Turn {
        self.downloads.on_report(report, &mut self.out)
    }
}
