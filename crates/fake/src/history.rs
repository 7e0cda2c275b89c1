//! The updates of a session, which are replayed when it is loaded.

use std::collections::VecDeque;

use serde_json::Value;

/// Maximum number of updates that are kept. The oldest are removed first.
const MAX_UPDATES: usize = 1000;

/// The updates of a session, with the chunks of a message joined.
#[derive(Debug, Default)]
pub(crate) struct History {
    updates: VecDeque<Value>,
}

/// Chunk kinds for which the protocol has a whole message.
const WHOLE_KINDS: [(&str, &str); 2] =
    [("agent_message_chunk", "agent_message"), ("agent_thought_chunk", "agent_thought")];

impl History {
    /// Records `update`, unless it is of a kind that is not replayed.
    pub(crate) fn record(&mut self, update: &Value) {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        if matches!(kind, "state_update" | "notice" | "usage_update") || self.continues(kind, update) {
            return;
        }
        if self.updates.len() == MAX_UPDATES {
            self.updates.pop_front();
        }
        self.updates.push_back(whole(kind, update));
    }

    fn continues(&mut self, kind: &str, update: &Value) -> bool {
        let Some(last) = self.updates.back_mut() else { return false };
        let Some((_, message)) = WHOLE_KINDS.iter().find(|(chunk, _)| *chunk == kind) else { return false };
        let Some(more) = update["content"]["text"].as_str() else { return false };
        // With message ids, the last entry of the history is a whole message. Without ids, it is a chunk that
        // grows.
        let (same, text) = match update.get("messageId") {
            Some(id) => (
                last["sessionUpdate"] == *message && last["messageId"] == *id,
                last.pointer_mut("/content/0/text"),
            ),
            None => (last["sessionUpdate"] == kind, last.pointer_mut("/content/text")),
        };
        match text {
            Some(Value::String(text)) if same => {
                text.push_str(more);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn replay(&self) -> Vec<Value> {
        self.updates.iter().cloned().collect()
    }
}

/// Converts the first chunk of a message with an id to the whole message.
fn whole(kind: &str, update: &Value) -> Value {
    match WHOLE_KINDS.iter().find(|(chunk, _)| *chunk == kind) {
        Some((_, message)) if update.get("messageId").is_some() => serde_json::json!({
            "sessionUpdate": message,
            "messageId": update["messageId"],
            "content": [update["content"]],
        }),
        _ => update.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chunk(text: &str, id: Option<&str>) -> Value {
        let mut update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
        if let Some(id) = id {
            update["messageId"] = json!(id);
        }
        update
    }

    #[track_caller]
    fn check(updates: &[Value], expected: &[Value]) {
        let mut history = History::default();
        updates.iter().for_each(|update| history.record(update));
        assert_eq!(history.replay(), expected);
    }

    #[test]
    fn chunks_of_one_message_are_joined() {
        check(&[chunk("a ", None), chunk("b", None)], &[chunk("a b", None)]);
        let whole = |id: &str, text: &str| json!({"sessionUpdate": "agent_message", "messageId": id, "content": [{"type": "text", "text": text}]});
        check(
            &[chunk("a ", Some("1")), chunk("b", Some("1")), chunk("c", Some("2"))],
            &[whole("1", "a b"), whole("2", "c")],
        );
    }

    #[test]
    fn chunks_around_another_update_are_not_joined() {
        let tool = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "T"});
        check(
            &[chunk("a", None), tool.clone(), chunk("b", None)],
            &[chunk("a", None), tool, chunk("b", None)],
        );
    }

    #[test]
    fn state_updates_are_not_recorded() {
        check(&[json!({"sessionUpdate": "state_update", "state": "running"})], &[]);
    }

    #[test]
    fn a_long_history_loses_its_oldest_updates() {
        let tools: Vec<Value> = (0..=MAX_UPDATES)
            .map(|n| json!({"sessionUpdate": "tool_call", "toolCallId": n.to_string()}))
            .collect();
        check(&tools, &tools[1..]);
    }
}
