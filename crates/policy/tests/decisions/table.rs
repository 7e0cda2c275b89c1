//! The presets, cell by cell.

use crate::common::{SANDBOX, decide, policy, roots, shell};
use narrows_policy::Verdict::{self, Allow, Ask, Deny};
use narrows_policy::{
    Access, Action, Command, Confined, DecisionReason, Kind, Narrowing, Policy, RequestContext,
};

const NO_SANDBOX: Confined =
    Confined { files: false, network: false, protected: narrows_policy::Protection::Unsupported };

#[track_caller]
fn check(action: &Action, confined: Confined, expected: [Verdict; 3]) {
    check_narrowed(action, confined, Narrowing::default(), expected);
}

#[track_caller]
fn check_narrowed(action: &Action, confined: Confined, narrowing: Narrowing, expected: [Verdict; 3]) {
    for (access, expected) in [Access::Low, Access::Medium, Access::High].into_iter().zip(expected) {
        let decision = decide(&Policy::new(access, narrowing), action, confined);
        assert_eq!(decision.verdict, expected, "{access}: {action:?}: {decision}");
    }
}

#[test]
fn reading_is_allowed() {
    check(&Action::new(Kind::Think), NO_SANDBOX, [Allow; 3]);
    check(&Action::new(Kind::Read), NO_SANDBOX, [Allow; 3]);
    check(&Action::file(Kind::Read, "/home/me/project/src/main.rs"), NO_SANDBOX, [Allow; 3]);
    check(&Action::file(Kind::Read, "/etc/hosts"), NO_SANDBOX, [Allow; 3]);
}

#[test]
fn changes_are_limited_to_the_roots() {
    for kind in [Kind::Edit, Kind::Move, Kind::Delete] {
        check(&Action::file(kind, "/home/me/project/a"), NO_SANDBOX, [Deny, Allow, Allow]);
        check(&Action::file(kind, "/home/me/other/a"), NO_SANDBOX, [Deny, Allow, Allow]);
        check(&Action::file(kind, "src/a"), NO_SANDBOX, [Deny, Allow, Allow]);
        check(&Action::file(kind, "/home/me/project-evil/a"), NO_SANDBOX, [Deny, Deny, Allow]);
        check(&Action::file(kind, "/home/me/project/../x"), NO_SANDBOX, [Deny, Deny, Allow]);
        check(&Action::file(kind, "../../x"), NO_SANDBOX, [Deny, Deny, Allow]);
        check(&Action::file(kind, "/etc/hosts"), NO_SANDBOX, [Deny, Deny, Allow]);
        check(&Action::new(kind), NO_SANDBOX, [Deny, Ask, Allow]);
        let both = Action { paths: vec!["a".into(), "/etc/hosts".into()], ..Action::new(kind) };
        check(&both, NO_SANDBOX, [Deny, Deny, Allow]);
    }
}

#[test]
fn running_needs_a_sandbox() {
    check(&shell("cargo test"), NO_SANDBOX, [Deny, Ask, Allow]);
    check(&shell("cargo test"), SANDBOX, [Deny, Allow, Allow]);
    check(&shell("cargo test"), Confined { network: false, ..SANDBOX }, [Deny, Allow, Allow]);
    check(&shell("cargo test"), Confined { files: false, ..SANDBOX }, [Deny, Ask, Allow]);
    check(&shell("git status"), NO_SANDBOX, [Allow, Ask, Allow]);
    check(&shell("ls -la src"), SANDBOX, [Allow, Allow, Allow]);
    check(&shell("ls; ls"), SANDBOX, [Deny, Allow, Allow]);
    check(&Action::new(Kind::Execute), NO_SANDBOX, [Deny, Ask, Allow]);
    let elsewhere = Action::execute(Command::Argv(vec!["make".into()]), Some("/srv".into()));
    check(&elsewhere, SANDBOX, [Deny, Ask, Allow]);
    let inside = Action::execute(Command::Argv(vec!["make".into()]), Some("/home/me/other/x".into()));
    check(&inside, SANDBOX, [Deny, Allow, Allow]);
    let climbing = Action::execute(Command::Argv(vec!["make".into()]), Some("/home/me/other/../..".into()));
    check(&climbing, SANDBOX, [Deny, Ask, Allow]);
}

#[test]
fn running_needs_protected_files_to_be_kept() {
    let open = Confined { protected: narrows_policy::Protection::Unsupported, ..SANDBOX };
    check(&shell("cargo test"), open, [Deny, Ask, Allow]);
    check(&shell("ls"), open, [Allow, Ask, Allow]);
    let decision = decide(&policy(Access::Medium, ""), &shell("cargo test"), open);
    assert!(decision.to_string().contains("without user namespaces"), "{decision}");
    let rule = "[[rule]]\neffect = \"allow\"\ncommand = \"cargo test\"\n";
    assert_eq!(decide(&policy(Access::Medium, rule), &shell("cargo test"), open).verdict, Allow);
}

#[test]
fn other_actions_ask() {
    check(&Action::new(Kind::SwitchMode), NO_SANDBOX, [Deny, Ask, Allow]);
    check(&Action::new(Kind::Other), NO_SANDBOX, [Deny, Ask, Allow]);
    check(
        &Action::mcp("github", "create_issue", &serde_json::json!({"title": "x"})),
        SANDBOX,
        [Deny, Ask, Allow],
    );
}

#[test]
fn web_search_can_be_disabled() {
    let web = Action { query: true, ..Action::new(Kind::Search) };
    let pattern = Action { local: true, ..Action::new(Kind::Search) };
    let placed = Action::file(Kind::Search, "src");
    let outside = Action::file(Kind::Search, "/etc");
    let disguised = Action { tool: Some("WebSearch".into()), ..pattern.clone() };
    let addressed = Action { urls: vec!["https://example.com".into()], ..pattern.clone() };
    for action in [&web, &pattern, &placed, &outside, &disguised, &addressed] {
        check(action, NO_SANDBOX, [Allow; 3]);
    }
    for narrowing in
        [Narrowing { network: true, web_search: false }, Narrowing { network: false, web_search: true }]
    {
        for action in [&web, &outside, &disguised, &addressed] {
            check_narrowed(action, NO_SANDBOX, narrowing, [Deny; 3]);
        }
        for action in [&pattern, &placed] {
            check_narrowed(action, NO_SANDBOX, narrowing, [Allow; 3]);
        }
    }
    let results = Action { query: true, ..Action::new(Kind::Fetch) };
    check_narrowed(&results, NO_SANDBOX, Narrowing { network: true, web_search: false }, [Deny; 3]);
    let page = Action { urls: vec!["https://example.com".into()], ..Action::new(Kind::Fetch) };
    check_narrowed(&page, NO_SANDBOX, Narrowing { network: true, web_search: false }, [Allow; 3]);
}

#[test]
fn the_network_can_be_disabled() {
    let off = Narrowing { network: false, web_search: true };
    let page = Action { urls: vec!["https://example.com".into()], ..Action::new(Kind::Fetch) };
    check(&page, NO_SANDBOX, [Allow; 3]);
    check_narrowed(&page, SANDBOX, off, [Deny; 3]);
    check_narrowed(&Action::new(Kind::Fetch), SANDBOX, off, [Deny; 3]);
    let disguised = Action { urls: vec!["https://example.com".into()], ..Action::new(Kind::Read) };
    check_narrowed(&disguised, SANDBOX, off, [Deny; 3]);

    check_narrowed(&shell("cargo test"), SANDBOX, off, [Deny, Allow, Allow]);
    check_narrowed(&shell("cargo test"), Confined { network: false, ..SANDBOX }, off, [Deny, Deny, Allow]);
    check_narrowed(&shell("ls"), Confined { network: false, ..SANDBOX }, off, [Allow, Deny, Allow]);
    check_narrowed(&Action::new(Kind::Execute), SANDBOX, off, [Deny; 3]);
    for line in [
        "curl https://example.com",
        "wget x",
        "nc -l 80",
        "ncat x",
        "ssh host",
        "scp a b:c",
        "sftp x",
        "rsync -a a b:",
        "git clone x",
        "git fetch",
        "git pull",
        "git push",
        "git-push",
        "/usr/lib/git-core/git-fetch origin",
        "git -C /x push",
        "npm install",
        "npm i left-pad",
        "pip install x",
        "python3 -m pip install x",
        "cargo install x",
        "go get x",
        "apt-get install x",
        "brew install x",
        "sudo apt install x",
        "make && curl x",
        "echo $(curl x)",
        "sh -c 'curl x'",
        "/usr/bin/curl x",
        "$DOWNLOADER x",
        "cat </dev/tcp/example.com/80",
    ] {
        check_narrowed(&shell(line), SANDBOX, off, [Deny; 3]);
    }
    for line in ["git status", "npm test", "cargo build", "go build ./...", "python3 x.py"] {
        check_narrowed(
            &shell(line),
            SANDBOX,
            off,
            [if line == "git status" { Allow } else { Deny }, Allow, Allow],
        );
    }
}

#[test]
fn checks_apply_in_order() {
    let roots = roots();
    let off = Policy::new(Access::High, Narrowing { network: false, web_search: false });
    let fetch = Action::new(Kind::Fetch);
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    let because = |context: &RequestContext<'_>| off.decide(&fetch, context).because;
    assert_eq!(because(&context), DecisionReason::Network);
    let refused = RequestContext { refused: Some("not on Fridays"), ..context };
    assert_eq!(because(&refused), DecisionReason::Governance { reason: "not on Fridays".into() });
    assert_eq!(because(&RequestContext { cancelling: true, ..refused }), DecisionReason::Cancelling);

    // Rules come after disabled permissions and cannot lift them.
    let (rules, _) =
        narrows_policy::Rules::parse("[[rule]]\neffect = \"allow\"\nkind = \"*\"\n", "p").unwrap();
    assert_eq!(off.clone().with_rules(rules).decide(&fetch, &context).because, DecisionReason::Network);
}

#[test]
fn without_roots_no_path_is_inside() {
    let medium = policy(Access::Medium, "");
    let context = RequestContext { confined: SANDBOX, ..RequestContext::default() };
    assert_eq!(medium.decide(&Action::file(Kind::Edit, "a"), &context).verdict, Deny);
    assert_eq!(medium.decide(&shell("make"), &context).verdict, Ask);
}

/// If the sandbox is not the cause, advice to change it would not help.
#[test]
fn the_reason_says_why_protected_files_can_be_changed() {
    use narrows_policy::Protection;
    for (protected, words) in [
        (Protection::Unsupported, "the sandbox of this machine cannot protect them"),
        (Protection::NotSearched, "git settings cannot be read"),
        (Protection::HardLinked, "second hard link"),
    ] {
        let confined = Confined { protected, ..SANDBOX };
        let decision = decide(&policy(Access::Medium, ""), &shell("cargo test"), confined);
        assert_eq!(decision.verdict, Ask);
        let told = decision.to_string();
        assert!(told.contains(words) && !told.contains("bubblewrap"), "{protected:?}: {told}");
    }
}
