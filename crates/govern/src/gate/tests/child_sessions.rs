//! Tests of child sessions of subagents, and of sessions that the client never opened.

use super::*;

fn call(session: &str, tool: &str, status: &str) -> Value {
    let kind = if tool == "Rm" { "delete" } else { "read" };
    let update = json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": tool, "kind": kind,
        "status": status, "title": "harmless", "rawInput": {"path": "/w/a/x"}});
    child_message(session, &update)
}

fn child_message(session: &str, update: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})
}

#[test]
fn an_agent_that_uses_a_foreign_session_is_stopped() {
    for is_v2 in [false, true] {
        let mut fixture = Fixture::with_turn();
        fixture.gate.is_v2 = is_v2;
        fixture.send_agent(&call("victim", "Rm", "in_progress"));
        let seen = fixture.take_seen();
        assert!(seen.starts_with("log agent.violation deny code=\"unknown_session\""), "{seen}");
        assert!(seen.contains("log operator.interrupted") && seen.contains("session/cancel"), "{seen}");
        assert!(!seen.contains("c < "), "{seen}");
        for event in &fixture.output.events {
            let session = event.facts.get("session").unwrap().clone().into_value();
            assert_ne!(session, "victim", "{}", event.action);
        }
        fixture.advance_clock(11);
        assert!(fixture.take_seen().contains("end the agent"));
    }
}

#[test]
fn nothing_is_granted_in_a_foreign_session() {
    let call = json!({"toolCallId": "1", "name": "Read", "kind": "read", "rawInput": {"path": "/w/a/x"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    for (method, params) in [
        ("session/request_permission", json!({"sessionId": "victim", "toolCall": call, "options": options})),
        ("fs/read_text_file", json!({"sessionId": "victim", "path": "/w/a/x"})),
        ("fs/write_text_file", json!({"sessionId": "victim", "path": "/w/a/x", "content": ""})),
    ] {
        let mut fixture = Fixture::with_turn();
        fixture.agent_requests(9, method, &params);
        let seen = fixture.take_seen();
        assert!(seen.contains("log agent.violation") && seen.contains("-32002"), "{method} {seen}");
        assert!(!seen.contains("\"selected\"") && !seen.contains("c < "), "{method} {seen}");
        assert!(seen.contains("session/cancel"), "{method} {seen}");
    }
}

/// Returns a gate with a turn. Its client supports child sessions.
pub(super) fn new_fixture(is_v2: bool) -> Fixture {
    let mut fixture = Fixture::new();
    let offers = json!({"subagents": {}, "fs": {"readTextFile": true, "writeTextFile": true}});
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    fixture.agent_answers(0, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    fixture.gate.is_v2 = is_v2;
    fixture.open_turn();
    fixture
}

pub(super) fn announce(parent: &str, child: &str) -> Value {
    child_message(
        parent,
        &json!({"sessionUpdate": "subagent_update", "sessionId": child, "title": "looks around"}),
    )
}

/// Returns the sessions and parents of all audit events since the previous call.
fn links(fixture: &mut Fixture) -> Vec<(String, String, String)> {
    let text = |event: &Event, key: &str| {
        let fact = event.facts.get(key).map(|fact| fact.clone().into_value());
        fact.and_then(|fact| fact.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let events = std::mem::take(&mut fixture.output.events);
    events
        .iter()
        .map(|event| (event.action.clone(), text(event, "session"), text(event, "parentSessionId")))
        .collect()
}

#[test]
fn calls_of_a_child_are_decided_and_recorded_with_its_parent() {
    for is_v2 in [false, true] {
        let mut fixture = new_fixture(is_v2);
        fixture.output.events.clear();
        fixture.send_agent(&announce("s", "c"));
        fixture.send_agent(&announce("c", "d"));
        fixture.send_agent(&call("d", "Read", "completed"));
        let seen = fixture.take_seen();
        assert_eq!(seen.matches("c < ").count(), 3, "{seen}");
        let expected = [
            ("operator.invoked", "c", "s"),
            ("operator.invoked", "d", "c"),
            ("policy.resolved", "d", "c"),
            ("operator.running", "d", "c"),
            ("tool.call", "d", "c"),
        ];
        let expected: Vec<_> =
            expected.iter().map(|(a, s, p)| ((*a).to_owned(), (*s).to_owned(), (*p).to_owned())).collect();
        assert_eq!(links(&mut fixture), expected);
    }
}

#[test]
fn a_denied_call_of_a_child_stops_the_turn_of_its_root() {
    for is_v2 in [false, true] {
        let mut fixture = new_fixture(is_v2);
        fixture.send_agent(&announce("s", "c"));
        fixture.send_agent(&announce("c", "d"));
        fixture.take_seen();
        fixture.send_agent(&call("d", "Rm", "in_progress"));
        let seen = fixture.take_seen();
        assert!(seen.contains("log policy.resolved deny") && !seen.contains("c < "), "{seen}");
        for name in ["d", "s"] {
            assert!(
                seen.contains(&format!("session/cancel\",\"params\":{{\"sessionId\":\"{name}\"")),
                "{seen}"
            );
        }
        // Until the stopped turn has ended, no further message is shown, granted or passed on.
        fixture.send_agent(&call("c", "Read", "completed"));
        fixture.agent_requests(9, "fs/read_text_file", &json!({"sessionId": "c", "path": "/w/a/x"}));
        let seen = fixture.take_seen();
        assert!(!seen.contains("c < ") && seen.contains("-32800"), "{seen}");
        if is_v2 {
            fixture
                .send_agent(&child_message("s", &json!({"sessionUpdate": "state_update", "state": "idle"})));
        } else {
            fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
        }
        let seen = fixture.take_seen();
        assert!(seen.contains("refusal") && seen.contains("interrupted"), "{seen}");
        fixture.send_agent(&call("c", "Read", "completed"));
        assert!(fixture.take_seen().contains("c < "));
        fixture.advance_clock(11);
        assert!(!fixture.take_seen().contains("end the agent"));
    }
}

#[test]
fn a_denied_call_of_a_child_between_turns_ends_the_agent_if_it_continues() {
    for stops in [true, false] {
        let mut fixture = new_fixture(false);
        fixture.send_agent(&announce("s", "c"));
        fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
        fixture.send_agent(&call("c", "Rm", "in_progress"));
        fixture.take_seen();
        if stops {
            let idle =
                json!({"sessionUpdate": "subagent_update", "sessionId": "c", "state": {"state": "idle"}});
            fixture.send_agent(&child_message("s", &idle));
        }
        fixture.advance_clock(11);
        assert_eq!(fixture.take_seen().contains("end the agent"), !stops);
    }
}

#[test]
fn an_approval_in_a_child_session_ends_with_the_turn() {
    let mut fixture = new_fixture(false);
    fixture.send_agent(&announce("s", "c"));
    let call = json!({"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let ask = json!({"sessionId": "c", "toolCall": call, "options": options});
    fixture.agent_requests(9, "session/request_permission", &ask);
    assert!(fixture.take_seen().contains("session/request_permission"));
    // The silence timeout does not apply while the agent waits for an approval.
    fixture.gate.config.timeouts.silence = Duration::from_secs(60);
    fixture.advance_clock(120);
    assert!(!fixture.take_seen().contains("operator.interrupted"));
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    let seen = fixture.take_seen();
    assert!(seen.contains("\"optionId\":\"n\""), "{seen}");
    assert!(fixture.gate.pending_approvals().is_empty());
}

#[test]
fn children_that_were_not_negotiated_are_unknown_sessions() {
    let mut fixture = Fixture::with_turn();
    fixture.send_agent(&announce("s", "c"));
    assert_eq!(fixture.take_seen(), "");
    fixture.send_agent(&call("c", "Read", "completed"));
    let seen = fixture.take_seen();
    assert!(seen.contains("log agent.violation") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_session_of_a_client_cannot_be_announced_as_a_child() {
    let owners = std::sync::Arc::new(ownership::TestOwners::of("user:eve", "hers"));
    for (parent, child) in [("s", "hers"), ("s", "t"), ("s", "s"), ("t", "c"), ("c", "c"), ("c", "s")] {
        let mut fixture = Fixture::new();
        fixture.gate = fixture.gate.with_owners(owners.clone());
        fixture.gate.is_v2 = true;
        fixture.open_turn();
        fixture.client_requests(3, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.agent_answers(3, &json!({"sessionId": "t"}));
        fixture.send_agent(&announce("s", "c"));
        links(&mut fixture);
        fixture.take_seen();
        fixture.send_agent(&announce(parent, child));
        let seen = fixture.take_seen();
        assert!(seen.starts_with("log agent.violation") && !seen.contains("c < "), "{parent} {child} {seen}");
        assert!(links(&mut fixture).iter().all(|(_, session, _)| session != "hers"));
    }
}

#[test]
fn a_client_may_cancel_a_child_and_do_nothing_else_with_it() {
    let mut fixture = new_fixture(false);
    fixture.send_agent(&announce("s", "c"));
    fixture.take_seen();
    for method in
        ["session/load", "session/resume", "session/fork", "session/prompt", "session/close", "_x/y"]
    {
        fixture.client_requests(
            7,
            method,
            &json!({"sessionId": "c", "cwd": "/w", "mcpServers": [], "prompt": []}),
        );
        let seen = fixture.take_seen();
        assert!(seen.contains("-32002") && !seen.contains("a < "), "{method} {seen}");
    }
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "c"}}));
    assert!(fixture.take_seen().contains("a < "));
}

#[test]
fn a_child_works_within_the_directories_of_its_parent() {
    let place = |cwd: &str| json!({"sessionUpdate": "subagent_update", "sessionId": "c", "cwd": cwd});
    let mut fixture = new_fixture(false);
    fixture.send_agent(&child_message("s", &place("/w/a/secret")));
    fixture.take_seen();
    fixture.agent_requests(9, "fs/read_text_file", &json!({"sessionId": "c", "path": "/w/other/x"}));
    assert!(fixture.take_seen().contains("path_outside_root"));
    fixture.send_agent(&child_message("s", &place("/etc")));
    let seen = fixture.take_seen();
    assert!(seen.contains("code=\"cwd_outside_root\"") && seen.contains("session/cancel"), "{seen}");
    assert!(!seen.contains("c < "), "{seen}");
}

#[test]
fn children_are_bounded_and_idle_ones_are_closed() {
    let mut fixture = new_fixture(false);
    for number in 0..1_500 {
        fixture.send_agent(&announce("s", &format!("c{number}")));
    }
    let seen = fixture.take_seen();
    assert!(seen.contains("log session.closed") && !seen.contains("too many child sessions"));
    assert!(fixture.gate.sessions.len() <= 1_025);
    let mut fixture = new_fixture(false);
    for number in 0..1_500 {
        let child = format!("c{number}");
        fixture.send_agent(&announce("s", &child));
        fixture.send_agent(&call(&child, "Read", "in_progress"));
    }
    assert!(fixture.take_seen().contains("it has too many child sessions"));
    assert!(fixture.gate.sessions.len() <= 1_025 && fixture.gate.closed_sessions.len() <= 4_096);
}

/// The sessions are nested so deeply that quadratic work would exceed the time limit of a test.
#[test]
fn deeply_nested_children_take_linear_time() {
    let mut fixture = new_fixture(true);
    let mut parent = "s".to_owned();
    for number in 0..1_000 {
        let child = format!("c{number}");
        fixture.send_agent(&announce(&parent, &child));
        parent = child;
    }
    assert_eq!(fixture.gate.descendants("s").len(), 1_000);
    assert_eq!(fixture.gate.descendants("c989").len(), 10);
    fixture.take_seen();
    for _ in 0..300 {
        fixture.send_agent(&child_message("c0", &json!({"sessionUpdate": "state_update", "state": "idle"})));
    }
    assert!(!fixture.take_seen().contains("agent.violation"));
}

#[test]
fn children_end_with_the_session_at_the_top() {
    let mut fixture = new_fixture(false);
    fixture.send_agent(&announce("s", "c"));
    fixture.send_agent(&call("c", "Read", "in_progress"));
    fixture.client_requests(7, "session/close", &json!({"sessionId": "s"}));
    links(&mut fixture);
    fixture.agent_answers(7, &json!({}));
    let links = links(&mut fixture);
    let has = |action: &str, session: &str| links.iter().any(|(a, s, _)| a == action && s == session);
    assert!(has("tool.call", "c") && has("session.closed", "c") && has("session.closed", "s"), "{links:?}");
    fixture.take_seen();
    // The agent may still report the end of a call, but not the beginning of one.
    fixture.send_agent(&call("c", "Read", "failed"));
    fixture.send_agent(&child_message(
        "c",
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "content": []}),
    ));
    assert_eq!(fixture.take_seen(), "");
    fixture.send_agent(&call("c", "Read", "in_progress"));
    assert!(fixture.take_seen().contains("log agent.violation"));
}

#[test]
fn early_messages_wait_for_the_session_name() {
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}});
    for (name, fits) in [("s", true), ("victim", false)] {
        let mut fixture = Fixture::new();
        fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.take_seen();
        fixture.send_agent(&child_message(name, &chunk));
        fixture.agent_requests(9, "fs/read_text_file", &json!({"sessionId": name, "path": "/w/x"}));
        let seen = fixture.take_seen();
        assert!(!seen.contains("c < ") && !seen.contains("log"), "{seen}");
        fixture.agent_answers(1, &json!({"sessionId": "s"}));
        let seen = fixture.take_seen();
        assert_eq!((seen.contains("\"hi\""), seen.contains("log agent.violation")), (fits, !fits), "{seen}");
    }
    // A session that was never opened stays unknown.
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.send_agent(&child_message("s", &chunk));
    fixture.send_agent(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "no"}}));
    assert!(!fixture.take_seen().contains("hi") && fixture.gate.early_messages.lines.is_empty());
}

#[test]
fn history_of_children_is_shown_as_history() {
    let mut fixture = new_fixture(true);
    let params = json!({"sessionId": "old", "cwd": "/w", "mcpServers": [], "replayFrom": {"type": "start"}});
    fixture.client_requests(5, "session/resume", &params);
    fixture.output.events.clear();
    fixture.send_agent(&announce("old", "c"));
    fixture.send_agent(&call("c", "Rm", "completed"));
    let raw = std::mem::take(&mut fixture.output.raw);
    assert!(raw.iter().rev().take(2).all(|line| line.contains("\"replay\":true")), "{raw:?}");
    assert!(fixture.output.events.is_empty());
    fixture.agent_answers(5, &json!({}));
    fixture.take_seen();
    fixture.send_agent(&call("c", "Rm", "in_progress"));
    assert!(fixture.take_seen().contains("log policy.resolved deny"));
}

#[test]
fn unrecorded_actions_of_a_child_stop_the_turn() {
    let mut fixture = new_fixture(false);
    fixture.send_agent(&announce("s", "c"));
    fixture.settles_at_once = false;
    fixture.send_agent(&call("c", "Read", "completed"));
    fixture.take_seen();
    for seq in std::mem::take(&mut fixture.output.unsettled) {
        fixture.gate.handle_audit_result(fixture.now, seq, false, &mut fixture.output);
    }
    let seen = fixture.take_seen();
    assert!(!seen.contains("c < "), "{seen}");
    assert!(seen.contains("session/cancel\",\"params\":{\"sessionId\":\"s\""), "{seen}");
}
