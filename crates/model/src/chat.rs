//! A conversation with a model as plain data. The format is independent of the endpoint, and stable so that
//! it can be stored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message of a conversation. The instructions are in [`Request::system`] instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    User {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        content: Vec<Part>,
    },
    Assistant(Assistant),
    Tool(ToolResult),
}

impl Message {
    /// Returns a user message of plain text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { content: vec![Part::text(text)] }
    }
}

/// A part of a message or result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text {
        text: String,
    },
    Image {
        mime: String,
        /// Image data in base64.
        data: String,
    },
    Audio {
        mime: String,
        /// Audio data in base64.
        data: String,
    },
    /// A document of another kind.
    File {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        mime: String,
        /// File data in base64.
        data: String,
    },
}

impl Part {
    /// Returns a part of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// An answer of the model, as it is sent back with the next request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Assistant {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Reasoning before the answer; empty if the model does not show it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Tool calls, in the model's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// Fields of the message that the endpoint requires back unchanged, such as `reasoning_details`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// Id to which the result of the call refers. Never empty in a [`Completion`].
    pub id: String,
    pub name: String,
    /// Arguments as the model wrote them, which may be invalid JSON. `{}` if the model wrote none.
    pub arguments: String,
    /// Fields of the call that the endpoint requires back unchanged, such as Gemini's `extra_content`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// The result of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolResult {
    pub call: String,
    pub name: String,
    /// Text of the result. May contain images if the model accepts images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Part>,
    /// `true` if the tool failed or was not allowed to run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// Thinking effort, for models that support it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// The lowest effort.
    Minimal,
    Low,
    Medium,
    High,
}

impl Effort {
    /// All efforts in ascending order.
    pub const ALL: [Self; 4] = [Self::Minimal, Self::Low, Self::Medium, Self::High];

    /// Returns the name of the effort in requests and in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// Returns the effort with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.name() == name)
    }
}

/// A request for one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// The offered tools. Requests of a conversation must list them in the same order, for the endpoint's
    /// prefix cache.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Maximum number of tokens in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Key that requests with a common prefix share, for the endpoint's prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<String>,
}

/// Reason why the model ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    Stop,
    /// The model has called tools, and waits for their results.
    Calls,
    /// The answer was cut off at a token limit.
    Length,
    /// The model refused, or a filter withdrew the answer.
    Refusal,
}

/// Token usage and cost of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub input: u64,
    /// Number of output tokens, including reasoning.
    pub output: u64,
    /// Sum of input and output tokens.
    pub total: u64,
    /// Input tokens read from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// Cost in the endpoint's own currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    pub message: Assistant,
    /// Reason why the answer ended. Always [`Finish::Calls`] if the message contains calls, even if the
    /// endpoint reports another reason.
    pub finish: Finish,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Tool calls that a token limit or a filter cut off. They are not part of `message`, and must not be
    /// run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_calls: Vec<Call>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Spells out the stored format of a value, because stored conversations must stay readable.
    #[track_caller]
    fn check<T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug>(
        value: &T,
        stored: &Value,
    ) {
        assert_eq!(serde_json::to_value(value).expect("JSON"), *stored);
        assert_eq!(serde_json::from_value::<T>(stored.clone()).expect("a value"), *value);
    }

    #[test]
    fn messages_have_a_stable_form() {
        check(&Message::user("a"), &json!({"role": "user", "content": [{"type": "text", "text": "a"}]}));
        let media = Message::User {
            content: vec![
                Part::Image { mime: "image/png".into(), data: "AA==".into() },
                Part::Audio { mime: "audio/wav".into(), data: "AA==".into() },
                Part::File {
                    name: Some("a.pdf".into()),
                    mime: "application/pdf".into(),
                    data: "AA==".into(),
                },
                Part::File { name: None, mime: "application/pdf".into(), data: "AA==".into() },
            ],
        };
        check(
            &media,
            &json!({"role": "user", "content": [
                {"type": "image", "mime": "image/png", "data": "AA=="},
                {"type": "audio", "mime": "audio/wav", "data": "AA=="},
                {"type": "file", "name": "a.pdf", "mime": "application/pdf", "data": "AA=="},
                {"type": "file", "mime": "application/pdf", "data": "AA=="},
            ]}),
        );
        check(&Message::Assistant(Assistant::default()), &json!({"role": "assistant"}));
        let call = Call { id: "c".into(), name: "f".into(), arguments: "{}".into(), ..Call::default() };
        let mut assistant =
            Assistant { text: "a".into(), reasoning: "t".into(), calls: vec![call], ..Assistant::default() };
        assistant.extra.insert("reasoning_details".into(), json!([1]));
        check(
            &Message::Assistant(assistant),
            &json!({"role": "assistant", "text": "a", "reasoning": "t",
                "calls": [{"id": "c", "name": "f", "arguments": "{}"}], "extra": {"reasoning_details": [1]}}),
        );
        let result =
            ToolResult { call: "c".into(), name: "f".into(), content: vec![Part::text("no")], failed: true };
        check(
            &Message::Tool(result),
            &json!({"role": "tool", "call": "c", "name": "f", "content": [{"type": "text", "text": "no"}],
                "failed": true}),
        );
        check(&Message::Tool(ToolResult::default()), &json!({"role": "tool", "call": "", "name": ""}));
    }

    #[test]
    fn an_answer_has_a_stable_form() {
        let completion = Completion {
            message: Assistant::default(),
            finish: Finish::Length,
            usage: Some(Usage { input: 1, output: 2, total: 3, cost: Some(0.5), ..Usage::default() }),
            broken_calls: Vec::new(),
        };
        check(
            &completion,
            &json!({"message": {}, "finish": "length", "usage": {"input": 1, "output": 2, "total": 3, "cost": 0.5}}),
        );
    }

    #[test]
    fn a_request_has_a_stable_form() {
        let request = Request {
            model: "m".into(),
            system: Some("s".into()),
            tools: vec![Tool { name: "f".into(), description: String::new(), parameters: json!({}) }],
            effort: Some(Effort::Minimal),
            ..Request::default()
        };
        check(
            &request,
            &json!({"model": "m", "system": "s", "tools": [{"name": "f", "parameters": {}}], "effort": "minimal"}),
        );
    }

    #[test]
    fn efforts_have_names() {
        for effort in Effort::ALL {
            assert_eq!(Effort::from_name(effort.name()), Some(effort));
            assert_eq!(serde_json::to_value(effort).expect("JSON"), effort.name());
        }
        assert_eq!(Effort::from_name("HIGH"), None);
        assert!(Effort::Minimal < Effort::High);
    }
}
