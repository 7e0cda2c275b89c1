//! What the content of a tool call shows: the changes of files that a client is to display.
//!
//! Version 1 has `{"type": "diff", "path", "oldText", "newText"}`, version 2 `{"type": "diff", "changes": [{"operation",
//! "path", "oldPath"}], "patch": {"format": "git_patch", "text"}}`. Both are read alike, whatever the version.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::Action;
use super::input::{Seen, plain_key};
use crate::kind::Kind;

/// Fields that only a change has.
const CHANGE: &[&str] = &["newtext", "oldtext", "changes", "patch", "diff"];

/// Texts of files. What stands in them is not what is done.
const TEXTS: &[&str] = &["newtext", "oldtext"];

/// Adds to `action` what `content` shows to be changed.
pub(super) fn add(action: &mut Action, content: &[Value]) {
    let mut known: HashSet<PathBuf> = action.paths.iter().cloned().collect();
    for item in content.iter().filter_map(Value::as_object).filter(|item| is_change(item)) {
        let shown: Map<String, Value> = item
            .iter()
            .filter(|(key, _)| !TEXTS.contains(&plain_key(key).as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut seen = Seen::default();
        seen.everything(&Value::Object(shown));
        action.also.push(Kind::Edit);
        action.also.extend(operations(item));
        if seen.paths.is_empty() || seen.overflow {
            // It is not known what changes.
            action.also.push(Kind::Other);
        }
        for path in seen.paths {
            if known.insert(path.clone()) {
                action.paths.push(path);
            }
        }
    }
    action.also.sort_unstable();
    action.also.dedup();
}

/// Returns `true` if a block of content shows a change, by its type or by its fields.
pub(super) fn is_change(item: &Map<String, Value>) -> bool {
    let kind = item.get("type").and_then(Value::as_str).map(plain_key).unwrap_or_default();
    let has = |key: &String| CHANGE.contains(&plain_key(key).as_str());
    kind.contains("diff") || kind.contains("patch") || item.keys().any(has)
}

/// The kinds of the operations in `changes` beside edits.
fn operations(item: &Map<String, Value>) -> Vec<Kind> {
    let changes = item.iter().filter(|(key, _)| plain_key(key) == "changes").map(|(_, changes)| changes);
    let each = changes.filter_map(Value::as_array).flatten();
    let operation = |change: &Value| match change.get("operation").and_then(Value::as_str) {
        Some("delete") => Some(Kind::Delete),
        Some("move") => Some(Kind::Move),
        Some("add" | "modify" | "copy") => None,
        _ => Some(Kind::Other),
    };
    each.filter_map(operation).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(content: &Value, kinds: &[Kind], paths: &[&str]) {
        let content = content.as_array().cloned().unwrap_or_default();
        let action = Action::read(Some("read"), None, &json!({}), &[]).with_content(&content);
        let mut found = action.paths.clone();
        found.sort();
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        assert_eq!((action.kinds(), found), (kinds.to_vec(), paths), "{content:?}");
    }

    #[test]
    fn a_diff_is_an_edit_of_its_path() {
        check(&json!([]), &[Kind::Read], &[]);
        check(
            &json!([{"type": "content", "content": {"type": "text", "text": "--- a/x\n+++ b/x"}}]),
            &[Kind::Read],
            &[],
        );
        check(&json!([{"type": "terminal", "terminalId": "t"}]), &[Kind::Read], &[]);
        check(&json!([{"type": "diff", "path": "/w/a", "newText": "x"}]), &[Kind::Edit], &["/w/a"]);
        check(
            &json!([{"type": "diff", "path": "/w/a", "newText": "--- a/etc\n+++ b/etc\n"}, {"type": "diff", "path": "/b"}]),
            &[Kind::Edit],
            &["/b", "/w/a"],
        );
        check(&json!([{"type": "DIFF", "Path": "/a"}]), &[Kind::Edit], &["/a"]);
        check(&json!([{"path": "/a", "newText": ""}]), &[Kind::Edit], &["/a"]);
        check(&json!([{"type": "diff", "newText": "x"}]), &[Kind::Edit, Kind::Other], &[]);
    }

    #[test]
    fn changes_and_patches_of_version_2_name_their_paths() {
        let change = |change: Value| json!([{"type": "diff", "changes": [change]}]);
        check(&change(json!({"operation": "add", "path": "/a"})), &[Kind::Edit], &["/a"]);
        check(&change(json!({"operation": "delete", "path": "/a"})), &[Kind::Edit, Kind::Delete], &["/a"]);
        check(
            &change(json!({"operation": "move", "path": "/b", "oldPath": "/a"})),
            &[Kind::Edit, Kind::Move],
            &["/a", "/b"],
        );
        check(
            &change(json!({"operation": "copy", "path": "/b", "oldPath": "/a"})),
            &[Kind::Edit],
            &["/a", "/b"],
        );
        check(&change(json!({"operation": "_own", "path": "/a"})), &[Kind::Edit, Kind::Other], &["/a"]);
        let patch = |text: &str| json!([{"type": "diff", "changes": [], "patch": {"format": "git_patch", "text": text}}]);
        check(&patch("diff --git /w/a /w/a\n--- /w/a\n+++ /w/a\n"), &[Kind::Edit], &["/w/a"]);
        check(
            &patch("diff --git /w/a b /w/a b\nnew file mode 100755\nGIT binary patch\n"),
            &[Kind::Edit],
            &["/w/a b"],
        );
        check(&patch("no patch"), &[Kind::Edit, Kind::Other], &[]);
    }
}
