//! Processes that are killed, and disks that are full, in the middle of transfers: no job is lost,
//! none ends twice, nothing is left.

use std::process::Command;

use heft::client::{Client, JobSpec, Options};
use heft::model::{JobRequest, JobStatus};
use uuid::Uuid;

use crate::procs::{Proc, TempDir, Worker, heft, write_program};
use crate::proxy::{Plan, Proxy, Way};
use crate::world::{
    DIGESTS, MIB, World, assert_no_job_directory, descriptors, eventually, expect_digests, job_of,
    submit_files, worker_at,
};

const SIZE: u64 = 24 * MIB as u64;

#[test]
fn a_worker_killed_as_its_inputs_come_leaves_the_job_to_another() {
    let world = World::start(&["--worker-grace", "200ms"]);
    let file = world.noise("in.bin", SIZE);
    let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::FromLeader, 9 * MIB as u64)]);
    let mut first = worker_at(proxy.port, &[]);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    let runs = world.path("runs");
    let submit =
        submit_files(&world.addr(), "digests", &[&file], &["--compress", "none", "--", &runs]);
    proxy.wait_held();
    let second = world.worker(&[]);
    first.proc.kill();
    expect_digests(submit, &[&file]);
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    eventually("the dead worker's connection is gone", || {
        world.status()["workers"].as_array().unwrap().len() == 1
    });
    world.assert_idle(0);
    assert_no_job_directory(&second);
}

#[test]
fn a_worker_killed_as_its_job_runs_leaves_it_to_another_which_gets_the_inputs_anew() {
    let world = World::start(&["--worker-grace", "200ms"]);
    let file = world.noise("in.bin", SIZE);
    let mut first = world.worker(&[]);
    let held = TempDir::new();
    let marker = held.join("held");
    let args = ["--compress", "none", "--", marker.to_str().unwrap()];
    let submit = submit_files(&world.addr(), "holds", &[&file], &args);
    eventually("the job runs", || marker.exists());
    first.proc.kill();
    let second = world.worker(&[]);
    expect_digests(submit, &[&file]);
    world.assert_idle(0);
    assert_no_job_directory(&second);
}

#[test]
fn a_leader_killed_in_the_middle_of_an_upload_comes_back_and_the_client_goes_on_under_the_same_id()
{
    // With a worker that takes the chunks as they come, and without one, so that they lie in the
    // spool.
    for (cut_through, durable) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut world =
            if durable { World::start(&["--durability", "disk"]) } else { World::in_memory(&[]) };
        let file = world.noise("in.bin", SIZE);
        let runs = world.path("runs");
        let worker = cut_through.then(|| world.worker(&[]));
        if cut_through {
            world.until("a worker is there", |status| {
                status["workers"].as_array().unwrap().len() == 1
            });
        }
        let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::ToLeader, 17 * MIB as u64)]);
        let args = ["--compress", "none", "--", &runs];
        let mut submit = submit_files(&proxy.addr(), "digests", &[&file], &args);
        let job = job_of(&mut submit);
        proxy.wait_held();
        if !cut_through {
            eventually("inputs lie in files", || !world.blob_files().is_empty());
        }
        world.restart();
        if !durable {
            // What the killed leader left goes, before the client is back half a second later.
            eventually("the spool is empty", || world.blob_files().is_empty());
        }
        let worker = worker.unwrap_or_else(|| world.worker(&[]));
        expect_digests(submit, &[&file]);
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
        let (code, out, err) = heft(&["result", "get", &world.addr(), &job.to_string()]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(&file.sha256), "{out}");
        if durable {
            // What was on its way, and a window that was not written yet, comes again; nothing else
            // does.
            let sent = proxy.bytes(Way::ToLeader);
            assert!(sent <= SIZE + 12 * MIB as u64, "{sent} bytes were sent for {SIZE}");
        }
        world.assert_idle(0);
        assert_no_job_directory(&worker);
    }
}

#[test]
fn a_client_killed_in_the_middle_of_an_upload_costs_its_job_and_nothing_else() {
    let world = World::start(&["--input-wait", "300ms", "--worker-grace", "200ms"]);
    let file = world.noise("in.bin", SIZE);
    let worker = world.worker(&["--max-par", "1"]);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    for _ in 0..2 {
        let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::ToLeader, 10 * MIB as u64)]);
        let mut submit = submit_files(&proxy.addr(), "digests", &[&file], &["--compress", "none"]);
        proxy.wait_held();
        submit.kill();
        world.assert_idle(0);
    }
    assert_no_job_directory(&worker);
    world.run(&[&file], &[]);
    // And with no worker, from the spool.
    drop(worker);
    world.until("the worker is gone", |status| status["workers"].as_array().unwrap().is_empty());
    let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::ToLeader, 20 * MIB as u64)]);
    let mut submit = submit_files(&proxy.addr(), "digests", &[&file], &["--compress", "none"]);
    proxy.wait_held();
    submit.kill();
    world.assert_idle(0);
}

#[tokio::test]
async fn another_client_with_the_same_id_and_job_goes_on_with_an_upload() {
    let world = World::start(&[]);
    let file = world.noise("in.bin", SIZE);
    let worker = world.worker(&[]);
    let job = Uuid::new_v4();
    let spec = || {
        let request =
            JobRequest { job_id: job, exec_name: "digests".to_owned(), ..JobRequest::default() };
        JobSpec::from(request).file("in.bin", &file.path).unwrap()
    };
    let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::ToLeader, 16 * MIB as u64)]);
    let first = Client::connect(&proxy.addr(), &Options::new("same")).await.unwrap();
    let handle = first.submit(spec()).await.unwrap();
    let held = tokio::task::spawn_blocking(move || {
        proxy.wait_held();
        proxy
    });
    let proxy = held.await.unwrap();
    drop((handle, first));
    let before = proxy.bytes(Way::ToLeader);
    let second = Client::connect(&proxy.addr(), &Options::new("same")).await.unwrap();
    let result = second.submit(spec()).await.unwrap().wait().await.unwrap();
    second.close().await;
    assert_eq!(
        (result.status, result.stdout),
        (JobStatus::Ok, format!("in.bin {}\n", file.sha256))
    );
    let again = proxy.bytes(Way::ToLeader) - before;
    // What had not come, the chunk that was cut, perhaps two that were on their way through, and
    // some talk.
    assert!(again < 12 * MIB as u64, "{again} bytes were sent again after {before}");
    world.assert_idle(0);
    assert_no_job_directory(&worker);
}

/// A worker that may write no file of more than a few MiB, as on a disk that is full.
fn cramped_worker(port: u16) -> (Proc, TempDir) {
    let dir = TempDir::new();
    let exe = dir.join("exe");
    std::fs::create_dir_all(&exe).unwrap();
    write_program(&exe.join("digests"), DIGESTS);
    let mut command = Command::new("sh");
    // 16384 blocks are 8 or 16 MiB, as the shell counts them.
    command.args([
        "-c",
        r#"trap "" XFSZ; ulimit -f 16384; exec "$@""#,
        "sh",
        env!("CARGO_BIN_EXE_heft"),
        "worker",
    ]);
    command.args(["127.0.0.1", &port.to_string(), "--exe-dir", exe.to_str().unwrap()]);
    command.arg("--work-dir").arg(dir.join("jobs")).env("HEFT_LOG", "error");
    (Proc::start("cramped worker", &mut command), dir)
}

#[test]
fn a_worker_that_cannot_write_an_input_leaves_the_job_to_another() {
    let world = World::start(&[]);
    let (large, small) = (world.noise("large.bin", SIZE), world.noise("small.bin", 5 * MIB as u64));
    let (cramped, dir) = cramped_worker(world.leader.port);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    world.run(&[&small], &[]);
    let before = descriptors(&cramped);
    let mut submit = submit_files(&world.addr(), "digests", &[&large], &["--compress", "none"]);
    let job = job_of(&mut submit);
    let roomy = Worker::start(world.leader.port, &[("digests", DIGESTS)], &[]);
    expect_digests(submit, &[&large]);
    world.assert_idle(0);
    assert_no_job_directory(&roomy);
    assert!(!dir.join("jobs/heft").join(job.simple().to_string()).exists());
    world.run(&[&small], &[]);
    eventually("its descriptors are closed", || descriptors(&cramped) <= before);
}

#[test]
fn a_job_whose_inputs_no_worker_can_write_waits_and_says_why_until_it_is_cancelled() {
    let world = World::start(&["--attempts", "2"]);
    let large = world.noise("large.bin", SIZE);
    let (_cramped, dir) = cramped_worker(world.leader.port);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    let mut submit = submit_files(&world.addr(), "digests", &[&large], &["--compress", "none"]);
    let job = job_of(&mut submit);
    submit.wait_for("the reason", |line| line.contains("has no room on its disk").then_some(()));
    let (code, _, err) = heft(&["cancel", &world.addr(), &job.to_string()]);
    assert_eq!(code, Some(0), "{err}");
    let (code, lines) = submit.finish();
    assert_eq!(code, Some(1), "{lines:#?}");
    eventually("nothing is left of it", || {
        std::fs::read_dir(dir.join("jobs/heft"))
            .map_or(0, |left| left.flatten().filter(|e| e.path().is_dir()).count())
            == 0
    });
}
