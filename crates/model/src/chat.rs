//! A conversation with a model as plain data, the same whatever the endpoint and stable enough to be kept on disk.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation. Instructions are no message: they stand in [`Request::system`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What the person said.
    User {
        /// Text and attachments, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        content: Vec<Part>,
    },
    /// What the model said.
    Assistant(Assistant),
    /// What a tool call gave.
    Tool(ToolResult),
}

impl Message {
    /// A message of plain text from the person.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { content: vec![Part::text(text)] }
    }
}

/// A piece of what is sent to the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture.
    Image {
        /// Its media type.
        mime: String,
        /// Its bytes in base64.
        data: String,
    },
    /// A recording.
    Audio {
        /// Its media type.
        mime: String,
        /// Its bytes in base64.
        data: String,
    },
    /// Any other document.
    File {
        /// What it is called, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Its media type.
        mime: String,
        /// Its bytes in base64.
        data: String,
    },
}

impl Part {
    /// A piece of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// One answer of the model, as it goes back with the next request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Assistant {
    /// What was said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// What was thought before, where the model shows it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// The tools to be called, in the model's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// Fields of the message that the endpoint wants back unchanged, such as `reasoning_details`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// One call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// What its result refers to; never empty in a [`Completion`].
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON as the model wrote it, which may be wrong; `{}` when it wrote nothing.
    pub arguments: String,
    /// Fields of the call that the endpoint wants back unchanged, such as Gemini's `extra_content`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// What a tool call gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolResult {
    /// The id of the call.
    pub call: String,
    /// The tool.
    pub name: String,
    /// Text, and pictures where the model takes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Part>,
    /// Whether the tool failed or was not allowed to run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// What it is called by.
    pub name: String,
    /// What it does, for the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// How hard a model shall think, where it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Next to nothing.
    Minimal,
    /// A little.
    Low,
    /// The usual.
    Medium,
    /// As much as it takes.
    High,
}

impl Effort {
    /// All of them, from the least.
    pub const ALL: [Self; 4] = [Self::Minimal, Self::Low, Self::Medium, Self::High];

    /// Its name on the wire and in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// The effort of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.name() == name)
    }
}

/// Everything the model is asked with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The model, as the endpoint calls it.
    pub model: String,
    /// Instructions that stand before the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// The tools on offer, always in the same order so that caches hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// The most tokens the answer may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// How freely the model chooses its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// How hard it shall think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// What requests that share a prefix have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model had said all.
    Stop,
    /// It waits for its tools.
    Calls,
    /// It reached a limit of tokens.
    Length,
    /// It would not answer, or was not let.
    Refusal,
}

/// What an answer cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens read.
    pub input: u64,
    /// Tokens written, thoughts included.
    pub output: u64,
    /// Both.
    pub total: u64,
    /// How many of those read came from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// How many of those written were thoughts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// Money, in the endpoint's unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// What the model said, thought and wants to be done.
    pub message: Assistant,
    /// Why it ended. With calls in the message it is [`Finish::Calls`], whatever the endpoint said.
    pub finish: Finish,
    /// What it cost, if the endpoint told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Calls that a limit of tokens or a filter cut off: not to be run, and not part of the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_calls: Vec<Call>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is on disk must stay readable, so its form is written down here.
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
