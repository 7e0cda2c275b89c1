//! OpenAI: null usage in every chunk but the last, which has no choices; refusals in a separate field.

use serde_json::{Value, json};

use super::{ARGUMENTS, TOOL, chunk, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    let more = json!({
        "service_tier": "default", "system_fingerprint": "fp_1", "usage": null, "obfuscation": "x7Q"
    });
    with(chunk("chatcmpl-A1", "gpt-4o-2024-08-06", &choices), more)
}

fn used() -> Value {
    let usage = json!({
        "prompt_tokens": 19, "completion_tokens": 10, "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
    });
    with(chunk("chatcmpl-A1", "gpt-4o-2024-08-06", &json!([])), json!({"usage": usage}))
}

fn stream(deltas: &[Value], finish: &str) -> Reply {
    let first = one(&json!({"role": "assistant", "content": "", "refusal": null}), None);
    let rest = deltas.iter().map(|delta| one(delta, None));
    Reply::sse([first].into_iter().chain(rest).chain([one(&json!({}), Some(finish)), used()]))
        .header("x-request-id", "req_openai_1")
}

/// Returns an answer.
#[must_use]
pub fn text() -> Reply {
    stream(&[json!({"content": "Hello"}), json!({"content": " world"})], "stop")
}

/// Returns a call with its arguments in pieces.
#[must_use]
pub fn call() -> Reply {
    let begin = json!({"index": 0, "id": "call_oa1", "type": "function", "function": {"name": TOOL, "arguments": ""}});
    let mut deltas =
        vec![json!({"role": "assistant", "content": null, "tool_calls": [begin], "refusal": null})];
    let pieces = [&ARGUMENTS[..2], &ARGUMENTS[2..9], &ARGUMENTS[9..]];
    deltas
        .extend(pieces.map(|piece| json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})));
    stream(&deltas, "tool_calls")
}

/// Returns a refusal of the model.
#[must_use]
pub fn refusal() -> Reply {
    stream(&[json!({"refusal": "I cannot"}), json!({"refusal": " help with that."})], "stop")
}

/// Returns the list of models.
#[must_use]
pub fn models() -> Reply {
    let model =
        |id: &str| json!({"id": id, "object": "model", "created": 1_715_000_000, "owned_by": "system"});
    Reply::json(200, &json!({"object": "list", "data": [model("gpt-4o"), model("o3-mini")]}))
}

fn refused(status: u16, message: &str, kind: &str, param: &Value, code: &Value) -> Reply {
    let error = json!({"message": message, "type": kind, "param": param, "code": code});
    Reply::error(status, &json!({"error": error})).header("x-request-id", "req_openai_1")
}

/// Returns 401: the key is wrong. The message quotes the key.
#[must_use]
pub fn bad_key(key: &str) -> Reply {
    let message = format!("The API key {key} is not a valid one.");
    refused(401, &message, "invalid_request_error", &Value::Null, &json!("invalid_api_key"))
}

/// Returns 429: too many requests. The headers contain the waiting time.
#[must_use]
pub fn rate_limit() -> Reply {
    refused(429, "Too many requests for this model.", "requests", &Value::Null, &json!("rate_limit_exceeded"))
        .header("retry-after-ms", "20")
        .header("retry-after", "1")
        .header("x-ratelimit-reset-requests", "1s")
}

/// Returns 429: the quota is used up, so retries are useless.
#[must_use]
pub fn quota() -> Reply {
    let message = "The quota is used up; look at the plan and the billing.";
    refused(429, message, "insufficient_quota", &Value::Null, &json!("insufficient_quota"))
}

/// Returns 400: the conversation is too long.
#[must_use]
pub fn overflow() -> Reply {
    let message = "This model's maximum context length is 8192 tokens, but the messages have 9001.";
    refused(400, message, "invalid_request_error", &json!("messages"), &json!("context_length_exceeded"))
}

/// Returns 400: this model uses another name for `max_tokens`.
#[must_use]
pub fn max_tokens_refused() -> Reply {
    let message = "'max_tokens' is not supported by this model: 'max_completion_tokens' is.";
    refused(400, message, "invalid_request_error", &json!("max_tokens"), &json!("unsupported_parameter"))
}

/// Returns 400: this model accepts only one temperature.
#[must_use]
pub fn temperature_refused() -> Reply {
    let message = "'temperature' is not supported with the value 0.5: this model has only its own.";
    refused(400, message, "invalid_request_error", &json!("temperature"), &json!("unsupported_value"))
}

/// Returns 400: an unknown field.
#[must_use]
pub fn unknown_field(name: &str) -> Reply {
    let message = format!("Unrecognized argument in the request: {name}");
    refused(400, &message, "invalid_request_error", &Value::Null, &Value::Null)
}
