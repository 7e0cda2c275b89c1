//! Renders a permission request for a terminal.
//!
//! The agent's text comes first, and its length is bounded. The judged facts come last, directly above the
//! keys, so that they cannot be scrolled away: the tool, the kinds, all paths, the variables, the command and
//! its directory.

use std::borrow::Cow;

use narrows_client::{Approval, FileChange, PermissionOption, PermissionRequest, RequestProblem};
use narrows_policy::{Action, Command, DecisionReason, Kind, Variable};
use serde_json::{Map, Value};

use super::ApprovalSource;
use super::visible::{Rows, truncate, visible};
use crate::render::change::differing;
use crate::terminal::{Color, Style};

/// Maximum number of characters of the judged facts and the input. A longer request can only be rejected,
/// because users must see all that they allow.
const MAX_SHOWN_CHARS: usize = 4000;

const MAX_TITLE_CHARS: usize = 200;
const MAX_DESCRIPTION_CHARS: usize = 400;
const MAX_REASON_CHARS: usize = 400;
const MAX_OPTION_NAME_CHARS: usize = 40;

/// Maximum number of options that can be selected by a number.
pub(super) const MAX_OPTIONS: usize = 6;

const MAX_CHANGES: usize = 3;
const MAX_CHANGE_LINES: usize = 12;
const MAX_CHANGE_LINE_CHARS: usize = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

pub(super) struct Rendered {
    pub(super) question: String,
    pub(super) keys: String,
    /// `true` if the request is shown completely and unambiguously. Otherwise it can only be rejected.
    pub(super) is_whole: bool,
}

pub(super) fn render(
    question: &PermissionRequest,
    source: ApprovalSource,
    color: Color,
    size: Size,
) -> Rendered {
    let mut page = Page { rows: Rows::new(size.columns), color };
    page.rows.add("", 0, "");
    let heading = "The agent asks for permission:";
    let title = quoted(&question.title, MAX_TITLE_CHARS);
    page.rows.add(&format!("{} ", color.paint(Style::Hint, heading)), heading.len() + 1, &title);
    page.agent_claims(question, source);
    let (shown, hidden) = question.changes.split_at(question.changes.len().min(MAX_CHANGES));
    shown.iter().for_each(|file_change| page.file_change(file_change));
    if !hidden.is_empty() {
        page.row("not shown", &format!("{} more file changes", hidden.len()));
    }
    page.row("why asked", &reason_text(question, source));
    let facts = Facts::new(question);
    let incomplete = match question.problem {
        Some(_) => Some(IncompleteReason::Unreadable),
        None => (!facts.is_short()).then_some(IncompleteReason::TooLong),
    };
    if let Some(RequestProblem { reason, request }) = &question.problem {
        page.row("request", &truncate(&visible(request), MAX_SHOWN_CHARS));
        page.row("problem", &truncate(&visible(reason), MAX_REASON_CHARS));
    }
    page.row("input", &truncate(&visible(&facts.input), MAX_SHOWN_CHARS));
    let mut left = MAX_SHOWN_CHARS;
    let mut rows = facts.rows.iter();
    while left > 0
        && let Some((label, text)) = rows.next()
    {
        let text = visible(text);
        page.row(label, &truncate(&text, left));
        left = left.saturating_sub(text.chars().count());
    }
    if let more @ 1.. = rows.len() {
        page.row("not shown", &format!("{more} more rows"));
    }
    let keys = key_help(question, incomplete, size, page.rows.count());
    Rendered { question: page.rows.into_text(), keys, is_whole: incomplete.is_none() }
}

#[derive(Clone, Copy)]
enum IncompleteReason {
    TooLong,
    Unreadable,
}

struct Page {
    rows: Rows,
    color: Color,
}

impl Page {
    /// Adds a row unless `text` is empty. `text` must come from [`visible`].
    fn row(&mut self, label: &str, text: &str) {
        if !text.is_empty() {
            let painted = self.color.paint(Style::Dim, &format!("{label}:")).into_owned();
            self.rows.add(&format!("  {painted} "), label.chars().count() + 4, text);
        }
    }

    /// Adds the text of the agent that follows the title.
    fn agent_claims(&mut self, question: &PermissionRequest, source: ApprovalSource) {
        let Some(Approval { id, reason }) = &question.approval else {
            if let Some(description) = &question.description {
                self.row("it says", &quoted(description, MAX_DESCRIPTION_CHARS));
            }
            return;
        };
        // The user is meant to copy the command into a shell, so an unusual id is not shown in it.
        let is_plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let elsewhere = match is_plain {
            true => format!(
                "; holders of a governance key can approve it elsewhere: `narrows approve {id} --key FILE`"
            ),
            false => String::new(),
        };
        match source {
            ApprovalSource::OwnGate => self.row("approval", &format!("{}{elsewhere}", visible(id))),
            ApprovalSource::Unproven => {
                let claim = quoted(&format!("{id}: {reason}"), MAX_DESCRIPTION_CHARS);
                self.row("it says", &format!("needs an approval, {claim}{elsewhere}"));
            }
        }
    }

    fn file_change(&mut self, file_change: &FileChange) {
        let FileChange { path, old_text, new_text } = file_change;
        match path {
            Some(path) => self.row("new text of", &visible(&path.display().to_string())),
            None => self.row("change", "as described by the agent"),
        }
        let old = old_text.as_deref().unwrap_or_default();
        let lines: Vec<(&str, &str)> = match path {
            Some(_) => differing(old, new_text).collect(),
            None => new_text.lines().map(|line| ("", line)).collect(),
        };
        if lines.is_empty() {
            let words = if old == new_text { "no line changes" } else { "only line ends change" };
            self.rows.add("  │ ", 4, words);
        }
        for (sign, line) in lines.iter().take(MAX_CHANGE_LINES) {
            let text = truncate(&visible(line), MAX_CHANGE_LINE_CHARS);
            self.rows.add("  │ ", 4, &format!("{sign}{text}"));
        }
        if let Some(more) = lines.len().checked_sub(MAX_CHANGE_LINES).filter(|more| *more > 0) {
            self.row("not shown", &format!("{more} more lines"));
        }
    }
}

/// Quotes and truncates text of the agent. The result contains nothing that looks like the closing quote.
fn quoted(text: &str, max_chars: usize) -> String {
    let text = truncate(&visible(text.trim()), max_chars);
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace("⟨\\\\", "⟨\\"))
}

/// Returns the reason for the request. A reason that the agent gives is ignored.
fn reason_text(question: &PermissionRequest, source: ApprovalSource) -> String {
    match (&question.approval, &question.decision.because) {
        _ if question.problem.is_some() => "the request is ambiguous, so no rule can allow it".to_owned(),
        (Some(Approval { reason, .. }), _) if source == ApprovalSource::OwnGate => {
            format!("governance: {}", truncate(&visible(reason), MAX_REASON_CHARS))
        }
        (_, DecisionReason::Approval { .. }) => "the agent claims that it needs an approval".to_owned(),
        (_, because) => truncate(&visible(&because.to_string()), MAX_REASON_CHARS),
    }
}

/// The judged facts, row by row, and the rest of the input.
struct Facts {
    input: String,
    rows: Vec<(&'static str, String)>,
}

impl Facts {
    fn new(question: &PermissionRequest) -> Self {
        let mut rows = Vec::new();
        let mut paths: Vec<String> = Vec::new();
        for (number, action) in question.subjects.iter().enumerate() {
            if number > 0 {
                rows.push(("and", "another target of the same request".to_owned()));
            }
            add_subject(&mut rows, action);
            paths.extend(action.paths.iter().map(|path| path.display().to_string()));
        }
        if question.subjects.is_empty() {
            rows.extend(question.tool.clone().map(|tool| ("tool", tool)));
            rows.push(("what", question.kind.clone()));
        }
        for path in question.locations.iter().map(|path| path.display().to_string()) {
            if !paths.contains(&path) {
                paths.push(path.clone());
                rows.push(("file", path));
            }
        }
        Self { input: remaining_input(question), rows }
    }

    /// Returns `true` if the facts fit into the limit.
    fn is_short(&self) -> bool {
        let length = |text: &str| visible(text).chars().count();
        length(&self.input) <= MAX_SHOWN_CHARS
            && self.rows.iter().map(|(_, text)| length(text)).sum::<usize>() <= MAX_SHOWN_CHARS
    }
}

fn add_subject(rows: &mut Vec<(&'static str, String)>, action: &Action) {
    rows.extend(action.server.clone().map(|server| ("MCP server", server)));
    rows.extend(action.tool.clone().map(|tool| ("tool", tool)));
    rows.extend(action.claimed.iter().map(|name| ("called", name.clone())));
    let kinds: Vec<&str> = action.kinds().into_iter().map(Kind::name).collect();
    rows.push(("what", kinds.join(", ")));
    rows.extend(action.paths.iter().map(|path| ("file", path.display().to_string())));
    rows.extend(action.urls.iter().map(|url| ("address", url.clone())));
    rows.extend(action.env.iter().map(|variable| ("variable", assignment(variable))));
    rows.extend(action.command.as_ref().map(|command| ("command", command_text(command))));
    rows.extend(action.cwd.as_ref().map(|cwd| ("in", cwd.display().to_string())));
    rows.extend(action.real_cwd.as_ref().map(|real| ("which is", real.display().to_string())));
}

fn assignment(Variable { name, value }: &Variable) -> String {
    match name.as_str() {
        "" => format!("unreadable: {value}"),
        name => format!("{name}={}", shell_quoted(value)),
    }
}

fn command_text(command: &Command) -> String {
    match command {
        Command::Argv(argv) => argv.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" "),
        Command::Shell(text) | Command::Unknown(text) => text.clone(),
    }
}

fn shell_quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned)
}

/// Returns the part of the input that the rows of a command do not show. All other members are included,
/// known or not, and the arguments of MCP tools always.
fn remaining_input(question: &PermissionRequest) -> String {
    let input = &question.input;
    let (Some(fields), [Action { server: None, command: Some(command), cwd, env, .. }]) =
        (input.as_object(), &question.subjects[..])
    else {
        return if input.is_null() { String::new() } else { input.to_string() };
    };
    let is_understood = !matches!(command, Command::Unknown(_));
    let is_shown = |key: &str, value: &Value| match key {
        _ if value.is_null() => true,
        "command" => is_understood && value.is_string(),
        "args" => is_understood && (value.is_array() || value.is_string()),
        "cwd" => value.is_string() && cwd.is_some(),
        "env" => env.iter().all(|variable| !variable.name.is_empty()),
        _ => false,
    };
    let rest: Map<String, Value> = fields
        .iter()
        .filter(|(key, value)| !is_shown(key, value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if rest.is_empty() { String::new() } else { Value::Object(rest).to_string() }
}

/// Returns the explanation of the keys. It is based on the kinds of the options, because the agent chooses
/// their names.
fn key_help(
    question: &PermissionRequest,
    incomplete: Option<IncompleteReason>,
    size: Size,
    above: usize,
) -> String {
    let mut rows = Rows::new(size.columns);
    match incomplete {
        Some(IncompleteReason::TooLong) => {
            rows.add("  ", 2, "It is too long to be shown completely, so it can only be rejected here.");
            rows.add("  ", 2, "A rule in a --policy file can allow it.");
        }
        Some(IncompleteReason::Unreadable) => {
            rows.add("  ", 2, "It is ambiguous, so it can only be rejected.");
        }
        None => {
            for (number, option) in question.options.iter().take(MAX_OPTIONS).enumerate() {
                rows.add(&format!("  [{}] ", number + 1), 6, &option_meaning(option));
            }
            if let Some(more) = question.options.len().checked_sub(MAX_OPTIONS).filter(|more| *more > 0) {
                rows.add("  ", 2, &format!("{more} more options of the agent cannot be selected here"));
            }
        }
    }
    let total = above + rows.count() + 2;
    if total > size.rows {
        rows.add("  ", 2, &format!("The request has {total} rows: scroll up to see all of it."));
    }
    let (answers, prompt) = match incomplete {
        None => ("[y] yes, this once  [n] no, or Enter", "Allow it? "),
        Some(_) => ("[n] no, or Enter", "Reject it? "),
    };
    rows.add("  ", 2, answers);
    rows.into_text() + prompt
}

/// Returns the effect of an option, followed by the agent's name for it.
fn option_meaning(option: &PermissionOption) -> String {
    let name = quoted(&option.name, MAX_OPTION_NAME_CHARS);
    match option.kind.as_str() {
        "allow_once" => format!("allow once: {name}"),
        "allow_always" => format!("allow always: {name}"),
        "reject_once" => format!("reject once: {name}"),
        "reject_always" => format!("reject always: {name}"),
        kind => format!("unknown kind ({}): {name}", quoted(kind, MAX_OPTION_NAME_CHARS)),
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
