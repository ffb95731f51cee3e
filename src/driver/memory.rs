//! Configures the leader's memory. Buffers use huge pages where available, so direct I/O resolves a
//! chunk in one step instead of page by page. Freed memory is returned from the allocator to the
//! system.
#![allow(unsafe_code)]

use bytes::BytesMut;

use crate::wire::BUFFER_BYTES;

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

fn advise(memory: &mut [u8]) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the memory is ours alone, as it is borrowed for writing, and the advice changes
    // nothing in it: it only says by which pages it is better kept.
    let advised =
        unsafe { madvise(memory.as_mut_ptr().cast(), memory.len(), Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::debug!("buffers are kept in small pages: {error}");
    }
}

/// Has the allocator return the pages to the system that nothing is in. glibc keeps what was freed
/// below a block that is in use, and after the first large payload so much more that a rush of them
/// would stay for ever. It takes a few milliseconds.
#[cfg(target_env = "gnu")]
pub(super) fn trim() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> i32;
    }
    // SAFETY: glibc has it, for any thread at any time; it moves nothing and takes only a number.
    unsafe { malloc_trim(0) };
}

/// Other allocators return memory by themselves.
#[cfg(not(target_env = "gnu"))]
pub(super) fn trim() {}

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
            buffers
                .iter()
                .all(|buffer| buffer.len() == BUFFER_BYTES && buffer.iter().all(|byte| *byte == 7))
        );
    }
}
