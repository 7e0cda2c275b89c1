//! `narrows policy`: evaluating rules without an agent.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::test_dir::TestDir;

const RULES: &str = r#"
[[rule]]
effect = "deny"
name = "people push"
command = "git push"
because = "Ask in the channel for a push."
match = ["git push origin main"]
not_match = ["git pull"]

[[rule]]
effect = "allow"
command = "make test"

[[rule]]
effect = "ask"
server = "github"
"#;

/// Creates a directory with the rules above.
fn dir() -> TestDir {
    let dir = TestDir::new();
    dir.file("rules.toml", RULES);
    dir
}

/// Runs `narrows policy` with these arguments.
fn policy(dir: &TestDir, args: &[&str]) -> String {
    dir.output_of(dir.narrows(["policy"].iter().chain(args)))
}

/// Parses the JSON output and checks the exit code.
#[track_caller]
fn object(told: &str, code: u8) -> Value {
    let end = format!("--- exit {code} ---\n");
    let text = told.strip_suffix(&end).expect(told);
    serde_json::from_str(text).expect(told)
}

#[test]
fn a_command_is_explained() {
    let dir = dir();
    assert_snapshot!(policy(&dir, &["explain", "rules.toml", "--", "git", "push", "origin", "main"]), @"
    deny `git push origin main`: rule `people push` (rules.toml:2): Ask in the channel for a push.
    rules:
      + deny rule `people push` (rules.toml:2): matches `git push origin main`
      - allow rule 2 (rules.toml:10): its `command` does not match `git push origin main`
      - ask rule 3 (rules.toml:14): its `server` does not match `git push origin main`
    --- exit 0 ---
    ");
    assert_snapshot!(policy(&dir, &["explain", "rules.toml", "--", "make test && git push"]), @"
    deny `git push`: rule `people push` (rules.toml:2): Ask in the channel for a push.
    parts:
      allow `make test`: rule 2 (rules.toml:10) matches
      deny `git push`: rule `people push` (rules.toml:2): Ask in the channel for a push.
    rules:
      + deny rule `people push` (rules.toml:2): matches `git push`
      + allow rule 2 (rules.toml:10): matches `make test`
      - ask rule 3 (rules.toml:14): its `server` does not match `make test`
    --- exit 0 ---
    ");
    // After `--`, the words are the arguments of one program and not a shell command.
    let words = ["explain", "rules.toml", "--no-sandbox", "--", "echo", "make test && git push"];
    let told = policy(&dir, &words);
    assert!(told.starts_with("ask `echo"), "{told}");
}

/// Without a flag, the sandbox of this machine applies.
#[tokio::test]
async fn a_command_is_judged_with_the_sandbox_of_a_run() {
    let dir = dir();
    let can = narrows_process::Sandbox::support().await.confined();
    for (file, protected) in [("a.txt", can.files), (".env", can.protected)] {
        dir.file(file, "");
        for (flags, confined) in [
            (&[][..], json!({"files": can.files, "network": false, "protected": protected})),
            (&["--no-network"], json!({"files": can.files, "network": can.network, "protected": protected})),
            (&["--sandboxed"], json!({"files": true, "network": false, "protected": true})),
            (&["--no-sandbox"], json!({"files": false, "network": false, "protected": false})),
        ] {
            let args = [&["explain", "--json"], flags, &["--", "make"]].concat();
            let told = object(&policy(&dir, &args), 0);
            assert_eq!(told["confined"], confined, "{file} {flags:?}");
            let held = confined["files"] == true && confined["protected"] == true;
            let off = flags.contains(&"--no-network") && confined["network"] == false;
            let expected = if off {
                "deny"
            } else if held {
                "allow"
            } else {
                "ask"
            };
            assert_eq!(told["verdict"], expected, "{file} {flags:?}");
        }
    }
}

#[test]
fn flags_decide_as_they_do_for_a_run() {
    #[track_caller]
    fn check(args: &[&str], expected: &str) {
        let dir = dir();
        std::fs::create_dir(dir.path().join("more")).unwrap();
        let told = policy(&dir, &[&["explain"], args].concat());
        assert!(told.starts_with(expected) && told.ends_with("--- exit 0 ---\n"), "{args:?}: {told}");
    }
    check(&["--path", "a.txt"], "allow `a.txt`");
    check(&["--kind", "edit", "--path", "a.txt"], "allow `a.txt`");
    check(&["--access", "low", "--kind", "edit", "--path", "a.txt"], "deny `a.txt`");
    check(&["--kind", "edit", "--path", "/elsewhere/a.txt"], "deny `/elsewhere/a.txt`");
    check(&["--access", "high", "--kind", "edit", "--path", "/elsewhere/a.txt"], "allow `/elsewhere/a.txt`");
    check(&["--cwd", "more", "--kind", "edit", "--path", "../a.txt"], "deny `../a.txt`");
    check(&["--cwd", "more", "--add-dir", ".", "--kind", "edit", "--path", "../a.txt"], "allow `../a.txt`");
    check(&["--no-sandbox", "--", "make"], "ask `make`");
    check(&["--sandboxed", "--", "make"], "allow `make`");
    check(&["--sandboxed", "--no-network", "--", "make"], "allow `make`");
    check(&["--sandboxed", "--no-network", "--", "curl", "example.org"], "deny: the network is disabled");
    check(&["--no-network", "--no-sandbox", "--", "make"], "deny: the network is disabled");
    check(&["--url", "https://example.org/"], "allow `https://example.org/`");
    check(&["--no-network", "--url", "https://example.org/"], "deny: the network is disabled");
    check(&["--no-web-search", "--kind", "search"], "deny: web search is disabled");
    check(&["--tool", "create_issue", "--server", "github"], "ask: no rule matches");
    check(
        &["rules.toml", "--tool", "create_issue", "--server", "github"],
        "ask: rule 3 (rules.toml:14) matches",
    );
    check(&["--access", "high", "--server", "github"], "allow: no rule matches");
    check(&["rules.toml", "--access", "high", "--server", "github"], "ask: rule 3");
}

#[test]
fn an_explanation_for_programs() {
    let dir = dir();
    let told = policy(&dir, &["explain", "rules.toml", "--json", "--", "make", "test"]);
    let explained = object(&told, 0);
    assert_eq!(explained["verdict"], "allow");
    assert_eq!(explained["because"], json!({"by": "rule", "file": "rules.toml", "line": 10, "number": 2}));
    assert_eq!(explained["words"], "allow `make test`: rule 2 (rules.toml:10) matches");
    assert_eq!(explained["roots"], json!(["[DIR]"]));
    let looked = explained["rules"].as_array().unwrap();
    let matched: Vec<_> = looked.iter().map(|rule| rule["matched"].as_bool().unwrap()).collect();
    assert_eq!(matched, [false, true, false]);
}

#[test]
fn an_invalid_request_is_refused() {
    let dir = dir();
    for (args, words) in [
        (&["explain"][..], "<REQUEST>"),
        (&["explain", "--kind", "levitate"], "[possible values: think, read,"),
        (&["explain", "--access", "some", "--", "ls"], "[possible values: low, medium, high]"),
        (&["explain", "--cwd", "nowhere", "--", "ls"], "cannot use the directory \"nowhere\""),
        (&["explain", "nothing.toml", "--", "ls"], "the rules: cannot read \"nothing.toml\""),
    ] {
        let told = policy(&dir, args);
        assert!(told.contains(words) && told.ends_with("--- exit 2 ---\n"), "{told}");
    }
}

#[test]
fn rules_are_checked_with_their_examples() {
    let dir = dir();
    assert_snapshot!(policy(&dir, &["check", "rules.toml"]), @"
    rules.toml: OK, 3 rules; all examples pass
    --- exit 0 ---
    ");
    dir.file(
        "one.toml",
        "access = 'low'\nnetwork = false\nweb_search = false\n[[rule]]\neffect = 'deny'\nkind = '*'",
    );
    assert_snapshot!(policy(&dir, &["check", "one.toml"]), @"
    one.toml: OK, 1 rule, low access, no network, no web search; all examples pass
    --- exit 0 ---
    ");
    assert_snapshot!(policy(&dir, &["check", "one.toml", "--json"]), @r#"
    {"file":"one.toml","ok":true,"rules":1,"access":"low","network":false,"webSearch":false}
    --- exit 0 ---
    "#);
    dir.file("bad.toml", &RULES.replace("git pull", "git push --force"));
    assert_snapshot!(policy(&dir, &["check", "bad.toml"]), @"
    --- stderr ---
    error: bad.toml:8:14: this rule matches this example
    hint: deny and ask rules also match further words, and paths below
    --- exit 2 ---
    ");
    dir.file("odd.toml", "[[rule]]\nefect = 'deny'");
    let told = policy(&dir, &["check", "odd.toml", "--json"]);
    let checked: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!((&checked["ok"], &checked["error"]["line"]), (&json!(false), &json!(2)));
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
}

#[test]
fn a_recorded_run_is_judged_again() {
    let dir = dir();
    let recorded = dir.run("narrows fake-agent ask", &["--output", "events", "Hi"]).output().unwrap();
    assert!(recorded.status.success());
    dir.file("run.jsonl", std::str::from_utf8(&recorded.stdout).unwrap());
    assert_snapshot!(policy(&dir, &["test", "rules.toml", "--events", "run.jsonl"]), @"
    = allow: Remove build output?
    decisions that differ: 0 of 1
    --- exit 0 ---
    ");
    dir.file("strict.toml", "[[rule]]\neffect = 'ask'\nkind = 'delete'\nbecause = 'It may be needed.'");
    assert_snapshot!(policy(&dir, &["test", "strict.toml", "--events", "run.jsonl"]), @"
    ! allow -> ask: Remove build output?
        rule 1 (strict.toml:1): It may be needed.
    decisions that differ: 1 of 1
    --- exit 1 ---
    ");
    let args = ["test", "strict.toml", "--events", "run.jsonl", "--allow-changes", "--json"];
    let judged = object(&policy(&dir, &args), 0);
    assert_eq!((&judged["changed"], &judged["unknownLines"]), (&json!(1), &json!(0)));
    let request = &judged["requests"][0];
    assert_eq!(
        (&request["was"], &request["now"], &request["changed"]),
        (&json!("allow"), &json!("ask"), &json!(true))
    );
    assert_eq!(request["decision"]["because"]["line"], 1);
    // Reading from stdin gives the same result. So does another directory, which does not contain the agent's
    // file.
    let elsewhere =
        dir.narrows(["policy", "test", "rules.toml", "--cwd", "/", "--add-dir", ".", "--events", "-"]);
    let told = dir.output_with_input(elsewhere, &recorded.stdout);
    assert!(told.starts_with("= allow: Remove build output?"), "{told}");
}

/// Returns the events of one permission request and its decision.
fn request_events(id: &str, requested: &Value, decision: &Value) -> String {
    let event = |payload: Value| json!({"type": "provider.event", "atMs": 1, "sessionId": "s", "provider": "a", "payload": payload});
    let mut payload = json!({"type": "permission.requested", "requestId": id, "title": id});
    for (key, value) in requested.as_object().expect("an object") {
        payload[key] = value.clone();
    }
    let resolved =
        json!({"type": "permission.resolved", "requestId": id, "outcome": "selected", "decision": decision});
    format!("{}\n{}\n", event(payload), event(resolved))
}

#[test]
fn every_kind_of_request_is_judged_correctly() {
    let dir = dir();
    let directory = dir.path().canonicalize().unwrap();
    let allowed = json!({"verdict": "allow", "because": {"by": "preset"}});
    let file = json!({"method": "fs/write_text_file", "kind": "edit", "input": {"path": "/link/a"}, "locations": [directory.join("a")]});
    let requests = [
        (
            "argv",
            json!({"method": "terminal/create", "input": {"command": "git", "args": ["push"], "cwd": directory}}),
        ),
        (
            "line",
            json!({"method": "session/request_permission", "command": "make test && git push", "cwd": directory}),
        ),
        (
            "input",
            json!({"method": "session/request_permission", "kind": "read", "input": {"command": "git push"}}),
        ),
        (
            "quoted",
            json!({"method": "terminal/create", "input": {"command": "make", "args": ["test"], "cwd": directory}}),
        ),
        ("mcp", json!({"method": "mcp/message", "toolName": "github.create_issue", "input": {}})),
        ("link", file),
        (
            "read",
            json!({"method": "fs/read_text_file", "locations": [directory.join("a")], "input": {"path": directory.join("a")}}),
        ),
        ("partial", json!({"method": "session/request_permission", "kind": "read", "truncated": true})),
    ];
    let mut record: String =
        requests.iter().map(|(id, request)| request_events(id, request, &allowed)).collect();
    record.push_str(&request_events("form", &json!({"method": "elicitation/create"}), &Value::Null));
    let cancelled = json!({"verdict": "deny", "because": {"by": "cancelling"}});
    record.push_str(&request_events("late", &json!({"method": "session/request_permission"}), &cancelled));
    let open = request_events("open", &json!({"method": "session/request_permission"}), &allowed);
    record.push_str(open.lines().next().unwrap());
    record.push_str("\n\nno event\n{\"type\":\"of another day\"}\n");
    dir.file("run.jsonl", &record);
    assert_snapshot!(policy(&dir, &["test", "rules.toml", "--events", "run.jsonl"]), @"
    ! allow -> deny: argv
        rule `people push` (rules.toml:2): Ask in the channel for a push.
    ! allow -> deny: line
        rule `people push` (rules.toml:2): Ask in the channel for a push.
    ! allow -> deny: input
        rule `people push` (rules.toml:2): Ask in the channel for a push.
    = allow: quoted
    ! allow -> ask: mcp
        rule 3 (rules.toml:14) matches
    ! allow -> deny: link
        no rule matches, and medium access denies file changes outside the session's directories
    = allow: read
    ! allow -> ask: partial
        the request is not fully known, so no rule can allow it
    decisions that differ: 6 of 8
    requests not decided by rules: 2
    requests without an answer: 1
    lines that are not events: 2
    --- exit 1 ---
    ");
}

#[test]
fn a_record_without_events_is_an_error() {
    let dir = dir();
    dir.file("empty.jsonl", "hello\n");
    assert_snapshot!(policy(&dir, &["test", "rules.toml", "--events", "empty.jsonl"]), @r#"
    --- stderr ---
    error: no events in "empty.jsonl"
    hint: record a run with `narrows run --output events`
    --- exit 2 ---
    "#);
    let told = policy(&dir, &["test", "rules.toml", "--events", "nothing.jsonl"]);
    assert!(told.contains("--events: cannot read \"nothing.jsonl\""), "{told}");
}

/// A link is judged by its path and by its target.
#[test]
fn links_are_followed() {
    let dir = dir();
    let root = dir.path().join("r");
    std::fs::create_dir_all(root.join(".git/hooks")).unwrap();
    std::fs::create_dir(dir.path().join("o")).unwrap();
    dir.file("r/.env", "");
    for (to, at) in [("../o", "dlink"), (".git/hooks", "kk"), (".env", "notes"), ("loop", "loop")] {
        std::os::unix::fs::symlink(to, root.join(at)).unwrap();
    }
    for (kind, path, expected) in [
        ("edit", "x", "allow"),
        ("edit", "dlink/x", "deny"),
        ("edit", "kk/pre-commit", "deny"),
        ("read", "notes", "deny"),
        ("edit", "loop/x", "ask"),
    ] {
        let told = policy(&dir, &["explain", "--json", "--cwd", "r", "--kind", kind, "--path", path]);
        assert_eq!(object(&told, 0)["verdict"], expected, "{kind} {path}: {told}");
    }
}

/// docs/concepts/security-model.md promises this: with network access a command reaches servers on this
/// machine, without it none.
#[tokio::test]
async fn a_command_reaches_loopback_with_the_network_and_nothing_without_it() {
    let can = narrows_process::Sandbox::support().await.confined();
    if !can.files || !can.network {
        eprintln!("not tried: it takes a sandbox that holds files and the network");
        return;
    }
    for address in ["127.0.0.1", "::1"] {
        let Ok(listener) = std::net::TcpListener::bind((address, 0)) else { continue };
        listener.set_nonblocking(true).expect("a socket");
        let port = listener.local_addr().expect("an address").port();
        let dir = TestDir::new();
        dir.file(
            "connect.sh",
            &format!("(exec 3<>/dev/tcp/{address}/{port}) 2>/dev/null && echo reached || echo held\n"),
        );
        dir.file(
            "agent.toml",
            "[[turn]]\nsteps = [{ terminal = { command = [\"bash\", \"connect.sh\"] } }, { say = \"{last}\" }]\n",
        );
        for (flags, expected) in [(&[][..], "reached"), (&["--no-network"][..], "held")] {
            let told = dir.output_of(dir.run("narrows fake-agent agent.toml", &[flags, &["Go"]].concat()));
            assert!(told.contains(expected), "{address} {flags:?}: {told}");
            assert_eq!(listener.accept().is_ok(), expected == "reached", "{address} {flags:?}");
        }
    }
}

/// A decision of the policy does not extend the directories of the client's file service.
#[test]
fn files_outside_the_directories_of_the_session_are_noted() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path().join("r")).unwrap();
    std::fs::create_dir(dir.path().join("more")).unwrap();
    let explain = |args: &[&str]| policy(&dir, &[&["explain", "--cwd", "r"], args].concat());
    assert_snapshot!(explain(&["--kind", "read", "--path", "/etc/hosts"]), @"
    allow `/etc/hosts`: no rule matches, and medium access allows reading
    note: the client's file service only reaches the session's directories, and /etc/hosts is outside; add one with --add-dir DIR
    --- exit 0 ---
    ");
    let high = ["--access", "high", "--kind", "edit", "--path"];
    let told = explain(&[&high[..], &["../more/x"]].concat());
    assert!(
        told.starts_with("allow ") && told.contains("/more/x is outside; add one with --add-dir DIR"),
        "{told}"
    );
    for args in [&["x"][..], &["../more/x", "--add-dir", "more"], &["../r/x"]] {
        let told = explain(&[&high[..], args].concat());
        assert!(told.starts_with("allow ") && !told.contains("note:"), "{args:?}: {told}");
    }
    // A denied action needs no note. A command needs none, because it does not use the file service.
    for args in
        [&["--kind", "edit", "--path", "/etc/x"][..], &["--access", "high", "--", "cat", "/etc/hosts"]]
    {
        let told = explain(args);
        assert!(!told.contains("note:"), "{args:?}: {told}");
    }
    let object = object(&explain(&["--json", "--kind", "read", "--path", "/etc/hosts", "--path", "x"]), 0);
    assert_eq!(object["outside"], json!(["/etc/hosts"]));
    assert!(object["notes"][0].as_str().unwrap().contains("--add-dir"), "{object}");
}

#[test]
fn a_rule_about_deleting_is_noted_where_a_command_passes_it() {
    let dir = TestDir::new();
    dir.file("rules.toml", "[[rule]]\neffect = 'deny'\nkind = 'delete'\n");
    let told = policy(&dir, &["explain", "rules.toml", "--access", "high", "--", "rm", "x"]);
    assert_snapshot!(told, @"
    allow `rm x`: no rule matches, and high access allows it
    rules:
      - deny rule 1 (rules.toml:1): its `kind` does not match `rm x`
    note: a command has kind execute, whatever it does to files; a rule with `command` matches it
    --- exit 0 ---
    ");
    let told = policy(&dir, &["explain", "rules.toml", "--kind", "delete", "--path", "x"]);
    assert!(told.starts_with("deny ") && !told.contains("note:"), "{told}");
}
