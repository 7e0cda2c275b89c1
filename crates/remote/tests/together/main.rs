//! The client and the HTTP server of this crate with a proxy between them that cuts: everything arrives once and in
//! order.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod begin;
mod between;
mod breaker;
mod children;
#[expect(dead_code, reason = "the other tests use all of it")]
#[path = "../reconnect/cutter.rs"]
mod cutter;
mod odd;
mod swallower;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use narrows_link::Link;
use narrows_remote::client::{ClientOptions, Connected, connect};
use narrows_remote::identity::Identity;
use narrows_remote::server::{
    Adopted, Backend, ClientAuth, HttpLimits, HttpListenerConfig, HttpServer, HttpServerHandle, Opening,
};
use narrows_wire::{Frame, Kind, message};
use serde_json::{Value, json};
use tokio::time::timeout;

use cutter::Cutter;
use swallower::Swallower;

const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the number of cuts: few by default, as many as requested in a long run.
fn wanted_cuts(few: u64) -> u64 {
    std::env::var("NARROWS_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(few)
}

/// Answers every request, with an update of the session before each response.
#[derive(Default)]
struct Agent {
    opened: AtomicU64,
    /// The number of ended connections.
    ended: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    gate: Arc<Gate>,
    /// The responses of the client.
    received: Arc<Mutex<Vec<Value>>>,
}

/// Blocks an agent until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }
}

impl Backend for Agent {
    fn open(&self, _: Identity, _: usize) -> Opening<'_> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (asked, gate, received) =
            (Arc::clone(&self.asked), Arc::clone(&self.gate), Arc::clone(&self.received));
        let ended = Arc::clone(&self.ended);
        Box::pin(async move {
            let (ours, theirs) = UnixStream::pair()?;
            std::thread::spawn(move || {
                run_agent(&theirs, &asked, &gate, &received);
                ended.fetch_add(1, Ordering::SeqCst);
            });
            Ok(ours)
        })
    }
}

fn run_agent(
    stream: &UnixStream,
    asked: &AtomicU64,
    gate: &Gate,
    received: &Mutex<Vec<Value>>,
) -> Option<()> {
    let mut updates = 0;
    let mut out = stream;
    for line in BufReader::new(stream).lines() {
        let message: Value = serde_json::from_str(&line.ok()?).unwrap();
        let id = &message["id"];
        let Some(method) = message["method"].as_str() else {
            received.lock().unwrap().push(message);
            continue;
        };
        let result = match method {
            "initialize" => json!({"protocolVersion": 1}),
            "session/new" => json!({"sessionId": "s"}),
            "$/cancel_request" => continue,
            _ => {
                asked.fetch_add(1, Ordering::Relaxed);
                if let Some(child) = message["params"]["child"].as_str() {
                    ask_in_child(stream, child)?;
                }
                if message["params"]["ask"] == true {
                    let ask = json!({"jsonrpc": "2.0", "id": "q", "method": "fs/read_text_file", "params": {"sessionId": "s"}});
                    out.write_all(format!("{ask}\n").as_bytes()).ok()?;
                }
                for _ in 0..message["params"]["count"].as_u64().unwrap_or(1) {
                    updates += 1;
                    let update = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "n": updates}});
                    out.write_all(format!("{update}\n").as_bytes()).ok()?;
                    if message["params"]["wait"] == true {
                        gate.pass();
                    }
                }
                json!({})
            }
        };
        out.write_all(format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "result": result})).as_bytes())
            .ok()?;
    }
    Some(())
}

/// Announces a child session, which sends an update and a request.
fn ask_in_child(mut out: &UnixStream, child: &str) -> Option<()> {
    let say = |session: &str, update: Value| json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}});
    let lines = [
        say("s", json!({"sessionUpdate": "subagent_update", "sessionId": child})),
        say(child, json!({"sessionUpdate": "agent_message_chunk"})),
        json!({"jsonrpc": "2.0", "id": "k", "method": "session/request_permission", "params": {"sessionId": child}}),
    ];
    lines.iter().try_for_each(|line| out.write_all(format!("{line}\n").as_bytes()).ok())
}

struct Running {
    address: SocketAddr,
    handle: HttpServerHandle,
    agent: Arc<Agent>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

fn start(limits: HttpLimits) -> Running {
    let agent = Arc::new(Agent::default());
    let listener = HttpListenerConfig {
        number: 0,
        address: "127.0.0.1:0".parse().unwrap(),
        path: "/acp".to_owned(),
        auth: ClientAuth::None,
        origins: Vec::new(),
        hosts: Vec::new(),
        tls: None,
    };
    let front = HttpServer::bind(vec![listener], limits, Arc::clone(&agent) as Arc<dyn Backend>).unwrap();
    let (address, handle) = (front.local_addrs()[0], front.handle());
    tokio::spawn(front.serve());
    Running { address, handle, agent }
}

/// Opens a line-based port whose connections are handed over to the server.
async fn lines(handle: HttpServerHandle) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            handle
                .adopt(Adopted::Tcp(stream.into_std().unwrap()), Bytes::new(), Identity::local(), 0)
                .unwrap();
        }
    });
    address
}

async fn recv(link: &mut Link) -> Frame {
    timeout(STEP_TIMEOUT, link.receiver.recv())
        .await
        .expect("in time")
        .expect("a message, and not the end of the input")
}

async fn send(link: &Link, id: &str, method: &str, params: &Value) {
    link.sender.send(message::request(id.as_bytes(), method, params).unwrap()).await.unwrap();
}

/// Sends and receives until there were enough cuts, and checks that everything arrived once and in order.
async fn stream(running: &Running, cutter: &Cutter, url: &str) {
    let (Connected { mut link, outcome }, initialized) = loop {
        // The first socket is not cut: the connection is not resumable before.
        if let Ok(mut connected) = connect(&url.parse().unwrap(), ClientOptions::default()).await {
            send(&connected.link, "\"init\"", "initialize", &json!({"protocolVersion": 1})).await;
            let first = recv(&mut connected.link).await;
            if first.error().is_none() {
                break (connected, first);
            }
        }
    };
    assert_eq!(initialized.bytes(), r#"{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":1}}"#);
    let (mut asked, mut answered, mut updates) = (0_u64, 0_u64, 0_u64);
    let wanted = wanted_cuts(100);
    while answered < asked || cutter.cuts() < wanted {
        while cutter.cuts() < wanted && asked < answered + 50 {
            asked += 1;
            send(&link, &asked.to_string(), "session/prompt", &json!({"sessionId": "s"})).await;
        }
        if cutter.cuts() >= wanted {
            cutter.calm(true);
        }
        let frame = recv(&mut link).await;
        match frame.kind() {
            Kind::Response => {
                answered += 1;
                assert_eq!(frame.id(), Some(answered.to_string().as_bytes()), "{:?}", frame.bytes());
                assert_eq!(updates, answered, "updates precede their response");
            }
            Kind::Notification => {
                updates += 1;
                assert_eq!(frame.read_params::<Value>().unwrap()["n"], updates);
            }
            kind => panic!("{kind:?} {:?}", frame.bytes()),
        }
    }
    assert_eq!(running.agent.asked.load(Ordering::Relaxed), asked, "each request took effect once");
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_socket_is_cut_at_random_bytes() {
    let running = start(HttpLimits::default());
    let cutter = Cutter::start(running.address, 10_000).await;
    let url = format!("ws://{}/acp", cutter.address);
    timeout(STEP_TIMEOUT * 10, stream(&running, &cutter, &url)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_are_cut_at_random_bytes() {
    let running = start(HttpLimits::default());
    let cutter = Cutter::start(lines(running.handle.clone()).await, 10_000).await;
    let url = format!("tcp://{}", cutter.address);
    timeout(STEP_TIMEOUT * 10, stream(&running, &cutter, &url)).await.unwrap();
}

/// Posts, which may have to be repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posts_over_http_are_cut_at_random_bytes() {
    let running = start(HttpLimits::default());
    let cutter = Cutter::start(running.address, 2_000).await;
    cutter.calm(true);
    let url = format!("http://{}/acp", cutter.address);
    let Connected { mut link, outcome } =
        connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap();
    send(&link, "\"init\"", "initialize", &json!({"protocolVersion": 1})).await;
    recv(&mut link).await;
    send(&link, "\"new\"", "session/new", &json!({"cwd": "/", "mcpServers": []})).await;
    recv(&mut link).await;
    cutter.calm(false);
    cutter.close(true);
    cutter.close(false);
    let wanted = wanted_cuts(30);
    let (mut asked, mut updates) = (0, 0);
    while cutter.cuts() < wanted {
        asked += 1;
        send(&link, &asked.to_string(), "session/prompt", &json!({"sessionId": "s"})).await;
        loop {
            let frame = recv(&mut link).await;
            if frame.kind() == Kind::Response {
                assert_eq!(frame.id(), Some(asked.to_string().as_bytes()));
                assert!(frame.error().is_none(), "no error: {:?}", frame.bytes());
                break;
            }
            updates += 1;
            assert_eq!(frame.read_params::<Value>().unwrap()["n"], updates);
        }
    }
    assert_eq!(running.agent.asked.load(Ordering::Relaxed), asked, "each request took effect once");
    assert_eq!(updates, asked);
    cutter.calm(true);
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

/// One turn that sends more data than a socket may carry before it is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_http_are_cut_at_random_bytes() {
    const MAX_BYTES_PER_SOCKET: u64 = 10_000;
    // The agent does not wait while there is no reader, so all its output may have to be kept.
    let running = start(HttpLimits { replay_bytes: 64 << 20, ..HttpLimits::default() });
    let cutter = Cutter::start(running.address, MAX_BYTES_PER_SOCKET).await;
    cutter.calm(true);
    let url = format!("http://{}/acp", cutter.address);
    let Connected { mut link, outcome: _outcome } =
        connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap();
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    recv(&mut link).await;
    send(&link, "2", "session/new", &json!({"cwd": "/", "mcpServers": []})).await;
    assert_eq!(recv(&mut link).await.id(), Some(&b"2"[..]));
    // An event has more than 80 bytes, and a socket carries half of `MAX_BYTES_PER_SOCKET` on average, so
    // there are more than enough events. A stream is reopened after a delay, so there are fewer cuts.
    let wanted = wanted_cuts(10);
    let count = wanted * MAX_BYTES_PER_SOCKET * 3 / 4 / 80;
    send(&link, "3", "session/prompt", &json!({"sessionId": "s", "count": count, "wait": true})).await;
    let mut number = 0;
    let mut hear = async |link: &mut Link| {
        number += 1;
        let frame = recv(link).await;
        assert_eq!(frame.read_params::<Value>().unwrap()["n"], number, "{:?}", frame.bytes());
    };
    hear(&mut link).await;
    // sleep: no event shows that the prompt was accepted
    tokio::time::sleep(Duration::from_millis(300)).await;
    cutter.calm(false);
    cutter.close(true);
    cutter.close(false);
    running.agent.gate.open();
    for _ in 1..count {
        hear(&mut link).await;
    }
    assert_eq!(recv(&mut link).await.id(), Some(&b"3"[..]));
    assert!(cutter.cuts() >= wanted, "{}", cutter.cuts());
    assert_eq!(running.agent.opened.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_arrive_after_the_end_of_output() {
    let running = start(HttpLimits::default());
    let url = format!("http://{}/acp", running.address);
    let Connected { mut link, outcome } =
        connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap();
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    link.sender.close();
    assert_eq!(recv(&mut link).await.id(), Some(&b"1"[..]));
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_received_events_starts_over() {
    const COUNT: u64 = 20;
    let running = start(HttpLimits::default());
    let swallower = Swallower::start(running.address, "\"id\":3").await;
    let url = format!("http://{}/acp", swallower.address);
    let Connected { mut link, outcome } =
        connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap();
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    recv(&mut link).await;
    send(&link, "2", "session/new", &json!({"cwd": "/", "mcpServers": []})).await;
    assert_eq!(recv(&mut link).await.id(), Some(&b"2"[..]));
    send(&link, "3", "session/prompt", &json!({"sessionId": "s", "count": COUNT})).await;
    for number in 1..=COUNT {
        let frame = recv(&mut link).await;
        assert_eq!(frame.read_params::<Value>().unwrap()["n"], number, "{:?}", frame.bytes());
    }
    assert_eq!(recv(&mut link).await.id(), Some(&b"3"[..]));
    assert_eq!(swallower.last_event_ids(), [None, Some("0".to_owned())], "the first request has no cursor");
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}
