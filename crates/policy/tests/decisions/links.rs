//! Commands whose words are links, and repositories that are not a `.git`: rules are checked for both names
//! of a word.

use narrows_policy::{Access, Action, Confined, Verdict, WordLink};

use crate::common::{SANDBOX, decide, policy, shell};

fn linked(line: &str, links: &[(&str, &str)]) -> Action {
    let link = |(written, real): &(&str, &str)| WordLink { written: (*written).into(), real: (*real).into() };
    Action { word_links: links.iter().map(link).collect(), ..shell(line) }
}

#[test]
fn a_program_is_denied_by_either_name_and_allowed_by_both() {
    #[track_caller]
    fn check(rules: &str, line: &str, links: &[(&str, &str)], expected: Verdict) {
        let policy = policy(Access::Medium, rules);
        let decision = decide(&policy, &linked(line, links), Confined::default());
        assert_eq!(decision.verdict, expected, "{rules} {line} {links:?}: {decision}");
    }
    let deny = "[[rule]]\neffect = 'deny'\ncommand = 'canary'\n";
    let canary = [("./ls", "/opt/canary")];
    check(deny, "./ls", &canary, Verdict::Deny);
    check(deny, "cd x && sudo ./ls -l", &canary, Verdict::Deny);
    check(deny, "sh -c './ls'", &canary, Verdict::Deny);
    check(deny, "./canary", &[("./canary", "/opt/other")], Verdict::Deny);
    check(deny, "./ls", &[("./ls", "/opt/other")], Verdict::Ask);
    // Also in system directories.
    check(deny, "/usr/bin/vi", &[("/usr/bin/vi", "/usr/bin/canary")], Verdict::Deny);
    let allow = "[[rule]]\neffect = 'allow'\ncommand = ['./run **', 'tools/run **', 'vi **']\n";
    check(allow, "./run a", &[], Verdict::Allow);
    check(allow, "./run a", &[("./run", "tools/run")], Verdict::Allow);
    check(allow, "./run a", &[("./run", "/bin/sh")], Verdict::Ask);
    // A link in a system directory is trusted by its name.
    check(allow, "/usr/bin/vi a", &[("/usr/bin/vi", "/usr/bin/vim.basic")], Verdict::Allow);
    // An argument needs permission only under its own name.
    check(allow, "./run a", &[("a", "docs/a")], Verdict::Allow);
}

#[test]
fn an_argument_that_leads_to_a_protected_file_is_denied() {
    for access in [Access::Low, Access::Medium, Access::High] {
        for (line, links) in [
            ("cat notes", [("notes", ".env")]),
            ("cat < notes", [("notes", "./.env")]),
            ("cp a hooks/x", [("hooks/x", ".git/hooks/x")]),
            ("echo x > hooks/x", [("hooks/x", ".git/hooks/x")]),
        ] {
            let decision = decide(&policy(access, ""), &linked(line, &links), SANDBOX);
            assert_eq!(decision.verdict, Verdict::Deny, "{access} {line}: {decision}");
        }
    }
    let decision = decide(&policy(Access::Low, ""), &linked("cat notes", &[("notes", "docs/a")]), SANDBOX);
    assert_eq!(decision.verdict, Verdict::Allow, "{decision}");
}

/// Git runs programs named in the configuration of such a repository.
#[test]
fn git_is_read_only_only_in_a_usual_repository() {
    for (line, unusual, expected) in [
        ("git status", false, Verdict::Allow),
        ("git status", true, Verdict::Deny),
        ("git --no-pager log -n 3", true, Verdict::Deny),
        ("ls", true, Verdict::Allow),
    ] {
        let action = Action { unusual_repository: unusual, ..shell(line) };
        let decision = decide(&policy(Access::Low, ""), &action, SANDBOX);
        assert_eq!(decision.verdict, expected, "{line}: {decision}");
    }
    // A rule that allows git by its words does not cover the programs it runs.
    let rules = "[[rule]]\neffect = 'allow'\ncommand = ['git status', 'ls']\n";
    for (line, unusual, expected) in [
        ("git status", false, Verdict::Allow),
        ("git status", true, Verdict::Ask),
        ("/usr/bin/git status", true, Verdict::Ask),
        ("ls; git status", true, Verdict::Ask),
        ("ls", true, Verdict::Allow),
    ] {
        let action = Action { unusual_repository: unusual, ..shell(line) };
        let decision = decide(&policy(Access::Medium, rules), &action, Confined::default());
        assert_eq!(decision.verdict, expected, "{line}: {decision}");
    }
    // A sandbox confines the programs that git runs.
    let action = Action { unusual_repository: true, ..shell("git status") };
    assert_eq!(decide(&policy(Access::Medium, ""), &action, SANDBOX).verdict, Verdict::Allow);
    assert_eq!(decide(&policy(Access::Medium, ""), &action, Confined::default()).verdict, Verdict::Ask);
}
