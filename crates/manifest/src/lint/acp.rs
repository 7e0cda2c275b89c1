//! Checks an ACP.md by points 5 to 8, 13 and 21 of AIP-44, as far as no other file is needed for that.

use std::path::Path;

use narrows_base::suggest::nearest;
use narrows_base::text::quoted;

use super::named;
use crate::code::Code;
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::revision;
use crate::schema::Checker;
use crate::yaml::{Content, Node};

pub(super) fn lint(path: &Path, node: &Node, found: &mut Vec<Draft>) {
    named(path, ManifestKind::Acp, "name", node, found);
    misspelled_keys(node, "", &Checker::for_kind(ManifestKind::Acp).keys(&[]), found);
    if let Some(metadata) = node.get("metadata") {
        misspelled_keys(
            metadata,
            "metadata.",
            &Checker::for_kind(ManifestKind::Acp).keys(&["metadata"]),
            found,
        );
    }
    methods(node, found);
    let Some(aip44) = node.find(&["metadata", "aip44"]) else { return };
    unknown(aip44, found);
    revision(aip44, found);
    bound(node, aip44, found);
    contradictions(aip44, found);
    audit(aip44, found);
}

/// Warns about keys that are almost equal to known keys. The file may have other keys, but such a key is
/// probably misspelled.
fn misspelled_keys(node: &Node, above: &str, known: &[&str], found: &mut Vec<Draft>) {
    for (key, _) in node.entries().iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
        let absent = known.iter().copied().filter(|known| node.get(known).is_none());
        if let Some(near) = nearest(&key.text, absent) {
            let message = format!("`{}` is not a known setting", quoted(&key.text, 64));
            let place = format!("{above}{}", quoted(&key.text, 64));
            let draft = Draft::warning(Code::MisspelledKey, key.at, message).key(place);
            found.push(draft.value(&key.text).hint(format!("did you mean {near}?")));
        }
    }
}

/// Protocol methods for which the gate has no rule. They pass only if a manifest lists them.
const LISTABLE_METHODS: [(&str, &[&str]); 2] = [
    (
        "client_methods",
        &[
            "auth/status",
            "providers/list",
            "providers/set",
            "providers/disable",
            "session/archive",
            "session/unarchive",
            "session/status",
            "session/set_title",
        ],
    ),
    ("agent_methods", &["elicitation/create", "auth/status_update"]),
];

const METHODS: [&str; 45] = [
    "initialize",
    "authenticate",
    "logout",
    "auth/login",
    "auth/logout",
    "auth/status",
    "auth/status_update",
    "providers/list",
    "providers/set",
    "providers/disable",
    "session/new",
    "session/load",
    "session/resume",
    "session/fork",
    "session/list",
    "session/close",
    "session/delete",
    "session/archive",
    "session/unarchive",
    "session/status",
    "session/set_title",
    "session/set_mode",
    "session/set_model",
    "session/set_config_option",
    "session/prompt",
    "session/cancel",
    "tool_call/cancel",
    "terminal/cancel",
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "fs/write_text_file",
    "terminal/create",
    "terminal/output",
    "terminal/wait_for_exit",
    "terminal/kill",
    "terminal/release",
    "elicitation/create",
    "elicitation/complete",
    "mcp/message",
    "mcp/connect",
    "mcp/disconnect",
    "proxy/initialize",
    "proxy/successor",
    "$/cancel_request",
];

/// Returns `true` if listing a method in `metadata.narrows`, below `key`, changes how the gate handles it.
#[must_use]
pub fn is_listable(key: &str, method: &str) -> bool {
    !METHODS.contains(&method)
        || LISTABLE_METHODS.iter().any(|(of, names)| *of == key && names.contains(&method))
}

/// Warns about a listed method if the listing has no effect, because the gate has a rule for the method, or
/// the method is sent in the other direction.
fn methods(node: &Node, found: &mut Vec<Draft>) {
    for (key, _) in LISTABLE_METHODS {
        let Some(listed) = node.find(&["metadata", "narrows", key]) else { continue };
        for (at, item) in listed.items().iter().enumerate() {
            let Some(name) = item.text().filter(|name| !is_listable(key, name)) else { continue };
            let message =
                format!("listing `{}` has no effect: the gate handles this method itself", quoted(name, 64));
            let draft = Draft::warning(Code::Ignored, item.at, message).value(name);
            found.push(draft.key(format!("metadata.narrows.{key}[{at}]")).hint("remove it"));
        }
    }
}

fn unknown(aip44: &Node, found: &mut Vec<Draft>) {
    let mut known = Checker::for_kind(ManifestKind::Acp).keys(&["metadata", "aip44"]);
    // The order of keys in a schema has no meaning, so the known keys are sorted for the hint.
    known.sort_unstable();
    for (key, _) in aip44.entries().iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
        let shown = quoted(&key.text, 64);
        let message = format!("`{shown}` is not a key of aip44");
        let absent = known.iter().copied().filter(|known| aip44.get(known).is_none());
        // The author probably meant the known key. Its setting would be missing without a warning.
        let draft = match nearest(&key.text, absent) {
            Some(near) => {
                Draft::blocking(Code::UnknownAip44, key.at, message).hint(format!("did you mean {near}?"))
            }
            None => Draft::warning(Code::UnknownAip44, key.at, message)
                .hint(format!("remove it, or move it out of aip44; keys of aip44 are {}", known.join(", "))),
        };
        found.push(draft.key(format!("metadata.aip44.{shown}")).value(&key.text));
    }
}

fn revision(aip44: &Node, found: &mut Vec<Draft>) {
    let Some(node) = aip44.get("acp_rev") else { return };
    let Some(text) = node.text().filter(|text| revision::is_revision(text)) else { return };
    if revision::protocol_version(text).is_none() {
        let message = "unknown revision of the protocol";
        let hint = "the version is negotiated on connection; to pin it, set the commit of a release";
        let draft = Draft::warning(Code::UnknownRevision, node.at, message);
        found.push(draft.key("metadata.aip44.acp_rev").value(text).hint(hint));
    }
}

/// Point 7: a server or bridge must name everything that running it needs. A file that only describes an
/// external runtime is exempt.
fn bound(node: &Node, aip44: &Node, found: &mut Vec<Draft>) {
    let Some(kind) = node.get("kind") else { return };
    let has = |key: &str| aip44.get(key).is_some();
    let (message, hint) = match kind.text() {
        Some("server") if !has("operator") => (
            "a server without an operator describes an external agent and cannot be served",
            "to serve it, add metadata.aip44.operator: ./OPERATOR.md",
        ),
        Some("bridge") if !has("operator") && !has("governance") => (
            "a bridge needs a governance or an operator",
            "add metadata.aip44.governance: ./GOVERNANCE.md, or an operator",
        ),
        _ => return,
    };
    found.push(Draft::blocking(Code::Unbound, kind.at, message).key("kind").hint(hint));
}

/// Point 13: contradictions within the file.
fn contradictions(aip44: &Node, found: &mut Vec<Draft>) {
    let Some(tier) = aip44.get("tier").and_then(Node::text) else { return };
    let flag = |path: &[&str]| match aip44.find(path).map(|node| (&node.content, node.at)) {
        Some((Content::Bool(value, _), at)) => Some((*value, at)),
        _ => None,
    };
    let load = flag(&["capabilities", "agent", "loadSession"]);
    if let (true, Some((false, at))) = (tier != "basic", load) {
        let message = format!("the tier {tier} implies loadSession, but it is false");
        let draft = Draft::error(Code::Contradiction, at, message).value("false");
        let key = "metadata.aip44.capabilities.agent.loadSession";
        found.push(draft.key(key).hint("set it to true, remove it, or use the tier basic"));
    }
    let terminal = flag(&["capabilities", "client", "terminal"]);
    if let ("sandboxed", Some((true, at))) = (tier, terminal) {
        let message =
            "the tier sandboxed has no terminal: commands would run in the client, outside the sandbox";
        let draft = Draft::blocking(Code::Unenforceable, at, message).value("true");
        let key = "metadata.aip44.capabilities.client.terminal";
        found.push(draft.key(key).hint("remove it, or use the tier governance-aware"));
    }
    let http = flag(&["capabilities", "agent", "mcpCapabilities", "http"]);
    let sse = flag(&["capabilities", "agent", "mcpCapabilities", "sse"]);
    if let ("sandboxed", Some((false, at)), None | Some((false, _))) = (tier, http, sse) {
        let message = "the tier sandboxed implies MCP servers, but all transports are false";
        let draft = Draft::error(Code::Contradiction, at, message).value("false");
        let key = "metadata.aip44.capabilities.agent.mcpCapabilities";
        found.push(draft.key(key).hint("set http: true, or use the tier governance-aware"));
    }
}

/// Point 21: the audit log of the manifest.
fn audit(aip44: &Node, found: &mut Vec<Draft>) {
    let Some(audit) = aip44.get("audit") else { return };
    let Some(kind) = audit.get("kind") else { return };
    let tier = aip44.get("tier").and_then(Node::text);
    match kind.text() {
        Some("off") if matches!(tier, Some("governance-aware" | "sandboxed")) => {
            let message = "the tier requires an audit log, but the audit is off";
            let draft = Draft::blocking(Code::AuditOff, kind.at, message).key("metadata.aip44.audit.kind");
            found.push(draft.value("off").hint("write governance or external, or use the tier basic"));
        }
        Some("external") if audit.get("ref").is_none() => {
            let message = "the audit is external, but no reference to it is given";
            let draft = Draft::blocking(Code::AuditRef, kind.at, message).key("metadata.aip44.audit");
            found.push(draft.value("external").hint("add ref: ./audit/audit-log.jsonl"));
        }
        _ => {}
    }
}
