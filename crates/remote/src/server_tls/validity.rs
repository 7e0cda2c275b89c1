//! The expiry time of a certificate.

use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::der::{Der, SEQUENCE, certificate_fields};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the last second in which a certificate in DER is valid, counted from 1970. Returns `None` if it never expires
/// (`99991231235959Z`) or cannot be read.
pub(crate) fn expiry(certificate: &[u8]) -> Option<u64> {
    let mut fields = certificate_fields(certificate)?;
    // Skips the algorithm and the issuer.
    for _ in 0..2 {
        fields.next()?;
    }
    let mut validity = Der(fields.tagged(SEQUENCE)?);
    validity.next()?;
    let (tag, text) = validity.next()?;
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        GENERALIZED_TIME => text.to_owned(),
        // RFC 5280, 4.1.2.5.1: two digits mean 1950 to 2049.
        UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        _ => return None,
    };
    let time = Offset::UTC.to_timestamp(DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?).ok()?;
    // A time before 1970 is as far in the past as 1970 is.
    Some(u64::try_from(time.as_second()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn certificate(tag: u8, until: &str) -> Vec<u8> {
        let validity = [der(UTC_TIME, b"200101000000Z"), der(tag, until.as_bytes())].concat();
        let fields = [der(2, &[1]), der(SEQUENCE, &[]), der(SEQUENCE, &[]), der(SEQUENCE, &validity)];
        der(SEQUENCE, &der(SEQUENCE, &fields.concat()))
    }

    #[test]
    fn expiry_times() {
        let check = |tag, until, expected| assert_eq!(expiry(&certificate(tag, until)), expected, "{until}");
        check(UTC_TIME, "261118070000Z", Some(1_794_985_200));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(UTC_TIME, "991231235959Z", Some(946_684_799));
        check(UTC_TIME, "500101000000Z", Some(0));
        check(GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, "99991231235959Z", None);
        check(UTC_TIME, "261318070000Z", None);
        check(UTC_TIME, "2", None);
        check(0x0c, "261118070000Z", None);
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes: Vec<u8>, at in 0_usize..60, byte: u8) {
            _ = expiry(&bytes);
            let mut whole = certificate(UTC_TIME, "261118070000Z");
            if let Some(place) = whole.get_mut(at) {
                *place = byte;
            }
            _ = expiry(&whole);
        }
    }
}
