//! Who does not answer in time, and what comes of it: each deadline when it has come, and just before.

use insta::assert_snapshot;

use super::*;
use crate::timeouts::GateTimeouts;

/// A request of the client's that the agent answers just in time, and one that it does not.
#[track_caller]
/// Where a session is run in another way, it is open and that is allowed.
fn before(method: &str) -> Scene {
    let mut scene = Scene::new();
    if method.starts_with("session/set_") {
        let clause = Clause::new("modes", "tool.call", Class::Allow).on("kind:switch_mode").unwrap();
        let policy = Policy::new(Access::High, Narrowing::default()).with_charter(Charter::new(vec![clause]));
        scene.gate.authorizer = crate::authorizer::Authorizer::new(policy, "n");
        scene.ask(90, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        scene.answer(90, &json!({"sessionId": "s"}));
        scene.pass(0);
    }
    scene
}

fn check(method: &str, params: &Value, seconds: u64) {
    let mut scene = before(method);
    scene.ask(1, method, params);
    scene.seen();
    assert_eq!(scene.gate.next_deadline(), Some(Duration::from_secs(seconds)), "{method}");
    scene.pass(seconds - 1);
    assert_eq!(scene.seen(), "", "{method}");
    scene.answer(1, &json!({"ok": true}));
    assert!(scene.seen().contains(r#"c < {"jsonrpc":"2.0","id":1,"result":{"#), "{method}");
    // What is over is not due any more.
    scene.pass(seconds);
    assert_eq!((scene.seen().as_str(), scene.gate.next_deadline()), ("", None), "{method}");

    let mut scene = before(method);
    scene.ask(1, method, params);
    scene.seen();
    scene.pass(seconds);
    let seen = scene.seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert!(lines[0].starts_with("log request.expired") && lines[0].contains(method), "{seen}");
    let told = lines[2].starts_with(r#"c < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"#);
    assert!(told && lines[2].contains(r#""effects":"possible""#), "{seen}");
    assert_eq!(lines[1], r#"a < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#);
    // The id is taken until the agent has answered, and then nobody hears it.
    scene.ask(1, "session/list", &json!({}));
    assert!(scene.seen().contains("-32014"), "{method}");
    scene.answer(1, &json!({"ok": true}));
    assert!(scene.seen().starts_with("log request.late"), "{method}");
    scene.answer(1, &json!({"ok": true}));
    assert_eq!(scene.seen(), "", "{method}: nothing is delivered twice");
}

#[test]
fn every_request_has_its_deadline() {
    let here = json!({"cwd": "/w", "mcpServers": []});
    let stored = json!({"sessionId": "s", "cwd": "/w", "mcpServers": []});
    let set = json!({"sessionId": "s", "modeId": "m"});
    let model = json!({"sessionId": "s", "modelId": "m"});
    let option = json!({"sessionId": "s", "configId": "c", "value": "v"});
    for (method, params, seconds) in [
        ("authenticate", &json!({"methodId": "m"}), 300),
        ("session/new", &here, 60),
        ("session/fork", &stored, 60),
        ("session/load", &stored, 120),
        ("session/resume", &stored, 120),
        ("session/set_mode", &set, 10),
        ("session/set_model", &model, 10),
        ("session/set_config_option", &option, 10),
        ("session/list", &json!({}), 120),
        ("_vendor/thing", &json!({}), 120),
    ] {
        check(method, params, seconds);
    }
}

#[test]
fn an_agent_that_does_not_introduce_itself_is_told_of() {
    let mut scene = Scene::new();
    scene.ask(0, "initialize", &json!({"protocolVersion": 1}));
    scene.seen();
    scene.pass(29);
    assert_eq!(scene.seen(), "");
    scene.pass(1);
    assert_snapshot!(scene.seen(), @r#"
    log request.expired reason="the agent did not answer initialize within 30 s"
    a < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":0}}
    c < {"jsonrpc":"2.0","id":0,"error":{"code":-32011,"message":"the agent did not answer initialize within 30 s","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    "#);
    // Too late is not at all.
    scene.answer(0, &json!({"protocolVersion": 2, "capabilities": {}}));
    assert!(!scene.gate.is_v2);
    assert!(scene.seen().starts_with("log request.late"));
}

#[test]
fn deadlines_are_what_they_are_set_to() {
    let timeouts = GateTimeouts { new: Duration::from_secs(2), ..GateTimeouts::default() };
    let mut scene = Scene::with(GateConfig { timeouts, ..config() }, &[]);
    scene.ask(1, "session/new", &json!({"cwd": "/w"}));
    scene.seen();
    scene.pass(2);
    assert!(scene.seen().contains("the agent did not answer session/new within 2 s"));
}

#[test]
fn a_history_that_never_ends_stays_history() {
    let mut scene = Scene::new();
    scene.ask(1, "session/load", &json!({"sessionId": "s", "cwd": "/w"}));
    scene.pass(120);
    scene.seen();
    // No turn can begin in which calls would pass for history.
    scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert_snapshot!(scene.seen(), @r#"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"the session is still being opened","data":{"condition":"session_busy","retryable":true,"effects":"none"}}}
    "#);
    scene.answer(1, &json!({}));
    scene.seen();
    scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(scene.seen().starts_with("a < "));
    scene.tool("1", "Rm", "in_progress", &json!({"path": "/w/x"}));
    assert!(scene.seen().contains("log policy.resolved deny"));
}

#[test]
fn a_silent_turn_is_stopped_and_answered_with_an_error() {
    let mut scene = Scene::at_work();
    scene.pass(599);
    scene.update(&json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "."}}));
    scene.seen();
    // What was said begins the silence anew.
    scene.pass(599);
    assert_snapshot!(scene.seen(), @"");
    scene.pass(1);
    assert_snapshot!(scene.seen(), @r#"
    log request.expired reason="the agent said nothing for 10 min"
    log operator.interrupted reason="the agent said nothing for 10 min"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    "#);
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    assert_snapshot!(scene.seen(), @r#"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32011,"message":"the agent said nothing for 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    "#);
    // The session lives on, and so does its agent.
    scene.ask(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    scene.answer(3, &json!({"stopReason": "end_turn"}));
    scene.pass(2000);
    let seen = scene.seen();
    assert!(
        seen.contains("end_turn") && !seen.contains("interrupted") && !seen.contains("end the agent"),
        "{seen}"
    );
}

#[test]
fn a_silent_agent_that_does_not_stop_is_ended() {
    let mut scene = Scene::at_work();
    scene.pass(600);
    scene.seen();
    scene.pass(9);
    assert_eq!(scene.seen(), "");
    scene.pass(1);
    assert_eq!(scene.seen(), "end the agent: it went on with a turn that was stopped");
    scene.gate.handle_agent_lost(scene.now, None, &mut scene.sight);
    scene.commit();
    assert_snapshot!(scene.seen(), @r#"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32011,"message":"the agent said nothing for 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    log session.closed reason="the agent has gone"
    "#);
}

#[test]
fn silence_of_version_2_ends_with_the_state() {
    let mut scene = Scene::new();
    scene.ask(0, "initialize", &json!({"protocolVersion": 2, "capabilities": {}}));
    scene.answer(0, &json!({"protocolVersion": 2, "capabilities": {}}));
    scene.opened();
    scene.answer(2, &json!({"messageId": "m"}));
    scene.seen();
    scene.pass(600);
    assert!(scene.seen().contains("log operator.interrupted"));
    scene.update(&json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"}));
    assert_snapshot!(scene.seen(), @r#"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{"code":-32011,"message":"the agent said nothing for 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}},"_meta":{"aip44":{"interrupted":"the agent said nothing for 10 min"}}}}
    "#);
    scene.pass(2000);
    assert_eq!(scene.seen(), "");
}

fn asks(scene: &mut Scene) {
    let call = json!({"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    scene.wants(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": call, "options": options}),
    );
}

#[test]
fn nobody_counts_as_silent_who_waits_for_an_approval() {
    let timeouts = GateTimeouts { approval: Duration::from_secs(3000), ..GateTimeouts::default() };
    let mut scene = Scene::with(GateConfig { timeouts, ..config() }, &["lead"]);
    scene.opened();
    asks(&mut scene);
    scene.seen();
    scene.pass(2000);
    assert_eq!(scene.seen(), "");
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": outcome}));
    scene.seen();
    // From then on it does.
    scene.pass(599);
    assert_eq!(scene.seen(), "");
    scene.pass(1);
    assert!(scene.seen().contains("said nothing for 10 min"));
}

#[test]
fn nobody_counts_as_silent_who_waits_for_the_client() {
    for (method, more, output) in [
        ("fs/read_text_file", json!({"path": "/w/a"}), json!({"content": "x"})),
        ("terminal/wait_for_exit", json!({"terminalId": "t"}), json!({"exitCode": 0})),
    ] {
        let timeouts = GateTimeouts { service: Duration::from_secs(5000), ..GateTimeouts::default() };
        let capabilities = Capabilities { terminal: true, ..config().capabilities };
        let mut scene = Scene::with(GateConfig { timeouts, capabilities, ..config() }, &[]);
        scene.opened();
        let mut params = more.clone();
        params["sessionId"] = json!("s");
        scene.wants(7, method, &params);
        scene.seen();
        scene.pass(2000);
        assert_eq!(scene.seen(), "", "{method}");
        scene.client(&json!({"jsonrpc": "2.0", "id": 7, "result": output}));
        assert!(scene.seen().contains(r#"a < {"jsonrpc":"2.0","id":7"#), "{method}");
        scene.pass(599);
        assert_eq!(scene.seen(), "", "{method}");
        scene.pass(1);
        assert!(scene.seen().contains("said nothing for 10 min"), "{method}");
    }
}

#[test]
fn a_client_that_does_not_do_it_is_not_waited_for_forever() {
    let mut scene = Scene::at_work();
    scene.wants(7, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a"}));
    scene.seen();
    scene.pass(599);
    assert_eq!(scene.seen(), "");
    scene.pass(1);
    assert_snapshot!(scene.seen(), @r#"
    log request.expired reason="the client did not answer within 10 min"
    log tool.call allow tool="fs/read_text_file" approval="auto"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":7}}
    a < {"jsonrpc":"2.0","id":7,"error":{"code":-32011,"message":"the client did not answer within 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    "#);
    scene.client(&json!({"jsonrpc": "2.0", "id": 7, "result": {"content": "x"}}));
    assert_snapshot!(scene.seen(), @r#"
    log request.late reason="the client answered after its time, and the answer was dropped"
    "#);
}

#[test]
fn a_turn_that_the_client_cancels_ends_soon_or_its_agent_does() {
    let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}});
    let mut scene = Scene::at_work();
    scene.client(&cancel);
    scene.pass(9);
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    scene.pass(100);
    let seen = scene.seen();
    assert!(seen.contains("cancelled") && !seen.contains("end the agent"), "{seen}");

    let mut scene = Scene::at_work();
    scene.client(&cancel);
    scene.pass(5);
    // Asking again does not give it more time.
    scene.client(&cancel);
    scene.seen();
    scene.pass(5);
    assert_eq!(scene.seen(), "end the agent: it went on with a turn that was stopped");

    // Where no turn goes on there is nothing to wait for.
    let mut scene = Scene::at_work();
    scene.answer(2, &json!({"stopReason": "end_turn"}));
    scene.client(&cancel);
    scene.seen();
    scene.pass(100);
    assert_eq!(scene.seen(), "");
}

#[test]
fn an_agent_that_does_not_close_a_session_goes_with_it() {
    let mut scene = Scene::at_work();
    scene.ask(3, "session/close", &json!({"sessionId": "s"}));
    scene.pass(4);
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    scene.answer(3, &json!({}));
    let seen = scene.seen();
    assert!(seen.contains("log session.closed") && !seen.contains("release"), "{seen}");
    scene.pass(100);
    assert_eq!(scene.seen(), "");

    let mut scene = Scene::at_work();
    scene.ask(3, "session/close", &json!({"sessionId": "s"}));
    assert_snapshot!(scene.seen(), @r#"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    a < {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"s"}}
    "#);
    scene.pass(5);
    assert_snapshot!(scene.seen(), @r#"
    log request.expired reason="the agent did not answer session/close within 5 s"
    log operator.interrupted reason="it was closed"
    log session.closed reason="the agent did not close it in time"
    release the agent: it did not close a session in time
    c < {"jsonrpc":"2.0","id":3,"error":{"code":-32011,"message":"the agent did not answer session/close within 5 s","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    c < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    "#);
}

#[test]
fn a_turn_that_is_over_before_its_acts_are_recorded_is_not_waited_for() {
    let mut scene = Scene::at_work();
    scene.records = false;
    scene.tool("1", "Read", "completed", &json!({"path": "/w/a"}));
    scene.answer(2, &json!({"stopReason": "end_turn"}));
    scene.seen();
    for seq in std::mem::take(&mut scene.sight.unsettled) {
        scene.gate.handle_audit_result(scene.now, seq, false, &mut scene.sight);
    }
    let seen = scene.seen();
    assert!(seen.contains("-32017") && !seen.contains("toolCallId"), "{seen}");
    scene.records = true;
    scene.pass(100);
    assert!(!scene.seen().contains("end the agent"));
    scene.ask(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    scene.answer(3, &json!({"stopReason": "end_turn"}));
    assert!(scene.seen().contains(r#""id":3,"result":{"stopReason":"end_turn"}"#));
}
