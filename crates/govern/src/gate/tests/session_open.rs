//! Tests of offered capabilities, and of the directories of sessions.

use insta::assert_snapshot;

use super::*;

#[test]
fn only_declared_capabilities_are_offered() {
    let mut fixture = Fixture::new();
    fixture.client_requests(
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": true, "writeTextFile": true},
            "terminal": true, "x": {}}, "_meta": {"narrows": 1}}),
    );
    fixture.agent_answers(
        0,
        &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true, "promptCapabilities":
            {"image": true}, "mcpCapabilities": {"http": true}}, "z": 1}),
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    log member.refused deny code="unknown_member"
    a < {"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":false},"_meta":{"narrows":1}}}
    log member.refused deny code="unknown_member"
    c < {"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":false},"mcpCapabilities":{"http":false}}}}
    "#);
}

#[test]
fn a_missing_declared_capability_fails_initialize() {
    let mut fixture = Fixture::new();
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1}));
    fixture.agent_answers(0, &json!({"protocolVersion": 1, "agentCapabilities": {}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}
    log session.refused deny code="unmet-capability"
    c < {"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"the agent lacks declared capabilities: loadSession","data":{"condition":"internal_error","retryable":false,"effects":"none","code":"unmet-capability"}}}
    "#);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.client_requests(3, "session/load", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    let seen = fixture.take_seen();
    assert!(!seen.contains("a <") && seen.matches("unmet-capability").count() == 3, "{seen}");
    for method in ["_x/y", "mcp/message"] {
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": {}}));
        let seen = fixture.take_seen();
        assert!(!seen.contains("a <") && seen.starts_with("log method.refused deny"), "{seen}");
    }
    fixture.client_requests(4, "initialize", &json!({"protocolVersion": 1}));
    fixture.agent_answers(4, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    fixture.client_requests(5, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    assert!(fixture.take_seen().contains("a < {\"jsonrpc\":\"2.0\",\"id\":5"));
}

#[test]
fn sessions_must_be_in_the_roots_and_their_start_is_recorded() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/etc", "mcpServers": []}));
    fixture.client_requests(2, "session/new", &json!({"cwd": "/w/../etc", "mcpServers": []}));
    fixture.client_requests(
        3,
        "session/load",
        &json!({"sessionId": "s", "cwd": "/w", "additionalDirectories": ["/x"]}),
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    log session.refused deny code="cwd_outside_root"
    c < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the path is outside the operator's directories: \"/etc\" is not in \"/w\"","data":{"condition":"invalid_params","retryable":false,"effects":"none","code":"cwd_outside_root"}}}
    log session.refused deny code="cwd_outside_root"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"the path contains `..` or a NUL: \"/w/../etc\" is not in \"/w\"","data":{"condition":"invalid_params","retryable":false,"effects":"none","code":"cwd_outside_root"}}}
    log session.refused deny code="cwd_outside_root"
    c < {"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"the path is outside the operator's directories: \"/x\" is not in \"/w\"","data":{"condition":"invalid_params","retryable":false,"effects":"none","code":"cwd_outside_root"}}}
    "#);
    // A remote client must not learn paths of this machine.
    for (method, id) in [
        (IdentityMethod::Token, "token:laptop"),
        (IdentityMethod::Certificate, "cert:laptop"),
        (IdentityMethod::Bus, "bus:token:laptop"),
        (IdentityMethod::Unauthenticated, "tcp:loopback"),
    ] {
        let mut fixture = Fixture::new();
        fixture.gate.principal = Principal { id: id.into(), method, ..Principal::default() };
        fixture.client_requests(1, "session/new", &json!({"cwd": "/etc", "mcpServers": []}));
        let seen = fixture.take_seen();
        assert!(seen.contains("\"the path is outside the operator's directories\""), "{seen}");
    }
    fixture.client_requests(4, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    fixture.agent_answers(4, &json!({"sessionId": "s"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","id":4,"method":"session/new","params":{"cwd":"/w/a","mcpServers":[]}}
    log operator.invoked
    c < {"jsonrpc":"2.0","id":4,"result":{"sessionId":"s"}}
    "#);
}

#[test]
fn only_servers_of_the_operator_are_accepted() {
    let mut fixture = Fixture::with_config(GateConfig { servers: Some(vec!["db".into()]), ..config() }, &[]);
    let own = json!({"type": "acp", "name": "db", "serverId": "1"});
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": [own.clone()]}));
    // The name of a server in the manifest does not allow to start another command.
    fixture.client_requests(
        3,
        "session/new",
        &json!({"cwd": "/w", "mcpServers": [{"name": "db", "command": "rm"}]}),
    );
    let evil = json!({"type": "acp", "name": "e\u{1b}vil", "serverId": "2"});
    fixture.client_requests(2, "session/new", &json!({"cwd": "/w", "mcpServers": [own, evil]}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[{"type":"acp","name":"db","serverId":"1"}]}}
    log session.refused deny code="server_not_listed"
    c < {"jsonrpc":"2.0","id":3,"error":{"code":-32015,"message":"the operator has no MCP server `db`","data":{"condition":"policy_denied","retryable":false,"effects":"none","code":"server_not_listed"}}}
    log session.refused deny code="server_not_listed"
    c < {"jsonrpc":"2.0","id":2,"error":{"code":-32015,"message":"the operator has no MCP server `e\\u{1b}vil`","data":{"condition":"policy_denied","retryable":false,"effects":"none","code":"server_not_listed"}}}
    "#);
}

#[test]
fn a_session_whose_start_is_not_recorded_is_not_returned() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.take_seen();
    fixture.settles_at_once = false;
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.gate.handle_audit_result(fixture.now, AuditSeq(2), false, &mut fixture.output);
    assert_snapshot!(fixture.take_seen(), @r#"
    log operator.invoked
    c < {"jsonrpc":"2.0","id":1,"error":{"code":-32017,"message":"done, but the audit log could not be written","data":{"condition":"audit_unavailable","retryable":false,"effects":"possible"}}}
    "#);
}

#[test]
fn every_session_is_closed_in_the_log() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_calls("1", "Read", "in_progress", &json!({"path": "/w/a/b"}));
    fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
    fixture.agent_answers(3, &json!({}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="Read" approval="auto" reason="allow `/w/a/b`: no policy matches"
    log operator.running
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"1","name":"Read","kind":"read","status":"in_progress","title":"harmless","rawInput":{"path":"/w/a/b"}},"sessionId":"s"}}
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    a < {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"s"}}
    log operator.interrupted reason="it was closed"
    log tool.call allow tool="Read" approval="auto"
    log session.closed reason="it was closed"
    c < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    c < {"jsonrpc":"2.0","id":3,"result":{}}
    "#);
    let mut fixture = Fixture::with_turn();
    fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
    assert_snapshot!(fixture.take_seen(), @r#"
    log operator.interrupted reason="client disconnected"
    log session.closed reason="client disconnected"
    "#);
}

#[test]
fn servers_of_the_manifest_replace_those_of_the_same_name() {
    let ours = json!({"name": "db", "command": "db", "args": [], "env": []});
    let servers = Some(vec!["db".into(), "web".into()]);
    let mut fixture =
        Fixture::with_config(GateConfig { servers, provided_servers: vec![ours], ..config() }, &[]);
    let theirs = json!([{"name": "db", "command": "rm"}, {"type": "acp", "name": "web", "serverId": "1"}]);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": theirs}));
    assert_snapshot!(fixture.take_seen(), @r#"
    a < {"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[{"type":"acp","name":"web","serverId":"1"},{"name":"db","command":"db","args":[],"env":[]}]}}
    "#);
}

#[test]
fn undeclared_agent_capabilities_are_not_used() {
    let mut undeclared = config();
    undeclared.capabilities.load_session = false;
    let mut fixture = Fixture::with_config(undeclared, &[]);
    fixture.client_requests(1, "session/load", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    let seen = fixture.take_seen();
    assert!(seen.contains("-32601") && !seen.contains("a < "), "{seen}");
}

#[test]
fn a_connection_is_initialized_once() {
    let mut fixture = Fixture::new();
    let offers =
        |write: bool| json!({"protocolVersion": 1, "clientCapabilities": {"fs": {"writeTextFile": write}}});
    fixture.client_requests(1, "initialize", &offers(false));
    fixture.take_seen();
    let is_refused = |fixture: &mut Fixture, id: u64| {
        fixture.client_requests(id, "initialize", &offers(true));
        let seen = fixture.take_seen();
        assert!(seen.contains("-32600") && !seen.contains("a < "), "{seen}");
    };
    is_refused(&mut fixture, 2);
    fixture.agent_answers(1, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    is_refused(&mut fixture, 3);
    fixture.open_turn();
    is_refused(&mut fixture, 4);
    fixture.agent_requests(
        5,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/w/a/b", "content": "x"}),
    );
    assert!(fixture.take_seen().contains("-32601"), "the client has not offered it");
}
