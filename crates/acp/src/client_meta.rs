//! Removes members from `_meta` in a client's messages unless they are listed.
//!
//! Agents read settings from `_meta`: programs to start, directories, a mode without permission requests.
//! These would bypass every rule, so the bus and the gate forward only listed members.

use std::ops::Range;

use narrows_wire::{View, elements, members, written_key_folds_to};

use crate::method;

const META_KEY: &str = "_meta";

/// Another key that the official Python SDK accepts as `_meta`, with or without separators.
const META_ALIAS: &str = "fieldmeta";

/// The members of `initialize` that hold the client's capabilities, in v1 and v2.
const CAPABILITIES_KEYS: [&str; 2] = ["clientCapabilities", "capabilities"];

/// Nesting level up to which `_meta` is searched. Objects of the protocol are nested less deeply.
const MAX_DEPTH: usize = 8;

/// Limit of the names that are recorded for one message.
const MAX_NAMES: usize = 16;
const MAX_NAME_CHARS: usize = 128;

/// A message after the removal of members from its `_meta`.
#[derive(Debug, PartialEq, Eq)]
pub struct StrippedMeta {
    pub line: Vec<u8>,
    pub names: Vec<String>,
}

/// Removes members from `_meta`, at any depth of a client's request or notification. Members in `listed`
/// and those with a fixed meaning stay. Returns `None` if there is nothing to remove.
pub fn strip_client_meta(message: View<'_>, listed: &[String]) -> Option<StrippedMeta> {
    let method = message.method()?;
    // The `_meta` of an inner MCP message belongs to MCP, not to ACP, so nothing is removed.
    if method == method::MCP_MESSAGE {
        return None;
    }
    let (bytes, params) = (message.bytes(), message.params()?);
    // Fast path: most messages contain no `_meta` in any spelling.
    memchr::memchr2(b'_', b'\\', params)?;
    // `_meta` in the capabilities tells the agent what the client can display, so it stays.
    let kept: &[&str] = if method == method::INITIALIZE { &CAPABILITIES_KEYS } else { &[] };
    let mut edits = MetaFilter { listed, kept, bytes, replaced: Vec::new(), names: Vec::new() };
    edits.walk(message.envelope().params.range(), MAX_DEPTH);
    if edits.names.is_empty() {
        return None;
    }
    let mut line = Vec::with_capacity(bytes.len());
    let mut copied = 0;
    for (range, text) in edits.replaced {
        line.extend_from_slice(bytes.get(copied..range.start)?);
        line.extend_from_slice(&text);
        copied = range.end;
    }
    line.extend_from_slice(bytes.get(copied..)?);
    Some(StrippedMeta { line, names: edits.names })
}

struct MetaFilter<'a> {
    listed: &'a [String],
    /// Names of members of the params that are not searched, so nothing is removed from them.
    kept: &'a [&'a str],
    bytes: &'a [u8],
    /// Ranges of the message with their replacements, in order.
    replaced: Vec<(Range<usize>, Vec<u8>)>,
    names: Vec<String>,
}

impl MetaFilter<'_> {
    fn walk(&mut self, range: Range<usize>, levels: usize) {
        let Some(value) = self.bytes.get(range.clone()).filter(|_| levels > 0) else { return };
        let inside = |part: Range<usize>| range.start + part.start..range.start + part.end;
        match value.first() {
            Some(b'{') => {
                for (key, inner) in members(value) {
                    let key = value.get(key).unwrap_or_default();
                    // Some readers ignore the case of keys.
                    let is_meta = written_key_folds_to(key, META_KEY, false)
                        || written_key_folds_to(key, META_ALIAS, true);
                    if is_meta {
                        self.filter_meta(inside(inner));
                    } else if levels < MAX_DEPTH || !self.is_kept(key) {
                        self.walk(inside(inner), levels - 1);
                    }
                }
            }
            Some(b'[') => {
                for entry in elements(value) {
                    self.walk(inside(entry), levels - 1);
                }
            }
            _ => {}
        }
    }

    fn is_kept(&self, key: &[u8]) -> bool {
        decode_key(key).is_some_and(|key| self.kept.contains(&&*key))
    }

    /// Replaces a `_meta` by its permitted members.
    fn filter_meta(&mut self, range: Range<usize>) {
        let value = self.bytes.get(range.clone()).unwrap_or_default();
        if value.first() != Some(&b'{') {
            // The value is not an object, so it has no listed member to keep.
            if value != b"null" {
                self.record_name(META_KEY);
                self.replaced.push((range, b"null".to_vec()));
            }
            return;
        }
        let mut kept: Vec<&[u8]> = Vec::new();
        let mut is_changed = false;
        for (key, inner) in members(value) {
            let name = decode_key(value.get(key.clone()).unwrap_or_default()).unwrap_or_default();
            if self.is_permitted(&name) {
                kept.extend(value.get(key.start..inner.end));
            } else {
                is_changed = true;
                self.record_name(&name);
            }
        }
        if is_changed {
            self.replaced.push((range, [b"{", &kept.join(&b","[..])[..], b"}"].concat()));
        }
    }

    fn is_permitted(&self, name: &str) -> bool {
        is_own(name) || self.listed.iter().any(|listed| listed == name)
    }

    fn record_name(&mut self, name: &str) {
        if self.names.len() < MAX_NAMES {
            self.names.push(name.chars().take(MAX_NAME_CHARS).collect());
        }
    }
}

/// Returns `true` for members of this project, of the protocol and of tracing.
fn is_own(name: &str) -> bool {
    matches!(name, "narrows" | "aip44" | "traceparent" | "tracestate" | "baggage" | "progressToken")
        || name.starts_with("narrows/")
}

fn decode_key(raw: &[u8]) -> Option<String> {
    serde_json::from_slice(raw).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, params: &str, expected: Option<(&str, &[&str])>) {
        let line =
            |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let listed = ["listed".to_owned()];
        let stripped = strip_client_meta(View::parse(line(params).as_bytes()), &listed);
        let expected = expected.map(|(params, names)| StrippedMeta {
            line: line(params).into_bytes(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        });
        assert_eq!(stripped, expected, "{method} {params}");
    }

    #[test]
    fn unlisted_members_are_removed() {
        let check = |params: &str, expected| check("session/new", params, expected);
        check(
            r#"{"cwd":"/w","_meta":{"claudeCode":{"options":{"executable":"/bin/sh"}},"listed":1}}"#,
            Some((r#"{"cwd":"/w","_meta":{"listed":1}}"#, &["claudeCode"])),
        );
        check(r#"{"_meta":{"a":1,"b":[{}],"traceparent":"t","c":2},"cwd":"/w"}"#, {
            Some((r#"{"_meta":{"traceparent":"t"},"cwd":"/w"}"#, &["a", "b", "c"]))
        });
        check(r#"{"_meta":{"x":{}}}"#, Some((r#"{"_meta":{}}"#, &["x"])));
        // These keys are spelled with escapes.
        check(r#"{"\u005fmeta":{"\u0078":1}}"#, Some((r#"{"\u005fmeta":{}}"#, &["x"])));
        check(r#"{"_Meta":{"x":1},"_META":{"y":1}}"#, Some((r#"{"_Meta":{},"_META":{}}"#, &["x", "y"])));
        check(r#"{"field_meta":{"x":1},"Field-Meta":{"y":1}}"#, {
            Some((r#"{"field_meta":{},"Field-Meta":{}}"#, &["x", "y"]))
        });
        check(r#"{"_meta":["x"],"a":1}"#, Some((r#"{"_meta":null,"a":1}"#, &["_meta"])));
        check(r#"{"_meta":{"x":1},"_meta":{"y":1}}"#, Some((r#"{"_meta":{},"_meta":{}}"#, &["x", "y"])));
    }

    #[test]
    fn unlisted_members_are_removed_at_any_depth() {
        check(
            "session/prompt",
            r#"{"prompt":[{"type":"text","text":"_meta","_meta":{"x":1}},{"_meta":{"listed":{"_meta":{"y":1}}}}]}"#,
            Some((
                r#"{"prompt":[{"type":"text","text":"_meta","_meta":{}},{"_meta":{"listed":{"_meta":{"y":1}}}}]}"#,
                &["x"],
            )),
        );
        check(
            "session/new",
            r#"{"mcpServers":[{"_meta":{"x":1}}],"_meta":{"y":1}}"#,
            Some((r#"{"mcpServers":[{"_meta":{}}],"_meta":{}}"#, &["x", "y"])),
        );
    }

    #[test]
    fn permitted_members_stay_unchanged() {
        for params in [
            r#"{"cwd":"/w"}"#,
            r#"{"_meta":null}"#,
            r#"{"_meta":{}}"#,
            r#"{ "_meta" : { "narrows/pool" : "a" , "listed":{"x":1}, "narrows":{"y":2}, "tracestate":"" } }"#,
            r#"{"text":"\u0041"}"#,
        ] {
            check("session/new", params, None);
        }
        check("mcp/message", r#"{"params":{"_meta":{"x":1}}}"#, None);
        check("initialize", r#"{"clientCapabilities":{"_meta":{"terminal_output":true}}}"#, None);
        let stripped = r#"{"clientCapabilities":{"_meta":{"x":true}},"_meta":{}}"#;
        check(
            "initialize",
            r#"{"clientCapabilities":{"_meta":{"x":true}},"_meta":{"x":1}}"#,
            Some((stripped, &["x"])),
        );
        check(
            "initialize",
            r#"{"clientInfo":{"name":"c","_meta":{"x":1}},"capabilities":{"a":{"_meta":{"y":1}}}}"#,
            Some((
                r#"{"clientInfo":{"name":"c","_meta":{}},"capabilities":{"a":{"_meta":{"y":1}}}}"#,
                &["x"],
            )),
        );
    }
}
