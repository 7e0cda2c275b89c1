//! Values that are never displayed or serialized.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

pub(crate) mod reason {
    pub(crate) const TYPE: &str = "secret";
    pub(crate) const KEY: &str = "named like a secret";
    pub(crate) const TOKEN: &str = "looks like a secret";
    pub(crate) const KNOWN: &str = "contains a known secret";
    pub(crate) const DIGEST: &str = "digest of a redacted value";
    pub(crate) const DEPTH: &str = "nested too deeply";
}

/// Returns the mark that replaces a secret value in the log.
pub(crate) fn mark(reason: &str) -> Value {
    json!({"$redacted": true, "reason": reason})
}

/// A secret value. It is serialized as a mark instead of its text. Its memory is cleared on drop.
#[derive(Clone)]
pub struct Secret(narrows_base::Secret);

impl Secret {
    /// Creates a secret from a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into().into())
    }

    /// Returns the value.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self::new(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut mark = serializer.serialize_map(Some(2))?;
        mark.serialize_entry("$redacted", &true)?;
        mark.serialize_entry("reason", reason::TYPE)?;
        mark.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_neither_displayed_nor_serialized() {
        let secret = Secret::new("canary");
        assert_eq!(format!("{secret:?}"), "[secret]");
        assert_eq!(json!({"key": secret}), json!({"key": {"$redacted": true, "reason": "secret"}}));
        assert_eq!(secret.expose(), "canary");
    }
}
