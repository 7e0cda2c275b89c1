//! Tests that an approval covers only the call that was judged and shown, and only once.

use super::*;

const OPTIONS: &str = r#"[{"optionId":"y","kind":"allow_once"},{"optionId":"n","kind":"reject_once"}]"#;

fn ask_permission(fixture: &mut Fixture, id: u64, call: &Value) {
    let options: Value = serde_json::from_str(OPTIONS).unwrap();
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    fixture.agent_requests(id, "session/request_permission", &params);
}

fn approve(fixture: &mut Fixture, number: u64) {
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": format!("aip44:n:{number}"), "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
}

fn diff(path: &str, text: &str) -> Value {
    json!([{"type": "diff", "path": path, "oldText": "a", "newText": text}])
}

fn edit_call() -> Value {
    json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Write", "kind": "edit", "status": "pending",
        "rawInput": {"note": "x", "cwd": "/w/a", "env": []}, "locations": [{"path": "/w/a/one"}],
        "content": diff("/w/a/one", "harmless")})
}

/// Returns calls that each differ from [`edit_call`] in one member that is judged or shown.
fn changed_calls() -> [Value; 6] {
    [
        json!({"locations": [{"path": "/w/a/two"}]}),
        json!({"kind": "delete"}),
        json!({"name": "Write2"}),
        json!({"rawInput": {"note": "x", "cwd": "/w", "env": []}}),
        json!({"rawInput": {"note": "x", "cwd": "/w/a", "env": [{"name": "A", "value": "b"}]}}),
        json!({"content": diff("/w/a/two", "harmless")}),
    ]
}

fn call_update(more: &Value) -> Value {
    let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1"});
    update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    update
}

#[test]
fn changes_after_an_approval_need_a_new_one() {
    for other in changed_calls() {
        let mut fixture = Fixture::with_turn();
        fixture.agent_updates(&edit_call());
        ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
        approve(&mut fixture, 1);
        assert!(fixture.take_seen().contains(r#""optionId":"y""#));
        let mut runs = call_update(&other);
        runs["status"] = json!("in_progress");
        fixture.agent_updates(&runs);
        let seen = fixture.take_seen();
        assert!(
            seen.contains("without an approval") && !seen.contains("approval=\"user:ada\""),
            "{other} {seen}"
        );
    }
}

#[test]
fn changes_while_an_approval_is_pending_need_a_new_one() {
    let text = json!({"content": diff("/w/a/one", "EVIL")});
    for other in changed_calls().into_iter().chain([text]) {
        let mut fixture = Fixture::with_turn();
        fixture.agent_updates(&edit_call());
        ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
        fixture.take_seen();
        fixture.agent_updates(&call_update(&other));
        let seen = fixture.take_seen();
        assert!(seen.contains("the call changed while it waited for approval"), "{other} {seen}");
        approve(&mut fixture, 1);
        assert_eq!(fixture.take_seen(), "", "{other}");
        ask_permission(&mut fixture, 8, &json!({"toolCallId": "1"}));
        assert!(
            fixture.take_seen().contains(r#""id":"aip44:n:2","method":"session/request_permission""#),
            "{other}"
        );
    }
}

#[test]
fn an_approval_answers_one_request_and_every_answer_is_recorded() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(&edit_call());
    ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
    approve(&mut fixture, 1);
    assert!(fixture.take_seen().contains(r#"a < {"jsonrpc":"2.0","id":7"#));
    ask_permission(&mut fixture, 8, &json!({"toolCallId": "1"}));
    let seen = fixture.take_seen();
    assert!(seen.contains("policy.resolved require-approval") && !seen.contains("a < "), "{seen}");
    approve(&mut fixture, 2);
    assert!(fixture.take_seen().contains(r#"a < {"jsonrpc":"2.0","id":8"#));
    // A call that a policy allows is answered without an approver, and each answer is recorded.
    fixture.agent_calls("2", "Read", "pending", &json!({"path": "/w/a/b"}));
    fixture.take_seen();
    for id in 10..13 {
        ask_permission(&mut fixture, id, &json!({"toolCallId": "2"}));
        let seen = fixture.take_seen();
        assert!(
            seen.starts_with("log policy.resolved allow tool=\"Read\"") && seen.contains("a < "),
            "{seen}"
        );
    }
}

#[test]
fn approvers_and_the_log_see_every_judged_member() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(&edit_call());
    fixture.take_seen();
    ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
    let question = fixture.output.raw.last().unwrap().clone();
    let question: Value = serde_json::from_str(&question).unwrap();
    let shown = &question["params"]["toolCall"];
    assert_eq!(shown["rawInput"]["note"], "x");
    assert_eq!(shown["locations"], json!([{"path": "/w/a/one"}]));
    assert_eq!(shown["content"], diff("/w/a/one", "harmless"));
    approve(&mut fixture, 1);
    let event = fixture.output.events.iter().rfind(|event| event.action == "policy.resolved").unwrap();
    let input = event.input.as_ref().unwrap();
    assert_eq!((&input["rawInput"]["note"], &input["locations"]), (&json!("x"), &json!(["/w/a/one"])));
    assert_eq!(input["content"], diff("/w/a/one", "harmless"));
    assert_eq!(event.facts.get("toolKinds").unwrap().clone().into_value(), "edit");
}

/// Agents report a change again when they have made it, with other context lines.
#[test]
fn a_diff_reported_after_the_change_is_a_result() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(&edit_call());
    ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
    approve(&mut fixture, 1);
    fixture.agent_updates(&call_update(&json!({"content": diff("/w/a/one", "as it was made")})));
    fixture.agent_updates(&call_update(&json!({"status": "completed"})));
    let seen = fixture.take_seen();
    assert!(!seen.contains("interrupted") && seen.contains("log tool.call allow"), "{seen}");
    let event = fixture.output.events.iter().rfind(|event| event.action == "tool.call").unwrap();
    assert_eq!(event.input.as_ref().unwrap()["content"], diff("/w/a/one", "harmless"));
    assert_eq!(event.output, Some(diff("/w/a/one", "as it was made")));
    // If the call has no input, a diff with another text makes it another call.
    let mut fixture = Fixture::with_turn();
    let mut bare = edit_call();
    bare.as_object_mut().unwrap().remove("rawInput");
    fixture.agent_updates(&bare);
    ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
    approve(&mut fixture, 1);
    let more = json!({"content": diff("/w/a/one", "EVIL"), "status": "in_progress"});
    fixture.agent_updates(&call_update(&more));
    assert!(fixture.take_seen().contains("without an approval"));
}

/// Returns the last permission request to the client, and the changes that the request and the last logged
/// decision show.
fn last_request_and_logged_changes(fixture: &Fixture) -> (Value, Value, Value) {
    let is_question = |line: &&String| line.contains("session/request_permission");
    let question: Value =
        serde_json::from_str(fixture.output.raw.iter().rfind(is_question).expect("a question")).unwrap();
    let event = fixture.output.events.iter().rfind(|event| event.action == "policy.resolved").unwrap();
    let logged = event.input.as_ref().unwrap()["content"].clone();
    (question["id"].clone(), question["params"]["toolCall"]["content"].clone(), logged)
}

#[test]
fn a_second_request_and_its_entry_show_the_latest_text() {
    let evil = diff("/w/a/one", "EVIL");
    let announced = |status: &str| {
        let mut again = edit_call();
        (again["content"], again["status"]) = (evil.clone(), json!(status));
        again
    };
    let mut unsaid = announced("pending");
    unsaid.as_object_mut().unwrap().remove("status");
    let told = [
        announced("pending"),
        unsaid,
        call_update(&json!({"content": evil})),
        call_update(&json!({"content": evil, "status": "pending"})),
    ];
    for has_ended in [true, false] {
        for told in &told {
            let mut fixture = Fixture::with_turn();
            fixture.agent_updates(&edit_call());
            ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
            approve(&mut fixture, 1);
            if has_ended {
                fixture.agent_updates(&call_update(&json!({"status": "completed"})));
            }
            fixture.agent_updates(told);
            ask_permission(&mut fixture, 8, &json!({"toolCallId": "1"}));
            let (id, shown, logged) = last_request_and_logged_changes(&fixture);
            assert_eq!((id, &shown, &logged), (json!("aip44:n:2"), &evil, &evil), "{has_ended} {told}");
            approve(&mut fixture, 2);
            assert_eq!(last_request_and_logged_changes(&fixture).2, evil, "{has_ended} {told}");
            fixture.agent_updates(&call_update(&json!({"status": "completed"})));
            let event = fixture.output.events.iter().rfind(|event| event.action == "tool.call").unwrap();
            assert_eq!(event.input.as_ref().unwrap()["content"], evil, "{has_ended} {told}");
            assert!(!fixture.take_seen().contains("interrupted"), "{has_ended} {told}");
        }
    }
}

#[test]
fn an_approved_call_that_is_pending_again_with_another_text_needs_another_approval() {
    let mut again = edit_call();
    again["content"] = diff("/w/a/one", "EVIL");
    for told in [again.clone(), call_update(&json!({"content": again["content"], "status": "pending"}))] {
        let mut fixture = Fixture::with_turn();
        fixture.agent_updates(&edit_call());
        ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
        approve(&mut fixture, 1);
        fixture.agent_updates(&told);
        fixture.agent_updates(&call_update(&json!({"status": "in_progress"})));
        assert!(fixture.take_seen().contains("without an approval"), "{told}");
    }
}

#[test]
fn changed_input_is_judged_with_the_latest_diff() {
    let evil = diff("/w/a/one", "EVIL");
    let input = json!({"note": "y", "cwd": "/w/a", "env": []});
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(&edit_call());
    ask_permission(&mut fixture, 7, &json!({"toolCallId": "1"}));
    approve(&mut fixture, 1);
    fixture.agent_updates(&call_update(&json!({"rawInput": input, "content": evil})));
    assert_eq!(last_request_and_logged_changes(&fixture).2, evil);
}
