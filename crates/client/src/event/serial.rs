//! Reads and writes events as flat JSON objects.

use std::sync::Arc;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Completed, EventBody, Json, Message, Payload, RuntimeEvent, Status, ToolOutput, Usage};

impl Serialize for RuntimeEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.name())?;
        map.serialize_entry("atMs", &self.at_ms)?;
        entry(&mut map, "runId", self.run_id.as_ref())?;
        entry(&mut map, "sessionId", self.session_id.as_ref())?;
        match &self.body {
            EventBody::RunStarted { provider } => map.serialize_entry("provider", provider)?,
            EventBody::AssistantDelta { text_delta } | EventBody::ReasoningDelta { text_delta } => {
                map.serialize_entry("textDelta", text_delta)?;
            }
            EventBody::AssistantMessage { message } | EventBody::ReasoningMessage { message } => {
                map.serialize_entry("message", message)?;
            }
            EventBody::ToolCall { call_id, tool_name, input } => {
                map.serialize_entry("callId", call_id)?;
                map.serialize_entry("toolName", tool_name)?;
                map.serialize_entry("input", input)?;
            }
            EventBody::ToolResult { call_id, output } => {
                map.serialize_entry("callId", call_id)?;
                map.serialize_entry("output", output)?;
            }
            EventBody::Provider { provider, payload } => {
                map.serialize_entry("provider", provider)?;
                map.serialize_entry("payload", payload)?;
            }
            EventBody::Error { message, code } => {
                map.serialize_entry("message", message)?;
                entry(&mut map, "code", code.as_ref())?;
            }
            EventBody::RunCompleted(completed) => {
                map.serialize_entry("status", &completed.status)?;
                entry(&mut map, "finalText", completed.final_text.as_ref())?;
                entry(&mut map, "structuredOutput", completed.structured_output.as_ref())?;
                entry(&mut map, "usage", completed.usage.as_ref())?;
            }
        }
        entry(&mut map, "raw", self.raw.as_ref())?;
        map.end()
    }
}

/// Writes the member `key`, unless the value is `None`.
fn entry<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, value: Option<T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(key, &value))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Members<'a> {
    r#type: String,
    at_ms: u64,
    run_id: Option<Arc<str>>,
    session_id: Option<Arc<str>>,
    provider: Option<Arc<str>>,
    text_delta: Option<String>,
    /// A message object, or the text of an error.
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    call_id: Option<Arc<str>>,
    tool_name: Option<String>,
    input: Option<Json>,
    output: Option<ToolOutput>,
    payload: Option<Payload>,
    code: Option<String>,
    status: Option<Status>,
    final_text: Option<Arc<str>>,
    structured_output: Option<Value>,
    usage: Option<Usage>,
    raw: Option<Json>,
}

impl<'de> Deserialize<'de> for RuntimeEvent {
    /// Requires JSON text as the input of the deserializer.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        read(text.get()).map_err(D::Error::custom)
    }
}

fn read(text: &str) -> Result<RuntimeEvent, serde_json::Error> {
    fn have<T>(value: Option<T>, name: &'static str) -> Result<T, serde_json::Error> {
        value.ok_or_else(|| serde_json::Error::missing_field(name))
    }
    let members: Members<'_> = serde_json::from_str(text)?;
    let message = || -> Result<Message, serde_json::Error> {
        serde_json::from_str(have(members.message, "message")?.get())
    };
    let body = match &*members.r#type {
        "run.started" => EventBody::RunStarted { provider: have(members.provider, "provider")? },
        "assistant.delta" => EventBody::AssistantDelta { text_delta: have(members.text_delta, "textDelta")? },
        "assistant.reasoning.delta" => {
            EventBody::ReasoningDelta { text_delta: have(members.text_delta, "textDelta")? }
        }
        "assistant.message" => EventBody::AssistantMessage { message: message()? },
        "assistant.reasoning.message" => EventBody::ReasoningMessage { message: message()? },
        "tool.call" => EventBody::ToolCall {
            call_id: have(members.call_id, "callId")?,
            tool_name: have(members.tool_name, "toolName")?,
            input: have(members.input, "input")?,
        },
        "tool.result" => EventBody::ToolResult {
            call_id: have(members.call_id, "callId")?,
            output: have(members.output, "output")?,
        },
        "provider.event" => EventBody::Provider {
            provider: have(members.provider, "provider")?,
            payload: have(members.payload, "payload")?,
        },
        "error" => EventBody::Error {
            message: serde_json::from_str(have(members.message, "message")?.get())?,
            code: members.code,
        },
        "run.completed" => EventBody::RunCompleted(Box::new(Completed {
            status: have(members.status, "status")?,
            final_text: members.final_text,
            structured_output: members.structured_output,
            usage: members.usage,
        })),
        other => return Err(serde_json::Error::custom(format_args!("unknown event {other:?}"))),
    };
    let Members { at_ms, run_id, session_id, raw, .. } = members;
    Ok(RuntimeEvent { at_ms, run_id, session_id, body, raw })
}
