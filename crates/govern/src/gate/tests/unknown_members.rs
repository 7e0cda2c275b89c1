//! Members that the protocol does not have: nobody but their sender ever sees them.

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
            let mut scene = Scene::at_work();
            scene.ask(7, method, &with(params.clone(), place));
            let seen = scene.seen();
            assert!(
                seen.starts_with("log method.refused deny code=\"unknown_member\"\nc < "),
                "{method}{place} {seen}"
            );
            assert!(seen.contains("-32602") && !seen.contains("a < "), "{method}{place} {seen}");
        }
        let mut scene = Scene::at_work();
        scene.ask(7, method, &params);
        assert!(!scene.seen().contains("unknown_member"), "{method}");
    }
    let mut scene = Scene::at_work();
    scene.ask(7, "session/prompt", &json!({"sessionId": "s", "prompt": [{"type": "new", "text": "x"}]}));
    assert!(scene.seen().contains("\"member\":\"prompt.0\""), "a block that nobody knows");
}

#[test]
fn a_notification_with_an_unknown_member_is_dropped_and_recorded() {
    let mut scene = Scene::at_work();
    for (method, params) in [
        ("session/cancel", json!({"sessionId": "s"})),
        ("$/cancel_request", json!({"requestId": 2})),
        ("mcp/message", json!({"serverId": "db", "method": "notifications/progress"})),
    ] {
        scene.client(&json!({"jsonrpc": "2.0", "method": method, "params": with(params, "")}));
        assert_eq!(scene.seen(), "log method.refused deny code=\"unknown_member\"", "{method}");
    }
    scene.agent(&json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1, ODD: 1}}));
    assert_eq!(scene.seen(), "log member.refused deny code=\"unknown_member\"");
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
            let mut scene = Scene::with(GateConfig { capabilities, ..config() }, &["lead"]);
            scene.opened();
            scene.wants(7, method, &with(params.clone(), place));
            let seen = scene.seen();
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
    let mut scene = Scene::at_work();
    for _ in 0..3 {
        let content = json!({"type": "text", "text": "hi", ODD: 1});
        scene.update(&json!({"sessionUpdate": "agent_message_chunk", "content": content, "odd2": 2}));
    }
    let seen = scene.seen();
    assert_eq!(seen.matches("\"text\":\"hi\"").count(), 3, "{seen}");
    assert!(!seen.contains("odd"), "{seen}");
    assert_eq!(seen.matches("log member.refused").count(), 1, "each once: {seen}");
    // A place that only such a member names is judged all the same.
    scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Read", "kind": "read",
        "status": "in_progress", "rawInput": {}, "locations": [{"path": "/w/a/b", "uri": "/w/a/secret/k"}]}));
    let seen = scene.seen();
    assert!(
        seen.contains("log operator.interrupted") && !seen.contains("c < {\"jsonrpc\":\"2.0\",\"method\""),
        "{seen}"
    );
}

#[test]
fn answers_lose_unknown_members_and_nothing_else() {
    let mut scene = Scene::new();
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    let models = json!({"currentModelId": "m", "availableModels": [{"modelId": "m", "name": "M"}]});
    scene.answer(1, &json!({"sessionId": "s", "models": models, ODD: {"x": 1}, "_meta": {"vendor": 1}}));
    let seen = scene.seen();
    assert!(!seen.contains(ODD) && seen.contains("currentModelId") && seen.contains("vendor"), "{seen}");
    scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    scene.seen();
    scene.answer(2, &json!({"stopReason": "end_turn", ODD: 1}));
    let seen = scene.seen();
    assert!(
        !seen.contains(ODD) && seen.contains("end_turn") && seen.contains("log operator.completed"),
        "{seen}"
    );
    // One that is no result of its method is a failure.
    scene.ask(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    scene.seen();
    scene.answer(3, &json!("done"));
    let seen = scene.seen();
    assert!(seen.contains("unfit_result") && seen.contains("log operator.interrupted"), "{seen}");

    let mut scene = Scene::at_work();
    scene.wants(5, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b"}));
    scene.seen();
    scene.client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"content": "x", ODD: "y"}}));
    let seen = scene.seen();
    assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":5,"result":{"content":"x"}}"#), "{seen}");
}

#[test]
fn a_version_is_an_integer_for_everybody() {
    for version in ["2.0", "2e0", "\"2\"", "true", "1,\"protocolVersion\":2"] {
        let mut scene = Scene::new();
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":{version}}}}}"#
        );
        scene.gate.handle_client_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
        scene.commit();
        let seen = scene.seen();
        assert!(seen.contains("-32602") && !seen.contains("a < "), "{version} {seen}");
        // Nor does an agent say so.
        let mut scene = Scene::new();
        scene.ask(0, "initialize", &json!({"protocolVersion": 1}));
        scene.seen();
        let line = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{{"protocolVersion":{version}}}}}"#);
        scene.gate.handle_agent_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
        scene.commit();
        let seen = scene.seen();
        assert!(seen.contains("unfit_result") && !seen.contains("\"result\""), "{version} {seen}");
    }
}

#[test]
fn what_a_client_says_of_itself_has_no_settings_for_the_agent() {
    let mut scene = Scene::new();
    let info =
        json!({"name": "x", "version": "1", "_meta": {"claudeCode": {"executable": "/bin/sh"}}, ODD: 1});
    let offers = json!({"_meta": {"terminal_output": true}, ODD: {}});
    scene.ask(
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientInfo": info, "clientCapabilities": offers, ODD: 1}),
    );
    let seen = scene.seen();
    assert!(seen.contains("a < ") && seen.contains("terminal_output"), "{seen}");
    assert!(!seen.contains(ODD) && !seen.contains("claudeCode"), "{seen}");
}

#[test]
fn refusals_without_end_are_a_bounded_number_of_entries() {
    let mut scene = Scene::at_work();
    let before = scene.sight.events.len();
    for number in 0..1_000 {
        scene.ask(10 + number, "_narrows/ping", &json!({}));
        scene.client(&json!({"jsonrpc": "2.0", "method": "_unlisted"}));
        scene.wants(10_000 + number, "_unlisted", &json!({}));
    }
    let seen = scene.seen();
    assert_eq!(seen.matches("-32015").count(), 1_000, "each is answered");
    assert_eq!(scene.sight.events.len() - before, 100);
    scene.pass(60);
    let count = |scene: &Scene| scene.sight.events.last().unwrap().metadata.get("count").cloned();
    assert_eq!((scene.sight.events.len() - before, count(&scene)), (101, Some(json!(2_900))));
    // The next is recorded by itself again, and what is left at the end is counted.
    for number in 0..200 {
        scene.ask(2_000 + number, "_narrows/ping", &json!({}));
    }
    assert_eq!(scene.sight.events.len() - before, 201);
    scene.gate.handle_client_lost(scene.now, &mut scene.sight);
    let mut counted = scene.sight.events.iter().filter_map(|event| event.metadata.get("count"));
    assert_eq!(counted.next_back(), Some(&json!(100)));
}

#[test]
fn members_that_json_rpc_does_not_have_are_taken_out_and_recorded() {
    let mut scene = Scene::at_work();
    for key in ["sessionId", "pool", "session_id", "odd"] {
        let update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": key}});
        let mut message = json!({"jsonrpc": "2.0", "method": "session/update",
            "params": {"sessionId": "s", "update": update}});
        message[key] = json!("t-1");
        for _ in 0..2 {
            scene.agent(&message);
        }
        let seen = scene.seen();
        assert_eq!(seen.matches("log member.refused").count(), 1, "{key}: {seen}");
        assert_eq!(seen.matches(&format!("\"text\":\"{key}\"")).count(), 2, "{key}: {seen}");
        assert!(!seen.contains("t-1"), "{key}: {seen}");
        let mut message = json!({"jsonrpc": "2.0", "id": key, "method": "session/list", "params": {}});
        message[key] = json!("t-1");
        scene.client(&message);
        let seen = scene.seen();
        assert!(seen.contains("log member.refused") && seen.contains("a < "), "{key}: {seen}");
        assert!(!seen.contains("t-1"), "{key}: {seen}");
    }
}

#[test]
fn a_response_that_is_a_result_and_an_error_is_an_error() {
    let mut scene = Scene::at_work();
    scene.ask(7, "session/list", &json!({}));
    scene.seen();
    let error = json!({"code": -1, "message": "no"});
    scene.agent(&json!({"jsonrpc": "2.0", "id": 7, "result": {"sessions": []}, "error": error}));
    let seen = scene.seen();
    assert!(seen.contains("unfit_result") && !seen.contains("\"result\""), "{seen}");
}

#[test]
fn all_members_that_were_taken_out_are_recorded_not_only_the_first() {
    let mut scene = Scene::at_work();
    for more in [json!({"odd": 1}), json!({"odd": 1, "strange": 2}), json!({"odd": 1})] {
        let mut update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}});
        for (key, value) in more.as_object().unwrap() {
            update[key] = value.clone();
        }
        scene.update(&update);
    }
    assert_eq!(scene.seen().matches("log member.refused").count(), 2);
}
