//! Ids of requests that the bus sends: plain numbers, written and parsed without an allocation.

#[derive(Clone, Copy, Debug)]
pub(super) struct Digits {
    digits: [u8; 20],
    start: u8,
}

impl Digits {
    pub(super) fn new(mut number: u64) -> Self {
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start: start as u8 };
            }
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.digits[usize::from(self.start)..]
    }
}

/// Parses an id in the form in which the bus writes it: `1`, never `01`, `1.0` or `"1"`.
pub(super) fn parse(raw: &[u8]) -> Option<u64> {
    if raw.is_empty() || raw.len() > 19 || (raw[0] == b'0' && raw.len() > 1) {
        return None;
    }
    raw.iter().try_fold(0, |number: u64, &digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_number_parses_back() {
        for number in [0, 1, 9, 10, 99, 100, 12_345_678_901, 9_999_999_999_999_999_999 / 10] {
            let digits = Digits::new(number);
            assert_eq!(digits.as_bytes(), number.to_string().as_bytes());
            assert_eq!(parse(digits.as_bytes()), Some(number));
        }
        assert_eq!(Digits::new(u64::MAX).as_bytes(), u64::MAX.to_string().as_bytes());
        for other in ["", "01", "1.0", "\"1\"", "-1", "1e3", " 1", "99999999999999999999", "null"] {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
    }
}
