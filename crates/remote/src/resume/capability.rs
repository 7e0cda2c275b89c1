//! The resume capability in `initialize`: a client asks for it, and the server grants it with a connection name.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use narrows_wire::{Kind, Span, View, member};
use serde::Deserialize;
use serde_json::json;

use super::splice;

/// The path of the capability in `params` and in `result`.
const CAPABILITY_PATH: [&str; 3] = ["_meta", "narrows", "resume"];

const MAX_CONNECTION_BYTES: usize = 128;

/// The name of a resumable connection. A client of the same identity needs only this name to take the
/// connection over, so the name is never shown.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct ConnectionName(String);

impl ConnectionName {
    /// Creates a name from random bytes.
    #[must_use]
    pub fn new(random: [u8; 16]) -> Self {
        Self(format!("{:032x}", u128::from_be_bytes(random)))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ConnectionName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match (1..=MAX_CONNECTION_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic())
        {
            true => Ok(Self(text)),
            false => Err("invalid connection name"),
        }
    }
}

impl fmt::Debug for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionName(…)")
    }
}

/// The capability that a server grants in the result of `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub connection: ConnectionName,
    pub grace: Duration,
}

/// Adds the capability to the `initialize` request of a client. Returns `None` for other messages and unsuitable
/// `params`.
#[must_use]
pub fn ask(line: &[u8]) -> Option<Bytes> {
    let view = View::parse(line);
    if !is_initialize(&view) || view.params().is_none_or(|params| params == b"null") {
        return None;
    }
    replace_span(line, view.envelope().params, |params| splice::put(params, &CAPABILITY_PATH, b"1"))
}

/// Returns `true` if `view` is an `initialize` request with the capability.
#[must_use]
pub fn asks(view: &View<'_>) -> bool {
    is_initialize(view) && view.params().and_then(capability).is_some_and(|mark| mark == b"1")
}

/// Removes the capability from an `initialize` request, as if [`ask`] had not been called. Returns `None` if
/// the request has no capability.
#[must_use]
pub fn forget_asked(line: &[u8]) -> Option<Bytes> {
    let view = View::parse(line);
    if !asks(&view) {
        return None;
    }
    replace_span(line, view.envelope().params, |params| splice::cut(params, &CAPABILITY_PATH))
}

/// Adds the granted capability to the response to `initialize`. Returns `None` for errors and unsuitable results.
#[must_use]
pub fn grant(line: &[u8], granted: &Granted) -> Option<Bytes> {
    let view = View::parse(line);
    if view.kind() != Kind::Response {
        return None;
    }
    let value = json!({"connection": granted.connection.as_str(), "graceSeconds": granted.grace.as_secs()})
        .to_string();
    replace_span(line, view.envelope().result, |result| {
        splice::put(result, &CAPABILITY_PATH, value.as_bytes())
    })
}

/// Returns the capability that a response grants, and the response without the capability, as before
/// [`grant`].
#[must_use]
pub fn granted(line: &[u8]) -> Option<(Granted, Bytes)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ResumeCapability {
        connection: ConnectionName,
        grace_seconds: u64,
    }

    let view = View::parse(line);
    if view.kind() != Kind::Response {
        return None;
    }
    let ResumeCapability { connection, grace_seconds } =
        serde_json::from_slice(view.result().and_then(capability)?).ok()?;
    let granted = Granted { connection, grace: Duration::from_secs(grace_seconds) };
    let plain = replace_span(line, view.envelope().result, |result| splice::cut(result, &CAPABILITY_PATH));
    // A capability in another form stays in the response, which is harmless.
    Some((granted, plain.unwrap_or_else(|| Bytes::copy_from_slice(line))))
}

fn is_initialize(view: &View<'_>) -> bool {
    view.kind() == Kind::Request && view.method().as_deref() == Some("initialize")
}

fn capability(object: &[u8]) -> Option<&[u8]> {
    CAPABILITY_PATH.iter().try_fold(object, |text, key| text.get(member(text, key).ok()??))
}

fn replace_span(line: &[u8], span: Span, change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Bytes> {
    let new = change(span.slice(line)?)?;
    Some(splice::replace(line, &span.range(), &new).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[track_caller]
    fn check_ask(line: &str, expected: Option<&str>) {
        let asked = ask(line.as_bytes());
        assert_eq!(asked.as_deref().map(text), expected);
        if let Some(asked) = asked {
            assert!(asks(&View::parse(&asked)));
            assert_eq!(
                ask(&asked).as_ref(),
                Some(&asked),
                "a second request for the capability changes nothing"
            );
            let before = forget_asked(&asked).unwrap();
            if !line.contains("\"_meta\":{}") {
                assert_eq!(text(&before), line);
            }
        } else {
            assert!(!asks(&View::parse(line.as_bytes())));
        }
    }

    #[test]
    fn a_client_adds_the_capability_to_initialize_only() {
        check_ask(
            r#" {"jsonrpc":"2.0","id":"q","method":"initialize","params":{"protocolVersion":1}}"#,
            Some(
                r#" {"jsonrpc":"2.0","id":"q","method":"initialize","params":{"_meta":{"narrows":{"resume":1}},"protocolVersion":1}}"#,
            ),
        );
        check_ask(
            r#"{"params":{"_meta":{"x": 1}},"id":1,"method":"initialize","jsonrpc":"2.0"}"#,
            Some(
                r#"{"params":{"_meta":{"narrows":{"resume":1},"x": 1}},"id":1,"method":"initialize","jsonrpc":"2.0"}"#,
            ),
        );
        check_ask(
            r#"{"params":{"_meta":{}},"id":1,"method":"initialize","jsonrpc":"2.0"}"#,
            Some(
                r#"{"params":{"_meta":{"narrows":{"resume":1}}},"id":1,"method":"initialize","jsonrpc":"2.0"}"#,
            ),
        );
        for other in [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialized","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"initialize","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":[]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"_meta":[]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]"#,
            "{",
        ] {
            check_ask(other, None);
        }
    }

    #[track_caller]
    fn check_grant(line: &str) {
        let given = Granted { connection: ConnectionName::new([7; 16]), grace: Duration::from_secs(300) };
        let capability = grant(line.as_bytes(), &given).unwrap();
        let (read, plain) = granted(&capability).unwrap();
        assert_eq!((read, text(&plain)), (given, line));
    }

    #[test]
    fn removing_a_grant_restores_the_response() {
        check_grant(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        check_grant(r#"{"result":{ "protocolVersion":1 },"jsonrpc":"2.0","id":"x"}"#);
        check_grant(r#"{"result":{"_meta":{"narrows":{"pool":"a"}}},"jsonrpc":"2.0","id":"x"}"#);
        check_grant(r#"{"result":{"protocolVersion":1,"_meta":{"a":{}}},"jsonrpc":"2.0","id":"x"}"#);
        let given = Granted { connection: ConnectionName::new([0; 16]), grace: Duration::ZERO };
        for other in [
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{}}"#,
        ] {
            assert_eq!(grant(other.as_bytes(), &given), None);
            assert_eq!(granted(other.as_bytes()), None);
        }
    }

    #[test]
    fn a_malformed_capability_is_ignored() {
        for mark in [
            r#"1"#,
            r#"{"connection":"","graceSeconds":1}"#,
            r#"{"connection":"a b","graceSeconds":1}"#,
            r#"{"connection":"a","graceSeconds":-1}"#,
            r#"{"connection":"a"}"#,
        ] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{{"narrows":{{"resume":{mark}}}}}}}}}"#
            );
            assert_eq!(granted(line.as_bytes()), None, "{mark}");
        }
    }

    #[test]
    fn the_name_of_a_connection_is_never_shown() {
        assert_eq!(ConnectionName::new([0xab; 16]).as_str(), "ab".repeat(16));
        assert_eq!(format!("{:?}", ConnectionName::new([0xab; 16])), "ConnectionName(…)");
    }
}
