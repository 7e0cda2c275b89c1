//! `narrows run` with the built-in agent.

use insta::assert_snapshot;
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::test_dir::{MARK, TestDir};

const KEY: &str = "sk-test-51b0e2";

/// Returns `narrows run` without an agent.
fn run(dir: &TestDir, args: &[&str]) -> std::process::Command {
    dir.narrows(["run", "--pass-env", MARK].iter().chain(args))
}

fn server(replies: impl IntoIterator<Item = Reply>) -> ModelServer {
    ModelServer::start(Plan::new(replies).models(Reply::models(&["m"])))
}

#[test]
fn a_required_model_must_be_listed_by_the_endpoint() {
    let dir = TestDir::new();
    let server = ModelServer::start(
        Plan::new([Reply::text("Yes."), Reply::text("Yes.")])
            .models(Reply::models(&["m", "llama3.2:latest"])),
    );
    let url = server.base_url();
    let output = |model: &str| {
        dir.output_of(run(&dir, &["--base-url", &url, "--require-model", "--model", model, "Hi"]))
    };
    assert_eq!(output("m"), "Yes.\n--- exit 0 ---\n");
    assert_eq!(output("llama3.2"), "Yes.\n--- exit 0 ---\n");
    assert_snapshot!(output("nosuch"), @r#"
    --- stderr ---
    error: model "nosuch" not found: the endpoint "flags" does not list it
    hint: available models: m, llama3.2:latest
    --- exit 1 ---
    "#);
}

#[test]
fn the_demo_model_satisfies_a_required_model() {
    let dir = TestDir::new();
    let output = |args: &[&str]| {
        let args =
            [&["--base-url", "builtin:demo", "--require-model"], args, &["Hello, who are you?"]].concat();
        dir.output_of(run(&dir, &args))
    };
    for args in [&[][..], &["--model", "demo"]] {
        let told = output(args);
        assert!(told.starts_with("I am the demo model") && told.ends_with("--- exit 0 ---\n"), "{told}");
    }
    assert_snapshot!(output(&["--model", "nosuch"]), @r#"
    --- stderr ---
    error: model "nosuch" not found: the endpoint "flags" does not list it
    hint: available models: demo
    --- exit 1 ---
    "#);
}

#[test]
fn a_model_cannot_be_required_of_an_endpoint_that_lists_none() {
    let dir = TestDir::new();
    let server = ModelServer::start(Plan::new([]).models(Reply::refused(404, "no such page")));
    let url = server.base_url();
    let args = ["--base-url", &url, "--require-model", "--model", "m", "Hi"];
    assert_snapshot!(dir.output_of(run(&dir, &args)).replace(&url, "[URL]"), @r#"
    --- stderr ---
    error: cannot check the model "m": the endpoint "flags" lists no models
      because: http (HTTP 404) from [URL]/models
    hint: remove --require-model to use the model unchecked
    --- exit 1 ---
    "#);
}

#[test]
fn an_unused_endpoint_causes_no_warning() {
    let dir = TestDir::new();
    let server = server([Reply::text("Hello")]);
    let used = format!("[endpoint.local]\nbase_url = '{}'\nmodel = 'm'\n", server.base_url());
    let unused = "[endpoint.work]\nbase_url = 'https://h/v1'\nmodel = 'm'\nkey_env = 'NOT_SET_HERE'\n";
    let other = "[endpoint.other]\nbase_url = 'nothing'\nmodel = 'm'\n";
    dir.file("c.toml", &format!("{used}{unused}{other}"));
    assert_eq!(dir.output_of(run(&dir, &["--config", "c.toml", "Hi"])), "Hello\n--- exit 0 ---\n");
    let told = dir.output_of(run(&dir, &["--config", "c.toml", "--endpoint", "work", "Hi"]));
    assert!(told.contains("NOT_SET_HERE") && told.ends_with("--- exit 2 ---\n"), "{told}");
}

#[test]
fn without_configuration_the_demo_runs() {
    let dir = TestDir::new();
    let output = run(&dir, &["Hello, who are you?"]).output().unwrap();
    dir.assert_no_process_left();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stdout.starts_with("I am the demo model of Narrows"), "{stdout}");
    // The rest of the line depends on what runs on this machine.
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("no model is configured, using the built-in demo model; "), "{stderr}");
    assert!(
        stderr.contains("OPENAI_BASE_URL") || stderr.contains("--base-url http://localhost:"),
        "{stderr}"
    );
}

#[test]
fn a_chosen_demo_prints_no_notice() {
    let dir = TestDir::new();
    let told = dir.output_of(run(&dir, &["--base-url", "builtin:demo", "Hello"]));
    assert!(told.starts_with("I am the demo model of Narrows"), "{told}");
    assert!(told.ends_with("--- exit 0 ---\n") && !told.contains("stderr"), "{told}");
}

#[test]
fn an_endpoint_is_named_by_flags_variables_or_file() {
    let dir = TestDir::new();
    let server = server([Reply::text("Hello world")]);
    let expected = "Hello world\n--- exit 0 ---\n";
    let url = server.base_url();
    assert_eq!(dir.output_of(run(&dir, &["--base-url", &url, "--model", "m", "Hi"])), expected);
    let mut command = run(&dir, &["Hi"]);
    command.env("OPENAI_BASE_URL", &url).env("OPENAI_API_KEY", KEY);
    assert_eq!(dir.output_of(command), expected);
    // Paths are relative to the current directory, not to that of the agent.
    std::fs::create_dir(dir.path().join("work")).unwrap();
    dir.file("c.toml", &format!("[endpoint.a]\nbase_url = '{url}'\nmodel = 'm'\nkey_env = 'ODD_NAME'\n"));
    let mut command = run(&dir, &["--config", "c.toml", "--cwd", "work", "Hi"]);
    command.env("ODD_NAME", KEY);
    assert_eq!(dir.output_of(command), expected);
    let keys: Vec<Option<String>> = server
        .seen()
        .iter()
        .filter(|seen| seen.method == "POST")
        .map(|seen| seen.header("authorization").map(str::to_owned))
        .collect();
    let key = Some(format!("Bearer {KEY}"));
    assert_eq!(keys, [None, key.clone(), key]);
}

#[test]
fn a_model_failure_has_its_own_error_code() {
    let dir = TestDir::new();
    let server = server([Reply::refused(401, "no such key")]);
    let url = server.base_url();
    let told = dir.output_of(run(&dir, &["--base-url", &url, "--model", "m", "Hi"])).replace(&url, "[URL]");
    assert_snapshot!(told, @"
    --- stderr ---
    error: the model at [URL]/chat/completions did not answer (HTTP 401)
      because: no such key
    hint: check the API key: OPENAI_API_KEY, or `key` in narrows.toml
    --- exit 1 ---
    ");
    for protocol in ["1", "2"] {
        let args = ["--base-url", &url, "--output", "json", "--protocol", protocol, "Hi"];
        let output = run(&dir, &args).output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(output.status.code(), Some(1), "{object}");
        let endpoint = &object["error"]["endpoint"];
        assert_eq!((&endpoint["kind"], &endpoint["status"]), (&json!("auth"), &json!(401)), "{object}");
        assert_eq!(endpoint["url"], format!("{url}/chat/completions"));
        assert_eq!(object["text"], "");
    }
}

#[test]
fn an_agent_without_a_model_is_an_error() {
    let dir = TestDir::new();
    let told = dir.output_of(dir.run("narrows acp --no-store", &["Hi"]));
    assert!(told.contains("error: No model endpoint is configured"), "{told}");
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
}

#[test]
fn settings_are_checked_before_anything_is_started() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(run(&dir, &["--model", "m", "Hi"])), @"
    --- stderr ---
    error: model options are set, but no endpoint is configured
    hint: add --base-url URL, OPENAI_BASE_URL, or an endpoint in narrows.toml
    --- exit 2 ---
    ");
    assert_snapshot!(dir.output_of(dir.run("cat", &["--base-url", "http://h/v1", "Hi"])), @"
    --- stderr ---
    error: --base-url applies to the built-in agent, but --agent selects another
    hint: remove this flag or --agent; other agents have their own settings
    --- exit 2 ---
    ");
    let mut command = run(&dir, &["Hi"]);
    command.env("OPENAI_MAX_TOKENS", "many");
    assert_snapshot!(dir.output_of(command), @r#"
    --- stderr ---
    error: OPENAI_MAX_TOKENS: "many" cannot be used: must be a whole number above 0
    hint: correct or unset OPENAI_MAX_TOKENS
    --- exit 2 ---
    "#);
}

#[test]
fn a_session_is_stored_and_resumed() {
    let dir = TestDir::new();
    let output = |args: &[&str]| {
        let mut command = run(&dir, &[&["--base-url", "builtin:demo"], args].concat());
        command.env("HOME", dir.path());
        dir.output_of(command)
    };
    assert_snapshot!(output(&["--continue", "Hi"]), @"
    --- stderr ---
    error: the agent has no sessions in [DIR]
    hint: remove --continue to open a new session
    --- exit 2 ---
    ");
    let id = |told: String| {
        let summary: Value = serde_json::from_str(told.lines().next().expect("a line")).expect("JSON");
        summary["sessionId"].as_str().expect("an id").to_owned()
    };
    let first = id(output(&["--output", "json", "Hi"]));
    assert_eq!(id(output(&["--output", "json", "--continue", "Again"])), first);
    assert_eq!(id(output(&["--output", "json", "--resume", &first, "Again"])), first);
    assert_ne!(id(output(&["--output", "json", "--fork", &first, "Again"])), first);
}

/// The client decides about the command where it runs it, with its sandbox.
#[tokio::test]
async fn the_built_in_agent_runs_sandboxed_commands() {
    let is_held = narrows_process::Sandbox::support().await.confined().files;
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        dir.file("here.txt", "");
        let demo = ["--base-url", "builtin:demo", "--protocol", protocol];
        let told = dir.output_of(run(&dir, &[&demo[..], &["run ls"]].concat()));
        if is_held {
            assert!(told.contains("here.txt") && told.ends_with("--- exit 0 ---\n"), "{protocol}: {told}");
        } else {
            assert!(told.ends_with("--- exit 9 ---\n"), "{protocol}: {told}");
        }
        // Without a sandbox the command needs permission, and there is no user.
        let told = dir.output_of(run(&dir, &[&demo[..], &["--no-sandbox", "run ls"]].concat()));
        assert!(told.contains("no sandbox") && told.ends_with("--- exit 9 ---\n"), "{protocol}: {told}");
        assert!(!told.contains("here.txt"), "{protocol}: {told}");
    }
    let dir = TestDir::new();
    dir.file("here.txt", "");
    let told = dir.output_of(dir.run("narrows acp --base-url builtin:demo --no-store", &["run ls"]));
    assert!(!is_held || told.contains("here.txt") && told.ends_with("--- exit 0 ---\n"), "{told}");
}

/// The built-in agent changes files and runs commands only through its client, however it is started.
#[test]
fn the_built_in_agent_needs_no_mode_for_low_access() {
    let dir = TestDir::new();
    let agent = "narrows acp --base-url builtin:demo --no-store";
    let told = dir.output_of(dir.run(agent, &["--access", "low", "Hello, who are you?"]));
    assert!(!told.contains("--- stderr ---") && told.ends_with("--- exit 0 ---\n"), "{told}");
}

/// A call of an MCP server that runs locally is decided once, by rules that name server and tool.
#[test]
fn a_denied_mcp_tool_has_a_useful_hint() {
    let dir = TestDir::new();
    dir.mcp_server("a.b", "poke");
    for protocol in ["1", "2"] {
        let server =
            server((0..2).flat_map(|_| [Reply::tool_call("a_b__poke", json!({})), Reply::text("Done.")]));
        let url = server.base_url();
        let args = ["--base-url", &url, "--model", "m", "--mcp", "mcp.json", "--protocol", protocol];
        let told = dir.output_of(run(&dir, &[&args[..], &["poke it"]].concat()));
        assert!(told.contains("denied: Use poke of a.b") && told.ends_with("--- exit 9 ---\n"), "{told}");
        assert!(told.contains("`server = \"a.b\"` and `tool = \"poke\"`"), "{told}");
        dir.file("p.toml", "[[rule]]\neffect = 'allow'\nserver = 'a.b'\ntool = 'poke'\n");
        let told = dir.output_of(run(&dir, &[&args[..], &["--policy", "p.toml", "poke it"]].concat()));
        assert!(told.contains("Done.") && told.ends_with("--- exit 0 ---\n"), "{told}");
    }
}
