//! Ambiguous permission requests, for which the effect of an approval would be unknown.

use std::sync::{Arc, Mutex};

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest};
use narrows_policy::Access;
use serde_json::Value;

use crate::common::{Stage, all, payloads};

/// The answer to a request, and the request as the user saw it.
type Answered = (Value, PermissionRequest);

/// Runs an agent that sends requests with these members to a user who answers with `reply`.
async fn answered(version: Version, requests: &[&str], reply: PermissionReply) -> Vec<Answered> {
    let options = r#"[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"n","name":"No","kind":"reject_once"}]"#;
    let send = |(number, members): (usize, &&str)| {
        let params = format!(r#"{{"sessionId":"session-1",{members},"options":{options}}}"#);
        format!(
            r#"{{ pollute = '{{"jsonrpc":"2.0","id":{number},"method":"session/request_permission","params":{params}}}' }}"#
        )
    };
    let steps: Vec<String> = requests.iter().enumerate().map(send).collect();
    // The agent does not wait for answers, and the end of the turn would cancel unanswered requests.
    let script = format!("[[turn]]\nsteps = [{}, {{ wait_cancel = true }}]", steps.join(", "));
    let asked: Arc<Mutex<Vec<PermissionRequest>>> = Arc::default();
    let heard = Arc::clone(&asked);
    let stage =
        Stage::new(version, Access::Medium).asking(move |permission_request: Arc<PermissionRequest>| {
            heard.lock().expect("no panic").push((*permission_request).clone());
            let reply = reply.clone();
            async move { reply }
        });
    let driven = stage.open(&script).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let mut resolved = Vec::new();
    while resolved.len() < requests.len() {
        let event = run.next().await.expect("an answer to each request");
        resolved.extend(payloads(&[event], "permission.resolved"));
    }
    run.cancel();
    all(&mut run).await;
    driven.leave().await;
    let asked = std::mem::take(&mut *asked.lock().expect("no panic"));
    let permission_request =
        |id: &Value| asked.iter().find(|permission_request| *id == permission_request.id.as_str()).cloned();
    let number = |resolved: &Value| {
        let id = resolved["requestId"].as_str().unwrap_or_default();
        id.trim_start_matches("perm_").parse::<usize>().expect("a number")
    };
    resolved.sort_by_key(number);
    resolved
        .into_iter()
        .map(|resolved| {
            let permission_request = permission_request(&resolved["requestId"]).expect("a question");
            (resolved, permission_request)
        })
        .collect()
}

const UNREADABLE: [&str; 14] = [
    r#""toolCall":{"toolCallId":"c1","title":"x","kind":"execute","kind":"read","rawInput":{"command":"rm x"}}"#,
    r#""toolCall":{"toolCallId":"c2","title":"x","kind":"other","rawInput":{"a":1},"rawInput":{"a":2}}"#,
    r#""toolCall":{"toolCallId":"c3","title":"x","kind":"other","rawInput":{"a":{"b":1,"b":2}}}"#,
    r#""toolCall":{"toolCallId":"c4","title":5,"kind":"execute","rawInput":{"command":"rm x"}}"#,
    r#""toolCall":{"toolCallId":5,"title":"x","kind":"execute","rawInput":{"command":"rm x"}}"#,
    r#""toolCall":{"title":"x","kind":"execute","rawInput":{"command":"rm x"}}"#,
    r#""toolCall":{"toolCallId":"c5","kind":"other","more":{"a":1,"a":2}}"#,
    r#""toolCall":{"toolCallId":"c6","kind":"other","_meta":{"a":1,"a":2}}"#,
    r#""toolCall":{"toolCallId":"c7","kind":"other","locations":[{"path":"a"},{"file":"b"}]}"#,
    r#""toolCall":{"toolCallId":"c8","kind":"other","content":[{"type":"diff","path":"a","newText":"x","newText":"y"}]}"#,
    r#""toolCall":{"toolCallId":"c9","kind":"other","content":[{"type":"content","content":{"type":"text","text":"x","text":"y"}}]}"#,
    r#""toolCall":{"toolCallId":"c10","kind":"other"},"toolCall":{"toolCallId":"d","kind":"other"}"#,
    r#""toolCall":null"#,
    r#""more":{"a":1,"a":2},"toolCall":{"toolCallId":"c11","kind":"other"}"#,
];

#[tokio::test]
async fn an_ambiguous_request_is_shown_and_cannot_be_allowed() {
    for reply in [PermissionReply::Allow, PermissionReply::Select("y".to_owned())] {
        let all = answered(Version::V1, &UNREADABLE, reply).await;
        for (members, (resolved, permission_request)) in UNREADABLE.into_iter().zip(all) {
            assert_ne!(resolved["optionId"], "y", "{members}: {resolved}");
            // If the request is not an object with unique keys, its options are unknown.
            let is_offered = !permission_request.options.is_empty();
            assert!(!is_offered || resolved["decision"]["by"] == "not readable", "{members}: {resolved}");
            let problem = permission_request.problem.expect(members);
            assert!(problem.request.contains(members) && !problem.reason.is_empty(), "{problem:?}");
        }
    }
    for (resolved, _) in answered(Version::V1, &UNREADABLE, PermissionReply::Select("n".to_owned())).await {
        assert_eq!(resolved["decision"]["by"], "answer", "{resolved}");
    }
    let subject =
        r#""title":"May I?","subject":{"type":"command","command":"ls","cwd":"/","x":[{"a":1,"a":2}]}"#;
    for (resolved, _) in answered(Version::V2, &[subject], PermissionReply::Allow).await {
        assert_eq!(resolved["optionKind"], "reject_once", "{resolved}");
    }
}

#[tokio::test]
async fn a_readable_request_can_be_allowed() {
    for (version, members) in [
        (
            Version::V1,
            r#""toolCall":{"toolCallId":"c","title":"\ud800","kind":"other","rawInput":{"a":"\ud800"}}"#,
        ),
        // Version 2 permits a request without a subject.
        (Version::V2, r#""title":"May I?""#),
        (Version::V2, r#""title":"May I?","subject":{"type":"command","command":"ls","cwd":"/"}"#),
    ] {
        for (resolved, permission_request) in answered(version, &[members], PermissionReply::Allow).await {
            assert_eq!(resolved["optionKind"], "allow_once", "{members}: {resolved}");
            assert_eq!(permission_request.problem, None, "{members}");
        }
    }
}

#[tokio::test]
async fn the_text_of_an_unreadable_request_is_bounded() {
    let long = "x".repeat(100_000);
    let members = format!(r#""toolCall":{{"toolCallId":"c","kind":"a","kind":"{long}"}}"#);
    for (_, permission_request) in answered(Version::V1, &[&members], PermissionReply::Allow).await {
        let problem = permission_request.problem.expect("a problem");
        assert!(problem.request.len() < 3100, "{}", problem.request.len());
        assert!(problem.request.ends_with(" more characters]"), "{}", problem.request);
    }
}
