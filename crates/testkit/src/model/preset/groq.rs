//! Groq: a whole call in one delta, `x_groq` in the first and last chunk, and usage twice.

use serde_json::{Value, json};

use super::{chunk, whole_call, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    with(chunk("chatcmpl-gq1", "openai/gpt-oss-20b", &choices), json!({"system_fingerprint": "fp_gq"}))
}

fn usage() -> Value {
    json!({
        "queue_time": 0.01, "prompt_tokens": 15, "prompt_time": 0.002, "completion_tokens": 6,
        "completion_time": 0.01, "total_tokens": 21, "total_time": 0.012,
    })
}

fn stream(deltas: &[Value], finish: &str) -> Reply {
    let first = with(
        one(&json!({"role": "assistant", "content": ""}), None),
        json!({"x_groq": {"id": "req_groq_1"}}),
    );
    let last = with(one(&json!({}), Some(finish)), json!({"x_groq": {"id": "req_groq_1", "usage": usage()}}));
    let used = with(chunk("chatcmpl-gq1", "openai/gpt-oss-20b", &json!([])), json!({"usage": usage()}));
    Reply::sse([first].into_iter().chain(deltas.iter().map(|delta| one(delta, None))).chain([last, used]))
}

/// Returns reasoning and an answer.
#[must_use]
pub fn text() -> Reply {
    stream(
        &[
            json!({"reasoning": "Let me see", "channel": "analysis"}),
            json!({"content": "Hello"}),
            json!({"content": " world"}),
        ],
        "stop",
    )
}

/// Returns a call in one piece.
#[must_use]
pub fn call() -> Reply {
    stream(&[json!({"tool_calls": [with(whole_call("fc_gq1"), json!({"index": 0}))]})], "tool_calls")
}

/// Returns 429 with the waiting time in the text of the message.
#[must_use]
pub fn rate_limit() -> Reply {
    let message = "The limit of tokens per minute is reached. Please try again in 30ms.";
    Reply::error(
        429,
        &json!({"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}),
    )
}
