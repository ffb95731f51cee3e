//! The report for people. Its tables fit 110 columns, also with several variants.

use heft::units::ByteSize;

use crate::variant::{Side, Variant};

use super::figures::Spread;
use super::{Outcome, Ratios, Report, Roles, Sum};

/// What stands behind the name of a side where it is one of its processes, and the width of names
/// at least.
const ROLE: usize = " worker".len();
const NAME: usize = 13;

pub(super) fn render(report: &Report) -> String {
    let plan = &report.plan;
    let mut text = format!("\n{}\n", report.title());
    let variant = match plan.variants.as_slice() {
        [Variant { driver, verify, durability }] => {
            format!(
                ", driver {}, verify {}, durability {}",
                driver.name(),
                verify.name(),
                durability.name()
            )
        }
        _ => String::new(),
    };
    text += &format!("{} rounds in turns{variant}; {}\n\n", plan.rounds, report.machine.line());
    let longest = report.sums().map(|(side, _)| plan.label(side).len()).max().unwrap_or_default();
    let width = (longest + ROLE + 1).max(NAME);
    text += &row(width, ["", "MiB/s", "jobs/s", "p50", "p90", "p99", "max"]);
    for (side, sum) in report.sums() {
        let time = |quantile| micros(sum.latencies.quantile_us(quantile));
        let (mib_s, jobs_s) =
            (format!("{:.0}", sum.mib_s.median), format!("{:.0}", sum.jobs_s.median));
        let max = micros(sum.latencies.max_us());
        let name = plan.label(side);
        text += &row(width, [&name, &mib_s, &jobs_s, &time(0.5), &time(0.9), &time(0.99), &max]);
    }
    text += "\n";
    text += &row(width, ["", "RSS peak", "CPU s/GiB", "CPU us/job", "", "", ""]);
    for (side, sum) in report.sums() {
        let label = plan.label(side);
        let middle = match side {
            Side::Heft(_) => format!("{label} leader"),
            Side::Relay | Side::Disk => label.clone(),
        };
        text += &role_row(width, &middle, sum, |roles| roles.middle, sum.rss_peak.middle);
        let (worker, client) = (format!("{label} worker"), format!("{label} client"));
        text += &role_row(width, &worker, sum, |roles| roles.worker, sum.rss_peak.worker);
        text += &role_row(width, &client, sum, |roles| roles.client, sum.rss_peak.client);
    }
    text += &match report.variants.as_slice() {
        [] => String::new(),
        [one] => ratio_lines(&one.to_relay),
        _ => ratio_rows(report, longest),
    };
    text + &taken_rows(report, width) + &disk_lines(report)
}

/// How long it took until the leader said that it has a job.
fn taken_rows(report: &Report, width: usize) -> String {
    let mut text = String::new();
    for (side, sum) in report.sums() {
        let Some(taken) = &sum.taken else { continue };
        if text.is_empty() {
            text += "\nuntil the leader says that it has a job\n";
            text += &row(width, ["", "p50", "p90", "p99", "max", "", ""]);
        }
        let time = |quantile| micros(taken.quantile_us(quantile));
        let (name, max) = (report.plan.label(side), micros(taken.max_us()));
        text += &row(width, [&name, &time(0.5), &time(0.9), &time(0.99), &max, "", ""]);
    }
    text
}

/// What leaders asked of the disk, what it does by itself, and what that is held to.
fn disk_lines(report: &Report) -> String {
    let mut text = String::new();
    for (side, sum) in report.sums() {
        if let Some(log) = &sum.log {
            text += &format!("\nthe log of {}\n{}\n", report.plan.label(side), log.line());
        }
    }
    text += &report.disk.as_ref().map(super::DiskSum::text).unwrap_or_default();
    for outcome in &report.variants {
        if let Some(goal) = &outcome.goal {
            text += &format!("\n{}", goal.text(&report.plan.label(Side::Heft(outcome.variant))));
        }
    }
    text
}

fn named(ratios: &Ratios) -> [(&'static str, Option<&Spread>); 4] {
    [
        ("throughput", ratios.throughput.as_ref()),
        ("p50", ratios.p50.as_ref()),
        ("p99", ratios.p99.as_ref()),
        ("leader CPU", ratios.leader_cpu.as_ref()),
    ]
}

/// One variant: a line for each ratio.
fn ratio_lines(ratios: &Ratios) -> String {
    let lines =
        named(ratios).into_iter().filter_map(|(name, ratio)| Some(ratio_line(name, ratio?)));
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\nheft to the relay, median over rounds (least to largest)\n{lines}"),
    }
}

fn ratio_line(name: &str, ratio: &Spread) -> String {
    format!("{name:14}{:>10.2}   ({:.2} to {:.2})\n", ratio.median, ratio.min, ratio.max)
}

/// Several variants: a line for each of them.
fn ratio_rows(report: &Report, width: usize) -> String {
    let to_relay: Vec<(&Outcome, &Ratios)> = match report.relay {
        Some(_) => report.variants.iter().map(|outcome| (outcome, &outcome.to_relay)).collect(),
        None => Vec::new(),
    };
    let to_portable: Vec<(&Outcome, &Ratios)> = report
        .variants
        .iter()
        .filter_map(|outcome| Some((outcome, outcome.to_portable.as_ref()?)))
        .collect();
    let to_memory: Vec<(&Outcome, &Ratios)> = report
        .variants
        .iter()
        .filter_map(|outcome| Some((outcome, outcome.to_memory.as_ref()?)))
        .collect();
    let blocks = [
        ("to the relay", to_relay),
        ("to the portable driver with the same check", to_portable),
        ("to the same in memory", to_memory),
    ];
    let mut text = String::new();
    for (what, rows) in blocks.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        text += &format!("\n{what}, median over rounds (least to largest)\n");
        text += &ratio_row(width, "", named(&Ratios::default()).map(|(name, _)| name.to_owned()));
        for (outcome, ratios) in rows {
            let name = report.plan.label(Side::Heft(outcome.variant));
            text += &ratio_row(width, &name, named(ratios).map(|(_, ratio)| ratio_cell(ratio)));
        }
    }
    text
}

fn ratio_cell(ratio: Option<&Spread>) -> String {
    ratio.map_or_else(
        || "-".to_owned(),
        |ratio| format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max),
    )
}

fn ratio_row(width: usize, name: &str, cells: [String; 4]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>21}")).collect();
    format!("{name:width$}{cells}\n")
}

fn role_row(
    width: usize,
    name: &str,
    sum: &Sum,
    of: impl Fn(&Roles<Option<f64>>) -> Option<f64>,
    rss_peak: u64,
) -> String {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let rss = ByteSize(rss_peak).to_string();
    let per_gib = number(of(&sum.cpu_per_gib()), 3);
    let per_job = number(of(&sum.cpu_us_per_job()), 1);
    row(width, [name, &rss, &per_gib, &per_job, "", "", ""])
}

fn row(width: usize, [name, cells @ ..]: [&str; 7]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
    format!("{}\n", format!("{name:width$}{cells}").trim_end())
}

/// A time in the unit in which it has few digits.
pub(super) fn micros(time: Option<f64>) -> String {
    match time {
        None => "-".to_owned(),
        Some(us) if us < 1_000.0 => format!("{us:.0} us"),
        Some(us) if us < 100_000.0 => format!("{:.2} ms", us / 1e3),
        Some(us) if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        Some(us) => format!("{:.2} s", us / 1e6),
    }
}
