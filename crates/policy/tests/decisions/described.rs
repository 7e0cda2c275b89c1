//! Requests as described by agents: variables, arguments, diffs and links are judged.

use narrows_policy::Verdict::{self, Allow, Ask, Deny};
use narrows_policy::{Access, Action, Command, Confined, DecisionReason, Rules};
use serde_json::{Value, json};

use crate::common::{SANDBOX, decide, policy};

const NONE: Confined =
    Confined { files: false, network: false, protected: narrows_policy::Protection::Unsupported };

const LOOKING: &str = "[[rule]]\neffect = 'allow'\ncommand = 'git status **'\n";

fn execute(input: &Value) -> Action {
    Action::read(Some("execute"), None, input, &[])
}

#[track_caller]
fn check(access: Access, rules: &str, action: &Action, confined: Confined, expected: Verdict) {
    let decision = decide(&policy(access, rules), action, confined);
    assert_eq!(decision.verdict, expected, "{access} {action:?}: {decision}");
}

fn with_env(env: &Value) -> Action {
    execute(&json!({"command": "git", "args": ["status"], "env": env}))
}

#[test]
fn an_allow_rule_does_not_cover_a_command_with_a_variable() {
    for env in [
        json!({"PATH": "/evil"}),
        json!({"XDG_CONFIG_HOME": "x"}),
        json!({"LD_PRELOAD": "x.so"}),
        json!({"ANYTHING": "1"}),
        json!([{"name": "PAGER", "value": "sh"}]),
        json!(["HOME=/tmp"]),
        json!("GIT_DIR=/tmp"),
        json!({"LANG": "../../evil"}),
        json!({"LANG": "C", "PATH": "/evil"}),
        json!([7]),
    ] {
        let action = with_env(&env);
        check(Access::Low, "", &action, NONE, Deny);
        check(Access::Low, LOOKING, &action, NONE, Deny);
        check(Access::Medium, LOOKING, &action, NONE, Ask);
        // A sandbox confines the command in any case.
        check(Access::Medium, LOOKING, &action, SANDBOX, Allow);
        check(Access::High, "", &action, NONE, Allow);
    }
    for env in [json!({}), json!(null), json!({"LANG": "C.UTF-8", "NO_COLOR": "1"}), json!(["CI=true"])] {
        let action = with_env(&env);
        check(Access::Low, "", &action, NONE, Allow);
        check(Access::Medium, LOOKING, &action, NONE, Allow);
    }
}

#[test]
fn a_deny_rule_matches_whatever_variables_are_set() {
    let rules = "[[rule]]\neffect = 'deny'\ncommand = 'git status'\n";
    check(Access::High, rules, &with_env(&json!({"X": "1"})), NONE, Deny);
}

/// A variable of the request counts like an assignment in the command.
#[test]
fn a_deny_rule_matches_what_a_variable_may_run() {
    let rules = "[[rule]]\neffect = 'deny'\ncommand = ['canary', 'git push']\n";
    for (name, value) in [
        ("BASH_FUNC_ls%%", "() { canary; }"),
        ("BASH_FUNC_ls%%", "() { x; }"),
        ("GIT_PAGER", "canary"),
        ("GIT_PAGER", "can''ary"),
        ("GIT_PAGER", "$X"),
        ("EDITOR", "git push"),
        ("BASH_ENV", "x"),
        ("ENV", "x"),
        ("PS4", "$(x)"),
        ("PROMPT_COMMAND", "x"),
        ("ANY_HOOK", "/bin/canary --x"),
        ("GIT_CONFIG_VALUE_0", "!canary"),
        ("a b", "c"),
        ("", ""),
    ] {
        for line in ["ls", "git status"] {
            let env = json!([{"name": name, "value": value}]);
            let action = execute(&json!({"command": line, "env": env}));
            check(Access::High, rules, &action, NONE, Deny);
        }
    }
    for (name, value) in [
        ("PATH", "/x/bin:/usr/bin"),
        ("RUST_LOG", "debug,hyper=info"),
        ("GIT_PAGER", "cat"),
        ("PAGER", "less -R"),
        ("EDITOR", "vim"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("CLAUDECODE", "1"),
        ("NODE_ENV", "test"),
        ("MESSAGE", "it's (fine) $x"),
        ("LS_COLORS", "di=01;34:ln=01;36"),
        ("GIT_SSH_COMMAND", "ssh -i key -o BatchMode=yes"),
    ] {
        let env = json!([{"name": name, "value": value}]);
        let action = execute(&json!({"command": "cargo test", "env": env}));
        check(Access::High, rules, &action, NONE, Allow);
    }
}

#[test]
fn a_rule_lists_the_variables_that_it_accepts() {
    let rules = "[[rule]]\neffect = 'allow'\ncommand = 'git status'\nenv = ['GIT_PAGER', 'CARGO_*']\n\
        match = ['git status', { command = 'git status', env = ['GIT_PAGER', 'CARGO_HOME'] }]\n\
        not_match = [{ command = 'git status', env = 'PATH' }, { command = 'git status', env = ['GIT_PAGER', 'X'] }]\n";
    check(Access::Medium, rules, &with_env(&json!({"GIT_PAGER": "cat", "LANG": "C"})), NONE, Allow);
    check(Access::Medium, rules, &with_env(&json!({"git_pager": "cat"})), NONE, Ask);
    // An unreadable assignment is not one of the listed variables.
    let any = "[[rule]]\neffect = 'allow'\ncommand = 'git status'\nenv = '*'\n";
    check(Access::Medium, any, &with_env(&json!({"PATH": "/evil"})), NONE, Allow);
    check(Access::Medium, any, &with_env(&json!([7])), NONE, Ask);
    let complaint =
        Rules::parse("[[rule]]\neffect = 'deny'\ncommand = 'x'\nenv = 'A'\n", "p.toml").unwrap_err();
    assert!(complaint.to_string().contains("`env` is for rules that allow or ask"), "{complaint}");
    let alone = Rules::parse("[[rule]]\neffect = 'allow'\nenv = 'A'\n", "p.toml").unwrap_err();
    assert!(alone.to_string().contains("would match everything"), "{alone}");
}

#[test]
fn an_ask_rule_with_an_unlisted_variable_does_not_turn_a_refusal_into_a_question() {
    let rules = "[[rule]]\neffect = 'ask'\ncommand = 'git status'\n";
    check(Access::Low, rules, &with_env(&json!({"X": "1"})), NONE, Deny);
    check(Access::High, rules, &with_env(&json!({"X": "1"})), NONE, Ask);
}

#[test]
fn a_variable_can_make_a_read_only_command_change_files() {
    // With `PATH` the program may be another one, so its operands may be changed.
    let action = execute(&json!({"command": "cat", "args": ["AGENTS.md"], "env": {"PATH": "/evil"}}));
    check(Access::High, "", &action, NONE, Deny);
    let action = execute(&json!({"command": "cat", "args": ["AGENTS.md"]}));
    check(Access::High, "", &action, NONE, Allow);
}

#[test]
fn no_form_of_arguments_hides_them() {
    let deny = "[[rule]]\neffect = 'deny'\ncommand = 'find -delete'\n";
    let allow =
        "[[rule]]\neffect = 'allow'\ncommand = 'find **'\n[[rule]]\neffect = 'allow'\nkind = 'execute'\n";
    for args in [json!(". -delete"), json!([".", "-delete"]), json!([".", "-delete", 1])] {
        let action = execute(&json!({"command": "find", "args": args}));
        check(Access::Low, "", &action, NONE, Deny);
        check(Access::High, deny, &action, NONE, Deny);
    }
    for args in [json!({"0": "."}), json!([["."]]), json!([null])] {
        let action = execute(&json!({"command": "find", "args": args}));
        check(Access::Low, "", &action, NONE, Deny);
        check(Access::High, deny, &action, NONE, Deny);
        check(Access::Medium, allow, &action, NONE, Ask);
        check(Access::High, "", &action, NONE, Allow);
    }
    let safe = execute(&json!({"command": "head", "args": ["-n", 5, "README"]}));
    check(Access::Low, "", &safe, NONE, Allow);
}

#[test]
fn a_diff_is_judged_where_it_changes_a_file() {
    let located = |kind: &str, path: &str| {
        let content = [json!({"type": "diff", "path": path, "oldText": null, "newText": "x"})];
        let inside = ["/home/me/project/a".into()];
        Action::read(Some(kind), None, &json!({}), &inside).with_content(&content)
    };
    check(Access::Medium, "", &located("edit", "/home/me/project/b"), NONE, Allow);
    check(Access::Medium, "", &located("edit", "/etc/cron.d/x"), NONE, Deny);
    check(Access::Medium, "", &located("read", "/home/me/project/.git/hooks/pre-commit"), NONE, Deny);
    check(Access::Low, "", &located("read", "/home/me/project/b"), NONE, Deny);
    let moved = json!([{"type": "diff", "changes": [{"operation": "move", "oldPath": "/etc/a", "path": "/home/me/project/a"}]}]);
    let moved = Action::read(Some("edit"), None, &json!({}), &[]).with_content(moved.as_array().unwrap());
    check(Access::Medium, "", &moved, NONE, Deny);
}

#[test]
fn a_directory_is_judged_by_its_name_and_its_link_target() {
    let run = |cwd: &str, real: Option<&str>, argv: &[&str]| Action {
        real_cwd: real.map(Into::into),
        ..Action::execute(
            Command::Argv(argv.iter().map(|word| (*word).to_owned()).collect()),
            Some(cwd.into()),
        )
    };
    let root = "/home/me/project";
    check(Access::Medium, "", &run("/home/me/project/link", None, &["make"]), SANDBOX, Allow);
    check(Access::Medium, "", &run("/home/me/project/link", Some("/srv"), &["make"]), SANDBOX, Ask);
    check(Access::Medium, "", &run("/srv/link", Some(root), &["make"]), SANDBOX, Ask);
    // A path relative to a protected directory is protected.
    let hooks = run("/home/me/project/kk", Some("/home/me/project/.git/hooks"), &["tee", "pre-commit"]);
    let decision = decide(&policy(Access::High, ""), &hooks, NONE);
    assert!(matches!(decision.because, DecisionReason::Protected { .. }), "{decision}");
    let gone = run("/home/me/project/kk", Some("/home/me/project/.git"), &["sh", "-c", "cd hooks && tee x"]);
    let decision = decide(&policy(Access::High, ""), &gone, NONE);
    assert!(matches!(decision.because, DecisionReason::Protected { .. }), "{decision}");
}

#[test]
fn two_commands_are_the_same_only_if_they_certainly_run_the_same() {
    let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
    let shell = |text: &str| Command::Shell(text.to_owned());
    for (one, other, same) in [
        (argv(&["ls", "-la"]), argv(&["ls", "-la"]), true),
        (argv(&["ls", "-la"]), shell("ls -la"), true),
        (argv(&["ls", "a b"]), shell("ls 'a b'"), true),
        (argv(&["bash", "-c", "a && b"]), shell("a && b"), true),
        (argv(&["ls", "-la"]), argv(&["ls", "-l", "-a"]), false),
        (argv(&["ls", "a b"]), shell("ls a b"), false),
        (shell("a && b"), shell("a || b"), false),
        (shell("a; b"), argv(&["bash", "-c", "a && b"]), false),
        (shell("ls $HOME"), argv(&["ls", "$HOME"]), false),
        (shell("ls *"), argv(&["ls", "*"]), false),
        (shell("ls > x"), argv(&["ls"]), false),
        (shell("X=1 ls"), argv(&["X=1", "ls"]), false),
        (Command::Unknown("x".into()), Command::Unknown("x".into()), false),
    ] {
        assert_eq!(one.is_same(&other), same, "{one:?} {other:?}");
        assert_eq!(other.is_same(&one), same, "{other:?} {one:?}");
    }
}

proptest::proptest! {
    /// No variable makes a verdict milder, in any form of arguments.
    #[test]
    fn a_variable_makes_no_verdict_milder(name in "[A-Z_]{0,12}", value in "[ -~]{0,12}", confined: bool) {
        let env = json!([{"name": name, "value": value}]);
        let confined = if confined { SANDBOX } else { NONE };
        for access in [Access::Low, Access::Medium, Access::High] {
            for rules in ["", LOOKING, "[[rule]]\neffect = 'ask'\ncommand = 'git'\n"] {
                let policy = policy(access, rules);
                let with = decide(&policy, &with_env(&env), confined);
                let without = decide(&policy, &with_env(&Value::Null), confined);
                proptest::prop_assert!(with.verdict >= without.verdict, "{} {}", with, without);
            }
        }
    }
}
