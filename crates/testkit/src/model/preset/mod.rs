//! Streams and errors of real providers with their peculiarities.
//!
//! All replies have the same content: `text` is [`TEXT`], after [`THOUGHT`] if the provider shows reasoning,
//! and `call` calls [`TOOL`] with [`ARGUMENTS`]. Only the format differs.

pub mod azure;
pub mod deepseek;
pub mod gemini;
pub mod groq;
pub mod litellm;
pub mod llamacpp;
pub mod lmstudio;
pub mod mistral;
pub mod ollama;
pub mod openai;
pub mod openrouter;
pub mod together;
pub mod vllm;

use serde_json::{Value, json};

/// The answer of every provider.
pub const TEXT: &str = "Hello world";

/// The reasoning before the answer, for providers that show reasoning.
pub const THOUGHT: &str = "Let me see";

/// The tool that every provider calls.
pub const TOOL: &str = "read_file";

/// The arguments of the tool call of every provider.
pub const ARGUMENTS: &str = r#"{"path":"a.txt"}"#;

fn chunk(id: &str, model: &str, choices: &Value) -> Value {
    json!({"id": id, "object": "chat.completion.chunk", "created": 1_760_000_001, "model": model, "choices": choices})
}

fn with(mut value: Value, fields: Value) -> Value {
    if let (Value::Object(known), Value::Object(fields)) = (&mut value, fields) {
        known.extend(fields);
    }
    value
}

fn whole_call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": TOOL, "arguments": ARGUMENTS}})
}
