//! `narrows agents`: which there are, and what one of them can do.

use std::process::Command;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{MARK, Place};

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#;

/// `narrows agents` with these arguments, and with a temporary directory of its own.
fn agents(place: &Place, args: &[&str]) -> Command {
    let temporary = place.path().join("tmp");
    std::fs::create_dir_all(&temporary).expect("a directory");
    let mut command = place.narrows(["agents"].iter().chain(args));
    command.env("HOME", place.path()).env("TMPDIR", temporary);
    command
}

/// The same with a PATH in which there is nothing but `names`.
fn among(place: &Place, names: &[&str], args: &[&str]) -> String {
    let bin = place.path().join("bin");
    std::fs::create_dir_all(&bin).expect("a directory");
    for name in names {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_narrows"), bin.join(name)).expect("a link");
    }
    let mut command = agents(place, args);
    command.env("PATH", bin);
    place.told(command).replace(env!("CARGO_BIN_EXE_narrows"), "[NARROWS]")
}

/// What a probe of this agent says. Nothing of it is left.
fn probe(place: &Place, agent: &str, args: &[&str]) -> String {
    let told = place.told(agents(place, &[&["--probe", agent], args].concat()));
    let left: Vec<_> = std::fs::read_dir(place.path().join("tmp")).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
    told
}

/// The JSON object of an output that ends well.
#[track_caller]
fn object(told: &str) -> Value {
    let text = told.strip_suffix("--- exit 0 ---\n").expect(told);
    serde_json::from_str(text).expect(told)
}

/// An agent as [`Place::scripted`] makes them, wherever it is started.
fn scripted(place: &Place, answers: &[&str]) -> String {
    place.scripted(answers);
    let script = std::fs::read_to_string(place.path().join("agent.sh")).expect("a script");
    let path =
        place.file("agent.sh", &script.replace(">> got", &format!(">> {}/got", place.path().display())));
    format!("sh {}", path.display())
}

#[test]
fn agents_are_listed_with_where_they_are() {
    let place = Place::new();
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
    place.file("c.toml", config);
    place.file("bin-three", "");
    assert_snapshot!(among(&place, &["one", "sh"], &["--config", "c.toml"]), @r#"
    NAME       COMMAND                  FOUND
    here       one --acp 'a b'          [DIR]/bin/one
    gone       two                      not installed: there is no "two" in PATH
    odd        bin/three                not installed: there is no file "[DIR]/bin/three"
    own        narrows fake-agent echo  [NARROWS]
    elsewhere  sh                       not installed: there is no "sh" in PATH
    built-in   narrows acp              this program; it is used without --agent
    --- exit 0 ---
    "#);
    let listed = object(&among(&place, &[], &["--config", "c.toml", "--json"]));
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
fn who_has_none_is_told_how_to_add_one() {
    let place = Place::new();
    assert_snapshot!(place.told(agents(&place, &[])), @r#"
    NAME      COMMAND      FOUND
    built-in  narrows acp  this program; it is used without --agent
    --- stderr ---
    no agent has a name yet; to give one a name, write in [DIR]/.config/narrows/narrows.toml:

      [agents.opencode]
      command = "opencode acp"
    --- exit 0 ---
    "#);
    place.file("c.toml", "[agents.a]\ncomand = 'a'");
    assert_snapshot!(place.told(agents(&place, &["--config", "c.toml"])), @"
    NAME      COMMAND      FOUND
    a                      error: [DIR]/c.toml:2: there is no setting `comand` in [agents.a]
    built-in  narrows acp  this program; it is used without --agent
    --- exit 0 ---
    ");
}

#[test]
fn a_probe_tells_what_an_agent_can_do() {
    let place = Place::new();
    let script = "name = 'mine'\nversion = '7'\nmodes = ['code', 'plan']\n[capabilities]\nload = false\nmcp_http = false\n[[turn]]\nsteps = []";
    let script = place.file("mine.toml", script);
    place.file(
        "c.toml",
        &format!("[agents.mine]\ncommand = ['narrows', 'fake-agent', '{}']", script.display()),
    );
    assert_snapshot!(probe(&place, "mine", &["--config", "c.toml"]), @"
    agent     mine 7
    protocol  ACP version 1
    can       resume sessions, list sessions, close sessions, delete sessions, see images, hear audio, take files with the prompt, start MCP servers
    cannot    load sessions, fork sessions, work in several directories, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    session   could be opened
    modes     code (now), plan
    --- exit 0 ---
    ");
}

#[test]
fn the_built_in_agent_is_probed_and_keeps_nothing() {
    let place = Place::new();
    let told = place.told(agents(&place, &["--probe", "--json"]));
    let report = object(&told);
    assert_eq!(report["agent"], json!({"name": "narrows", "version": "[VERSION]"}));
    assert_eq!((&report["protocol"], &report["loginNeeded"]), (&json!(1), &json!(false)));
    assert_eq!((&report["can"]["list"], &report["can"]["mcpSse"]), (&json!(true), &json!(false)));
    assert_eq!(report["session"]["models"]["current"], "demo");
    let commands = report["session"]["commands"].as_array().unwrap();
    assert!(commands.iter().any(|command| command["name"] == "compact"), "{report}");
    let mut sessions = place.narrows(["sessions", "--all", "--json"]);
    sessions.env("HOME", place.path());
    assert_eq!(object(&place.told(sessions)), json!({"sessions": []}));
}

#[test]
fn a_probe_speaks_the_version_it_is_told_to() {
    let place = Place::new();
    let report = object(&probe(&place, "narrows fake-agent echo", &["--protocol", "2", "--json"]));
    assert_eq!((&report["protocol"], &report["agent"]["name"]), (&json!(2), &json!("echo")));
    assert_eq!(report["command"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_probe_never_logs_in() {
    let place = Place::new();
    let hello = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":1,"authMethods":[
            {{"id":"key","name":"A key","type":"env_var","vars":[{{"name":"{MARK}"}}]}},
            {{"id":"other","name":"Another","type":"env_var","vars":[{{"name":"NOT_SET"}}]}},
            {{"id":"web","name":"The web","description":"Opens a browser"}},
            {{"id":"tty","name":"By hand","type":"terminal","args":["login"]}}]}}}}"#
    )
    .replace('\n', "");
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Authentication required"}}"#;
    let agent = scripted(&place, &[&hello, refusal, "{}"]);
    assert_snapshot!(probe(&place, &agent, &[]), @"
    agent     sh, which does not say who it is
    protocol  ACP version 1
    can       start MCP servers
    cannot    resume sessions, load sessions, list sessions, fork sessions, close sessions, delete sessions, work in several directories, see images, hear audio, take files with the prompt, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    login     A key, by NARROWS_TEST_MARK, set here
              Another, by NOT_SET, not set here
              The web, by the agent itself: Opens a browser
              By hand, by starting it in a terminal, with login behind its command
    session   login needed
    --- exit 0 ---
    ");
    assert_eq!(place.got().lines().count(), 2, "{}", place.got());
    let report = object(&probe(&place, &agent, &["--json"]));
    assert_eq!((&report["loginNeeded"], &report["session"]), (&json!(true), &Value::Null));
    assert_eq!(report["logins"][0]["variables"], json!([MARK]));
    assert_eq!(report["logins"][1]["missing"], json!(["NOT_SET"]));
    assert_eq!(report["logins"][3]["arguments"], json!(["login"]));
}

#[test]
fn what_agents_tell_in_older_ways_is_shown_too() {
    let place = Place::new();
    let session = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s","modes":{"currentModeId":"ask","availableModes":[{"id":"ask","name":"Ask"},{"id":"code","name":"Code"}]},"models":{"currentModelId":"big","availableModels":[{"modelId":"small","name":"Small"},{"modelId":"big","name":"Big"}]},"configOptions":[{"id":"effort","name":"Effort","category":"thought_level","type":"select","currentValue":"low","options":[{"value":"low","name":"Low"},{"value":"high","name":"High"}]},{"id":"fast","name":"Fast","type":"boolean","currentValue":true}]}}
        {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"plan","description":"Make a plan","input":{"hint":"what for"}},{"name":"clear","description":"Forget \u001b[2J everything"}]}}}"#;
    let agent = scripted(&place, &[HELLO, session]);
    assert_snapshot!(probe(&place, &agent, &[]), @r"
    agent     sh, which does not say who it is
    protocol  ACP version 1
    can       start MCP servers
    cannot    resume sessions, load sessions, list sessions, fork sessions, close sessions, delete sessions, work in several directories, see images, hear audio, take files with the prompt, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
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
fn an_agent_that_opens_no_session_is_described_all_the_same() {
    let place = Place::new();
    let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no room"}}"#;
    let agent = scripted(&place, &[HELLO, refusal]);
    assert_snapshot!(probe(&place, &agent, &[]), @"
    agent     sh, which does not say who it is
    protocol  ACP version 1
    can       start MCP servers
    cannot    resume sessions, load sessions, list sessions, fork sessions, close sessions, delete sessions, work in several directories, see images, hear audio, take files with the prompt, use MCP servers over HTTP, use MCP servers over SSE, use MCP servers of the client, log out
    session   could not be opened
    --- stderr ---
    error: the agent answered `session/new` with an error
      because: no room (-32603)
    --- exit 1 ---
    ");
    let told = probe(&place, &agent, &["--json"]);
    let report: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!(report["error"]["kind"], "agent");
    assert_eq!(report["error"]["exitCode"], 1);
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
}

#[test]
fn what_cannot_be_probed_says_why() {
    let place = Place::new();
    place.file("c.toml", "[agents.gone]\ncommand = 'two --acp'");
    assert_snapshot!(among(&place, &[], &["--probe", "gone", "--config", "c.toml"]), @r#"
    --- stderr ---
    error: the agent "gone" cannot be started, because of its program "two"
      because: it is nowhere in PATH
    hint: install it, or give the path to it
    --- exit 5 ---
    "#);
    assert_snapshot!(probe(&place, "./nothing here", &[]), @r#"
    --- stderr ---
    error: the agent "./nothing" cannot be started, because of its program "[DIR]/nothing"
      because: there is no such file
    --- exit 5 ---
    "#);
    assert_snapshot!(probe(&place, "sh -c 'echo no key >&2; exit 3'", &[]), @"
    --- stderr ---
    error: the agent ended before it answered `initialize`: exited with status 3
      its last words on stderr:
      | no key
    --- exit 5 ---
    ");
    assert_snapshot!(probe(&place, "sh -c 'read a; echo hello; read b'", &["--timeout", "2s"]), @"
    --- stderr ---
    error: the agent did not answer `initialize` within 2s
    hint: an agent that is slow to start may need more: --timeout 2m
    hint: 1 line of its output was no protocol message: hello; is it an ACP agent? Many programs are one only with an argument, such as `acp` or `--acp`
    --- exit 7 ---
    ");
    let told = probe(&place, "'unclosed", &[]);
    assert!(told.contains("a quote is not closed") && told.ends_with("--- exit 2 ---\n"), "{told}");
}

#[test]
fn a_probe_that_is_interrupted_leaves_nothing() {
    let place = Place::new();
    let agent = scripted(&place, &[HELLO]);
    let running = place.start(agents(&place, &["--probe", &agent]));
    place.wait_for(|| {
        std::fs::read_to_string(place.path().join("got")).is_ok_and(|got| got.contains("initialize"))
    });
    running.signal(Signal::INT);
    assert_snapshot!(running.told(), @"
    --- stderr ---
    error: cancelled
    --- exit 130 ---
    ");
    assert!(std::fs::read_dir(place.path().join("tmp")).unwrap().next().is_none());
}
