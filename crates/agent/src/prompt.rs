//! `session/prompt`: from the request to the end of its turn, in both versions.

use std::sync::Arc;

use narrows_acp::capability::AUTHORIZES;
use narrows_acp::{Version, v2};
use narrows_model::{Error, Message, Part};
use narrows_rpc::Responder;
use narrows_store::Turn as StoredTurn;
use narrows_wire::{Code, RpcError};
use serde_json::{Value, json};

use crate::agent::{Agent, Call};
use crate::content::{self, Block};
use crate::failure;
use crate::read::{Params, no_session};
use crate::request::{Work, find, note_tag, strictly};
use crate::session::{Past, Session, TurnGuard, Unready};
use crate::settings::Errors;
use crate::shown::Shown;
use crate::turn::{End, Reason, Turn};
use crate::unstored::NotStored;
use crate::voice::{Voice, new_id};

/// Takes a prompt. From here on its session is busy.
pub(crate) fn accept(agent: &Arc<Agent>, mut call: Call, responder: Responder) -> Option<Work> {
    match begin(agent, &mut call) {
        Ok(begun) => {
            let agent = Arc::clone(agent);
            Some(match call.version {
                Version::V1 => Box::pin(answer_at_the_end(agent, begun, responder)),
                Version::V2 => Box::pin(answer_at_once(agent, begun, responder)),
            })
        }
        Err(error) => {
            responder.fail(&error);
            None
        }
    }
}

/// A turn that has begun.
struct Begun {
    session: Arc<Session>,
    guard: TurnGuard,
    /// The id of the person's message.
    message: String,
    blocks: Vec<Block>,
    /// The blocks as they came.
    content: Vec<Value>,
    version: Version,
    /// The client that prompts decides about commands itself.
    authorizes: bool,
}

fn begin(agent: &Agent, call: &mut Call) -> Result<Begun, RpcError> {
    strictly::<v2::PromptRequest>(call)?;
    let session = find(agent, &Params::new(&call.params, call.version))?;
    let mut prompt = call.params.remove("prompt").unwrap_or(Value::Null);
    let blocks = content::read(&mut prompt)?;
    let content = match prompt {
        Value::Array(content) => content,
        // What is read is an array.
        _ => Vec::new(),
    };
    let guard = session.begin().map_err(|unready| match unready {
        Unready::Closed => no_session(&session.id),
        Unready::Busy => {
            let message = "a turn is running in this session: wait for its end, or cancel it";
            RpcError::new(Code::InvalidRequest, message)
                .with("condition", "session_busy".into())
                .with("retryable", true.into())
                .with("sessionId", Value::from(&*session.id))
        }
    })?;
    note_tag(&session, call);
    let said = call.params.get("_meta").and_then(|meta| meta.get(AUTHORIZES));
    let authorizes = agent.client().can.authorizes && said == Some(&Value::Bool(true));
    Ok(Begun { session, guard, message: new_id(), blocks, content, version: call.version, authorizes })
}

/// Version 1: the answer is the end of the turn.
async fn answer_at_the_end(agent: Arc<Agent>, begun: Begun, responder: Responder) {
    let cancelled = responder.cancelled();
    let stop = begun.guard.stop.clone();
    let playing = play(&agent, begun);
    tokio::pin!(playing);
    let (end, guard) = tokio::select! {
        biased;
        outcome = &mut playing => outcome,
        () = cancelled => {
            stop.stop();
            playing.await
        }
    };
    let last_words = guard.release();
    match (&end.reason, agent.errors) {
        (Reason::Failed(error), Errors::Rpc) => responder.fail(&failure::rpc(error).effects(end.effects)),
        _ => responder.respond(&result(&end)),
    }
    drop(last_words);
}

/// The result of a prompt in version 1.
fn result(end: &End) -> Value {
    let mut result = json!({"stopReason": end.reason.name_v1()});
    if let Some(usage) = usage(end) {
        result["usage"] = usage;
    }
    if let Reason::Failed(error) = &end.reason {
        result["_meta"] = failure::meta(error);
    }
    result
}

/// What the turn cost, in the words of both versions.
fn usage(end: &End) -> Option<Value> {
    let usage = end.usage.as_ref()?;
    let mut told =
        json!({"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": usage.total});
    if let Some(cached) = usage.cached {
        told["cachedReadTokens"] = cached.into();
    }
    if let Some(reasoning) = usage.reasoning {
        told["thoughtTokens"] = reasoning.into();
    }
    Some(told)
}

/// Version 2: the answer says that the message is in the conversation; the end of the turn is a state.
async fn answer_at_once(agent: Arc<Agent>, begun: Begun, responder: Responder) {
    responder.respond(&json!({"messageId": begun.message}));
    let session = Arc::clone(&begun.session);
    let (end, guard) = play(&agent, begun).await;
    let last_words = guard.release();
    let mut state =
        json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": end.reason.name_v2()});
    if let Some(usage) = usage(&end) {
        state["usage"] = usage;
    }
    if let Reason::Failed(error) = &end.reason {
        let RpcError { code, message, data } = failure::rpc(error).effects(end.effects);
        state["error"] = json!({"code": code, "message": message, "data": data});
    }
    crate::request::tell(&agent, &session, vec![state]).await;
    drop(last_words);
}

/// The whole turn, its place in the history included.
async fn play(agent: &Arc<Agent>, begun: Begun) -> (End, TurnGuard) {
    let Begun { session, guard, message, blocks, content, version, authorizes } = begun;
    let peer = agent.peer.with_tag(session.state().tag.as_deref());
    let mut voice = Voice::new(peer.clone(), Arc::clone(&session.id), version);
    if version == Version::V2 {
        let said = json!({"sessionUpdate": "user_message", "messageId": message, "content": content});
        // Whether anybody listens is found out soon enough.
        let _ = voice.update(&said).await;
    }
    let _ = voice.state("running").await;
    voice.note(&Shown::User { id: message, content });
    let mut turn = Turn::new(Arc::clone(agent), Arc::clone(&session), peer, guard.stop.clone(), voice);
    turn.authorizes = authorizes;
    let end = turn.run(blocks).await;
    let Turn { mut voice, messages, title, .. } = turn;
    // Even a turn that was given up says what it has not yet said.
    let _ = voice.pause().await;
    match &end.reason {
        Reason::EndTurn | Reason::MaxTokens | Reason::MaxTurnRequests | Reason::TooLarge(_)
            if !messages.is_empty() =>
        {
            if is_answered(&messages) {
                let (said, answered) = spoken(&messages);
                agent.memory.note(&session.id, &said, &answered);
            }
            keep(agent, &session, messages, voice, title).await;
        }
        reason => {
            if let Reason::Failed(error) = reason {
                tell_failure(agent, version, error, &mut voice).await;
            }
            // The turn leaves nothing behind, so the next one names the session.
            if title.is_some() {
                session.state().title = None;
            }
        }
    }
    (end, guard)
}

async fn tell_failure(agent: &Agent, version: Version, error: &Error, voice: &mut Voice) {
    tracing::warn!(%error, "the endpoint failed");
    if version == Version::V2 || agent.errors == Errors::Text {
        // If the client has gone there is nobody to tell.
        let _ = voice.aside(&failure::text(error), &failure::meta(error)).await;
    }
}

/// Puts a turn into the history: on the disk first, so that its end means that it is there. What the session is called
/// since goes along, so that the disk is waited for once.
async fn keep(
    agent: &Agent,
    session: &Arc<Session>,
    mut messages: Vec<Message>,
    mut voice: Voice,
    title: Option<String>,
) {
    if !is_answered(&messages) {
        // It is shown again, but a question without an answer is nothing for a model.
        messages.clear();
    }
    if session.claim().is_none() {
        return;
    }
    let stored = StoredTurn::new(texts(&messages), voice.take_record());
    session.state().stored_bytes += stored_bytes(&stored);
    let (number, trouble) = match session.store_turn(stored, title).await {
        Ok(number) => (number, None),
        Err(NotStored::Waits { error, number }) => {
            tracing::error!(%error, session = %session.id, "turn not stored yet");
            let when = "it is tried again until the session is closed";
            (number, Some(format!("This turn could not be stored yet ({error}); {when}")))
        }
        Err(NotStored::Lost(error)) => {
            tracing::error!(%error, session = %session.id, "turn not stored");
            let number = session.state().past.last().map_or(1, |past| past.number);
            (number, Some(format!("This turn could not be stored: {error}")))
        }
    };
    if !messages.is_empty() {
        session.state().past.push(Past { number, messages });
    }
    if let Some(trouble) = trouble {
        // If the client has gone there is nobody to tell.
        let _ = match agent.client().can.notices {
            true => {
                let notice = json!({"sessionUpdate": "notice", "severity": "warning", "title": trouble});
                voice.update(&notice).await
            }
            false => voice.remark(&format!("({trouble})\n")).await,
        };
    }
}

/// Returns how many bytes a turn has in the store.
pub(crate) fn stored_bytes(turn: &StoredTurn) -> usize {
    turn.messages.iter().chain(&turn.replay).map(String::len).sum()
}

/// The words of a turn: the person's, and the model's.
fn spoken(messages: &[Message]) -> (String, String) {
    let (mut said, mut answered) = (Vec::new(), Vec::new());
    for message in messages {
        match message {
            Message::User { content } => said.extend(content.iter().filter_map(|part| match part {
                Part::Text { text } => Some(text.as_str()),
                _ => None,
            })),
            Message::Assistant(message) if !message.text.is_empty() => answered.push(message.text.as_str()),
            Message::Assistant(_) | Message::Tool(_) => {}
        }
    }
    (said.join("\n"), answered.join("\n"))
}

/// Whether the model has said or called anything.
fn is_answered(messages: &[Message]) -> bool {
    let said = |message: &Message| match message {
        Message::Assistant(said) => !said.text.is_empty() || !said.calls.is_empty(),
        Message::User { .. } | Message::Tool(_) => false,
    };
    messages.iter().any(said)
}

/// Each as JSON. They are plain data with string keys, which always can be written.
fn texts<T: serde::Serialize>(values: &[T]) -> Vec<String> {
    values.iter().filter_map(|value| serde_json::to_string(value).ok()).collect()
}
