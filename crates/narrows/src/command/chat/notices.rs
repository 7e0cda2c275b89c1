//! Notices besides the answers: earlier messages, events between turns, token usage.

use narrows_client::{EventBody, Payload, RuntimeEvent, Usage};
use serde_json::Value;

use crate::render::rejection;
use crate::render::warning;
use crate::terminal::line;

const MAX_PAST_MESSAGES: usize = 6;

const MAX_MESSAGE_CHARS: usize = 200;

/// Returns the last messages of a continued session, one line each.
pub(super) fn past_messages<'a>(events: impl IntoIterator<Item = &'a RuntimeEvent>) -> Vec<String> {
    let mut said: Vec<(&str, String)> = Vec::new();
    for event in events {
        let EventBody::Provider { payload: Payload::Update { update, replay: true, .. }, .. } = &event.body
        else {
            continue;
        };
        let Some((who, text)) = message(&update.value()) else { continue };
        match said.last_mut() {
            Some((last, before)) if *last == who => before.push_str(&text),
            _ => said.push((who, text)),
        }
    }
    said.retain(|(_, text)| !text.trim().is_empty());
    let hidden = said.len().saturating_sub(MAX_PAST_MESSAGES);
    let mut lines = Vec::new();
    if hidden > 0 {
        lines.push(format!("… {hidden} earlier messages"));
    }
    lines.extend(said[hidden..].iter().map(|(who, text)| format!("{who}: {}", short(text))));
    lines
}

fn message(update: &Value) -> Option<(&'static str, String)> {
    let who = match update["sessionUpdate"].as_str()? {
        "user_message_chunk" | "user_message" => "you",
        "agent_message_chunk" | "agent_message" => "agent",
        _ => return None,
    };
    let content = &update["content"];
    let texts = content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice);
    Some((who, texts.iter().filter_map(|block| block["text"].as_str()).collect()))
}

fn short(text: &str) -> String {
    let mut line = line(text);
    if let Some((end, _)) = line.char_indices().nth(MAX_MESSAGE_CHARS) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Returns the notice for an event between turns, if it matters.
pub(super) fn notice_line(event: &RuntimeEvent) -> Option<String> {
    let EventBody::Provider { payload, .. } = &event.body else { return None };
    match payload {
        Payload::Update { replay: false, update, problem: None } => {
            let update = update.value();
            match update["sessionUpdate"].as_str()? {
                "current_mode_update" => {
                    Some(format!("mode set to {}", line(update["currentModeId"].as_str()?)))
                }
                "plan" => Some("the agent changed its plan".to_owned()),
                _ => message(&update)
                    .filter(|(who, text)| *who == "agent" && !text.trim().is_empty())
                    .map(|(who, text)| format!("{who}: {}", short(&text))),
            }
        }
        Payload::ConfigRejected { option, value, reason } => Some(rejection(option, value, reason)),
        Payload::Notification { method, params } => {
            Some(format!("{}: {}", line(method), short(params.text())))
        }
        Payload::Other { name, data } => warning(name, data),
        _ => None,
    }
}

pub(super) fn new_mode(event: &RuntimeEvent) -> Option<String> {
    let EventBody::Provider { payload: Payload::Update { update, .. }, .. } = &event.body else {
        return None;
    };
    let update = update.value();
    let is_mode = update["sessionUpdate"] == "current_mode_update";
    update["currentModeId"].as_str().filter(|_| is_mode).map(str::to_owned)
}

/// Describes tokens and cost of a turn, as far as the agent reports them.
pub(super) fn usage_line(usage: &Usage) -> Option<String> {
    let mut parts = Vec::new();
    match (usage.input_tokens, usage.output_tokens, usage.total_tokens) {
        (Some(input), Some(output), _) => parts.push(format!("{input} tokens in, {output} out")),
        (_, _, Some(total)) => parts.push(format!("{total} tokens")),
        (Some(input), None, None) => parts.push(format!("{input} tokens in")),
        (None, Some(output), None) => parts.push(format!("{output} tokens out")),
        (None, None, None) => {}
    }
    parts.extend(usage.context_length.map(|tokens| format!("{tokens} in context")));
    parts.extend(usage.cost_usd.filter(|dollars| *dollars > 0.0).map(|dollars| format!("${dollars:.4}")));
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use narrows_client::Json;
    use serde_json::json;

    use super::*;

    fn event(update: &Value, replay: bool) -> RuntimeEvent {
        let update: Json = serde_json::from_str(&update.to_string()).unwrap();
        let payload = Payload::Update { update, replay, problem: None };
        RuntimeEvent {
            at_ms: 0,
            run_id: None,
            session_id: None,
            body: EventBody::Provider { provider: "a".into(), payload },
            raw: None,
        }
    }

    fn chunk(who: &str, text: &str) -> Value {
        json!({"sessionUpdate": format!("{who}_message_chunk"), "content": {"type": "text", "text": text}})
    }

    #[test]
    fn past_messages_are_joined_chunks() {
        let whole = json!({"sessionUpdate": "agent_message", "messageId": "1",
            "content": [{"type": "text", "text": "who"}, {"type": "text", "text": "le"}]});
        let tool = json!({"sessionUpdate": "tool_call", "title": "t"});
        let events =
            [chunk("user", "a"), chunk("user", "b"), tool, chunk("agent", "c\nd"), chunk("user", "e"), whole];
        let events: Vec<RuntimeEvent> = events.iter().map(|update| event(update, true)).collect();
        assert_eq!(past_messages(&events), ["you: ab", "agent: c d", "you: e", "agent: whole"]);
        let many: Vec<RuntimeEvent> = (0..10)
            .map(|number| {
                event(&chunk(if number % 2 == 0 { "user" } else { "agent" }, &number.to_string()), true)
            })
            .collect();
        let shown = past_messages(&many);
        assert_eq!((shown.len(), shown[0].as_str()), (MAX_PAST_MESSAGES + 1, "… 4 earlier messages"));
        assert_eq!(past_messages(&[event(&chunk("user", "now"), false)]), [""; 0]);
    }

    #[test]
    fn events_between_turns_become_one_line() {
        let check = |update: Value, expected: Option<&str>| {
            assert_eq!(notice_line(&event(&update, false)).as_deref(), expected, "{update}");
        };
        check(chunk("agent", "By the\nway"), Some("agent: By the way"));
        check(chunk("user", "mine"), None);
        check(
            json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}),
            Some("mode set to plan"),
        );
        check(json!({"sessionUpdate": "available_commands_update", "availableCommands": []}), None);
        assert_eq!(notice_line(&event(&chunk("agent", "old"), true)), None);
    }

    #[test]
    fn the_usage_line_shows_known_values() {
        let none = Usage::default();
        assert_eq!(usage_line(&none), None);
        let usage = Usage { input_tokens: Some(12), output_tokens: Some(3), ..none.clone() };
        assert_eq!(usage_line(&usage).as_deref(), Some("12 tokens in, 3 out"));
        let usage = Usage { total_tokens: Some(9), context_length: Some(7), cost_usd: Some(0.01), ..none };
        assert_eq!(usage_line(&usage).as_deref(), Some("9 tokens, 7 in context, $0.0100"));
    }
}
