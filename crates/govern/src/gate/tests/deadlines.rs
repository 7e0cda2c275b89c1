//! Tests of deadlines: each has its effect when it passes, and none just before.

use insta::assert_snapshot;

use super::*;
use crate::timeouts::GateTimeouts;

/// Returns a fixture in which a request of this method is allowed. If the method needs a session, one is
/// open.
#[track_caller]
fn open_before(method: &str) -> Fixture {
    let mut fixture = Fixture::new();
    if method.starts_with("session/set_") {
        let clause =
            GovernanceRule::new("modes", "tool.call", Class::Allow).with_subject("kind:switch_mode").unwrap();
        let policy = Policy::new(Access::High, Narrowing::default())
            .with_ruleset(GovernanceRuleset::new(vec![clause]));
        fixture.gate.authorizer = crate::authorizer::Authorizer::new(policy, "n");
        fixture.client_requests(90, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.agent_answers(90, &json!({"sessionId": "s"}));
        fixture.advance_clock(0);
    }
    fixture
}

fn check(method: &str, params: &Value, seconds: u64) {
    let mut fixture = open_before(method);
    fixture.client_requests(1, method, params);
    fixture.take_seen();
    assert_eq!(fixture.gate.next_deadline(), Some(Duration::from_secs(seconds)), "{method}");
    fixture.advance_clock(seconds - 1);
    assert_eq!(fixture.take_seen(), "", "{method}");
    fixture.agent_answers(1, &json!({"ok": true}));
    assert!(fixture.take_seen().contains(r#"c < {"jsonrpc":"2.0","id":1,"result":{"#), "{method}");
    fixture.advance_clock(seconds);
    assert_eq!((fixture.take_seen().as_str(), fixture.gate.next_deadline()), ("", None), "{method}");

    let mut fixture = open_before(method);
    fixture.client_requests(1, method, params);
    fixture.take_seen();
    fixture.advance_clock(seconds);
    let seen = fixture.take_seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert!(lines[0].starts_with("log request.expired") && lines[0].contains(method), "{seen}");
    let told = lines[2].starts_with(r#"c < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"#);
    assert!(told && lines[2].contains(r#""effects":"possible""#), "{seen}");
    assert_eq!(lines[1], r#"a < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#);
    // The id stays in use until the agent has answered. The late answer is dropped.
    fixture.client_requests(1, "session/list", &json!({}));
    assert!(fixture.take_seen().contains("-32014"), "{method}");
    fixture.agent_answers(1, &json!({"ok": true}));
    assert!(fixture.take_seen().starts_with("log request.late"), "{method}");
    fixture.agent_answers(1, &json!({"ok": true}));
    assert_eq!(fixture.take_seen(), "", "{method}: nothing is delivered twice");
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
fn a_missing_initialize_answer_times_out() {
    let mut fixture = Fixture::new();
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1}));
    fixture.take_seen();
    fixture.advance_clock(29);
    assert_eq!(fixture.take_seen(), "");
    fixture.advance_clock(1);
    assert_snapshot!(fixture.take_seen(), @r#"
    log request.expired reason="the agent did not answer initialize within 30 s"
    a < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":0}}
    c < {"jsonrpc":"2.0","id":0,"error":{"code":-32011,"message":"the agent did not answer initialize within 30 s","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    "#);
    fixture.agent_answers(0, &json!({"protocolVersion": 2, "capabilities": {}}));
    assert!(!fixture.gate.is_v2);
    assert!(fixture.take_seen().starts_with("log request.late"));
}

#[test]
fn configured_timeouts_apply() {
    let timeouts = GateTimeouts { new: Duration::from_secs(2), ..GateTimeouts::default() };
    let mut fixture = Fixture::with_config(GateConfig { timeouts, ..config() }, &[]);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w"}));
    fixture.take_seen();
    fixture.advance_clock(2);
    assert!(fixture.take_seen().contains("the agent did not answer session/new within 2 s"));
}

#[test]
fn an_endless_replay_stays_a_replay() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/load", &json!({"sessionId": "s", "cwd": "/w"}));
    fixture.advance_clock(120);
    fixture.take_seen();
    // A turn cannot begin during the replay, because its calls would be taken for history.
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"the session is still being opened","data":{"condition":"session_busy","retryable":true,"effects":"none"}}}
    "#);
    fixture.agent_answers(1, &json!({}));
    fixture.take_seen();
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(fixture.take_seen().starts_with("a < "));
    fixture.agent_calls("1", "Rm", "in_progress", &json!({"path": "/w/x"}));
    assert!(fixture.take_seen().contains("log policy.resolved deny"));
}

#[test]
fn a_silent_turn_is_stopped_and_answered_with_an_error() {
    let mut fixture = Fixture::with_turn();
    fixture.advance_clock(599);
    fixture.agent_updates(
        &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "."}}),
    );
    fixture.take_seen();
    fixture.advance_clock(599);
    assert_snapshot!(fixture.take_seen(), @"");
    fixture.advance_clock(1);
    assert_snapshot!(fixture.take_seen(), @r#"
    log request.expired reason="the agent was silent for 10 min"
    log operator.interrupted reason="the agent was silent for 10 min"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    "#);
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32011,"message":"the agent was silent for 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    "#);
    fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.agent_answers(3, &json!({"stopReason": "end_turn"}));
    fixture.advance_clock(2000);
    let seen = fixture.take_seen();
    assert!(
        seen.contains("end_turn") && !seen.contains("interrupted") && !seen.contains("end the agent"),
        "{seen}"
    );
}

#[test]
fn a_silent_agent_that_does_not_stop_is_ended() {
    let mut fixture = Fixture::with_turn();
    fixture.advance_clock(600);
    fixture.take_seen();
    fixture.advance_clock(9);
    assert_eq!(fixture.take_seen(), "");
    fixture.advance_clock(1);
    assert_eq!(fixture.take_seen(), "end the agent: it continued a stopped turn");
    fixture.gate.handle_agent_lost(fixture.now, None, &mut fixture.output);
    fixture.settle_events();
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32011,"message":"the agent was silent for 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    log session.closed reason="agent lost"
    "#);
}

#[test]
fn in_version_2_the_silence_timeout_ends_with_the_running_state() {
    let mut fixture = Fixture::new();
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 2, "capabilities": {}}));
    fixture.agent_answers(0, &json!({"protocolVersion": 2, "capabilities": {}}));
    fixture.open_turn();
    fixture.agent_answers(2, &json!({"messageId": "m"}));
    fixture.take_seen();
    fixture.advance_clock(600);
    assert!(fixture.take_seen().contains("log operator.interrupted"));
    fixture
        .agent_updates(&json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{"code":-32011,"message":"the agent was silent for 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}},"_meta":{"aip44":{"interrupted":"the agent was silent for 10 min"}}}}
    "#);
    fixture.advance_clock(2000);
    assert_eq!(fixture.take_seen(), "");
}

fn ask_permission(fixture: &mut Fixture) {
    let call = json!({"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    fixture.agent_requests(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": call, "options": options}),
    );
}

#[test]
fn waiting_for_an_approval_is_not_silence() {
    let timeouts = GateTimeouts { approval: Duration::from_secs(3000), ..GateTimeouts::default() };
    let mut fixture = Fixture::with_config(GateConfig { timeouts, ..config() }, &["lead"]);
    fixture.open_turn();
    ask_permission(&mut fixture);
    fixture.take_seen();
    fixture.advance_clock(2000);
    assert_eq!(fixture.take_seen(), "");
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": outcome}));
    fixture.take_seen();
    fixture.advance_clock(599);
    assert_eq!(fixture.take_seen(), "");
    fixture.advance_clock(1);
    assert!(fixture.take_seen().contains("was silent for 10 min"));
}

#[test]
fn waiting_for_the_client_is_not_silence() {
    for (method, more, output) in [
        ("fs/read_text_file", json!({"path": "/w/a"}), json!({"content": "x"})),
        ("terminal/wait_for_exit", json!({"terminalId": "t"}), json!({"exitCode": 0})),
    ] {
        let timeouts = GateTimeouts { service: Duration::from_secs(5000), ..GateTimeouts::default() };
        let capabilities = Capabilities { terminal: true, ..config().capabilities };
        let mut fixture = Fixture::with_config(GateConfig { timeouts, capabilities, ..config() }, &[]);
        fixture.open_turn();
        let mut params = more.clone();
        params["sessionId"] = json!("s");
        fixture.agent_requests(7, method, &params);
        fixture.take_seen();
        fixture.advance_clock(2000);
        assert_eq!(fixture.take_seen(), "", "{method}");
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": 7, "result": output}));
        assert!(fixture.take_seen().contains(r#"a < {"jsonrpc":"2.0","id":7"#), "{method}");
        fixture.advance_clock(599);
        assert_eq!(fixture.take_seen(), "", "{method}");
        fixture.advance_clock(1);
        assert!(fixture.take_seen().contains("was silent for 10 min"), "{method}");
    }
}

#[test]
fn a_client_request_times_out() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(7, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a"}));
    fixture.take_seen();
    fixture.advance_clock(599);
    assert_eq!(fixture.take_seen(), "");
    fixture.advance_clock(1);
    assert_snapshot!(fixture.take_seen(), @r#"
    log request.expired reason="the client did not answer within 10 min"
    log tool.call allow tool="fs/read_text_file" approval="auto"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":7}}
    a < {"jsonrpc":"2.0","id":7,"error":{"code":-32011,"message":"the client did not answer within 10 min","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    "#);
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 7, "result": {"content": "x"}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log request.late reason="the client answered after the deadline, and the answer was dropped"
    "#);
}

#[test]
fn a_cancelled_turn_that_does_not_end_in_time_ends_the_agent() {
    let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}});
    let mut fixture = Fixture::with_turn();
    fixture.send_client(&cancel);
    fixture.advance_clock(9);
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    fixture.advance_clock(100);
    let seen = fixture.take_seen();
    assert!(seen.contains("cancelled") && !seen.contains("end the agent"), "{seen}");

    let mut fixture = Fixture::with_turn();
    fixture.send_client(&cancel);
    fixture.advance_clock(5);
    fixture.send_client(&cancel);
    fixture.take_seen();
    fixture.advance_clock(5);
    assert_eq!(fixture.take_seen(), "end the agent: it continued a stopped turn");

    let mut fixture = Fixture::with_turn();
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    fixture.send_client(&cancel);
    fixture.take_seen();
    fixture.advance_clock(100);
    assert_eq!(fixture.take_seen(), "");
}

#[test]
fn a_session_that_is_not_closed_in_time_ends_the_agent() {
    let mut fixture = Fixture::with_turn();
    fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
    fixture.advance_clock(4);
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    fixture.agent_answers(3, &json!({}));
    let seen = fixture.take_seen();
    assert!(seen.contains("log session.closed") && !seen.contains("release"), "{seen}");
    fixture.advance_clock(100);
    assert_eq!(fixture.take_seen(), "");

    let mut fixture = Fixture::with_turn();
    fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    a < {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"s"}}
    "#);
    fixture.advance_clock(5);
    assert_snapshot!(fixture.take_seen(), @r#"
    log request.expired reason="the agent did not answer session/close within 5 s"
    log operator.interrupted reason="it was closed"
    log session.closed reason="the agent did not close it in time"
    release the agent: it did not close a session in time
    c < {"jsonrpc":"2.0","id":3,"error":{"code":-32011,"message":"the agent did not answer session/close within 5 s","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    c < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    "#);
}

#[test]
fn a_turn_that_ended_before_recording_gets_no_deadline() {
    let mut fixture = Fixture::with_turn();
    fixture.settles_at_once = false;
    fixture.agent_calls("1", "Read", "completed", &json!({"path": "/w/a"}));
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    fixture.take_seen();
    for seq in std::mem::take(&mut fixture.output.unsettled) {
        fixture.gate.handle_audit_result(fixture.now, seq, false, &mut fixture.output);
    }
    let seen = fixture.take_seen();
    assert!(seen.contains("-32017") && !seen.contains("toolCallId"), "{seen}");
    fixture.settles_at_once = true;
    fixture.advance_clock(100);
    assert!(!fixture.take_seen().contains("end the agent"));
    fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.agent_answers(3, &json!({"stopReason": "end_turn"}));
    assert!(fixture.take_seen().contains(r#""id":3,"result":{"stopReason":"end_turn"}"#));
}
