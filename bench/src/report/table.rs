//! The report for people.

use heft::units::ByteSize;

use super::figures::Spread;
use super::{Report, Roles, Sum};

pub(super) fn render(report: &Report) -> String {
    let (plan, machine) = (&report.plan, &report.machine);
    let unknown = || "unknown".to_owned();
    let mut text = format!("\n{}\n", report.title());
    text += &format!(
        "{} rounds in turns, driver {}; {} cores, {}, kernel {}, commit {}\n\n",
        plan.rounds,
        plan.driver.name(),
        machine.cores.unwrap_or_default(),
        machine.cpu.clone().unwrap_or_else(unknown),
        machine.kernel.clone().unwrap_or_else(unknown),
        machine.commit.clone().unwrap_or_else(unknown),
    );
    text += &row(["", "MiB/s", "jobs/s", "p50", "p90", "p99", "max"]);
    let sides = [("heft", &report.heft), ("relay", &report.relay)];
    let sides: Vec<(&str, &Sum)> =
        sides.into_iter().filter_map(|(name, sum)| Some((name, sum.as_ref()?))).collect();
    for (name, sum) in &sides {
        let time = |quantile| micros(sum.latencies.quantile_us(quantile));
        let (mib_s, jobs_s) = (format!("{:.0}", sum.mib_s.median), format!("{:.0}", sum.jobs_s.median));
        let max = micros(sum.latencies.max_us());
        text += &row([name, &mib_s, &jobs_s, &time(0.5), &time(0.9), &time(0.99), &max]);
    }
    text += "\n";
    text += &row(["", "RSS peak", "CPU s/GiB", "CPU us/job", "", "", ""]);
    for (name, sum) in &sides {
        let middle = if *name == "heft" { "leader" } else { "relay" };
        text += &role_row(name, middle, sum, |roles| roles.middle, sum.rss_peak.middle);
        text += &role_row(name, "worker", sum, |roles| roles.worker, sum.rss_peak.worker);
        text += &role_row(name, "client", sum, |roles| roles.client, sum.rss_peak.client);
    }
    let ratios = [
        ("throughput", &report.ratios.throughput),
        ("p50", &report.ratios.p50),
        ("p99", &report.ratios.p99),
        ("leader CPU", &report.ratios.leader_cpu),
    ];
    let ratios = ratios.into_iter().filter_map(|(name, ratio)| Some(ratio_line(name, ratio.as_ref()?)));
    let ratios: String = ratios.collect();
    if !ratios.is_empty() {
        text += &format!("\nheft to the relay, median over rounds (least to largest)\n{ratios}");
    }
    text
}

fn ratio_line(name: &str, ratio: &Spread) -> String {
    format!("{name:14}{:>10.2}   ({:.2} to {:.2})\n", ratio.median, ratio.min, ratio.max)
}

fn role_row(
    side: &str,
    role: &str,
    sum: &Sum,
    of: impl Fn(&Roles<Option<f64>>) -> Option<f64>,
    rss_peak: u64,
) -> String {
    let number =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let name = if side == role { side.to_owned() } else { format!("{side} {role}") };
    let rss = ByteSize(rss_peak).to_string();
    let per_gib = number(of(&sum.cpu_per_gib()), 3);
    let per_job = number(of(&sum.cpu_us_per_job()), 1);
    row([&name, &rss, &per_gib, &per_job, "", "", ""])
}

fn row([name, cells @ ..]: [&str; 7]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
    format!("{}\n", format!("{name:13}{cells}").trim_end())
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
