//! The tools of a server, as far as they can be used.

use serde_json::Value;

/// One tool of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name of its server.
    pub server: String,
    /// Its name at the server.
    pub name: String,
    /// Its name for people.
    pub title: Option<String>,
    /// What it does; empty if the server does not say.
    pub description: String,
    /// The JSON Schema of its arguments, always an object.
    pub schema: Value,
    /// The server says that it changes nothing.
    pub read_only: bool,
    /// The server does not say that it destroys nothing.
    pub destructive: bool,
}
