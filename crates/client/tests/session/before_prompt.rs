//! Updates before the prompt are not part of the answer, and requests before the prompt are refused.

use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{PermissionReply, RunRequest, RuntimeEvent};
use narrows_link::{Link, memory};
use narrows_policy::Access;
use narrows_rpc::{Item, Peer, Request};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::common::{Begin, Stage, VERSIONS, all, kinds, payloads};

/// Sends the updates of a turn: a message, a tool call and the usage of a model call.
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

/// An agent that sends updates before and after it opens a session, and then answers prompts. It takes
/// `while_opening` to open the session, and a tenth of that until it sends updates.
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
                    // sleep: the agent's own, on a paused clock.
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
async fn updates_before_the_prompt_go_to_the_session() {
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

/// Requests that the agent sends before the first prompt, and that are refused.
fn early_wishes(place: &std::path::Path) -> Vec<(&'static str, Value)> {
    let path = |name: &str| place.join(name);
    vec![
        ("fs/read_text_file", json!({"sessionId": "s", "path": path("there")})),
        ("fs/write_text_file", json!({"sessionId": "s", "path": path("written"), "content": "x"})),
        (
            "terminal/create",
            json!({"sessionId": "s", "command": "touch", "args": [path("touched")], "cwd": place}),
        ),
    ]
}

/// Time at which the agent sends requests before the first prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Opening,
    /// The requests are sent right after the answer to `session/new`.
    Opened,
}

/// An agent that sends requests before the first prompt, and forwards the results to `answers`. The same
/// requests are granted in a turn.
async fn hasty(link: Link, when: When, place: std::path::PathBuf, answers: mpsc::Sender<String>) {
    let (peer, mut inbox) = narrows_rpc::start(link, narrows_rpc::Options::agent(|_| true));
    let mut tasks = JoinSet::new();
    let wish = |tasks: &mut JoinSet<()>, time: &'static str| {
        for (method, params) in early_wishes(&place) {
            let (peer, answers) = (peer.clone(), answers.clone());
            tasks.spawn(async move {
                let answer = peer.request::<_, Value>(method, &params, Duration::from_secs(60)).await;
                let outcome = if answer.is_ok() { "done" } else { "refused" };
                answers.send(format!("{time} {method} {outcome}")).await.expect("the test is there");
            });
        }
    };
    while let Some(item) = inbox.recv().await {
        let Item::Request(Request { frame, responder }) = item else { continue };
        match frame.method().as_deref() {
            Some("initialize") => responder.respond(&introduction(Version::V1)),
            Some("session/new") => {
                if when == When::Opening {
                    wish(&mut tasks, "early");
                }
                responder.respond(&json!({"sessionId": "s"}));
                if when == When::Opened {
                    wish(&mut tasks, "early");
                }
            }
            Some("session/prompt") => {
                wish(&mut tasks, "turn");
                while tasks.join_next().await.is_some() {}
                responder.respond(&json!({"stopReason": "end_turn"}));
            }
            _ => responder.respond(&json!({})),
        }
    }
}

/// Requests before the first prompt are refused, as between two turns.
#[tokio::test]
async fn requests_before_the_first_prompt_are_refused() {
    for access in [Access::Medium, Access::High] {
        for when in [When::Opening, When::Opened] {
            for waits in [true, false] {
                check_hasty(access, when, waits).await;
            }
        }
    }
}

/// Opens a session with [`hasty`]. Prompts it at once, or only after it has all answers.
async fn check_hasty(access: Access, when: When, waits: bool) {
    let told = format!("{access:?} {when:?} {waits}");
    let stage = Stage::new(Version::V1, access).asking(async |_| PermissionReply::Allow);
    let place = stage.config.cwd.clone();
    std::fs::write(place.join("there"), "x").expect("a file");
    let (link, far) = memory::pair(&narrows_link::Options::default());
    let (answers, mut answered) = mpsc::channel(16);
    let agent = tokio::spawn(hasty(far, when, place.clone(), answers));
    let driven = stage.open_on(link, agent).await;
    let mut found = Vec::new();
    if waits {
        while found.len() < 3 {
            found.push(answered.recv().await.expect("the agent is there"));
        }
        assert!(!place.join("written").exists() && !place.join("touched").exists(), "{told}");
    }
    let run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    run.result().await;
    driven.leave().await;
    while let Some(answer) = answered.recv().await {
        found.push(answer);
    }
    found.sort();
    let mut expected: Vec<String> = Vec::new();
    for (time, outcome) in [("early", "refused"), ("turn", "done")] {
        let methods = early_wishes(&place).into_iter().map(|(method, _)| method);
        expected.extend(methods.map(|method| format!("{time} {method} {outcome}")));
    }
    assert_eq!(found, expected, "{told}");
}
