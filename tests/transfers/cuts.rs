//! Connections that are cut in the middle of transfers, at bytes that a seed names, on either hop
//! and in either direction: the right bytes arrive, the job runs once, and only what is missing
//! moves again.

use crate::procs::Worker;
use crate::proxy::{Plan, Proxy, Way};
use crate::support::scaled;
use crate::world::{
    MAKES, MIB, Seeded, Sent, World, assert_no_job_directory, expect_digests, sha256_of,
    submit_files, worker_at,
};

/// Chains that run at a time; each has the cuts of its seed one after the other.
const CHAINS: u64 = 6;

/// Bytes of a transfer. Enough for all cuts, some of which come before the first chunk.
fn size() -> u64 {
    u64::from(scaled(12, 40)) * MIB as u64
}

/// Cuts of one chain.
fn cuts_each() -> u64 {
    u64::from(scaled(5, 34))
}

/// Where the connections of a chain are cut. Most cuts fall between the second chunk and the
/// fourth; some in a head or a hello.
fn plans(seed: u64, way: Way) -> Vec<Plan> {
    let mut seeded = Seeded(seed);
    let after = |seeded: &mut Seeded| match seeded.below(4) {
        0 => seeded.below(2000),
        _ => seeded.below(3 * MIB as u64),
    };
    (0..cuts_each()).map(|_| Plan::Cut(way, after(&mut seeded) + 1)).collect()
}

/// What may go through a relay: the blob, what each cut threw away, and some talk.
fn bound(proxy: &Proxy) -> u64 {
    // A chunk that was cut is sent again whole; a second one may have been under way behind it.
    size() + proxy.cuts() * 2 * MIB as u64 + MIB as u64
}

/// A chain: what is cut, and the file that goes through it.
struct Chain {
    seed: u64,
    file: Sent,
    runs: String,
}

fn chains(world: &World) -> Vec<Chain> {
    let chain = |seed: u64| Chain {
        seed,
        file: world.noise(&format!("{seed}.bin"), size()),
        runs: world.path(&format!("{seed}.runs")),
    };
    (0..CHAINS).map(chain).collect()
}

/// The job of each chain ran once.
fn assert_ran_once(chains: &[Chain]) {
    for chain in chains {
        let runs = std::fs::read_to_string(&chain.runs).unwrap();
        assert_eq!(runs, "run\n", "seed {}", chain.seed);
    }
}

fn clients_are_cut(way: Way) {
    let world = World::start(&[]);
    let worker = world.worker(&["--max-par", "6"]);
    let chains = chains(&world);
    let under_way: Vec<_> = chains
        .iter()
        .map(|chain| {
            let proxy = Proxy::start(world.leader.port, plans(chain.seed, way));
            let args = ["--compress", "none", "--", &chain.runs];
            let submit = submit_files(&proxy.addr(), "digests", &[&chain.file], &args);
            (proxy, submit)
        })
        .collect();
    for (chain, (proxy, submit)) in chains.iter().zip(under_way) {
        expect_digests(submit, &[&chain.file]);
        let sent = proxy.bytes(Way::ToLeader);
        assert!(
            sent <= bound(&proxy),
            "seed {}: {sent} bytes after {} cuts",
            chain.seed,
            proxy.cuts()
        );
        // What comes from the leader is little, so that not every cut in that direction falls due.
        if way == Way::ToLeader {
            assert!(proxy.cuts() >= 3, "seed {}: {proxy:?}", chain.seed);
        }
    }
    assert_ran_once(&chains);
    world.assert_idle(0);
    assert_no_job_directory(&worker);
}

#[test]
fn a_client_whose_connections_are_cut_as_it_sends_goes_on_where_it_was() {
    clients_are_cut(Way::ToLeader);
}

#[test]
fn a_client_whose_connections_are_cut_as_it_listens_goes_on_where_it_was() {
    clients_are_cut(Way::FromLeader);
}

/// Each job can only go to its own worker, whose connections are cut.
fn workers_are_cut(way: Way) {
    let world = World::start(&[]);
    let chains = chains(&world);
    let workers: Vec<(Proxy, Worker)> = chains
        .iter()
        .map(|chain| {
            let proxy = Proxy::start(world.leader.port, plans(100 + chain.seed, way));
            let worker = worker_at(proxy.port, &[&format!("own.{}", chain.seed)]);
            (proxy, worker)
        })
        .collect();
    let submits: Vec<_> = chains
        .iter()
        .map(|chain| {
            let subject = format!("own.{}", chain.seed);
            let args = ["--compress", "none", "--subject", &subject, "--", &chain.runs];
            submit_files(&world.addr(), "digests", &[&chain.file], &args)
        })
        .collect();
    for ((chain, submit), (proxy, worker)) in chains.iter().zip(submits).zip(&workers) {
        expect_digests(submit, &[&chain.file]);
        let sent = proxy.bytes(Way::FromLeader);
        assert!(
            sent <= bound(proxy),
            "seed {}: {sent} bytes after {} cuts",
            chain.seed,
            proxy.cuts()
        );
        if way == Way::FromLeader {
            assert!(proxy.cuts() >= 3, "seed {}: {proxy:?}", chain.seed);
        }
        assert_no_job_directory(worker);
    }
    assert_ran_once(&chains);
    world.assert_idle(0);
}

#[test]
fn a_worker_whose_connections_are_cut_as_inputs_come_goes_on_where_it_was() {
    workers_are_cut(Way::FromLeader);
}

#[test]
fn a_worker_whose_connections_are_cut_as_it_answers_goes_on_where_it_was() {
    workers_are_cut(Way::ToLeader);
}

#[test]
fn results_come_whole_over_connections_that_are_cut() {
    let world = World::start(&[]);
    let archive = (size() - MIB as u64 / 2).to_string();
    let stdout = (3 * MIB).to_string();
    let chains: Vec<_> = (200..200 + CHAINS)
        .map(|seed| {
            // Half of the chains are cut at the worker as it sends, half at the client as it gets.
            let at_worker = seed % 2 == 0;
            let to_worker = if at_worker { plans(seed, Way::ToLeader) } else { Vec::new() };
            let to_client = if at_worker { Vec::new() } else { plans(seed, Way::FromLeader) };
            let (to_worker, to_client) = (
                Proxy::start(world.leader.port, to_worker),
                Proxy::start(world.leader.port, to_client),
            );
            let subject = format!("own.{seed}");
            let worker = Worker::start(to_worker.port, &[("makes", MAKES)], &[&subject]);
            let out = world.path(&seed.to_string());
            let args = ["makes", "--out", &out, "--subject", &subject, "--", &archive, &stdout];
            let submit = crate::world::submit_at(&to_client.addr(), &args);
            (seed, to_worker, to_client, worker, out, submit)
        })
        .collect();
    for (seed, to_worker, to_client, worker, out, submit) in chains {
        let (code, lines) = submit.finish();
        assert_eq!(code, Some(0), "seed {seed}: {lines:#?}");
        let made = sha256_of(&std::path::Path::new(&out).join("made.bin"));
        assert!(
            lines.iter().any(|line| line.ends_with(&made)),
            "seed {seed}: {made} is not in {lines:#?}"
        );
        let printed: usize =
            lines.iter().map(|line| line.matches('p').count().min(line.len())).max().unwrap();
        assert!(printed >= 3 * MIB, "seed {seed}: {printed} bytes were printed");
        for (proxy, way) in [(&to_worker, Way::ToLeader), (&to_client, Way::FromLeader)] {
            let sent = proxy.bytes(way);
            let most = bound(proxy) + 3 * MIB as u64;
            assert!(sent <= most, "seed {seed}: {sent} bytes after {} cuts", proxy.cuts());
        }
        assert!(
            to_worker.cuts() + to_client.cuts() >= 3,
            "seed {seed}: {to_worker:?} {to_client:?}"
        );
        assert_no_job_directory(&worker);
    }
    world.assert_idle(2 * CHAINS);
}
