//! An allocator that counts, for tests that bound what a reader may ask for.
#![allow(unsafe_code, unreachable_pub)] // GlobalAlloc is an unsafe trait; every call goes to the system's allocator as it came.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what each thread holds.
pub struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn grown(bytes: usize) {
    // A thread that is ending has no counters any more, and nobody asks for them.
    let counted = NOW.try_with(|now| {
        now.set(now.get().saturating_add(bytes));
        now.get()
    });
    if let Ok(now) = counted {
        PEAK.try_with(|peak| peak.set(peak.get().max(now))).ok();
    }
}

fn shrunk(bytes: usize) {
    NOW.try_with(|now| now.set(now.get().saturating_sub(bytes))).ok();
}

// SAFETY: each method passes its arguments to `System` unchanged and returns what it returned, so
// the contract that the caller keeps with us is the one `System` needs. Counting touches
// thread-local cells only and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        shrunk(layout.size());
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        shrunk(layout.size());
        grown(size);
        unsafe { System.realloc(block, layout, size) }
    }
}

/// The most that `run` held at one time beyond what was held before, in bytes.
pub fn peak_of(run: impl FnOnce()) -> usize {
    let before = NOW.get();
    PEAK.set(before);
    run();
    PEAK.get() - before
}
