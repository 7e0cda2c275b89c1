//! DeepSeek: reasoning as `reasoning_content`, keep-alive comments, usage together with the finish reason.

use serde_json::{Value, json};

use super::{ARGUMENTS, TOOL, chunk, with};
use crate::model::Reply;
use crate::model::event::data;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    with(chunk("ds-1", "deepseek-reasoner", &choices), json!({"system_fingerprint": "fp_ds"}))
}

fn stream(deltas: &[Value], finish: &str) -> Reply {
    let usage = json!({
        "prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42,
        "prompt_cache_hit_tokens": 24, "prompt_cache_miss_tokens": 6,
        "completion_tokens_details": {"reasoning_tokens": 5},
    });
    let last =
        with(one(&json!({"content": "", "reasoning_content": null}), Some(finish)), json!({"usage": usage}));
    let mut pieces = vec![b": keep-alive\n\n".to_vec()];
    pieces.push(data(&one(&json!({"role": "assistant", "content": null, "reasoning_content": ""}), None)));
    pieces.extend(deltas.iter().map(|delta| data(&one(delta, None))));
    pieces.extend([b": keep-alive\n\n".to_vec(), data(&last), data("[DONE]")]);
    Reply::stream(pieces)
}

fn thoughts() -> Vec<Value> {
    ["Let me", " see"].map(|thought| json!({"content": null, "reasoning_content": thought})).to_vec()
}

/// Returns reasoning and an answer.
#[must_use]
pub fn text() -> Reply {
    let words = ["Hello", " world"].map(|word| json!({"content": word, "reasoning_content": null}));
    stream(&[thoughts(), words.to_vec()].concat(), "stop")
}

/// Returns reasoning and a call.
#[must_use]
pub fn call() -> Reply {
    let begin = json!({"index": 0, "id": "call_00_ds", "type": "function", "function": {"name": TOOL, "arguments": ""}});
    let more = json!({"index": 0, "function": {"arguments": ARGUMENTS}});
    let calls = [json!({"tool_calls": [begin]}), json!({"tool_calls": [more]})];
    stream(&[thoughts(), calls.to_vec()].concat(), "tool_calls")
}

/// Returns 400: the reasoning before a tool call must be sent back.
#[must_use]
pub fn thoughts_missing() -> Reply {
    let message = "`reasoning_content` is missing in message 1.";
    Reply::error(400, &json!({"error": {"message": message, "type": "invalid_request_error", "param": null}}))
}

/// Returns 402: the account has no credit.
#[must_use]
pub fn payment() -> Reply {
    Reply::error(402, &json!({"error": {"message": "Insufficient Balance", "type": "unknown_error"}}))
}
