//! Sizes and times as people write them, such as `64MiB` and `500ms`, for flags and messages. Everything that takes or shows
//! one calls it.

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

/// A number of bytes. Reads `1048576`, `64MiB`, `1.5 GiB` and `5MB`; shows itself with a binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// It does not start with a number.
    #[error("\"{text}\" is not a size: write a number and a unit, such as 64MiB or 1048576")]
    Number {
        /// The text.
        text: String,
    },
    /// The unit is not known.
    #[error(
        "\"{unit}\" is not a unit of size: use B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB for powers of ten"
    )]
    Unit {
        /// The unit.
        unit: String,
    },
    /// It does not fit 64 bits.
    #[error("\"{text}\" is more than {} bytes, the largest size there is", u64::MAX)]
    Over {
        /// The text.
        text: String,
    },
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let number_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
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
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        // Nine digits behind the point are a thousandth of a KiB; more are cut off.
        let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let whole: u128 = whole.parse().map_err(|_| not_a_number())?;
        let fraction: u128 = fraction.parse().map_err(|_| not_a_number())?;
        let bytes = whole
            .checked_mul(u128::from(factor))
            .map(|bytes| bytes + fraction * u128::from(factor) / 1_000_000_000)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .ok_or_else(|| SizeError::Over { text: text.to_owned() })?;
        Ok(ByteSize(bytes))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS.iter().take(5).rev();
        let (unit, factor) = binary.copied().find(|(_, factor)| self.0 >= *factor).unwrap_or(("B", 1));
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
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// A length of time. Reads `500ms`, `30s`, `1.5m`, `1h30m` and `0`; shows itself with the largest units, two at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// A text that is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    /// It is not made of numbers and units.
    #[error("\"{text}\" is not a length of time: write a number and a unit, such as 500ms, 30s or 1h30m")]
    Form {
        /// The text.
        text: String,
    },
    /// The unit is not known, or is missing.
    #[error("\"{unit}\" is not a unit of time: use us, ms, s, m, h or d, as in 500ms or 30s")]
    Unit {
        /// The unit.
        unit: String,
    },
    /// It does not fit.
    #[error("\"{text}\" is over 584,000 years, the longest time there is")]
    Over {
        /// The text.
        text: String,
    },
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let form = || SpanError::Form { text: text.to_owned() };
        let over = || SpanError::Over { text: text.to_owned() };
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Span(Duration::ZERO));
        }
        let mut total_us: u64 = 0;
        loop {
            let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, behind) = rest.split_at_checked(number_end).ok_or_else(form)?;
            let behind = behind.trim_start();
            let unit_end = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
            let (unit, behind) = behind.split_at_checked(unit_end).ok_or_else(form)?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
            let fraction: String = fraction.chars().chain("000000".chars()).take(6).collect();
            let whole: u64 = whole.parse().map_err(|_| form())?;
            let fraction: u64 = fraction.parse().map_err(|_| form())?;
            let known = TIMES.iter().find(|(name, _)| *name == unit || (*name == "us" && unit == "µs"));
            let (_, factor) = known.ok_or_else(|| SpanError::Unit { unit: unit.to_owned() })?;
            let part_us = u128::from(whole) * u128::from(*factor)
                + u128::from(fraction) * u128::from(*factor) / 1_000_000;
            let part_us = u64::try_from(part_us).map_err(|_| over())?;
            total_us = total_us.checked_add(part_us).ok_or_else(over)?;
            rest = behind.trim_start();
            if rest.is_empty() {
                return Ok(Span(Duration::from_micros(total_us)));
            }
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        let shown = match TIMES.iter().enumerate().rev().find(|(_, (_, factor))| micros >= *factor) {
            None => "0s".to_owned(),
            // Below a minute one unit with a digit behind the point says enough.
            Some((place, (unit, factor))) if place < 3 => match micros % factor * 10 / factor {
                0 => format!("{}{unit}", micros / factor),
                tenths => format!("{}.{tenths}{unit}", micros / factor),
            },
            Some((place, (unit, factor))) => {
                let (smaller, part) = TIMES.get(place - 1).copied().unwrap_or(("s", 1_000_000));
                match micros % factor / part {
                    0 => format!("{}{unit}", micros / factor),
                    rest => format!("{}{unit}{rest}{smaller}", micros / factor),
                }
            }
        };
        f.pad(&shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("99999999999999999999999999999999999999999", "such as 64MiB"),
        ] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_with_a_binary_unit() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1 MiB"), (1_600_000, "1.5 MiB"), (3 << 29, "1.5 GiB")]
        {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|{:<8}|", ByteSize(1), ByteSize(1)), "     1 B|1 B     |");
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, micros) in [
            ("0", 0),
            ("0s", 0),
            ("250us", 250),
            ("500ms", 500_000),
            (" 30 s ", 30_000_000),
            ("1.5m", 90_000_000),
            ("1h30m", 5_400_000_000),
            ("1d 1us", 86_400_000_001),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_micros(micros))), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_said_with_the_next_step() {
        for (text, part) in [
            ("", "such as 500ms"),
            ("soon", "such as 500ms"),
            ("-5s", "such as 500ms"),
            ("1.2.3s", "such as 500ms"),
            ("5", "\"\" is not a unit"),
            ("5 years", "\"years\" is not a unit"),
            ("5S", "\"S\" is not a unit"),
            ("999999999999999d", "584,000 years"),
        ] {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn times_are_shown_with_the_largest_units() {
        for (micros, text) in [
            (0, "0s"),
            (7, "7us"),
            (500_000, "500ms"),
            (1_500_000, "1.5s"),
            (59_990_000, "59.9s"),
            (60_000_000, "1m"),
            (5_400_000_000, "1h30m"),
            (90_061_000_000, "1d1h"),
        ] {
            assert_eq!(Span(Duration::from_micros(micros)).to_string(), text);
        }
        assert_eq!(format!("{:>6}|", Span(Duration::from_secs(1))), "    1s|");
    }
}
