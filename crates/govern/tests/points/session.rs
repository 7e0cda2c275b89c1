//! Points 9, 11, 14 to 17 and 29: roles, capabilities, states, and how long anything takes.

use narrows_govern::{Autonomy, GateConfig};
use narrows_manifest::{Capabilities, ToolSet};
use serde_json::{Value, json};

use crate::fixture::{Scene, config};

#[test]
fn point_09_prompts_go_to_the_agent_and_updates_to_the_client() {
    let mut scene = Scene::new().at_work();
    scene.prompt(3);
    assert_eq!((&scene.sight.agent[0]["method"], scene.sight.client.len()), (&json!("session/prompt"), 0));
    scene.update(&json!({"sessionUpdate": "plan", "entries": []}));
    assert_eq!(scene.sight.client[0]["method"], "session/update");
    assert_eq!(scene.sight.agent.len(), 1, "what one says the other hears, and not itself");
}

#[test]
fn point_11_what_was_not_advertised_is_not_executed() {
    let offers = |read: bool| json!({"fs": {"readTextFile": read, "writeTextFile": true}, "terminal": true});
    let check = |declared: bool, advertised: bool, method: &str, reaches: bool| {
        let capabilities = Capabilities { read_text_file: declared, ..config().capabilities };
        let mut scene = Scene::with(GateConfig { capabilities, ..config() }, &[]);
        let params = json!({"protocolVersion": 1, "clientCapabilities": offers(advertised)});
        scene.ask(0, "initialize", &params);
        scene.answer(0, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
        let mut scene = scene.at_work();
        let (key, value) = if method.starts_with("fs/") { ("path", "/w/a/x") } else { ("command", "ls") };
        scene.wants(5, method, &json!({"sessionId": "s", key: value}));
        let reached = scene.sight.client.iter().any(|line| line["method"] == method);
        assert_eq!(reached, reaches, "{declared} {advertised} {method}");
        if !reaches {
            assert_eq!(scene.told_agent(5)["error"]["code"], -32601);
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
fn point_14_what_is_ours_stands_beside_what_is_theirs() {
    let mut scene = Scene::new();
    scene.ask(0, "initialize", &json!({"protocolVersion": 1, "_meta": {"traceparent": 1}}));
    assert_eq!(scene.sight.agent[0]["params"]["_meta"]["traceparent"], 1);
    assert_eq!(scene.sight.agent[0]["params"]["_meta"]["aip44"]["tier"], "governance-aware");
    scene.answer(
        0,
        &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}, "_meta": {"a": [2]}}),
    );
    let meta = scene.told_client(0)["result"]["_meta"].clone();
    assert_eq!((&meta["a"], &meta["aip44"]["acp_rev"]), (&json!([2]), &json!("abc1234")));
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    assert_eq!(scene.told_client(1)["result"]["_meta"]["aip44"]["operator"], "notes");
    scene.update(&json!({"sessionUpdate": "plan", "entries": [], "_meta": {"aip44": "theirs"}}));
    let update = &scene.sight.client.last().unwrap()["params"];
    assert_eq!(
        (&update["update"]["_meta"]["aip44"], &update["_meta"]["aip44"]["operator"]),
        (&json!("theirs"), &json!("notes"))
    );
}

#[test]
fn point_15_the_operators_tools_and_autonomy_are_honoured() {
    let tools =
        Some(ToolSet { names: ["Read".to_owned(), "kind:edit".to_owned()].into(), ..ToolSet::default() });
    let mut scene = Scene::with(GateConfig { tools, ..config() }, &["lead"]).at_work();
    scene.tool("1", "Read", "read", "in_progress");
    scene.tool("2", "Search", "search", "pending");
    scene.tool("3", "Write", "edit", "pending");
    assert_eq!([scene.shows("1"), scene.shows("2"), scene.shows("3")], [true, false, true]);
    // Who is supervised asks before anything is changed, and who is gated before every turn.
    let supervised = GateConfig { autonomy: Autonomy::Supervised, ..config() };
    let policy =
        narrows_policy::Policy::new(narrows_policy::Access::High, narrows_policy::Narrowing::default());
    let who = narrows_govern::Principal { id: "user:ada".into(), ..Default::default() };
    let mut scene = Scene::of(supervised, who, policy).at_work();
    scene.tool("1", "Read", "read", "in_progress");
    assert_eq!(scene.recorded()[0], "policy.resolved allow");
    scene.tool("2", "Write", "edit", "pending");
    assert_eq!(scene.recorded().last().map(String::as_str), Some("policy.resolved require-approval"));
    let mut scene = Scene::with(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    scene.prompt(2);
    let is_prompt = |line: &Value| line["method"] == "session/prompt";
    assert!(!scene.sight.agent.iter().any(is_prompt));
    scene.says(1, "allow_once");
    assert!(scene.sight.agent.iter().any(is_prompt));
}

/// The steps of the operator that were recorded.
fn states(scene: &Scene) -> Vec<String> {
    let states =
        scene.recorded().into_iter().filter_map(|told| told.strip_prefix("operator.").map(str::to_owned));
    states.collect()
}

#[test]
fn point_16_each_transition_is_recorded_once() {
    let text = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}});
    let check = |act: &dyn Fn(&mut Scene), expected: &[&str]| {
        let mut scene = Scene::new().at_work();
        act(&mut scene);
        assert_eq!(states(&scene), expected);
    };
    let end = |scene: &mut Scene, reason: &str| scene.answer(2, &json!({"stopReason": reason}));
    check(&|scene| [(); 3].iter().for_each(|()| scene.update(&text)), &["running"]);
    check(&|scene| end(scene, "end_turn"), &["completed"]);
    check(&|scene| scene.tool("1", "Read", "read", "in_progress"), &["running"]);
    check(
        &|scene| {
            scene.asks(5, "1", "Bash", "execute");
            scene.says(1, "allow_once");
            scene.tool("1", "Bash", "execute", "in_progress");
            end(scene, "end_turn");
        },
        &["suspended", "resumed", "completed"],
    );
    check(&|scene| end(scene, "cancelled"), &["interrupted"]);
    check(&|scene| end(scene, "refusal"), &["interrupted"]);
    check(
        &|scene| scene.agent(&json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "x"}})),
        &["interrupted"],
    );
    check(
        &|scene| {
            scene.tool("1", "Rm", "delete", "in_progress");
            end(scene, "end_turn");
            scene.prompt(3);
            scene.update(&text);
        },
        &["interrupted", "running"],
    );
    let mut scene = Scene::new();
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    assert_eq!(states(&scene), ["invoked"]);
}

#[test]
fn point_17_a_cancel_is_passed_on_and_a_close_or_a_loss_closes_the_audit() {
    let mut scene = Scene::new().at_work();
    scene.asks(5, "1", "Bash", "execute");
    scene.client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    assert_eq!(scene.told_agent(5)["result"]["outcome"]["optionId"], "n", "nothing is approved any more");
    assert!(scene.sight.agent.iter().any(|line| line["method"] == "session/cancel"));
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    assert_eq!(scene.told_client(2)["result"]["stopReason"], "cancelled");
    scene.ask(3, "session/close", &json!({"sessionId": "s"}));
    assert!(!scene.recorded().contains(&"session.closed".to_owned()), "it is closed when the agent says so");
    scene.answer(3, &json!({}));
    assert_eq!(scene.recorded().last().map(String::as_str), Some("session.closed"));
    for who in ["client", "agent"] {
        let mut scene = Scene::new().at_work();
        match who {
            "client" => scene.gate.handle_client_lost(scene.now, &mut scene.sight),
            _ => scene.gate.handle_agent_lost(scene.now, None, &mut scene.sight),
        }
        assert_eq!(scene.recorded(), ["operator.interrupted", "session.closed"], "{who}");
    }
}

#[test]
fn point_29_nothing_is_waited_for_without_an_end() {
    // An approval that nobody gives is none.
    let mut scene = Scene::new().at_work();
    scene.asks(5, "1", "Bash", "execute");
    assert!(scene.gate.next_deadline().is_some());
    scene.pass(299);
    assert!(scene.told_agent(5).is_null());
    scene.pass(1);
    assert_eq!(scene.told_agent(5)["result"]["outcome"]["optionId"], "n");
    // An agent that does not stop when it is told to is ended.
    scene.tool("2", "Rm", "delete", "in_progress");
    assert!(scene.sight.ended.is_none());
    scene.pass(10);
    assert!(scene.sight.ended.is_some());
    // One that does stop is not.
    let mut scene = Scene::new().at_work();
    scene.tool("2", "Rm", "delete", "in_progress");
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    scene.pass(11);
    assert!(scene.sight.ended.is_none());
}
