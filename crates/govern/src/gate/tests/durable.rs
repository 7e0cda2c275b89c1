//! Tests that no message reaches the agent before it is recorded, and that errors report possible effects.

use super::*;

fn fill_log(fixture: &mut Fixture) {
    fixture.settles_at_once = false;
    fixture.output.unsettled.clear();
}

fn fail_log(fixture: &mut Fixture) -> String {
    while !fixture.output.unsettled.is_empty() {
        for seq in std::mem::take(&mut fixture.output.unsettled) {
            fixture.gate.handle_audit_result(fixture.now, seq, false, &mut fixture.output);
        }
    }
    fixture.take_seen()
}

#[test]
fn a_prompt_is_recorded_before_the_agent_gets_it() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fill_log(&mut fixture);
    for id in 2..10 {
        fixture.take_seen();
        fixture.client_requests(
            id,
            "session/prompt",
            &json!({"sessionId": "s", "prompt": [{"type": "text", "text": "go"}]}),
        );
        assert_eq!(fixture.take_seen(), "");
        let seen = fail_log(&mut fixture);
        assert!(!seen.contains("a < "), "{seen}");
        assert!(seen.contains("-32017") && seen.contains(r#""effects":"none""#), "{seen}");
    }
    fixture.settles_at_once = true;
    fixture.client_requests(10, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(fixture.take_seen().contains("a < "));
    let event = fixture.output.accepted.last().unwrap();
    assert_eq!(event.action, "prompt.accepted");
    assert_eq!(event.input.as_ref().unwrap()["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn a_session_is_opened_only_after_this_is_recorded() {
    for (method, params) in [
        ("session/new", json!({"cwd": "/w/a", "mcpServers": []})),
        ("session/load", json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": []})),
        ("session/resume", json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": []})),
    ] {
        let mut fixture = Fixture::new();
        fill_log(&mut fixture);
        fixture.client_requests(1, method, &params);
        assert!(!fixture.take_seen().contains("a < "), "{method}");
        let seen = fail_log(&mut fixture);
        assert!(!seen.contains("a < ") && seen.contains(r#""effects":"none""#), "{method} {seen}");
        assert!(fixture.gate.sessions.is_empty() && fixture.gate.pending_at_agent.is_empty(), "{method}");
    }
}

#[test]
fn an_unrecorded_outcome_is_reported_with_possible_effects() {
    let is_true = |seen: &str| {
        let is_told = seen.contains("-32017") && seen.contains(r#""effects":"possible""#);
        is_told && seen.contains(r#""retryable":false"#)
    };
    let mut fixture = Fixture::with_turn();
    fill_log(&mut fixture);
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    let seen = fail_log(&mut fixture);
    assert!(seen.contains("c < ") && is_true(&seen), "{seen}");
    // The client has performed a request for the agent, and the result cannot be recorded.
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(9, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b"}));
    fill_log(&mut fixture);
    fixture.take_seen();
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 9, "result": {"content": "x"}}));
    let seen = fail_log(&mut fixture);
    assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":9,"error""#) && is_true(&seen), "{seen}");
    // The agent has created a session, and the session cannot be recorded.
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    fill_log(&mut fixture);
    fixture.take_seen();
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    let seen = fail_log(&mut fixture);
    assert!(is_true(&seen), "{seen}");
}

#[test]
fn a_request_of_the_agent_whose_decision_is_not_recorded_is_answered_once() {
    for (method, params) in [
        ("fs/read_text_file", json!({"sessionId": "s", "path": "/w/a/b"})),
        ("_x/listed", json!({"sessionId": "s"})),
    ] {
        let mut fixture = Fixture::with_turn();
        fixture.gate.config.agent_methods = vec!["_x/listed".into()];
        fill_log(&mut fixture);
        fixture.agent_requests(9, method, &params);
        let seen = fail_log(&mut fixture);
        assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":9,"error":{"code":-32017"#), "{method}: {seen}");
        assert!(fixture.gate.pending_at_client.is_empty(), "{method}");
        fixture.settles_at_once = true;
        fixture.advance_clock(3_600);
        let seen = fixture.take_seen();
        assert!(!seen.contains(r#""id":9"#), "{method}: {seen}");
    }
}

#[test]
fn a_request_delayed_by_the_log_beyond_its_deadline_is_answered_once() {
    let mut fixture = Fixture::new();
    fill_log(&mut fixture);
    fixture.client_requests(1, "session/load", &json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": []}));
    fixture.gate.tick(Duration::from_secs(3_600), &mut fixture.output);
    let seen = fail_log(&mut fixture);
    assert_eq!(seen.matches(r#"c < {"jsonrpc":"2.0","id":1,"#).count(), 1, "{seen}");
    assert!(!seen.contains("a < {\"jsonrpc\":\"2.0\",\"id\":1"), "{seen}");
    assert!(fixture.gate.sessions.is_empty() && fixture.gate.pending_at_agent.is_empty());
}

#[test]
fn a_request_of_the_agent_answered_before_the_log_fails_is_not_answered_again() {
    let expire: fn(&mut Fixture) = |fixture| fixture.advance_clock(3_600);
    let close: fn(&mut Fixture) = |fixture| fixture.gate.close_client_input(fixture.now, &mut fixture.output);
    let read = ("fs/read_text_file", json!({"sessionId": "s", "path": "/w/a/b"}));
    let listed = ("_x/listed", json!({"sessionId": "s"}));
    for (name, (method, params), answer) in
        [("expired", &read, expire), ("closed", &read, close), ("closed", &listed, close)]
    {
        let mut fixture = Fixture::with_turn();
        fixture.gate.config.agent_methods = vec!["_x/listed".into()];
        fill_log(&mut fixture);
        fixture.agent_requests(9, method, params);
        answer(&mut fixture);
        let seen = fixture.take_seen() + "\n" + &fail_log(&mut fixture);
        assert_eq!(seen.matches(r#"a < {"jsonrpc":"2.0","id":9,"#).count(), 1, "{name} {method}: {seen}");
        assert!(!seen.contains(&format!(r#""method":"{method}""#)), "{name} {method}: {seen}");
        assert!(fixture.gate.pending_at_client.is_empty(), "{name} {method}");
    }
}
