//! Waits until a socket is readable or writable.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;

use io_uring::{opcode, types};
use rustix::event::PollFlags;
use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::operation;

/// One kind of readiness of one socket, for any number of tasks that wait for it.
pub(super) struct Ready {
    fd: Rc<OwnedFd>,
    flags: PollFlags,
    asked: Cell<bool>,
    came: Notify,
}

impl Ready {
    pub(super) fn new(fd: Rc<OwnedFd>, flags: PollFlags) -> Rc<Self> {
        Rc::new(Ready { fd, flags, asked: Cell::default(), came: Notify::new() })
    }

    /// Waits for it, or for the end of the connection. May be dropped: the question stays with the
    /// ring, and its answer is for whoever waits then.
    pub(super) async fn wait(self: &Rc<Self>) {
        let mut came = pin!(self.came.notified());
        came.as_mut().enable();
        if !self.asked.replace(true) {
            let ready = self.clone();
            spawn_local(async move {
                let fd = types::Fd(ready.fd.as_raw_fd());
                let entry = opcode::PollAdd::new(fd, u32::from(ready.flags.bits())).build();
                // What is wrong is told by whoever reads or writes next.
                let (_, ready) = operation(ready, entry).await;
                ready.asked.set(false);
                ready.came.notify_waiters();
            });
        }
        came.await;
    }
}
