//! The content of a call: its blocks, and those that show a change of files.

use narrows_policy::Action;
use serde_json::Value;

/// How deep blocks of content are looked for in lists.
const MAX_CONTENT_DEPTH: usize = 8;

/// The blocks in the content of a call, which is a list of them, or one more of them. Lists in lists are looked through too.
pub(super) fn blocks(content: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    let mut open = vec![(content, 0)];
    while let Some((value, depth)) = open.pop() {
        match value {
            Value::Array(inner) if depth < MAX_CONTENT_DEPTH => {
                open.extend(inner.iter().rev().map(|value| (value, depth + 1)));
            }
            value => found.push(value),
        }
    }
    found
}

/// The blocks in the content of a call that show a change of files.
pub(super) fn change_blocks(content: &Value) -> Vec<Value> {
    blocks(content).into_iter().filter(|block| Action::is_change(block)).cloned().collect()
}

/// Whether a value says nothing.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
