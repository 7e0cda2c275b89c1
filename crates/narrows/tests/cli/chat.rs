//! `narrows chat`, in a terminal and in a pipe.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use crate::person::{CTRL_C, CTRL_D, Person, processes};
use crate::support::{MARK, Place};
use rustix::process::{Signal, kill_process};

/// An agent that counts its turns, and has a command of its own.
const COUNTS: &str = r#"
name = "counts"

[on]
session_new = [
  { reorder = true },
  { commands = [{ name = "review", description = "Review the changes" }] },
]

[[turn]]
steps = [{ usage = { used = 1200, size = 200000, cost = 0.02 } }, { say = "[{turn}: {prompt}]" }]
"#;

/// Rules under which somebody is asked.
const ASKS: &str = "[[rule]]\neffect = \"ask\"\nkind = \"delete\"\n";

#[test]
fn turns_follow_each_other_in_one_session() {
    let place = Place::new();
    place.file("counts.toml", COUNTS);
    let person = Person::talks_to(&place, "counts.toml", &[]);
    person.sees("/help lists the commands");
    person.says("hello", "[1: hello]");
    person.sees("1200 in the context, $0.0200");
    person.says("and again", "[2: and again]");
    // A line that goes on.
    person.types("one\\\r");
    person.edits("… ");
    person.types("two\r");
    person.sees("[3: one\ntwo]");
    person.sees_the_prompt();
    // Several lines at once are one message, and keep their backslashes.
    person.types("\x1b[200~first \\\nsecond\x1b[201~");
    person.edits("second");
    person.types("\r");
    person.sees("[4: first \\\nsecond]");
    person.sees_the_prompt();
    person.leaves();
}

#[test]
fn commands_are_completed_and_known_by_name() {
    let place = Place::new();
    place.file("counts.toml", COUNTS);
    let person = Person::talks_to(&place, "counts.toml", &[]);
    person.says("hello", "[1: hello]");
    person.types("/rev\t");
    person.edits("> /review");
    person.types(" all\r");
    person.sees("[2: /review all]");
    person.sees_the_prompt();
    person.says("/nope", "neither the agent nor this program has a command /nope");
    person.says("//nope", "[3: /nope]");
    person.says("/help", "/review");
    person.sees("list the models, or choose one");
    person.says("/status", "session: session-1");
    person.says("/new", "a new session has begun: session-2");
    person.says("hello", "[1: hello]");
    person.says("/sessions", "* session-2");
    person.says("/resume session-1", "going on with the session session-1");
    person.says("on", "[4: on]");
    person.types("/quit\r");
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn ctrl_c_cancels_the_turn_and_the_session_goes_on() {
    let place = Place::new();
    let person = Person::talks_to(&place, "slow", &[]);
    for turn in 1..=2 {
        person.types("go\r");
        person.sees_times("One moment.", turn);
        person.types(CTRL_C);
        person.sees_times("cancelled", turn);
        person.sees_the_prompt();
    }
    person.leaves();
}

#[test]
fn an_agent_that_does_not_stop_is_ended_and_can_be_started_again() {
    let place = Place::new();
    let script = "name = \"deaf\"\n[on]\nstart = [{ ignore_cancel = true }]\n[[turn]]\nsteps = [{ say = \"I will not stop.\" }, { pause = \"10m\" }]\n";
    place.file("deaf.toml", script);
    let person = Person::talks_to(&place, "deaf.toml", &["--cancel-grace", "100ms"]);
    person.types("go\r");
    person.sees("I will not stop.");
    person.types(CTRL_C);
    person.sees("cancelled; the agent did not stop within 100ms and was ended");
    person.sees("/restart starts it again");
    person.sees_the_prompt();
    person.says("/restart", "a new one has begun");
    person.types("/quit\r");
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn a_second_ctrl_c_leaves() {
    let place = Place::new();
    let person = Person::talks_to(&place, "stubborn", &["--cancel-grace", "1h"]);
    person.types("go\r");
    person.sees("I will not stop.");
    person.types(CTRL_C);
    person.sees("press Ctrl-C again to leave");
    person.types(CTRL_C);
    assert_eq!(person.ends(), Some(130));
}

#[test]
fn ctrl_c_clears_the_line_and_leaves_from_an_empty_one() {
    let place = Place::new();
    let person = Person::talks_to(&place, "echo", &[]);
    for _ in 0..3 {
        person.types("never said");
        person.edits("> never said");
        person.types(CTRL_C);
        person.sees_the_prompt();
    }
    person.types(CTRL_C);
    person.sees("press Ctrl-C again, or Ctrl-D, to leave");
    person.sees_the_prompt();
    person.types(CTRL_C);
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn what_the_agent_wants_is_asked() {
    let place = Place::new();
    place.file("rules.toml", ASKS);
    let person = Person::talks_to(&place, "ask", &["--policy", "rules.toml"]);
    for (number, (answer, outcome)) in
        [("y", "Done, with your leave"), ("n", "Then I will leave it as it is"), ("", "leave it as it is")]
            .into_iter()
            .enumerate()
    {
        person.types("clean\r");
        person.sees_times("[y] yes, this once", number + 1);
        // The question stands behind what was said before it.
        let screen = person.screen();
        let asked = screen.rfind("The agent asks for permission:").expect("a question");
        assert!(screen[..asked].matches("I would like to clean up.").count() == number + 1, "{screen}");
        person.types(&format!("{answer}\r"));
        person.sees(outcome);
        person.sees_the_prompt();
    }
    person.leaves();
}

#[test]
fn a_question_ends_with_its_turn() {
    let place = Place::new();
    place.file("rules.toml", ASKS);
    let person = Person::talks_to(&place, "ask", &["--policy", "rules.toml"]);
    person.types("clean\r");
    person.sees("[y] yes, this once");
    person.types(CTRL_C);
    person.sees("cancelled");
    person.sees_the_prompt();
    // Nobody else reads what is typed now.
    person.types("clean again");
    person.edits("> clean again");
    person.types("\r");
    person.sees_times("[y] yes, this once", 2);
    person.types("y\r");
    person.sees("Done, with your leave");
    person.sees_the_prompt();
    person.leaves();
}

#[test]
fn models_are_listed_and_chosen() {
    let place = Place::new();
    let person = Person::starts(&place, &["--base-url", "builtin:demo", "--pace", "0"]);
    person.sees_the_prompt();
    person.says("/model", "* ");
    let screen = person.screen();
    let current = screen.lines().find_map(|line| line.strip_prefix("* ")).expect("a model");
    let current = current.split_whitespace().next().expect("a name").to_owned();
    person.says(&format!("/model {current}"), &format!("the model is now {current}"));
    person.says("/model nothing-like-it", "was not set");
    person.says("/new", "a new session has begun");
    person.says("Hello, who are you?", "I am the demo model of Narrows");
    person.says("/model", &format!("* {current}"));
    person.leaves();
}

#[test]
fn a_mode_that_was_chosen_is_confirmed_once() {
    let place = Place::new();
    let script = "name = 'modes'\nmodes = ['code', 'plan']\n[[turn]]\nsteps = [{ say = 'In {mode}.' }]\n";
    place.file("modes.toml", script);
    let person = Person::talks_to(&place, "modes.toml", &[]);
    person.says("/mode plan", "the mode is now plan");
    person.says("Where?", "In plan.");
    assert_eq!(person.screen().matches("the mode is now plan").count(), 1, "{}", person.screen());
    person.says("/mode code", "the mode is now code");
    person.leaves();
}

#[test]
fn keys_typed_during_an_answer_are_not_shown_in_it() {
    let place = Place::new();
    let script = "name = 'slow'\n[[turn]]\nsteps = [{ say = 'begin ' }, { pause = '1s' }, { say = 'end' }]\n";
    place.file("slow.toml", script);
    let person = Person::talks_to(&place, "slow.toml", &[]);
    person.types("Go\r");
    person.sees("begin");
    person.types("next");
    person.sees("begin end");
    // They are the beginning of the next line.
    person.edits("> next");
    person.types(CTRL_C);
    person.sees_the_prompt();
    person.leaves();
}

#[test]
fn another_size_of_the_window_breaks_nothing() {
    let place = Place::new();
    place.file("counts.toml", COUNTS);
    let person = Person::talks_to(&place, "counts.toml", &[]);
    person.types("a line that is not done");
    person.edits("> a line that is not done");
    person.resizes(30, 40);
    person.types(" but will be");
    person.edits("> a line that is not done but will be");
    person.types("\r");
    person.sees("[1: a line that is not done but will be]");
    person.sees_the_prompt();
    person.resizes(50, 100);
    person.says("wider", "[2: wider]");
    person.leaves();
}

#[test]
fn an_agent_that_dies_can_be_started_again() {
    let place = Place::new();
    let person = Person::talks_to(&place, "crash", &[]);
    person.types("go\r");
    person.sees("I am about to");
    person.sees("crash: assertion failed, as the script says");
    person.sees("/restart starts it again");
    person.sees_the_prompt();
    person.types("anybody?\r");
    person.sees_times("/restart starts it again", 2);
    person.sees_the_prompt();
    person.says("/restart", "a new one has begun");
    person.types("go\r");
    person.sees_times("I am about to", 2);
    person.sees_times("/restart starts it again", 3);
    person.sees_the_prompt();
    person.leaves();
}

#[test]
fn a_session_outlives_its_agent() {
    let place = Place::new();
    let person = Person::starts(&place, &["--base-url", "builtin:demo", "--pace", "0"]);
    person.sees_the_prompt();
    person.says("Hello, who are you?", "I am the demo model of Narrows");
    person.says("/sessions", "* ");
    let screen = person.screen();
    let session = screen.lines().find_map(|line| line.strip_prefix("* ")).expect("a session");
    let session = session.split_whitespace().next().expect("an id");
    let agents = processes(&place, "acp");
    assert_eq!(agents.len(), 1);
    kill_process(agents[0], Signal::KILL).expect("it runs");
    person.sees("the agent has ended, though nothing was asked of it");
    person.sees_the_prompt();
    person.says("/restart", "the session goes on");
    person.says("/sessions", &format!("* {session}"));
    person.leaves();
}

#[test]
fn sigterm_leaves_from_the_prompt_and_from_a_turn() {
    for is_turn in [false, true] {
        let place = Place::new();
        let person = Person::talks_to(&place, "slow", &[]);
        if is_turn {
            person.types("go\r");
            person.sees("One moment.");
        }
        person.signals(Signal::TERM);
        person.sees("cancelled by SIGTERM");
        person.has_the_terminal_back();
        assert_eq!(person.ends(), Some(143));
    }
}

#[test]
fn nothing_is_left_however_it_ends() {
    for (signal, code) in [(Signal::HUP, Some(129)), (Signal::KILL, None)] {
        for is_turn in [false, true] {
            let place = Place::new();
            let person = Person::talks_to(&place, "slow", &[]);
            if is_turn {
                person.types("go\r");
                person.sees("One moment.");
            }
            person.signals(signal);
            assert_eq!(person.ends(), code);
        }
    }
}

#[test]
fn keys_that_make_no_sense_end_nothing() {
    let place = Place::new();
    place.file("counts.toml", COUNTS);
    let person = Person::talks_to(&place, "counts.toml", &[]);
    person.presses(b"ab\xff");
    person.sees("what was typed is not UTF-8");
    person.sees_the_prompt();
    person.types("\x1bOz\t");
    person.says("still here", "[1: still here]");
    person.leaves();
}

#[test]
fn what_was_typed_is_remembered_for_its_owner() {
    let place = Place::new();
    let person = Person::talks_to(&place, "echo", &[]);
    person.types("something to remember\r");
    person.sees_line("something to remember");
    person.sees_the_prompt();
    person.leaves();
    let history = place.path().join("data/chat_history");
    assert_eq!(std::fs::metadata(history).expect("a history").permissions().mode() & 0o777, 0o600);
    let person = Person::talks_to(&place, "echo", &[]);
    person.types("\x1b[A");
    person.edits("> something to remember");
    person.types(CTRL_C);
    person.sees_the_prompt();
    person.leaves();
}

#[test]
fn a_session_that_goes_on_shows_its_past() {
    let place = Place::new();
    // In version 2 an agent that goes on with a session tells its past.
    let demo = ["--base-url", "builtin:demo", "--pace", "0", "--protocol", "2"];
    let person = Person::starts(&place, &demo);
    person.sees_the_prompt();
    person.says("Hello, who are you?", "I am the demo model of Narrows");
    person.leaves();
    let person = Person::starts(&place, &[&demo[..], &["--continue"]].concat());
    person.sees("going on with the session ");
    person.sees(", \"Hello, who are you?\", last used just now");
    person.sees("you: Hello, who are you?");
    person.sees("agent: I am the demo model of Narrows");
    person.sees_the_prompt();
    person.leaves();
}

#[test]
fn a_session_that_is_loaded_shows_its_past() {
    let place = Place::new();
    place.file("loads.toml", &format!("{COUNTS}\n[capabilities]\nresume = false\n"));
    let person = Person::talks_to(&place, "loads.toml", &[]);
    for turn in 1..=5 {
        person.says(&format!("message {turn}"), &format!("[{turn}: message {turn}]"));
    }
    person.says("/new", "a new session has begun");
    person.says("/resume session-1", "going on with the session session-1");
    person.sees("… 4 messages before these");
    person.sees("you: message 5");
    person.sees("agent: [5: message 5]");
    person.says("/resume session-1", "that is this session");
    person.says("/resume session-2", "going on with the session session-2");
    person.says("/resume session-1", "going on with the session session-1");
    person.says("/resume nothing-like-it", "error: ");
    person.says("on", "[6: on]");
    person.leaves();
}

#[test]
fn what_happens_between_turns_is_shown_beside_the_line() {
    let place = Place::new();
    let late = "name = \"late\"\n[[turn]]\nsteps = [{ say = \"Done.\" }, { reorder = true }, { pause = \"300ms\" }, { say = \"By the way.\" }]\n";
    place.file("late.toml", late);
    let person = Person::talks_to(&place, "late.toml", &[]);
    person.types("go\r");
    person.sees("Done.");
    person.sees_the_prompt();
    person.types("half a line");
    person.sees("agent: By the way.");
    person.edits("> half a line");
    person.types(CTRL_C);
    person.sees_the_prompt();
    person.types(CTRL_D);
    assert_eq!(person.ends(), Some(0));
}

/// `narrows chat` without a terminal.
fn piped(place: &Place, agent: &str, input: &str) -> String {
    let command = place.narrows(["chat", "--pass-env", MARK, "--agent", agent]);
    place.told_with_input(command, input.as_bytes())
}

#[test]
fn lines_of_a_pipe_are_messages() {
    let place = Place::new();
    place.file("counts.toml", COUNTS);
    let agent = "narrows fake-agent counts.toml";
    let told = piped(&place, agent, "hello\n\nagain\\\nlast");
    assert_eq!(told, "[1: hello]\n[2: again\\]\n[3: last]\n--- exit 0 ---\n");
    assert_eq!(piped(&place, agent, ""), "--- exit 0 ---\n");
}

#[test]
fn ctrl_c_ends_a_pipe() {
    let place = Place::new();
    let (input, mut program) = std::io::pipe().expect("a pipe");
    let mut command = place.narrows(["chat", "--pass-env", MARK, "--agent", "narrows fake-agent slow"]);
    command.stdin(input);
    let mut running = place.start(command);
    program.write_all(b"go\nand on\n").expect("it reads");
    running.says("One moment. ");
    running.signal(Signal::INT);
    let told = running.told();
    assert!(told.ends_with("error: cancelled\n--- exit 130 ---\n"), "{told}");
}

#[test]
fn a_pipe_ends_with_the_code_of_its_last_turn() {
    let place = Place::new();
    place.file(
        "picky.toml",
        "name = \"picky\"\n[[turn]]\nwhen = \"no\"\nsteps = [{ stop = \"refusal\" }]\n[[turn]]\nsteps = [{ say = \"yes\" }]\n",
    );
    let agent = "narrows fake-agent picky.toml";
    assert_eq!(
        piped(&place, agent, "a\nno\n"),
        "yes\n--- stderr ---\nerror: the agent refused to answer\n--- exit 3 ---\n"
    );
    let told = piped(&place, agent, "no\na\n");
    assert!(told.starts_with("yes\n") && told.ends_with("--- exit 0 ---\n"), "{told}");
    let told = piped(&place, agent, "/nope\n");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    let told = piped(&place, "narrows fake-agent crash", "a\nb\n");
    assert!(told.contains("I am about to") && told.ends_with("--- exit 1 ---\n"), "{told}");
    assert_eq!(told.matches("error:").count(), 1, "{told}");
    let told = piped(&place, "no-such-program-anywhere", "a\n");
    assert!(told.ends_with("--- exit 5 ---\n"), "{told}");
}
