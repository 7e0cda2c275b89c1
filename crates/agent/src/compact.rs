//! Making a conversation fit the window of its model: what is old becomes a summary, what is long is cut.

use std::sync::Arc;

use narrows_model::{Completion, Error, Message, Part, Request};
use narrows_store::Turn as StoredTurn;
use serde_json::{Value, json};

use crate::catalog::Choice;
use crate::failure;
use crate::session::Past;
use crate::size::message_bytes;
use crate::turn::{Reason, Turn};
use crate::voice::new_id;

/// The window that is assumed where nobody tells: small enough for most.
const ASSUMED: u64 = 32_768;

/// The window that no conversation outgrows, where nobody tells: whatever the endpoint takes, memory has a bound.
const LARGEST: u64 = 2_000_000;

/// How many bytes a conversation may have, pictures and all.
const HEAVIEST: usize = 64 << 20;

/// How many tenths of the window the past may take when there is no room.
pub(crate) const KEPT: u64 = 3;

/// How much of the result of a tool is left when there is no room.
const SHORT: usize = 4096;

/// What the model is told to do.
const TASK: &str = "Summarise the conversation below so that it can be continued from your summary alone. Keep \
    decisions, facts, names, paths, numbers, open questions and what was changed; leave out pleasantries. Answer with \
    the summary only.";

/// What stands in front of a summary.
const HEAD: &str = "Summary of our conversation so far:\n\n";

/// What stands for old turns in a request when the model cannot summarise them.
const LOST: &str = "(Earlier turns of this conversation were left out because they no longer fit.)";

/// What is said when the model gives no summary.
pub(crate) const EMPTY: &str = "The model gave no summary.";

/// What came of an attempt to shorten a conversation.
#[derive(Debug)]
pub(crate) enum Compaction {
    /// There was nothing to shorten.
    Nothing,
    /// It is shorter.
    Done,
    /// The request at hand is shorter, and the conversation is as long as before: there is no summary. Without an error
    /// the model has said nothing.
    Unsummarised(Option<Error>),
}

impl Turn {
    /// Whether the next request is likely not to fit.
    pub(crate) fn is_tight(&self, choice: &Choice, request: &Request) -> bool {
        let window = self.agent.catalog.traits(choice).window.unwrap_or(LARGEST);
        let reserved = request.max_tokens.unwrap_or(0).min(window / 4);
        let full = self.needed(request) + reserved > window / 5 * 4 || weight(&request.messages) > HEAVIEST;
        !self.compacted && full
    }

    /// How many tokens a request takes: what the endpoint counted last, and a guess at what has been said since; or a
    /// guess at all of it, if that is more.
    fn needed(&self, request: &Request) -> u64 {
        let answered = request.messages.iter().rposition(|said| matches!(said, Message::Assistant(_)));
        let since = answered.map_or(0, |at| at + 1);
        let counted = self.session.state().used.map(|used| used + estimate(&request.messages[since..]));
        let tools =
            request.tools.iter().map(|tool| tool.description.len() + tool.parameters.to_string().len());
        let around = request.system.as_ref().map_or(0, String::len) + tools.sum::<usize>();
        let guessed = estimate(&request.messages) + (around / 4) as u64;
        counted.unwrap_or(0).max(guessed)
    }

    /// Shortens what the model is given: of the past, as much of the newest stays as takes `tenths` of the window.
    pub(crate) async fn compact(
        &mut self,
        choice: &Choice,
        request: &mut Request,
        tenths: u64,
    ) -> Result<Compaction, Reason> {
        self.compacted = true;
        let window = self.agent.catalog.traits(choice).window.unwrap_or(ASSUMED);
        let past = self.session.state().past.clone();
        let cut = cut(&past, window / 10 * tenths);
        let shortened = shorten(&mut request.messages);
        if cut == 0 {
            return Ok(if shortened { Compaction::Done } else { Compaction::Nothing });
        }
        let (old, kept) = past.split_at(cut);
        let id = new_id();
        self.tell_compaction(&id, "in_progress", None).await?;
        let summary = match self.summarise(choice, old, window).await {
            Ok(summary) => summary,
            Err(reason) => {
                self.tell_compaction(&id, "cancelled", None).await?;
                return Err(reason);
            }
        };
        let through = old.last().map_or(0, |past| past.number);
        let (text, outcome) = match summary {
            Ok(text) => (text, Compaction::Done),
            Err(error) => (LOST.to_owned(), Compaction::Unsummarised(error)),
        };
        let mut fresh = vec![Past { number: through, messages: replacement(old, &text) }];
        fresh.extend_from_slice(kept);
        let mut messages: Vec<Message> = fresh.iter().flat_map(|past| past.messages.clone()).collect();
        messages.extend(self.messages.iter().cloned());
        shorten(&mut messages);
        request.messages = messages;
        if let Compaction::Unsummarised(error) = &outcome {
            // Only this request goes without the old turns: they are remembered until a summary stands for them.
            let problem = error.as_ref().map_or_else(|| EMPTY.to_owned(), failure::text);
            self.tell_compaction(&id, "failed", Some(("error", problem.into()))).await?;
            return Ok(outcome);
        }
        self.store_summary(&fresh[0]).await;
        let summary = json!([{"type": "text", "text": text}]);
        self.tell_compaction(&id, "completed", Some(("summary", summary))).await?;
        let mut state = self.session.state();
        state.past = fresh;
        state.used = None;
        Ok(outcome)
    }

    async fn tell_compaction(
        &mut self,
        id: &str,
        status: &str,
        more: Option<(&str, Value)>,
    ) -> Result<(), Reason> {
        if self.agent.client().can.compaction {
            let mut update =
                json!({"sessionUpdate": "compaction_update", "compactionId": id, "status": status});
            if let Some((name, value)) = more {
                update[name] = value;
            }
            self.voice.update(&update).await?;
        }
        Ok(())
    }

    /// The model's own summary of `old`, or why there is none; without a reason it has said nothing.
    async fn summarise(
        &mut self,
        choice: &Choice,
        old: &[Past],
        window: u64,
    ) -> Result<Result<String, Option<Error>>, Reason> {
        let room = usize::try_from(window / 2 * 3).unwrap_or(usize::MAX);
        let request = Request {
            system: Some(TASK.to_owned()),
            messages: vec![Message::user(middle_cut(&transcript(old), room))],
            cache_key: None,
            ..self.request(choice)
        };
        let agent = Arc::clone(&self.agent);
        let asking = async {
            let mut reply = agent.catalog.client(choice).chat(&request);
            while reply.next().await?.is_some() {}
            Ok::<_, Error>(reply.into_completion())
        };
        Ok(match self.unless_stopped(asking).await? {
            Ok(Completion { message, usage, .. }) => {
                if let Some(usage) = usage {
                    self.add_up(usage);
                }
                if message.text.trim().is_empty() { Err(None) } else { Ok(message.text) }
            }
            Err(error) => {
                tracing::warn!(%error, "no summary could be had");
                Err(Some(error))
            }
        })
    }

    async fn store_summary(&self, summary: &Past) {
        let texts = summary.messages.iter().filter_map(|message| serde_json::to_string(message).ok());
        let stored = StoredTurn::new(texts.collect(), Vec::new());
        // It can stand only for turns that are there.
        self.session.store_rest().await;
        if let Some(claim) = self.session.claim()
            && let Err(error) = self.session.store.replace_history(&claim, summary.number, stored).await
        {
            // The whole history is still there, and will be summarised again when it is loaded.
            tracing::warn!(%error, "a summary could not be stored");
        }
    }
}

/// About how many tokens messages take: a token is three or four bytes of most texts.
fn estimate(messages: &[Message]) -> u64 {
    let parts = |parts: &[Part]| parts.iter().map(size).sum::<usize>();
    let bytes: usize = messages
        .iter()
        .map(|message| match message {
            Message::User { content } => parts(content),
            Message::Assistant(said) => {
                let calls: usize = said.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
                said.text.len() + calls
            }
            Message::Tool(result) => parts(&result.content),
        })
        .sum();
    (bytes / 4 + messages.len() * 4) as u64
}

/// How many bytes messages take.
fn weight(messages: &[Message]) -> usize {
    messages.iter().map(message_bytes).sum()
}

/// The size of a part in bytes of text; a picture counts as a page or two, whatever its bytes.
fn size(part: &Part) -> usize {
    match part {
        Part::Text { text } => text.len(),
        Part::Image { .. } | Part::Audio { .. } => 4096,
        Part::File { data, .. } => data.len() / 2,
    }
}

/// How many of the oldest turns go, so that the rest takes at most `budget` tokens. The newest stays, unless it is the
/// only one.
fn cut(past: &[Past], budget: u64) -> usize {
    let mut kept = 0;
    let mut room = budget;
    for turn in past.iter().rev() {
        let size = estimate(&turn.messages);
        if size > room {
            break;
        }
        room -= size;
        kept += 1;
    }
    // Whoever asks wants something to go.
    let kept = if past.len() > 1 { kept.clamp(1, past.len() - 1) } else { 0 };
    past.len() - kept
}

/// What stands for `old`: how it began, and what came of it. It alternates as a conversation does.
fn replacement(old: &[Past], summary: &str) -> Vec<Message> {
    let first =
        old.iter().flat_map(|past| &past.messages).find(|message| matches!(message, Message::User { .. }));
    let first = first.cloned().unwrap_or_else(|| Message::user("(The beginning of the conversation.)"));
    let said = narrows_model::Assistant { text: format!("{HEAD}{summary}"), ..Default::default() };
    vec![first, Message::Assistant(said)]
}

/// Old turns as text.
fn transcript(old: &[Past]) -> String {
    let mut text = String::new();
    let mut line = |who: &str, said: &str| {
        if !said.is_empty() {
            text.push_str(who);
            text.push_str(": ");
            text.push_str(said);
            text.push_str("\n\n");
        }
    };
    for message in old.iter().flat_map(|past| &past.messages) {
        match message {
            Message::User { content } => line("User", &texts(content)),
            Message::Assistant(said) => {
                line("Assistant", &said.text);
                for call in &said.calls {
                    line("Assistant calls", &format!("{} {}", call.name, middle_cut(&call.arguments, SHORT)));
                }
            }
            Message::Tool(result) => line("Result", &middle_cut(&texts(&result.content), SHORT)),
        }
    }
    text
}

fn texts(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Text { text } => text.clone(),
        Part::Image { mime, .. } => format!("[Image: {mime}]"),
        Part::Audio { mime, .. } => format!("[Audio: {mime}]"),
        Part::File { name, mime, .. } => format!("[File: {}]", name.as_ref().unwrap_or(mime)),
    };
    parts.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Cuts the results of tools that are long; false if there are none.
fn shorten(messages: &mut [Message]) -> bool {
    let mut shortened = false;
    for message in messages {
        let Message::Tool(result) = message else { continue };
        for part in &mut result.content {
            match part {
                Part::Text { text } if text.len() > SHORT + SHORT / 4 => {
                    *text = middle_cut(text, SHORT);
                    shortened = true;
                }
                _ => {}
            }
        }
    }
    shortened
}

/// `text` without its middle, if it is longer than `limit` bytes.
pub(crate) fn middle_cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let boundary = |at: &usize| text.is_char_boundary(*at);
    // Both ends of a text are boundaries.
    let head = (0..=limit / 2).rev().find(boundary).unwrap_or(0);
    let tail = (text.len() - limit / 2..=text.len()).find(boundary).unwrap_or(text.len());
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use narrows_model::{Assistant, ToolResult};

    use super::*;

    fn past(number: u64, size: usize) -> Past {
        let said = Assistant { text: "y".repeat(size * 4 - 32), ..Assistant::default() };
        Past { number, messages: vec![Message::user(format!("turn {number}")), Message::Assistant(said)] }
    }

    #[test]
    fn the_newest_turns_stay() {
        let turns: Vec<Past> = (1..=5).map(|number| past(number, 100)).collect();
        for (budget, expected) in [(1000, 1), (250, 3), (210, 3), (10, 4)] {
            assert_eq!(cut(&turns, budget), expected, "{budget}");
        }
        assert_eq!(cut(&turns[..1], 1000), 1);
        assert_eq!(cut(&[], 1000), 0);
    }

    #[test]
    fn a_replacement_alternates_and_keeps_the_beginning() {
        let turns = [past(1, 100), past(2, 100)];
        let [first, Message::Assistant(said)] = &replacement(&turns, "all well")[..] else { panic!("two") };
        assert_eq!(*first, Message::user("turn 1"));
        assert!(said.text.ends_with("all well"));
    }

    #[test]
    fn long_results_are_cut_in_the_middle() {
        let long = format!("begin{}end", "x".repeat(100_000));
        let result = ToolResult { content: vec![Part::text(long)], ..ToolResult::default() };
        let mut messages = [Message::Tool(result)];
        assert!(shorten(&mut messages));
        let Message::Tool(ToolResult { content, .. }) = &messages[0] else { panic!("a result") };
        let Part::Text { text } = &content[0] else { panic!("a text") };
        assert!(text.len() < 5000 && text.starts_with("begin") && text.ends_with("end"));
        assert!(!shorten(&mut messages));
        assert_eq!(middle_cut("äöü", 5), "ä\n[… 2 bytes left out …]\nü");
    }
}
