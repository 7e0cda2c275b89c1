//! Compares the pages about the bus with the binary.

use narrows_testkit::model::{ModelServer, Plan, Reply};
use narrows_wire::Code;
use serde_json::json;

use crate::bus_support::Bus;
use crate::test_dir::TestDir;

const GUIDE: &str = include_str!("../../../../docs/guides/share-agents.md");
const ERRORS: &str = include_str!("../../../../docs/reference/errors.md");
const STATUS: &str = include_str!("../../../../docs/reference/status-json.md");

#[track_caller]
fn section(page: &'static str, heading: &str) -> &'static str {
    let rest = page.split(&format!("\n## {heading}\n")).nth(1).expect("the section");
    rest.split("\n## ").next().expect("a part before the end mark")
}

/// Returns a file with the first pool of the guide and a listener on a free port.
fn guide_file() -> String {
    let mut files = GUIDE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let file = files.find(|file| file.contains("[[listen]]")).expect("a file");
    let pool = file.split("[[pool]]").nth(1).expect("a pool");
    format!("[[listen]]\nurl = \"tcp://127.0.0.1:0\"\n\n[[pool]]{pool}pass_env = ['[MARK]']\n")
}

#[test]
fn the_error_codes_are_those_of_the_code() {
    let rows = section(ERRORS, "Bus").lines().filter(|line| line.starts_with("| -"));
    let mut documented = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (number, condition) = (cells[0], cells[1].trim_matches('`'));
        let code = Code::ALL.iter().find(|code| code.number().to_string() == number).expect(row);
        // Two conditions share a code.
        assert!(condition == code.condition() || condition == "session_in_use", "{row}");
        documented += 1;
    }
    assert!(documented >= 15, "{documented}");
}

/// Compares the table with the fields of the status in both directions.
#[test]
fn the_fields_of_the_state_are_documented() {
    let dir = TestDir::new();
    let bus = Bus::start(&dir, &["--tcp", "127.0.0.1:0", "--", "narrows", "fake-agent", "echo"]);
    bus.wait_for_workers(1);
    let state = bus.state();
    bus.stop();
    let first = |heading: &str| {
        let rows = section(STATUS, heading).lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = rows.filter_map(|row| row.split(" | ").next());
        let mut names: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
        names.sort_unstable();
        names
    };
    for (heading, value) in [
        ("Fields", &state),
        ("Pools", &state["pools"][0]),
        ("Workers", &state["pools"][0]["workers"][0]),
        ("Queues", &state["queues"]),
        ("Counters", &state["counters"]),
    ] {
        let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        if heading == "Pools" {
            // Only a governed pool has this field.
            keys.push("manifest");
        }
        keys.sort_unstable();
        assert_eq!(first(heading), keys, "{heading}");
    }
}

/// Runs the line of the page, with a test server in place of the model.
#[test]
fn the_line_for_a_local_model_works() {
    let line = GUIDE.lines().find(|line| line.contains(":11434/v1")).expect("the line");
    let server = ModelServer::start(
        Plan::new([Reply::text("Because of the air.")]).models(Reply::models(&["llama3.2"])),
    );
    let (dir, demo) = (TestDir::new(), "env = { OPENAI_BASE_URL = \"builtin:demo\" }");
    let file = guide_file();
    assert!(file.contains(demo), "{file}");
    let file = file.replace(demo, &line.replace("http://127.0.0.1:11434/v1", &server.base_url()));
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

/// The shared worker learned the capabilities of its clients before this client connected. Each prompt
/// therefore says if its client decides itself.
#[tokio::test]
async fn a_shared_agent_runs_a_command_of_a_client_that_decides_itself() {
    let file = guide_file();
    assert!(file.contains("client_capabilities"), "{file}");
    let is_held = narrows_process::Sandbox::support().await.confined().files;
    let dir = TestDir::new();
    dir.file("here.txt", "");
    let bus = Bus::from_file(&dir, &file);
    let told = dir.output_beside_others(dir.narrows(["run", "--agent", &bus.at[0], "run ls"]));
    let expected = if is_held { "--- exit 0 ---\n" } else { "--- exit 9 ---\n" };
    assert!(told.contains("here.txt") == is_held && told.ends_with(expected), "{told}");
    // A client without that mark in its prompt is asked.
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "run ls");
    peer.expect_request("session/request_permission");
    let params = json!({"sessionId": session});
    peer.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params}));
    assert_eq!(peer.answer(&json!(2))["result"]["stopReason"], "cancelled");
    bus.stop();
}
