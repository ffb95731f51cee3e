//! Tracks outgoing blobs by transfer id: the owner of each, and the connection it is open on.
//! Owners keep what a blob means to them, and are notified by its id.

use std::collections::HashMap;

use chunking::message::{Abort, Body as _, Grant, Refused, Verdict};
use chunking::{Kind, MessageError, PlanError};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Conn;
use super::outgoing::Waiting;
use super::upload::{Blob, Status, Upload, Wire};
use crate::peer::{InFrame, LinkWriter, OutFrame};

#[derive(Debug)]
struct Going<K> {
    owner: K,
    /// Where it was opened last; the word of others does not count.
    on: Option<Conn>,
    upload: Upload,
}

/// The uploads of one peer.
#[derive(Debug)]
pub(crate) struct Uploads<K> {
    going: HashMap<Uuid, Going<K>>,
    news: mpsc::UnboundedSender<Uuid>,
}

impl<K> Uploads<K> {
    /// None yet. The id of each one that has something to tell comes through `news`, once until it
    /// is looked at.
    pub(crate) fn new(news: mpsc::UnboundedSender<Uuid>) -> Self {
        Uploads { going: HashMap::new(), news }
    }

    /// Starts the upload of a blob, which waits for a connection. One under the same id is over.
    pub(crate) fn start(&mut self, owner: K, blob: Blob) -> Result<(), PlanError> {
        let id = blob.id;
        let upload = Upload::start(blob, self.news.clone())?;
        self.going.insert(id, Going { owner, on: None, upload });
        Ok(())
    }

    /// Whose a blob is.
    pub(crate) fn owner(&self, id: Uuid) -> Option<&K> {
        self.going.get(&id).map(|going| &going.owner)
    }

    /// All of them, with their owners.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Uuid, &K)> {
        self.going.iter().map(|(id, going)| (*id, &going.owner))
    }

    /// Whether a blob was opened on the present connection.
    pub(crate) fn is_open(&self, id: Uuid) -> bool {
        self.going.get(&id).is_some_and(|going| going.on.is_some())
    }

    /// The frame that opens a transfer on a connection: it is to be sent there, behind whatever has
    /// to go before it.
    #[must_use]
    pub(crate) fn open(
        &mut self,
        id: Uuid,
        conn: Conn,
        writer: &LinkWriter,
        wire: Wire,
    ) -> Option<OutFrame> {
        let going = self.going.get_mut(&id)?;
        going.on = Some(conn);
        Some(going.upload.connected(writer.clone(), wire))
    }

    /// A connection ended.
    pub(crate) fn lost(&mut self, conn: Conn) {
        for going in self.going.values_mut().filter(|going| going.on == Some(conn)) {
            going.on = None;
            going.upload.disconnected();
        }
    }

    /// What an upload has to tell.
    pub(crate) fn status(&self, id: Uuid) -> Option<Status> {
        self.going.get(&id).map(|going| going.upload.status())
    }

    /// What an upload waits for, if it waits.
    pub(crate) fn waiting(&self, id: Uuid) -> Option<Waiting> {
        self.going.get(&id).and_then(|going| going.upload.waiting())
    }

    /// What a receiver says; whether it is of one of these, on its own connection.
    pub(crate) fn on_frame(&self, conn: Conn, frame: &InFrame) -> Result<bool, MessageError> {
        let going = self.going.get(&frame.msg_id).filter(|going| going.on == Some(conn));
        let Some(Going { upload, .. }) = going else { return Ok(false) };
        match frame.kind() {
            Some(Kind::Grant) => upload.grant(&Grant::decode(&frame.payload)?),
            Some(Kind::Verdict) => upload.verdict(&Verdict::decode(&frame.payload)?),
            Some(Kind::Abort) => upload.abort(&Abort::decode(&frame.payload)?),
            Some(Kind::Refused) => {
                let Refused { reason, text, .. } = Refused::decode(&frame.payload)?;
                upload.abort(&Abort { reason, text });
            }
            Some(_) | None => return Ok(false),
        }
        Ok(true)
    }

    /// A blob is not to be sent any more; whose it was.
    pub(crate) fn remove(&mut self, id: Uuid) -> Option<K> {
        self.going.remove(&id).map(|going| going.owner)
    }

    /// None but these are to be sent any more.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(Uuid, &K) -> bool) {
        self.going.retain(|id, going| is_wanted(*id, &going.owner));
    }
}
