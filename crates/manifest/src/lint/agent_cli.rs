//! Checks an AGENT-CLI.md for obstacles to starting the agent.

use std::path::Path;

use super::governance::duplicates;
use super::{named, sandbox};
use crate::argv;
use crate::code::Code;
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::schema::Checker;
use crate::types::agent_cli::AgentOption;
use crate::version;
use crate::yaml::{Content, Node};

pub(super) fn lint(path: &Path, node: &Node, found: &mut Vec<Draft>) {
    named(path, ManifestKind::AgentCli, "name", node, found);
    protocol(node, found);
    version_check(node, found);
    inline(node, ManifestKind::Sandbox, found);
    inline(node, ManifestKind::Runner, found);
    duplicates(node.get("modes"), "id", "modes", found);
    duplicates(node.get("options"), "id", "options", found);
    options(node, found);
    continuation(node, found);
}

fn protocol(node: &Node, found: &mut Vec<Draft>) {
    let Some(protocol) = node.get("protocol") else { return };
    let (code, name, message) = match protocol.text() {
        Some("mcp") => (Code::ProtocolMcp, "mcp", "an agent that speaks MCP cannot be driven over ACP"),
        Some("proprietary") => {
            (Code::ProtocolProprietary, "proprietary", "agents that need an adapter are not supported")
        }
        _ => return,
    };
    let draft = Draft::blocking(code, protocol.at, message).key("protocol").value(name);
    found.push(draft.hint("use an agent, or a wrapper, that speaks ACP"));
}

fn version_check(node: &Node, found: &mut Vec<Draft>) {
    let text = |key| node.find(&["version_check", key]).and_then(|node| Some((node, node.text()?)));
    let mut unusable = |key: &str, node: &Node, text: &str, message: String, hint: &str| {
        let draft =
            Draft::blocking(Code::UnusableValue, node.at, message).key(format!("version_check.{key}"));
        found.push(draft.value(text).hint(hint));
    };
    if let Some((node, text)) = text("parse")
        && let Err(error) = version::pattern(text)
    {
        unusable("parse", node, text, error.to_string(), "write a pattern with a group around the version");
    }
    if let Some((node, text)) = text("range")
        && let Err(error) = text.parse::<version::Range>()
    {
        unusable("range", node, text, error.to_string(), "write a range such as \">=1.2.0 <2.0.0\"");
    }
    if let Some((node, text)) = text("cmd")
        && argv::split_words(text).is_none()
    {
        unusable("cmd", node, text, "this is not a command".into(), "write a program and its arguments");
    }
}

/// Checks a sandbox or runner that is written into the AGENT-CLI.md. The official schema does not check it.
fn inline(node: &Node, kind: ManifestKind, found: &mut Vec<Draft>) {
    let Some(block) = node.get(kind.name()) else { return };
    if !matches!(block.content, Content::Map(_)) {
        return;
    }
    let (block, prefix) = match kind {
        ManifestKind::Runner => unwrapped(block, "runner", found),
        _ => (block, kind.name().to_owned()),
    };
    // If the runner is in another file, that file is checked when it is read.
    if kind == ManifestKind::Runner && (block.get("ref").is_some() || block.get("file").is_some()) {
        return;
    }
    let drafts = Checker::for_kind(kind).check(block, &prefix);
    found.extend(drafts.into_iter().map(Draft::unless_run));
    match kind {
        ManifestKind::Sandbox => sandbox::lint(block, &prefix, found),
        _ => sandbox::runner(block, &prefix, found),
    }
}

/// Returns the settings of a runner that are nested below the runner's former key.
fn unwrapped<'a>(block: &'a Node, prefix: &str, found: &mut Vec<Draft>) -> (&'a Node, String) {
    match block.entries() {
        [(key, inner)] if key.text == "runtime" => {
            let draft = Draft::warning(Code::Legacy, key.at, "`runtime` is the former name of `runner`");
            found.push(draft.key(prefix).hint("move its keys directly below runner"));
            (inner, format!("{prefix}.runtime"))
        }
        _ => (block, prefix.to_owned()),
    }
}

fn options(node: &Node, found: &mut Vec<Draft>) {
    for (number, option) in node.get("options").map(Node::items).unwrap_or_default().iter().enumerate() {
        let Ok(choice) = serde_json::from_value::<AgentOption>(option.to_json()) else { continue };
        if let (Some(default), Some((key, given))) = (&choice.default, option.entry("default"))
            && let Err(why) = argv::accepts(&choice, default)
        {
            let draft = Draft::blocking(Code::Config, key.at, format!("this default is not allowed: {why}"));
            let draft = draft.key(format!("options[{number}].default"));
            found.push(
                draft.value(given.raw().unwrap_or_default()).hint("write a value that the option accepts"),
            );
        }
    }
}

fn continuation(node: &Node, found: &mut Vec<Draft>) {
    let Some(continuation) = node.get("continuation") else { return };
    let (Some(default), Some(supported)) = (continuation.get("default"), continuation.get("supported"))
    else {
        return;
    };
    let Some(name) = default.text() else { return };
    if !supported.items().iter().any(|item| item.text() == Some(name)) {
        let message = format!("`{}` is not in supported", narrows_base::text::quoted(name, 64));
        let draft = Draft::blocking(Code::Config, default.at, message).key("continuation.default");
        found.push(draft.value(name).hint("add it to supported, or choose one of that list"));
    }
}
