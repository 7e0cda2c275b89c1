//! Renders the events of a turn: the answer for stdout, everything else for stderr.

pub(crate) mod change;
mod plan;
mod refusals;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::io::IsTerminal;

use narrows_base::text::{escape_json, multi_line, one_line, without_controls};
use narrows_client::{EventBody, Json, Payload, RunResult, RuntimeEvent};
use serde_json::Value;

use crate::cli::Output;
use crate::output_thread::OutputPiece;
use crate::terminal::{Color, Style, line};
use plan::Plans;
use refusals::RefusalTracker;
pub(crate) use refusals::{BY_ANSWER, BY_GATE, Refusal};

/// Maximum size of the answer in one JSON object.
const MAX_TEXT_BYTES: usize = 64 << 20;

const MAX_THOUGHT_CHARS: usize = 100;

const MAX_APPROVAL_CHARS: usize = 1000;

const MAX_NOTICE_CHARS: usize = 1000;

const MAX_WARNINGS: usize = 100;

const MAX_ANNOUNCED_CALLS: usize = 10_000;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Returns the warning for an event, if users must be warned.
pub(crate) fn warning(name: &str, data: &Json) -> Option<String> {
    let hint = match name {
        "mcp.failed" | "mode.left" | "repository.created" => "",
        "command.run_by_agent" => " (hint: remove `commands_run_by = \"client\"` from its settings)",
        _ => return None,
    };
    let problem = data.value()["problem"].as_str().map(line).unwrap_or_default();
    Some(format!("{problem}{hint}"))
}

#[derive(Debug)]
pub(crate) struct Renderer {
    format: Output,
    /// `true` if the answer is collected and printed at the end, not streamed.
    quiet: bool,
    on_terminal: bool,
    /// `true` if the last piece of text ended with a carriage return, which may be half of a CRLF.
    held_return: bool,
    /// `true` if a user watches stderr.
    watched: bool,
    color: Color,
    kept: String,
    /// `true` if other output was shown after the last answer text.
    needs_separator: bool,
    /// `true` if the last answer text does not end with a line end.
    line_open: bool,
    thought: String,
    announced: HashSet<String>,
    unreadable: u64,
    /// `true` once the user was warned of an unreadable update.
    has_warned: bool,
    refusals: RefusalTracker,
    plans: Plans,
    warnings: Vec<String>,
}

impl Renderer {
    /// Creates a renderer for a format and the current terminals. With a `form`, the answer must match a
    /// schema, so it is shown at the end.
    pub(crate) fn new(format: Output, form: bool) -> Self {
        Self {
            format,
            quiet: form && format == Output::Text,
            on_terminal: std::io::stdout().is_terminal(),
            held_return: false,
            watched: std::io::stderr().is_terminal(),
            color: Color::for_stderr(),
            kept: String::new(),
            needs_separator: false,
            line_open: false,
            thought: String::new(),
            announced: HashSet::new(),
            unreadable: 0,
            has_warned: false,
            refusals: RefusalTracker::default(),
            plans: Plans::default(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    pub(crate) fn format(&self) -> Output {
        self.format
    }

    pub(crate) fn into_text(self) -> String {
        self.kept
    }

    /// Returns the requests that were denied by a rule or by an approver, or because there was no approver.
    pub(crate) fn denied(&self) -> &[Refusal] {
        self.refusals.denied()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched && self.format == Output::Text
    }

    /// Returns a progress message after a wait. `None` while a permission request is pending.
    pub(crate) fn status(&self, seconds: u64) -> Option<OutputPiece> {
        if !self.is_watched() || self.refusals.is_open() {
            return None;
        }
        let doing = if self.thought.is_empty() { "working" } else { "thinking" };
        let words = format!("… {doing}, {seconds} s");
        Some(OutputPiece::Status(self.color.paint(Style::Dim, &words).into_owned()))
    }

    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    pub(crate) fn show(
        &mut self,
        event: &RuntimeEvent,
        pieces: &mut VecDeque<OutputPiece>,
    ) -> Result<(), TooLong> {
        let refused = match &event.body {
            EventBody::Provider { payload, .. } => self.record(payload),
            _ => None,
        };
        if self.format == Output::Events {
            push_json(event, pieces);
            return Ok(());
        }
        if !matches!(event.body, EventBody::ReasoningDelta { .. }) {
            self.end_thought(pieces);
        }
        match &event.body {
            EventBody::AssistantDelta { text_delta } => self.add_text(text_delta, pieces)?,
            EventBody::ReasoningDelta { text_delta } => self.add_thought(text_delta),
            // A new message is separated from the one before it.
            EventBody::AssistantMessage { .. } => self.needs_separator = true,
            EventBody::ToolCall { call_id, tool_name, input } => {
                let bare = || match input.is_empty() {
                    true => tool_name.clone(),
                    false => format!("{tool_name} {}", input.text()),
                };
                self.announce(call_id, &title(event).unwrap_or_else(bare), pieces);
            }
            EventBody::ToolResult { output, .. } if self.watched => {
                if !matches!(output.status.as_str(), "completed" | "interrupted") {
                    pieces.push_back(self.side_note(&format!("tool: {}", line(&output.status))));
                }
                // Before its end, the content is only what the call wants to change.
                let is_done = output.status == "completed";
                let contents = output.content.iter().filter(|_| is_done).map(Json::value);
                for change in contents.filter(|content| content["type"] == "diff") {
                    pieces.extend(change::change_lines(&change).iter().map(|text| self.side_note(text)));
                }
            }
            EventBody::Provider { payload, .. } => self.payload(payload, pieces)?,
            _ => {}
        }
        if let Some(Refusal { wanted, words, .. }) = refused {
            self.needs_separator = true;
            pieces.push_back(self.side_note(&format!("denied: {wanted} ({words})")));
        }
        Ok(())
    }

    /// Adds the output for an event outside of a run.
    pub(crate) fn show_session(&mut self, event: &RuntimeEvent, pieces: &mut VecDeque<OutputPiece>) {
        match (&event.body, self.format) {
            (_, Output::Events) => push_json(event, pieces),
            (EventBody::Provider { payload: Payload::Update { update, replay: false, .. }, .. }, _) => {
                self.show_notice(&update.value(), pieces);
            }
            (EventBody::Provider { payload: payload @ Payload::ConfigRejected { .. }, .. }, _) => {
                // No answer text arrives outside of a run, so it cannot be too long.
                let _ = self.payload(payload, pieces);
            }
            (EventBody::Provider { payload: Payload::Other { name, data }, .. }, _) => {
                pieces.extend(warning(name, data).map(OutputPiece::Note));
            }
            _ => {}
        }
    }

    fn payload(&mut self, payload: &Payload, pieces: &mut VecDeque<OutputPiece>) -> Result<(), TooLong> {
        match payload {
            Payload::MessageReplaced { role: narrows_client::Role::Assistant, text, .. } => {
                self.needs_separator = true;
                self.add_text(text, pieces)?;
                self.needs_separator = true;
            }
            Payload::ConfigRejected { option, value, reason } => {
                pieces.push_back(OutputPiece::Note(rejection(option, value, reason)));
            }
            Payload::Update { update, .. } => {
                let update = update.value();
                self.show_notice(&update, pieces);
                // A call is shown when the agent announces it, even if its input comes later.
                if let (Some("tool_call"), Some(id)) =
                    (update["sessionUpdate"].as_str(), update["toolCallId"].as_str())
                    && let Some(title) = update["title"].as_str().filter(|title| !title.trim().is_empty())
                {
                    self.announce(id, title, pieces);
                }
                if self.watched {
                    let lines = self.plans.update(&update);
                    self.needs_separator |= !lines.is_empty();
                    pieces.extend(lines.iter().map(|text| self.side_note(text)));
                }
                if let Some(what) = content_kind(&update) {
                    pieces.push_back(self.side_note(&format!("(the answer contains {what})")));
                }
            }
            Payload::Other { name, data } if name == "approval" => {
                self.needs_separator = true;
                let told = data.value()["text"].as_str().unwrap_or_default().to_owned();
                pieces.push_back(OutputPiece::Note(one_line(&told, MAX_APPROVAL_CHARS)));
            }
            Payload::Other { name, data } => pieces.extend(warning(name, data).map(OutputPiece::Note)),
            _ => {}
        }
        Ok(())
    }

    /// Shows warnings and errors. Shows other notices only to a watching user.
    fn show_notice(&mut self, update: &Value, pieces: &mut VecDeque<OutputPiece>) {
        if update["sessionUpdate"] != "notice" {
            return;
        }
        let text = |key: &str| update[key].as_str().map(str::trim).filter(|text| !text.is_empty());
        let Some(title) = text("title") else { return };
        let whole = text("description").map_or(title.to_owned(), |more| format!("{title}: {more}"));
        let words = one_line(&whole, MAX_NOTICE_CHARS);
        let is_warning = matches!(text("severity"), Some("warning" | "error"));
        if is_warning && self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(words.clone());
        }
        if is_warning {
            self.needs_separator = true;
            pieces.push_back(OutputPiece::Note(format!("warning: {words}")));
        } else if self.watched {
            self.needs_separator = true;
            pieces.push_back(self.side_note(&words));
        }
    }

    /// Shows a tool call once.
    fn announce(&mut self, id: &str, title: &str, pieces: &mut VecDeque<OutputPiece>) {
        self.needs_separator = true;
        if self.watched && self.announced.len() < MAX_ANNOUNCED_CALLS && self.announced.insert(id.to_owned())
        {
            pieces.push_back(self.side_note(&format!("tool: {}", line(title))));
        }
    }

    /// Tracks permission requests and unreadable updates. Returns a denial to show, if there is one.
    fn record(&mut self, payload: &Payload) -> Option<Refusal> {
        if let Payload::Update { problem: Some(problem), update, .. } = payload {
            // One warning is enough, because an agent may send any number of unreadable updates.
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!(error = %problem, "invalid update of the agent");
            }
            self.unreadable += u64::from(is_of_answer(update));
        }
        self.refusals.record(payload)
    }

    /// Ends open lines, and adds the collected answer.
    pub(crate) fn finish(&mut self, result: &RunResult, pieces: &mut VecDeque<OutputPiece>) {
        self.end_thought(pieces);
        if self.quiet {
            let answer = result.structured_output.as_ref().map(|value| format!("{value:#}\n"));
            pieces.extend(answer.map(OutputPiece::Text));
        }
    }

    fn add_text(&mut self, text: &str, pieces: &mut VecDeque<OutputPiece>) -> Result<(), TooLong> {
        if text.is_empty() || self.quiet {
            return Ok(());
        }
        if self.line_open && self.needs_separator {
            self.end_line(pieces)?;
        }
        self.needs_separator = false;
        self.push_text(text, pieces)
    }

    fn end_line(&mut self, pieces: &mut VecDeque<OutputPiece>) -> Result<(), TooLong> {
        if self.format == Output::Json {
            return self.push_text("\n", pieces);
        }
        self.held_return = false;
        pieces.push_back(OutputPiece::LineEnd);
        Ok(())
    }

    fn push_text(&mut self, text: &str, pieces: &mut VecDeque<OutputPiece>) -> Result<(), TooLong> {
        self.line_open = !text.ends_with('\n');
        if self.format != Output::Json {
            let text = if self.held_return { Cow::from(format!("\r{text}")) } else { Cow::from(text) };
            self.held_return = text.ends_with('\r');
            let text = text.strip_suffix('\r').unwrap_or(&text);
            let text = if self.on_terminal { multi_line(text) } else { without_controls(text) };
            match pieces.back_mut() {
                Some(OutputPiece::Text(last)) => last.push_str(&text),
                _ => pieces.push_back(OutputPiece::Text(text.into_owned())),
            }
        } else if self.kept.len() + text.len() > MAX_TEXT_BYTES {
            return Err(TooLong);
        } else {
            self.kept.push_str(text);
        }
        Ok(())
    }

    /// Collects a thought, which arrives in pieces. Only its beginning is shown.
    fn add_thought(&mut self, thought: &str) {
        self.needs_separator = true;
        if self.watched && self.thought.len() < 8 * MAX_THOUGHT_CHARS {
            self.thought.extend(thought.chars().take(2 * MAX_THOUGHT_CHARS));
        }
    }

    fn end_thought(&mut self, pieces: &mut VecDeque<OutputPiece>) {
        let thought = std::mem::take(&mut self.thought);
        let mut words = thought.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.is_empty() {
            return;
        }
        if let Some((end, _)) = words.char_indices().nth(MAX_THOUGHT_CHARS) {
            words.truncate(end);
            words.push('…');
        }
        pieces.push_back(self.side_note(&format!("thinking: {}", line(&words))));
    }

    fn side_note(&self, text: &str) -> OutputPiece {
        OutputPiece::Note(self.color.paint(Style::Dim, text).into_owned())
    }
}

pub(crate) fn rejection(option: &str, value: &str, reason: &str) -> String {
    format!("{} {:?} not set: {}", line(option), line(value), line(reason))
}

fn push_json(event: &RuntimeEvent, pieces: &mut VecDeque<OutputPiece>) {
    let Ok(json) = serde_json::to_string(event).map(escape_json) else { return };
    match pieces.back_mut() {
        Some(OutputPiece::Text(last)) => {
            last.push_str(&json);
            last.push('\n');
        }
        _ => pieces.push_back(OutputPiece::Text(json + "\n")),
    }
}

/// Returns `true` if an unreadable update is part of the answer, so that the answer is incomplete.
fn is_of_answer(update: &Json) -> bool {
    matches!(update.value()["sessionUpdate"].as_str(), Some("agent_message_chunk" | "agent_message"))
}

fn title(event: &RuntimeEvent) -> Option<String> {
    let raw = event.raw.as_ref()?.value();
    let title = raw.pointer("/update/title").or_else(|| raw.pointer("/toolCall/title"))?.as_str()?;
    (!title.trim().is_empty()).then(|| title.to_owned())
}

fn content_kind(update: &Value) -> Option<&'static str> {
    if !matches!(update["sessionUpdate"].as_str(), Some("agent_message_chunk")) {
        return None;
    }
    Some(match update["content"]["type"].as_str() {
        Some("text") | None => return None,
        Some("image") => "an image",
        Some("audio") => "audio",
        Some("resource" | "resource_link") => "a resource",
        Some(_) => "something",
    })
}

#[cfg(test)]
mod tests;
