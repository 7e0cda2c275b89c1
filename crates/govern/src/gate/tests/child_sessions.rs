//! Child sessions of an agent's subagents, and sessions that the client never opened.

use super::*;

/// A call as an agent reports it in a session.
fn call(session: &str, tool: &str, status: &str) -> Value {
    let kind = if tool == "Rm" { "delete" } else { "read" };
    let update = json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": tool, "kind": kind,
        "status": status, "title": "harmless", "rawInput": {"path": "/w/a/x"}});
    say(session, &update)
}

fn say(session: &str, update: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})
}

#[test]
fn an_agent_that_speaks_in_a_session_nobody_opened_is_stopped() {
    for is_v2 in [false, true] {
        let mut scene = Scene::at_work();
        scene.gate.is_v2 = is_v2;
        scene.agent(&call("victim", "Rm", "in_progress"));
        let seen = scene.seen();
        assert!(seen.starts_with("log agent.violation deny code=\"unknown_session\""), "{seen}");
        assert!(seen.contains("log operator.interrupted") && seen.contains("session/cancel"), "{seen}");
        assert!(!seen.contains("c < "), "{seen}");
        for event in &scene.sight.events {
            let session = event.facts.get("session").unwrap().clone().into_value();
            assert_ne!(session, "victim", "{}", event.action);
        }
        scene.pass(11);
        assert!(scene.seen().contains("end the agent"));
    }
}

#[test]
fn nothing_is_granted_in_a_session_nobody_opened() {
    let call = json!({"toolCallId": "1", "name": "Read", "kind": "read", "rawInput": {"path": "/w/a/x"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    for (method, params) in [
        ("session/request_permission", json!({"sessionId": "victim", "toolCall": call, "options": options})),
        ("fs/read_text_file", json!({"sessionId": "victim", "path": "/w/a/x"})),
        ("fs/write_text_file", json!({"sessionId": "victim", "path": "/w/a/x", "content": ""})),
    ] {
        let mut scene = Scene::at_work();
        scene.wants(9, method, &params);
        let seen = scene.seen();
        assert!(seen.contains("log agent.violation") && seen.contains("-32002"), "{method} {seen}");
        assert!(!seen.contains("\"selected\"") && !seen.contains("c < "), "{method} {seen}");
        assert!(seen.contains("session/cancel"), "{method} {seen}");
    }
}

/// A gate with a turn, whose client understands child sessions.
pub(super) fn scene(is_v2: bool) -> Scene {
    let mut scene = Scene::new();
    let offers = json!({"subagents": {}, "fs": {"readTextFile": true, "writeTextFile": true}});
    scene.ask(0, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    scene.answer(0, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    scene.gate.is_v2 = is_v2;
    scene.opened();
    scene
}

pub(super) fn announce(parent: &str, child: &str) -> Value {
    say(parent, &json!({"sessionUpdate": "subagent_update", "sessionId": child, "title": "looks around"}))
}

/// The sessions and parents of all events since the last look.
fn links(scene: &mut Scene) -> Vec<(String, String, String)> {
    let text = |event: &Event, key: &str| {
        let fact = event.facts.get(key).map(|fact| fact.clone().into_value());
        fact.and_then(|fact| fact.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let events = std::mem::take(&mut scene.sight.events);
    events
        .iter()
        .map(|event| (event.action.clone(), text(event, "session"), text(event, "parentSessionId")))
        .collect()
}

#[test]
fn what_a_child_does_is_decided_shown_and_recorded_with_its_parent() {
    for is_v2 in [false, true] {
        let mut scene = scene(is_v2);
        scene.sight.events.clear();
        scene.agent(&announce("s", "c"));
        scene.agent(&announce("c", "d"));
        scene.agent(&call("d", "Read", "completed"));
        let seen = scene.seen();
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
        assert_eq!(links(&mut scene), expected);
    }
}

#[test]
fn a_denied_call_of_a_child_stops_the_turn_of_its_root() {
    for is_v2 in [false, true] {
        let mut scene = scene(is_v2);
        scene.agent(&announce("s", "c"));
        scene.agent(&announce("c", "d"));
        scene.seen();
        scene.agent(&call("d", "Rm", "in_progress"));
        let seen = scene.seen();
        assert!(seen.contains("log policy.resolved deny") && !seen.contains("c < "), "{seen}");
        for name in ["d", "s"] {
            assert!(
                seen.contains(&format!("session/cancel\",\"params\":{{\"sessionId\":\"{name}\"")),
                "{seen}"
            );
        }
        // Nothing more of it is shown, granted or asked until the turn has ended.
        scene.agent(&call("c", "Read", "completed"));
        scene.wants(9, "fs/read_text_file", &json!({"sessionId": "c", "path": "/w/a/x"}));
        let seen = scene.seen();
        assert!(!seen.contains("c < ") && seen.contains("-32800"), "{seen}");
        if is_v2 {
            scene.agent(&say("s", &json!({"sessionUpdate": "state_update", "state": "idle"})));
        } else {
            scene.answer(2, &json!({"stopReason": "end_turn"}));
        }
        let seen = scene.seen();
        assert!(seen.contains("refusal") && seen.contains("interrupted"), "{seen}");
        scene.agent(&call("c", "Read", "completed"));
        assert!(scene.seen().contains("c < "));
        scene.pass(11);
        assert!(!scene.seen().contains("end the agent"));
    }
}

#[test]
fn a_denied_call_of_a_child_between_turns_ends_an_agent_that_goes_on() {
    for stops in [true, false] {
        let mut scene = scene(false);
        scene.agent(&announce("s", "c"));
        scene.answer(2, &json!({"stopReason": "end_turn"}));
        scene.agent(&call("c", "Rm", "in_progress"));
        scene.seen();
        if stops {
            let idle =
                json!({"sessionUpdate": "subagent_update", "sessionId": "c", "state": {"state": "idle"}});
            scene.agent(&say("s", &idle));
        }
        scene.pass(11);
        assert_eq!(scene.seen().contains("end the agent"), !stops);
    }
}

#[test]
fn an_approval_in_a_child_is_asked_of_the_client_and_ends_with_the_turn() {
    let mut scene = scene(false);
    scene.agent(&announce("s", "c"));
    let call = json!({"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let ask = json!({"sessionId": "c", "toolCall": call, "options": options});
    scene.wants(9, "session/request_permission", &ask);
    assert!(scene.seen().contains("session/request_permission"));
    // The turn is not silent while somebody is asked.
    scene.gate.config.timeouts.silence = Duration::from_secs(60);
    scene.pass(120);
    assert!(!scene.seen().contains("operator.interrupted"));
    scene.client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    let seen = scene.seen();
    assert!(seen.contains("\"optionId\":\"n\""), "{seen}");
    assert!(scene.gate.pending_approvals().is_empty());
}

#[test]
fn children_that_were_not_negotiated_are_unknown_sessions() {
    let mut scene = Scene::at_work();
    scene.agent(&announce("s", "c"));
    assert_eq!(scene.seen(), "");
    scene.agent(&call("c", "Read", "completed"));
    let seen = scene.seen();
    assert!(seen.contains("log agent.violation") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_session_of_a_client_cannot_be_announced_as_a_child() {
    let book = std::sync::Arc::new(ownership::Book::of("user:eve", "hers"));
    for (parent, child) in [("s", "hers"), ("s", "t"), ("s", "s"), ("t", "c"), ("c", "c"), ("c", "s")] {
        let mut scene = Scene::new();
        scene.gate = scene.gate.with_owners(book.clone());
        scene.gate.is_v2 = true;
        scene.opened();
        scene.ask(3, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        scene.answer(3, &json!({"sessionId": "t"}));
        scene.agent(&announce("s", "c"));
        links(&mut scene);
        scene.seen();
        scene.agent(&announce(parent, child));
        let seen = scene.seen();
        assert!(seen.starts_with("log agent.violation") && !seen.contains("c < "), "{parent} {child} {seen}");
        assert!(links(&mut scene).iter().all(|(_, session, _)| session != "hers"));
    }
}

#[test]
fn a_client_may_cancel_a_child_and_do_nothing_else_with_it() {
    let mut scene = scene(false);
    scene.agent(&announce("s", "c"));
    scene.seen();
    for method in
        ["session/load", "session/resume", "session/fork", "session/prompt", "session/close", "_x/y"]
    {
        scene.ask(7, method, &json!({"sessionId": "c", "cwd": "/w", "mcpServers": [], "prompt": []}));
        let seen = scene.seen();
        assert!(seen.contains("-32002") && !seen.contains("a < "), "{method} {seen}");
    }
    scene.client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "c"}}));
    assert!(scene.seen().contains("a < "));
}

#[test]
fn a_child_works_within_the_directories_of_its_parent() {
    let place = |cwd: &str| json!({"sessionUpdate": "subagent_update", "sessionId": "c", "cwd": cwd});
    let mut scene = scene(false);
    scene.agent(&say("s", &place("/w/a/secret")));
    scene.seen();
    scene.wants(9, "fs/read_text_file", &json!({"sessionId": "c", "path": "/w/other/x"}));
    assert!(scene.seen().contains("path_outside_root"));
    scene.agent(&say("s", &place("/etc")));
    let seen = scene.seen();
    assert!(seen.contains("code=\"cwd_outside_root\"") && seen.contains("session/cancel"), "{seen}");
    assert!(!seen.contains("c < "), "{seen}");
}

#[test]
fn children_are_bounded_and_idle_ones_give_way() {
    let mut scene = scene(false);
    for number in 0..1_500 {
        scene.agent(&announce("s", &format!("c{number}")));
    }
    let seen = scene.seen();
    assert!(seen.contains("log session.closed") && !seen.contains("too many child sessions"));
    assert!(scene.gate.sessions.len() <= 1_025);
    let mut scene = self::scene(false);
    for number in 0..1_500 {
        let child = format!("c{number}");
        scene.agent(&announce("s", &child));
        scene.agent(&call(&child, "Read", "in_progress"));
    }
    assert!(scene.seen().contains("it has too many child sessions"));
    assert!(scene.gate.sessions.len() <= 1_025 && scene.gate.closed_sessions.len() <= 4_096);
}

/// So many that work which grows with the square of the depth does not end within the time of a test.
#[test]
fn nested_children_that_rest_again_and_again_cost_no_more_than_others() {
    let mut scene = scene(true);
    let mut parent = "s".to_owned();
    for number in 0..1_000 {
        let child = format!("c{number}");
        scene.agent(&announce(&parent, &child));
        parent = child;
    }
    assert_eq!(scene.gate.below("s").len(), 1_000);
    assert_eq!(scene.gate.below("c989").len(), 10);
    scene.seen();
    for _ in 0..300 {
        scene.agent(&say("c0", &json!({"sessionUpdate": "state_update", "state": "idle"})));
    }
    assert!(!scene.seen().contains("agent.violation"));
}

#[test]
fn children_end_with_the_session_at_the_top() {
    let mut scene = scene(false);
    scene.agent(&announce("s", "c"));
    scene.agent(&call("c", "Read", "in_progress"));
    scene.ask(7, "session/close", &json!({"sessionId": "s"}));
    links(&mut scene);
    scene.answer(7, &json!({}));
    let links = links(&mut scene);
    let has = |action: &str, session: &str| links.iter().any(|(a, s, _)| a == action && s == session);
    assert!(has("tool.call", "c") && has("session.closed", "c") && has("session.closed", "s"), "{links:?}");
    scene.seen();
    // What has ended may still be reported; what begins may not.
    scene.agent(&call("c", "Read", "failed"));
    scene.agent(&say("c", &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "content": []})));
    assert_eq!(scene.seen(), "");
    scene.agent(&call("c", "Read", "in_progress"));
    assert!(scene.seen().contains("log agent.violation"));
}

#[test]
fn what_is_said_before_a_session_has_a_name_waits_for_it() {
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}});
    for (name, fits) in [("s", true), ("victim", false)] {
        let mut scene = Scene::new();
        scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        scene.seen();
        scene.agent(&say(name, &chunk));
        scene.wants(9, "fs/read_text_file", &json!({"sessionId": name, "path": "/w/x"}));
        let seen = scene.seen();
        assert!(!seen.contains("c < ") && !seen.contains("log"), "{seen}");
        scene.answer(1, &json!({"sessionId": "s"}));
        let seen = scene.seen();
        assert_eq!((seen.contains("\"hi\""), seen.contains("log agent.violation")), (fits, !fits), "{seen}");
    }
    // What came to nothing is nobody's.
    let mut scene = Scene::new();
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.agent(&say("s", &chunk));
    scene.agent(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "no"}}));
    assert!(!scene.seen().contains("hi") && scene.gate.early_messages.is_empty());
}

#[test]
fn history_of_children_is_shown_as_history() {
    let mut scene = scene(true);
    let params = json!({"sessionId": "old", "cwd": "/w", "mcpServers": [], "replayFrom": {"type": "start"}});
    scene.ask(5, "session/resume", &params);
    scene.sight.events.clear();
    scene.agent(&announce("old", "c"));
    scene.agent(&call("c", "Rm", "completed"));
    let raw = std::mem::take(&mut scene.sight.raw);
    assert!(raw.iter().rev().take(2).all(|line| line.contains("\"replay\":true")), "{raw:?}");
    assert!(scene.sight.events.is_empty());
    scene.answer(5, &json!({}));
    scene.seen();
    scene.agent(&call("c", "Rm", "in_progress"));
    assert!(scene.seen().contains("log policy.resolved deny"));
}

#[test]
fn what_a_child_does_and_cannot_be_recorded_stops_the_turn() {
    let mut scene = scene(false);
    scene.agent(&announce("s", "c"));
    scene.records = false;
    scene.agent(&call("c", "Read", "completed"));
    scene.seen();
    for seq in std::mem::take(&mut scene.sight.unsettled) {
        scene.gate.handle_audit_result(scene.now, seq, false, &mut scene.sight);
    }
    let seen = scene.seen();
    assert!(!seen.contains("c < "), "{seen}");
    assert!(seen.contains("session/cancel\",\"params\":{\"sessionId\":\"s\""), "{seen}");
}
