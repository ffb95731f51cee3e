use super::*;
use crate::args::{Compress, Digest, RelayBy, Sink, Workload};
use crate::load::{Load, Until};
use crate::variant::{Drivers, Durabilities, Verifies, Verify, variants};

const MEMORY: Durability = Durability::Memory;

fn plan(drivers: Drivers, verifies: Verifies, durabilities: Durabilities) -> Plan {
    Plan {
        workload: Workload::Push,
        variants: variants(drivers, verifies, durabilities),
        load: Load { size: 64 << 20, in_flight: 4, until: Until::Count(16), rate: None },
        background: None,
        submitters: 1,
        rounds: 3,
        warmup: Duration::ZERO,
        sink: Sink::Drop,
        digest: Digest::ChunkList,
        compress: Compress::Auto,
        only: None,
        disk_bytes: None,
        data: None,
        relay_lanes: 1,
        relay_by: RelayBy::Copy,
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
        taken: None,
        bulk: None,
        cpu: Roles { middle: ms(middle_cpu_ms), worker: ms(100), client: ms(50) },
        log: None,
    }
}

/// Rounds of heft's usual variant.
const USUAL: [(f64, u64, u64); 3] = [(0.5, 150, 300), (1.0, 100, 400), (0.8, 130, 350)];

fn report(relay: bool) -> Report {
    let usual =
        Side::Heft(Variant { driver: Driver::Portable, verify: Verify::End, durability: MEMORY });
    let mut rounds = Vec::new();
    for (seconds, ms, cpu_ms) in USUAL {
        let mut round = Round::default();
        round.set(usual, measured(seconds, ms, cpu_ms));
        if relay {
            round.set(Side::Relay, measured(0.4, 100, 200));
        }
        rounds.push(round);
    }
    let mut memory = Memory::default();
    memory.set(usual, Roles { middle: 50 << 20, worker: 20 << 20, client: 90 << 20 });
    let plan = plan(Drivers::Portable, Verifies::End, Durabilities::Memory);
    Report::new(&plan, rounds, &memory, Machine::default()).unwrap()
}

/// Every variant: uring takes half the time and a quarter of the leader's processor time, a check
/// by the leader doubles both.
fn report_of_all(relay: bool) -> Report {
    let plan = plan(Drivers::Both, Verifies::Both, Durabilities::Memory);
    let mut rounds = Vec::new();
    for (number, (seconds, ms, cpu_ms)) in (0..).zip(USUAL) {
        let mut round = Round::default();
        for side in plan.sides(number) {
            let (time, cpu) = match side {
                Side::Relay if relay => {
                    round.set(side, measured(0.4, 100, 200));
                    continue;
                }
                Side::Relay | Side::Disk => continue,
                Side::Heft(variant) => match (variant.driver, variant.verify) {
                    (Driver::Portable, Verify::End) => (4, 4),
                    (Driver::Uring, Verify::End) => (2, 1),
                    (Driver::Portable, Verify::Hop) => (8, 8),
                    (Driver::Uring, Verify::Hop) => (4, 2),
                },
            };
            let seconds = seconds * f64::from(u32::try_from(time).unwrap()) / 4.0;
            round.set(side, measured(seconds, ms * time / 4, cpu_ms * cpu / 4));
        }
        rounds.push(round);
    }
    let mut memory = Memory::default();
    for (number, variant) in (1..).zip(&plan.variants) {
        memory.set(Side::Heft(*variant), Roles { middle: number << 20, worker: 1, client: 1 });
    }
    Report::new(&plan, rounds, &memory, Machine::default()).unwrap()
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
    near(&json, "/rounds/1/heft/mib_s", 1024.0);
    near(&json, "/rounds/1/relay/mib_s", 2560.0);
}

#[test]
fn one_variant_is_in_the_list_as_it_is_at_the_top() {
    for json in [report(true).json(), report(false).json()] {
        assert_eq!(json["variants"].as_array().unwrap().len(), 1);
        for member in
            ["driver", "verify", "durability", "ratio", "leader", "worker", "client", "heft"]
        {
            assert_eq!(json["variants"][0][member], json[member], "{member}");
        }
        assert_eq!((&json["verify"], &json["durability"]), (&"end".into(), &"memory".into()));
        for member in ["to_memory", "goal", "log"] {
            assert!(json["variants"][0][member].is_null(), "{member}: {json}");
        }
        assert!(json["disk"].is_null(), "{json}");
        assert!(json["variants"][0]["to_portable"].is_null(), "{json}");
        assert_eq!(json["rounds"][2]["variants"][0]["heft"], json["rounds"][2]["heft"]);
    }
}

#[test]
fn every_variant_has_its_figures_and_the_first_is_at_the_top() {
    let json = report_of_all(true).json();
    let names = |value: &Value| -> Vec<String> {
        let variants = value["variants"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        variants.map(|variant| text(&variant["driver"]) + "-" + &text(&variant["verify"])).collect()
    };
    let all = ["portable-end", "uring-end", "portable-hop", "uring-hop"];
    assert_eq!(names(&json), all);
    assert_eq!((&json["driver"], &json["verify"]), (&"portable".into(), &"end".into()));
    for member in ["ratio", "leader", "worker", "client", "heft"] {
        assert_eq!(json["variants"][0][member], json[member], "{member}");
    }
    near(&json, "/ratio/throughput", 0.5);
    near(&json, "/variants/1/ratio/throughput", 1.0);
    near(&json, "/variants/2/ratio/throughput", 0.25);
    near(&json, "/variants/3/ratio/spread/throughput/max", 0.8);
    near(&json, "/variants/1/heft/mib_s", 2560.0);
    near(&json, "/variants/2/heft/p50_us", 260_000.0);
    near(&json, "/variants/3/leader/cpu_s_per_gib", 0.175);
    near(&json, "/variants/3/leader/rss_peak_bytes", f64::from(4 << 20));
    for (number, round) in json["rounds"].as_array().unwrap().iter().enumerate() {
        assert_eq!(names(round), all, "whatever the order of turns in round {number}");
        assert_eq!(round["variants"][0]["heft"], round["heft"]);
        near(round, "/relay/mib_s", 2560.0);
    }
    near(&json, "/rounds/0/variants/1/heft/mib_s", 4096.0);
}

#[test]
fn uring_is_compared_with_portable_of_the_same_check() {
    for json in [report_of_all(true).json(), report_of_all(false).json()] {
        for uring in [1, 3] {
            near(&json, &format!("/variants/{uring}/to_portable/throughput"), 2.0);
            near(&json, &format!("/variants/{uring}/to_portable/p50"), 0.5);
            near(&json, &format!("/variants/{uring}/to_portable/p99"), 0.5);
            near(&json, &format!("/variants/{uring}/to_portable/leader_cpu"), 0.25);
            near(&json, &format!("/variants/{uring}/to_portable/spread/throughput/min"), 2.0);
        }
        assert!(
            json["variants"][0]["to_portable"].is_null()
                && json["variants"][2]["to_portable"].is_null()
        );
    }
    let relayless = report_of_all(false).json();
    assert!(relayless["variants"][1]["ratio"]["throughput"].is_null(), "{relayless}");
}

#[test]
fn the_relay_alone_has_no_variants() {
    let mut round = Round::default();
    round.set(Side::Relay, measured(0.4, 100, 200));
    let plan = plan(Drivers::Both, Verifies::End, Durabilities::Memory);
    let report = Report::new(&plan, vec![round], &Memory::default(), Machine::default()).unwrap();
    let json = report.json();
    assert!(
        json["heft"].is_null() && json["leader"].is_null() && json["ratio"]["p50"].is_null(),
        "{json}"
    );
    assert_eq!((&json["driver"], &json["variants"]), (&"portable".into(), &json!([])));
    near(&json, "/relay/mib_s", 2560.0);
    assert!(report.table().contains("relay worker") && !report.table().contains("heft"));
}

#[test]
fn one_side_alone_has_no_ratio() {
    let report = report(false);
    let json = report.json();
    assert!(json["ratio"]["throughput"].is_null() && json["relay"].is_null(), "{json}");
    near(&json, "/heft/mib_s", 1280.0);
    assert!(!report.table().contains("to the relay"));
}

#[test]
fn the_table_has_sides_roles_and_ratios() {
    let table = report(true).table();
    for part in [
        "push: jobs of 64 MiB, 4 in flight",
        "heft leader",
        "relay worker",
        "50 MiB",
        "driver portable, verify end, durability memory",
        "heft to the relay",
        "throughput",
        "(0.40 to 0.80)",
    ] {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
}

#[test]
fn the_table_has_a_line_for_every_variant_and_is_not_too_wide() {
    let table = report_of_all(true).table();
    let (_, ratios) = table.split_once("\nto the relay").unwrap();
    let (to_relay, to_portable) = ratios.split_once("\nto the portable driver").unwrap();
    for name in ["heft-portable-end", "heft-uring-end", "heft-portable-hop", "heft-uring-hop"] {
        for role in ["leader", "worker", "client"] {
            assert!(
                table.contains(&format!("\n{name} {role} ")),
                "{name} {role} is missing:\n{table}"
            );
        }
        assert!(to_relay.contains(&format!("\n{name} ")), "{name} is missing:\n{table}");
        assert_eq!(to_portable.contains(&format!("\n{name} ")), name.contains("uring"), "{table}");
    }
    assert!(table.contains("\nrelay worker "), "{table}");
    assert!(
        to_relay.contains("0.50 (0.40 to 0.80)") && to_portable.contains("2.00 (2.00 to 2.00)"),
        "{table}"
    );
    assert!(table.lines().all(|line| line.len() <= 110), "{table}");
    let relayless = report_of_all(false).table();
    assert!(
        !relayless.contains("to the relay") && relayless.contains("to the portable"),
        "{relayless}"
    );
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

#[test]
fn several_variants_have_histograms_of_their_own_and_a_line_each() {
    let directory = tempfile::tempdir().unwrap();
    report_of_all(true).write_to(directory.path()).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "heft-portable-end.hgrm",
        "heft-portable-hop.hgrm",
        "heft-uring-end.hgrm",
        "heft-uring-hop.hgrm",
        "percentiles.svg",
        "relay.hgrm",
        "report.json",
    ];
    assert_eq!(names, expected);
    let svg = std::fs::read_to_string(directory.path().join("percentiles.svg")).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 5);
    for colour in svg::VARIANTS.into_iter().take(4).chain([svg::RELAY]) {
        assert_eq!(svg.matches(&format!("stroke=\"{colour}\"")).count(), 1, "{colour}");
    }
}

/// Memory and disk, both checking: in memory a GiB takes half a second to a second, on the disk
/// `slower` times as long, and the disk writes 256 MiB in a quarter of a second.
fn report_of_disk(slower: f64) -> Report {
    let mut plan = plan(Drivers::Portable, Verifies::Hop, Durabilities::Both);
    plan.disk_bytes = Some(256 << 20);
    let mut rounds = Vec::new();
    for (seconds, ms, cpu_ms) in USUAL {
        let mut round = Round::default();
        for variant in plan.variants.iter().copied() {
            let mut found = measured(seconds, ms, cpu_ms);
            if variant.durability == Durability::Disk {
                found = measured(seconds * slower, 2 * ms, cpu_ms);
                found.log =
                    Some(LogCost { records: 64, bytes: 16 * 200, syncs: 8, sync_us: 4_000 });
                found.taken = Some(found.latencies.clone());
            }
            round.set(Side::Heft(variant), found);
        }
        let mut syncs = Latencies::new().unwrap();
        syncs.record(Duration::from_micros(300));
        let (recycled, new) = (Duration::from_millis(250), Duration::from_millis(500));
        round.set_disk(DiskTurn { bytes: 256 << 20, recycled, new, syncs, direct: true });
        rounds.push(round);
    }
    Report::new(&plan, rounds, &Memory::default(), Machine::default()).unwrap()
}

#[test]
fn the_disk_is_compared_with_memory_of_the_same_rounds() {
    let json = report_of_disk(2.0).json();
    assert_eq!(
        (&json["durability"], &json["variants"][1]["durability"]),
        (&"memory".into(), &"disk".into())
    );
    assert_eq!(json["rounds"][0]["variants"][1]["durability"], "disk");
    assert!(
        json["variants"][0]["to_memory"].is_null() && json["variants"][1]["to_portable"].is_null()
    );
    near(&json, "/variants/1/to_memory/throughput", 0.5);
    near(&json, "/variants/1/to_memory/spread/throughput/max", 0.5);
    near(&json, "/variants/1/to_memory/p50", 2.0);
    near(&json, "/variants/1/heft/taken_p50_us", 260_000.0);
    assert!(json["variants"][0]["heft"].get("taken_p50_us").is_none());
}

#[test]
fn what_a_log_took_is_told_for_a_sync_and_for_a_job() {
    let report = report_of_disk(2.0);
    let json = report.json();
    near(&json, "/variants/1/log/syncs", 24.0);
    near(&json, "/variants/1/log/jobs_per_sync", 2.0);
    near(&json, "/variants/1/log/records_per_sync", 8.0);
    near(&json, "/variants/1/log/sync_mean_us", 500.0);
    near(&json, "/variants/1/log/bytes_per_job", 200.0);
    near(&json, "/rounds/2/variants/1/heft/log/syncs", 8.0);
    assert!(json["variants"][0]["log"].is_null());
    let table = report.table();
    let line = "the log of heft-portable-hop-disk\n2.0 jobs and 8.0 records to a sync, 24 of them of 500 us on average";
    assert!(table.contains(line), "{table}");
    assert!(table.contains("until the leader says that it has a job"), "{table}");
}

#[test]
fn the_disk_by_itself_is_told() {
    let report = report_of_disk(2.0);
    let json = report.json();
    near(&json, "/disk/mib_s", 1024.0);
    near(&json, "/disk/new_mib_s", 512.0);
    near(&json, "/disk/sync_p50_us", 300.0);
    near(&json, "/rounds/1/disk/mib_s", 1024.0);
    let table = report.table();
    for part in [
        "O_DIRECT",
        "into recycled files           1024 MiB/s",
        "300 us p50",
        "to the same in memory",
    ] {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
    assert!(table.lines().all(|line| line.len() <= 110), "{table}");
}

#[test]
fn a_push_to_the_disk_is_held_to_the_lesser_of_two_goals() {
    // In memory 2048, 1024 and 1280 MiB/s; 0.8 of the disk are 819: the disk is the lesser goal in
    // two of the rounds.
    let (slow, fast) = (report_of_disk(2.0), report_of_disk(1.1));
    let (slow, fast, table) = (slow.json(), fast.json(), slow.table());
    near(&slow, "/variants/1/goal/reached", 640.0 / 819.2);
    assert_eq!(
        (&slow["variants"][1]["goal"]["met"], &fast["variants"][1]["goal"]["met"]),
        (&false.into(), &true.into())
    );
    assert!(
        table.contains("goal for heft-portable-hop-disk") && table.contains("not met"),
        "{table}"
    );
    assert!(slow["variants"][0]["goal"].is_null());
}
