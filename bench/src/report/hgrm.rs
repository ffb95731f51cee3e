//! Percentile distributions in the text form that all HdrHistogram tools read and plot, in
//! microseconds.

use std::fmt::Write as _;

use crate::latency::{DIGITS, Latencies, micros};

/// Lines for each halving of the distance to 100 %, as other tools have by default.
const TICKS_PER_HALF: u32 = 5;

pub(super) fn render(latencies: &Latencies) -> String {
    let histogram = latencies.histogram();
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (micros(step.value_iterated_to()), step.quantile_iterated_to());
        let line = match quantile < 1.0 {
            true => writeln!(
                text,
                "{value:12.3} {quantile:2.12} {total:10} {:14.2}",
                1.0 / (1.0 - quantile)
            ),
            false => writeln!(text, "{value:12.3} {quantile:2.12} {total:10}"),
        };
        // Writing to a text never fails.
        line.unwrap_or_default();
    }
    let (mean, deviation) = (histogram.mean() / 1_000.0, histogram.stdev() / 1_000.0);
    let max = micros(histogram.max());
    text += &format!("#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]\n");
    text += &format!("#[Max     = {max:12.3}, Total count    = {:12}]\n", histogram.len());
    text += &format!(
        "#[Buckets = {:12}, SubBuckets     = {:12}]\n",
        histogram.buckets(),
        sub_buckets()
    );
    text
}

/// What a resolution of so many digits needs: twice ten to their power, as a power of two.
fn sub_buckets() -> u64 {
    (2 * 10u64.pow(u32::from(DIGITS))).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_form_is_that_of_hdr_histogram() {
        let mut latencies = Latencies::new().unwrap();
        (1..=1000).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        let text = render(&latencies);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("       Value     Percentile TotalCount 1/(1-Percentile)"));
        assert_eq!(lines.next(), Some(""));
        let rows: Vec<Vec<f64>> = lines
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|cell| cell.parse().unwrap()).collect())
            .collect();
        assert!(rows.iter().all(|row| row.len() == 4 || row == rows.last().unwrap()), "{text}");
        assert!(
            rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][2] <= pair[1][2]),
            "{text}"
        );
        let half = rows.iter().find(|row| row[1] >= 0.5).unwrap();
        assert!((499_000.0..=502_000.0).contains(&half[0]) && half[2] == 500.0, "{half:?}");
        assert_eq!((rows.last().unwrap()[1], rows.last().unwrap()[2]), (1.0, 1000.0));
        let foot: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        assert!(
            foot[0].starts_with("#[Mean    =   500")
                && foot[0].contains(", StdDeviation   =   288"),
            "{foot:?}"
        );
        assert!(foot[1].contains("Total count    =         1000]"), "{foot:?}");
        assert!(foot[2].contains("SubBuckets     =         2048]"), "{foot:?}");
    }

    #[test]
    fn no_jobs_make_an_empty_distribution() {
        assert!(render(&Latencies::new().unwrap()).contains("Total count    =            0]"));
    }
}
