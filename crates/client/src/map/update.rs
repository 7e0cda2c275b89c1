//! Reads the updates of both versions, one variant after another.

use std::borrow::Cow;
use std::sync::Arc;

use narrows_acp::stop::StopReason;
use narrows_acp::{Version, v2};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::call::{Patch, Progress, Stage};
use super::effects::{AgentState, Effects, SessionChange, UsageReport};
use super::fault::Marks;
use super::message_assembler::Upsert;
use super::read::{
    Child, Chunk, CompleteMessage, ContentItem, Fields, Object, Params, Problem, Speaker, TextParams,
    TextUpdate, UpdateHead, head, list, object, string, text_of,
};
use super::{Emit, Mapper, gate, surrogates};
use crate::event::{EventBody, Json, Payload, Role, RuntimeEvent};
use crate::peer_json;

const MAX_ID_BYTES: usize = 512;

type Done = Result<Handled, Problem>;

/// Result of handling an update: `Yes` if an event was pushed that represents the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handled {
    Yes,
    No,
}

impl Mapper {
    /// Reads the params of a `session/update` and pushes its events. Returns the effects on the session.
    pub fn update(&mut self, params: &[u8], now_ms: u64, out: &mut Vec<RuntimeEvent>) -> Effects {
        let Ok(text) = std::str::from_utf8(params) else {
            let payload = self.unusable(params, "not UTF-8".to_owned());
            self.push_payload(&mut Emit::new(now_ms, out), payload);
            return Effects::default();
        };
        let emit = &mut Emit { now_ms, out, params: Some(text), raw: None };
        if self.run_id.is_some() && !self.replaying && self.add_text_chunk(text, emit) {
            return Effects::default();
        }
        self.read_update(text, emit)
    }

    /// Fast path for a plain text chunk, the most frequent update. Returns `false` for any other update.
    fn add_text_chunk(&mut self, params: &str, emit: &mut Emit<'_>) -> bool {
        // The text is searched before it is parsed, because a failed parse is slow.
        if !head(params, 256).contains("\"agent_") {
            return false;
        }
        let Ok(Object(TextParams { update: Object(update), meta })) = serde_json::from_str(params) else {
            return false;
        };
        if gate::approval(meta).is_some() {
            return false;
        }
        let update: TextUpdate<'_> = update;
        if update.meta.is_some_and(|meta| !Marks::from_meta(Some(meta)).is_none()) {
            return false;
        }
        let id = update.message_id.as_deref();
        let text = update.content.0.text;
        if text.is_empty() || id.is_some_and(|id| id.len() > MAX_ID_BYTES) {
            return false;
        }
        self.push_text(update.session_update, id, text, emit);
        true
    }

    fn push_text(&mut self, speaker: Speaker, id: Option<&str>, text: Cow<'_, str>, emit: &mut Emit<'_>) {
        match speaker {
            Speaker::Said => {
                self.end_thought(emit);
                let ended = self.answer.add_chunk(id, &text);
                self.push_message(emit, Role::Assistant, ended);
                self.push_with_raw(emit, EventBody::AssistantDelta { text_delta: text.into_owned() });
            }
            Speaker::Thought => {
                let ended = self.thought.add_chunk(id, &text);
                self.push_message(emit, Role::Reasoning, ended);
                self.push_with_raw(emit, EventBody::ReasoningDelta { text_delta: text.into_owned() });
            }
        }
    }

    fn read_update(&mut self, params: &str, emit: &mut Emit<'_>) -> Effects {
        let mut effects = Effects::default();
        let update = match object::<Params<'_>>(params) {
            Ok(Params { update, meta }) => {
                if let Some(approval) = gate::approval(meta) {
                    let payload = Payload::Other { name: "approval".to_owned(), data: approval.into() };
                    self.push_payload(emit, payload);
                    return effects;
                }
                effects.interrupted = gate::interrupted(meta);
                update
            }
            Err(problem) => {
                self.push_payload(emit, self.unusable(params.as_bytes(), problem));
                return effects;
            }
        };
        let read = |text: &str, mapper: &mut Self, effects: &mut Effects, emit: &mut Emit<'_>| {
            let head: UpdateHead<'_> = object(text)?;
            mapper.variant(&head, text, update, effects, emit)
        };
        let mut done = read(update.get(), self, &mut effects, emit);
        // A read that failed had no effects, so the update can be read again.
        if done.is_err()
            && let Some(repaired) = surrogates::repaired(update.get().as_bytes())
            && let Ok(repaired) = std::str::from_utf8(&repaired)
        {
            done = read(repaired, self, &mut effects, emit);
        }
        match done {
            Ok(Handled::Yes) => {}
            Ok(Handled::No) => {
                let payload =
                    Payload::Update { update: update.into(), replay: self.replaying, problem: None };
                self.push_payload(emit, payload);
            }
            Err(problem) => {
                let payload =
                    Payload::Update { update: update.into(), replay: self.replaying, problem: Some(problem) };
                self.push_payload(emit, payload);
            }
        }
        effects
    }

    fn unusable(&self, params: &[u8], problem: Problem) -> Payload {
        Payload::Update {
            update: Json::from_bytes_lossy(params),
            replay: self.replaying,
            problem: Some(problem),
        }
    }

    fn variant(
        &mut self,
        head: &UpdateHead<'_>,
        text: &str,
        update: &RawValue,
        effects: &mut Effects,
        emit: &mut Emit<'_>,
    ) -> Done {
        let whole = || Json::from(update);
        let v2 = self.version == Version::V2;
        match &*head.session_update {
            "agent_message_chunk" => return self.chunk(Speaker::Said, head, text, effects, emit),
            "agent_thought_chunk" => return self.chunk(Speaker::Thought, head, text, effects, emit),
            "agent_message" if v2 => {
                return self.add_complete_message(Role::Assistant, head, text, effects, emit);
            }
            "agent_thought" if v2 => {
                return self.add_complete_message(Role::Reasoning, head, text, effects, emit);
            }
            "user_message_chunk" if v2 => {
                let Chunk { message_id, .. } = object(text)?;
                effects.state = Some(AgentState::Accepted { message_id: message_id.map(Arc::from) });
            }
            "user_message" if v2 => {
                let CompleteMessage { message_id, .. } = object(text)?;
                effects.state = Some(AgentState::Accepted { message_id: Some(message_id.into()) });
            }
            "tool_call" if !v2 => return self.tool(object(text)?, true, effects, emit),
            "tool_call_update" => return self.tool(object(text)?, false, effects, emit),
            "tool_call_content_chunk" if v2 => self.tool_content(&object(text)?, effects)?,
            "state_update" if v2 => self.state(head, text, effects)?,
            "usage_update" => effects.usage = Some(UsageReport::Update(whole())),
            "available_commands_update" => effects.session = Some(SessionChange::Commands(whole())),
            "current_mode_update" if !v2 => effects.session = Some(SessionChange::Mode(whole())),
            "config_option_update" => effects.session = Some(SessionChange::Options(whole())),
            "session_info_update" => effects.session = Some(SessionChange::Info(whole())),
            "subagent_update" if v2 => {
                let Child { session_id } = object(text)?;
                check_id(Some(&session_id))?;
                effects.child = Some(session_id.into_owned());
            }
            _ => {}
        }
        Ok(Handled::No)
    }

    /// Records the failure that an update reports; `words` is the text of its message, if any. Ignores a
    /// replayed failure.
    fn take_fault(&mut self, marks: &Marks<'_>, words: Option<&str>, effects: &mut Effects) -> bool {
        let Some(mut fault) = marks.fault() else { return false };
        if fault.message.is_empty() {
            fault.message = words.unwrap_or_default().to_owned();
        }
        if !self.replaying {
            if self.run_id.is_some() {
                self.fault = Some(fault.clone());
            }
            effects.fault = Some(Box::new(fault));
        }
        true
    }

    /// Handles a message chunk that is not plain text, or that arrives outside of a run.
    fn chunk(
        &mut self,
        speaker: Speaker,
        head: &UpdateHead<'_>,
        text: &str,
        effects: &mut Effects,
        emit: &mut Emit<'_>,
    ) -> Done {
        let Chunk { message_id, content } = object(text)?;
        let block = text_of(content)?;
        let id = message_id.as_deref();
        check_id(id)?;
        let marks = head.marks();
        if self.take_fault(&marks, block.as_deref(), effects)
            || marks.separates()
            || self.run_id.is_none()
            || self.replaying
        {
            return Ok(Handled::No);
        }
        effects.usage = marks.usage().map(|usage| UsageReport::Call(usage.into()));
        match block {
            Some(text) if !text.is_empty() => self.push_text(speaker, id, text, emit),
            _ => return Ok(Handled::No),
        }
        Ok(Handled::Yes)
    }

    fn add_complete_message(
        &mut self,
        role: Role,
        head: &UpdateHead<'_>,
        text: &str,
        effects: &mut Effects,
        emit: &mut Emit<'_>,
    ) -> Done {
        let CompleteMessage { message_id, content } = object(text)?;
        check_id(Some(&message_id))?;
        let blocks = content.map(list).transpose()?;
        let texts = blocks.map(|blocks| blocks.into_iter().map(text_of).collect::<Result<Vec<_>, _>>());
        let texts = texts.transpose()?;
        if self.take_fault(&head.marks(), None, effects) || self.run_id.is_none() || self.replaying {
            return Ok(Handled::No);
        }
        // An update without content leaves the message unchanged.
        let Some(texts) = texts else { return Ok(Handled::No) };
        let only_text = texts.iter().all(Option::is_some);
        let text: String = texts.into_iter().flatten().collect();
        let message_assembler = if role == Role::Assistant { &mut self.answer } else { &mut self.thought };
        let (ended, body) = match message_assembler.add_message(&message_id, &text) {
            Upsert::Same => return Ok(Handled::No),
            Upsert::More { ended, rest } => {
                let text_delta = rest.to_owned();
                let body = match role {
                    Role::Assistant => EventBody::AssistantDelta { text_delta },
                    Role::Reasoning => EventBody::ReasoningDelta { text_delta },
                };
                (ended, body)
            }
            Upsert::Other { ended, id, text } => {
                let payload = Payload::MessageReplaced { role, message_id: id, text };
                (ended, EventBody::Provider { provider: Arc::clone(&self.provider), payload })
            }
        };
        if role == Role::Assistant {
            self.end_thought(emit);
        }
        self.push_message(emit, role, ended);
        self.push_with_raw(emit, body);
        Ok(if only_text { Handled::Yes } else { Handled::No })
    }

    /// Handles an update of a tool call. `begins` is `true` if the agent announces a new call (v1). Other
    /// updates may also begin a call: in v2 by design, and in v1 because some agents omit the announcement.
    fn tool(&mut self, fields: Fields<'_>, begins: bool, effects: &mut Effects, emit: &mut Emit<'_>) -> Done {
        let patch = Patch::from_fields(fields)?;
        self.calls.check(patch.id())?;
        if self.replaying || self.calls.is_completed(patch.id(), begins) {
            return Ok(Handled::No);
        }
        let id: Arc<str> = patch.id().into();
        effects.call = Some(Arc::clone(&id));
        self.merge(&id, patch);
        Ok(self.advance(&id, false, emit))
    }

    pub(super) fn merge(&mut self, id: &str, patch: Patch<'_>) {
        let (version, foreign) = (self.version, self.run_id.is_none());
        self.calls.change(id, |call, new, room| {
            if new && foreign {
                call.stage = Stage::Foreign;
            }
            patch.merge(call, version, room);
        });
    }

    /// Pushes the events that are due for a call. If `needed` is `true`, the call must be announced now.
    pub(super) fn advance(&mut self, id: &str, needed: bool, emit: &mut Emit<'_>) -> Handled {
        let Some(call) = self.calls.get(id) else { return Handled::No };
        let progress = call.progress(self.version);
        let mut told = Handled::No;
        let foreign = call.stage == Stage::Foreign;
        if call.stage == Stage::New && (needed || call.has_input() || progress != Progress::Waiting) {
            let body = EventBody::ToolCall {
                call_id: Arc::clone(&call.id),
                tool_name: call.tool_name(),
                input: call.input(),
            };
            self.end_thought(emit);
            self.push_with_raw(emit, body);
            self.calls.announced(id);
            told = Handled::Yes;
        }
        if progress == Progress::Over
            && let Some(call) = self.calls.settle(id)
            && !foreign
        {
            let call_id = Arc::clone(&call.id);
            self.push_with_raw(emit, EventBody::ToolResult { call_id, output: call.output(None) });
            told = Handled::Yes;
        }
        told
    }

    fn tool_content(&mut self, item: &ContentItem<'_>, effects: &mut Effects) -> Result<(), Problem> {
        let id = &*item.tool_call_id;
        self.calls.check(id)?;
        if self.replaying || self.calls.is_completed(id, false) {
            return Ok(());
        }
        let foreign = self.run_id.is_none();
        self.calls.change(id, |call, new, room| {
            if new && foreign {
                call.stage = Stage::Foreign;
            }
            call.append(item.content, room);
        });
        effects.call = Some(id.into());
        Ok(())
    }

    fn state(&mut self, head: &UpdateHead<'_>, text: &str, effects: &mut Effects) -> Result<(), Problem> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct State<'a> {
            #[serde(borrow)]
            state: Cow<'a, str>,
            #[serde(borrow, default)]
            stop_reason: Option<&'a RawValue>,
            #[serde(borrow, default)]
            error: Option<&'a RawValue>,
            #[serde(borrow, default)]
            usage: Option<&'a RawValue>,
        }
        let State { state, stop_reason, error, usage } = object(text)?;
        effects.state = Some(match &*state {
            "running" => AgentState::Running,
            "requires_action" => AgentState::RequiresAction,
            "idle" => {
                // A stop reason that cannot be parsed counts as missing.
                let reason = stop_reason.and_then(|reason| string(reason).ok());
                let error = error.and_then(|error| peer_json::read::<v2::Error>(error.get().as_bytes()).ok());
                AgentState::Idle(reason.map(|reason| match StopReason::from_name(&reason) {
                    StopReason::Error(_) => StopReason::Error(error.map(Box::new)),
                    reason => reason,
                }))
            }
            other => AgentState::Other(other.to_owned()),
        });
        if state == "idle" {
            self.take_fault(&head.marks(), None, effects);
            effects.usage = usage.map(|usage| UsageReport::End(usage.into()));
        }
        Ok(())
    }
}

fn check_id(id: Option<&str>) -> Result<(), Problem> {
    match id {
        Some(id) if id.len() > MAX_ID_BYTES => Err(format!("an id has more than {MAX_ID_BYTES} bytes")),
        _ => Ok(()),
    }
}
