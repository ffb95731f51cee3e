//! Raises the limit on open descriptors. Each connection takes one and each splice pipe two, so the
//! leader raises its soft limit to the hard limit; the low soft limit only protects programs that
//! cannot handle more than 1,024.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// With fewer a leader could not serve: some 20 are its own (the runtime's, the ring's, the
/// spool's), the rest is for peers.
const DESCRIPTORS_MIN: u64 = 64;

/// How many descriptors may be open; `None` if nobody counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors(Option<u64>);

impl Descriptors {
    /// Raises the soft limit to the hard one. An error says what is too little, and what to do.
    pub fn raise() -> Result<Self, String> {
        let limit = getrlimit(Resource::Nofile);
        if limit.current == limit.maximum {
            return Descriptors::judge(limit.current);
        }
        match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        {
            Ok(()) => Descriptors::judge(limit.maximum),
            // Some systems have a limit below the one they tell.
            Err(error) => {
                let now = Descriptors::judge(limit.current)?;
                warn!("cannot raise the limit of open descriptors: {error}; continuing with {now}");
                Ok(now)
            }
        }
    }

    fn judge(limit: Option<u64>) -> Result<Self, String> {
        match limit {
            Some(few) if few < DESCRIPTORS_MIN => Err(format!(
                "this process may open {few} descriptors; a leader needs at least \
                 {DESCRIPTORS_MIN} (one for each connection, and about 20 of its own): raise the \
                 hard limit (ulimit -n, LimitNOFILE=)"
            )),
            enough => Ok(Descriptors(enough)),
        }
    }
}

impl fmt::Display for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(f, "up to {limit} open descriptors"),
            None => f.write_str("any number of open descriptors"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_are_refused_with_the_value_the_limit_and_the_remedy() {
        let refused = Descriptors::judge(Some(DESCRIPTORS_MIN - 1)).unwrap_err();
        for part in ["open 63 ", "at least 64", "ulimit -n", "LimitNOFILE="] {
            assert!(refused.contains(part), "{part} is missing: {refused}");
        }
        let least = Descriptors::judge(Some(DESCRIPTORS_MIN)).unwrap();
        assert_eq!(least.to_string(), "up to 64 open descriptors");
        assert_eq!(Descriptors::judge(None).unwrap().to_string(), "any number of open descriptors");
    }
}
