//! What of a turn is shown, and how: the answer on stdout, the rest beside it.

pub(crate) mod change;
mod ledger;
mod plan;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::io::IsTerminal;

use narrows_base::text::{escape_json, multi_line, one_line, without_controls};
use narrows_client::{EventBody, Json, Payload, RunResult, RuntimeEvent};
use serde_json::Value;

use crate::cli::Output;
use crate::screen::Piece;
use crate::terminal::{Colour, Style, line};
use ledger::Ledger;
pub(crate) use ledger::{ANSWER, GATE, Refusal};
use plan::Plans;

/// How much text one JSON object may hold.
const MOST_TEXT: usize = 64 << 20;

/// How much of a thought is shown.
const THOUGHT: usize = 100;

/// How much is shown of what a gate says of an approval.
const APPROVAL: usize = 1000;

/// How many characters of a notice are shown.
const MAX_NOTICE_CHARS: usize = 1000;

/// How many warnings of the agent are kept for the JSON object.
const MAX_WARNINGS: usize = 100;

/// How many calls are shown at most.
const CALLS: usize = 10_000;

/// The answer is too long to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Returns the line about an event that people are warned of, if it is one.
pub(crate) fn warning(name: &str, data: &Json) -> Option<String> {
    let hint = match name {
        "mcp.failed" | "mode.left" => "",
        "command.run_by_agent" => " (hint: remove `commands-run-by = \"client\"` from its settings)",
        _ => return None,
    };
    let problem = data.value()["problem"].as_str().map(line).unwrap_or_default();
    Some(format!("{problem}{hint}"))
}

/// Turns events into what is shown.
#[derive(Debug)]
pub(crate) struct Presenter {
    format: Output,
    /// The text of the answer is not shown: it is kept for the end, or something else stands for it.
    quiet: bool,
    /// The text goes to a terminal.
    on_terminal: bool,
    /// The last piece of the text ended with a carriage return, which may belong to the end of a line.
    held_return: bool,
    /// Somebody watches stderr.
    watched: bool,
    colour: Colour,
    /// The text, if it is kept.
    kept: String,
    /// Something else has happened since the last text.
    interrupted: bool,
    /// The text does not end with a line end.
    line_open: bool,
    thought: String,
    /// The calls that were shown.
    announced: HashSet<String>,
    /// How many parts of the answer could not be read.
    unreadable: u64,
    /// An update could not be read, and that was said.
    has_warned: bool,
    /// What was asked, and what was refused.
    ledger: Ledger,
    plans: Plans,
    /// Warnings of the agent, the first of them.
    warnings: Vec<String>,
}

impl Presenter {
    /// For this format, and for what stdout and stderr are. With a `form` the answer is shown at its end.
    pub(crate) fn new(format: Output, form: bool) -> Self {
        Self {
            format,
            quiet: form && format == Output::Text,
            on_terminal: std::io::stdout().is_terminal(),
            held_return: false,
            watched: std::io::stderr().is_terminal(),
            colour: Colour::of_stderr(),
            kept: String::new(),
            interrupted: false,
            line_open: false,
            thought: String::new(),
            announced: HashSet::new(),
            unreadable: 0,
            has_warned: false,
            ledger: Ledger::default(),
            plans: Plans::default(),
            warnings: Vec::new(),
        }
    }

    /// Takes the warnings of the agent.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// The format in which the answer is printed.
    pub(crate) fn format(&self) -> Output {
        self.format
    }

    /// The text of the answer, if it was kept.
    pub(crate) fn into_text(self) -> String {
        self.kept
    }

    /// What was refused: by the rules, by whoever was asked, or because nobody could be.
    pub(crate) fn denied(&self) -> &[Refusal] {
        self.ledger.denied()
    }

    /// Whether somebody watches who is shown what goes on.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched && self.format == Output::Text
    }

    /// What goes on, for whoever watches and has waited for so many seconds; nothing while a question is asked.
    pub(crate) fn status(&self, seconds: u64) -> Option<Piece> {
        if !self.is_watched() || self.ledger.is_open() {
            return None;
        }
        let doing = if self.thought.is_empty() { "working" } else { "thinking" };
        let words = format!("… {doing}, {seconds} s");
        Some(Piece::Status(self.colour.paint(Style::Dim, &words).into_owned()))
    }

    /// How many parts of the answer could not be read.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Adds what is to be shown of `event` to `pieces`.
    pub(crate) fn show(&mut self, event: &RuntimeEvent, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        let refused = match &event.body {
            EventBody::Provider { payload, .. } => self.note(payload),
            _ => None,
        };
        if self.format == Output::Events {
            write(event, pieces);
            return Ok(());
        }
        if !matches!(event.body, EventBody::ReasoningDelta { .. }) {
            self.end_thought(pieces);
        }
        match &event.body {
            EventBody::AssistantDelta { text_delta } => self.say(text_delta, pieces)?,
            EventBody::ReasoningDelta { text_delta } => self.think(text_delta),
            // Two messages must not run into each other.
            EventBody::AssistantMessage { .. } => self.interrupted = true,
            EventBody::ToolCall { call_id, tool_name, input } => {
                let bare = || match input.is_empty() {
                    true => tool_name.clone(),
                    false => format!("{tool_name} {}", input.text()),
                };
                self.announce(call_id, &title(event).unwrap_or_else(bare), pieces);
            }
            EventBody::ToolResult { output, .. } if self.watched => {
                if !matches!(output.status.as_str(), "completed" | "interrupted") {
                    pieces.push_back(self.aside(&format!("tool: {}", line(&output.status))));
                }
                let contents = output.content.iter().map(Json::value);
                for change in contents.filter(|content| content["type"] == "diff") {
                    pieces.extend(change::lines(&change).iter().map(|text| self.aside(text)));
                }
            }
            EventBody::Provider { payload, .. } => self.payload(payload, pieces)?,
            _ => {}
        }
        if let Some(Refusal { wanted, words, .. }) = refused {
            self.interrupted = true;
            pieces.push_back(self.aside(&format!("refused: {wanted} ({words})")));
        }
        Ok(())
    }

    /// The same for what happened outside of a run.
    pub(crate) fn show_session(&mut self, event: &RuntimeEvent, pieces: &mut VecDeque<Piece>) {
        match (&event.body, self.format) {
            (_, Output::Events) => write(event, pieces),
            (EventBody::Provider { payload: Payload::Update { update, replay: false, .. }, .. }, _) => {
                self.show_notice(&update.value(), pieces);
            }
            (EventBody::Provider { payload: payload @ Payload::ConfigRejected { .. }, .. }, _) => {
                // It holds no text of an answer, so there is nothing that could be too long.
                let _ = self.payload(payload, pieces);
            }
            (EventBody::Provider { payload: Payload::Other { name, data }, .. }, _) => {
                pieces.extend(warning(name, data).map(Piece::Note));
            }
            _ => {}
        }
    }

    fn payload(&mut self, payload: &Payload, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        match payload {
            Payload::MessageReplaced { role: narrows_client::Role::Assistant, text, .. } => {
                self.interrupted = true;
                self.say(text, pieces)?;
                self.interrupted = true;
            }
            Payload::ConfigRejected { option, value, reason } => {
                pieces.push_back(Piece::Note(rejection(option, value, reason)));
            }
            Payload::Update { update, .. } => {
                let update = update.value();
                self.show_notice(&update, pieces);
                // A call is shown when it is announced, though its input may come later.
                if let (Some("tool_call"), Some(id)) =
                    (update["sessionUpdate"].as_str(), update["toolCallId"].as_str())
                    && let Some(title) = update["title"].as_str().filter(|title| !title.trim().is_empty())
                {
                    self.announce(id, title, pieces);
                }
                if self.watched {
                    let lines = self.plans.update(&update);
                    self.interrupted |= !lines.is_empty();
                    pieces.extend(lines.iter().map(|text| self.aside(text)));
                }
                if let Some(what) = unshown(&update) {
                    pieces.push_back(self.aside(&format!("(the answer has {what} in it)")));
                }
            }
            Payload::Other { name, data } if name == "approval" => {
                self.interrupted = true;
                let told = data.value()["text"].as_str().unwrap_or_default().to_owned();
                pieces.push_back(Piece::Note(one_line(&told, APPROVAL)));
            }
            Payload::Other { name, data } => pieces.extend(warning(name, data).map(Piece::Note)),
            _ => {}
        }
        Ok(())
    }

    /// Shows a `notice` that is a warning or an error to everybody, and others to who watches.
    fn show_notice(&mut self, update: &Value, pieces: &mut VecDeque<Piece>) {
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
            self.interrupted = true;
            pieces.push_back(Piece::Note(format!("warning: {words}")));
        } else if self.watched {
            self.interrupted = true;
            pieces.push_back(self.aside(&words));
        }
    }

    /// Shows a call, once.
    fn announce(&mut self, id: &str, title: &str, pieces: &mut VecDeque<Piece>) {
        self.interrupted = true;
        if self.watched && self.announced.len() < CALLS && self.announced.insert(id.to_owned()) {
            pieces.push_back(self.aside(&format!("tool: {}", line(title))));
        }
    }

    /// Remembers what was asked and what could not be read. What was refused is told.
    fn note(&mut self, payload: &Payload) -> Option<Refusal> {
        if let Payload::Update { problem: Some(problem), update, .. } = payload {
            // One is enough: an agent may never stop sending them.
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!("an update of the agent cannot be read: {problem}");
            }
            self.unreadable += u64::from(is_of_answer(update));
        }
        self.ledger.note(payload)
    }

    /// Ends what was not ended, and shows what the whole answer comes to.
    pub(crate) fn finish(&mut self, result: &RunResult, pieces: &mut VecDeque<Piece>) {
        self.end_thought(pieces);
        if self.quiet {
            let answer = result.structured_output.as_ref().map(|value| format!("{value:#}\n"));
            pieces.extend(answer.map(Piece::Text));
        }
    }

    /// More of the answer.
    fn say(&mut self, text: &str, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        if text.is_empty() || self.quiet {
            return Ok(());
        }
        if self.line_open && self.interrupted {
            self.end_line(pieces)?;
        }
        self.interrupted = false;
        self.put(text, pieces)
    }

    fn end_line(&mut self, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        if self.format == Output::Json {
            return self.put("\n", pieces);
        }
        self.held_return = false;
        pieces.push_back(Piece::LineEnd);
        Ok(())
    }

    fn put(&mut self, text: &str, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        self.line_open = !text.ends_with('\n');
        if self.format != Output::Json {
            let text = if self.held_return { Cow::from(format!("\r{text}")) } else { Cow::from(text) };
            self.held_return = text.ends_with('\r');
            let text = text.strip_suffix('\r').unwrap_or(&text);
            let text = if self.on_terminal { multi_line(text) } else { without_controls(text) };
            match pieces.back_mut() {
                Some(Piece::Text(last)) => last.push_str(&text),
                _ => pieces.push_back(Piece::Text(text.into_owned())),
            }
        } else if self.kept.len() + text.len() > MOST_TEXT {
            return Err(TooLong);
        } else {
            self.kept.push_str(text);
        }
        Ok(())
    }

    /// A thought comes in many pieces; its beginning is enough.
    fn think(&mut self, thought: &str) {
        self.interrupted = true;
        if self.watched && self.thought.len() < 8 * THOUGHT {
            self.thought.extend(thought.chars().take(2 * THOUGHT));
        }
    }

    fn end_thought(&mut self, pieces: &mut VecDeque<Piece>) {
        let thought = std::mem::take(&mut self.thought);
        let mut words = thought.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.is_empty() {
            return;
        }
        if let Some((end, _)) = words.char_indices().nth(THOUGHT) {
            words.truncate(end);
            words.push('…');
        }
        pieces.push_back(self.aside(&format!("thinking: {}", line(&words))));
    }

    /// A line beside the answer.
    fn aside(&self, text: &str) -> Piece {
        Piece::Note(self.colour.paint(Style::Dim, text).into_owned())
    }
}

/// Says that an option of the session was not set, and why.
pub(crate) fn rejection(option: &str, value: &str, reason: &str) -> String {
    format!("the {} {:?} was not set: {}", line(option), line(value), line(reason))
}

/// Adds `event` as a line of JSON.
fn write(event: &RuntimeEvent, pieces: &mut VecDeque<Piece>) {
    let Ok(json) = serde_json::to_string(event).map(escape_json) else { return };
    match pieces.back_mut() {
        Some(Piece::Text(last)) => {
            last.push_str(&json);
            last.push('\n');
        }
        _ => pieces.push_back(Piece::Text(json + "\n")),
    }
}

/// Returns `true` if an update that cannot be read is part of the answer: without it the answer is incomplete.
fn is_of_answer(update: &Json) -> bool {
    matches!(update.value()["sessionUpdate"].as_str(), Some("agent_message_chunk" | "agent_message"))
}

/// What the agent calls a tool call.
fn title(event: &RuntimeEvent) -> Option<String> {
    let raw = event.raw.as_ref()?.value();
    let title = raw.pointer("/update/title").or_else(|| raw.pointer("/toolCall/title"))?.as_str()?;
    (!title.trim().is_empty()).then(|| title.to_owned())
}

/// What a part of the answer is that is no text.
fn unshown(update: &Value) -> Option<&'static str> {
    if !matches!(update["sessionUpdate"].as_str(), Some("agent_message_chunk")) {
        return None;
    }
    Some(match update["content"]["type"].as_str() {
        Some("text") | None => return None,
        Some("image") => "an image",
        Some("audio") => "a sound",
        Some("resource" | "resource_link") => "a resource",
        Some(_) => "something",
    })
}

#[cfg(test)]
mod tests;
