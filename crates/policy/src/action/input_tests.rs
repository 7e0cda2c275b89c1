use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::Command;

fn action(kind: &str, input: &Value) -> Action {
    Action::read(Some(kind), None, input, &[])
}

#[track_caller]
fn check_kinds(kind: &str, input: &Value, expected: &[Kind]) {
    assert_eq!(action(kind, input).kinds(), expected, "{kind} {input}");
}

#[track_caller]
fn check_paths(input: &Value, expected: &[&str]) {
    let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
    let mut found = action("read", input).paths;
    found.sort();
    assert_eq!(found, expected, "{input}");
}

#[track_caller]
fn check_command(input: &Value, expected: &Option<Command>) {
    assert_eq!(&action("execute", input).command, expected, "{input}");
}

fn argv(words: &[&str]) -> Option<Command> {
    Some(Command::Argv(words.iter().map(|word| (*word).to_owned()).collect()))
}

#[test]
fn the_stricter_kind_counts() {
    check_kinds("read", &json!({"path": "a"}), &[Kind::Read]);
    check_kinds("read", &json!({"command": "ls"}), &[Kind::Execute]);
    check_kinds("think", &json!({"deep": {"er": [{"cmd": ["rm", "x"]}]}}), &[Kind::Execute]);
    check_kinds("read", &json!({"url": "https://example.com"}), &[Kind::Fetch]);
    check_kinds("read", &json!({"file_path": "a", "content": "x"}), &[Kind::Edit]);
    check_kinds("read", &json!({"filePath": "a", "oldString": "x", "newString": ""}), &[Kind::Edit]);
    check_kinds("think", &json!({"query": "weather"}), &[Kind::Search]);
    check_kinds("search", &json!({"query": "x", "path": "src"}), &[Kind::Search]);
    check_kinds("read", &json!({"source": "a", "destination": "b"}), &[Kind::Move]);
    check_kinds("edit", &json!({"path": "a", "command": "ls"}), &[Kind::Edit, Kind::Execute]);
    check_kinds("levitate", &json!({"command": "ls"}), &[Kind::Execute, Kind::Other]);
    check_kinds("execute", &json!({}), &[Kind::Execute]);
    assert_eq!(Action::read(None, None, &Value::Null, &[]).kinds(), [Kind::Other]);
    assert_eq!(Action::read(Some("read"), None, &json!("--- a/x\n+++ b/x\n"), &[]).kinds(), [Kind::Edit]);
}

#[test]
fn a_part_of_a_name_can_mean_a_file_change() {
    for input in [
        json!({"path": "a", "new_content": "x"}),
        json!({"path": "a", "newContent": "x"}),
        json!({"path": "a", "file_content": "x"}),
        json!({"path": "a", "fileContents": "x"}),
        json!({"path": "a", "old_content": "x"}),
        json!({"path": "a", "hunks": [{"lines": ["x"]}]}),
        json!({"path": "a", "replacements": [{"from": "x"}]}),
        json!({"path": "a", "suggestedEdits": ["x"]}),
        json!({"path": "a", "updated-source": "x"}),
        json!({"fileChanges": {"a": {"kind": "add"}}}),
    ] {
        for kind in ["read", "search", "think"] {
            assert_eq!(action(kind, &input).kind, Kind::Edit, "{kind} {input}");
        }
    }
    for input in [
        json!({"path": "a", "includeContent": true}),
        json!({"path": "a", "maxEdits": 3}),
        json!({"path": "a", "contentType": "text/plain"}),
        json!({"path": "a", "dispatch": "x", "changesSince": "x"}),
    ] {
        check_kinds("read", &input, &[Kind::Read]);
    }
}

#[test]
fn a_part_of_a_name_can_mean_a_command() {
    for name in [
        "cmds",
        "bash_code",
        "preCommand",
        "shell_code",
        "run_code",
        "execute_code",
        "python_code",
        "powershell_script",
        "gitCommand",
        "postCommand",
        "setup-script",
        "JSCode",
        "shellInput",
    ] {
        for kind in ["read", "search", "think"] {
            let read = action(kind, &json!({"path": "a", name: "x"}));
            assert_eq!(read.command, Some(Command::Unknown("x".into())), "{kind} {name}");
        }
    }
    for input in [
        json!({"path": "a", "error_code": "x", "languageCode": "de", "zipCode": "1"}),
        json!({"path": "a", "runScript": true, "isCommand": false, "scripts": []}),
        json!({"path": "a", "commandId": "x", "description": "x"}),
    ] {
        assert_eq!(action("read", &input).command, None, "{input}");
    }
    // The command itself counts, and not its parsed form.
    let parsed =
        json!({"command": ["cat", "a"], "parsed_cmd": [{"type": "read", "cmd": "cat a", "path": "a"}]});
    assert!(!matches!(action("read", &parsed).command, Some(Command::Unknown(_))), "{parsed}");
}

#[test]
fn an_input_without_end_is_unknown() {
    let many: Vec<Value> = (0..MAX_PEER_VALUES + 1).map(Value::from).collect();
    check_kinds("read", &json!({"path": "a", "x": many}), &[Kind::Other]);
}

#[test]
fn paths_have_many_names() {
    check_paths(
        &json!({"path": "a", "file_path": "b", "notebook-path": "c", "absPath": "/d"}),
        &["/d", "a", "b", "c"],
    );
    check_paths(&json!({"files": ["a", {"path": "b"}]}), &["a", "b"]);
    check_paths(&json!({"changes": {"/x/a": {"kind": "add"}, "b": null}}), &["/x/a", "b"]);
    check_paths(&json!({"uri": "file:///x/%2eenv"}), &["/x/.env"]);
    check_paths(&json!({"path": "FILE:///x/y"}), &["/x/y"]);
    check_paths(&json!({"patch": "*** Begin Patch\n*** Add File: a\n*** End Patch"}), &["a"]);
    check_paths(&json!({"path": "a", "nested": {"path": "a"}}), &["a"]);
    check_paths(&json!({"path": "", "count": 3}), &[]);
    let located = Action::read(Some("edit"), None, &json!({}), &[PathBuf::from("/x")]);
    assert_eq!(located.paths, [PathBuf::from("/x")]);
}

#[test]
fn commands_have_many_forms() {
    check_command(&json!({"command": "git push"}), &Some(Command::Shell("git push".into())));
    check_command(&json!({"command": ["git", "push"]}), &argv(&["git", "push"]));
    check_command(&json!({"command": "git", "args": ["push"]}), &argv(&["git", "push"]));
    check_command(&json!({"argv": ["a"], "cwd": "/x"}), &argv(&["a"]));
    check_command(&json!({"commands": ["a b", "c"]}), &Some(Command::Shell("a b\nc".into())));
    check_command(&json!("ls -la"), &Some(Command::Shell("ls -la".into())));
    check_command(&json!(["ls", "-la"]), &argv(&["ls", "-la"]));
    check_command(&json!({"command": ["git", 1]}), &argv(&["git", "1"]));
    check_command(&json!({"command": null}), &None);
    check_command(&json!({"timeout": 5}), &None);
    check_command(&json!({"cmd": "a", "command": "b"}), &Some(Command::Shell("a\nb".into())));
    check_command(&json!({"cmd": ["it's"], "command": "b"}), &Some(Command::Shell("'it'\\''s'\nb".into())));
    check_command(&json!({"program": "git", "argv": ["git", "push"]}), &argv(&["git", "push"]));
    check_command(&json!({"argv": ["git", "push"], "tool": {"command": "git"}}), &argv(&["git", "push"]));
    assert_eq!(action("execute", &json!({"command": "a", "workdir": "/x"})).cwd, Some("/x".into()));
}

fn shell(text: &str) -> Option<Command> {
    Some(Command::Shell(text.to_owned()))
}

fn unknown(text: &str) -> Option<Command> {
    Some(Command::Unknown(text.to_owned()))
}

#[test]
fn arguments_of_every_type_belong_to_their_command() {
    check_command(&json!({"command": "find", "args": ". -delete"}), &shell("find . -delete"));
    check_command(
        &json!({"command": "find", "args": [".", "-delete", 1]}),
        &argv(&["find", ".", "-delete", "1"]),
    );
    check_command(&json!({"command": "head", "args": ["-n", 5, true]}), &argv(&["head", "-n", "5", "true"]));
    check_command(&json!({"command": "sleep", "args": 5}), &argv(&["sleep", "5"]));
    check_command(&json!({"command": "git", "Args": ["push"]}), &argv(&["git", "push"]));
    check_command(&json!({"command": "git", "Arg_Uments": ["push"]}), &argv(&["git", "push"]));
    check_command(&json!({"command": "git", "args": null}), &shell("git"));
    check_command(&json!({"program": "git", "args": ["push"]}), &argv(&["git", "push"]));
    check_command(&json!({"command": "git", "args": {"0": "push"}}), &unknown(r#"git {"0":"push"}"#));
    check_command(&json!({"command": "git", "args": ["push", null]}), &unknown(r#"git ["push",null]"#));
    check_command(&json!({"command": "git", "args": ["push", ["x"]]}), &unknown(r#"git ["push",["x"]]"#));
    check_command(
        &json!({"command": "git", "args": ["status"], "arguments": ["push"]}),
        &unknown(r#"git ["status"] ["push"]"#),
    );
    check_command(&json!({"command": {"line": "git push"}}), &unknown(r#"{"line":"git push"}"#));
    check_command(&json!({"command": ["git", {}]}), &unknown(r#"["git",{}]"#));
    check_command(&json!({"command": true}), &unknown("true"));
    check_command(&json!({"cmd": {}, "command": "ls"}), &unknown("{}\nls"));
    check_command(&json!({"command": ["find", "."], "args": ["-delete"]}), &argv(&["find", ".", "-delete"]));
    check_command(&json!({"command": ["find", "."], "args": "-delete"}), &argv(&["find", ".", "-delete"]));
    check_command(&json!({"argv": ["find"], "flags": ["-delete"]}), &argv(&["find", "-delete"]));
    check_command(&json!({"command": "find .", "params": "-delete"}), &shell("find . -delete"));
    check_command(&json!({"command": "ls", "options": {"timeout": 5}}), &shell("ls"));
    check_command(&json!({"command": "ls", "args": []}), &shell("ls"));
}

#[test]
fn arguments_that_belong_to_no_one_command_make_it_unknown() {
    for input in [
        json!({"tool": {"command": "find ."}, "args": ["-delete"]}),
        json!({"command": "find .", "options": {"args": ["-delete"]}}),
        json!({"command": "", "args": ["canary"]}),
        json!({"command": "sh -c", "args": ["canary"]}),
        json!({"command": ["find", "."], "args": "-name x"}),
        json!({"command": "ls", "script": "wc", "args": ["x"]}),
        json!({"commands": ["ls"], "args": ["x"]}),
        json!({"command": "ls", "args": ["x"], "flags": ["y"]}),
        json!({"command": "ls", "argv": ["rm", "a"]}),
        json!({"program": "git", "argv": ["push"]}),
        json!({"command": ["ls"], "argv": ["rm", "a"]}),
        json!({"command": "ls", "argv": "rm a"}),
        json!({"command": "ls", "script": "ls", "argv": ["ls"]}),
    ] {
        let command = action("execute", &input).command;
        assert!(matches!(command, Some(Command::Unknown(_))), "{input}: {command:?}");
    }
}

#[test]
fn one_command_cannot_hide_another() {
    check_command(&json!({"cmd": "ls \\", "command": "rm -rf x"}), &shell("sh -c 'ls \\'\nrm -rf x"));
    check_command(
        &json!({"command": "ls '", "script": "canary '"}),
        &shell("sh -c 'ls '\\'''\nsh -c 'canary '\\'''"),
    );
    check_command(&json!({"commands": ["ls # x", "canary"]}), &shell("sh -c 'ls # x'\ncanary"));
    check_command(&json!({"command": "bash", "stdin": "canary"}), &shell("printf %s 'canary' | bash"));
    check_command(&json!({"command": "ls", "cmd": "ls"}), &shell("ls"));
}

#[test]
fn a_directory_that_cannot_be_read_makes_a_command_unknown() {
    let cwd = |input: Value| action("execute", &input).cwd;
    assert_eq!(cwd(json!({"command": "ls", "directory": "/x"})), Some("/x".into()));
    assert_eq!(cwd(json!({"command": "ls", "cwd": "/x", "dir": "/x"})), Some("/x".into()));
    for input in [
        json!({"command": ["git", "status"], "cwd": ["/x"]}),
        json!({"command": "git status", "workdir": {"path": "/x"}}),
        json!({"command": "git status", "cwd": "/x", "directory": "/y"}),
    ] {
        let action = action("execute", &input);
        assert!(matches!(action.command, Some(Command::Unknown(_))), "{input}: {action:?}");
    }
    check_kinds("edit", &json!({"path": "passwd", "cwd": ["/etc"]}), &[Kind::Edit, Kind::Other]);
}

#[test]
fn every_path_out_of_the_directory_counts_as_changed() {
    #[track_caller]
    fn check(kind: &str, input: &Value, expected: &[&str]) {
        let mut found = action(kind, input).paths;
        found.sort();
        assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{input}");
    }
    for key in ["to", "new_name", "newFilePath", "to_path", "destination", "elsewhere", "output"] {
        check("move", &json!({"path": "a", key: "/etc/x"}), &["/etc/x", "a"]);
        check_kinds("move", &json!({"path": "a", key: "/etc/x"}), &[Kind::Move]);
    }
    check("edit", &json!({"path": ["a", ["/etc/x"]]}), &["/etc/x", "a"]);
    check("edit", &json!({"path": "a", "paths": {"b": "~/.bashrc"}}), &["a", "~/.bashrc"]);
    check("edit", &json!({"path": "passwd", "root": "/etc"}), &["/etc", "passwd"]);
    check("delete", &json!({"items": ["b/../../x"]}), &["b/../../x"]);
    check("edit", &json!({"path": "a", "content": "/etc/x", "description": "/etc/y"}), &["a"]);
    check("read", &json!({"path": "a", "elsewhere": "/etc/x"}), &["a"]);
    check_kinds("move", &json!({"path": "a"}), &[Kind::Move, Kind::Other]);
}

#[test]
fn variables_have_many_forms() {
    #[track_caller]
    fn check(env: &Value, expected: &[(&str, &str)]) {
        let input = json!({"command": "git", "args": ["status"], "env": env});
        let mut found = action("execute", &input).env;
        found.sort();
        let expected: Vec<Variable> =
            expected.iter().map(|(name, value)| Variable::new(*name, *value)).collect();
        assert_eq!(found, expected, "{env}");
    }
    check(&json!({"A": "x", "B": 1, "C": true}), &[("A", "x"), ("B", "1"), ("C", "true")]);
    check(&json!([{"name": "A", "value": "x"}, {"Key": "B", "value": ""}]), &[("A", "x"), ("B", "")]);
    check(&json!(["A=x=y", "B="]), &[("A", "x=y"), ("B", "")]);
    check(&json!("A=x"), &[("A", "x")]);
    check(&json!(null), &[]);
    check(&json!({}), &[]);
    // An assignment that cannot be read has no name.
    check(&json!("A=x B=y"), &[("A", "x B=y")]);
    check(&json!(["A"]), &[("", "\"A\"")]);
    check(&json!([7]), &[("", "7")]);
    check(&json!({"A": {}}), &[("", "A={}")]);
    check(&json!([{"name": "A"}]), &[("", r#"{"name":"A"}"#)]);
    check(
        &json!([{"Name": "B", "name": "A", "value": "x"}]),
        &[("", r#"{"Name":"B","name":"A","value":"x"}"#)],
    );
    check(&json!(true), &[("", "true")]);
    for key in ["environment", "Env", "env_vars", "environmentVariables", "extraEnv"] {
        let found = action("execute", &json!({"command": "git", key: {"A": "x"}})).env;
        assert_eq!(found, [Variable::new("A", "x")], "{key}");
    }
}

#[test]
fn searches_are_local_or_not() {
    let local = |input: Value| action("search", &input).local;
    assert!(local(json!({"pattern": "x"})));
    assert!(local(json!({"glob": "*.rs"})));
    assert!(local(json!({"query": "x", "path": "src"})));
    assert!(!local(json!({"query": "x"})));
    assert!(action("search", &json!({"query": "x"})).query);
}

#[test]
fn a_harmless_kind_hides_no_command() {
    for kind in ["read", "search", "think", "fetch"] {
        for key in [
            "script",
            "code",
            "bash",
            "shell_command",
            "run",
            "exec",
            "cmdline",
            "cmd_line",
            "commandLine",
            "terminal",
            "shell",
            "eval",
            "python",
            "bash_command",
            "runCommand",
            "command_to_run",
        ] {
            for input in [json!({key: "rm -rf x"}), json!({"path": "a", "deep": [{key: ["rm", "x"]}]})] {
                assert!(action(kind, &input).kinds().contains(&Kind::Execute), "{kind} {input}");
            }
        }
    }
    // A readable command does not hide the code in another member.
    let both = action("read", &json!({"command": "ls", "code": "rm -rf x"}));
    assert_eq!(both.command, unknown("rm -rf x"));
}

#[test]
fn a_harmless_kind_stays_harmless_without_a_command() {
    check_kinds("read", &json!({"path": "a", "offset": 1, "limit": 2, "encoding": "utf-8"}), &[Kind::Read]);
    check_kinds(
        "read",
        &json!({"path": "a", "run": true, "code": 3, "exec": "", "shell": "bash"}),
        &[Kind::Read],
    );
    check_kinds("search", &json!({"pattern": "x", "glob": "*.rs", "path": "src"}), &[Kind::Search]);
    check_kinds("search", &json!({"query": "x"}), &[Kind::Search]);
    // In an edit, `code` is the text of a file.
    check_kinds("edit", &json!({"path": "a", "code": "x = 1"}), &[Kind::Edit]);
}
