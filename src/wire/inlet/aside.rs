//! A large frame gathered outside the inlet's memory: the caller holds its first bytes until it is
//! complete.

use chunking::limits::FRAME_BODY_BYTES_MAX;

use super::{Inlet, State, in_memory};

/// A frame whose first bytes the caller has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    pub(super) len: usize,
    /// Bytes of the frame in all.
    pub(super) whole: usize,
}

impl Inlet {
    /// Bytes of the frame that is gathered, if its length is known; none of one that comes in
    /// another way.
    pub fn gathers(&self) -> usize {
        if self.aside.is_some() {
            return 0;
        }
        let held = self.small.get(self.start..self.end).unwrap_or_default();
        let whole = held.first_chunk().map_or(0, |length| in_memory(u32::from_le_bytes(*length)));
        match self.state {
            State::Frames if whole <= in_memory(FRAME_BODY_BYTES_MAX) => {
                whole.saturating_add(size_of::<u32>())
            }
            State::Frames
            | State::Offered(_)
            | State::Splicing(_)
            | State::Filling { .. }
            | State::Dropping
            | State::Streaming => 0,
        }
    }

    /// Gives the bytes that are here of the frame that is gathered, behind those that were given
    /// before. More of it can then be read without memory for all of it; then
    /// [`Inlet::bring_back`].
    pub fn set_aside(&mut self) -> Vec<u8> {
        let held = self.small.get(self.start..self.end).unwrap_or_default();
        let aside = self.aside.unwrap_or(Aside { len: 0, whole: self.gathers() });
        // Not of what stands behind it.
        let held = held.get(..held.len().min(aside.whole - aside.len)).unwrap_or_default().to_vec();
        self.start += held.len();
        self.aside = Some(Aside { len: aside.len + held.len(), ..aside });
        held
    }

    /// Bytes of it that the caller has.
    pub fn aside(&self) -> usize {
        self.aside.map_or(0, |aside| aside.len)
    }

    /// Whether the rest of it is here.
    pub fn is_whole_aside(&self) -> bool {
        self.aside.is_some_and(|aside| aside.len + (self.end - self.start) >= aside.whole)
    }

    /// All that the caller has of it.
    pub fn bring_back(&mut self, front: &[u8]) {
        if self.aside.take().is_some() {
            let held = self.small.get(self.start..self.end).unwrap_or_default();
            self.small = [front, held].concat();
            (self.start, self.end) = (0, self.small.len());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use chunking::{Generation, Head, InboundLimits, Kind};

    use super::super::{READ_BYTES, Step};
    use super::*;

    fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let payload_len = u32::try_from(payload.len()).unwrap();
        Head { payload_len, ..Head::new(kind) }.append(Generation::F2, &mut out).unwrap();
        [out, payload.to_vec()].concat()
    }

    fn feed(inlet: &mut Inlet, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let [mut room, _] = inlet.room();
            let len = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(len);
            room.get_mut(..len).unwrap().copy_from_slice(now);
            bytes = later;
            inlet.filled(len);
        }
    }

    #[test]
    fn a_frame_whose_first_bytes_are_elsewhere_is_whole_when_they_are_back() {
        let noise = crate::noise::noise(500_000, 3);
        let (wire, behind) = (frame(Kind::AckJob, &noise), frame(Kind::Credit, b"more"));
        let stream = [wire.as_slice(), &behind].concat();
        for piece in [1_000usize, 65_536, 300_000] {
            let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED);
            let (mut aside, mut rest) = (Vec::new(), stream.as_slice());
            let mut most = 0;
            while !inlet.is_whole_aside() {
                assert!(matches!(inlet.poll().unwrap(), Step::Read));
                if inlet.aside() > 0 || inlet.gathers() > 0 && inlet.gathers() == wire.len() {
                    assert_eq!(inlet.aside(), aside.len());
                    aside.extend(inlet.set_aside());
                }
                let (now, later) = rest.split_at(piece.min(rest.len()));
                feed(&mut inlet, now);
                rest = later;
                most = most.max(inlet.small.len());
            }
            assert!(most < 2 * (piece + READ_BYTES), "{most} bytes of memory");
            assert!(inlet.is_inside_frame() || inlet.aside() + inlet.end >= wire.len());
            inlet.bring_back(&aside);
            feed(&mut inlet, rest);
            let Step::Frame(_, came) = inlet.poll().unwrap() else { panic!("not whole") };
            assert_eq!((came.head.kind().unwrap(), came.payload), (Kind::AckJob, noise.as_slice()));
            let Step::Frame(_, came) = inlet.poll().unwrap() else { panic!("nothing behind it") };
            assert_eq!((came.head.kind().unwrap(), came.payload), (Kind::Credit, &b"more"[..]));
        }
    }
}
