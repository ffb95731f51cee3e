//! Builds a program's environment: a few of the worker's variables that programs need, those
//! allowed by `--pass-env`, and facts about the job. The rest of the worker's environment, with any
//! secrets in it, is withheld from jobs.

use std::ffi::OsString;
use std::path::Path;

use thiserror::Error;

use crate::worker::handler::Job;

/// What every program gets of the worker's own environment, where it is set.
pub const PASSED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Where programs look for others if the worker has no PATH.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Names that say what the job is; they are not the worker's to pass on.
const OWN: [&str; 6] =
    ["TMPDIR", "HEFT_JOB_ID", "HEFT_ATTEMPT", "HEFT_CLIENT", "HEFT_EXEC", "HEFT_WORKER"];

/// A name that cannot be passed on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PassError {
    /// It is none.
    #[error(
        "\"{0}\" is not a name of a variable: give the name alone, and set its value in the worker's environment"
    )]
    NoName(
        /// What was given.
        String,
    ),
    /// Every job has one of its own.
    #[error("{0} cannot be passed on: each job gets its own")]
    Own(String),
}

/// Checks the name of a variable that is to be passed on.
pub fn check_passed(name: &str) -> Result<(), PassError> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(PassError::NoName(name.to_owned()));
    }
    if OWN.contains(&name) {
        return Err(PassError::Own(name.to_owned()));
    }
    Ok(())
}

/// What a program gets. `passed` are names beyond [`PASSED`]; what the worker does not have is left
/// out.
pub(super) fn of_job(
    job: &Job,
    worker: uuid::Uuid,
    temporary: &Path,
    passed: &[String],
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, OsString)> {
    let (client, exec) = match &job.request {
        Ok(request) => (request.client_id.as_str(), request.exec_name.as_str()),
        Err(_) => ("", ""),
    };
    let own: [OsString; 6] = [
        temporary.into(),
        job.id.to_string().into(),
        job.attempt.to_string().into(),
        printable(client).into(),
        printable(exec).into(),
        worker.to_string().into(),
    ];
    let path = ("PATH".to_owned(), PATH_DEFAULT.into());
    let of_worker = PASSED.into_iter().chain(passed.iter().map(String::as_str));
    std::iter::once(path)
        .chain(of_worker.filter_map(|name| Some((name.to_owned(), lookup(name)?))))
        .chain(OWN.into_iter().map(str::to_owned).zip(own))
        .collect()
}

/// The system takes no NUL in a variable. Without it the name could be another's, so something
/// stands in its place.
fn printable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use uuid::Uuid;

    use super::*;

    fn environment(passed: &[&str], of_worker: &[(&str, &str)]) -> BTreeMap<String, OsString> {
        let payload = r#"{"JobId":"00000000-0000-0000-0000-000000000007","ClientId":"a\u0000b","ExecName":"calc"}"#;
        let job = Job { attempt: 3, ..Job::new(Uuid::from_u128(7), "job.assign.calc", payload) };
        let of_worker: BTreeMap<_, _> = of_worker.iter().copied().collect();
        let passed: Vec<_> = passed.iter().map(|name| (*name).to_owned()).collect();
        let lookup = |name: &str| of_worker.get(name).map(OsString::from);
        of_job(&job, Uuid::from_u128(9), Path::new("/jobs/7.out/tmp"), &passed, lookup)
            .into_iter()
            .collect()
    }

    #[test]
    fn a_program_gets_what_it_needs_and_nothing_else_of_the_worker() {
        let of_worker = [
            ("PATH", "/bin"),
            ("HOME", "/root"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("LICENSE", "x"),
        ];
        let got = environment(&["LICENSE", "MISSING"], &of_worker);
        let expected = [
            ("HEFT_ATTEMPT", "3"),
            ("HEFT_CLIENT", "a\u{fffd}b"),
            ("HEFT_EXEC", "calc"),
            ("HEFT_JOB_ID", "00000000-0000-0000-0000-000000000007"),
            ("HEFT_WORKER", "00000000-0000-0000-0000-000000000009"),
            ("HOME", "/root"),
            ("LICENSE", "x"),
            ("PATH", "/bin"),
            ("TMPDIR", "/jobs/7.out/tmp"),
        ];
        assert!(
            got.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).eq(expected),
            "{got:?}"
        );
        assert_eq!(environment(&[], &[])["PATH"], PATH_DEFAULT);
    }

    #[test]
    fn names_that_cannot_be_passed_on_are_refused_with_the_reason() {
        for name in ["", "A=b", "a\0"] {
            assert_eq!(check_passed(name), Err(PassError::NoName(name.to_owned())));
        }
        assert!(check_passed("TMPDIR").unwrap_err().to_string().contains("each job gets its own"));
        assert_eq!(check_passed("LC_ALL"), Ok(()));
    }
}
