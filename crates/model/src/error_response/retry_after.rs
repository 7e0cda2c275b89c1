//! Finds the delay before a retry that the provider demands.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Returns the demanded delay from the headers. The most exact header takes precedence.
pub(super) fn from_headers(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    milliseconds(headers).or_else(|| retry_after(headers, now)).or_else(|| resets(headers, now))
}

/// Returns the demanded delay from an error message in lower case, such as `try again in 300ms`.
pub(super) fn from_text(text: &str) -> Option<Duration> {
    const BEFORE: [&str; 4] = ["try again in ", "retry in ", "retry after ", "try again after "];
    BEFORE.iter().find_map(|words| {
        let (_, rest) = text.split_once(words)?;
        duration(rest)
    })
}

/// Parses a time with units at the start of `text`: `300ms`, `6m0s`, `1.5 seconds`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds = None;
    while let Some((number, after)) = number(rest) {
        let after = after.strip_prefix(' ').unwrap_or(after);
        let end = after.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(after.len());
        let Some(unit) = unit(&after[..end]) else { break };
        seconds = Some(seconds.unwrap_or(0.0) + number * unit);
        rest = &after[end..];
    }
    Duration::try_from_secs_f64(seconds?).ok()
}

/// Parses the number at the start of `text`, and returns the rest.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|digit: char| !digit.is_ascii_digit() && digit != '.').unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

fn unit(name: &str) -> Option<f64> {
    Some(match name.to_ascii_lowercase().as_str() {
        "ms" | "millisecond" | "milliseconds" => 0.001,
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86400.0,
        _ => return None,
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn milliseconds(headers: &HeaderMap) -> Option<Duration> {
    let number: f64 = text(headers, "retry-after-ms")?.parse().ok()?;
    Duration::try_from_secs_f64(number / 1000.0).ok()
}

/// Parses the header `Retry-After`: seconds or a date. A date in the past means no wait.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = text(headers, RETRY_AFTER.as_str())?;
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    if let Some(duration) = duration(text) {
        return Some(duration);
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Returns the time until all exhausted rate limits are reset.
fn resets(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    headers.keys().filter_map(|name| reset(headers, name.as_str(), now)).max()
}

fn reset(headers: &HeaderMap, name: &str, now: SystemTime) -> Option<Duration> {
    let limit = name.strip_prefix("x-ratelimit-reset")?;
    let remaining = text(headers, &format!("x-ratelimit-remaining{limit}"));
    // Providers list all rate limits, including those that are not exhausted.
    if remaining.and_then(|remaining| remaining.parse().ok()).is_some_and(|left: f64| left > 0.0) {
        return None;
    }
    let text = text(headers, name)?;
    duration(text).or_else(|| wait_from_number(text.parse().ok()?, now))
}

/// Converts a number without a unit to a delay. Its size shows if it means seconds from now, seconds since
/// 1970, or milliseconds since 1970.
fn wait_from_number(number: f64, now: SystemTime) -> Option<Duration> {
    const SINCE_1970: f64 = 1e9;
    const IN_MILLISECONDS: f64 = 1e11;
    let seconds = if number >= IN_MILLISECONDS { number / 1000.0 } else { number };
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    if number < SINCE_1970 {
        return Some(duration);
    }
    let then = SystemTime::UNIX_EPOCH.checked_add(duration)?;
    Some(then.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    /// 2015-10-21 07:28:00 UTC.
    const NOW: u64 = 1_445_412_480;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
    }

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
        };
        fields.iter().map(field).collect()
    }

    #[track_caller]
    fn check(fields: &[(&str, &str)], expected: Option<u64>) {
        let expected = expected.map(Duration::from_millis);
        assert_eq!(from_headers(&headers(fields), now()), expected, "{fields:?}");
    }

    #[test]
    fn waits_are_parsed_from_headers() {
        check(&[], None);
        check(&[("retry-after-ms", "250")], Some(250));
        check(&[("retry-after", "7")], Some(7000));
        check(&[("retry-after", "0.5")], Some(500));
        check(&[("retry-after", "20s")], Some(20_000));
        check(&[("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT")], Some(30_000));
        check(&[("retry-after", "Wed, 21 Oct 2015 07:27:00 GMT")], Some(0));
        check(&[("retry-after-ms", "250"), ("retry-after", "7")], Some(250));
        check(&[("retry-after", "7"), ("x-ratelimit-reset-tokens", "3s")], Some(7000));
        for nonsense in ["", "soon", "-1", "NaN", "inf", "1e300"] {
            check(&[("retry-after", nonsense)], None);
            check(&[("retry-after-ms", nonsense)], None);
            check(&[("x-ratelimit-reset", nonsense)], None);
        }
    }

    #[test]
    fn exhausted_limits_are_waited_for() {
        check(&[("x-ratelimit-reset-requests", "1s"), ("x-ratelimit-reset-tokens", "6m0s")], Some(360_000));
        check(
            &[
                ("x-ratelimit-reset-requests", "8.64s"),
                ("x-ratelimit-remaining-requests", "0"),
                ("x-ratelimit-reset-tokens", "6m0s"),
                ("x-ratelimit-remaining-tokens", "100"),
            ],
            Some(8640),
        );
        check(&[("x-ratelimit-reset-tokens", "6m0s"), ("x-ratelimit-remaining-tokens", "1")], None);
        check(&[("x-ratelimit-reset-requests-day", "33.5")], Some(33_500));
        check(&[("x-ratelimit-reset", "1445412490")], Some(10_000));
        check(&[("x-ratelimit-reset", "1445412490500")], Some(10_500));
        check(&[("x-ratelimit-reset", "1445412000")], Some(0));
    }

    #[test]
    fn waits_are_parsed_from_messages() {
        #[track_caller]
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(from_text(text), expected.map(Duration::from_millis), "{text}");
        }
        check("please try again in 300ms.", Some(300));
        check("limit reached. please try again in 6m0s. visit", Some(360_000));
        check("please retry in 34.5s.", Some(34_500));
        check("try again in 1 minute", Some(60_000));
        check("retry after 2 hours", Some(7_200_000));
        check("try again in 1h2m3s", Some(3_723_000));
        check("try again in 1d", Some(86_400_000));
        check("try again in a moment", None);
        check("try again in 5 sheep", None);
        check("try again in 5", None);
        check("300ms", None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(try again in )?[0-9a-z. ]{0,20}") {
            from_text(&text);
        }

        #[test]
        fn any_duration_is_parsed(minutes in 0..10_000u64, seconds in 0..60u64, wordy in any::<bool>()) {
            let text = if wordy {
                format!("{minutes} minutes")
            } else {
                format!("{minutes}m{seconds}s")
            };
            let seconds = if wordy { 0 } else { seconds };
            prop_assert_eq!(duration(&text), Some(Duration::from_secs(minutes * 60 + seconds)));
        }
    }
}
