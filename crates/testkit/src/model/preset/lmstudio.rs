//! LM Studio: an error is a string, and context windows are under another path.

use serde_json::{Value, json};

use super::{chunk, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    with(chunk("chatcmpl-lm1", "qwen3-8b", &choices), json!({"system_fingerprint": "qwen3-8b"}))
}

/// Returns an answer.
#[must_use]
pub fn text() -> Reply {
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    Reply::sse([
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        one(&json!({"content": " world"}), None),
        one(&json!({}), Some("stop")),
        with(chunk("chatcmpl-lm1", "qwen3-8b", &json!([])), json!({"usage": usage})),
    ])
}

/// Returns 400 with a string instead of an error object.
#[must_use]
pub fn refused() -> Reply {
    Reply::error(400, &json!({"error": "The model could not be loaded: not enough memory."}))
}

/// Returns an error event whose error is a string.
#[must_use]
pub fn error_in_stream() -> Reply {
    Reply::sse([
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        json!({"error": "The model has crashed."}),
    ])
    .without_done()
}

/// Returns the response of `/api/v0/models`: the context windows of a loaded and of an unloaded model.
#[must_use]
pub fn models() -> Reply {
    Reply::json(
        200,
        &json!({"object": "list", "data": [
            {"id": "qwen3-8b", "type": "llm", "state": "loaded", "max_context_length": 40960,
             "loaded_context_length": 8192, "capabilities": ["tool_use"]},
            {"id": "gemma-vlm", "type": "vlm", "state": "not-loaded", "max_context_length": 131_072},
        ]}),
    )
}
