//! Prompts: one turn at a time per session.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use narrows_acp::{Version, method, v1, v2};
use narrows_wire::{Code, Frame, RpcError};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::encode;
use crate::request::{RequestFuture, check_request, invalid, open_session, read, session_not_found};
use crate::script::Capabilities;
use crate::script::step::{Speaker, Step};
use crate::scripted_response::ScriptedResponse;
use crate::session::{BeginOutcome, Prompt, Session};
use crate::step_runner::{RunEnd, StepResult, StepRunner};

/// Handles a prompt. Returns a future that runs the turn of the prompt. Returns `None` if the prompt must
/// wait or is refused.
pub(crate) fn handle_prompt(
    agent: &Arc<Agent>,
    frame: &Frame,
    response: ScriptedResponse,
) -> Option<RequestFuture> {
    let parsed = parse_prompt(agent, frame);
    let (version, session, blocks) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            response.fail(&error);
            return None;
        }
    };
    let prompt = Prompt { response, text: prompt_text(&blocks), blocks };
    // According to the draft of version 2, a second prompt is queued. Version 1 does not define that case, so
    // the prompt gets an error.
    match session.begin(prompt, version == Version::V2) {
        BeginOutcome::Now(prompt, cancelled) => {
            Some(Box::pin(run_turns(Arc::clone(agent), session, prompt, cancelled)))
        }
        BeginOutcome::Busy(prompt) => {
            let message = "a turn is running in this session: wait for its end, or cancel it";
            prompt.response.fail(&RpcError::new(Code::InvalidRequest, message));
            None
        }
        BeginOutcome::Closed(prompt) => {
            prompt.response.fail(&session_not_found(&session.id));
            None
        }
        BeginOutcome::Waiting => None,
    }
}

/// Cancels the running turn and the waiting prompts of a session, unless the script ignores cancellation.
pub(crate) fn cancel(agent: &Agent, session: &Session) {
    if agent.ignores_cancel.load(Ordering::Acquire) {
        return;
    }
    for prompt in session.cancel() {
        reject_cancelled(prompt);
    }
}

fn reject_cancelled(prompt: Prompt) {
    prompt.response.fail(&RpcError::new(Code::Cancelled, "the prompt was cancelled while it was queued"));
}

fn parse_prompt(agent: &Agent, frame: &Frame) -> Result<(Version, Arc<Session>, Vec<Value>), RpcError> {
    let version = check_request(agent, method::SESSION_PROMPT)?;
    match version {
        Version::V1 => read::<v1::PromptRequest>(frame).map(drop)?,
        Version::V2 => read::<v2::PromptRequest>(frame).map(drop)?,
    }
    let mut params: Value = read(frame)?;
    let session = open_session(agent, &params)?;
    let Value::Array(blocks) = params["prompt"].take() else {
        return Err(invalid("`prompt` must be a list"));
    };
    if blocks.is_empty() {
        return Err(invalid("`prompt` must not be empty"));
    }
    match blocks.iter().find(|block| !accepts_block(&agent.script.capabilities, block)) {
        Some(block) => Err(invalid("content type not supported").with("type", block["type"].clone())),
        None => Ok((version, session, blocks)),
    }
}

/// Returns `true` if the agent's capabilities include blocks of this type.
fn accepts_block(can: &Capabilities, block: &Value) -> bool {
    match block["type"].as_str() {
        Some("text" | "resource_link") => true,
        Some("image") => can.image,
        Some("audio") => can.audio,
        Some("resource") => can.embedded_context,
        _ => false,
    }
}

fn prompt_text(blocks: &[Value]) -> String {
    let word = |block: &Value| {
        let text = match block["type"].as_str() {
            Some("text") => &block["text"],
            Some("resource_link") => &block["uri"],
            Some("resource") => &block["resource"]["text"],
            _ => &Value::Null,
        };
        text.as_str().map(str::to_owned)
    };
    blocks.iter().filter_map(word).collect::<Vec<_>>().join(" ")
}

/// Runs the turn of a prompt, then the turns of prompts that arrived meanwhile.
async fn run_turns(
    agent: Arc<Agent>,
    session: Arc<Session>,
    mut prompt: Prompt,
    mut cancelled: watch::Receiver<bool>,
) {
    loop {
        run_turn(&agent, &session, prompt, cancelled).await;
        if agent.silence.is_set() {
            // A silent agent never ends its turn, so the session stays busy.
            return;
        }
        match session.next() {
            Some(next) => (prompt, cancelled) = next,
            None => return,
        }
    }
}

async fn run_turn(
    agent: &Arc<Agent>,
    session: &Arc<Session>,
    prompt: Prompt,
    cancelled: watch::Receiver<bool>,
) {
    let cancelled_by_client = prompt.response.cancelled_by_client();
    let (request, cancel) = watch::channel(false);
    let mut runner = StepRunner::new(Arc::clone(agent), Some(Arc::clone(session)));
    runner.values.prompt.clone_from(&prompt.text);
    runner.cancellable(cancelled, cancel);
    let running = async {
        let end = match acknowledge_prompt(&mut runner, prompt).await {
            Ok(()) => run_script_turn(&mut runner).await,
            Err(end) => end,
        };
        runner.release_terminals().await;
        runner.finish(end).await;
    };
    let mut running = pin!(running);
    tokio::select! {
        biased;
        () = cancelled_by_client => {
            request.send_replace(true);
            running.await;
        }
        () = &mut running => {}
    }
}

/// Acknowledges the prompt in version 2. Version 1 has no acknowledgment.
async fn acknowledge_prompt(runner: &mut StepRunner, prompt: Prompt) -> StepResult {
    let version = runner.agent.version();
    let message = runner.agent.message_id();
    let session = runner.session.clone();
    match version {
        Version::V1 => runner.respond_with_reason(prompt.response),
        Version::V2 => {
            runner.respond_with_state(prompt.response.respond(&json!({"messageId": message})));
            for update in encode::user_message(version, &prompt.blocks, &message) {
                runner.send_update(update).await?;
            }
            return runner.send_update(encode::state("running")).await;
        }
    }
    // In version 1, the prompt is not echoed, but is replayed when the session is loaded.
    for update in encode::user_message(version, &prompt.blocks, &message) {
        session.iter().for_each(|session| session.record(&update));
    }
    Ok(())
}

async fn run_script_turn(runner: &mut StepRunner) -> RunEnd {
    let agent = Arc::clone(&runner.agent);
    let turn_index = runner.session.as_ref().map_or(0, |session| session.turn_index());
    let outcome = match agent.script.turn(&runner.values.prompt, turn_index) {
        Some((turn, in_order)) => {
            if in_order && let Some(session) = &runner.session {
                session.count_turn_in_order();
            }
            runner.delay = turn.delay.unwrap_or(agent.script.delay);
            runner.run_steps(&turn.steps).await
        }
        None => {
            let text = "The script has no turn for this prompt.".to_owned();
            let step = Step::Speak { speaker: Speaker::Message, text, words: false, every: None };
            runner.run_steps(&[step]).await
        }
    };
    outcome.err().unwrap_or(RunEnd::Done)
}
