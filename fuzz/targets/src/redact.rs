//! The search for secrets in what goes into an audit log.

use narrows_audit::Redaction;
use serde_json::Value;

/// A text: it can be searched, redacted, and searched as JSON, and a text has a secret wherever it stands.
pub fn redact(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let redaction = Redaction::default();
    let is_secret = redaction.is_secret(text);
    assert_eq!(redaction.is_in(Value::String(text.to_owned())), is_secret, "{text:?}");
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        redaction.is_in(value);
    }
}
