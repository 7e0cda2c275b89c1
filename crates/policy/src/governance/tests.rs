//! Tests of which actions each kind of rule matches.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::access::{Access, Narrowing};
use crate::action::{Action, Command};
use crate::decision::Verdict;
use crate::kind::Kind;
use crate::policy::Policy;
use crate::request_context::RequestContext;

fn roots() -> Vec<PathBuf> {
    vec![PathBuf::from("/ws")]
}

/// Decides about an action by a ruleset, with a policy that allows as much as possible.
fn decide(ruleset: GovernanceRuleset, action: &Action, budget_usage: &BudgetUsage<'_>) -> GovernanceDecision {
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let roots = roots();
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    assert!(policy.decide(action, &context).verdict < Verdict::Deny, "{action:?}");
    policy.decide_governed(action, &context, budget_usage)
}

fn tool(name: &str, kind: Kind) -> Action {
    Action { tool: Some(name.into()), ..Action::new(kind) }
}

fn auto(rule: GovernanceRule) -> GovernanceRuleset {
    GovernanceRuleset::new(vec![rule]).with_default(DefaultApproval::Auto)
}

fn denies(action: &str, subject: Option<&str>) -> GovernanceRule {
    let rule = GovernanceRule::new("x", action, Class::Deny).with_max_level(4);
    match subject {
        Some(subject) => rule.with_subject(subject).unwrap(),
        None => rule,
    }
}

#[track_caller]
fn check(rule: &GovernanceRule, about: &[Action], not: &[Action]) {
    for action in about {
        let decision = decide(auto(rule.clone()), action, &BudgetUsage::EMPTY);
        assert_eq!(decision.class, Class::Deny, "is about {action:?}: {decision}");
        assert_eq!(decision.clauses, ["x"]);
    }
    for action in not {
        let decision = decide(auto(rule.clone()), action, &BudgetUsage::EMPTY);
        assert_eq!(decision.class, Class::Allow, "is not about {action:?}: {decision}");
    }
}

fn shell(text: &str) -> Action {
    Action { tool: Some("bash".into()), ..Action::execute(Command::Shell(text.into()), None) }
}

#[test]
fn a_tool_is_named_exactly_or_by_a_pattern() {
    check(&denies("tool.call", Some("pay")), &[tool("pay", Kind::Other)], &[tool("payment", Kind::Other)]);
    check(&denies("tool.call", Some("pay*")), &[tool("payment", Kind::Read)], &[tool("repay", Kind::Read)]);
    check(&denies("tool.call", None), &[tool("any", Kind::Think)], &[]);
    check(&denies("tool.call", Some("kind:edit")), &[tool("w", Kind::Edit)], &[tool("w", Kind::Read)]);
    let mcp = Action { server: Some("bank".into()), ..tool("pay", Kind::Fetch) };
    check(&denies("tool.call", Some("bank/*")), std::slice::from_ref(&mcp), &[tool("pay", Kind::Fetch)]);
    check(&denies("tool.call", Some("pay")), &[mcp], &[]);
}

#[test]
fn a_path_is_matched_from_the_root() {
    for subject in ["workspace:/finance/**", "/finance/**"] {
        check(
            &denies("workspace.write", Some(subject)),
            &[
                Action::file(Kind::Edit, "/ws/finance/a/b.md"),
                Action::file(Kind::Edit, "finance/a.md"),
                Action::file(Kind::Edit, "/ws/x/../finance/a.md"),
                Action::file(Kind::Delete, "/ws/finance"),
                shell("echo 1 > finance/a.md"),
            ],
            &[
                Action::file(Kind::Edit, "/ws/public/a.md"),
                Action::file(Kind::Read, "/ws/finance/a.md"),
                Action::file(Kind::Edit, "/ws/finances"),
            ],
        );
    }
    assert!(GovernanceRule::new("x", "*", Class::Deny).with_subject("/a/../b").is_err());
}

#[test]
fn an_allow_rule_needs_a_certain_match() {
    let allows = |subject: &str| {
        let rule = GovernanceRule::new("x", "workspace.write", Class::Allow)
            .with_max_level(4)
            .with_subject(subject)
            .unwrap();
        GovernanceRuleset::new(vec![rule]).with_default(DefaultApproval::Always)
    };
    let class = |ruleset, action: &Action| decide(ruleset, action, &BudgetUsage::EMPTY).class;
    assert_eq!(class(allows("/notes/**"), &Action::file(Kind::Edit, "/ws/notes/a")), Class::Allow);
    assert_eq!(class(allows("/notes/**"), &Action::file(Kind::Edit, "/ws/other/a")), Class::RequireApproval);
    assert_eq!(class(allows("/notes/**"), &shell("touch notes/a")), Class::RequireApproval);
    let both = Action { paths: vec!["/ws/notes/a".into(), "/ws/b".into()], ..Action::new(Kind::Edit) };
    assert_eq!(
        class(allows("/notes/**"), &both),
        Class::RequireApproval,
        "every path needs its own permission"
    );
}

#[test]
fn actions_are_named_by_their_effects() {
    let edit = Action::file(Kind::Edit, "/ws/a");
    let read = Action::file(Kind::Read, "/ws/a");
    let delete = Action::file(Kind::Delete, "/ws/a");
    check(&denies("workspace.read", None), std::slice::from_ref(&read), std::slice::from_ref(&edit));
    check(
        &denies("workspace.*", None),
        &[read.clone(), edit.clone(), delete.clone()],
        &[tool("t", Kind::Think)],
    );
    check(&denies("workspace.delete", None), std::slice::from_ref(&delete), std::slice::from_ref(&edit));
    check(&denies("mutates", None), &[edit.clone(), delete.clone()], std::slice::from_ref(&read));
    check(&denies("irreversible", None), &[delete, tool("t", Kind::Other)], &[edit, read.clone()]);
    check(&denies("command.run", None), &[shell("ls")], std::slice::from_ref(&read));
    check(&denies("network.fetch", None), &[tool("f", Kind::Fetch), shell("curl x")], &[read]);
    check(&denies("deploy.scheduled", None), &[], &[shell("x"), tool("deploy", Kind::Other)]);
}

#[test]
fn a_rule_can_be_limited_to_actions_and_risks() {
    let bound = denies("*", None).with_action("workspace.write");
    check(&bound, &[Action::file(Kind::Edit, "/ws/a")], &[Action::file(Kind::Read, "/ws/a")]);
    let risky = denies("tool.call", None).with_min_risk(2);
    check(&risky, &[tool("t", Kind::Execute), tool("t", Kind::Delete)], &[tool("t", Kind::Edit)]);
}

#[test]
fn the_strictest_rule_wins_in_any_order() {
    for (first, second) in Class::ALL.into_iter().flat_map(|a| Class::ALL.map(|b| (a, b))) {
        let rule = |slug: &str, class| GovernanceRule::new(slug, "tool.call", class).with_max_level(4);
        let ruleset = GovernanceRuleset::new(vec![rule("a", first), rule("b", second)]);
        let decision = decide(ruleset, &tool("t", Kind::Read), &BudgetUsage::EMPTY);
        assert_eq!(decision.class, first.max(second));
        assert_eq!(decision.clauses, ["a", "b"]);
    }
}

#[test]
fn the_access_policy_counts_as_well() {
    let ruleset = auto(GovernanceRule::new("x", "tool.call", Class::Allow).with_max_level(4));
    let low = Policy::new(Access::Low, Narrowing::default()).with_ruleset(ruleset);
    let roots = roots();
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    let edit = Action::file(Kind::Edit, "/ws/a");
    let decision = low.decide_governed(&edit, &context, &BudgetUsage::EMPTY);
    assert_eq!(decision.class, Class::from_verdict(low.decide(&edit, &context).verdict));
    assert!(decision.class > Class::Allow && matches!(decision.reason, GovernanceReason::Policy(_)));
    let refused = RequestContext { refused: Some("no"), ..context };
    assert_eq!(
        low.decide_governed(&Action::new(Kind::Think), &refused, &BudgetUsage::EMPTY).class,
        Class::Deny
    );
}

#[test]
fn without_a_match_the_default_decides() {
    let class = |default: DefaultApproval, kind: Kind| {
        decide(GovernanceRuleset::default().with_default(default), &tool("t", kind), &BudgetUsage::EMPTY)
            .class
    };
    assert_eq!(class(DefaultApproval::Auto, Kind::Execute), Class::Allow);
    assert_eq!(class(DefaultApproval::Always, Kind::Read), Class::RequireApproval);
    assert_eq!(class(DefaultApproval::OnMutate, Kind::Read), Class::Allow);
    assert_eq!(class(DefaultApproval::OnMutate, Kind::Edit), Class::RequireApproval);
    assert_eq!(class(DefaultApproval::Rule("gone".into()), Kind::Read), Class::RequireApproval);
    let named = GovernanceRule::new("night", "deploy.night", Class::Escalate).with_max_level(4);
    let ruleset = GovernanceRuleset::new(vec![named]).with_default(DefaultApproval::Rule("night".into()));
    let decision = decide(ruleset, &tool("t", Kind::Read), &BudgetUsage::EMPTY);
    assert_eq!((decision.class, decision.clauses.as_slice()), (Class::Escalate, &["night".to_owned()][..]));
}

#[test]
fn above_its_maximum_level_a_rule_escalates() {
    let ruleset = |level| {
        auto(GovernanceRule::new("x", "tool.call", Class::Allow).with_max_level(3)).with_level(Some(level))
    };
    let read = tool("t", Kind::Read);
    assert_eq!(decide(ruleset(3), &read, &BudgetUsage::EMPTY).class, Class::Allow);
    let decision = decide(ruleset(4), &read, &BudgetUsage::EMPTY);
    assert_eq!(decision.class, Class::Escalate);
    assert_eq!(decision.to_string(), "escalate: policy `x` is limited to autonomy 3, but the level is 4");
    let usual = auto(GovernanceRule::new("x", "tool.call", Class::Allow).with_max_level(1));
    assert_eq!(decide(usual, &read, &BudgetUsage::EMPTY).class, Class::Escalate, "without a level it is 2");
    let denied = auto(denies("tool.call", None).with_max_level(0)).with_level(Some(4));
    assert_eq!(decide(denied, &read, &BudgetUsage::EMPTY).class, Class::Deny, "a denial is not made milder");
}

#[test]
fn the_level_limits_what_rules_allow() {
    let class = |level, kind| {
        let ruleset =
            auto(GovernanceRule::new("x", "tool.call", Class::Allow).with_max_level(4)).with_level(level);
        decide(ruleset, &tool("t", kind), &BudgetUsage::EMPTY).class
    };
    for level in 0..=4 {
        assert_eq!(class(Some(level), Kind::Read), Class::Allow);
    }
    assert_eq!(class(Some(0), Kind::Edit), Class::Escalate);
    assert_eq!(class(Some(1), Kind::Edit), Class::RequireApproval);
    assert_eq!(class(Some(2), Kind::Edit), Class::Allow);
    assert_eq!(class(Some(2), Kind::Delete), Class::RequireApproval);
    assert_eq!(class(Some(3), Kind::Delete), Class::Allow);
    assert_eq!(class(None, Kind::Delete), Class::Allow);
}

#[test]
fn an_exhausted_budget_requires_an_approval() {
    let signer = Signer { role: Some("lead".into()), user_id: None };
    let rule = GovernanceRule::new("spend", "tool.call", Class::Allow)
        .with_max_level(4)
        .with_signers(vec![signer.clone()], 2)
        .with_budget(Budget { per_day: Some(2), ..Budget::default() });
    let budget_usage = |day| RuleUsage { day, ..RuleUsage::default() };
    let used = |slug: &str| if slug == "spend" { budget_usage(2) } else { RuleUsage::default() };
    let action = tool("ads", Kind::Read);
    assert_eq!(
        decide(
            auto(rule.clone()),
            &action,
            &BudgetUsage { usage: &|_| budget_usage(1), ..BudgetUsage::EMPTY }
        )
        .class,
        Class::Allow
    );
    let decision = decide(auto(rule), &action, &BudgetUsage { usage: &used, ..BudgetUsage::EMPTY });
    assert_eq!(decision.class, Class::RequireApproval);
    assert_eq!(decision.approvals, [Approval { clause: "spend".into(), signers: vec![signer], quorum: 2 }]);
    assert_eq!(
        decision.to_string(),
        "require-approval: the requests of this day under policy `spend` are exhausted (2 of 2, renewed at 00:00 UTC)"
    );
}

#[test]
fn every_matching_rule_adds_its_approval() {
    let rule = |slug: &str| GovernanceRule::new(slug, "tool.call", Class::RequireApproval).with_max_level(4);
    let ruleset = GovernanceRuleset::new(vec![rule("a"), rule("b")]);
    let decision = decide(ruleset, &tool("t", Kind::Read), &BudgetUsage::EMPTY);
    let rules: Vec<&str> = decision.approvals.iter().map(|approval| approval.clause.as_str()).collect();
    assert_eq!(rules, ["a", "b"]);
}

#[test]
fn a_decision_lists_the_actions_for_approvers() {
    let actions = |action: &Action| decide(GovernanceRuleset::default(), action, &BudgetUsage::EMPTY).actions;
    assert_eq!(actions(&Action::file(Kind::Edit, "/ws/a")), ["tool.call", "workspace.write", "mutates"]);
    assert_eq!(actions(&tool("t", Kind::Read)), ["tool.call", "workspace.read"]);
    assert_eq!(
        actions(&Action::file(Kind::Delete, "/ws/a")),
        ["tool.call", "workspace.write", "workspace.delete", "mutates", "irreversible"]
    );
}

#[test]
fn warnings_are_noted_and_decide_nothing() {
    let ruleset = auto(denies("tool.call", None).with_severity(Severity::Warn));
    let decision = decide(ruleset, &tool("t", Kind::Read), &BudgetUsage::EMPTY);
    assert_eq!(decision.class, Class::Allow);
    assert_eq!(
        decision.notes,
        [RuleNote { clause: "x".into(), severity: Severity::Warn, class: Class::Deny }]
    );
}

#[test]
fn every_considered_rule_is_explained() {
    let ruleset = GovernanceRuleset::new(vec![
        denies("tool.call", Some("pay")),
        denies("workspace.write", Some("/a/**")),
    ]);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let roots = roots();
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    let considered = policy.explain_governance(&shell("touch a/b"), &context, &BudgetUsage::EMPTY);
    let told: Vec<(bool, &str)> = considered.iter().map(|one| (one.matched, one.why.as_str())).collect();
    assert_eq!(told, [(false, "its `subject` does not match"), (true, "may match, because of its `action`")]);
}

fn any_rule() -> impl Strategy<Value = GovernanceRule> {
    let actions = prop::sample::select(vec![
        "*",
        "tool.call",
        "workspace.*",
        "workspace.write",
        "mutates",
        "command.run",
    ]);
    let subjects = prop::sample::select(vec![
        None,
        Some("a*"),
        Some("bash"),
        Some("/a/**"),
        Some("workspace:/"),
        Some("kind:*"),
    ]);
    let classes = prop::sample::select(Class::ALL.to_vec());
    (actions, subjects, classes, 0_u8..=3, 0_u8..=4).prop_map(|(action, subject, class, risk, ceiling)| {
        let rule = GovernanceRule::new("x", action, class).with_min_risk(risk).with_max_level(ceiling);
        match subject {
            Some(subject) => rule.with_subject(subject).unwrap(),
            None => rule,
        }
    })
}

fn any_action() -> impl Strategy<Value = Action> {
    let kinds = prop::sample::select(Kind::ALL.to_vec());
    let paths = prop::collection::vec(prop::sample::select(vec!["/ws/a/b", "a", "/ws/c", "../x"]), 0..3);
    let commands = prop::sample::select(vec![
        None,
        Some("ls a"),
        Some("rm -rf a; touch c"),
        Some("cat c > a/b"),
        Some("$X"),
    ]);
    let tools = prop::sample::select(vec![None, Some("a"), Some("abc"), Some("bash")]);
    (kinds, paths, commands, tools).prop_map(|(kind, paths, command, tool)| Action {
        paths: paths.into_iter().map(PathBuf::from).collect(),
        command: command.map(|text| Command::Shell(text.to_owned())),
        tool: tool.map(str::to_owned),
        ..Action::new(kind)
    })
}

fn judged(ruleset: GovernanceRuleset, action: &Action) -> GovernanceDecision {
    let roots = roots();
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    policy.decide_governed(
        action,
        &RequestContext { roots: &roots, ..RequestContext::default() },
        &BudgetUsage::EMPTY,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn one_more_rule_never_makes_a_decision_milder(
        rules in prop::collection::vec(any_rule(), 0..4), more in any_rule(), action in any_action(), level in 0_u8..=4
    ) {
        // If other rules decide, or the default allows, one more rule can only make the decision stricter.
        let before = judged(GovernanceRuleset::new(rules.clone()).with_default(DefaultApproval::Auto), &action);
        let both: Vec<GovernanceRule> = rules.iter().cloned().chain([more.clone()]).collect();
        let after = judged(GovernanceRuleset::new(both.clone()).with_default(DefaultApproval::Auto), &action);
        prop_assert!(after.class >= before.class, "{before} {after}");
        let reversed: Vec<GovernanceRule> = both.iter().rev().cloned().collect();
        let other = judged(GovernanceRuleset::new(reversed).with_default(DefaultApproval::Auto), &action);
        prop_assert_eq!(other.class, after.class, "their order has no effect");
        let levelled = judged(GovernanceRuleset::new(both).with_default(DefaultApproval::Auto).with_level(Some(level)), &action);
        let denied = levelled.class == Class::Deny;
        prop_assert_eq!(denied, after.class == Class::Deny, "a level neither denies nor lifts a denial");
    }

    #[test]
    fn rules_never_override_a_stricter_policy(rules in prop::collection::vec(any_rule(), 0..4), action in any_action()) {
        let roots = roots();
        let context = RequestContext { roots: &roots, ..RequestContext::default() };
        for access in [Access::Low, Access::Medium, Access::High] {
            let policy = Policy::new(access, Narrowing::default());
            let alone = Class::from_verdict(policy.decide(&action, &context).verdict);
            let decision = policy.with_ruleset(GovernanceRuleset::new(rules.clone())).decide_governed(&action, &context, &BudgetUsage::EMPTY);
            prop_assert!(decision.class >= alone, "{decision}");
        }
    }
}

fn with_command(kind: Kind, path: &str, line: &str) -> Action {
    Action { command: Some(Command::Shell(line.into())), ..Action::file(kind, path) }
}

#[test]
fn a_change_beside_a_harmless_command_mutates() {
    for kind in [Kind::Edit, Kind::Move, Kind::Delete, Kind::Other, Kind::SwitchMode] {
        let action = with_command(kind, "/ws/finance/a", "ls");
        check(&denies("mutates", Some("/finance/**")), std::slice::from_ref(&action), &[]);
        check(&denies("mutates", None), std::slice::from_ref(&action), &[]);
    }
    check(&denies("mutates", None), &[], &[with_command(Kind::Read, "/ws/a", "ls"), shell("ls")]);
}

#[test]
fn a_policy_that_allows_one_action_does_not_allow_the_rest_of_a_request() {
    let class = |action: &str, subject: Option<&str>, named_target: &Action| {
        let rule = GovernanceRule::new("x", action, Class::Allow).with_max_level(4);
        let rule = subject.map_or(rule.clone(), |subject| rule.with_subject(subject).unwrap());
        decide(
            GovernanceRuleset::new(vec![rule]).with_default(DefaultApproval::Always),
            named_target,
            &BudgetUsage::EMPTY,
        )
        .class
    };
    let fetch = |kind| Action { urls: vec!["https://example.com".into()], ..Action::file(kind, "/ws/a") };
    let search = |line: &str| Action { also: vec![Kind::Search], ..shell(line) };
    let unknown = |line: &str| Action { kind: Kind::Other, ..shell(line) };
    for (action, subject, named_target, expected) in [
        ("command.run", None, shell("make"), Class::Allow),
        ("command.run", None, unknown("make"), Class::Allow),
        ("command.run", None, with_command(Kind::Edit, "/ws/a", "ls"), Class::RequireApproval),
        ("command.run", None, with_command(Kind::Other, "/ws/a", "ls"), Class::RequireApproval),
        ("tool.call", Some("kind:execute"), shell("make"), Class::Allow),
        ("tool.call", Some("kind:execute"), unknown("make"), Class::Allow),
        ("tool.call", Some("kind:execute"), with_command(Kind::Edit, "/ws/a", "ls"), Class::RequireApproval),
        ("tool.call", Some("kind:edit"), with_command(Kind::Edit, "/ws/a", "create"), Class::Allow),
        ("tool.call", Some("kind:*"), with_command(Kind::Edit, "/ws/a", "ls"), Class::Allow),
        ("tool.call", Some("kind:search"), search("grep a b"), Class::Allow),
        ("tool.call", Some("kind:search"), search("make"), Class::RequireApproval),
        ("workspace.read", None, search("grep a b"), Class::Allow),
        ("workspace.read", None, search("make"), Class::RequireApproval),
        ("workspace.write", None, with_command(Kind::Edit, "/ws/a", "create"), Class::Allow),
        ("workspace.write", None, with_command(Kind::Edit, "/ws/a", "make"), Class::RequireApproval),
        ("workspace.*", None, with_command(Kind::Delete, "/ws/a", "make"), Class::RequireApproval),
        ("workspace.write", None, fetch(Kind::Edit), Class::RequireApproval),
        ("mutates", None, with_command(Kind::Edit, "/ws/a", "make"), Class::Allow),
        ("tool.call", Some("kind:edit"), with_command(Kind::Edit, "/ws/a", "make"), Class::RequireApproval),
        ("network.fetch", None, Action { paths: Vec::new(), ..fetch(Kind::Other) }, Class::Allow),
        ("network.fetch", None, fetch(Kind::Edit), Class::RequireApproval),
        ("tool.call", Some("kind:fetch"), fetch(Kind::Edit), Class::RequireApproval),
    ] {
        assert_eq!(class(action, subject, &named_target), expected, "{action} {subject:?} {named_target:?}");
    }
}
