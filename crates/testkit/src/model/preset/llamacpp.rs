//! llama.cpp: null content first, `timings`, 503 during loading, and 500 for an image that it cannot
//! process.

use serde_json::{Value, json};

use super::{ARGUMENTS, TOOL, chunk, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"finish_reason": finish, "index": 0, "delta": delta}]);
    with(chunk("chatcmpl-lc1", "local", &choices), json!({"system_fingerprint": "b1"}))
}

fn used() -> Value {
    with(
        chunk("chatcmpl-lc1", "local", &json!([])),
        json!({
            "usage": {"completion_tokens": 4, "prompt_tokens": 9, "total_tokens": 13},
            "timings": {"prompt_n": 9, "prompt_ms": 12.5, "predicted_n": 4, "predicted_per_second": 80.25},
        }),
    )
}

fn stream(deltas: &[Value], finish: &str) -> Reply {
    let first = one(&json!({"role": "assistant", "content": null}), None);
    let rest = deltas.iter().map(|delta| one(delta, None));
    Reply::sse([first].into_iter().chain(rest).chain([one(&json!({}), Some(finish)), used()]))
}

/// Returns reasoning and an answer.
#[must_use]
pub fn text() -> Reply {
    stream(
        &[
            json!({"reasoning_content": "Let me see"}),
            json!({"content": "Hello"}),
            json!({"content": " world"}),
        ],
        "stop",
    )
}

/// Returns a call with its arguments in pieces.
#[must_use]
pub fn call() -> Reply {
    let begin =
        json!({"index": 0, "id": "lc1", "type": "function", "function": {"name": TOOL, "arguments": "{"}});
    let more = json!({"index": 0, "function": {"arguments": &ARGUMENTS[1..]}});
    stream(&[json!({"tool_calls": [begin]}), json!({"tool_calls": [more]})], "tool_calls")
}

fn refused(status: u16, message: &str, kind: &str) -> Reply {
    let error = json!({"code": status, "message": message, "type": kind});
    Reply::error(status, &json!({"error": error})).header("connection", "close").no_content_length()
}

/// Returns 503: the model is loading.
#[must_use]
pub fn loading() -> Reply {
    refused(503, "Loading model", "unavailable_error")
}

/// Returns 500: the prompt has an image, but the model has no vision.
#[must_use]
pub fn no_images() -> Reply {
    refused(500, "image input is not supported without an mmproj", "server_error")
}

/// Returns 400: the conversation is too long, with token counts.
#[must_use]
pub fn overflow() -> Reply {
    let error = json!({
        "code": 400, "message": "the prompt is larger than the context of its slot",
        "type": "exceed_context_size_error", "n_prompt_tokens": 600, "n_ctx": 256,
    });
    Reply::error(400, &json!({"error": error}))
}

/// Returns the list of models, with the context window of one slot and the one of the training.
#[must_use]
pub fn models() -> Reply {
    Reply::json(
        200,
        &json!({
            "object": "list",
            "data": [{"id": "local", "object": "model", "meta": {"n_ctx": 256, "n_ctx_train": 32768, "n_params": 1}}],
        }),
    )
}
