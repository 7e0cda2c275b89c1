//! Tests of client requests that an approved call of the built-in agent covers.

use insta::assert_snapshot;

use super::*;

/// The built-in agent checks a call, an approver approves it, and the agent announces it.
fn approve_check(fixture: &mut Fixture, tool: &str, input: &Value) {
    let request = ToolCheck {
        session: "s".into(),
        call: "c".into(),
        server: None,
        tool: tool.into(),
        name: tool.into(),
        arguments: input.clone(),
    };
    fixture.gate.check_tool(fixture.now, 1, request, &mut fixture.output);
    fixture.settle_events();
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    assert!(fixture.take_seen().ends_with("advice 1: go on"));
}

fn announce_call(fixture: &mut Fixture, tool: &str, input: &Value) {
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "c", "name": tool, "kind": "edit",
        "status": "in_progress", "title": "x", "rawInput": input}),
    );
    fixture.take_seen();
}

fn request_write(fixture: &mut Fixture, id: u64, path: &str, content: &str) -> String {
    let params = json!({"sessionId": "s", "path": path, "content": content});
    fixture.agent_requests(id, "fs/write_text_file", &params);
    fixture.take_seen()
}

#[test]
fn an_approved_file_is_written_without_a_second_approval() {
    let mut fixture = Fixture::with_turn();
    let input = json!({"path": "b.txt", "content": "hi"});
    approve_check(&mut fixture, "write_file", &input);
    announce_call(&mut fixture, "write_file", &input);
    assert_snapshot!(request_write(&mut fixture, 9, "/w/a/b.txt", "hi"), @r#"
    log policy.resolved require-approval tool="fs/write_text_file" approval="pending" reason="require-approval `/w/a/b.txt`: no policy matches"
    log policy.resolved allow tool="fs/write_text_file" approval="user:ada" reason="require-approval `/w/a/b.txt`: no policy matches"
    c < {"jsonrpc":"2.0","id":9,"method":"fs/write_text_file","params":{"sessionId":"s","path":"/w/a/b.txt","content":"hi"}}
    "#);
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 9, "result": {}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log tool.call allow tool="fs/write_text_file" approval="user:ada"
    a < {"jsonrpc":"2.0","id":9,"result":{}}
    "#);
    assert!(request_write(&mut fixture, 10, "/w/a/b.txt", "hi").contains("session/request_permission"));
}

#[test]
fn an_approval_covers_only_the_approved_path_and_content() {
    for (path, content) in [("/w/a/b.txt", "ho"), ("/w/a/c.txt", "hi"), ("/w/a/b.txt ", "hi")] {
        let mut fixture = Fixture::with_turn();
        let input = json!({"path": "b.txt", "content": "hi"});
        approve_check(&mut fixture, "write_file", &input);
        announce_call(&mut fixture, "write_file", &input);
        let seen = request_write(&mut fixture, 9, path, content);
        assert!(
            seen.contains("session/request_permission") && !seen.contains("fs/write_text_file\",\"params"),
            "{seen}"
        );
    }
}

#[test]
fn an_approval_ends_with_its_call() {
    let mut fixture = Fixture::with_turn();
    let input = json!({"path": "/w/a/b.txt", "content": "hi"});
    approve_check(&mut fixture, "write_file", &input);
    // The approval covers nothing before the call is announced, or after the call has ended.
    assert!(request_write(&mut fixture, 8, "/w/a/b.txt", "hi").contains("session/request_permission"));
    announce_call(&mut fixture, "write_file", &input);
    fixture
        .agent_updates(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed"}));
    fixture.take_seen();
    assert!(request_write(&mut fixture, 9, "/w/a/b.txt", "hi").contains("session/request_permission"));
}

#[test]
fn a_foreign_agent_needs_a_second_approval() {
    let mut fixture = Fixture::with_turn();
    let input = json!({"path": "/w/a/b.txt", "content": "hi"});
    fixture.agent_requests(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "c", "name": "write_file", "kind": "edit", "rawInput": input},
            "options": [{"optionId": "y", "kind": "allow_once"}]}),
    );
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    fixture.take_seen();
    assert!(request_write(&mut fixture, 9, "/w/a/b.txt", "hi").contains("session/request_permission"));
}

#[test]
fn an_edit_is_applied_to_the_file_as_it_was_read() {
    for (content, asked) in [("one 2 three", false), ("one 2 three!", true)] {
        let mut fixture = Fixture::with_turn();
        let input = json!({"path": "b.txt", "old": "two", "new": "2"});
        approve_check(&mut fixture, "edit_file", &input);
        fixture.agent_requests(8, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b.txt"}));
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": 8, "result": {"content": "one two three"}}));
        announce_call(&mut fixture, "edit_file", &input);
        let seen = request_write(&mut fixture, 9, "/w/a/b.txt", content);
        assert_eq!(seen.contains("session/request_permission"), asked, "{seen}");
    }
}

#[test]
fn a_server_tool_needs_one_approval() {
    for (arguments, asked) in [(json!({"q": 1}), false), (json!({"q": 2}), true)] {
        let mut fixture = Fixture::new();
        let server = json!({"type": "acp", "name": "db", "serverId": "1"});
        fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": [server]}));
        fixture.agent_answers(1, &json!({"sessionId": "s"}));
        let request = ToolCheck {
            session: "s".into(),
            call: "c".into(),
            server: Some("db".into()),
            tool: "query".into(),
            name: "db__query".into(),
            arguments: json!({"q": 1}),
        };
        fixture.gate.check_tool(fixture.now, 1, request, &mut fixture.output);
        fixture.settle_events();
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
            {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
        announce_call(&mut fixture, "db__query", &json!({"q": 1}));
        let call = json!({"serverId": "1", "requestId": "r", "method": "tools/call",
            "params": {"name": "query", "arguments": arguments}});
        fixture.agent_requests(9, "mcp/message", &call);
        let seen = fixture.take_seen();
        assert_eq!(seen.contains("session/request_permission"), asked, "{seen}");
    }
}

#[test]
fn a_command_matches_by_words_and_directory() {
    let check = |said: Value, command: &str, args: &[&str], cwd: Option<&str>, asked: bool| {
        let capabilities = Capabilities { terminal: true, ..config().capabilities };
        let mut fixture = Fixture::with_config(GateConfig { capabilities, ..config() }, &["lead"]);
        fixture.open_turn();
        approve_check(&mut fixture, "run_command", &said);
        announce_call(&mut fixture, "run_command", &said);
        let mut params = json!({"sessionId": "s", "command": command, "args": args});
        if let Some(cwd) = cwd {
            params["cwd"] = cwd.into();
        }
        fixture.agent_requests(9, "terminal/create", &params);
        let seen = fixture.take_seen();
        assert_eq!(seen.contains("session/request_permission"), asked, "{said} {params} {seen}");
    };
    let plain = || json!({"command": "make", "args": ["all"]});
    check(plain(), "make", &["all"], Some("/w/a"), false);
    check(plain(), "make", &["all"], None, false);
    check(json!({"command": "make  all"}), "make", &["all"], Some("/w/a"), false);
    check(plain(), "make", &["install"], Some("/w/a"), true);
    check(plain(), "make", &[], Some("/w/a"), true);
    check(plain(), "make", &["all"], Some("/w/a/b"), true);
    check(json!({"command": "make 'a b'"}), "make", &["a b"], None, true);
}
