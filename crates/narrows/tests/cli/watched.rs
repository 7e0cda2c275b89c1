//! `narrows run` with somebody who watches.

use crate::person::{CTRL_C, Person};
use crate::support::Place;

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
        "The agent asks for permission: Remove build output?",
        "what: ",
        "why asked: rule 1 (rules.toml:1) says so",
        "[y] yes, this once  [n] no, or Enter  [1] Allow once  [2] Always allow (lasts)",
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
    assert_eq!(person.ends(), Some(0));
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
    let args = ["--policy", "rules.toml", "--permission-timeout", "300ms", "Clean"];
    let person = Person::runs(&place, "ask", &args);
    person.sees("Allow it?");
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
