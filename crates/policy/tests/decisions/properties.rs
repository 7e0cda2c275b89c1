//! Properties of all commands.

use std::sync::LazyLock;

use narrows_policy::{
    Access, Action, Command, Confined, Kind, Narrowing, Policy, RequestContext, Rules, Verdict,
};
use proptest::prelude::*;

use crate::common::{SANDBOX, decide, policy, roots, shell};

const RULES: &str = r#"
[[rule]]
effect = "deny"
command = ["git push", "rm -rf", "canary **", "npm publish --tag"]

[[rule]]
effect = "deny"
path = ["secrets/**", "**/locked"]

[[rule]]
effect = "ask"
command = ["git commit", "docker"]

[[rule]]
effect = "allow"
command = ["cargo test **", "git status", "make *", "canary ok"]
"#;

/// Generates words with a special meaning.
fn token() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "git",
        "push",
        "commit",
        "status",
        "rm",
        "-rf",
        "-r",
        "-f",
        "canary",
        "cargo",
        "test",
        "make",
        "npm",
        "publish",
        "--tag",
        "docker",
        "ls",
        "cat",
        "secrets/x",
        "a/locked",
        ".env",
        "sudo",
        "env",
        "timeout",
        "5",
        "sh",
        "-c",
        "bash",
        "xargs",
        "X=1",
        "-C",
        "/x",
        "--",
        "echo",
        "find",
        ".",
        "-exec",
        "{}",
        "if",
        "then",
        "{",
        "}",
        "!",
        "cd",
    ]);
    prop_oneof![6 => known.prop_map(str::to_owned), 1 => "[a-z./*?~=-]{1,6}"]
}

/// Generates text that may be appended: words and syntax.
fn tail() -> impl Strategy<Value = String> {
    let syntax = prop::sample::select(vec![
        ";", "&&", "||", "|", "&", "\n", "$(", ")", "(", "`", "'", "\"", "<", ">", ">>", "<<EOF", "<<<", "#",
        "\\", "$X", "${", "}", "2>&1", "*", "\0", "é", "[[", "]]", "((", "))", "$((", "case", "in", "esac",
        ";;", "x=(", "{fd}>x", "$'\\0", "@(", "[", "\\\n", "x[1", "]=2", "alias", "<(", "let",
    ]);
    let one = prop_oneof![3 => token(), 1 => syntax.prop_map(str::to_owned)];
    prop::collection::vec(one, 0..8).prop_map(|words| words.join(" "))
}

fn prefix() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "X=1",
        "X+=1",
        "x[0]=1",
        "x[1 + 1]=2",
        "x=(a b)",
        "x=$(ls)",
        "x=`ls`",
        "X='a b'",
        ">/dev/null",
        "2>&1",
        "</dev/null",
        "{fd}>/dev/null",
        "{fd}<x",
        "{fd}>&1",
        "<<<a",
        "&>x",
        ">|x",
        "12>x",
        "<>x",
        "> >(ls)",
        "!",
        "{",
        "time",
        "time -p",
        "command",
        "exec",
        "builtin",
        "env",
        "env -i",
        "env Y=2",
        "sudo",
        "sudo -u me",
        "nohup",
        "nice -n 5",
        "timeout 5",
        "timeout -k 1 5",
        "stdbuf -oL",
        "setsid",
        "ionice -c 3",
        "xargs",
        "xargs -n 1",
        "coproc",
        "if",
        "then",
        "do",
        "else",
        "while",
        "until",
        "ls;",
        "ls &&",
        "ls ||",
        "ls |",
        "ls &",
        "ls\n",
        "# x\n",
        "(",
        "$x",
        "$(true)",
        "``",
        "{,}",
        "*",
        "eval",
        "trap",
        "\\\n",
        "f()",
        "case x in x)",
        "case x in (x|y)",
        "[[ a ]] &&",
        "(( 1 )) &&",
        "echo $((1)) ;",
        "noglob",
        "- ",
        "for x in a; do",
        "for ((;;)) {",
        "function f {",
        "declare x=1;",
        "alias a=b;",
        "PS4=x",
    ])
}

fn line() -> impl Strategy<Value = String> {
    prop::collection::vec(token(), 1..6).prop_map(|words| words.join(" "))
}

fn with_rules(access: Access) -> &'static Policy {
    static POLICIES: LazyLock<[Policy; 3]> = LazyLock::new(|| ACCESSES.map(|access| policy(access, RULES)));
    &POLICIES[access as usize]
}

fn verdict(access: Access, line: &str) -> Verdict {
    decide(with_rules(access), &shell(line), SANDBOX).verdict
}

fn argv(words: &[String]) -> Action {
    Action::execute(Command::Argv(words.to_vec()), None)
}

/// Returns `true` if a deny rule about any program matches. Added words may then turn it into a known
/// command.
fn may_be_any(action: &Action) -> bool {
    static OTHER: LazyLock<Policy> = LazyLock::new(|| {
        policy(Access::High, "[[rule]]\neffect = \"deny\"\ncommand = \"no-such-program\"\n")
    });
    decide(&OTHER, action, SANDBOX).verdict == Verdict::Deny
}

const ACCESSES: [Access; 3] = [Access::Low, Access::Medium, Access::High];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Words added to a command never make its verdict milder if a rule denies it.
    #[test]
    fn a_longer_line_is_not_milder(line in line(), tail in tail()) {
        prop_assume!(!may_be_any(&shell(&line)));
        for access in ACCESSES {
            if verdict(access, &line) == Verdict::Deny {
                let longer = format!("{line} {tail}");
                // At low access a longer line may become read-only. Rules are not affected.
                let by_rule = verdict(Access::High, &line) == Verdict::Deny;
                if by_rule {
                    prop_assert_eq!(verdict(access, &longer), Verdict::Deny, "{}", longer);
                }
            }
        }
    }

    /// Words before a command never make its verdict milder: assignments, redirections, programs that run
    /// others.
    #[test]
    fn a_prefixed_line_is_not_milder(line in line(), prefixes in prop::collection::vec(prefix(), 1..4)) {
        prop_assume!(!may_be_any(&shell(&line)));
        if verdict(Access::High, &line) == Verdict::Deny {
            let longer = format!("{} {line}", prefixes.join(" "));
            for access in ACCESSES {
                prop_assert_eq!(verdict(access, &longer), Verdict::Deny, "{}", longer);
            }
        }
    }

    /// Words added to an argv never make its verdict milder.
    #[test]
    fn a_longer_argv_is_not_milder(
        words in prop::collection::vec(token(), 1..6),
        more in prop::collection::vec(token(), 0..6),
    ) {
        prop_assume!(!may_be_any(&argv(&words)));
        let high = with_rules(Access::High);
        if decide(high, &argv(&words), SANDBOX).verdict == Verdict::Deny {
            let longer: Vec<String> = words.into_iter().chain(more).collect();
            prop_assert_eq!(decide(high, &argv(&longer), SANDBOX).verdict, Verdict::Deny, "{:?}", longer);
        }
    }

    /// A command that only a rule allows does not stay allowed with added words, unless the rule ends in
    /// `**`.
    #[test]
    fn an_allowed_argv_cannot_be_extended(more in prop::collection::vec(token(), 1..6)) {
        let low = policy(Access::Low, "[[rule]]\neffect = \"allow\"\ncommand = \"canary ok\"\n");
        let words = |more: Vec<String>| ["canary".to_owned(), "ok".to_owned()].into_iter().chain(more).collect::<Vec<_>>();
        prop_assert_eq!(decide(&low, &argv(&words(vec![])), SANDBOX).verdict, Verdict::Allow);
        prop_assert_eq!(decide(&low, &argv(&words(more)), SANDBOX).verdict, Verdict::Deny);
    }

    /// A command of several parts gets the verdict of its strictest part.
    #[test]
    fn a_compound_is_as_strict_as_its_strictest(
        parts in prop::collection::vec(line(), 1..5),
        separator in prop::sample::select(vec!["; ", " && ", " || ", " | ", "\n", " & "]),
    ) {
        // `{ x` alone is not a command and may be anything. Followed by `}`, it is one.
        let is_brace = |part: &String| part.split_whitespace().any(|word| matches!(word, "{" | "}"));
        prop_assume!(!parts.iter().any(is_brace));
        let compound = parts.join(separator);
        for access in ACCESSES {
            let strictest = parts.iter().map(|part| verdict(access, part)).max().unwrap();
            let whole = verdict(access, &compound);
            prop_assert!(whole >= strictest, "{}: {} < {}", compound, whole, strictest);
            // `cd` affects the following commands, a shell alone runs its input, and at low access a
            // compound command is not read-only.
            let together = ["cd", "sh", "env"];
            let joined = parts.iter().any(|part| together.iter().any(|word| part.contains(word)));
            let simple = access != Access::Low && !joined;
            prop_assert!(!simple || whole == strictest, "{}: {} > {}", compound, whole, strictest);
        }
    }

    /// Wrapping a denied command in another does not change its verdict.
    #[test]
    fn a_wrapped_command_is_not_milder(
        line in line(),
        wrapping in prop::sample::select(vec![
            ("sudo ", ""), ("echo $(", ")"), ("echo `", "`"), ("( ", " )"), ("{ ", "; }"), ("X=1 ", ""),
            ("timeout 5 ", ""), ("true && ", " || true"), ("sh -c '", "'"), ("bash -lc \"", "\""), ("eval ", ""),
            ("if true; then ", "; fi"), ("cat <(", ")"), ("echo \"$(", ")\""), ("sh <<'E'\n", "\nE"),
        ]),
    ) {
        prop_assume!(!may_be_any(&shell(&line)));
        if verdict(Access::High, &line) == Verdict::Deny {
            let wrapped = format!("{}{line}{}", wrapping.0, wrapping.1);
            prop_assert_eq!(verdict(Access::High, &wrapped), Verdict::Deny, "{}", wrapped);
        }
    }

    /// More access is never stricter, except that medium access asks for some actions that low access
    /// allows.
    #[test]
    fn more_access_is_not_stricter(line in line()) {
        let [low, medium, high] = ACCESSES.map(|access| decide(&policy(access, ""), &shell(&line), SANDBOX).verdict);
        prop_assert!(high <= medium && medium <= low, "{line}: {low} {medium} {high}");
    }

    /// A read-only line consists of letters, digits and blanks, and is read-only at any position.
    #[test]
    fn read_only_lines_have_no_shell_syntax(line in "(ls|cat|git|echo|X=1)[ a-z;&|<>$`(){}*?#~!=\\\\'\"\n-]{0,12}") {
        let command = Command::Shell(line.clone());
        if command.is_read_only() {
            let unquoted = line.contains(['"', '\'', '\\']);
            prop_assert!(unquoted || !line.trim().contains([';', '&', '|', '<', '>', '$', '`', '(', '*', '?', '\n']), "{line}");
        }
    }

    #[test]
    fn any_command_is_judged_without_panic(line in any::<String>(), words in prop::collection::vec(any::<String>(), 0..5)) {
        for access in ACCESSES {
            let policy = with_rules(access);
            let roots = roots();
            let context = RequestContext { roots: &roots, confined: SANDBOX, ..RequestContext::default() };
            for action in [shell(&line), argv(&words)] {
                let explanation = policy.explain(&action, &context);
                prop_assert_eq!(&explanation.decision, &policy.decide(&action, &context));
                prop_assert!(!explanation.to_string().is_empty());
            }
        }
    }

    /// Input that is nearly a command never panics.
    #[test]
    fn any_syntax_is_judged_without_panic(line in "[a-c \t\n;&|<>$`(){}*?#~!=\\\\'\"0-2\\[\\],.-]{0,40}") {
        let _ = decide(with_rules(Access::High), &shell(&line), SANDBOX);
    }

    #[test]
    fn any_rule_file_is_parsed_without_panic(text in any::<String>()) {
        if let Err(error) = Rules::parse(&text, "p") {
            prop_assert!(error.pos.line >= 1 && error.pos.column >= 1);
        }
    }

    #[test]
    fn any_field_is_judged_without_panic(
        field in prop::sample::select(vec!["kind", "tool", "path", "command", "url", "server", "name", "effect"]),
        value in "[ -~é]{0,20}",
    ) {
        let value = value.replace(['\\', '"'], "");
        let text = format!("[[rule]]\neffect = \"deny\"\n{field} = \"{value}\"\nmatch = [\"{value}\"]\n");
        let _ = Rules::parse(&text, "p");
    }

    #[test]
    fn any_input_is_judged_without_panic(
        key in prop::sample::select(vec!["command", "argv", "path", "file_path", "url", "query", "changes", "diff", "args"]),
        text in any::<String>(),
        list in prop::collection::vec(any::<String>(), 0..4),
    ) {
        for input in [serde_json::json!({key: text}), serde_json::json!({key: list, "x": {key: text}}), serde_json::json!(text)] {
            let action = Action::read(Some("execute"), None, &input, &[]);
            let _ = decide(with_rules(Access::Medium), &action, Confined::default());
        }
    }

    /// A path is in the roots exactly if a naive walk through its names ends there.
    #[test]
    fn paths_below_a_root_are_inside(names in prop::collection::vec(prop::sample::select(vec!["..", ".", "a", "project", "me", "home"]), 0..8)) {
        let path = names.join("/");
        let mut walk = vec!["home", "me", "project"];
        for name in &names {
            match *name {
                ".." => { walk.pop(); }
                "." => {}
                name => walk.push(name),
            }
        }
        let inside = walk.starts_with(&["home", "me", "project"]) || walk.starts_with(&["home", "me", "other"]);
        let medium = Policy::new(Access::Medium, Narrowing::default());
        prop_assume!(!path.is_empty());
        let decided = decide(&medium, &Action::file(Kind::Edit, path.as_str()), SANDBOX).verdict;
        prop_assert_eq!(decided == Verdict::Allow, inside, "{}", path);
    }
}
