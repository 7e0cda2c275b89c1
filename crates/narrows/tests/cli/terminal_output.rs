//! `narrows run` at a terminal.

use std::io::{Read, Write};

use crate::terminal_user::{CTRL_C, TerminalUser};
use crate::test_dir::{MARK, TestDir};

/// Starts narrows in a terminal, waits for this output, and closes the terminal. Returns the exit code.
#[track_caller]
fn closed(dir: &TestDir, args: &[&str], typed: &str, said: &str) -> Option<i32> {
    let (mut pty, pts) = pty_process::blocking::open().expect("a terminal");
    let mut child = pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_narrows"))
        .args(args)
        .env("NARROWS_DATA_DIR", dir.path().join("data"))
        .env(MARK, dir.mark())
        .current_dir(dir.path())
        .spawn(pts)
        .expect("narrows starts");
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    let mut waits_for = |pty: &mut pty_process::blocking::Pty, words: &str| {
        while !String::from_utf8_lossy(&seen).contains(words) {
            let count = pty.read(&mut bytes).expect("more output");
            seen.extend_from_slice(&bytes[..count]);
        }
    };
    if !typed.is_empty() {
        waits_for(&mut pty, "> ");
        pty.write_all(typed.as_bytes()).expect("the terminal accepts keys");
    }
    waits_for(&mut pty, said);
    drop(pty);
    let status = child.wait().expect("the process ends");
    dir.assert_no_process_left();
    status.code()
}

#[test]
fn a_closed_terminal_ends_everything() {
    let dir = TestDir::new();
    let slow = ["--agent", "narrows fake-agent slow"];
    let run = [&["run"], &slow[..], &["Hi"]].concat();
    let chat = [&["chat"], &slow[..]].concat();
    assert_eq!(closed(&dir, &run, "", "One moment."), Some(129));
    assert_eq!(closed(&dir, &chat, "go\r", "One moment."), Some(129));
    assert_eq!(closed(&dir, &chat, "", "> "), Some(129));
}

/// Returns the position of this text on the screen.
#[track_caller]
fn place_of(screen: &str, words: &str) -> usize {
    let dir = screen.find(words);
    assert!(dir.is_some(), "{words:?} is not on:\n{screen}");
    dir.unwrap_or_default()
}

/// Creates a directory with rules that ask for permission.
fn dir() -> TestDir {
    let dir = TestDir::new();
    dir.file("rules.toml", "[[rule]]\neffect = \"ask\"\nkind = \"delete\"\n");
    dir
}

#[test]
fn a_prompt_is_shown_below_earlier_output() {
    let dir = dir();
    let user = TerminalUser::run(&dir, "ask", &["--policy", "rules.toml", "Clean"]);
    user.expect("Allow it?");
    let screen = user.screen();
    let order = [
        "I would like to clean up.",
        "tool: Remove build output",
        "The agent asks for permission: \"Remove build output?\"",
        "why asked: rule 1 (rules.toml:1) matches",
        "what: delete",
        "file: ",
        "[1] allow once: \"Allow once\"",
        "[2] allow always: \"Always allow\"",
        "[y] yes, this once  [n] no, or Enter",
        "Allow it?",
    ];
    let places = order.map(|words| place_of(&screen, words));
    assert!(places.is_sorted(), "{screen}");
    assert!(screen.lines().any(|line| line.starts_with("The agent asks for permission:")), "{screen}");
    user.type_text("perhaps\r");
    user.expect_times("Allow it?", 2);
    user.type_text("n\r");
    user.expect("denied: Remove build output? (by you)");
    user.expect("Then I will leave it as it is");
    user.expect("error: denied: Remove build output? (by you)");
    assert_eq!(user.wait_exit(), Some(9));
}

#[test]
fn a_prompt_is_withdrawn_with_its_turn() {
    let dir = dir();
    let user = TerminalUser::run(&dir, "ask", &["--policy", "rules.toml", "Clean"]);
    user.expect("Allow it?");
    user.type_text(CTRL_C);
    user.expect("error: cancelled");
    assert_eq!(user.wait_exit(), Some(130));
}

#[test]
fn an_unanswered_prompt_is_denied_and_the_turn_continues() {
    let dir = dir();
    let args = ["--policy", "rules.toml", "--permission-timeout", "1s", "Clean"];
    let user = TerminalUser::run(&dir, "ask", &args);
    user.expect("why asked:");
    user.expect("denied: Remove build output? (no answer in time)");
    user.expect("Then I will leave it as it is");
    assert_eq!(user.wait_exit(), Some(9));
}

#[test]
fn a_plan_is_shown_once_and_then_its_changes() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let planner = r#"
name = "planner"
[[turn]]
steps = [
  { plan = [{ content = "Look around", status = "in_progress" }, { content = "Mend it", status = "pending" }] },
  { say = "So. " },
  { plan = [{ content = "Look around", status = "completed" }, { content = "Mend it", status = "pending" }] },
]
"#;
        dir.file("planner.toml", planner);
        let user = TerminalUser::run(&dir, "planner.toml", &["--protocol", protocol, "Go"]);
        user.expect("plan: 1 of 2 done, now");
        user.expect("[x] Look around");
        let screen = user.screen();
        assert_eq!(screen.matches("Mend it").count(), 1, "{screen}");
        assert_eq!(user.wait_exit(), Some(0));
    }
}
