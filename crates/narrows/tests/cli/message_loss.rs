//! Incomplete answers, and unread output that must not delay a turn.

use std::io::Write;
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::test_dir::TestDir;

const HELLO_V1: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#;
const SESSION: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}"#;
const END_V1: &str = r#"{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}"#;
/// An unreadable update.
const UNREADABLE: &str = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":7}}}"#;

/// Returns a piece of the answer.
fn chunk(text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}}}"#
    )
}

fn output(turn: &[&str], args: &[&str]) -> String {
    let dir = TestDir::new();
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, &turn.join("\n")]);
    dir.output_of(dir.run(&agent, &[&["--log", "off"], args].concat()))
}

#[test]
fn updates_that_cannot_be_read() {
    let turn = [&chunk("a"), UNREADABLE, &chunk("b"), END_V1];
    assert_snapshot!(output(&turn, &["Hi"]), @"
    ab
    --- stderr ---
    error: the answer is incomplete: 1 message was unreadable
    --- exit 4 ---
    ");
    let nameless = chunk("lost").replace(r#""sessionId":"s","#, "");
    let turn = [&chunk("a"), UNREADABLE, &nameless, END_V1];
    assert_snapshot!(output(&turn, &["--output", "json", "Hi"]), @r#"
    {"text":"a","stopReason":"end_turn","sessionId":"s","agent":null,"protocol":1,"error":{"kind":"limit","message":"the answer is incomplete: 2 messages were unreadable","exitCode":4}}
    --- stderr ---
    error: the answer is incomplete: 2 messages were unreadable
    --- exit 4 ---
    "#);
}

/// An unreadable update that is not part of the answer does not make the answer incomplete.
#[test]
fn an_unreadable_update_beside_the_answer_does_not_change_the_exit_code() {
    let update = |update: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s"{update}}}}}"#)
    };
    for strange in [
        r#","update":{"sessionUpdate":"tool_call","title":"no id"}"#,
        r#","update":{"sessionUpdate":"tool_call_update","status":7}"#,
        r#","update":{"sessionUpdate":"agent_thought_chunk","content":7}"#,
        r#","update":{"title":"no discriminator"}"#,
        r#","update":{"sessionUpdate":7}"#,
        r#","update":null"#,
        r#","update":[]"#,
        "",
    ] {
        let strange = update(strange);
        let turn = [&chunk("a"), &strange, &chunk("b"), END_V1];
        assert_eq!(output(&turn, &["Hi"]), "ab\n--- exit 0 ---\n", "{strange}");
        let told = output(&turn, &["--output", "events", "Hi"]);
        assert!(told.contains(r#""problem":"#) && told.ends_with("--- exit 0 ---\n"), "{told}");
    }
}

/// An unreadable update without a session counts only if it is a piece of the answer.
#[test]
fn an_update_without_a_session_changes_the_exit_code_only_if_it_is_a_piece_of_the_answer() {
    let plan = r#""update":{"sessionUpdate":"plan","entries":[]}"#;
    for params in
        [String::new(), format!(r#","params":{{{plan}}}"#), format!(r#","params":{{"sessionId":7,{plan}}}"#)]
    {
        let nameless = format!(r#"{{"jsonrpc":"2.0","method":"session/update"{params}}}"#);
        let turn = [&chunk("a"), &nameless, &chunk("b"), END_V1];
        assert_eq!(output(&turn, &["Hi"]), "ab\n--- exit 0 ---\n", "{nameless}");
        let told = output(&turn, &["--output", "events", "Hi"]);
        assert!(told.contains("messages.lost") && told.ends_with("--- exit 0 ---\n"), "{told}");
    }
    for key in ["", r#""sessionId":7,"#] {
        let nameless = chunk("lost").replace(r#""sessionId":"s","#, key);
        let told = output(&[&chunk("a"), &nameless, END_V1], &["Hi"]);
        assert!(told.ends_with("incomplete: 1 message was unreadable\n--- exit 4 ---\n"), "{told}");
    }
}

#[test]
fn a_message_that_cannot_be_parsed_makes_the_answer_incomplete() {
    let lost = chunk("lost");
    for broken in [&lost[..lost.len() - 9], &format!("Loading...{lost}"), &format!("{}{lost}", &lost[..40])] {
        let told = output(&[&chunk("a"), broken, &chunk("b"), END_V1], &["Hi"]);
        assert!(told.ends_with("incomplete: 1 message was unreadable\n--- exit 4 ---\n"), "{broken}: {told}");
    }
    let told = output(&[&lost[..30], END_V1], &["--output", "events", "Hi"]);
    assert!(
        told.contains(
            r#""name":"messages.lost","data":{"count":1,"reasons":[{"reason":"unreadable","count":1}]}"#
        ),
        "{told}"
    );
}

#[test]
fn output_that_is_no_message_is_a_warning() {
    let turn = [&chunk("a"), "[info] {ready}", "{ port: 80 }", END_V1];
    let told = output(&turn, &["--output", "json", "Hi"]);
    assert!(told.contains(r#""warnings":["notice of the agent: 2 lines"#), "{told}");
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn a_state_update_without_a_state_does_not_change_the_exit_code() {
    let dir = TestDir::new();
    let script = "[[turn]]\nsteps = [{ update = { sessionUpdate = 'state_update' } }, { say = 'fine' }]\n";
    dir.file("agent.toml", script);
    let mut command = dir.run("narrows fake-agent agent.toml", &["--log", "off", "--protocol", "2", "Hi"]);
    command.stdin(Stdio::null());
    assert_eq!(dir.output_of(command), "fine\n--- exit 0 ---\n");
}

#[test]
fn an_incomplete_character_affects_nothing_else() {
    let turn = [&chunk(r"a\ud800b"), &chunk(r"\ud83d\ude00"), END_V1];
    assert_snapshot!(output(&turn, &["Hi"]), @"
    a�b😀
    --- exit 0 ---
    ");
}

#[test]
fn a_line_that_is_too_long() {
    let dir = TestDir::new();
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, "TOO LONG"]);
    let script = std::fs::read_to_string(dir.path().join("agent.sh")).unwrap();
    let long = format!("head -c 80000000 /dev/zero | tr '\\0' x\necho\nprintf '%s\\n' '{END_V1}'\n");
    dir.file("agent.sh", &script.replace("printf '%s\\n' 'TOO LONG'\n", &long));
    assert_snapshot!(dir.output_of(dir.run(&agent, &["--log", "off", "Hi"])), @"
    --- stderr ---
    error: the answer is incomplete: 1 message was too long
    --- exit 4 ---
    ");
}

#[test]
fn early_updates() {
    let dir = TestDir::new();
    let agent = dir.scripted_agent(&[HELLO_V1, "EARLY", END_V1]);
    let script = std::fs::read_to_string(dir.path().join("agent.sh")).unwrap();
    dir.file("early", &format!("{}\n", chunk(&"x".repeat(100_000))).repeat(40));
    let early = format!("cat early\nprintf '%s\\n' '{SESSION}'\n");
    dir.file("agent.sh", &script.replace("printf '%s\\n' 'EARLY'\n", &early));
    // The messages arrived before the prompt, so the answer is complete.
    assert_eq!(dir.output_of(dir.run(&agent, &["--log", "off", "Hi"])), "--- exit 0 ---\n");
}

/// Returns `narrows run` with an agent that sends unreadable messages until the timeout.
fn endless(dir: &TestDir) -> Command {
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, "ENDLESS"]);
    let script = std::fs::read_to_string(dir.path().join("agent.sh")).expect("a file");
    let endless = format!("exec yes '{UNREADABLE}'\n");
    dir.file("agent.sh", &script.replace("printf '%s\\n' 'ENDLESS'\n", &endless));
    dir.run(&agent, &["--timeout", "3s", "--cancel-grace", "200ms", "Hi"])
}

#[test]
fn only_the_first_unreadable_update_causes_a_warning() {
    let dir = TestDir::new();
    let told = dir.output_of(endless(&dir));
    assert_eq!(told.matches("invalid update of the agent").count(), 1, "{told}");
    assert!(told.ends_with("--- exit 7 ---\n"), "{told}");
}

#[test]
fn an_unread_stderr_does_not_block_the_exit() {
    let dir = TestDir::new();
    // The pipe is full from the start.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    let mut command = endless(&dir);
    let status = command.stdout(Stdio::null()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(7));
    drop(reader);
    dir.assert_no_process_left();
}

#[test]
fn an_unread_stdout_does_not_extend_a_timeout() {
    let dir = TestDir::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let args = ["--timeout", "3s", "--cancel-grace", "200ms", "Hi"];
    let mut command = dir.run("narrows fake-agent flood", &args);
    let status = command.stdout(writer).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(7));
    drop(reader);
    dir.assert_no_process_left();
}

#[test]
fn permission_outside_the_session() {
    let dir = TestDir::new();
    let ask = |id: u32, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission"{params}}}"#)
    };
    let options = r#""options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"n","name":"No","kind":"reject_once"}]"#;
    let other = format!(
        r#","params":{{"sessionId":"other","toolCall":{{"toolCallId":"1","title":"Edit"}},{options}}}"#
    );
    let nameless = format!(r#","params":{{{options}}}"#);
    let agent = dir.scripted_agent(&[
        HELLO_V1,
        &ask(10, &other.replace("Edit", "Early")),
        SESSION,
        &ask(11, &other),
        &ask(12, ""),
        &ask(13, &nameless),
        &ask(14, r#","params":{"sessionId":"other","options":7}"#),
        END_V1,
    ]);
    let told = dir.output_of(dir.run(&agent, &["Hi"]));
    let said = "request of an unknown session refused method=session/request_permission\n";
    assert_eq!(told.matches(said).count(), 1, "{told}");
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
    let got = dir.received();
    let answers: Vec<&str> = got.lines().filter(|line| !line.contains("method")).collect();
    assert_snapshot!(answers.join("\n"), @r#"
    {"jsonrpc":"2.0","id":10,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none","sessionId":"other"}}}
    {"jsonrpc":"2.0","id":11,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none","sessionId":"other"}}}
    {"jsonrpc":"2.0","id":12,"error":{"code":-32602,"message":"`sessionId` is missing","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    {"jsonrpc":"2.0","id":13,"error":{"code":-32602,"message":"`sessionId` is missing","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    {"jsonrpc":"2.0","id":14,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none","sessionId":"other"}}}
    "#);
}
