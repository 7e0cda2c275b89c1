//! Waiting times: of the agent, of the client, and of its user.

use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{Problem, RunRequest, Status};
use narrows_link::{Link, memory};
use narrows_policy::Access;
use narrows_rpc::{Item, Peer, Request};
use narrows_testkit::fake::{Script, options, run};
use narrows_wire::message;
use serde_json::{Value, json};

use crate::common::{Begin, Stage, all, payloads};

/// Returns both ends of an in-process link, for tests with a paused clock.
fn pair() -> (Link, Link) {
    memory::pair(&narrows_link::Options::default())
}

/// Sends an update and a request while the agent loads a session, and waits for the answer.
async fn loading(peer: &Peer) -> Value {
    let told = json!({"sessionId": "old", "percent": 50});
    peer.notify("_acme/progress", &told).await.expect("the client is there");
    let wanted = json!({"sessionId": "old", "path": "/x"});
    let read = peer.request::<_, Value>("fs/read_text_file", &wanted, Duration::from_secs(3600)).await;
    assert!(read.is_err(), "{read:?}");
    json!({})
}

async fn loader(link: Link) {
    let (peer, mut inbox) = narrows_rpc::start(link, narrows_rpc::Options::agent(|_| true));
    while let Some(item) = inbox.recv().await {
        let Item::Request(Request { frame, responder }) = item else { continue };
        let answer = match frame.method().as_deref() {
            Some("initialize") => json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}),
            Some("session/load") => loading(&peer).await,
            _ => json!({"stopReason": "end_turn"}),
        };
        responder.respond(&answer);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_during_session_load_are_answered() {
    let (link, far) = pair();
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.begin = Begin::Resume("old".to_owned());
    let mut driven = stage.open_on(link, tokio::spawn(loader(far))).await;
    let mut events = driven.session.events().expect("once");
    let told = events.next().await.expect("an event");
    assert_eq!(payloads(&[told], "notification")[0]["params"]["percent"], 50);
    let result = driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    assert_eq!(result.status, Status::Success);
    driven.leave().await;
}

/// A reader that takes no events blocks the agent, which does not count as silence of the agent.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_does_not_count_as_silence() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [{ flood = { updates = 40000 } }, { say = "Done." }]
    "#;
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.agent.deadlines.silence = Duration::from_secs(10);
    let (link, far) = pair();
    let (peer, inbox) = narrows_rpc::start(far, options());
    let agent = tokio::spawn(async {
        run(peer, inbox, Box::new(std::io::sink()), Script::parse(SCRIPT).expect("a script")).await;
    });
    let driven = stage.open_on(link, agent).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    run.next().await.expect("an event");
    // sleep: on a paused clock; the reader is slow but has not stopped
    tokio::time::sleep(Duration::from_secs(40)).await;
    all(&mut run).await;
    let result = run.result().await;
    assert_eq!((result.status, result.error), (Status::Success, None));
    driven.leave().await;
}

async fn deaf(mut link: Link, sessions: usize) {
    for number in 0..=sessions {
        let asked = link.receiver.recv().await.expect("a request");
        let answer = json!({"protocolVersion": 1, "sessionId": number.to_string()});
        let line = message::response(asked.id().expect("an id"), &answer).expect("plain data");
        link.sender.send(line).await.expect("the client is there");
    }
    std::future::pending::<()>().await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_to_an_agent_that_reads_nothing_has_a_timeout() {
    const SESSIONS: usize = 8;
    let (link, far) = pair();
    let stage = Stage::new(Version::V1, Access::Medium);
    let config = stage.config.clone();
    let agent = tokio::spawn(deaf(far, SESSIONS + 1));
    let driven = stage.open_on(link, tokio::spawn(async {})).await;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(driven.runtime.open_session(config.clone()).await.expect("a session"));
    }
    let mut outcomes = Vec::new();
    for session in &sessions {
        outcomes.push(session.run(RunRequest::text("x".repeat(2 << 20))).await);
    }
    let error = outcomes.pop().expect("the last").expect_err("there is no room");
    assert!(matches!(*error.problem, Problem::Deadline(_)), "{error}");
    agent.abort();
    driven.leave().await;
}
