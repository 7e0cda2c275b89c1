//! Points 9, 11, 14 to 17 and 29: roles, capabilities, states and deadlines.

use narrows_govern::{Autonomy, GateConfig};
use narrows_manifest::{Capabilities, ToolSet};
use serde_json::{Value, json};

use crate::fixture::{Fixture, config};

#[test]
fn point_09_prompts_go_to_the_agent_and_updates_to_the_client() {
    let mut fixture = Fixture::new().with_turn();
    fixture.client_prompts(3);
    assert_eq!(
        (&fixture.output.agent[0]["method"], fixture.output.client.len()),
        (&json!("session/prompt"), 0)
    );
    fixture.agent_updates(&json!({"sessionUpdate": "plan", "entries": []}));
    assert_eq!(fixture.output.client[0]["method"], "session/update");
    assert_eq!(fixture.output.agent.len(), 1, "each peer receives only the messages of the other one");
}

#[test]
fn point_11_undeclared_capabilities_are_not_used() {
    let offers = |read: bool| json!({"fs": {"readTextFile": read, "writeTextFile": true}, "terminal": true});
    let check = |declared: bool, advertised: bool, method: &str, reaches: bool| {
        let capabilities = Capabilities { read_text_file: declared, ..config().capabilities };
        let mut fixture = Fixture::with_config(GateConfig { capabilities, ..config() }, &[]);
        let params = json!({"protocolVersion": 1, "clientCapabilities": offers(advertised)});
        fixture.client_requests(0, "initialize", &params);
        fixture.agent_answers(0, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
        let mut fixture = fixture.with_turn();
        let (key, value) = if method.starts_with("fs/") { ("path", "/w/a/x") } else { ("command", "ls") };
        fixture.agent_requests(5, method, &json!({"sessionId": "s", key: value}));
        let reached = fixture.output.client.iter().any(|line| line["method"] == method);
        assert_eq!(reached, reaches, "{declared} {advertised} {method}");
        if !reaches {
            assert_eq!(fixture.answer_to_agent(5)["error"]["code"], -32601);
        }
    };
    check(true, true, "fs/read_text_file", true);
    check(true, false, "fs/read_text_file", false);
    check(false, true, "fs/read_text_file", false);
    check(true, true, "fs/write_text_file", false);
    check(true, true, "terminal/create", false);
    check(true, true, "terminal/output", false);
}

#[test]
fn point_14_the_mark_is_added_beside_other_members() {
    let mut fixture = Fixture::new();
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1, "_meta": {"traceparent": 1}}));
    assert_eq!(fixture.output.agent[0]["params"]["_meta"]["traceparent"], 1);
    assert_eq!(fixture.output.agent[0]["params"]["_meta"]["aip44"]["tier"], "governance-aware");
    fixture.agent_answers(
        0,
        &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}, "_meta": {"a": [2]}}),
    );
    let meta = fixture.answer_to_client(0)["result"]["_meta"].clone();
    assert_eq!((&meta["a"], &meta["aip44"]["acp_rev"]), (&json!([2]), &json!("abc1234")));
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    assert_eq!(fixture.answer_to_client(1)["result"]["_meta"]["aip44"]["operator"], "notes");
    fixture.agent_updates(&json!({"sessionUpdate": "plan", "entries": [], "_meta": {"aip44": "theirs"}}));
    let update = &fixture.output.client.last().unwrap()["params"];
    assert_eq!(
        (&update["update"]["_meta"]["aip44"], &update["_meta"]["aip44"]["operator"]),
        (&json!("theirs"), &json!("notes"))
    );
}

#[test]
fn point_15_tools_and_autonomy_of_the_operator_apply() {
    let tools =
        Some(ToolSet { names: ["Read".to_owned(), "kind:edit".to_owned()].into(), ..ToolSet::default() });
    let mut fixture = Fixture::with_config(GateConfig { tools, ..config() }, &["lead"]).with_turn();
    fixture.agent_calls("1", "Read", "read", "in_progress");
    fixture.agent_calls("2", "Search", "search", "pending");
    fixture.agent_calls("3", "Write", "edit", "pending");
    assert_eq!(
        [fixture.shows_call("1"), fixture.shows_call("2"), fixture.shows_call("3")],
        [true, false, true]
    );
    // A supervised operator asks before every change, and a gated one before every turn.
    let supervised = GateConfig { autonomy: Autonomy::Supervised, ..config() };
    let policy =
        narrows_policy::Policy::new(narrows_policy::Access::High, narrows_policy::Narrowing::default());
    let who = narrows_govern::Principal { id: "user:ada".into(), ..Default::default() };
    let mut fixture = Fixture::with_policy(supervised, who, policy).with_turn();
    fixture.agent_calls("1", "Read", "read", "in_progress");
    assert_eq!(fixture.recorded_actions()[0], "policy.resolved allow");
    fixture.agent_calls("2", "Write", "edit", "pending");
    assert_eq!(
        fixture.recorded_actions().last().map(String::as_str),
        Some("policy.resolved require-approval")
    );
    let mut fixture = Fixture::with_config(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.client_prompts(2);
    let is_prompt = |line: &Value| line["method"] == "session/prompt";
    assert!(!fixture.output.agent.iter().any(is_prompt));
    fixture.client_answers(1, "allow_once");
    assert!(fixture.output.agent.iter().any(is_prompt));
}

/// Returns the recorded transitions of the operator.
fn states(fixture: &Fixture) -> Vec<String> {
    let states = fixture
        .recorded_actions()
        .into_iter()
        .filter_map(|told| told.strip_prefix("operator.").map(str::to_owned));
    states.collect()
}

#[test]
fn point_16_each_transition_is_recorded_once() {
    let text = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}});
    let check = |act: &dyn Fn(&mut Fixture), expected: &[&str]| {
        let mut fixture = Fixture::new().with_turn();
        act(&mut fixture);
        assert_eq!(states(&fixture), expected);
    };
    let end = |fixture: &mut Fixture, reason: &str| fixture.agent_answers(2, &json!({"stopReason": reason}));
    check(&|fixture| [(); 3].iter().for_each(|()| fixture.agent_updates(&text)), &["running"]);
    check(&|fixture| end(fixture, "end_turn"), &["completed"]);
    check(&|fixture| fixture.agent_calls("1", "Read", "read", "in_progress"), &["running"]);
    check(
        &|fixture| {
            fixture.agent_asks_permission(5, "1", "Bash", "execute");
            fixture.client_answers(1, "allow_once");
            fixture.agent_calls("1", "Bash", "execute", "in_progress");
            end(fixture, "end_turn");
        },
        &["suspended", "resumed", "completed"],
    );
    check(&|fixture| end(fixture, "cancelled"), &["interrupted"]);
    check(&|fixture| end(fixture, "refusal"), &["interrupted"]);
    check(
        &|fixture| {
            fixture
                .send_agent(&json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "x"}}));
        },
        &["interrupted"],
    );
    check(
        &|fixture| {
            fixture.agent_calls("1", "Rm", "delete", "in_progress");
            end(fixture, "end_turn");
            fixture.client_prompts(3);
            fixture.agent_updates(&text);
        },
        &["interrupted", "running"],
    );
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    assert_eq!(states(&fixture), ["invoked"]);
}

#[test]
fn point_17_a_cancel_is_passed_on_and_a_close_or_a_loss_closes_the_audit() {
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_asks_permission(5, "1", "Bash", "execute");
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    assert_eq!(
        fixture.answer_to_agent(5)["result"]["outcome"]["optionId"],
        "n",
        "nothing is approved any more"
    );
    assert!(fixture.output.agent.iter().any(|line| line["method"] == "session/cancel"));
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    assert_eq!(fixture.answer_to_client(2)["result"]["stopReason"], "cancelled");
    fixture.client_requests(3, "session/close", &json!({"sessionId": "s"}));
    assert!(
        !fixture.recorded_actions().contains(&"session.closed".to_owned()),
        "it is closed when the agent says so"
    );
    fixture.agent_answers(3, &json!({}));
    assert_eq!(fixture.recorded_actions().last().map(String::as_str), Some("session.closed"));
    for who in ["client", "agent"] {
        let mut fixture = Fixture::new().with_turn();
        match who {
            "client" => fixture.gate.handle_client_lost(fixture.now, &mut fixture.output),
            _ => fixture.gate.handle_agent_lost(fixture.now, None, &mut fixture.output),
        }
        assert_eq!(fixture.recorded_actions(), ["operator.interrupted", "session.closed"], "{who}");
    }
}

#[test]
fn point_29_every_wait_has_a_deadline() {
    // A missing approval expires.
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_asks_permission(5, "1", "Bash", "execute");
    assert!(fixture.gate.next_deadline().is_some());
    fixture.advance_clock(299);
    assert!(fixture.answer_to_agent(5).is_null());
    fixture.advance_clock(1);
    assert_eq!(fixture.answer_to_agent(5)["result"]["outcome"]["optionId"], "n");
    // An agent that does not stop on request is ended.
    fixture.agent_calls("2", "Rm", "delete", "in_progress");
    assert!(fixture.output.ended.is_none());
    fixture.advance_clock(10);
    assert!(fixture.output.ended.is_some());
    // An agent that stops in time is not ended.
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_calls("2", "Rm", "delete", "in_progress");
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    fixture.advance_clock(11);
    assert!(fixture.output.ended.is_none());
}
