//! A question as a person sees it.
//!
//! The words of the agent come first and are bounded. What was judged, and what a yes holds for, comes last, right above
//! the keys, so that nothing scrolls it away: the tool, the kinds, all paths, the variables, the command and its directory.

use std::borrow::Cow;

use narrows_client::{Approval, FileChange, PermissionOption, Question, RequestProblem};
use narrows_policy::{Action, Because, Command, Kind, Variable};
use serde_json::{Map, Value};

use super::ApprovalSource;
use super::visible::{Rows, cut, visible};
use crate::present::change::differing;
use crate::terminal::{Colour, Style};

/// How much of what is judged is shown, and of the input. What is longer cannot be allowed: nobody is to allow what they
/// cannot see.
const MAX_SHOWN_CHARS: usize = 4000;

const MAX_TITLE_CHARS: usize = 200;
const MAX_DESCRIPTION_CHARS: usize = 400;
const MAX_REASON_CHARS: usize = 400;
const MAX_OPTION_NAME_CHARS: usize = 40;

/// Options that can be chosen by a number.
pub(super) const MAX_OPTIONS: usize = 6;

/// How many changes of files are shown, how many lines of each, and how much of a line.
const MAX_CHANGES: usize = 3;
const MAX_CHANGE_LINES: usize = 12;
const MAX_CHANGE_LINE_CHARS: usize = 160;

/// How large the terminal is, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// A question in the form that is written to a terminal.
pub(super) struct Rendered {
    /// What is asked.
    pub(super) question: String,
    /// The keys that answer it, and the prompt.
    pub(super) keys: String,
    /// All that a yes holds for is shown and can be read for certain, so it can be allowed.
    pub(super) is_whole: bool,
}

/// Renders a question for a terminal of this size.
pub(super) fn render(question: &Question, source: ApprovalSource, colour: Colour, size: Size) -> Rendered {
    let mut page = Page { rows: Rows::new(size.columns), colour };
    page.rows.add("", 0, "");
    let heading = "The agent asks for permission:";
    let title = quoted(&question.title, MAX_TITLE_CHARS);
    page.rows.add(&format!("{} ", colour.paint(Style::Hint, heading)), heading.len() + 1, &title);
    page.claims(question, source);
    let (shown, hidden) = question.changes.split_at(question.changes.len().min(MAX_CHANGES));
    shown.iter().for_each(|change| page.change(change));
    if !hidden.is_empty() {
        page.row("not shown", &format!("{} more changes of files", hidden.len()));
    }
    page.row("why asked", &why(question, source));
    let facts = Facts::new(question);
    let lack = match question.problem {
        Some(_) => Some(Lack::Unreadable),
        None => (!facts.is_short()).then_some(Lack::TooLong),
    };
    if let Some(RequestProblem { reason, request }) = &question.problem {
        page.row("request", &cut(&visible(request), MAX_SHOWN_CHARS));
        page.row("problem", &cut(&visible(reason), MAX_REASON_CHARS));
    }
    page.row("input", &cut(&visible(&facts.input), MAX_SHOWN_CHARS));
    let mut left = MAX_SHOWN_CHARS;
    let mut rows = facts.rows.iter();
    while left > 0
        && let Some((label, text)) = rows.next()
    {
        let text = visible(text);
        page.row(label, &cut(&text, left));
        left = left.saturating_sub(text.chars().count());
    }
    if let more @ 1.. = rows.len() {
        page.row("not shown", &format!("{more} more rows"));
    }
    let keys = keys(question, lack, size, page.rows.count());
    Rendered { question: page.rows.into_text(), keys, is_whole: lack.is_none() }
}

/// Why a question can only be rejected.
#[derive(Clone, Copy)]
enum Lack {
    TooLong,
    Unreadable,
}

struct Page {
    rows: Rows,
    colour: Colour,
}

impl Page {
    /// Adds a row, or none without a text, which has to be [`visible`].
    fn row(&mut self, label: &str, text: &str) {
        if !text.is_empty() {
            let painted = self.colour.paint(Style::Dim, &format!("{label}:")).into_owned();
            self.rows.add(&format!("  {painted} "), label.chars().count() + 4, text);
        }
    }

    /// Adds what the agent says of it beside the title.
    fn claims(&mut self, question: &Question, source: ApprovalSource) {
        let Some(Approval { id, reason }) = &question.approval else {
            if let Some(description) = &question.description {
                self.row("it says", &quoted(description, MAX_DESCRIPTION_CHARS));
            }
            return;
        };
        // It is offered to be copied into a shell.
        let is_plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let elsewhere = match is_plain {
            true => format!(
                "; with a key that the governance names it can be given elsewhere: `narrows approve {id} --key FILE`"
            ),
            false => String::new(),
        };
        match source {
            ApprovalSource::OwnGate => self.row("approval", &format!("{}{elsewhere}", visible(id))),
            ApprovalSource::Unproven => {
                let claim = quoted(&format!("{id}: {reason}"), MAX_DESCRIPTION_CHARS);
                self.row("it says", &format!("an approval is needed, {claim}{elsewhere}"));
            }
        }
    }

    /// Adds the beginning of the new text of a file.
    fn change(&mut self, change: &FileChange) {
        let FileChange { path, old_text, new_text } = change;
        match path {
            Some(path) => self.row("new text of", &visible(&path.display().to_string())),
            None => self.row("change", "as the agent describes it"),
        }
        let old = old_text.as_deref().unwrap_or_default();
        let lines: Vec<(&str, &str)> = match path {
            Some(_) => differing(old, new_text).collect(),
            None => new_text.lines().map(|line| ("", line)).collect(),
        };
        if lines.is_empty() {
            let words = if old == new_text { "no line changes" } else { "only ends of lines change" };
            self.rows.add("  │ ", 4, words);
        }
        for (sign, line) in lines.iter().take(MAX_CHANGE_LINES) {
            let text = cut(&visible(line), MAX_CHANGE_LINE_CHARS);
            self.rows.add("  │ ", 4, &format!("{sign}{text}"));
        }
        if let Some(more) = lines.len().checked_sub(MAX_CHANGE_LINES).filter(|more| *more > 0) {
            self.row("not shown", &format!("{more} more lines of it"));
        }
    }
}

/// Words of the agent, in quotes and bounded. Nothing in them can look like the quote that ends them.
fn quoted(text: &str, longest: usize) -> String {
    let text = cut(&visible(text.trim()), longest);
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace("⟨\\\\", "⟨\\"))
}

/// Why it is asked. A reason that the agent gives is not one.
fn why(question: &Question, source: ApprovalSource) -> String {
    match (&question.approval, &question.decision.because) {
        _ if question.problem.is_some() => {
            "the request cannot be read for certain, so no rule can allow it".to_owned()
        }
        (Some(Approval { reason, .. }), _) if source == ApprovalSource::OwnGate => {
            format!("governance: {}", cut(&visible(reason), MAX_REASON_CHARS))
        }
        (_, Because::Approval { .. }) => "the agent says that it needs an approval".to_owned(),
        (_, because) => cut(&visible(&because.to_string()), MAX_REASON_CHARS),
    }
}

/// What was judged, row by row, and what a yes holds for beside that.
struct Facts {
    input: String,
    rows: Vec<(&'static str, String)>,
}

impl Facts {
    fn new(question: &Question) -> Self {
        let mut rows = Vec::new();
        let mut paths: Vec<String> = Vec::new();
        for (number, action) in question.subjects.iter().enumerate() {
            if number > 0 {
                rows.push(("and", "another subject of the same request".to_owned()));
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

    /// Returns `true` if it is not too long to be shown.
    fn is_short(&self) -> bool {
        let length = |text: &str| visible(text).chars().count();
        length(&self.input) <= MAX_SHOWN_CHARS
            && self.rows.iter().map(|(_, text)| length(text)).sum::<usize>() <= MAX_SHOWN_CHARS
    }
}

/// Adds everything that was judged of one subject.
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

/// The input without what the rows of a command show already. Everything else is shown as it is, whether it was understood
/// or not; the arguments of an MCP tool always are.
fn remaining_input(question: &Question) -> String {
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

/// The keys and what they mean, by the kinds of the options: their names are the agent's.
fn keys(question: &Question, lack: Option<Lack>, size: Size, above: usize) -> String {
    let mut rows = Rows::new(size.columns);
    match lack {
        Some(Lack::TooLong) => {
            rows.add("  ", 2, "It is too long to be shown, so it can only be rejected here.");
            rows.add("  ", 2, "A rule in a --policy file can allow it.");
        }
        Some(Lack::Unreadable) => {
            rows.add("  ", 2, "It cannot be read for certain, so it can only be rejected.");
        }
        None => {
            for (number, option) in question.options.iter().take(MAX_OPTIONS).enumerate() {
                rows.add(&format!("  [{}] ", number + 1), 6, &meaning(option));
            }
            if let Some(more) = question.options.len().checked_sub(MAX_OPTIONS).filter(|more| *more > 0) {
                rows.add("  ", 2, &format!("{more} more options of the agent cannot be chosen here"));
            }
        }
    }
    let total = above + rows.count() + 2;
    if total > size.rows {
        rows.add("  ", 2, &format!("The question has {total} rows: scroll up to see all of it."));
    }
    let (answers, prompt) = match lack {
        None => ("[y] yes, this once  [n] no, or Enter", "Allow it? "),
        Some(_) => ("[n] no, or Enter", "Reject it? "),
    };
    rows.add("  ", 2, answers);
    rows.into_text() + prompt
}

/// What an option means, and what the agent calls it.
fn meaning(option: &PermissionOption) -> String {
    let name = quoted(&option.name, MAX_OPTION_NAME_CHARS);
    match option.kind.as_str() {
        "allow_once" => format!("allow once: {name}"),
        "allow_always" => format!("allow always: {name}"),
        "reject_once" => format!("reject once: {name}"),
        "reject_always" => format!("reject always: {name}"),
        kind => format!("of unknown meaning ({}): {name}", quoted(kind, MAX_OPTION_NAME_CHARS)),
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
