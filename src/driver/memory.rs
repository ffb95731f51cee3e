//! Memory for the leader's buffers, in huge pages where the system has them: a chunk that goes to the disk past the page cache is
//! then found in one step, and not page by page.
#![allow(unsafe_code)]

use bytes::BytesMut;

use crate::peer::BUFFER_BYTES;

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// Memory for so many buffers, next to each other. It is taken when it is first used.
pub(super) fn buffers(count: usize) -> Vec<BytesMut> {
    let bytes = count.saturating_mul(BUFFER_BYTES);
    let mut slab = BytesMut::zeroed(bytes.saturating_add(HUGE_BYTES));
    let skipped = slab.split_to(slab.as_ptr().align_offset(HUGE_BYTES).min(HUGE_BYTES));
    drop(skipped);
    slab.truncate(bytes);
    advise(&mut slab);
    (0..count).map(|_| slab.split_to(BUFFER_BYTES)).collect()
}

#[cfg(target_os = "linux")]
fn advise(memory: &mut [u8]) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the memory is ours alone, as it is borrowed for writing, and the advice changes nothing in it: it only says by
    // which pages it is better kept.
    let advised = unsafe { madvise(memory.as_mut_ptr().cast(), memory.len(), Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::debug!("buffers are kept in small pages: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_memory: &mut [u8]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_side_by_side_from_the_start_of_a_huge_page() {
        let mut buffers = buffers(3);
        assert_eq!(buffers[0].as_ptr().align_offset(HUGE_BYTES), 0);
        let starts: Vec<usize> = buffers.iter().map(|buffer| buffer.as_ptr() as usize).collect();
        assert_eq!([starts[1] - starts[0], starts[2] - starts[1]], [BUFFER_BYTES; 2]);
        buffers.iter_mut().for_each(|buffer| buffer.fill(7));
        assert!(
            buffers.iter().all(|buffer| buffer.len() == BUFFER_BYTES && buffer.iter().all(|byte| *byte == 7))
        );
    }
}
