//! Looks up the host of a leader's address.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::sync::oneshot;

/// The addresses behind `host:port`. The system's resolver may take long and cannot be stopped: it
/// runs on a thread of its own, which nobody waits for if this is dropped.
pub async fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(known) = address.parse() {
        return Ok(vec![known]);
    }
    let (found, wait) = oneshot::channel();
    let asked = address.to_owned();
    std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let addresses = asked.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        found.send(addresses).ok();
    })?;
    let gone = || io::Error::other("the resolver ended without an answer");
    let addresses = wait.await.map_err(|_| gone())??;
    match addresses.is_empty() {
        true => Err(io::Error::other("the host name has no address")),
        false => Ok(addresses),
    }
}

/// Whether an error of [`look_up`] says that there is no such host, and not that it could not be
/// asked for now.
pub fn is_unknown_host(error: &io::Error) -> bool {
    let text = error.to_string();
    // The standard library gives the resolver's words alone: glibc's, then musl's.
    let for_now = ["Temporary failure in name resolution", "Try again"];
    text.starts_with("failed to lookup address information")
        && !for_now.iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn numbers_are_taken_as_they_are_and_names_are_looked_up() {
        assert_eq!(look_up("[::1]:5").await.unwrap(), ["[::1]:5".parse().unwrap()]);
        let found = look_up("localhost:5000").await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
    }

    #[test]
    fn a_resolver_that_cannot_be_asked_now_says_nothing_about_the_host() {
        let error = |words: &str| {
            io::Error::other(format!("failed to lookup address information: {words}"))
        };
        assert!(is_unknown_host(&error("Name or service not known")));
        assert!(is_unknown_host(&error("No address associated with hostname")));
        assert!(!is_unknown_host(&error("Temporary failure in name resolution")));
        assert!(!is_unknown_host(&error("Try again")));
        assert!(!is_unknown_host(&io::ErrorKind::ConnectionRefused.into()));
    }
}
