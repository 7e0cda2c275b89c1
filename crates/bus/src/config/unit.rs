//! Sizes and times as people write them.

use std::time::Duration;

/// The longest time, in milliseconds.
const YEAR: f64 = 365.0 * 24.0 * 3_600_000.0;

/// Reads a size: a whole number and `B`, `KiB`, `MiB`, `GiB`, or `kB`, `MB`, `GB` by thousands; a number alone is bytes.
///
/// # Errors
/// When it is none.
pub fn size(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split(text, |c| c.is_ascii_digit());
    let number: u64 = number.parse().map_err(|_| "a size is a whole number and a unit, such as `64MiB`")?;
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
    number.checked_mul(bytes).ok_or("it is too much for any machine")
}

/// Reads a time: a number, which may have a fraction, and `ms`, `s`, `m` or `h`; a number alone is seconds. What is
/// finer than a millisecond is rounded.
///
/// # Errors
/// When it is none, or longer than a year.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    let (number, unit) = split(text, |c| c.is_ascii_digit() || c == '.');
    let number: f64 = number.parse().map_err(|_| "a time is a number and a unit, such as `30s`")?;
    let millis = match unit {
        "ms" => number,
        "" | "s" => number * 1000.0,
        "m" => number * 60_000.0,
        "h" => number * 3_600_000.0,
        _ => return Err("the unit must be `ms`, `s`, `m` or `h`"),
    };
    // A longer time is a mistake, and so long that adding it to now may not be possible.
    if millis > YEAR {
        return Err("it is longer than a year");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and a year")]
    Ok(Duration::from_millis(millis.round() as u64))
}

/// The size as [`size`] reads it, in the largest unit that it is a whole number of.
pub(super) fn shown_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None if bytes == 0 => "0".to_owned(),
        None => format!("{bytes}B"),
    }
}

/// The time as [`duration`] reads it.
pub(super) fn shown_duration(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

fn split(text: &str, numeric: impl Fn(char) -> bool) -> (&str, &str) {
    let (number, unit) = text.split_at(text.find(|c| !numeric(c)).unwrap_or(text.len()));
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
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        check("0", Some(0));
        check("100", Some(100));
        check("100B", Some(100));
        check("64MiB", Some(64 << 20));
        check("64 mib", Some(64 << 20));
        check("1kB", Some(1000));
        check("2GB", Some(2_000_000_000));
        for text in ["", "MiB", "1.5MiB", "-1", "1M", "1TiB", "99999999999999999999", "99999999999999999GiB"]
        {
            check(text, None);
        }
    }

    #[test]
    fn times_have_units() {
        #[track_caller]
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
        check("0s", Some(0));
        check("7", Some(7000));
        check("250ms", Some(250));
        check("1.5s", Some(1500));
        check("2m", Some(120_000));
        check("1 h", Some(3_600_000));
        for text in ["", "s", "-1s", "1d", "1.5.0s", ".", "99999999999999999999s", "9999h"] {
            check(text, None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn what_is_shown_is_read_again(bytes in any::<u64>(), millis in 0u64..31_536_000_000) {
            prop_assert_eq!(size(&shown_size(bytes)), Ok(bytes));
            let time = Duration::from_millis(millis);
            prop_assert_eq!(duration(&shown_duration(time)), Ok(time));
        }

        #[test]
        fn nothing_panics(text in ".{0,24}", number in "[0-9.]{0,24}", unit in "[a-zA-Zµ ]{0,4}") {
            for text in [text, format!("{number}{unit}")] {
                _ = (size(&text), duration(&text));
            }
        }
    }
}
