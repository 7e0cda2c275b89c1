//! Builds tool arguments from the user's words and the tool's schema.

use serde_json::{Map, Value, json};

use crate::Tool;

/// Separator between the old and the new text in the user's words.
pub(super) const ARROW: &str = " -> ";
/// File content if the user's words contain none.
const DEFAULT_CONTENT: &str = "Hello from the demo model.\n";
const PLAN_STEPS: [&str; 3] = ["Look around", "Connect a real model", "Do the work"];

/// Returns the path at the beginning of `words`: the first word, or a quoted one.
pub(super) fn path(words: &str) -> &str {
    split_path(words).0
}

fn split_path(words: &str) -> (&str, &str) {
    for quote in ['"', '\'', '`'] {
        if let Some((path, rest)) = words.strip_prefix(quote).and_then(|quoted| quoted.split_once(quote)) {
            return (path, rest.trim());
        }
    }
    let (path, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    (path, rest.trim())
}

/// Builds arguments for `tool` from the user's words. `name` is the demo's own name for the tool's function.
pub(super) fn build(name: &str, tool: &Tool, words: &str) -> Value {
    match name {
        "run_command" => run(tool, words),
        "update_plan" => plan(tool),
        "write_file" => {
            let (path, content) = split_path(words);
            json!({ "path": path, "content": if content.is_empty() { DEFAULT_CONTENT } else { content } })
        }
        "edit_file" => edit(tool, words),
        _ => json!({ "path": path(words) }),
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn run(tool: &Tool, words: &str) -> Value {
    if !properties(&tool.parameters).any(|(name, _)| name == "args") {
        return json!({ "command": words });
    }
    let is_plain = |c: char| c.is_alphanumeric() || c.is_whitespace() || "-_./=:,+@%".contains(c);
    let mut each = words.split_whitespace();
    match each.next() {
        Some(program) if words.chars().all(is_plain) => {
            json!({ "command": program, "args": each.collect::<Vec<_>>() })
        }
        // The user's words contain characters that need a shell.
        _ => json!({ "command": "sh", "args": ["-c", words] }),
    }
}

fn edit(tool: &Tool, words: &str) -> Value {
    let (path, change) = split_path(words);
    let (old, new) = change.split_once(ARROW.trim()).unwrap_or((change, ""));
    let name = |hints: &[&str], otherwise: &str| {
        let found =
            properties(&tool.parameters).find(|(name, _)| hints.iter().any(|hint| name.contains(hint)));
        found.map_or_else(|| otherwise.to_owned(), |(name, _)| name.clone())
    };
    let mut arguments = Map::new();
    arguments.insert("path".to_owned(), path.into());
    arguments.insert(name(&["old", "search", "find"], "old_text"), old.trim().into());
    arguments.insert(name(&["new", "replace"], "new_text"), new.trim().into());
    Value::Object(arguments)
}

fn plan(tool: &Tool) -> Value {
    let list = properties(&tool.parameters).find(|(_, schema)| schema.get("type") == Some(&json!("array")));
    let (name, items) = match list {
        Some((name, schema)) => (name.as_str(), schema.get("items")),
        None => ("entries", None),
    };
    let steps: Vec<Value> = PLAN_STEPS.iter().enumerate().map(|(at, step)| entry(items, at, step)).collect();
    json!({ name: steps })
}

fn entry(items: Option<&Value>, at: usize, step: &str) -> Value {
    let status = if at == 0 { "in_progress" } else { "pending" };
    let Some(items) = items else {
        return json!({ "content": step, "priority": "medium", "status": status });
    };
    if items.get("type") == Some(&json!("string")) {
        return step.into();
    }
    let values = properties(items).map(|(name, _)| {
        let value = match name.as_str() {
            "status" => status,
            "priority" => "medium",
            _ => step,
        };
        (name.clone(), value.into())
    });
    Value::Object(values.collect())
}
