//! The handler of executables, through the public interface, with real programs (SPEC 1L, C08,
//! C19-C21).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chunking::message::Purpose;
use heft::model::{InputFile, JobRequest, JobResult, JobStatus, JsonModel};
use heft::worker::{
    CancelToken, Content, Exec, ExecConfig, Job, JobContext, Outcome, StopReason, Worker,
    WorkerConfig, Workplace, run_once,
};
use tempfile::TempDir;
use uuid::Uuid;

/// A worker's directories.
struct Bench {
    root: TempDir,
    config: ExecConfig,
    place: Workplace,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let config =
            ExecConfig { exe_dir: dir("exe"), cache_dir: dir("cache"), ..ExecConfig::default() };
        let place = Workplace {
            worker: Uuid::from_u128(77),
            work_dir: dir("jobs"),
            time_limit: Some(Duration::from_secs(20)),
        };
        Bench { root, config, place }
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.config.exe_dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    async fn attempt(&self, request: JobRequest, cancel: CancelToken) -> Outcome {
        let job = Job::new(Uuid::new_v4(), "job.assign.x", request.to_json());
        run_once(Arc::new(Exec::new(self.config.clone())), job, &self.place, cancel).await
    }

    async fn run(&self, request: JobRequest) -> JobResult {
        self.attempt(request, CancelToken::default()).await.result
    }

    async fn script(&self, script: &str) -> JobResult {
        self.program("x", script);
        self.run(request("x")).await
    }
}

fn request(exec_name: &str) -> JobRequest {
    JobRequest { client_id: "c1".into(), exec_name: exec_name.into(), ..JobRequest::default() }
}

fn unpack(result: &JobResult) -> Vec<(String, Vec<u8>)> {
    let Some(bytes) = &result.output_archive else { return Vec::new() };
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    (0..archive.len())
        .map(|index| {
            let mut file = archive.by_index(index).unwrap();
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            (file.name().unwrap().into_owned(), content)
        })
        .collect()
}

/// Waits until a file that a program writes is there with a number in it.
async fn number_in(path: &Path) -> i32 {
    loop {
        match fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()) {
            Some(number) => return number,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Waits until a process has gone; a zombie has.
async fn gone(pid: i32) {
    let dead = || match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    while !dead() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_program_runs_in_its_directory_with_its_arguments_and_inputs() {
    let bench = Bench::new();
    bench.program(
        "calcA.exe",
        r#"cat in.txt data/b.bin; printf ' %s' "$@"; pwd; printf err >&2; [ -f empty ]"#,
    );
    bench.program("calcA", "exit 9");
    let request = JobRequest {
        args: vec!["--mode=fast".into(), "two words".into()],
        files: vec![
            InputFile::inline("in.txt", "hello"),
            InputFile::inline("data/b.bin", "-b"),
            InputFile::inline("empty", ""),
        ],
        ..request("calcA")
    };
    let outcome = bench.attempt(request, CancelToken::default()).await;
    let (result, directory) = (outcome.result, outcome.directory.unwrap());
    assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
    assert_eq!(
        result.stdout,
        format!("hello-b --mode=fast two words{}\n", directory.path().display())
    );
    assert_eq!((result.stderr.as_str(), result.exit_code), ("err", Some(0)));
    assert_eq!((result.client_id.as_str(), result.exec_name.as_str()), ("c1", "calcA"));
    assert_eq!(result.output_archive, None, "the job made nothing");
    assert_eq!(
        directory.path(),
        bench.place.work_dir.join("heft").join(result.job_id.simple().to_string()),
        "C21"
    );
}

#[tokio::test]
async fn wx05_a_missing_program_and_one_that_cannot_be_started_are_handed_back_with_their_paths() {
    let bench = Bench::new();
    let handed_back = async |name: &str| {
        let result = bench.run(request(name)).await;
        assert_eq!(result.status, JobStatus::Cancelled, "{name}: {}", result.stderr);
        assert!(result.no_program && !result.no_room && !result.no_directory, "{name}");
        result.stderr
    };
    let path = bench.path("exe/ghost.exe");
    let said = handed_back("ghost").await;
    assert!(said.starts_with(&format!("Executable not found: {path}")), "{said}");

    let put = |name: &str, content: &str, mode| {
        fs::write(bench.config.exe_dir.join(name), content).unwrap();
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(bench.config.exe_dir.join(name), mode).unwrap();
    };
    put("plain", "text", 0o644);
    let said = handed_back("plain").await;
    assert!(said.contains("is not executable") && said.contains("chmod +x"), "{said}");
    fs::create_dir(bench.config.exe_dir.join("folder")).unwrap();
    assert!(handed_back("folder").await.starts_with("Executable not found"));
    // Its interpreter is not here; its format is of no machine; it is of another machine.
    put("broken", "#!/no/such/interpreter\n", 0o755);
    put("noise", "\u{1}\u{2}", 0o755);
    let mut foreign = fs::read("/proc/self/exe").unwrap();
    foreign.truncate(4_096);
    foreign[18] ^= 0x5a;
    fs::write(bench.config.exe_dir.join("foreign"), foreign).unwrap();
    fs::set_permissions(bench.config.exe_dir.join("foreign"), fs::Permissions::from_mode(0o755))
        .unwrap();
    for name in ["broken", "noise", "foreign"] {
        let said = handed_back(name).await;
        assert!(said.starts_with("Process error: ") && said.contains(&bench.path("exe")), "{said}");
    }
}

#[tokio::test]
async fn wx05_a_program_that_starts_and_says_it_cannot_run_has_a_result() {
    let bench = Bench::new();
    for code in [126, 127] {
        let result = bench.script(&format!("exit {code}")).await;
        assert_eq!((result.status, result.exit_code), (JobStatus::Failed, Some(code)));
        assert!(!result.no_program);
    }
    // Arguments that no system takes are the job's.
    let args = vec!["x".repeat(256 << 10)];
    let result = bench.run(JobRequest { args, ..request("x") }).await;
    assert_eq!(result.status, JobStatus::Failed, "{}", result.stderr);
    assert!(result.stderr.starts_with("Process error: ") && !result.no_program);
}

#[tokio::test]
async fn c20_a_program_is_one_name() {
    let bench = Bench::new();
    bench.program("x", "true");
    for name in ["../exe/x", "/bin/sh", "a/b", "..", "x\0", "..\\x", &"x".repeat(300)] {
        let result = bench.run(request(name)).await;
        assert_eq!(result.status, JobStatus::Failed);
        assert!(result.stderr.starts_with("invalid exec name: "), "{name:?}: {}", result.stderr);
    }
}

#[tokio::test]
async fn c08_inputs_never_leave_the_job_directory() {
    let bench = Bench::new();
    bench.program("x", "echo ran");
    let long = "n".repeat(300);
    for name in
        ["../evil", "a/../../evil", "/etc/passwd", "a\0b", "a\\b", "C:evil", "nul.txt", ".", &long]
    {
        let files = vec![InputFile::inline("ok", "1"), InputFile::inline(name, "evil")];
        let outcome =
            bench.attempt(JobRequest { files, ..request("x") }, CancelToken::default()).await;
        let result = outcome.result;
        assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Failed, ""), "{name:?}");
        assert!(result.stderr.starts_with("invalid file name: \""), "{name:?}: {}", result.stderr);
        let directory = outcome.directory.unwrap();
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            0,
            "names are judged before files are written"
        );
        directory.remove().unwrap();
    }
    assert_eq!(fs::read_dir(bench.place.work_dir.join("heft")).unwrap().count(), 0);
}

#[tokio::test]
async fn wx11_a_cache_id_cannot_name_a_file_outside_of_the_cache() {
    let bench = Bench::new();
    bench.program("x", "cat got");
    fs::write(bench.root.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(bench.root.path(), bench.config.cache_dir.join("up")).unwrap();
    fs::create_dir(bench.config.cache_dir.join("set")).unwrap();
    fs::write(bench.config.cache_dir.join("set/got"), "cached").unwrap();
    for (cache_id, text) in [
        ("/etc/passwd", "invalid cache id: "),
        ("../secret", "invalid cache id: "),
        ("up/secret", "Cache miss: up/secret"),
        ("other", "Cache miss: other"),
    ] {
        let files = vec![InputFile::cached("got", cache_id)];
        let result = bench.run(JobRequest { files, ..request("x") }).await;
        assert_eq!(result.status, JobStatus::Failed);
        assert!(result.stderr.starts_with(text), "{cache_id}: {}", result.stderr);
    }
    let files = vec![InputFile::cached("got", "set")];
    assert_eq!(bench.run(JobRequest { files, ..request("x") }).await.stdout, "cached");
}

#[tokio::test]
async fn wx04_the_archive_holds_what_the_job_made_and_nothing_else() {
    let mut bench = Bench::new();
    let script = "mkdir -p out/deep; echo made > out/deep/a.txt; echo changed > in2; ln -s /etc/passwd link; exit 3";
    bench.program("x", script);
    let files = vec![InputFile::inline("in1", "1"), InputFile::inline("in2", "2")];
    let request = JobRequest { files, ..request("x") };
    let result = bench.run(request.clone()).await;
    assert_eq!((result.status.clone(), result.exit_code), (JobStatus::Failed, Some(3)));
    assert!(result.stderr.contains("exit code 3"), "{}", result.stderr);
    let made = [
        ("in2".to_owned(), b"changed\n".to_vec()),
        ("out/deep/a.txt".to_owned(), b"made\n".to_vec()),
    ];
    assert_eq!(unpack(&result), made);

    bench.config.zip_all = true;
    let result = bench.run(request).await;
    let names: Vec<String> = unpack(&result).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["in1", "in2", "out/deep/a.txt", "x"]);
}

#[tokio::test]
async fn an_archive_too_large_for_a_result_is_a_file_beside_the_directory_and_bounded() {
    let mut bench = Bench::new();
    bench.program("x", "head -c 5000000 /dev/urandom > big; echo fine");
    let outcome = bench.attempt(request("x"), CancelToken::default()).await;
    assert_eq!(
        (&outcome.result.status, outcome.result.stdout.as_str()),
        (&JobStatus::Ok, "fine\n")
    );
    assert_eq!((&outcome.result.output_archive, outcome.result.archive_lost), (&None, None));
    let Some(Content::File(path)) = outcome.attached(Purpose::Archive).cloned() else {
        panic!("{outcome:?}")
    };
    let mut archive = zip::ZipArchive::new(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(archive.by_name("big").unwrap().size(), 5_000_000);
    let directory = outcome.directory.unwrap();
    assert!(!path.starts_with(directory.path()), "not in the folder that it packs");
    directory.remove().unwrap();
    assert_eq!(
        fs::read_dir(bench.place.work_dir.join("heft")).unwrap().count(),
        0,
        "it goes with the directory"
    );

    bench.config.archive_bytes_max = 4_500_000;
    let outcome = bench.attempt(request("x"), CancelToken::default()).await;
    let result = &outcome.result;
    assert_eq!((&result.output_archive, outcome.attached(Purpose::Archive)), (&None, None));
    assert_eq!(result.archive_lost, Some(5_000_000));
    assert!(result.stderr.contains("made 5000000 bytes in 1 files"), "{}", result.stderr);
    assert!(result.stderr.contains("limit of 4500000 bytes"), "{}", result.stderr);
}

#[tokio::test]
async fn wx11_a_flood_on_stderr_blocks_nothing_and_is_bounded() {
    let mut bench = Bench::new();
    bench.program(
        "x",
        "head -c 10485760 /dev/zero | tr '\\0' e >&2; echo out; head -c 99 /dev/zero >&2",
    );
    let kept = bench.config.stderr_bytes_max;
    for (file_max, note) in [
        (10_485_859, ""),
        (2_000_000, "\nheft: stderr had 10485859 bytes; the first 2000000 are kept\n"),
    ] {
        bench.config.output_bytes_max = file_max;
        let outcome = bench.attempt(request("x"), CancelToken::default()).await;
        let result = &outcome.result;
        assert_eq!((&result.status, result.stdout.as_str()), (&JobStatus::Ok, "out\n"));
        assert!(result.stderr.bytes().take(kept).all(|byte| byte == b'e'));
        assert_eq!(result.stderr.get(kept..), Some(note));
        let Some(Content::File(path)) = outcome.attached(Purpose::Stderr) else {
            panic!("{outcome:?}")
        };
        let whole = fs::read(path).unwrap();
        assert_eq!(whole.len() as u64, file_max, "all of it, from its beginning");
        assert!(whole.iter().take(10_485_760).all(|byte| *byte == b'e'));
        assert_eq!(outcome.attached(Purpose::Stdout), None);
    }
}

#[tokio::test]
async fn output_that_is_no_utf8_is_replaced() {
    let bench = Bench::new();
    let result = bench.script(r"printf 'a\377b'; printf '\200' >&2").await;
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("a\u{fffd}b", "\u{fffd}"));
}

#[tokio::test]
async fn a_signal_death_is_said() {
    let bench = Bench::new();
    let result = bench.script("kill -9 $$").await;
    assert_eq!((result.status, result.exit_code), (JobStatus::Failed, None));
    assert!(result.stderr.contains("ended by signal 9"), "{}", result.stderr);
    assert_eq!((result.exit_code, result.signal, result.timed_out_ms), (None, Some(9), None));
}

#[tokio::test]
async fn a_program_reads_nothing_from_its_standard_input() {
    let bench = Bench::new();
    assert_eq!(bench.script("cat; echo end").await.stdout, "end\n");
}

#[tokio::test]
async fn a_job_that_hangs_is_killed_at_its_time_limit_with_all_it_started() {
    let bench = Bench::new();
    let pid_file = bench.path("pid");
    bench.program("x", &format!("sleep 600 & echo $! > {pid_file}; echo begun; sleep 600"));
    let limited = JobRequest { time_limit_ms: Some(300), ..request("x") };
    let result = bench.run(limited).await;
    // Its worker ended it, and that is no signal of its own.
    assert_eq!((result.exit_code, result.signal, result.timed_out_ms), (None, None, Some(300)));
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Failed, "begun\n"));
    assert!(
        result.stderr.starts_with("stopped: the job ran longer than its time limit of 300ms"),
        "{}",
        result.stderr
    );
    gone(number_in(Path::new(&pid_file)).await).await;
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_pipes_does_not_hold_the_job_and_is_killed() {
    let bench = Bench::new();
    let pid_file = bench.path("pid");
    let result = bench.script(&format!("sleep 600 & echo $! > {pid_file}; echo parent")).await;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Ok, "parent\n"));
    gone(number_in(Path::new(&pid_file)).await).await;
}

#[tokio::test]
async fn a_grandchild_that_left_the_group_does_not_hold_the_job_either() {
    let bench = Bench::new();
    let pid_file = bench.path("pid");
    // Its shell has gone on only when the grandchild has left the group and said so.
    let script = format!(
        "setsid sh -c 'echo $$ > {pid_file}; exec sleep 600' & while [ ! -s {pid_file} ]; do sleep 0.01; done; echo parent"
    );
    let result = bench.script(&script).await;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Ok, "parent\n"));
    assert!(result.stderr.contains("still held open"), "{}", result.stderr);
    let pid = rustix::process::Pid::from_raw(number_in(Path::new(&pid_file)).await).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn cancel_kills_the_whole_group_and_says_who_asked() {
    let bench = Bench::new();
    let pid_file = bench.path("pid");
    bench.program("x", &format!("echo begun; sleep 600 & echo $! > {pid_file}; wait"));
    let cancel = CancelToken::default();
    let asked = async {
        let pid = number_in(Path::new(&pid_file)).await;
        cancel.cancel(StopReason::Cancelled { text: "by clientA".into() });
        pid
    };
    let (outcome, pid) = tokio::join!(bench.attempt(request("x"), cancel.clone()), asked);
    gone(pid).await;
    assert_eq!(
        (outcome.result.status, outcome.result.stdout.as_str()),
        (JobStatus::Cancelled, "begun\n")
    );
    assert!(
        outcome.result.stderr.starts_with("cancelled: by clientA\n"),
        "{}",
        outcome.result.stderr
    );
}

#[tokio::test]
async fn dropping_an_attempt_kills_its_group() {
    let bench = Bench::new();
    let pid_file = bench.path("pid");
    bench.program("x", &format!("sleep 600 & echo $! > {pid_file}; wait"));
    let pid = tokio::select! {
        _ = bench.attempt(request("x"), CancelToken::default()) => panic!("it sleeps"),
        pid = number_in(Path::new(&pid_file)) => pid,
    };
    gone(pid).await;
}

#[tokio::test]
async fn a_launched_program_is_the_same_as_one_started_directly() {
    let mut bench = Bench::new();
    bench.program(
        "x",
        r#"cat; printf '<%s>' "$@"; echo "$0" err >&2; cut -d' ' -f5 /proc/$$/stat > group; echo $$ > pid; exit 3"#,
    );
    fs::write(bench.config.exe_dir.join("broken"), "#!/no/such/interpreter\n").unwrap();
    fs::write(bench.config.exe_dir.join("noise"), "\u{1}\u{2}").unwrap();
    for name in ["broken", "noise"] {
        fs::set_permissions(bench.config.exe_dir.join(name), fs::Permissions::from_mode(0o755))
            .unwrap();
    }
    let args = ["--", "-h", "--help", "", "two words", "--", "ü"].map(String::from).to_vec();
    let mut seen = Vec::new();
    for launcher in [None, Some(env!("CARGO_BIN_EXE_heft").into())] {
        bench.config.launcher = launcher;
        let result = bench.run(JobRequest { args: args.clone(), ..request("x") }).await;
        let files = unpack(&result);
        let text = |at: usize| String::from_utf8_lossy(&files[at].1).trim().to_owned();
        assert_eq!((files.len(), text(0)), (2, text(1)), "it leads its own group");
        let broken = bench.run(request("broken")).await;
        let noise = bench.run(request("noise")).await;
        assert!(broken.stderr.starts_with("Process error: "), "{}", broken.stderr);
        assert!(noise.stderr.starts_with("Process error: "), "{}", noise.stderr);
        seen.push((
            result.stdout,
            result.stderr,
            result.exit_code,
            broken.stderr,
            noise.stderr,
            noise.exit_code,
        ));
    }
    assert_eq!(seen[0].0, "<--><-h><--help><><two words><--><ü>");
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_launched_program_is_stopped_with_its_group() {
    let mut bench = Bench::new();
    bench.config.launcher = Some(env!("CARGO_BIN_EXE_heft").into());
    let pid_file = bench.path("pid");
    bench.program("x", &format!("sleep 600 & echo $! > {pid_file}; echo begun; sleep 600"));
    let result = bench.run(JobRequest { time_limit_ms: Some(1000), ..request("x") }).await;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Failed, "begun\n"));
    gone(number_in(Path::new(&pid_file)).await).await;
}

#[tokio::test]
async fn a_program_ends_with_a_worker_that_is_killed() {
    let leader = procs::Leader::start(&[]);
    let script = r#"echo $$ > "$(dirname "$0")/pid"; exec sleep 600"#;
    let mut worker = procs::Worker::start(leader.port, &[("sleeper", script)], &[]);
    let addr = leader.addr();
    let args = ["submit", addr.as_str(), "sleeper"];
    let mut submit = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    let _submit = procs::Proc::start("heft submit", submit.args(args));
    let limit = Duration::from_secs(60);
    let pid = tokio::time::timeout(limit, number_in(&worker.dir.join("exe/pid")))
        .await
        .expect("it starts");
    worker.proc.kill();
    tokio::time::timeout(limit, gone(pid)).await.expect("it is killed");
}

#[tokio::test]
async fn a_job_whose_directory_cannot_be_made_is_handed_back_with_the_reason() {
    let bench = Bench::new();
    bench.program("x", "echo ran");
    // The job directory cannot be made: the work directory has gone.
    fs::remove_dir(&bench.place.work_dir).unwrap();
    let result = bench.run(request("x")).await;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Cancelled, ""));
    assert!(result.no_room && result.no_directory);
    assert!(result.stderr.contains("cannot make the job directory"), "{}", result.stderr);
}

#[tokio::test]
async fn m19_a_raw_job_is_not_for_programs_and_one_that_panics_fails_alone() {
    let bench = Bench::new();
    let raw = || Job::new(Uuid::new_v4(), "job.assign.default", &b"\xff raw bytes"[..]);
    let exec = Arc::new(Exec::new(bench.config.clone()));
    let result = run_once(exec, raw(), &bench.place, CancelToken::default()).await.result;
    assert!(result.stderr.contains("the job is not a JobRequest"), "{}", result.stderr);

    let upper = |job: Job, _| async move {
        JobResult { stdout: format!("{} bytes", job.payload.len()), ..job.result(JobStatus::Ok) }
    };
    let result =
        run_once(Arc::new(upper), raw(), &bench.place, CancelToken::default()).await.result;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Ok, "11 bytes"));

    let panics = |job: Job, _| async move {
        assert!(job.payload.is_empty(), "as the test wants");
        job.result(JobStatus::Ok)
    };
    let result =
        run_once(Arc::new(panics), raw(), &bench.place, CancelToken::default()).await.result;
    assert_eq!(result.status, JobStatus::Failed);
    assert!(result.stderr.contains("panicked"), "{}", result.stderr);
}

#[test]
fn a_worker_does_not_start_where_its_jobs_could_have_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        WorkerConfig { work_dir: dir.path().to_owned(), ..WorkerConfig::new("127.0.0.1:1") };
    let open = || {
        Worker::new(
            config.clone(),
            |job: Job, _: JobContext| async move { job.result(JobStatus::Ok) },
        )
    };
    fs::write(dir.path().join("heft"), b"in the way").unwrap();
    let error = open().err().unwrap().to_string();
    assert!(
        error.contains("/heft is not a directory") && error.contains("another work directory"),
        "{error}"
    );
    fs::remove_file(dir.path().join("heft")).unwrap();
    open().unwrap();
}

#[test]
fn two_workers_with_one_id_do_not_share_the_results_that_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let config = WorkerConfig {
        work_dir: dir.path().to_owned(),
        keep_results: true,
        ..WorkerConfig::new("127.0.0.1:1")
    };
    let open = |config: &WorkerConfig| {
        Worker::new(
            config.clone(),
            |job: Job, _: JobContext| async move { job.result(JobStatus::Ok) },
        )
    };
    let first = open(&config).unwrap();
    let error = open(&config).err().unwrap().to_string();
    for part in [&config.id.to_string(), "is running", "--id", "--work-dir"] {
        assert!(error.contains(part), "{error}");
    }
    open(&WorkerConfig { id: Uuid::new_v4(), ..config.clone() }).unwrap();
    drop(first);
    open(&config).unwrap();
}
