//! `narrows sessions`: listing and deleting sessions.

use std::process::Command;

use insta::assert_snapshot;
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::test_dir::TestDir;

const CAN_LIST: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"list":{}}}}}"#;

/// Returns the binary with its own home directory.
fn narrows(dir: &TestDir, args: &[&str]) -> Command {
    let mut command = dir.narrows(args);
    command.env("HOME", dir.path());
    command
}

/// Returns the sessions of the built-in agent as JSON.
#[track_caller]
fn listed(dir: &TestDir, args: &[&str]) -> Vec<Value> {
    let told = dir.output_of(narrows(dir, &[&["sessions", "--json"], args].concat()));
    let text = told.strip_suffix("--- exit 0 ---\n").expect(&told);
    let object: Value = serde_json::from_str(text).expect(&told);
    object["sessions"].as_array().expect("a list").clone()
}

#[test]
fn the_built_in_agent_keeps_sessions_by_directory() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    for (directory, prompt) in [(".", "First here"), ("work", "Then there"), (".", "Last here")] {
        let args = ["run", "--base-url", "builtin:demo", "--cwd", directory, prompt];
        let told = dir.output_of(narrows(&dir, &args));
        assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
    }
    let titles = |args: &[&str]| {
        let text = |session: &Value, key: &str| session[key].as_str().unwrap().to_owned();
        listed(&dir, args)
            .iter()
            .map(|session| (text(session, "title"), text(session, "cwd")))
            .collect::<Vec<_>>()
    };
    let own = |title: &str| (title.to_owned(), "[DIR]".to_owned());
    let has_program = ("Then there".to_owned(), "[DIR]/work".to_owned());
    assert_eq!(titles(&[]), [own("Last here"), own("First here")]);
    assert_eq!(titles(&["--cwd", "work"]), std::slice::from_ref(&has_program));
    assert_eq!(titles(&["--all"]), [own("Last here"), has_program, own("First here")]);
    let last = listed(&dir, &[])[0].clone();
    let table = dir.output_of(narrows(&dir, &["sessions"]));
    let row = table.lines().nth(1).unwrap();
    assert!(table.starts_with("ID "), "{table}");
    for key in ["sessionId", "updatedAt", "cwd", "title"] {
        assert!(row.contains(last[key].as_str().unwrap()), "{row}");
    }
}

#[test]
fn sessions_of_other_agents_come_newest_first_from_all_pages() {
    let dir = TestDir::new();
    let first = r#"{"jsonrpc":"2.0","id":2,"result":{"sessions":[{"sessionId":"old","cwd":"/a","title":"An \u001b[2J old one","updatedAt":"2025-01-01T00:00:00Z"},{"sessionId":"new","cwd":"/b","updatedAt":"2026-01-01T00:00:00Z"}],"nextCursor":"more"}}"#;
    let second = r#"{"jsonrpc":"2.0","id":3,"result":{"sessions":[{"sessionId":"middle","cwd":"/a","title":"Between","updatedAt":"2025-06-01T00:00:00Z"},{"cwd":"/a"}]}}"#;
    let agent = dir.scripted_agent(&[CAN_LIST, first, second]);
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "--agent", &agent, "--all"])), @r"
    ID      UPDATED               DIRECTORY  TITLE
    new     2026-01-01T00:00:00Z  /b         -
    middle  2025-06-01T00:00:00Z  /a         Between
    old     2025-01-01T00:00:00Z  /a         An \u{1b}[2J old one
    --- exit 0 ---
    ");
    assert_snapshot!(dir.received().lines().skip(1).collect::<Vec<_>>().join("\n"), @r#"
    {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}
    {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cursor":"more"}}
    "#);
}

#[test]
fn the_sessions_of_an_agent_that_ignores_the_directory_are_filtered() {
    let dir = TestDir::new();
    let directory = dir.path().canonicalize().unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": 2, "result": {"sessions": [
        {"sessionId": "elsewhere", "cwd": "/a"},
        {"sessionId": "here", "cwd": directory},
    ]}});
    let agent = dir.scripted_agent(&[CAN_LIST, &answer.to_string()]);
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "--agent", &agent, "--json"])), @r#"
    {"sessions":[{"sessionId":"here","cwd":"[DIR]"}]}
    --- exit 0 ---
    "#);
    assert!(dir.received().ends_with("\"method\":\"session/list\",\"params\":{\"cwd\":\"[DIR]\"}}\n"));
}

#[test]
fn sessions_without_messages_are_hidden() {
    let dir = TestDir::new();
    let nothing = || {
        let mut command = narrows(&dir, &["chat", "--base-url", "builtin:demo"]);
        command.stdin(std::process::Stdio::null());
        assert!(dir.output_of(command).ends_with("--- exit 0 ---\n"));
    };
    nothing();
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions"])), @r"
    --- stderr ---
    1 session without a message not shown (--all lists them)
    --- exit 0 ---
    ");
    nothing();
    let args = ["run", "--base-url", "builtin:demo", "Something"];
    assert!(dir.output_of(narrows(&dir, &args)).ends_with("--- exit 0 ---\n"));
    let told = dir.output_of(narrows(&dir, &["sessions"]));
    assert_eq!(told.matches("[DIR]").count(), 1, "{told}");
    assert!(told.contains("2 sessions without a message not shown"), "{told}");
    assert_eq!(listed(&dir, &["--all"]).len(), 3);
    // If an agent gives no titles, its sessions cannot be distinguished from empty ones.
    let answer =
        json!({"jsonrpc": "2.0", "id": 2, "result": {"sessions": [{"sessionId": "a"}, {"sessionId": "b"}]}});
    let agent = dir.scripted_agent(&[CAN_LIST, &answer.to_string()]);
    let told = dir.output_of(narrows(&dir, &["sessions", "--agent", &agent]));
    assert!(told.contains("\na ") && told.contains("\nb ") && !told.contains("left out"), "{told}");
}

#[test]
fn a_session_is_deleted() {
    let dir = TestDir::new();
    let told = dir.output_of(narrows(&dir, &["run", "--base-url", "builtin:demo", "Something"]));
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
    let id = listed(&dir, &[])[0]["sessionId"].as_str().unwrap().to_owned();
    let told = dir.output_of(narrows(&dir, &["sessions", "delete", &id]));
    assert_eq!(told, format!("--- stderr ---\ndeleted session {id}\n--- exit 0 ---\n"));
    assert_eq!(listed(&dir, &["--all"]), [] as [Value; 0]);
}

#[test]
fn a_session_that_does_not_exist_cannot_be_deleted() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "delete", "nosuch"])), @r#"
    --- stderr ---
    error: the agent has no session "nosuch"
    hint: list its sessions: narrows sessions --all
    --- exit 2 ---
    "#);
    for protocol in ["1", "2"] {
        let args = ["sessions", "delete", "x", "--protocol", protocol, "--agent", "narrows fake-agent echo"];
        let told = dir.output_of(narrows(&dir, &args));
        assert!(told.contains("has no session \"x\"") && told.ends_with("--- exit 2 ---\n"), "{told}");
    }
    let can = CAN_LIST.replace("\"list\":{}", "\"list\":{},\"delete\":{}");
    let listed = r#"{"jsonrpc":"2.0","id":2,"result":{"sessions":[{"sessionId":"01a1e917-1"},{"sessionId":"01a1e918-2"}]}}"#;
    for (id, hint) in [
        ("01a1e917", "did you mean 01a1e917-1?"),
        ("01a1e9", "use the full id, as several sessions start with this"),
        ("", "list its sessions: narrows sessions --all --agent \"sh agent.sh\""),
    ] {
        let agent = dir.scripted_agent(&[&can, listed]);
        let told = dir.output_of(narrows(&dir, &["sessions", "delete", id, "--agent", &agent]));
        assert!(told.contains(&format!("hint: {hint}\n--- exit 2 ---\n")), "{told}");
        assert!(!dir.received().contains("session/delete"), "{}", dir.received());
        std::fs::remove_file(dir.path().join("got")).unwrap();
    }
}

#[test]
fn an_agent_that_cannot_delete_is_reported() {
    let dir = TestDir::new();
    let agent = dir.scripted_agent(&[CAN_LIST]);
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "delete", "a", "--agent", &agent])), @r#"
    --- stderr ---
    error: the agent "sh" does not support deleting sessions
    hint: check if the agent has its own command to delete sessions
    --- exit 1 ---
    "#);
    let can = CAN_LIST.replace("\"list\"", "\"delete\"");
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"no such session"}}"#;
    let agent = dir.scripted_agent(&[&can, refusal]);
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "delete", "a", "--agent", &agent])), @"
    --- stderr ---
    error: the agent answered `session/delete` with an error
      because: no such session (-32002)
    --- exit 1 ---
    ");
    assert!(
        dir.received().ends_with("\"method\":\"session/delete\",\"params\":{\"sessionId\":\"a\"}}\n"),
        "{}",
        dir.received()
    );
}

#[test]
fn an_agent_that_lists_no_sessions_is_not_said_to_have_had_one() {
    let dir = TestDir::new();
    let can = CAN_LIST.replace("\"list\"", "\"delete\"");
    let agent = dir.scripted_agent(&[&can, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#]);
    let told = dir.output_of(narrows(&dir, &["sessions", "delete", "a", "--agent", &agent]));
    assert_eq!(told, "--- stderr ---\ndeleted session a, if the agent had it\n--- exit 0 ---\n");
}

#[test]
fn a_missing_session_is_reported() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions"])), @r"
    --- stderr ---
    the agent has no session in [DIR] (--all lists those of other directories)
    --- exit 0 ---
    ");
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "--all"])), @"
    --- stderr ---
    the agent has no session
    --- exit 0 ---
    ");
    let agent = dir.scripted_agent(&[r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#]);
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "--agent", &agent])), @r#"
    --- stderr ---
    error: the agent "sh" does not support listing sessions
    hint: continue a session by its id: narrows run --resume ID
    --- exit 1 ---
    "#);
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no disk"}}"#;
    let agent = dir.scripted_agent(&[CAN_LIST, refusal]);
    assert_snapshot!(dir.output_of(narrows(&dir, &["sessions", "--agent", &agent])), @"
    --- stderr ---
    error: the agent answered `session/list` with an error
      because: no disk (-32603)
    --- exit 1 ---
    ");
    let told = dir.output_of(narrows(&dir, &["sessions", "--all", "--cwd", "."]));
    assert!(
        told.contains("'--all' cannot be used with '--cwd <DIR>'") && told.ends_with("--- exit 2 ---\n"),
        "{told}"
    );
}

#[test]
fn a_session_in_which_every_turn_failed_is_neither_listed_nor_continued() {
    let dir = TestDir::new();
    let failing = || Reply::refused(400, "no");
    let replies = [failing(), Reply::text("One."), Reply::text("Two."), failing(), Reply::text("Three.")];
    let server = ModelServer::start(Plan::new(replies).models(Reply::models(&["m"])));
    let url = server.base_url();
    let run = |args: &[&str]| {
        dir.output_of(narrows(&dir, &[&["run", "--base-url", &url, "--model", "m"], args].concat()))
    };
    let told = run(&["Fails at first"]);
    assert!(!told.ends_with("--- exit 0 ---\n"), "{told}");
    assert_snapshot!(run(&["--continue", "Nothing to continue"]), @"
    --- stderr ---
    error: the agent has no sessions in [DIR]
    hint: remove --continue to open a new session
    --- exit 2 ---
    ");
    assert_eq!(run(&["first"]), "One.\n--- exit 0 ---\n");
    assert_eq!(run(&["--continue", "second"]), "Two.\n--- exit 0 ---\n");
    let told = run(&["a question that fails"]);
    assert!(!told.ends_with("--- exit 0 ---\n"), "{told}");
    let told = dir.output_of(narrows(&dir, &["sessions"]));
    assert!(told.contains("  first\n") && !told.contains("fails"), "{told}");
    assert!(told.contains("2 sessions without a message not shown"), "{told}");
    assert_eq!(run(&["--continue", "third"]), "Three.\n--- exit 0 ---\n");
    let seen = server.seen();
    let asked = seen
        .iter()
        .rev()
        .map(narrows_testkit::model::Seen::messages)
        .find(|asked| !asked.is_empty())
        .expect("a request");
    let said: Vec<_> = asked.iter().filter(|message| message["role"] == "user").collect();
    assert_eq!(said.len(), 3, "{asked:?}");
}

#[test]
fn warnings_of_the_agent_are_on_stderr_and_in_the_object() {
    let dir = TestDir::new();
    let answer = || ModelServer::start(Plan::new([Reply::text("Yes.")]).models(Reply::models(&["m"])));
    let (first, second) = (answer(), answer());
    let run = |server: &ModelServer, args: &[&str]| {
        narrows(&dir, &[&["run", "--base-url", &server.base_url(), "--model", "m"], args].concat())
    };
    assert_eq!(dir.output_of(run(&first, &["Hi"])), "Yes.\n--- exit 0 ---\n");
    let told = dir.output_of(run(&second, &["--continue", "And now?"]));
    let told = told.replace(&first.base_url(), "[FIRST]").replace(&second.base_url(), "[SECOND]");
    assert_snapshot!(told, @"
    Yes.
    --- stderr ---
    warning: This session used [FIRST], which is not configured any more; from now on it uses [SECOND].
    --- exit 0 ---
    ");
    // No directory can be created at the path of a file.
    let blocked = dir.file("blocked", "");
    for (output, stdout) in [("text", "Yes.\n"), ("json", "\"warnings\":[\"This session will not be kept: ")]
    {
        let server = answer();
        let mut command = run(&server, &["--output", output, "Hi"]);
        command.env("XDG_DATA_HOME", &blocked);
        let told = dir.output_of(command);
        let (shown, warned) = told.split_once("--- stderr ---\n").expect(&told);
        assert!(shown.contains(stdout), "{told}");
        assert!(warned.starts_with("warning: This session will not be kept: "), "{told}");
        assert!(warned.ends_with("\n--- exit 0 ---\n"), "{told}");
    }
}
