//! Tests of conversations in version 2 of the protocol.

use insta::assert_snapshot;

use super::*;
use crate::config::Autonomy;

fn v2_turn(config: GateConfig) -> Fixture {
    let mut fixture = Fixture::with_config(config, &["lead"]);
    fixture.client_requests(
        0,
        "initialize",
        &json!({"protocolVersion": 2, "info": {"name": "c", "version": "1"}}),
    );
    fixture.agent_answers(0, &json!({"protocolVersion": 2, "info": {"name": "a", "version": "1"}, "capabilities": {"session": {"mcp": {"acp": {}}}}}));
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a"}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.take_seen();
    send_prompt(&mut fixture);
    fixture
}

fn send_prompt(fixture: &mut Fixture) {
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.agent_answers(2, &json!({"messageId": "m"}));
    send_state(fixture, json!({"state": "running"}));
    fixture.take_seen();
}

fn send_state(fixture: &mut Fixture, state: Value) {
    let mut update = state;
    update["sessionUpdate"] = json!("state_update");
    fixture.agent_updates(&update);
}

fn announce_call(fixture: &mut Fixture, name: &str, kind: &str, status: &str) {
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "name": name, "kind": kind,
        "status": status, "title": "x", "rawInput": {"path": "/w/a/b"}}),
    );
}

#[test]
fn a_turn_lasts_from_running_to_idle() {
    let mut fixture = Fixture::with_config(config(), &[]);
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 2}));
    fixture.agent_answers(0, &json!({"protocolVersion": 2, "capabilities": {"session": {"prompt": {"image": {}}, "mcp": {"http": {}, "acp": {}}}}}));
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a"}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.agent_answers(2, &json!({"messageId": "m"}));
    send_state(&mut fixture, json!({"state": "running"}));
    announce_call(&mut fixture, "Read", "read", "completed");
    send_state(&mut fixture, json!({"state": "idle", "stopReason": "end_turn"}));
    send_state(&mut fixture, json!({"state": "idle"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":2}}
    c < {"jsonrpc":"2.0","id":0,"result":{"protocolVersion":2,"capabilities":{"session":{"prompt":{},"mcp":{"acp":{}}}}}}
    a < {"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w/a"}}
    log operator.invoked
    c < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}
    a < {"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}
    c < {"jsonrpc":"2.0","id":2,"result":{"messageId":"m"}}
    log operator.running
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"running","sessionUpdate":"state_update"},"sessionId":"s"}}
    log policy.resolved allow tool="Read" approval="auto" reason="allow `/w/a/b`: no policy matches"
    log tool.call allow tool="Read" approval="auto"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call_update","toolCallId":"1","name":"Read","kind":"read","status":"completed","title":"x","rawInput":{"path":"/w/a/b"}},"sessionId":"s"}}
    log operator.completed
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"idle","stopReason":"end_turn","sessionUpdate":"state_update"},"sessionId":"s"}}
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"idle","sessionUpdate":"state_update"},"sessionId":"s"}}
    "#);
}

#[test]
fn a_missing_declared_capability_fails_initialize() {
    let capabilities = Capabilities { image: true, ..config().capabilities };
    for offers in [json!({}), json!({"session": {}}), json!({"session": {"prompt": {"image": null}}})] {
        let mut fixture = Fixture::with_config(GateConfig { capabilities, ..config() }, &[]);
        fixture.client_requests(0, "initialize", &json!({"protocolVersion": 2}));
        fixture.agent_answers(0, &json!({"protocolVersion": 2, "capabilities": offers}));
        assert!(fixture.take_seen().contains("unmet-capability"), "{offers}");
    }
}

#[test]
fn a_denied_call_is_not_shown_and_one_that_runs_ends_the_turn_with_a_refusal() {
    let mut fixture = v2_turn(config());
    announce_call(&mut fixture, "Rm", "delete", "pending");
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved deny tool="Rm" approval={"refused":"deny `/w/a/b`: policy `never` matches"} reason="deny `/w/a/b`: policy `never` matches"
    "#);
    announce_call(&mut fixture, "Rm", "delete", "in_progress");
    send_state(&mut fixture, json!({"state": "idle", "stopReason": "cancelled"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log operator.interrupted reason="it ran `Rm`, which was refused (deny `/w/a/b`: policy `never` matches)"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"state_update","state":"idle","stopReason":"refusal"},"_meta":{"aip44":{"interrupted":"it ran `Rm`, which was refused (deny `/w/a/b`: policy `never` matches)"}}}}
    "#);
}

#[test]
fn permission_requests_have_the_form_of_version_2() {
    let mut fixture = v2_turn(config());
    announce_call(&mut fixture, "Bash", "execute", "pending");
    send_state(&mut fixture, json!({"state": "requires_action"}));
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let subject = json!({"type": "tool_call", "toolCall": {"toolCallId": "1"}});
    let params = json!({"sessionId": "s", "title": "May I?", "subject": subject, "options": options});
    fixture.agent_requests(7, "session/request_permission", &params);
    // The client sees the state "waiting", whatever the agent reports.
    send_state(&mut fixture, json!({"state": "running"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    send_state(&mut fixture, json!({"state": "running"}));
    announce_call(&mut fixture, "Bash", "execute", "failed");
    send_state(&mut fixture, json!({"state": "idle", "stopReason": "end_turn"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `/w/a/b`: policy `runs` matches"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call_update","toolCallId":"1","name":"Bash","kind":"execute","status":"pending","title":"x","rawInput":{"path":"/w/a/b"}},"sessionId":"s"}}
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"requires_action","sessionUpdate":"state_update"},"sessionId":"s"}}
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","title":"Bash","description":"require-approval `/w/a/b`: policy `runs` matches","subject":{"type":"tool_call","toolCall":{"toolCallId":"1","title":"Bash","kind":"execute","status":"pending","rawInput":{"path":"/w/a/b"}}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"require-approval `/w/a/b`: policy `runs` matches"}}}}
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"running","sessionUpdate":"state_update"},"sessionId":"s"}}
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `/w/a/b`: policy `runs` matches"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"y"}}}
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"running","sessionUpdate":"state_update"},"sessionId":"s"}}
    log tool.call allow tool="Bash" approval="user:ada"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call_update","toolCallId":"1","name":"Bash","kind":"execute","status":"failed","title":"x","rawInput":{"path":"/w/a/b"}},"sessionId":"s"}}
    log operator.completed
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"idle","stopReason":"end_turn","sessionUpdate":"state_update"},"sessionId":"s"}}
    "#);
}

fn ask_permission(fixture: &mut Fixture, subject: &Value) -> String {
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let params = json!({"sessionId": "s", "title": "May I?", "subject": subject, "options": options});
    fixture.agent_requests(7, "session/request_permission", &params);
    fixture.take_seen()
}

/// The decision about a call does not apply to another command that the agent asks about under the id of the
/// call.
#[test]
fn a_command_with_the_id_of_a_known_call_is_judged_separately() {
    let command =
        |command: &str| json!({"type": "command", "command": command, "cwd": "/w/a", "toolCallId": "1"});
    let mut fixture = v2_turn(config());
    announce_call(&mut fixture, "Read", "read", "pending");
    assert!(fixture.take_seen().contains("policy.resolved allow"));
    let seen = ask_permission(&mut fixture, &command("rm -rf /"));
    assert!(seen.contains("log policy.resolved require-approval") && !seen.contains("a < "), "{seen}");
    // Both the call and the command are shown and recorded.
    assert!(
        seen.contains(r#""rawInput":{"input":{"path":"/w/a/b"},"command":{"command":"rm -rf /""#),
        "{seen}"
    );
    let event = fixture.output.events.iter().rfind(|event| event.action == "policy.resolved").unwrap();
    assert_eq!(event.input.as_ref().unwrap()["command"]["command"], "rm -rf /");
    assert_eq!(event.facts.get("toolCallId").unwrap().clone().into_value(), "1");
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    assert!(fixture.take_seen().contains(r#""optionId":"y""#));
    // The approval is about this command, and for one run.
    let seen = ask_permission(&mut fixture, &command("rm -rf /"));
    assert!(seen.contains("require-approval") && !seen.contains("a < "), "{seen}");
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:2", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    assert!(fixture.take_seen().contains(r#""optionId":"y""#));
    let seen = ask_permission(&mut fixture, &command("rm -rf /x"));
    assert!(seen.contains("require-approval") && !seen.contains("a < "), "{seen}");

    // Allowing a command does not change the decision about its call.
    let mut fixture = v2_turn(config());
    fixture.gate.authorizer = crate::authorizer::Authorizer::new(
        Policy::new(Access::High, Narrowing::default()).with_ruleset(GovernanceRuleset::new(vec![
            GovernanceRule::new("never", "tool.call", Class::Deny).with_subject("Rm").unwrap(),
            GovernanceRule::new("shell", "command.execute", Class::Allow),
        ])),
        "n",
    );
    announce_call(&mut fixture, "Rm", "delete", "pending");
    assert!(fixture.take_seen().contains("policy.resolved deny"));
    let seen = ask_permission(&mut fixture, &command("ls"));
    assert!(seen.contains(r#""optionId":"n""#), "{seen}");

    // The command of the announced call was decided before.
    let mut fixture = v2_turn(config());
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "name": "Run", "kind": "execute",
        "status": "pending", "rawInput": {"command": "make", "cwd": "/w/a"}}),
    );
    assert!(fixture.take_seen().contains("policy.resolved require-approval"));
    let seen = ask_permission(&mut fixture, &command("make"));
    assert!(seen.contains("aip44:n:1") && !seen.contains("policy.resolved"), "{seen}");
}

#[test]
fn unreadable_requests_are_rejected_and_recorded() {
    let read = json!({"toolCallId": "1", "kind": "read", "rawInput": {"path": "/w/a/b"}});
    for (subject, code) in [
        (Value::Null, "no_subject"),
        (json!({}), "no_subject"),
        (json!([]), "no_subject"),
        (json!("command"), "no_subject"),
        (json!({"toolCall": read}), "no_subject"),
        (json!({"type": 1, "toolCall": read}), "no_subject"),
        (json!({"type": "_other"}), "unknown_subject"),
        (json!({"type": "weird", "toolCall": read}), "unknown_subject"),
        (json!({"type": "tool_call"}), "unreadable_subject"),
        (json!({"type": "tool_call", "toolCall": []}), "unreadable_subject"),
        (json!({"type": "tool_call", "toolCall": {"toolCallId": 1}}), "unreadable_subject"),
        (json!({"type": "command", "toolCallId": "1", "toolCall": read}), "unreadable_subject"),
        (json!({"type": "command", "command": ["rm"], "toolCallId": "1"}), "unreadable_subject"),
        (json!({"type": "tool_call", "toolCall": read, "command": "rm x"}), "unreadable_subject"),
        (json!({"type": "tool_call", "toolCall": read, "argv": ["rm", "x"]}), "unreadable_subject"),
    ] {
        let mut fixture = v2_turn(config());
        announce_call(&mut fixture, "Read", "read", "pending");
        fixture.take_seen();
        let seen = ask_permission(&mut fixture, &subject);
        assert!(
            seen.starts_with(&format!("log tool.refused deny code=\"{code}\"\na < ")),
            "{subject} {seen}"
        );
        assert!(seen.contains(r#""optionId":"n""#), "{subject} {seen}");
    }
    for call in [Value::Null, json!([]), json!("x")] {
        let mut fixture = Fixture::with_turn();
        let options = json!([{"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "toolCall": call, "options": options});
        fixture.agent_requests(7, "session/request_permission", &params);
        let seen = fixture.take_seen();
        assert!(seen.starts_with("log tool.refused deny code=\"unreadable_subject\"\na < "), "{seen}");
    }
}

#[test]
fn a_command_belongs_to_its_call_or_needs_its_own_approval() {
    let mut fixture = v2_turn(config());
    let seen = ask_permission(&mut fixture, &json!({"type": "command", "command": "make", "cwd": "/w/a"}));
    assert!(seen.contains("tool=\"kind:execute\"") && seen.contains("\"command\":\"make\""), "{seen}");
    let mut fixture = v2_turn(config());
    announce_call(&mut fixture, "Bash", "execute", "pending");
    fixture.take_seen();
    let seen = ask_permission(
        &mut fixture,
        &json!({"type": "command", "command": "true", "cwd": "/w/a", "toolCallId": "1"}),
    );
    assert!(seen.contains("\"path\":\"/w/a/b\"") && seen.contains("\"true\""), "{seen}");
    // A command that belongs to no call needs an approval each time, even under a known id.
    let mut fixture = v2_turn(config());
    for number in 1..=2 {
        let seen =
            ask_permission(&mut fixture, &json!({"type": "command", "command": "make", "cwd": "/w/a"}));
        assert!(seen.contains(&format!("aip44:n:{number}")) && !seen.contains("a < "), "{seen}");
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": format!("aip44:n:{number}"), "result":
            {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
        assert!(fixture.take_seen().contains(r#""optionId":"y""#));
    }
}

#[test]
fn everything_beside_a_command_is_judged_and_shown_with_it() {
    for is_told in [false, true] {
        for (name, value) in [
            ("args", json!(["-l"])),
            ("argv", json!(["rm", "x"])),
            ("env", json!({"LD_PRELOAD": "/w/x.so"})),
            ("path", json!("/etc/passwd")),
            ("more", json!({"script": "rm x"})),
            ("toolCall", json!({"rawInput": {"command": "rm x"}})),
        ] {
            let mut fixture = v2_turn(config());
            if is_told {
                fixture.agent_updates(
                    &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "name": "Run",
                    "kind": "execute", "status": "pending", "rawInput": {"command": "ls", "cwd": "/w/a"}}),
                );
                fixture.take_seen();
            }
            let mut subject = json!({"type": "command", "command": "ls", "cwd": "/w/a", "toolCallId": "1"});
            subject[name] = value.clone();
            let seen = ask_permission(&mut fixture, &subject);
            // The agent asks about another command than the announced one.
            assert!(seen.contains("log policy.resolved require-approval"), "{is_told} {subject}: {seen}");
            assert!(seen.contains(&format!("\"{name}\":{value}")), "{is_told} {subject}: {seen}");
        }
    }
}

#[test]
fn the_client_of_a_built_in_agent_gets_the_waiting_state() {
    let mut fixture = v2_turn(config());
    let request = ToolCheck {
        session: "s".into(),
        call: "c".into(),
        server: None,
        tool: "Bash".into(),
        name: "Bash".into(),
        arguments: json!({"command": "make"}),
    };
    fixture.gate.check_tool(fixture.now, 1, request, &mut fixture.output);
    fixture.settle_events();
    fixture.send_client(
        &json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": {"outcome": {"outcome": "cancelled"}}}),
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make`: policy `runs` matches"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"state_update","state":"requires_action"},"sessionId":"s"}}
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","title":"Bash","description":"require-approval `make`: policy `runs` matches","subject":{"type":"tool_call","toolCall":{"toolCallId":"c","title":"Bash","kind":"other","status":"pending","rawInput":{"command":"make"}}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"require-approval `make`: policy `runs` matches"}}}}
    log policy.resolved deny tool="Bash" approval={"refused":"user:ada rejected it"} reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    advice 1: user:ada rejected it
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"state_update","state":"running"},"sessionId":"s"}}
    "#);
}

#[test]
fn the_end_of_a_turn_is_recorded_with_its_reason() {
    for (reason, expected) in [
        ("end_turn", "log operator.completed"),
        ("max_tokens", "log operator.completed"),
        ("cancelled", "log operator.interrupted reason=\"cancelled\""),
        ("refusal", "log operator.interrupted reason=\"refusal\""),
        ("error", "log operator.interrupted reason=\"error\""),
    ] {
        let mut fixture = v2_turn(config());
        send_state(&mut fixture, json!({"state": "idle", "stopReason": reason}));
        assert!(fixture.take_seen().starts_with(expected), "{reason}");
        send_prompt(&mut fixture);
        fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
        assert!(fixture.take_seen().starts_with("log operator.interrupted reason=\"client disconnected\""));
    }
    let mut fixture = v2_turn(config());
    fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
    send_state(&mut fixture, json!({"state": "idle", "stopReason": "cancelled"}));
    fixture.agent_answers(3, &json!({}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    a < {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"s"}}
    log operator.interrupted reason="cancelled"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"state":"idle","stopReason":"cancelled","sessionUpdate":"state_update"},"sessionId":"s"}}
    log session.closed reason="it was closed"
    c < {"jsonrpc":"2.0","id":3,"result":{}}
    "#);
}

#[test]
fn a_rejected_prompt_is_an_error() {
    let mut fixture = v2_turn(GateConfig { autonomy: Autonomy::Gated, ..config() });
    fixture.send_client(
        &json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": {"outcome": {"outcome": "cancelled"}}}),
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved deny tool="turn" approval={"refused":"user:ada rejected it"} reason="require-approval: no policy matches"
    log operator.resumed
    log operator.interrupted reason="user:ada rejected it"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32015,"message":"user:ada rejected it","data":{"condition":"policy_denied","retryable":false,"effects":"none","code":"interrupted"}}}
    "#);
    let mut fixture = v2_turn(config());
    send_state(&mut fixture, json!({"state": "idle", "stopReason": "end_turn"}));
    fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.take_seen();
    fixture.send_agent(&json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": "no"}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log operator.interrupted reason="no"
    c < {"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"no"}}
    "#);
}
