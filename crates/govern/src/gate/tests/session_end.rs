//! Tests of the end of sessions, in every state of the operator.

use super::*;

/// State of the operator when its session ends.
#[derive(Clone, Copy, Debug)]
enum At {
    Idle,
    Running,
    Suspended,
    Tool,
    Service,
    Consulted,
}

const ALL: [At; 6] = [At::Idle, At::Running, At::Suspended, At::Tool, At::Service, At::Consulted];

fn new_fixture(at: At) -> Fixture {
    let mut fixture = Fixture::with_turn();
    let bash = json!({"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}});
    match at {
        At::Idle => fixture.agent_answers(2, &json!({"stopReason": "end_turn"})),
        At::Running => {
            let text = json!({"type": "text", "text": "."});
            fixture.agent_updates(&json!({"sessionUpdate": "agent_message_chunk", "content": text}));
        }
        At::Suspended => fixture.agent_requests(
            7,
            "session/request_permission",
            &json!({"sessionId": "s", "toolCall": bash, "options": [{"optionId": "y", "kind": "allow_once"}]}),
        ),
        At::Tool => fixture.agent_calls("1", "Read", "in_progress", &json!({"path": "/w/a"})),
        At::Service => fixture.agent_requests(7, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a"})),
        At::Consulted => {
            let request = ToolCheck {
                session: "s".into(),
                call: "c".into(),
                server: None,
                tool: "run_command".into(),
                name: "run_command".into(),
                arguments: json!({"command": "make"}),
            };
            fixture.gate.check_tool(fixture.now, 5, request, &mut fixture.output);
            fixture.settle_events();
        }
    }
    fixture.take_seen();
    fixture
}

/// Returns the log lines about the end of a session: its calls, its operator and the session itself.
fn log_lines(seen: &str) -> Vec<String> {
    let lines = seen.lines().filter_map(|line| line.strip_prefix("log "));
    lines.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

fn interrupted(fixture: &Fixture) -> usize {
    let calls = fixture.output.events.iter().filter(|event| event.action == "tool.call");
    calls.filter(|event| event.output == Some(json!({"error": "interrupted"}))).count()
}

#[track_caller]
fn check(at: At, fixture: &Fixture, seen: &str) {
    let log = log_lines(seen);
    assert!(log.last().is_some_and(|last| last.starts_with("session.closed")), "{at:?}: {seen}");
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    let running = usize::from(!matches!(at, At::Idle));
    assert_eq!(count("operator.interrupted"), running, "{at:?}: {seen}");
    assert_eq!(interrupted(fixture), usize::from(matches!(at, At::Tool | At::Service)), "{at:?}: {seen}");
    let refused = usize::from(matches!(at, At::Suspended | At::Consulted));
    assert_eq!(count("policy.resolved deny"), refused, "{at:?}: {seen}");
    assert!(fixture.gate.sessions.is_empty() && fixture.gate.approvals.is_empty(), "{at:?}");
}

#[test]
fn a_disconnect_ends_all_work_and_records_it() {
    for at in ALL {
        let mut fixture = new_fixture(at);
        fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
        fixture.settle_events();
        let seen = fixture.take_seen();
        check(at, &fixture, &seen);
    }
}

#[test]
fn a_lost_agent_ends_all_work_and_fails_pending_requests() {
    for at in ALL {
        let mut fixture = new_fixture(at);
        fixture.gate.handle_agent_lost(fixture.now, None, &mut fixture.output);
        fixture.settle_events();
        let seen = fixture.take_seen();
        check(at, &fixture, &seen);
        let told = seen.contains(r#"c < {"jsonrpc":"2.0","id":2,"error":{"code":-32010"#);
        assert_eq!(told, !matches!(at, At::Idle), "{at:?}: {seen}");
    }
}

#[test]
fn closing_a_session_stops_its_turn() {
    for at in ALL {
        let mut fixture = new_fixture(at);
        fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
        let asked = fixture.take_seen();
        assert_eq!(asked.contains("session/cancel"), !matches!(at, At::Idle), "{at:?}: {asked}");
        // The agent closes the session without answering the prompt, so the gate answers the prompt.
        fixture.agent_answers(3, &json!({}));
        let closed = fixture.take_seen();
        check(at, &fixture, &format!("{asked}\n{closed}"));
        let told = closed.contains(r#"{"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}"#);
        assert_eq!(told, !matches!(at, At::Idle), "{at:?}: {closed}");
        assert!(closed.lines().last().is_some_and(|line| line.starts_with(r#"c < {"jsonrpc":"2.0","id":3"#)));
        fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
        let late = fixture.take_seen();
        assert!(!late.contains("c < "), "{at:?}: {late}");
    }
}

#[test]
fn an_agent_that_refuses_to_close_keeps_its_session() {
    let mut fixture = new_fixture(At::Running);
    fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
    let error = json!({"code": -32603, "message": "no"});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "id": 3, "error": error}));
    let seen = fixture.take_seen();
    assert!(!seen.contains("session.closed") && seen.contains(r#""message":"no""#), "{seen}");
    assert_eq!(fixture.gate.sessions.len(), 1);
}

#[test]
fn messages_outside_a_turn_start_no_turn_in_the_log() {
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "late"}});
    let mut fixture = Fixture::with_turn();
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    fixture.take_seen();
    fixture.agent_updates(&chunk);
    let seen = fixture.take_seen();
    assert!(seen.starts_with("c < ") && !seen.contains("operator.running"), "{seen}");
    // A message of the agent in a stopped turn does not start another turn.
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(&json!({"sessionUpdate": "tool_call", "toolCallId": 1}));
    assert!(fixture.take_seen().contains("operator.interrupted"));
    fixture.agent_updates(&chunk);
    assert!(!fixture.take_seen().contains("operator.running"));
}

#[test]
fn a_turn_in_which_the_model_failed_is_recorded_as_interrupted() {
    let fields =
        json!({"kind": "server", "status": 500, "url": "http://h/v1", "retryable": true, "message": "boom"});
    let meta = json!({"narrows/error": fields});
    // The log entry about a failed turn is the same for both versions of the protocol.
    let logged = "log operator.interrupted reason=\"server (HTTP 500) from http://h/v1: boom\"";
    let mut fixture = Fixture::with_turn();
    fixture.agent_answers(2, &json!({"stopReason": "end_turn", "_meta": meta}));
    let seen = fixture.take_seen();
    assert!(seen.starts_with(logged), "{seen}");
    assert!(seen.contains("end_turn"), "{seen}");
    for update in [
        json!({"stopReason": "end_turn", "_meta": meta}),
        json!({"stopReason": "error", "error":
            {"code": -32011, "message": "Server error (HTTP 500) from http://h/v1.", "data": fields}}),
    ] {
        let mut fixture = Fixture::new();
        fixture.gate.is_v2 = true;
        fixture.open_turn();
        let mut idle = json!({"sessionUpdate": "state_update", "state": "idle"});
        idle.as_object_mut().unwrap().extend(update.as_object().unwrap().clone());
        fixture.agent_updates(&idle);
        let seen = fixture.take_seen();
        assert!(seen.starts_with(logged), "{seen}");
    }
    // Some agents report a message without a kind, or nothing at all.
    for (meta, expected) in [(json!({"message": "busy"}), "busy"), (json!({}), "the turn failed")] {
        let mut fixture = Fixture::with_turn();
        fixture.agent_answers(2, &json!({"stopReason": "end_turn", "_meta": {"narrows/error": meta}}));
        assert!(fixture.take_seen().starts_with(&format!("log operator.interrupted reason=\"{expected}\"")));
    }
}
