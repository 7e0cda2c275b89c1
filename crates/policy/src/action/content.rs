//! File changes in the content of a tool call.
//!
//! Version 1 of the protocol has `{"type": "diff", "path", "oldText", "newText"}`, version 2 `{"type":
//! "diff", "changes": [{"operation", "path", "oldPath"}], "patch": {"format": "git_patch", "text"}}`. Both
//! forms are accepted in both versions.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::Action;
use super::input::{Seen, plain_key};
use super::members::{Finding, Role};
use crate::kind::Kind;

/// Members of a content block that show that the block is a file change.
const CHANGE: &[&str] = &["newtext", "oldtext", "changes", "patch", "diff"];

const TEXTS: &[&str] = &["newtext", "oldtext"];

const KNOWN: &[&str] = &[
    "type",
    "path",
    "oldpath",
    "oldtext",
    "newtext",
    "changes",
    "patch",
    "diff",
    "operation",
    "format",
    "text",
    "filetype",
    "mimetype",
    "meta",
];

const LOCATION: &[&str] = &["path", "line", "meta"];

/// Returns `true` if `item` has an unknown member, at any depth. A member does not count if its value is a
/// number, a boolean, null or a text for people.
fn has_unknown(item: &Map<String, Value>, known: &[&str]) -> bool {
    let mut waiting = vec![item];
    while let Some(fields) = waiting.pop() {
        for (name, value) in fields {
            let key = plain_key(name);
            if !known.contains(&key.as_str()) {
                if says_something(value) && !is_description(name, value) {
                    return true;
                }
            } else if key != "meta" {
                match value {
                    Value::Object(fields) => waiting.push(fields),
                    Value::Array(items) => waiting.extend(items.iter().filter_map(Value::as_object)),
                    _ => {}
                }
            }
        }
    }
    false
}

fn is_description(name: &str, value: &Value) -> bool {
    let role = Role::Members.of_member(name, value);
    matches!(role, Role::Text | Role::Setting) && value.is_string() && role.check(value) == Finding::Known
}

/// Returns `true` if `value` contains a text, or a key that may be a file name.
fn says_something(value: &Value) -> bool {
    let mut waiting = vec![value];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(_) => return true,
            Value::Array(items) => waiting.extend(items),
            Value::Object(fields) if fields.keys().any(|name| name.contains(['/', '.', '~'])) => return true,
            Value::Object(fields) => waiting.extend(fields.values()),
        }
    }
    false
}

/// Adds the members of `locations` that the protocol does not have to `action`.
pub(super) fn add_locations(action: &mut Action, locations: &[Value]) {
    let mut known: HashSet<PathBuf> = action.paths.iter().cloned().collect();
    let is_unknown = |location: &&Map<String, Value>| has_unknown(location, LOCATION);
    for location in locations.iter().filter_map(Value::as_object).filter(is_unknown) {
        let mut seen = Seen::default();
        seen.everything(&Value::Object(location.clone()));
        action.also.push(Kind::Other);
        for path in seen.paths.into_iter().chain(seen.mentioned) {
            if known.insert(path.clone()) {
                action.paths.push(path);
            }
        }
    }
    action.also.sort_unstable();
    action.also.dedup();
}

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
        if seen.paths.is_empty() || seen.overflow || has_unknown(item, KNOWN) {
            // A change that names no file may change any file.
            action.also.push(Kind::Other);
        }
        for path in seen.paths.into_iter().chain(seen.mentioned) {
            if known.insert(path.clone()) {
                action.paths.push(path);
            }
        }
    }
    action.also.sort_unstable();
    action.also.dedup();
}

/// Returns `true` if a content block is a file change, judged by its type or its members.
pub(super) fn is_change(item: &Map<String, Value>) -> bool {
    let kind = item.get("type").and_then(Value::as_str).map(plain_key).unwrap_or_default();
    let has = |key: &String| CHANGE.contains(&plain_key(key).as_str());
    kind.contains("diff") || kind.contains("patch") || item.keys().any(has)
}

/// Returns the kinds of all operations in `changes` other than edits.
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
    fn an_unknown_member_of_a_change_may_mean_anything() {
        let with = |name: &str, value: Value| {
            let mut block = json!({"type": "diff", "path": "/w/a", "newText": "x"});
            block[name] = value;
            json!([block])
        };
        let unknown = [Kind::Edit, Kind::Other];
        check(&with("destination", json!("/etc/x")), &unknown, &["/etc/x", "/w/a"]);
        check(&with("elsewhere", json!("/etc/x")), &unknown, &["/etc/x", "/w/a"]);
        check(&with("elsewhere", json!(["b"])), &unknown, &["/w/a"]);
        check(&with("elsewhere", json!({"/etc/x": true})), &unknown, &["/w/a"]);
        check(&with("cwd", json!("b")), &unknown, &["/w/a"]);
        check(&with("command", json!("ls")), &unknown, &["/w/a"]);
        check(
            &json!([{"type": "diff", "changes": [{"operation": "add", "path": "/a", "as": "b"}]}]),
            &unknown,
            &["/a"],
        );
        for (name, value) in
            [("line", json!(1)), ("_meta", json!({"k": "v"})), ("title", json!("A b")), ("id", json!("x"))]
        {
            check(&with(name, value), &[Kind::Edit], &["/w/a"]);
        }
    }

    #[test]
    fn an_unknown_member_of_a_location_may_mean_anything() {
        #[track_caller]
        fn check(location: Value, kinds: &[Kind], paths: &[&str]) {
            let read = Action::read(Some("read"), None, &json!({}), &[PathBuf::from("/a")]);
            let action = read.with_locations(&[location]);
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            assert_eq!((action.kinds(), action.paths), (kinds.to_vec(), paths));
        }
        check(json!({"path": "/a", "line": 3, "_meta": {"k": "v"}}), &[Kind::Read], &["/a"]);
        check(json!({"path": "/a", "range": {"start": {"line": 3}}}), &[Kind::Read], &["/a"]);
        check(json!({"path": "/a", "target": "/etc/passwd"}), &[Kind::Other], &["/a", "/etc/passwd"]);
        check(json!({"path": "/a", "elsewhere": ["/etc/passwd"]}), &[Kind::Other], &["/a", "/etc/passwd"]);
        check(json!({"path": "/a", "elsewhere": "passwd"}), &[Kind::Other], &["/a"]);
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
