//! Compares `docs/bus.md` with the binary.

use narrows_testkit::model::{ModelServer, Plan, Reply};
use narrows_wire::Code;
use serde_json::{Value, json};

use crate::bus_support::{Bus, command, write};
use crate::test_dir::TestDir;

const PAGE: &str = include_str!("../../../../docs/bus.md");

#[track_caller]
fn section(heading: &str) -> &'static str {
    let rest = PAGE.split(&format!("\n## {heading}\n")).nth(1).expect("the section");
    rest.split("\n## ").next().expect("it ends")
}

#[test]
fn the_error_codes_are_those_of_the_code() {
    let rows = section("Errors").lines().filter(|line| line.starts_with("| -"));
    let mut documented = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (number, condition) = (cells[0], cells[1].trim_matches('`'));
        let code = Code::ALL.iter().find(|code| code.number().to_string() == number).expect(row);
        // One of them is told apart further.
        assert!(condition == code.condition() || condition == "session_in_use", "{row}");
        documented += 1;
    }
    assert!(documented >= 15, "{documented}");
}

/// The first command is run as it stands there, and answers without a key and a network.
#[test]
fn the_first_command_answers() {
    let lines = section("Start").lines().filter_map(|line| line.strip_prefix("$ "));
    let words: Vec<&str> = lines.clone().next().expect("a command").split(' ').collect();
    let (variable, value) = words[0].split_once('=').expect("a variable");
    assert_eq!(words[1..3], ["narrows", "bus"]);
    let args: Vec<String> = words[3..].iter().map(|word| word.replace(":9000", ":0")).collect();
    let dir = TestDir::new();
    let mut start = command(&dir, &args.iter().map(String::as_str).collect::<Vec<_>>());
    start.env(variable, value).env("HOME", dir.path());
    let bus = Bus::started(&dir, start);
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "Hello, who are you?");
    let answer = peer.answer(&json!(2));
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert!(peer.agent_text().starts_with("I am the demo model"), "{}", peer.agent_text());
    bus.stop();
    let readme = include_str!("../../../../README.md");
    assert!(readme.contains(&format!("    {}\n", words.join(" "))), "it stands in README.md too");
}

/// Every field of the state has its place in the table, and nothing else has.
#[test]
fn the_fields_of_the_state_are_documented() {
    let dir = TestDir::new();
    let bus = Bus::start(&dir, &["--tcp", "127.0.0.1:0", "--", "narrows", "fake-agent", "echo"]);
    bus.wait_for_workers(1);
    let state = bus.state();
    bus.stop();
    let table =
        PAGE.split("\n| field | |\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a table");
    let row = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).expect(name);
        row.split('`').skip(3).step_by(2).collect::<Vec<_>>()
    };
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    for (name, value) in [
        ("pools[]", &state["pools"][0]),
        ("pools[].workers[]", &state["pools"][0]["workers"][0]),
        ("queues", &state["queues"]),
        ("counters", &state["counters"]),
    ] {
        let documented = row(name);
        for key in keys(value) {
            assert!(documented.contains(&key.as_str()), "`{key}` of {name}: {documented:?}");
        }
    }
    let first = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let documented: Vec<&str> = first.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let mut keys = keys(&state);
    keys.retain(|key| key != "pools");
    for key in &keys {
        assert!(documented.contains(&key.as_str()), "`{key}`: {documented:?}");
    }
    assert_eq!(documented.len(), keys.len() + 2, "{documented:?}");
}

/// The recipe is run as it stands there, with a server of ours in place of the model.
#[test]
fn the_local_setup_works() {
    let section = section("A set-up that needs nothing but this machine");
    let file = section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a file");
    let server = ModelServer::start(
        Plan::new([Reply::text("Because of the air.")]).models(Reply::models(&["llama3.2"])),
    );
    let (dir, model) = (TestDir::new(), "http://127.0.0.1:11434/v1");
    assert!(file.contains(model) && file.contains("tcp://127.0.0.1:9000"), "{file}");
    let file = file.replace(model, &server.base_url()).replace("127.0.0.1:9000", "127.0.0.1:0");
    let file = file.replace("instances = 2", "instances = 2\npass_env = ['[MARK]']");
    let checked = dir.output_of(dir.narrows(["check", &write(&dir, &file)]));
    assert!(checked.ends_with("bus.toml: 1 pool, 1 listener\n--- exit 0 ---\n"), "{checked}");
    let bus = Bus::from_file(&dir, &file);
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "Why is the sky blue?");
    let answer = peer.answer(&json!(2));
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(peer.agent_text(), "Because of the air.");
    bus.stop();
    let seen = server.seen().into_iter().find(|seen| seen.method == "POST").expect("the model was asked");
    assert_eq!(seen.body["model"], "llama3.2");
    assert_eq!(seen.header("authorization"), None, "no key is sent");
}

/// Shared workers were told what clients can do before the client came; whether it decides itself, each prompt says.
#[tokio::test]
async fn a_shared_agent_runs_a_command_of_a_client_that_decides_itself() {
    let section = PAGE.split("### What shared agents can do").nth(1).expect("the section");
    let file = section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a file");
    let file = file.replace("127.0.0.1:9000", "127.0.0.1:0") + "pass_env = ['[MARK]']\n";
    let is_held = narrows_process::Sandbox::support().await.confined().files;
    let dir = TestDir::new();
    dir.file("here.txt", "");
    let bus = Bus::from_file(&dir, &file);
    let told = dir.output_beside_others(dir.narrows(["run", "--agent", &bus.at[0], "run ls"]));
    let expected = if is_held { "--- exit 0 ---\n" } else { "--- exit 9 ---\n" };
    assert!(told.contains("here.txt") == is_held && told.ends_with(expected), "{told}");
    // An editor without the mark in its prompt is asked.
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "run ls");
    peer.expect_request("session/request_permission");
    let params = json!({"sessionId": session});
    peer.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params}));
    assert_eq!(peer.answer(&json!(2))["result"]["stopReason"], "cancelled");
    bus.stop();
}

/// Without `socat` there is a way too, which is taken as it stands there.
#[test]
fn bash_is_enough_to_connect() {
    let line = PAGE.lines().find(|line| line.contains("/dev/tcp/127.0.0.1/9000")).expect("the line");
    let agent = line.split('"').nth(1).expect("an agent in quotes");
    if std::process::Command::new("bash").arg("--version").output().is_err() {
        return;
    }
    let dir = TestDir::new();
    let bus =
        Bus::start(&dir, &["--tcp", "127.0.0.1:0", "--share", "all", "--", "narrows", "fake-agent", "echo"]);
    let port = bus.at[0].rsplit(':').next().expect("a port");
    let agent = agent.replace("/9000", &format!("/{port}"));
    let told = dir.output_beside_others(dir.run(&agent, &["one two"]));
    assert_eq!(told, "one two\n--- exit 0 ---\n");
    bus.wait_for(|state| state["clients"] == 0);
    bus.stop();
}

/// Every file of the page can be used.
#[test]
fn the_example_files_are_valid() {
    let dir = TestDir::new();
    let files: Vec<&str> =
        PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let told = dir.output_of(dir.narrows(["check", &write(&dir, file)]));
        assert!(told.ends_with("--- exit 0 ---\n"), "{file}\n{told}");
    }
}

/// Whatever file with our own agent is pasted, the agent has a model.
#[test]
fn every_file_with_the_built_in_agent_answers_when_it_is_pasted() {
    let files = PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut tried = 0;
    for file in files.filter(|file| file.contains("[\"narrows\", \"acp\"") && file.contains("[[listen]]")) {
        assert!(file.contains("OPENAI_"), "no model: {file}");
        if !file.contains("\"builtin:demo\"") {
            continue;
        }
        tried += 1;
        let dir = TestDir::new();
        let agent = "command = [\"narrows\", \"acp\"]";
        let file = file.replace(":9000", ":0").replace(agent, &format!("{agent}\npass_env = ['[MARK]']"));
        let bus = Bus::from_file(&dir, &file);
        let mut peer = bus.client();
        let session = peer.session(&dir);
        peer.prompt(&json!(2), &session, "Hello");
        let answer = peer.answer(&json!(2));
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        bus.stop();
    }
    assert_eq!(tried, 2);
}
