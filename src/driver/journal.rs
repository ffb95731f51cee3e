//! The log thread. Writes that arrive during a sync wait and go into the next write together.
//! Snapshots are made by threads of their own.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::store::format::StoreError;
use crate::store::journal::{Journal, LogDone, LogOp};
use crate::store::snapshot::Report;

/// A disk that took nothing is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct LogThread {
    messages: mpsc::Sender<Message>,
    thread: Option<JoinHandle<()>>,
}

enum Message {
    Do(Box<LogOp>),
    /// A snapshot was made.
    Made(Result<Option<Report>, StoreError>),
    /// Nothing more comes.
    Stop,
}

impl LogThread {
    /// Starts it. Outcomes go to `done`, on that thread.
    pub(super) fn start(
        journal: Journal,
        done: impl Fn(LogDone) + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, queue) = mpsc::channel();
        let back = messages.clone();
        let builder = std::thread::Builder::new().name("log".to_owned());
        let thread = builder.spawn(move || work(journal, &queue, &back, &done))?;
        Ok(LogThread { messages, thread: Some(thread) })
    }

    /// Does it, after what was said before.
    pub(super) fn execute(&self, operation: LogOp) {
        self.messages.send(Message::Do(Box::new(operation))).ok();
    }
}

impl Drop for LogThread {
    /// Waits until all is written. A snapshot that is being made is not waited for: the log has
    /// everything.
    fn drop(&mut self) {
        self.messages.send(Message::Stop).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn work(
    mut journal: Journal,
    queue: &mpsc::Receiver<Message>,
    back: &mpsc::Sender<Message>,
    done: &dyn Fn(LogDone),
) {
    let started = Instant::now();
    let clock = || u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut stops = false;
    while !stops {
        let first = match journal.is_stuck() {
            true => match queue.recv_timeout(RETRY_AFTER) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            },
            false => match queue.try_recv().or_else(|_| {
                journal.rest();
                queue.recv()
            }) {
                Ok(message) => Some(message),
                Err(_) => return,
            },
        };
        let mut operations = Vec::new();
        for message in first.into_iter().chain(queue.try_iter()) {
            match message {
                Message::Do(operation) => operations.push(*operation),
                Message::Made(made) => journal.snapshot_made(made).into_iter().for_each(done),
                Message::Stop => stops = true,
            }
        }
        for outcome in journal.run(operations, &clock) {
            done(outcome);
        }
        if let Some(job) = journal.snapshot_due().filter(|_| !stops) {
            let back = back.clone();
            let builder = std::thread::Builder::new().name("snapshot".to_owned());
            let spawned =
                builder.spawn(move || back.send(Message::Made(job.make())).unwrap_or_default());
            if let Err(error) = spawned {
                tracing::warn!("no thread for a snapshot: {error}");
                journal.snapshot_made(Ok(None));
            }
        }
    }
    journal.rest();
}
