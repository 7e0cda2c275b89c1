//! Tests of MCP servers: the servers of a session, and the messages that pass to servers in the client.

use insta::assert_snapshot;

use super::*;
use crate::gate::ApprovalVote;

/// Returns settings with two servers. One tool of each server may be used. The manifest describes only the
/// first server.
fn listed() -> GateConfig {
    let allow = Some(["query".to_owned()].into());
    let tools = Some(ToolSet {
        servers: [("db".to_owned(), allow.clone()), ("web".to_owned(), allow)].into(),
        ..ToolSet::default()
    });
    let ours = json!({"name": "web", "command": "web", "args": [], "env": []});
    GateConfig {
        tools,
        servers: Some(vec!["db".into(), "web".into()]),
        provided_servers: vec![ours],
        ..config()
    }
}

fn in_client(name: &str, id: &str) -> Value {
    json!({"type": "acp", "name": name, "serverId": id})
}

fn open(fixture: &mut Fixture, id: u64, servers: &[Value]) -> String {
    fixture.client_requests(id, "session/new", &json!({"cwd": "/w/a", "mcpServers": servers}));
    fixture.take_seen()
}

fn with_db() -> Fixture {
    let mut fixture = Fixture::with_config(listed(), &["lead"]);
    open(&mut fixture, 1, &[in_client("db", "db-1")]);
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.take_seen();
    fixture
}

fn call(by: &str, id: &str) -> Value {
    json!({by: id, "requestId": "r", "method": "tools/call", "params": {"name": "query", "arguments": {"q": 1}}})
}

#[test]
fn a_client_names_only_servers_of_the_operator() {
    let check = |server: Value, code: Option<&str>| {
        for method in ["session/new", "session/load", "session/resume", "session/fork"] {
            let capabilities = Capabilities { mcp_http: true, mcp_sse: false, ..config().capabilities };
            let mut fixture = Fixture::with_config(GateConfig { capabilities, ..listed() }, &[]);
            let mut params = json!({"sessionId": "s", "cwd": "/w", "mcpServers": [server]});
            if method == "session/new" {
                params.as_object_mut().unwrap().remove("sessionId");
            }
            fixture.client_requests(1, method, &params);
            let seen = fixture.take_seen();
            match code {
                None => assert!(seen.starts_with("a < "), "{method} {server} {seen}"),
                Some(code) => {
                    assert!(seen.contains(&format!("\"code\":\"{code}\"")), "{method} {server} {seen}");
                    assert!(seen.contains(".refused deny") && !seen.contains("a < "), "{seen}");
                }
            }
        }
    };
    let stdio = |name: &str| json!({"name": name, "command": "sh", "args": [], "env": []});
    let typed = |kind: &str, name: &str| json!({"type": kind, "name": name, "url": "http://x"});
    let started = |name: &str| json!({"type": "stdio", "name": name, "command": "sh"});
    check(in_client("db", "1"), None);
    check(in_client("other", "1"), Some("server_not_listed"));
    check(stdio("web"), None);
    check(started("web"), None);
    check(typed("http", "web"), None);
    check(stdio("db"), Some("server_not_listed"));
    check(started("db"), Some("server_not_listed"));
    check(typed("stdio", "web"), Some("unknown_member"));
    check(typed("http", "db"), Some("server_not_listed"));
    check(typed("http", "other"), Some("server_not_listed"));
    check(typed("sse", "web"), Some("undeclared_capability"));
    check(typed("_new", "other"), Some("unknown_member"));
    check(json!(7), Some("unknown_member"));
    // An agent that does not know the type would start the command or open the URL.
    for (key, value) in [("command", json!("sh")), ("url", json!("http://x")), ("x", json!(1))] {
        let mut server = in_client("db", "1");
        server[key] = value;
        check(server, Some("unknown_member"));
    }
}

#[test]
fn lists_of_servers_and_directories_are_arrays() {
    for params in [
        json!({"cwd": "/w", "mcpServers": {"x": {"command": "sh"}}}),
        json!({"cwd": "/w", "mcpServers": "x"}),
        json!({"cwd": "/w", "mcpServers": [], "additionalDirectories": "/etc"}),
    ] {
        let mut fixture = Fixture::with_config(listed(), &[]);
        fixture.client_requests(1, "session/new", &params);
        let seen = fixture.take_seen();
        assert!(seen.contains("-32602") && !seen.contains("a < "), "{params} {seen}");
    }
}

#[test]
fn descriptions_of_the_manifest_replace_those_of_the_client() {
    let mut fixture = Fixture::with_config(listed(), &[]);
    assert_snapshot!(open(&mut fixture, 1, &[json!({"name": "web", "command": "rm", "args": ["-rf"]}), in_client("db", "1")]), @r#"
    a < {"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w/a","mcpServers":[{"type":"acp","name":"db","serverId":"1"},{"name":"web","command":"web","args":[],"env":[]}]}}
    "#);
}

#[test]
fn all_members_of_a_server_call_are_judged_and_recorded() {
    let with = |more: Value| {
        let mut fixture = with_db();
        let mut params = call("serverId", "db-1");
        params["params"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.agent_requests(5, "mcp/message", &params);
        let question = fixture.output.raw.last().cloned().unwrap_or_default();
        assert!(question.contains("session/request_permission"), "{question}");
        let question: Value = serde_json::from_str(&question).unwrap();
        (question["params"]["toolCall"]["rawInput"].clone(), fixture.gate.pending_approvals()[0].digest)
    };
    let (plain, digest) = with(json!({}));
    assert_eq!(plain, json!({"q": 1}));
    // Members about progress and tracing do not affect the call.
    assert_eq!(with(json!({"_meta": {"progressToken": 1, "traceparent": "x"}})), (plain, digest));
    for more in [
        json!({"task": {"ttl": 1}}),
        json!({"override": {"name": "drop"}}),
        json!({"_meta": {"progressToken": 1, "x": 1}}),
        json!({"_meta": 1}),
    ] {
        let mut expected = more.clone();
        expected["arguments"] = json!({"q": 1});
        let (shown, other) = with(more);
        assert_eq!(shown, expected);
        assert_ne!(other, digest);
    }
}

#[test]
fn a_server_id_is_unique() {
    let mut fixture = with_db();
    for servers in [
        vec![in_client("db", "db-1")],
        vec![in_client("db", "x"), in_client("web", "x")],
        vec![in_client("db", "")],
    ] {
        assert!(open(&mut fixture, 2, &servers).contains("server_id_taken"), "{servers:?}");
    }
    // The session may name its own server id again. Other sessions may use the id after the session is
    // closed.
    fixture.client_requests(
        3,
        "session/load",
        &json!({"sessionId": "s", "cwd": "/w/a", "mcpServers": [in_client("db", "db-1")]}),
    );
    fixture.agent_answers(3, &json!({}));
    fixture.client_requests(4, "session/close", &json!({"sessionId": "s"}));
    fixture.agent_answers(4, &json!({}));
    fixture.take_seen();
    assert!(open(&mut fixture, 5, &[in_client("db", "db-1")]).starts_with("a < "));
}

#[test]
fn other_server_requests_pass_unchanged() {
    let mut fixture = with_db();
    let list = r#"{"jsonrpc":"2.0","id":5,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"tools/list","params":{"a": 1.0}}}"#;
    fixture.gate.handle_agent_message(fixture.now, View::parse(list.as_bytes()), &mut fixture.output);
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"result": {"tools": [{"name": "query"}, {"name": "drop"}]}}}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "mcp/message", "params":
        {"serverId": "db-1", "requestId": "r", "method": "notifications/progress"}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","id":5,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"tools/list","params":{"a":1.0}}}
    a < {"jsonrpc":"2.0","id":5,"result":{"result":{"tools":[{"name":"query"},{"name":"drop"}]}}}
    a < {"jsonrpc":"2.0","method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"notifications/progress"}}
    "#);
}

#[test]
fn a_connection_belongs_to_the_server_it_was_opened_to() {
    let mut fixture = with_db();
    fixture.agent_requests(5, "mcp/connect", &json!({"serverId": "db-1"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"connectionId": "c"}}));
    fixture.agent_requests(6, "mcp/message", &json!({"connectionId": "c", "method": "tools/list"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 6, "result": {"tools": []}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","id":5,"method":"mcp/connect","params":{"serverId":"db-1"}}
    a < {"jsonrpc":"2.0","id":5,"result":{"connectionId":"c"}}
    c < {"jsonrpc":"2.0","id":6,"method":"mcp/message","params":{"connectionId":"c","method":"tools/list"}}
    a < {"jsonrpc":"2.0","id":6,"result":{"tools":[]}}
    "#);
    fixture.agent_requests(7, "mcp/message", &call("connectionId", "c"));
    let id = fixture.gate.pending_approvals()[0].id.clone();
    let signer = Principal { id: "user:lead".into(), roles: vec!["lead".into()], ..Principal::default() };
    let vote = ApprovalVote { id, signer, approves: true, reason: None, signature: None };
    fixture.gate.vote(fixture.now, vote, &mut fixture.output).unwrap();
    fixture.settle_events();
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 7, "result": {"content": []}}));
    fixture.agent_requests(8, "mcp/disconnect", &json!({"connectionId": "c"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 8, "result": {}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved require-approval tool="db/query" approval="pending" reason="require-approval: no policy matches"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"request 7","title":"db/query","kind":"other","status":"pending","rawInput":{"q":1}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"require-approval: no policy matches"}}}}
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved allow tool="db/query" approval="user:lead" reason="require-approval: no policy matches"
    log operator.resumed
    c < {"jsonrpc":"2.0","id":7,"method":"mcp/message","params":{"connectionId":"c","requestId":"r","method":"tools/call","params":{"name":"query","arguments":{"q":1}}}}
    log tool.call allow tool="db/query" approval="user:lead"
    a < {"jsonrpc":"2.0","id":7,"result":{"content":[]}}
    c < {"jsonrpc":"2.0","id":8,"method":"mcp/disconnect","params":{"connectionId":"c"}}
    a < {"jsonrpc":"2.0","id":8,"result":{}}
    "#);
    fixture.agent_requests(9, "mcp/message", &call("connectionId", "c"));
    assert!(fixture.take_seen().contains("unknown_mcp_server"));
}

#[test]
fn a_message_without_a_server_is_refused() {
    let mut fixture = with_db();
    fixture.agent_requests(5, "mcp/connect", &json!({"serverId": "db-1"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"connectionId": "c"}}));
    fixture.take_seen();
    let mut id = 10;
    for (method, params) in [
        ("mcp/connect", json!({"serverId": "other"})),
        ("mcp/connect", json!({})),
        ("mcp/message", json!({"method": "tools/list"})),
        ("mcp/message", call("serverId", "other")),
        ("mcp/message", call("connectionId", "other")),
        ("mcp/message", json!({"serverId": "other", "connectionId": "c", "method": "tools/list"})),
        ("mcp/message", json!({"serverId": 7, "method": "tools/list"})),
        ("mcp/message", json!({"serverId": "db-1", "acpId": "other", "method": "tools/list"})),
        ("mcp/message", json!({"serverId": "other", "acpId": "db-1", "method": "tools/list"})),
        (
            "mcp/message",
            json!({"serverId": "db-1", "acpId": null, "connectionId": "c", "method": "tools/list"}),
        ),
        (
            "mcp/message",
            json!({"serverId": "db-1", "acpId": "db-1", "connectionId": "x", "method": "tools/list"}),
        ),
        ("mcp/connect", json!({"serverId": "db-1", "acpId": "db-2"})),
        ("mcp/disconnect", json!({"connectionId": "other"})),
    ] {
        id += 1;
        fixture.agent_requests(id, method, &params);
        let seen = fixture.take_seen();
        assert!(!seen.contains("c < ") && seen.contains("\"code\":-32602"), "{method} {params} {seen}");
    }
    let agreed = json!({"serverId": "db-1", "acpId": "db-1", "connectionId": "c", "method": "tools/list"});
    fixture.agent_requests(30, "mcp/message", &agreed);
    assert!(fixture.take_seen().starts_with("c < "), "all names of one server");
    // A notification passes only to the server of its session, and a tool call cannot be a notification.
    let told = json!({"serverId": "db-1", "method": "notifications/cancelled"});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "mcp/message", "params": told}));
    assert!(fixture.take_seen().starts_with("c < "));
    for (params, code) in [
        (json!({"serverId": "other", "method": "notifications/x"}), "unknown_mcp_server"),
        (json!({"serverId": "db-1", "method": "x"}), "not_a_notification"),
        (call("serverId", "db-1"), "not_a_notification"),
    ] {
        fixture.gate.recorded_names.clear();
        fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "mcp/message", "params": params}));
        assert_eq!(fixture.take_seen(), format!("log method.refused deny code=\"{code}\""));
    }
}

#[test]
fn the_number_of_pending_server_requests_is_limited() {
    let mut fixture = with_db();
    for id in 0..5_000 {
        fixture.agent_requests(id, "mcp/connect", &json!({"serverId": "db-1"}));
    }
    assert!(fixture.take_seen().contains("too many unanswered requests"));
}

#[test]
fn connections_are_forgotten_with_the_session() {
    let mut fixture = with_db();
    fixture.agent_requests(5, "mcp/connect", &json!({"serverId": "db-1"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"connectionId": "c"}}));
    fixture.client_requests(6, "session/close", &json!({"sessionId": "s"}));
    fixture.agent_answers(6, &json!({}));
    fixture.take_seen();
    for (id, params) in [(7, call("serverId", "db-1")), (8, call("connectionId", "c"))] {
        fixture.agent_requests(id, "mcp/message", &params);
        assert!(fixture.take_seen().contains("unknown_mcp_server"), "{params}");
    }
    assert!(fixture.gate.mcp_connections.is_empty());
}

#[test]
fn servers_can_connect_but_not_run_tools_while_a_session_is_created() {
    let mut fixture = Fixture::with_config(listed(), &["lead"]);
    open(&mut fixture, 1, &[in_client("db", "db-1")]);
    fixture.agent_requests(
        5,
        "mcp/message",
        &json!({"serverId": "db-1", "requestId": "r", "method": "tools/list"}),
    );
    assert!(fixture.take_seen().starts_with("c < "));
    fixture.agent_requests(6, "mcp/message", &call("serverId", "db-1"));
    let seen = fixture.take_seen();
    assert!(seen.starts_with("a < ") && seen.contains("-32600"), "{seen}");
}

#[test]
fn messages_to_undeclared_servers_are_refused() {
    let capabilities = Capabilities { mcp_acp: false, ..config().capabilities };
    let mut fixture = Fixture::with_config(GateConfig { capabilities, ..listed() }, &["lead"]);
    assert!(open(&mut fixture, 1, &[in_client("db", "db-1")]).contains("undeclared_capability"));
    for (id, method) in [(2, "mcp/connect"), (3, "mcp/message"), (4, "mcp/disconnect")] {
        fixture.agent_requests(id, method, &call("serverId", "db-1"));
        let seen = fixture.take_seen();
        assert!(seen.starts_with("a < ") && seen.contains("\"code\":-32601"), "{method} {seen}");
    }
    fixture.send_agent(
        &json!({"jsonrpc": "2.0", "method": "mcp/message", "params": {"serverId": "db-1", "method": "x"}}),
    );
    assert_eq!(fixture.take_seen(), "log method.refused deny code=\"not_a_notification\"");
}

/// Returns a fixture whose operator may read everything of one server, and listed resources of another.
fn with_allowed_reads(allow: Option<&[&str]>) -> Fixture {
    let allow = allow.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let tools = Some(ToolSet { servers: [("db".to_owned(), allow)].into(), ..ToolSet::default() });
    let config = GateConfig { tools, servers: Some(vec!["db".into()]), ..config() };
    let mut fixture = Fixture::with_config(config, &["lead"]);
    open(&mut fixture, 1, &[in_client("db", "db-1")]);
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.take_seen();
    fixture
}

fn inner_request(method: &str, params: &Value) -> Value {
    json!({"serverId": "db-1", "requestId": "r", "method": method, "params": params})
}

#[test]
fn server_reads_are_decided_as_reads() {
    let mut fixture = with_allowed_reads(None);
    fixture.agent_requests(
        5,
        "mcp/message",
        &inner_request("resources/read", &json!({"uri": "db://rows/1"})),
    );
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"contents": []}}));
    fixture.agent_requests(6, "mcp/message", &inner_request("prompts/get", &json!({"name": "greet"})));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 6, "result": {"messages": []}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="db/resources/read" approval="auto" reason="allow: no policy matches"
    c < {"jsonrpc":"2.0","id":5,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"resources/read","params":{"uri":"db://rows/1"}}}
    log tool.call allow tool="db/resources/read" approval="auto"
    a < {"jsonrpc":"2.0","id":5,"result":{"contents":[]}}
    log policy.resolved allow tool="db/prompts/get" approval="auto" reason="allow: no policy matches"
    c < {"jsonrpc":"2.0","id":6,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"prompts/get","params":{"name":"greet"}}}
    log tool.call allow tool="db/prompts/get" approval="auto"
    a < {"jsonrpc":"2.0","id":6,"result":{"messages":[]}}
    "#);
    // An unknown method could have any effect.
    fixture.agent_requests(7, "mcp/message", &inner_request("tasks/result", &json!({"taskId": "t"})));
    let seen = fixture.take_seen();
    assert!(seen.contains("policy.resolved require-approval tool=\"db/tasks/result\""), "{seen}");
}

#[test]
fn denied_reads_are_neither_shown_nor_listed() {
    let mut fixture = with_allowed_reads(Some(&["query", "prompts/get"]));
    for (id, method) in
        [(5, "resources/read"), (6, "resources/subscribe"), (7, "completion/complete"), (8, "x/y")]
    {
        fixture.agent_requests(id, "mcp/message", &inner_request(method, &json!({"uri": "db://rows/1"})));
        let seen = fixture.take_seen();
        assert!(
            seen.contains("deny") && seen.contains("\"code\":-32015") && !seen.contains("c < "),
            "{method} {seen}"
        );
    }
    fixture.agent_requests(10, "mcp/message", &inner_request("resources/list", &json!({})));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 10, "result": {"resources": [{"uri": "db://rows/1"}], "nextCursor": "n"}}));
    fixture.agent_requests(11, "mcp/message", &inner_request("resources/templates/list", &json!({})));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 11, "result": {"result": {"resourceTemplates": [{"uriTemplate": "db://{x}"}]}}}));
    fixture.agent_requests(12, "mcp/message", &inner_request("prompts/list", &json!({})));
    let prompts = r#"{"jsonrpc":"2.0","id":12,"result":{"prompts":[{"name":"greet","n":1.0}]}}"#;
    fixture.gate.handle_client_message(fixture.now, View::parse(prompts.as_bytes()), &mut fixture.output);
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","id":10,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"resources/list","params":{}}}
    a < {"jsonrpc":"2.0","id":10,"result":{"resources":[],"nextCursor":"n"}}
    c < {"jsonrpc":"2.0","id":11,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"resources/templates/list","params":{}}}
    a < {"jsonrpc":"2.0","id":11,"result":{"result":{"resourceTemplates":[]}}}
    c < {"jsonrpc":"2.0","id":12,"method":"mcp/message","params":{"serverId":"db-1","requestId":"r","method":"prompts/list","params":{}}}
    a < {"jsonrpc":"2.0","id":12,"result":{"prompts":[{"name":"greet","n":1.0}]}}
    "#);
    fixture.agent_requests(13, "mcp/message", &inner_request("resources/list", &json!({})));
    let twice = r#"{"jsonrpc":"2.0","id":13,"result":{"resources":[],"resources":[{"uri":"x:y"}]}}"#;
    fixture.gate.handle_client_message(fixture.now, View::parse(twice.as_bytes()), &mut fixture.output);
    let seen = fixture.take_seen();
    assert!(seen.contains("-32602") && !seen.contains("x:y"), "{seen}");
    fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "mcp/message", "params": inner_request("resources/read", &json!({"uri": "x:y"}))}));
    assert_eq!(fixture.take_seen(), "log method.refused deny code=\"not_a_notification\"");
}

#[test]
fn a_denied_file_is_removed_from_every_list() {
    let mut fixture = with_allowed_reads(None);
    fixture.agent_requests(5, "mcp/message", &inner_request("resources/list", &json!({})));
    let entries = json!([{"uri": "file:///w/a/b"}, {"uri": "file:///w/a/secret/key"}, {"uri": "db://rows"}]);
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {"resources": entries}}));
    let seen = fixture.take_seen();
    assert!(seen.contains("db://rows") && seen.contains("/w/a/b") && !seen.contains("secret"), "{seen}");
    fixture.agent_requests(
        6,
        "mcp/message",
        &inner_request("resources/read", &json!({"uri": "file:///w/a/secret/key"})),
    );
    let seen = fixture.take_seen();
    assert!(seen.contains("deny") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_denied_file_is_refused_in_every_spelling() {
    for uri in [
        " file:///w/a/secret/key",
        "\tfile:///w/a/secret/key",
        "\u{1}file:///w/a/secret/key",
        "fi\nle:///w/a/secret/key",
        "file://LOCALHOST/w/a/secret/key",
        "file://127.0.0.1/w/a/secret/key",
        "file:\\/w/a/secret/key",
        "file:///w/a\\secret\\key",
        "file:///w/a/secret/key?x",
        "file:///w/a/%73ecret/key",
        "/w/a/secret/key",
        "secret/key",
        "view-source:file:///w/a/secret/key",
    ] {
        for method in ["resources/read", "resources/subscribe"] {
            let mut fixture = with_allowed_reads(None);
            fixture.agent_requests(6, "mcp/message", &inner_request(method, &json!({"uri": uri})));
            let seen = fixture.take_seen();
            assert!(seen.contains(" deny ") && seen.contains("policy `keys`"), "{uri:?} {seen}");
            assert!(!seen.contains("c < "), "{uri:?} {seen}");
        }
    }
    // The URI may stand for a file. No policy denies this file, so the read needs an approval.
    let mut fixture = with_allowed_reads(None);
    fixture.agent_requests(6, "mcp/message", &inner_request("resources/read", &json!({"uri": "/w/a/b"})));
    assert!(fixture.take_seen().contains("require-approval"));
}
