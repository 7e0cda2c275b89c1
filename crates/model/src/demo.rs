//! The built-in model for demonstration: offline, deterministic, and honest about it.

mod arguments;
mod script;

use std::vec;

use serde_json::Map;

use crate::{Assistant, Call, Completion, Event, Finish, Message, ModelInfo, Part, Request, Usage};

/// What the model is asked by.
pub(crate) const MODEL: &str = "demo";
/// The size of its context window, in what it counts as tokens.
pub(crate) const WINDOW: u64 = 8192;
/// How many bytes it counts as a token.
const TOKEN: usize = 4;

/// The list of models.
pub(crate) fn models() -> Vec<ModelInfo> {
    vec![ModelInfo {
        id: MODEL.to_owned(),
        name: Some("Demo (offline)".to_owned()),
        window: Some(WINDOW),
        images: Some(false),
        audio: Some(false),
        tools: Some(true),
    }]
}

/// An answer that is being given.
#[derive(Debug)]
pub(crate) struct Play {
    events: vec::IntoIter<Event>,
    completion: Completion,
}

impl Play {
    /// The answer to `request`, which is always the same.
    pub(crate) fn of(request: &Request) -> Self {
        let answer = script::answer(request);
        let mut events: Vec<Event> =
            words(&answer.thought).map(|word| Event::Thought(word.to_owned())).collect();
        events.extend(words(&answer.text).map(|word| Event::Text(word.to_owned())));
        let mut message = Assistant { text: answer.text, reasoning: answer.thought, ..Assistant::default() };
        let mut finish = Finish::Stop;
        if let Some((name, arguments)) = answer.call {
            events.push(Event::Calling { name: name.clone() });
            // Unlike any other id of the conversation, which grows with every turn.
            let id = format!("call_demo_{}", request.messages.len());
            message.calls.push(Call { id, name, arguments: arguments.to_string(), extra: Map::new() });
            finish = Finish::Calls;
        }
        let usage = usage(request, &message);
        let completion = Completion { message, finish, usage: Some(usage), broken_calls: Vec::new() };
        Self { events: events.into_iter(), completion }
    }

    /// The next piece.
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.events.next()
    }

    /// The whole answer.
    pub(crate) fn into_completion(self) -> Completion {
        self.completion
    }
}

/// Words with the white space after them.
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

/// Numbers from lengths, so that what shows them has something to show.
fn usage(request: &Request, said: &Assistant) -> Usage {
    let tokens = |bytes: usize| bytes.div_ceil(TOKEN) as u64;
    let system = request.system.as_ref().map_or(0, String::len);
    let tools: usize = request.tools.iter().map(|tool| tool.name.len() + tool.description.len()).sum();
    let messages: usize = request.messages.iter().map(length).sum();
    let input = tokens(system + tools + messages);
    let called: usize = said.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
    let output = tokens(said.text.len() + said.reasoning.len() + called);
    let reasoning = (!said.reasoning.is_empty()).then(|| tokens(said.reasoning.len()));
    Usage { input, output, total: input + output, cached: None, reasoning, cost: None }
}

fn length(message: &Message) -> usize {
    let parts = match message {
        Message::User { content } => content,
        Message::Tool(result) => &result.content,
        Message::Assistant(said) => {
            return said.text.len() + said.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        }
    };
    parts.iter().map(|part| if let Part::Text { text } = part { text.len() } else { 0 }).sum()
}

#[cfg(test)]
#[path = "demo/tests.rs"]
mod tests;
