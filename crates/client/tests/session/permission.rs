//! Permission requests: the deciding authority, and the answer to the agent.

use std::sync::Arc;
use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest, Status};
use narrows_policy::Access;

use crate::common::{Stage, VERSIONS, all, payloads};

/// Returns the last message of the script `ask`, and the settlement of its request.
async fn settled(stage: Stage) -> (String, serde_json::Value) {
    let driven = stage.open("ask").await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let events = all(&mut run).await;
    assert_eq!(payloads(&events, "permission.requested").len(), 1);
    let mut resolved = payloads(&events, "permission.resolved");
    let text = run.result().await.final_text.map(|text| text.to_string()).unwrap_or_default();
    driven.leave().await;
    (text, resolved.pop().expect("an answer"))
}

#[tokio::test]
async fn the_policy_decides_where_it_can() {
    for version in VERSIONS {
        for (access, said, kind) in [
            (Access::Low, "leave it as it is", "reject_once"),
            (Access::Medium, "with your leave", "allow_once"),
            (Access::High, "with your leave", "allow_once"),
        ] {
            let (text, resolved) = settled(Stage::new(version, access)).await;
            assert!(text.contains(said), "{version} {access}: {text}");
            assert_eq!(resolved["optionKind"], kind, "{version} {access}: {resolved}");
            assert_eq!(resolved["decision"]["by"], "policy");
        }
    }
}

/// An agent that requests a change of mode, about which medium access asks.
const OPEN: &str = r#"
    [[turn]]
    steps = [
      { tool = { id = "t", title = "Leave plan mode", kind = "switch_mode" } },
      { ask = { tool = "t", title = "Leave plan mode?", options = ["allow_once", "reject_once"], on_allow = [
        { say = "Allowed." },
      ], on_reject = [{ say = "Refused." }] } },
    ]
"#;

#[tokio::test(start_paused = true)]
async fn the_user_is_asked_where_the_policy_asks() {
    let never = |_: Arc<PermissionRequest>| std::future::pending::<PermissionReply>();
    let answers: [(&str, Stage, &str, &str); 6] = [
        ("nobody", Stage::new(Version::V1, Access::Medium), "Refused.", "nobody to ask"),
        ("yes", stage(PermissionReply::Allow), "Allowed.", "answer"),
        ("no", stage(PermissionReply::Reject), "Refused.", "answer"),
        ("by name", stage(PermissionReply::Select("allow_once".to_owned())), "Allowed.", "answer"),
        ("invented", stage(PermissionReply::Select("root".to_owned())), "Refused.", "answer"),
        ("too late", Stage::new(Version::V1, Access::Medium).asking(never), "Refused.", "timed out"),
    ];
    for (who, stage, said, by) in answers {
        let driven = stage.open(OPEN).await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let events = all(&mut run).await;
        assert_eq!(run.result().await.final_text.as_deref(), Some(said), "{who}");
        let resolved = payloads(&events, "permission.resolved");
        assert_eq!(resolved[0]["decision"]["by"], by, "{who}: {resolved:?}");
        driven.leave().await;
    }
}

fn stage(reply: PermissionReply) -> Stage {
    let decide = move |permission_request: Arc<PermissionRequest>| {
        assert_eq!(permission_request.title, "Leave plan mode?");
        let reply = reply.clone();
        async move { reply }
    };
    Stage::new(Version::V1, Access::Medium).asking(decide)
}

#[tokio::test(start_paused = true)]
async fn a_permission_request_pauses_the_silence_timeout_and_ends_with_the_turn() {
    let mut stage = Stage::new(Version::V1, Access::Medium)
        .asking(|_: Arc<PermissionRequest>| std::future::pending::<PermissionReply>());
    stage.agent.deadlines.silence = Duration::from_secs(10);
    stage.agent.deadlines.permission = Duration::from_secs(3600);
    let driven = stage.open(OPEN).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    loop {
        let event = run.next().await.expect("a question");
        if !payloads(&[event], "permission.requested").is_empty() {
            break;
        }
    }
    // sleep: on a paused clock; the user takes longer than the agent may be silent
    tokio::time::sleep(Duration::from_secs(600)).await;
    run.cancel();
    let events = all(&mut run).await;
    assert_eq!(payloads(&events, "permission.resolved")[0]["outcome"], "cancelled");
    assert_eq!(run.result().await.status, Status::Cancelled);
    driven.leave().await;
}

/// A command that the agent runs itself does not run in the client's sandbox.
#[tokio::test]
async fn a_sandbox_permits_only_commands_that_run_in_it() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [
          { tool = { id = "t", title = "Run it", kind = "execute" } },
          { ask = { tool = "t", title = "Run it?", options = ["allow_once", "reject_once"], on_allow = [
            { say = "Allowed." },
          ], on_reject = [{ say = "Refused." }] } },
        ]
    "#;
    for version in VERSIONS {
        let mut stage = Stage::new(version, Access::Medium);
        stage.config.sandbox = true;
        let driven = stage.open(SCRIPT).await;
        let result = driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
        assert_eq!(result.final_text.as_deref(), Some("Refused."), "{version}");
        driven.leave().await;
    }
}
