//! WebSockets: messages of every shape, and clients that violate the protocol.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::super::HttpLimits;
use super::kit::{Agent, LONG, Reader, listener, receive, send, short_timeouts, start, start_with, web};

fn prompt(id: u32, count: usize) -> serde_json::Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": {"sessionId": "s", "count": count}})
}

#[tokio::test]
async fn messages_both_ways() {
    let running = start(listener(), HttpLimits::default());
    let (mut socket, response) = web(running.address, &[("sec-websocket-protocol", "acp")]).await.unwrap();
    assert_eq!(response.status(), 101);
    assert!(response.headers().contains_key("acp-connection-id"));
    assert!(!response.headers().contains_key("sec-websocket-extensions"));
    assert!(running.agent.opened.lock().unwrap().is_empty(), "no backend is opened before the first message");
    send(&mut socket, &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})).await;
    assert_eq!(receive(&mut socket).await.unwrap()["result"]["protocolVersion"], 1);
    send(&mut socket, &prompt(1, 3000)).await;
    for number in 1..=3000 {
        assert_eq!(receive(&mut socket).await.unwrap()["params"]["update"]["number"], number);
    }
    assert_eq!(receive(&mut socket).await.unwrap()["id"], 1);
    // The client sends many messages at once. One of them is longer than any buffer.
    let long = "x".repeat(3 << 20);
    for number in 0..500 {
        let text = if number == 250 { &*long } else { "" };
        let message = json!({"jsonrpc": "2.0", "id": number, "method": "_x", "params": {"text": text}});
        socket.feed(Message::text(message.to_string())).await.unwrap();
    }
    socket.flush().await.unwrap();
    for number in 0..500 {
        let answer = receive(&mut socket).await.unwrap();
        assert_eq!(answer["id"], number);
        assert_eq!(
            answer["result"]["echo"]["text"].as_str().unwrap().len(),
            if number == 250 { long.len() } else { 0 }
        );
    }
    socket.close(None).await.unwrap();
    assert_eq!(receive(&mut socket).await, Err(1000));
    assert_eq!(running.agent.opened.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_message_in_a_frame_becomes_one_line() {
    let running = start(listener(), HttpLimits::default());
    let (mut socket, _) = web(running.address, &[]).await.unwrap();
    let pretty =
        format!("{:#}\n", json!({"jsonrpc": "2.0", "id": 1, "method": "_x", "params": {"a": ["b\nc"]}}));
    socket.send(Message::text(pretty)).await.unwrap();
    assert_eq!(receive(&mut socket).await.unwrap()["result"]["echo"], json!({"a": ["b\nc"]}));
    // Invalid JSON stays invalid.
    socket.send(Message::text("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\nb\"}")).await.unwrap();
    assert_eq!(receive(&mut socket).await.unwrap()["error"]["code"], -32700);
    for blank in ["", " ", "\n\n"] {
        socket.send(Message::text(blank)).await.unwrap();
        assert_eq!(receive(&mut socket).await.unwrap()["error"]["code"], -32700, "{blank:?}");
    }
    // A batch is passed on like any other message.
    socket.send(Message::text("[1,2]")).await.unwrap();
    socket.send(Message::text(prompt(7, 0).to_string())).await.unwrap();
    while receive(&mut socket).await.unwrap()["id"] != 7 {}
    let heard = running.agent.heard.lock().unwrap();
    assert_eq!(heard.len(), 4);
    assert_eq!(heard[2], "[1,2]");
}

#[tokio::test]
async fn fragments() {
    let running = start(listener(), HttpLimits::default());
    let (mut socket, _) = web(running.address, &[]).await.unwrap();
    let message = prompt(1, 0).to_string();
    let count = message.len();
    for (at, byte) in message.bytes().enumerate() {
        let opcode = OpCode::Data(if at == 0 { Data::Text } else { Data::Continue });
        socket.feed(Message::Frame(Frame::message(vec![byte], opcode, at == count - 1))).await.unwrap();
        if at == 10 {
            socket.feed(Message::Ping("between".into())).await.unwrap();
        }
    }
    socket.flush().await.unwrap();
    let pong = socket.next().await.unwrap().unwrap();
    assert_eq!(pong, Message::Pong("between".into()));
    assert_eq!(receive(&mut socket).await.unwrap()["id"], 1);
}

#[tokio::test]
async fn close_codes() {
    let running = start(listener(), HttpLimits { max_message: 1000, ..HttpLimits::default() });
    let check = async |message: Message, code: u16| {
        for greeted in [false, true] {
            let (mut socket, _) = web(running.address, &[]).await.unwrap();
            if greeted {
                send(&mut socket, &prompt(1, 0)).await;
                receive(&mut socket).await.unwrap();
            }
            socket.send(message.clone()).await.unwrap();
            assert_eq!(receive(&mut socket).await, Err(code), "{message:?}");
        }
    };
    check(Message::binary(b"{}".to_vec()), 1003).await;
    check(Message::text("x".repeat(1001)), 1009).await;
    check(Message::Frame(Frame::message(vec![0xff], OpCode::Data(Data::Text), true)), 1007).await;
    check(Message::Frame(Frame::message(vec![], OpCode::Data(Data::Continue), true)), 1002).await;
    let (mut socket, _) = web(running.address, &[]).await.unwrap();
    send(&mut socket, &json!({"jsonrpc": "2.0", "method": "_test/close"})).await;
    assert_eq!(receive(&mut socket).await, Err(1001), "the agent has closed");
    let (mut socket, _) = web(running.address, &[]).await.unwrap();
    running.handle.shutdown();
    assert_eq!(receive(&mut socket).await, Err(1001));
    let refusing = start_with(listener(), HttpLimits::default(), Agent { refuses: true, ..Agent::default() });
    let (mut socket, _) = web(refusing.address, &[]).await.unwrap();
    send(&mut socket, &prompt(1, 0)).await;
    let answer = receive(&mut socket).await.unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32012)));
    assert_eq!(receive(&mut socket).await, Err(1013));
}

#[tokio::test]
async fn invalid_upgrades_are_refused() {
    let running = start(listener(), HttpLimits::default());
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let status = async |more: &[(&str, &str)]| {
        let headers = [&upgrade[..], more].concat();
        Reader::send(running.address, "GET", "/acp", &headers, "").await.head().await
    };
    let version = ("sec-websocket-version", "13");
    let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answer = status(&[("sec-websocket-version", "8"), key]).await;
    assert_eq!((answer.status, answer.header("sec-websocket-version")), (426, Some("13")));
    assert_eq!(status(&[version]).await.status, 400);
    assert_eq!(status(&[version, ("sec-websocket-key", "short")]).await.status, 400);
    let answer = status(&[version, key]).await;
    assert_eq!(
        (answer.status, answer.header("sec-websocket-accept")),
        (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
    );
}

#[tokio::test]
async fn a_message_sent_with_the_upgrade_is_not_lost() {
    let running = start(listener(), HttpLimits::default());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let mut bytes = b"GET /acp HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".to_vec();
    let message = br#"{"jsonrpc":"2.0","method":"_x"}"#;
    // The mask is all zeros. The close frame is in the same write.
    bytes.extend([0x81, 0x80 | message.len() as u8, 0, 0, 0, 0]);
    bytes.extend(message);
    bytes.extend([0x88, 0x80, 0, 0, 0, 0]);
    stream.write_all(&bytes).await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    let heard = async {
        while running.agent.heard.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, heard).await.unwrap();
}

#[tokio::test]
async fn a_web_socket_without_a_message_is_closed_although_it_answers_pings() {
    let running = start(listener(), HttpLimits { max_connections_per_identity: 1, ..short_timeouts() });
    let (mut silent, _) = web(running.address, &[]).await.unwrap();
    assert_eq!(web(running.address, &[]).await.err(), Some(429), "the only slot is taken");
    // The WebSocket library answers pings while it reads.
    assert_eq!(receive(&mut silent).await, Err(1008));
    let again = async {
        while web(running.address, &[]).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, again).await.expect("the slot is free");
}

#[tokio::test]
async fn a_client_that_answers_pings_stays_and_others_are_closed() {
    let running = start(listener(), short_timeouts());
    let (mut alive, _) = web(running.address, &[]).await.unwrap();
    send(&mut alive, &prompt(0, 0)).await;
    assert_eq!(receive(&mut alive).await.unwrap()["id"], 0);
    // Pings are answered while the socket is read.
    let pings = async {
        let mut count = 0;
        while count < 6 {
            count += usize::from(alive.next().await.unwrap().unwrap().is_ping());
        }
    };
    let (mut dead, _) = web(running.address, &[]).await.unwrap();
    send(&mut dead, &prompt(1, 0)).await;
    let began = Instant::now();
    let half_open = async {
        // This client only reads and never sends.
        let mut rest = Vec::new();
        dead.get_mut().read_to_end(&mut rest).await.unwrap();
        began.elapsed()
    };
    let (gone, ()) = tokio::time::timeout(LONG, async { tokio::join!(half_open, pings) }).await.unwrap();
    assert!(gone >= Duration::from_millis(550), "{gone:?}");
    send(&mut alive, &prompt(1, 0)).await;
    assert_eq!(receive(&mut alive).await.unwrap()["id"], 1);
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_no_other_and_is_closed() {
    let running = start(listener(), short_timeouts());
    let (mut slow, _) = web(running.address, &[]).await.unwrap();
    let text = "x".repeat(1000);
    send(&mut slow, &json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"count": 20_000, "text": text}})).await;
    let (mut other, _) = web(running.address, &[]).await.unwrap();
    for id in 0..10 {
        send(&mut other, &prompt(id, 100)).await;
        while receive(&mut other).await.unwrap()["id"] != id {}
    }
    drop(other);
    running.agent.ended(2).await;
}

#[tokio::test]
async fn garbage_ends_one_socket_and_nothing_else() {
    let running = start(listener(), HttpLimits::default());
    let (mut good, _) = web(running.address, &[]).await.unwrap();
    for seed in 0..50_u8 {
        let (mut bad, _) = web(running.address, &[]).await.unwrap();
        let bytes: Vec<u8> =
            (0..=255).map(|byte: u8| byte.wrapping_mul(31).wrapping_add(seed.wrapping_mul(7))).collect();
        bad.get_mut().write_all(&bytes).await.unwrap();
        bad.get_mut().shutdown().await.unwrap();
        let mut rest = Vec::new();
        _ = tokio::time::timeout(LONG, bad.get_mut().read_to_end(&mut rest)).await.unwrap();
        let mut raw = TcpStream::connect(running.address).await.unwrap();
        raw.write_all(&bytes).await.unwrap();
        raw.shutdown().await.unwrap();
        _ = tokio::time::timeout(LONG, raw.read_to_end(&mut rest)).await.unwrap();
        send(&mut good, &prompt(seed.into(), 0)).await;
        assert_eq!(receive(&mut good).await.unwrap()["id"], seed);
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let figures = std::fs::read_to_string("/proc/self/statm").unwrap();
    figures.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn an_idle_connection_uses_little_memory() {
    const COUNT: usize = 400;
    let running = start(listener(), HttpLimits::default());
    let open = async || {
        let mut reader = Reader::send(
            running.address,
            "GET",
            "/acp",
            &[
                ("connection", "upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
            "",
        )
        .await;
        assert_eq!(reader.head().await.status, 101);
        let mut stream = reader.stream.into_inner();
        let message = prompt(1, 3).to_string();
        let mut frame = vec![0x81, 0x80 | 126, 0, message.len() as u8, 0, 0, 0, 0];
        frame[3] = u8::try_from(message.len()).unwrap();
        frame.extend(message.bytes());
        stream.write_all(&frame).await.unwrap();
        // The frame starts with the first byte of the response, whatever it is.
        stream.read_u8().await.unwrap();
        stream
    };
    let _warm = open().await;
    let before = resident();
    let mut kept = Vec::new();
    for _ in 0..COUNT {
        kept.push(open().await);
    }
    let each = resident().saturating_sub(before) / COUNT;
    // The memory includes that of the agent and the client, which are in the same process.
    assert!(each < 40 << 10, "{each} bytes");
    println!("{each} bytes each");
}
