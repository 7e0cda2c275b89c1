//! Content blocks of a call, and the blocks that show a file change.

use narrows_policy::Action;
use serde_json::Value;

/// Depth to which nested lists of content blocks are searched.
const MAX_CONTENT_DEPTH: usize = 8;

/// Returns the content blocks of a list, nested lists included, or of a single block.
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

pub(super) fn change_blocks(content: &Value) -> Vec<Value> {
    blocks(content).into_iter().filter(|block| Action::is_change(block)).cloned().collect()
}

pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
