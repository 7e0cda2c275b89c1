//! OpenRouter: comments while it looks for a provider, reasoning in two forms, errors inside a 200.

use serde_json::{Value, json};

use super::{ARGUMENTS, TOOL, chunk, with};
use crate::model::Reply;
use crate::model::event::data;

const COMMENT: &[u8] = b": OPENROUTER PROCESSING\n\n";
const MODEL: &str = "anthropic/claude-sonnet-4";

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": finish, "logprobs": null});
    with(chunk("gen-1", MODEL, &json!([choice])), json!({"provider": "Anthropic"}))
}

fn stream(chunks: &[Value]) -> Reply {
    let comments = [COMMENT.to_vec(), COMMENT.to_vec()];
    let events = chunks.iter().map(data);
    Reply::stream(comments.into_iter().chain(events).chain([data("[DONE]")]))
}

fn used(chunk: Value) -> Value {
    let usage = json!({
        "prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29, "cost": 0.00031, "is_byok": false,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    });
    with(chunk, json!({"usage": usage}))
}

/// Returns the reasoning in the form that must be sent back: all pieces of the stream joined.
#[must_use]
pub fn reasoning_details() -> Value {
    json!([{
        "type": "reasoning.text", "text": "Let me see", "format": "anthropic-claude-v1", "index": 0,
        "signature": "c2lnbmF0dXJl",
    }])
}

fn thoughts() -> Vec<Value> {
    let detail = |fields: Value| {
        let detail = json!({"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0});
        json!([with(detail, fields)])
    };
    vec![
        one(
            &json!({
                "role": "assistant", "content": "", "reasoning": "Let me see",
                "reasoning_details": detail(json!({"text": "Let me see"})),
            }),
            None,
        ),
        one(
            &json!({
                "role": "assistant", "content": "", "reasoning": null,
                "reasoning_details": detail(json!({"signature": "c2lnbmF0dXJl"})),
            }),
            None,
        ),
    ]
}

/// Returns reasoning and an answer; the last chunk has the usage and the price.
#[must_use]
pub fn text() -> Reply {
    let mut chunks = thoughts();
    chunks.push(one(&json!({"role": "assistant", "content": "Hello"}), None));
    chunks.push(one(&json!({"role": "assistant", "content": " world"}), None));
    chunks.push(one(&json!({"role": "assistant", "content": ""}), Some("stop")));
    chunks.push(used(one(&json!({"role": "assistant", "content": ""}), None)));
    stream(&chunks)
}

/// Returns reasoning and a call, with a role and null content in every piece.
#[must_use]
pub fn call() -> Reply {
    let piece = |call: Value| one(&json!({"role": "assistant", "content": null, "tool_calls": [call]}), None);
    let mut chunks = thoughts();
    let function = json!({"name": TOOL, "arguments": ""});
    chunks.push(piece(json!({"index": 0, "id": "toolu_1", "type": "function", "function": function})));
    for arguments in [&ARGUMENTS[..8], &ARGUMENTS[8..]] {
        let function = json!({"name": null, "arguments": arguments});
        chunks.push(piece(json!({"index": 0, "id": null, "type": "function", "function": function})));
    }
    chunks.push(used(one(&json!({"role": "assistant", "content": null}), Some("tool_calls"))));
    stream(&chunks)
}

/// Returns an error beside choices, in the middle of an answer.
#[must_use]
pub fn error_in_stream() -> Reply {
    let broken = with(
        one(&json!({"content": ""}), Some("error")),
        json!({"error": {"code": 502, "message": "The provider went away.", "metadata": {"provider_name": "X"}}}),
    );
    stream(&[one(&json!({"role": "assistant", "content": "Hello"}), None), broken])
}

/// Returns an error as the whole body of a 200.
#[must_use]
pub fn error_in_200() -> Reply {
    Reply::json(200, &json!({"error": {"code": 429, "message": "The provider is busy."}, "user_id": "u"}))
}

/// Returns 402: the account has no credit.
#[must_use]
pub fn payment() -> Reply {
    Reply::error(402, &json!({"error": {"code": 402, "message": "The account has too few credits."}}))
}

/// Returns the list of models with their capabilities.
#[must_use]
pub fn models() -> Reply {
    let model = |id: &str, length: u64, takes: &[&str], parameters: &[&str]| {
        json!({
            "id": id, "name": format!("Name of {id}"), "context_length": length,
            "architecture": {"input_modalities": takes, "output_modalities": ["text"]},
            "supported_parameters": parameters,
        })
    };
    Reply::json(
        200,
        &json!({"data": [
            model(MODEL, 200_000, &["text", "image"], &["tools", "temperature", "reasoning"]),
            model("small/plain", 4096, &["text"], &["temperature"]),
        ]}),
    )
}
