//! Base58, the encoding of a `did:key`.

const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// Maximum length of a decoded text. A `did:key` has 48 characters.
const MAX_TEXT_BYTES: usize = 64;

pub(crate) fn encode(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let mut digits: Vec<u8> = Vec::new();
    for &byte in bytes {
        let mut carry = u32::from(byte);
        for digit in &mut digits {
            carry += u32::from(*digit) << 8;
            *digit = (carry % 58) as u8;
            carry /= 58;
        }
        while carry > 0 {
            digits.push((carry % 58) as u8);
            carry /= 58;
        }
    }
    let letters = digits.iter().rev().map(|digit| char::from(ALPHABET[usize::from(*digit)]));
    std::iter::repeat_n('1', zeros).chain(letters).collect()
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    if text.len() > MAX_TEXT_BYTES {
        return None;
    }
    let zeros = text.bytes().take_while(|letter| *letter == b'1').count();
    let mut bytes: Vec<u8> = Vec::new();
    for letter in text.bytes() {
        let mut carry = ALPHABET.iter().position(|known| *known == letter)? as u32;
        for byte in &mut bytes {
            carry += u32::from(*byte) * 58;
            *byte = (carry & 0xff) as u8;
            carry >>= 8;
        }
        while carry > 0 {
            bytes.push((carry & 0xff) as u8);
            carry >>= 8;
        }
    }
    bytes.extend(std::iter::repeat_n(0, zeros));
    bytes.reverse();
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_texts_are_encoded_and_decoded() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"\0\0", "11"),
            (b"Hello World!", "2NEpo7TZRRrLZSi2U"),
            (b"\0\0\x28\x7f\xb4\xcd", "11233QC4"),
        ] {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text).as_deref(), Some(bytes));
        }
        assert_eq!(decode("0"), None);
        assert_eq!(decode(&"2".repeat(65)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_survive_encoding_and_decoding(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
