//! No black holes (C20, RT04): which worker gets a job of which program, and what becomes of jobs
//! whose program no connected worker has, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::time::Duration;

use heft::core::Config;
use heft::core::action::Refusal;
use heft::core::event::{Inputs, Outcome, Submission, WorkerClass};
use heft::core::explain::{Verdict, WaitsFor};
use heft::core::flagged::Flag;
use heft::core::job::{Ending, Phase};
use heft::core::limits::HISTORY_MAX;
use heft::core::payload::{FileNames, PayloadKind};
use heft::core::programs::{PROGRAM_AVOIDED_FOR, Programs, ProgramsSaid};
use heft::core::record::Lack;
use heft::core::subject::routing_key;
use rig::{Rig, SECOND, id, job, job_to_all, worker_id};

const ALL: &str = "job.assign.>";

/// A job of a program, under one key for all of them.
fn of(program: &str, number: u32) -> Submission {
    let key = routing_key("group", None).unwrap();
    Submission { key, exec: program.into(), ..job(number) }
}

fn with_client(config: Config) -> Rig {
    let mut rig = Rig::with(Config { cap_default: 10_000, ..config });
    rig.client("alice");
    rig
}

fn rig() -> Rig {
    with_client(Config::default())
}

#[track_caller]
fn why_failed(rig: &Rig, number: u32) -> String {
    let Phase::Done { ending: Ending::Failed { why }, .. } = &rig.job(number).phase else {
        panic!("j{number} has not failed: {:?}", rig.job(number).phase)
    };
    why.to_string()
}

fn verdict(rig: &Rig, number: u32, worker: &str) -> Verdict {
    let seen = rig.broker.explain(id(number)).unwrap().workers;
    seen.iter().find(|seen| seen.id == worker_id(worker)).unwrap().verdict
}

/// The workers have been there for so long that no others are expected.
#[track_caller]
fn settle(rig: &mut Rig) {
    rig.pass(SECOND * 5);
    rig.skip();
}

/// A worker connects, perhaps again, where something follows from its hello alone.
fn joins(rig: &mut Rig, name: &str, programs: Option<&[&str]>) -> Vec<String> {
    let (takes, programs) = ((true, true, PayloadKind::Folders), programs.map(Programs::new));
    rig.hello_listing(name, WorkerClass::Leasing, "calcA job.assign.>", Some(1), takes, programs);
    let lines = rig.take();
    rig.credit(name, 1);
    lines
}

// --- who gets a job

#[test]
fn a_worker_that_does_not_list_a_program_is_given_none_of_its_jobs() {
    let mut rig = rig();
    rig.worker_with("a", ALL, 2, &["calcA"]);
    rig.worker_with("b", ALL, 2, &["calcB"]);
    for number in 1..=4 {
        rig.submit_next(of(["calcA", "calcB"][number as usize % 2], number));
    }
    rig.skip();
    for number in 1..=4 {
        let expected = if number % 2 == 0 { "a" } else { "b" };
        assert!(rig.job(number).is_with(worker_id(expected)), "j{number}");
    }
    // It waits for the busy one, whatever room the other has.
    rig.ack("b", 1);
    rig.skip();
    rig.credit("b", 1);
    rig.submit(of("calcA", 5));
    rig.expect(["+enqueue j5", "alice: submitted j5 Queued behind 0"]);
    assert_eq!(verdict(&rig, 5, "b"), Verdict::NoProgram);
    assert_eq!(verdict(&rig, 5, "a"), Verdict::NoRoom);
    let explained = rig.broker.explain(id(5)).unwrap();
    assert_eq!(explained.waits, Some(WaitsFor::Room));
    assert!(explained.workers.iter().all(|seen| seen.lists_programs));
    rig.ack("a", 2);
    rig.skip();
    rig.credit("a", 1);
    rig.expect(["+assign j5#1 a", "a: assign j5#1"]);
}

#[test]
fn jobs_that_wait_for_a_busy_worker_block_no_others_of_their_client_and_key() {
    let mut rig = rig();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.worker_with("b", ALL, 1, &["calcB"]);
    for number in 1..=200 {
        rig.submit_next(Submission { priority: -1, ..of("calcA", number) });
    }
    rig.skip();
    rig.submit(of("calcB", 201));
    rig.skip_to("b: assign j201#1");
    // Those of A go in their order.
    rig.ack("a", 1);
    rig.skip();
    rig.credit("a", 1);
    rig.skip_to("a: assign j2#1");
}

#[test]
fn programs_tell_case_and_a_worker_without_a_list_is_given_what_its_patterns_say() {
    let mut rig = rig();
    rig.worker_with("lower", ALL, 4, &["calca"]);
    rig.classic("classic", ALL, 1);
    rig.submit(of("calcA", 1));
    rig.skip_to("classic: assign j1#1");
    rig.worker("embedded", ALL, 1);
    rig.submit(of("calcA", 2));
    rig.skip_to("embedded: assign j2#1");
    // What names no program goes anywhere: a raw job.
    let takes = (true, true, PayloadKind::Raw);
    let programs = Some(Programs::new(["x"]));
    rig.hello_listing("raw", WorkerClass::Leasing, ALL, Some(1), takes, programs);
    rig.credit("raw", 1);
    rig.submit(of("", 3));
    rig.skip_to("raw: assign j3#1");
}

#[test]
fn a_program_that_appears_at_a_worker_is_known_from_its_next_list_on() {
    let mut rig = rig();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.worker_with("b", ALL, 2, &["calcB"]);
    rig.submit_next(of("calcA", 1));
    rig.submit_next(of("calcA", 2));
    rig.skip();
    assert!(!rig.job(2).is_with(worker_id("b")));
    rig.programs("b", &["calcA", "calcB"]);
    rig.expect(["+assign j2#1 b", "b: assign j2#1"]);
    rig.programs("b", &["calcB"]);
    rig.submit(of("calcA", 3));
    rig.expect(["+enqueue j3", "alice: submitted j3 Queued behind 0"]);
    // A worker that lists none any more is as good as any.
    rig.programs_answer("b", ProgramsSaid::Unlisted);
    rig.expect(["+assign j3#1 b", "b: assign j3#1"]);
}

// --- handed back

#[test]
fn a_job_without_its_program_goes_to_another_worker_at_once_and_the_pair_is_avoided() {
    let mut rig = with_client(Config { attempts_max: 1, ..Config::default() });
    rig.worker("empty", "calcA", 4);
    rig.submit(job(1));
    rig.skip_to("empty: assign j1#1");
    rig.worker("sound", "calcA", 8);
    rig.refuses_program("empty", 1, "Executable not found: /opt/grid/exe/calcA");
    rig.expect(["+requeue j1#1 NoProgram free now", "+assign j1#2 sound", "sound: assign j1#2"]);
    rig.credit("empty", 1);
    for number in 2..=8 {
        rig.submit(job(number));
        rig.skip_to(&format!("sound: assign j{number}#1"));
    }
    assert_eq!((rig.job(1).spent, rig.job(1).history.len()), (0, 1));
    assert_eq!(verdict(&rig, 1, "empty"), Verdict::NoProgram);
    let avoided: Vec<(String, String)> = rig
        .broker
        .avoided_at(worker_id("empty"))
        .map(|(program, refusal)| (program.to_string(), refusal.why.to_string()))
        .collect();
    let why = "Executable not found: /opt/grid/exe/calcA".to_owned();
    assert_eq!(avoided, [("calcA".to_owned(), why)]);
    // Its other programs are another matter.
    rig.submit(Submission { exec: "calcB".into(), ..job(9) });
    rig.skip_to("empty: assign j9#1");
    assert_eq!(rig.worker_named("empty").lacked, None, "it lacks no room and no directory");
}

#[test]
fn a_pair_is_avoided_until_the_worker_connects_or_lists_its_programs_anew_or_a_time_is_over() {
    let handed_back = || {
        let mut rig = rig();
        rig.worker("empty", "calcA", 1);
        rig.submit(job(1));
        rig.skip();
        rig.classic("busy", "calcA", 0);
        rig.refuses_program("empty", 1, "no");
        rig.expect(["+requeue j1#1 NoProgram free now"]);
        rig.credit("empty", 1);
        rig.expect([]);
        rig
    };
    let mut rig = handed_back();
    rig.programs("empty", &["calcA"]);
    rig.expect(["+assign j1#2 empty", "empty: assign j1#2"]);

    let mut rig = handed_back();
    rig.programs("empty", &["other"]);
    rig.expect([]);

    // An answer that nothing has changed is none.
    let mut rig = handed_back();
    rig.programs_answer("empty", ProgramsSaid::Same);
    rig.expect([]);

    let mut rig = handed_back();
    joins(&mut rig, "empty", None);
    rig.skip_to("empty/2: assign j1#2");

    let mut rig = handed_back();
    let beats = |rig: &mut Rig, span: Duration| {
        for _ in 0..span.as_secs() / 10 {
            rig.beat("empty", &[]);
            rig.pass(SECOND * 10);
        }
    };
    beats(&mut rig, PROGRAM_AVOIDED_FOR - SECOND * 10);
    rig.expect([]);
    rig.beat("empty", &[]);
    rig.pass(SECOND * 10);
    rig.expect(["+assign j1#2 empty", "empty: assign j1#2"]);
}

#[test]
fn a_worker_that_lists_a_program_again_and_again_and_hands_it_back_is_asked_less_and_less() {
    let mut rig = rig();
    rig.worker("liar", "calcA", 1);
    rig.submit(job(1));
    rig.skip();
    rig.classic("busy", "calcA", 0);
    let mut waited = Duration::ZERO;
    for attempt in 1..=u32::try_from(HISTORY_MAX).unwrap() + 10 {
        assert!(rig.job(1).is_with(worker_id("liar")), "attempt {attempt}");
        rig.refuses_program("liar", 1, "no");
        rig.skip();
        rig.credit("liar", 1);
        rig.skip();
        rig.programs("liar", &["calcA"]);
        rig.skip();
        while !rig.job(1).is_with(worker_id("liar")) {
            rig.pass(SECOND);
            rig.skip();
            rig.beat("liar", &[]);
            rig.skip();
            waited += SECOND;
        }
        assert!(attempt > 7 || waited.is_zero(), "the first go on at once");
    }
    assert!(waited > SECOND * 60 * 30, "{waited:?}");
    assert_eq!(rig.job(1).spent, 0, "and it is never dead for that");
    rig.skip();
}

// --- nobody has it

#[test]
fn a_job_whose_program_nobody_has_fails_at_once_when_all_have_handed_it_back() {
    let mut rig = rig();
    for name in ["w1", "w2"] {
        rig.worker(name, "calcA", 1);
    }
    settle(&mut rig);
    rig.submit(job(1));
    rig.skip_to("w1: assign j1#1");
    rig.refuses_program("w1", 1, "not here\nsecond line");
    rig.expect(["+requeue j1#1 NoProgram free now", "+assign j1#2 w2", "w2: assign j1#2"]);
    rig.refuses_program("w2", 1, "cannot start it");
    let lines = rig.take();
    assert_eq!(lines[0], "+requeue j1#2 NoProgram free now");
    assert!(
        lines[1].starts_with("+fail j1: no connected worker that matches job.assign.calcA"),
        "{lines:?}"
    );
    assert_eq!(lines[2..], ["retain input j1", "alice: result j1"]);
    let why = why_failed(&rig, 1);
    for part in [
        "has the program \"calcA\"",
        "worker w1 (",
        "handed it back: not here;",
        "handed it back: cannot start it.",
        "Put it into the --exe-dir of a worker",
    ] {
        assert!(why.contains(part), "{part:?} in {why}");
    }
    // The next one is not even tried.
    rig.credit("w1", 1);
    rig.credit("w2", 1);
    rig.submit(job(2));
    rig.skip();
    assert_eq!(why_failed(&rig, 2), why);
    assert_eq!(rig.job(2).attempt.0, 0);
}

#[test]
fn before_a_job_fails_workers_look_again_whether_they_have_its_program() {
    let mut rig = rig();
    rig.worker_with("w1", ALL, 1, &["calcA", "render"]);
    rig.worker_with("w2", ALL, 1, &[]);
    settle(&mut rig);
    rig.submit(of("calcB", 1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "w1: which programs?",
        "w2: which programs?",
    ]);
    rig.programs_answer("w1", ProgramsSaid::Same);
    rig.expect([]);
    rig.programs_answer("w2", ProgramsSaid::Same);
    rig.skip();
    let why = why_failed(&rig, 1);
    for part in
        ["w1 (", "has 2 programs, and not this one;", "has no programs.", "Did you mean \"calcA\"?"]
    {
        assert!(why.contains(part), "{part:?} in {why}");
    }
    // It was put there a moment ago.
    rig.submit(of("calcB", 2));
    rig.skip_to("w2: which programs?");
    rig.programs_answer("w1", ProgramsSaid::Same);
    rig.expect([]);
    rig.programs_answer("w2", ProgramsSaid::Are(Programs::new(["calcB"])));
    rig.expect(["+assign j2#1 w2", "w2: assign j2#1"]);
}

#[test]
fn jobs_that_come_while_workers_look_are_judged_by_the_next_look() {
    let mut rig = rig();
    rig.worker_with("w1", ALL, 1, &[]);
    settle(&mut rig);
    rig.submit(of("calcB", 1));
    rig.skip_to("w1: which programs?");
    // One look is under way: the others wait for what comes of it, and for one more.
    for number in 2..=4 {
        rig.submit(of("calcB", number));
        rig.expect([
            format!("+enqueue j{number}").as_str(),
            format!("alice: submitted j{number} Queued behind {}", number - 1).as_str(),
        ]);
    }
    rig.submit(of("calcC", 5));
    rig.skip();
    rig.programs_answer("w1", ProgramsSaid::Same);
    let lines = rig.take();
    assert!(why_failed(&rig, 1).contains("calcB"));
    assert_eq!(lines.iter().filter(|line| *line == "w1: which programs?").count(), 1, "{lines:?}");
    assert!((2..=5).all(|number| !rig.job(number).has_ended()));
    rig.programs_answer("w1", ProgramsSaid::Same);
    rig.skip();
    assert!(why_failed(&rig, 5).contains("calcC"));
    while !(2..=4).all(|number| rig.job(number).has_ended()) {
        rig.programs_answer("w1", ProgramsSaid::Same);
        rig.skip();
    }
}

#[test]
fn what_is_asked_of_many_workers_for_many_programs_is_kept_once() {
    let memory = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    const WORKERS: usize = 300;
    const MANY: u32 = 1_200;
    let mut rig = rig();
    for number in 0..WORKERS {
        rig.worker_with(&format!("w{number}"), ALL, 1, &["calcA"]);
        rig.skip();
    }
    settle(&mut rig);
    let before = memory();
    let mut asked = 0;
    for number in 1..=MANY {
        rig.submit(of(&format!("typo{number}"), number));
        asked += rig.take().iter().filter(|line| line.ends_with("which programs?")).count();
    }
    assert_eq!(asked, WORKERS, "each worker has one question to answer");
    let grown = memory().saturating_sub(before);
    assert!(grown < 7 << 20, "{grown} bytes for {MANY} programs at {WORKERS} workers");
}

#[test]
fn a_worker_that_does_not_answer_is_waited_for_five_seconds() {
    let mut rig = rig();
    rig.worker_with("w1", ALL, 1, &["calcA"]);
    rig.worker_with("w2", ALL, 1, &["calcA"]);
    settle(&mut rig);
    rig.submit(of("calcB", 1));
    rig.skip();
    rig.programs_answer("w1", ProgramsSaid::Same);
    rig.pass(Duration::from_millis(4_999));
    rig.expect([]);
    rig.pass(Duration::from_millis(1));
    rig.skip();
    assert!(why_failed(&rig, 1).contains("w2 ("));
}

#[test]
fn nothing_is_kept_of_what_a_worker_never_answered() {
    let mut rig = rig();
    rig.worker_with("mute", ALL, 1, &["calcA"]);
    settle(&mut rig);
    let before = rig.broker.note_count();
    for number in 1..=20 {
        rig.submit_next(of(&format!("typo{number}"), number));
    }
    rig.skip();
    assert!(rig.broker.note_count() > before);
    rig.pass(SECOND * 5);
    rig.skip();
    rig.pass(Duration::ZERO);
    rig.skip();
    assert!((1..=20).all(|number| rig.job(number).has_ended()));
    // Its jobs' submitters, and that it was asked.
    assert_eq!(rig.broker.note_count(), before + 20 + 1);
    rig.close("mute");
    rig.pass(SECOND * 120);
    rig.skip();
    assert_eq!(rig.broker.note_count(), before + 20);
}

#[test]
fn a_worker_that_connects_again_meanwhile_has_said_it_with_its_hello() {
    let mut rig = rig();
    rig.worker_with("w1", ALL, 1, &["calcA"]);
    settle(&mut rig);
    rig.submit(of("calcB", 1));
    rig.skip_to("w1: which programs?");
    joins(&mut rig, "w1", Some(&["calcA"]));
    rig.skip();
    settle(&mut rig);
    rig.programs_answer("w1", ProgramsSaid::Same);
    rig.skip();
    assert!(rig.job(1).has_ended());
    rig.submit(of("calcB", 2));
    rig.skip_to("w1/2: which programs?");
    joins(&mut rig, "w1", Some(&["calcB"]));
    rig.skip_to("w1/3: assign j2#1");
}

#[test]
fn any_number_of_jobs_whose_program_nobody_has_fail() {
    let mut rig = rig();
    rig.worker("w1", "calcA", 1);
    settle(&mut rig);
    rig.submit(job(1));
    rig.skip();
    for number in 2..=1_050 {
        rig.submit_next(job(number));
    }
    rig.skip();
    let conn = rig.conn("w1");
    rig.tell(heft::core::Event::ProgramRefused { conn, job: id(1), why: "no".into() });
    rig.skip();
    rig.outcome("w1", 1, Outcome::Lacks(Lack::Program));
    rig.skip();
    for _ in 0..5 {
        rig.pass(Duration::ZERO);
        rig.skip();
    }
    assert!((1..=1_050).all(|number| rig.job(number).has_ended()));
    assert!(rig.broker.queues().is_empty());
}

#[test]
fn a_job_that_no_worker_can_take_for_another_reason_waits_as_before() {
    let mut rig = rig();
    // It matches, and takes no files in folders; whether it has the program nobody knows.
    rig.classic("classic", ALL, 1);
    rig.submit(Submission { names: FileNames::Folders, ..of("calcB", 1) });
    rig.skip();
    rig.pass(SECOND * 600);
    assert!(!rig.job(1).has_ended());
    rig.skip();
    // With one that does, the job's fate is that one's to say.
    assert_eq!(joins(&mut rig, "ours", Some(&["calcA"])), [""; 0]);
    // The job was there before it, and waits for others to follow.
    for _ in 0..5 {
        rig.pass(SECOND * 10);
        rig.beat("ours", &[]);
        rig.expect([]);
    }
    rig.pass(SECOND * 10);
    rig.expect(["ours: which programs?"]);
    rig.programs_answer("ours", ProgramsSaid::Same);
    rig.skip();
    assert!(rig.job(1).has_ended());
    // Nobody matches at all.
    rig.close("ours");
    rig.close("classic");
    rig.submit(job(2));
    rig.skip();
    rig.pass(SECOND * 600);
    rig.skip();
    assert!(!rig.job(2).has_ended());
}

#[test]
fn an_announced_job_fails_before_its_inputs_have_come() {
    let mut rig = rig();
    rig.worker_with("w1", ALL, 1, &["calcA"]);
    settle(&mut rig);
    let large = Submission {
        inputs: Inputs::Expected,
        needs_transfers: true,
        size: 64 << 20,
        ..of("calcB", 1)
    };
    rig.submit(large.clone());
    rig.expect(["+announce j1", "w1: which programs?"]);
    rig.programs_answer("w1", ProgramsSaid::Same);
    let lines = rig.take();
    assert!(lines[0].starts_with("+fail j1: no connected worker"), "{lines:?}");
    assert_eq!(lines[1..], ["drop input j1", "alice: result j1"]);
    // A worker without transfers is no hope for it.
    rig.classic("classic", ALL, 1);
    rig.submit(Submission { job: id(2), ..large });
    rig.skip_to("w1: which programs?");
    rig.programs_answer("w1", ProgramsSaid::Same);
    rig.skip();
    assert!(rig.job(2).has_ended());
}

// --- those that may come back

#[test]
fn jobs_wait_for_a_worker_that_left_a_moment_ago_and_their_clients_are_told() {
    let mut rig = rig();
    rig.note_waiting();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.worker_with("b", ALL, 1, &["calcC"]);
    rig.submit_next(of("calcA", 1));
    rig.submit_next(of("calcA", 2));
    rig.skip();
    rig.close("a");
    rig.expect(["alice: waiting j2 1 for job.assign.group without calcA, but \"calcC\""]);
    let until = rig.now().plus(SECOND * 60);
    let waits = rig.broker.explain(id(2)).unwrap().waits;
    assert_eq!(waits, Some(WaitsFor::Program { until }));
    // The worker is back in time, with the job that it had.
    rig.pass(SECOND * 4);
    rig.expect([]);
    rig.worker_with("a", ALL, 2, &["calcA"]);
    rig.skip();
    rig.beat("a", &[(1, 1)]);
    rig.skip_to("a/2: assign j2#1");
    // Or it is not.
    rig.submit(of("calcA", 3));
    rig.skip();
    rig.close("a");
    rig.skip();
    for _ in 0..6 {
        rig.pass(SECOND * 10);
        rig.skip();
        rig.beat("b", &[]);
        rig.skip();
    }
    rig.programs_answer("b", ProgramsSaid::Same);
    rig.skip();
    assert!((1..=3).all(|number| why_failed(&rig, number).contains("calcA")));
}

#[test]
fn a_worker_that_left_and_did_not_have_the_program_is_not_waited_for() {
    let mut rig = rig();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.worker_with("b", ALL, 1, &["calcB"]);
    settle(&mut rig);
    rig.close("b");
    rig.submit(of("typo", 1));
    rig.skip_to("a: which programs?");
    rig.programs_answer("a", ProgramsSaid::Same);
    rig.skip();
    assert!(rig.job(1).has_ended());
    let mut rig = with_client(Config { placement_wait: Duration::ZERO, ..Config::default() });
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.worker_with("b", ALL, 1, &["calcB"]);
    rig.close("b");
    rig.submit(of("calcB", 1));
    rig.skip_to("a: which programs?");
    rig.close("a");
    rig.skip();
}

// --- those that are about to come

#[test]
fn jobs_are_judged_when_the_last_worker_that_matches_has_been_there_for_five_seconds() {
    let mut rig = rig();
    rig.note_waiting();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.pass(SECOND * 4);
    rig.submit(of("calcB", 1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "alice: waiting j1 1 for job.assign.group without calcB, but \"calcA\"",
    ]);
    rig.pass(Duration::from_millis(999));
    rig.expect([]);
    rig.worker_with("b", ALL, 1, &["calcC"]);
    // One that does not match is not waited for.
    rig.pass(SECOND * 4);
    rig.worker_with("c", "job.assign.other", 1, &["calcC"]);
    let until = rig.now().plus(SECOND * 56);
    assert_eq!(rig.broker.explain(id(1)).unwrap().waits, Some(WaitsFor::Program { until }));
    // The job is older than `b`; one that comes now is of the same kind, and shares its fate.
    rig.submit_next(of("calcB", 2));
    rig.skip();
    rig.pass(SECOND * 20);
    rig.expect([]);
    rig.worker_with("late", ALL, 2, &["calcB"]);
    rig.skip_to("late: assign j2#1");
    assert!(rig.job(1).is_with(worker_id("late")));

    // A job that came after all of them waits for the five seconds alone.
    let mut rig = self::rig();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.submit_next(of("calcB", 1));
    rig.skip();
    rig.pass(Duration::from_millis(4_999));
    rig.expect([]);
    rig.pass(Duration::from_millis(1));
    rig.expect(["a: which programs?"]);
}

#[test]
fn jobs_from_before_their_workers_wait_for_others_to_follow() {
    let mut rig = rig();
    rig.submit_next(of("calcB", 1));
    rig.submit_next(of("calcB", 2));
    rig.skip();
    rig.pass(SECOND * 600);
    rig.skip();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    for _ in 0..5 {
        rig.pass(SECOND * 10);
        rig.beat("a", &[]);
        rig.expect([]);
    }
    rig.worker_with("b", ALL, 1, &["calcB"]);
    rig.expect(["+assign j1#1 b", "b: assign j1#1"]);
    assert!(!rig.job(2).has_ended());
}

#[test]
fn with_no_time_to_wait_jobs_fail_at_once_whoever_just_connected() {
    let mut rig = with_client(Config { placement_wait: Duration::ZERO, ..Config::default() });
    rig.submit_next(of("calcB", 1));
    rig.skip();
    assert_eq!(joins(&mut rig, "a", Some(&["calcA"])), ["a: which programs?"]);
    rig.skip();
}

#[test]
fn workers_that_connect_again_and_again_without_the_program_do_not_hold_jobs_up_for_ever() {
    let mut rig = rig();
    rig.submit_next(of("calcB", 1));
    rig.skip();
    rig.worker_with("steady", ALL, 1, &["calcA"]);
    let mut waited = Duration::ZERO;
    for round in 0.. {
        assert!(round < 1_000, "it waits for ever");
        // Each time as another process.
        let name = format!("w{round}");
        joins(&mut rig, &name, Some(&["calcA"]));
        rig.skip();
        rig.pass(SECOND * 3);
        let lines = rig.take();
        rig.close(&name);
        rig.skip();
        rig.beat("steady", &[]);
        if lines.iter().any(|line| line.ends_with("which programs?")) {
            break;
        }
        rig.skip();
        waited += SECOND * 3;
    }
    assert!(waited >= SECOND * 290 && waited <= SECOND * 310, "{waited:?}");
}

#[test]
fn after_a_restart_jobs_wait_for_workers_that_are_not_back_yet() {
    let mut rig = rig();
    rig.submit_next(of("calcA", 1));
    rig.skip();
    let state = rig.broker.state().clone();
    rig.pass(SECOND * 5);
    rig.restart(state);
    rig.skip();
    rig.worker_with("b", ALL, 1, &["calcB"]);
    rig.expect([]);
    rig.pass(SECOND * 20);
    rig.expect([]);
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.expect(["+assign j1#1 a", "a: assign j1#1"]);

    let mut rig = self::rig();
    rig.submit_next(of("calcA", 1));
    rig.skip();
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig.skip();
    rig.worker_with("b", ALL, 1, &["calcB"]);
    for _ in 0..5 {
        rig.pass(SECOND * 10);
        rig.expect([]);
        rig.beat("b", &[]);
    }
    rig.pass(SECOND * 10);
    rig.expect(["b: which programs?"]);
}

#[test]
fn a_leader_that_stops_fails_no_job_for_its_program() {
    let mut rig = rig();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    rig.submit_next(of("calcA", 1));
    rig.submit_next(of("calcA", 2));
    rig.skip();
    rig.tell(heft::core::Event::Drain);
    rig.programs("a", &[]);
    rig.pass(SECOND * 20);
    rig.expect([]);
    assert!(!rig.job(2).has_ended());
}

// --- to all, and refused

#[test]
fn the_part_of_a_job_to_all_whose_worker_lacks_the_program_fails_with_the_text() {
    let mut rig = rig();
    rig.worker_with("has", "calcA", 1, &["calcA"]);
    rig.worker_with("not", "calcA", 1, &[]);
    rig.submit(job_to_all(1));
    rig.skip_to("not: assign j1@not#1");
    let child = rig.child(1, "not");
    let conn = rig.conn("not");
    rig.tell(heft::core::Event::ProgramRefused { conn, job: child, why: "not found".into() });
    rig.expect([]);
    let outcome = Outcome::Lacks(Lack::Program);
    rig.tell(heft::core::Event::Ack { conn, job: child, named: Default::default(), outcome });
    let lines = rig.take();
    assert!(lines[0].starts_with("+fail j1@not: the program \"calcA\": worker not ("), "{lines:?}");
    assert!(lines[0].ends_with("handed it back: not found"), "{lines:?}");
    let child = rig.child(1, "has");
    rig.ack_id("has", child, true);
    rig.skip_to("alice: result j1");
}

#[test]
fn a_job_that_requires_a_worker_is_refused_where_none_has_its_program() {
    let mut rig = rig();
    rig.worker_with("a", ALL, 1, &["calcA"]);
    let required = |number| Submission { require_worker: true, ..of("calcB", number) };
    rig.submit(required(1));
    let lines = rig.take();
    let text = lines[0].strip_prefix("alice: refused j1 ").unwrap();
    assert!(text.contains("\"calcB\"") && text.contains("Did you mean \"calcA\"?"), "{text}");
    assert_eq!(Refusal::NoProgram(text.into()).to_string(), text);
    rig.classic("any", ALL, 1);
    rig.submit(required(2));
    rig.skip_to("any: assign j2#1");
}

// --- flags

#[test]
fn a_worker_on_which_a_program_fails_far_more_often_than_on_others_is_flagged() {
    let mut rig = rig();
    for name in ["good", "bad", "fair"] {
        rig.worker(name, "calcA", 100);
    }
    for number in 1..=30 {
        rig.submit_next(job(number));
        rig.skip();
        let holder = ["good", "bad", "fair"]
            .into_iter()
            .find(|name| rig.job(number).is_with(worker_id(name)))
            .unwrap();
        let ok = holder != "bad" && !(holder == "fair" && number == 3);
        rig.ack_id(holder, id(number), ok);
        rig.skip();
    }
    let flags = rig.broker.flags();
    let [(worker, exec, flag)] = flags.as_slice() else { panic!("{flags:?}") };
    assert_eq!((*worker, &**exec), (worker_id("bad"), "calcA"));
    assert!(flag.failed == flag.ended && flag.failed >= 5, "{flag:?}");
    assert_eq!(rig.broker.flag("calcA", worker_id("bad")), Some(*flag));
    rig.submit_next(job(40));
    rig.skip();
    let seen = rig.broker.explain(id(40)).unwrap().workers;
    let flagged: Vec<Option<Flag>> = seen.iter().map(|seen| seen.flag).collect();
    assert_eq!(flagged.iter().flatten().count(), 1);
    // What it handed back is no failure, and who is gone is forgotten.
    rig.close("bad");
    rig.pass(SECOND * 10);
    rig.skip();
    assert!(rig.broker.flags().is_empty());
}
