//! Calls tools of MCP servers.

use std::sync::Arc;

use narrows_mcp::{Content, ResourceBody};
use narrows_model::{Call, Part};
use serde_json::{Map, Value, json};

use super::call::{ToolJob, ToolOutcome, ToolTask};
use super::permission::PermissionScope;
use crate::transcript::{ToolCall, ToolContent, ToolKind, ToolStatus};
use crate::turn::Turn;
use crate::update_writer::new_id;

/// Prepares a call of an MCP server's tool, given as `(server, tool, title)`. The call needs no permission if
/// the server declares the tool read-only.
pub(super) fn prepare(
    call: &Call,
    (server, tool, title): (&str, &str, Option<&str>),
    read_only: bool,
    arguments: &Map<String, Value>,
) -> ToolJob {
    let shown = ToolCall {
        id: new_id(),
        title: format!("{} ({server})", title.unwrap_or(tool)),
        name: call.name.clone(),
        kind: if read_only { ToolKind::Read } else { ToolKind::Other },
        status: ToolStatus::Pending,
        content: Vec::new(),
        locations: Vec::new(),
        input: Value::Object(arguments.clone()),
        output: None,
    };
    let grant = (!read_only).then(|| PermissionScope {
        key: json!(["mcp", server, tool]).to_string(),
        scope: Some(format!("`{tool}` of {server}")),
    });
    let task =
        ToolTask::Server { server: server.to_owned(), tool: tool.to_owned(), arguments: arguments.clone() };
    ToolJob { shown, grant, task }
}

pub(super) async fn perform(
    turn: &Turn,
    server: &str,
    tool: &str,
    arguments: Map<String, Value>,
) -> ToolOutcome {
    let servers = Arc::clone(&turn.session.state().servers);
    // Progress may quote the conversation, which must not be logged.
    let progress = |text: String| tracing::debug!(server, tool, bytes = text.len(), "progress");
    match servers.call(server, tool, arguments, progress).await {
        Ok(outcome) => {
            let mut parts: Vec<Part> = outcome.content.iter().map(to_part).collect();
            if parts.is_empty() {
                let text =
                    outcome.structured.as_ref().map_or_else(|| "(no output)".to_owned(), Value::to_string);
                parts.push(Part::text(text));
            }
            ToolOutcome {
                content: Some(outcome.content.iter().map(to_tool_content).collect()),
                parts,
                output: outcome.structured.unwrap_or(Value::Null),
                failed: outcome.failed,
            }
        }
        Err(error) => ToolOutcome::failed(error.to_string()),
    }
}

fn to_part(content: &Content) -> Part {
    match content {
        Content::Text(text) => Part::text(text.clone()),
        Content::Image { mime, data } => Part::Image { mime: mime.clone(), data: data.clone() },
        Content::Audio { mime, data } => Part::Audio { mime: mime.clone(), data: data.clone() },
        Content::Resource { uri, body: ResourceBody::Text(text), .. } => {
            Part::text(format!("[Resource: {uri}]\n{text}"))
        }
        Content::Resource { uri, .. } => Part::text(format!("[Resource: {uri}]")),
        Content::Link { uri, name } => Part::text(format!("[Resource: {name}] {uri}")),
    }
}

fn to_tool_content(content: &Content) -> ToolContent {
    let block = match content {
        Content::Text(text) => return ToolContent::text(text.clone()),
        Content::Image { mime, data } => json!({"type": "image", "mimeType": mime, "data": data}),
        Content::Audio { mime, data } => json!({"type": "audio", "mimeType": mime, "data": data}),
        Content::Resource { uri, mime, body } => {
            let mut resource = match body {
                ResourceBody::Text(text) => json!({"uri": uri, "text": text}),
                ResourceBody::Blob(blob) => json!({"uri": uri, "blob": blob}),
            };
            if let Some(mime) = mime {
                resource["mimeType"] = mime.as_str().into();
            }
            json!({"type": "resource", "resource": resource})
        }
        Content::Link { uri, name } => json!({"type": "resource_link", "uri": uri, "name": name}),
    };
    ToolContent::Block { block }
}
