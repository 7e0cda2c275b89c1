//! Every failing exit code, with its message.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;

use crate::test_dir::TestDir;

const HELLO_V1: &str =
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"sh","version":"1"}}}"#;
const SESSION: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}"#;

fn output(answers: &[&str], args: &[&str]) -> String {
    let dir = TestDir::new();
    let agent = dir.scripted_agent(answers);
    dir.output_of(dir.run(&agent, args))
}

/// Runs `narrows run` with this agent.
fn output_with_agent(agent: &str, args: &[&str]) -> String {
    let dir = TestDir::new();
    dir.output_of(dir.run(agent, args))
}

/// Runs a turn of version 1 that ends with this stop reason.
fn stopped(reason: &str) -> String {
    let answer = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"so far"}}}}}}}}
           {{"jsonrpc":"2.0","id":3,"result":{{"stopReason":"{reason}"}}}}"#
    );
    output(&[HELLO_V1, SESSION, &answer], &["Hi"])
}

#[test]
fn usage() {
    assert_snapshot!(output_with_agent("a 'b", &["Hi"]), @r#"
    --- stderr ---
    error: --agent "a 'b": missing closing quote
    --- exit 2 ---
    "#);
    assert_snapshot!(output_with_agent("cat", &["--timeout", "soon", "Hi"]), @"
    --- stderr ---
    error: invalid value 'soon' for '--timeout <TIME>': a duration is a number and a unit, such as `30s`

    For more information, try '--help'.
    --- exit 2 ---
    ");
    assert_snapshot!(output_with_agent("cat", &["--cwd", "nowhere", "Hi"]), @r#"
    --- stderr ---
    error: cannot use the directory "nowhere"
      because: No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    assert_snapshot!(output_with_agent("cat", &["--env", "NOT_SET_HERE", "Hi"]), @r#"
    --- stderr ---
    error: environment variable "NOT_SET_HERE" is not set
    hint: set the value of the variable: --env NOT_SET_HERE=VALUE
    --- exit 2 ---
    "#);
    assert_snapshot!(output_with_agent("cat", &["--log", "narrows=b=c", "Hi"]), @r#"
    --- stderr ---
    error: invalid log filter: error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5
    hint: use a level such as `debug`, or levels of modules such as `narrows_rpc=trace,warn`
    --- exit 2 ---
    "#);
    assert_snapshot!(output_with_agent("cat", &["--log", "hyper=trace", "Hi"]), @"
    --- stderr ---
    error: invalid log filter: `hyper=trace` is neither a level nor a module of narrows
    hint: use a level such as `debug`, or levels of modules such as `narrows_rpc=trace,warn`
    --- exit 2 ---
    ");
    assert_snapshot!(output_with_agent("cat", &[" "]), @"
    --- stderr ---
    error: missing prompt
    hint: pass the prompt as the last argument, or on stdin: `echo Hi | narrows run`
    --- exit 2 ---
    ");
    assert_snapshot!(output_with_agent("cat", &[]), @"
    --- stderr ---
    error: missing prompt
    hint: pass the prompt as the last argument, or on stdin: `echo Hi | narrows run`
    --- exit 2 ---
    ");
}

/// The standard library opens /dev/null in place of a closed stdout, so every write would succeed without a
/// check.
#[test]
fn a_closed_stdout_is_an_error() {
    let dir = TestDir::new();
    let run = ["run", "--agent", "narrows fake-agent echo", "Hi"];
    for args in [
        &run[..],
        &["fake-agent", "--list"],
        &["fake-agent", "--print", "hello"],
        &["bus", "status"],
        &["bus", "status", "--json"],
        &["serve", "--self-test", "ACP.md"],
        &["check", "--print-schema", "acp"],
    ] {
        let command = dir.narrows(args);
        let mut closed = std::process::Command::new("sh");
        closed.args(["-c", "exec \"$@\" >&-", "sh"]).arg(command.get_program()).args(command.get_args());
        closed.current_dir(dir.path()).stdin(std::process::Stdio::null());
        let output = closed.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(141), "{args:?}: {output:?}");
    }
    let mut open = dir.narrows(run);
    let output = open.stdout(File::options().read(true).write(true).open("/dev/null").unwrap()).output();
    assert_eq!(output.expect("the program starts").status.code(), Some(0));
}

#[test]
fn a_prompt_that_is_not_text() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_with_input(dir.run("cat", &["-"]), b"\xff\xfe"), @"
    --- stderr ---
    error: cannot read the prompt from stdin
      because: the text is not UTF-8
    --- exit 2 ---
    ");
}

#[test]
fn a_missing_program() {
    assert_snapshot!(output_with_agent("no-such-agent --acp", &["Hi"]), @r#"
    --- stderr ---
    error: cannot start the agent "no-such-agent"
      because: program "no-such-agent" not found in PATH
    hint: install the program, or use its path: --agent "/path/to/agent"
    --- exit 5 ---
    "#);
    assert_snapshot!(output_with_agent("./agent", &["Hi"]), @r#"
    --- stderr ---
    error: cannot start the agent "./agent"
      because: file not found
    --- exit 5 ---
    "#);
    let dir = TestDir::new();
    let program = dir.file("my-agent", "#!/bin/sh\n");
    std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = dir.run("my-agnet", &["Hi"]);
    command.env("PATH", dir.path());
    assert_snapshot!(dir.output_of(command), @r#"
    --- stderr ---
    error: cannot start the agent "my-agnet"
      because: program "my-agnet" not found in PATH
    hint: install the program, or use its path: --agent "/path/to/agent"
    --- exit 5 ---
    "#);
}

#[test]
fn a_program_that_cannot_run() {
    let dir = TestDir::new();
    dir.file("agent", "echo hello\n");
    assert_snapshot!(dir.output_of(dir.run("./agent", &["Hi"])), @r#"
    --- stderr ---
    error: cannot start the agent "./agent"
      because: [DIR]/agent is not executable
    hint: make the file executable: chmod +x [DIR]/agent
    --- exit 5 ---
    "#);
    assert_snapshot!(dir.output_of(dir.run("/", &["Hi"])), @r#"
    --- stderr ---
    error: cannot start the agent "/"
      because: / is a directory, not a program
    --- exit 5 ---
    "#);
}

#[test]
fn an_agent_that_exits_immediately() {
    assert_snapshot!(output_with_agent("sh -c 'echo no key >&2; exit 3'", &["Hi"]), @"
    --- stderr ---
    error: the agent exited before it answered `initialize`: exited with status 3
      last lines on stderr:
      | no key
    --- exit 5 ---
    ");
    assert_snapshot!(output_with_agent("sh -c 'echo Welcome; echo Bye; read x'", &["Hi"]), @"
    --- stderr ---
    error: the agent exited before it answered `initialize`: exited with status 0
    hint: 2 lines of its output were not protocol messages, the first: Welcome; check that it is an ACP agent; many programs need an argument such as `acp` or `--acp`
    --- exit 5 ---
    ");
}

#[test]
fn a_silent_agent() {
    assert_snapshot!(output_with_agent("sleep 1000", &["--initialize-timeout", "200ms", "Hi"]), @"
    --- stderr ---
    error: the agent did not answer `initialize` within 200ms
    hint: if the agent starts slowly, allow more time: --initialize-timeout 2m
    --- exit 7 ---
    ");
    assert_snapshot!(output(&[HELLO_V1], &["--session-timeout", "200ms", "Hi"]), @"
    --- stderr ---
    error: the agent did not answer `session/new` within 200ms
    hint: if the agent starts slowly, allow more time: --session-timeout 5m
    --- exit 7 ---
    ");
}

#[test]
fn no_agent_at_all() {
    // `cat` sends the client's own messages back.
    assert_snapshot!(output_with_agent("cat", &["Hi"]), @"
    --- stderr ---
    error: the agent answered `initialize` with an error
      because: method not found (-32601)
    hint: check that it is an ACP agent; many programs need an argument such as `acp` or `--acp`
    --- exit 6 ---
    ");
    let mcp = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
    assert_snapshot!(output(&[mcp], &["Hi"]), @r#"
    --- stderr ---
    error: the agent's response to initialize is invalid: unexpected form: invalid type: string "2025-06-18", expected u16 at line 1 column 31
    hint: check that it is an ACP agent; many programs need an argument such as `acp` or `--acp`
    --- exit 6 ---
    "#);
}

#[test]
fn an_agent_that_is_temporarily_unavailable() {
    // The response of a bus while the circuit breaker of the pool is open.
    let resting = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32012,"message":"the pool rests","data":{"retryable":true,"retryAfterMs":900}}}"#;
    assert_snapshot!(output(&[resting], &["Hi"]), @"
    --- stderr ---
    error: the agent answered `initialize` with an error
      because: the pool rests (-32012)
    hint: try again in 1 s
    --- exit 5 ---
    ");
    let lost = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"the agent exited"}}"#;
    assert_snapshot!(output(&[lost], &["Hi"]), @"
    --- stderr ---
    error: the agent answered `initialize` with an error
      because: the agent exited (-32010)
    --- exit 5 ---
    ");
}

#[test]
fn incompatible_versions() {
    let newer = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no","data":{"requested":1,"supported":[2]}}}"#;
    assert_snapshot!(output(&[newer], &["Hi"]), @"
    --- stderr ---
    error: the agent supports protocol versions [2]; this client speaks 1 and 2
    hint: offer version 2 with --protocol 2
    --- exit 6 ---
    ");
    let other = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":7}}"#;
    assert_snapshot!(output(&[other], &["--protocol", "2", "Hi"]), @"
    --- stderr ---
    error: the agent chose protocol version 7; this client offered 2 and speaks 1 and 2
    --- exit 6 ---
    ");
}

#[test]
fn a_required_login() {
    let hello = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"authMethods":[{"id":"key","name":"API key","description":"Set ACME_KEY"},{"id":"web","name":"In the\u001b[2J browser"}]}}"#;
    let refused = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Authentication required"}}"#;
    assert_snapshot!(output(&[hello, refused], &["Hi"]), @r"
    --- stderr ---
    error: the agent requires a login
    hint: available login methods:
    hint:   API key: Set ACME_KEY
    hint:   In the\u{1b}[2J browser: use the agent's own command
    --- exit 1 ---
    ");
    assert_snapshot!(output(&[HELLO_V1, refused], &["Hi"]), @"
    --- stderr ---
    error: the agent requires a login
    hint: log in with the agent's own command, or pass it a key: --env NAME
    --- exit 1 ---
    ");
}

#[test]
fn an_error_of_the_agent() {
    let session = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"disk\u0007 full"}}"#;
    assert_snapshot!(output(&[HELLO_V1, session], &["Hi"]), @r"
    --- stderr ---
    error: the agent answered `session/new` with an error
      because: disk\u{7} full (-32603)
    --- exit 1 ---
    ");
    let prompt = r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32018,"message":"model away","data":{"retryable":true}}}"#;
    assert_snapshot!(output(&[HELLO_V1, SESSION, prompt], &["Hi"]), @"
    --- stderr ---
    error: the agent answered the prompt with an error
      because: model away (-32018)
    hint: the agent reports a temporary error; try again later
    --- exit 1 ---
    ");
}

#[test]
fn an_invalid_answer() {
    let prompt = r#"{"jsonrpc":"2.0","id":3,"result":{"reason":"end_turn"}}"#;
    assert_snapshot!(output(&[HELLO_V1, SESSION, prompt], &["Hi"]), @"
    --- stderr ---
    error: invalid answer to the prompt: unexpected form: missing field `stopReason` at line 1 column 21
    --- exit 6 ---
    ");
    assert_snapshot!(output(&[HELLO_V1, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#], &["Hi"]), @"
    --- stderr ---
    error: invalid response of the agent to `session/new`: it names no session
    --- exit 6 ---
    ");
}

#[test]
fn a_failure_in_place_of_an_answer() {
    let marked = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Error: 401"},"_meta":{"narrows/error":{"kind":"auth","message":"the endpoint wants a key","retryable":false}}}}}
                    {"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}"#;
    assert_snapshot!(output(&[HELLO_V1, SESSION, marked], &["Hi"]), @"
    --- stderr ---
    error: the endpoint wants a key
    hint: check the API key: OPENAI_API_KEY, or `key` in narrows.toml
    --- exit 1 ---
    ");
    let result = r#"{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn","_meta":{"narrows/error":{"message":"busy","retryable":true}}}}"#;
    assert_snapshot!(output(&[HELLO_V1, SESSION, result], &["Hi"]), @"
    --- stderr ---
    error: busy
    hint: the agent reports a temporary error; try again later
    --- exit 1 ---
    ");
    let whole = r#"{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn","_meta":{"narrows/error":{"kind":"rate_limit","status":429,"url":"https://h/v1/chat/completions","message":"slow down","retryable":true,"requestId":"r"}}}}"#;
    assert_snapshot!(output(&[HELLO_V1, SESSION, whole], &["--output", "json", "Hi"]), @r#"
    {"text":"","stopReason":"end_turn","sessionId":"s","agent":{"name":"sh","version":"1"},"protocol":1,"error":{"kind":"agent","message":"the model at https://h/v1/chat/completions did not answer (HTTP 429): slow down","exitCode":1,"endpoint":{"kind":"rate_limit","status":429,"url":"https://h/v1/chat/completions","message":"slow down","retryable":true},"hints":["the agent reports a temporary error; try again later"]}}
    --- stderr ---
    error: the model at https://h/v1/chat/completions did not answer (HTTP 429)
      because: slow down
    hint: the agent reports a temporary error; try again later
    --- exit 1 ---
    "#);
}

#[test]
fn reasons_to_stop() {
    assert_snapshot!(stopped("refusal"), @"
    so far
    --- stderr ---
    error: the agent refused to answer
    --- exit 3 ---
    ");
    assert_snapshot!(stopped("max_tokens"), @"
    so far
    --- stderr ---
    error: the answer is incomplete: the agent reached its token limit
    --- exit 4 ---
    ");
    assert_snapshot!(stopped("max_turn_requests"), @"
    so far
    --- stderr ---
    error: the answer is incomplete: the agent reached its limit of model requests
    --- exit 4 ---
    ");
    assert_snapshot!(stopped("cancelled"), @"
    so far
    --- stderr ---
    error: the agent cancelled the turn without a request
    --- exit 1 ---
    ");
    assert_snapshot!(stopped("lunch"), @r#"
    so far
    --- stderr ---
    error: the agent stopped for an unknown reason: "lunch"
    --- exit 1 ---
    "#);
}

#[test]
fn a_failure_as_json() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(dir.run("no-such-agent", &["--output", "json", "Hi"])), @r#"
    {"text":"","stopReason":null,"sessionId":null,"agent":null,"protocol":null,"error":{"kind":"start","message":"cannot start the agent \"no-such-agent\": program \"no-such-agent\" not found in PATH","exitCode":5,"hints":["install the program, or use its path: --agent \"/path/to/agent\""]}}
    --- stderr ---
    error: cannot start the agent "no-such-agent"
      because: program "no-such-agent" not found in PATH
    hint: install the program, or use its path: --agent "/path/to/agent"
    --- exit 5 ---
    "#);
    let refusal = r#"{"jsonrpc":"2.0","id":3,"result":{"stopReason":"refusal"}}"#;
    assert_snapshot!(output(&[HELLO_V1, SESSION, refusal], &["--output", "json", "Hi"]), @r#"
    {"text":"","stopReason":"refusal","sessionId":"s","agent":{"name":"sh","version":"1"},"protocol":1,"error":{"kind":"refusal","message":"the agent refused to answer","exitCode":3}}
    --- stderr ---
    error: the agent refused to answer
    --- exit 3 ---
    "#);
}

#[test]
fn an_error_of_the_agent_as_json() {
    let dir = TestDir::new();
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no","data":{"retryable":true,"why":[1]}}}"#;
    dir.scripted_agent(&[HELLO_V1, refusal]);
    let agent = "sh -c 'echo trouble >&2; exec sh agent.sh'";
    assert_snapshot!(dir.output_of(dir.run(agent, &["--output", "json", "Hi"])), @r#"
    {"text":"","stopReason":null,"sessionId":null,"agent":{"name":"sh","version":"1"},"protocol":1,"error":{"kind":"agent","message":"the agent answered `session/new` with an error: no (-32603)","exitCode":1,"code":-32603,"data":{"retryable":true,"why":[1]},"stderr":"trouble","hints":["the agent reports a temporary error; try again later"]}}
    --- stderr ---
    error: the agent answered `session/new` with an error
      because: no (-32603)
      last lines on stderr:
      | trouble
    hint: the agent reports a temporary error; try again later
    --- exit 1 ---
    "#);
}

#[test]
fn an_output_that_cannot_be_written() {
    let dir = TestDir::new();
    let text = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"lost"}}}}
                  {"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}"#;
    let agent = dir.scripted_agent(&[HELLO_V1, SESSION, text]);
    let mut command = dir.run(&agent, &["Hi"]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"
    error: cannot write to stdout
      because: No space left on device (os error 28)
    ");
    dir.assert_no_process_left();
}
