//! The tools that a model gets: those of MCP servers, and the files and terminals of the client.

pub(crate) mod call;
mod files;
mod mcp_tools;
mod permission;
mod terminal;

use std::collections::HashMap;

use narrows_acp::capability::ClientCan;
use narrows_mcp::Tool as ServerTool;
use narrows_model::Tool;
use serde_json::{Value, json};

use crate::transcript::ToolKind;

/// Maximum length of a tool name that most endpoints accept.
const MAX_NAME_CHARS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolAction {
    ReadFile,
    WriteFile,
    EditFile,
    RunCommand,
    UpdatePlan,
    Server { server: String, tool: String, title: Option<String>, read_only: bool },
}

impl ToolAction {
    pub(crate) fn kind(&self) -> ToolKind {
        match self {
            Self::ReadFile | Self::Server { read_only: true, .. } => ToolKind::Read,
            Self::WriteFile | Self::EditFile => ToolKind::Edit,
            Self::RunCommand => ToolKind::Execute,
            Self::UpdatePlan | Self::Server { .. } => ToolKind::Other,
        }
    }
}

/// The tools of one request, in a stable order for prefix caches.
pub(crate) struct Toolbox {
    tools: Vec<Tool>,
    actions: HashMap<String, ToolAction>,
}

impl Toolbox {
    /// Collects the tools for a client with the capabilities `can` and the tools of `servers`.
    pub(crate) fn new(can: ClientCan, servers: &[ServerTool]) -> Self {
        let mut toolbox = Self { tools: Vec::new(), actions: HashMap::new() };
        if can.read_text_file {
            toolbox.add("read_file", READ_DESCRIPTION, read_schema(), ToolAction::ReadFile);
        }
        if can.write_text_file {
            toolbox.add("write_file", WRITE_DESCRIPTION, write_schema(), ToolAction::WriteFile);
        }
        if can.read_text_file && can.write_text_file {
            toolbox.add("edit_file", EDIT_DESCRIPTION, edit_schema(), ToolAction::EditFile);
        }
        if can.terminal {
            toolbox.add("run_command", RUN_DESCRIPTION, run_schema(), ToolAction::RunCommand);
        }
        for tool in servers {
            let name = toolbox.unique_name(&tool.server, &tool.name);
            let action = ToolAction::Server {
                server: tool.server.clone(),
                tool: tool.name.clone(),
                title: tool.title.clone(),
                read_only: tool.read_only,
            };
            toolbox.add(&name, &tool.description, tool.schema.clone(), action);
        }
        // The plan tool is useless without other tools, so it is not offered alone.
        if !toolbox.tools.is_empty() {
            toolbox.add("update_plan", PLAN_DESCRIPTION, plan_schema(), ToolAction::UpdatePlan);
        }
        toolbox
    }

    fn add(&mut self, name: &str, description: &str, parameters: Value, action: ToolAction) {
        let tool = Tool { name: name.to_owned(), description: description.to_owned(), parameters };
        self.tools.push(tool);
        self.actions.insert(name.to_owned(), action);
    }

    fn unique_name(&self, server: &str, tool: &str) -> String {
        let plain = |text: &str| {
            let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
            text.chars().map(allowed).collect::<String>()
        };
        let mut name = format!("{}__{}", plain(server), plain(tool));
        name.truncate(MAX_NAME_CHARS);
        let mut free = name.clone();
        let mut number = 2;
        while self.actions.contains_key(&free) {
            let suffix = format!("_{number}");
            free = format!("{}{suffix}", &name[..name.len().min(MAX_NAME_CHARS - suffix.len())]);
            number += 1;
        }
        free
    }

    pub(crate) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    pub(crate) fn action(&self, name: &str) -> Option<&ToolAction> {
        self.actions.get(name)
    }
}

const READ_DESCRIPTION: &str = "Read a text file as the user sees it, unsaved changes included. The path is absolute, or relative \
    to the directory of the session.";
const WRITE_DESCRIPTION: &str = "Create a text file or replace all of its content. The user sees the difference and may be asked. \
    To change a part of a file use edit_file, if there is one.";
const EDIT_DESCRIPTION: &str = "Replace one stretch of a text file by another. `old` must occur exactly once, character by \
    character; give enough of the surrounding lines.";
const RUN_DESCRIPTION: &str = "Run a program in the user's terminal and return its output. No shell is involved: give the program \
    and its arguments one by one. If you need a shell, run it: program `bash`, arguments `-c` and the line. The user \
    may be asked.";
const PLAN_DESCRIPTION: &str = "Show the user your plan for a task of several steps, and how far you have come. Always give the \
    whole plan.";

fn object_schema(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn read_schema() -> Value {
    object_schema(
        &json!({
            "path": {"type": "string"},
            "line": {"type": "integer", "minimum": 1, "description": "the first line to read"},
            "limit": {"type": "integer", "minimum": 1, "description": "how many lines to read"},
        }),
        &["path"],
    )
}

fn write_schema() -> Value {
    object_schema(&json!({"path": {"type": "string"}, "content": {"type": "string"}}), &["path", "content"])
}

fn edit_schema() -> Value {
    object_schema(
        &json!({"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}}),
        &["path", "old", "new"],
    )
}

fn run_schema() -> Value {
    object_schema(
        &json!({
            "command": {"type": "string", "description": "the program"},
            "args": {"type": "array", "items": {"type": "string"}},
            "cwd": {"type": "string", "description": "where to run it; the directory of the session by default"},
        }),
        &["command"],
    )
}

fn plan_schema() -> Value {
    let entry = object_schema(
        &json!({
            "content": {"type": "string"},
            "priority": {"type": "string", "enum": ["high", "medium", "low"]},
            "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
        }),
        &["content", "status"],
    );
    object_schema(&json!({"entries": {"type": "array", "items": entry}}), &["entries"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_tool(server: &str, name: &str) -> ServerTool {
        ServerTool {
            server: server.to_owned(),
            name: name.to_owned(),
            title: None,
            description: String::new(),
            schema: json!({"type": "object"}),
            read_only: false,
            destructive: false,
        }
    }

    #[track_caller]
    fn check(can: ClientCan, servers: &[ServerTool], expected: &[&str]) {
        let toolbox = Toolbox::new(can, servers);
        let names: Vec<&str> = toolbox.tools().iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, expected);
        assert!(names.iter().all(|name| toolbox.action(name).is_some() && name.len() <= MAX_NAME_CHARS));
    }

    #[test]
    fn only_tools_that_the_client_supports_are_offered() {
        let none = ClientCan::default();
        check(none, &[], &[]);
        check(ClientCan { read_text_file: true, ..none }, &[], &["read_file", "update_plan"]);
        check(ClientCan { write_text_file: true, ..none }, &[], &["write_file", "update_plan"]);
        check(ClientCan { terminal: true, ..none }, &[], &["run_command", "update_plan"]);
        check(
            ClientCan { read_text_file: true, write_text_file: true, ..none },
            &[],
            &["read_file", "write_file", "edit_file", "update_plan"],
        );
    }

    #[test]
    fn server_tool_names_are_made_valid_and_unique() {
        let long = "t".repeat(80);
        let servers = [
            server_tool("my server", "do.it"),
            server_tool("my_server", "do_it"),
            server_tool("s", &long),
            server_tool("s", &format!("{long}2")),
        ];
        let cut = format!("s__{}", &long[..61]);
        let second = format!("s__{}_2", &long[..59]);
        check(
            ClientCan::default(),
            &servers,
            &["my_server__do_it", "my_server__do_it_2", &cut, &second, "update_plan"],
        );
    }
}
