//! Mistral: content in lists of parts, call ids of nine characters, and 422 for unknown fields.

use serde_json::{Value, json};

use super::{chunk, whole_call, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    with(chunk("mi-1", "magistral-medium", &choices), json!({"p": "abc"}))
}

fn used(chunk: Value) -> Value {
    with(chunk, json!({"usage": {"prompt_tokens": 8, "total_tokens": 12, "completion_tokens": 4}}))
}

/// Returns reasoning and an answer, both in parts.
#[must_use]
pub fn text() -> Reply {
    let thought = |text: &str| {
        let inner = json!([{"type": "text", "text": text}]);
        one(&json!({"content": [{"type": "thinking", "thinking": inner}]}), None)
    };
    Reply::sse([
        one(&json!({"role": "assistant", "content": ""}), None),
        thought("Let me"),
        thought(" see"),
        one(&json!({"content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": " "}]}), None),
        one(&json!({"content": "world"}), None),
        used(one(&json!({"content": ""}), Some("stop"))),
    ])
}

/// Returns a call in one piece, in the chunk that ends the answer.
#[must_use]
pub fn call() -> Reply {
    let call = with(whole_call("a1B2c3D4e"), json!({"index": 0}));
    Reply::sse([
        one(&json!({"role": "assistant", "content": ""}), None),
        used(one(&json!({"content": "", "tool_calls": [call]}), Some("tool_calls"))),
    ])
}

/// Returns 422: an unknown field, reported in a list inside the message.
#[must_use]
pub fn extra_forbidden(field: &str) -> Reply {
    let detail = json!([{
        "type": "extra_forbidden", "loc": ["body", field], "msg": "Extra inputs are not permitted", "input": true
    }]);
    let message = json!({"detail": detail});
    Reply::error(
        422,
        &json!({
            "object": "error", "message": message, "type": "invalid_request_error", "param": null, "code": null,
            "raw_status_code": 422,
        }),
    )
}

/// Returns 400: call ids must have nine characters.
#[must_use]
pub fn bad_call_id() -> Reply {
    let message = "The tool call id call_1 is refused: letters and digits with a length of 9 are not.";
    Reply::error(
        400,
        &json!({"object": "error", "message": message, "type": "invalid_function_call", "code": "3280"}),
    )
}
