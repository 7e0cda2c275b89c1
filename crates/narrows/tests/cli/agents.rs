//! `narrows agents`: listing and probing agents.

use std::process::Command;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::test_dir::{MARK, TestDir};

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#;

/// Returns a `narrows agents` command with a temporary directory of its own.
fn agents(dir: &TestDir, args: &[&str]) -> Command {
    let temporary = dir.path().join("tmp");
    std::fs::create_dir_all(&temporary).expect("a directory");
    let mut command = dir.narrows(["agents"].iter().chain(args));
    command.env("HOME", dir.path()).env("TMPDIR", temporary);
    command
}

/// Runs `narrows agents` with a PATH that contains only `names`.
fn with_path(dir: &TestDir, names: &[&str], args: &[&str]) -> String {
    let bin = dir.path().join("bin");
    std::fs::create_dir_all(&bin).expect("a directory");
    for name in names {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_narrows"), bin.join(name)).expect("a link");
    }
    let mut command = agents(dir, args);
    command.env("PATH", bin);
    dir.output_of(command).replace(env!("CARGO_BIN_EXE_narrows"), "[NARROWS]")
}

/// Probes an agent, and checks that no process of it is left.
fn probe(dir: &TestDir, agent: &str, args: &[&str]) -> String {
    let told = dir.output_of(agents(dir, &[&["--probe", agent], args].concat()));
    let left: Vec<_> = std::fs::read_dir(dir.path().join("tmp")).expect("the file exists").collect();
    assert!(left.is_empty(), "{left:?}");
    told
}

/// Parses the JSON object of a successful output.
#[track_caller]
fn object(told: &str) -> Value {
    let text = told.strip_suffix("--- exit 0 ---\n").expect(told);
    serde_json::from_str(text).expect(told)
}

/// Returns the command of a [`TestDir::scripted_agent`] by its absolute path.
fn scripted(dir: &TestDir, answers: &[&str]) -> String {
    dir.scripted_agent(answers);
    let script = std::fs::read_to_string(dir.path().join("agent.sh")).expect("a script");
    let path = dir.file("agent.sh", &script.replace(">> got", &format!(">> {}/got", dir.path().display())));
    format!("sh {}", path.display())
}

#[test]
fn agents_are_listed_with_their_locations() {
    let dir = TestDir::new();
    let config = "
[agents.here]
command = 'one --acp \"a b\"'
[agents.gone]
command = ['two']
[agents.odd]
command = ['bin/three']
[agents.own]
command = 'narrows fake-agent echo'
[agents.elsewhere]
command = 'sh'
env = { PATH = '/nowhere' }
";
    dir.file("c.toml", config);
    dir.file("bin-three", "");
    assert_snapshot!(with_path(&dir, &["one", "sh"], &["--config", "c.toml"]), @r#"
    NAME       COMMAND                  FOUND
    here       one --acp 'a b'          [DIR]/bin/one
    gone       two                      not installed: there is no "two" in PATH
    odd        bin/three                not installed: there is no file "[DIR]/bin/three"
    own        narrows fake-agent echo  [NARROWS]
    elsewhere  sh                       not installed: there is no "sh" in PATH
    built-in   narrows acp              this program; it is used without --agent
    --- exit 0 ---
    "#);
    let listed = object(&with_path(&dir, &[], &["--config", "c.toml", "--json"]));
    let rows = listed["agents"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!(
        rows[0],
        json!({"name": "here", "command": ["one", "--acp", "a b"], "builtIn": false, "installed": true, "path": "[DIR]/bin/one"})
    );
    assert_eq!(
        rows[1],
        json!({"name": "gone", "command": ["two"], "builtIn": false, "installed": false,
            "problem": "there is no \"two\" in PATH", "searched": ["[DIR]/bin"]})
    );
    assert_eq!(rows[5]["builtIn"], true);
}

#[test]
fn without_agents_the_list_explains_how_to_add_one() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(agents(&dir, &[])), @r#"
    NAME      COMMAND      FOUND
    built-in  narrows acp  this program; it is used without --agent
    --- stderr ---
    no agent has a name yet; to give one a name, write in [DIR]/.config/narrows/narrows.toml:

      [agents.opencode]
      command = "opencode acp"
    --- exit 0 ---
    "#);
    dir.file("c.toml", "[agents.a]\ncomand = 'a'");
    assert_snapshot!(dir.output_of(agents(&dir, &["--config", "c.toml"])), @"
    NAME      COMMAND      FOUND
    a                      error: [DIR]/c.toml:2: unknown setting `comand` in [agents.a]
    built-in  narrows acp  this program; it is used without --agent
    --- exit 0 ---
    ");
}

#[test]
fn a_probe_lists_capabilities() {
    let dir = TestDir::new();
    let script = "name = 'mine'\nversion = '7'\nmodes = ['code', 'plan']\n[capabilities]\nload = false\nmcp_http = false\n[[turn]]\nsteps = []";
    let script = dir.file("mine.toml", script);
    dir.file(
        "c.toml",
        &format!("[agents.mine]\ncommand = ['narrows', 'fake-agent', '{}']", script.display()),
    );
    assert_snapshot!(probe(&dir, "mine", &["--config", "c.toml"]), @"
    agent     mine 7
    protocol  ACP version 1
    can       resume sessions, list sessions, close sessions, delete sessions, see images, hear audio, accept files with the prompt, start MCP servers
    cannot    load sessions, fork sessions, work in several directories, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    session   could be opened
    modes     code (now), plan
    --- exit 0 ---
    ");
}

#[test]
fn the_built_in_agent_is_probed_and_stores_nothing() {
    let dir = TestDir::new();
    let told = dir.output_of(agents(&dir, &["--probe", "--json"]));
    let report = object(&told);
    assert_eq!(report["agent"], json!({"name": "narrows", "version": "[VERSION]"}));
    assert_eq!((&report["protocol"], &report["loginNeeded"]), (&json!(1), &json!(false)));
    assert_eq!((&report["can"]["list"], &report["can"]["mcpSse"]), (&json!(true), &json!(false)));
    assert_eq!(report["session"]["models"]["current"], "demo");
    let commands = report["session"]["commands"].as_array().unwrap();
    assert!(commands.iter().any(|command| command["name"] == "compact"), "{report}");
    let mut sessions = dir.narrows(["sessions", "--all", "--json"]);
    sessions.env("HOME", dir.path());
    assert_eq!(object(&dir.output_of(sessions)), json!({"sessions": []}));
}

#[test]
fn a_probe_uses_the_requested_version() {
    let dir = TestDir::new();
    let report = object(&probe(&dir, "narrows fake-agent echo", &["--protocol", "2", "--json"]));
    assert_eq!((&report["protocol"], &report["agent"]["name"]), (&json!(2), &json!("echo")));
    assert_eq!(report["command"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_probe_never_logs_in() {
    let dir = TestDir::new();
    let hello = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":1,"authMethods":[
            {{"id":"key","name":"A key","type":"env_var","vars":[{{"name":"{MARK}"}}]}},
            {{"id":"other","name":"Another","type":"env_var","vars":[{{"name":"NOT_SET"}}]}},
            {{"id":"web","name":"The web","description":"Opens a browser"}},
            {{"id":"tty","name":"By hand","type":"terminal","args":["login"]}}]}}}}"#
    )
    .replace('\n', "");
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Authentication required"}}"#;
    let agent = scripted(&dir, &[&hello, refusal, "{}"]);
    assert_snapshot!(probe(&dir, &agent, &[]), @"
    agent     sh, which does not report its name
    protocol  ACP version 1
    can       start MCP servers
    cannot    resume sessions, load sessions, list sessions, fork sessions, close sessions, delete sessions, work in several directories, see images, hear audio, accept files with the prompt, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    login     A key, by NARROWS_TEST_MARK, set here
              Another, by NOT_SET, not set here
              The web, by the agent itself: Opens a browser
              By hand, by starting it in a terminal, with login after its command
    session   login needed
    --- exit 0 ---
    ");
    assert_eq!(dir.received().lines().count(), 2, "{}", dir.received());
    let report = object(&probe(&dir, &agent, &["--json"]));
    assert_eq!((&report["loginNeeded"], &report["session"]), (&json!(true), &Value::Null));
    assert_eq!(report["logins"][0]["variables"], json!([MARK]));
    assert_eq!(report["logins"][1]["missing"], json!(["NOT_SET"]));
    assert_eq!(report["logins"][3]["arguments"], json!(["login"]));
}

#[test]
fn older_agent_formats_are_shown() {
    let dir = TestDir::new();
    let session = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s","modes":{"currentModeId":"ask","availableModes":[{"id":"ask","name":"Ask"},{"id":"code","name":"Code"}]},"models":{"currentModelId":"big","availableModels":[{"modelId":"small","name":"Small"},{"modelId":"big","name":"Big"}]},"configOptions":[{"id":"effort","name":"Effort","category":"thought_level","type":"select","currentValue":"low","options":[{"value":"low","name":"Low"},{"value":"high","name":"High"}]},{"id":"fast","name":"Fast","type":"boolean","currentValue":true}]}}
        {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"plan","description":"Make a plan","input":{"hint":"what for"}},{"name":"clear","description":"Forget \u001b[2J everything"}]}}}"#;
    let agent = scripted(&dir, &[HELLO, session]);
    assert_snapshot!(probe(&dir, &agent, &[]), @r"
    agent     sh, which does not report its name
    protocol  ACP version 1
    can       start MCP servers
    cannot    resume sessions, load sessions, list sessions, fork sessions, close sessions, delete sessions, work in several directories, see images, hear audio, accept files with the prompt, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    session   could be opened
    models    small, big (now)
    modes     ask (now), code
    option    effort: low (now), high
    option    fast: true (now)
    commands  /plan <what for>: Make a plan
              /clear: Forget \u{1b}[2J everything
    --- exit 0 ---
    ");
}

#[test]
fn an_agent_without_sessions_is_described() {
    let dir = TestDir::new();
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no room"}}"#;
    let agent = scripted(&dir, &[HELLO, refusal]);
    assert_snapshot!(probe(&dir, &agent, &[]), @"
    agent     sh, which does not report its name
    protocol  ACP version 1
    can       start MCP servers
    cannot    resume sessions, load sessions, list sessions, fork sessions, close sessions, delete sessions, work in several directories, see images, hear audio, accept files with the prompt, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    session   could not be opened
    --- stderr ---
    error: the agent answered `session/new` with an error
      because: no room (-32603)
    --- exit 1 ---
    ");
    let told = probe(&dir, &agent, &["--json"]);
    let report: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!(report["error"]["kind"], "agent");
    assert_eq!(report["error"]["exitCode"], 1);
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
}

#[test]
fn a_failed_probe_has_a_reason() {
    let dir = TestDir::new();
    dir.file("c.toml", "[agents.gone]\ncommand = 'two --acp'");
    assert_snapshot!(with_path(&dir, &[], &["--probe", "gone", "--config", "c.toml"]), @r#"
    --- stderr ---
    error: cannot start the agent "gone", because of its program "two"
      because: not found in PATH
    hint: install the program, or use its path
    --- exit 5 ---
    "#);
    assert_snapshot!(probe(&dir, "./nothing here", &[]), @r#"
    --- stderr ---
    error: cannot start the agent "./nothing", because of its program "[DIR]/nothing"
      because: file not found
    --- exit 5 ---
    "#);
    assert_snapshot!(probe(&dir, "sh -c 'echo no key >&2; exit 3'", &[]), @"
    --- stderr ---
    error: the agent exited before it answered `initialize`: exited with status 3
      last lines on stderr:
      | no key
    --- exit 5 ---
    ");
    assert_snapshot!(probe(&dir, "sh -c 'read a; echo hello; read b'", &["--timeout", "2s"]), @"
    --- stderr ---
    error: the agent did not answer `initialize` within 2s
    hint: if the agent starts slowly, allow more time: --timeout 2m
    hint: 1 line of its output was not a protocol message: hello; check that it is an ACP agent; many programs need an argument such as `acp` or `--acp`
    --- exit 7 ---
    ");
    let told = probe(&dir, "'unclosed", &[]);
    assert!(told.contains("missing closing quote") && told.ends_with("--- exit 2 ---\n"), "{told}");
}

#[test]
fn an_interrupted_probe_leaves_no_process() {
    let dir = TestDir::new();
    let agent = scripted(&dir, &[HELLO]);
    let running = dir.start(agents(&dir, &["--probe", &agent]));
    dir.wait_for(|| {
        std::fs::read_to_string(dir.path().join("got")).is_ok_and(|got| got.contains("initialize"))
    });
    running.signal(Signal::INT);
    assert_snapshot!(running.finish(), @"
    --- stderr ---
    error: cancelled
    --- exit 130 ---
    ");
    assert!(std::fs::read_dir(dir.path().join("tmp")).unwrap().next().is_none());
}

#[test]
fn list_is_the_default_subcommand_and_json_prints_json() {
    let dir = TestDir::new();
    dir.file("c.toml", "[agents.a]\ncommand = \"narrows acp\"\n");
    let run = |args: &[&str]| dir.output_of(dir.narrows(args));
    assert_eq!(run(&["agents", "list", "--config", "c.toml"]), run(&["agents", "--config", "c.toml"]));
    let json = ["agents", "list", "--json", "--config", "c.toml"];
    assert_eq!(run(&json), run(&["agents", "--json", "--config", "c.toml"]));
    let deleted = ["sessions", "delete", "x", "--json", "--agent", "narrows fake-agent hello"];
    assert_eq!(
        run(&deleted).lines().next().map(|line| line.starts_with('{')),
        Some(true),
        "{}",
        run(&deleted)
    );
    assert_eq!(run(&["sessions", "list", "--json"]), run(&["sessions", "--json"]));
    assert!(run(&["fake-agent", "--list", "--json"]).starts_with("{\"scripts\":["));
    assert!(run(&["run", "--json", "Hello"]).starts_with('{'));
    assert!(run(&["audit", "keygen", "k", "--json"]).starts_with("{\"publicKey\":\"did:key:"));
    assert!(run(&["approve", "--list", "--json", "--socket", "none"]).starts_with("{\"pending\":[]}"));
}
