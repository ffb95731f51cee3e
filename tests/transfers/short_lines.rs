//! Lines that break before they have carried a chunk, over and over: what came of a chunk is kept,
//! the next connection goes on with it, and so the transfer ends. A break costs no more than the
//! piece that it fell into.

use std::path::Path;

use crate::procs::Worker;
use crate::proxy::{Plan, Proxy, Way};
use crate::support::scaled;
use crate::world::{
    MAKES, MIB, World, assert_no_job_directory, expect_digests, sha256_of, submit_at, submit_files,
    worker_at,
};

/// What a connection carries before it breaks: less than a third of a chunk.
const CARRIES: u64 = 300 << 10;

/// What a break may cost: the piece that it fell into, what was read by nobody, and a few hellos.
const BREAK_COSTS: u64 = 96 << 10;

/// A job's result goes to its client with every connection, and with it the end of what the job
/// printed.
const RESULT_COSTS: u64 = 64 << 10;

/// More than what stands in the job's own frame.
fn size() -> u64 {
    u64::from(scaled(4, 16)) * MIB as u64 + 12_345
}

/// A line whose connections break, all of them, until far more was carried than is needed.
fn breaking(leader: u16, way: Way) -> Proxy {
    let connections = usize::try_from(breaks_max()).unwrap();
    Proxy::start(leader, std::iter::repeat_n(Plan::Cut(way, CARRIES), connections))
}

/// Behind so many breaks a line holds; a transfer has to end before that.
fn breaks_max() -> u64 {
    6 * size() / CARRIES
}

/// A chunk that passed through when its sender went away is lost once; then no more of that blob
/// pass through.
fn assert_cheap(line: &Proxy, way: Way, blob: u64, break_costs: u64) {
    let (sent, breaks) = (line.bytes(way), line.cuts());
    assert!(breaks >= blob / CARRIES && breaks < breaks_max(), "{line:?}");
    let most = blob + breaks * break_costs + MIB as u64;
    assert!(sent <= most, "{sent} bytes for {blob} after {breaks} breaks, {most} would do");
}

#[test]
fn an_input_gets_to_a_worker_whose_line_never_lasts_for_a_chunk() {
    let world = World::start(&[]);
    let line = breaking(world.leader.port, Way::FromLeader);
    let worker = worker_at(line.port, &[]);
    let file = world.noise("in.bin", size());
    let runs = world.path("runs");
    let submit =
        submit_files(&world.addr(), "digests", &[&file], &["--compress", "none", "--", &runs]);
    expect_digests(submit, &[&file]);
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    assert_cheap(&line, Way::FromLeader, size(), BREAK_COSTS);
    assert_no_job_directory(&worker);
    world.assert_idle(0);
}

#[test]
fn an_input_gets_away_from_a_client_whose_line_never_lasts_for_a_chunk() {
    let world = World::start(&[]);
    let line = breaking(world.leader.port, Way::ToLeader);
    let worker = world.worker(&[]);
    let file = world.noise("in.bin", size());
    let runs = world.path("runs");
    let submit =
        submit_files(&line.addr(), "digests", &[&file], &["--compress", "none", "--", &runs]);
    expect_digests(submit, &[&file]);
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    assert_cheap(&line, Way::ToLeader, size(), BREAK_COSTS);
    assert_no_job_directory(&worker);
    world.assert_idle(0);
}

/// A result whose archive and output both are longer than a line lasts.
fn a_result_comes(to_worker: &Proxy, to_client: &Proxy, world: &World) {
    let worker = Worker::start(to_worker.port, &[("makes", MAKES)], &[]);
    let out = world.path("out");
    let args = ["makes", "--out", &out, "--", &size().to_string(), &(3 * MIB).to_string()];
    let (code, lines) = submit_at(&to_client.addr(), &args).finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    let made = sha256_of(&Path::new(&out).join("made.bin"));
    assert!(lines.iter().any(|line| line.ends_with(&made)), "{made} is not in {lines:#?}");
    assert_no_job_directory(&worker);
}

#[test]
fn a_result_gets_away_from_a_worker_whose_line_never_lasts_for_a_chunk() {
    let world = World::start(&[]);
    let line = breaking(world.leader.port, Way::ToLeader);
    a_result_comes(&line, &Proxy::start(world.leader.port, []), &world);
    assert_cheap(&line, Way::ToLeader, size() + 3 * MIB as u64, BREAK_COSTS);
}

#[test]
fn a_result_gets_to_a_client_whose_line_never_lasts_for_a_chunk() {
    let world = World::start(&[]);
    let line = breaking(world.leader.port, Way::FromLeader);
    a_result_comes(&Proxy::start(world.leader.port, []), &line, &world);
    assert_cheap(&line, Way::FromLeader, size() + 3 * MIB as u64, BREAK_COSTS + RESULT_COSTS);
}
