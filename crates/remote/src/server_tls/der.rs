//! A reader for the few parts of DER that certificates are looked up by.

pub(super) const SEQUENCE: u8 = 0x30;

/// The tag of a certificate's version, which certificates of version 1 omit.
pub(super) const VERSION: u8 = 0xa0;

/// The values that have not been read yet.
pub(super) struct Der<'a>(pub(super) &'a [u8]);

impl<'a> Der<'a> {
    pub(super) fn next(&mut self) -> Option<(u8, &'a [u8])> {
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

    pub(super) fn tagged(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }
}

/// Returns the fields of a certificate behind its serial number: algorithm, issuer, validity, subject and others.
pub(super) fn certificate_fields(certificate: &[u8]) -> Option<Der<'_>> {
    let mut certificate = Der(Der(certificate).tagged(SEQUENCE)?);
    let mut fields = Der(certificate.tagged(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.next()?;
    }
    fields.next()?;
    Some(fields)
}
