//! Converts messages of an agent to events.
//!
//! A [`Mapper`] belongs to one session and uses neither clocks nor channels: it takes the params of the
//! agent's messages and pushes events. Every update becomes at least one event. Between
//! [`start`](Mapper::start) and [`finish`](Mapper::finish), events belong to the run. Outside of a run they
//! belong to the session, and all are `provider.event`s.

mod ask;
mod call;
mod calls;
mod effects;
mod end;
mod fault;
mod gate;
mod message_assembler;
mod read;
pub(crate) mod surrogates;
#[cfg(test)]
mod tests;
mod update;

use std::sync::Arc;

use narrows_acp::Version;
use serde_json::{Value, json};

pub use self::ask::{OfferedOption, OtherCall, ReadRequest};
pub use self::call::Call;
pub use self::effects::{AgentState, Effects, SessionChange, UsageReport};
pub use self::end::{RunEnd, RunOutcome};
pub use self::fault::Fault;

use self::calls::Calls;
use self::message_assembler::{Ended, MessageAssembler};
use crate::event::{EventBody, Json, Message, Payload, Role, RuntimeEvent};

/// Settings of a mapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// `true` if events include the raw message.
    pub raw: bool,
    /// `true` if a run that reached a limit (`max_tokens`, `max_turn_requests`) has failed.
    pub limits_fail: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { raw: true, limits_fail: true }
    }
}

/// Converts the messages of one agent in one session to events.
#[derive(Debug)]
pub struct Mapper {
    version: Version,
    provider: Arc<str>,
    session_id: Option<Arc<str>>,
    settings: Settings,
    run_id: Option<Arc<str>>,
    /// Start time of the run. If the clock is set back, events of the run get this time instead of an earlier
    /// one.
    started_ms: u64,
    replaying: bool,
    answer: MessageAssembler,
    thought: MessageAssembler,
    calls: Calls,
    fault: Option<Fault>,
    servers: Vec<String>,
}

impl Mapper {
    /// Creates a mapper for a session with the agent `provider`, which speaks `version`.
    pub fn new(version: Version, provider: &str, settings: Settings) -> Self {
        Self {
            version,
            provider: provider.into(),
            session_id: None,
            settings,
            run_id: None,
            started_ms: 0,
            replaying: false,
            answer: MessageAssembler::default(),
            thought: MessageAssembler::default(),
            calls: Calls::default(),
            fault: None,
            servers: Vec::new(),
        }
    }

    /// Sets the names of the user's MCP servers that the client hosts.
    pub fn set_servers(&mut self, servers: Vec<String>) {
        self.servers = servers;
    }

    /// Sets the session id.
    pub fn set_session(&mut self, session_id: &str) {
        self.session_id = Some(session_id.into());
    }

    /// Begins a run. If a run is still active, that run fails.
    pub fn start(&mut self, run_id: &str, now_ms: u64, out: &mut Vec<RuntimeEvent>) {
        if self.run_id.is_some() {
            let end = RunEnd::Failed { message: "another run began".to_owned(), code: None };
            self.finish(RunOutcome::new(end), now_ms, out);
        }
        self.run_id = Some(run_id.into());
        self.started_ms = now_ms;
        self.replaying = false;
        self.fault = None;
        self.calls.next_run();
        let provider = Arc::clone(&self.provider);
        self.push_event(&mut Emit::new(now_ms, out), EventBody::RunStarted { provider });
    }

    /// Returns `true` if a run is active.
    pub fn is_running(&self) -> bool {
        self.run_id.is_some()
    }

    /// Sets whether updates are a replay of the session's history. Replayed updates become `provider.event`s
    /// and have no effect on tool calls. The next run ends the replay.
    pub fn set_replay(&mut self, replaying: bool) {
        self.replaying = replaying;
    }

    /// Records a failure that the agent reported outside of updates. It is reported at the end of the run.
    pub fn note_fault(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// Returns the open tool call with this id.
    pub fn call(&self, id: &str) -> Option<&Call> {
        self.calls.get(id)
    }

    /// Returns the text of the agent's last message in this run, as far as it was received.
    pub fn final_text(&self) -> Option<&str> {
        self.answer.last()
    }

    /// Ends the open messages of the run, because the run continues with another prompt.
    pub fn end_messages(&mut self, now_ms: u64, out: &mut Vec<RuntimeEvent>) {
        let emit = &mut Emit::new(now_ms, out);
        self.end_thought(emit);
        let ended = self.answer.end();
        self.push_message(emit, Role::Assistant, ended);
    }

    /// Pushes an event that is not caused by an update.
    pub fn provider_event(&self, payload: Payload, now_ms: u64, out: &mut Vec<RuntimeEvent>) {
        self.push_payload(&mut Emit::new(now_ms, out), payload);
    }

    /// Pushes an event for a notification other than an update.
    pub fn notification(&self, method: &str, params: &[u8], now_ms: u64, out: &mut Vec<RuntimeEvent>) {
        let payload =
            Payload::Notification { method: method.to_owned(), params: Json::from_bytes_lossy(params) };
        self.push_payload(&mut Emit::new(now_ms, out), payload);
    }

    fn end_thought(&mut self, emit: &mut Emit<'_>) {
        let ended = self.thought.end();
        self.push_message(emit, Role::Reasoning, ended);
    }

    fn push_message(&self, emit: &mut Emit<'_>, role: Role, ended: Option<Ended>) {
        if let Some(ended) = ended {
            self.push_ended_message(emit, role, ended, None);
        }
    }

    /// Pushes a complete message. If the message was cut, pushes a notice before it.
    fn push_ended_message(
        &self,
        emit: &mut Emit<'_>,
        role: Role,
        ended: Ended,
        structured_output: Option<Value>,
    ) {
        let Ended { text, length } = ended;
        if length > text.len() {
            let data = Json::write(&json!({"role": role, "bytes": length, "kept": text.len()}));
            self.push_payload(emit, Payload::Other { name: "message.truncated".to_owned(), data });
        }
        let message = Message { text, structured_output };
        self.push_event(
            emit,
            match role {
                Role::Assistant => EventBody::AssistantMessage { message },
                Role::Reasoning => EventBody::ReasoningMessage { message },
            },
        );
    }

    fn push_payload(&self, emit: &mut Emit<'_>, payload: Payload) {
        let provider = Arc::clone(&self.provider);
        self.push_event(emit, EventBody::Provider { provider, payload });
    }

    fn push_event(&self, emit: &mut Emit<'_>, body: EventBody) {
        emit.out.push(self.event(emit.now_ms, body, None));
    }

    fn push_with_raw(&self, emit: &mut Emit<'_>, body: EventBody) {
        let raw = if self.settings.raw { emit.raw() } else { None };
        emit.out.push(self.event(emit.now_ms, body, raw));
    }

    fn event(&self, at_ms: u64, body: EventBody, raw: Option<Json>) -> RuntimeEvent {
        let at_ms = if self.run_id.is_some() { at_ms.max(self.started_ms) } else { at_ms };
        RuntimeEvent { at_ms, run_id: self.run_id.clone(), session_id: self.session_id.clone(), body, raw }
    }
}

/// Context of the events of one message: destination, time and source.
struct Emit<'a> {
    now_ms: u64,
    out: &'a mut Vec<RuntimeEvent>,
    /// Params of the agent's message that causes the events, if they are JSON.
    params: Option<&'a str>,
    raw: Option<Json>,
}

impl<'a> Emit<'a> {
    fn new(now_ms: u64, out: &'a mut Vec<RuntimeEvent>) -> Self {
        Self { now_ms, out, params: None, raw: None }
    }

    /// Returns the agent's message that causes the events. All these events share one copy.
    fn raw(&mut self) -> Option<Json> {
        let params = self.params?;
        Some(self.raw.get_or_insert_with(|| Json::from_checked(params)).clone())
    }
}
