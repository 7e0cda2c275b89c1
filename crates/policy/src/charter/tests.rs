//! Every rule of a charter with what it is about and what it is not.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::access::{Access, Narrowing};
use crate::action::{Action, Command};
use crate::decision::Verdict;
use crate::kind::Kind;
use crate::policy::Policy;
use crate::scene::Scene;

fn roots() -> Vec<PathBuf> {
    vec![PathBuf::from("/ws")]
}

/// What a charter says to an action, beside a policy that allows everything it can.
fn rule(charter: Charter, action: &Action, ledger: &Ledger<'_>) -> Ruling {
    let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter);
    let roots = roots();
    let scene = Scene { roots: &roots, ..Scene::default() };
    assert!(policy.decide(action, &scene).verdict < Verdict::Deny, "{action:?}");
    policy.rule(action, &scene, ledger)
}

fn tool(name: &str, kind: Kind) -> Action {
    Action { tool: Some(name.into()), ..Action::new(kind) }
}

fn auto(clause: Clause) -> Charter {
    Charter::new(vec![clause]).with_default(DefaultApproval::Auto)
}

/// A clause that denies, so that whether it matched shows.
fn denies(action: &str, subject: Option<&str>) -> Clause {
    let clause = Clause::new("x", action, Class::Deny).up_to(4);
    match subject {
        Some(subject) => clause.on(subject).unwrap(),
        None => clause,
    }
}

#[track_caller]
fn check(clause: &Clause, about: &[Action], not: &[Action]) {
    for action in about {
        let ruling = rule(auto(clause.clone()), action, &Ledger::EMPTY);
        assert_eq!(ruling.class, Class::Deny, "is about {action:?}: {ruling}");
        assert_eq!(ruling.clauses, ["x"]);
    }
    for action in not {
        let ruling = rule(auto(clause.clone()), action, &Ledger::EMPTY);
        assert_eq!(ruling.class, Class::Allow, "is not about {action:?}: {ruling}");
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
fn a_path_counts_from_the_root_on() {
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
    assert!(Clause::new("x", "*", Class::Deny).on("/a/../b").is_err());
}

#[test]
fn what_permits_must_be_certain() {
    let allows = |subject: &str| {
        let clause = Clause::new("x", "workspace.write", Class::Allow).up_to(4).on(subject).unwrap();
        Charter::new(vec![clause]).with_default(DefaultApproval::Always)
    };
    let class = |charter, action: &Action| rule(charter, action, &Ledger::EMPTY).class;
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
fn actions_have_names_by_what_they_do() {
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
fn a_clause_may_be_bound_to_some_actions_and_risks() {
    let bound = denies("*", None).bound_to("workspace.write");
    check(&bound, &[Action::file(Kind::Edit, "/ws/a")], &[Action::file(Kind::Read, "/ws/a")]);
    let risky = denies("tool.call", None).from_risk(2);
    check(&risky, &[tool("t", Kind::Execute), tool("t", Kind::Delete)], &[tool("t", Kind::Edit)]);
}

#[test]
fn the_strictest_clause_wins_wherever_it_stands() {
    for (first, second) in Class::ALL.into_iter().flat_map(|a| Class::ALL.map(|b| (a, b))) {
        let clause = |slug: &str, class| Clause::new(slug, "tool.call", class).up_to(4);
        let charter = Charter::new(vec![clause("a", first), clause("b", second)]);
        let ruling = rule(charter, &tool("t", Kind::Read), &Ledger::EMPTY);
        assert_eq!(ruling.class, first.max(second));
        assert_eq!(ruling.clauses, ["a", "b"]);
    }
}

#[test]
fn the_policy_beside_it_counts_as_well() {
    let charter = auto(Clause::new("x", "tool.call", Class::Allow).up_to(4));
    let low = Policy::new(Access::Low, Narrowing::default()).with_charter(charter);
    let roots = roots();
    let scene = Scene { roots: &roots, ..Scene::default() };
    let edit = Action::file(Kind::Edit, "/ws/a");
    let ruling = low.rule(&edit, &scene, &Ledger::EMPTY);
    assert_eq!(ruling.class, Class::of(low.decide(&edit, &scene).verdict));
    assert!(ruling.class > Class::Allow && matches!(ruling.reason, Reason::Policy(_)));
    let refused = Scene { refused: Some("no"), ..scene };
    assert_eq!(low.rule(&Action::new(Kind::Think), &refused, &Ledger::EMPTY).class, Class::Deny);
}

#[test]
fn without_a_match_the_default_decides() {
    let class = |default: DefaultApproval, kind: Kind| {
        rule(Charter::default().with_default(default), &tool("t", kind), &Ledger::EMPTY).class
    };
    assert_eq!(class(DefaultApproval::Auto, Kind::Execute), Class::Allow);
    assert_eq!(class(DefaultApproval::Always, Kind::Read), Class::RequireApproval);
    assert_eq!(class(DefaultApproval::OnMutate, Kind::Read), Class::Allow);
    assert_eq!(class(DefaultApproval::OnMutate, Kind::Edit), Class::RequireApproval);
    assert_eq!(class(DefaultApproval::Clause("gone".into()), Kind::Read), Class::RequireApproval);
    let named = Clause::new("night", "deploy.night", Class::Escalate).up_to(4);
    let charter = Charter::new(vec![named]).with_default(DefaultApproval::Clause("night".into()));
    let ruling = rule(charter, &tool("t", Kind::Read), &Ledger::EMPTY);
    assert_eq!((ruling.class, ruling.clauses.as_slice()), (Class::Escalate, &["night".to_owned()][..]));
}

#[test]
fn above_its_ceiling_a_clause_escalates() {
    let charter = |level| auto(Clause::new("x", "tool.call", Class::Allow).up_to(3)).with_level(Some(level));
    let read = tool("t", Kind::Read);
    assert_eq!(rule(charter(3), &read, &Ledger::EMPTY).class, Class::Allow);
    let ruling = rule(charter(4), &read, &Ledger::EMPTY);
    assert_eq!(ruling.class, Class::Escalate);
    assert_eq!(ruling.to_string(), "escalate: policy `x` holds up to autonomy 3, and this is 4");
    let usual = auto(Clause::new("x", "tool.call", Class::Allow).up_to(1));
    assert_eq!(rule(usual, &read, &Ledger::EMPTY).class, Class::Escalate, "without a level it is 2");
    let denied = auto(denies("tool.call", None).up_to(0)).with_level(Some(4));
    assert_eq!(rule(denied, &read, &Ledger::EMPTY).class, Class::Deny, "no is not made milder");
}

#[test]
fn the_level_bounds_what_clauses_allow() {
    let class = |level, kind| {
        let charter = auto(Clause::new("x", "tool.call", Class::Allow).up_to(4)).with_level(level);
        rule(charter, &tool("t", kind), &Ledger::EMPTY).class
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
fn a_budget_that_is_used_up_needs_an_approval() {
    let signer = Signer { role: Some("lead".into()), user_id: None };
    let clause = Clause::new("spend", "tool.call", Class::Allow)
        .up_to(4)
        .signed_by(vec![signer.clone()], 2)
        .within(Budget { per_day: Some(2), ..Budget::default() });
    let ledger = |day| Usage { day, ..Usage::default() };
    let used = |slug: &str| if slug == "spend" { ledger(2) } else { Usage::default() };
    let action = tool("ads", Kind::Read);
    assert_eq!(
        rule(auto(clause.clone()), &action, &Ledger { usage: &|_| ledger(1), ..Ledger::EMPTY }).class,
        Class::Allow
    );
    let ruling = rule(auto(clause), &action, &Ledger { usage: &used, ..Ledger::EMPTY });
    assert_eq!(ruling.class, Class::RequireApproval);
    assert_eq!(ruling.approvals, [Approval { clause: "spend".into(), signers: vec![signer], quorum: 2 }]);
    assert_eq!(
        ruling.to_string(),
        "require-approval: the requests of this day under policy `spend` are used up (2 of 2, renewed at 00:00 UTC)"
    );
}

#[test]
fn every_approval_is_asked_for() {
    let clause = |slug: &str| Clause::new(slug, "tool.call", Class::RequireApproval).up_to(4);
    let charter = Charter::new(vec![clause("a"), clause("b")]);
    let ruling = rule(charter, &tool("t", Kind::Read), &Ledger::EMPTY);
    let clauses: Vec<&str> = ruling.approvals.iter().map(|approval| approval.clause.as_str()).collect();
    assert_eq!(clauses, ["a", "b"]);
}

#[test]
fn a_ruling_tells_what_approvers_are_asked_for() {
    let actions = |action: &Action| rule(Charter::default(), action, &Ledger::EMPTY).actions;
    assert_eq!(actions(&Action::file(Kind::Edit, "/ws/a")), ["tool.call", "workspace.write", "mutates"]);
    assert_eq!(actions(&tool("t", Kind::Read)), ["tool.call", "workspace.read"]);
    assert_eq!(
        actions(&Action::file(Kind::Delete, "/ws/a")),
        ["tool.call", "workspace.write", "workspace.delete", "mutates", "irreversible"]
    );
}

#[test]
fn warnings_are_heard_and_decide_nothing() {
    let charter = auto(denies("tool.call", None).with_severity(Severity::Warn));
    let ruling = rule(charter, &tool("t", Kind::Read), &Ledger::EMPTY);
    assert_eq!(ruling.class, Class::Allow);
    assert_eq!(ruling.notes, [Note { clause: "x".into(), severity: Severity::Warn, class: Class::Deny }]);
}

#[test]
fn everything_that_was_looked_at_is_told() {
    let charter =
        Charter::new(vec![denies("tool.call", Some("pay")), denies("workspace.write", Some("/a/**"))]);
    let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter);
    let roots = roots();
    let scene = Scene { roots: &roots, ..Scene::default() };
    let considered = policy.consider(&shell("touch a/b"), &scene, &Ledger::EMPTY);
    let told: Vec<(bool, &str)> = considered.iter().map(|one| (one.matched, one.why.as_str())).collect();
    assert_eq!(told, [(false, "its `subject` does not match"), (true, "may match, going by its `action`")]);
}

fn any_clause() -> impl Strategy<Value = Clause> {
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
        let clause = Clause::new("x", action, class).from_risk(risk).up_to(ceiling);
        match subject {
            Some(subject) => clause.on(subject).unwrap(),
            None => clause,
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

fn judged(charter: Charter, action: &Action) -> Ruling {
    let roots = roots();
    let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter);
    policy.rule(action, &Scene { roots: &roots, ..Scene::default() }, &Ledger::EMPTY)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_is_made_milder_by_one_more_rule(
        clauses in prop::collection::vec(any_clause(), 0..4), more in any_clause(), action in any_action(), level in 0_u8..=4
    ) {
        // Where clauses already decide, or the default allows, another can only be stricter.
        let before = judged(Charter::new(clauses.clone()).with_default(DefaultApproval::Auto), &action);
        let both: Vec<Clause> = clauses.iter().cloned().chain([more.clone()]).collect();
        let after = judged(Charter::new(both.clone()).with_default(DefaultApproval::Auto), &action);
        prop_assert!(after.class >= before.class, "{before} {after}");
        let reversed: Vec<Clause> = both.iter().rev().cloned().collect();
        let other = judged(Charter::new(reversed).with_default(DefaultApproval::Auto), &action);
        prop_assert_eq!(other.class, after.class, "their order means nothing");
        let levelled = judged(Charter::new(both).with_default(DefaultApproval::Auto).with_level(Some(level)), &action);
        let denied = levelled.class == Class::Deny;
        prop_assert_eq!(denied, after.class == Class::Deny, "a level neither denies nor lifts a denial");
    }

    #[test]
    fn the_policy_is_never_outvoted(clauses in prop::collection::vec(any_clause(), 0..4), action in any_action()) {
        let roots = roots();
        let scene = Scene { roots: &roots, ..Scene::default() };
        for access in [Access::Low, Access::Medium, Access::High] {
            let policy = Policy::new(access, Narrowing::default());
            let alone = Class::of(policy.decide(&action, &scene).verdict);
            let ruling = policy.with_charter(Charter::new(clauses.clone())).rule(&action, &scene, &Ledger::EMPTY);
            prop_assert!(ruling.class >= alone, "{ruling}");
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
fn a_policy_that_allows_one_thing_allows_nothing_else_that_a_request_does() {
    let class = |action: &str, subject: Option<&str>, deed: &Action| {
        let clause = Clause::new("x", action, Class::Allow).up_to(4);
        let clause = subject.map_or(clause.clone(), |subject| clause.on(subject).unwrap());
        rule(Charter::new(vec![clause]).with_default(DefaultApproval::Always), deed, &Ledger::EMPTY).class
    };
    let fetch = |kind| Action { urls: vec!["https://example.com".into()], ..Action::file(kind, "/ws/a") };
    let search = |line: &str| Action { also: vec![Kind::Search], ..shell(line) };
    let unknown = |line: &str| Action { kind: Kind::Other, ..shell(line) };
    for (action, subject, deed, expected) in [
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
        assert_eq!(class(action, subject, &deed), expected, "{action} {subject:?} {deed:?}");
    }
}
