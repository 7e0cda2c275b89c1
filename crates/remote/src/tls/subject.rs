//! Whom a certificate names: the common name of its subject, or else the first of its other names.
//!
//! The certificate has been verified before anybody asks this, so it is well formed; what is not is nobody all the same.

use crate::identity::{Identity, Proof, is_name};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const OCTETS: u8 = 0x04;
/// The version of a certificate, which old ones leave out.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// UTF8String, PrintableString and IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// An address of mail, a host name and a URI among the other names.
const NAMES: [u8; 3] = [0x81, 0x82, 0x86];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const OTHER_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

/// The identity of a certificate in DER, if it names one that can be used.
#[must_use]
pub fn identity(certificate: &[u8]) -> Option<Identity> {
    let name = names(certificate)?;
    is_name(&name).then_some(Identity { proof: Proof::Certificate, name, scopes: None })
}

fn names(certificate: &[u8]) -> Option<String> {
    let mut certificate = Der(Der(certificate).tagged(SEQUENCE)?);
    let mut fields = Der(certificate.tagged(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.next()?;
    }
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        fields.next()?;
    }
    let subject = fields.tagged(SEQUENCE)?;
    common_name(subject).or_else(|| other_name(fields))
}

/// The last one, which is the most specific.
fn common_name(subject: &[u8]) -> Option<String> {
    let mut found = None;
    let mut sets = Der(subject);
    while let Some((SET, set)) = sets.next() {
        let mut attributes = Der(set);
        while let Some((SEQUENCE, attribute)) = attributes.next() {
            let mut attribute = Der(attribute);
            if attribute.tagged(OID)? == COMMON_NAME
                && let Some((tag, value)) = attribute.next()
                && TEXTS.contains(&tag)
            {
                found = text(value);
            }
        }
    }
    found
}

fn other_name(mut fields: Der<'_>) -> Option<String> {
    let extensions = std::iter::from_fn(|| fields.next()).find(|(tag, _)| *tag == EXTENSIONS)?.1;
    let mut extensions = Der(Der(extensions).tagged(SEQUENCE)?);
    while let Some((SEQUENCE, extension)) = extensions.next() {
        let mut extension = Der(extension);
        if extension.tagged(OID)? != OTHER_NAMES {
            continue;
        }
        // A mark whether it is critical may stand between.
        let value = std::iter::from_fn(|| extension.next()).find(|(tag, _)| *tag == OCTETS)?.1;
        let mut names = Der(Der(value).tagged(SEQUENCE)?);
        let first = std::iter::from_fn(|| names.next()).find(|(tag, _)| NAMES.contains(tag))?.1;
        return text(first);
    }
    None
}

fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(str::to_owned)
}

/// What is left of a row of values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value and its tag.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&length, rest) = rest.split_first()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// The next value, if it has this tag.
    fn tagged(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        let mut all = vec![tag];
        match value.len() {
            length @ 0..0x80 => all.push(length as u8),
            length => all.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        all.extend(value);
        all
    }

    fn certificate(subject: &[(&[u8], u8, &str)], others: &[(u8, &str)], padding: usize) -> Vec<u8> {
        let mut name = Vec::new();
        for (oid, tag, value) in subject {
            name.extend(der(SET, &der(SEQUENCE, &[der(OID, oid), der(*tag, value.as_bytes())].concat())));
        }
        let mut fields =
            [der(VERSION, &[2]), der(2, &vec![1; padding]), der(SEQUENCE, &[]), der(SEQUENCE, &[])].concat();
        fields.extend(der(SEQUENCE, &[]));
        fields.extend(der(SEQUENCE, &name));
        fields.extend(der(SEQUENCE, b"\x00\x00"));
        let others: Vec<u8> = others.iter().flat_map(|(tag, value)| der(*tag, value.as_bytes())).collect();
        let usage =
            der(SEQUENCE, &[der(OID, &[0x55, 0x1d, 0x0f]), der(1, &[0xff]), der(OCTETS, &[3])].concat());
        let names = der(
            SEQUENCE,
            &[der(OID, OTHER_NAMES), der(1, &[0xff]), der(OCTETS, &der(SEQUENCE, &others))].concat(),
        );
        fields.extend(der(EXTENSIONS, &der(SEQUENCE, &[usage, names].concat())));
        der(SEQUENCE, &[der(SEQUENCE, &fields), der(SEQUENCE, &[])].concat())
    }

    #[track_caller]
    fn check(subject: &[(&[u8], u8, &str)], others: &[(u8, &str)], expected: Option<&str>) {
        for padding in [1, 300] {
            let found = identity(&certificate(subject, others, padding));
            assert_eq!(found.as_ref().map(|identity| &*identity.name), expected);
        }
    }

    #[test]
    fn names() {
        let organisation: &[u8] = &[0x55, 0x04, 0x0a];
        check(&[(COMMON_NAME, 0x0c, "laptop")], &[], Some("laptop"));
        check(
            &[(organisation, 0x0c, "Us"), (COMMON_NAME, 0x13, "laptop")],
            &[(0x82, "host")],
            Some("laptop"),
        );
        check(&[(COMMON_NAME, 0x0c, "a"), (COMMON_NAME, 0x0c, "b")], &[], Some("b"));
        check(
            &[(organisation, 0x0c, "Us")],
            &[(0x87, "\x7f\0\0\x01"), (0x81, "me@bus.example")],
            Some("me@bus.example"),
        );
        check(&[], &[(0x82, "host"), (0x82, "other")], Some("host"));
        check(&[], &[], None);
        // What cannot be a name is nobody, and not the next best.
        check(&[(COMMON_NAME, 0x0c, "a\nb")], &[(0x82, "host")], None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>, at in 0_usize..200, byte: u8) {
            _ = identity(&bytes);
            let mut whole = certificate(&[(COMMON_NAME, 0x0c, "laptop")], &[(0x82, "host")], 2);
            if let Some(place) = whole.get_mut(at) {
                *place = byte;
            }
            _ = identity(&whole);
        }
    }
}
