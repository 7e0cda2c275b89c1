//! Detects message keys that some JSON readers take for protocol keys.
//!
//! Several JSON libraries ignore the case of keys. The gate judges `cwd`, but an agent with such a library
//! may use `Cwd` instead. So a message with a lookalike key is not passed on. Free-form values, such as the
//! input of a tool, may have any keys and are not searched.

use narrows_wire::{elements, folds_to, members};

/// Protocol keys that affect what an agent or a client does.
const NAMES: [&str; 66] = [
    "_meta",
    "acpId",
    "action",
    "additionalDirectories",
    "args",
    "arguments",
    "availableModes",
    "blob",
    "capabilities",
    "clientCapabilities",
    "command",
    "configId",
    "connectionId",
    "content",
    "currentModeId",
    "cwd",
    "elicitationId",
    "env",
    "headers",
    "id",
    "kind",
    "limit",
    "line",
    "locations",
    "mcpServers",
    "message",
    "method",
    "methodId",
    "mode",
    "modeId",
    "name",
    "newText",
    "oldPath",
    "oldText",
    "optionId",
    "options",
    "outcome",
    "outputByteLimit",
    "params",
    "path",
    "planId",
    "prompt",
    "protocolVersion",
    "rawInput",
    "rawOutput",
    "recipientSessionId",
    "replayFrom",
    "requestId",
    "requestedSchema",
    "resource",
    "senderSessionId",
    "serverId",
    "sessionId",
    "sessionUpdate",
    "status",
    "subject",
    "systemPrompt",
    "terminalId",
    "text",
    "title",
    "toolCall",
    "toolCallId",
    "type",
    "update",
    "uri",
    "value",
];

/// Keys whose value may have any keys, and is not searched.
const FREE_FORM: [&str; 5] = ["_meta", "arguments", "rawInput", "rawOutput", "requestedSchema"];

/// Maximum nesting depth of searched params. Params of every known method are nested less deeply.
const MAX_DEPTH: usize = 8;

/// Returns `true` if params contain a lookalike of a protocol key, or are nested too deeply.
pub(crate) fn has_lookalike(params: &[u8], rule: LookalikeRule) -> bool {
    is_unclear(params, rule, MAX_DEPTH)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookalikeRule {
    /// Keys that differ from a protocol key only in case.
    Case,
    /// Keys that differ only in case, `_` or `-`. Agents accept both `mcpServers` and `mcp_servers`.
    CaseAndSeparators,
}

fn is_unclear(value: &[u8], rule: LookalikeRule, levels: usize) -> bool {
    match value.first() {
        Some(b'{' | b'[') if levels == 0 => true,
        Some(b'{') => members(value).any(|(key, inner)| {
            let key = value.get(key).unwrap_or_default();
            let name = key.get(1..key.len().saturating_sub(1)).unwrap_or_default();
            if FREE_FORM.iter().any(|free| free.as_bytes() == name) {
                return false;
            }
            is_lookalike(key, name, rule)
                || is_unclear(value.get(inner).unwrap_or_default(), rule, levels - 1)
        }),
        Some(b'[') => {
            elements(value).any(|entry| is_unclear(value.get(entry).unwrap_or_default(), rule, levels - 1))
        }
        _ => false,
    }
}

/// Returns `true` if `name`, the key without quotes, is a lookalike of a protocol key.
fn is_lookalike(key: &[u8], name: &[u8], rule: LookalikeRule) -> bool {
    if NAMES.binary_search_by(|known| known.as_bytes().cmp(name)).is_ok() {
        return false;
    }
    let has_separators = name.iter().any(|byte| matches!(byte, b'_' | b'-'));
    let folds = rule == LookalikeRule::CaseAndSeparators && (has_separators || name.contains(&b'\\'));
    // Fast path: a plain ASCII key needs neither unescaping nor folding.
    if name.is_ascii() && !name.contains(&b'\\') && !folds {
        return NAMES.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
    }
    let Ok(text) = serde_json::from_slice::<String>(key) else { return true };
    // An escaped spelling of the exact key is not a lookalike.
    let is_like = |known: &&str| {
        let known = known.to_ascii_lowercase();
        folds_to(&text, &known, false) || folds && folds_to(&text, &known, true)
    };
    NAMES.iter().any(is_like) && !NAMES.contains(&&*text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_sorted() {
        assert!(NAMES.is_sorted());
    }

    #[test]
    fn a_key_of_the_protocol_in_another_case_is_found() {
        for odd in [
            r#"{"cwd":"/a","Cwd":"/"}"#,
            r#"{"CWD":"/"}"#,
            r#"{"mcpservers":[]}"#,
            r#"{"update":{"sessionUpdate":"a","SessionUpdate":"b"}}"#,
            r#"{"toolCall":{"content":[{"type":"diff","Path":"/x"}]}}"#,
            r#"{"\u0043wd":"/"}"#,
            r#"{"title":"x","RawInput":{}}"#,
            r#"{"serverId":"n","method":"tools/call","params":{"name":"look","Name":"delete"}}"#,
            r#"{"serverId":"n","method":"tools/call","params":{"name":"look","arguments":{},"Arguments":{}}}"#,
            "{\"se\u{17f}sionId\":\"x\"}",
            r#"{"a":[[[[[[[[[{}]]]]]]]]]}"#,
        ] {
            assert!(has_lookalike(odd.as_bytes(), LookalikeRule::Case), "{odd}");
        }
        for plain in [
            "",
            "null",
            "{}",
            r#"{"cwd":"/","mcpServers":[{"name":"a","command":"b","args":[],"env":[{"name":"A","value":"B"}]}]}"#,
            r#"{"update":{"sessionUpdate":"tool_call","rawInput":{"Cwd":"/","CommandLine":"x"},"rawOutput":{"Path":"x"}}}"#,
            r#"{"serverId":"n","method":"tools/call","params":{"name":"look","arguments":{"Path":{"Name":"x"}}}}"#,
            r#"{"_meta":{"SessionId":"x"},"s\u0065ssionId":"x","customField":1,"Other":2}"#,
        ] {
            assert!(!has_lookalike(plain.as_bytes(), LookalikeRule::Case), "{plain}");
        }
    }

    #[test]
    fn separators_are_ignored_in_keys_of_clients() {
        for odd in [
            r#"{"mcp_servers":[]}"#,
            r#"{"mcp-servers":[]}"#,
            r#"{"MCP_SERVERS":[]}"#,
            r#"{"a":{"session_id":"x"}}"#,
            r#"{"additional\u005fdirectories":[]}"#,
        ] {
            assert!(has_lookalike(odd.as_bytes(), LookalikeRule::CaseAndSeparators), "{odd}");
        }
        for plain in
            [r#"{"_meta":{"session_id":1}}"#, r#"{"x_y":1,"is-it":2}"#, r#"{"mcpServers":[],"meta":{}}"#]
        {
            assert!(!has_lookalike(plain.as_bytes(), LookalikeRule::CaseAndSeparators), "{plain}");
        }
        assert!(!has_lookalike(br#"{"mcp_servers":[]}"#, LookalikeRule::Case));
    }
}
