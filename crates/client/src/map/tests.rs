//! Tests of the mapper, from updates to events.

mod bounds;
mod conversation;
mod order;
mod single;
mod variants;

use narrows_acp::Version;
use narrows_acp::stop::StopReason;
use serde_json::{Value, json};

use super::*;
use crate::event::Status;

pub(super) struct Stage {
    pub(super) mapper: Mapper,
    pub(super) events: Vec<RuntimeEvent>,
    now: u64,
}

impl Stage {
    pub(super) fn idle(version: Version) -> Self {
        let settings = Settings { raw: false, ..Settings::default() };
        let mut mapper = Mapper::new(version, "acp", settings);
        mapper.set_session("s");
        Self { mapper, events: Vec::new(), now: 0 }
    }

    pub(super) fn new(version: Version) -> Self {
        let mut stage = Self::idle(version);
        stage.start("r");
        stage.events.clear();
        stage
    }

    pub(super) fn now(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    pub(super) fn start(&mut self, run: &str) {
        let now = self.now();
        self.mapper.start(run, now, &mut self.events);
    }

    pub(super) fn update(&mut self, update: &Value) -> Effects {
        self.params(json!({"sessionId": "s", "update": update}).to_string().as_bytes())
    }

    pub(super) fn params(&mut self, params: &[u8]) -> Effects {
        let now = self.now();
        self.mapper.update(params, now, &mut self.events)
    }

    pub(super) fn ask(&mut self, params: &Value) -> ReadRequest {
        let now = self.now();
        let params = params.to_string();
        self.mapper.permission_requested(
            "q1",
            "session/request_permission",
            params.as_bytes(),
            now,
            &mut self.events,
        )
    }

    pub(super) fn finish(&mut self, outcome: RunOutcome) -> Option<Status> {
        let now = self.now();
        self.mapper.finish(outcome, now, &mut self.events)
    }

    pub(super) fn end(&mut self, reason: &str) -> Option<Status> {
        self.finish(RunOutcome::new(RunEnd::Stopped(Some(StopReason::from_name(reason)))))
    }

    pub(super) fn short(&mut self) -> Vec<String> {
        self.events.drain(..).map(|event| short(&event)).collect()
    }
}

/// Returns a short text for an event: its name and main content.
fn short(event: &RuntimeEvent) -> String {
    let body = match &event.body {
        EventBody::RunStarted { .. } => String::new(),
        EventBody::AssistantDelta { text_delta } | EventBody::ReasoningDelta { text_delta } => {
            text_delta.clone()
        }
        EventBody::AssistantMessage { message } | EventBody::ReasoningMessage { message } => {
            let mut text = message.text.to_string();
            if let Some(structured) = &message.structured_output {
                text += &format!(" = {structured}");
            }
            text
        }
        EventBody::ToolCall { call_id, tool_name, input } => format!("{call_id} {tool_name} {input:?}"),
        EventBody::ToolResult { call_id, output } => {
            format!("{call_id} {}", serde_json::to_string(output).unwrap())
        }
        EventBody::Provider { payload: Payload::Update { update, replay, problem }, .. } => {
            let name = update.value()["sessionUpdate"].as_str().unwrap_or_default().to_owned();
            let replay = if *replay { " (replay)" } else { "" };
            let problem = problem.as_ref().map(|problem| format!(" ({problem})")).unwrap_or_default();
            return format!("- {name}{replay}{problem}");
        }
        EventBody::Provider { payload, .. } => {
            return format!("- {}", serde_json::to_string(payload).unwrap());
        }
        EventBody::Error { message, code } => format!("{} {message}", code.as_deref().unwrap_or("-")),
        EventBody::RunCompleted(completed) => {
            let text = completed.final_text.as_deref().map(|text| format!(" {text}")).unwrap_or_default();
            format!("{}{text}", completed.status)
        }
    };
    format!("{} {body}", event.name()).trim_end().to_owned()
}

#[track_caller]
pub(super) fn check(version: Version, updates: &[Value], expected: &[&str]) {
    let mut stage = Stage::new(version);
    for update in updates {
        stage.update(update);
    }
    assert_eq!(stage.short(), expected, "{updates:#?}");
}

pub(super) fn said(id: Option<&str>, text: &str) -> Value {
    chunk("agent_message_chunk", id, text)
}

pub(super) fn thought(id: Option<&str>, text: &str) -> Value {
    chunk("agent_thought_chunk", id, text)
}

fn chunk(name: &str, id: Option<&str>, text: &str) -> Value {
    let mut update = json!({"sessionUpdate": name, "content": {"type": "text", "text": text}});
    if let Some(id) = id {
        update["messageId"] = json!(id);
    }
    update
}

pub(super) fn whole(id: &str, texts: &[&str]) -> Value {
    let content: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
    json!({"sessionUpdate": "agent_message", "messageId": id, "content": content})
}

pub(super) fn tool(id: &str, fields: Value) -> Value {
    news("tool_call_update", id, fields)
}

pub(super) fn begun(id: &str, fields: Value) -> Value {
    news("tool_call", id, fields)
}

fn news(name: &str, id: &str, mut fields: Value) -> Value {
    fields["sessionUpdate"] = json!(name);
    fields["toolCallId"] = json!(id);
    fields
}
