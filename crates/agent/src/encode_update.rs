//! Encodes updates for version 1 and version 2 of the protocol.

use narrows_acp::Version;
use serde_json::{Map, Value, json};

use crate::transcript::{PlanEntry, ToolCall, ToolContent, ToolStatus, TranscriptItem};

/// Id of a session's plan. A session has only one.
const PLAN_ID: &str = "plan";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallField {
    Status,
    Content,
    Output,
}

pub(crate) fn tool_call(version: Version, call: &ToolCall) -> Value {
    let mut update = Map::new();
    let announces = if version == Version::V1 { "tool_call" } else { "tool_call_update" };
    update.insert("sessionUpdate".into(), announces.into());
    update.extend(tool_call_fields(version, call));
    Value::Object(update)
}

/// Returns the fields of a call, for a permission request or for the update that announces it.
pub(crate) fn tool_call_fields(version: Version, call: &ToolCall) -> Map<String, Value> {
    let locations: Vec<Value> = call.locations.iter().map(|path| json!({"path": path})).collect();
    let mut fields = Map::new();
    fields.insert("toolCallId".into(), call.id.as_str().into());
    fields.insert("title".into(), call.title.as_str().into());
    fields.insert("name".into(), call.name.as_str().into());
    fields.insert("kind".into(), json!(call.kind));
    fields.insert("status".into(), status(version, call.status));
    if !call.content.is_empty() {
        fields.insert("content".into(), contents(version, &call.content));
    }
    if !locations.is_empty() {
        fields.insert("locations".into(), locations.into());
    }
    fields.insert("rawInput".into(), call.input.clone());
    if let Some(output) = &call.output {
        fields.insert("rawOutput".into(), output.clone());
    }
    capabilities(version, call.status, &mut fields);
    fields
}

pub(crate) fn tool_change(version: Version, call: &ToolCall, changed: &[CallField]) -> Value {
    let mut update = Map::new();
    update.insert("sessionUpdate".into(), "tool_call_update".into());
    update.insert("toolCallId".into(), call.id.as_str().into());
    for field in changed {
        match field {
            CallField::Status => {
                update.insert("status".into(), status(version, call.status));
                capabilities(version, call.status, &mut update);
            }
            CallField::Content => {
                update.insert("content".into(), contents(version, &call.content));
            }
            CallField::Output => {
                update.insert("rawOutput".into(), call.output.clone().unwrap_or(Value::Null));
            }
        }
    }
    Value::Object(update)
}

/// Adds the cancellation capability of a running call in version 2.
fn capabilities(version: Version, status: ToolStatus, fields: &mut Map<String, Value>) {
    if version == Version::V2 {
        let running = matches!(status, ToolStatus::Pending | ToolStatus::InProgress);
        fields.insert("capabilities".into(), if running { json!({"cancel": {}}) } else { Value::Null });
    }
}

fn status(version: Version, status: ToolStatus) -> Value {
    match (version, status) {
        (Version::V1, ToolStatus::Cancelled) => "failed".into(),
        (_, status) => json!(status),
    }
}

fn contents(version: Version, contents: &[ToolContent]) -> Value {
    contents.iter().map(|content| tool_content(version, content)).collect()
}

fn tool_content(version: Version, content: &ToolContent) -> Value {
    match (content, version) {
        (ToolContent::Block { block }, _) => json!({"type": "content", "content": block}),
        (ToolContent::Terminal { id }, _) => json!({"type": "terminal", "terminalId": id}),
        (ToolContent::Diff { path, old, new }, Version::V1) => {
            json!({"type": "diff", "path": path, "oldText": old, "newText": new})
        }
        (ToolContent::Diff { path, old, .. }, Version::V2) => {
            let operation = if old.is_some() { "modify" } else { "add" };
            json!({"type": "diff", "changes": [{"operation": operation, "path": path}]})
        }
    }
}

pub(crate) fn plan(version: Version, entries: &[PlanEntry]) -> Value {
    match version {
        Version::V1 => json!({"sessionUpdate": "plan", "entries": entries}),
        Version::V2 => json!({
            "sessionUpdate": "plan_update",
            "plan": {"type": "items", "planId": PLAN_ID, "entries": entries},
        }),
    }
}

pub(crate) fn replay(version: Version, shown: &TranscriptItem) -> Vec<Value> {
    match (shown, version) {
        (TranscriptItem::User { id, content }, Version::V1) => content
            .iter()
            .map(|block| json!({"sessionUpdate": "user_message_chunk", "messageId": id, "content": block}))
            .collect(),
        (TranscriptItem::User { id, content }, Version::V2) => {
            vec![json!({"sessionUpdate": "user_message", "messageId": id, "content": content})]
        }
        (TranscriptItem::Text { id, text }, version) => {
            vec![text_message(version, "agent_message", id, text)]
        }
        (TranscriptItem::Thought { id, text }, version) => {
            vec![text_message(version, "agent_thought", id, text)]
        }
        (TranscriptItem::Tool(call), version) => vec![tool_call(version, call)],
        (TranscriptItem::Plan { entries }, version) => vec![plan(version, entries)],
    }
}

fn text_message(version: Version, kind: &str, id: &str, text: &str) -> Value {
    let block = json!({"type": "text", "text": text});
    match version {
        Version::V1 => json!({"sessionUpdate": format!("{kind}_chunk"), "messageId": id, "content": block}),
        Version::V2 => json!({"sessionUpdate": kind, "messageId": id, "content": [block]}),
    }
}

#[cfg(test)]
mod tests {
    use narrows_acp::{v1, v2};

    use super::*;
    use crate::transcript::{PlanPriority, PlanStatus, ToolKind};

    fn call() -> ToolCall {
        ToolCall {
            id: "c1".to_owned(),
            title: "Edit a.txt".to_owned(),
            name: "edit_file".to_owned(),
            kind: ToolKind::Edit,
            status: ToolStatus::Cancelled,
            content: vec![
                ToolContent::text("done"),
                ToolContent::Diff { path: "/w/a.txt".to_owned(), old: None, new: "x".to_owned() },
                ToolContent::Terminal { id: "t1".to_owned() },
            ],
            locations: vec!["/w/a.txt".to_owned()],
            input: json!({"path": "a.txt"}),
            output: Some(json!("done")),
        }
    }

    /// Checks that the official types parse the update as a known kind.
    #[track_caller]
    fn check_valid(version: Version, update: &Value) {
        let params = json!({"sessionId": "s", "update": update});
        match version {
            Version::V1 => drop(serde_json::from_value::<v1::SessionNotification>(params).unwrap()),
            Version::V2 => {
                let read: v2::UpdateSessionNotification = serde_json::from_value(params).unwrap();
                assert!(!matches!(read.update, v2::SessionUpdate::Other(_)), "{update}");
            }
        }
    }

    #[test]
    fn updates_of_both_versions_match_their_schemas() {
        for version in [Version::V1, Version::V2] {
            let shown = [
                TranscriptItem::User {
                    id: "u".to_owned(),
                    content: vec![json!({"type": "text", "text": "hi"})],
                },
                TranscriptItem::Text { id: "m".to_owned(), text: "hello".to_owned() },
                TranscriptItem::Thought { id: "t".to_owned(), text: "hm".to_owned() },
                TranscriptItem::Tool(Box::new(call())),
                TranscriptItem::Plan {
                    entries: vec![PlanEntry {
                        content: "look".to_owned(),
                        priority: PlanPriority::High,
                        status: PlanStatus::InProgress,
                    }],
                },
            ];
            for update in shown.iter().flat_map(|shown| replay(version, shown)) {
                check_valid(version, &update);
            }
            check_valid(
                version,
                &tool_change(version, &call(), &[CallField::Status, CallField::Content, CallField::Output]),
            );
        }
    }

    #[test]
    fn only_version_2_has_the_status_cancelled() {
        let status = |version| tool_change(version, &call(), &[CallField::Status])["status"].clone();
        assert_eq!(status(Version::V1), "failed");
        assert_eq!(status(Version::V2), "cancelled");
    }
}
