//! Numbers over rounds.

use serde_json::{Value, json};

/// A value over rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// None without values.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = match sorted.len().is_multiple_of(2) {
            true => f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, upper),
            false => upper,
        };
        Some(Spread { median, min: *sorted.first()?, max: *sorted.last()? })
    }

    pub(super) fn json(&self) -> Value {
        json!({"min": rounded(self.min), "median": rounded(self.median), "max": rounded(self.max)})
    }
}

/// Four digits are more than any figure of a bench deserves; small ratios keep theirs.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(spread(&[7.0]).map(|spread| spread.median), Some(7.0));
        assert_eq!(spread(&[]), None);
    }
}
