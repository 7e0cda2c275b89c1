//! Nothing reaches the agent before it is recorded, and whoever asked is told the truth about it.

use super::*;

/// Every record from now on fails.
fn fill(scene: &mut Scene) {
    scene.records = false;
    scene.sight.unsettled.clear();
}

fn fail(scene: &mut Scene) -> String {
    while !scene.sight.unsettled.is_empty() {
        for seq in std::mem::take(&mut scene.sight.unsettled) {
            scene.gate.handle_audit_result(scene.now, seq, false, &mut scene.sight);
        }
    }
    scene.seen()
}

#[test]
fn a_prompt_is_recorded_before_the_agent_gets_it() {
    let mut scene = Scene::new();
    scene.ask(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    fill(&mut scene);
    for id in 2..10 {
        scene.seen();
        scene.ask(
            id,
            "session/prompt",
            &json!({"sessionId": "s", "prompt": [{"type": "text", "text": "go"}]}),
        );
        assert_eq!(scene.seen(), "");
        let seen = fail(&mut scene);
        assert!(!seen.contains("a < "), "{seen}");
        assert!(seen.contains("-32017") && seen.contains(r#""effects":"none""#), "{seen}");
    }
    scene.records = true;
    scene.ask(10, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(scene.seen().contains("a < "));
    let event = scene.sight.accepted.last().unwrap();
    assert_eq!(event.action, "prompt.accepted");
    assert_eq!(event.input.as_ref().unwrap()["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn no_session_is_opened_before_that_is_recorded() {
    for (method, params) in [
        ("session/new", json!({"cwd": "/w/a", "mcpServers": []})),
        ("session/load", json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": []})),
        ("session/resume", json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": []})),
    ] {
        let mut scene = Scene::new();
        fill(&mut scene);
        scene.ask(1, method, &params);
        assert!(!scene.seen().contains("a < "), "{method}");
        let seen = fail(&mut scene);
        assert!(!seen.contains("a < ") && seen.contains(r#""effects":"none""#), "{method} {seen}");
        assert!(scene.gate.sessions.is_empty() && scene.gate.pending_at_agent.is_empty(), "{method}");
    }
}

#[test]
fn who_asked_is_told_that_something_may_have_been_done() {
    let is_true = |seen: &str| {
        let is_told = seen.contains("-32017") && seen.contains(r#""effects":"possible""#);
        is_told && seen.contains(r#""retryable":false"#)
    };
    let mut scene = Scene::at_work();
    fill(&mut scene);
    scene.answer(2, &json!({"stopReason": "end_turn"}));
    let seen = fail(&mut scene);
    assert!(seen.contains("c < ") && is_true(&seen), "{seen}");
    // The same of what the client has done for the agent.
    let mut scene = Scene::at_work();
    scene.wants(9, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b"}));
    fill(&mut scene);
    scene.seen();
    scene.client(&json!({"jsonrpc": "2.0", "id": 9, "result": {"content": "x"}}));
    let seen = fail(&mut scene);
    assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":9,"error""#) && is_true(&seen), "{seen}");
    // And of a session that the agent has made.
    let mut scene = Scene::new();
    scene.ask(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    fill(&mut scene);
    scene.seen();
    scene.answer(1, &json!({"sessionId": "s"}));
    let seen = fail(&mut scene);
    assert!(is_true(&seen), "{seen}");
}

#[test]
fn a_request_of_the_agent_whose_decision_is_not_recorded_is_answered_once() {
    for (method, params) in [
        ("fs/read_text_file", json!({"sessionId": "s", "path": "/w/a/b"})),
        ("_x/listed", json!({"sessionId": "s"})),
    ] {
        let mut scene = Scene::at_work();
        scene.gate.config.agent_methods = vec!["_x/listed".into()];
        fill(&mut scene);
        scene.wants(9, method, &params);
        let seen = fail(&mut scene);
        assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":9,"error":{"code":-32017"#), "{method}: {seen}");
        assert!(scene.gate.pending_at_client.is_empty(), "{method}");
        scene.records = true;
        scene.pass(3_600);
        let seen = scene.seen();
        assert!(!seen.contains(r#""id":9"#), "{method}: {seen}");
    }
}

#[test]
fn a_request_of_the_client_that_waited_for_the_log_beyond_its_deadline_is_answered_once() {
    let mut scene = Scene::new();
    fill(&mut scene);
    scene.ask(1, "session/load", &json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": []}));
    scene.gate.tick(Duration::from_secs(3_600), &mut scene.sight);
    let seen = fail(&mut scene);
    assert_eq!(seen.matches(r#"c < {"jsonrpc":"2.0","id":1,"#).count(), 1, "{seen}");
    assert!(!seen.contains("a < {\"jsonrpc\":\"2.0\",\"id\":1"), "{seen}");
    assert!(scene.gate.sessions.is_empty() && scene.gate.pending_at_agent.is_empty());
}
