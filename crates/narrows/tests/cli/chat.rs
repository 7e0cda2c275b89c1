//! `narrows chat` in a terminal and in a pipe.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use crate::terminal_user::{CTRL_C, CTRL_D, TerminalUser, processes};
use crate::test_dir::{MARK, TestDir};
use rustix::process::{Signal, kill_process};

/// An agent that counts its turns, and has its own command.
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

/// Rules that ask for permission.
const ASKS: &str = "[[rule]]\neffect = \"ask\"\nkind = \"delete\"\n";

#[test]
fn turns_follow_each_other_in_one_session() {
    let dir = TestDir::new();
    dir.file("counts.toml", COUNTS);
    let user = TerminalUser::chat_with(&dir, "counts.toml", &[]);
    user.expect("/help lists the commands");
    user.chat("hello", "[1: hello]");
    user.expect("1200 in context, $0.0200");
    user.chat("and again", "[2: and again]");
    // A line that is continued.
    user.type_text("one\\\r");
    user.expect_edit_line("… ");
    user.type_text("two\r");
    user.expect("[3: one\ntwo]");
    user.expect_prompt();
    // Several lines at once are one message, and keep their backslashes.
    user.type_text("\x1b[200~first \\\nsecond\x1b[201~");
    user.expect_edit_line("second");
    user.type_text("\r");
    user.expect("[4: first \\\nsecond]");
    user.expect_prompt();
    user.quit();
}

#[test]
fn commands_are_completed_and_run() {
    let dir = TestDir::new();
    dir.file("counts.toml", COUNTS);
    let user = TerminalUser::chat_with(&dir, "counts.toml", &[]);
    user.chat("hello", "[1: hello]");
    user.type_text("/rev\t");
    user.expect_edit_line("> /review");
    user.type_text(" all\r");
    user.expect("[2: /review all]");
    user.expect_prompt();
    user.chat("/nope", "unknown command /nope; ");
    user.chat("//nope", "[3: /nope]");
    user.chat("/help", "/review");
    user.expect("list models, or select one");
    user.chat("/status", "session: session-1");
    user.chat("/new", "new session: session-2");
    user.chat("hello", "[1: hello]");
    user.chat("/sessions", "* session-2");
    user.chat("/resume session-1", "continuing session session-1");
    user.chat("on", "[4: on]");
    user.type_text("/quit\r");
    assert_eq!(user.wait_exit(), Some(0));
}

#[test]
fn ctrl_c_cancels_the_turn_and_the_session_continues() {
    let dir = TestDir::new();
    let user = TerminalUser::chat_with(&dir, "slow", &[]);
    for turn in 1..=2 {
        user.type_text("go\r");
        user.expect_times("One moment.", turn);
        user.type_text(CTRL_C);
        user.expect_times("cancelled", turn);
        user.expect_prompt();
    }
    user.quit();
}

#[test]
fn an_agent_that_does_not_stop_is_killed_and_can_be_restarted() {
    let dir = TestDir::new();
    let script = "name = \"deaf\"\n[on]\nstart = [{ ignore_cancel = true }]\n[[turn]]\nsteps = [{ say = \"I will not stop.\" }, { pause = \"10m\" }]\n";
    dir.file("deaf.toml", script);
    let user = TerminalUser::chat_with(&dir, "deaf.toml", &["--cancel-grace", "100ms"]);
    user.type_text("go\r");
    user.expect("I will not stop.");
    user.type_text(CTRL_C);
    user.expect("cancelled; the agent did not stop within 100ms and was killed");
    user.expect("/restart starts it again");
    user.expect_prompt();
    user.chat("/restart", "a new session was opened");
    user.type_text("/quit\r");
    assert_eq!(user.wait_exit(), Some(0));
}

#[test]
fn a_second_ctrl_c_exits() {
    let dir = TestDir::new();
    let user = TerminalUser::chat_with(&dir, "stubborn", &["--cancel-grace", "1h"]);
    user.type_text("go\r");
    user.expect("I will not stop.");
    user.type_text(CTRL_C);
    user.expect("press Ctrl-C again to exit");
    user.type_text(CTRL_C);
    assert_eq!(user.wait_exit(), Some(130));
}

#[test]
fn ctrl_c_clears_the_line_and_exits_on_an_empty_one() {
    let dir = TestDir::new();
    let user = TerminalUser::chat_with(&dir, "echo", &[]);
    for _ in 0..3 {
        user.type_text("never said");
        user.expect_edit_line("> never said");
        user.type_text(CTRL_C);
        user.expect_prompt();
    }
    user.type_text(CTRL_C);
    user.expect("press Ctrl-C again, or Ctrl-D, to exit");
    user.expect_prompt();
    user.type_text(CTRL_C);
    assert_eq!(user.wait_exit(), Some(0));
}

#[test]
fn a_permission_request_is_shown() {
    let dir = TestDir::new();
    dir.file("rules.toml", ASKS);
    let user = TerminalUser::chat_with(&dir, "ask", &["--policy", "rules.toml"]);
    for (number, (answer, outcome)) in
        [("y", "Done, with your leave"), ("n", "Then I will leave it as it is"), ("", "leave it as it is")]
            .into_iter()
            .enumerate()
    {
        user.type_text("clean\r");
        user.expect_times("[y] yes, this once", number + 1);
        // The prompt follows the earlier output.
        let screen = user.screen();
        let asked = screen.rfind("The agent asks for permission:").expect("a question");
        assert!(screen[..asked].matches("I would like to clean up.").count() == number + 1, "{screen}");
        user.type_text(&format!("{answer}\r"));
        user.expect(outcome);
        user.expect_prompt();
    }
    user.quit();
}

#[test]
fn a_prompt_is_withdrawn_when_its_turn_ends() {
    let dir = TestDir::new();
    dir.file("rules.toml", ASKS);
    let user = TerminalUser::chat_with(&dir, "ask", &["--policy", "rules.toml"]);
    user.type_text("clean\r");
    user.expect("[y] yes, this once");
    user.type_text(CTRL_C);
    user.expect("cancelled");
    user.expect_prompt();
    user.type_text("clean again");
    user.expect_edit_line("> clean again");
    user.type_text("\r");
    user.expect_times("[y] yes, this once", 2);
    user.type_text("y\r");
    user.expect("Done, with your leave");
    user.expect_prompt();
    user.quit();
}

#[test]
fn models_are_listed_and_chosen() {
    let dir = TestDir::new();
    let user = TerminalUser::start(&dir, &["--base-url", "builtin:demo", "--pace", "0"]);
    user.expect_prompt();
    user.chat("/model", "* ");
    let screen = user.screen();
    let current = screen.lines().find_map(|line| line.strip_prefix("* ")).expect("a model");
    let current = current.split_whitespace().next().expect("a name").to_owned();
    user.chat(&format!("/model {current}"), &format!("model set to {current}"));
    user.chat("/model nothing-like-it", "not set");
    user.chat("/new", "new session: ");
    user.chat("Hello, who are you?", "I am the demo model of Narrows");
    user.chat("/model", &format!("* {current}"));
    user.quit();
}

#[test]
fn a_mode_that_was_chosen_is_confirmed_once() {
    let dir = TestDir::new();
    let script = "name = 'modes'\nmodes = ['code', 'plan']\n[[turn]]\nsteps = [{ say = 'In {mode}.' }]\n";
    dir.file("modes.toml", script);
    let user = TerminalUser::chat_with(&dir, "modes.toml", &[]);
    user.chat("/mode plan", "mode set to plan");
    user.chat("Where?", "In plan.");
    assert_eq!(user.screen().matches("mode set to plan").count(), 1, "{}", user.screen());
    user.chat("/mode code", "mode set to code");
    user.quit();
}

#[test]
fn keys_typed_during_an_answer_are_not_shown_in_it() {
    let dir = TestDir::new();
    let script = "name = 'slow'\n[[turn]]\nsteps = [{ say = 'begin ' }, { pause = '1s' }, { say = 'end' }]\n";
    dir.file("slow.toml", script);
    let user = TerminalUser::chat_with(&dir, "slow.toml", &[]);
    user.type_text("Go\r");
    user.expect("begin");
    user.type_text("next");
    user.expect("begin end");
    // They are the beginning of the next line.
    user.expect_edit_line("> next");
    user.type_text(CTRL_C);
    user.expect_prompt();
    user.quit();
}

#[test]
fn a_resized_terminal_keeps_working() {
    let dir = TestDir::new();
    dir.file("counts.toml", COUNTS);
    let user = TerminalUser::chat_with(&dir, "counts.toml", &[]);
    user.type_text("a line that is not done");
    user.expect_edit_line("> a line that is not done");
    user.resize(30, 40);
    user.type_text(" but will be");
    user.expect_edit_line("> a line that is not done but will be");
    user.type_text("\r");
    user.expect("[1: a line that is not done but will be]");
    user.expect_prompt();
    user.resize(50, 100);
    user.chat("wider", "[2: wider]");
    user.quit();
}

#[test]
fn an_exited_agent_can_be_restarted() {
    let dir = TestDir::new();
    let user = TerminalUser::chat_with(&dir, "crash", &[]);
    user.type_text("go\r");
    user.expect("I am about to");
    user.expect("crash: assertion failed, as the script says");
    user.expect("/restart starts it again");
    user.expect_prompt();
    user.type_text("anybody?\r");
    user.expect_times("/restart starts it again", 2);
    user.expect_prompt();
    user.chat("/restart", "a new session was opened");
    user.type_text("go\r");
    user.expect_times("I am about to", 2);
    user.expect_times("/restart starts it again", 3);
    user.expect_prompt();
    user.quit();
}

#[test]
fn a_session_outlives_its_agent() {
    let dir = TestDir::new();
    let user = TerminalUser::start(&dir, &["--base-url", "builtin:demo", "--pace", "0"]);
    user.expect_prompt();
    user.chat("Hello, who are you?", "I am the demo model of Narrows");
    user.chat("/sessions", "* ");
    let screen = user.screen();
    let session = screen.lines().find_map(|line| line.strip_prefix("* ")).expect("a session");
    let session = session.split_whitespace().next().expect("an id");
    let agents = processes(&dir, "acp");
    assert_eq!(agents.len(), 1);
    kill_process(agents[0], Signal::KILL).expect("the process runs");
    user.expect("the agent exited while it was idle");
    user.expect_prompt();
    user.chat("/restart", "and the session continues");
    user.chat("/sessions", &format!("* {session}"));
    user.quit();
}

#[test]
fn sigterm_exits_at_the_prompt_and_during_a_turn() {
    for is_turn in [false, true] {
        let dir = TestDir::new();
        let user = TerminalUser::chat_with(&dir, "slow", &[]);
        if is_turn {
            user.type_text("go\r");
            user.expect("One moment.");
        }
        user.send_signal(Signal::TERM);
        user.expect("cancelled by SIGTERM");
        user.expect_terminal_restored();
        assert_eq!(user.wait_exit(), Some(143));
    }
}

#[test]
fn no_process_is_left_however_the_chat_ends() {
    for (signal, code) in [(Signal::HUP, Some(129)), (Signal::KILL, None)] {
        for is_turn in [false, true] {
            let dir = TestDir::new();
            let user = TerminalUser::chat_with(&dir, "slow", &[]);
            if is_turn {
                user.type_text("go\r");
                user.expect("One moment.");
            }
            user.send_signal(signal);
            assert_eq!(user.wait_exit(), code);
        }
    }
}

#[test]
fn unknown_keys_do_not_end_the_chat() {
    let dir = TestDir::new();
    dir.file("counts.toml", COUNTS);
    let user = TerminalUser::chat_with(&dir, "counts.toml", &[]);
    user.press_keys(b"ab\xff");
    user.expect("the input is not UTF-8");
    user.expect_prompt();
    user.type_text("\x1bOz\t");
    user.chat("still here", "[1: still here]");
    user.quit();
}

#[test]
fn the_history_is_stored_privately() {
    let dir = TestDir::new();
    let user = TerminalUser::chat_with(&dir, "echo", &[]);
    user.type_text("something to remember\r");
    user.expect_line("something to remember");
    user.expect_prompt();
    user.quit();
    let history = dir.path().join("data/chat_history");
    assert_eq!(std::fs::metadata(history).expect("a history").permissions().mode() & 0o777, 0o600);
    let user = TerminalUser::chat_with(&dir, "echo", &[]);
    user.type_text("\x1b[A");
    user.expect_edit_line("> something to remember");
    user.type_text(CTRL_C);
    user.expect_prompt();
    user.quit();
}

#[test]
fn a_resumed_session_shows_earlier_messages() {
    let dir = TestDir::new();
    // In version 2 an agent that resumes a session replays it.
    let demo = ["--base-url", "builtin:demo", "--pace", "0", "--protocol", "2"];
    let user = TerminalUser::start(&dir, &demo);
    user.expect_prompt();
    user.chat("Hello, who are you?", "I am the demo model of Narrows");
    user.quit();
    let user = TerminalUser::start(&dir, &[&demo[..], &["--continue"]].concat());
    user.expect("continuing session ");
    user.expect(", \"Hello, who are you?\", last used just now");
    user.expect("you: Hello, who are you?");
    user.expect("agent: I am the demo model of Narrows");
    user.expect_prompt();
    user.quit();
}

#[test]
fn a_loaded_session_shows_earlier_messages() {
    let dir = TestDir::new();
    dir.file("loads.toml", &format!("{COUNTS}\n[capabilities]\nresume = false\n"));
    let user = TerminalUser::chat_with(&dir, "loads.toml", &[]);
    for turn in 1..=5 {
        user.chat(&format!("message {turn}"), &format!("[{turn}: message {turn}]"));
    }
    user.chat("/new", "new session: ");
    user.chat("/resume session-1", "continuing session session-1");
    user.expect("… 4 earlier messages");
    user.expect("you: message 5");
    user.expect("agent: [5: message 5]");
    user.chat("/resume session-1", "this session is already active");
    user.chat("/resume session-2", "continuing session session-2");
    user.chat("/resume session-1", "continuing session session-1");
    user.chat("/resume nothing-like-it", "error: ");
    user.chat("on", "[6: on]");
    user.quit();
}

#[test]
fn events_between_turns_are_shown_above_the_input_line() {
    let dir = TestDir::new();
    let late = "name = \"late\"\n[[turn]]\nsteps = [{ say = \"Done.\" }, { reorder = true }, { pause = \"300ms\" }, { say = \"By the way.\" }]\n";
    dir.file("late.toml", late);
    let user = TerminalUser::chat_with(&dir, "late.toml", &[]);
    user.type_text("go\r");
    user.expect("Done.");
    user.expect_prompt();
    user.type_text("half a line");
    user.expect("agent: By the way.");
    user.expect_edit_line("> half a line");
    user.type_text(CTRL_C);
    user.expect_prompt();
    user.type_text(CTRL_D);
    assert_eq!(user.wait_exit(), Some(0));
}

/// Runs `narrows chat` without a terminal.
fn piped(dir: &TestDir, agent: &str, input: &str) -> String {
    let command = dir.narrows(["chat", "--pass-env", MARK, "--agent", agent]);
    dir.output_with_input(command, input.as_bytes())
}

#[test]
fn lines_of_a_pipe_are_messages() {
    let dir = TestDir::new();
    dir.file("counts.toml", COUNTS);
    let agent = "narrows fake-agent counts.toml";
    let told = piped(&dir, agent, "hello\n\nagain\\\nlast");
    assert_eq!(told, "[1: hello]\n[2: again\\]\n[3: last]\n--- exit 0 ---\n");
    assert_eq!(piped(&dir, agent, ""), "--- exit 0 ---\n");
}

#[test]
fn ctrl_c_ends_a_pipe() {
    let dir = TestDir::new();
    let (input, mut program) = std::io::pipe().expect("a pipe");
    let mut command = dir.narrows(["chat", "--pass-env", MARK, "--agent", "narrows fake-agent slow"]);
    command.stdin(input);
    let mut running = dir.start(command);
    program.write_all(b"go\nand on\n").expect("the peer reads");
    running.expect_stdout("One moment. ");
    running.signal(Signal::INT);
    let told = running.finish();
    assert!(told.ends_with("error: cancelled\n--- exit 130 ---\n"), "{told}");
}

#[test]
fn a_pipe_ends_with_the_code_of_its_last_turn() {
    let dir = TestDir::new();
    dir.file(
        "picky.toml",
        "name = \"picky\"\n[[turn]]\nwhen = \"no\"\nsteps = [{ stop = \"refusal\" }]\n[[turn]]\nsteps = [{ say = \"yes\" }]\n",
    );
    let agent = "narrows fake-agent picky.toml";
    assert_eq!(
        piped(&dir, agent, "a\nno\n"),
        "yes\n--- stderr ---\nerror: the agent refused to answer\n--- exit 3 ---\n"
    );
    let told = piped(&dir, agent, "no\na\n");
    assert!(told.starts_with("yes\n") && told.ends_with("--- exit 0 ---\n"), "{told}");
    let told = piped(&dir, agent, "/nope\n");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    let told = piped(&dir, "narrows fake-agent crash", "a\nb\n");
    assert!(told.contains("I am about to") && told.ends_with("--- exit 1 ---\n"), "{told}");
    assert_eq!(told.matches("error:").count(), 1, "{told}");
    let told = piped(&dir, "no-such-program-anywhere", "a\n");
    assert!(told.ends_with("--- exit 5 ---\n"), "{told}");
}
