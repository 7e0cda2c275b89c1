//! Shared by the tests: a client with short limits, requests, and a recorder for answers.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use narrows_model::{
    Assistant, Call, Client, Completion, Endpoint, Limits, Message, ModelError, Part, Provider, ReplyEvent,
    ReplyNote, Request, Tool, ToolResult,
};
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

/// Limits that end a hanging test soon, but are long enough for a slow machine.
pub(crate) fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        first_event: Duration::from_secs(8),
        idle: Duration::from_secs(8),
        total: Duration::from_secs(20),
        grace: Duration::from_millis(300),
        ..Limits::default()
    }
}

pub(crate) fn endpoint(base_url: &str) -> Endpoint {
    let mut endpoint = Endpoint::new("test", base_url);
    endpoint.limits = limits();
    endpoint
}

pub(crate) fn client(server: &ModelServer) -> Client {
    Client::new(endpoint(&server.base_url())).expect("the settings are good")
}

pub(crate) fn client_with(server: &ModelServer, set: impl FnOnce(&mut Endpoint)) -> Client {
    let mut endpoint = endpoint(&server.base_url());
    set(&mut endpoint);
    Client::new(endpoint).expect("the settings are good")
}

pub(crate) fn client_of(server: &ModelServer, provider: Provider) -> Client {
    client_with(server, |endpoint| endpoint.provider = Some(provider))
}

pub(crate) fn request() -> Request {
    Request { model: "test-model".to_owned(), messages: vec![Message::user("Hi")], ..Request::default() }
}

pub(crate) fn with_tools(messages: Vec<Message>) -> Request {
    Request { messages, tools: vec![tool("read_file"), tool("f"), tool("g"), tool("look")], ..request() }
}

pub(crate) fn tool(name: &str) -> Tool {
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    Tool { name: name.to_owned(), description: format!("Does {name}."), parameters }
}

pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Call {
    let (id, name, arguments) = (id.to_owned(), name.to_owned(), arguments.to_owned());
    Call { id, name, arguments, ..Call::default() }
}

pub(crate) fn calls(calls: &[Call]) -> Assistant {
    Assistant { calls: calls.to_vec(), ..Assistant::default() }
}

pub(crate) fn result(call: &str, text: &str) -> Message {
    Message::Tool(ToolResult {
        call: call.to_owned(),
        name: "read_file".to_owned(),
        content: vec![Part::text(text)],
        failed: false,
    })
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) events: Vec<ReplyEvent>,
    pub(crate) completion: Completion,
    pub(crate) error: Option<ModelError>,
}

impl Outcome {
    pub(crate) fn text(&self) -> String {
        let text =
            |event: &ReplyEvent| if let ReplyEvent::Text(text) = event { Some(text.clone()) } else { None };
        self.events.iter().filter_map(text).collect()
    }

    pub(crate) fn thought(&self) -> String {
        let thought = |event: &ReplyEvent| {
            if let ReplyEvent::Thought(thought) = event { Some(thought.clone()) } else { None }
        };
        self.events.iter().filter_map(thought).collect()
    }

    pub(crate) fn calling(&self) -> Vec<&str> {
        let names = self.events.iter().map(|event| match event {
            ReplyEvent::Calling { name } => Some(name.as_str()),
            _ => None,
        });
        names.flatten().collect()
    }

    pub(crate) fn notes(&self) -> Vec<&ReplyNote> {
        let notes = self.events.iter().map(|event| match event {
            ReplyEvent::Note(note) => Some(note),
            _ => None,
        });
        notes.flatten().collect()
    }

    /// Returns the answer. Panics after an error, or if the answer differs from the shown pieces.
    #[track_caller]
    pub(crate) fn whole(self) -> Completion {
        assert_eq!(self.error, None, "{:?}", self.events);
        assert_eq!(self.text(), self.completion.message.text, "shown and kept differ");
        assert_eq!(self.thought(), self.completion.message.reasoning, "shown and kept differ");
        self.completion
    }

    #[track_caller]
    pub(crate) fn failed(&self) -> &ModelError {
        let Some(error) = &self.error else { unreachable!("no error came: {self:?}") };
        error
    }
}

pub(crate) async fn ask(client: &Client, request: &Request) -> Outcome {
    ask_and(client, request, |_| {}).await
}

pub(crate) const SHOWN: &str = "shown";

/// Requests an answer whose stream waits at [`SHOWN`], and reads it to its end.
pub(crate) async fn play_on(server: &ModelServer) -> Outcome {
    let release = |event: &ReplyEvent| {
        if !matches!(event, ReplyEvent::Note(_)) {
            server.release(SHOWN);
        }
    };
    ask_and(&client(server), &request(), release).await
}

async fn ask_and(client: &Client, request: &Request, seen: impl Fn(&ReplyEvent)) -> Outcome {
    let mut reply = client.chat(request);
    let mut events = Vec::new();
    let error = loop {
        match reply.next().await {
            Ok(Some(event)) => {
                seen(&event);
                events.push(event);
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    Outcome { events, completion: reply.into_completion(), error }
}

/// Requests an answer from a server with this plan, and reads it to its end.
pub(crate) async fn play(plan: impl Into<Plan>) -> Outcome {
    let server = ModelServer::start(plan);
    ask(&client(&server), &request()).await
}

pub(crate) async fn body_of(provider: Provider, request: &Request) -> Value {
    let server = ModelServer::start(Reply::text("ok"));
    let outcome = ask(&client_of(&server, provider), request).await;
    assert_eq!(outcome.error, None);
    assert_eq!(outcome.notes(), Vec::<&ReplyNote>::new());
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen[0].body.clone()
}

pub(crate) fn deltas(deltas: &[Value], finish: &str) -> Reply {
    let deltas = deltas.iter().map(narrows_testkit::model::delta);
    Reply::sse(deltas.chain([narrows_testkit::model::finish(finish)]))
}

/// A clock that only a test advances, even while the runtime waits for sockets.
///
/// A paused Tokio clock jumps to the next timer when the runtime only waits for bytes, but not while a
/// blocking task runs. So a task blocks until the clock is dropped.
pub(crate) struct StillClock {
    _hold: SyncSender<()>,
}

impl StillClock {
    pub(crate) fn new() -> Self {
        tokio::time::pause();
        let (hold, held) = sync_channel::<()>(0);
        tokio::task::spawn_blocking(move || held.recv());
        Self { _hold: hold }
    }

    pub(crate) async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}
