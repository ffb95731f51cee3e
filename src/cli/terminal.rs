//! What is known of the terminal, if there is one.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

/// Whether colours are wanted on standard error: it is a terminal, and NO_COLOR is not set.
pub(crate) fn has_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

/// How many characters fit a line of the terminal behind this output.
pub(crate) fn columns(out: &(impl AsFd + IsTerminal)) -> Option<usize> {
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    // Some terminals do not know.
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
