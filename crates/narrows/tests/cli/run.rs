//! Successful turns of `narrows run`.

use std::io::Read;

use insta::assert_snapshot;

use crate::test_dir::{TestDir, terminal};

const HELLO_V1: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#;
const HELLO_V2: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":2,"info":{"name":"sh","version":"2"},"capabilities":{"session":{}}}}"#;
const SESSION: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}"#;
const END_V1: &str = r#"{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}"#;
const INSERTED: &str = r#"{"jsonrpc":"2.0","id":3,"result":{"messageId":"m0"}}"#;

/// Returns a `session/update`.
fn update(update: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{{update}}}}}}}"#
    )
}

/// Returns a piece of a message.
fn chunk(message: &str, text: &str) -> String {
    update(&format!(
        r#""sessionUpdate":"agent_message_chunk","messageId":"{message}","content":{{"type":"text","text":"{text}"}}"#
    ))
}

/// Returns a state update of version 2.
fn state(state: &str) -> String {
    update(&format!(r#""sessionUpdate":"state_update","state":{state}"#))
}

#[test]
fn a_turn_of_version_1() {
    let dir = TestDir::new();
    let turn = [chunk("1", "Hello, "), chunk("1", "world"), chunk("2", "Bye"), END_V1.to_owned()].join("\n");
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, &turn]);
    assert_snapshot!(dir.output_of(dir.run(&agent, &["Hi \"there\""])), @"
    Hello, world
    Bye
    --- exit 0 ---
    ");
    assert_snapshot!(dir.received(), @r#"
    {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true,"session":{"notices":{}},"auth":{"terminal":false},"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows","version":"[VERSION]"}}}
    {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"[DIR]","mcpServers":[]}}
    {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"Hi \"there\""}],"_meta":{"narrows/authorizes":true}}}
    "#);
}

#[test]
fn a_turn_of_version_2() {
    let dir = TestDir::new();
    let whole = update(
        r#""sessionUpdate":"agent_message","messageId":"1","content":[{"type":"text","text":"Hello, world"}]"#,
    );
    let turn = [
        state(r#""idle""#),
        INSERTED.to_owned(),
        state(r#""idle""#),
        state(r#""running""#),
        chunk("1", "Hello, "),
        whole,
        state(r#""idle","stopReason":"end_turn""#),
    ];
    let agent = dir.scripted_agent(&[HELLO_V2, SESSION, &turn.join("\n")]);
    assert_snapshot!(dir.output_of(dir.run(&agent, &["--protocol", "2", "Hi"])), @"
    Hello, world
    --- exit 0 ---
    ");
    assert_snapshot!(dir.received(), @r#"
    {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":2,"info":{"name":"narrows","version":"[VERSION]"},"capabilities":{"_meta":{"narrows/authorizes":true}}}}
    {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"[DIR]","mcpServers":[]}}
    {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"Hi"}]}}
    "#);
}

#[test]
fn a_turn_of_version_2_that_ends_before_the_prompt_is_answered() {
    let dir = TestDir::new();
    let turn = [
        state(r#""running""#),
        chunk("1", "Hello"),
        state(r#""idle","stopReason":"max_tokens""#),
        INSERTED.to_owned(),
    ];
    let agent = dir.scripted_agent(&[HELLO_V2, SESSION, &turn.join("\n")]);
    assert_snapshot!(dir.output_of(dir.run(&agent, &["--protocol", "2", "--output", "json", "Hi"])), @r#"
    {"text":"Hello","stopReason":"max_tokens","sessionId":"s","agent":{"name":"sh","version":"2"},"protocol":2,"error":{"kind":"limit","message":"the answer is incomplete: the agent reached its token limit","exitCode":4}}
    --- stderr ---
    error: the answer is incomplete: the agent reached its token limit
    --- exit 4 ---
    "#);
}

#[test]
fn a_turn_of_version_2_that_fails() {
    let dir = TestDir::new();
    let failed = state(r#""idle","stopReason":"error","error":{"code":-32018,"message":"no model"}"#);
    let turn = [INSERTED.to_owned(), state(r#""running""#), failed];
    let agent = dir.scripted_agent(&[HELLO_V2, SESSION, &turn.join("\n")]);
    assert_snapshot!(dir.output_of(dir.run(&agent, &["--protocol", "2", "Hi"])), @"
    --- stderr ---
    error: no model
    --- exit 1 ---
    ");
}

#[test]
fn an_agent_of_version_1_is_restarted() {
    let dir = TestDir::new();
    let agent =
        dir.scripted_agent(&[HELLO_V1, SESSION, &[chunk("1", "Hello"), END_V1.to_owned()].join("\n")]);
    assert_snapshot!(dir.output_of(dir.run(&agent, &["--protocol", "2", "--output", "json", "Hi"])), @r#"
    {"text":"Hello","stopReason":"end_turn","sessionId":"s","agent":null,"protocol":1}
    --- exit 0 ---
    "#);
    assert_snapshot!(dir.received(), @r#"
    {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":2,"info":{"name":"narrows","version":"[VERSION]"},"capabilities":{"_meta":{"narrows/authorizes":true}}}}
    {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true,"session":{"notices":{}},"auth":{"terminal":false},"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows","version":"[VERSION]"}}}
    {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"[DIR]","mcpServers":[]}}
    {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"Hi"}],"_meta":{"narrows/authorizes":true}}}
    "#);
}

#[test]
fn lines_that_are_not_messages_are_reported() {
    let dir = TestDir::new();
    let turn = [chunk("1", "Hello"), "Done!".to_owned(), END_V1.to_owned()].join("\n");
    let agent = dir.scripted_agent(&[&format!("Loading\n{HELLO_V1}"), SESSION, &turn]);
    assert_snapshot!(dir.output_of(dir.run(&agent, &["Hi"])), @"
    Hello
    --- stderr ---
    notice of the agent: 2 lines of its output were not protocol messages, the first: Loading
    --- exit 0 ---
    ");
}

#[test]
fn the_prompt_from_stdin() {
    for args in [&["-"][..], &[]] {
        let dir = TestDir::new();
        let agent = dir.scripted_agent(&[HELLO_V1, SESSION, END_V1]);
        assert_eq!(
            dir.output_with_input(dir.run(&agent, args), "Grüße\n\tan alle".as_bytes()),
            "--- exit 0 ---\n"
        );
        let got = dir.received();
        assert!(got.contains(r#"{"type":"text","text":"Grüße\n\tan alle"}"#), "{got}");
    }
}

#[test]
fn the_agent_gets_the_permitted_environment() {
    let dir = TestDir::new();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    dir.scripted_agent(&[HELLO_V1, SESSION, END_V1]);
    let agent = "sh -c 'env > ../seen; pwd >> ../seen; exec sh ../agent.sh'";
    let args = ["--cwd", "work", "--env", "GIVEN=a=b", "--env", "NAMED", "--pass-env", "PREFIX_*", "Hi"];
    for clean in [true, false] {
        let mut command = dir.run(agent, &args);
        command.args(clean.then_some("--clean-env"));
        command.envs([("API_KEY", "secret"), ("NAMED", "n"), ("PREFIX_A", "p"), ("LC_ALL", "C")]);
        assert_eq!(dir.output_of(command), "--- exit 0 ---\n");
        let seen = std::fs::read_to_string(dir.path().join("seen")).unwrap();
        for line in ["GIVEN=a=b", "NAMED=n", "PREFIX_A=p", "LC_ALL=C"] {
            assert!(seen.lines().any(|seen| seen == line), "no {line} in {seen}");
        }
        assert_eq!(seen.contains("secret"), !clean, "{seen}");
        assert!(seen.ends_with("/work\n"), "{seen}");
    }
}

#[test]
fn logs_contain_no_secrets() {
    let dir = TestDir::new();
    let mut command = dir.run("narrows fake-agent echo", &["--env", "KEY=hunter2", "what was said"]);
    command.env("NARROWS_LOG", "trace");
    let told = dir.output_of(command);
    let (answer, log) = told.split_once("--- stderr ---\n").expect("a log");
    assert_eq!(answer, "what was said\n");
    assert!(log.contains("narrows"), "nothing was logged: {log}");
    assert!(!log.contains("hunter2") && !log.contains("what was said"), "{log}");
}

#[test]
fn a_flag_wins_over_its_variable() {
    let dir = TestDir::new();
    let mut command = dir.run("narrows fake-agent echo", &["--log", "error", "--clean-env", "Hi"]);
    command.env("NARROWS_LOG", "no=such=filter");
    assert_snapshot!(dir.output_of(command), @"
    Hi
    --- exit 0 ---
    ");
}

#[test]
fn requests_of_the_agent() {
    let dir = TestDir::new();
    let turn = r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"t","title":"Remove everything"},"options":[{"optionId":"y","name":"No","kind":"allow_once"},{"optionId":"n","name":"Yes","kind":"reject_once"}]}}
                  {"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"s","path":"/etc/passwd"}}"#;
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, turn, "", END_V1]);
    let told = dir.output_of(dir.run(&agent, &["Hi"]));
    for line in [
        "denied: Remove everything (cannot ask for permission; no rule matches, and medium access asks",
        "denied: Read /etc/passwd (\"/etc/passwd\": the path is outside the session's directories)\n",
        "error: 2 requests of the agent were denied by the policy, the first: ",
    ] {
        assert!(told.contains(line), "no {line} in {told}");
    }
    assert!(told.ends_with("--- exit 9 ---\n"), "{told}");
    // The order of the two responses does not matter.
    let mut got: Vec<String> = dir.received().lines().skip(3).map(str::to_owned).collect();
    got.sort_unstable();
    assert!(got[0].starts_with(r#"{"jsonrpc":"2.0","id":"f","error":{"code":-32602,"#), "{}", got[0]);
    assert_snapshot!(got[1], @r#"
    {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"narrows/by":"nobody to ask"}}}
    "#);
}

#[test]
fn output_does_not_control_the_terminal() {
    let dir = TestDir::new();
    let turn = [
        update(r#""sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"Let me\n see"}"#),
        chunk("1", r"Look: \u001b[2J\u0007gone"),
        update(r#""sessionUpdate":"tool_call","toolCallId":"t","title":"Read \u001b]0;x\u0007 file""#),
        chunk("1", r"Done\tnow"),
        END_V1.to_owned(),
    ];
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, &turn.join("\n")]);
    let (mut terminal, screen) = terminal();
    let mut command = dir.run(&agent, &["Hi"]);
    command.stdout(screen.try_clone().unwrap()).stderr(screen);
    let mut child = command.spawn().unwrap();
    drop(command);
    // Reading fails once narrows has closed the terminal. All output has arrived by then.
    let mut shown = Vec::new();
    let _ = terminal.read_to_end(&mut shown);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let shown = String::from_utf8(shown).unwrap();
    // The styles of narrows are the only escape sequences.
    let shown = shown.replace("\u{1b}[2m", "<dim>").replace("\u{1b}[0m", "</>").replace('\r', "");
    assert_snapshot!(shown, @r"
    <dim>thinking: Let me see</>
    Look: \u{1b}[2J\u{7}gone
    <dim>tool: Read \u{1b}]0;x\u{7} file</>
    Done	now
    ");
    dir.assert_no_process_left();
}

#[test]
fn a_denial_has_a_hint() {
    let dir = TestDir::new();
    dir.file("deny.toml", "[[rule]]\neffect = \"deny\"\nkind = \"delete\"\n");
    dir.file("ask.toml", "[[rule]]\neffect = \"ask\"\nkind = \"delete\"\n");
    for (args, hint) in [
        (
            ["--access", "low"],
            "hint: low access denies the request: use --access medium, or allow the request",
        ),
        (
            ["--policy", "deny.toml"],
            "hint: rule 1 (deny.toml:1) denies the request; only a change of that rule",
        ),
        (
            ["--policy", "ask.toml"],
            "hint: rule 1 (ask.toml:1) asks for permission: run narrows in a terminal",
        ),
    ] {
        let told = dir.output_of(dir.run("narrows fake-agent ask", &[&args[..], &["Clean"]].concat()));
        assert!(told.contains(hint) && told.ends_with("--- exit 9 ---\n"), "{told}");
    }
}
