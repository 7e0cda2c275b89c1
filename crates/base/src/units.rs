//! Parses and formats sizes and durations, such as `64MiB` and `30s`.

use std::time::Duration;

/// The longest accepted duration, in milliseconds. A longer duration is a mistake, and adding it to the
/// current time could overflow.
const MAX_DURATION_MS: f64 = 365.0 * 24.0 * 3_600_000.0;

/// The largest size with a fraction. Above it, some whole numbers have no floating-point value.
const MAX_EXACT_SIZE: f64 = (1_u64 << 53) as f64;

/// Parses a size: a number with the unit `B`, `KiB`, `MiB` or `GiB`, or with the decimal unit `kB`, `MB` or
/// `GB`. A number without a unit is in bytes. A fraction is accepted if the size is a whole number of bytes.
///
/// # Errors
/// The text does not have the form of a size, has another unit, or is too large.
pub fn parse_size(text: &str) -> Result<u64, &'static str> {
    const EXAMPLE: &str = "a size is a number and a unit, such as `64MiB`";
    let (number, unit) = split(text);
    if number.is_empty() {
        return Err(EXAMPLE);
    }
    let bytes: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err("the unit must be `B`, `KiB`, `MiB` or `GiB`, or `kB`, `MB` or `GB` by thousands"),
    };
    if !number.contains('.') {
        // The number has only digits, so if it cannot be parsed, it is too large.
        return number
            .parse()
            .ok()
            .and_then(|number: u64| number.checked_mul(bytes))
            .ok_or("the size is too large");
    }
    let fraction: f64 = number.parse().map_err(|_| EXAMPLE)?;
    let size = fraction * bytes as f64;
    if size.fract() != 0.0 {
        return Err("the size is not a whole number of bytes");
    }
    if size > MAX_EXACT_SIZE {
        return Err("the size is too large");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and between 0 and the limit"
    )]
    Ok(size as u64)
}

/// Parses a duration: a number, which may have a fraction, with the unit `ms`, `s`, `m` or `h`. A number
/// without a unit is in seconds. The result is rounded to milliseconds.
///
/// # Errors
/// The text does not have the form of a duration, has another unit, or is longer than a year.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| "a duration is a number and a unit, such as `30s`")?;
    let millis = match unit {
        "ms" => number,
        "" | "s" => number * 1000.0,
        "m" => number * 60_000.0,
        "h" => number * 3_600_000.0,
        _ => return Err("the unit must be `ms`, `s`, `m` or `h`"),
    };
    if millis > MAX_DURATION_MS {
        return Err("the duration is longer than a year");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a year")]
    Ok(Duration::from_millis(millis.round() as u64))
}

/// Formats a size so that [`parse_size`] can parse it, in the largest unit that gives a whole number.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None if bytes == 0 => "0".to_owned(),
        None => format!("{bytes}B"),
    }
}

/// Formats a duration so that [`parse_duration`] can parse it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_have_units() {
        #[track_caller]
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(parse_size(text).ok(), expected, "{text}");
        }
        check("0", Some(0));
        check("100", Some(100));
        check("100B", Some(100));
        check("64MiB", Some(64 << 20));
        check("64 mib", Some(64 << 20));
        check("1kB", Some(1000));
        check("2GB", Some(2_000_000_000));
        check("1.5MiB", Some(3 << 19));
        for text in [
            "",
            "MiB",
            "1.5",
            ".",
            "1.2.3KiB",
            "-1",
            "1M",
            "1TiB",
            "99999999999999999999",
            "99999999999999999GiB",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn durations_have_units() {
        #[track_caller]
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(parse_duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
        check("0s", Some(0));
        check("7", Some(7000));
        check("250ms", Some(250));
        check("1.5s", Some(1500));
        check("2m", Some(120_000));
        check("1 h", Some(3_600_000));
        for text in ["", "s", "-1s", "1d", "1.5.0s", ".", "5 parsecs", "99999999999999999999s", "9999h"] {
            check(text, None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn formatted_values_parse_back(bytes in any::<u64>(), millis in 0u64..31_536_000_000) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
            let time = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(time)), Ok(time));
        }

        #[test]
        fn nothing_panics(text in ".{0,24}", number in "[0-9.]{0,24}", unit in "[a-zA-Zµ ]{0,4}") {
            for text in [text, format!("{number}{unit}")] {
                _ = (parse_size(&text), parse_duration(&text));
            }
        }
    }
}
