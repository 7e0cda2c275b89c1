//! Tests of replayed history: it is marked as history, and has no effect.

use super::*;

fn replaying_session(is_v2: bool) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.gate.is_v2 = is_v2;
    replay_update(&mut fixture, 1);
    fixture.take_seen();
    fixture
}

/// Sends a request for the history of a session, in the form of the fixture's protocol version.
fn replay_update(fixture: &mut Fixture, id: u64) {
    let mut params = json!({"sessionId": "s", "cwd": "/w", "mcpServers": []});
    if fixture.gate.is_v2 {
        params["replayFrom"] = json!({"type": "start"});
    }
    fixture.client_requests(id, if fixture.gate.is_v2 { "session/resume" } else { "session/load" }, &params);
}

fn announce_call(fixture: &mut Fixture, name: &str, kind: &str, status: &str) {
    let update = if fixture.gate.is_v2 { "tool_call_update" } else { "tool_call" };
    fixture.agent_updates(
        &json!({"sessionUpdate": update, "toolCallId": "1", "name": name, "kind": kind, "status": status,
        "title": "x", "rawInput": {"path": "/w/a"}}),
    );
}

fn ask_permission(is_v2: bool) -> Value {
    let call = json!({"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}});
    let mut params = json!({"sessionId": "s", "options": [{"optionId": "y", "kind": "allow_once"}]});
    if is_v2 {
        params["title"] = json!("x");
        params["subject"] = json!({"type": "tool_call", "toolCall": call});
    } else {
        params["toolCall"] = call;
    }
    params
}

#[test]
fn history_is_flagged_and_never_acted_on() {
    for is_v2 in [false, true] {
        let mut fixture = replaying_session(is_v2);
        announce_call(&mut fixture, "Rm", "delete", "completed");
        fixture.agent_updates(
            &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}),
        );
        let shown = std::mem::take(&mut fixture.output.seen);
        assert!(shown.iter().all(|line| line.starts_with("c < ")) && shown.len() == 2, "{shown:?}");
        assert!(fixture.output.events.is_empty());
        let raw = std::mem::take(&mut fixture.output.raw);
        let flags = raw.iter().filter(|line| line.contains("session/update"));
        assert!(flags.clone().all(|line| line.contains("\"replay\":true")) && flags.count() == 2, "{raw:?}");
        fixture.agent_answers(1, &json!({}));
        fixture.take_seen();
        fixture.output.raw.clear();
        fixture.agent_updates(
            &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}),
        );
        assert!(!fixture.output.raw.concat().contains("replay"));
        announce_call(&mut fixture, "Rm", "delete", "completed");
        assert!(fixture.take_seen().contains("log policy.resolved deny"));
    }
}

#[test]
fn requests_during_a_replay_are_refused() {
    for is_v2 in [false, true] {
        let mut fixture = replaying_session(is_v2);
        fixture.agent_requests(5, "session/request_permission", &ask_permission(is_v2));
        let seen = fixture.take_seen();
        assert!(
            seen.starts_with("a < ") && seen.contains("cancelled") && fixture.output.events.is_empty(),
            "{seen}"
        );
        fixture.agent_requests(
            6,
            "fs/write_text_file",
            &json!({"sessionId": "s", "path": "/w/a", "content": "x"}),
        );
        let seen = fixture.take_seen();
        assert!(seen.contains("log tool.refused deny code=\"replay\"") && !seen.contains("c < "), "{seen}");
        let request = ToolCheck {
            session: "s".into(),
            call: "c".into(),
            server: None,
            tool: "Read".into(),
            name: "Read".into(),
            arguments: json!({}),
        };
        fixture.gate.check_tool(fixture.now, 1, request, &mut fixture.output);
        assert_eq!(fixture.take_seen(), "advice 1: history is being replayed");
        let calls = fixture
            .output
            .events
            .iter()
            .filter(|event| event.action == "tool.call" || event.action == "policy.resolved");
        assert_eq!(calls.count(), 0);
    }
}

#[test]
fn a_turn_is_not_treated_as_history() {
    for is_v2 in [false, true] {
        let mut fixture = replaying_session(is_v2);
        fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        let seen = fixture.take_seen();
        assert!(seen.starts_with("c < ") && seen.contains("-32600"), "{seen}");
        fixture.agent_answers(1, &json!({}));
        fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        fixture.take_seen();
        replay_update(&mut fixture, 4);
        let seen = fixture.take_seen();
        assert!(seen.starts_with("c < ") && seen.contains("a turn is active"), "{seen}");
        // The session can be opened again without its history. Calls in it are judged from then on.
        fixture.client_requests(
            5,
            "session/resume",
            &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}),
        );
        assert!(fixture.take_seen().starts_with("a < "));
        announce_call(&mut fixture, "Rm", "delete", "in_progress");
        assert!(fixture.take_seen().contains("operator.interrupted"));
    }
}

#[test]
fn a_session_that_failed_to_open_is_unknown() {
    let mut fixture = replaying_session(false);
    announce_call(&mut fixture, "Rm", "delete", "completed");
    fixture.send_agent(
        &json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32002, "message": "no such session"}}),
    );
    fixture.take_seen();
    fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
    assert_eq!(fixture.take_seen(), "");
}

#[test]
fn version_2_replays_history_only_on_request() {
    let mut fixture = Fixture::new();
    fixture.gate.is_v2 = true;
    fixture.client_requests(1, "session/resume", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    fixture.take_seen();
    announce_call(&mut fixture, "Rm", "delete", "in_progress");
    let raw = std::mem::take(&mut fixture.output.raw);
    assert!(raw.iter().all(|line| !line.contains("\"replay\":true")), "{raw:?}");
    assert!(!fixture.output.events.is_empty());
}

#[test]
fn in_version_1_an_update_does_not_end_a_stopped_turn() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Rm", "kind": "delete", "title": "x",
        "status": "in_progress", "rawInput": {"path": "/w/a"}}),
    );
    let is_stopped =
        |fixture: &Fixture| fixture.gate.sessions.get("s").is_some_and(|session| session.halted.is_some());
    assert!(is_stopped(&fixture), "{}", fixture.take_seen());
    fixture.agent_updates(&json!({"sessionUpdate": "state_update", "state": "idle"}));
    assert!(is_stopped(&fixture));
}
