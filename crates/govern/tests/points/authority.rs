//! Points 23 to 28: permissions by identity, directory and server.

use narrows_govern::{GateConfig, Principal, VoteError};
use narrows_manifest::ToolSet;
use serde_json::{Value, json};

use crate::fixture::{Fixture, config, policy};

#[test]
fn point_23_an_unauthorised_tool_is_neither_announced_nor_run() {
    let tools = Some(ToolSet { names: ["Read".to_owned(), "Rm".to_owned()].into(), ..ToolSet::default() });
    let check = |name: &str, kind: &str, authorised: bool| {
        let mut fixture =
            Fixture::with_config(GateConfig { tools: tools.clone(), ..config() }, &["lead"]).with_turn();
        fixture.agent_calls("1", name, kind, "pending");
        assert_eq!(fixture.shows_call("1"), authorised, "{name}");
        fixture.agent_asks_permission(5, "1", name, kind);
        let chosen = fixture.answer_to_agent(5)["result"]["outcome"]["optionId"].clone();
        assert_eq!(chosen, if authorised { json!("y") } else { json!("n") }, "{name}");
        let asked = fixture.output.client.iter().any(|line| line["method"] == "session/request_permission");
        assert!(!asked, "{name}: no approver can allow it");
        let decided = if authorised { "policy.resolved allow" } else { "policy.resolved deny" };
        assert_eq!(fixture.recorded_actions()[0], decided, "{name}");
    };
    check("Read", "read", true);
    check("Rm", "delete", false);
    check("Write", "edit", false);
    // The answer to a refused client request has the reason.
    let mut fixture = Fixture::with_config(GateConfig { tools, ..config() }, &["lead"]).with_turn();
    fixture.agent_requests(6, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/x"}));
    assert_eq!(fixture.answer_to_agent(6)["error"]["data"]["code"], "policy-denied");
}

#[test]
fn point_24_asking_is_not_an_approval() {
    for (wanted, asks) in [("Read", false), ("Bash", true), ("Write", true)] {
        let mut fixture = Fixture::new().with_turn();
        let kind = if wanted == "Read" { "read" } else { "edit" };
        fixture.agent_asks_permission(5, "1", wanted, kind);
        let asked = fixture.output.client.iter().any(|line| line["method"] == "session/request_permission");
        assert_eq!((asked, fixture.answer_to_agent(5).is_null()), (asks, asks), "{wanted}");
    }
    // Files of the client are judged by the same rules. Without a governance, changes are denied.
    let low = narrows_policy::Policy::new(narrows_policy::Access::Low, narrows_policy::Narrowing::default());
    let who = Principal { id: "user:ada".into(), ..Principal::default() };
    let mut declared = config();
    declared.capabilities.write_text_file = true;
    let mut fixture = Fixture::with_policy(declared, who, low).with_turn();
    fixture.agent_requests(
        5,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/w/a/x", "content": "y"}),
    );
    assert_eq!(fixture.answer_to_agent(5)["error"]["code"], -32015);
    fixture.agent_requests(6, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/x"}));
    assert_eq!(fixture.output.client.last().unwrap()["method"], "fs/read_text_file");
}

#[test]
fn point_25_a_tool_is_never_known_by_its_title() {
    let told = |more: Value| {
        let mut fixture = Fixture::new().with_turn();
        let mut update = json!({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Read", "status": "in_progress",
            "rawInput": {"path": "/w/a/x"}});
        update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.agent_updates(&update);
        let stopped = fixture.output.agent.iter().any(|line| line["method"] == "session/cancel");
        fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
        (fixture.shows_call("1"), stopped, fixture.answer_to_client(2)["result"]["stopReason"].clone())
    };
    let runs = (true, false, json!("end_turn"));
    let stopped = (false, true, json!("refusal"));
    assert_eq!(told(json!({"name": "Read", "kind": "read"})), runs);
    assert_eq!(told(json!({"title": "Rm", "kind": "read"})), runs, "a title forbids nothing either");
    assert_eq!(told(json!({"name": "Rm", "kind": "read"})), stopped);
    assert_eq!(told(json!({"_meta": {"claudeCode": {"toolName": "Rm"}}, "kind": "read"})), stopped);
    assert_eq!(told(json!({})), stopped, "without a name or kind it may be anything");
}

#[test]
fn point_26_the_identity_is_in_every_line_and_bounds_what_is_done() {
    let scopes = Some(vec!["Read".to_owned()]);
    let who = Principal { id: "user:eve".into(), scopes, ..Principal::default() };
    let mut fixture = Fixture::with_policy(config(), who, policy()).with_turn();
    fixture.agent_calls("1", "Read", "read", "in_progress");
    fixture.agent_calls("2", "Grep", "search", "pending");
    assert_eq!((fixture.shows_call("1"), fixture.shows_call("2")), (true, false));
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    assert!(fixture.verified_log().iter().all(|entry| entry["metadata"]["aip44"]["identity"] == "user:eve"));
    // An identity that is not a signer is not asked, and an answer of it does not count.
    let mut fixture = Fixture::with_config(config(), &["intern"]).with_turn();
    fixture.agent_asks_permission(5, "1", "Bash", "execute");
    fixture.client_answers(1, "allow_once");
    assert!(fixture.answer_to_agent(5).is_null());
    assert_eq!(fixture.vote("n-1", "user:bob", "intern"), Err(VoteError::NotASigner));
    assert_eq!(fixture.vote("n-1", "user:bob", "lead"), Ok(()));
    assert_eq!(fixture.answer_to_agent(5)["result"]["outcome"]["optionId"], "y");
}

#[test]
fn point_27_nothing_happens_outside_the_roots() {
    let mut fixture = Fixture::new();
    let mut check = |id: u64, method: &str, mut params: Value, admitted: bool| {
        if method == "session/new" {
            params.as_object_mut().unwrap().remove("sessionId");
        }
        fixture.client_requests(id, method, &params);
        let passed = fixture.output.agent.iter().any(|line| line["id"] == id);
        assert_eq!(passed, admitted, "{method} {params}");
        if !admitted {
            let error = fixture.answer_to_client(id)["error"].clone();
            assert_eq!(
                (&error["code"], &error["data"]["code"]),
                (&json!(-32602), &json!("cwd_outside_root"))
            );
        }
    };
    let at = |cwd: &str| json!({"sessionId": "s", "cwd": cwd, "mcpServers": []});
    let with = |more: &str| json!({"sessionId": "s", "cwd": "/w", "mcpServers": [], "additionalDirectories": [more]});
    check(1, "session/new", at("/w"), true);
    check(2, "session/new", at("/w/deep/er"), true);
    check(3, "session/new", at("/"), false);
    check(4, "session/new", at("/wide"), false);
    check(5, "session/new", at("/W"), false);
    check(6, "session/new", at("w"), false);
    check(7, "session/new", at(""), false);
    check(8, "session/new", at("/w/../etc"), false);
    check(9, "session/new", at("/w/\u{0}"), false);
    check(10, "session/new", with("/w/b"), true);
    check(11, "session/new", with("/etc"), false);
    check(12, "session/load", at("/etc"), false);
    check(13, "session/resume", at("/etc"), false);
    check(14, "session/fork", at("/etc"), false);
    let refused = fixture.recorded_actions().iter().filter(|told| *told == "session.refused deny").count();
    assert_eq!(refused, 11);
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_requests(5, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/other"}));
    assert_eq!(
        fixture.answer_to_agent(5)["error"]["data"]["code"],
        "path_outside_root",
        "the session is in /w/a"
    );
}

#[test]
fn point_28_calls_over_acp_pass_the_same_gate() {
    let allow = Some(["query".to_owned()].into());
    let tools = Some(ToolSet { servers: [("db".to_owned(), allow)].into(), ..ToolSet::default() });
    let mut declared = GateConfig { tools, servers: Some(vec!["db".into()]), ..config() };
    declared.capabilities.mcp_acp = true;
    let mut fixture = Fixture::with_config(declared, &["lead"]);
    let server = |name: &str| json!({"type": "acp", "name": name, "serverId": "db-1"});
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": [server("mine")]}));
    assert_eq!(fixture.answer_to_client(1)["error"]["data"]["code"], "server_not_listed");
    fixture.client_requests(2, "session/new", &json!({"cwd": "/w", "mcpServers": [server("db")]}));
    fixture.agent_answers(2, &json!({"sessionId": "s"}));
    let call = |server: &str, tool: &str| json!({"serverId": server, "method": "tools/call", "params": {"name": tool, "arguments": {"q": 1}}});
    fixture.agent_requests(5, "mcp/message", &call("db-1", "drop"));
    assert_eq!(fixture.answer_to_agent(5)["error"]["code"], -32015);
    fixture.agent_requests(6, "mcp/message", &call("unknown", "query"));
    assert!(fixture.answer_to_agent(6)["error"].is_object(), "the server is unknown");
    fixture.agent_requests(7, "mcp/message", &call("db-1", "query"));
    fixture.client_answers(1, "allow_once");
    let passed = fixture.output.client.iter().filter(|line| line["method"] == "mcp/message").count();
    assert_eq!(passed, 1, "only a tool of the operator passes, and only after an approval");
}
