//! Interprets unquoted YAML values by the core schema of YAML 1.2.

use serde_json::Number;

use super::Content;

pub(super) fn resolve(text: &str) -> Content {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Content::Null(text.to_owned()),
        "true" | "True" | "TRUE" => Content::Bool(true, text.to_owned()),
        "false" | "False" | "FALSE" => Content::Bool(false, text.to_owned()),
        _ => match number(text) {
            Some(number) => Content::Number(number, text.to_owned()),
            None => Content::Text(text.to_owned()),
        },
    }
}

/// Parses a number. The inner value is `None` if JSON cannot represent the number.
fn number(text: &str) -> Option<Option<Number>> {
    let radix = |digits: &str, radix: u32| {
        let all = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
        all.then(|| u64::from_str_radix(digits, radix).ok().map(Number::from))
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Some(None);
    }
    if !is_decimal(unsigned) {
        return None;
    }
    let plain = text.strip_prefix('+').unwrap_or(text);
    if let Ok(whole) = plain.parse::<u64>() {
        return Some(Some(whole.into()));
    }
    if let Ok(whole) = plain.parse::<i64>() {
        return Some(Some(whole.into()));
    }
    Some(plain.parse::<f64>().ok().and_then(integer_or_float))
}

/// Returns a whole number as an integer, even if it is spelled like `1.0` or `1e3`, because schemas treat
/// such numbers as integers.
fn integer_or_float(value: f64) -> Option<Number> {
    /// Largest number up to which a double represents every whole number exactly.
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= MAX_EXACT_INTEGER {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}

/// Returns `true` for digits with at most one point and one exponent.
fn is_decimal(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|exponent| {
        let unsigned = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !unsigned.is_empty() && digits(unsigned)
    });
    (!whole.is_empty() || !fraction.is_empty()) && digits(whole) && digits(fraction) && exponent_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let content = match resolve(text) {
            Content::Null(_) => "null".to_owned(),
            Content::Bool(value, _) => value.to_string(),
            Content::Number(Some(number), _) => number.to_string(),
            Content::Number(None, _) => "number".to_owned(),
            Content::Text(text) => format!("{text:?}"),
            Content::List(_) | Content::Map(_) => unreachable!("a scalar"),
        };
        assert_eq!(content, expected, "{text:?}");
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        for null in ["", "~", "null", "NULL"] {
            check(null, "null");
        }
        check("true", "true");
        check("False", "false");
        for text in [
            "yes",
            "no",
            "on",
            "tRUE",
            "abc1234",
            "1.2.3",
            "0x",
            "0o8",
            "1e",
            ".",
            "-",
            "e5",
            "1_000",
            "2026-01-01",
        ] {
            check(text, &format!("{text:?}"));
        }
        check("1234567", "1234567");
        check("0123456", "123456");
        check("-1", "-1");
        check("+7", "7");
        check("0x1F", "31");
        check("0o17", "15");
        check("1.0", "1");
        check("1e3", "1000");
        check("1.5", "1.5");
        check(".5", "0.5");
        check("12e4567", "number");
        check(".inf", "number");
        check("-.INF", "number");
        check(".nan", "number");
        check("18446744073709551615", "18446744073709551615");
    }
}
