//! Points 19, 20, 22 and 30: content and order of the audit log.

use narrows_audit::LoggedDecision;
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Returns a fixture with calls of every outcome: allowed, denied, approved, failed.
fn all_four() -> Fixture {
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_calls("allowed", "Read", "read", "in_progress");
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "allowed", "status": "completed",
        "rawOutput": {"lines": 3}}),
    );
    fixture.agent_asks_permission(5, "denied", "Rm", "delete");
    fixture.agent_asks_permission(6, "approved", "Bash", "execute");
    fixture.client_answers(1, "allow_once");
    fixture.agent_calls("approved", "Bash", "execute", "completed");
    fixture.agent_calls("failed", "Read", "read", "in_progress");
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "failed", "status": "failed",
        "rawOutput": "no such file"}),
    );
    fixture
}

fn find<'a>(log: &'a [Value], action: &str, call: &str) -> Option<&'a Value> {
    log.iter().find(|entry| entry["action"] == action && entry["metadata"]["aip44"]["toolCallId"] == call)
}

#[test]
fn point_19_every_call_is_recorded_with_its_seven_facts() {
    let log = all_four().verified_log();
    let check = |call: &str, tool: &str, approval: Value, output: Value| {
        let entry = find(&log, "tool.call", call).unwrap_or_else(|| panic!("{call} in {log:?}"));
        let about = &entry["metadata"]["aip44"];
        assert_eq!(
            (&about["kind"], &about["operator"], &about["session"]),
            (&json!("tool-call"), &json!("notes"), &json!("s"))
        );
        assert_eq!((&about["tool"], &about["approval"]), (&json!(tool), &approval));
        assert_eq!((&entry["input"]["path"], &entry["output"]), (&json!(format!("/w/a/{call}")), &output));
        assert_eq!(
            (&entry["actor"]["id"], &entry["subject"]["kind"]),
            (&json!("operator:notes"), &json!("tool"))
        );
        assert_eq!(entry["doctype"], "audit-event");
    };
    check("allowed", "Read", json!("auto"), json!({"lines": 3}));
    check("failed", "Read", json!("auto"), json!({"error": "no such file"}));
    assert!(
        find(&log, "tool.call", "approved")
            .is_some_and(|it| it["metadata"]["aip44"]["approval"] == "user:ada")
    );
    assert!(find(&log, "tool.call", "denied").is_none(), "a call that never ran has no result");
    // A value that is not an object is wrapped in one, because the schema requires it.
    assert!(log.iter().all(|entry| entry.get("output").is_none_or(Value::is_object)));
}

#[test]
fn point_20_a_decision_is_on_disk_before_anything_is_shown_and_nothing_is_left_open() {
    let mut fixture = Fixture::new().with_turn();
    fixture.settles_at_once = false;
    fixture.agent_calls("1", "Read", "read", "in_progress");
    assert_eq!(
        (fixture.output.client.len(), fixture.recorded_actions()[0].as_str()),
        (0, "policy.resolved allow")
    );
    fixture.settles_at_once = true;
    fixture.settle_events();
    assert!(fixture.shows_call("1"));
    fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
    fixture.settle_events();
    let log = fixture.verified_log();
    assert_eq!(find(&log, "tool.call", "1").unwrap()["output"], json!({"error": "interrupted"}));
    // A call that cannot be recorded is not shown, and its turn ends.
    let mut fixture = Fixture::new().with_turn();
    fixture.settles_at_once = false;
    fixture.agent_calls("1", "Read", "read", "in_progress");
    for seq in std::mem::take(&mut fixture.output.unsettled) {
        fixture.gate.handle_audit_result(fixture.now, seq, false, &mut fixture.output);
    }
    assert!(!fixture.shows_call("1"));
    assert!(fixture.output.agent.iter().any(|line| line["method"] == "session/cancel"));
}

#[test]
fn point_22_allowed_denied_approved_and_failed_are_in_a_chain_that_verifies() {
    let fixture = all_four();
    let log = fixture.verified_log();
    let decision = |call: &str| find(&log, "policy.resolved", call).map(|entry| entry["policy"].clone());
    let policy =
        |name: &str, decision: LoggedDecision| Some(json!({"ref": name, "decision": decision.to_string()}));
    assert_eq!(decision("allowed"), policy("default", LoggedDecision::Allow));
    assert_eq!(decision("denied"), policy("never", LoggedDecision::Deny));
    assert_eq!(decision("approved"), policy("runs", LoggedDecision::RequireApproval));
    assert_eq!(fixture.answer_to_agent(5)["result"]["outcome"]["optionId"], "n");
    assert_eq!(
        fixture.answer_to_agent(6)["result"]["outcome"]["optionId"],
        "y",
        "the option that allows once"
    );
    let numbers: Vec<u64> = log.iter().map(|entry| entry["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..log.len() as u64).collect::<Vec<_>>());
}

#[test]
fn point_30_history_is_shown_and_not_acted_on() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/load", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    fixture.agent_calls("old", "Rm", "delete", "completed");
    fixture.agent_asks_permission(5, "old", "Bash", "execute");
    assert!(fixture.shows_call("old"));
    assert_eq!(fixture.answer_to_agent(5)["result"]["outcome"]["outcome"], "cancelled");
    assert_eq!(
        fixture.output.client.iter().filter(|line| line["method"] == "session/request_permission").count(),
        0
    );
    fixture.agent_answers(1, &json!({}));
    assert_eq!(fixture.recorded_actions(), ["operator.invoked"]);
    // Once the session is open, updates are current.
    fixture.client_prompts(2);
    fixture.agent_calls("new", "Rm", "delete", "pending");
    assert!(!fixture.shows_call("new"));
    assert_eq!(fixture.recorded_actions().last().map(String::as_str), Some("policy.resolved deny"));
}

#[test]
fn a_claimed_name_is_recorded_and_not_trusted() {
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_calls("posed", "kind:read", "delete", "pending");
    let log = fixture.verified_log();
    let entry = find(&log, "policy.resolved", "posed").unwrap_or_else(|| panic!("{log:?}"));
    let about = &entry["metadata"]["aip44"];
    assert_eq!((&about["tool"], &about["claimedTool"]), (&json!("kind:delete"), &json!("kind:read")));
    assert_eq!(entry["policy"]["decision"], "require-approval");
}
