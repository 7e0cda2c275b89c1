//! Encodes updates for version 1 and version 2 of the protocol.

use narrows_acp::Version;
use serde_json::{Map, Value, json};

use crate::placeholders::PlaceholderValues;
use crate::script::step::{Command, Diff, PlanEntry, Speaker, ToolCall};
use crate::script::{Auth, Script};

pub(crate) fn chunk(version: Version, speaker: Speaker, text: &str, message: &str) -> Value {
    let kind = match speaker {
        Speaker::Message => "agent_message_chunk",
        Speaker::Thought => "agent_thought_chunk",
    };
    let mut update = json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
    if version == Version::V2 {
        update["messageId"] = json!(message);
    }
    update
}

pub(crate) fn user_message(version: Version, blocks: &[Value], message: &str) -> Vec<Value> {
    match version {
        Version::V1 => blocks
            .iter()
            .map(|block| json!({"sessionUpdate": "user_message_chunk", "content": block}))
            .collect(),
        Version::V2 => {
            vec![json!({"sessionUpdate": "user_message", "messageId": message, "content": blocks})]
        }
    }
}

/// Returns a state update, which only version 2 has.
pub(crate) fn state(state: &str) -> Value {
    json!({"sessionUpdate": "state_update", "state": state})
}

pub(crate) fn tool_call(version: Version, call: &ToolCall, values: &PlaceholderValues) -> Value {
    let kind = match version {
        Version::V1 => "tool_call",
        Version::V2 => "tool_call_update",
    };
    with_kind(kind, tool_fields(version, call, values))
}

pub(crate) fn tool_update(version: Version, call: &ToolCall, values: &PlaceholderValues) -> Value {
    with_kind("tool_call_update", tool_fields(version, call, values))
}

fn with_kind(kind: &str, mut fields: Map<String, Value>) -> Value {
    fields.insert("sessionUpdate".to_owned(), json!(kind));
    Value::Object(fields)
}

fn tool_fields(version: Version, call: &ToolCall, values: &PlaceholderValues) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(key.to_owned(), value);
        }
    };
    set("toolCallId", Some(json!(values.fill(&call.id))));
    set("name", call.name.as_ref().map(|name| json!(name)));
    set("title", call.title.as_ref().map(|title| json!(values.fill(title))));
    set("kind", call.kind.map(Value::from));
    set("status", call.status.map(Value::from));
    set("rawInput", call.input.as_ref().map(|input| values.fill_json(input)));
    set("rawOutput", call.output.as_ref().map(|output| values.fill_json(output)));
    set(
        "locations",
        call.path.as_ref().map(|path| {
            let mut location = json!({"path": values.path(path)});
            if let Some(line) = call.line {
                location["line"] = json!(line);
            }
            json!([location])
        }),
    );
    let mut content = Vec::new();
    if let Some(text) = &call.text {
        content.push(json!({"type": "content", "content": {"type": "text", "text": values.fill(text)}}));
    }
    content.extend(call.diff.as_ref().map(|change| diff(version, change, values)));
    set("content", (!content.is_empty()).then_some(Value::Array(content)));
    fields
}

fn diff(version: Version, diff: &Diff, values: &PlaceholderValues) -> Value {
    let path = values.path(&diff.path);
    let new = values.fill(&diff.new);
    let old = diff.old.as_ref().map(|old| values.fill(old));
    match version {
        Version::V1 => json!({"type": "diff", "path": path, "oldText": old, "newText": new}),
        Version::V2 => {
            let operation = if old.is_some() { "modify" } else { "add" };
            json!({
                "type": "diff",
                "changes": [{"operation": operation, "path": path}],
                "patch": {"format": "git_patch", "text": patch(&path, old.as_deref(), &new)},
            })
        }
    }
}

/// Returns a patch that removes all old lines and adds all new ones.
fn patch(path: &str, old: Option<&str>, new: &str) -> String {
    let mut patch = format!("diff --git {path} {path}\n");
    if old.is_none() {
        patch.push_str("new file mode 100644\n");
    }
    let before = if old.is_some() { path } else { "/dev/null" };
    let (removed, added) = (old.unwrap_or_default().lines().count(), new.lines().count());
    let from = |count: usize| if count == 0 { "0,0".to_owned() } else { format!("1,{count}") };
    patch.push_str(&format!("--- {before}\n+++ {path}\n@@ -{} +{} @@\n", from(removed), from(added)));
    let lines =
        |sign: char, text: &str| text.lines().map(|line| format!("{sign}{line}\n")).collect::<String>();
    patch.push_str(&lines('-', old.unwrap_or_default()));
    patch.push_str(&lines('+', new));
    patch
}

pub(crate) fn plan(version: Version, entries: &[PlanEntry], values: &PlaceholderValues) -> Value {
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| {
            json!({"content": values.fill(&entry.content), "priority": entry.priority, "status": entry.status})
        })
        .collect();
    match version {
        Version::V1 => json!({"sessionUpdate": "plan", "entries": entries}),
        Version::V2 => {
            json!({"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "plan", "entries": entries}})
        }
    }
}

pub(crate) fn commands(version: Version, commands: &[Command]) -> Value {
    let commands: Vec<Value> = commands
        .iter()
        .map(|command| {
            let mut listed = json!({"name": command.name, "description": command.description});
            if version == Version::V2 {
                listed["type"] = json!("command");
            }
            listed
        })
        .collect();
    json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})
}

/// Returns the modes of a session as a configuration option, which both versions have.
pub(crate) fn options(version: Version, modes: &[String], current: &str) -> Value {
    let id = match version {
        Version::V1 => "id",
        Version::V2 => "configId",
    };
    let values: Vec<Value> = modes.iter().map(|mode| json!({"value": mode, "name": mode})).collect();
    json!([{
        id: "mode",
        "name": "Mode",
        "category": "mode",
        "type": "select",
        "currentValue": current,
        "options": values,
    }])
}

/// Returns the modes of a session in the form that only version 1 has.
pub(crate) fn modes(modes: &[String], current: &str) -> Value {
    let available: Vec<Value> = modes.iter().map(|mode| json!({"id": mode, "name": mode})).collect();
    json!({"currentModeId": current, "availableModes": available})
}

pub(crate) fn mode_changed(version: Version, modes: &[String], current: &str) -> Vec<Value> {
    let mut updates = Vec::new();
    if version == Version::V1 {
        updates.push(json!({"sessionUpdate": "current_mode_update", "currentModeId": current}));
    }
    if modes.iter().any(|mode| mode == current) {
        let options = options(version, modes, current);
        updates.push(json!({"sessionUpdate": "config_option_update", "configOptions": options}));
    }
    updates
}

pub(crate) fn initialize_result(version: Version, script: &Script) -> Value {
    let info = json!({"name": script.name, "version": script.version});
    let auth: Vec<Value> = script.auth.iter().map(|auth| auth_method(version, auth)).collect();
    let can = &script.capabilities;
    let marker = |on: bool| if on { json!({}) } else { Value::Null };
    let flag = |on: bool| if on { json!(true) } else { Value::Null };
    let mut answer = match version {
        Version::V1 => json!({
            "protocolVersion": 1,
            "agentInfo": info,
            "agentCapabilities": {
                "loadSession": can.load,
                "promptCapabilities":
                    {"image": can.image, "audio": can.audio, "embeddedContext": can.embedded_context},
                "mcpCapabilities": {"http": can.mcp_http, "sse": flag(can.mcp_sse), "acp": flag(can.mcp_acp)},
                "sessionCapabilities": {
                    "list": marker(can.list),
                    "resume": marker(can.resume),
                    "close": marker(can.close),
                    "delete": marker(can.delete),
                },
                "auth": {"logout": marker(script.auth.is_some())},
            },
            "authMethods": auth,
        }),
        Version::V2 => json!({
            "protocolVersion": 2,
            "info": info,
            "capabilities": {
                "session": {
                    "prompt": {
                        "image": marker(can.image),
                        "audio": marker(can.audio),
                        "embeddedContext": marker(can.embedded_context),
                    },
                    "mcp": {"stdio": {}, "http": marker(can.mcp_http), "acp": marker(can.mcp_acp)},
                    "delete": marker(can.delete),
                },
            },
            "authMethods": auth,
        }),
    };
    drop_nulls(&mut answer);
    answer
}

fn auth_method(version: Version, auth: &Auth) -> Value {
    match version {
        Version::V1 => json!({"id": auth.id, "name": auth.name}),
        Version::V2 => json!({"type": "agent", "methodId": auth.id, "name": auth.name}),
    }
}

/// Removes members that are `null`, because clients report a missing member more clearly.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(members) = value {
        members.retain(|_, member| !member.is_null());
        members.values_mut().for_each(drop_nulls);
    }
}
