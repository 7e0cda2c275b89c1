//! Parses a script.

use narrows_acp::Versions;
use narrows_base::suggest::nearest;
use narrows_config::{Findings, Node, SettingValue, Table};

use super::action::{StepContext, steps};
use super::step::Event;
use super::{Auth, Capabilities, Script, ScriptError, Turn};

pub(super) fn script(text: &str) -> Result<Script, ScriptError> {
    Ok(Node::read_toml(&Findings::new("", text).showing_values(), |fields| {
        fields.only(
            &[
                "name",
                "version",
                "protocol",
                "session_id",
                "delay",
                "modes",
                "auth",
                "capabilities",
                "on",
                "turn",
            ],
            &[],
        );
        Some(Script {
            name: fields.string("name").unwrap_or_else(|| "narrows-fake".to_owned()),
            version: fields.string("version").unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned()),
            protocol: fields.get("protocol").and_then(protocol).unwrap_or(Versions::Both),
            session_id: fields.get("session_id").and_then(session_id).unwrap_or("session-{n}".to_owned()),
            delay: fields.get("delay").and_then(SettingValue::duration).unwrap_or_default(),
            modes: fields.get("modes").and_then(strings).unwrap_or_default(),
            auth: fields.get("auth").and_then(auth),
            capabilities: fields.get("capabilities").and_then(capabilities).unwrap_or_default(),
            on: fields.get("on").and_then(events).unwrap_or_default().into_iter().collect(),
            turns: fields.get("turn").and_then(turns).unwrap_or_default(),
        })
    })?)
}

fn protocol(node: SettingValue<'_>) -> Option<Versions> {
    let numbers = node.list("")?.map(|entry| entry.count::<u8>(1, 2)).collect::<Option<Vec<_>>>()?;
    match numbers.as_slice() {
        [1] => Some(Versions::OnlyV1),
        [2] => Some(Versions::OnlyV2),
        [1, 2] | [2, 1] => Some(Versions::Both),
        _ => node.error("`protocol` must be [1], [2] or [1, 2]", None),
    }
}

fn session_id(node: SettingValue<'_>) -> Option<String> {
    let template = node.string()?;
    if template.contains("{n}") {
        Some(template.to_owned())
    } else {
        node.error("`session_id` must contain {n}, so that ids are unique", None)
    }
}

fn auth(node: SettingValue<'_>) -> Option<Auth> {
    let fields = node.table()?;
    fields.only(&["id", "name", "required"], &[]);
    let id = fields.required("id", None)?.string()?.to_owned();
    let name = fields.string("name").unwrap_or_else(|| id.clone());
    Some(Auth { id, name, required: fields.get("required").and_then(SettingValue::flag).unwrap_or(true) })
}

fn capabilities(node: SettingValue<'_>) -> Option<Capabilities> {
    let mut capabilities = Capabilities::default();
    let mut slots = [
        ("load", &mut capabilities.load),
        ("resume", &mut capabilities.resume),
        ("list", &mut capabilities.list),
        ("close", &mut capabilities.close),
        ("delete", &mut capabilities.delete),
        ("image", &mut capabilities.image),
        ("audio", &mut capabilities.audio),
        ("embedded_context", &mut capabilities.embedded_context),
        ("mcp_http", &mut capabilities.mcp_http),
        ("mcp_sse", &mut capabilities.mcp_sse),
        ("mcp_acp", &mut capabilities.mcp_acp),
    ];
    let fields = node.table()?;
    fields.only(&slots.each_ref().map(|(name, _)| *name), &[]);
    for (name, slot) in &mut slots {
        **slot = fields.get(name).and_then(SettingValue::flag).unwrap_or(**slot);
    }
    Some(capabilities)
}

fn events(node: SettingValue<'_>) -> Option<Vec<(Event, Vec<super::Step>)>> {
    let mut events = Vec::new();
    for node in node.table()?.items() {
        let name = node.name;
        let Some((_, event)) = Event::ALL.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = Event::ALL.iter().map(|(name, _)| *name).collect();
            let hint = did_you_mean(name, &known);
            return node.error(format!("`on` has no `{name}`{hint}; it takes {}", known.join(", ")), None);
        };
        events.push((*event, steps(node, StepContext::On(*event))?));
    }
    Some(events)
}

fn turns(node: SettingValue<'_>) -> Option<Vec<Turn>> {
    if node.is_table() {
        return node.error("write [[turn]] with two brackets: it is a list", None);
    }
    node.list("")?.map(|entry| turn(entry.table()?)).collect()
}

fn turn(fields: Table<'_>) -> Option<Turn> {
    fields.only(&["when", "delay", "steps"], &[]);
    Some(Turn {
        when: fields.string("when"),
        delay: fields.get("delay").and_then(SettingValue::duration),
        steps: steps(fields.required("steps", None)?, StepContext::Turn)?,
    })
}

/// Parses a text that must be one of `words`.
pub(super) fn word(item: SettingValue<'_>, words: &[&'static str]) -> Option<&'static str> {
    item.named(|text| words.iter().copied().find(|word| *word == text), words)
}

/// Parses a list of at least one text.
pub(super) fn strings(item: SettingValue<'_>) -> Option<Vec<String>> {
    let strings: Vec<_> =
        item.list("")?.map(|entry| entry.string().map(str::to_owned)).collect::<Option<_>>()?;
    if strings.is_empty() {
        item.error(format!("`{}` must not be empty", item.name), None)
    } else {
        Some(strings)
    }
}

/// Accepts only `true`. A setting of this kind is disabled by omitting its key.
pub(super) fn only_true(item: SettingValue<'_>) -> Option<()> {
    if item.flag()? { Some(()) } else { item.expected("true, or left out", None) }
}

/// Returns ` (did you mean `…`?)` if one of `words` is close to `word`.
pub(super) fn did_you_mean(word: &str, words: &[&str]) -> String {
    nearest(word, words).map_or_else(String::new, |known| format!(" (did you mean `{known}`?)"))
}
