//! Gemini: whole calls without an index, signatures of thoughts to be sent back, errors in a list.

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

/// An answer in two chunks, the last with the finish.
#[must_use]
pub fn text() -> Reply {
    Reply::sse([
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        one(&json!({"role": "assistant", "content": " world"}), Some("stop")),
    ])
}

/// The signature that must be sent back with the call.
#[must_use]
pub fn signature() -> Value {
    json!({"google": {"thought_signature": "c2lnbmVk"}})
}

/// Two calls in one delta without indices, the first with a signature; the finish says `stop`.
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

/// 400: the key is wrong, told in a list.
#[must_use]
pub fn bad_key() -> Reply {
    let error = json!({"code": 400, "message": "This API key is not valid.", "status": "INVALID_ARGUMENT"});
    Reply::error(400, &json!([{"error": error}]))
}

/// 503, told in a list.
#[must_use]
pub fn overloaded() -> Reply {
    let error = json!({"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"});
    Reply::error(503, &json!([{"error": error}]))
}
