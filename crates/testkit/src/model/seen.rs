//! A request as it came.

use std::time::Instant;

use serde_json::Value;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `GET`, `POST`…
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// What stood after the question mark.
    pub query: String,
    /// The headers, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; a text if it was not JSON, null if there was none.
    pub body: Value,
    /// The body's bytes.
    pub bytes: Vec<u8>,
    /// When it had come whole.
    pub at: Instant,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    /// Whether the client hung up before the reply had ended.
    pub hung_up: bool,
}

impl Seen {
    /// The value of the header of this name, which is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The messages of the body, none if it has none.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Whether the body has this field at its top.
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        self.body.get(field).is_some()
    }
}
