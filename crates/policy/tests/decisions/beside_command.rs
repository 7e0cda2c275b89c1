//! Members beside a command: one that cannot be judged makes the command unknown.

use narrows_policy::Verdict::{self, Allow, Ask, Deny};
use narrows_policy::{Access, Action, Command, Confined};
use serde_json::{Value, json};

use crate::common::{decide, policy};

const NONE: Confined =
    Confined { files: false, network: false, protected: narrows_policy::Protection::Unsupported };

const ALLOW_LS: &str = "[[rule]]\neffect = 'allow'\ncommand = ['ls', 'ls **']\n";
const ALLOW_LOOKING: &str =
    "[[rule]]\neffect = 'allow'\ncommand = ['ls **', 'cat **', 'grep **', 'pwd', 'bash -lc *']\n";
const DENY_CANARY: &str = "[[rule]]\neffect = 'deny'\ncommand = 'canary **'\n";

fn execute(input: &Value) -> Action {
    Action::read(Some("execute"), None, input, &[])
}

#[track_caller]
fn check(access: Access, rules: &str, input: &Value, expected: Verdict) {
    let decision = decide(&policy(access, rules), &execute(input), NONE);
    assert_eq!(decision.verdict, expected, "{access} {input}: {decision}");
}

/// Checks that the command of an input is unknown (`is_unknown`) or not, without rules.
#[track_caller]
fn check_unknown(input: &Value, is_unknown: bool) {
    let command = execute(input).command;
    assert_eq!(matches!(command, Some(Command::Unknown(_))), is_unknown, "{input}: {command:?}");
    let (low, allowed, denied) = if is_unknown { (Deny, Ask, Deny) } else { (Allow, Allow, Allow) };
    check(Access::Low, "", input, low);
    check(Access::Medium, ALLOW_LS, input, allowed);
    check(Access::High, DENY_CANARY, input, denied);
    check(Access::High, "", input, Allow);
}

/// Returns an `ls` with this member.
fn beside(name: &str, value: &Value) -> Value {
    json!({"command": "ls", name: value})
}

#[test]
fn an_unlisted_member_makes_a_command_unknown() {
    for name in [
        "shell",
        "interpreter",
        "exec",
        "run",
        "prefix",
        "PATH",
        "then",
        "code",
        "steps",
        "wrapper",
        "hooks",
        "LD_PRELOAD",
        "input",
        "text",
        "prompt",
        "data",
        "user",
        "host",
        "image",
        "name",
        "tool",
        "before",
        "post_command",
        "timeout_command",
        "description_command",
        "encoding",
        "language",
        "x",
        "",
        "_",
    ] {
        for value in [
            json!("canary"),
            json!("/tmp/evil"),
            json!(""),
            json!(["canary"]),
            json!([["canary", 1]]),
            json!([1, "canary"]),
            json!({"pre": "canary"}),
            json!({"x": {"y": ["canary"]}}),
            json!([{"x": "canary"}]),
        ] {
            check_unknown(&beside(name, &value), true);
        }
    }
}

/// The meaning of the outer member is unknown, so its members are unknown too.
#[test]
fn a_listed_name_in_an_unlisted_member_changes_nothing() {
    for value in [
        json!({"path": "/home/me/project/evil"}),
        json!({"description": "canary"}),
        json!({"canary": true}),
        json!([{"title": "canary"}]),
    ] {
        check_unknown(&beside("wrapper", &value), true);
    }
}

#[test]
fn members_are_judged_at_any_depth() {
    check_unknown(&beside("options", &json!({"shell": "/tmp/evil"})), true);
    check_unknown(&beside("options", &json!({"deep": {"timeout": 5}})), true);
    check_unknown(&beside("options", &json!({"timeout": 5, "description": "x"})), false);
    check_unknown(&json!({"input": {"command": "ls", "prefix": "sudo"}}), true);
    check_unknown(&json!({"input": {"command": "ls"}, "prefix": "sudo"}), true);
    check_unknown(&json!({"input": {"command": "ls", "timeout": 5}, "title": "It"}), false);
    check_unknown(&json!({"arguments": {"command": "ls", "prefix": "sudo"}}), true);
    check_unknown(&json!({"arguments": {"command": "ls"}}), false);
    check_unknown(&json!([{"command": "ls"}, {"prefix": "sudo"}]), true);
    check_unknown(&json!([{"command": "ls"}, "canary"]), true);
    check_unknown(&json!([{"command": "ls"}, ["canary"]]), true);
    check_unknown(&json!([{"command": "ls"}, {"timestamp": 5}, 5, null]), false);
    check_unknown(&json!(["ls", "-l"]), false);
    check_unknown(&json!("ls"), false);
    check_unknown(&json!({"command": "ls", "env": {"LANG": "C"}}), false);
    check_unknown(&json!({"command": "ls", "env": [{"name": "LANG", "value": "C"}]}), false);
    check_unknown(&json!({"command": "ls", "env": [{"name": "LANG", "value": "C", "run": "canary"}]}), true);
    check_unknown(&json!({"command": "ls", "path": [["canary"]]}), true);
    check_unknown(&json!({"command": "ls", "stdin": ["canary"]}), true);
    check_unknown(&json!({"command": "ls", "stdin": {"x": "canary"}}), true);
}

#[test]
fn numbers_and_empty_members_are_harmless_whatever_their_name() {
    for value in
        [json!(5), json!(-1.5), json!(true), json!(null), json!([]), json!({}), json!([1, [2, null]])]
    {
        for name in ["anything", "shell", "PATH", "hooks", "view_range", "tty", "login", "description"] {
            check_unknown(&beside(name, &value), false);
        }
    }
}

#[test]
fn texts_for_people_and_settings_are_harmless() {
    let long = "Runs canary; see\n$(canary) \"and\" more. ".repeat(1000);
    for name in [
        "description",
        "reason",
        "justification",
        "explanation",
        "title",
        "summary",
        "label",
        "comment",
        "note",
        "message",
        "intent",
        "intention",
        "purpose",
        "goal",
        "warning",
        "Description",
        "DeScrip_tion",
    ] {
        check_unknown(&beside(name, &json!(long)), false);
        check_unknown(&beside(name, &json!("")), false);
        check_unknown(&beside(name, &json!(["canary"])), true);
        check_unknown(&beside(name, &json!({"x": "canary"})), true);
    }
    for name in [
        "timeout",
        "timeout_ms",
        "run_in_background",
        "call_id",
        "turnId",
        "tool_call_id",
        "process_id",
        "approval_id",
        "session_id",
        "requestId",
        "kind",
        "type",
        "status",
        "mode",
        "sandbox_permissions",
        "max_output_tokens",
        "yield_time_ms",
        "columns",
        "rows",
    ] {
        check_unknown(&beside(name, &json!("item-1_a:b.c")), false);
        check_unknown(&beside(name, &json!("1; canary")), true);
        check_unknown(&beside(name, &json!(["canary"])), true);
    }
}

#[test]
fn only_a_common_shell_is_harmless() {
    for name in ["shell", "interpreter", "shell_path", "Shell"] {
        for shell in
            ["sh", "bash", "dash", "zsh", "ksh", "mksh", "/bin/sh", "/usr/bin/bash", "/usr/local/bin/zsh"]
        {
            check_unknown(&beside(name, &json!(shell)), false);
        }
        for shell in
            ["python3", "fish", "pwsh", "/tmp/bash", "./bash", "bin/sh", "/bin/../tmp/sh", "bash -x", "BASH"]
        {
            check_unknown(&beside(name, &json!(shell)), true);
        }
    }
}

#[test]
fn a_variable_written_as_a_member_makes_a_command_unknown() {
    for name in ["PATH", "ENV", "HOME", "LD_PRELOAD", "BASH_ENV", "FILE", "URL", "TITLE", "CWD"] {
        check_unknown(&beside(name, &json!("/evil")), true);
        check_unknown(&beside(name, &json!("")), true);
    }
}

#[test]
fn a_stray_path_or_possible_option_makes_a_command_unknown() {
    check_unknown(&beside("content", &json!("canary")), true);
    check_unknown(&beside("edits", &json!([{"new_string": "canary"}])), true);
    for name in ["path", "file", "pattern", "query", "to"] {
        check_unknown(&beside(name, &json!("-delete")), true);
        check_unknown(&beside(name, &json!([" -delete"])), true);
    }
    check_unknown(&beside("path", &json!("src")), false);
    check_unknown(&beside("patterns", &json!(["ls *", "ls -l *"])), false);
}

#[test]
fn an_input_that_is_too_large_makes_its_command_unknown() {
    let many: Vec<u32> = (0..30_000).collect();
    let action = execute(&json!({"command": "ls", "a": {"command": "canary"}, "x": many}));
    assert!(matches!(action.command, Some(Command::Unknown(_)) | None), "{:?}", action.command);
    let decision = decide(&policy(Access::High, DENY_CANARY), &action, NONE);
    assert_eq!(decision.verdict, Deny, "{decision}");
}

#[test]
fn everyday_requests_keep_their_command() {
    for input in [
        json!({"command": "ls", "description": "List files", "timeout": 120_000, "run_in_background": false,
            "dangerouslyDisableSandbox": false}),
        json!({"call_id": "call_1", "turn_id": "2", "command": ["bash", "-lc", "ls src"], "cwd": "/home/me/project",
            "reason": "Look around.\nThen go on.", "approval_id": "a-1", "process_id": "12",
            "parsed_cmd": [{"type": "list_files", "cmd": "ls src", "path": "src"},
                {"type": "read", "cmd": "cat README.md", "name": "README.md", "path": "/home/me/project/README.md"},
                {"type": "search", "cmd": "grep -e -x src", "query": "-x", "path": null}],
            "proposed_execpolicy_amendment": ["ls", "src"], "network_approval_context": null,
            "additional_permissions": null, "available_decisions": ["approved",
                {"approved_execpolicy_amendment": {"proposed_execpolicy_amendment": ["ls", "src"]}}, "abort"]}),
        json!({"cmd": "ls", "shell": "/bin/bash", "login": true, "tty": false, "workdir": "/home/me/project",
            "justification": "May I?", "sandbox_permissions": "require_escalated", "prefix_rule": ["ls", "-l"],
            "yield_time_ms": 1000, "max_output_tokens": 6000}),
        json!({"command": "ls", "description": "List", "dir_path": "src", "is_background": false}),
        json!({"command": "ls", "description": "List", "directory": "", "is_background": false}),
        json!({"command": "ls", "description": "List", "timeout": 5000, "workdir": "/home/me/project"}),
        json!({"command": "ls -l", "patterns": ["ls -l *"]}),
        json!({"command": "ls"}),
        json!({"command": "ls; pwd", "commands": ["ls; pwd"]}),
        json!({"command": "ls", "explanation": "List", "goal": "Look", "isBackground": false, "mode": "sync",
            "sessionId": "main", "initial_wait": 30, "fullCommandText": "ls", "intention": "List files",
            "canOfferSessionApproval": true, "warning": null}),
        json!({"command": "ls", "cwd": "/home/me/project", "is_background": false, "explanation": "List"}),
        json!({"command": "ls", "requires_approval": "false", "task_progress": "- [ ] Look"}),
    ] {
        let command = execute(&input).command;
        assert!(matches!(command, Some(Command::Shell(_) | Command::Argv(_))), "{input}: {command:?}");
        check(Access::Medium, ALLOW_LOOKING, &input, Allow);
        check(Access::High, DENY_CANARY, &input, Allow);
    }
    for input in [
        json!({"command": "view", "path": "/home/me/project/a", "view_range": [1, 20]}),
        json!({"command": "create", "path": "/home/me/project/a", "file_text": "canary\n"}),
        json!({"command": "str_replace", "path": "a", "old_str": "a", "new_str": "canary"}),
        json!({"command": "insert", "path": "a", "insert_line": 3, "insert_text": "canary"}),
        json!({"command": "rename", "old_path": "a", "new_path": "b"}),
    ] {
        let command = Action::read(Some("edit"), None, &input, &[]).command;
        assert!(matches!(command, Some(Command::Shell(_))), "{input}: {command:?}");
        check(Access::High, DENY_CANARY, &input, Allow);
    }
}

/// The texts of `parsed_cmd` are commands too, and nothing else in it is ignored.
#[test]
fn parsed_commands_are_judged() {
    let parsed = |entry: Value| json!({"command": ["ls"], "parsed_cmd": [entry]});
    check(Access::High, DENY_CANARY, &parsed(json!({"type": "unknown", "cmd": "canary"})), Deny);
    check_unknown(&parsed(json!({"type": "unknown", "cmd": "ls", "then": "canary"})), true);
    check_unknown(&parsed(json!("canary")), true);
    check(
        Access::Medium,
        ALLOW_LS,
        &parsed(json!({"type": "unknown", "cmd": "ls", "name": "canary"})),
        Allow,
    );
}

#[test]
fn a_full_command_text_is_a_command() {
    check(Access::High, DENY_CANARY, &json!({"command": "ls", "fullCommandText": "canary x"}), Deny);
    check(Access::Low, "", &json!({"fullCommandText": "rm x"}), Deny);
    assert_eq!(execute(&json!({"fullCommandText": "ls"})).command, Some(Command::Shell("ls".into())));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// No member makes a verdict milder, for any name and value.
    #[test]
    fn a_member_makes_no_verdict_milder(name in "[a-zA-Z_]{1,12}", text in "[ -~]{0,12}") {
        let command = json!({"command": "ls"});
        for (access, rules) in [(Access::Low, ""), (Access::Medium, ALLOW_LS), (Access::High, DENY_CANARY)] {
            let policy = policy(access, rules);
            let without = decide(&policy, &execute(&command), NONE);
            for value in [json!(text), json!([text]), json!({name.as_str(): text}), json!([{"x": text}]), json!(1)] {
                let input = json!([command, {name.as_str(): value}]);
                let with = decide(&policy, &execute(&input), NONE);
                proptest::prop_assert!(with.verdict >= without.verdict, "{} {} {}", input, with, without);
            }
        }
    }
}

/// Returns a request of this kind that has a harmless command in addition to its own input.
fn with_ls(kind: Option<&str>, input: &Value) -> Action {
    let mut input = input.clone();
    input["command"] = json!("ls");
    Action::read(kind, None, &input, &[])
}

#[test]
fn a_rule_that_allows_a_command_allows_no_change_beside_it() {
    let protected = json!({"path": "/home/me/project/.git/hooks/pre-commit", "content": "x"});
    let elsewhere = json!({"path": "/etc/cron.d/x", "content": "x"});
    for rules in [
        ALLOW_LS,
        "[[rule]]\neffect = 'allow'\nkind = 'execute'\n",
        "[[rule]]\neffect = 'ask'\ncommand = 'ls'\n",
    ] {
        for kind in [Some("edit"), Some("execute"), Some("read"), Some("delete"), Some("other"), None] {
            for input in [&protected, &elsewhere] {
                for access in [Access::Low, Access::Medium] {
                    let decision = decide(&policy(access, rules), &with_ls(kind, input), NONE);
                    assert_eq!(decision.verdict, Deny, "{access} {rules} {kind:?} {input}: {decision}");
                }
            }
            let decision = decide(&policy(Access::High, rules), &with_ls(kind, &protected), NONE);
            assert_eq!(decision.verdict, Deny, "{rules} {kind:?}: {decision}");
        }
    }
    let allowed = "[[rule]]\neffect = 'allow'\nkind = ['edit', 'execute']\ncommand = 'ls'\n";
    check_kind(allowed, Some("edit"), &json!({"path": "a", "content": "x"}), Allow);
}

#[track_caller]
fn check_kind(rules: &str, kind: Option<&str>, input: &Value, expected: Verdict) {
    let decision = decide(&policy(Access::Low, rules), &with_ls(kind, input), NONE);
    assert_eq!(decision.verdict, expected, "{rules} {kind:?} {input}: {decision}");
}

#[test]
fn a_rule_that_allows_a_command_allows_what_only_reads_beside_it() {
    for kind in [Some("execute"), Some("read"), Some("search"), Some("think"), None, Some("other")] {
        check_kind(ALLOW_LS, kind, &json!({"description": "List"}), Allow);
    }
    check_kind(ALLOW_LS, Some("execute"), &json!({"path": "src"}), Allow);
    check_kind(ALLOW_LS, Some("execute"), &json!({"url": "https://example.com"}), Deny);
    check_kind(ALLOW_LS, None, &json!({"path": "src"}), Deny);
    check_kind(ALLOW_LS, Some("switch_mode"), &json!({}), Deny);
    let of_server = Action { server: Some("s".into()), ..with_ls(None, &json!({})) };
    let verdict = |rules: &str| decide(&policy(Access::Low, rules), &of_server, NONE).verdict;
    assert_eq!(verdict(ALLOW_LS), Deny);
    assert_eq!(verdict("[[rule]]\neffect = 'allow'\nserver = 's'\ncommand = 'ls'\n"), Allow);
}

#[test]
fn an_edit_with_a_diff_beside_a_harmless_command_is_an_edit() {
    let path = "/home/me/project/.git/hooks/pre-commit";
    let diff = json!({"type": "diff", "path": path, "oldText": "a", "newText": "b"});
    let action = execute(&json!({"command": "ls"})).with_content(&[diff]);
    for (access, rules) in [(Access::Low, ALLOW_LS), (Access::Medium, ALLOW_LS), (Access::High, "")] {
        let decision = decide(&policy(access, rules), &action, NONE);
        assert_eq!(decision.verdict, Deny, "{access}: {decision}");
    }
    assert!(!action.only_reads());
    assert!(execute(&json!({"command": "ls"})).only_reads());
    assert!(!execute(&json!({"command": "ls", "env": {"LD_PRELOAD": "/x"}})).only_reads());
    assert!(!execute(&json!({"command": "rm x"})).only_reads());
    assert!(!Action::read(Some("execute"), None, &json!({}), &[]).only_reads());
}
