//! What of a turn is shown, and how: the answer on stdout, the rest beside it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::IsTerminal;

use narrows_client::{EventBody, Payload, PermissionResolved, RunResult, RuntimeEvent};
use serde_json::Value;

use crate::cli::Output;
use crate::screen::Piece;
use crate::terminal::{Colour, Style, line, text as safe_text};

/// How much text one JSON object may hold.
const MOST_TEXT: usize = 64 << 20;

/// How much of a thought is shown.
const THOUGHT: usize = 100;

/// How many calls are shown at most.
const CALLS: usize = 10_000;

/// How many questions that were not settled are remembered.
const OPEN: usize = 64;

/// How many lines of a change are shown.
const CHANGED: usize = 12;

/// The answer is too long to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Turns events into what is shown.
#[derive(Debug)]
pub(crate) struct Presenter {
    format: Output,
    /// The text of the answer is not shown: it is kept for the end, or something else stands for it.
    quiet: bool,
    /// The text goes to a terminal.
    make_safe: bool,
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
    /// How many updates could not be read.
    unreadable: u64,
    /// What was asked and is not settled, by id.
    asked: HashMap<String, String>,
    /// What was refused by the rules, or because nobody could be asked.
    denied: Vec<String>,
}

impl Presenter {
    /// For this format, and for what stdout and stderr are. With a `form` the answer is shown at its end.
    pub(crate) fn new(format: Output, form: bool) -> Self {
        let keep = format == Output::Json;
        Self {
            format,
            quiet: form && format == Output::Text,
            make_safe: !keep && std::io::stdout().is_terminal(),
            watched: std::io::stderr().is_terminal(),
            colour: Colour::of_stderr(),
            kept: String::new(),
            interrupted: false,
            line_open: false,
            thought: String::new(),
            announced: HashSet::new(),
            unreadable: 0,
            asked: HashMap::new(),
            denied: Vec::new(),
        }
    }

    /// The text of the answer, if it was kept.
    pub(crate) fn into_text(self) -> String {
        self.kept
    }

    /// What was refused by the rules, or because nobody could be asked.
    pub(crate) fn denied(&self) -> Vec<String> {
        self.denied.clone()
    }

    /// What goes on, for whoever watches and has waited for so many seconds; nothing while a question is asked.
    pub(crate) fn status(&self, seconds: u64) -> Option<Piece> {
        if !self.watched || self.format != Output::Text || !self.asked.is_empty() {
            return None;
        }
        let doing = if self.thought.is_empty() { "working" } else { "thinking" };
        let words = format!("… {doing}, {seconds} s");
        Some(Piece::Status(self.colour.paint(Style::Dim, &words).into_owned()))
    }

    /// How many updates could not be read.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Adds what is to be shown of `event` to `pieces`.
    pub(crate) fn show(&mut self, event: &RuntimeEvent, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        if let EventBody::Provider { payload, .. } = &event.body {
            self.note_questions(payload);
        }
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
                let contents = output.content.iter().map(narrows_client::Json::value);
                for change in contents.filter(|content| content["type"] == "diff") {
                    self.change(&change, pieces);
                }
            }
            EventBody::Provider { payload, .. } => self.payload(payload, pieces)?,
            _ => {}
        }
        Ok(())
    }

    /// The same for what happened outside of a run.
    pub(crate) fn show_session(&mut self, event: &RuntimeEvent, pieces: &mut VecDeque<Piece>) {
        match (&event.body, self.format) {
            (_, Output::Events) => write(event, pieces),
            (EventBody::Provider { payload: payload @ Payload::ConfigRejected { .. }, .. }, _) => {
                // It holds no text of an answer, so there is nothing that could be too long.
                let _ = self.payload(payload, pieces);
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
                let words = format!("the {} {:?} cannot be had: {}", line(option), line(value), line(reason));
                pieces.push_back(Piece::Note(words));
            }
            Payload::PermissionResolved(resolved) => {
                if let Some(words) = refused(resolved) {
                    self.interrupted = true;
                    let wanted = self.asked.remove(&resolved.request_id).unwrap_or_default();
                    pieces.push_back(self.aside(&format!("refused: {} ({})", line(&wanted), line(&words))));
                }
            }
            Payload::Update { update, .. } => {
                let update = update.value();
                // A call is shown when it is announced, though its input may come later.
                if let (Some("tool_call"), Some(id)) =
                    (update["sessionUpdate"].as_str(), update["toolCallId"].as_str())
                    && let Some(title) = update["title"].as_str().filter(|title| !title.trim().is_empty())
                {
                    self.announce(id, title, pieces);
                }
                if let Some(what) = unshown(&update) {
                    pieces.push_back(self.aside(&format!("(the answer has {what} in it)")));
                }
            }
            Payload::Other { name, data } if name == "mcp.failed" => {
                let problem = data.value()["problem"].as_str().unwrap_or_default().to_owned();
                pieces.push_back(Piece::Note(line(&problem)));
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows a call, once.
    fn announce(&mut self, id: &str, title: &str, pieces: &mut VecDeque<Piece>) {
        self.interrupted = true;
        if self.watched && self.announced.len() < CALLS && self.announced.insert(id.to_owned()) {
            pieces.push_back(self.aside(&format!("tool: {}", line(title))));
        }
    }

    /// Remembers what was asked, and what was refused without anybody being asked.
    fn note_questions(&mut self, payload: &Payload) {
        match payload {
            Payload::Update { problem: Some(problem), .. } => {
                // One is enough: an agent may never stop sending them.
                if self.unreadable == 0 {
                    tracing::warn!("an update of the agent cannot be read: {problem}");
                }
                self.unreadable += 1;
            }
            Payload::PermissionRequested(asked) if self.asked.len() < OPEN => {
                let title = asked.title.clone().or_else(|| asked.tool_name.clone()).unwrap_or_default();
                self.asked.insert(asked.request_id.clone(), title);
            }
            Payload::PermissionResolved(resolved) => {
                let by = resolved.decision.as_ref().map(|decision| decision.value()["by"].clone());
                let by_rules = by.is_some_and(|by| by != "answer" && by != "cancelled");
                if refused(resolved).is_some() && by_rules && self.denied.len() < OPEN {
                    let wanted = self.asked.get(&resolved.request_id).cloned().unwrap_or_default();
                    self.denied.push(line(&wanted));
                }
                if self.format == Output::Events || refused(resolved).is_none() {
                    self.asked.remove(&resolved.request_id);
                }
            }
            _ => {}
        }
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
        pieces.push_back(Piece::LineEnd);
        Ok(())
    }

    fn put(&mut self, text: &str, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        self.line_open = !text.ends_with('\n');
        if self.format != Output::Json {
            let text = if self.make_safe { safe_text(text) } else { Cow::Borrowed(text) };
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

    /// How a file changed, by its first lines.
    fn change(&self, change: &Value, pieces: &mut VecDeque<Piece>) {
        let text = |key: &str| change[key].as_str().unwrap_or_default();
        pieces.push_back(self.aside(&format!("changed: {}", line(text("path")))));
        let (old, new): (Vec<&str>, Vec<&str>) =
            (text("oldText").lines().collect(), text("newText").lines().collect());
        let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        let (old, new) = (&old[same..], &new[same..]);
        let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
        let removed = old[..old.len() - tail].iter().map(|text| format!("- {}", line(text)));
        let added = new[..new.len() - tail].iter().map(|text| format!("+ {}", line(text)));
        let all: Vec<String> = removed.chain(added).collect();
        pieces.extend(all.iter().take(CHANGED).map(|text| self.aside(text)));
        if all.len() > CHANGED {
            pieces.push_back(self.aside(&format!("… {} more lines", all.len() - CHANGED)));
        }
    }

    /// A line beside the answer.
    fn aside(&self, text: &str) -> Piece {
        Piece::Note(self.colour.paint(Style::Dim, text).into_owned())
    }
}

/// Adds `event` as a line of JSON.
fn write(event: &RuntimeEvent, pieces: &mut VecDeque<Piece>) {
    let Ok(json) = serde_json::to_string(event) else { return };
    match pieces.back_mut() {
        Some(Piece::Text(last)) => {
            last.push_str(&json);
            last.push('\n');
        }
        _ => pieces.push_back(Piece::Text(json + "\n")),
    }
}

/// What the agent calls a tool call.
fn title(event: &RuntimeEvent) -> Option<String> {
    let raw = event.raw.as_ref()?.value();
    let title = raw.pointer("/update/title").or_else(|| raw.pointer("/toolCall/title"))?.as_str()?;
    (!title.trim().is_empty()).then(|| title.to_owned())
}

/// Why something was refused, if it was.
fn refused(resolved: &PermissionResolved) -> Option<String> {
    let allowed = resolved.outcome == "allowed"
        || resolved.option_kind.as_deref().is_some_and(|kind| kind.starts_with("allow"));
    if allowed {
        return None;
    }
    let decision = resolved.decision.as_ref().map(narrows_client::Json::value).unwrap_or_default();
    let words = decision["words"].as_str().unwrap_or_default();
    Some(match decision["by"].as_str() {
        Some("policy") => words.to_owned(),
        Some("answer") => "you said no".to_owned(),
        Some("timed out") => "nobody answered in time".to_owned(),
        Some("nobody to ask") => {
            format!("nobody can be asked; {}", words.strip_prefix("ask: ").unwrap_or(words))
        }
        Some(by) => by.to_owned(),
        None => resolved.outcome.clone(),
    })
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
mod tests {
    use serde_json::json;

    use super::*;

    fn presenter() -> Presenter {
        // Whatever the tests run in, what they say must not depend on it.
        let presenter = Presenter::new(Output::Text, false);
        Presenter { make_safe: true, watched: true, colour: Colour::off(), ..presenter }
    }

    fn event(mut event: Value) -> RuntimeEvent {
        event["atMs"] = 0.into();
        event["runId"] = "r".into();
        serde_json::from_value(event).expect("an event")
    }

    fn text(text: &str) -> RuntimeEvent {
        event(json!({"type": "assistant.delta", "textDelta": text}))
    }

    fn message() -> RuntimeEvent {
        event(json!({"type": "assistant.message", "message": {"text": "whatever"}}))
    }

    fn tool(name: &str) -> RuntimeEvent {
        event(json!({"type": "tool.call", "callId": "1", "toolName": name, "input": {"a": 1}}))
    }

    fn payload(payload: &Value) -> RuntimeEvent {
        event(json!({"type": "provider.event", "provider": "p", "payload": payload}))
    }

    fn shown(mut presenter: Presenter, events: impl IntoIterator<Item = RuntimeEvent>) -> String {
        let mut pieces = VecDeque::new();
        for event in events {
            presenter.show(&event, &mut pieces).expect("short enough");
        }
        presenter.end_thought(&mut pieces);
        let text = |piece| match piece {
            Piece::Text(text) => text,
            Piece::LineEnd => "\n".to_owned(),
            Piece::Note(note) => format!("[{note}]"),
            Piece::Status(status) => format!("({status})"),
            Piece::Rest => String::new(),
        };
        pieces.into_iter().map(text).collect()
    }

    #[track_caller]
    fn check(events: impl IntoIterator<Item = RuntimeEvent>, expected: &str) {
        assert_eq!(shown(presenter(), events), expected);
    }

    #[test]
    fn chunks_run_on_and_messages_do_not() {
        check([text("a"), text("b")], "ab");
        check([text("a"), text("b"), message(), text("c")], "ab\nc");
        check([text("a"), tool("t"), text("b")], "a[tool: t {\"a\":1}]\nb");
        check([text("a\n"), tool("t"), text("b")], "a\n[tool: t {\"a\":1}]b");
        let replaced =
            json!({"type": "message.replaced", "role": "assistant", "messageId": "1", "text": "xy"});
        check([text("ab"), payload(&replaced), text("z")], "ab\nxy\nz");
    }

    #[test]
    fn what_stands_beside_is_short_and_safe() {
        let thought = |text: &str| event(json!({"type": "assistant.reasoning.delta", "textDelta": text}));
        check([thought("I wonder\n"), thought(" why "), text("a")], "[thinking: I wonder why]a");
        check([thought(&"x".repeat(1000))], &format!("[thinking: {}…]", "x".repeat(THOUGHT)));
        check([tool("\u{1b}[2J\nx")], "[tool: \\u{1b}[2J x {\"a\":1}]");
        check([text("\u{7}a")], "\\u{7}a");
        let titled = json!({
            "type": "tool.call", "callId": "1", "toolName": "t", "input": {},
            "raw": {"update": {"title": "Do it"}},
        });
        check([event(titled)], "[tool: Do it]");
        let image = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "image"}});
        check(
            [payload(&json!({"type": "session.update", "update": image}))],
            "[(the answer has an image in it)]",
        );
    }

    #[test]
    fn changes_are_shown_by_what_differs() {
        let change = json!({"type": "diff", "path": "/a", "oldText": "1\n2\n3", "newText": "1\ntwo\n3"});
        let result = json!({
            "type": "tool.result", "callId": "1", "output": {"status": "completed", "content": [change]},
        });
        check([event(result)], "[changed: /a][- 2][+ two]");
        let failed = json!({"type": "tool.result", "callId": "1", "output": {"status": "failed"}});
        check([event(failed)], "[tool: failed]");
    }

    #[test]
    fn what_was_refused_is_told_and_remembered() {
        let asked =
            json!({"type": "permission.requested", "requestId": "1", "method": "m", "title": "Write /a"});
        let settled = |outcome: Value, by: &str| {
            let mut settled = json!({
                "type": "permission.resolved", "requestId": "1",
                "decision": {"by": by, "words": "deny: no rule"},
            });
            settled
                .as_object_mut()
                .expect("an object")
                .extend(outcome.as_object().cloned().unwrap_or_default());
            settled
        };
        let refused = json!({"outcome": "refused"});
        for (outcome, by, expected, denied) in [
            (refused.clone(), "policy", "[refused: Write /a (deny: no rule)]", 1),
            (refused.clone(), "nobody to ask", "[refused: Write /a (nobody can be asked; deny: no rule)]", 1),
            (refused, "answer", "[refused: Write /a (you said no)]", 0),
            (
                json!({"outcome": "selected", "optionKind": "reject_once"}),
                "answer",
                "[refused: Write /a (you said no)]",
                0,
            ),
            (json!({"outcome": "selected", "optionKind": "allow_once"}), "policy", "", 0),
            (json!({"outcome": "allowed"}), "policy", "", 0),
        ] {
            let events = [payload(&asked.clone()), payload(&settled(outcome, by))];
            check(events.clone(), expected);
            let mut presenter = presenter();
            for event in &events {
                presenter.show(event, &mut VecDeque::new()).expect("short");
            }
            assert_eq!(presenter.denied().len(), denied, "{expected}");
        }
    }

    #[test]
    fn what_goes_on_is_told_to_whoever_watches() {
        let status = |presenter: &Presenter| match presenter.status(3) {
            Some(Piece::Status(status)) => status,
            other => format!("{other:?}"),
        };
        let mut presenter = presenter();
        assert_eq!(status(&presenter), "… working, 3 s");
        presenter.thought.push_str("hm");
        assert_eq!(status(&presenter), "… thinking, 3 s");
        presenter.asked.insert("1".to_owned(), "May I?".to_owned());
        assert_eq!(status(&presenter), "None");
        presenter.asked.clear();
        assert_eq!(status(&Presenter { watched: false, ..presenter }), "None");
    }

    #[test]
    fn events_are_lines() {
        let presenter = Presenter { format: Output::Events, ..presenter() };
        let lines = shown(presenter, [text("a"), message()]);
        let types: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["type"].clone())
            .collect();
        assert_eq!(types, ["assistant.delta", "assistant.message"]);
    }

    #[test]
    fn kept_text_is_bounded() {
        let mut presenter = Presenter { format: Output::Json, ..presenter() };
        let mut pieces = VecDeque::new();
        let half = "x".repeat(MOST_TEXT / 2);
        assert_eq!(presenter.show(&text(&half), &mut pieces), Ok(()));
        assert_eq!(presenter.show(&text(&half), &mut pieces), Ok(()));
        assert_eq!(presenter.show(&text("x"), &mut pieces), Err(TooLong));
        assert!(pieces.is_empty());
    }
}
