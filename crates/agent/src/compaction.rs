//! Fits a conversation into the model's context window: replaces old turns by a summary, and cuts long tool
//! results.

use std::sync::Arc;

use narrows_model::{Completion, Message, ModelError, Part, Request};
use narrows_store::Turn as StoredTurn;
use serde_json::{Value, json};

use crate::catalog::Choice;
use crate::failure;
use crate::session::PastTurn;
use crate::size_limits::message_bytes;
use crate::turn::{StopReason, Turn};
use crate::update_writer::new_id;

/// Window size for compaction if the endpoint reports none. Small enough for most models.
const ASSUMED_WINDOW_TOKENS: u64 = 32_768;

/// Maximum number of tokens in a conversation if the endpoint reports no window, so that memory stays
/// bounded.
const MAX_WINDOW_TOKENS: u64 = 2_000_000;

/// Maximum number of bytes of the messages in one request, including images.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Tenths of the window that past turns may take after an automatic compaction.
pub(crate) const KEPT_TENTHS: u64 = 3;

/// Bytes kept of a tool result that is cut.
const SHORTENED_RESULT_BYTES: usize = 4096;

const SUMMARY_PROMPT: &str = "Summarise the conversation below so that it can be continued from your summary alone. Keep \
    decisions, facts, names, paths, numbers, open questions and what was changed; leave out pleasantries. Answer with \
    the summary only.";

const SUMMARY_HEADING: &str = "Summary of our conversation so far:\n\n";

/// Text that replaces old turns in a request if the model cannot summarize them.
const OMITTED_TURNS: &str = "(Earlier turns of this conversation were left out because they no longer fit.)";

pub(crate) const NO_SUMMARY: &str = "The model gave no summary.";

/// Outcome of an attempt to shorten a conversation.
#[derive(Debug)]
pub(crate) enum Compaction {
    Nothing,
    Done,
    /// The current request was shortened, but the conversation was not, because no summary exists. `None` if
    /// the model returned an empty summary.
    Unsummarized(Option<ModelError>),
}

impl Turn {
    /// Returns `true` if the next request probably exceeds the window.
    pub(crate) fn needs_compaction(&self, choice: &Choice, request: &Request) -> bool {
        let window = self.agent.catalog.traits(choice).window.unwrap_or(MAX_WINDOW_TOKENS);
        let reserved = request.max_tokens.unwrap_or(0).min(window / 4);
        let full = self.estimated_tokens(request) + reserved > window / 5 * 4
            || total_bytes(&request.messages) > MAX_REQUEST_BYTES;
        !self.is_compacted && full
    }

    /// Estimates the tokens of a request: the endpoint's last count plus an estimate for the messages added
    /// since. Returns an estimate of all messages if that is more.
    fn estimated_tokens(&self, request: &Request) -> u64 {
        let answered = request.messages.iter().rposition(|message| matches!(message, Message::Assistant(_)));
        let since = answered.map_or(0, |at| at + 1);
        let counted =
            self.session.state().used.map(|used| used + estimate_tokens(&request.messages[since..]));
        let tools =
            request.tools.iter().map(|tool| tool.description.len() + tool.parameters.to_string().len());
        let around = request.system.as_ref().map_or(0, String::len) + tools.sum::<usize>();
        let guessed = estimate_tokens(&request.messages) + (around / 4) as u64;
        counted.unwrap_or(0).max(guessed)
    }

    /// Shortens the conversation for the model. Keeps the newest past turns, as many as fit into `tenths` of
    /// the window.
    pub(crate) async fn compact(
        &mut self,
        choice: &Choice,
        request: &mut Request,
        tenths: u64,
    ) -> Result<Compaction, StopReason> {
        self.is_compacted = true;
        let window = self.agent.catalog.traits(choice).window.unwrap_or(ASSUMED_WINDOW_TOKENS);
        let past = self.session.state().past_turns.clone();
        let cut = count_removed(&past, window / 10 * tenths);
        let shortened = shorten_results(&mut request.messages);
        if cut == 0 {
            return Ok(if shortened { Compaction::Done } else { Compaction::Nothing });
        }
        let (old, kept) = past.split_at(cut);
        let id = new_id();
        self.send_compaction_update(&id, "in_progress", None).await?;
        let summary = match self.summarize(choice, old, window).await {
            Ok(summary) => summary,
            Err(reason) => {
                self.send_compaction_update(&id, "cancelled", None).await?;
                return Err(reason);
            }
        };
        let through = old.last().map_or(0, |past| past.number);
        let (text, outcome) = match summary {
            Ok(text) => (text, Compaction::Done),
            Err(error) => (OMITTED_TURNS.to_owned(), Compaction::Unsummarized(error)),
        };
        let mut fresh = vec![PastTurn { number: through, messages: summary_messages(old, &text) }];
        fresh.extend_from_slice(kept);
        let mut messages: Vec<Message> = fresh.iter().flat_map(|past| past.messages.clone()).collect();
        messages.extend(self.messages.iter().cloned());
        shorten_results(&mut messages);
        request.messages = messages;
        if let Compaction::Unsummarized(error) = &outcome {
            // Only this request omits the old turns. They stay in the session until a summary replaces them.
            let problem = error.as_ref().map_or_else(|| NO_SUMMARY.to_owned(), failure::text);
            self.send_compaction_update(&id, "failed", Some(("error", problem.into()))).await?;
            return Ok(outcome);
        }
        self.store_summary(&fresh[0]).await;
        let summary = json!([{"type": "text", "text": text}]);
        self.send_compaction_update(&id, "completed", Some(("summary", summary))).await?;
        let mut state = self.session.state();
        state.past_turns = fresh;
        state.used = None;
        Ok(outcome)
    }

    async fn send_compaction_update(
        &mut self,
        id: &str,
        status: &str,
        more: Option<(&str, Value)>,
    ) -> Result<(), StopReason> {
        if self.agent.client().can.compaction {
            let mut update =
                json!({"sessionUpdate": "compaction_update", "compactionId": id, "status": status});
            if let Some((name, value)) = more {
                update[name] = value;
            }
            self.updates.send_update(&update).await?;
        }
        Ok(())
    }

    /// Asks the model for a summary of `old`. An inner error of `None` means that the model returned an empty
    /// answer.
    async fn summarize(
        &mut self,
        choice: &Choice,
        old: &[PastTurn],
        window: u64,
    ) -> Result<Result<String, Option<ModelError>>, StopReason> {
        let room = usize::try_from(window / 2 * 3).unwrap_or(usize::MAX);
        let request = Request {
            system: Some(SUMMARY_PROMPT.to_owned()),
            messages: vec![Message::user(cut_middle(&turns_as_text(old), room))],
            cache_key: None,
            ..self.new_request(choice)
        };
        let agent = Arc::clone(&self.agent);
        let asking = async {
            let mut reply = agent.catalog.client(choice).chat(&request);
            while reply.next().await?.is_some() {}
            Ok::<_, ModelError>(reply.into_completion())
        };
        Ok(match self.unless_cancelled(asking).await? {
            Ok(Completion { message, usage, .. }) => {
                if let Some(usage) = usage {
                    self.add_usage(usage);
                }
                if message.text.trim().is_empty() { Err(None) } else { Ok(message.text) }
            }
            Err(error) => {
                tracing::warn!(%error, "summarizing the conversation failed");
                Err(Some(error))
            }
        })
    }

    async fn store_summary(&self, summary: &PastTurn) {
        let texts = summary.messages.iter().filter_map(|message| serde_json::to_string(message).ok());
        let stored = StoredTurn::new(texts.collect(), Vec::new());
        // A summary can only replace turns that are already stored.
        self.session.store_rest().await;
        if let Some(claim) = self.session.claim()
            && let Err(error) = self.session.store.replace_history(&claim, summary.number, stored).await
        {
            // The store still has the whole history. When the session is loaded again, it is summarized
            // again.
            tracing::warn!(%error, "summary not stored");
        }
    }
}

/// Estimates the tokens of messages. In most texts, a token has three or four bytes.
fn estimate_tokens(messages: &[Message]) -> u64 {
    let parts = |parts: &[Part]| parts.iter().map(text_size).sum::<usize>();
    let bytes: usize = messages
        .iter()
        .map(|message| match message {
            Message::User { content } => parts(content),
            Message::Assistant(assistant) => {
                let calls: usize =
                    assistant.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
                assistant.text.len() + calls
            }
            Message::Tool(result) => parts(&result.content),
        })
        .sum();
    (bytes / 4 + messages.len() * 4) as u64
}

fn total_bytes(messages: &[Message]) -> usize {
    messages.iter().map(message_bytes).sum()
}

/// Returns the number of text bytes to which a part is equivalent. An image counts as one or two pages of
/// text, regardless of its own size.
fn text_size(part: &Part) -> usize {
    match part {
        Part::Text { text } => text.len(),
        Part::Image { .. } | Part::Audio { .. } => 4096,
        Part::File { data, .. } => data.len() / 2,
    }
}

/// Returns how many of the oldest turns to remove so that the rest takes at most `budget` tokens. Keeps the
/// newest turn, unless it is the only one.
fn count_removed(past: &[PastTurn], budget: u64) -> usize {
    let mut kept = 0;
    let mut room = budget;
    for turn in past.iter().rev() {
        let size = estimate_tokens(&turn.messages);
        if size > room {
            break;
        }
        room -= size;
        kept += 1;
    }
    // A compaction must remove at least one turn.
    let kept = if past.len() > 1 { kept.clamp(1, past.len() - 1) } else { 0 };
    past.len() - kept
}

/// Returns the messages that replace `old`: its first user message, and the summary as the answer. Two
/// messages are needed because roles must alternate.
fn summary_messages(old: &[PastTurn], summary: &str) -> Vec<Message> {
    let first =
        old.iter().flat_map(|past| &past.messages).find(|message| matches!(message, Message::User { .. }));
    let first = first.cloned().unwrap_or_else(|| Message::user("(The beginning of the conversation.)"));
    let assistant =
        narrows_model::Assistant { text: format!("{SUMMARY_HEADING}{summary}"), ..Default::default() };
    vec![first, Message::Assistant(assistant)]
}

fn turns_as_text(old: &[PastTurn]) -> String {
    let mut text = String::new();
    let mut line = |who: &str, content: &str| {
        if !content.is_empty() {
            text.push_str(who);
            text.push_str(": ");
            text.push_str(content);
            text.push_str("\n\n");
        }
    };
    for message in old.iter().flat_map(|past| &past.messages) {
        match message {
            Message::User { content } => line("User", &parts_as_text(content)),
            Message::Assistant(assistant) => {
                line("Assistant", &assistant.text);
                for call in &assistant.calls {
                    line(
                        "Assistant calls",
                        &format!("{} {}", call.name, cut_middle(&call.arguments, SHORTENED_RESULT_BYTES)),
                    );
                }
            }
            Message::Tool(result) => {
                line("Result", &cut_middle(&parts_as_text(&result.content), SHORTENED_RESULT_BYTES));
            }
        }
    }
    text
}

fn parts_as_text(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Text { text } => text.clone(),
        Part::Image { mime, .. } => format!("[Image: {mime}]"),
        Part::Audio { mime, .. } => format!("[Audio: {mime}]"),
        Part::File { name, mime, .. } => format!("[File: {}]", name.as_ref().unwrap_or(mime)),
    };
    parts.iter().map(text).collect::<Vec<_>>().join("\n")
}

fn shorten_results(messages: &mut [Message]) -> bool {
    let mut shortened = false;
    for message in messages {
        let Message::Tool(result) = message else { continue };
        for part in &mut result.content {
            match part {
                Part::Text { text } if text.len() > SHORTENED_RESULT_BYTES + SHORTENED_RESULT_BYTES / 4 => {
                    *text = cut_middle(text, SHORTENED_RESULT_BYTES);
                    shortened = true;
                }
                _ => {}
            }
        }
    }
    shortened
}

/// Removes the middle of `text` if it is longer than `limit` bytes.
pub(crate) fn cut_middle(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let boundary = |at: &usize| text.is_char_boundary(*at);
    // The start and the end of a text are always character boundaries, so the search finds one.
    let head = (0..=limit / 2).rev().find(boundary).unwrap_or(0);
    let tail = (text.len() - limit / 2..=text.len()).find(boundary).unwrap_or(text.len());
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use narrows_model::{Assistant, ToolResult};

    use super::*;

    fn past(number: u64, size: usize) -> PastTurn {
        let assistant = Assistant { text: "y".repeat(size * 4 - 32), ..Assistant::default() };
        PastTurn {
            number,
            messages: vec![Message::user(format!("turn {number}")), Message::Assistant(assistant)],
        }
    }

    #[test]
    fn the_newest_turns_are_kept() {
        let turns: Vec<PastTurn> = (1..=5).map(|number| past(number, 100)).collect();
        for (budget, expected) in [(1000, 1), (250, 3), (210, 3), (10, 4)] {
            assert_eq!(count_removed(&turns, budget), expected, "{budget}");
        }
        assert_eq!(count_removed(&turns[..1], 1000), 1);
        assert_eq!(count_removed(&[], 1000), 0);
    }

    #[test]
    fn a_summary_keeps_the_first_message_and_alternating_roles() {
        let turns = [past(1, 100), past(2, 100)];
        let [first, Message::Assistant(assistant)] = &summary_messages(&turns, "all well")[..] else {
            panic!("two")
        };
        assert_eq!(*first, Message::user("turn 1"));
        assert!(assistant.text.ends_with("all well"));
    }

    #[test]
    fn long_results_are_cut_in_the_middle() {
        let long = format!("begin{}end", "x".repeat(100_000));
        let result = ToolResult { content: vec![Part::text(long)], ..ToolResult::default() };
        let mut messages = [Message::Tool(result)];
        assert!(shorten_results(&mut messages));
        let Message::Tool(ToolResult { content, .. }) = &messages[0] else { panic!("a result") };
        let Part::Text { text } = &content[0] else { panic!("a text") };
        assert!(text.len() < 5000 && text.starts_with("begin") && text.ends_with("end"));
        assert!(!shorten_results(&mut messages));
        assert_eq!(cut_middle("äöü", 5), "ä\n[… 2 bytes left out …]\nü");
    }
}
