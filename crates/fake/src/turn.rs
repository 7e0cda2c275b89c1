//! Prompts: one turn at a time in each session.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use narrows_acp::{Version, method, v1, v2};
use narrows_wire::{Code, Frame, RpcError};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::answer::Owed;
use crate::dialect;
use crate::player::{End, Flow, Player};
use crate::request::{Work, admitted, invalid, no_session, open_session, read};
use crate::script::Capabilities;
use crate::script::step::{Step, Voice};
use crate::session::{Begin, Prompt, Session};

/// Takes a prompt; its turn is returned, unless it must wait or cannot be.
pub(crate) fn accept(agent: &Arc<Agent>, frame: &Frame, owed: Owed) -> Option<Work> {
    let understood = understand(agent, frame);
    let (version, session, blocks) = match understood {
        Ok(understood) => understood,
        Err(error) => {
            owed.fail(&error);
            return None;
        }
    };
    let prompt = Prompt { owed, text: words(&blocks), blocks };
    // The draft wants a second prompt to wait; the stable version has no word on it, so it is told plainly.
    match session.begin(prompt, version == Version::V2) {
        Begin::Now(prompt, cancelled) => {
            Some(Box::pin(take_turns(Arc::clone(agent), session, prompt, cancelled)))
        }
        Begin::Busy(prompt) => {
            let message = "a turn is running in this session: wait for its end, or cancel it";
            prompt.owed.fail(&RpcError::new(Code::InvalidRequest, message));
            None
        }
        Begin::Closed(prompt) => {
            prompt.owed.fail(&no_session(&session.id));
            None
        }
        Begin::Held => None,
    }
}

/// Cancels what runs and what waits in a session, unless the script ignores that.
pub(crate) fn cancel(agent: &Agent, session: &Session) {
    if agent.ignores_cancel.load(Ordering::Acquire) {
        return;
    }
    for prompt in session.cancel() {
        withdraw(prompt);
    }
}

fn withdraw(prompt: Prompt) {
    prompt.owed.fail(&RpcError::new(Code::Cancelled, "the prompt was cancelled before its turn came"));
}

fn understand(agent: &Agent, frame: &Frame) -> Result<(Version, Arc<Session>, Vec<Value>), RpcError> {
    let version = admitted(agent, method::SESSION_PROMPT)?;
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
    match blocks.iter().find(|block| !takes(&agent.script.capabilities, block)) {
        Some(block) => {
            Err(invalid("this kind of content is not taken here").with("type", block["type"].clone()))
        }
        None => Ok((version, session, blocks)),
    }
}

/// Whether the agent said that it takes such a block.
fn takes(can: &Capabilities, block: &Value) -> bool {
    match block["type"].as_str() {
        Some("text" | "resource_link") => true,
        Some("image") => can.image,
        Some("audio") => can.audio,
        Some("resource") => can.embedded_context,
        _ => false,
    }
}

/// What blocks say in words.
fn words(blocks: &[Value]) -> String {
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

/// Takes a turn, and those of the prompts that came meanwhile.
async fn take_turns(
    agent: Arc<Agent>,
    session: Arc<Session>,
    mut prompt: Prompt,
    mut cancelled: watch::Receiver<bool>,
) {
    loop {
        take_turn(&agent, &session, prompt, cancelled).await;
        if agent.silence.has_fallen() {
            // The session stays busy for ever.
            return;
        }
        match session.next() {
            Some(next) => (prompt, cancelled) = next,
            None => return,
        }
    }
}

async fn take_turn(
    agent: &Arc<Agent>,
    session: &Arc<Session>,
    prompt: Prompt,
    cancelled: watch::Receiver<bool>,
) {
    let given_up = prompt.owed.given_up();
    let (request, cancel) = watch::channel(false);
    let mut player = Player::new(Arc::clone(agent), Some(Arc::clone(session)));
    player.facts.prompt.clone_from(&prompt.text);
    player.cancellable(cancelled, cancel);
    let playing = async {
        let end = match begin(&mut player, prompt).await {
            Ok(()) => play(&mut player).await,
            Err(end) => end,
        };
        player.release_terminals().await;
        player.conclude(end).await;
    };
    let mut playing = pin!(playing);
    tokio::select! {
        biased;
        () = given_up => {
            request.send_replace(true);
            playing.await;
        }
        () = &mut playing => {}
    }
}

/// Tells that the prompt has arrived, as far as the version has words for that.
async fn begin(player: &mut Player, prompt: Prompt) -> Flow {
    let version = player.agent.version();
    let message = player.agent.message_id();
    let session = player.session.clone();
    match version {
        Version::V1 => player.answer_with_reason(prompt.owed),
        Version::V2 => {
            player.answer_with_state(prompt.owed.respond(&json!({"messageId": message})));
            for update in dialect::user_message(version, &prompt.blocks, &message) {
                player.tell(update).await?;
            }
            return player.tell(dialect::state("running")).await;
        }
    }
    // Version 1 does not repeat the prompt, but a session that is loaded does.
    for update in dialect::user_message(version, &prompt.blocks, &message) {
        session.iter().for_each(|session| session.record(&update));
    }
    Ok(())
}

/// Plays the turn that the script has for the prompt.
async fn play(player: &mut Player) -> End {
    let agent = Arc::clone(&player.agent);
    let taken = player.session.as_ref().map_or(0, |session| session.taken());
    let outcome = match agent.script.turn(&player.facts.prompt, taken) {
        Some((turn, in_order)) => {
            if in_order && let Some(session) = &player.session {
                session.take_one();
            }
            player.delay = turn.delay.unwrap_or(agent.script.delay);
            player.play(&turn.steps).await
        }
        None => {
            let text = "The script has no turn for this prompt.".to_owned();
            let step = Step::Speak { voice: Voice::Message, text, words: false, every: None };
            player.play(&[step]).await
        }
    };
    outcome.err().unwrap_or(End::Done)
}
