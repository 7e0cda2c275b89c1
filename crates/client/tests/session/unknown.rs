//! Requests and notifications of the agent with unknown methods.

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_policy::Access;
use serde_json::json;

use crate::common::{Stage, VERSIONS, all, payloads};

#[tokio::test]
async fn an_unknown_request_is_reported_and_refused() {
    for (method, params) in [
        ("acme/weather", r#"{ sessionId = "{session}", where = "here" }"#),
        ("_acme/weather", r#"{ sessionId = "{session}", where = "here" }"#),
        ("session/prompt", r#"{ sessionId = "{session}", where = "here" }"#),
        // The request names no session, but only one is open.
        ("acme/weather", r#"{ where = "here" }"#),
    ] {
        let script = format!(
            r#"
            [[turn]]
            steps = [{{ request = {{ method = "{method}", params = {params} }} }}, {{ say = "{{last}}" }}]
        "#
        );
        for version in VERSIONS {
            let driven = Stage::new(version, Access::Medium).open(&script).await;
            let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
            let events = all(&mut run).await;
            let told = payloads(&events, "other");
            assert_eq!(told.len(), 1, "{version} {method} {params}: {told:?}");
            assert_eq!(told[0]["name"], "request.refused");
            let data = &told[0]["data"];
            assert_eq!((&data["method"], &data["params"]["where"]), (&json!(method), &json!("here")));
            let said = run.result().await.final_text.expect("an error");
            assert!(said.contains("method not found"), "{said}");
            driven.leave().await;
        }
    }
}

/// Requests of child sessions are refused, and the refusal is reported as an event.
#[tokio::test]
async fn a_request_of_a_child_session_is_reported_and_refused() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [
          { update = { sessionUpdate = "subagent_update", sessionId = "kid" } },
          { request = { method = "session/request_permission", params = { sessionId = "NAME", toolCall = { toolCallId = "k", title = "Remove it", kind = "delete" }, options = [{ optionId = "y", name = "Yes", kind = "allow_once" }] } } },
          { say = "{last}" },
        ]
    "#;
    // A session that was not announced is not a child.
    for (name, count) in [("kid", 1), ("other", 0)] {
        let script = SCRIPT.replace("NAME", name);
        let driven = Stage::new(Version::V2, Access::High).open(&script).await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let events = all(&mut run).await;
        let (asked, resolved) =
            (payloads(&events, "permission.requested"), payloads(&events, "permission.resolved"));
        assert_eq!((asked.len(), resolved.len()), (count, count), "{name}");
        for (asked, resolved) in asked.iter().zip(&resolved) {
            assert_eq!(asked["title"], "Remove it (in the child session kid)");
            assert_eq!(
                (&resolved["outcome"], &resolved["decision"]["by"]),
                (&json!("refused"), &json!("policy"))
            );
        }
        let said = run.result().await.final_text.expect("an error");
        assert!(said.contains("session not found"), "{said}");
        driven.leave().await;
    }
}

#[tokio::test]
async fn a_request_that_was_not_offered_is_reported_and_refused() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [
          { request = { method = "fs/read_text_file", params = { sessionId = "{session}", path = "/x" } } },
          { say = "{last}" },
        ]
    "#;
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.offer.read_files = false;
    let driven = stage.open(SCRIPT).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let told = payloads(&all(&mut run).await, "other");
    assert_eq!(told[0]["data"]["method"], "fs/read_text_file", "{told:?}");
    assert!(
        run.result().await.final_text.expect("an error").contains("the client does not offer this method")
    );
    driven.leave().await;
}

#[tokio::test]
async fn an_unknown_notification_is_reported() {
    for (method, params) in [
        ("acme/progress", r#"{ sessionId = "{session}", percent = 50 }"#),
        ("_acme/progress", r#"{ sessionId = "{session}", percent = 50 }"#),
    ] {
        let script = format!(
            r#"
            [[turn]]
            steps = [{{ notify = {{ method = "{method}", params = {params} }} }}, {{ say = "Done." }}]
        "#
        );
        let driven = Stage::new(Version::V1, Access::Medium).open(&script).await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let told = payloads(&all(&mut run).await, "notification");
        assert_eq!(told.len(), 1, "{method}");
        assert_eq!((&told[0]["method"], &told[0]["params"]["percent"]), (&json!(method), &json!(50)));
        driven.leave().await;
    }
}

/// The notification names no session, but only one is open. It may arrive after the end of the turn.
#[tokio::test]
async fn a_notification_of_no_session_goes_to_the_only_one() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [{ notify = { method = "_acme/progress", params = { percent = 50 } } }, { wait_cancel = true }]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(SCRIPT).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    loop {
        let event = run.next().await.expect("the notification");
        if let [told] = &payloads(&[event], "notification")[..] {
            assert_eq!(told["params"]["percent"], 50);
            break;
        }
    }
    run.cancel();
    run.result().await;
    driven.leave().await;
}

/// An agent that waits for an answer before it sends its own answer gets one.
#[tokio::test]
async fn requests_before_the_session_are_refused() {
    const SCRIPT: &str = r#"
        [on]
        initialize = [{ request = { method = "acme/weather", params = { where = "here" } } }]
        [[turn]]
        steps = [{ say = "Done." }]
    "#;
    for version in VERSIONS {
        let driven = Stage::new(version, Access::Medium).open(SCRIPT).await;
        let result = driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
        assert_eq!(result.final_text.as_deref(), Some("Done."), "{version}");
        driven.leave().await;
    }
}
