//! Numbers in the format of ECMAScript.

pub(super) fn is_canonical(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        b"0" => digits.len() == text.len(),
        // Shorter integers are exact. Almost all numbers in a log are such integers.
        [b'1'..=b'9', rest @ ..] if rest.len() < 15 && rest.iter().all(u8::is_ascii_digit) => true,
        _ => {
            let Some(text) = std::str::from_utf8(text).ok() else { return false };
            text.parse::<f64>().is_ok_and(|number| number.is_finite() && written(number) == text)
        }
    }
}

/// Formats a finite number as ECMAScript does: with the shortest digits that identify it, and with an
/// exponent only if it is very large or small.
pub(super) fn written(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let sign = if number < 0.0 { "-" } else { "" };
    let scientific = format!("{:e}", number.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits = even(mantissa.replace('.', ""), number.abs());
    let exponent: i32 = exponent.parse().unwrap_or_default();
    // Position of the decimal point, counted from the first digit.
    let point = exponent + 1;
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    if count <= point && point <= 21 {
        return format!("{sign}{digits}{}", zeros(point - count));
    }
    if 0 < point && point <= 21 {
        let (whole, part) = digits.split_at(usize::try_from(point).unwrap_or_default());
        return format!("{sign}{whole}.{part}");
    }
    if -6 < point && point <= 0 {
        return format!("{sign}0.{}{digits}", zeros(-point));
    }
    let (first, rest) = digits.split_at(1);
    let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
    format!("{sign}{first}{rest}e{}{}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Resolves ties. If two shortest candidates are equally near to the number, ECMAScript takes the even one,
/// and the standard library takes the larger one.
fn even(digits: String, number: f64) -> String {
    /// Number of digits that is sufficient to write any `f64` exactly.
    const ALL: usize = 800;
    let count = digits.len();
    // Formats one more digit. In a tie, this digit is a five.
    let mantissa = |places: usize| {
        let text = format!("{number:.places$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        (mantissa.replace('.', ""), exponent.to_owned())
    };
    if !mantissa(count).0.ends_with('5') {
        return digits;
    }
    let (exact, exponent) = mantissa(ALL);
    let (below, behind) = exact.split_at(count);
    let half = behind.strip_prefix('5').is_some_and(|rest| rest.bytes().all(|digit| digit == b'0'));
    let is_even = below.bytes().last().is_some_and(|digit| digit.is_multiple_of(2));
    let (first, rest) = below.split_at(1);
    let same = format!("{first}.{rest}e{exponent}").parse() == Ok(number);
    if half && is_even && same { below.to_owned() } else { digits }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Formats a number as the writer of logs does.
    fn theirs(number: f64) -> String {
        ryu_js::Buffer::new().format(number).to_owned()
    }

    #[test]
    fn canonical_numbers_are_distinguished_from_other_forms() {
        for text in [
            "0",
            "-1",
            "123456789012345",
            "9007199254740991",
            "1e+21",
            "1e-7",
            "0.000001",
            "100000000000000000000",
            "1.5",
            "18446744073709552000",
            "5e-324",
        ] {
            assert!(is_canonical(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            "1.0",
            "1.",
            ".5",
            "1e5",
            "1E+21",
            "1e21",
            "0.0000001",
            "1e400",
            "9007199254740993",
            "--1",
            "1-1",
            "inf",
            "NaN",
        ] {
            assert!(!is_canonical(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn ties_are_even() {
        // Each number is given in quarters.
        for (quarters, expected) in [
            (2_280_000_000_000_001_u64, "570000000000000.2"),
            (2_280_000_000_000_003, "570000000000000.8"),
            (2_338_113_989_782_749, "584528497445687.2"),
        ] {
            let number = quarters as f64 / 4.0;
            assert_eq!(written(number), expected);
            assert_eq!(theirs(number), expected);
        }
    }

    proptest! {
        /// Halves and quarters between large integers, where ties occur.
        #[test]
        fn ties_are_resolved_as_by_the_writer(integer in 0_u64..1 << 53, quarters in 0_u64..4) {
            for scale in [1.0, 0.25, 0.125, 8.0] {
                let number = integer as f64 * scale + quarters as f64 * 0.25;
                prop_assert_eq!(written(number), theirs(number));
            }
        }

        /// The writer of logs formats numbers with different code.
        #[test]
        fn any_number_is_written_as_the_writer_does(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let text = written(number);
            prop_assert_eq!(&text, &theirs(number));
            prop_assert!(is_canonical(text.as_bytes()));
        }

        #[test]
        fn common_numbers_are_written_as_the_writer_does(mantissa in -100_000_i64..100_000, exponent in -12_i32..25) {
            let number = mantissa as f64 * 10_f64.powi(exponent);
            prop_assert_eq!(written(number), theirs(number));
        }

        #[test]
        fn only_the_canonical_form_passes(text in "-?[0-9]{1,18}(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,3})?") {
            let number: f64 = text.parse().expect("a number");
            let same = number.is_finite() && theirs(number) == text;
            prop_assert_eq!(is_canonical(text.as_bytes()), same);
        }
    }
}
