//! Parses a script.

use std::time::Duration;

use narrows_acp::Versions;

use super::action::{StepContext, steps};
use super::read::{Fields, Node, Read, document, hint};
use super::step::Event;
use super::{Auth, Capabilities, Script, ScriptError, Turn};

pub(super) fn script(text: &str) -> Result<Script, ScriptError> {
    document(text, |fields| {
        fields.only(&[
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
        ])?;
        Ok(Script {
            name: fields.string("name")?.unwrap_or_else(|| "narrows-fake".to_owned()),
            version: fields.string("version")?.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned()),
            protocol: fields.get("protocol").map_or(Ok(Versions::Both), protocol)?,
            session_id: fields.get("session_id").map_or(Ok("session-{n}".to_owned()), session_id)?,
            delay: fields.get("delay").map_or(Ok(Duration::ZERO), Node::duration)?,
            modes: fields.get("modes").map_or(Ok(Vec::new()), Node::strings)?,
            auth: fields.get("auth").map(auth).transpose()?,
            capabilities: fields.get("capabilities").map_or(Ok(Capabilities::default()), capabilities)?,
            on: fields.get("on").map_or(Ok(Vec::new()), events)?.into_iter().collect(),
            turns: fields.get("turn").map_or(Ok(Vec::new()), turns)?,
        })
    })
}

fn protocol(node: Node<'_>) -> Read<Versions> {
    let numbers = node.list()?.map(|entry| entry.number(1, 2)).collect::<Read<Vec<_>>>()?;
    match numbers.as_slice() {
        [1] => Ok(Versions::OnlyV1),
        [2] => Ok(Versions::OnlyV2),
        [1, 2] | [2, 1] => Ok(Versions::Both),
        _ => Err(node.fail("`protocol` must be [1], [2] or [1, 2]")),
    }
}

fn session_id(node: Node<'_>) -> Read<String> {
    let template = node.string()?;
    if template.contains("{n}") {
        Ok(template.to_owned())
    } else {
        Err(node.fail("`session_id` must have {n} in it, or two sessions would have the same id"))
    }
}

fn auth(node: Node<'_>) -> Read<Auth> {
    let fields = node.table()?;
    fields.only(&["id", "name", "required"])?;
    let id = fields.need("id")?.string()?.to_owned();
    let name = fields.string("name")?.unwrap_or_else(|| id.clone());
    Ok(Auth { id, name, required: fields.flag("required", true)? })
}

fn capabilities(node: Node<'_>) -> Read<Capabilities> {
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
    fields.only(&slots.each_ref().map(|(name, _)| *name))?;
    for (name, slot) in &mut slots {
        **slot = fields.flag(name, **slot)?;
    }
    Ok(capabilities)
}

fn events(node: Node<'_>) -> Read<Vec<(Event, Vec<super::Step>)>> {
    let names = || Event::ALL.iter().map(|(name, _)| *name);
    let mut events = Vec::new();
    for (name, node) in node.table()?.entries() {
        let Some((_, event)) = Event::ALL.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = names().collect();
            let hint = hint(name, names());
            return Err(node.fail(format!("`on` has no `{name}`{hint}; it takes {}", known.join(", "))));
        };
        events.push((*event, steps(node, StepContext::On(*event))?));
    }
    Ok(events)
}

fn turns(node: Node<'_>) -> Read<Vec<Turn>> {
    if node.is_table() {
        return Err(node.fail("write [[turn]], with two brackets: there can be several"));
    }
    node.list()?.map(|entry| turn(entry.table()?)).collect()
}

fn turn(fields: Fields<'_>) -> Read<Turn> {
    fields.only(&["when", "delay", "steps"])?;
    Ok(Turn {
        when: fields.string("when")?,
        delay: fields.get("delay").map(Node::duration).transpose()?,
        steps: steps(fields.need("steps")?, StepContext::Turn)?,
    })
}
