//! Tools of MCP servers.

use std::sync::Arc;

use narrows_mcp::{Body, Content};
use narrows_model::{Call, Part};
use serde_json::{Map, Value, json};

use super::call::{Done, Job, Task};
use super::permission::Grant;
use crate::shown::{Status, ToolCall, ToolContent, ToolKind};
use crate::turn::Turn;
use crate::voice::new_id;

/// A call of the `(server, tool, title)`. One that only reads, by its server's own word, runs without asking.
pub(super) fn prepare(
    call: &Call,
    (server, tool, title): (&str, &str, Option<&str>),
    read_only: bool,
    arguments: &Map<String, Value>,
) -> Job {
    let shown = ToolCall {
        id: new_id(),
        title: format!("{} ({server})", title.unwrap_or(tool)),
        name: call.name.clone(),
        kind: if read_only { ToolKind::Read } else { ToolKind::Other },
        status: Status::Pending,
        content: Vec::new(),
        locations: Vec::new(),
        input: Value::Object(arguments.clone()),
        output: None,
    };
    let grant = (!read_only).then(|| Grant {
        key: json!(["mcp", server, tool]).to_string(),
        scope: Some(format!("`{tool}` of {server}")),
    });
    let task =
        Task::Server { server: server.to_owned(), tool: tool.to_owned(), arguments: arguments.clone() };
    Job { shown, grant, task }
}

pub(super) async fn perform(turn: &Turn, server: &str, tool: &str, arguments: Map<String, Value>) -> Done {
    let servers = Arc::clone(&turn.session.state().servers);
    // What it says may be a part of the conversation, which no log shall have.
    let progress = |text: String| tracing::debug!(server, tool, bytes = text.len(), "progress");
    match servers.call(server, tool, arguments, progress).await {
        Ok(outcome) => {
            let mut parts: Vec<Part> = outcome.content.iter().map(part).collect();
            if parts.is_empty() {
                let text =
                    outcome.structured.as_ref().map_or_else(|| "(no output)".to_owned(), Value::to_string);
                parts.push(Part::text(text));
            }
            Done {
                content: Some(outcome.content.iter().map(shown).collect()),
                parts,
                output: outcome.structured.unwrap_or(Value::Null),
                failed: outcome.failed,
            }
        }
        Err(error) => Done::failed(error.to_string()),
    }
}

/// What the model is given of a piece of a result.
fn part(content: &Content) -> Part {
    match content {
        Content::Text(text) => Part::text(text.clone()),
        Content::Image { mime, data } => Part::Image { mime: mime.clone(), data: data.clone() },
        Content::Audio { mime, data } => Part::Audio { mime: mime.clone(), data: data.clone() },
        Content::Resource { uri, body: Body::Text(text), .. } => {
            Part::text(format!("[Resource: {uri}]\n{text}"))
        }
        Content::Resource { uri, .. } => Part::text(format!("[Resource: {uri}]")),
        Content::Link { uri, name } => Part::text(format!("[Resource: {name}] {uri}")),
    }
}

/// What the client is shown of it.
fn shown(content: &Content) -> ToolContent {
    let block = match content {
        Content::Text(text) => return ToolContent::text(text.clone()),
        Content::Image { mime, data } => json!({"type": "image", "mimeType": mime, "data": data}),
        Content::Audio { mime, data } => json!({"type": "audio", "mimeType": mime, "data": data}),
        Content::Resource { uri, mime, body } => {
            let mut resource = match body {
                Body::Text(text) => json!({"uri": uri, "text": text}),
                Body::Blob(blob) => json!({"uri": uri, "blob": blob}),
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
