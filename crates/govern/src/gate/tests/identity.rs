//! What an approval is for: all that was judged and shown, once.

use super::*;

const OPTIONS: &str = r#"[{"optionId":"y","kind":"allow_once"},{"optionId":"n","kind":"reject_once"}]"#;

fn asks(scene: &mut Scene, id: u64, call: &Value) {
    let options: Value = serde_json::from_str(OPTIONS).unwrap();
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    scene.wants(id, "session/request_permission", &params);
}

fn approves(scene: &mut Scene, number: u64) {
    scene.client(&json!({"jsonrpc": "2.0", "id": format!("aip44:n:{number}"), "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
}

fn diff(path: &str, text: &str) -> Value {
    json!([{"type": "diff", "path": path, "oldText": "a", "newText": text}])
}

/// An edit of which everything is told at once.
fn edit() -> Value {
    json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Write", "kind": "edit", "status": "pending",
        "rawInput": {"note": "x", "cwd": "/w/a", "env": []}, "locations": [{"path": "/w/a/one"}],
        "content": diff("/w/a/one", "harmless")})
}

/// Each member of a call that is judged or shown, as another than [`edit`] has it.
fn others() -> [Value; 6] {
    [
        json!({"locations": [{"path": "/w/a/two"}]}),
        json!({"kind": "delete"}),
        json!({"name": "Write2"}),
        json!({"rawInput": {"note": "x", "cwd": "/w", "env": []}}),
        json!({"rawInput": {"note": "x", "cwd": "/w/a", "env": [{"name": "A", "value": "b"}]}}),
        json!({"content": diff("/w/a/two", "harmless")}),
    ]
}

fn update(more: &Value) -> Value {
    let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1"});
    update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    update
}

#[test]
fn whatever_changes_after_an_approval_needs_another() {
    for other in others() {
        let mut scene = Scene::at_work();
        scene.update(&edit());
        asks(&mut scene, 7, &json!({"toolCallId": "1"}));
        approves(&mut scene, 1);
        assert!(scene.seen().contains(r#""optionId":"y""#));
        let mut runs = update(&other);
        runs["status"] = json!("in_progress");
        scene.update(&runs);
        let seen = scene.seen();
        assert!(
            seen.contains("without an approval") && !seen.contains("approval=\"user:ada\""),
            "{other} {seen}"
        );
    }
}

#[test]
fn whatever_changes_while_it_waits_is_refused_and_asked_anew() {
    let text = json!({"content": diff("/w/a/one", "EVIL")});
    for other in others().into_iter().chain([text]) {
        let mut scene = Scene::at_work();
        scene.update(&edit());
        asks(&mut scene, 7, &json!({"toolCallId": "1"}));
        scene.seen();
        scene.update(&update(&other));
        let seen = scene.seen();
        assert!(seen.contains("the call was changed while it waited"), "{other} {seen}");
        approves(&mut scene, 1);
        assert_eq!(scene.seen(), "", "{other}");
        asks(&mut scene, 8, &json!({"toolCallId": "1"}));
        assert!(
            scene.seen().contains(r#""id":"aip44:n:2","method":"session/request_permission""#),
            "{other}"
        );
    }
}

#[test]
fn an_approval_answers_one_request_and_every_answer_is_recorded() {
    let mut scene = Scene::at_work();
    scene.update(&edit());
    asks(&mut scene, 7, &json!({"toolCallId": "1"}));
    approves(&mut scene, 1);
    assert!(scene.seen().contains(r#"a < {"jsonrpc":"2.0","id":7"#));
    asks(&mut scene, 8, &json!({"toolCallId": "1"}));
    let seen = scene.seen();
    assert!(seen.contains("policy.resolved require-approval") && !seen.contains("a < "), "{seen}");
    approves(&mut scene, 2);
    assert!(scene.seen().contains(r#"a < {"jsonrpc":"2.0","id":8"#));
    // What a policy allows is answered at once, and recorded each time.
    scene.tool("2", "Read", "pending", &json!({"path": "/w/a/b"}));
    scene.seen();
    for id in 10..13 {
        asks(&mut scene, id, &json!({"toolCallId": "2"}));
        let seen = scene.seen();
        assert!(
            seen.starts_with("log policy.resolved allow tool=\"Read\"") && seen.contains("a < "),
            "{seen}"
        );
    }
}

#[test]
fn who_is_asked_sees_all_that_is_judged_and_the_log_has_it() {
    let mut scene = Scene::at_work();
    scene.update(&edit());
    scene.seen();
    asks(&mut scene, 7, &json!({"toolCallId": "1"}));
    let question = scene.sight.raw.last().unwrap().clone();
    let question: Value = serde_json::from_str(&question).unwrap();
    let shown = &question["params"]["toolCall"];
    assert_eq!(shown["rawInput"]["note"], "x");
    assert_eq!(shown["locations"], json!([{"path": "/w/a/one"}]));
    assert_eq!(shown["content"], diff("/w/a/one", "harmless"));
    approves(&mut scene, 1);
    let event = scene.sight.events.iter().rfind(|event| event.action == "policy.resolved").unwrap();
    let input = event.input.as_ref().unwrap();
    assert_eq!((&input["rawInput"]["note"], &input["locations"]), (&json!("x"), &json!(["/w/a/one"])));
    assert_eq!(input["content"], diff("/w/a/one", "harmless"));
    assert_eq!(event.facts.get("toolKinds").unwrap().clone().into_value(), "edit");
}

/// Agents show a change once more when it is made, with other lines around it.
#[test]
fn the_text_of_a_change_that_was_made_is_a_result_and_not_what_was_approved() {
    let mut scene = Scene::at_work();
    scene.update(&edit());
    asks(&mut scene, 7, &json!({"toolCallId": "1"}));
    approves(&mut scene, 1);
    scene.update(&update(&json!({"content": diff("/w/a/one", "as it was made")})));
    scene.update(&update(&json!({"status": "completed"})));
    let seen = scene.seen();
    assert!(!seen.contains("interrupted") && seen.contains("log tool.call allow"), "{seen}");
    let event = scene.sight.events.iter().rfind(|event| event.action == "tool.call").unwrap();
    assert_eq!(event.input.as_ref().unwrap()["content"], diff("/w/a/one", "harmless"));
    assert_eq!(event.output, Some(diff("/w/a/one", "as it was made")));
    // Where it is all there is, another text is another call.
    let mut scene = Scene::at_work();
    let mut bare = edit();
    bare.as_object_mut().unwrap().remove("rawInput");
    scene.update(&bare);
    asks(&mut scene, 7, &json!({"toolCallId": "1"}));
    approves(&mut scene, 1);
    let more = json!({"content": diff("/w/a/one", "EVIL"), "status": "in_progress"});
    scene.update(&update(&more));
    assert!(scene.seen().contains("without an approval"));
}

/// The last question to the client, and the changes that it and the last decision in the log show.
fn asked_and_logged(scene: &Scene) -> (Value, Value, Value) {
    let is_question = |line: &&String| line.contains("session/request_permission");
    let question: Value =
        serde_json::from_str(scene.sight.raw.iter().rfind(is_question).expect("a question")).unwrap();
    let event = scene.sight.events.iter().rfind(|event| event.action == "policy.resolved").unwrap();
    let logged = event.input.as_ref().unwrap()["content"].clone();
    (question["id"].clone(), question["params"]["toolCall"]["content"].clone(), logged)
}

#[test]
fn a_second_question_and_its_log_show_the_text_that_was_told_last() {
    let evil = diff("/w/a/one", "EVIL");
    let announced = |status: &str| {
        let mut again = edit();
        (again["content"], again["status"]) = (evil.clone(), json!(status));
        again
    };
    let mut unsaid = announced("pending");
    unsaid.as_object_mut().unwrap().remove("status");
    let told = [
        announced("pending"),
        unsaid,
        update(&json!({"content": evil})),
        update(&json!({"content": evil, "status": "pending"})),
    ];
    for has_ended in [true, false] {
        for told in &told {
            let mut scene = Scene::at_work();
            scene.update(&edit());
            asks(&mut scene, 7, &json!({"toolCallId": "1"}));
            approves(&mut scene, 1);
            if has_ended {
                scene.update(&update(&json!({"status": "completed"})));
            }
            scene.update(told);
            asks(&mut scene, 8, &json!({"toolCallId": "1"}));
            let (id, shown, logged) = asked_and_logged(&scene);
            assert_eq!((id, &shown, &logged), (json!("aip44:n:2"), &evil, &evil), "{has_ended} {told}");
            approves(&mut scene, 2);
            assert_eq!(asked_and_logged(&scene).2, evil, "{has_ended} {told}");
            scene.update(&update(&json!({"status": "completed"})));
            let event = scene.sight.events.iter().rfind(|event| event.action == "tool.call").unwrap();
            assert_eq!(event.input.as_ref().unwrap()["content"], evil, "{has_ended} {told}");
            assert!(!scene.seen().contains("interrupted"), "{has_ended} {told}");
        }
    }
}

#[test]
fn an_approved_call_that_is_pending_again_with_another_text_needs_another_approval() {
    let mut again = edit();
    again["content"] = diff("/w/a/one", "EVIL");
    for told in [again.clone(), update(&json!({"content": again["content"], "status": "pending"}))] {
        let mut scene = Scene::at_work();
        scene.update(&edit());
        asks(&mut scene, 7, &json!({"toolCallId": "1"}));
        approves(&mut scene, 1);
        scene.update(&told);
        scene.update(&update(&json!({"status": "in_progress"})));
        assert!(scene.seen().contains("without an approval"), "{told}");
    }
}

#[test]
fn other_input_after_an_approval_is_judged_with_the_text_beside_it() {
    let evil = diff("/w/a/one", "EVIL");
    let input = json!({"note": "y", "cwd": "/w/a", "env": []});
    let mut scene = Scene::at_work();
    scene.update(&edit());
    asks(&mut scene, 7, &json!({"toolCallId": "1"}));
    approves(&mut scene, 1);
    scene.update(&update(&json!({"rawInput": input, "content": evil})));
    assert_eq!(asked_and_logged(&scene).2, evil);
}
