//! Dropped messages of the agent, and their reports.

use narrows_acp::Version;
use narrows_client::{RunRequest, Status};
use narrows_policy::Access;
use serde_json::json;

use crate::common::{Stage, VERSIONS, all, kinds, payloads};

async fn lost(version: Version, steps: &str) -> serde_json::Value {
    let script = format!("[[turn]]\nsteps = [{steps}, {{ say = \"Done.\" }}]\n[[turn]]\nsteps = []");
    let driven = Stage::new(version, Access::Medium).open(&script).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let events = all(&mut run).await;
    assert_eq!(kinds(&events).last().map(String::as_str), Some("run.completed"));
    assert_eq!(run.result().await.status, Status::Success);
    // The loss is reported only once.
    let mut next = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    assert_eq!(payloads(&all(&mut next).await, "other").len(), 0);
    driven.leave().await;
    let told = payloads(&events, "other");
    assert_eq!((told.len(), &told[0]["name"]), (1, &json!("messages.lost")), "{told:?}");
    told[0]["data"].clone()
}

#[tokio::test]
async fn lost_messages_are_reported() {
    let nameless = r#"{ pollute = '{"jsonrpc":"2.0","method":"session/update","params":{"update":{}}}' }"#;
    for version in VERSIONS {
        assert_eq!(
            lost(version, &format!("{nameless}, {nameless}")).await,
            json!({"count": 2, "reasons": [{"reason": "an update that names no session", "count": 2}]})
        );
    }
    assert_eq!(
        lost(Version::V1, r#"{ giant_line = "65MiB" }"#).await,
        json!({"count": 1, "reasons": [{"reason": "too long", "count": 1}]})
    );
}

#[tokio::test]
async fn early_messages_are_reported() {
    const SCRIPT: &str = r#"
        [on]
        session_new = [{ flood = { updates = 40, bytes = 100000 } }]
        [[turn]]
        steps = [{ say = "Done." }]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(SCRIPT).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let told = payloads(&all(&mut run).await, "other");
    assert_eq!(told[0]["data"]["reasons"][0]["reason"], "too early to be kept", "{told:?}");
    driven.leave().await;
}
