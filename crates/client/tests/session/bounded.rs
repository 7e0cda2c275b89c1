//! Tests with an agent that sends much and reads little.

use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest};
use narrows_link::{Link, memory};
use narrows_policy::{Access, Narrowing, Policy, Rules};
use narrows_wire::message;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::common::Stage;

const MEBIBYTE: usize = 1 << 20;

/// Opens a session, and sends these requests after the first prompt. Returns the error codes of the answers;
/// `None` for results.
pub(crate) async fn asking(mut link: Link, requests: Vec<Value>, answers: usize) -> Vec<Option<i64>> {
    let prompt = loop {
        let frame = link.receiver.recv().await.expect("a request");
        let id = frame.id().expect("an id").to_vec();
        let answer = match frame.method().as_deref() {
            Some("session/prompt") => break id,
            Some("initialize") => json!({"protocolVersion": 1}),
            _ => json!({"sessionId": "s"}),
        };
        link.sender.send(message::response(&id, &answer).expect("plain data")).await.expect("a client");
    };
    for request in &requests {
        link.sender.send(request.to_string().into()).await.expect("a client");
    }
    let mut codes = Vec::new();
    while codes.len() < answers {
        let frame = link.receiver.recv().await.expect("an answer");
        let answer: Value = serde_json::from_slice(frame.bytes()).expect("JSON");
        codes.push(answer["error"]["code"].as_i64());
    }
    let answer = message::response(&prompt, &json!({"stopReason": "end_turn"})).expect("plain data");
    link.sender.send(answer).await.expect("a client");
    // Keeps the link open until the client disconnects.
    while link.receiver.recv().await.is_some() {}
    codes
}

fn requests(method: &str, count: usize, params: &Value) -> Vec<Value> {
    (0..count).map(|id| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).collect()
}

#[tokio::test]
async fn requests_that_wait_for_a_person_are_bounded_in_bytes() {
    let (rules, _) = Rules::parse("[[rule]]\neffect = 'ask'\nkind = 'edit'\n", "p.toml").expect("rules");
    let mut stage = Stage::new(Version::V1, Access::Medium)
        .asking(|_: Arc<PermissionRequest>| async { std::future::pending::<PermissionReply>().await });
    stage.config.policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    let params =
        json!({"sessionId": "s", "path": stage.config.cwd.join("a"), "content": "x".repeat(MEBIBYTE)});
    let (link, far) = memory::pair(&narrows_link::Options::default());
    let agent = tokio::spawn(asking(far, requests("fs/write_text_file", 70, &params), 6));
    let driven = stage.open_on(link, tokio::spawn(async {})).await;
    driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    driven.leave().await;
    assert_eq!(agent.await.expect("no panic"), [Some(-32012); 6]);
}

#[tokio::test]
async fn an_agent_that_reads_late_gets_every_requested_file() {
    const COUNT: usize = 40;
    let stage = Stage::new(Version::V1, Access::Medium);
    let path = stage.config.cwd.join("a");
    std::fs::write(&path, "x".repeat(MEBIBYTE)).expect("a file");
    let params = json!({"sessionId": "s", "path": path});
    let (link, far) = memory::pair(&narrows_link::Options::default());
    let agent = tokio::spawn(asking(far, requests("fs/read_text_file", COUNT, &params), COUNT));
    let driven = stage.open_on(link, tokio::spawn(async {})).await;
    let run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    tokio::time::timeout(Duration::from_secs(60), run.result()).await.expect("nothing waits for ever");
    driven.leave().await;
    assert_eq!(agent.await.expect("no panic"), [None; COUNT]);
}
