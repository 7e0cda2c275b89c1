//! Tests of a gate on real links, with a real log.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use narrows_audit::{Log, LogOptions, verify};
use narrows_govern::{
    ApprovalVote, Gate, GateConfig, GateExit, GateRequest, GateStart, Principal, SystemPathResolver, run_gate,
};
use narrows_link::{Link, memory};
use narrows_policy::{Access, Class, DefaultApproval, GovernanceRule, GovernanceRuleset, Narrowing, Policy};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

struct Setup {
    client: Link,
    agent: Link,
    inquiries: mpsc::Sender<GateRequest>,
    guard: JoinHandle<GateExit>,
    log: PathBuf,
    home: tempfile::TempDir,
}

fn set_up() -> Setup {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    let path = root.join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).unwrap();
    let clauses = vec![
        GovernanceRule::new("asks", "tool.call", Class::RequireApproval)
            .with_subject("Bash")
            .unwrap()
            .with_max_level(4),
    ];
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::OnMutate);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let config = GateConfig {
        operator: "notes".into(),
        roots: vec![root],
        client_methods: vec!["x".into(), "n".into()],
        agent_methods: vec!["elicitation/create".into(), "n".into()],
        ..GateConfig::default()
    };
    let who = Principal { id: "user:ada".into(), ..Principal::default() };
    let setting = GateStart { started_at: 1_700_000_000, nonce: "n".into() };
    let gate = Gate::new(config, who, policy, Box::new(SystemPathResolver), setting);
    let (client, outer) = memory::pair(&narrows_link::Options::default());
    // A queue so small that a test can fill it.
    let (inner, agent) = memory::pair(&narrows_link::Options { queue_bytes: 4096, ..Default::default() });
    let (inquiries, asked) = mpsc::channel(4);
    let guard = tokio::spawn(run_gate(gate, outer, inner, log, asked));
    Setup { client, agent, inquiries, guard, log: path, home }
}

async fn send(link: &Link, value: Value) {
    link.sender.send(Bytes::from(value.to_string())).await.unwrap();
}

async fn receive(link: &mut Link) -> Value {
    serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap()
}

fn all_actions(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
}

/// Returns all recorded actions, except those that precede every session and prompt.
fn actions(path: &Path) -> Vec<String> {
    let mut actions = all_actions(path);
    actions.retain(|action| !matches!(&**action, "session.requested" | "prompt.accepted"));
    actions
}

impl Setup {
    fn request(id: u64, method: &str, params: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    async fn open(&mut self) {
        let cwd = self.home.path().canonicalize().unwrap();
        send(&self.client, Self::request(1, "session/new", &json!({"cwd": cwd, "mcpServers": []}))).await;
        assert_eq!(receive(&mut self.agent).await["method"], "session/new");
        assert_eq!(all_actions(&self.log), ["session.requested"]);
        send(&self.agent, json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}})).await;
        let answer = receive(&mut self.client).await;
        assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "notes");
        // The event was durable before the line was sent.
        assert_eq!(actions(&self.log), ["operator.invoked"]);
    }

    async fn over(self) -> (GateExit, Vec<String>) {
        let ended = self.guard.await.unwrap();
        let report = verify::log(&self.log, &verify::VerifyOptions::default()).unwrap();
        assert_eq!(report.bad, None);
        (ended, actions(&self.log))
    }
}

#[tokio::test]
async fn messages_pass_after_recording_and_the_log_verifies() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    assert_eq!(receive(&mut setup.agent).await["method"], "session/prompt");
    assert_eq!(all_actions(&setup.log)[2..], ["prompt.accepted"]);
    let call = json!({"sessionUpdate": "tool_call", "toolCallId": "c", "name": "Read", "kind": "read",
        "status": "completed", "rawInput": {"path": "a"}, "rawOutput": {"text": "b"}});
    let params = json!({"sessionId": "s", "update": call});
    send(&setup.agent, json!({"jsonrpc": "2.0", "method": "session/update", "params": params})).await;
    assert_eq!(receive(&mut setup.client).await["params"]["update"]["toolCallId"], "c");
    assert_eq!(actions(&setup.log)[1..], ["policy.resolved", "operator.running", "tool.call"]);
    send(&setup.agent, json!({"jsonrpc": "2.0", "id": 2, "result": {"stopReason": "end_turn"}})).await;
    assert_eq!(receive(&mut setup.client).await["result"]["stopReason"], "end_turn");
    setup.client.sender.close();
    let (ended, actions) = setup.over().await;
    assert_eq!(ended, GateExit::ClientClosed);
    assert_eq!(actions[4..], ["operator.completed", "session.closed"]);
}

#[tokio::test]
async fn passed_messages_are_one_line_for_every_reader() {
    let mut setup = set_up();
    setup.open().await;
    let hidden = r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"t"}}"#;
    let update = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"s\",\"update\":{{\"sessionUpdate\":\
         \"plan\",\"entries\":[],\"_meta\":{{\"x\":[\r{hidden}\r]}}}}}}}}"
    );
    setup.agent.sender.send(Bytes::from(update)).await.unwrap();
    let heard = setup.client.receiver.recv().await.unwrap();
    assert!(!heard.bytes().contains(&b'\r'), "{:?}", heard.bytes());
    assert_eq!(
        serde_json::from_slice::<Value>(heard.bytes()).unwrap()["params"]["update"]["entries"],
        json!([])
    );
    let prompt = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"s\",\"prompt\":[],\"_meta\":\
         {{\"x\":[\r{hidden}\r]}}}}}}"
    );
    setup.client.sender.send(Bytes::from(prompt)).await.unwrap();
    let heard = setup.agent.receiver.recv().await.unwrap();
    assert!(!heard.bytes().contains(&b'\r'), "{:?}", heard.bytes());
    setup.client.sender.close();
}

#[tokio::test]
async fn an_approval_through_the_gate_request_grants_a_call() {
    let mut setup = set_up();
    setup.open().await;
    let tool = json!({"toolCallId": "c", "name": "Bash", "kind": "execute", "rawInput": {"command": "ls"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let params = json!({"sessionId": "s", "toolCall": tool, "options": options});
    send(&setup.agent, Setup::request(9, "session/request_permission", &params)).await;
    let question = receive(&mut setup.client).await;
    assert_eq!(question["method"], "session/request_permission");
    let (answer, open) = oneshot::channel();
    setup.inquiries.send(GateRequest::ListApprovals(answer)).await.unwrap();
    let open = open.await.unwrap();
    assert_eq!((open.len(), open[0].tool.as_str()), (1, "Bash"));
    let vote = ApprovalVote {
        id: open[0].id.clone(),
        signer: Principal { id: "user:lead".into(), ..Principal::default() },
        approves: true,
        reason: None,
        signature: None,
    };
    let (answer, outcome) = oneshot::channel();
    setup.inquiries.send(GateRequest::Vote(vote, answer)).await.unwrap();
    assert_eq!(outcome.await.unwrap(), Ok(()));
    assert_eq!(receive(&mut setup.agent).await["result"]["outcome"]["optionId"], "y");
    assert_eq!(receive(&mut setup.client).await["method"], "$/cancel_request");
    drop((setup.client.sender.clone(), setup.agent.sender.close()));
    let (ended, actions) = setup.over().await;
    assert_eq!(ended, GateExit::AgentLost);
    assert_eq!(
        actions[1..],
        [
            "policy.resolved",
            "operator.suspended",
            "policy.resolved",
            "operator.resumed",
            "tool.call",
            "session.closed"
        ]
    );
}

#[tokio::test]
async fn batches_are_split_and_answered_as_one() {
    let mut setup = set_up();
    let outside = Setup::request(1, "session/new", &json!({"cwd": "/", "mcpServers": []}));
    send(
        &setup.client,
        json!([outside, Setup::request(2, "x", &json!({})), {"jsonrpc": "2.0", "method": "n"}]),
    )
    .await;
    assert_eq!(receive(&mut setup.agent).await["method"], "x");
    assert_eq!(receive(&mut setup.agent).await["method"], "n");
    send(&setup.agent, json!({"jsonrpc": "2.0", "id": 2, "result": 7})).await;
    let answers = receive(&mut setup.client).await;
    assert_eq!(answers[0]["error"]["data"]["code"], "cwd_outside_root");
    assert_eq!(answers[1]["result"], 7);
    setup.client.sender.close();
    let (ended, actions) = setup.over().await;
    assert_eq!(ended, GateExit::ClientClosed);
    assert_eq!(actions, ["session.refused", "method.allowed", "method.allowed"]);
}

#[tokio::test]
async fn an_unlisted_method_is_refused_in_a_batch_too() {
    let mut setup = set_up();
    let steer = Setup::request(1, "_session/steering", &json!({"prompt": []}));
    let notification = json!({"jsonrpc": "2.0", "method": "_session/steering"});
    send(&setup.client, json!([steer, notification, Setup::request(2, "x", &json!({}))])).await;
    assert_eq!(receive(&mut setup.agent).await["method"], "x");
    send(&setup.agent, json!({"jsonrpc": "2.0", "id": 2, "result": 7})).await;
    let answers = receive(&mut setup.client).await;
    assert_eq!((&answers[0]["error"]["code"], &answers[1]["result"]), (&json!(-32015), &json!(7)));
    setup.client.sender.close();
    let (_, actions) = setup.over().await;
    assert_eq!(actions, ["method.refused", "method.refused", "method.allowed"]);
}

#[tokio::test]
async fn a_pending_request_is_answered_when_the_agent_is_lost() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    receive(&mut setup.agent).await;
    setup.agent.sender.close();
    let answer = receive(&mut setup.client).await;
    assert_eq!((answer["id"].clone(), answer["error"]["code"].clone()), (json!(2), json!(-32010)));
    let (_, actions) = setup.over().await;
    assert_eq!(actions[1..], ["operator.interrupted", "session.closed"]);
}

#[tokio::test]
async fn a_stopped_gate_closes_its_sessions_first() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    receive(&mut setup.agent).await;
    setup.inquiries.send(GateRequest::Stop).await.unwrap();
    let (ended, actions) = setup.over().await;
    assert_eq!(ended, GateExit::Stopped);
    assert_eq!(actions[1..], ["operator.interrupted", "session.closed"]);
}

fn note() -> Value {
    json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "x".repeat(3000)}})
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_reads_nothing_is_ended() {
    let setup = set_up();
    for _ in 0..8 {
        send(&setup.client, note()).await;
    }
    let since = tokio::time::Instant::now();
    let ended = setup.guard.await.unwrap();
    assert!(matches!(&ended, GateExit::AgentUnresponsive(why) if why.contains("does not read")), "{ended:?}");
    let waited = since.elapsed().as_secs();
    assert!((10..=12).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_reads_slowly_is_not_ended() {
    let mut setup = set_up();
    for _ in 0..8 {
        send(&setup.client, note()).await;
    }
    for _ in 0..8 {
        // sleep: the test is about this duration, and the clock is paused
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(receive(&mut setup.agent).await["method"], "$/cancel_request");
    }
    setup.client.sender.close();
    assert_eq!(setup.guard.await.unwrap(), GateExit::ClientClosed);
}

#[tokio::test]
async fn a_half_closed_client_gets_its_answers() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    send(&setup.client, Setup::request(3, "x", &json!({}))).await;
    setup.client.sender.close();
    for method in ["session/prompt", "x"] {
        assert_eq!(receive(&mut setup.agent).await["method"], method);
    }
    // A request that the client would have to answer is refused.
    let wants = Setup::request(7, "terminal/output", &json!({"sessionId": "s", "terminalId": "t"}));
    send(&setup.agent, wants).await;
    assert_eq!(receive(&mut setup.agent).await["id"], 7);
    send(&setup.agent, Setup::request(8, "elicitation/create", &json!({"sessionId": "s"}))).await;
    assert_eq!(receive(&mut setup.agent).await["error"]["code"], -32800);
    for id in [3, 2] {
        send(&setup.agent, json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}})).await;
        assert_eq!(receive(&mut setup.client).await["id"], id);
    }
    let (ended, actions) = setup.over().await;
    assert_eq!(ended, GateExit::ClientClosed);
    assert_eq!(actions[1..], ["method.allowed", "operator.completed", "session.closed"]);
}

#[tokio::test]
async fn a_half_closed_client_learns_of_a_lost_agent_at_once() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    setup.client.sender.close();
    receive(&mut setup.agent).await;
    // The clock is not paused earlier, because the log takes real time.
    tokio::time::pause();
    let since = tokio::time::Instant::now();
    setup.agent.sender.close();
    let answer = receive(&mut setup.client).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32010)));
    assert_eq!(since.elapsed().as_secs(), 0);
    assert_eq!(setup.over().await.0, GateExit::AgentLost);
}

#[tokio::test]
async fn a_half_closed_client_is_answered_until_a_deadline() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    send(&setup.client, Setup::request(3, "x", &json!({}))).await;
    receive(&mut setup.agent).await;
    receive(&mut setup.agent).await;
    tokio::time::pause();
    setup.client.sender.close();
    let since = tokio::time::Instant::now();
    let answer = receive(&mut setup.client).await;
    assert_eq!((&answer["id"], &answer["result"]["stopReason"]), (&json!(2), &json!("cancelled")));
    assert!(answer["result"]["_meta"]["aip44"]["interrupted"].as_str().unwrap().contains("end of input"));
    assert_eq!(receive(&mut setup.client).await["error"]["code"], -32800);
    // The measured time is not exact: paused time advances while a thread outside the runtime writes the log.
    assert!(since.elapsed() >= Duration::from_secs(5), "the agent has 5 s");
    let (ended, actions) = setup.over().await;
    assert_eq!(ended, GateExit::ClientClosed);
    assert_eq!(actions[1..], ["method.allowed", "operator.interrupted", "session.closed"]);
}

#[tokio::test]
async fn requests_to_a_half_closed_client_are_refused() {
    let mut setup = set_up();
    setup.open().await;
    send(&setup.client, Setup::request(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}))).await;
    receive(&mut setup.agent).await;
    let tool = json!({"toolCallId": "c", "name": "Bash", "kind": "execute", "rawInput": {"command": "ls"}});
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let params = json!({"sessionId": "s", "toolCall": tool, "options": options});
    for id in [9, 10] {
        send(&setup.agent, Setup::request(id, "session/request_permission", &params)).await;
        if id == 9 {
            assert_eq!(receive(&mut setup.client).await["method"], "session/request_permission");
            setup.client.sender.close();
        }
        let answer = receive(&mut setup.agent).await;
        assert_eq!(answer["result"]["outcome"]["optionId"], "n", "{answer}");
        assert!(answer["result"]["_meta"]["aip44"]["refused"].is_string(), "{answer}");
    }
    send(&setup.agent, json!({"jsonrpc": "2.0", "id": 2, "result": {"stopReason": "end_turn"}})).await;
    loop {
        let heard = receive(&mut setup.client).await;
        if heard["id"] == 2 {
            break;
        }
    }
    assert_eq!(setup.over().await.0, GateExit::ClientClosed);
}

#[tokio::test]
async fn a_client_that_does_not_read_refusals_is_not_read() {
    const REQUESTS: usize = 10_000;
    let small = narrows_link::Options { queue_bytes: 4096, ..Default::default() };
    let (client, outer) = memory::pair(&small);
    let (inner, _agent) = memory::pair(&small);
    let (_inquiries, asked) = mpsc::channel(1);
    let who = Principal { id: "user:ada".into(), ..Principal::default() };
    let policy = Policy::new(Access::High, Narrowing::default());
    let setting = GateStart { started_at: 1_700_000_000, nonce: "n".into() };
    let gate = Gate::new(GateConfig::default(), who, policy, Box::new(SystemPathResolver), setting);
    let _guard = tokio::spawn(run_gate(gate, outer, inner, None, asked));
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let sender = client.sender.clone();
    tokio::spawn(async move {
        // An id that the client may write back in another form is refused at once.
        for _ in 0..REQUESTS {
            say_line(&sender, r#"{"jsonrpc":"2.0","id":1.5,"method":"session/list"}"#).await;
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (mut quiet_rounds, mut before) = (0, 0);
    while quiet_rounds < 1_000 {
        tokio::task::yield_now().await;
        let now = sent.load(Ordering::Relaxed);
        quiet_rounds = if now == before { quiet_rounds + 1 } else { 0 };
        before = now;
    }
    assert!(before > 0 && before < REQUESTS, "{before} requests were read");
    drop(client);
}

async fn say_line(sender: &narrows_link::Sender, line: &'static str) {
    sender.send(Bytes::from_static(line.as_bytes())).await.unwrap();
}
