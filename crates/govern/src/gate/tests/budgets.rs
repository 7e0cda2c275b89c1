//! Tests of budgets: a call that changes after it was counted is counted again.

use narrows_policy::Budget;

use super::*;

/// Returns a fixture with a turn in which calls of `Pay` are allowed within this budget.
fn new_fixture(budget: Budget) -> Fixture {
    let clause = GovernanceRule::new("few", "tool.call", Class::Allow)
        .with_subject("Pay")
        .unwrap()
        .with_max_level(4)
        .with_budget(budget);
    let ruleset = GovernanceRuleset::new(vec![clause]).with_default(DefaultApproval::Auto);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let mut fixture = Fixture::with_turn();
    fixture.gate.authorizer = crate::authorizer::Authorizer::new(policy, "g");
    fixture
}

fn cents_budget(bound: u64) -> Fixture {
    new_fixture(Budget { amount_cents: Some(bound), ..Budget::default() })
}

fn daily_budget(bound: u64) -> Fixture {
    new_fixture(Budget { per_day: Some(bound), ..Budget::default() })
}

fn payment(amount: u64, to: &str) -> Value {
    json!({"amount_cents": amount, "to": to})
}

/// Announces the call `id`. Returns `true` if the call was shown and the turn continues.
fn announce_payment(fixture: &mut Fixture, id: &str, status: &str, input: &Value) -> bool {
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "name": "Pay", "kind": "other",
        "status": status, "rawInput": input}),
    );
    let seen = fixture.take_seen();
    seen.contains("c < ") && !seen.contains("without an approval")
}

/// The agent asks for permission for the call `id`. Returns `true` if the permission is granted without an
/// approver.
fn is_granted(fixture: &mut Fixture, request: u64, id: &str, input: &Value) -> bool {
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let call = json!({"toolCallId": id, "name": "Pay", "kind": "other", "rawInput": input});
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    fixture.agent_requests(request, "session/request_permission", &params);
    fixture.take_seen().contains(r#""optionId":"y""#)
}

fn budget_use(fixture: &Fixture) -> u64 {
    let event = |event: &Event| event.facts.get("spent").map(|spent| spent.clone().into_value());
    fixture.output.events.iter().filter_map(event).filter_map(|spent| spent["cents"].as_u64()).sum()
}

#[test]
fn the_larger_amount_of_announcement_and_request_counts() {
    let mut fixture = cents_budget(1000);
    assert!(announce_payment(&mut fixture, "1", "pending", &payment(1, "m")));
    assert!(is_granted(&mut fixture, 10, "1", &payment(990, "m")));
    assert!(announce_payment(&mut fixture, "2", "pending", &payment(1, "m")));
    assert!(!is_granted(&mut fixture, 11, "2", &payment(990, "m")));
    assert!(is_granted(&mut fixture, 12, "3", &payment(9, "m")));
    assert!(!is_granted(&mut fixture, 13, "4", &payment(1, "m")));
}

#[test]
fn each_change_of_a_running_call_costs_its_full_amount() {
    let mut fixture = cents_budget(2000);
    assert!(announce_payment(&mut fixture, "1", "in_progress", &payment(1, "m")));
    assert!(announce_payment(&mut fixture, "1", "in_progress", &payment(900, "a")));
    assert!(announce_payment(&mut fixture, "1", "in_progress", &payment(900, "b")));
    assert!(!announce_payment(&mut fixture, "1", "in_progress", &payment(900, "c")));
}

#[test]
fn a_change_after_the_grant_costs_its_full_amount() {
    let mut fixture = cents_budget(1000);
    assert!(is_granted(&mut fixture, 10, "1", &payment(900, "a")));
    announce_payment(&mut fixture, "1", "pending", &payment(900, "b"));
    assert!(!announce_payment(&mut fixture, "1", "in_progress", &payment(900, "b")));
}

#[test]
fn a_repeated_call_is_charged_once() {
    let mut fixture = cents_budget(1000);
    for _ in 0..3 {
        assert!(announce_payment(&mut fixture, "1", "pending", &payment(900, "m")));
    }
    assert!(is_granted(&mut fixture, 10, "1", &payment(900, "m")));
    assert!(announce_payment(&mut fixture, "1", "in_progress", &payment(900, "m")));
    assert!(announce_payment(&mut fixture, "1", "completed", &payment(900, "m")));
    assert!(is_granted(&mut fixture, 11, "2", &payment(100, "m")));
    assert_eq!(budget_use(&fixture), 1000);
}

#[test]
fn a_change_before_the_grant_costs_the_difference() {
    let mut fixture = cents_budget(1000);
    assert!(announce_payment(&mut fixture, "1", "pending", &payment(600, "m")));
    assert!(announce_payment(&mut fixture, "1", "pending", &payment(900, "m")));
    assert!(announce_payment(&mut fixture, "1", "pending", &payment(100, "m")));
    assert!(is_granted(&mut fixture, 10, "1", &payment(900, "m")));
    assert!(is_granted(&mut fixture, 11, "2", &payment(100, "m")));
    assert!(!is_granted(&mut fixture, 12, "3", &payment(1, "m")));
    assert_eq!(budget_use(&fixture), 1000);
}

#[test]
fn each_change_of_a_call_counts_as_another_call() {
    for status in ["pending", "in_progress"] {
        let mut fixture = daily_budget(3);
        assert!(announce_payment(&mut fixture, "1", status, &payment(1, "a")));
        assert!(announce_payment(&mut fixture, "1", status, &payment(1, "b")));
        assert!(announce_payment(&mut fixture, "1", status, &payment(1, "c")));
        announce_payment(&mut fixture, "1", status, &payment(1, "d"));
        assert!(!announce_payment(&mut fixture, "1", "in_progress", &payment(1, "d")));
    }
    let mut fixture = daily_budget(1);
    assert!(announce_payment(&mut fixture, "1", "pending", &json!({"path": "/w/a/x"})));
    let places = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress",
        "locations": [{"path": "/w/a/x"}]});
    fixture.agent_updates(&places);
    let seen = fixture.take_seen();
    assert!(seen.contains("c < ") && !seen.contains("without an approval"), "{seen}");
}

#[test]
fn every_amount_can_be_read_by_other_gates() {
    for amount in [json!(-1), json!("abc"), json!(1e300), json!(u64::MAX), json!(1_u64 << 60), json!(7)] {
        let mut fixture = daily_budget(3);
        assert!(announce_payment(&mut fixture, "1", "pending", &json!({"amount_cents": amount})));
        let log = tempfile::tempdir().unwrap();
        let path = log.path().join("log.jsonl");
        let events = std::mem::take(&mut fixture.output.events);
        let written = narrows_audit::Log::open(&path, narrows_audit::LogOptions::default()).unwrap();
        for event in events {
            written.append(event).wait().unwrap();
        }
        let news = crate::AuditLogBudget::new(path, 0);
        let news = crate::BudgetSource::read_new(&mut { news }).unwrap();
        assert_eq!(news.len(), 1, "{amount}");
        assert_eq!(news[0].cents.unwrap() == 7, amount == json!(7));
    }
}
