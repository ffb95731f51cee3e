//! Moments as the founding files write them (PE06): ISO-8601 in UTC with seven digits behind the
//! second. The log commands write them, the importers read them. No clock and no time zone in here.

use heft::core::ids::Micros;

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// A moment that the leader wrote, whose clock counts from 1970.
pub(crate) fn iso(at: Micros) -> String {
    let (seconds, micros) = (at.0 / 1_000_000, at.0 % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(i64::try_from(days).unwrap_or(i64::MAX));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}0Z")
}

/// Reads `2025-10-19T12:34:56.1234567Z`: microseconds since 1970. Fewer digits, none, or an offset
/// instead of the Z are what .NET writes for some times; without either it is UTC.
pub(crate) fn parse_iso(text: &str) -> Option<i64> {
    let (date, time) = text.split_once('T')?;
    let mut parts = date.splitn(3, '-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let (time, offset) = match time.find(['Z', '+', '-']) {
        Some(at) => time.split_at_checked(at)?,
        None => (time, "Z"),
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = time.splitn(3, ':');
    let (hour, minute, second) =
        (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Six digits of it; what is finer is cut off.
    let micros = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = micros.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let seconds = seconds(year, month, day, hour, minute, second)?;
    let seconds = seconds.checked_sub(offset_seconds(offset)?)?;
    seconds.checked_mul(MICROS_PER_SECOND)?.checked_add(micros)
}

/// Reads the `yyyyMMdd-HHmmss` in the name of a snapshot (PE04): microseconds since 1970.
pub(crate) fn parse_stamp(text: &str) -> Option<i64> {
    let (date, time) = text.split_once('-')?;
    let (date, time) = (digits(date, 8)?, digits(time, 6)?);
    let (year, month, day) = (date / 10_000, date / 100 % 100, date % 100);
    let (hour, minute, second) = (time / 10_000, time / 100 % 100, time % 100);
    seconds(year, month, day, hour, minute, second)?.checked_mul(MICROS_PER_SECOND)
}

fn offset_seconds(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let (sign, rest) = text.split_at_checked(1)?;
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    let seconds = (hours <= 23 && minutes <= 59).then_some(hours * 3600 + minutes * 60)?;
    Some(if sign == "-" { -seconds } else { seconds })
}

/// A number of exactly so many digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())?
}

fn seconds(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days(year, month, day);
    // A day that the month does not have comes back as another.
    (date(days) == (year, month, day)).then_some(())?;
    Some(days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that
/// a leap day is their last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year * 365 + year / 4 - year / 100 + day_of_year - 719_468
}

/// The other way round: year, month and day.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pe06_moments_have_seven_digits_and_a_z() {
        assert_eq!(iso(Micros(0)), "1970-01-01T00:00:00.0000000Z");
        assert_eq!(iso(Micros(1_760_877_296_123_456)), "2025-10-19T12:34:56.1234560Z");
        assert_eq!(iso(Micros(951_782_400_000_000)), "2000-02-29T00:00:00.0000000Z");
    }

    #[test]
    fn pe06_moments_come_back_in_every_form_that_dotnet_writes() {
        let at = Some(1_760_877_296_123_456);
        assert_eq!(parse_iso("2025-10-19T12:34:56.1234567Z"), at);
        assert_eq!(parse_iso("2025-10-19T12:34:56.1234567"), at);
        assert_eq!(parse_iso("2025-10-19T21:34:56.1234567+09:00"), at);
        assert_eq!(parse_iso("2025-10-19T07:04:56.123456-05:30"), at);
        assert_eq!(parse_iso("2025-10-19T12:34:56Z"), Some(1_760_877_296_000_000));
        assert_eq!(parse_iso("2025-10-19T12:34:56.5Z"), Some(1_760_877_296_500_000));
        assert_eq!(parse_iso("1969-12-31T23:59:59Z"), Some(-1_000_000));
        for micros in [0, 1, 68_169_600_000_000, 4_102_444_799_999_999, 253_402_300_799_999_999] {
            let back = parse_iso(&iso(Micros(micros))).unwrap();
            assert_eq!(u64::try_from(back).unwrap(), micros);
        }
    }

    #[test]
    fn pe06_what_is_no_moment_is_refused() {
        for text in [
            "",
            "T",
            "2025-10-19",
            "2025-10-19 12:34:56",
            "2025-13-19T12:34:56Z",
            "2025-02-29T12:34:56Z",
            "2025-10-00T12:34:56Z",
            "2025-10-19T24:34:56Z",
            "2025-10-19T12:34:60Z",
            "2025-10-19T12:34:56.Z",
            "2025-10-19T12:34:56.12x4Z",
            "2025-10-19T12:34:56+9:00",
            "2025-10-19T12:34:56Zé",
            "+025-10-19T12:34:56Z",
            "20251-10-19T12:34:56Z",
        ] {
            assert_eq!(parse_iso(text), None, "{text}");
        }
    }

    #[test]
    fn pe04_the_name_of_a_snapshot_says_when_it_was_made() {
        assert_eq!(parse_stamp("20251019-123456"), Some(1_760_877_296_000_000));
        for text in
            ["20251019", "20251319-123456", "20251019-126056", "2025101-123456", "20251019-12345é"]
        {
            assert_eq!(parse_stamp(text), None, "{text}");
        }
    }
}
