//! A line with some fields replaced, as a list of the parts to write.

use std::ops::{Deref, Range};

use narrows_wire::{Part, Span, View};

/// Maximum number of parts of a line: three for the tag, two for each replaced field, and one for the rest.
const MAX_PARTS: usize = 10;

#[derive(Debug)]
pub(super) struct Parts<'a> {
    parts: [&'a [u8]; MAX_PARTS],
    count: usize,
}

impl<'a> Parts<'a> {
    /// Returns `message` with the fields of `edits` replaced. A field that is not in the message is ignored.
    pub(super) fn new(message: View<'a>, edits: &[(Part, &'a [u8])]) -> Self {
        Self::after(message.bytes(), 0, message, edits)
    }

    /// Returns the parts of [`Self::new`]. If the message has no top-level `sessionId`, `tag` becomes its
    /// value.
    pub(super) fn with_tag(message: View<'a>, edits: &[(Part, &'a [u8])], tag: &'a [u8]) -> Self {
        let bytes = message.bytes();
        let open = bytes.iter().position(|&byte| byte == b'{');
        match open {
            Some(open) if !message.envelope().top_session.is_some() => {
                let mut parts = Self::after(bytes, open + 1, message, edits);
                parts.parts.copy_within(..parts.count, 3);
                parts.parts[..3].copy_from_slice(&[b"{\"sessionId\":", tag, b","]);
                parts.count += 3;
                parts
            }
            _ => Self::new(message, edits),
        }
    }

    fn after(bytes: &'a [u8], mut at: usize, message: View<'a>, edits: &[(Part, &'a [u8])]) -> Self {
        let mut parts = Self { parts: [b""; MAX_PARTS], count: 0 };
        if let [] | [_] = edits {
            // Most lines have at most one field replaced.
            if let Some((part, value)) = edits.first()
                && let Some(place) = message.part_range(*part)
            {
                parts.push(&bytes[at..place.start]);
                parts.push(value);
                at = place.end;
            }
            parts.push(&bytes[at..]);
            return parts;
        }
        let mut holes: [Option<(Range<usize>, &'a [u8])>; 3] = [None, None, None];
        for (hole, (part, value)) in holes.iter_mut().zip(edits) {
            *hole = message.part_range(*part).map(|place| (place, *value));
        }
        // The fields can be in any order in the line. Absent fields are sorted to the end.
        holes.sort_unstable_by_key(|hole| hole.as_ref().map_or(usize::MAX, |(place, _)| place.start));
        for (place, value) in holes.into_iter().flatten() {
            parts.push(&bytes[at..place.start]);
            parts.push(value);
            at = place.end;
        }
        parts.push(&bytes[at..]);
        parts
    }

    fn push(&mut self, part: &'a [u8]) {
        self.parts[self.count] = part;
        self.count += 1;
    }

    pub(super) fn as_slice(&self) -> &[&'a [u8]] {
        &self.parts[..self.count]
    }

    pub(super) fn len(&self) -> usize {
        self.as_slice().iter().map(|part| part.len()).sum::<usize>() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, edits: &[(Part, &str)], tag: Option<&str>, expected: &str) {
        let edits: Vec<(Part, &[u8])> = edits.iter().map(|(part, value)| (*part, value.as_bytes())).collect();
        let message = View::parse(line.as_bytes());
        let parts = match tag {
            Some(tag) => Parts::with_tag(message, &edits, tag.as_bytes()),
            None => Parts::new(message, &edits),
        };
        assert_eq!(String::from_utf8(parts.as_slice().concat()).unwrap(), expected);
        assert_eq!(parts.len(), expected.len() + 1);
    }

    #[test]
    fn fields_are_replaced_at_any_position() {
        use Part::{Id, RequestId, Session};
        let line =
            r#" {"params":{"requestId":7,"x":{},"sessionId":"a"} ,"id":"q", "method":"m","jsonrpc":"2.0"}"#;
        check(line, &[], None, line);
        check(line, &[(Id, "12")], None, &line.replace("\"q\"", "12"));
        check(
            line,
            &[(Id, "1"), (Session, "\"bb\""), (RequestId, "null")],
            None,
            &line.replace("\"q\"", "1").replace("\"a\"", "\"bb\"").replace('7', "null"),
        );
        check(r#"{"jsonrpc":"2.0","method":"m"}"#, &[(Id, "1")], None, r#"{"jsonrpc":"2.0","method":"m"}"#);
        check(
            r#" {"jsonrpc":"2.0","id":1,"result":1}"#,
            &[(Id, "2")],
            Some("\"t\""),
            r#"{"sessionId":"t","jsonrpc":"2.0","id":2,"result":1}"#,
        );
        let tagged = r#"{"jsonrpc":"2.0","id":1,"result":1,"sessionId":"u"}"#;
        check(tagged, &[], Some("\"t\""), tagged);
    }
}

/// A line that is kept, and the position of its id. The line may be long, so it is not parsed again to find
/// the id.
#[derive(Debug)]
pub(super) struct KeptLine {
    bytes: Box<[u8]>,
    id: Span,
}

impl KeptLine {
    pub(super) fn id(&self) -> Option<&[u8]> {
        self.id.slice(&self.bytes)
    }
}

impl From<&[u8]> for KeptLine {
    fn from(line: &[u8]) -> Self {
        Self { bytes: line.into(), id: View::parse(line).envelope().id }
    }
}

impl Deref for KeptLine {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
