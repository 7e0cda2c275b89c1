//! One reply: a head, and the steps that write its body or make it fail.

use std::time::Duration;

use serde_json::{Value, json};

use super::event;

/// One step of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Bytes(Vec<u8>),
    /// Writes the bytes this number of times.
    Repeat(Vec<u8>, usize),
    /// Writes the bytes with this pause after each time, until the client disconnects.
    Forever(Vec<u8>, Duration),
    Pause(Duration),
    /// Waits until [`ModelServer::release`](super::ModelServer::release) is called with this name.
    Gate(String),
    /// Sends nothing more until the client disconnects.
    Hang,
    /// Closes the connection, even if the reply is incomplete.
    Close,
    Cut,
}

impl Step {
    /// Returns a step that waits at the gate of this name.
    #[must_use]
    pub fn gate(name: &str) -> Self {
        Self::Gate(name.to_owned())
    }
}

/// The marking of the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Chunked: an empty chunk ends the body.
    Chunked,
    /// `Content-Length` with the length of all bytes, even if some are never sent.
    Length,
    /// The end of the connection ends the body.
    UntilClose,
}

/// One reply. The constructors put each event of a stream into a separate step, and the methods with a
/// `count` count these steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) before: Vec<Step>,
    pub(super) steps: Vec<Step>,
    pub(super) framing: Framing,
    pub(super) split: Option<usize>,
}

impl Reply {
    fn new(status: u16, content_type: &str, steps: Vec<Step>, framing: Framing) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self { status, headers, before: Vec::new(), steps, framing, split: None }
    }

    /// Returns a stream of these events and `[DONE]`.
    #[must_use]
    pub fn sse(events: impl IntoIterator<Item = Value>) -> Self {
        let events = events.into_iter().map(|event| event::data(&event)).chain([event::data("[DONE]")]);
        Self::stream(events)
    }

    /// Returns a stream of these bytes, with a separate step for each piece.
    #[must_use]
    pub fn stream<B: Into<Vec<u8>>>(pieces: impl IntoIterator<Item = B>) -> Self {
        let steps = pieces.into_iter().map(|piece| Step::Bytes(piece.into())).collect();
        Self::new(200, "text/event-stream", steps, Framing::Chunked)
    }

    /// Returns a stream of arbitrary bytes.
    #[must_use]
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::stream([bytes.into()])
    }

    /// Returns a JSON document.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(
            status,
            "application/json",
            vec![Step::Bytes(body.to_string().into_bytes())],
            Framing::Length,
        )
    }

    /// Returns a document of another type, such as a web page.
    #[must_use]
    pub fn document(status: u16, content_type: &str, body: &str) -> Self {
        Self::new(status, content_type, vec![Step::Bytes(body.into())], Framing::Length)
    }

    /// Returns an error status with this body.
    #[must_use]
    pub fn error(status: u16, body: &Value) -> Self {
        Self::json(status, body)
    }

    /// Returns an error status with this message, in the form of most endpoints.
    #[must_use]
    pub fn refused(status: u16, message: &str) -> Self {
        Self::error(status, &json!({"error": {"message": message, "type": "invalid_request_error"}}))
    }

    /// Returns an answer: a role, a chunk for each word, the finish reason, the usage, and `[DONE]`.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::thinking("", text)
    }

    /// Returns an answer after reasoning.
    #[must_use]
    pub fn thinking(thoughts: &str, text: &str) -> Self {
        let thoughts = event::words(thoughts).map(|word| event::delta(&json!({"reasoning_content": word})));
        let words = event::words(text).map(|word| event::delta(&json!({"content": word})));
        Self::answer(thoughts.chain(words), "stop")
    }

    /// Returns a tool call with the id `call_1`.
    #[must_use]
    pub fn tool_call(name: &str, arguments: Value) -> Self {
        Self::tool_calls(&[(name, arguments)])
    }

    /// Returns tool calls with the ids `call_1`, `call_2`…
    #[must_use]
    pub fn tool_calls(calls: &[(&str, Value)]) -> Self {
        Self::text_and_calls("", calls)
    }

    /// Returns text, then tool calls.
    #[must_use]
    pub fn text_and_calls(text: &str, calls: &[(&str, Value)]) -> Self {
        let words = event::words(text).map(|word| event::delta(&json!({"content": word})));
        Self::answer(words.chain(event::call_deltas(calls)), "tool_calls")
    }

    fn answer(deltas: impl Iterator<Item = Value>, reason: &str) -> Self {
        let mut events = vec![event::delta(&json!({"role": "assistant", "content": ""}))];
        events.extend(deltas);
        let output = events.len() as u64 - 1;
        events.extend([event::finish(reason), event::usage(10, output)]);
        Self::sse(events)
    }

    /// Returns an answer in one piece, as sent without streaming.
    #[must_use]
    pub fn whole(text: &str) -> Self {
        let message = json!({"role": "assistant", "content": text});
        Self::json(200, &event::completion(&message, "stop", &event::counts(10, 2)))
    }

    /// Returns a list of models with these ids.
    #[must_use]
    pub fn models(ids: &[&str]) -> Self {
        let models: Vec<Value> = ids.iter().map(|id| json!({"id": id, "object": "model"})).collect();
        Self::json(200, &json!({"object": "list", "data": models}))
    }

    /// Returns no reply: resets the connection after the request was read.
    #[must_use]
    pub fn cut() -> Self {
        Self::stream::<Vec<u8>>([]).before(Step::Cut)
    }

    /// Returns no reply: closes the connection after the request was read.
    #[must_use]
    pub fn close() -> Self {
        Self::stream::<Vec<u8>>([]).before(Step::Close)
    }

    /// Returns no reply, and waits until the client disconnects.
    #[must_use]
    pub fn hang() -> Self {
        Self::stream::<Vec<u8>>([]).before(Step::Hang)
    }
}

impl Reply {
    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the content type, which need not be true.
    #[must_use]
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.headers.retain(|(name, _)| name != "content-type");
        self.header("content-type", content_type)
    }

    /// Sets the status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Adds a step before the head. Its bytes are written unchanged.
    #[must_use]
    pub fn before(mut self, step: Step) -> Self {
        self.before.push(step);
        self
    }

    /// Adds a step at the end.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds a step after the first `count` steps.
    #[must_use]
    pub fn after(mut self, count: usize, step: Step) -> Self {
        self.steps.insert(count.min(self.steps.len()), step);
        self
    }

    /// Adds a step after every other step.
    #[must_use]
    pub fn after_each(mut self, step: &Step) -> Self {
        self.steps = self.steps.into_iter().flat_map(|before| [before, step.clone()]).collect();
        self
    }

    /// Removes everything after the first `count` steps.
    #[must_use]
    pub fn only(mut self, count: usize) -> Self {
        self.steps.truncate(count);
        self
    }

    /// Removes `[DONE]`.
    #[must_use]
    pub fn without_done(mut self) -> Self {
        self.steps.retain(|step| !matches!(step, Step::Bytes(bytes) if *bytes == event::data("[DONE]")));
        self
    }

    /// Removes the chunk that contains only the usage.
    #[must_use]
    pub fn without_usage(mut self) -> Self {
        self.steps.retain(|step| {
            payload(step).is_none_or(|event| event["usage"].is_null() || event["choices"] != json!([]))
        });
        self
    }

    /// Replaces the counts of the usage.
    #[must_use]
    pub fn using(self, input: u64, output: u64) -> Self {
        self.map_events(|event| {
            if event["usage"].is_object() {
                event["usage"] = event::counts(input, output);
            }
        })
    }

    /// Replaces the finish reason.
    #[must_use]
    pub fn finishing(self, reason: &str) -> Self {
        self.map_events(|event| {
            if let Some(known @ Value::String(_)) = event.pointer_mut("/choices/0/finish_reason") {
                *known = json!(reason);
            }
        })
    }

    /// Applies `change` to every event that is JSON.
    #[must_use]
    pub fn map_events(mut self, mut change: impl FnMut(&mut Value)) -> Self {
        for step in &mut self.steps {
            if let Some(mut event) = payload(step) {
                change(&mut event);
                *step = Step::Bytes(event::data(&event));
            }
        }
        self
    }

    /// Ends every line with CR LF.
    #[must_use]
    pub fn crlf(self) -> Self {
        self.line_ends("\r\n")
    }

    /// Ends every line with `end` instead of LF.
    #[must_use]
    pub fn line_ends(mut self, end: &str) -> Self {
        for step in &mut self.steps {
            if let Step::Bytes(bytes) = step {
                let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
                *bytes = lines.join(end.as_bytes());
            }
        }
        self
    }

    /// Writes pieces of `count` bytes, which may cut through characters and lines. In a chunked body, each
    /// piece is one chunk.
    #[must_use]
    pub fn split_every(mut self, count: usize) -> Self {
        self.split = Some(count.max(1));
        self
    }

    /// Joins all bytes in one step, so that they are written at once.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        let mut joined: Vec<Step> = Vec::new();
        for step in self.steps {
            match (joined.last_mut(), step) {
                (Some(Step::Bytes(before)), Step::Bytes(bytes)) => before.extend(bytes),
                (_, step) => joined.push(step),
            }
        }
        self.steps = joined;
        self
    }

    /// Marks the end of the body by the end of the connection.
    #[must_use]
    pub fn no_content_length(self) -> Self {
        self.framing(Framing::UntilClose)
    }

    /// Marks the end of the body in this way.
    #[must_use]
    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }
}

fn payload(step: &Step) -> Option<Value> {
    let Step::Bytes(bytes) = step else { return None };
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str(text.strip_prefix("data:")?.trim()).ok()
}
