//! How long jobs took: HDR histograms in nanoseconds, which are merged over lanes, processes and
//! rounds and never averaged.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use std::time::Duration;

/// Three digits: a figure is within 0.1 % of what was measured.
pub(crate) const DIGITS: u8 = 3;

/// A job that takes longer counts as this long; rounds are given up earlier.
const LONGEST: Duration = Duration::from_secs(3600);

/// The times of jobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let longest = u64::try_from(LONGEST.as_nanos())?;
        Ok(Latencies(
            Histogram::new_with_bounds(1, longest, DIGITS).context("cannot make a histogram")?,
        ))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn merge(&mut self, other: &Latencies) -> anyhow::Result<()> {
        self.0.add(&other.0).context("cannot merge histograms of different ranges")
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time within which this share of the jobs was done, in microseconds; none without jobs.
    pub(crate) fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros(self.0.value_at_quantile(quantile)))
    }

    pub(crate) fn mean_us(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1_000.0)
    }

    pub(crate) fn max_us(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros(self.0.max()))
    }

    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    /// As one word: base64 of the V2 form that every HdrHistogram reads.
    pub(crate) fn to_word(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.0, &mut bytes).context("cannot write a histogram")?;
        Ok(STANDARD.encode(bytes))
    }

    pub(crate) fn from_word(word: &str) -> anyhow::Result<Self> {
        let bytes = STANDARD.decode(word).context("an actor's histogram is not base64")?;
        let read = Deserializer::new().deserialize(&mut bytes.as_slice());
        Ok(Latencies(read.context("an actor's histogram cannot be read")?))
    }
}

/// Nanoseconds in microseconds.
pub(crate) fn micros(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(millis: &[u64]) -> Latencies {
        let mut latencies = Latencies::new().unwrap();
        millis.iter().for_each(|ms| latencies.record(Duration::from_millis(*ms)));
        latencies
    }

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found / expected - 1.0).abs() < 0.002, "{found} is not {expected}");
    }

    #[test]
    fn merging_gives_the_percentiles_of_all_jobs_and_not_their_average() {
        let mut all = of(&[1; 99]);
        all.merge(&of(&[100])).unwrap();
        near(all.quantile_us(0.5), 1_000.0);
        near(all.quantile_us(0.99), 1_000.0);
        near(all.max_us(), 100_000.0);
        assert_eq!(all.count(), 100);
    }

    #[test]
    fn a_histogram_travels_as_a_word() {
        let sent = of(&[1, 5, 70, 2_000]);
        let word = sent.to_word().unwrap();
        assert!(!word.contains(char::is_whitespace));
        let got = Latencies::from_word(&word).unwrap();
        assert_eq!((got.quantile_us(0.5), got.count()), (sent.quantile_us(0.5), 4));
        let mut merged = Latencies::new().unwrap();
        merged.merge(&got).unwrap();
        assert_eq!(merged.max_us(), sent.max_us());
        assert!(Latencies::from_word("?").is_err());
        assert!(Latencies::from_word("AAAA").is_err());
    }

    #[test]
    fn no_jobs_have_no_times_and_endless_ones_are_counted() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(
            (latencies.quantile_us(0.5), latencies.max_us(), latencies.mean_us()),
            (None, None, None)
        );
        latencies.record(Duration::from_secs(7200));
        near(latencies.max_us(), 3600e6);
    }
}
