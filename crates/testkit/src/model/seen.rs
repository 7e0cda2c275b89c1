//! A recorded request of a client.

use std::time::Instant;

use serde_json::Value;

/// A recorded request of a client.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `GET`, `POST`…
    pub method: String,
    pub path: String,
    pub query: String,
    /// Headers of the request, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as JSON. A string if the body is not JSON, null if it is empty.
    pub body: Value,
    pub bytes: Vec<u8>,
    /// Time at which the request was complete.
    pub at: Instant,
    /// Number of the request's connection, from 0.
    pub connection: usize,
    /// `true` if the client disconnected before the reply ended.
    pub hung_up: bool,
}

impl Seen {
    /// Returns the value of a header. `name` must be in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the messages of the body, or an empty list.
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
