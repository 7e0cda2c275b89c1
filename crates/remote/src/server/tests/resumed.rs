//! Resumable connections over WebSocket and lines.

use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use bytes::Bytes;
use narrows_wire::View;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::{Adopted, HttpLimits};
use super::kit::{
    JSON, LONG, Running, Web, expect_disconnects, listener, receive, send, short_timeouts, start,
    start_with_token, web,
};
use crate::identity::Identity;
use crate::resume::{self, ConnectionName};

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "_meta": {"narrows": {"resume": 1}}}})
}

fn ask(connection: &ConnectionName, received: u64) -> Value {
    let ask =
        resume::ResumeRequest { id: Bytes::from_static(b"\"r\""), connection: connection.clone(), received };
    serde_json::from_slice(&ask.line()).unwrap()
}

fn echo(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "_x", "params": {"n": id}})
}

/// A resumable client over WebSocket or lines.
struct Client {
    end: End,
    connection: ConnectionName,
    received: u64,
}

enum End {
    Web(Box<Web>),
    Lines(BufReader<UnixStream>),
}

impl End {
    async fn open(running: &Running, lines: bool) -> Self {
        if !lines {
            let (socket, _) = web(running.address, &[]).await.unwrap();
            // Bytes in flight must be fewer than those kept for replay, so the kernel buffer is limited.
            rustix::net::sockopt::set_socket_recv_buffer_size(socket.get_ref(), 256 << 10).unwrap();
            return Self::Web(Box::new(socket));
        }
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        running.handle.adopt(Adopted::Unix(theirs), Bytes::new(), Identity::local(), 0).unwrap();
        Self::Lines(BufReader::new(UnixStream::from_std(ours).unwrap()))
    }

    async fn send(&mut self, message: &Value) {
        match self {
            Self::Web(socket) => send(socket, message).await,
            Self::Lines(stream) => stream.write_all(format!("{message}\n").as_bytes()).await.unwrap(),
        }
    }

    async fn receive(&mut self) -> Option<Value> {
        match self {
            Self::Web(socket) => receive(socket).await.ok(),
            Self::Lines(stream) => {
                let mut line = String::new();
                tokio::time::timeout(LONG, stream.read_line(&mut line)).await.unwrap().ok()?;
                serde_json::from_str(&line).ok()
            }
        }
    }
}

impl Client {
    async fn open(running: &Running, lines: bool) -> Self {
        let mut end = End::open(running, lines).await;
        end.send(&initialize()).await;
        let answer = end.receive().await.unwrap();
        let (granted, plain) = resume::granted(answer.to_string().as_bytes()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&plain).unwrap()["result"], json!({"protocolVersion": 1}));
        assert_eq!(granted.grace.as_secs(), running.handle.shared.limits.grace.as_secs());
        Self { end, connection: granted.connection, received: 1 }
    }

    async fn receive(&mut self) -> Value {
        let message = self.end.receive().await.unwrap();
        self.received += 1;
        message
    }

    /// Resumes on another socket. Returns the number of messages that the server has received.
    async fn resume(&mut self, running: &Running, lines: bool) -> Result<u64, Value> {
        let mut end = End::open(running, lines).await;
        end.send(&ask(&self.connection, self.received)).await;
        let answer = end.receive().await.unwrap();
        assert_eq!(answer["id"], "r");
        self.end = end;
        answer["result"]["received"].as_u64().ok_or_else(|| answer["error"].clone())
    }
}

#[tokio::test]
async fn missed_messages_are_replayed_and_received_ones_are_not() {
    let running = start(listener(), HttpLimits::default());
    for lines in [false, true] {
        let mut client = Client::open(&running, lines).await;
        for cut in 0..60_u64 {
            let before = client.received;
            client.end.send(&json!({"jsonrpc": "2.0", "id": cut, "method": "session/prompt", "params": {"sessionId": "s", "count": 5}})).await;
            // The socket is cut after some of the responses were read, and perhaps before the request has
            // arrived. Each kind of socket can continue a connection that began on the other kind.
            for number in 0..cut % 7 {
                check(&client.receive().await, number, cut);
            }
            let taken = client.resume(&running, lines ^ (cut % 2 == 0)).await.unwrap();
            let sent = 2 + cut;
            assert!(taken == sent || taken == sent - 1, "{taken} of {sent}");
            if taken < sent {
                client.end.send(&json!({"jsonrpc": "2.0", "id": cut, "method": "session/prompt", "params": {"sessionId": "s", "count": 5}})).await;
            }
            for number in client.received - before..6 {
                check(&client.receive().await, number, cut);
            }
        }
    }
    assert_eq!(running.agent.opened.lock().unwrap().len(), 2);
    let heard = running.agent.heard.lock().unwrap();
    assert_eq!(heard.len(), 2 * 61, "each request has reached the agent once");
}

#[track_caller]
fn check(message: &Value, number: u64, id: u64) {
    match number {
        ..5 => assert_eq!(message["params"]["update"]["number"], number + 1),
        _ => assert_eq!(message["id"], id),
    }
}

#[tokio::test]
async fn connections_without_the_capability_are_not_kept() {
    let running = start(listener(), HttpLimits::default());
    let mut end = End::open(&running, false).await;
    end.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"_meta": {"narrows": {"resume": 2}}}})).await;
    assert_eq!(end.receive().await.unwrap()["result"], json!({"protocolVersion": 1}));
    // A connection whose `initialize` the agent refuses cannot be resumed either.
    let mut end = End::open(&running, true).await;
    end.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"fail": true, "_meta": {"narrows": {"resume": 1}}}})).await;
    let refused = end.receive().await.unwrap();
    assert_eq!((&refused["error"]["code"], refused.get("result")), (&json!(-32603), None));
    end.send(&echo(1)).await;
    assert_eq!(end.receive().await.unwrap()["result"]["echo"]["n"], 1, "the connection continues");
}

#[tokio::test]
async fn a_detached_connection_makes_room_for_a_new_one() {
    let running = start(listener(), HttpLimits::default());
    running.agent.most.store(2, std::sync::atomic::Ordering::Relaxed);
    let (mut lost, mut here) = (Client::open(&running, false).await, Client::open(&running, false).await);
    let mut third = End::open(&running, false).await;
    third.send(&initialize()).await;
    assert_eq!(third.receive().await.unwrap()["error"]["code"], -32012, "all clients are connected");
    lost.end = third;
    expect_disconnects(&running, [1, 0, 0, 0]).await;
    let mut third = Client::open(&running, false).await;
    for client in [&mut here, &mut third] {
        client.end.send(&echo(1)).await;
        assert_eq!(client.receive().await["result"]["echo"]["n"], 1);
    }
    assert!(lost.resume(&running, false).await.is_err(), "its slot is taken");
}

#[tokio::test]
async fn the_newest_socket_wins() {
    let running = start(listener(), HttpLimits::default());
    for lines in [false, true] {
        let mut client = Client::open(&running, lines).await;
        let mut old = End::open(&running, lines).await;
        std::mem::swap(&mut old, &mut client.end);
        client.resume(&running, lines).await.unwrap();
        let fence = old.receive().await.unwrap();
        assert!(resume::is_fence(&View::parse(fence.to_string().as_bytes())), "{fence}");
        assert_eq!(old.receive().await, None, "the socket is closed");
        client.end.send(&echo(1)).await;
        assert_eq!(client.receive().await["result"]["echo"]["n"], 1);
    }
}

/// The messages that one client receives while another one resumes the same connection.
struct Share {
    numbers: Vec<u64>,
    /// `true` if another client has taken over the connection.
    fenced: bool,
}

async fn share(end: &mut End, connection: &ConnectionName, received: u64, count: u64) -> Share {
    end.send(&ask(connection, received)).await;
    let answer = end.receive().await.unwrap();
    assert!(answer["result"]["received"].is_u64(), "{answer}");
    let mut share = Share { numbers: Vec::new(), fenced: false };
    while (share.numbers.len() as u64) < count {
        let Some(message) = end.receive().await else { break };
        if resume::is_fence(&View::parse(message.to_string().as_bytes())) {
            share.fenced = true;
            assert_eq!(end.receive().await, None, "the socket is closed");
            break;
        }
        share.numbers.push(message["params"]["update"]["number"].as_u64().unwrap_or(0));
    }
    share
}

#[tokio::test]
async fn of_two_concurrent_resumes_one_gets_everything_and_the_other_a_fence() {
    let running = start(listener(), HttpLimits::default());
    for round in 0..40_u64 {
        let lines = round % 2 == 0;
        let mut client = Client::open(&running, lines).await;
        let count = 2000;
        client
            .end
            .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "s", "count": count}}))
            .await;
        let seen = round * 7;
        for number in 0..seen {
            assert_eq!(client.receive().await["params"]["update"]["number"], number + 1);
        }
        let (mut one, mut other) =
            (End::open(&running, lines).await, End::open(&running, lines ^ (round % 4 < 2)).await);
        // There is one response in addition to the updates.
        let rest = count - seen + 1;
        let (connection, received) = (&client.connection, client.received);
        let (first, second) = tokio::join!(
            share(&mut one, connection, received, rest),
            share(&mut other, connection, received, rest),
        );
        let whole: Vec<u64> = (seen + 1..=count).chain([0]).collect();
        let (winner, kept, lost) = match (first.fenced, second.fenced) {
            (true, false) => (&mut other, second, first),
            (false, true) => (&mut one, first, second),
            // One client had received everything before the other one resumed, so both have everything.
            _ => {
                assert_eq!((first.numbers, second.numbers), (whole.clone(), whole));
                continue;
            }
        };
        assert_eq!(kept.numbers, whole, "nothing is lost or doubled");
        assert!(whole.starts_with(&lost.numbers), "{:?}", lost.numbers);
        // The next message arrives once.
        winner.send(&echo(round + 100)).await;
        assert_eq!(winner.receive().await.unwrap()["id"], round + 100);
    }
    let heard = running.agent.heard.lock().unwrap();
    let echoes = heard.iter().filter(|line| line.contains("\"_x\"")).count();
    let mut each: Vec<&String> = heard.iter().filter(|line| line.contains("\"_x\"")).collect();
    each.dedup();
    assert_eq!(each.len(), echoes);
}

#[tokio::test]
async fn resume_requests_that_are_refused() {
    let running = start(listener(), HttpLimits { replay_bytes: 1000, ..HttpLimits::default() });
    for lines in [false, true] {
        let mut end = End::open(&running, lines).await;
        end.send(&ask(&ConnectionName::new([7; 16]), 0)).await;
        let unknown = end.receive().await.unwrap();
        assert_eq!((&unknown["id"], &unknown["error"]["code"]), (&json!("r"), &json!(-32002)));
        assert_eq!(end.receive().await, None);
        let mut end = End::open(&running, lines).await;
        end.send(
            &json!({"jsonrpc": "2.0", "id": 1, "method": "_narrows/resume", "params": {"connection": 7}}),
        )
        .await;
        assert_eq!(end.receive().await.unwrap()["error"]["code"], -32602);
        let mut client = Client::open(&running, lines).await;
        client
            .end
            .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"count": 100}}))
            .await;
        for _ in 0..101 {
            client.receive().await;
        }
        client.received = 5;
        let gap = client.resume(&running, lines).await.unwrap_err();
        assert_eq!(gap["data"]["condition"], "cursor_gap");
        client.received = 1000;
        assert_eq!(client.resume(&running, lines).await.unwrap_err()["data"]["condition"], "cursor_gap");
        client.received = 102;
        assert_eq!(client.resume(&running, lines).await.unwrap(), 2, "a wrong count has changed nothing");
        let times = 1 + u64::from(lines);
        // The client of the previous round was dropped meanwhile, which counts as another lost socket.
        expect_disconnects(&running, [2 * times - 1, times, 2 * times, 0]).await;
    }
}

#[tokio::test]
async fn a_foreign_connection_cannot_be_resumed() {
    let (running, file, token) = start_with_token(HttpLimits::default());
    let other = crate::tokens::add(&file, "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    running.handle.reload().unwrap();
    let (mut socket, _) =
        web(running.address, &[("authorization", &format!("Bearer {token}"))]).await.unwrap();
    send(&mut socket, &initialize()).await;
    let answer = receive(&mut socket).await.unwrap();
    let (granted, _) = resume::granted(answer.to_string().as_bytes()).unwrap();
    let (mut thief, _) =
        web(running.address, &[("authorization", &format!("Bearer {other}"))]).await.unwrap();
    send(&mut thief, &ask(&granted.connection, 1)).await;
    let unknown = receive(&mut thief).await.unwrap();
    assert_eq!(
        (&unknown["error"]["code"], &unknown["error"]["data"]["condition"]),
        (&json!(-32002), &json!("not_found"))
    );
    send(&mut socket, &echo(1)).await;
    assert_eq!(receive(&mut socket).await.unwrap()["id"], 1, "the owner is not affected");
}

#[tokio::test]
async fn a_detached_connection_expires() {
    let running = start(
        listener(),
        HttpLimits { grace: Duration::from_millis(200), replay_bytes: 10_000, ..short_timeouts() },
    );
    for lines in [false, true] {
        let mut client = Client::open(&running, lines).await;
        // The agent produces more than is kept, so it has to wait.
        client
            .end
            .send(
                &json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"count": 20_000}}),
            )
            .await;
        client.receive().await;
        drop(client);
        running.agent.ended(1 + usize::from(lines)).await;
        expect_disconnects(&running, [1 + u64::from(lines), 0, 0, 1 + u64::from(lines)]).await;
    }
}

#[tokio::test]
async fn a_closed_connection_is_not_kept() {
    let running = start(listener(), HttpLimits::default());
    // Over lines, the client sends a farewell. The messages before the farewell are received.
    let mut client = Client::open(&running, true).await;
    client.end.send(&echo(1)).await;
    client.end.send(&serde_json::from_slice(&resume::farewell()).unwrap()).await;
    running.agent.ended(1).await;
    assert_eq!(running.agent.heard.lock().unwrap().len(), 2);
    let client = Client::open(&running, false).await;
    let End::Web(mut socket) = client.end else { panic!("a WebSocket") };
    socket.close(None).await.unwrap();
    while receive(&mut socket).await.is_ok() {}
    running.agent.ended(2).await;
    expect_disconnects(&running, [0; 4]).await;
}

#[tokio::test]
async fn output_that_does_not_fit_waits_without_loss() {
    let running = start(listener(), HttpLimits { replay_bytes: 2 << 20, ..HttpLimits::default() });
    for lines in [false, true] {
        let mut client = Client::open(&running, lines).await;
        client
            .end
            .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"count": 6000, "text": "x".repeat(1000)}}))
            .await;
        for number in 0..100 {
            assert_eq!(client.receive().await["params"]["update"]["number"], number + 1);
        }
        for from in [100, 3000, 5999] {
            while client.received < from + 1 {
                let number = client.received;
                assert_eq!(client.receive().await["params"]["update"]["number"], number);
            }
            client.resume(&running, lines).await.unwrap();
        }
        let number = client.received;
        assert_eq!(client.receive().await["params"]["update"]["number"], number);
        assert_eq!(client.receive().await["id"], 1);
    }
}

#[tokio::test]
async fn an_excess_connection_is_refused_with_a_reason() {
    let running = start(listener(), HttpLimits { max_connections_per_identity: 1, ..HttpLimits::default() });
    let mut kept = Client::open(&running, true).await;
    let mut end = End::open(&running, true).await;
    assert_eq!(end.receive().await.unwrap()["error"]["code"], -32012);
    assert_eq!(end.receive().await, None);
    // A client that resumes does not count as another one.
    drop_socket(&mut kept).await;
    kept.resume(&running, true).await.unwrap();
    kept.end.send(&echo(1)).await;
    assert_eq!(kept.receive().await["id"], 1);
}

/// Drops the socket of a client without a close, and waits until the server has noticed.
async fn drop_socket(client: &mut Client) {
    match &mut client.end {
        End::Web(socket) => socket.get_mut().shutdown().await.unwrap(),
        End::Lines(stream) => stream.shutdown().await.unwrap(),
    }
    assert_eq!(client.end.receive().await, None);
}

#[tokio::test]
async fn detached_connections_count_against_the_limit() {
    const MOST: usize = 3;
    for lines in [false, true] {
        let running =
            start(listener(), HttpLimits { max_connections_per_identity: MOST, ..HttpLimits::default() });
        let mut held = Vec::new();
        for _ in 0..MOST {
            let mut client = Client::open(&running, lines).await;
            drop_socket(&mut client).await;
            held.push(client);
        }
        // Only the first message shows whether a client resumes.
        for first in [initialize(), echo(0)] {
            let mut end = End::open(&running, lines).await;
            end.send(&first).await;
            let refused = end.receive().await.unwrap();
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(0), &json!(-32012)));
            assert_eq!(end.receive().await, None);
        }
        let post = super::kit::ask(running.address, "POST", &[JSON], &initialize().to_string()).await;
        assert_eq!(post.status, 429);
        let limit = running.handle.refused().into_iter().find(|(reason, _)| *reason == "limit").unwrap();
        assert_eq!((limit.1, running.agent.opened.lock().unwrap().len()), (3, MOST));
        for client in &mut held {
            client.resume(&running, lines).await.unwrap();
            client.end.send(&echo(1)).await;
            assert_eq!(client.receive().await["id"], 1);
        }
        assert_eq!(web(running.address, &[]).await.err(), Some(429), "no client is detached any more");
    }
}

#[tokio::test]
async fn input_read_before_an_adoption_is_not_lost() {
    let running = start(listener(), HttpLimits::default());
    let line = format!("{}\n", initialize());
    for cut in [1, line.len() / 2, line.len(), line.len() + 5] {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let all = format!("{line}{}\n", echo(1));
        let (head, rest) = all.split_at(cut);
        running
            .handle
            .adopt(Adopted::Unix(theirs), Bytes::copy_from_slice(head.as_bytes()), Identity::local(), 0)
            .unwrap();
        let mut end = End::Lines(BufReader::new(UnixStream::from_std(ours).unwrap()));
        let End::Lines(stream) = &mut end else { panic!("lines") };
        stream.write_all(rest.as_bytes()).await.unwrap();
        assert_eq!(end.receive().await.unwrap()["id"], 0);
        assert_eq!(end.receive().await.unwrap()["id"], 1);
    }
}

#[tokio::test]
async fn a_shutdown_ends_detached_connections() {
    let mut running = start(listener(), HttpLimits::default());
    let mut client = Client::open(&running, false).await;
    let lost = Client::open(&running, true).await;
    drop(lost);
    running.handle.shutdown();
    assert_eq!(client.end.receive().await, None);
    running.agent.ended(2).await;
    tokio::time::timeout(LONG, &mut running.served).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_sends_blank_messages_and_reads_no_reply_is_disconnected() {
    let limits =
        HttpLimits { replay_memory: 1 << 20, replay_memory_per_identity: 1 << 20, ..HttpLimits::default() };
    let running = start(listener(), limits);
    let End::Web(mut socket) = Client::open(&running, false).await.end else { panic!("expected frames") };
    let mut ended = running.agent.ended.subscribe();
    let flood = async {
        for _ in 0..1_000_000 {
            if futures_util::SinkExt::feed(&mut socket, Message::text("")).await.is_err() {
                return;
            }
        }
        panic!("the client is still read");
    };
    tokio::select! {
        biased;
        _ = ended.wait_for(|ended| *ended == 1) => {}
        () = flood => {}
    }
    tokio::time::timeout(LONG, ended.wait_for(|ended| *ended == 1)).await.unwrap().unwrap();
}
