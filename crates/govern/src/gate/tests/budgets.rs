//! Budgets: a call that is changed after it was counted is counted as what it has become.

use narrows_policy::Budget;

use super::*;

/// A turn in which `Pay` is allowed within this budget.
fn scene(budget: Budget) -> Scene {
    let clause = Clause::new("few", "tool.call", Class::Allow).on("Pay").unwrap().up_to(4).within(budget);
    let charter = Charter::new(vec![clause]).with_default(DefaultApproval::Auto);
    let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter);
    let mut scene = Scene::at_work();
    scene.gate.authorizer = crate::authorizer::Authorizer::new(policy, "g");
    scene
}

fn cents(bound: u64) -> Scene {
    scene(Budget { amount_cents: Some(bound), ..Budget::default() })
}

fn per_day(bound: u64) -> Scene {
    scene(Budget { per_day: Some(bound), ..Budget::default() })
}

fn pay(amount: u64, to: &str) -> Value {
    json!({"amount_cents": amount, "to": to})
}

/// The agent tells of the call `id`. Returns `true` if that was shown and the turn goes on.
fn tells(scene: &mut Scene, id: &str, status: &str, input: &Value) -> bool {
    scene.update(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "name": "Pay", "kind": "other",
        "status": status, "rawInput": input}),
    );
    let seen = scene.seen();
    seen.contains("c < ") && !seen.contains("without an approval")
}

/// The agent asks for the call `id`. Returns `true` if it is granted at once.
fn is_granted(scene: &mut Scene, request: u64, id: &str, input: &Value) -> bool {
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let call = json!({"toolCallId": id, "name": "Pay", "kind": "other", "rawInput": input});
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    scene.wants(request, "session/request_permission", &params);
    scene.seen().contains(r#""optionId":"y""#)
}

fn spent(scene: &Scene) -> u64 {
    let event = |event: &Event| event.facts.get("spent").map(|spent| spent.clone().into_value());
    scene.sight.events.iter().filter_map(event).filter_map(|spent| spent["cents"].as_u64()).sum()
}

#[test]
fn a_call_that_is_asked_for_with_a_larger_amount_than_announced_costs_that() {
    let mut scene = cents(1000);
    assert!(tells(&mut scene, "1", "pending", &pay(1, "m")));
    assert!(is_granted(&mut scene, 10, "1", &pay(990, "m")));
    assert!(tells(&mut scene, "2", "pending", &pay(1, "m")));
    assert!(!is_granted(&mut scene, 11, "2", &pay(990, "m")));
    assert!(is_granted(&mut scene, 12, "3", &pay(9, "m")));
    assert!(!is_granted(&mut scene, 13, "4", &pay(1, "m")));
}

#[test]
fn each_change_of_a_running_call_costs_all_that_it_says() {
    let mut scene = cents(2000);
    assert!(tells(&mut scene, "1", "in_progress", &pay(1, "m")));
    assert!(tells(&mut scene, "1", "in_progress", &pay(900, "a")));
    assert!(tells(&mut scene, "1", "in_progress", &pay(900, "b")));
    assert!(!tells(&mut scene, "1", "in_progress", &pay(900, "c")));
}

#[test]
fn a_change_after_the_grant_costs_all_that_it_says() {
    let mut scene = cents(1000);
    assert!(is_granted(&mut scene, 10, "1", &pay(900, "a")));
    tells(&mut scene, "1", "pending", &pay(900, "b"));
    assert!(!tells(&mut scene, "1", "in_progress", &pay(900, "b")));
}

#[test]
fn a_call_costs_its_amount_once_if_it_is_only_repeated() {
    let mut scene = cents(1000);
    for _ in 0..3 {
        assert!(tells(&mut scene, "1", "pending", &pay(900, "m")));
    }
    assert!(is_granted(&mut scene, 10, "1", &pay(900, "m")));
    assert!(tells(&mut scene, "1", "in_progress", &pay(900, "m")));
    assert!(tells(&mut scene, "1", "completed", &pay(900, "m")));
    assert!(is_granted(&mut scene, 11, "2", &pay(100, "m")));
    assert_eq!(spent(&scene), 1000);
}

#[test]
fn what_is_changed_before_it_is_granted_costs_the_difference() {
    let mut scene = cents(1000);
    assert!(tells(&mut scene, "1", "pending", &pay(600, "m")));
    assert!(tells(&mut scene, "1", "pending", &pay(900, "m")));
    assert!(tells(&mut scene, "1", "pending", &pay(100, "m")));
    assert!(is_granted(&mut scene, 10, "1", &pay(900, "m")));
    assert!(is_granted(&mut scene, 11, "2", &pay(100, "m")));
    assert!(!is_granted(&mut scene, 12, "3", &pay(1, "m")));
    assert_eq!(spent(&scene), 1000);
}

#[test]
fn each_change_of_a_call_is_one_more_call() {
    for status in ["pending", "in_progress"] {
        let mut scene = per_day(3);
        assert!(tells(&mut scene, "1", status, &pay(1, "a")));
        assert!(tells(&mut scene, "1", status, &pay(1, "b")));
        assert!(tells(&mut scene, "1", status, &pay(1, "c")));
        tells(&mut scene, "1", status, &pay(1, "d"));
        assert!(!tells(&mut scene, "1", "in_progress", &pay(1, "d")));
    }
    // The last call of a budget may be told of again.
    let mut scene = per_day(1);
    assert!(tells(&mut scene, "1", "pending", &json!({"path": "/w/a/x"})));
    let places = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress",
        "locations": [{"path": "/w/a/x"}]});
    scene.update(&places);
    let seen = scene.seen();
    assert!(seen.contains("c < ") && !seen.contains("without an approval"), "{seen}");
}
