//! The identity in a client certificate: the one common name of its subject.
//!
//! Other names are for hosts and addresses, and an authority that checks those need not check who a person is. So a
//! certificate without a common name, or with several, has no identity. The certificate is verified before this code
//! sees it; a malformed one has no identity either.

use super::der::{Der, SEQUENCE, certificate_fields};
use crate::identity::{Identity, Proof, is_name};

const SET: u8 = 0x31;
const OID: u8 = 0x06;
/// DER tags of the accepted string types: UTF8String, PrintableString and IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// A reason why a certificate has no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoIdentityError {
    #[error("the subject cannot be read")]
    Broken,
    #[error("the subject has no common name")]
    Missing,
    /// The subject has several common names, so another program may choose a different one as the identity.
    #[error("the subject has several common names")]
    Several,
    /// The common name is not usable as an identity, which is written to logs and files unescaped.
    #[error("the common name is not an identity: letters, digits and . _ - @ + only, at most 64")]
    Unusable,
}

/// Returns the identity of a certificate in DER.
///
/// # Errors
/// If the certificate has no usable common name.
pub fn identity(certificate: &[u8]) -> Result<Identity, NoIdentityError> {
    let subject = subject(certificate).ok_or(NoIdentityError::Broken)?;
    let names = common_names(subject).ok_or(NoIdentityError::Broken)?;
    let (tag, value) = match names[..] {
        [] => return Err(NoIdentityError::Missing),
        [name] => name,
        _ => return Err(NoIdentityError::Several),
    };
    let name =
        text(value).filter(|name| TEXTS.contains(&tag) && is_name(name)).ok_or(NoIdentityError::Unusable)?;
    Ok(Identity::new(Proof::Certificate, name))
}

fn subject(certificate: &[u8]) -> Option<&[u8]> {
    let mut fields = certificate_fields(certificate)?;
    // Skips the algorithm, the issuer and the validity.
    for _ in 0..3 {
        fields.next()?;
    }
    fields.tagged(SEQUENCE)
}

/// Returns all common names with their string tags, or `None` if the subject is malformed.
fn common_names(subject: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut names = Vec::new();
    let mut sets = Der(subject);
    while !sets.0.is_empty() {
        let mut attributes = Der(sets.tagged(SET)?);
        while !attributes.0.is_empty() {
            let mut attribute = Der(attributes.tagged(SEQUENCE)?);
            let oid = attribute.tagged(OID)?;
            let value = attribute.next()?;
            if oid == COMMON_NAME {
                names.push(value);
            }
        }
    }
    Some(names)
}

fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::der::VERSION;
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

    const OTHER_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
    const OCTETS: u8 = 0x04;
    const EXTENSIONS: u8 = 0xa3;

    fn certificate(subject: &[(&[u8], u8, &str)], others: &[(u8, &str)], padding: usize) -> Vec<u8> {
        let mut name = Vec::new();
        for (oid, tag, value) in subject {
            name.extend(der(SET, &der(SEQUENCE, &[der(OID, oid), der(*tag, value.as_bytes())].concat())));
        }
        certificate_with_subject(&name, others, padding)
    }

    fn certificate_with_subject(name: &[u8], others: &[(u8, &str)], padding: usize) -> Vec<u8> {
        let mut fields =
            [der(VERSION, &[2]), der(2, &vec![1; padding]), der(SEQUENCE, &[]), der(SEQUENCE, &[])].concat();
        fields.extend(der(SEQUENCE, &[]));
        fields.extend(der(SEQUENCE, name));
        fields.extend(der(SEQUENCE, b"\x00\x00"));
        let others: Vec<u8> = others.iter().flat_map(|(tag, value)| der(*tag, value.as_bytes())).collect();
        let names = der(
            SEQUENCE,
            &[der(OID, OTHER_NAMES), der(1, &[0xff]), der(OCTETS, &der(SEQUENCE, &others))].concat(),
        );
        fields.extend(der(EXTENSIONS, &der(SEQUENCE, &names)));
        der(SEQUENCE, &[der(SEQUENCE, &fields), der(SEQUENCE, &[])].concat())
    }

    #[track_caller]
    fn check(subject: &[(&[u8], u8, &str)], others: &[(u8, &str)], expected: Result<&str, NoIdentityError>) {
        for padding in [1, 300] {
            let found = identity(&certificate(subject, others, padding));
            assert_eq!(found.as_ref().map(|identity| &*identity.name).map_err(|why| *why), expected);
        }
    }

    #[test]
    fn only_one_common_name_is_an_identity() {
        let organisation: &[u8] = &[0x55, 0x04, 0x0a];
        let host = &[(0x82, "alice")][..];
        check(&[(COMMON_NAME, 0x0c, "laptop")], &[], Ok("laptop"));
        check(&[(organisation, 0x0c, "Us"), (COMMON_NAME, 0x13, "laptop")], host, Ok("laptop"));
        check(&[], &[], Err(NoIdentityError::Missing));
        // Hosts, addresses of mail and URIs are names of another kind.
        check(&[], host, Err(NoIdentityError::Missing));
        check(&[(organisation, 0x0c, "Us")], &[(0x81, "me@bus.example")], Err(NoIdentityError::Missing));
        check(&[], &[(0x86, "spiffe://bus.example/alice")], Err(NoIdentityError::Missing));
        for names in [["a", "b"], ["b", "a"], ["a", "a"]] {
            check(&names.map(|name| (COMMON_NAME, 0x0c, name)), host, Err(NoIdentityError::Several));
        }
        // A name in an unknown encoding counts as well.
        check(&[(COMMON_NAME, 0x0c, "a"), (COMMON_NAME, 0x1e, "\0b")], host, Err(NoIdentityError::Several));
        check(&[(COMMON_NAME, 0x1e, "\0a")], host, Err(NoIdentityError::Unusable));
        check(&[(COMMON_NAME, 0x0c, "a\nb")], host, Err(NoIdentityError::Unusable));
        check(&[(COMMON_NAME, 0x0c, "")], host, Err(NoIdentityError::Unusable));
    }

    #[test]
    fn two_names_in_one_set_are_several_and_a_malformed_subject_has_none() {
        let named = |name: &str| der(SEQUENCE, &[der(OID, COMMON_NAME), der(0x0c, name.as_bytes())].concat());
        let both = der(SET, &[named("a"), named("b")].concat());
        assert_eq!(identity(&certificate_with_subject(&both, &[], 1)), Err(NoIdentityError::Several));
        let odd = [der(SET, &named("a")), der(OID, &named("b"))].concat();
        assert_eq!(identity(&certificate_with_subject(&odd, &[], 1)), Err(NoIdentityError::Broken));
        let half = [der(SET, &named("a")), vec![SET, 0x20]].concat();
        assert_eq!(identity(&certificate_with_subject(&half, &[], 1)), Err(NoIdentityError::Broken));
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes: Vec<u8>, at in 0_usize..200, byte: u8) {
            _ = identity(&bytes);
            let mut whole = certificate(&[(COMMON_NAME, 0x0c, "laptop")], &[(0x82, "host")], 2);
            if let Some(place) = whole.get_mut(at) {
                *place = byte;
            }
            _ = identity(&whole);
        }
    }
}
