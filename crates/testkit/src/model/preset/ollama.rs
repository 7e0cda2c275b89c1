//! Ollama: reasoning as `reasoning`, whole calls, and model capabilities under another path.

use serde_json::{Value, json};

use super::{chunk, whole_call, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    with(chunk("chatcmpl-551", "qwen3:8b", &choices), json!({"system_fingerprint": "fp_ollama"}))
}

fn used() -> Value {
    let usage = json!({"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17});
    with(chunk("chatcmpl-551", "qwen3:8b", &json!([])), json!({"usage": usage}))
}

/// Returns reasoning and an answer.
#[must_use]
pub fn text() -> Reply {
    let thought =
        |thought: &str| one(&json!({"role": "assistant", "content": "", "reasoning": thought}), None);
    Reply::sse([
        thought("Let me"),
        thought(" see"),
        one(&json!({"role": "assistant", "content": "Hello"}), None),
        one(&json!({"role": "assistant", "content": " world"}), None),
        one(&json!({"role": "assistant", "content": ""}), Some("stop")),
        used(),
    ])
}

/// Returns a call in one piece.
#[must_use]
pub fn call() -> Reply {
    let call = with(whole_call("call_ol1"), json!({"index": 0}));
    Reply::sse([
        one(&json!({"role": "assistant", "content": "", "tool_calls": [call]}), None),
        one(&json!({"role": "assistant", "content": ""}), Some("tool_calls")),
        used(),
    ])
}

/// Returns 400: the model does not support tools.
#[must_use]
pub fn no_tools() -> Reply {
    let message = "gemma:2b does not support tools";
    Reply::error(
        400,
        &json!({"error": {"message": message, "type": "api_error", "param": null, "code": null}}),
    )
}

/// Returns 404: the model was not pulled.
#[must_use]
pub fn no_model() -> Reply {
    let message = "there is no model \"nothing\" here: pull it";
    Reply::error(
        404,
        &json!({"error": {"message": message, "type": "api_error", "param": null, "code": null}}),
    )
}

/// Returns the response of `/api/show`, with the model's context window. If `num_ctx` is given, it is the
/// configured window.
#[must_use]
pub fn show(num_ctx: Option<u64>) -> Reply {
    let parameters = num_ctx.map_or_else(String::new, |size| {
        format!("num_ctx                        {size}\nstop                           \"<|im_end|>\"")
    });
    Reply::json(
        200,
        &json!({
            "parameters": parameters,
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
            "capabilities": ["completion", "tools", "vision"],
        }),
    )
}
