//! Terminals that an agent runs itself.

use super::*;

fn command(terminal: &str, command: &str) -> Value {
    json!({"sessionUpdate": "terminal_update", "terminalId": terminal, "command": command})
}

fn output(terminal: &str) -> Value {
    json!({"sessionUpdate": "terminal_output_chunk", "terminalId": terminal, "data": "c2VjcmV0"})
}

fn exited(terminal: &str) -> Value {
    json!({"sessionUpdate": "terminal_update", "terminalId": terminal, "exitStatus": {"exitCode": 0}})
}

/// A scene in which `make` was approved for call 1, which runs and shows this terminal if one is named.
fn with_approved_call(terminal: Option<&str>) -> Scene {
    let mut scene = Scene::at_work();
    scene.wants(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}},
            "options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
    );
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    scene.tool("1", "Bash", "in_progress", &json!({"command": "make"}));
    if let Some(terminal) = terminal {
        scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "1",
            "content": [{"type": "terminal", "terminalId": terminal}]}));
    }
    scene.seen();
    scene
}

/// None of the updates is shown, and the turn is stopped.
#[track_caller]
fn stops(mut scene: Scene, updates: &[Value]) {
    for update in updates {
        scene.update(update);
    }
    let seen = scene.seen();
    assert!(seen.contains("log operator.interrupted") && !seen.contains("c < "), "{updates:?}: {seen}");
}

/// All of the updates are shown.
#[track_caller]
fn shows(mut scene: Scene, updates: &[Value]) -> String {
    for update in updates {
        scene.update(update);
    }
    let seen = scene.seen();
    let shown = seen.lines().filter(|line| line.starts_with("c < ")).count();
    assert!(shown == updates.len() && !seen.contains("interrupted"), "{updates:?}: {seen}");
    seen
}

#[test]
fn a_terminal_is_decided_about_like_a_call_that_runs_its_command() {
    stops(Scene::at_work(), &[command("t", "make")]);
    stops(Scene::at_work(), &[command("t", "make"), output("t")]);
    // Whatever form the command has.
    let mut odd = command("t", "");
    odd["command"] = json!(["make"]);
    stops(Scene::at_work(), &[odd]);
    let twice = r#"{"sessionUpdate":"terminal_update","terminalId":"t","command":"ls","command":"make"}"#;
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{twice}}}}}"#
    );
    let mut scene = Scene::at_work();
    scene.gate.handle_agent_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
    scene.commit();
    let seen = scene.seen();
    assert!(seen.contains("log operator.interrupted") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_terminal_that_does_not_tell_its_command_may_run_anything() {
    stops(Scene::at_work(), &[output("t")]);
    stops(Scene::at_work(), &[exited("t")]);
    let mut snapshot = json!({"sessionUpdate": "terminal_update", "terminalId": "t"});
    snapshot["output"] = json!({"data": "c2VjcmV0"});
    stops(Scene::at_work(), &[snapshot]);
}

#[test]
fn a_terminal_of_an_approved_call_is_a_part_of_it() {
    let whole = [command("t", "make"), output("t"), exited("t")];
    // In either order, and by its command alone.
    shows(with_approved_call(None), &whole);
    shows(with_approved_call(Some("t")), &whole);
    let mut there = command("t", "make");
    there["cwd"] = json!("/w/a");
    shows(with_approved_call(None), &[there]);
    // The call says what runs in it.
    shows(with_approved_call(Some("t")), &[output("t"), exited("t")]);
    let mut scene = with_approved_call(Some("t"));
    scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}));
    scene.seen();
    shows(scene, &[output("t"), exited("t")]);
}

#[test]
fn an_approval_holds_for_one_terminal_and_its_command() {
    stops(with_approved_call(Some("t")), &[command("t", "make install")]);
    let mut elsewhere = command("t", "make");
    elsewhere["cwd"] = json!("/w/b");
    stops(with_approved_call(None), &[elsewhere]);
    let mut scene = with_approved_call(None);
    scene.update(&command("t", "make"));
    scene.seen();
    stops(scene, &[command("u", "make")]);
    // An id that looks like the key of something else is that of a terminal.
    stops(with_approved_call(None), &[output("1")]);
}

fn completed() -> Value {
    json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"})
}

fn shown(terminal: &str) -> Value {
    json!({"sessionUpdate": "tool_call_update", "toolCallId": "1",
        "content": [{"type": "terminal", "terminalId": terminal}]})
}

#[test]
fn an_approval_holds_for_one_run() {
    let after = |updates: &[Value]| {
        let mut scene = with_approved_call(None);
        for update in updates {
            scene.update(update);
        }
        let seen = scene.seen();
        assert!(!seen.contains("interrupted"), "{seen}");
        scene
    };
    let run = [command("t", "make"), exited("t")];
    // In the same terminal, in another one, and in one that the call has shown as well.
    stops(after(&run), &[command("t", "make")]);
    stops(after(&run), &[command("u", "make")]);
    stops(after(&[command("t", "make"), shown("u")]), &[command("u", "make")]);
    stops(after(&[shown("u"), command("u", "make"), shown("t")]), &[command("t", "make")]);
    // After the call has ended, which shows another terminal then.
    let whole = [&run[..], &[completed()]].concat();
    stops(after(&whole), &[command("t", "make")]);
    stops(after(&[&whole[..], &[shown("n")]].concat()), &[command("n", "make")]);
    stops(after(&[completed()]), &[command("t", "make")]);
    stops(after(&[command("t", "make"), completed()]), &[command("t", "make")]);
    stops(after(&[shown("t"), completed()]), &[command("t", "make")]);
}

#[test]
fn a_terminal_of_an_earlier_turn_is_a_part_of_its_call_while_it_runs() {
    let next_turn = |updates: &[Value]| {
        let mut scene = with_approved_call(None);
        for update in updates {
            scene.update(update);
        }
        scene.answer(2, &json!({"stopReason": "end_turn"}));
        scene.ask(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        let seen = scene.seen();
        assert!(!seen.contains("interrupted"), "{seen}");
        scene
    };
    shows(next_turn(&[command("t", "make"), completed()]), &[output("t"), exited("t")]);
    stops(next_turn(&[command("t", "make"), exited("t"), completed()]), &[output("t")]);
    stops(next_turn(&[shown("t"), completed()]), &[output("t")]);
    stops(next_turn(&[command("t", "make"), completed()]), &[command("t", "make")]);
}

#[test]
fn a_run_may_be_told_in_many_updates() {
    let mut end = exited("t");
    end["command"] = json!("make");
    let updates = [shown("t"), command("t", "make"), command("t", "make"), output("t"), completed(), end];
    shows(with_approved_call(None), &updates);
    let updates = [command("t", "make"), shown("t"), exited("t"), shown("t"), output("t"), completed()];
    shows(with_approved_call(None), &updates);
}

#[test]
fn a_terminal_may_run_the_command_of_a_later_call() {
    let mut scene = with_approved_call(Some("t"));
    for update in [command("t", "make"), exited("t"), completed()] {
        scene.update(&update);
    }
    scene.wants(
        8,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "2", "name": "Bash", "rawInput": {"command": "make"}},
            "options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
    );
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:2", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    scene.seen();
    shows(scene, &[command("t", "make"), output("t"), exited("t")]);
}

#[test]
fn output_of_a_call_that_is_not_allowed_stops_the_turn() {
    let mut scene = Scene::at_work();
    scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Bash", "kind": "execute",
        "status": "pending", "rawInput": {"command": "make"},
        "content": [{"type": "terminal", "terminalId": "t"}]}));
    scene.seen();
    stops(scene, &[output("t")]);
}

#[test]
fn a_terminal_that_several_calls_show_is_allowed_if_all_of_them_are() {
    let mut scene = with_approved_call(Some("t"));
    scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": "2", "name": "Rm", "kind": "delete",
        "status": "pending", "rawInput": {"path": "/w/a/b"}, "content": [[{"type": "terminal", "terminalId": "t"}]]}));
    scene.seen();
    stops(scene, &[output("t")]);
}

#[test]
fn an_allowed_terminal_is_recorded_with_its_end() {
    let mut scene = Scene::at_work();
    let clauses = vec![Clause::new("all", "tool.call", Class::Allow)];
    let charter = Charter::new(clauses).with_level(Some(2)).with_default(DefaultApproval::Auto);
    let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter);
    let who = Principal { id: "user:ada".into(), ..Principal::default() };
    let setting = GateStart { started_at: 1_000_000, nonce: "n".into() };
    scene.gate = Gate::new(config(), who, policy, Box::new(Plain), setting);
    scene.opened();
    // Held until the command is known.
    scene.update(
        &json!({"sessionUpdate": "terminal_update", "terminalId": "t", "size": {"cols": 80, "rows": 24}}),
    );
    assert_eq!(scene.seen(), "");
    scene.update(&command("t", "make"));
    scene.update(&output("t"));
    scene.update(&exited("t"));
    let seen = scene.seen();
    assert_eq!(seen.lines().filter(|line| line.starts_with("c < ")).count(), 4, "{seen}");
    let call = scene.sight.events.iter().find(|event| event.action == "tool.call").unwrap();
    assert_eq!(call.input, Some(json!({"command": "make"})));
    assert_eq!(call.output, Some(json!({"exitCode": 0})));
}

#[test]
fn an_update_of_an_unknown_kind_is_not_shown() {
    let mut scene = Scene::at_work();
    for _ in 0..2 {
        scene.update(&json!({"sessionUpdate": "_shell", "command": "make", "output": "secret"}));
        scene.update(&json!({"output": "secret"}));
    }
    let seen = scene.seen();
    // Each kind is recorded once.
    assert_eq!(seen.lines().count(), 2, "{seen}");
    assert!(seen.lines().all(|line| line.starts_with("log method.refused")), "{seen}");
}

/// What the protocol has today passes, or is decided about.
#[test]
fn all_known_kinds_are_known_here() {
    for kind in [
        "user_message_chunk",
        "user_message",
        "agent_message_chunk",
        "agent_message",
        "agent_thought_chunk",
        "agent_thought",
        "state_update",
        "plan",
        "plan_update",
        "plan_removed",
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "usage_update",
        "notice",
        "compaction_update",
        "compaction_summary_chunk",
        "session_message",
        "session_message_chunk",
    ] {
        let mut scene = Scene::at_work();
        scene.update(&json!({"sessionUpdate": kind}));
        let seen = scene.seen();
        assert!(seen.contains("c < "), "{kind}: {seen}");
    }
}
