//! The JSON of a stream, as most endpoints write it, and its SSE events.

use serde_json::{Value, json};

pub(super) const MODEL: &str = "test-model";

const CHUNK_ID: &str = "chatcmpl-1";

/// Returns the bytes of one event with this payload.
#[must_use]
pub fn data(payload: &(impl ToString + ?Sized)) -> Vec<u8> {
    format!("data: {}\n\n", payload.to_string()).into_bytes()
}

/// Returns a chunk with these choices.
#[must_use]
pub fn chunk(choices: &Value) -> Value {
    json!({
        "id": CHUNK_ID, "object": "chat.completion.chunk", "created": 1_760_000_000, "model": MODEL, "choices": choices
    })
}

/// Returns a chunk whose only choice has this delta and no finish reason.
#[must_use]
pub fn delta(delta: &Value) -> Value {
    chunk(&json!([{"index": 0, "delta": delta, "finish_reason": null}]))
}

/// Returns a chunk whose only choice has this finish reason.
#[must_use]
pub fn finish(reason: &str) -> Value {
    chunk(&json!([{"index": 0, "delta": {}, "finish_reason": reason}]))
}

/// Returns a chunk without choices that reports the usage.
#[must_use]
pub fn usage(input: u64, output: u64) -> Value {
    let mut usage = chunk(&json!([]));
    usage["usage"] = counts(input, output);
    usage
}

/// Returns the three token counts that all endpoints report.
pub(super) fn counts(input: u64, output: u64) -> Value {
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}

/// Returns a complete completion, as sent without streaming.
pub(super) fn completion(message: &Value, reason: &str, usage: &Value) -> Value {
    json!({
        "id": CHUNK_ID, "object": "chat.completion", "created": 1_760_000_000, "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    })
}

/// Returns the deltas of tool calls. Each call has a delta with its id and name, and two with its arguments.
pub(super) fn call_deltas(calls: &[(&str, Value)]) -> Vec<Value> {
    let mut deltas = Vec::new();
    for (index, (name, arguments)) in calls.iter().enumerate() {
        let arguments = arguments.to_string();
        let middle = (0..=arguments.len() / 2).rev().find(|at| arguments.is_char_boundary(*at)).unwrap_or(0);
        let first = json!({"name": name, "arguments": ""});
        deltas.push(delta(&json!({
            "tool_calls": [{"index": index, "id": call_id(index), "type": "function", "function": first}]
        })));
        for piece in [&arguments[..middle], &arguments[middle..]] {
            deltas.push(delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})));
        }
    }
    deltas
}

/// Returns the id of the call with this index in replies that the server generates: `call_1`, `call_2`…
pub(super) fn call_id(index: usize) -> String {
    format!("call_{}", index + 1)
}

/// Splits text into words. Each word includes the blanks after it.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}
