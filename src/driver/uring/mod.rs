//! The io_uring driver's sockets, on tokio-uring. Linux only.
//!
//! Operations that can complete at once use non-blocking calls. Others wait in the ring: a read
//! with its buffer, which is filled by the time its task wakes, or a poll. Two hazards of
//! tokio-uring shape this code (`tests/uring_hazards.rs` shows them), and a third shapes its
//! shutdown:
//!
//! - An operation whose future is dropped is not cancelled: the bytes it reads are lost. So no
//!   `select!` and no timeout ever drops a read; `shutdown(2)` ends it. A poll loses nothing and is
//!   owned by a task that is never cancelled.
//! - The socket of an accept whose future is dropped is lost. So the ring accepts nothing: the
//!   listener is tokio's.
//! - A dropped runtime frees the buffers of reads before it cancels them. So it is dropped only
//!   when every connection has ended (`Hub::drain`).
//!
//! An operation owns its buffers and its descriptor until it completes. The ring is submitted only
//! when the thread is about to sleep, so a task that yields to others does it through the ring too
//! ([`pause`]).

pub(super) mod probe;
mod ready;
mod socket;
#[cfg(test)]
mod tests;

pub(super) use socket::RingSocket;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::marker::PhantomData;

use io_uring::{cqueue, opcode, squeue};
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot};

/// Operations that are handed to the kernel in one call at most.
const RING_ENTRIES: u32 = 1024;

/// Outcomes that fit before the kernel has to keep them aside.
const OUTCOMES: u32 = 8 * RING_ENTRIES;

/// The ring that is asked for. The kernel does its part of the work when the thread calls it, and
/// never by interrupting it; only this thread uses the ring. Kernels before 6.0 know no such rings.
fn ring(quiet: bool) -> io_uring::Builder {
    let mut builder = tokio_uring::uring_builder();
    builder.setup_cqsize(OUTCOMES);
    if quiet {
        builder.setup_coop_taskrun().setup_single_issuer();
    }
    builder
}

/// Runs a future, and what it spawns on its thread, until it is done.
pub(super) fn run<F: Future>(quiet: bool, future: F) -> io::Result<F::Output> {
    let mut builder = tokio_uring::builder();
    builder.entries(RING_ENTRIES).uring_builder(&ring(quiet));
    Ok(tokio_uring::Runtime::new(&builder)?.block_on(future))
}

/// Gives back what an operation held, with its result.
struct GiveBack<D>(PhantomData<D>);

impl<D> OneshotOutputTransform for GiveBack<D> {
    type Output = (io::Result<usize>, D);
    type StoredData = D;

    fn transform_oneshot_output(self, data: D, outcome: cqueue::Entry) -> Self::Output {
        let result = match usize::try_from(outcome.result()) {
            Ok(value) => Ok(value),
            Err(_) => Err(io::Error::from_raw_os_error(outcome.result().saturating_neg())),
        };
        (result, data)
    }
}

thread_local! {
    /// Operations that were handed to the ring so far, and how many of them the kernel has heard of
    /// for sure.
    static HANDED: Cell<u64> = const { Cell::new(0) };
    static HEARD: Cell<u64> = const { Cell::new(0) };
}

/// Hands an operation to the ring and waits for it. `held` is all that the entry points to: it
/// stays where it is until the operation is done, even if nobody waits for that any longer.
async fn operation<D: Unpin + 'static>(held: D, entry: squeue::Entry) -> (io::Result<usize>, D) {
    let number = HANDED.get() + 1;
    HANDED.set(number);
    let done = UnsubmittedOneshot::new(held, GiveBack(PhantomData), entry).submit().await;
    // The kernel hears of them in order.
    HEARD.set(HEARD.get().max(number));
    done
}

/// Yields, so that other tasks run and completions are noticed. The ring is told of operations when the
/// thread is about to sleep; a task that is always ready would keep it from that, so it waits for
/// the ring itself if there is something to be told.
async fn pause() {
    if HANDED.get() > HEARD.get() {
        operation((), opcode::Nop::new().build()).await.0.ok();
    } else {
        tokio::task::yield_now().await;
    }
}
