//! Sessions that end, in every state that an operator can be in.

use super::*;

/// Where an operator is when its session ends.
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

fn scene(at: At) -> Scene {
    let mut scene = Scene::at_work();
    let bash = json!({"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}});
    match at {
        At::Idle => scene.answer(2, &json!({"stopReason": "end_turn"})),
        At::Running => {
            let text = json!({"type": "text", "text": "."});
            scene.update(&json!({"sessionUpdate": "agent_message_chunk", "content": text}));
        }
        At::Suspended => scene.wants(
            7,
            "session/request_permission",
            &json!({"sessionId": "s", "toolCall": bash, "options": [{"optionId": "y", "kind": "allow_once"}]}),
        ),
        At::Tool => scene.tool("1", "Read", "in_progress", &json!({"path": "/w/a"})),
        At::Service => scene.wants(7, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a"})),
        At::Consulted => {
            let request = ToolCheck {
                session: "s".into(),
                call: "c".into(),
                server: None,
                tool: "run_command".into(),
                name: "run_command".into(),
                arguments: json!({"command": "make"}),
            };
            scene.gate.check_tool(scene.now, 5, request, &mut scene.sight);
            scene.commit();
        }
    }
    scene.seen();
    scene
}

/// What is in the log of a session that ends there: the calls, the operator, and the session.
fn log_of(seen: &str) -> Vec<String> {
    let lines = seen.lines().filter_map(|line| line.strip_prefix("log "));
    lines.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

fn interrupted(scene: &Scene) -> usize {
    let calls = scene.sight.events.iter().filter(|event| event.action == "tool.call");
    calls.filter(|event| event.output == Some(json!({"error": "interrupted"}))).count()
}

#[track_caller]
fn check(at: At, scene: &Scene, seen: &str) {
    let log = log_of(seen);
    assert!(log.last().is_some_and(|last| last.starts_with("session.closed")), "{at:?}: {seen}");
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    let running = usize::from(!matches!(at, At::Idle));
    assert_eq!(count("operator.interrupted"), running, "{at:?}: {seen}");
    assert_eq!(interrupted(scene), usize::from(matches!(at, At::Tool | At::Service)), "{at:?}: {seen}");
    let refused = usize::from(matches!(at, At::Suspended | At::Consulted));
    assert_eq!(count("policy.resolved deny"), refused, "{at:?}: {seen}");
    assert!(scene.gate.sessions.is_empty() && scene.gate.approvals.is_empty(), "{at:?}");
}

#[test]
fn a_client_that_goes_ends_everything_and_all_of_it_is_recorded() {
    for at in ALL {
        let mut scene = scene(at);
        scene.gate.handle_client_lost(scene.now, &mut scene.sight);
        scene.commit();
        let seen = scene.seen();
        check(at, &scene, &seen);
    }
}

#[test]
fn an_agent_that_goes_ends_everything_and_whoever_waits_is_told() {
    for at in ALL {
        let mut scene = scene(at);
        scene.gate.handle_agent_lost(scene.now, None, &mut scene.sight);
        scene.commit();
        let seen = scene.seen();
        check(at, &scene, &seen);
        let told = seen.contains(r#"c < {"jsonrpc":"2.0","id":2,"error":{"code":-32010"#);
        assert_eq!(told, !matches!(at, At::Idle), "{at:?}: {seen}");
    }
}

#[test]
fn closing_stops_what_goes_on_and_ends_the_session() {
    for at in ALL {
        let mut scene = scene(at);
        scene.ask(3, "session/close", &json!({"sessionId": "s"}));
        let asked = scene.seen();
        assert_eq!(asked.contains("session/cancel"), !matches!(at, At::Idle), "{at:?}: {asked}");
        // It closes without a word about its turn, whose client has an answer all the same.
        scene.answer(3, &json!({}));
        let closed = scene.seen();
        check(at, &scene, &format!("{asked}\n{closed}"));
        let told = closed.contains(r#"{"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}"#);
        assert_eq!(told, !matches!(at, At::Idle), "{at:?}: {closed}");
        assert!(closed.lines().last().is_some_and(|line| line.starts_with(r#"c < {"jsonrpc":"2.0","id":3"#)));
        scene.answer(2, &json!({"stopReason": "cancelled"}));
        let late = scene.seen();
        assert!(!late.contains("c < "), "{at:?}: {late}");
    }
}

#[test]
fn an_agent_that_refuses_to_close_keeps_its_session() {
    let mut scene = scene(At::Running);
    scene.ask(3, "session/close", &json!({"sessionId": "s"}));
    let error = json!({"code": -32603, "message": "no"});
    scene.agent(&json!({"jsonrpc": "2.0", "id": 3, "error": error}));
    let seen = scene.seen();
    assert!(!seen.contains("session.closed") && seen.contains(r#""message":"no""#), "{seen}");
    assert_eq!(scene.gate.sessions.len(), 1);
}

#[test]
fn what_an_agent_sends_outside_a_turn_starts_none_in_the_log() {
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "late"}});
    let mut scene = Scene::at_work();
    scene.answer(2, &json!({"stopReason": "end_turn"}));
    scene.seen();
    scene.update(&chunk);
    let seen = scene.seen();
    assert!(seen.starts_with("c < ") && !seen.contains("operator.running"), "{seen}");
    // Nor while a turn is stopped.
    let mut scene = Scene::at_work();
    scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": 1}));
    assert!(scene.seen().contains("operator.interrupted"));
    scene.update(&chunk);
    assert!(!scene.seen().contains("operator.running"));
}

#[test]
fn a_turn_in_which_the_model_failed_is_recorded_as_interrupted() {
    let fields =
        json!({"kind": "server", "status": 500, "url": "http://h/v1", "retryable": true, "message": "boom"});
    let meta = json!({"narrows/error": fields});
    // The log says the same of a failure, whichever version the agent speaks.
    let logged = "log operator.interrupted reason=\"server (HTTP 500) from http://h/v1: boom\"";
    let mut scene = Scene::at_work();
    scene.answer(2, &json!({"stopReason": "end_turn", "_meta": meta}));
    let seen = scene.seen();
    assert!(seen.starts_with(logged), "{seen}");
    assert!(seen.contains("end_turn"), "{seen}");
    for update in [
        json!({"stopReason": "end_turn", "_meta": meta}),
        json!({"stopReason": "error", "error":
            {"code": -32011, "message": "Server error (HTTP 500) from http://h/v1.", "data": fields}}),
    ] {
        let mut scene = Scene::new();
        scene.gate.is_v2 = true;
        scene.opened();
        let mut idle = json!({"sessionUpdate": "state_update", "state": "idle"});
        idle.as_object_mut().unwrap().extend(update.as_object().unwrap().clone());
        scene.update(&idle);
        let seen = scene.seen();
        assert!(seen.starts_with(logged), "{seen}");
    }
    // Of other agents there are the words alone.
    for (meta, expected) in [(json!({"message": "busy"}), "busy"), (json!({}), "the turn failed")] {
        let mut scene = Scene::at_work();
        scene.answer(2, &json!({"stopReason": "end_turn", "_meta": {"narrows/error": meta}}));
        assert!(scene.seen().starts_with(&format!("log operator.interrupted reason=\"{expected}\"")));
    }
}
