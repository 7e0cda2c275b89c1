//! Detects keys that some readers take for a routing key although they are spelled differently.
//!
//! Several JSON libraries ignore the case of keys, and some agents accept `session_id` for `sessionId`. If
//! the router and the receiver read different keys, a message could reach a session or method that was not
//! checked.

/// The top-level keys of a message, in lower case.
const TOP: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// The keys of `params` that route a message, in lower case.
const ROUTING: [&str; 2] = ["sessionid", "requestid"];

/// Length of each key in [`ROUTING`]. Other spellings are at least as long.
const MIN_ROUTING_BYTES: usize = 9;

/// Returns `true` if `key` matches one of [`TOP`] when case is ignored. `key` must not be in [`TOP`] as
/// written.
#[inline(always)]
pub(crate) fn is_like_top_key(key: &[u8]) -> bool {
    match key.first() {
        Some(b'j' | b'J' | b'i' | b'I' | b'm' | b'M' | b'p' | b'P' | b'r' | b'R' | b'e' | b'E' | b'\\') => {
            is_like(key, &TOP, false)
        }
        _ => false,
    }
}

/// Returns `true` if `key` matches one of [`ROUTING`] when case, `_` and `-` are ignored, but is not
/// spelled as in the protocol.
#[inline(always)]
pub(crate) fn is_like_routing_key(key: &[u8]) -> bool {
    match key {
        // Fast path for most keys: both routing keys begin with a letter and an `e`, and have nine letters.
        // Other spellings of them may add separators and escapes.
        [b's' | b'S' | b'r' | b'R', b'e' | b'E' | b'_' | b'-' | b'\\', ..]
        // 0xc5 is the first byte of `ſ`, which equals `s` when case is ignored.
        | [b'_' | b'-' | b'\\' | 0xc5, ..]
            if key.len() >= MIN_ROUTING_BYTES =>
        {
            is_like(key, &ROUTING, true)
        }
        _ => false,
    }
}

#[cold]
fn is_like(key: &[u8], names: &[&str], ignores_separators: bool) -> bool {
    let is_exact = ["sessionId", "requestId"].iter().any(|name| Letters(key).eq(name.chars()));
    !is_exact && names.iter().any(|name| fold(Letters(key), ignores_separators).eq(name.chars()))
}

/// Returns `true` if `key` equals `name` (lower case) when case is ignored, and `_` and `-` too if
/// `ignores_separators`.
#[must_use]
pub fn folds_to(key: &str, name: &str, ignores_separators: bool) -> bool {
    fold(key.chars(), ignores_separators).eq(name.chars())
}

/// Does the same as [`folds_to`] for a key as written in JSON, with its quotes; `name` must be ASCII. Does
/// not allocate and stops at the first different letter, because a message may have millions of keys.
#[must_use]
pub fn written_key_folds_to(key: &[u8], name: &str, ignores_separators: bool) -> bool {
    let content = key.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\""));
    content.is_some_and(|content| fold(Letters(content), ignores_separators).eq(name.chars()))
}

fn fold(letters: impl Iterator<Item = char>, ignores_separators: bool) -> impl Iterator<Item = char> {
    let letters = letters.filter(move |c| !(ignores_separators && matches!(c, '_' | '-')));
    letters.map(|c| match c {
        // `ſ` and `K` (Kelvin) are the two letters outside ASCII that equal an ASCII letter when case is
        // ignored.
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    })
}

/// The letters of a key as written in JSON, without its quotes. Lone surrogates become U+FFFD, as do all
/// letters that neither are ASCII nor equal an ASCII letter when case is ignored.
#[derive(Clone)]
pub(crate) struct Letters<'a>(pub(crate) &'a [u8]);

impl Iterator for Letters<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let (letter, length) = match self.0 {
            [] => return None,
            [b'\\', b'u', digits @ ..] => (decode_escape(digits), 6),
            [b'\\', letter @ (b'"' | b'\\' | b'/'), ..] => (char::from(*letter), 2),
            [b'\\', ..] => (char::REPLACEMENT_CHARACTER, 2),
            [0xc5, 0xbf, ..] => ('\u{17f}', 2),
            [0xe2, 0x84, 0xaa, ..] => ('\u{212a}', 3),
            [byte, ..] if byte.is_ascii() => (char::from(*byte), 1),
            _ => (char::REPLACEMENT_CHARACTER, 1),
        };
        self.0 = self.0.get(length..).unwrap_or_default();
        Some(letter)
    }
}

fn decode_escape(digits: &[u8]) -> char {
    let mut digits = digits.iter().take(4);
    let number = digits.try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?));
    match number.and_then(char::from_u32) {
        Some(letter) if letter.is_ascii() || matches!(letter, '\u{17f}' | '\u{212a}') => letter,
        _ => char::REPLACEMENT_CHARACTER,
    }
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
    fn a_key_similar_to_a_routing_key_is_detected() {
        let odd =
            ["SessionId", "sessionID", "session_id", "session-id", "_sessionId", "requestid", "request_id"];
        let escaped = [
            "\u{17f}essionId",
            r"s\u0065ssionID",
            "s_essionid",
            r"R-e\u0071uestId",
            r"\u0073ession_id",
            r"\u017fessionId",
            r"Re\u0071uestId",
            r"\u005fsessionId",
        ];
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
        // The key is longer than the buffer in which the scan unescapes keys.
        let text = r#"{"jsonrpc":"2.0","method":"a","params":{"_________\u0053ession_id":"t"}}"#;
        assert!(scanned(text).1.ambiguous);
        // An escaped backslash does not begin an escape.
        for key in [r"\u005cu0053essionId", r"\\u0053essionId", r"\u005cessionId"] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"{key}":"t"}},"{key}":"t"}}"#);
            assert_eq!((scanned(&text).0, scanned(&text).1.ambiguous), (Kind::Notification, false), "{key}");
        }
        // Keys at deeper levels are not checked.
        let text = r#"{"jsonrpc":"2.0","method":"a","params":{"_meta":{"session_id":"t"},"list":[{"SessionId":1}]}}"#;
        assert!(!scanned(text).1.ambiguous);
    }

    #[test]
    fn a_written_key_is_compared_without_its_escapes() {
        let keys = [
            "sessionId",
            "SESSION_ID",
            "session-id",
            "__sessionid--",
            "sessionid2",
            "sessioni",
            "",
            "_",
            "s",
            r"\u0073essionId",
            r"\u0053ession\u005fId",
            r"\u017fe\u017f\u017fionid",
            "\u{17f}essionid",
            "sessionID\u{e9}",
            r"se\/ssionid",
            r"sessionid\n",
            r"\ud83d\ude00sessionid",
            "\u{1f600}",
            r"session\u0069\u0064",
            r"\u00FFsessionid",
        ];
        for key in keys {
            let quoted = format!("\"{key}\"");
            let text: String = serde_json::from_str(&quoted).unwrap();
            for (name, ignores) in
                [("sessionid", true), ("sessionid", false), ("session_id", false), ("", true)]
            {
                let expected = super::folds_to(&text, name, ignores);
                assert_eq!(
                    super::written_key_folds_to(quoted.as_bytes(), name, ignores),
                    expected,
                    "{key} {name}"
                );
            }
        }
        // A lone surrogate is not text, so no reader finds a key here.
        assert!(!super::written_key_folds_to(br#""\ud83dsessionid""#, "sessionid", true));
        assert!(super::written_key_folds_to("\"to\u{212a}en\"".as_bytes(), "token", false));
    }
}
