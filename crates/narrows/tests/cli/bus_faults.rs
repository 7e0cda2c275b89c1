//! Faults as clients of a bus see them, according to `docs/concepts/routing.md`.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer};
use crate::test_dir::TestDir;

fn file(command: &str, limits: &str) -> String {
    format!(
        "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[pool]]\ncommand = [{command}]\nshare = 'all'\n\
         pass_env = ['[MARK]']\n[limits]\n{limits}\n"
    )
}

/// The built-in agent with stored sessions.
const KEEPING: &str = "'narrows', 'acp', '--base-url', 'builtin:demo', '--data-dir', 'kept'";

fn kill_worker(bus: &Bus<'_>) {
    let state = bus.state();
    let pid = state["pools"][0]["workers"][0]["pid"].as_i64().expect("a process");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not zero");
    kill_process(pid, Signal::KILL).expect("the process runs");
}

fn load(peer: &mut Peer, dir: &TestDir, session: &str) -> Value {
    peer.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let params = json!({"sessionId": session, "cwd": dir.path(), "mcpServers": []});
    peer.call(&json!("load"), "session/load", &params)
}

#[test]
fn a_worker_lost_during_a_turn_is_reported_and_replaced() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file("'narrows', 'fake-agent', 'slow'", ""));
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!("a"), &session, "Hi");
    peer.expect_text("One moment. ");
    kill_worker(&bus);
    let answer = peer.answer(&json!("a"));
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    assert_eq!(answer["error"]["data"]["condition"], "worker_lost", "{answer}");
    assert_eq!(answer["error"]["data"]["effects"], "possible", "{answer}");
    bus.wait_for(|state| state["pools"][0]["state"] == "ready");
    // The scripted agent stores no sessions, so this session is lost. The next one must not be.
    peer.prompt(&json!("b"), &session, "Hi");
    let answer = peer.answer(&json!("b"));
    assert_eq!(answer["error"]["code"], -32002, "{answer}");
    let answer = peer.call(&json!("c"), "session/new", &json!({"cwd": dir.path(), "mcpServers": []}));
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    let state = bus.state();
    assert_eq!(state["counters"]["lost"], 1, "{state}");
    let loss = state["pools"][0]["last_loss"].as_str().unwrap_or_default();
    assert!(loss.contains("signal 9") || loss.contains("SIGKILL"), "{loss}");
    bus.stop();
}

#[test]
fn a_session_outlives_its_worker() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file(KEEPING, ""));
    let mut peer = bus.client();
    let session = peer.session(&dir);
    for (round, id) in ["a", "b", "c"].iter().enumerate() {
        peer.prompt(&json!(id), &session, "who are you?");
        let answer = peer.answer(&json!(id));
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        kill_worker(&bus);
        bus.wait_for(|state| state["counters"]["lost"] == round + 1 && state["pools"][0]["state"] == "ready");
    }
    assert_eq!(bus.state()["counters"]["revived"], 2);
    assert_eq!(
        peer.agent_text().matches("I am the demo model of Narrows.").count(),
        3,
        "{}",
        peer.agent_text()
    );
    bus.stop();
}

#[test]
fn a_session_outlives_its_client_and_has_one_client_at_a_time() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file(KEEPING, ""));
    let mut first = bus.client();
    let session = first.session(&dir);
    first.prompt(&json!("a"), &session, "who are you?");
    first.answer(&json!("a"));
    let mut second = bus.client();
    let answer = load(&mut second, &dir, &session);
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(answer["error"]["data"]["condition"], "session_in_use", "{answer}");
    drop(first);
    bus.wait_for(|state| state["clients"] == 1);
    let answer = load(&mut second, &dir, &session);
    assert!(answer["result"].is_object(), "{answer}");
    assert!(second.agent_text().contains("I am the demo model"), "the history is shown again");
    second.prompt(&json!("b"), &session, "who are you?");
    assert_eq!(second.answer(&json!("b"))["result"]["stopReason"], "end_turn");
    bus.stop();
}

#[test]
fn a_tripped_pool_reports_when_to_retry() {
    let dir = TestDir::new();
    let bus =
        Bus::from_file(&dir, &file("'sh', '-c', 'echo out of order >&2; exit 3'", "restart_budget = 2"));
    bus.wait_for(|state| state["pools"][0]["state"] == "tripped");
    let mut peer = bus.client();
    let answer = peer.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    assert_eq!(answer["error"]["code"], -32012, "{answer}");
    let data = &answer["error"]["data"];
    assert!(data["retryAfterMs"].as_u64().is_some_and(|millis| millis >= 100), "{answer}");
    assert_eq!((&data["retryable"], &data["effects"]), (&json!(true), &json!("none")), "{answer}");
    assert!(!answer.to_string().contains("out of order"), "that may be about somebody else: {answer}");
    assert!(bus.status(&[]).contains("tripped, retry in "));
    let said = bus.stop();
    assert!(said.contains("out of order"), "its last words are in the log: {said}");
    assert!(said.contains("pool=\"default\""), "{said}");
}

#[test]
fn excess_and_non_json_clients_are_refused_with_a_reason() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file("'narrows', 'fake-agent', 'echo'", "max_connections = 1"));
    let mut first = bus.client();
    let session = first.session(&dir);
    let mut second = bus.client();
    let refused = second.next().expect("a reason");
    assert_eq!(refused["error"]["code"], -32012, "{refused}");
    assert_eq!(second.next(), None);
    // An invalid line is answered with an error; the connection stays open.
    first.send_line("{\"jsonrpc\":\"2.0\",");
    let told = first.next().expect("an error");
    assert_eq!((&told["error"]["code"], &told["id"]), (&json!(-32700), &Value::Null), "{told}");
    // Sent in one write, so that the second request arrives before the first is answered.
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "one"}]});
    let request = json!({"jsonrpc": "2.0", "id": "a", "method": "session/prompt", "params": prompt});
    first.send_line(&format!("{request}\n{request}"));
    let (one, two) = (first.answer(&json!("a")), first.answer(&json!("a")));
    let codes = [&one["error"]["code"], &two["error"]["code"]];
    assert!(codes.contains(&&json!(-32014)) && codes.contains(&&Value::Null), "{one} {two}");
    drop(first);
    bus.wait_for(|state| state["clients"] == 0);
    // Like a web page that has found the port.
    let mut browser = bus.client();
    browser.send_line("POST / HTTP/1.1\r");
    let told = browser.next().expect("an error");
    assert_eq!(told["error"]["code"], -32700, "{told}");
    assert_eq!(browser.next(), None);
    bus.stop();
}
