//! Tests that members which the protocol does not have never reach the other peer.

use super::*;

const ODD: &str = "odd_member";

fn with(mut params: Value, at: &str) -> Value {
    params.pointer_mut(at).unwrap()[ODD] = json!({"command": "rm"});
    params
}

#[test]
fn a_request_of_the_client_with_an_unknown_member_is_refused_and_recorded() {
    let block = json!([{"type": "text", "text": "x"}]);
    let stdio = json!([{"name": "a", "command": "b", "args": [], "env": [{"name": "A", "value": "B"}]}]);
    for (method, params, places) in [
        (
            "session/new",
            json!({"cwd": "/w", "mcpServers": stdio}),
            &["", "/mcpServers/0", "/mcpServers/0/env/0"][..],
        ),
        ("session/load", json!({"sessionId": "t", "cwd": "/w", "mcpServers": []}), &[""]),
        ("session/resume", json!({"sessionId": "t", "cwd": "/w", "mcpServers": []}), &[""]),
        ("session/fork", json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}), &[""]),
        ("session/prompt", json!({"sessionId": "s", "prompt": block}), &["", "/prompt/0"]),
        ("session/set_mode", json!({"sessionId": "s", "modeId": "m"}), &[""]),
        ("session/close", json!({"sessionId": "s"}), &[""]),
        ("session/list", json!({}), &[""]),
        ("session/cancel", json!({"sessionId": "s"}), &[""]),
        ("authenticate", json!({"methodId": "m"}), &[""]),
        ("tool_call/cancel", json!({"sessionId": "s", "toolCallId": "c"}), &[""]),
    ] {
        for place in places {
            let mut fixture = Fixture::with_turn();
            fixture.client_requests(7, method, &with(params.clone(), place));
            let seen = fixture.take_seen();
            assert!(
                seen.starts_with("log method.refused deny code=\"unknown_member\"\nc < "),
                "{method}{place} {seen}"
            );
            assert!(seen.contains("-32602") && !seen.contains("a < "), "{method}{place} {seen}");
        }
        let mut fixture = Fixture::with_turn();
        fixture.client_requests(7, method, &params);
        assert!(!fixture.take_seen().contains("unknown_member"), "{method}");
    }
    let mut fixture = Fixture::with_turn();
    fixture.client_requests(
        7,
        "session/prompt",
        &json!({"sessionId": "s", "prompt": [{"type": "new", "text": "x"}]}),
    );
    assert!(fixture.take_seen().contains("\"member\":\"prompt.0\""), "an unknown content block");
}

#[test]
fn a_notification_with_an_unknown_member_is_dropped_and_recorded() {
    let mut fixture = Fixture::with_turn();
    for (method, params) in [
        ("session/cancel", json!({"sessionId": "s"})),
        ("$/cancel_request", json!({"requestId": 2})),
        ("mcp/message", json!({"serverId": "db", "method": "notifications/progress"})),
    ] {
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": with(params, "")}));
        assert_eq!(fixture.take_seen(), "log method.refused deny code=\"unknown_member\"", "{method}");
    }
    fixture.send_agent(
        &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1, ODD: 1}}),
    );
    assert_eq!(fixture.take_seen(), "log member.refused deny code=\"unknown_member\"");
}

#[test]
fn a_request_of_the_agent_with_an_unknown_member_is_refused_and_recorded() {
    let options = json!([{"optionId": "y", "name": "y", "kind": "allow_once"}]);
    let call = json!({"toolCallId": "1", "kind": "read", "rawInput": {}});
    for (method, params, places) in [
        ("fs/read_text_file", json!({"sessionId": "s", "path": "/w/a/b"}), &[""][..]),
        ("terminal/output", json!({"sessionId": "s", "terminalId": "t"}), &[""]),
        (
            "terminal/create",
            json!({"sessionId": "s", "command": "ls", "env": [{"name": "A"}]}),
            &["", "/env/0"],
        ),
        (
            "session/request_permission",
            json!({"sessionId": "s", "toolCall": call, "options": options}),
            &["", "/options/0"],
        ),
        ("mcp/message", json!({"serverId": "db", "method": "tools/list"}), &[""]),
    ] {
        for place in places {
            let capabilities = Capabilities { terminal: true, ..config().capabilities };
            let mut fixture = Fixture::with_config(GateConfig { capabilities, ..config() }, &["lead"]);
            fixture.open_turn();
            fixture.agent_requests(7, method, &with(params.clone(), place));
            let seen = fixture.take_seen();
            assert!(
                seen.starts_with("log method.refused deny code=\"unknown_member\"\na < "),
                "{method}{place} {seen}"
            );
            assert!(seen.contains("-32602") && !seen.contains("c < "), "{method}{place} {seen}");
        }
    }
}

#[test]
fn an_update_is_shown_without_unknown_members_and_judged_with_them() {
    let mut fixture = Fixture::with_turn();
    for _ in 0..3 {
        let content = json!({"type": "text", "text": "hi", ODD: 1});
        fixture
            .agent_updates(&json!({"sessionUpdate": "agent_message_chunk", "content": content, "odd2": 2}));
    }
    let seen = fixture.take_seen();
    assert_eq!(seen.matches("\"text\":\"hi\"").count(), 3, "{seen}");
    assert!(!seen.contains("odd"), "{seen}");
    assert_eq!(seen.matches("log member.refused").count(), 1, "each once: {seen}");
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Read", "kind": "read",
        "status": "in_progress", "rawInput": {}, "locations": [{"path": "/w/a/b", "uri": "/w/a/secret/k"}]}),
    );
    let seen = fixture.take_seen();
    assert!(
        seen.contains("log operator.interrupted") && !seen.contains("c < {\"jsonrpc\":\"2.0\",\"method\""),
        "{seen}"
    );
}

#[test]
fn answers_lose_unknown_members_and_nothing_else() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    let models = json!({"currentModelId": "m", "availableModels": [{"modelId": "m", "name": "M"}]});
    fixture.agent_answers(
        1,
        &json!({"sessionId": "s", "models": models, ODD: {"x": 1}, "_meta": {"vendor": 1}}),
    );
    let seen = fixture.take_seen();
    assert!(!seen.contains(ODD) && seen.contains("currentModelId") && seen.contains("vendor"), "{seen}");
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.take_seen();
    fixture.agent_answers(2, &json!({"stopReason": "end_turn", ODD: 1}));
    let seen = fixture.take_seen();
    assert!(
        !seen.contains(ODD) && seen.contains("end_turn") && seen.contains("log operator.completed"),
        "{seen}"
    );
    // An answer that is not a result of its method becomes an error.
    fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.take_seen();
    fixture.agent_answers(3, &json!("done"));
    let seen = fixture.take_seen();
    assert!(seen.contains("unfit_result") && seen.contains("log operator.interrupted"), "{seen}");

    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(5, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b"}));
    fixture.take_seen();
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"content": "x", ODD: "y"}}));
    let seen = fixture.take_seen();
    assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":5,"result":{"content":"x"}}"#), "{seen}");
}

#[test]
fn a_version_must_be_an_unambiguous_integer() {
    for version in ["2.0", "2e0", "\"2\"", "true", "1,\"protocolVersion\":2"] {
        let mut fixture = Fixture::new();
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":{version}}}}}"#
        );
        fixture.gate.handle_client_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
        fixture.settle_events();
        let seen = fixture.take_seen();
        assert!(seen.contains("-32602") && !seen.contains("a < "), "{version} {seen}");
        let mut fixture = Fixture::new();
        fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1}));
        fixture.take_seen();
        let line = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{{"protocolVersion":{version}}}}}"#);
        fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
        fixture.settle_events();
        let seen = fixture.take_seen();
        assert!(seen.contains("unfit_result") && !seen.contains("\"result\""), "{version} {seen}");
    }
}

#[test]
fn unknown_members_are_removed_from_initialize() {
    let mut fixture = Fixture::new();
    let info =
        json!({"name": "x", "version": "1", "_meta": {"claudeCode": {"executable": "/bin/sh"}}, ODD: 1});
    let offers = json!({"_meta": {"terminal_output": true}, ODD: {}});
    fixture.client_requests(
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientInfo": info, "clientCapabilities": offers, ODD: 1}),
    );
    let seen = fixture.take_seen();
    assert!(seen.contains("a < ") && seen.contains("terminal_output"), "{seen}");
    assert!(!seen.contains(ODD) && !seen.contains("claudeCode"), "{seen}");
}

#[test]
fn the_number_of_recorded_refusals_is_bounded() {
    let mut fixture = Fixture::with_turn();
    let before = fixture.output.events.len();
    for number in 0..1_000 {
        fixture.client_requests(10 + number, "_narrows/ping", &json!({}));
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": "_unlisted"}));
        fixture.agent_requests(10_000 + number, "_unlisted", &json!({}));
    }
    let seen = fixture.take_seen();
    assert_eq!(seen.matches("-32015").count(), 1_000, "each is answered");
    assert_eq!(fixture.output.events.len() - before, 100);
    fixture.advance_clock(60);
    let count = |fixture: &Fixture| fixture.output.events.last().unwrap().metadata.get("count").cloned();
    assert_eq!((fixture.output.events.len() - before, count(&fixture)), (101, Some(json!(2_900))));
    // In the next interval, a refusal gets its own entry again. The remaining count is recorded at the end.
    for number in 0..200 {
        fixture.client_requests(2_000 + number, "_narrows/ping", &json!({}));
    }
    assert_eq!(fixture.output.events.len() - before, 201);
    fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
    let mut counted = fixture.output.events.iter().filter_map(|event| event.metadata.get("count"));
    assert_eq!(counted.next_back(), Some(&json!(100)));
}

#[test]
fn members_unknown_to_json_rpc_are_removed_and_recorded() {
    let mut fixture = Fixture::with_turn();
    for key in ["sessionId", "pool", "session_id", "odd"] {
        let update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": key}});
        let mut message = json!({"jsonrpc": "2.0", "method": "session/update",
            "params": {"sessionId": "s", "update": update}});
        message[key] = json!("t-1");
        for _ in 0..2 {
            fixture.send_agent(&message);
        }
        let seen = fixture.take_seen();
        assert_eq!(seen.matches("log member.refused").count(), 1, "{key}: {seen}");
        assert_eq!(seen.matches(&format!("\"text\":\"{key}\"")).count(), 2, "{key}: {seen}");
        assert!(!seen.contains("t-1"), "{key}: {seen}");
        let mut message = json!({"jsonrpc": "2.0", "id": key, "method": "session/list", "params": {}});
        message[key] = json!("t-1");
        fixture.send_client(&message);
        let seen = fixture.take_seen();
        assert!(seen.contains("log member.refused") && seen.contains("a < "), "{key}: {seen}");
        assert!(!seen.contains("t-1"), "{key}: {seen}");
    }
}

#[test]
fn a_response_that_is_a_result_and_an_error_is_an_error() {
    let mut fixture = Fixture::with_turn();
    fixture.client_requests(7, "session/list", &json!({}));
    fixture.take_seen();
    let error = json!({"code": -1, "message": "no"});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "id": 7, "result": {"sessions": []}, "error": error}));
    let seen = fixture.take_seen();
    assert!(seen.contains("unfit_result") && !seen.contains("\"result\""), "{seen}");
}

#[test]
fn all_removed_members_are_recorded() {
    let mut fixture = Fixture::with_turn();
    for more in [json!({"odd": 1}), json!({"odd": 1, "strange": 2}), json!({"odd": 1})] {
        let mut update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}});
        for (key, value) in more.as_object().unwrap() {
            update[key] = value.clone();
        }
        fixture.agent_updates(&update);
    }
    assert_eq!(fixture.take_seen().matches("log member.refused").count(), 2);
}
