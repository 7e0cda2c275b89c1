use narrows_policy::{Access, Budget, DefaultApproval, GovernanceRule, GovernanceRuleset, Narrowing};
use serde_json::json;

use super::*;

fn authorizer(clauses: Vec<GovernanceRule>) -> Authorizer {
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::Auto);
    Authorizer::new(Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset), "n")
}

fn call(name: &str, kind: &str) -> Call {
    Call::new(None, name, kind, json!({}))
}

#[test]
fn ungranted_tools_are_denied_before_the_policy() {
    let authorizer = authorizer(Vec::new());
    let tools = ToolSet {
        names: ["notes".to_owned(), "kind:read".to_owned()].into(),
        servers: [("db".to_owned(), Some(["query".to_owned()].into()))].into(),
    };
    let config = GateConfig { tools: Some(tools), ..GateConfig::default() };
    let principal = Principal::default();
    let check = |call: Call, expected: Class| {
        assert_eq!(
            authorizer.decide(&call, &config, &principal, &[], 0).class(),
            expected,
            "{}",
            call.tool()
        );
    };
    check(call("notes", "think"), Class::Allow);
    check(call("Read", "read"), Class::Allow);
    check(call("other", "think"), Class::Deny);
    check(Call::new(Some("db".into()), "query", "read", json!({})), Class::Allow);
    check(Call::new(Some("db".into()), "drop", "read", json!({})), Class::Deny);
    check(Call::new(Some("other".into()), "query", "read", json!({})), Class::Deny);
}

#[test]
fn claimed_names_and_kinds_grant_nothing() {
    let authorizer = authorizer(Vec::new());
    let principal = Principal::default();
    let check = |tools: &[&str], told: (Option<&str>, &str), input: Value, expected: Class| {
        let names = tools.iter().map(|&tool| tool.to_owned()).collect();
        let tools = Some(ToolSet { names, ..ToolSet::default() });
        let config = GateConfig { tools, ..GateConfig::default() };
        let call = Call::reported(told.0, told.1, input);
        assert_eq!(
            authorizer.decide(&call, &config, &principal, &[], 0).class(),
            expected,
            "{told:?} {:?}",
            call.input
        );
    };
    let rm = || json!({"command": "rm -rf x"});
    check(&["kind:read"], (None, "read"), json!({"path": "/a"}), Class::Allow);
    // The agent reports a tool name that looks like a kind.
    check(&["kind:read"], (Some("kind:read"), "execute"), rm(), Class::Deny);
    check(&["kind:read"], (Some("kind:read"), "read"), rm(), Class::Deny);
    check(&["db/query"], (Some("db/query"), "read"), json!({}), Class::Deny);
    check(&["turn"], (Some("turn"), "execute"), rm(), Class::Deny);
    // The tool has no name, so only its kind is known.
    check(&["kind:read"], (None, "read"), rm(), Class::Deny);
    check(&["kind:read"], (None, "read"), json!({"url": "http://a.example"}), Class::Deny);
    check(&["kind:execute"], (None, "read"), rm(), Class::Deny);
    check(&["kind:read", "kind:execute"], (None, "read"), rm(), Class::Allow);
    check(&["kind:execute"], (None, "execute"), rm(), Class::Allow);
    // An allow policy about a kind or a server does not match a tool name that imitates the kind or the
    // server.
    let permits = GovernanceRule::new("look", "tool.call", Class::Allow)
        .with_max_level(4)
        .with_subject("kind:read")
        .unwrap();
    let ruleset =
        GovernanceRuleset::new(vec![permits]).with_level(Some(2)).with_default(DefaultApproval::Always);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    for (told, expected) in
        [((None, "read"), Class::Allow), ((Some("kind:read"), "execute"), Class::RequireApproval)]
    {
        let ruling = preview_decision(&GateConfig::default(), &principal, &policy, told, &json!({}));
        assert_eq!(ruling.class, expected, "{told:?}");
    }
    // A deny policy does match a tool name that imitates a kind or a server.
    let forbids = GovernanceRule::new("not", "tool.call", Class::Deny).with_subject("db/query").unwrap();
    let ruleset =
        GovernanceRuleset::new(vec![forbids]).with_level(Some(2)).with_default(DefaultApproval::Auto);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    for (told, expected) in
        [((Some("db/other"), "read"), Class::Allow), ((Some("db/query"), "read"), Class::Deny)]
    {
        let ruling = preview_decision(&GateConfig::default(), &principal, &policy, told, &json!({}));
        assert_eq!(ruling.class, expected, "{told:?}");
    }
}

#[test]
fn a_built_in_tool_grants_its_client_requests() {
    let authorizer = authorizer(Vec::new());
    let with_scopes = |scopes: &[&str]| Principal {
        scopes: Some(scopes.iter().map(|&scope| scope.to_owned()).collect()),
        ..Principal::default()
    };
    let check = |tools: &[&str], asks_first: bool, principal: &Principal, method: &str, expected: Class| {
        let names = tools.iter().map(|&tool| tool.to_owned()).collect();
        let tools = Some(ToolSet { names, ..ToolSet::default() });
        let config = GateConfig { tools, asks_first, ..GateConfig::default() };
        assert_eq!(
            authorizer.decide(&call(method, "think"), &config, principal, &[], 0).class(),
            expected,
            "{method}"
        );
    };
    let anybody = Principal::default();
    check(&["write_file"], true, &anybody, "fs/write_text_file", Class::Allow);
    check(&["write_file"], true, &anybody, "fs/read_text_file", Class::Allow);
    check(&["read_file"], true, &anybody, "fs/write_text_file", Class::Deny);
    check(&["run_command"], true, &anybody, "terminal/create", Class::Allow);
    check(&["run_command"], true, &anybody, "fs/read_text_file", Class::Deny);
    check(&["run_command"], true, &with_scopes(&["run_command"]), "terminal/create", Class::Allow);
    check(&["run_command"], true, &with_scopes(&["read_file"]), "terminal/create", Class::Deny);
    // The grant of a tool covers client requests only for the built-in agent, which checks its tools first.
    check(&["write_file"], false, &anybody, "fs/write_text_file", Class::Deny);
}

#[test]
fn scopes_of_an_identity_narrow_the_tools_of_the_operator() {
    let authorizer = authorizer(Vec::new());
    let config = GateConfig::default();
    let principal =
        Principal { id: "user:ada".into(), scopes: Some(vec!["notes".into()]), ..Principal::default() };
    assert_eq!(authorizer.decide(&call("notes", "think"), &config, &principal, &[], 0).class(), Class::Allow);
    let decision = authorizer.decide(&call("other", "think"), &config, &principal, &[], 0);
    assert_eq!(decision.class(), Class::Deny);
    assert!(decision.reason().contains("user:ada"));
}

#[test]
fn a_budget_is_counted_by_hours_and_days_of_the_clock() {
    let budget = Budget { per_hour: Some(2), per_day: Some(3), ..Budget::default() };
    let mut authorizer = authorizer(vec![
        GovernanceRule::new("few", "tool.call", Class::Allow).with_max_level(4).with_budget(budget),
    ]);
    let (config, principal) = (GateConfig::default(), Principal::default());
    let mut spend = |at: u64| {
        let decision = authorizer.decide(&call("notes", "think"), &config, &principal, &[], at);
        if decision.class() == Class::Allow {
            authorizer.count_call(&decision, at, Digest::default(), &mut None);
        }
        decision.class()
    };
    let classes: Vec<Class> = [10, 20, 30, HOUR, HOUR + 1, DAY].into_iter().map(&mut spend).collect();
    let asks = Class::RequireApproval;
    assert_eq!(classes, [Class::Allow, Class::Allow, asks, Class::Allow, asks, Class::Allow]);
}

#[test]
fn cost_limits_count_the_amounts_in_inputs() {
    let budget = Budget { amount_cents: Some(100), ..Budget::default() };
    let mut authorizer = authorizer(vec![
        GovernanceRule::new("few", "tool.call", Class::Allow).with_max_level(4).with_budget(budget),
    ]);
    let (config, principal) = (GateConfig::default(), Principal::default());
    let mut spend = |input: Value, at: u64| {
        let decision =
            authorizer.decide(&Call::new(None, "pay", "think", input), &config, &principal, &[], at);
        if decision.class() == Class::Allow {
            authorizer.count_call(&decision, at, Digest::default(), &mut None);
        }
        decision.class()
    };
    let asks = Class::RequireApproval;
    assert_eq!(spend(json!({"amount_cents": 101}), 0), asks);
    for odd in [
        json!({"amount_cents": 5e4}),
        json!({"amount_cents": 50_000.0}),
        json!({"amount_cents": "50000"}),
        json!({"amount_cents": 1e30}),
        json!({"amount_cents": -1}),
        json!({"amount_cents": [50_000]}),
        json!({"amount_cents": null}),
        json!({"amount_cents": 1, "amountCents": 50_000}),
    ] {
        assert_eq!(spend(odd.clone(), 0), asks, "{odd}");
    }
    assert_eq!(spend(json!({"amount_cents": 59.5}), 0), Class::Allow);
    assert_eq!(spend(json!({"amountCents": 41}), 0), asks);
    assert_eq!(spend(json!({"amount_cents": 40}), HOUR), Class::Allow);
    assert_eq!(spend(json!({"amount_cents": 1}), HOUR), asks);
    assert_eq!(spend(json!({}), HOUR), asks, "the cost is unknown, and the budget is used up");
    assert_eq!(spend(json!({"amount_cents": 1}), DAY), Class::Allow);
}

/// A budget source that returns these uses, one after the other. `None` stands for a failure.
#[derive(Debug)]
struct Others(Vec<Option<Vec<BudgetUse>>>);

impl BudgetSource for Others {
    fn read_new(&mut self) -> Result<Vec<BudgetUse>, crate::shared_budget::BudgetError> {
        let source = std::io::Error::other("gone");
        let error = narrows_audit::ReadError::Io { segment: String::new(), source };
        self.0.remove(0).ok_or_else(|| error.into())
    }
}

#[test]
fn use_by_other_gates_counts_and_unknown_use_exhausts_budgets() {
    let budget = Budget { per_hour: Some(2), per_day: Some(4), ..Budget::default() };
    let clauses =
        vec![GovernanceRule::new("few", "tool.call", Class::Allow).with_max_level(4).with_budget(budget)];
    let spent = |gate: &str, at: u64| BudgetUse {
        gate: gate.into(),
        policies: vec!["few".into(), "other".into()],
        cents: None,
        at,
    };
    let now = DAY + 5 * HOUR;
    let news = vec![
        // Uses of yesterday, of an hour ago, of this gate, and of another gate just now.
        Some(vec![spent("o", 10), spent("o", now - HOUR), spent("n", now), spent("o", now)]),
        Some(vec![spent("o", now + 1)]),
        None,
        Some(Vec::new()),
    ];
    let mut authorizer = authorizer(clauses).with_budget_source(Box::new(Others(news)));
    let (config, principal) = (GateConfig::default(), Principal::default());
    let mut class = |at: u64| {
        authorizer.refresh();
        authorizer.decide(&call("notes", "think"), &config, &principal, &[], at).class()
    };
    assert_eq!(class(now), Class::Allow);
    assert_eq!(class(now + 1), Class::RequireApproval, "two in this hour");
    assert_eq!(class(now + HOUR), Class::RequireApproval, "the use by other gates is unknown");
    assert_eq!(class(now + HOUR), Class::Allow, "three in this day");
}
