//! Handles `session/prompt` in both versions: from the request to the end of its turn.

use std::sync::Arc;

use narrows_acp::capability::AUTHORIZES;
use narrows_acp::{Version, v2};
use narrows_model::{Message, ModelError, Part};
use narrows_rpc::Responder;
use narrows_store::Turn as StoredTurn;
use narrows_wire::{Code, RpcError};
use serde_json::{Value, json};

use crate::agent::{Agent, ClientRequest};
use crate::content::{self, Block};
use crate::failure;
use crate::params::{Params, session_not_found};
use crate::request::{RequestFuture, check_schema, find_session, record_router_tag};
use crate::session::{BeginError, PastTurn, Session, TurnGuard};
use crate::settings::FailureFormat;
use crate::transcript::TranscriptItem;
use crate::turn::{StopReason, Turn, TurnOutcome};
use crate::unstored::NotStored;
use crate::update_writer::{UpdateWriter, new_id};

/// Starts the turn of a prompt. From then on the session is busy.
pub(crate) fn handle(
    agent: &Arc<Agent>,
    mut request: ClientRequest,
    responder: Responder,
) -> Option<RequestFuture> {
    match start_turn(agent, &mut request) {
        Ok(started) => {
            let agent = Arc::clone(agent);
            Some(match request.version {
                Version::V1 => Box::pin(respond_after_turn(agent, started, responder)),
                Version::V2 => Box::pin(respond_before_turn(agent, started, responder)),
            })
        }
        Err(error) => {
            responder.fail(&error);
            None
        }
    }
}

struct StartedTurn {
    session: Arc<Session>,
    guard: TurnGuard,
    message: String,
    blocks: Vec<Block>,
    content: Vec<Value>,
    version: Version,
    /// `true` if the client that sent the prompt decides about commands itself.
    authorizes: bool,
}

fn start_turn(agent: &Agent, request: &mut ClientRequest) -> Result<StartedTurn, RpcError> {
    check_schema::<v2::PromptRequest>(request)?;
    let session = find_session(agent, &Params::new(&request.params, request.version))?;
    let mut prompt = request.params.remove("prompt").unwrap_or(Value::Null);
    let blocks = content::parse_blocks(&mut prompt)?;
    let content = match prompt {
        Value::Array(content) => content,
        // Unreachable, because `parse_blocks` accepts only arrays.
        _ => Vec::new(),
    };
    let guard = session.begin().map_err(|unready| match unready {
        BeginError::Closed => session_not_found(&session.id),
        BeginError::Busy => {
            let message = "a turn is running in this session: wait for its end, or cancel it";
            RpcError::new(Code::InvalidRequest, message)
                .with("condition", "session_busy".into())
                .with("retryable", true.into())
                .with("sessionId", Value::from(&*session.id))
        }
    })?;
    record_router_tag(&session, request);
    let requested = request.params.get("_meta").and_then(|meta| meta.get(AUTHORIZES));
    let authorizes = agent.client().can.authorizes && requested == Some(&Value::Bool(true));
    Ok(StartedTurn {
        session,
        guard,
        message: new_id(),
        blocks,
        content,
        version: request.version,
        authorizes,
    })
}

/// Runs a turn of version 1, in which the response to the prompt marks the end of the turn.
async fn respond_after_turn(agent: Arc<Agent>, started: StartedTurn, responder: Responder) {
    let cancelled = responder.cancelled();
    let stop = started.guard.stop.clone();
    let running = run_turn(&agent, started);
    tokio::pin!(running);
    let (end, guard) = tokio::select! {
        biased;
        outcome = &mut running => outcome,
        () = cancelled => {
            stop.stop();
            running.await
        }
    };
    let ending_turn = guard.release();
    match (&end.reason, agent.errors) {
        (StopReason::Failed(error), FailureFormat::Rpc) => {
            responder.fail(&failure::rpc(error).effects(end.effects));
        }
        _ => responder.respond(&result(&end)),
    }
    drop(ending_turn);
}

fn result(end: &TurnOutcome) -> Value {
    let mut result = json!({"stopReason": end.reason.name_v1()});
    if let Some(usage) = usage(end) {
        result["usage"] = usage;
    }
    if let StopReason::Failed(error) = &end.reason {
        result["_meta"] = failure::meta(error);
    }
    result
}

/// Returns the token usage. Both versions have the same format.
fn usage(end: &TurnOutcome) -> Option<Value> {
    let usage = end.usage.as_ref()?;
    let mut fields =
        json!({"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": usage.total});
    if let Some(cached) = usage.cached {
        fields["cachedReadTokens"] = cached.into();
    }
    if let Some(reasoning) = usage.reasoning {
        fields["thoughtTokens"] = reasoning.into();
    }
    Some(fields)
}

/// Runs a turn of version 2, in which the prompt is answered once its message is in the conversation. A state
/// update reports the end of the turn.
async fn respond_before_turn(agent: Arc<Agent>, started: StartedTurn, responder: Responder) {
    responder.respond(&json!({"messageId": started.message}));
    let session = Arc::clone(&started.session);
    let (end, guard) = run_turn(&agent, started).await;
    let ending_turn = guard.release();
    let mut state =
        json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": end.reason.name_v2()});
    if let Some(usage) = usage(&end) {
        state["usage"] = usage;
    }
    if let StopReason::Failed(error) = &end.reason {
        let RpcError { code, message, data } = failure::rpc(error).effects(end.effects);
        state["error"] = json!({"code": code, "message": message, "data": data});
    }
    crate::request::send_updates(&agent, &session, vec![state]).await;
    drop(ending_turn);
}

async fn run_turn(agent: &Arc<Agent>, started: StartedTurn) -> (TurnOutcome, TurnGuard) {
    let StartedTurn { session, guard, message, blocks, content, version, authorizes } = started;
    let peer = agent.peer.with_tag(session.state().router_tag.as_deref());
    let mut updates = UpdateWriter::new(peer.clone(), Arc::clone(&session.id), version);
    if version == Version::V2 {
        let update = json!({"sessionUpdate": "user_message", "messageId": message, "content": content});
        // If the client has disconnected, the turn detects it later.
        let _ = updates.send_update(&update).await;
    }
    let _ = updates.send_state("running").await;
    updates.record(&TranscriptItem::User { id: message, content });
    let mut turn = Turn::new(Arc::clone(agent), Arc::clone(&session), peer, guard.stop.clone(), updates);
    turn.authorizes = authorizes;
    let end = turn.run(blocks).await;
    let Turn { mut updates, messages, title, .. } = turn;
    // Text that was held back is sent even if the turn was cancelled.
    let _ = updates.end_message().await;
    match &end.reason {
        StopReason::EndTurn
        | StopReason::MaxTokens
        | StopReason::MaxTurnRequests
        | StopReason::TooLarge(_)
            if !messages.is_empty() =>
        {
            if is_answered(&messages) {
                let (asked, answered) = conversation_text(&messages);
                agent.memory.record_turn(&session.id, &asked, &answered);
            }
            append_to_history(agent, &session, messages, updates, title).await;
        }
        reason => {
            if let StopReason::Failed(error) = reason {
                send_failure(agent, version, error, &mut updates).await;
            }
            // A turn that failed or was cancelled is not kept, so the title of the session is set by a later
            // turn.
            if title.is_some() {
                session.state().title = None;
            }
        }
    }
    (end, guard)
}

async fn send_failure(agent: &Agent, version: Version, error: &ModelError, updates: &mut UpdateWriter) {
    tracing::warn!(%error, "endpoint failed");
    if version == Version::V2 || agent.errors == FailureFormat::Text {
        let _ = updates.send_unrecorded_text(&failure::text(error), &failure::meta(error)).await;
    }
}

/// Adds a turn to the history. The turn is stored before the client is told its end. The title is stored in
/// the same transaction, so that the turn waits for the disk only once.
async fn append_to_history(
    agent: &Agent,
    session: &Arc<Session>,
    mut messages: Vec<Message>,
    mut updates: UpdateWriter,
    title: Option<String>,
) {
    if !is_answered(&messages) {
        // A prompt without an answer is replayed to clients, but is not part of the model's input.
        messages.clear();
    }
    if session.claim().is_none() {
        return;
    }
    let stored = StoredTurn::new(to_json_texts(&messages), updates.take_items());
    session.state().stored_bytes += stored_bytes(&stored);
    let (number, warning) = match session.store_turn(stored, title).await {
        Ok(number) => (number, None),
        Err(NotStored::Pending { error, number }) => {
            tracing::error!(%error, session = %session.id, "turn not stored yet");
            let when = "storing is retried until the session is closed";
            (number, Some(format!("This turn could not be stored yet ({error}); {when}")))
        }
        Err(NotStored::Lost(error)) => {
            tracing::error!(%error, session = %session.id, "turn not stored");
            let number = session.state().past_turns.last().map_or(1, |past| past.number);
            (number, Some(format!("This turn could not be stored: {error}")))
        }
    };
    if !messages.is_empty() {
        session.state().past_turns.push(PastTurn { number, messages });
    }
    if let Some(warning) = warning {
        let _ = match agent.client().can.notices {
            true => {
                let notice = json!({"sessionUpdate": "notice", "severity": "warning", "title": warning});
                updates.send_update(&notice).await
            }
            false => updates.send_unrecorded_thought(&format!("({warning})\n")).await,
        };
    }
}

pub(crate) fn stored_bytes(turn: &StoredTurn) -> usize {
    turn.messages.iter().chain(&turn.replay).map(String::len).sum()
}

fn conversation_text(messages: &[Message]) -> (String, String) {
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    for message in messages {
        match message {
            Message::User { content } => asked.extend(content.iter().filter_map(|part| match part {
                Part::Text { text } => Some(text.as_str()),
                _ => None,
            })),
            Message::Assistant(message) if !message.text.is_empty() => answered.push(message.text.as_str()),
            Message::Assistant(_) | Message::Tool(_) => {}
        }
    }
    (asked.join("\n"), answered.join("\n"))
}

/// Returns `true` if the model has sent text or called a tool.
fn is_answered(messages: &[Message]) -> bool {
    let has_answer = |message: &Message| match message {
        Message::Assistant(assistant) => !assistant.text.is_empty() || !assistant.calls.is_empty(),
        Message::User { .. } | Message::Tool(_) => false,
    };
    messages.iter().any(has_answer)
}

/// Serializes each value. Cannot fail for plain data with string keys.
fn to_json_texts<T: serde::Serialize>(values: &[T]) -> Vec<String> {
    values.iter().filter_map(|value| serde_json::to_string(value).ok()).collect()
}
