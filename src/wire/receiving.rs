//! The state of one blob being received from one sender: which chunks are present, and their
//! hashes.
//!
//! Pure. The final receiver of a blob (`transfer::Incoming`) and the relaying leader keep one each,
//! as they do with [`Sending`](super::Sending) in the other direction.

use chunking::digest::ChunkCrcs;
use chunking::{Bitmap, ChunkPlan, Digest, Ranges};

/// What has come of a blob.
#[derive(Clone, Debug)]
pub struct Receiving {
    plan: ChunkPlan,
    /// Chunks that need not come (again).
    held: Bitmap,
    crcs: ChunkCrcs,
    /// Whether all has come before, and was not what its sender says it is.
    was_wrong: bool,
}

impl Receiving {
    /// Nothing has come.
    pub fn new(plan: ChunkPlan) -> Self {
        Receiving {
            plan,
            held: Bitmap::new(plan.count()),
            crcs: ChunkCrcs::default(),
            was_wrong: false,
        }
    }

    /// How the blob is cut.
    pub const fn plan(&self) -> &ChunkPlan {
        &self.plan
    }

    /// Chunks that need not come.
    pub const fn held(&self) -> &Bitmap {
        &self.held
    }

    /// Whether a chunk need not come.
    pub fn has(&self, index: u32) -> bool {
        self.held.contains(index)
    }

    /// Whether nothing more need come.
    pub const fn is_complete(&self) -> bool {
        self.held.is_complete()
    }

    /// Chunks that have to come.
    pub fn missing(&self) -> Ranges {
        self.held.missing()
    }

    /// How many those are.
    pub const fn missing_count(&self) -> u32 {
        self.plan.count() - self.held.held_count()
    }

    /// The chunk that a byte of the blob is in.
    pub fn index_of(&self, offset: u64) -> Option<u32> {
        u32::try_from(offset / u64::from(self.plan.chunk_bytes())).ok()
    }

    /// A chunk has come. False if it was here.
    pub fn insert(&mut self, index: u32, crc_raw: u32) -> bool {
        let is_new = self.held.insert(index);
        if is_new {
            self.crcs.insert(&self.plan, index, crc_raw);
        }
        is_new
    }

    /// These need not come.
    pub fn leave_out(&mut self, chunks: &Ranges) {
        self.held.insert_all(chunks);
    }

    /// A chunk has to come again. False if it has not come.
    pub fn remove(&mut self, index: u32) -> bool {
        self.held.remove(index)
    }

    /// All of it has to come again.
    pub fn begin_anew(&mut self) {
        *self = Receiving { was_wrong: self.was_wrong, ..Receiving::new(self.plan) };
    }

    /// What its list of chunks hashes to. It means something only once it is complete.
    pub fn chunk_list(&self) -> Digest {
        self.crcs.digest(&self.plan)
    }

    /// All has come, and is not what its sender says it is. That may happen once; says whether it
    /// did before.
    pub fn is_wrong_again(&mut self) -> bool {
        std::mem::replace(&mut self.was_wrong, true)
    }
}

/// Bytes of these chunks of a blob, of which the last one may be short.
pub fn bytes_of(plan: &ChunkPlan, chunks: &Bitmap) -> u64 {
    let whole = u64::from(chunks.held_count()) * u64::from(plan.chunk_bytes());
    let last = plan.count().saturating_sub(1);
    let short = plan.chunk_bytes().saturating_sub(plan.len_of(last));
    if chunks.contains(last) { whole.saturating_sub(short.into()) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_counts_once_and_what_begins_anew_is_forgiven_no_second_time() {
        let mut receiving = Receiving::new(ChunkPlan::new(2 * 4096 + 1, 4096).unwrap());
        assert!(receiving.insert(0, 1) && receiving.insert(2, 3) && !receiving.insert(2, 4));
        assert_eq!((receiving.missing_count(), receiving.index_of(2 * 4096)), (1, Some(2)));
        assert_eq!(bytes_of(receiving.plan(), receiving.held()), 4096 + 1, "the last one is short");
        assert!(receiving.insert(1, 2) && receiving.is_complete());
        let digest = receiving.chunk_list();
        assert!(!receiving.is_wrong_again());
        receiving.begin_anew();
        assert!(!receiving.has(0) && receiving.missing_count() == 3);
        (0..3).for_each(|index| assert!(receiving.insert(index, index + 1)));
        assert_eq!(receiving.chunk_list(), digest, "a CRC that came too late did not count");
        assert!(receiving.is_wrong_again());
        assert!(receiving.remove(1) && !receiving.remove(1) && !receiving.is_complete());
        receiving.leave_out(&receiving.missing());
        assert!(receiving.is_complete());
    }
}
