//! Durations and sizes as people write them.

use std::time::Duration;

/// `100ms`, `2s`, `1.5s`, `3m`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// `100`, `64KiB`, `80MiB`, `1GiB`, in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    // Half a byte is a mistake; half a mebibyte is not.
    let bytes = number * factor as f64;
    (bytes.fract() == 0.0 && bytes <= (1_u64 << 40) as f64).then_some(bytes as u64)
}

/// A number and what stands behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        #[track_caller]
        fn check(text: &str, milliseconds: Option<u64>) {
            assert_eq!(duration(text), milliseconds.map(Duration::from_millis), "{text}");
        }
        check("100ms", Some(100));
        check("0s", Some(0));
        check("1.5s", Some(1500));
        check("2 m", Some(120_000));
        check("1h", Some(3_600_000));
        check("5", None);
        check("-5s", None);
        check("s", None);
        check("1.2.3s", None);
        check("5 parsecs", None);
        check("99999999999999999999999999h", None);
    }

    #[test]
    fn sizes_are_whole_bytes() {
        #[track_caller]
        fn check(text: &str, bytes: Option<u64>) {
            assert_eq!(size(text), bytes, "{text}");
        }
        check("100", Some(100));
        check("100B", Some(100));
        check("64KiB", Some(65536));
        check("0.5MiB", Some(1 << 19));
        check("80 MiB", Some(80 << 20));
        check("1.5", None);
        check("80MB", None);
        check("", None);
        check("99999999GiB", None);
    }
}
