//! Gemini: whole calls without an index, reasoning signatures that must be sent back, errors in a list.

use serde_json::{Value, json};

use super::{TOOL, chunk, whole_call, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choice = match finish {
        Some(finish) => json!({"index": 0, "delta": delta, "finish_reason": finish}),
        None => json!({"index": 0, "delta": delta}),
    };
    let usage = json!({"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 40});
    with(chunk("gm-1", "gemini-2.5-pro", &json!([choice])), json!({"usage": usage}))
}

/// Returns an answer in two chunks, the last one with the finish reason.
#[must_use]
pub fn text() -> Reply {
    Reply::sse([
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        one(&json!({"role": "assistant", "content": " world"}), Some("stop")),
    ])
}

/// Returns the signature that must be sent back with the call.
#[must_use]
pub fn signature() -> Value {
    json!({"google": {"thought_signature": "c2lnbmVk"}})
}

/// Returns two calls without indices in one delta, the first with a signature. The finish reason is `stop`.
#[must_use]
pub fn calls() -> Reply {
    let first = with(whole_call("fn-1"), json!({"extra_content": signature()}));
    let second =
        json!({"id": "", "type": "function", "function": {"name": TOOL, "arguments": r#"{"path":"b.txt"}"#}});
    Reply::sse([
        one(&json!({"role": "assistant", "tool_calls": [first, second]}), None),
        one(&json!({"role": "assistant"}), Some("stop")),
    ])
}

/// Returns 400: the key is wrong. The error is in a list.
#[must_use]
pub fn bad_key() -> Reply {
    let error = json!({"code": 400, "message": "This API key is not valid.", "status": "INVALID_ARGUMENT"});
    Reply::error(400, &json!([{"error": error}]))
}

/// Returns 503: the model is overloaded. The error is in a list.
#[must_use]
pub fn overloaded() -> Reply {
    let error = json!({"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"});
    Reply::error(503, &json!([{"error": error}]))
}
