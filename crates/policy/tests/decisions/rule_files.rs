//! Rule files: their meaning, their errors, and explanations.

use narrows_policy::Verdict::{self, Allow, Ask, Deny};
use narrows_policy::{Access, Action, Header, Kind, Narrowing, Policy, RequestContext, Rules};
use serde_json::json;

use crate::common::{SANDBOX, decide, policy, roots, shell};

#[track_caller]
fn check_error(text: &str, expected: &str) {
    let error = Rules::parse(text, "policy.toml").map(|_| ()).expect_err(text);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn errors_name_the_position_and_the_cause() {
    check_error("acess = \"low\"\n", "policy.toml:1:1: unknown setting `acess`; did you mean `access`?");
    check_error(
        "\naccess = \"lo\"\n",
        "policy.toml:2:10: `access` must be one of \"low\", \"medium\", \"high\", not \"lo\"; did you mean \"low\"?",
    );
    check_error("network = 1\n", "policy.toml:1:11: `network` must be true or false, not 1");
    check_error(
        "[rule]\neffect = \"deny\"\n",
        "policy.toml:1:1: `rule` must be a list of tables, not a table; write [[rule]], with two brackets",
    );
    check_error(
        "[[rule]]\nkind = \"read\"\n",
        "policy.toml:1:1: `effect` is missing in [rule]; write effect = \"deny\", \"ask\" or \"allow\"",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\n",
        "policy.toml:1:1: this rule would match everything; give it one of kind, tool, path, command, url, server, for instance kind = \"*\"",
    );
    check_error(
        "[[rule]]\neffect = \"denie\"\nkind = \"read\"\n",
        "policy.toml:2:10: `effect` must be one of \"deny\", \"ask\", \"allow\", not \"denie\"; did you mean \"deny\"?",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\nkind = [\"read\", \"edits\"]\n",
        "policy.toml:3:17: `kind` must be one of \"think\", \"read\", \"search\", \"fetch\", \"edit\", \"move\", \"delete\", \"execute\", \"switch_mode\", \"other\", not \"edits\"; did you mean \"edit\"?",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\npaths = \"x\"\n",
        "policy.toml:3:1: unknown setting `paths` in [rule]; did you mean `path`?",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\npath = []\n",
        "policy.toml:3:8: `path` must not be empty; leave it out",
    );
    check_error("[[rule]]\neffect = \"deny\"\npath = \"\"\n", "policy.toml:3:8: a path must not be empty");
    check_error(
        "[[rule]]\neffect = \"deny\"\npath = \"a/../b\"\n",
        "policy.toml:3:8: a pattern must not have `..` in it",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\npath = \"a**/b\"\n",
        "policy.toml:3:8: `**` must stand alone between slashes",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\ncommand = \"\"\n",
        "policy.toml:3:11: a command pattern needs a program",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\ncommand = \"a ** b\"\n",
        "policy.toml:3:11: `**` can only be the last word",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\ncommand = \"a 'b\"\n",
        "policy.toml:3:11: a quote is not closed",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\ncommand = [\"ls\", \"a; b\"]\n",
        "policy.toml:3:18: a command pattern has no shell syntax: put special characters in quotes",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\nurl = \"https://\"\n",
        "policy.toml:3:7: a url pattern needs a host, or `*`",
    );
    check_error(
        "[[rule]]\neffect = \"deny\"\ntool = 1\n",
        "policy.toml:3:8: `tool` must be a text in quotes, not 1",
    );
    check_error(
        "a = \n",
        "policy.toml:1:4: invalid TOML: string values must be quoted, expected literal string",
    );
}

#[test]
fn examples_are_checked() {
    let rule = |effect: &str, rest: &str| format!("[[rule]]\neffect = \"{effect}\"\n{rest}");
    check_error(
        &rule("deny", "command = \"git push\"\nmatch = [\"git push\", \"git pull\"]\n"),
        "policy.toml:4:22: this rule does not match this example",
    );
    check_error(
        &rule("allow", "command = \"git log\"\nmatch = [\"git log -n 1\"]\n"),
        "policy.toml:4:10: this rule does not match this example; an allow rule must match all of it: every word, every path",
    );
    check_error(
        &rule("deny", "command = \"git push\"\nnot_match = [\n  \"ls\",\n  \"git push --dry-run\",\n]\n"),
        "policy.toml:6:3: this rule matches this example; deny and ask rules also match further words, and paths below",
    );
    check_error(
        &rule("deny", "path = \"secrets/**\"\nmatch = [{ path = \"public/a\" }]\n"),
        "policy.toml:4:10: this rule does not match this example",
    );
    check_error(
        &rule("deny", "path = \"secrets/**\"\nmatch = [{ file = \"public/a\" }]\n"),
        "policy.toml:4:12: unknown setting `file` in [match]; valid settings are: kind, tool, path, command, url, server, env",
    );
    let good = [
        rule(
            "deny",
            "command = \"git push\"\nmatch = [\"git push\", \"sudo git -C x push -f\", { command = [\"git\", \"push\"] }]\nnot_match = [\"git pull\", \"echo git push\", { path = \"git\" }]\n",
        ),
        rule(
            "allow",
            "command = \"cargo test **\"\nmatch = [\"cargo test\", \"cargo test -p x && cargo test\"]\nnot_match = [\"cargo test; ls\", \"cargo test > x\"]\n",
        ),
        rule(
            "ask",
            "path = \"~/notes/**\"\nmatch = [{ path = \"~/notes/a\" }, \"cat ~/notes/a\"]\nnot_match = [{ path = \"~/other\" }]\n",
        ),
        rule(
            "allow",
            "kind = \"edit\"\npath = [\"docs/**\", \"*.md\"]\nmatch = [{ path = \"docs/a/b\" }, { path = [\"README.md\", \"docs/x\"] }]\nnot_match = [{ path = \"src/x.md\" }, { kind = \"delete\", path = \"docs/a\" }]\n",
        ),
        rule(
            "deny",
            "url = \"example.com\"\nmatch = [{ url = \"https://example.com/x\" }, \"curl https://www.example.com\", \"curl example.com\"]\nnot_match = [{ url = \"https://example.org\" }]\n",
        ),
        rule(
            "allow",
            "server = \"github\"\ntool = \"get_*\"\nmatch = [{ server = \"github\", tool = \"get_issue\" }]\nnot_match = [{ tool = \"get_issue\" }, { server = \"github\", tool = \"create_issue\" }]\n",
        ),
    ];
    for text in good {
        if let Err(error) = Rules::parse(&text, "policy.toml") {
            panic!("{text}\n{error}");
        }
    }
}

#[test]
fn the_header_of_a_file_is_returned() {
    let (rules, header) = Rules::parse("access = \"high\"\nnetwork = false\n", "p").unwrap();
    assert!(rules.is_empty());
    assert_eq!(header, Header { access: Some(Access::High), network: Some(false), web_search: None });
    let (rules, header) = Rules::parse("", "p").unwrap();
    assert_eq!((rules.len(), header), (0, Header::default()));
}

/// The strictest matching rule wins in any order of rules.
#[test]
fn the_order_of_rules_is_irrelevant() {
    let rules = [
        "[[rule]]\neffect = \"allow\"\ncommand = \"git **\"\n",
        "[[rule]]\neffect = \"ask\"\ncommand = \"git commit\"\n",
        "[[rule]]\neffect = \"deny\"\ncommand = \"git push\"\n",
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let text: String = order.map(|index| rules[index]).concat();
        let low = policy(Access::Low, &text);
        let cases: [(&str, Verdict); 6] = [
            ("git fetch --all", Allow),
            ("git commit -m x", Ask),
            ("git push origin", Deny),
            ("git fetch && git commit -m x", Ask),
            ("git fetch; git push", Deny),
            ("make", Deny),
        ];
        for (line, expected) in cases {
            let decision = decide(&low, &shell(line), SANDBOX);
            assert_eq!(decision.verdict, expected, "{order:?} {line}: {decision}");
        }
    }
}

#[test]
fn an_ask_rule_lifts_protection_only_with_certainty() {
    let low = policy(Access::Low, "[[rule]]\neffect = \"ask\"\ncommand = \"make test\"\n");
    for (line, expected) in [
        ("make test", Ask),
        ("make test -j 4", Ask),
        ("timeout 60 make test", Ask),
        ("sudo make test", Deny),
        ("make test $X", Deny),
        ("make test > x", Deny),
        ("make test; ls", Deny),
    ] {
        let decision = decide(&low, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, expected, "{line}: {decision}");
    }
    let high = policy(Access::High, "[[rule]]\neffect = \"ask\"\ncommand = \"make test\"\n");
    for line in ["make test", "sudo make test", "make test $X", "ls; make test", "make $X"] {
        assert_eq!(decide(&high, &shell(line), SANDBOX).verdict, Ask, "{line}");
    }
}

#[test]
fn an_allow_rule_allows_only_certain_matches() {
    let low = policy(
        Access::Low,
        "[[rule]]\neffect = \"allow\"\ncommand = [\"cargo test **\", \"make *\", [\"npm\", \"run\", \"lint\"], \"./run.sh\"]\n",
    );
    for (line, expected) in [
        ("cargo test", Allow),
        ("cargo test -p x -- --nocapture", Allow),
        ("cargo test 2>&1", Allow),
        ("cargo test 2>/dev/null && make x", Allow),
        ("/usr/bin/cargo test", Allow),
        ("./cargo test", Deny),
        ("/srv/cargo test", Deny),
        ("cargo testing", Deny),
        ("cargo", Deny),
        ("make x", Allow),
        ("make", Deny),
        ("make x y", Deny),
        ("make -f/etc/x", Deny),
        ("npm run lint", Allow),
        ("npm run lint -- x", Deny),
        ("./run.sh", Allow),
        ("run.sh", Deny),
        ("bash -lc 'cargo test'", Allow),
        ("cargo test $X", Deny),
        ("cargo test *", Deny),
        ("cargo test $(ls)", Deny),
        ("cargo test > x", Deny),
        ("cargo test < x", Deny),
        ("cargo test <<EOF\nx\nEOF", Deny),
        ("X=1 cargo test", Deny),
        ("sudo cargo test", Deny),
        ("cargo test | tee x", Deny),
        ("cargo test 'a b'", Allow),
        ("Cargo test", Deny),
    ] {
        let decision = decide(&low, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, expected, "{line}: {decision}");
    }
}

#[test]
fn deny_rules_match_hidden_commands() {
    let high = policy(
        Access::High,
        "[[rule]]\neffect = \"deny\"\ncommand = \"git push --force\"\n\n[[rule]]\neffect = \"deny\"\npath = \"secrets\"\n\n[[rule]]\n\
         effect = \"deny\"\nurl = \"example.com\"\n",
    );
    for (line, expected) in [
        ("git push --force", Deny),
        ("git push origin main --force", Deny),
        ("git push --force-with-lease", Allow),
        ("git push --forc", Deny),
        ("git push origin", Allow),
        ("git push origin $X", Deny),
        ("cat secrets/a", Deny),
        ("cat Secrets/a", Deny),
        ("cat /home/me/other/secrets/a", Deny),
        ("cat secretsx", Allow),
        ("cd secrets && ls", Deny),
        ("cp x --target-directory=secrets", Deny),
        ("rm -rf .", Deny),
        ("rm -rf ../project", Deny),
        ("rm -rf src", Allow),
        ("curl https://example.com", Deny),
        ("curl -o x www.example.com/y", Deny),
        ("python3 -c 'get(\"https://example.com/x\")'", Deny),
        ("curl https://example.org", Allow),
    ] {
        let decision = decide(&high, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, expected, "{line}: {decision}");
    }
    // An action that is not shown may be anything.
    for kind in [Kind::Execute, Kind::Edit, Kind::Fetch] {
        assert_eq!(decide(&high, &Action::new(kind), SANDBOX).verdict, Deny, "{kind}");
    }
    assert_eq!(decide(&high, &Action::file(Kind::Delete, "/home/me/project"), SANDBOX).verdict, Deny);
    assert_eq!(decide(&high, &Action::file(Kind::Edit, "secrets/x"), SANDBOX).verdict, Deny);
}

#[test]
fn tools_of_servers_have_rules_too() {
    let medium = policy(
        Access::Medium,
        "[[rule]]\neffect = \"allow\"\nserver = \"github\"\ntool = [\"get_*\", \"list_*\"]\n\n[[rule]]\neffect = \"deny\"\nserver = \"prod-*\"\n",
    );
    let call = |server: &str, tool: &str| {
        decide(&medium, &Action::mcp(server, tool, &json!({"id": 1})), SANDBOX).verdict
    };
    assert_eq!(call("github", "get_issue"), Allow);
    assert_eq!(call("github", "create_issue"), Ask);
    assert_eq!(call("GitHub", "get_issue"), Ask);
    assert_eq!(call("prod-db", "get_row"), Deny);
    assert_eq!(call("PROD-db", "get_row"), Deny);
    // A URL or a command in the arguments is not covered.
    let hidden = Action::mcp("github", "get_page", &json!({"url": "https://example.com"}));
    assert_eq!(decide(&medium, &hidden, SANDBOX).verdict, Ask);
    let hidden = Action::mcp("github", "get_it", &json!({"command": "rm -rf x"}));
    assert_eq!(decide(&medium, &hidden, SANDBOX).verdict, Ask);
}

#[test]
fn a_policy_lists_what_it_offers() {
    let offers = |access, rules: &str| {
        let offers = policy(access, rules).offers();
        (offers.read, offers.write, offers.execute)
    };
    assert_eq!(offers(Access::Low, ""), (true, false, false));
    assert_eq!(offers(Access::Medium, ""), (true, true, true));
    assert_eq!(
        offers(Access::High, "[[rule]]\neffect = \"deny\"\nkind = [\"execute\", \"edit\"]\n"),
        (true, false, false)
    );
    assert_eq!(offers(Access::Low, "[[rule]]\neffect = \"allow\"\ncommand = \"make\"\n"), (true, true, true));
    assert_eq!(offers(Access::Low, "[[rule]]\neffect = \"ask\"\nkind = \"edit\"\n"), (true, true, false));
}

#[test]
fn an_explanation_names_every_rule() {
    let text = "[[rule]]\nname = \"no push\"\neffect = \"deny\"\nbecause = \"people push\"\ncommand = \"git push\"\n\n\
                [[rule]]\neffect = \"allow\"\ncommand = \"git push\"\n\n[[rule]]\neffect = \"ask\"\nkind = \"edit\"\n";
    let (rules, _) = Rules::parse(text, "policy.toml").unwrap();
    let policy = Policy::new(Access::Medium, Narrowing::default()).with_rules(rules);
    let roots = roots();
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    let explanation = policy.explain(&shell("ls && git push origin"), &context);
    assert_eq!(
        explanation.to_string(),
        "deny `git push origin`: rule `no push` (policy.toml:1): people push\n\
         parts:\n  ask `ls`: no rule matches, and medium access asks before commands that no sandbox confines to the session's directories\n  deny `git push origin`: rule `no push` (policy.toml:1): people push\n\
         rules:\n  + deny rule `no push` (policy.toml:1): matches `git push origin`\n  - allow rule 2 (policy.toml:7): may match `git push origin`, but not certainly or not completely, because of its `command`\n  - ask rule 3 (policy.toml:11): its `kind` does not match `ls`\n"
    );
    assert_eq!(serde_json::to_value(&explanation).unwrap()["decision"]["verdict"], "deny");
    let cancelled = policy.explain(&shell("ls"), &RequestContext { cancelling: true, ..context });
    assert!(cancelled.parts.is_empty() && cancelled.decision.verdict == Deny);
}

/// The rule files of the documentation are valid, including their examples.
#[test]
fn rule_files_of_the_documentation_are_valid() {
    let manual = include_str!("../../../../docs/reference/rule-files.md");
    let files: Vec<&str> =
        manual.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(files.len() > 5);
    for text in files {
        if let Err(error) = Rules::parse(text, "rule-files.md") {
            panic!("{text}\n{error}");
        }
    }
}
