//! What a terminal shows that a pipe does not.

use super::{JOB, answer_to, beside, serve, serve_with};
use crate::command::{Ended, end, heft, until_closed};
use crate::leader::{FakeLeader, ok};
use crate::procs::root;
use chunking::message::{Progress, Stage, Standing};
use serde_json::{Value, json};
use tokio::process::Command;
use unicode_width::UnicodeWidthStr;

/// The command on a terminal of so many columns; what the terminal got is its standard output.
fn on_terminal(columns: u32, line: &[&str]) -> Command {
    let hygienic = heft(&[]);
    let mut command = Command::new("python3");
    command.arg("-S").arg(root().join("tests/support/terminal.py")).arg(columns.to_string());
    command.arg(env!("CARGO_BIN_EXE_heft")).args(line).kill_on_drop(true);
    for (name, value) in hygienic.as_std().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(std::process::Stdio::null());
    command
}

async fn shown(leader: &FakeLeader, columns: u32, line: &[&str]) -> Vec<String> {
    let ended = beside(on_terminal(columns, line), serve(leader)).await;
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    ended.out.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[tokio::test]
async fn a_table_is_as_wide_as_the_terminal_and_whole_in_a_pipe() {
    let leader = FakeLeader::start().await;
    let line = ["dlq", "ls", "-l", &leader.address];
    let piped: Ended = beside(heft(&line), serve(&leader)).await;
    let whole: Vec<&str> = piped.out.lines().collect();
    assert_eq!(whole.len(), 2, "{}", piped.out);
    let width = whole[1].chars().count();
    assert!((120..200).contains(&width), "the test needs a line of such a length: {width}");
    assert_eq!(shown(&leader, 200, &line).await, whole, "there is room for all");
    let frame = |lines: &[String]| lines.join("\n");
    let at_120 = shown(&leader, 120, &line).await;
    assert!(at_120.iter().all(|line| line.chars().count() <= 120), "{}", frame(&at_120));
    assert!(
        at_120[1].contains('…') && at_120[1].ends_with("the worker was lost"),
        "{}",
        frame(&at_120)
    );
    let at_80 = shown(&leader, 80, &line).await;
    let expected = "\
JOB                                   CLIENT           EXEC  AGE  REASON
9aa6c89e-47e7-42c8-89ff-18edee83e619  submit-b127d78…  slow   3s  the worker wa…";
    assert_eq!(frame(&at_80), expected);
    // What a row is called by is never cut; columns for which there is no room are left out.
    let at_60 = shown(&leader, 60, &line).await;
    let expected = "\
JOB                                   EXEC  REASON
9aa6c89e-47e7-42c8-89ff-18edee83e619  slow  the worker was …";
    assert_eq!(frame(&at_60), expected);
    let at_40 = shown(&leader, 40, &line).await;
    assert_eq!(frame(&at_40), "JOB\n9aa6c89e-47e7-42c8-89ff-18edee83e619");
}

/// What a leader answers that has much to say.
fn wordy(verb: &str) -> Value {
    let mut answer = answer_to(verb);
    let worker = "00000000-0000-0000-0000-000000000001";
    match verb {
        "status" | "status.page" => {
            let row = &mut answer["workers"][0];
            row["name"] = json!("render-host-17.example");
            row["credit"] = json!(1024);
            row["cpu_permille"] = json!(1000);
            row["programs"] = json!(["calcA", "処理"]);
            row["patterns"] = json!(["job.assign.calcA", "job.assign.common.>"]);
            answer["leader"]["draining"] = json!(true);
            answer["leader"]["disk_trouble"] =
                json!("2 large files wait for room, the first of 7 GiB");
            answer["queues"] = json!([{"key": "job.assign.calcA", "queued": 1_234_567}]);
        }
        "job.ls" => {
            let row = answer["jobs"][0].clone();
            let rows = answer["jobs"].as_array_mut().unwrap();
            rows.push(row.clone());
            rows[1]["state"] = json!("running");
            rows[1]["uploading"] = json!(true);
            rows[1]["exec"] = json!("処理プログラム");
            rows[1]["worker_name"] = json!("render-host-17.example");
        }
        "job.show" => {
            answer["why"] = json!(
                "no worker has calcA: host-1 lacks it, host-2 lacks it, and there is no other"
            );
            answer["tag"] = json!("two\nlines");
            let attempt = &mut answer["attempts"][0];
            attempt["worker_name"] = json!("render-host-17.example");
            attempt["why"] = json!("its worker was lost in the middle of the attempt");
        }
        "explain" => {
            let row = |id: &str, verdict: &str, text: &str| {
                json!({"id": id, "name": "render-host-17.example", "verdict": verdict, "text": text,
                       "missing_bytes": 7_500_000_000_u64, "running": 12, "credit": 1024})
            };
            answer["phase"] = json!("queued");
            answer["ahead"] = json!(2);
            answer["waits"] = json!({"for": "data", "text": "render-host-17.example, which gets the dataset models-v2",
                                     "waited_ms": 1_500});
            answer["workers"] = json!([
                row(worker, "best", "the dataset is coming, 7 GiB of 40 GiB are there"),
                row(
                    "00000000-0000-0000-0000-000000000002",
                    "no-match",
                    "its patterns do not match"
                ),
            ]);
        }
        _ => {}
    }
    answer
}

/// What a command shows on a terminal of so many columns with that leader.
async fn wordy_shown(leader: &FakeLeader, columns: u32, line: &str) -> String {
    let line: Vec<&str> = line.split(' ').chain(["-l", &leader.address]).collect();
    let ended = beside(on_terminal(columns, &line), serve_with(leader, wordy)).await;
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    let lines: Vec<&str> = ended.out.lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[tokio::test]
async fn no_line_is_wider_than_the_terminal_and_a_pipe_has_all_columns() {
    let leader = FakeLeader::start().await;
    for line in [
        &format!("job show {JOB}"),
        &format!("explain {JOB}"),
        "workers ls",
        "workers show 00000000-0000-0000-0000-000000000001",
        "clients ls",
        "queue ls",
        "job ls",
        "status",
        "blob ls",
        "dlq ls",
        &format!("dlq show {JOB}"),
        "dataset ls",
        "dataset status models",
    ] {
        for columns in [40, 80, 200] {
            let shown = wordy_shown(&leader, columns, line).await;
            let columns = usize::try_from(columns).unwrap();
            let wide = shown.lines().find(|line| line.width() > columns);
            // A row is called by its first word, and no word is broken.
            let is_word = |line: &str| line.split_whitespace().count() <= 2 && columns == 40;
            assert!(wide.is_none_or(is_word), "{line} at {columns}: {wide:?}\n{shown}");
        }
        let words: Vec<&str> = line.split(' ').chain(["-l", &leader.address]).collect();
        let piped = beside(heft(&words), serve_with(&leader, wordy)).await;
        assert!(!piped.out.contains('…'), "{line}: {}", piped.out);
    }
}

#[tokio::test]
async fn a_narrow_terminal_shows_the_columns_that_matter_most() {
    let leader = FakeLeader::start().await;
    let workers = "\
WORKER                                NAME                    RUNNING  CONNECTED
00000000-0000-0000-0000-000000000001  render-host-17.example        1  yes
        worker render-host-17.example (00000000-0000-0000-0000-000000000001)
        lacks the program calcB (returned a job 5s ago): Executable not found:
        /opt/grid/exe/calcB.exe
        worker render-host-17.example (00000000-0000-0000-0000-000000000001)
        FAILS MORE THAN OTHERS: 6 of the last 9 jobs of calcA failed there (66
        %), 10 % on the median worker";
    let jobs = "\
JOB                                   STATE          EXEC           TAG      AGE
65326b34-6b98-4f22-816a-8c3463f1df69  failed         calcA          nightly   0s
65326b34-6b98-4f22-816a-8c3463f1df69  running, upl…  処理プログラ…  nightly   0s";
    let explained = format!(
        "\
job       {}, queued for 1.5s
queue     job.assign.calcA
policy    locality
waits     render-host-17.example, which gets the dataset models-v2
position  2 jobs of the same client and key are served before it

WORKER                                NAME             VERDICT   WHY
00000000-0000-0000-0000-000000000001  render-host-17…  best      the dataset is…
00000000-0000-0000-0000-000000000002  render-host-17…  no-match  its patterns d…",
        answer_to("explain")["job_id"].as_str().unwrap()
    );
    let (show, explain) = (format!("job show {JOB}"), format!("explain {JOB}"));
    let shown = |columns, line| wordy_shown(&leader, columns, line);
    assert_eq!(shown(80, "workers ls").await, workers);
    assert_eq!(shown(80, "job ls").await, jobs);
    assert_eq!(shown(80, &explain).await, explained);
    let status = shown(80, "status").await;
    let begins = "\
leader  heft 0.1.0, up 2s, driver uring, durability disk, DRAINING: no new jobs
        are accepted
jobs    0 queued, 1 running, 2 done, 0 dead
";
    assert!(status.starts_with(begins) && status.contains(workers), "{status}");
    // Where an id has room alone, it is what is left.
    let at_40 = "\
WORKER
00000000-0000-0000-0000-000000000001
        worker render-host-17.example
        (00000000-0000-0000-0000-000000000001)
        lacks the program calcB
";
    assert!(shown(40, "workers ls").await.starts_with(at_40));
    let status = shown(40, "status").await;
    assert!(status.contains(at_40), "{status}");
    let at_40 = "\
JOB
65326b34-6b98-4f22-816a-8c3463f1df69
65326b34-6b98-4f22-816a-8c3463f1df69";
    assert_eq!(shown(40, "job ls").await, at_40);
    let at_40 = "

WORKER
00000000-0000-0000-0000-000000000001
00000000-0000-0000-0000-000000000002";
    assert!(shown(40, &explain).await.ends_with(at_40));
    // Everything of a job: why it is where it is, and a tag of two lines on one.
    let why = "
why         no worker has calcA: host-1 lacks it, host-2 lacks it, and there is
            no other
exec        calcA
tag         two lines
";
    let job = shown(80, &show).await;
    assert!(job.contains(why), "{job}");
    let jobs = shown(200, "job ls").await;
    assert!(jobs.contains("render-host-17.example  ") && jobs.contains("root@vm/"), "{jobs}");
}

#[tokio::test]
async fn the_hint_about_the_older_form_is_for_who_looks_at_a_terminal() {
    let leader = FakeLeader::start().await;
    let line = ["dlq", &leader.address, "ls"];
    let hint = format!(
        "heft: the leader's address in front is the older form: use -l {}, HEFT_LEADER or `heft \
         context`",
        leader.address
    );
    let lines = shown(&leader, 200, &line).await;
    assert_eq!(lines[0], hint);
    assert_eq!(lines.len(), 3);
    let quiet = shown(&leader, 200, &[&line[..], &["-q"]].concat()).await;
    assert_eq!(quiet, lines[1..]);
    let piped = beside(heft(&line), serve(&leader)).await;
    assert_eq!(piped.err, "", "a script gets no new line");
}

#[tokio::test]
async fn colours_are_left_out_where_no_color_is_set() {
    let leader = FakeLeader::start().await;
    let line = ["dlq", "ls", "-l", &leader.address, "--context", "none"];
    // A warning is a coloured line of the log.
    for (no_color, is_coloured) in [("", true), ("1", false)] {
        let mut command = on_terminal(100, &["status", "-l", &leader.address]);
        command.env("HEFT_LOG", "nonsense").env("NO_COLOR", no_color);
        let ended = beside(command, serve(&leader)).await;
        assert!(ended.out.contains("HEFT_LOG is \"nonsense\""), "{}", ended.out);
        assert_eq!(ended.out.contains("\x1b["), is_coloured, "{no_color}: {}", ended.out);
        // The help of clap and its errors are coloured, too.
        let mut command = on_terminal(100, &line[..2]);
        command.args(["--bogus"]).env("NO_COLOR", no_color);
        let ended = beside(command, serve(&leader)).await;
        assert_eq!((ended.code, ended.out.contains("\x1b[")), (2, is_coloured), "{}", ended.out);
    }
}

/// What a terminal was drawn, one line after the other, each once: without the sequences that move
/// and clear, and without times, which differ.
fn frames(shown: &str) -> Vec<String> {
    let mut frames: Vec<String> = Vec::new();
    for frame in shown.split(['\r', '\n']) {
        let frame = frame.replace("\x1b[K", "").replace("\x1b[J", "");
        let is_time = |word: &&str| {
            word.strip_suffix('s').is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let words: Vec<&str> =
            frame.split("  ").map(|word| if is_time(&word) { "T" } else { word }).collect();
        let frame = words.join("  ");
        if !frame.trim().is_empty() && frames.last() != Some(&frame) {
            frames.push(frame);
        }
    }
    frames
}

/// What a submit of a job shows that waits, runs, says how far it is and returns.
async fn submit_shows(columns: Option<u32>) -> Vec<String> {
    let leader = FakeLeader::start().await;
    let line = ["submit", "calc", "-l", &leader.address];
    let command = match columns {
        Some(columns) => on_terminal(columns, &line),
        None => heft(&line),
    };
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        let job = request.job_id;
        peer.submitted(job, Standing::Queued, 3).await;
        let at = |stage, done, total, text: &str| Progress {
            run: 1,
            attempt: 1,
            stage,
            done,
            total,
            text: text.into(),
        };
        for progress in [
            at(Stage::Receiving, 0, 0, ""),
            at(Stage::Receiving, 256 << 20, 1 << 30, ""),
            at(Stage::Running, 0, 0, "2 段階: Считаю"),
            at(Stage::Packing, 3 << 20, 4 << 20, ""),
            at(Stage::Returning, 4 << 20, 4 << 20, ""),
        ] {
            peer.message(job, &progress).await;
        }
        peer.result(&ok(&request, "done\n")).await;
        until_closed(peer).await;
        job.to_string()
    };
    let (ended, id) = tokio::join!(end(command), script);
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    // Each run has another id, and shows as much of it as there is room for.
    let shown = format!("{}{}", ended.err, ended.out);
    let shown = (8..=id.len())
        .rev()
        .fold(shown, |shown, len| shown.replace(id.get(..len).unwrap(), JOB.get(..len).unwrap()));
    let mut frames = frames(&shown);
    frames.retain(|frame| !frame.contains("sent to"));
    frames
}

#[tokio::test]
async fn how_a_job_stands_is_drawn_within_the_width_of_the_terminal() {
    let at_40 = submit_shows(Some(40)).await;
    let expected = [
        "job 00112233-4455-6677-8899-aabbccddeeff",
        "job 00112233-4455…  T  queued, 3 ahead",
        "job 00112233-445…  T  receiving inputs",
        "job 00112233…  T  receiving inputs, 2…",
        "job 00112233…  T  running: 2 段階: Сч…",
        "job 00112233…  T  packing results, 3 …",
        "job 00112233…  T  returning results, …",
        "done",
    ];
    assert_eq!(at_40, expected);
    // The name makes room for what there is to say, and the bar has what is left.
    let at_80 = submit_shows(Some(80)).await;
    let expected = [
        "job 00112233-4455-6677-8899-aabbccddeeff",
        "job 00112233-4455-6677-8899-aabbccddeeff  T  queued, 3 ahead",
        "job 00112233-4455-6677-8899-aabbccddeeff  T  receiving inputs",
        "job 00112233-4455-6677-8899…  T  receiving inputs, 256 MiB of 1 GiB [##------]",
        "job 00112233-4455-6677-8899-aabbccddeeff  T  running: 2 段階: Считаю",
        "job 00112233-4455-6677-8899-aa…  T  packing results, 3 MiB of 4 MiB [######--]",
        "job 00112233-4455-6677-8899-…  T  returning results, 4 MiB of 4 MiB [########]",
        "done",
    ];
    assert_eq!(at_80, expected);
    let at_200 = submit_shows(Some(200)).await;
    let called = "job 00112233-4455-6677-8899-aabbccddeeff";
    assert_eq!(at_200[0], called);
    let expected = [
        "queued, 3 ahead",
        "receiving inputs",
        "receiving inputs, 256 MiB of 1 GiB [#####---------------]",
        "running: 2 段階: Считаю",
        "packing results, 3 MiB of 4 MiB [###############-----]",
        "returning results, 4 MiB of 4 MiB [####################]",
    ];
    assert_eq!(at_200[1..7], expected.map(|text| format!("{called}  T  {text}")));
    // Nothing is drawn where no terminal is.
    assert_eq!(submit_shows(None).await, ["done"]);
}
