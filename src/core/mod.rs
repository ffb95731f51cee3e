//! The broker's own rules, free of I/O: no clock, socket, file, thread or random number in here.

pub mod retry;
pub mod subject;
