//! `narrows run` with somebody who watches.

use std::io::{Read, Write};

use crate::person::{CTRL_C, Person};
use crate::support::{MARK, Place};

/// Starts narrows in a terminal, waits until it has said that, and closes the terminal. Returns its exit code.
#[track_caller]
fn closed(place: &Place, args: &[&str], typed: &str, said: &str) -> Option<i32> {
    let (mut pty, pts) = pty_process::blocking::open().expect("a terminal");
    let mut child = pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_narrows"))
        .args(args)
        .env("NARROWS_DATA_DIR", place.path().join("data"))
        .env(MARK, place.mark())
        .current_dir(place.path())
        .spawn(pts)
        .expect("narrows starts");
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    let mut waits_for = |pty: &mut pty_process::blocking::Pty, words: &str| {
        while !String::from_utf8_lossy(&seen).contains(words) {
            let count = pty.read(&mut bytes).expect("it says something");
            seen.extend_from_slice(&bytes[..count]);
        }
    };
    if !typed.is_empty() {
        waits_for(&mut pty, "> ");
        pty.write_all(typed.as_bytes()).expect("it takes keys");
    }
    waits_for(&mut pty, said);
    drop(pty);
    let status = child.wait().expect("it ends");
    place.nothing_is_left();
    status.code()
}

#[test]
fn a_terminal_that_is_closed_ends_everything() {
    let place = Place::new();
    let slow = ["--agent", "narrows fake-agent slow"];
    let run = [&["run"], &slow[..], &["Hi"]].concat();
    let chat = [&["chat"], &slow[..]].concat();
    assert_eq!(closed(&place, &run, "", "One moment."), Some(129));
    assert_eq!(closed(&place, &chat, "go\r", "One moment."), Some(129));
    assert_eq!(closed(&place, &chat, "", "> "), Some(129));
}

/// Where this begins on the screen.
#[track_caller]
fn place_of(screen: &str, words: &str) -> usize {
    let place = screen.find(words);
    assert!(place.is_some(), "{words:?} is not on:\n{screen}");
    place.unwrap_or_default()
}

/// A place with rules under which somebody is asked.
fn place() -> Place {
    let place = Place::new();
    place.file("rules.toml", "[[rule]]\neffect = \"ask\"\nkind = \"delete\"\n");
    place
}

#[test]
fn a_question_stands_below_what_was_said_and_done() {
    let place = place();
    let person = Person::runs(&place, "ask", &["--policy", "rules.toml", "Clean"]);
    person.sees("Allow it?");
    let screen = person.screen();
    let order = [
        "I would like to clean up.",
        "tool: Remove build output",
        "The agent asks for permission: \"Remove build output?\"",
        "why asked: rule 1 (rules.toml:1) says so",
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
    person.types("perhaps\r");
    person.sees_times("Allow it?", 2);
    person.types("n\r");
    person.sees("refused: Remove build output? (you said no)");
    person.sees("Then I will leave it as it is");
    person.sees("error: what the agent wanted was not allowed: Remove build output? (you said no)");
    assert_eq!(person.ends(), Some(9));
}

#[test]
fn a_question_is_taken_back_with_the_turn() {
    let place = place();
    let person = Person::runs(&place, "ask", &["--policy", "rules.toml", "Clean"]);
    person.sees("Allow it?");
    person.types(CTRL_C);
    person.sees("error: cancelled");
    assert_eq!(person.ends(), Some(130));
}

#[test]
fn a_question_that_nobody_answers_is_refused_and_the_answer_goes_on() {
    let place = place();
    let args = ["--policy", "rules.toml", "--permission-timeout", "1s", "Clean"];
    let person = Person::runs(&place, "ask", &args);
    person.sees("why asked:");
    person.sees("refused: Remove build output? (nobody answered in time)");
    person.sees("Then I will leave it as it is");
    assert_eq!(person.ends(), Some(9));
}

#[test]
fn a_plan_is_shown_once_and_then_by_what_changes() {
    for protocol in ["1", "2"] {
        let place = Place::new();
        let planner = r#"
name = "planner"
[[turn]]
steps = [
  { plan = [{ content = "Look around", status = "in_progress" }, { content = "Mend it", status = "pending" }] },
  { say = "So. " },
  { plan = [{ content = "Look around", status = "completed" }, { content = "Mend it", status = "pending" }] },
]
"#;
        place.file("planner.toml", planner);
        let person = Person::runs(&place, "planner.toml", &["--protocol", protocol, "Go"]);
        person.sees("plan: 1 of 2 done, now");
        person.sees("[x] Look around");
        let screen = person.screen();
        assert_eq!(screen.matches("Mend it").count(), 1, "{screen}");
        assert_eq!(person.ends(), Some(0));
    }
}
