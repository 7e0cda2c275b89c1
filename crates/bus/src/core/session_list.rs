//! Session lists in the responses of agents.
//!
//! The bus reads a list in place, and forwards each entry unchanged except for the session's name. Parsed
//! into values, a list would take many times the memory of its text.

use std::ops::Range;

use narrows_base::json::has_more_values_than;
use narrows_wire::{Code, Effects, RpcError, elements, member};

use super::session::quoted;
use super::session_keys::decoded;

/// Maximum size of an agent's session list. Each entry is looked up among all sessions.
const MAX_LIST_BYTES: usize = 4 << 20;
const MAX_LIST_VALUES: usize = 100_000;

/// Maximum size of an agent's cursor for its session list, in bytes of JSON. The cursor is returned with the
/// next request.
const MAX_CURSOR_BYTES: usize = 4 << 10;

pub(super) struct SessionList<'a> {
    result: &'a [u8],
    /// The range of the array of sessions in `result`. `None`: there is no array.
    sessions: Option<Range<usize>>,
    pub(super) cursor: Option<&'a [u8]>,
}

pub(super) struct ListedSession<'a> {
    entry: &'a [u8],
    name_place: Range<usize>,
    pub(super) name: String,
}

impl<'a> SessionList<'a> {
    /// Finds the sessions and the cursor in the result of `session/list`. A result without sessions is an
    /// empty list.
    ///
    /// # Errors
    /// If the result is too long, or two readers could find different lists in it.
    pub(super) fn read(result: &'a [u8]) -> Result<Self, RpcError> {
        let error = |code, words| RpcError::new(code, words).effects(Effects::None);
        if result.len() > MAX_LIST_BYTES || has_more_values_than(result, MAX_LIST_VALUES) {
            return Err(error(Code::MessageTooLarge, "agent session list too long"));
        }
        let find =
            |key| member(result, key).map_err(|_| error(Code::Internal, "agent session list is ambiguous"));
        let cursor = find("nextCursor")?.and_then(|place| result.get(place));
        let cursor = cursor.filter(|cursor| *cursor != b"null");
        if cursor.is_some_and(|cursor| cursor.len() > MAX_CURSOR_BYTES) {
            return Err(error(Code::MessageTooLarge, "agent cursor too long"));
        }
        let is_array = |place: &Range<usize>| result.get(place.start) == Some(&b'[');
        Ok(Self { result, sessions: find("sessions")?.filter(is_array), cursor })
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = ListedSession<'a>> + use<'a> {
        let result = self.result;
        let list = self.sessions.clone().and_then(|place| result.get(place)).unwrap_or_default();
        elements(list).filter_map(move |place| {
            let entry = list.get(place)?;
            let name_place = member(entry, "sessionId").ok()??;
            let name = decoded(entry.get(name_place.clone())?)?;
            Some(ListedSession { entry, name_place, name })
        })
    }

    /// Returns the result with its array of sessions replaced by `entries`, which are separated by commas.
    pub(super) fn with_entries(&self, entries: &[u8]) -> Vec<u8> {
        let Some(place) = &self.sessions else { return self.result.to_vec() };
        let parts: [&[u8]; 5] = [&self.result[..place.start], b"[", entries, b"]", &self.result[place.end..]];
        parts.concat()
    }
}

impl ListedSession<'_> {
    /// Appends the entry to `entries`, after a comma if necessary. The name of its session is replaced by
    /// `name`.
    pub(super) fn append_to(&self, entries: &mut Vec<u8>, name: &str) {
        if !entries.is_empty() {
            entries.push(b',');
        }
        if name == self.name {
            entries.extend_from_slice(self.entry);
            return;
        }
        entries.extend_from_slice(&self.entry[..self.name_place.start]);
        entries.extend_from_slice(&quoted(name));
        entries.extend_from_slice(&self.entry[self.name_place.end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn filtered(result: &str) -> Result<String, i64> {
        let list = SessionList::read(result.as_bytes()).map_err(|error| error.code)?;
        let mut entries = Vec::new();
        for session in list.sessions().filter(|session| session.name != "b") {
            let name = if session.name == "c" { "c~2" } else { &session.name };
            session.append_to(&mut entries, name);
        }
        Ok(String::from_utf8(list.with_entries(&entries)).unwrap())
    }

    #[test]
    fn entries_change_only_in_their_names() {
        #[track_caller]
        fn check(result: &str, expected: &str) {
            assert_eq!(filtered(result).as_deref(), Ok(expected));
        }
        check(
            r#"{"a": 1, "sessions" : [ {"sessionId":"a", "x": [1.0] } ,{"sessionId":"b"},{"y":0,"sessionId": "c"}], "_meta":{}}"#,
            r#"{"a": 1, "sessions" : [{"sessionId":"a", "x": [1.0] },{"y":0,"sessionId": "c~2"}], "_meta":{}}"#,
        );
        check(r#"{"sessions":[]}"#, r#"{"sessions":[]}"#);
        // An entry is left out if it is not an object, or does not have exactly one `sessionId`.
        check(
            r#"{"sessions":[{},7,{"sessionId":"a","sessionId":"b"},{"sessionId":7},{"session\u0049d":"b"}]}"#,
            r#"{"sessions":[]}"#,
        );
        for other in ["null", "[]", "{}", r#"{"sessions":null}"#, r#"{"sessions":{"sessionId":"b"}}"#] {
            check(other, other);
        }
    }

    #[test]
    fn lists_that_are_too_long_or_ambiguous_are_refused() {
        let long = format!(r#"{{"sessions":[],"x":"{}"}}"#, "x".repeat(MAX_LIST_BYTES));
        let values = format!(r#"{{"sessions":[{}0]}}"#, "0,".repeat(MAX_LIST_VALUES));
        let cursor = format!(r#"{{"sessions":[],"nextCursor":"{}"}}"#, "x".repeat(MAX_CURSOR_BYTES));
        for too_long in [long, values, cursor] {
            assert_eq!(filtered(&too_long), Err(Code::MessageTooLarge.number().into()));
        }
        let twice = r#"{"sessions":[],"sessions":[{"sessionId":"a"}]}"#;
        assert_eq!(filtered(twice), Err(Code::Internal.number().into()));
    }
}
