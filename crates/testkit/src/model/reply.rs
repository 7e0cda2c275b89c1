//! One reply: a head, and the steps in which its body comes, or does not.

use std::time::Duration;

use serde_json::{Value, json};

use super::event;

/// One step of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes these bytes.
    Bytes(Vec<u8>),
    /// Writes these bytes so many times.
    Repeat(Vec<u8>, usize),
    /// Writes these bytes again and again, with a pause after each time, until the client hangs up.
    Forever(Vec<u8>, Duration),
    /// Waits.
    Pause(Duration),
    /// Waits until [`ModelServer::release`](super::ModelServer::release) is called with this name.
    Gate(String),
    /// Says nothing more until the client hangs up.
    Hang,
    /// Ends the connection in order, whatever is missing of the reply.
    Close,
    /// Resets the connection.
    Cut,
}

impl Step {
    /// A gate of this name.
    #[must_use]
    pub fn gate(name: &str) -> Self {
        Self::Gate(name.to_owned())
    }
}

/// How the end of the body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// In chunks, the last of them empty.
    Chunked,
    /// By the length of all its bytes, told in the head, whether or not they come.
    Length,
    /// By the end of the connection.
    UntilClose,
}

/// One reply. The methods that make one put every event of a stream into a step of its own, which is what the methods
/// that count events count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) before: Vec<Step>,
    pub(super) steps: Vec<Step>,
    pub(super) framing: Framing,
    pub(super) split: Option<usize>,
}

/// Replies of one kind or another.
impl Reply {
    fn new(status: u16, content_type: &str, steps: Vec<Step>, framing: Framing) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self { status, headers, before: Vec::new(), steps, framing, split: None }
    }

    /// A stream of these events, and `[DONE]`.
    #[must_use]
    pub fn sse(events: impl IntoIterator<Item = Value>) -> Self {
        let events = events.into_iter().map(|event| event::data(&event)).chain([event::data("[DONE]")]);
        Self::stream(events)
    }

    /// A stream of these bytes, each piece a step of its own.
    #[must_use]
    pub fn stream<B: Into<Vec<u8>>>(pieces: impl IntoIterator<Item = B>) -> Self {
        let steps = pieces.into_iter().map(|piece| Step::Bytes(piece.into())).collect();
        Self::new(200, "text/event-stream", steps, Framing::Chunked)
    }

    /// A stream of these bytes, whatever they are.
    #[must_use]
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::stream([bytes.into()])
    }

    /// A JSON document.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(
            status,
            "application/json",
            vec![Step::Bytes(body.to_string().into_bytes())],
            Framing::Length,
        )
    }

    /// A document of another kind, such as a web page.
    #[must_use]
    pub fn document(status: u16, content_type: &str, body: &str) -> Self {
        Self::new(status, content_type, vec![Step::Bytes(body.into())], Framing::Length)
    }

    /// A refusal with this body.
    #[must_use]
    pub fn error(status: u16, body: &Value) -> Self {
        Self::json(status, body)
    }

    /// A refusal with this message, in the form most endpoints use.
    #[must_use]
    pub fn refused(status: u16, message: &str) -> Self {
        Self::error(status, &json!({"error": {"message": message, "type": "invalid_request_error"}}))
    }

    /// An answer of these words: a role, a chunk for each word, the finish, what was used, and `[DONE]`.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::thinking("", text)
    }

    /// An answer of these words after these thoughts.
    #[must_use]
    pub fn thinking(thoughts: &str, text: &str) -> Self {
        let thoughts = event::words(thoughts).map(|word| event::delta(&json!({"reasoning_content": word})));
        let words = event::words(text).map(|word| event::delta(&json!({"content": word})));
        Self::answer(thoughts.chain(words), "stop")
    }

    /// A call to a tool. Its id is `call_1`.
    #[must_use]
    pub fn tool_call(name: &str, arguments: Value) -> Self {
        Self::tool_calls(&[(name, arguments)])
    }

    /// Calls to tools. Their ids are `call_1`, `call_2`…
    #[must_use]
    pub fn tool_calls(calls: &[(&str, Value)]) -> Self {
        Self::text_and_calls("", calls)
    }

    /// These words, and calls to tools after them.
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

    /// An answer of these words in one piece, as it comes without streaming.
    #[must_use]
    pub fn whole(text: &str) -> Self {
        let message = json!({"role": "assistant", "content": text});
        Self::json(200, &event::completion(&message, "stop", &event::counts(10, 2)))
    }

    /// A list of models with these ids.
    #[must_use]
    pub fn models(ids: &[&str]) -> Self {
        let models: Vec<Value> = ids.iter().map(|id| json!({"id": id, "object": "model"})).collect();
        Self::json(200, &json!({"object": "list", "data": models}))
    }

    /// No reply: the connection is reset once the request has been read.
    #[must_use]
    pub fn cut() -> Self {
        Self::stream::<Vec<u8>>([]).before(Step::Cut)
    }

    /// No reply: the connection is closed once the request has been read.
    #[must_use]
    pub fn close() -> Self {
        Self::stream::<Vec<u8>>([]).before(Step::Close)
    }

    /// No reply until the client hangs up.
    #[must_use]
    pub fn hang() -> Self {
        Self::stream::<Vec<u8>>([]).before(Step::Hang)
    }
}

/// Changes to a reply.
impl Reply {
    /// With this header as well.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this type of content, true or not.
    #[must_use]
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.headers.retain(|(name, _)| name != "content-type");
        self.header("content-type", content_type)
    }

    /// With this status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// With this step before the head. Bytes go out as they are.
    #[must_use]
    pub fn before(mut self, step: Step) -> Self {
        self.before.push(step);
        self
    }

    /// With this step at the end.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// With this step after the first `count` steps.
    #[must_use]
    pub fn after(mut self, count: usize, step: Step) -> Self {
        self.steps.insert(count.min(self.steps.len()), step);
        self
    }

    /// With this step after every other.
    #[must_use]
    pub fn after_each(mut self, step: &Step) -> Self {
        self.steps = self.steps.into_iter().flat_map(|before| [before, step.clone()]).collect();
        self
    }

    /// Without everything after the first `count` steps.
    #[must_use]
    pub fn only(mut self, count: usize) -> Self {
        self.steps.truncate(count);
        self
    }

    /// Without `[DONE]`.
    #[must_use]
    pub fn without_done(mut self) -> Self {
        self.steps.retain(|step| !matches!(step, Step::Bytes(bytes) if *bytes == event::data("[DONE]")));
        self
    }

    /// Without the chunk that tells only what was used.
    #[must_use]
    pub fn without_usage(mut self) -> Self {
        self.steps.retain(|step| {
            payload(step).is_none_or(|event| event["usage"].is_null() || event["choices"] != json!([]))
        });
        self
    }

    /// With these counts where it told what was used.
    #[must_use]
    pub fn using(self, input: u64, output: u64) -> Self {
        self.map_events(|event| {
            if event["usage"].is_object() {
                event["usage"] = event::counts(input, output);
            }
        })
    }

    /// With this reason where it told why it finished.
    #[must_use]
    pub fn finishing(self, reason: &str) -> Self {
        self.map_events(|event| {
            if let Some(known @ Value::String(_)) = event.pointer_mut("/choices/0/finish_reason") {
                *known = json!(reason);
            }
        })
    }

    /// With every event that is JSON changed by `change`.
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

    /// With CR LF at the end of every line.
    #[must_use]
    pub fn crlf(self) -> Self {
        self.line_ends("\r\n")
    }

    /// With this at the end of every line in place of LF.
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

    /// Written in pieces of `count` bytes, whatever they cut through. In chunks, each piece is one.
    #[must_use]
    pub fn split_every(mut self, count: usize) -> Self {
        self.split = Some(count.max(1));
        self
    }

    /// All its bytes in one step, so that they are written at once.
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

    /// Its body ends with the connection.
    #[must_use]
    pub fn no_content_length(self) -> Self {
        self.framing(Framing::UntilClose)
    }

    /// Its body ends in this way.
    #[must_use]
    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }
}

/// The JSON of a step that is one event.
fn payload(step: &Step) -> Option<Value> {
    let Step::Bytes(bytes) = step else { return None };
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str(text.strip_prefix("data:")?.trim()).ok()
}
