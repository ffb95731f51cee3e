use super::*;
use crate::args::{Compress, Digest, Driver, Sink, Workload};
use crate::load::{Load, Until};

fn plan() -> Plan {
    Plan {
        workload: Workload::Push,
        driver: Driver::Portable,
        load: Load { size: 64 << 20, in_flight: 4, until: Until::Count(16), rate: None },
        background: None,
        rounds: 3,
        warmup: Duration::ZERO,
        sink: Sink::Drop,
        digest: Digest::ChunkList,
        compress: Compress::Auto,
        only: None,
        relay_lanes: 1,
        out: None,
        json: true,
    }
}

/// 16 jobs of 64 MiB: 1 GiB.
fn measured(seconds: f64, job_ms: u64, middle_cpu_ms: u64) -> Measured {
    let mut latencies = Latencies::new().unwrap();
    (0..16).for_each(|_| latencies.record(Duration::from_millis(job_ms)));
    let ms = Duration::from_millis;
    Measured {
        measured: Tally::new(&latencies, 64 << 20, Duration::from_secs_f64(seconds)).unwrap(),
        latencies,
        bulk: None,
        cpu: Roles { middle: ms(middle_cpu_ms), worker: ms(100), client: ms(50) },
    }
}

fn report(relay: bool) -> Report {
    let heft = [(0.5, 150, 300), (1.0, 100, 400), (0.8, 130, 350)];
    let mut rounds = Vec::new();
    for (seconds, ms, cpu_ms) in heft {
        let mut round = Round::default();
        round.set(Side::Heft, measured(seconds, ms, cpu_ms));
        if relay {
            round.set(Side::Relay, measured(0.4, 100, 200));
        }
        rounds.push(round);
    }
    let mut memory = Memory::default();
    memory.set(Side::Heft, Roles { middle: 50 << 20, worker: 20 << 20, client: 90 << 20 });
    Report::new(&plan(), rounds, memory, Machine::default()).unwrap()
}

fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).unwrap_or_else(|| panic!("no {path} in {value}"));
    found.as_f64().unwrap_or_else(|| panic!("{path} is {found}"))
}

fn near(value: &Value, path: &str, expected: f64) {
    let found = number(value, path);
    assert!((found / expected - 1.0).abs() < 0.005, "{path} is {found}, not {expected}");
}

#[test]
fn the_object_has_what_a_reader_needs() {
    let json = report(true).json();
    assert_eq!((&json["workload"], &json["driver"]), (&"push".into(), &"portable".into()));
    near(&json, "/ratio/throughput", 0.5);
    near(&json, "/ratio/spread/throughput/min", 0.4);
    near(&json, "/ratio/spread/throughput/max", 0.8);
    near(&json, "/ratio/p50", 1.3);
    near(&json, "/ratio/leader_cpu", 1.75);
    near(&json, "/leader/rss_peak_bytes", f64::from(50 << 20));
    near(&json, "/leader/cpu_s_per_gib", 0.35);
    near(&json, "/heft/mib_s", 1280.0);
    near(&json, "/relay/mib_s", 2560.0);
    near(&json, "/heft/p50_us", 130_000.0);
    near(&json, "/heft/p99_us", 150_000.0);
    near(&json, "/heft/worker/cpu_s_per_gib", 0.1);
    near(&json, "/relay/relay/cpu_s_per_gib", 0.2);
    assert_eq!(json["rounds"].as_array().unwrap().len(), 3);
}

#[test]
fn one_side_alone_has_no_ratio() {
    let report = report(false);
    let json = report.json();
    assert!(json["ratio"]["throughput"].is_null() && json["relay"].is_null(), "{json}");
    near(&json, "/heft/mib_s", 1280.0);
    assert!(!report.table().contains("heft to the relay"));
}

#[test]
fn the_table_has_sides_roles_and_ratios() {
    let table = report(true).table();
    for part in [
        "push: jobs of 64 MiB, 4 in flight",
        "heft leader",
        "relay worker",
        "50 MiB",
        "throughput",
        "(0.40 to 0.80)",
    ] {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
}

#[test]
fn mixed_counts_the_bytes_of_large_jobs_and_the_times_of_small_ones() {
    let large = measured(0.5, 150, 300);
    let mut small = measured(1.0, 2, 0);
    small.measured.bytes = 16 * 1024;
    small.bulk = Some(large.measured.clone());
    assert!((small.mib_s() - 2048.0).abs() < 1.0, "{}", small.mib_s());
    assert!((small.jobs_s() - 16.0).abs() < 0.1, "{}", small.jobs_s());
    assert!(small.latencies.quantile_us(0.5).unwrap() < 2_010.0);
}

#[test]
fn a_directory_gets_every_form() {
    let directory = tempfile::tempdir().unwrap();
    report(true).write_to(directory.path()).unwrap();
    for name in ["report.json", "heft.hgrm", "relay.hgrm", "percentiles.svg"] {
        assert!(directory.path().join(name).metadata().unwrap().len() > 100, "{name}");
    }
}
