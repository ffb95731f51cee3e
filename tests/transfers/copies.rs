//! Nobody at the leader copies a chunk between receiving and sending it: whatever way it takes, its
//! bytes are read into one buffer, or into a pipe, and leave from there. The buffers count what is
//! copied into them.

use crate::world::{MIB, World, expect_digests, submit_files};

const SIZE: u64 = 64 * MIB as u64;

fn copied(world: &World) -> u64 {
    world.status()["leader"]["chunk_bytes_copied"].as_u64().unwrap()
}

#[test]
fn a_push_of_64_mib_through_a_leader_is_not_copied_there() {
    for verify in ["end", "hop"] {
        let world = World::start(&["--verify", verify]);
        let _worker = world.worker(&[]);
        world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
        let file = world.noise("in.bin", SIZE);
        world.run(&[&file], &["--compress", "none"]);
        assert_eq!(copied(&world), 0, "--verify {verify}");
        world.assert_idle(0);
    }
}

#[test]
fn chunks_of_several_transfers_between_frames_of_all_sizes_are_not_copied() {
    for verify in ["end", "hop"] {
        let world = World::start(&["--verify", verify]);
        let files: Vec<_> =
            (0..4).map(|n| world.noise(&format!("{n}.bin"), 7 * MIB as u64 + n * 99)).collect();
        let files: Vec<_> = files.iter().collect();
        // A large job between chunks of others: nearly a frame, on the same connection and on
        // others.
        let argument = "x".repeat(100_000);
        let args = ["--compress", "none", "--", "", &argument];
        // Without a worker they wait in the spool, and go on from there.
        let waiting = submit_files(&world.addr(), "digests", &files, &args);
        world.until("inputs wait", |status| status["leader"]["spool_bytes"] != 0);
        let _workers = [world.worker(&[]), world.worker(&[])];
        let submits: Vec<_> =
            (0..3).map(|_| submit_files(&world.addr(), "digests", &files, &args)).collect();
        for submit in submits.into_iter().chain([waiting]) {
            expect_digests(submit, &files);
        }
        assert_eq!(copied(&world), 0, "--verify {verify}");
        world.assert_idle(0);
    }
}

#[test]
fn parts_of_results_are_not_copied() {
    let world = World::start(&[]);
    let _worker = world.worker(&[]);
    let out = world.path("out");
    let submit = world.submit(&["makes", "--out", &out, "--", "9000000", "5000000"]);
    let (code, lines) = submit.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert_eq!(copied(&world), 0);
}
