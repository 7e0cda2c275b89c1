//! What an approved call of our own agent leads to.

use insta::assert_snapshot;

use super::*;

/// Our own agent asks about a call, somebody approves, and it tells of the call.
fn approved(scene: &mut Scene, tool: &str, input: &Value) {
    let request = ToolCheck {
        session: "s".into(),
        call: "c".into(),
        server: None,
        tool: tool.into(),
        name: tool.into(),
        arguments: input.clone(),
    };
    scene.gate.check_tool(scene.now, 1, request, &mut scene.sight);
    scene.commit();
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    assert!(scene.seen().ends_with("advice 1: go on"));
}

fn tell(scene: &mut Scene, tool: &str, input: &Value) {
    scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": "c", "name": tool, "kind": "edit",
        "status": "in_progress", "title": "x", "rawInput": input}));
    scene.seen();
}

fn write(scene: &mut Scene, id: u64, path: &str, content: &str) -> String {
    let params = json!({"sessionId": "s", "path": path, "content": content});
    scene.wants(id, "fs/write_text_file", &params);
    scene.seen()
}

#[test]
fn a_file_that_was_approved_is_written_without_another_question() {
    let mut scene = Scene::at_work();
    let input = json!({"path": "b.txt", "content": "hi"});
    approved(&mut scene, "write_file", &input);
    tell(&mut scene, "write_file", &input);
    assert_snapshot!(write(&mut scene, 9, "/w/a/b.txt", "hi"), @r#"
    log policy.resolved require-approval tool="fs/write_text_file" approval="pending" reason="require-approval `/w/a/b.txt`: no policy matches"
    log policy.resolved allow tool="fs/write_text_file" approval="user:ada" reason="require-approval `/w/a/b.txt`: no policy matches"
    c < {"jsonrpc":"2.0","id":9,"method":"fs/write_text_file","params":{"sessionId":"s","path":"/w/a/b.txt","content":"hi"}}
    "#);
    scene.client(&json!({"jsonrpc": "2.0", "id": 9, "result": {}}));
    assert_snapshot!(scene.seen(), @r#"
    log tool.call allow tool="fs/write_text_file" approval="user:ada"
    a < {"jsonrpc":"2.0","id":9,"result":{}}
    "#);
    // Once.
    assert!(write(&mut scene, 10, "/w/a/b.txt", "hi").contains("session/request_permission"));
}

#[test]
fn an_approval_is_for_that_path_and_that_content() {
    for (path, content) in [("/w/a/b.txt", "ho"), ("/w/a/c.txt", "hi"), ("/w/a/b.txt ", "hi")] {
        let mut scene = Scene::at_work();
        let input = json!({"path": "b.txt", "content": "hi"});
        approved(&mut scene, "write_file", &input);
        tell(&mut scene, "write_file", &input);
        let seen = write(&mut scene, 9, path, content);
        assert!(
            seen.contains("session/request_permission") && !seen.contains("fs/write_text_file\",\"params"),
            "{seen}"
        );
    }
}

#[test]
fn an_approval_ends_with_its_call() {
    let mut scene = Scene::at_work();
    let input = json!({"path": "/w/a/b.txt", "content": "hi"});
    approved(&mut scene, "write_file", &input);
    // Not before the call is told of, and not when it is over.
    assert!(write(&mut scene, 8, "/w/a/b.txt", "hi").contains("session/request_permission"));
    tell(&mut scene, "write_file", &input);
    scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed"}));
    scene.seen();
    assert!(write(&mut scene, 9, "/w/a/b.txt", "hi").contains("session/request_permission"));
}

#[test]
fn another_agent_that_tells_the_same_is_asked() {
    let mut scene = Scene::at_work();
    let input = json!({"path": "/w/a/b.txt", "content": "hi"});
    scene.wants(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "c", "name": "write_file", "kind": "edit", "rawInput": input},
            "options": [{"optionId": "y", "kind": "allow_once"}]}),
    );
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    scene.seen();
    assert!(write(&mut scene, 9, "/w/a/b.txt", "hi").contains("session/request_permission"));
}

#[test]
fn a_changed_stretch_is_that_of_the_file_as_it_was_read() {
    for (content, asked) in [("one 2 three", false), ("one 2 three!", true)] {
        let mut scene = Scene::at_work();
        let input = json!({"path": "b.txt", "old": "two", "new": "2"});
        approved(&mut scene, "edit_file", &input);
        scene.wants(8, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b.txt"}));
        scene.client(&json!({"jsonrpc": "2.0", "id": 8, "result": {"content": "one two three"}}));
        tell(&mut scene, "edit_file", &input);
        let seen = write(&mut scene, 9, "/w/a/b.txt", content);
        assert_eq!(seen.contains("session/request_permission"), asked, "{seen}");
    }
}

#[test]
fn a_tool_of_a_server_in_the_client_is_asked_for_once() {
    for (arguments, asked) in [(json!({"q": 1}), false), (json!({"q": 2}), true)] {
        let mut scene = Scene::new();
        let server = json!({"type": "acp", "name": "db", "serverId": "1"});
        scene.ask(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": [server]}));
        scene.answer(1, &json!({"sessionId": "s"}));
        let request = ToolCheck {
            session: "s".into(),
            call: "c".into(),
            server: Some("db".into()),
            tool: "query".into(),
            name: "db__query".into(),
            arguments: json!({"q": 1}),
        };
        scene.gate.check_tool(scene.now, 1, request, &mut scene.sight);
        scene.commit();
        scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
            {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
        tell(&mut scene, "db__query", &json!({"q": 1}));
        let call = json!({"serverId": "1", "requestId": "r", "method": "tools/call",
            "params": {"name": "query", "arguments": arguments}});
        scene.wants(9, "mcp/message", &call);
        let seen = scene.seen();
        assert_eq!(seen.contains("session/request_permission"), asked, "{seen}");
    }
}

#[test]
fn a_command_is_its_words_and_its_place() {
    let check = |said: Value, command: &str, args: &[&str], cwd: Option<&str>, asked: bool| {
        let capabilities = Capabilities { terminal: true, ..config().capabilities };
        let mut scene = Scene::with(GateConfig { capabilities, ..config() }, &["lead"]);
        scene.opened();
        approved(&mut scene, "run_command", &said);
        tell(&mut scene, "run_command", &said);
        let mut params = json!({"sessionId": "s", "command": command, "args": args});
        if let Some(cwd) = cwd {
            params["cwd"] = cwd.into();
        }
        scene.wants(9, "terminal/create", &params);
        let seen = scene.seen();
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
