//! Keys that are not the one that is looked for, and that some readers take for it.
//!
//! Several JSON libraries match keys without regard to case, and some agents also accept `session_id` for `sessionId`. What is
//! routed by one key and read by another would reach a session or a method that nobody checked.

use std::borrow::Cow;

/// The keys of a message, in lower case.
const TOP: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// The keys of `params` that decide where a message goes, in lower case.
const ROUTING: [&str; 2] = ["sessionid", "requestid"];

/// Returns `true` if the content of a key, which is none of [`TOP`] as it stands, is one of them without regard to case.
#[inline(always)]
pub(crate) fn is_like_top_key(key: &[u8]) -> bool {
    match key.first() {
        Some(b'j' | b'J' | b'i' | b'I' | b'm' | b'M' | b'p' | b'P' | b'r' | b'R' | b'e' | b'E' | b'\\') => {
            is_like(key, &TOP, false)
        }
        _ => false,
    }
}

/// Returns `true` if the content of a key is one of [`ROUTING`] without regard to case, `_` and `-`, and not as the protocol
/// spells it.
#[inline(always)]
pub(crate) fn is_like_routing_key(key: &[u8]) -> bool {
    match key.first() {
        // The last is the first byte of a letter that is an `s` without regard to case.
        Some(b's' | b'S' | b'r' | b'R' | b'_' | b'-' | b'\\' | 0xc5) => is_like(key, &ROUTING, true),
        _ => false,
    }
}

#[cold]
fn is_like(key: &[u8], names: &[&str], ignores_separators: bool) -> bool {
    let text = if key.contains(&b'\\') {
        let quoted = [b"\"", key, b"\""].concat();
        // Half of a surrogate pair is no text, and no reader finds a key in it.
        serde_json::from_slice::<String>(&quoted).map(Cow::Owned).unwrap_or_default()
    } else {
        String::from_utf8_lossy(key)
    };
    let is_exact = matches!(&*text, "sessionId" | "requestId");
    !is_exact && names.iter().any(|name| folds_to(&text, name, ignores_separators))
}

/// Returns `true` if `key` is `name`, which is in lower case, without regard to case, and to `_` and `-` if these are ignored.
#[must_use]
pub fn folds_to(key: &str, name: &str, ignores_separators: bool) -> bool {
    let letters = key.chars().filter(|c| !(ignores_separators && matches!(c, '_' | '-')));
    let letters = letters.map(|c| match c {
        // The two letters outside ASCII that are equal to one within it without regard to case.
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    });
    letters.eq(name.chars())
}

#[cfg(test)]
mod tests {
    use crate::fault::Fault;
    use crate::scan::{Check, scan, scan_portable};
    use crate::{Envelope, Kind};

    fn scanned(text: &str) -> (Kind, Envelope) {
        let found = scan(text.as_bytes(), Check::Grammar);
        assert_eq!(found, scan_portable(text.as_bytes(), Check::Grammar), "{text}");
        assert_eq!(found, scan(text.as_bytes(), Check::Envelope), "{text}");
        found
    }

    #[test]
    fn a_key_of_a_message_in_another_case_makes_it_invalid() {
        for key in ["Method", "METHOD", "Params", "parAms", "ID", "Id", "Result", "Error", "JSONRPC"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{}},"{key}":1}}"#);
            assert_eq!(scanned(&text).0, Kind::Invalid(Fault::RepeatedKey), "{key}");
        }
        for key in ["\u{17f}", r"\u017f", r"\u0053"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","param{key}":1}}"#);
            assert_eq!(scanned(&text).0, Kind::Invalid(Fault::RepeatedKey), "{key}");
        }
        for key in ["_meta", "methods", "me", "p", "resultx", "pa_rams", "identity", r"\u00e9"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","{key}":1}}"#);
            assert_eq!(scanned(&text).0, Kind::Request, "{key}");
        }
    }

    #[test]
    fn a_key_that_may_be_read_as_a_session_or_a_request_is_told() {
        let odd =
            ["SessionId", "sessionID", "session_id", "session-id", "_sessionId", "requestid", "request_id"];
        let escaped =
            ["\u{17f}essionId", r"\u0073ession_id", r"\u017fessionId", r"Re\u0071uestId", r"\u005fsessionId"];
        for key in odd.into_iter().chain(escaped) {
            let text =
                format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"sessionId":"s","{key}":"t"}}}}"#);
            let (kind, envelope) = scanned(&text);
            assert_eq!((kind, envelope.ambiguous), (Kind::Notification, true), "{key}");
            let text = format!(r#"{{"jsonrpc":"2.0","method":"a","{key}":"t"}}"#);
            assert!(scanned(&text).1.ambiguous, "{key}");
        }
        for key in ["session", "sessions", "sessionUpdate", "request", "resume", "_meta", "a_sessionId_b"] {
            let text =
                format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"sessionId":"s","{key}":"t"}}}}"#);
            assert!(!scanned(&text).1.ambiguous, "{key}");
        }
        // Longer than the buffer in which the scan unescapes keys.
        let text = r#"{"jsonrpc":"2.0","method":"a","params":{"_________\u0053ession_id":"t"}}"#;
        assert!(scanned(text).1.ambiguous);
        // An escaped backslash begins no escape.
        for key in [r"\u005cu0053essionId", r"\\u0053essionId", r"\u005cessionId"] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"{key}":"t"}},"{key}":"t"}}"#);
            assert_eq!((scanned(&text).0, scanned(&text).1.ambiguous), (Kind::Notification, false), "{key}");
        }
        // Deeper down nobody looks for one.
        let text = r#"{"jsonrpc":"2.0","method":"a","params":{"_meta":{"session_id":"t"},"list":[{"SessionId":1}]}}"#;
        assert!(!scanned(text).1.ambiguous);
    }
}
