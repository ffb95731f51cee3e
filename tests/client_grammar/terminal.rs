//! What a terminal shows that a pipe does not.

use super::{beside, serve};
use crate::command::{Ended, heft};
use crate::leader::FakeLeader;
use crate::procs::root;
use tokio::process::Command;

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
JOB                                   CLIENT   EXEC  ATTEMPTS  RUN  AGE  REASON
9aa6c89e-47e7-42c8-89ff-18edee83e619  submit…  slow         1    1   3s  the wo…";
    assert_eq!(frame(&at_80), expected);
    // What a row is called by is never cut, and no column vanishes.
    let at_40 = shown(&leader, 40, &line).await;
    let expected = "\
JOB                                   CLIENT  EXEC  ATTEMPTS  RUN  AGE  REASON
9aa6c89e-47e7-42c8-89ff-18edee83e619  submi…  slow         1    1   3s  the w…";
    assert_eq!(frame(&at_40), expected);
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
