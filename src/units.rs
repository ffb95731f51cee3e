//! Sizes and times as people write them, such as `64MiB` and `500ms`. Everything that takes or
//! shows one calls it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

const UNITS: [(&str, u64); 10] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// A number of bytes. Reads `1048576`, `64MiB`, `1.5 GiB` and `5MB`; shows itself with a binary
/// unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// It does not start with a number.
    #[error("\"{text}\" is not a size: write a number and a unit, such as 64MiB or 1048576")]
    Number { text: String },
    /// The unit is not known.
    #[error(
        "\"{unit}\" is not a unit of size: use B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB for powers of ten"
    )]
    Unit { unit: String },
    /// It does not fit 64 bits.
    #[error("\"{text}\" is more than {} bytes, the largest size there is", u64::MAX)]
    Over { text: String },
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let number_end =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at_checked(number_end).unwrap_or((trimmed, ""));
        let not_a_number = || SizeError::Number { text: text.to_owned() };
        let unit = unit.trim_start();
        let factor = match unit {
            "" => 1,
            _ => UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))
                .map(|(_, factor)| *factor)
                .ok_or_else(|| match number {
                    "" => not_a_number(),
                    _ => SizeError::Unit { unit: unit.to_owned() },
                })?,
        };
        let bytes = times(number, factor).ok_or_else(not_a_number)?;
        let bytes = bytes.ok_or_else(|| SizeError::Over { text: text.to_owned() })?;
        Ok(ByteSize(bytes))
    }
}

/// A decimal number times a factor. `None` if it is not a number, `Some(None)` if that does not fit
/// 64 bits.
fn times(number: &str, factor: u64) -> Option<Option<u64>> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Nine digits behind the point are enough for any unit; more are cut off.
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = fraction.parse().ok()?;
    let (factor, part) = (u128::from(factor), fraction * u128::from(factor) / 1_000_000_000);
    let product = whole.checked_mul(factor).and_then(|product| product.checked_add(part));
    Some(product.and_then(|product| u64::try_from(product).ok()))
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS.iter().take(5).rev();
        let (unit, factor) =
            binary.copied().find(|(_, factor)| self.0 >= *factor).unwrap_or(("B", 1));
        let shown = if self.0.is_multiple_of(factor) {
            format!("{} {unit}", self.0 / factor)
        } else {
            let tenths = u128::from(self.0) * 10 / u128::from(factor);
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        };
        f.pad(&shown)
    }
}

const TIMES: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A number of things, as people write it: `1 file`, `2 files`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count(number, thing) = self;
        write!(f, "{number} {thing}{}", if *number == 1 { "" } else { "s" })
    }
}

/// A length of time. Reads `500ms`, `30s`, `1.5s`, `10m` and `2h`; a number alone is refused, since
/// nobody knows its unit. Shows itself in the largest unit that holds it without a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// A text that is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    /// It is not a number with a unit.
    #[error(
        "\"{text}\" is not a time: write a number and a unit (us, ms, s, m, h), such as 500ms or 30s"
    )]
    Form { text: String },
    /// It is longer than what fits.
    #[error("\"{text}\" is more than {} hours, the longest time there is", u64::MAX / 3_600_000_000_000)]
    Over { text: String },
}

impl Span {
    /// To whole seconds, below one to whole milliseconds: for texts about times that were measured.
    pub fn rounded(time: Duration) -> Self {
        let millis = time.as_millis() + u128::from(time.subsec_nanos() % 1_000_000 >= 500_000);
        let millis = if millis < 1000 { millis } else { (millis + 500) / 1000 * 1000 };
        Span(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let trimmed = text.trim();
        let form = || SpanError::Form { text: text.to_owned() };
        let number_end =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(form)?;
        let (number, unit) = trimmed.split_at_checked(number_end).ok_or_else(form)?;
        let (_, factor) =
            TIMES.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(form)?;
        let nanos = times(number, *factor).ok_or_else(form)?;
        let nanos = nanos.ok_or_else(|| SpanError::Over { text: text.to_owned() })?;
        Ok(Span(Duration::from_nanos(nanos)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let units = [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
        match units.iter().find(|(_, unit)| micros > 0 && micros.is_multiple_of(*unit)) {
            Some((name, unit)) => f.pad(&format!("{}{name}", micros / unit)),
            None if micros == 0 => f.pad("0s"),
            None => f.pad(&format!("{micros}us")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_were_measured_are_shown_without_their_fractions() {
        for (micros, text) in [
            (0, "0s"),
            (400, "0s"),
            (499_700, "500ms"),
            (500_123, "500ms"),
            (9_996_000, "10s"),
            (61_200_000, "61s"),
        ] {
            assert_eq!(Span::rounded(Duration::from_micros(micros)).to_string(), text);
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("5MB", 5_000_000),
            ("0.5kB", 500),
            ("20GiB", 20 << 30),
            (" 7 B ", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_said_with_the_next_step() {
        for (text, part) in [
            ("", "such as 64MiB"),
            ("MiB", "such as 64MiB"),
            ("-5", "such as 64MiB"),
            ("1.2.3", "such as 64MiB"),
            (".", "such as 64MiB"),
            ("5 apples", "\"apples\" is not a unit"),
            ("17000000TiB", "18446744073709551615"),
            ("340282366920938463463374607431768211.999kB", "18446744073709551615"),
            ("99999999999999999999999999999999999999999", "such as 64MiB"),
        ] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_with_a_binary_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 20, "1 MiB"),
            (1_600_000, "1.5 MiB"),
            (3 << 29, "1.5 GiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|{:<8}|", ByteSize(1), ByteSize(1)), "     1 B|1 B     |");
    }

    #[test]
    fn times_are_read_and_shown_as_people_write_them() {
        for (text, millis, shown) in [
            ("500ms", 500, "500ms"),
            ("30s", 30_000, "30s"),
            ("1.5 s", 1_500, "1500ms"),
            ("90s", 90_000, "90s"),
            ("10m", 600_000, "10m"),
            ("2h", 7_200_000, "2h"),
            ("0s", 0, "0s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(
                (span.0, span.to_string()),
                (Duration::from_millis(millis), shown.to_owned()),
                "{text}"
            );
        }
        for text in ["", "5", "s", "-5s", "5 years", "1.2.3s", "ms500"] {
            assert!(matches!(text.parse::<Span>(), Err(SpanError::Form { .. })), "{text}");
        }
        assert!(matches!("99999999999h".parse::<Span>(), Err(SpanError::Over { .. })));
    }
}
