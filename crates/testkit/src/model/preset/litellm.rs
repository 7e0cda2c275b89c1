//! LiteLLM's proxy: a role with the first word, no finish reason if the model sends none, errors as the
//! last event.

use serde_json::{Value, json};

use super::{chunk, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choice = match finish {
        Some(finish) => json!({"index": 0, "delta": delta, "finish_reason": finish}),
        None => json!({"index": 0, "delta": delta}),
    };
    chunk("chatcmpl-ll1", "claude", &json!([choice]))
}

/// Returns reasoning and an answer. The usage is in a chunk with an empty delta.
#[must_use]
pub fn text() -> Reply {
    let usage = json!({
        "completion_tokens": 5, "prompt_tokens": 16, "total_tokens": 21, "cost": 0.002,
        "prompt_tokens_details": {"cached_tokens": 2},
    });
    Reply::sse([
        one(&json!({"role": "assistant", "reasoning_content": "Let me see"}), None),
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        one(&json!({"content": " world"}), None),
        one(&json!({}), Some("stop")),
        with(one(&json!({}), None), json!({"usage": usage})),
    ])
}

/// Returns an answer that fails: an error event, and no `[DONE]`.
#[must_use]
pub fn error_in_stream() -> Reply {
    let message = "litellm.InternalServerError: the upstream closed the connection";
    Reply::sse([
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        json!({"error": {"message": message, "type": null, "param": null, "code": "500"}}),
    ])
    .without_done()
}

/// Returns 400: a wrong key, as reported without a database.
#[must_use]
pub fn bad_key() -> Reply {
    let message = "No connected db.";
    Reply::error(
        400,
        &json!({"error": {"message": message, "type": "no_db_connection", "param": null, "code": "400"}}),
    )
}

/// Returns 500 in plain text: no key at all.
#[must_use]
pub fn no_key() -> Reply {
    Reply::document(500, "text/plain; charset=utf-8", "Internal Server Error")
}

/// Returns 400: the conversation is too long.
#[must_use]
pub fn overflow() -> Reply {
    let message = "litellm.ContextWindowExceededError: litellm.BadRequestError: the prompt is too long";
    Reply::error(400, &json!({"error": {"message": message, "type": null, "param": null, "code": "400"}}))
}
