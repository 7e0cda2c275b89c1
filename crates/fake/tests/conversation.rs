//! Whole conversations in both versions of the protocol, with paused time.

mod common;

use common::{Talk, able};
use narrows_fake::Ended;
use serde_json::{Value, json};

/// Runs one turn, and compares all messages with the snapshot of this name.
async fn check(name: &str, version: u16, script: &str, serve: impl FnMut(&Value) -> Option<Value>) {
    let mut talk = Talk::open(version, able(), script).await;
    talk.turn("the prompt", serve).await;
    insta::assert_snapshot!(format!("{name}-v{version}"), talk.log);
    assert_eq!(talk.leave().await, Ended::PeerLeft);
}

fn nothing(_: &Value) -> Option<Value> {
    None
}

fn choose(option: &'static str) -> impl FnMut(&Value) -> Option<Value> {
    move |_| Some(json!({"outcome": {"outcome": "selected", "optionId": option}}))
}

#[tokio::test(start_paused = true)]
async fn hello() {
    check("hello", 1, "hello", nothing).await;
    check("hello", 2, "hello", nothing).await;
}

#[tokio::test(start_paused = true)]
async fn permission_is_given_or_not() {
    for version in [1, 2] {
        check("ask-allowed", version, "ask", choose("allow_once")).await;
        check("ask-rejected", version, "ask", choose("reject_once")).await;
        // An option that was not offered allows nothing.
        check("ask-invented", version, "ask", choose("allow_everything")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn files_and_terminals_of_the_client() {
    let serve = |request: &Value| {
        Some(match request["method"].as_str()? {
            "fs/read_text_file" => json!({"content": "You said: the prompt\n"}),
            "terminal/create" => json!({"terminalId": "terminal-1"}),
            "terminal/wait_for_exit" => json!({"exitCode": 0}),
            "terminal/output" => json!({"output": "4 note.txt\n", "truncated": false}),
            _ => json!({}),
        })
    };
    check("files", 1, "files", serve).await;
    // Version 2 has no file methods; the agent reports this instead of sending a request.
    check("files", 2, "files", nothing).await;
}

const SHOW: &str = r#"
modes = ["code", "plan"]

[[turn]]
steps = [
  { plan = ["first", { content = "second", priority = "high", status = "in_progress" }] },
  { tool = { id = "t", name = "edit_file", title = "Edit a.rs", kind = "edit", path = "a.rs", line = 3 } },
  { tool_update = { id = "t", status = "in_progress", diff = { path = "a.rs", old = "a\nb\n", new = "c\n" } } },
  { tool_update = { id = "t", status = "completed", output = { lines = 1, who = "{session}" } } },
  { usage = { used = 10, size = 200, cost = 0.5 } },
  { notice = { severity = "warning", title = "Careful", description = "{cwd} is shared" } },
  { commands = [{ name = "plan", description = "Make a plan" }] },
  { title = "About {prompt}" },
  { mode = "plan" },
  { say = "Now in {mode}." },
  { stop = "max_tokens" },
  { say = "Never said." },
]
"#;

#[tokio::test(start_paused = true)]
async fn every_kind_of_update() {
    check("show", 1, SHOW, nothing).await;
    check("show", 2, SHOW, nothing).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_ends_a_turn_in_the_form_of_the_version() {
    let script = "[[turn]]\nsteps = [{ say = 'a' }, { error = { code = -32018, message = 'no {turn}' } }]";
    check("error", 1, script, nothing).await;
    check("error", 2, script, nothing).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_is_reported() {
    for version in [1, 2] {
        let mut talk = Talk::open(version, able(), "slow").await;
        let id = talk.prompt("take your time").await;
        while !talk.agent_text().contains("2 ") {
            talk.next().await;
        }
        talk.notify("session/cancel", talk.about(json!({}))).await;
        match version {
            1 => assert_eq!(talk.answer_to(id, nothing).await["result"]["stopReason"], "cancelled"),
            _ => talk.until_idle(nothing).await,
        }
        insta::assert_snapshot!(format!("cancel-v{version}"), talk.log);
        // The session is free for the next turn.
        let next = talk.prompt("again").await;
        talk.notify("session/cancel", talk.about(json!({}))).await;
        talk.answer_to(next, nothing).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_cancelled_by_a_request_or_by_its_request_id() {
    let mut talk = Talk::open(1, able(), "slow").await;
    let prompt = talk.prompt("take your time").await;
    talk.next().await;
    let cancel = talk.request("session/cancel", talk.about(json!({}))).await;
    let answers = [talk.next().await.unwrap(), talk.next().await.unwrap()];
    assert!(answers.iter().any(|answer| answer["id"] == cancel && answer["result"] == json!({})));
    assert!(
        answers.iter().any(|answer| answer["id"] == prompt && answer["result"]["stopReason"] == "cancelled")
    );

    let prompt = talk.prompt("once more").await;
    talk.next().await;
    talk.notify("$/cancel_request", json!({"requestId": prompt})).await;
    assert_eq!(talk.answer_to(prompt, nothing).await["result"]["stopReason"], "cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_script_can_run_final_steps_after_a_cancellation() {
    let script = "[[turn]]\nsteps = [{ say = 'a' }, { wait_cancel = true }, { say = 'b' }, { pause = '1m' }]";
    for version in [1, 2] {
        let mut talk = Talk::open(version, able(), script).await;
        let id = talk.prompt("go").await;
        while talk.agent_text() != "a" {
            talk.next().await;
        }
        talk.notify("session/cancel", talk.about(json!({}))).await;
        match version {
            1 => drop(talk.answer_to(id, nothing).await),
            _ => talk.until_idle(nothing).await,
        }
        insta::assert_snapshot!(format!("wind-up-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn a_permission_request_is_withdrawn_when_the_turn_is_cancelled() {
    for version in [1, 2] {
        let mut talk = Talk::open(version, able(), "ask").await;
        let id = talk.prompt("go").await;
        while !talk.log.contains("← session/request_permission") {
            talk.next().await;
        }
        talk.notify("session/cancel", talk.about(json!({}))).await;
        match version {
            1 => drop(talk.answer_to(id, nothing).await),
            _ => talk.until_idle(nothing).await,
        }
        insta::assert_snapshot!(format!("ask-cancelled-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminal_is_released_when_the_turn_is_cancelled() {
    let mut talk =
        Talk::open(1, able(), "[[turn]]\nsteps = [{ terminal = { command = ['sleep', '9'] } }]").await;
    let id = talk.prompt("go").await;
    let serve = |request: &Value| match request["method"].as_str() {
        Some("terminal/create") => Some(json!({"terminalId": "t"})),
        Some("terminal/release") => Some(json!({})),
        _ => None,
    };
    let create = talk.next().await.unwrap();
    talk.client.answer(&create, &json!({"terminalId": "t"})).await;
    assert_eq!(talk.next().await.unwrap()["method"], "terminal/wait_for_exit");
    talk.notify("session/cancel", talk.about(json!({}))).await;
    assert_eq!(talk.answer_to(id, serve).await["result"]["stopReason"], "cancelled");
    insta::assert_snapshot!("terminal-cancelled-v1", talk.log);
}

#[tokio::test(start_paused = true)]
async fn a_second_prompt_is_refused_in_v1_and_waits_in_v2() {
    let mut talk = Talk::open(1, able(), "slow").await;
    talk.prompt("first").await;
    let second = talk.prompt("second").await;
    assert_eq!(talk.answer_to(second, nothing).await["error"]["code"], -32600);

    let mut talk = Talk::open(2, able(), "[[turn]]\nsteps = [{ pause = '1s' }, { say = '{prompt}' }]").await;
    let first = talk.prompt("first").await;
    let second = talk.prompt("second").await;
    talk.answer_to(first, nothing).await;
    talk.until_idle(nothing).await;
    assert_eq!(talk.agent_text(), "first");
    let answer = talk.answer_to(second, nothing).await;
    assert!(answer["result"]["messageId"].is_string());
    let third = talk.prompt("third").await;
    talk.notify("session/cancel", talk.about(json!({}))).await;
    assert_eq!(talk.answer_to(third, nothing).await["error"]["code"], -32800);
    talk.until_idle(nothing).await;
    assert!(talk.log.ends_with("\"stopReason\":\"cancelled\"}\n"), "{}", talk.log);
}

#[tokio::test(start_paused = true)]
async fn turns_are_chosen_in_order_or_by_the_prompt() {
    let script = "
        [[turn]]
        steps = [{ say = 'first ' }]
        [[turn]]
        when = 'special'
        steps = [{ say = 'special ' }]
        [[turn]]
        steps = [{ say = 'last ' }]
    ";
    let mut talk = Talk::open(1, able(), script).await;
    for prompt in ["a", "something special", "b", "c"] {
        talk.turn(prompt, nothing).await;
    }
    assert_eq!(talk.agent_text(), "first special last last ");
    // Another session starts from the beginning.
    talk.log.clear();
    talk.new_session().await;
    talk.turn("a", nothing).await;
    assert_eq!(talk.agent_text(), "first ");

    let mut talk = Talk::open(1, able(), "turn = [{ when = 'x', steps = [] }]").await;
    talk.turn("y", nothing).await;
    assert_eq!(talk.agent_text(), "The script has no turn for this prompt.");
}

#[tokio::test(start_paused = true)]
async fn two_sessions_run_turns_at_the_same_time() {
    let script = "[[turn]]\nsteps = [{ say = 'a' }, { wait_cancel = true }]";
    let mut talk = Talk::open(1, able(), script).await;
    let one = talk.prompt("one").await;
    let first = talk.about(json!({}));
    talk.new_session().await;
    let other = talk.prompt("other").await;
    talk.next().await;
    talk.notify("session/cancel", talk.about(json!({}))).await;
    talk.answer_to(other, nothing).await;
    talk.notify("session/cancel", first).await;
    talk.answer_to(one, nothing).await;
}
