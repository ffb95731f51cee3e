//! Records that came ahead of their append, in pieces. One at a time is kept, of one sender: the
//! leader sends the next after the append, and what is missing is sent again.

use bytes::Bytes;

use super::messages::Piece;
use crate::core::ids::{Index, Node, Term};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    record: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    from: Node,
    index: Index,
    term: Term,
    total: usize,
    bytes: Vec<u8>,
}

impl Ahead {
    /// Takes a piece in. One that does not go on with what is here, and begins nothing, is dropped.
    pub(super) fn take(&mut self, from: Node, piece: &Piece) {
        let (index, term) = (Index(piece.index), Term(piece.term));
        let offset = usize::try_from(piece.offset).unwrap_or(usize::MAX);
        let total = usize::try_from(piece.total).unwrap_or(usize::MAX);
        if offset == 0 {
            self.record = Some(Partial { from, index, term, total, bytes: Vec::new() });
        }
        let Some(record) = &mut self.record else { return };
        let goes_on = (record.from, record.index, record.term, record.total)
            == (from, index, term, total)
            && record.bytes.len() == offset;
        if goes_on && offset.saturating_add(piece.bytes.len()) <= total {
            record.bytes.extend_from_slice(&piece.bytes);
        }
    }

    /// The record, if all of it is here.
    pub(super) fn whole(&self, from: Node, index: Index, term: Term) -> Option<Bytes> {
        let record = self.record.as_ref()?;
        let is_it = (record.from, record.index, record.term) == (from, index, term);
        let is_whole = record.bytes.len() == record.total;
        (is_it && is_whole).then(|| Bytes::copy_from_slice(&record.bytes))
    }

    /// Drops a record that is in the log.
    pub(super) fn drop_up_to(&mut self, index: Index) {
        self.record.take_if(|record| record.index <= index);
    }
}
