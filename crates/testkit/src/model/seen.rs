//! A recorded request.

use std::time::Instant;

use serde_json::Value;

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `GET`, `POST`…
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query.
    pub query: String,
    /// The headers, with lower-case names.
    pub headers: Vec<(String, String)>,
    /// The body as JSON; a text if it is not JSON, null if it is empty.
    pub body: Value,
    /// The bytes of the body.
    pub bytes: Vec<u8>,
    /// When it was complete.
    pub at: Instant,
    /// The number of its connection, from 0.
    pub connection: usize,
    /// The client disconnected before the reply ended.
    pub hung_up: bool,
}

impl Seen {
    /// The value of a header; the name is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The messages of the body, or none.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns `true` if the body has this top-level field.
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        self.body.get(field).is_some()
    }
}
