//! Parses the steps of a correct agent.

use narrows_wire::RpcError;
use serde_json::{Map, Value};

use super::fault;
use super::read::{Fields, Node, Read, hint};
use super::step::{Ask, Choice, Command, Cost, Diff, Event, PlanEntry, Speaker, Step, ToolCall};

/// Where a step is allowed.
#[derive(Clone, Copy)]
pub(super) enum StepContext {
    /// In a turn.
    Turn,
    /// Before the response to another request.
    On(Event),
}

/// A kind of step.
pub(super) struct Action {
    /// The key that names it.
    pub(super) name: &'static str,
    /// The other keys that it allows.
    pub(super) beside: &'static [&'static str],
    /// Parses the step from its value, the whole table and its context.
    pub(super) read: fn(Node<'_>, Fields<'_>, StepContext) -> Read<Step>,
}

/// All kinds but faults, which are in [`fault::FAULTS`].
pub(super) const ACTIONS: &[Action] = &[
    Action { name: "say", beside: &["words", "every"], read: |n, f, _| speak(Speaker::Message, n, f) },
    Action { name: "think", beside: &["words", "every"], read: |n, f, _| speak(Speaker::Thought, n, f) },
    Action { name: "tool", beside: &[], read: |n, _, _| tool(n) },
    Action { name: "tool_update", beside: &[], read: |n, _, _| tool_update(n) },
    Action { name: "plan", beside: &[], read: |n, _, _| plan(n) },
    Action { name: "ask", beside: &[], read: |n, _, place| ask(n, place) },
    Action { name: "read", beside: &[], read: |n, _, _| read(n) },
    Action { name: "write", beside: &[], read: |n, _, _| write(n) },
    Action { name: "terminal", beside: &[], read: |n, _, _| terminal(n) },
    Action { name: "usage", beside: &[], read: |n, _, _| usage(n) },
    Action { name: "notice", beside: &[], read: |n, _, _| notice(n) },
    Action { name: "commands", beside: &[], read: |n, _, _| commands(n) },
    Action { name: "title", beside: &[], read: |n, _, _| Ok(Step::Title(n.string()?.to_owned())) },
    Action { name: "mode", beside: &[], read: |n, _, _| Ok(Step::Mode(n.string()?.to_owned())) },
    Action { name: "update", beside: &[], read: |n, _, _| update(n) },
    Action { name: "notify", beside: &[], read: |n, _, _| notify(n) },
    Action { name: "request", beside: &[], read: |n, _, _| request(n) },
    Action { name: "pause", beside: &[], read: |n, _, _| Ok(Step::Pause(n.duration()?)) },
    Action { name: "wait_cancel", beside: &[], read: |n, _, _| n.only_true().map(|()| Step::WaitCancel) },
    Action { name: "repeat", beside: &[], read: |n, _, place| repeat(n, place) },
    Action { name: "stop", beside: &[], read: |n, _, _| stop(n) },
    Action { name: "error", beside: &[], read: |n, _, _| error(n) },
];

/// Returns every kind of step.
pub(super) fn all() -> impl Iterator<Item = &'static Action> {
    ACTIONS.iter().chain(fault::FAULTS)
}

/// Parses a list of steps.
pub(super) fn steps(node: Node<'_>, place: StepContext) -> Read<Vec<Step>> {
    node.list()?.map(|entry| step(entry, place)).collect()
}

fn step(node: Node<'_>, place: StepContext) -> Read<Step> {
    if !node.is_table() {
        return Err(node.fail("a step must be a table, such as { say = \"hello\" }"));
    }
    let fields = node.table()?;
    let mut found = fields
        .entries()
        .filter_map(|(key, node)| all().find(|action| action.name == key).map(|action| (action, node)));
    let Some((action, value)) = found.next() else { return Err(unknown(fields)) };
    if let Some((second, _)) = found.next() {
        let both = (action.name, second.name);
        return Err(node.fail(format!("a step does one thing: make two of `{}` and `{}`", both.0, both.1)));
    }
    if let Some((key, _)) =
        fields.entries().find(|(key, _)| *key != action.name && !action.beside.contains(key))
    {
        let takes = if action.beside.is_empty() {
            "nothing else may stand there".to_owned()
        } else {
            format!("only {} may", action.beside.join(", "))
        };
        return Err(node.fail(format!("`{key}` cannot stand beside `{}`: {takes}", action.name)));
    }
    let step = (action.read)(value, fields, place)?;
    fits(&step, place).map_or(Ok(step), |reason| Err(node.fail(format!("`{}` {reason}", action.name))))
}

/// Returns why a step is not allowed in its context, if so.
fn fits(step: &Step, place: StepContext) -> Option<&'static str> {
    let StepContext::On(event) = place else { return None };
    if step.needs_turn() {
        Some("is for turns only")
    } else if step.needs_session() && !event.has_session() {
        Some("needs a session, and there is none here")
    } else if step.needs_request() && event == Event::Start {
        Some("is about an answer, and `start` has none")
    } else {
        None
    }
}

fn unknown(fields: Fields<'_>) -> super::ScriptError {
    let names: Vec<&str> = all().map(|action| action.name).collect();
    match fields.entries().next() {
        Some((key, node)) => {
            let hint = hint(key, names.iter().copied());
            node.fail(format!("there is no step `{key}`{hint}; a step is one of {}", names.join(", ")))
        }
        None => fields.fail(format!("an empty step; a step is one of {}", names.join(", "))),
    }
}

fn speak(speaker: Speaker, node: Node<'_>, fields: Fields<'_>) -> Read<Step> {
    let every = fields.get("every").map(Node::duration).transpose()?;
    Ok(Step::Speak {
        speaker,
        text: node.string()?.to_owned(),
        // A pace implies words.
        words: fields.flag("words", every.is_some())?,
        every,
    })
}

const KINDS: &[&str] =
    &["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];
const STATUSES: &[&str] = &["pending", "in_progress", "completed", "failed"];
const TOOL: &[&str] =
    &["id", "name", "title", "kind", "status", "path", "line", "input", "output", "text", "diff"];

fn tool(node: Node<'_>) -> Read<Step> {
    node.table()?.need("title")?;
    let mut call = tool_call(node)?;
    call.status.get_or_insert("pending");
    Ok(Step::Tool(Box::new(call)))
}

fn tool_update(node: Node<'_>) -> Read<Step> {
    Ok(Step::ToolUpdate(Box::new(tool_call(node)?)))
}

fn tool_call(node: Node<'_>) -> Read<ToolCall> {
    let fields = node.table()?;
    fields.only(TOOL)?;
    Ok(ToolCall {
        id: fields.need("id")?.string()?.to_owned(),
        name: fields.string("name")?,
        title: fields.string("title")?,
        kind: fields.get("kind").map(|kind| kind.one_of(KINDS)).transpose()?,
        status: fields.get("status").map(|status| status.one_of(STATUSES)).transpose()?,
        path: fields.string("path")?,
        line: line(fields, "line")?,
        input: fields.get("input").map(Node::json).transpose()?,
        output: fields.get("output").map(Node::json).transpose()?,
        text: fields.string("text")?,
        diff: fields.get("diff").map(diff).transpose()?,
    })
}

fn diff(node: Node<'_>) -> Read<Diff> {
    let fields = node.table()?;
    fields.only(&["path", "old", "new"])?;
    Ok(Diff {
        path: fields.need("path")?.string()?.to_owned(),
        old: fields.string("old")?,
        new: fields.need("new")?.string()?.to_owned(),
    })
}

/// Parses a line number, or a number of lines.
fn line(fields: Fields<'_>, key: &str) -> Read<Option<u32>> {
    let number = fields.get(key).map(|node| node.number(1, u32::MAX.into())).transpose()?;
    Ok(number.and_then(|number| u32::try_from(number).ok()))
}

fn plan(node: Node<'_>) -> Read<Step> {
    let entries = node.list()?.map(|entry| {
        if entry.is_string() {
            let content = entry.string()?.to_owned();
            return Ok(PlanEntry { content, priority: "medium", status: "pending" });
        }
        let fields = entry.table()?;
        fields.only(&["content", "priority", "status"])?;
        Ok(PlanEntry {
            content: fields.need("content")?.string()?.to_owned(),
            priority: fields
                .get("priority")
                .map_or(Ok("medium"), |n| n.one_of(&["high", "medium", "low"]))?,
            status: fields
                .get("status")
                .map_or(Ok("pending"), |n| n.one_of(&["pending", "in_progress", "completed"]))?,
        })
    });
    Ok(Step::Plan(entries.collect::<Read<_>>()?))
}

/// Kinds of permission options, and their default names.
const CHOICES: &[(&str, &str)] = &[
    ("allow_once", "Allow once"),
    ("allow_always", "Always allow"),
    ("reject_once", "Reject"),
    ("reject_always", "Always reject"),
];

fn ask(node: Node<'_>, place: StepContext) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["tool", "title", "options", "on_allow", "on_reject"])?;
    let options = match fields.get("options") {
        Some(options) => options.list()?.map(choice).collect::<Read<Vec<_>>>()?,
        None => [CHOICES[0], CHOICES[2]].map(|(kind, name)| named(kind, name)).into(),
    };
    if options.is_empty() {
        return Err(node.fail("`ask` needs at least one of `options`"));
    }
    Ok(Step::Ask(Box::new(Ask {
        tool: fields.string("tool")?,
        title: fields.need("title")?.string()?.to_owned(),
        options,
        on_allow: fields.get("on_allow").map_or(Ok(Vec::new()), |node| steps(node, place))?,
        on_reject: fields.get("on_reject").map_or(Ok(Vec::new()), |node| steps(node, place))?,
    })))
}

fn choice(node: Node<'_>) -> Read<Choice> {
    let kinds: Vec<&'static str> = CHOICES.iter().map(|(kind, _)| *kind).collect();
    if node.is_string() {
        let kind = node.one_of(&kinds)?;
        let name = CHOICES.iter().find(|(known, _)| *known == kind).map_or(kind, |(_, name)| *name);
        return Ok(named(kind, name));
    }
    let fields = node.table()?;
    fields.only(&["id", "name", "kind"])?;
    let kind = fields.need("kind")?.one_of(&kinds)?;
    let id = fields.string("id")?.unwrap_or_else(|| kind.to_owned());
    Ok(Choice { name: fields.string("name")?.unwrap_or_else(|| id.clone()), id, kind })
}

fn named(kind: &'static str, name: &str) -> Choice {
    Choice { id: kind.to_owned(), name: name.to_owned(), kind }
}

fn read(node: Node<'_>) -> Read<Step> {
    if node.is_string() {
        return Ok(Step::Read { path: node.string()?.to_owned(), line: None, limit: None });
    }
    let fields = node.table()?;
    fields.only(&["path", "line", "limit"])?;
    Ok(Step::Read {
        path: fields.need("path")?.string()?.to_owned(),
        line: line(fields, "line")?,
        limit: line(fields, "limit")?,
    })
}

fn write(node: Node<'_>) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["path", "content"])?;
    Ok(Step::Write {
        path: fields.need("path")?.string()?.to_owned(),
        content: fields.need("content")?.string()?.to_owned(),
    })
}

fn terminal(node: Node<'_>) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["command", "cwd", "tool"])?;
    Ok(Step::Terminal {
        command: fields.need("command")?.strings()?,
        cwd: fields.string("cwd")?,
        tool: fields.string("tool")?,
    })
}

fn usage(node: Node<'_>) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["used", "size", "cost", "currency"])?;
    let tokens = |key| Ok(fields.need(key)?.number(0, i64::MAX)?.unsigned_abs());
    let cost = fields.get("cost").map(Node::float).transpose()?;
    let currency = fields.string("currency")?.unwrap_or_else(|| "USD".to_owned());
    Ok(Step::Usage {
        used: tokens("used")?,
        size: tokens("size")?,
        cost: cost.map(|amount| Cost { amount, currency }),
    })
}

fn notice(node: Node<'_>) -> Read<Step> {
    if node.is_string() {
        return Ok(Step::Notice { severity: "info", title: node.string()?.to_owned(), description: None });
    }
    let fields = node.table()?;
    fields.only(&["severity", "title", "description"])?;
    Ok(Step::Notice {
        severity: fields.get("severity").map_or(Ok("info"), |n| n.one_of(&["info", "warning", "error"]))?,
        title: fields.need("title")?.string()?.to_owned(),
        description: fields.string("description")?,
    })
}

fn commands(node: Node<'_>) -> Read<Step> {
    let commands = node.list()?.map(|entry| {
        let fields = entry.table()?;
        fields.only(&["name", "description"])?;
        Ok(Command {
            name: fields.need("name")?.string()?.to_owned(),
            description: fields.string("description")?.unwrap_or_default(),
        })
    });
    Ok(Step::Commands(commands.collect::<Read<_>>()?))
}

fn update(node: Node<'_>) -> Read<Step> {
    node.table()?.need("sessionUpdate")?.string()?;
    Ok(Step::Update(node.json()?))
}

fn notify(node: Node<'_>) -> Read<Step> {
    let (method, params) = message(node)?;
    Ok(Step::Notify { method, params })
}

fn request(node: Node<'_>) -> Read<Step> {
    let (method, params) = message(node)?;
    Ok(Step::Request { method, params })
}

fn message(node: Node<'_>) -> Read<(String, Value)> {
    let fields = node.table()?;
    fields.only(&["method", "params"])?;
    let params = fields.get("params").map_or(Ok(Value::Object(Map::new())), Node::json)?;
    Ok((fields.need("method")?.string()?.to_owned(), params))
}

fn repeat(node: Node<'_>, place: StepContext) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["times", "steps"])?;
    let times = fields.need("times")?.number(0, i64::MAX)?.unsigned_abs();
    Ok(Step::Repeat { times, steps: steps(fields.need("steps")?, place)? })
}

const REASONS: &[&str] = &["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"];

fn stop(node: Node<'_>) -> Read<Step> {
    let reason = node.string()?;
    if REASONS.contains(&reason) || reason.starts_with('_') {
        return Ok(Step::Stop(reason.to_owned()));
    }
    Err(node.expected(&format!("one of {}, or begin with _", REASONS.join(", "))))
}

fn error(node: Node<'_>) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["code", "message", "data"])?;
    let code = fields.get("code").map_or(Ok(-32603), |n| n.number(i32::MIN.into(), i32::MAX.into()))?;
    let message = fields.need("message")?.string()?.to_owned().into();
    let data = fields.get("data").map(Node::json).transpose()?;
    Ok(Step::Error(RpcError { code, message, data }))
}
