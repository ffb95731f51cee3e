//! Where and from what a report was made.

use std::process::Command;

use serde_json::{Value, json};

/// The machine and the build.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// The command line.
    pub(super) command: String,
    /// With a `+` behind it if the tree held changes that are in no commit.
    pub(super) commit: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) cores: Option<usize>,
    pub(super) cpu: Option<String>,
}

impl Machine {
    pub(crate) fn of_this_run() -> Machine {
        let words = std::iter::once("heft-bench".to_owned()).chain(std::env::args().skip(1));
        let read = |path| std::fs::read_to_string(path).ok();
        Machine {
            command: words.collect::<Vec<_>>().join(" "),
            commit: commit(),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            cpu: read("/proc/cpuinfo").as_deref().and_then(model),
        }
    }

    /// A report with where it comes from.
    pub(super) fn add_to(&self, mut report: Value) -> Value {
        if let Some(members) = report.as_object_mut() {
            members.insert("command".to_owned(), json!(self.command));
            members.insert("commit".to_owned(), json!(self.commit));
            members.insert("kernel".to_owned(), json!(self.kernel));
            members.insert("cores".to_owned(), json!(self.cores));
            members.insert("cpu".to_owned(), json!(self.cpu));
            members.insert("debug_build".to_owned(), json!(cfg!(debug_assertions)));
        }
        report
    }

    pub(super) fn line(&self) -> String {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
        format!(
            "{} cores, {}, kernel {}, commit {}",
            self.cores.unwrap_or_default(),
            known(&self.cpu),
            known(&self.kernel),
            known(&self.commit)
        )
    }
}

fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let out = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR")])
            .args(words)
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|text| !text.is_empty());
    Some(if changed { format!("{commit}+") } else { commit })
}

fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named() {
        assert_eq!(
            model("processor\t: 0\nmodel name\t: A  B\nflags : x\n"),
            Some("A  B".to_owned())
        );
        assert_eq!(model("nothing"), None);
        assert!(Machine::of_this_run().command.starts_with("heft-bench"));
    }
}
