//! Files of every size and kind, and jobs that wait.

use crate::procs::heft;
use crate::proxy::{Proxy, Way};
use crate::support::scaled;
use crate::world::{MIB, World, assert_no_job_directory, expect_digests, submit_files};

#[test]
fn files_of_every_size_arrive_as_they_were_sent_and_leave_nothing_behind() {
    let world = World::start(&[]);
    let worker = world.worker(&[]);
    let mib = MIB as u64;
    let largest = u64::from(scaled(64, 2048)) * mib;
    let sizes = [0, 1, 4 * mib - 1, 4 * mib, 4 * mib + 1, 5 * mib, largest];
    let files: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(index, size)| world.noise(&format!("{index}.bin"), *size))
        .collect();
    for file in &files {
        world.run(&[file], &[]);
    }
    // Large and small ones together, and one that is under two names.
    world.run(&files.iter().collect::<Vec<_>>(), &[]);
    world.assert_idle(0);
    assert_no_job_directory(&worker);
}

#[test]
fn every_codec_and_digest_brings_the_same_bytes_in_fewer() {
    let world = World::start(&[]);
    let worker = world.worker(&[]);
    let size = 9 * MIB as u64 + 12_345;
    let mut line = 0_u32;
    let text = world.file("table.csv", size, |chunk| {
        for cell in chunk.chunks_mut(16) {
            line += 1;
            cell.copy_from_slice(&format!("{line:08},value\n\n\n").as_bytes()[..cell.len()]);
        }
    });
    let noise = world.noise("noise.bin", 5 * MIB as u64);
    for (codec, pays) in [("zstd", true), ("brotli", true), ("gzip", true), ("none", false)] {
        let proxy = Proxy::start(world.leader.port, []);
        let submit = submit_files(&proxy.addr(), "digests", &[&text], &["--compress", codec]);
        expect_digests(submit, &[&text]);
        let sent = proxy.bytes(Way::ToLeader);
        assert_eq!(sent < size / 2, pays, "{codec}: {sent} bytes were sent for {size}");
    }
    for digest in ["chunk-list", "sha256", "blake3"] {
        world.run(&[&text, &noise], &["--digest", digest, "--compress", "zstd"]);
    }
    world.assert_idle(0);
    assert_no_job_directory(&worker);
}

#[test]
fn without_a_worker_inputs_wait_in_the_spool_and_the_client_hears_why() {
    let world = World::in_memory(&[]);
    // More than may wait in memory: a quarter of 48 buffers.
    let files: Vec<_> =
        (0..3).map(|index| world.noise(&format!("{index}.bin"), 12 * MIB as u64)).collect();
    let mut submits: Vec<_> = files
        .iter()
        .map(|file| submit_files(&world.addr(), "digests", &[file], &["--compress", "none"]))
        .collect();
    for submit in &mut submits {
        submit.wait_for("that it waits, and for what", |line| {
            line.contains("no connected worker").then_some(())
        });
        submit.wait_for("that it is queued", |line| {
            line.contains(r#""event":"submitted""#).then_some(())
        });
    }
    let status = world.status();
    assert_eq!(status["leader"]["spool_bytes"], 36 * MIB as u64, "{status:#}");
    assert!(!world.blob_files().is_empty(), "not all of it is in memory");
    let worker = world.worker(&[]);
    for (submit, file) in submits.into_iter().zip(&files) {
        expect_digests(submit, &[file]);
    }
    world.assert_idle(0);
    assert_no_job_directory(&worker);
}

#[test]
fn a_full_spool_makes_senders_wait_until_a_worker_comes() {
    let world = World::in_memory(&["--spool-max", "8MiB"]);
    let files: Vec<_> =
        (0..3).map(|index| world.noise(&format!("{index}.bin"), 6 * MIB as u64)).collect();
    let mut submits: Vec<_> = files
        .iter()
        .map(|file| submit_files(&world.addr(), "digests", &[file], &["--compress", "none"]))
        .collect();
    // One of them fits; which one is theirs to settle. Two find the spool full.
    let status = world.until("the spool is full", |status| {
        status["leader"]["spool_bytes"].as_u64() >= Some(8 * MIB as u64)
    });
    assert!(status["leader"]["spool_bytes"].as_u64() <= Some(8 * MIB as u64), "{status:#}");
    let worker = world.worker(&[]);
    let mut told = 0;
    for (submit, file) in submits.drain(..).zip(&files) {
        let (code, lines) = submit.finish();
        assert_eq!(code, Some(0), "{lines:#?}");
        assert!(lines.contains(&format!("{} {}", file.name, file.sha256)), "{lines:#?}");
        told += usize::from(lines.iter().any(|line| line.contains("--spool-max")));
    }
    assert!(told > 0, "nobody was told that the spool is full");
    world.assert_idle(0);
    assert_no_job_directory(&worker);
}

#[test]
fn a_cancelled_upload_leaves_nothing_and_frees_its_worker() {
    let world = World::in_memory(&["--spool-max", "2MiB"]);
    let file = world.noise("in.bin", 16 * MIB as u64);
    let mut submit = submit_files(&world.addr(), "digests", &[&file], &["--compress", "none"]);
    let job = crate::world::job_of(&mut submit);
    world.until("it has begun", |status| status["leader"]["spool_bytes"].as_u64() > Some(0));
    let (code, _, err) = heft(&["cancel", &world.addr(), &job.to_string()]);
    assert_eq!(code, Some(0), "{err}");
    let (code, lines) = submit.finish();
    assert_eq!(code, Some(1), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("cancelled by")), "{lines:#?}");
    world.assert_idle(0);
    let _worker = world.worker(&["--max-par", "1"]);
    world.run(&[&file], &[]);
    world.assert_idle(0);
}
