//! Tests of terminals that an agent runs itself.

use super::*;

fn command(terminal: &str, command: &str) -> Value {
    json!({"sessionUpdate": "terminal_update", "terminalId": terminal, "command": command})
}

fn terminal_output(terminal: &str) -> Value {
    json!({"sessionUpdate": "terminal_output_chunk", "terminalId": terminal, "data": "c2VjcmV0"})
}

fn exited(terminal: &str) -> Value {
    json!({"sessionUpdate": "terminal_update", "terminalId": terminal, "exitStatus": {"exitCode": 0}})
}

/// Returns a fixture in which `make` was approved for call 1. If `terminal` is given, the call runs and shows
/// this terminal.
fn with_approved_call(terminal: Option<&str>) -> Fixture {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}},
            "options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
    );
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    fixture.agent_calls("1", "Bash", "in_progress", &json!({"command": "make"}));
    if let Some(terminal) = terminal {
        fixture.agent_updates(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "1",
            "content": [{"type": "terminal", "terminalId": terminal}]}));
    }
    fixture.take_seen();
    fixture
}

/// Checks that none of the updates is shown, and that the turn is stopped.
#[track_caller]
fn expect_stop(mut fixture: Fixture, updates: &[Value]) {
    for update in updates {
        fixture.agent_updates(update);
    }
    let seen = fixture.take_seen();
    assert!(seen.contains("log operator.interrupted") && !seen.contains("c < "), "{updates:?}: {seen}");
}

#[track_caller]
fn expect_shown(mut fixture: Fixture, updates: &[Value]) -> String {
    for update in updates {
        fixture.agent_updates(update);
    }
    let seen = fixture.take_seen();
    let shown = seen.lines().filter(|line| line.starts_with("c < ")).count();
    assert!(shown == updates.len() && !seen.contains("interrupted"), "{updates:?}: {seen}");
    seen
}

#[test]
fn a_terminal_is_decided_like_a_call_that_runs_its_command() {
    expect_stop(Fixture::with_turn(), &[command("t", "make")]);
    expect_stop(Fixture::with_turn(), &[command("t", "make"), terminal_output("t")]);
    // A command that is written as a list of words is decided in the same way.
    let mut odd = command("t", "");
    odd["command"] = json!(["make"]);
    expect_stop(Fixture::with_turn(), &[odd]);
    let twice = r#"{"sessionUpdate":"terminal_update","terminalId":"t","command":"ls","command":"make"}"#;
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{twice}}}}}"#
    );
    let mut fixture = Fixture::with_turn();
    fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
    fixture.settle_events();
    let seen = fixture.take_seen();
    assert!(seen.contains("log operator.interrupted") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_terminal_without_a_command_may_run_anything() {
    expect_stop(Fixture::with_turn(), &[terminal_output("t")]);
    expect_stop(Fixture::with_turn(), &[exited("t")]);
    let mut snapshot = json!({"sessionUpdate": "terminal_update", "terminalId": "t"});
    snapshot["output"] = json!({"data": "c2VjcmV0"});
    expect_stop(Fixture::with_turn(), &[snapshot]);
}

#[test]
fn a_terminal_of_an_approved_call_needs_no_approval() {
    let whole = [command("t", "make"), terminal_output("t"), exited("t")];
    // The updates may come in either order, and a terminal joins the call by its command alone.
    expect_shown(with_approved_call(None), &whole);
    expect_shown(with_approved_call(Some("t")), &whole);
    let mut there = command("t", "make");
    there["cwd"] = json!("/w/a");
    expect_shown(with_approved_call(None), &[there]);
    // The terminal's updates name no command, because the call that shows the terminal does.
    expect_shown(with_approved_call(Some("t")), &[terminal_output("t"), exited("t")]);
    let mut fixture = with_approved_call(Some("t"));
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}),
    );
    fixture.take_seen();
    expect_shown(fixture, &[terminal_output("t"), exited("t")]);
}

#[test]
fn an_approval_holds_for_one_terminal_and_its_command() {
    expect_stop(with_approved_call(Some("t")), &[command("t", "make install")]);
    let mut elsewhere = command("t", "make");
    elsewhere["cwd"] = json!("/w/b");
    expect_stop(with_approved_call(None), &[elsewhere]);
    let mut fixture = with_approved_call(None);
    fixture.agent_updates(&command("t", "make"));
    fixture.take_seen();
    expect_stop(fixture, &[command("u", "make")]);
    // A terminal id that looks like the key of a call is still only a terminal id.
    expect_stop(with_approved_call(None), &[terminal_output("1")]);
}

fn completed() -> Value {
    json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"})
}

fn showing_call(terminal: &str) -> Value {
    json!({"sessionUpdate": "tool_call_update", "toolCallId": "1",
        "content": [{"type": "terminal", "terminalId": terminal}]})
}

#[test]
fn an_approval_holds_for_one_run() {
    let after = |updates: &[Value]| {
        let mut fixture = with_approved_call(None);
        for update in updates {
            fixture.agent_updates(update);
        }
        let seen = fixture.take_seen();
        assert!(!seen.contains("interrupted"), "{seen}");
        fixture
    };
    let run = [command("t", "make"), exited("t")];
    // The command runs a second time: in the same terminal, in another one, and in another one that the call
    // shows.
    expect_stop(after(&run), &[command("t", "make")]);
    expect_stop(after(&run), &[command("u", "make")]);
    expect_stop(after(&[command("t", "make"), showing_call("u")]), &[command("u", "make")]);
    expect_stop(
        after(&[showing_call("u"), command("u", "make"), showing_call("t")]),
        &[command("t", "make")],
    );
    // The command runs a second time after the call has ended, in another terminal that the call shows.
    let whole = [&run[..], &[completed()]].concat();
    expect_stop(after(&whole), &[command("t", "make")]);
    expect_stop(after(&[&whole[..], &[showing_call("n")]].concat()), &[command("n", "make")]);
    expect_stop(after(&[completed()]), &[command("t", "make")]);
    expect_stop(after(&[command("t", "make"), completed()]), &[command("t", "make")]);
    expect_stop(after(&[showing_call("t"), completed()]), &[command("t", "make")]);
}

#[test]
fn a_terminal_of_an_earlier_turn_is_a_part_of_its_call_while_it_runs() {
    let next_turn = |updates: &[Value]| {
        let mut fixture = with_approved_call(None);
        for update in updates {
            fixture.agent_updates(update);
        }
        fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
        fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        let seen = fixture.take_seen();
        assert!(!seen.contains("interrupted"), "{seen}");
        fixture
    };
    expect_shown(next_turn(&[command("t", "make"), completed()]), &[terminal_output("t"), exited("t")]);
    expect_stop(next_turn(&[command("t", "make"), exited("t"), completed()]), &[terminal_output("t")]);
    expect_stop(next_turn(&[showing_call("t"), completed()]), &[terminal_output("t")]);
    expect_stop(next_turn(&[command("t", "make"), completed()]), &[command("t", "make")]);
}

#[test]
fn a_run_may_be_reported_in_many_updates() {
    let mut end = exited("t");
    end["command"] = json!("make");
    let updates = [
        showing_call("t"),
        command("t", "make"),
        command("t", "make"),
        terminal_output("t"),
        completed(),
        end,
    ];
    expect_shown(with_approved_call(None), &updates);
    let updates = [
        command("t", "make"),
        showing_call("t"),
        exited("t"),
        showing_call("t"),
        terminal_output("t"),
        completed(),
    ];
    expect_shown(with_approved_call(None), &updates);
}

#[test]
fn a_terminal_may_run_the_command_of_a_later_call() {
    let mut fixture = with_approved_call(Some("t"));
    for update in [command("t", "make"), exited("t"), completed()] {
        fixture.agent_updates(&update);
    }
    fixture.agent_requests(
        8,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "2", "name": "Bash", "rawInput": {"command": "make"}},
            "options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
    );
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:2", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    fixture.take_seen();
    expect_shown(fixture, &[command("t", "make"), terminal_output("t"), exited("t")]);
}

#[test]
fn output_of_a_call_that_is_not_allowed_stops_the_turn() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Bash", "kind": "execute",
        "status": "pending", "rawInput": {"command": "make"},
        "content": [{"type": "terminal", "terminalId": "t"}]}),
    );
    fixture.take_seen();
    expect_stop(fixture, &[terminal_output("t")]);
}

#[test]
fn a_terminal_that_several_calls_show_is_allowed_if_all_of_them_are() {
    let mut fixture = with_approved_call(Some("t"));
    fixture.agent_updates(&json!({"sessionUpdate": "tool_call", "toolCallId": "2", "name": "Rm", "kind": "delete",
        "status": "pending", "rawInput": {"path": "/w/a/b"}, "content": [[{"type": "terminal", "terminalId": "t"}]]}));
    fixture.take_seen();
    expect_stop(fixture, &[terminal_output("t")]);
}

#[test]
fn an_allowed_terminal_is_recorded_with_its_end() {
    let mut fixture = Fixture::with_turn();
    let clauses = vec![GovernanceRule::new("all", "tool.call", Class::Allow)];
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::Auto);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let who = Principal { id: "user:ada".into(), ..Principal::default() };
    let start = GateStart { started_at: 1_000_000, nonce: "n".into() };
    fixture.gate = Gate::new(config(), who, policy, Box::new(PlainPaths), start);
    fixture.open_turn();
    // Output is held until the command is known.
    fixture.agent_updates(
        &json!({"sessionUpdate": "terminal_update", "terminalId": "t", "size": {"cols": 80, "rows": 24}}),
    );
    assert_eq!(fixture.take_seen(), "");
    fixture.agent_updates(&command("t", "make"));
    fixture.agent_updates(&terminal_output("t"));
    fixture.agent_updates(&exited("t"));
    let seen = fixture.take_seen();
    assert_eq!(seen.lines().filter(|line| line.starts_with("c < ")).count(), 4, "{seen}");
    let call = fixture.output.events.iter().find(|event| event.action == "tool.call").unwrap();
    assert_eq!(call.input, Some(json!({"command": "make"})));
    assert_eq!(call.output, Some(json!({"exitCode": 0})));
}

#[test]
fn an_update_of_an_unknown_kind_is_not_shown() {
    let mut fixture = Fixture::with_turn();
    for _ in 0..2 {
        fixture.agent_updates(&json!({"sessionUpdate": "_shell", "command": "make", "output": "secret"}));
        fixture.agent_updates(&json!({"output": "secret"}));
    }
    let seen = fixture.take_seen();
    // Each kind is recorded once.
    assert_eq!(seen.lines().count(), 2, "{seen}");
    assert!(seen.lines().all(|line| line.starts_with("log method.refused")), "{seen}");
}

#[test]
fn every_update_of_the_protocol_is_handled() {
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
        let mut fixture = Fixture::with_turn();
        fixture.agent_updates(&json!({"sessionUpdate": kind}));
        let seen = fixture.take_seen();
        assert!(seen.contains("c < "), "{kind}: {seen}");
    }
}
