//! Assembles an answer from the chunks of a stream or from a whole body.

mod calls;
mod chunk_cache;
mod details;
mod finish_reason;
mod repair_utf8;
mod shape;

use std::borrow::Cow;

use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::chat::{Assistant, Completion, Finish, Usage};
use crate::error::ErrorKind;
use crate::error_response::ErrorResponse;
use crate::think_tags::{TextKind, ThinkTags};
use crate::usage;
use calls::{Calls, End};
use chunk_cache::ChunkCache;
use details::Details;
use finish_reason::{Reason, stronger};
use shape::{CallDelta, Choice, Choices, Chunk, Content, Delta, LenientText};

/// Maximum number of JSON values in one chunk, or in an answer without chunks. Each parsed value takes about
/// a hundred bytes of memory.
const MAX_CHUNK_VALUES: usize = 200_000;

/// A piece of an arriving answer, to be shown at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A piece of the answer's text, never empty.
    Text(String),
    /// A piece of the reasoning, never empty.
    Thought(String),
    /// The model has begun a tool call.
    Calling { name: String },
}

/// Outcome of handling one event of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkOutcome {
    Going,
    /// The answer has ended, but an event with its usage may follow.
    Finished,
    Done,
    /// The event could not be parsed.
    Skipped,
}

#[derive(Debug, Default)]
pub(crate) struct Assembly {
    message: Assistant,
    think: ThinkTags,
    calls: Calls,
    details: Details,
    cache: ChunkCache,
    usage: Option<Usage>,
    finish: Option<Finish>,
    blanks: Blanks,
    refused: bool,
    done: bool,
    /// `true` once a delta has arrived. A whole message at the end only repeats the deltas.
    in_deltas: bool,
    taken: u64,
    skipped: u64,
}

/// Counts empty finish reasons. An empty reason in only the last chunk marks the end of the answer. Some
/// servers send an empty reason with every chunk.
#[derive(Debug, Default)]
struct Blanks {
    count: u64,
    is_last: bool,
}

impl Assembly {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Handles the data of one event and adds pieces to show to `out`.
    pub(crate) fn read_event(
        &mut self,
        data: &[u8],
        out: &mut Vec<Piece>,
    ) -> Result<ChunkOutcome, ErrorResponse> {
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
            return Ok(ChunkOutcome::Done);
        }
        if let Some(text) = self.cache.text(data) {
            self.taken += 1;
            self.blanks.is_last = false;
            self.text(text, out);
            return Ok(self.state());
        }
        // UTF-8 is checked once for the whole event instead of string by string. Invalid bytes in unused
        // fields must not lose the other fields.
        if has_more_values_than(data, MAX_CHUNK_VALUES) {
            return Err(ErrorResponse::new(ErrorKind::Garbage, "the answer has too many JSON values", false));
        }
        let chunk = match std::str::from_utf8(data) {
            Ok(text) => serde_json::from_str(text).inspect(|chunk| self.cache.learn(chunk, text)),
            Err(_) => serde_json::from_slice(data),
        };
        let taken = match chunk {
            Ok(chunk) => self.chunk(chunk, data, out),
            Err(_) => self.handle_invalid(data, out),
        };
        if taken == Ok(ChunkOutcome::Skipped) {
            self.skipped += 1;
        }
        taken
    }

    /// Handles the whole body of an answer that is not a stream.
    pub(crate) fn take_whole(&mut self, body: &[u8], out: &mut Vec<Piece>) -> Result<(), ErrorResponse> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        self.read_event(body, out)?;
        // A whole body is complete even without a finish reason.
        self.done = true;
        Ok(())
    }

    pub(crate) fn finish(mut self, out: &mut Vec<Piece>) -> Result<Completion, ErrorResponse> {
        let Self { think, message, .. } = &mut self;
        think.finish(|voice, text| push_text(message, voice, Cow::Borrowed(text), out));
        if self.taken == 0 {
            let message =
                if self.skipped == 0 { "the response is empty" } else { "the response is not an answer" };
            // The connection may have closed before any data, so a retry may work.
            return Err(ErrorResponse::new(ErrorKind::Garbage, message, self.skipped == 0));
        }
        let has_ended = self.done || (self.blanks.is_last && self.blanks.count == 1);
        let told = self.finish.or(has_ended.then_some(Finish::Stop));
        let Some(told) = told else {
            return Err(ErrorResponse::new(ErrorKind::Cut, "the response ended early", true));
        };
        if self.is_empty_answer() {
            return Err(ErrorResponse::new(ErrorKind::Garbage, "the answer is empty", false));
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

    /// Returns `true` if the answer has neither content nor a finish reason.
    fn is_empty_answer(&self) -> bool {
        let ended = self.finish.is_some() || self.blanks.count > 0;
        let has_output = !self.message.text.is_empty() || !self.message.reasoning.is_empty() || self.refused;
        // Some reasoning has no text, only fields that are sent back to the endpoint.
        let kept = !self.message.extra.is_empty() || !self.details.is_empty();
        !ended && !has_output && !kept && self.calls.is_empty()
    }

    fn chunk(
        &mut self,
        chunk: Chunk<'_>,
        data: &[u8],
        out: &mut Vec<Piece>,
    ) -> Result<ChunkOutcome, ErrorResponse> {
        let (groq_usage, groq_error) = chunk.x_groq.map_or((None, None), |groq| (groq.usage, groq.error));
        if chunk.error.is_some_and(reports_error) {
            // The status may be in a field beside the error object, so the whole event is parsed.
            return Err(ErrorResponse::from_event(&bounded_value(data).unwrap_or_default()));
        }
        fail(groq_error)?;
        let usage = chunk.usage.or(groq_usage).and_then(usage::read);
        let Some(choices) = chunk.choices else {
            if usage.is_none() {
                return handle_unknown(data);
            }
            self.taken += 1;
            self.usage = usage;
            return Ok(self.state());
        };
        self.taken += 1;
        // Usage grows with each chunk, or is repeated at the end. Either way, the last report counts.
        self.usage = usage.or(self.usage.take());
        if let Choices(Some(choice)) = choices {
            self.choice(choice, out)?;
        }
        Ok(self.state())
    }

    fn state(&self) -> ChunkOutcome {
        if self.finish.is_some() { ChunkOutcome::Finished } else { ChunkOutcome::Going }
    }

    fn choice(&mut self, choice: Choice<'_>, out: &mut Vec<Piece>) -> Result<(), ErrorResponse> {
        fail(choice.error)?;
        let reason = choice.finish_reason.map(|LenientText(name)| Reason::from_name(&name));
        let delta = self.new_delta(choice.delta, choice.message, choice.text);
        if reason == Some(Reason::Failed) {
            let words = delta.content.text.trim();
            let words = if words.is_empty() { "the provider aborted the answer" } else { words };
            return Err(ErrorResponse::from_event(&Value::String(words.to_owned())));
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

    /// Returns the new content of a choice, from the field that the server uses for it.
    fn new_delta<'a>(
        &mut self,
        delta: Option<Box<Delta<'a>>>,
        message: Option<Box<Delta<'a>>>,
        LenientText(text): LenientText<'a>,
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

    fn delta(&mut self, delta: Delta<'_>, out: &mut Vec<Piece>) -> Result<(), ErrorResponse> {
        let Content { text, thought } = delta.content;
        // Some proxies send the same reasoning in two fields.
        let LenientText(reasoning) =
            if delta.reasoning_content.0.is_empty() { delta.reasoning } else { delta.reasoning_content };
        push_text(&mut self.message, TextKind::Thought, reasoning, out);
        push_text(&mut self.message, TextKind::Thought, Cow::Owned(thought), out);
        if let Some(raw) = delta.reasoning_details {
            self.details.add_chunk(raw);
        }
        if let Some(raw) = delta.extra_content
            && let Some(value) = bounded_value(raw.get().as_bytes())
        {
            self.message.extra.insert("extra_content".to_owned(), value);
        }
        self.text(text, out);
        if !delta.refusal.0.is_empty() {
            self.refused = true;
            push_text(&mut self.message, TextKind::Text, delta.refusal.0, out);
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

    /// Adds text of the answer, which may contain tagged reasoning.
    fn text(&mut self, text: Cow<'_, str>, out: &mut Vec<Piece>) {
        if self.think.is_plain() {
            push_text(&mut self.message, TextKind::Text, text, out);
        } else {
            let Self { think, message, .. } = self;
            think.feed(&text, |voice, text| push_text(message, voice, Cow::Borrowed(text), out));
        }
    }

    fn call(&mut self, place: usize, call: CallDelta<'_>, out: &mut Vec<Piece>) -> Result<(), ErrorResponse> {
        match self.calls.add_delta(place, call) {
            Ok(Some(name)) => out.push(Piece::Calling { name }),
            Ok(None) => {}
            Err(error) => return Err(ErrorResponse::new(ErrorKind::Garbage, &error.to_string(), false)),
        }
        Ok(())
    }

    /// Handles an event whose data does not parse as a chunk.
    fn handle_invalid(&mut self, data: &[u8], out: &mut Vec<Piece>) -> Result<ChunkOutcome, ErrorResponse> {
        if let Some(mended) = repair_utf8::repair_utf8(data) {
            return match serde_json::from_slice(&mended) {
                Ok(chunk) => self.chunk(chunk, &mended, out),
                Err(_) => handle_unknown(&mended),
            };
        }
        // Parsing the data as a generic value removes duplicate fields, so that the other fields are not
        // lost.
        if let Some(value) = bounded_value(data)
            && value.is_object()
        {
            let once = value.to_string();
            if let Ok(chunk) = serde_json::from_str(&once) {
                return self.chunk(chunk, once.as_bytes(), out);
            }
        }
        handle_unknown(data)
    }
}

fn bounded_value(json: &[u8]) -> Option<Value> {
    if has_more_values_than(json, MAX_PEER_VALUES) { None } else { serde_json::from_slice(json).ok() }
}

fn push_text(message: &mut Assistant, voice: TextKind, text: Cow<'_, str>, out: &mut Vec<Piece>) {
    if text.is_empty() {
        return;
    }
    match voice {
        TextKind::Text => {
            message.text.push_str(&text);
            out.push(Piece::Text(text.into_owned()));
        }
        TextKind::Thought => {
            message.reasoning.push_str(&text);
            out.push(Piece::Thought(text.into_owned()));
        }
    }
}

/// Returns `true` if the value of an `error` field reports an error.
fn reports_error(raw: &RawValue) -> bool {
    !matches!(raw.get(), "{}" | "\"\"" | "false" | "0" | "[]")
}

/// Returns an error if the value of a nested `error` field reports one.
fn fail(error: Option<&RawValue>) -> Result<(), ErrorResponse> {
    match error.filter(|error| reports_error(error)) {
        Some(error) => {
            Err(ErrorResponse::from_event(&bounded_value(error.get().as_bytes()).unwrap_or_default()))
        }
        None => Ok(()),
    }
}

/// Handles an event without choices: an error in an unusual form, or an unknown event.
fn handle_unknown(data: &[u8]) -> Result<ChunkOutcome, ErrorResponse> {
    let Some(value) = bounded_value(data) else { return Ok(ChunkOutcome::Skipped) };
    let is_failure = match &value {
        Value::Array(list) => list.iter().any(|item| item.get("error").is_some()),
        Value::Object(object) => {
            let is = |name: &str| object.get(name).is_some_and(|kind| kind == "error");
            let says = |name: &str| object.get(name).is_some_and(|words| !words.is_null());
            is("object") || is("type") || says("error") || says("detail") || (says("message") && says("code"))
        }
        _ => false,
    };
    if is_failure { Err(ErrorResponse::from_event(&value)) } else { Ok(ChunkOutcome::Skipped) }
}

#[cfg(test)]
mod tests;
