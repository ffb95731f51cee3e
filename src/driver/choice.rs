//! Chooses the driver: what the operator asked for, and what the system allows.

use std::fmt;
use std::future::Future;
use std::io;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::hub::{self, Options};
use super::pipes;
use super::portable::TokioSocket;
use super::storage::Prepared;
use super::uring::probe::{Ring, probe};
use super::uring::{self, RingSocket};

/// What an operator wants (`--driver`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring where it can be had, else portable.
    #[default]
    Auto,
    /// io_uring, or nothing.
    Uring,
    /// The one that runs everywhere.
    Portable,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Auto => "auto",
            Choice::Uring => "uring",
            Choice::Portable => "portable",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable,
    Uring(Ring),
}

/// The driver that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    kind: Kind,
    found: String,
}

impl Driver {
    /// Looks what can be had, and chooses. An error says what is missing, and what to do.
    pub fn choose(choice: Choice) -> Result<Self, String> {
        Driver::judge(choice, || probe().map(Kind::Uring))
    }

    fn judge(choice: Choice, probe: impl FnOnce() -> Result<Kind, String>) -> Result<Self, String> {
        let (kind, found) = match choice {
            Choice::Portable => (Kind::Portable, "as asked for".to_owned()),
            Choice::Auto | Choice::Uring => match probe() {
                Ok(kind) => (kind, "io_uring is there, with all operations".to_owned()),
                Err(why) if choice == Choice::Auto => (Kind::Portable, why),
                Err(why) => {
                    return Err(format!(
                        "--driver uring is unavailable: {why}; or use --driver portable"
                    ));
                }
            },
        };
        Ok(Driver { kind, found })
    }

    /// Its name, as `--driver` has it.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Portable => "portable",
            Kind::Uring(_) => "uring",
        }
    }

    /// Runs a future on one thread, with all that it spawns there.
    pub fn run<F: Future>(&self, future: F) -> io::Result<F::Output> {
        match self.kind {
            Kind::Portable => {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                Ok(builder.enable_all().build_local(Default::default())?.block_on(future))
            }
            Kind::Uring(ring) => uring::run(ring.quiet, future),
        }
    }

    /// Serves until `stop` is notified, then lets running jobs end for as long as the options say.
    /// Only within [`Driver::run`].
    pub async fn serve(
        &self,
        listener: TcpListener,
        prepared: Prepared,
        options: Options,
        stop: Rc<Notify>,
    ) -> io::Result<()> {
        match self.kind {
            Kind::Portable => hub::serve::<TokioSocket>(listener, prepared, options, stop).await,
            Kind::Uring(_) => hub::serve::<RingSocket>(listener, prepared, options, stop).await,
        }
    }
}

/// What was found, and what is run.
impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "driver {}: {}; ", self.name(), self.found)?;
        match pipes::look() {
            Ok(bytes) => write!(f, "splice path with pipes of {} KiB", bytes / 1024),
            Err(why) => write!(f, "no splice path, chunks go by buffers ({why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_falls_back_and_says_why_and_uring_refuses_with_the_remedy() {
        let no = || Err("io_uring is forbidden here: allow it (EPERM)".to_owned());
        let auto = Driver::judge(Choice::Auto, no).unwrap();
        assert_eq!(auto.name(), "portable");
        assert!(auto.to_string().contains("driver portable: io_uring is forbidden here"), "{auto}");
        let error = Driver::judge(Choice::Uring, no).unwrap_err();
        assert!(error.contains("EPERM") && error.contains("--driver portable"), "{error}");
        let asked = Driver::judge(Choice::Portable, || panic!("nobody looks")).unwrap();
        assert!(asked.to_string().starts_with("driver portable: as asked for; "), "{asked}");
    }
}
