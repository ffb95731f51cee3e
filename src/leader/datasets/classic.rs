//! Puts of stock clients, whole in one frame.

use bytes::Bytes;
use uuid::Uuid;

use crate::core::ids::ConnId;
use crate::leader::Leader;
use crate::model::CachePutResult;

impl Leader {
    /// A stock client puts a dataset (T06).
    pub(super) fn classic_put(&mut self, conn: ConnId, request: Uuid, subject: &str, payload: &Bytes) {
        tracing::warn!(bytes = payload.len(), subject, "a classic CachePut is not taken yet");
        let result = CachePutResult::failed("", "this leader does not take a classic CachePut yet");
        let frame = self.sessions.get(&conn).and_then(|session| session.cache_ack(request, &result));
        self.send(conn, frame);
    }
}
