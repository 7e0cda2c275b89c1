//! Together: `text` beside every delta, the finish reason beside arguments and once more, cache hits at the
//! top level of usage.

use serde_json::{Value, json};

use super::{ARGUMENTS, TOOL, chunk, with};
use crate::model::Reply;

fn one(delta: &Value, finish: Option<&str>) -> Value {
    let text = delta["content"].as_str().unwrap_or_default();
    let choice = json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish, "seed": 7, "delta": delta});
    with(chunk("tg-1", "meta-llama/Llama-3.3-70B", &json!([choice])), json!({"usage": null}))
}

fn used(chunk: Value) -> Value {
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14, "cached_tokens": 4});
    with(chunk, json!({"usage": usage}))
}

fn delta(content: &str) -> Value {
    json!({"token_id": 9, "role": "assistant", "content": content, "tool_calls": null})
}

/// Returns an answer whose last piece has the finish reason.
#[must_use]
pub fn text() -> Reply {
    Reply::sse([one(&delta("Hello"), None), one(&delta(" "), None), used(one(&delta("world"), Some("stop")))])
}

/// Returns a call. The finish reason is in the last piece of its arguments, and is then sent again.
#[must_use]
pub fn call() -> Reply {
    let piece = |call: Value| json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let begin = json!({"index": 0, "id": "call_tg1", "type": "function", "function": {"name": TOOL, "arguments": ""}});
    let more = json!({"index": 0, "function": {"arguments": ARGUMENTS}});
    Reply::sse([
        one(&piece(begin), None),
        one(&piece(more), Some("tool_calls")),
        used(one(&delta(""), Some("tool_calls"))),
    ])
}
