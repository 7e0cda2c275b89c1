//! Times as written in a log.

/// Parses a time such as `2026-11-15T18:00:00.000Z` to nanoseconds since 1970.
pub(super) fn read(text: &[u8]) -> Option<i128> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, mut rest) = rest.split_at_checked(9)?;
    let &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = date else { return None };
    let &[b'T' | b't', h1, h2, b':', i1, i2, b':', s1, s2] = clock else { return None };
    let (year, month, day) = (number(&[y1, y2, y3, y4])?, number(&[m1, m2])?, number(&[d1, d2])?);
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[i1, i2])?, number(&[s1, s2])?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut nanoseconds = 0;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 || count > 9 {
            return None;
        }
        nanoseconds = number(&fraction[..count])? * 10_i64.pow(9 - u32::try_from(count).ok()?);
        rest = &fraction[count..];
    }
    let offset = match *rest {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number(&[h1, h2])?, number(&[m1, m2])?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if sign == b'+' { 60 } else { -60 }
        }
        _ => return None,
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits
        .iter()
        .try_fold(0_i64, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
}

/// Counts days since 1970. A year begins in March here, so that a leap day is the last day of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(read(b"1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(read(b"1970-01-01T00:00:00.001Z"), Some(1_000_000));
        assert_eq!(read(b"1970-01-01T01:30:00+01:30"), Some(0));
        assert_eq!(read(b"2024-02-29T00:00:00Z"), Some(1_709_164_800_000_000_000));
        for text in [
            "",
            "2026-11-15",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-15T24:00:00Z",
            "2026-11-15T18:00:00",
            "2026-11-15 18:00:00Z",
            "2026-11-15T18:00:00.Z",
            "2026-11-15T18:00:00+0100",
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn times_of_the_writer_are_read_exactly(milliseconds in -62_135_596_800_000_i64..253_402_207_200_000) {
            let time = jiff::Timestamp::from_millisecond(milliseconds).expect("in range");
            prop_assert_eq!(read(format!("{time:.3}").as_bytes()), Some(i128::from(milliseconds) * 1_000_000));
        }
    }
}
