//! Tests of a gate in a chain, on real links. The test plays the conductor.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::Bytes;
use narrows_govern::{
    Gate, GateConfig, GateExit, GateStart, Principal, SystemPathResolver, run_gate, split_proxy_link,
};
use narrows_link::{Link, Options, memory};
use narrows_policy::{Access, Narrowing, Policy};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

fn chain(options: &Options) -> (Link, JoinHandle<GateExit>) {
    let config = GateConfig {
        operator: "notes".into(),
        roots: vec!["/".into()],
        client_methods: vec!["_a".into()],
        agent_methods: vec!["_b".into()],
        ..GateConfig::default()
    };
    let policy = Policy::new(Access::High, Narrowing::default());
    let setting = GateStart { started_at: 1, nonce: "n".into() };
    let gate = Gate::new(config, Principal::default(), policy, Box::new(SystemPathResolver), setting);
    let (conductor, ours) = memory::pair(options);
    let (predecessor, successor) = split_proxy_link(ours, options);
    let (_, asked) = mpsc::channel(1);
    (conductor, tokio::spawn(run_gate(gate, predecessor, successor, None, asked)))
}

async fn send(link: &Link, value: Value) {
    link.sender.send(Bytes::from(value.to_string())).await.unwrap();
}

async fn receive(link: &mut Link) -> Value {
    serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap()
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn chunk_update(number: usize, text: &str) -> Value {
    let content = json!({"type": "text", "text": text});
    let update =
        json!({"sessionUpdate": "agent_message_chunk", "_meta": {"number": number}, "content": content});
    let inner = json!({"method": "session/update", "params": {"sessionId": "s", "update": update}});
    json!({"jsonrpc": "2.0", "method": "proxy/successor", "params": inner})
}

#[tokio::test]
async fn both_neighbors_are_reached_through_the_conductor() {
    let (mut conductor, gate) = chain(&Options::default());
    send(&conductor, request(7, "proxy/initialize", &json!({"protocolVersion": 1}))).await;
    let asked = receive(&mut conductor).await;
    assert_eq!(
        (&asked["method"], &asked["params"]["method"]),
        (&json!("proxy/successor"), &json!("initialize"))
    );
    let result = json!({"protocolVersion": 1, "agentCapabilities": {}});
    send(&conductor, json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})).await;
    let answer = receive(&mut conductor).await;
    assert_eq!(
        (&answer["id"], &answer["result"]["_meta"]["aip44"]["operator"]),
        (&json!(7), &json!("notes"))
    );
    // A batch is answered as one, whichever neighbor answers its entries.
    let wrapped = request(9, "proxy/successor", &json!({"method": "_b", "params": {}}));
    send(&conductor, json!([request(8, "_a", &json!({})), wrapped])).await;
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let asked = receive(&mut conductor).await;
        numbers.push(asked["id"].clone());
    }
    for number in numbers {
        send(&conductor, json!({"jsonrpc": "2.0", "id": number, "result": {}})).await;
    }
    let answers = receive(&mut conductor).await;
    assert_eq!(answers.as_array().map(Vec::len), Some(2), "{answers}");
    conductor.sender.close();
    assert_eq!(gate.await.unwrap(), GateExit::ClientClosed);
    assert!(conductor.receiver.recv().await.is_none());
}

#[tokio::test]
async fn a_conductor_that_does_not_read_is_not_read_from() {
    let options = Options { queue_bytes: 4 << 10, ..Options::default() };
    let (mut conductor, gate) = chain(&options);
    send(&conductor, request(1, "session/new", &json!({"cwd": "/", "mcpServers": []}))).await;
    let asked = receive(&mut conductor).await;
    send(&conductor, json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"sessionId": "s"}})).await;
    assert_eq!(receive(&mut conductor).await["result"]["sessionId"], "s");
    let text = "x".repeat(1 << 10);
    let sender = conductor.sender.clone();
    let mut flood = tokio::spawn(async move {
        for number in 0..2_000 {
            sender.send(Bytes::from(chunk_update(number, &text).to_string())).await.unwrap();
        }
    });
    let all = tokio::time::timeout(Duration::from_millis(300), &mut flood).await;
    assert!(all.is_err(), "messages that the peer does not read are bounded");
    for number in 0..2_000 {
        assert_eq!(receive(&mut conductor).await["params"]["update"]["_meta"]["number"], number);
    }
    flood.await.unwrap();
    conductor.sender.close();
    assert_eq!(gate.await.unwrap(), GateExit::ClientClosed);
}

#[tokio::test]
async fn methods_and_sessions_are_judged_in_a_chain_too() {
    let (mut conductor, gate) = chain(&Options::default());
    send(&conductor, request(1, "_session/steering", &json!({}))).await;
    assert_eq!(receive(&mut conductor).await["error"]["code"], -32015);
    send(&conductor, chunk_update(0, "of another")).await;
    assert!(matches!(gate.await.unwrap(), GateExit::AgentViolation(_)));
}

#[tokio::test]
async fn links_are_closed_when_the_gate_ends() {
    let (mut conductor, gate) = chain(&Options::default());
    send(&conductor, request(1, "_a", &json!({}))).await;
    receive(&mut conductor).await;
    gate.abort();
    assert!(conductor.receiver.recv().await.is_none());
}
