//! Azure: the first chunk has no choices, and every other chunk has filter results.

use serde_json::{Value, json};

use super::{chunk, with};
use crate::model::Reply;

fn safe() -> Value {
    json!({"hate": {"filtered": false, "severity": "safe"}})
}

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choice = json!({
        "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish, "content_filter_results": safe()
    });
    chunk("chatcmpl-Az1", "gpt-4o", &json!([choice]))
}

/// Returns an answer.
#[must_use]
pub fn text() -> Reply {
    let filtered = json!([{"prompt_index": 0, "content_filter_results": safe()}]);
    let first = with(
        json!({"id": "", "object": "", "created": 0, "model": "", "choices": []}),
        json!({"prompt_filter_results": filtered}),
    );
    Reply::sse([
        first,
        one(&json!({"role": "assistant", "content": "", "refusal": null}), None),
        one(&json!({"content": "Hello"}), None),
        one(&json!({"content": " world"}), None),
        one(&json!({}), Some("stop")),
    ])
    .header("apim-request-id", "azure-1")
}

/// Returns an answer that a content filter ends.
#[must_use]
pub fn filtered() -> Reply {
    Reply::sse([
        one(&json!({"role": "assistant", "content": "Hel"}), None),
        one(&json!({}), Some("content_filter")),
    ])
}

/// Returns 404: the API version is missing.
#[must_use]
pub fn no_version() -> Reply {
    Reply::error(404, &json!({"error": {"code": "404", "message": "Resource not found"}}))
}

/// Returns 401: `api-key` is missing or wrong.
#[must_use]
pub fn bad_key() -> Reply {
    let message = "The subscription key is wrong, or belongs to another resource.";
    Reply::error(401, &json!({"error": {"code": "401", "message": message}}))
}

/// Returns 400: an old API version does not know `stream_options`.
#[must_use]
pub fn no_stream_options() -> Reply {
    super::openai::unknown_field("stream_options")
}
