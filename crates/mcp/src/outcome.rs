//! What a call has brought.

use serde_json::Value;

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What the tool returned, in its order.
    pub content: Vec<Content>,
    /// The same for programs.
    pub structured: Option<Value>,
    /// The tool says that it failed; the content says why.
    pub failed: bool,
    /// How many bytes of text were left out because of [`Options::max_result`](crate::Options::max_result). If there
    /// are any, the last of the content says so too.
    pub omitted: usize,
}

/// A piece of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text.
    Text(String),
    /// A picture.
    Image {
        /// Its media type.
        mime: String,
        /// The picture in base64, as it came.
        data: String,
    },
    /// A sound.
    Audio {
        /// Its media type.
        mime: String,
        /// The sound in base64, as it came.
        data: String,
    },
    /// A resource with what is in it.
    Resource {
        /// Where it is from.
        uri: String,
        /// Its media type.
        mime: Option<String>,
        /// What is in it.
        body: Body,
    },
    /// A resource by name.
    Link {
        /// Where it is.
        uri: String,
        /// What it is called.
        name: String,
    },
}

/// What is in a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Text.
    Text(String),
    /// Bytes in base64, as they came.
    Blob(String),
}
