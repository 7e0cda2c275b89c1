//! The built-in demo model: offline and deterministic.

mod arguments;
mod script;

use std::vec;

use serde_json::Map;

use crate::{Assistant, Call, Completion, Finish, Message, ModelInfo, Part, ReplyEvent, Request, Usage};

pub(crate) const DEMO_MODEL: &str = "demo";
/// Size of the demo model's context window in demo tokens.
pub(crate) const WINDOW_TOKENS: u64 = 8192;
const TOKEN_BYTES: usize = 4;

pub(crate) fn models() -> Vec<ModelInfo> {
    vec![ModelInfo {
        id: DEMO_MODEL.to_owned(),
        name: Some("Demo (offline)".to_owned()),
        window: Some(WINDOW_TOKENS),
        images: Some(false),
        audio: Some(false),
        tools: Some(true),
    }]
}

#[derive(Debug)]
pub(crate) struct DemoReply {
    events: vec::IntoIter<ReplyEvent>,
    completion: Completion,
}

impl DemoReply {
    /// Creates the answer to `request`. Equal requests get equal answers.
    pub(crate) fn new(request: &Request) -> Self {
        let answer = script::answer(request);
        let mut events: Vec<ReplyEvent> =
            words(&answer.thought).map(|word| ReplyEvent::Thought(word.to_owned())).collect();
        events.extend(words(&answer.text).map(|word| ReplyEvent::Text(word.to_owned())));
        let mut message = Assistant { text: answer.text, reasoning: answer.thought, ..Assistant::default() };
        let mut finish = Finish::Stop;
        if let Some((name, arguments)) = answer.call {
            events.push(ReplyEvent::Calling { name: name.clone() });
            // The id is unique, because the number of messages grows with every turn.
            let id = format!("call_demo_{}", request.messages.len());
            message.calls.push(Call { id, name, arguments: arguments.to_string(), extra: Map::new() });
            finish = Finish::Calls;
        }
        let usage = usage(request, &message);
        let completion = Completion { message, finish, usage: Some(usage), broken_calls: Vec::new() };
        Self { events: events.into_iter(), completion }
    }

    pub(crate) fn next(&mut self) -> Option<ReplyEvent> {
        self.events.next()
    }

    pub(crate) fn into_completion(self) -> Completion {
        self.completion
    }
}

/// Splits `text` after each word and the white space that follows it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let word = rest.find(char::is_whitespace)?;
        let end = rest[word..].find(|c: char| !c.is_whitespace()).map_or(rest.len(), |gap| word + gap);
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
    .chain(text.rsplit(char::is_whitespace).next().filter(|last| !last.is_empty()))
}

/// Computes made-up usage from text lengths, so that clients have numbers to show.
fn usage(request: &Request, assistant: &Assistant) -> Usage {
    let tokens = |bytes: usize| bytes.div_ceil(TOKEN_BYTES) as u64;
    let system = request.system.as_ref().map_or(0, String::len);
    let tools: usize = request.tools.iter().map(|tool| tool.name.len() + tool.description.len()).sum();
    let messages: usize = request.messages.iter().map(length).sum();
    let input = tokens(system + tools + messages);
    let called: usize = assistant.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
    let output = tokens(assistant.text.len() + assistant.reasoning.len() + called);
    let reasoning = (!assistant.reasoning.is_empty()).then(|| tokens(assistant.reasoning.len()));
    Usage { input, output, total: input + output, cached: None, reasoning, cost: None }
}

fn length(message: &Message) -> usize {
    let parts = match message {
        Message::User { content } => content,
        Message::Tool(result) => &result.content,
        Message::Assistant(assistant) => {
            return assistant.text.len()
                + assistant.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        }
    };
    parts.iter().map(|part| if let Part::Text { text } = part { text.len() } else { 0 }).sum()
}

#[cfg(test)]
#[path = "demo/tests.rs"]
mod tests;
