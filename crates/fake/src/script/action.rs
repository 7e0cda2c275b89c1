//! Parses the steps that a correct agent may take.

use narrows_config::{SettingValue, Table, quoted};
use narrows_wire::RpcError;
use serde_json::{Map, Value};

use super::fault;
use super::parse::{did_you_mean, only_true, strings, word};
use super::step::{Ask, Choice, Command, Cost, Diff, Event, PlanEntry, Speaker, Step, ToolCall};

/// The place of a step in a script, which limits the allowed steps.
#[derive(Clone, Copy)]
pub(super) enum StepContext {
    Turn,
    On(Event),
}

pub(super) struct Action {
    /// Key of the table that identifies the kind of step.
    pub(super) name: &'static str,
    /// Other keys that are allowed in the same table.
    pub(super) other_keys: &'static [&'static str],
    /// Parses the step from the key's value, the whole table and the context.
    pub(super) read: fn(SettingValue<'_>, Table<'_>, StepContext) -> Option<Step>,
}

/// All kinds of steps except faults, which are in [`fault::FAULTS`].
pub(super) const ACTIONS: &[Action] = &[
    Action { name: "say", other_keys: &["words", "every"], read: |n, f, _| speak(Speaker::Message, n, f) },
    Action { name: "think", other_keys: &["words", "every"], read: |n, f, _| speak(Speaker::Thought, n, f) },
    Action { name: "tool", other_keys: &[], read: |n, _, _| tool(n) },
    Action { name: "tool_update", other_keys: &[], read: |n, _, _| tool_update(n) },
    Action { name: "plan", other_keys: &[], read: |n, _, _| plan(n) },
    Action { name: "ask", other_keys: &[], read: |n, _, place| ask(n, place) },
    Action { name: "read", other_keys: &[], read: |n, _, _| read(n) },
    Action { name: "write", other_keys: &[], read: |n, _, _| write(n) },
    Action { name: "terminal", other_keys: &[], read: |n, _, _| terminal(n) },
    Action { name: "usage", other_keys: &[], read: |n, _, _| usage(n) },
    Action { name: "notice", other_keys: &[], read: |n, _, _| notice(n) },
    Action { name: "commands", other_keys: &[], read: |n, _, _| commands(n) },
    Action { name: "title", other_keys: &[], read: |n, _, _| Some(Step::Title(n.string()?.to_owned())) },
    Action { name: "mode", other_keys: &[], read: |n, _, _| Some(Step::Mode(n.string()?.to_owned())) },
    Action { name: "update", other_keys: &[], read: |n, _, _| update(n) },
    Action { name: "notify", other_keys: &[], read: |n, _, _| notify(n) },
    Action { name: "request", other_keys: &[], read: |n, _, _| request(n) },
    Action { name: "pause", other_keys: &[], read: |n, _, _| Some(Step::Pause(n.duration()?)) },
    Action { name: "wait_cancel", other_keys: &[], read: |n, _, _| only_true(n).map(|()| Step::WaitCancel) },
    Action { name: "repeat", other_keys: &[], read: |n, _, place| repeat(n, place) },
    Action { name: "stop", other_keys: &[], read: |n, _, _| stop(n) },
    Action { name: "error", other_keys: &[], read: |n, _, _| error(n) },
];

pub(super) fn all() -> impl Iterator<Item = &'static Action> {
    ACTIONS.iter().chain(fault::FAULTS)
}

pub(super) fn steps(node: SettingValue<'_>, place: StepContext) -> Option<Vec<Step>> {
    node.list("")?.map(|entry| step(entry, place)).collect()
}

fn step(node: SettingValue<'_>, place: StepContext) -> Option<Step> {
    if !node.is_table() {
        return node.error("a step must be a table, such as { say = \"hello\" }", None);
    }
    let fields = node.table()?;
    let mut found = fields
        .items()
        .filter_map(|item| all().find(|action| action.name == item.name).map(|action| (action, item)));
    let Some((action, value)) = found.next() else { return unknown(fields) };
    if let Some((second, _)) = found.next() {
        let both = (action.name, second.name);
        return node.error(
            format!("a step has one action: split `{}` and `{}` into two steps", both.0, both.1),
            None,
        );
    }
    let mut keys = fields.items().map(|item| item.name);
    if let Some(key) = keys.find(|key| *key != action.name && !action.other_keys.contains(key)) {
        let takes = if action.other_keys.is_empty() {
            "it takes no other keys".to_owned()
        } else {
            format!("it takes only {}", action.other_keys.join(", "))
        };
        return node.error(format!("`{key}` cannot be combined with `{}`: {takes}", action.name), None);
    }
    let step = (action.read)(value, fields, place)?;
    fits(&step, place).map_or(Some(step), |reason| node.error(format!("`{}` {reason}", action.name), None))
}

fn fits(step: &Step, place: StepContext) -> Option<&'static str> {
    let StepContext::On(event) = place else { return None };
    if step.needs_turn() {
        Some("is only allowed in a turn")
    } else if step.needs_session() && !event.has_session() {
        Some("needs a session, but none exists here")
    } else if step.needs_request() && event == Event::Start {
        Some("changes a response, and `start` has none")
    } else {
        None
    }
}

fn unknown<T>(fields: Table<'_>) -> Option<T> {
    let names: Vec<&str> = all().map(|action| action.name).collect();
    let all = names.join(", ");
    match fields.items().next() {
        Some(item) => {
            let meant = did_you_mean(item.name, &names);
            item.error(
                format!("there is no step `{}`{meant}; a step is one of {all}", quoted(item.name)),
                None,
            )
        }
        None => fields.error(format!("an empty step; a step is one of {all}"), None),
    }
}

fn speak(speaker: Speaker, node: SettingValue<'_>, fields: Table<'_>) -> Option<Step> {
    let every = fields.get("every").and_then(SettingValue::duration);
    Some(Step::Speak {
        speaker,
        text: node.string()?.to_owned(),
        // The key `every` only makes sense with the text split into words, so it implies `words`.
        words: fields.get("words").and_then(SettingValue::flag).unwrap_or(every.is_some()),
        every,
    })
}

const KINDS: &[&str] =
    &["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];
const STATUSES: &[&str] = &["pending", "in_progress", "completed", "failed"];
const TOOL: &[&str] =
    &["id", "name", "title", "kind", "status", "path", "line", "input", "output", "text", "diff"];

fn tool(node: SettingValue<'_>) -> Option<Step> {
    node.table()?.required("title", None)?;
    let mut call = tool_call(node)?;
    call.status.get_or_insert("pending");
    Some(Step::Tool(Box::new(call)))
}

fn tool_update(node: SettingValue<'_>) -> Option<Step> {
    Some(Step::ToolUpdate(Box::new(tool_call(node)?)))
}

fn tool_call(node: SettingValue<'_>) -> Option<ToolCall> {
    let fields = node.table()?;
    fields.only(TOOL, &[]);
    Some(ToolCall {
        id: fields.required("id", None)?.string()?.to_owned(),
        name: fields.string("name"),
        title: fields.string("title"),
        kind: fields.get("kind").and_then(|kind| word(kind, KINDS)),
        status: fields.get("status").and_then(|status| word(status, STATUSES)),
        path: fields.string("path"),
        line: line(fields, "line"),
        input: fields.get("input").map(|item| item.node.to_json()),
        output: fields.get("output").map(|item| item.node.to_json()),
        text: fields.string("text"),
        diff: fields.get("diff").and_then(diff),
    })
}

fn diff(node: SettingValue<'_>) -> Option<Diff> {
    let fields = node.table()?;
    fields.only(&["path", "old", "new"], &[]);
    Some(Diff {
        path: fields.required("path", None)?.string()?.to_owned(),
        old: fields.string("old"),
        new: fields.required("new", None)?.string()?.to_owned(),
    })
}

/// Parses a line number or a line count.
fn line(fields: Table<'_>, key: &str) -> Option<u32> {
    fields.get(key)?.count(1, u32::MAX)
}

fn plan(node: SettingValue<'_>) -> Option<Step> {
    let entries = node.list("")?.map(|entry| {
        if entry.is_text() {
            let content = entry.string()?.to_owned();
            return Some(PlanEntry { content, priority: "medium", status: "pending" });
        }
        let fields = entry.table()?;
        fields.only(&["content", "priority", "status"], &[]);
        Some(PlanEntry {
            content: fields.required("content", None)?.string()?.to_owned(),
            priority: fields
                .get("priority")
                .and_then(|n| word(n, &["high", "medium", "low"]))
                .unwrap_or("medium"),
            status: fields
                .get("status")
                .and_then(|n| word(n, &["pending", "in_progress", "completed"]))
                .unwrap_or("pending"),
        })
    });
    Some(Step::Plan(entries.collect::<Option<_>>()?))
}

/// Kinds of permission options, and their default labels.
const CHOICES: &[(&str, &str)] = &[
    ("allow_once", "Allow once"),
    ("allow_always", "Always allow"),
    ("reject_once", "Reject"),
    ("reject_always", "Always reject"),
];

fn ask(node: SettingValue<'_>, place: StepContext) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["tool", "title", "options", "on_allow", "on_reject"], &[]);
    let options = match fields.get("options") {
        Some(options) => options.list("")?.map(choice).collect::<Option<Vec<_>>>()?,
        None => [CHOICES[0], CHOICES[2]].map(|(kind, name)| named(kind, name)).into(),
    };
    if options.is_empty() {
        return node.error("`ask` needs at least one of `options`", None);
    }
    Some(Step::Ask(Box::new(Ask {
        tool: fields.string("tool"),
        title: fields.required("title", None)?.string()?.to_owned(),
        options,
        on_allow: fields.get("on_allow").and_then(|node| steps(node, place)).unwrap_or_default(),
        on_reject: fields.get("on_reject").and_then(|node| steps(node, place)).unwrap_or_default(),
    })))
}

fn choice(node: SettingValue<'_>) -> Option<Choice> {
    let kinds: Vec<&'static str> = CHOICES.iter().map(|(kind, _)| *kind).collect();
    if node.is_text() {
        let kind = word(node, &kinds)?;
        let name = CHOICES.iter().find(|(known, _)| *known == kind).map_or(kind, |(_, name)| *name);
        return Some(named(kind, name));
    }
    let fields = node.table()?;
    fields.only(&["id", "name", "kind"], &[]);
    let kind = word(fields.required("kind", None)?, &kinds)?;
    let id = fields.string("id").unwrap_or_else(|| kind.to_owned());
    Some(Choice { name: fields.string("name").unwrap_or_else(|| id.clone()), id, kind })
}

fn named(kind: &'static str, name: &str) -> Choice {
    Choice { id: kind.to_owned(), name: name.to_owned(), kind }
}

fn read(node: SettingValue<'_>) -> Option<Step> {
    if node.is_text() {
        return Some(Step::Read { path: node.string()?.to_owned(), line: None, limit: None });
    }
    let fields = node.table()?;
    fields.only(&["path", "line", "limit"], &[]);
    Some(Step::Read {
        path: fields.required("path", None)?.string()?.to_owned(),
        line: line(fields, "line"),
        limit: line(fields, "limit"),
    })
}

fn write(node: SettingValue<'_>) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["path", "content"], &[]);
    Some(Step::Write {
        path: fields.required("path", None)?.string()?.to_owned(),
        content: fields.required("content", None)?.string()?.to_owned(),
    })
}

fn terminal(node: SettingValue<'_>) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["command", "cwd", "tool"], &[]);
    Some(Step::Terminal {
        command: strings(fields.required("command", None)?)?,
        cwd: fields.string("cwd"),
        tool: fields.string("tool"),
    })
}

fn usage(node: SettingValue<'_>) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["used", "size", "cost", "currency"], &[]);
    let tokens = |key| fields.required(key, None)?.count(0, i64::MAX);
    let cost = fields.get("cost").and_then(SettingValue::number);
    let currency = fields.string("currency").unwrap_or_else(|| "USD".to_owned());
    Some(Step::Usage {
        used: tokens("used")?,
        size: tokens("size")?,
        cost: cost.map(|amount| Cost { amount, currency }),
    })
}

fn notice(node: SettingValue<'_>) -> Option<Step> {
    if node.is_text() {
        return Some(Step::Notice { severity: "info", title: node.string()?.to_owned(), description: None });
    }
    let fields = node.table()?;
    fields.only(&["severity", "title", "description"], &[]);
    Some(Step::Notice {
        severity: fields
            .get("severity")
            .and_then(|n| word(n, &["info", "warning", "error"]))
            .unwrap_or("info"),
        title: fields.required("title", None)?.string()?.to_owned(),
        description: fields.string("description"),
    })
}

fn commands(node: SettingValue<'_>) -> Option<Step> {
    let commands = node.list("")?.map(|entry| {
        let fields = entry.table()?;
        fields.only(&["name", "description"], &[]);
        Some(Command {
            name: fields.required("name", None)?.string()?.to_owned(),
            description: fields.string("description").unwrap_or_default(),
        })
    });
    Some(Step::Commands(commands.collect::<Option<_>>()?))
}

fn update(node: SettingValue<'_>) -> Option<Step> {
    node.table()?.required("sessionUpdate", None)?.string()?;
    Some(Step::Update(node.node.to_json()))
}

fn notify(node: SettingValue<'_>) -> Option<Step> {
    let (method, params) = message(node)?;
    Some(Step::Notify { method, params })
}

fn request(node: SettingValue<'_>) -> Option<Step> {
    let (method, params) = message(node)?;
    Some(Step::Request { method, params })
}

fn message(node: SettingValue<'_>) -> Option<(String, Value)> {
    let fields = node.table()?;
    fields.only(&["method", "params"], &[]);
    let params = fields.get("params").map_or_else(|| Value::Object(Map::new()), |item| item.node.to_json());
    Some((fields.required("method", None)?.string()?.to_owned(), params))
}

fn repeat(node: SettingValue<'_>, place: StepContext) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["times", "steps"], &[]);
    let times = fields.required("times", None)?.count(0, i64::MAX)?;
    Some(Step::Repeat { times, steps: steps(fields.required("steps", None)?, place)? })
}

const REASONS: &[&str] = &["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"];

fn stop(node: SettingValue<'_>) -> Option<Step> {
    let reason = node.string()?;
    if REASONS.contains(&reason) || reason.starts_with('_') {
        return Some(Step::Stop(reason.to_owned()));
    }
    node.expected(&format!("one of {}, or begin with _", REASONS.join(", ")), None)
}

fn error(node: SettingValue<'_>) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["code", "message", "data"], &[]);
    let code = fields.get("code").and_then(|n| n.count(i32::MIN, i32::MAX)).unwrap_or(-32603);
    let message = fields.required("message", None)?.string()?.to_owned().into();
    let data = fields.get("data").map(|item| item.node.to_json());
    Some(Step::Error(RpcError { code, message, data }))
}
