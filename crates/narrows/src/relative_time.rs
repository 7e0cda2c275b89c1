//! Relative times, such as "2 hours ago".

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Returns the time from `then`, in RFC 3339, until `now`.
pub(crate) fn ago(then: &str, now: SystemTime) -> Option<String> {
    let then = UNIX_EPOCH + Duration::from_secs(u64::try_from(parse_rfc3339(then)?).ok()?);
    // The clock of another machine may be ahead, so a time in the future counts as now.
    let passed = now.duration_since(then).unwrap_or_default().as_secs();
    let (count, unit) = match passed {
        0..MINUTE => return Some("just now".to_owned()),
        MINUTE..HOUR => (passed / MINUTE, "minute"),
        HOUR..DAY => (passed / HOUR, "hour"),
        _ => (passed / DAY, "day"),
    };
    Some(if count == 1 { format!("1 {unit} ago") } else { format!("{count} {unit}s ago") })
}

/// Parses an RFC 3339 time into seconds since 1970.
fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = parse_numbers(date, '-', [4, 2, 2])?;
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(zone);
    let whole = time.split('.').next().unwrap_or_default();
    let [hour, minute, second] = parse_numbers(whole, ':', [2, 2, 2])?;
    let ahead = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign, zone) => {
            let [hours, minutes] = parse_numbers(zone, ':', [2, 2])?;
            let ahead = hours * 60 + minutes;
            if sign == "-" { -ahead } else { ahead }
        }
    };
    let is_time = hour < 24 && minute < 60 && second <= 60;
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    (is_time && is_date)
        .then(|| ((days_since_epoch(year, month, day) * 24 + hour) * 60 + minute - ahead) * 60 + second)
}

/// Parses numbers with fixed counts of digits, which `between` separates.
fn parse_numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(between);
    let mut read = [0; N];
    for (number, digits) in read.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits)?;
        *number = part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(read)
}

/// Returns the number of days from 1970 to a date. Years are counted from March here, so that a leap day is
/// the last day of a year.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + before - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_3339_times_are_parsed() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-01-01T00:00:00Z", Some(1_767_225_600)),
            ("2024-02-29T12:30:15.123456Z", Some(1_709_209_815)),
            ("2024-03-01T01:00:00+02:00", Some(1_709_247_600)),
            ("2024-02-29T20:00:00-03:00", Some(1_709_247_600)),
            ("2024-02-29 23:00:00z", Some(1_709_247_600)),
            ("2024-02-29", None),
            ("2024-02-29T23:00:00", None),
            ("2024-13-01T00:00:00Z", None),
            ("2024-01-01T24:00:00Z", None),
            ("+024-01-01T00:00:00Z", None),
            ("yesterday", None),
        ] {
            assert_eq!(parse_rfc3339(text), expected, "{text}");
        }
    }

    #[test]
    fn relative_times_have_one_unit() {
        let then = "2026-01-01T00:00:00Z";
        let age = |later: u64| ago(then, UNIX_EPOCH + Duration::from_secs(1_767_225_600 + later));
        for (later, expected) in [
            (0, "just now"),
            (59, "just now"),
            (60, "1 minute ago"),
            (2 * HOUR - 1, "1 hour ago"),
            (2 * HOUR, "2 hours ago"),
            (400 * DAY, "400 days ago"),
        ] {
            assert_eq!(age(later).as_deref(), Some(expected), "{later}");
        }
        assert_eq!(ago(then, UNIX_EPOCH).as_deref(), Some("just now"));
        assert_eq!(ago("soon", UNIX_EPOCH), None);
    }

    proptest! {
        #[test]
        fn days_are_consecutive(day in 0i64..200_000) {
            // Computes the date for a number of days by counting, to compare.
            let (mut year, mut left) = (1970, day);
            let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            while left >= 365 + i64::from(leap(year)) {
                left -= 365 + i64::from(leap(year));
                year += 1;
            }
            let mut month = 1;
            for length in [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
                if left < length {
                    break;
                }
                left -= length;
                month += 1;
            }
            prop_assert_eq!(days_since_epoch(year, month, left + 1), day);
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in "[0-9TZ:.+ -]{0,30}|\\PC{0,30}") {
            let _ = ago(&text, UNIX_EPOCH);
        }
    }
}
