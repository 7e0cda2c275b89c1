//! Chunks of a stream, or a whole answer, become pieces to show and a message to keep.

mod alike;
mod calls;
mod details;
mod mend;
mod reason;
mod shape;

use std::borrow::Cow;

use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::chat::{Assistant, Completion, Finish, Usage};
use crate::error::Kind;
use crate::problem::Problem;
use crate::think::{Think, Voice};
use crate::usage;
use alike::Alike;
use calls::{Calls, End};
use details::Details;
use reason::{Reason, stronger};
use shape::{CallDelta, Choice, Choices, Chunk, Content, Delta, Word};

/// The most values that one chunk may have, or a whole answer that does not come in chunks. Parsed they take a hundred bytes each.
const MAX_CHUNK_VALUES: usize = 200_000;

/// Something to show as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A piece of the answer, never empty.
    Text(String),
    /// A piece of a thought, never empty.
    Thought(String),
    /// A tool is about to be called.
    Calling { name: String },
}

/// What became of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// More will come.
    Going,
    /// The answer has ended; its usage may still come.
    Finished,
    /// The stream has ended.
    Done,
    /// It was nothing that is understood.
    Skipped,
}

/// An answer as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    message: Assistant,
    think: Think,
    calls: Calls,
    details: Details,
    alike: Alike,
    usage: Option<Usage>,
    finish: Option<Finish>,
    blanks: Blanks,
    refused: bool,
    done: bool,
    /// The answer comes in deltas, so that a message at the end only repeats it.
    in_deltas: bool,
    taken: u64,
    skipped: u64,
}

/// Reasons that say nothing. One with the last chunk is the end; some servers send one with every chunk.
#[derive(Debug, Default)]
struct Blanks {
    count: u64,
    is_last: bool,
}

impl Assembly {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Takes the data of one event and adds what is to be shown to `out`.
    pub(crate) fn take(&mut self, data: &[u8], out: &mut Vec<Piece>) -> Result<Taken, Problem> {
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
            return Ok(Taken::Done);
        }
        if let Some(text) = self.alike.text(data) {
            self.taken += 1;
            self.blanks.is_last = false;
            self.text(text, out);
            return Ok(self.state());
        }
        // Text that was checked as a whole is not checked again string by string. Where it is none, a stray byte in
        // what nobody reads is no reason to lose the rest.
        if has_more_values_than(data, MAX_CHUNK_VALUES) {
            return Err(Problem::new(Kind::Garbage, "the answer has too many JSON values", false));
        }
        let chunk = match std::str::from_utf8(data) {
            Ok(text) => serde_json::from_str(text).inspect(|chunk| self.alike.learn(chunk, text)),
            Err(_) => serde_json::from_slice(data),
        };
        let taken = match chunk {
            Ok(chunk) => self.chunk(chunk, data, out),
            Err(_) => self.odd(data, out),
        };
        if taken == Ok(Taken::Skipped) {
            self.skipped += 1;
        }
        taken
    }

    /// Takes the whole body of an answer that is not a stream.
    pub(crate) fn take_whole(&mut self, body: &[u8], out: &mut Vec<Piece>) -> Result<(), Problem> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        self.take(body, out)?;
        // There is no more to come, whatever it says about its end.
        self.done = true;
        Ok(())
    }

    /// The answer, for nothing more comes. What was held back is added to `out` in any case.
    pub(crate) fn finish(mut self, out: &mut Vec<Piece>) -> Result<Completion, Problem> {
        let Self { think, message, .. } = &mut self;
        think.finish(|voice, text| say(message, voice, Cow::Borrowed(text), out));
        if self.taken == 0 {
            let message = if self.skipped == 0 { "nothing came" } else { "what came is no answer" };
            // A connection that closes before it says anything may be better next time.
            return Err(Problem::new(Kind::Garbage, message, self.skipped == 0));
        }
        let has_ended = self.done || (self.blanks.is_last && self.blanks.count == 1);
        let told = self.finish.or(has_ended.then_some(Finish::Stop));
        let Some(told) = told else {
            return Err(Problem::new(Kind::Cut, "the answer stopped without an end", true));
        };
        if self.is_void() {
            return Err(Problem::new(Kind::Garbage, "an answer came in which nothing is said", false));
        }
        let told = if self.refused { Finish::Refusal } else { told };
        let end = match told {
            Finish::Stop | Finish::Calls => End::Whole,
            Finish::Length => End::Cut,
            Finish::Refusal => End::Refused,
        };
        let (calls, broken_calls) = self.calls.finish(end);
        let finish = match told {
            _ if !calls.is_empty() => Finish::Calls,
            Finish::Calls => Finish::Stop,
            told => told,
        };
        self.message.calls = calls;
        if let Some(details) = self.details.into_value() {
            self.message.extra.insert("reasoning_details".to_owned(), details);
        }
        Ok(Completion { message: self.message, finish, usage: self.usage, broken_calls })
    }

    /// Whether neither something nor an end was said: what came has the form of an answer, and is none.
    fn is_void(&self) -> bool {
        let ended = self.finish.is_some() || self.blanks.count > 0;
        let said = !self.message.text.is_empty() || !self.message.reasoning.is_empty() || self.refused;
        // A thought may have no words but only what goes back.
        let kept = !self.message.extra.is_empty() || !self.details.is_empty();
        !ended && !said && !kept && self.calls.is_empty()
    }

    fn chunk(&mut self, chunk: Chunk<'_>, data: &[u8], out: &mut Vec<Piece>) -> Result<Taken, Problem> {
        let (groq_usage, groq_error) = chunk.x_groq.map_or((None, None), |groq| (groq.usage, groq.error));
        if chunk.error.is_some_and(says_something) {
            // What stands beside it may tell the status.
            return Err(Problem::of_event(&bounded_value(data).unwrap_or_default()));
        }
        fail(groq_error)?;
        let usage = chunk.usage.or(groq_usage).and_then(usage::read);
        let Some(choices) = chunk.choices else {
            if usage.is_none() {
                return strange(data);
            }
            self.taken += 1;
            self.usage = usage;
            return Ok(self.state());
        };
        self.taken += 1;
        // Cumulative in each chunk, or twice at the end: the last one counts.
        self.usage = usage.or(self.usage.take());
        if let Choices(Some(choice)) = choices {
            self.choice(choice, out)?;
        }
        Ok(self.state())
    }

    fn state(&self) -> Taken {
        if self.finish.is_some() { Taken::Finished } else { Taken::Going }
    }

    fn choice(&mut self, choice: Choice<'_>, out: &mut Vec<Piece>) -> Result<(), Problem> {
        fail(choice.error)?;
        let reason = choice.finish_reason.map(|Word(name)| Reason::of(&name));
        let delta = self.news(choice.delta, choice.message, choice.text);
        if reason == Some(Reason::Failed) {
            let words = delta.content.text.trim();
            let words = if words.is_empty() { "the provider gave up on the answer" } else { words };
            return Err(Problem::of_event(&Value::String(words.to_owned())));
        }
        self.delta(*delta, out)?;
        self.blanks.is_last = reason == Some(Reason::Blank);
        match reason {
            Some(Reason::Finished(finish)) => {
                self.finish = Some(self.finish.map_or(finish, |first| stronger(first, finish)));
            }
            Some(Reason::Blank) => self.blanks.count += 1,
            Some(Reason::Failed) | None => {}
        }
        Ok(())
    }

    /// What is new in a choice, wherever it stands.
    fn news<'a>(
        &mut self,
        delta: Option<Box<Delta<'a>>>,
        message: Option<Box<Delta<'a>>>,
        Word(text): Word<'a>,
    ) -> Box<Delta<'a>> {
        if let Some(delta) = delta {
            self.in_deltas = true;
            return delta;
        }
        if self.in_deltas {
            return Box::default();
        }
        let content = Content { text, thought: String::new() };
        message.unwrap_or_else(|| Box::new(Delta { content, ..Delta::default() }))
    }

    fn delta(&mut self, delta: Delta<'_>, out: &mut Vec<Piece>) -> Result<(), Problem> {
        let Content { text, thought } = delta.content;
        // Some proxies send the same under both names.
        let Word(reasoning) =
            if delta.reasoning_content.0.is_empty() { delta.reasoning } else { delta.reasoning_content };
        say(&mut self.message, Voice::Thought, reasoning, out);
        say(&mut self.message, Voice::Thought, Cow::Owned(thought), out);
        if let Some(raw) = delta.reasoning_details {
            self.details.take(raw);
        }
        if let Some(raw) = delta.extra_content
            && let Some(value) = bounded_value(raw.get().as_bytes())
        {
            self.message.extra.insert("extra_content".to_owned(), value);
        }
        self.text(text, out);
        if !delta.refusal.0.is_empty() {
            self.refused = true;
            say(&mut self.message, Voice::Text, delta.refusal.0, out);
        }
        for (place, call) in delta.tool_calls.into_iter().flatten().enumerate() {
            self.call(place, call, out)?;
        }
        if let Some(function) = delta.function_call {
            let call = CallDelta { function: Some(*function), ..CallDelta::default() };
            self.call(0, call, out)?;
        }
        Ok(())
    }

    /// Takes a piece of what is said, in which thoughts may be marked.
    fn text(&mut self, text: Cow<'_, str>, out: &mut Vec<Piece>) {
        if self.think.is_plain() {
            say(&mut self.message, Voice::Text, text, out);
        } else {
            let Self { think, message, .. } = self;
            think.feed(&text, |voice, text| say(message, voice, Cow::Borrowed(text), out));
        }
    }

    fn call(&mut self, place: usize, call: CallDelta<'_>, out: &mut Vec<Piece>) -> Result<(), Problem> {
        match self.calls.take(place, call) {
            Ok(Some(name)) => out.push(Piece::Calling { name }),
            Ok(None) => {}
            Err(error) => return Err(Problem::new(Kind::Garbage, &error.to_string(), false)),
        }
        Ok(())
    }

    /// Takes what is no chunk at first sight.
    fn odd(&mut self, data: &[u8], out: &mut Vec<Piece>) -> Result<Taken, Problem> {
        if let Some(mended) = mend::mend(data) {
            return match serde_json::from_slice(&mended) {
                Ok(chunk) => self.chunk(chunk, &mended, out),
                Err(_) => strange(&mended),
            };
        }
        // A field that stands twice is no reason to lose the others.
        if let Some(value) = bounded_value(data)
            && value.is_object()
        {
            let once = value.to_string();
            if let Ok(chunk) = serde_json::from_str(&once) {
                return self.chunk(chunk, once.as_bytes(), out);
            }
        }
        strange(data)
    }
}

/// A value of the endpoint. `None` if it is no JSON or has more values than are read from a peer.
fn bounded_value(json: &[u8]) -> Option<Value> {
    if has_more_values_than(json, MAX_PEER_VALUES) { None } else { serde_json::from_slice(json).ok() }
}

/// Shows a piece of text and keeps it.
fn say(message: &mut Assistant, voice: Voice, text: Cow<'_, str>, out: &mut Vec<Piece>) {
    if text.is_empty() {
        return;
    }
    match voice {
        Voice::Text => {
            message.text.push_str(&text);
            out.push(Piece::Text(text.into_owned()));
        }
        Voice::Thought => {
            message.reasoning.push_str(&text);
            out.push(Piece::Thought(text.into_owned()));
        }
    }
}

/// Whether what stands under `error` reports one.
fn says_something(raw: &RawValue) -> bool {
    !matches!(raw.get(), "{}" | "\"\"" | "false" | "0" | "[]")
}

/// Reports what stands under an `error` that is not on top.
fn fail(error: Option<&RawValue>) -> Result<(), Problem> {
    match error.filter(|error| says_something(error)) {
        Some(error) => Err(Problem::of_event(&bounded_value(error.get().as_bytes()).unwrap_or_default())),
        None => Ok(()),
    }
}

/// What an event without choices is: a failure in one of the forms that have no `error` on top, or nothing known.
fn strange(data: &[u8]) -> Result<Taken, Problem> {
    let Some(value) = bounded_value(data) else { return Ok(Taken::Skipped) };
    let is_failure = match &value {
        Value::Array(list) => list.iter().any(|item| item.get("error").is_some()),
        Value::Object(object) => {
            let is = |name: &str| object.get(name).is_some_and(|kind| kind == "error");
            let says = |name: &str| object.get(name).is_some_and(|words| !words.is_null());
            is("object") || is("type") || says("error") || says("detail") || (says("message") && says("code"))
        }
        _ => false,
    };
    if is_failure { Err(Problem::of_event(&value)) } else { Ok(Taken::Skipped) }
}

#[cfg(test)]
mod tests;
