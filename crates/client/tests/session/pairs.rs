//! Every permission request is reported with its answer before the run ends.

use std::sync::Arc;

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest, RuntimeEvent};
use narrows_policy::{Access, Narrowing, Policy, Rules};
use serde_json::Value;
use tokio::sync::Notify;

use crate::common::{Stage, VERSIONS, all, payloads};

fn unanswered(_: Arc<PermissionRequest>) -> std::future::Pending<PermissionReply> {
    std::future::pending()
}

/// Returns the answers among `events`. Checks that every request has one.
#[track_caller]
fn resolved(events: &[RuntimeEvent]) -> Vec<Value> {
    let ids = |name: &str| {
        payloads(events, name).iter().map(|payload| payload["requestId"].to_string()).collect::<Vec<_>>()
    };
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(ids("permission.requested")), sorted(ids("permission.resolved")));
    payloads(events, "permission.resolved")
}

/// The agent sends a request with these params, and ends its turn without waiting for the answer.
#[tokio::test]
async fn a_permission_request_without_a_waiting_agent_is_reported() {
    for (params, outcome) in [
        // An unreadable request is refused, by a rejecting option if it has one.
        (r#"{"sessionId":"session-1","options":7}"#, "cancelled"),
        (
            r#"{"sessionId":"session-1","toolCall":"no","options":[{"optionId":"n","kind":"reject_once"}]}"#,
            "selected",
        ),
        (r#"{"sessionId":"session-1"}"#, "cancelled"),
        (
            r#"{"sessionId":"session-1","toolCall":{"toolCallId":"t","kind":"read"},"options":[{"optionId":"y","kind":"allow_once"}]}"#,
            "selected",
        ),
    ] {
        for version in VERSIONS {
            for asking in [false, true] {
                let script = format!(
                    r#"
                    [[turn]]
                    steps = [{{ pollute = '{{"jsonrpc":"2.0","id":99,"method":"session/request_permission","params":{params}}}' }}]
                "#
                );
                let stage = Stage::new(version, Access::Medium);
                let driven = if asking { stage.asking(unanswered) } else { stage }.open(&script).await;
                let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
                let told = resolved(&all(&mut run).await);
                assert_eq!(told.len(), 1, "{version} {params}");
                if !asking {
                    assert_eq!(told[0]["outcome"], outcome, "{version} {params}");
                }
                driven.leave().await;
            }
        }
    }
}

/// Creates a session whose user never answers a request to read, and allows everything else.
fn undecided() -> Stage {
    let rules = "[[rule]]\neffect = \"ask\"\nkind = \"read\"\n";
    let (rules, _) = Rules::parse(rules, "rules.toml").expect("rules");
    let read = Arc::new(Notify::new());
    let decide = move |permission_request: Arc<PermissionRequest>| {
        let read = Arc::clone(&read);
        async move {
            if permission_request.kind == "read" {
                read.notify_one();
                std::future::pending::<()>().await;
            }
            read.notified().await;
            PermissionReply::Allow
        }
    };
    let mut stage = Stage::new(Version::V1, Access::Medium).asking(decide);
    stage.config.policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    stage
}

#[tokio::test]
async fn a_file_request_without_a_waiting_agent_is_reported() {
    const READ: &str = r#"{ pollute = '{"jsonrpc":"2.0","id":99,"method":"fs/read_text_file","params":{"sessionId":"session-1","path":"{cwd}/note.txt"}}' }"#;
    const CANCEL: &str =
        r#"{ pollute = '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":99}}' }"#;
    // After the user was asked, the turn ends or the agent cancels the request.
    for rest in ["{ stop = \"end_turn\" }", CANCEL] {
        let steps = format!("{READ}, {{ ask = {{ title = \"Go on?\", on_allow = [{rest}] }} }}");
        let stage = undecided();
        std::fs::write(stage.config.cwd.join("note.txt"), "x").expect("a file");
        let driven = stage.open(&format!("[[turn]]\nsteps = [{steps}]")).await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let told = resolved(&all(&mut run).await);
        assert_eq!(told.len(), 2, "{told:?}");
        let read = told.iter().find(|told| told["outcome"] == "refused").expect("the file");
        assert_eq!(read["decision"]["by"], "cancelled", "{told:?}");
        driven.leave().await;
    }
}
