//! The position of a page in the list of sessions, as an opaque text.

use crate::StoreError;

/// The last session of a page. The next page has sessions updated before it, even if others are added or
/// deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) updated: i64,
    pub(crate) id: String,
}

/// Length of the time at the start of the text, in hexadecimal digits.
const TIME_DIGITS: usize = 16;

impl Cursor {
    pub(crate) fn to_text(&self) -> String {
        let id: String = self.id.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("{:0TIME_DIGITS$x}{id}", self.updated)
    }

    /// Parses a text that [`Cursor::to_text`] has written, and rejects every other text.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let (time, id) = text.split_at_checked(TIME_DIGITS).ok_or(StoreError::BadCursor)?;
        let time: Vec<u8> = decode_hex(time).ok_or(StoreError::BadCursor)?;
        let time: [u8; TIME_DIGITS / 2] = time.try_into().map_err(|_| StoreError::BadCursor)?;
        let id = decode_hex(id).and_then(|id| String::from_utf8(id).ok()).ok_or(StoreError::BadCursor)?;
        if id.is_empty() {
            return Err(StoreError::BadCursor);
        }
        Ok(Self { updated: i64::from_be_bytes(time), id })
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(i64, &str)>) {
        let expected = expected.map(|(updated, id)| Cursor { updated, id: id.to_owned() });
        assert_eq!(Cursor::parse(text).ok(), expected, "{text}");
    }

    #[test]
    fn text_that_is_no_cursor_is_rejected() {
        check("000000000000000161", Some((1, "a")));
        check("ffffffffffffffff61c3a9", Some((-1, "aé")));
        check("", None);
        check("0000000000000001", None);
        check("00000000000000016", None);
        check("0000000000000001ff", None);
        check("000000000000000A61", None);
        check("+00000000000000161", None);
        check("00000000000000016é", None);
        check("000000000000000é61", None);
    }

    proptest! {
        #[test]
        fn a_written_cursor_is_parsed_unchanged(updated: i64, id in ".{1,64}") {
            let cursor = Cursor { updated, id };
            prop_assert_eq!(Cursor::parse(&cursor.to_text()), Ok(cursor));
        }

        #[test]
        fn a_parsed_cursor_has_one_spelling(text in "([0-9a-f]{2}){8,20}|.*") {
            if let Ok(cursor) = Cursor::parse(&text) {
                prop_assert_eq!(cursor.to_text(), text);
            }
        }
    }
}
