//! vLLM: reasoning as `reasoning`, usage in every chunk if configured, and errors in an old and a new form.

use serde_json::{Value, json};

use super::{chunk, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>, output: u64) -> Value {
    let choice =
        json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish, "stop_reason": null});
    let usage = json!({"prompt_tokens": 7, "total_tokens": 7 + output, "completion_tokens": output});
    with(chunk("chatcmpl-vl1", "qwen3", &json!([choice])), json!({"usage": usage}))
}

/// Returns reasoning and an answer, with the usage so far in every chunk.
#[must_use]
pub fn text() -> Reply {
    let usage = json!({"prompt_tokens": 7, "total_tokens": 11, "completion_tokens": 4});
    Reply::sse([
        one(&json!({"role": "assistant", "content": ""}), None, 0),
        one(&json!({"reasoning": "Let me"}), None, 1),
        one(&json!({"reasoning": " see"}), None, 2),
        one(&json!({"content": "Hello"}), None, 3),
        one(&json!({"content": " world"}), None, 4),
        one(&json!({"content": ""}), Some("stop"), 4),
        with(chunk("chatcmpl-vl1", "qwen3", &json!([])), json!({"usage": usage})),
    ])
}

/// Returns the same as [`text`], with the older name of the reasoning field.
#[must_use]
pub fn older_text() -> Reply {
    text().map_events(|event| {
        if let Some(Value::Object(delta)) = event.pointer_mut("/choices/0/delta")
            && let Some(thought) = delta.remove("reasoning")
        {
            delta.insert("reasoning_content".to_owned(), thought);
        }
    })
}

/// Returns 400: tools need a flag of the server.
#[must_use]
pub fn no_tools() -> Reply {
    let message = "tool choice \"auto\" needs the flags --enable-auto-tool-choice and --tool-call-parser";
    Reply::error(
        400,
        &json!({"error": {"message": message, "type": "BadRequestError", "param": null, "code": 400}}),
    )
}

/// Returns 400 in the older form: the conversation is too long.
#[must_use]
pub fn overflow() -> Reply {
    let message = "This model's maximum context length is 4096 tokens. The prompt has 5000.";
    Reply::error(
        400,
        &json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": 400}),
    )
}

/// Returns 400: the template requires alternating roles.
#[must_use]
pub fn alternate() -> Reply {
    let message = "After the optional system message, roles must alternate between user and assistant.";
    Reply::error(
        400,
        &json!({"error": {"message": message, "type": "BadRequestError", "param": null, "code": 400}}),
    )
}

/// Returns the list of models with their context windows.
#[must_use]
pub fn models() -> Reply {
    let model = json!({"id": "qwen3", "object": "model", "owned_by": "vllm", "root": "qwen3", "max_model_len": 32768});
    Reply::json(200, &json!({"object": "list", "data": [model]}))
}
