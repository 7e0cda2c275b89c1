//! Every fault, as the client sees it.

mod common;

use std::time::Duration;

use common::{Talk, able};
use narrows_fake::Ended;
use narrows_testkit::wait::wait_until;
use serde_json::{Value, json};

fn nothing(_: &Value) -> Option<Value> {
    None
}

async fn open(steps: &str) -> Talk {
    Talk::open(1, able(), &format!("[[turn]]\nsteps = [{steps}]")).await
}

/// Returns the lines of one turn as bytes, up to the response to its prompt.
async fn lines(steps: &str) -> Vec<Vec<u8>> {
    let mut talk = open(steps).await;
    talk.prompt("go").await;
    let mut lines = Vec::new();
    loop {
        let line = talk.client.line().await.expect("the agent answers before it goes");
        let over = line.ends_with(br#""result":{"stopReason":"end_turn"}}"#);
        lines.push(line);
        if over {
            return lines;
        }
    }
}

/// Runs one turn, and compares its lines, each cut short and without the response.
async fn check(steps: &str, expected: &[&str]) {
    let lines = lines(steps).await;
    let shown: Vec<String> = lines[..lines.len() - 1]
        .iter()
        .map(|line| match serde_json::from_slice::<Value>(line) {
            Ok(message) if message["method"] == "session/update" => {
                let text = message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
                format!("say {}", text.chars().take(10).collect::<String>())
            }
            _ => line.escape_ascii().to_string(),
        })
        .collect();
    assert_eq!(shown, expected);
}

#[tokio::test(start_paused = true)]
async fn lines_that_are_not_messages() {
    check("{ say = 'a' }, { pollute = 'Debug: {prompt}' }, { say = 'b' }", &["say a", "Debug: go", "say b"])
        .await;
    check("{ half_line = 'half' }, { pollute = '' }, { say = 'b' }", &["half", "say b"]).await;
    let unknown = r#"{\"jsonrpc\":\"2.0\",\"id\":\"never-asked\",\"result\":{}}"#;
    check("{ unknown_response = true }, { say = 'b' }", &[unknown, "say b"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_half_line_corrupts_the_next_message() {
    let lines = lines("{ half_line = 'half' }, { say = 'lost' }, { say = 'b' }").await;
    assert!(lines[0].starts_with(br#"half{"jsonrpc":"2.0""#));
    assert_eq!(lines.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_line_with_bad_utf8_is_otherwise_a_message() {
    let lines = lines("{ bad_utf8 = true }").await;
    assert!(std::str::from_utf8(&lines[0]).is_err());
    let repaired = String::from_utf8_lossy(&lines[0]);
    assert_eq!(serde_json::from_str::<Value>(&repaired).unwrap()["method"], "session/update");
}

#[tokio::test(start_paused = true)]
async fn a_giant_line_is_a_message() {
    let lines = lines("{ giant_line = '3MiB' }, { say = 'b' }").await;
    let giant: Value = serde_json::from_slice(&lines[0]).unwrap();
    assert_eq!(giant["params"]["update"]["content"]["text"].as_str().unwrap().len(), 3 << 20);
}

#[tokio::test(start_paused = true)]
async fn raw_output_does_not_prevent_the_response() {
    let noisy = narrows_fake::Script::builtin_source("noisy").unwrap().replace("80MiB", "1MiB");
    let mut talk = Talk::start(&noisy);
    let mut heard = Vec::new();
    talk.client.request("initialize", &json!({"protocolVersion": 1})).await;
    talk.client.request("session/new", &json!({"cwd": "/project", "mcpServers": []})).await;
    let prompt = json!({"sessionId": "session-1", "prompt": [{"type": "text", "text": "go"}]});
    let id = talk.client.request("session/prompt", &prompt).await;
    loop {
        let line = talk.client.line().await.unwrap();
        let Ok(message) = serde_json::from_slice::<Value>(&line) else { continue };
        heard.extend(message["params"]["update"]["content"]["text"].as_str().map(str::len));
        if message["id"] == id {
            break;
        }
    }
    assert_eq!(heard, ["Before the noise. ".len(), 1 << 20, "After the noise.".len()]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_complete_and_in_order() {
    let lines = lines("{ flood = { updates = 20000, bytes = 50 } }").await;
    assert_eq!(lines.len(), 20001);
    let last: Value = serde_json::from_slice(&lines[19999]).unwrap();
    assert_eq!(last["params"]["update"]["content"]["text"], format!("{:<50}", 20000));
}

#[tokio::test(start_paused = true)]
async fn a_flood_can_be_cancelled() {
    let mut talk = Talk::open(1, able(), "flood").await;
    let id = talk.prompt("go").await;
    talk.client.line().await;
    talk.notify("session/cancel", talk.about(json!({}))).await;
    let (updates, answer) = talk.client.until_answer(id, nothing).await;
    assert_eq!(answer["result"]["stopReason"], "cancelled");
    assert!(updates.len() < 199_999, "{} updates", updates.len());
}

#[tokio::test(start_paused = true)]
async fn the_answer_can_come_before_the_last_updates() {
    for version in [1, 2] {
        let script = "[[turn]]\nsteps = [{ say = 'a' }, { reorder = true }, { say = 'b' }]";
        let mut talk = Talk::open(version, able(), script).await;
        talk.turn("go", nothing).await;
        assert_eq!(talk.agent_text(), "a");
        talk.next().await;
        assert_eq!(talk.agent_text(), "ab");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_can_come_twice() {
    for version in [1, 2] {
        let script = "[[turn]]\nsteps = [{ duplicate_response = true }, { say = 'a' }]";
        let mut talk = Talk::open(version, able(), script).await;
        let id = talk.prompt("go").await;
        let first = talk.answer_to(id, nothing).await;
        let second = talk.answer_to(id, nothing).await;
        assert_eq!(first, second);
    }
}

/// Returns `true` if the agent sends nothing for an hour of paused time.
async fn is_silent(talk: &mut Talk) -> bool {
    tokio::time::timeout(Duration::from_secs(3600), talk.client.line()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_hangs_reads_and_never_answers() {
    for version in [1, 2] {
        let mut talk = Talk::open(version, able(), "hang").await;
        talk.prompt("go").await;
        while talk.agent_text().is_empty() {
            talk.next().await;
        }
        talk.notify("session/cancel", talk.about(json!({}))).await;
        for _ in 0..2000 {
            talk.client.request("session/list", &json!({})).await;
        }
        assert!(is_silent(&mut talk).await);
        talk.client.hang_up();
        // The agent does not respond at its end either.
        assert_eq!(talk.client.line().await, None);
        assert_eq!(talk.ended().await, Ended::PeerLeft);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_can_hang_from_the_start() {
    let mut talk = Talk::start("on.initialize = [{ hang = true }]");
    talk.request("initialize", json!({"protocolVersion": 1})).await;
    assert!(is_silent(&mut talk).await);
    assert_eq!(talk.leave().await, Ended::PeerLeft);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_exits_has_written_its_text_but_not_its_response() {
    for (fault, expected) in [("crash = true", Ended::Abort), ("exit = 3", Ended::Exit(3))] {
        let script = format!(
            "[[turn]]\nwhen = 'wait'\nsteps = [{{ wait_cancel = true }}]\n\
             [[turn]]\nsteps = [{{ say = 'a' }}, {{ {fault} }}, {{ say = 'b' }}]"
        );
        let mut talk = Talk::open(1, able(), &script).await;
        talk.prompt("wait").await;
        talk.new_session().await;
        talk.prompt("go").await;
        talk.next().await;
        assert_eq!(talk.agent_text(), "a");
        assert!(is_silent(&mut talk).await);
        assert_eq!(talk.ended().await, expected);
    }
    let talk = Talk::start("on.start = [{ exit = 0 }]");
    assert_eq!(talk.ended().await, Ended::Exit(0));
}

#[tokio::test(start_paused = true)]
async fn an_agent_can_close_its_output_and_keep_running() {
    let mut talk = open("{ say = 'a' }, { close_stdout = true }").await;
    talk.prompt("go").await;
    talk.next().await;
    assert_eq!(talk.client.line().await, None);
    talk.client.hang_up();
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(!talk.is_over());
}

#[tokio::test(start_paused = true)]
async fn cancellation_can_be_ignored() {
    let mut talk = open("{ ignore_cancel = true }, { say = 'a' }, { pause = '1m' }, { say = 'b' }").await;
    let id = talk.prompt("go").await;
    talk.next().await;
    talk.notify("session/cancel", talk.about(json!({}))).await;
    talk.notify("$/cancel_request", json!({"requestId": id})).await;
    assert_eq!(talk.answer_to(id, nothing).await["result"]["stopReason"], "end_turn");
    assert_eq!(talk.agent_text(), "ab");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_input_and_sigterm_can_be_ignored() {
    let mut talk = Talk::open(1, able(), "stubborn").await;
    talk.prompt("go").await;
    talk.next().await;
    // The signal goes to this test process: if the script did not ignore it, all tests of this file would
    // end.
    let sent = std::process::Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
    assert!(sent.unwrap().success());
    talk.client.hang_up();
    while !talk.agent_text().contains("600") {
        talk.next().await;
    }
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(!talk.is_over());
}

#[tokio::test]
async fn an_orphan_outlives_its_agent() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("here");
    let mut talk = open(&format!("{{ orphan = ['touch', '{}'] }}", file.display())).await;
    talk.turn("go", nothing).await;
    assert_eq!(talk.leave().await, Ended::PeerLeft);
    assert!(wait_until(Duration::from_secs(10), || file.exists()).await);
}
