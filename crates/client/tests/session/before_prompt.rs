//! What an agent sends before it gets a prompt is no part of the answer.

use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{RunRequest, RuntimeEvent};
use narrows_link::{Link, memory};
use narrows_policy::Access;
use narrows_rpc::{Item, Peer, Request};
use serde_json::{Value, json};

use crate::common::{Begin, Stage, VERSIONS, all, kinds, payloads};

/// Updates of a turn: a message, a tool call and what the model call took.
async fn speak(peer: &Peer, text: &str) {
    let chunk = json!({
        "sessionUpdate": "agent_message_chunk", "messageId": text, "content": {"type": "text", "text": text},
        "_meta": {"usage": {"inputTokens": 5, "outputTokens": 7}},
    });
    let call = json!({
        "sessionUpdate": "tool_call_update", "toolCallId": text, "title": "rm x", "kind": "execute",
        "status": "completed", "rawInput": {"command": "rm x"},
    });
    for update in [chunk, call] {
        let params = json!({"sessionId": "s", "update": update});
        peer.notify("session/update", &params).await.expect("the client is there");
    }
}

/// An agent that speaks before and after it opens a session, whichever way, and then answers prompts. It takes a while to
/// open the session, and then a tenth of that to speak.
async fn talkative(link: Link, version: Version, while_opening: Duration) {
    let (peer, mut inbox) = narrows_rpc::start(link, narrows_rpc::Options::agent(|_| true));
    let state = async |state: &str| {
        let update = json!({"sessionUpdate": "state_update", "state": state, "stopReason": "end_turn"});
        let params = json!({"sessionId": "s", "update": update});
        peer.notify("session/update", &params).await.expect("the client is there");
    };
    while let Some(item) = inbox.recv().await {
        let Item::Request(Request { frame, responder }) = item else { continue };
        match frame.method().as_deref() {
            Some("initialize") => responder.respond(&introduction(version)),
            Some("session/new" | "session/fork" | "session/load" | "session/resume") => {
                speak(&peer, "BEFORE").await;
                if !while_opening.is_zero() {
                    // sleep: the agent's own, on a paused clock.
                    tokio::time::sleep(while_opening).await;
                }
                responder.respond(&json!({"sessionId": "s"}));
                if !while_opening.is_zero() {
                    // sleep: the same.
                    tokio::time::sleep(while_opening / 10).await;
                }
                speak(&peer, "AFTER").await;
            }
            Some("session/prompt") if version == Version::V1 => {
                speak(&peer, "ANSWER").await;
                responder.respond(&json!({"stopReason": "end_turn"}));
            }
            Some("session/prompt") => {
                responder.respond(&json!({}));
                state("running").await;
                speak(&peer, "ANSWER").await;
                state("idle").await;
            }
            _ => responder.respond(&json!({})),
        }
    }
}

fn introduction(version: Version) -> Value {
    match version {
        Version::V1 => json!({"protocolVersion": 1, "agentCapabilities": {
            "loadSession": true, "sessionCapabilities": {"resume": {}, "fork": {}},
        }}),
        Version::V2 => json!({
            "protocolVersion": 2, "info": {"name": "talkative", "version": "1"},
            "capabilities": {"session": {"fork": {}}},
        }),
    }
}

fn texts(events: &[RuntimeEvent]) -> Vec<Value> {
    payloads(events, "session.update")
        .into_iter()
        .filter(|payload| payload["update"]["sessionUpdate"] == "agent_message_chunk")
        .map(|payload| json!([payload["update"]["content"]["text"], payload["replay"]]))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_comes_before_the_prompt_goes_to_the_session_and_not_to_the_answer() {
    check(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_slow_to_open_a_session_is_waited_for_longer() {
    check(Duration::from_millis(100)).await;
}

async fn check(while_opening: Duration) {
    let ways = [
        (Begin::New, Value::Null),
        (Begin::Fork("old".to_owned()), true.into()),
        (Begin::Resume("s".to_owned()), true.into()),
    ];
    for version in VERSIONS {
        for (begin, is_replay) in &ways {
            let mut stage = Stage::new(version, Access::Medium);
            stage.begin = begin.clone();
            let (link, far) = memory::pair(&narrows_link::Options::default());
            let agent = tokio::spawn(talkative(far, version, while_opening));
            let mut driven = stage.open_on(link, agent).await;
            let mut outside = driven.session.events().expect("once");
            let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
            let events = all(&mut run).await;
            let result = run.result().await;
            let told = format!("{version} {begin:?} {:?}", kinds(&events));
            assert_eq!(result.final_text.as_deref(), Some("ANSWER"), "{told}");
            let calls = events.iter().filter(|event| event.name() == "tool.call").count();
            assert_eq!(calls, 1, "{told}");
            let usage = result.usage.expect("the agent reports it");
            assert_eq!((usage.input_tokens, usage.output_tokens), (Some(5), Some(7)), "{told}");
            let mut early = Vec::new();
            outside.take_all(&mut early);
            let early = texts(&early);
            assert_eq!(early.len(), 2, "{told} {early:?}");
            assert_eq!(early[0], json!(["BEFORE", is_replay]), "{told}");
            assert_eq!(early[1], json!(["AFTER", is_replay]), "{told}");
            driven.leave().await;
        }
    }
}
