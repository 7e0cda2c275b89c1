//! `narrows acp`: start, end and configuration of the built-in agent.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;

use insta::assert_snapshot;
use narrows_testkit::model::{ModelServer, Plan, Reply};
use rustix::process::Signal;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::serve_support::{Governed, READ};
use crate::stdio_client::StdioClient;
use crate::test_dir::{MARK, TestDir, terminal};

/// A key that must never appear in output.
const KEY: &str = "sk-test-3f9a7c";

fn server(replies: impl IntoIterator<Item = Reply>) -> ModelServer {
    ModelServer::start(Plan::new(replies).models(Reply::models(&["first", "second"])))
}

#[test]
fn the_agent_answers_and_exits_at_end_of_input() {
    let dir = TestDir::new();
    let ended = StdioClient::initialized(&dir, dir.narrows(["acp", "--no-store"])).end();
    assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn an_agent_started_in_a_terminal_prints_how_to_use_it() {
    #[track_caller]
    fn check(dir: &TestDir, args: &[&str], expected: &str) {
        let (mut terminal, keyboard) = terminal();
        let mut command = dir.narrows(args);
        command.stdin(keyboard).env("HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
        let running = dir.start(command);
        // Ctrl-D. The terminal waits until it is read.
        terminal.write_all(b"\x04").unwrap();
        let told = running.finish();
        let hint =
            told.split(" in a terminal: ").nth(1).and_then(|rest| rest.split(" (Ctrl-D exits)").next());
        assert_eq!(hint, Some(expected), "{told}");
        // The shell and `--agent` read the arguments as they were given.
        let words = shlex::split(expected).expect("words");
        if let ["narrows", "run", "--agent", agent, "Hello"] =
            *words.iter().map(String::as_str).collect::<Vec<_>>()
        {
            let agent = shlex::split(agent).expect("words");
            assert_eq!(agent.iter().map(String::as_str).collect::<Vec<_>>(), [&["narrows"], args].concat());
        }
    }
    let dir = TestDir::new();
    check(&dir, &["acp"], "narrows run Hello");
    check(
        &dir,
        &["acp", "--base-url", "http://localhost:1/v1", "--model", "a b", "--no-store"],
        "narrows run --agent \"narrows acp --base-url http://localhost:1/v1 --model 'a b' --no-store\" Hello",
    );
    check(&dir, &["fake-agent", "hello"], "narrows run --agent 'narrows fake-agent hello' Hello");
    let governed = Governed::bridge(READ);
    std::fs::create_dir(governed.dir.path().join("a b")).expect("a directory");
    std::fs::rename(governed.root(), governed.dir.path().join("a b/ws")).expect("a directory");
    check(
        &governed.dir,
        &["serve", "a b/ws/ACP.md", "--deadline", "silence=20m"],
        "narrows run --agent \"narrows serve 'a b/ws/ACP.md' --deadline 'silence=20m'\" Hello",
    );
}

#[test]
fn the_agent_exits_during_a_turn() {
    let dir = TestDir::new();
    let server = server([Reply::hang()]);
    let mut command = dir.narrows(["acp", "--no-store", "--model", "m", "--base-url", &server.base_url()]);
    command.env("OPENAI_API_KEY", KEY);
    let mut stdio = StdioClient::initialized(&dir, command);
    let session = stdio.session(&json!([]));
    let prompt = json!([{"type": "text", "text": "Hi"}]);
    stdio.send("session/prompt", &json!({"sessionId": session, "prompt": prompt}));
    dir.wait_for(|| server.seen().iter().any(|seen| seen.method == "POST"));
    assert_eq!(stdio.end().status.code(), Some(0));
}

#[test]
fn a_signal_ends_the_agent_and_its_servers() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let dir = TestDir::new();
        let mut stdio =
            StdioClient::initialized(&dir, dir.narrows(["acp", "--no-store", "--base-url", "builtin:demo"]));
        let script = "echo $$ > started; exec sleep 1000";
        let mark = json!([{"name": MARK, "value": dir.mark()}]);
        stdio.session(&json!([{"name": "slow", "command": "sh", "args": ["-c", script], "env": mark}]));
        dir.wait_for(|| dir.path().join("started").exists());
        stdio.signal(signal);
        let ended = stdio.wait();
        assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{}", ended.stderr);
    }
}

#[test]
fn unknown_flags_are_ignored() {
    let dir = TestDir::new();
    let args = ["--what", "acp", "--accept-hooks", "--modle=x", "--no-store", "word"];
    let ended = StdioClient::initialized(&dir, dir.narrows(args)).end();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let said =
        "unknown arguments ignored arguments=--what --accept-hooks --modle=… (did you mean --model?) …";
    assert!(ended.stderr.trim_end().ends_with(said), "{}", ended.stderr);
    // Global flags are known at any position.
    let dir = TestDir::new();
    let ended = StdioClient::initialized(&dir, dir.narrows(["--log", "debug", "acp", "--no-store"])).end();
    assert_eq!(ended.status.code(), Some(0));
    assert!(!ended.stderr.contains("ignored"), "{}", ended.stderr);
}

#[test]
fn invalid_settings_are_reported_at_start() {
    #[track_caller]
    fn output(args: &[&str], variables: &[(&str, &str)], file: &str) -> String {
        let dir = TestDir::new();
        dir.file("c.toml", file);
        let mut command = dir.narrows(["acp", "--no-store"].iter().chain(args));
        command.envs(variables.iter().copied());
        dir.output_of(command)
    }
    assert_snapshot!(output(&[], &[("OPENAI_API_KEY", KEY), ("OPENAI_MAX_TOKENS", "7x")], ""), @r#"
    --- stderr ---
    error: OPENAI_MAX_TOKENS: "7x" cannot be used: must be a whole number above 0
    hint: correct or unset OPENAI_MAX_TOKENS
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&[], &[("OPENAI_TEMPERATURE", "hot")], ""), @r#"
    --- stderr ---
    error: OPENAI_TEMPERATURE: "hot" cannot be used: must be a number, 0 or above
    hint: correct or unset OPENAI_TEMPERATURE
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--config", "c.toml"], &[], "\n[endpoint.a]\nmodle = 'x'\n"), @"
    --- stderr ---
    error: [DIR]/c.toml:3: unknown setting `modle` in [endpoint.a]
    hint: did you mean `model`?
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["--config", "c.toml", "--endpoint", "b"], &[], "[endpoint.a]\nbase_url = 'http://h'\nmodel = 'm'"), @r#"
    --- stderr ---
    error: --endpoint: unknown endpoint "b"
    hint: did you mean "a"?
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--config", "none.toml"], &[], ""), @r#"
    --- stderr ---
    error: --config: cannot read "none.toml": No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--base-url", "ftp://h"], &[], ""), @r#"
    --- stderr ---
    error: --base-url: the endpoint "flags" cannot be used: `base_url`: must begin with http:// or https://
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&[], &[("OPENAI_BASE_URL", "nowhere")], ""), @r#"
    --- stderr ---
    error: OPENAI_BASE_URL: the endpoint "env" cannot be used: `base_url`: is not a URL: relative URL without a base
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&[], &[("OPENAI_API_KEY", "a\nb")], ""), @r#"
    --- stderr ---
    error: OPENAI_API_KEY: the endpoint "env" cannot be used: `key`: has characters that a header cannot carry
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&[], &[("OPENAI_API_KEY", KEY), ("OPENAI_MODEL", "default")], ""), @r#"
    --- stderr ---
    error: OPENAI_MODEL: "default" cannot be used: `default` is reserved: clients send it if no model is chosen; use the id of a model of the endpoint
    hint: correct or unset OPENAI_MODEL
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--config", "c.toml"], &[], "[endpoint.a]\nbase_url = 'http://h'\nmodel = 'default'"), @r#"
    --- stderr ---
    error: [DIR]/c.toml:3: `endpoint.a.model` cannot be "default": `default` is reserved: clients send it if no model is chosen; use the id of a model of the endpoint
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--model", "default"], &[], ""), @"
    --- stderr ---
    error: invalid value 'default' for '--model <ID>': `default` is reserved: clients send it if no model is chosen; use the id of a model of the endpoint

    For more information, try '--help'.
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["--ca-file", "none.pem", "--base-url", "https://h"], &[], ""), @r#"
    --- stderr ---
    error: --ca-file: the endpoint "flags" cannot be used: `ca_file`: none.pem: No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--max-tokens", "none"], &[], ""), @"
    --- stderr ---
    error: invalid value 'none' for '--max-tokens <TOKENS>': must be a whole number above 0

    For more information, try '--help'.
    --- exit 2 ---
    ");
}

#[test]
fn files_of_the_workspace_configure_nothing() {
    let dir = TestDir::new();
    for name in ["narrows.toml", ".narrows.toml"] {
        dir.file(name, "[endpoint.evil]\nbase_url = 'http://evil.example'\nmodel = 'm'\n");
    }
    let mut stdio = StdioClient::initialized(&dir, dir.narrows(["acp", "--no-store"]));
    let session = stdio.session(&json!([]));
    let answer = stdio.prompt(&session, "Hi");
    assert_eq!(answer["result"]["_meta"]["narrows/error"]["kind"], "unconfigured", "{answer}");
    assert_eq!(stdio.end().status.code(), Some(0));
}

#[test]
fn the_six_variables_configure_the_request() {
    let dir = TestDir::new();
    let server = server([Reply::text("Hello world")]);
    let mut command = dir.narrows(["acp", "--no-store"]);
    command.env("OPENAI_BASE_URL", format!("{}/", server.base_url())).env("OPENAI_API_KEY", KEY);
    command.env("OPENAI_MODEL", "second").env("OPENAI_SYSTEM_PROMPT", "Be brief.");
    command.env("OPENAI_MAX_TOKENS", "77").env("OPENAI_TEMPERATURE", "0.5");
    command.env("HTTP_PROXY", "http://127.0.0.1:9").env("ALL_PROXY", "http://127.0.0.1:9");
    let mut stdio = StdioClient::initialized(&dir, command);
    let session = stdio.session(&json!([]));
    let answer = stdio.prompt(&session, "Hi");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(stdio.agent_text(), "Hello world");
    assert_eq!(stdio.end().status.code(), Some(0));
    let seen = first_request(&server);
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!((&seen.body["model"], &seen.body["temperature"]), (&json!("second"), &json!(0.5)));
    assert_eq!(seen.body["max_tokens"], 77);
    assert_eq!(seen.messages()[0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(seen.messages()[1], json!({"role": "user", "content": "Hi"}));
}

fn first_request(server: &ModelServer) -> narrows_testkit::model::Seen {
    server.seen().into_iter().find(|seen| seen.method == "POST").expect("the model was asked")
}

#[test]
fn an_empty_key_is_not_sent() {
    let dir = TestDir::new();
    let server = server([Reply::text("Hello")]);
    let mut command = dir.narrows(["acp", "--no-store"]);
    command.env("OPENAI_BASE_URL", server.base_url()).env("OPENAI_API_KEY", "");
    let mut stdio = StdioClient::initialized(&dir, command);
    let session = stdio.session(&json!([]));
    stdio.prompt(&session, "Hi");
    stdio.end();
    let seen = first_request(&server);
    assert_eq!((seen.header("authorization"), seen.header("api-key")), (None, None));
}

#[test]
fn flags_and_file_configure_the_request() {
    let dir = TestDir::new();
    let server = server([Reply::text("Hello")]);
    let file = format!(
        "[endpoint.a]\nbase_url = '{}'\nmodel = 'm'\nkey_env = 'A_KEY'\nheaders = {{ X-A = '1', X-B = '2' }}\n\
         query = {{ v = '1' }}\nmax_tokens = 5\n",
        server.base_url()
    );
    dir.file("c.toml", &file);
    let args = ["acp", "--no-store", "--config", "c.toml", "--header", "X-B: 3", "--query", "w=2"];
    let mut command = dir.narrows(args.iter().chain(&["--max-tokens", "6"]));
    command.env("A_KEY", KEY);
    let mut stdio = StdioClient::initialized(&dir, command);
    let session = stdio.session(&json!([]));
    stdio.prompt(&session, "Hi");
    let ended = stdio.end();
    assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""));
    let seen = first_request(&server);
    assert_eq!((seen.header("x-a"), seen.header("x-b")), (Some("1"), Some("3")));
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!(seen.query, "v=1&w=2");
    assert_eq!(seen.body["max_tokens"], 6);
}

#[test]
fn a_key_and_a_prompt_are_in_no_log() {
    let dir = TestDir::new();
    let wrong = json!({"error": {"message": format!("Incorrect API key provided: {KEY}"), "code": "invalid_api_key"}});
    let server = server([Reply::text("an answer nobody logs"), Reply::error(401, &wrong)]);
    let args = ["--log", "trace", "acp", "--no-store", "--header", "X-Key: other-secret-41"];
    let mut command = dir.narrows(args);
    command.env("OPENAI_BASE_URL", server.base_url()).env("OPENAI_API_KEY", KEY);
    let mut stdio = StdioClient::initialized(&dir, command);
    let session = stdio.session(&json!([]));
    let mut answers = vec![stdio.prompt(&session, "a prompt nobody logs")];
    answers.push(stdio.prompt(&session, "another prompt nobody logs"));
    let shown =
        Value::from(std::mem::take(&mut stdio.updates)).to_string() + &Value::from(answers).to_string();
    let ended = stdio.end();
    assert!(ended.stderr.contains("TRACE"), "{}", ended.stderr);
    for secret in [KEY, "other-secret-41"] {
        assert!(!ended.stderr.contains(secret), "{}", ended.stderr);
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(!ended.stderr.contains("nobody logs"), "{}", ended.stderr);
}

#[test]
fn a_model_failure_is_reported_in_the_chosen_form() {
    let dir = TestDir::new();
    let server = server([Reply::refused(401, "no such key")]);
    for (form, is_error) in [("text", false), ("rpc", true)] {
        let mut command = dir.narrows(["acp", "--no-store", "--base-url", &server.base_url()]);
        command.env("NARROWS_ERRORS", form);
        let mut stdio = StdioClient::initialized(&dir, command);
        let session = stdio.session(&json!([]));
        let answer = stdio.prompt(&session, "Hi");
        assert_eq!(answer["error"]["code"] == -32000, is_error, "{answer}");
        assert_eq!(stdio.agent_text().starts_with("Authentication error (HTTP 401) calling "), !is_error);
        stdio.end();
    }
}

#[test]
fn sessions_are_stored_in_the_data_directory() {
    let dir = TestDir::new();
    let mut command = dir.narrows(["acp", "--base-url", "builtin:demo"]);
    command.env("NARROWS_DATA_DIR", dir.path().join("kept"));
    let mut stdio = StdioClient::initialized(&dir, command);
    let session = stdio.session(&json!([]));
    stdio.prompt(&session, "Hi");
    assert_eq!(stdio.end().stderr, "");
    let kept = dir.path().join("kept").read_dir().expect("a directory").count();
    assert!(kept > 0);
    let args = ["acp", "--base-url", "builtin:demo", "--data-dir", "kept"];
    let mut stdio = StdioClient::initialized(&dir, dir.narrows(args));
    let answer =
        stdio.call("session/load", &json!({"sessionId": session, "cwd": dir.path(), "mcpServers": []}));
    assert!(answer["result"].is_object(), "{answer}");
    assert!(!stdio.updates.is_empty());
    stdio.end();
}

#[test]
fn without_a_data_directory_sessions_are_not_stored() {
    let dir = TestDir::new();
    let ended = StdioClient::initialized(&dir, dir.narrows(["acp"])).end();
    assert_eq!(ended.status.code(), Some(0));
    let said = "sessions are not stored: neither XDG_DATA_HOME nor HOME is set; use --data-dir or --no-store";
    assert!(ended.stderr.trim_end().ends_with(said), "{}", ended.stderr);
}

#[test]
fn an_unknown_host_is_replaced_with_a_notice() {
    let dir = TestDir::new();
    let mut command = dir.narrows(["acp", "--no-store"]);
    command.env("OPENAI_BASE_URL", "https://eu-west-1.bedrock.amazonaws.com/openai/v1");
    let ended = StdioClient::initialized(&dir, command).end();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("bedrock-runtime.eu-west-1.amazonaws.com"), "{}", ended.stderr);
}

fn limit_files(stdio: &StdioClient<'_>, current: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(stdio.pid()).expect("a pid"));
    prlimit(pid, Resource::Fsize, Rlimit { current, maximum: None }).expect("an own process");
}

/// Returns the prompts of a stored session.
fn stored(dir: &TestDir, args: [&str; 5], session: &str) -> Vec<String> {
    let mut stdio = StdioClient::initialized(dir, dir.narrows(args));
    let answer =
        stdio.call("session/load", &json!({"sessionId": session, "cwd": dir.path(), "mcpServers": []}));
    assert!(answer["result"].is_object(), "{answer}");
    let updates = stdio.updates.iter().map(|update| &update["params"]["update"]);
    let asked = updates.filter(|update| update["sessionUpdate"] == "user_message_chunk");
    let asked = asked.filter_map(|update| update["content"]["text"].as_str()).map(str::to_owned).collect();
    stdio.end();
    asked
}

/// A file size limit has the same effect on a program as a full disk.
#[test]
fn turns_are_stored_once_the_disk_has_room() {
    let dir = TestDir::new();
    let args = ["acp", "--base-url", "builtin:demo", "--data-dir", "kept"];
    // The failed turns are stored with the next turn, or at the latest when the agent ends.
    for more in [&["fourth"][..], &[]] {
        let mut stdio = StdioClient::initialized(&dir, dir.narrows(args));
        let session = stdio.session(&json!([]));
        stdio.prompt(&session, "first");
        limit_files(&stdio, Some(0));
        for words in ["second", "third"] {
            stdio.updates.clear();
            assert_eq!(stdio.prompt(&session, words)["result"]["stopReason"], "end_turn");
            assert!(
                format!("{:?}", stdio.updates).contains("could not be stored yet"),
                "{:?}",
                stdio.updates
            );
        }
        limit_files(&stdio, None);
        for words in more {
            stdio.updates.clear();
            stdio.prompt(&session, words);
            assert!(
                !format!("{:?}", stdio.updates).contains("could not be stored yet"),
                "{:?}",
                stdio.updates
            );
        }
        assert_eq!(stdio.end().status.code(), Some(0));
        assert_eq!(stored(&dir, args, &session), [&["first", "second", "third"], more].concat());
    }
}

#[test]
fn unstored_turns_are_stored_before_a_signal_ends_the_agent() {
    let dir = TestDir::new();
    let args = ["acp", "--base-url", "builtin:demo", "--data-dir", "kept"];
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut stdio = StdioClient::initialized(&dir, dir.narrows(args));
        let session = stdio.session(&json!([]));
        limit_files(&stdio, Some(0));
        stdio.prompt(&session, "first");
        limit_files(&stdio, None);
        stdio.signal(signal);
        assert_eq!(stdio.wait().status.signal(), Some(signal.as_raw()));
        assert_eq!(stored(&dir, args, &session), ["first"]);
    }
}

#[test]
fn closed_sessions_are_stored_once_the_disk_has_room() {
    let dir = TestDir::new();
    let args = ["acp", "--base-url", "builtin:demo", "--data-dir", "kept"];
    // With and without free space when the session is opened. Its turns are stored when it is closed, when it
    // is loaded again, and at the end.
    for is_full in [false, true] {
        for loads in [false, true] {
            let mut stdio = StdioClient::initialized(&dir, dir.narrows(args));
            stdio.session(&json!([]));
            limit_files(&stdio, is_full.then_some(0));
            let session = stdio.session(&json!([]));
            limit_files(&stdio, Some(0));
            stdio.prompt(&session, "first");
            stdio.call("session/close", &json!({"sessionId": session}));
            if loads {
                let params = json!({"sessionId": session, "cwd": dir.path(), "mcpServers": []});
                assert!(stdio.call("session/load", &params)["result"].is_object());
                stdio.prompt(&session, "second");
            }
            limit_files(&stdio, None);
            assert_eq!(stdio.end().status.code(), Some(0));
            let expected = if loads { &["first", "second"][..] } else { &["first"] };
            assert_eq!(stored(&dir, args, &session), expected, "{is_full} {loads}");
        }
    }
}
