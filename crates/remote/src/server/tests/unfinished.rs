//! Incomplete messages, and the limits of their memory.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::super::{Adopted, HttpLimits};
use super::kit::{
    JSON, LONG, Reader, Running, ask, connect, expect_disconnects, initialize, listener, receive,
    short_timeouts, start, start_with_token,
};
use crate::identity::Identity;
use crate::tokens;

const MIB: usize = 1 << 20;

fn long() -> HttpLimits {
    HttpLimits { max_message: 64 * MIB, ..short_timeouts() }
}

/// Posts a body of which only `sent` bytes arrive.
async fn unfinished(at: SocketAddr, token: &str, sent: usize) -> Reader {
    let known = format!("Bearer {token}");
    let length = (60 * MIB).to_string();
    let headers = [JSON, ("authorization", &*known), ("content-length", &length)];
    let mut reader = Reader::send(at, "POST", "/acp", &headers, "").await;
    let piece = vec![b'x'; MIB];
    let sending = async {
        for _ in 0..sent / MIB {
            if reader.stream.get_mut().write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    // The server may stop reading, so sending may fail.
    _ = tokio::time::timeout(LONG / 4, sending).await;
    reader
}

#[tokio::test]
async fn unfinished_bodies_of_one_identity_are_bounded_and_do_not_affect_others() {
    // The first body must not time out before the others arrive.
    let limits = HttpLimits { header_timeout: LONG, ..long() };
    let (running, file, one) = start_with_token(limits);
    let two = tokens::add(&file, "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    running.handle.reload().unwrap();
    let at = running.address;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(unfinished(at, &one, 25 * MIB).await);
    }
    let bytes = |who: &str| {
        let part = running.handle.shared.unfinished.part(&Identity::new(crate::identity::Proof::Token, who));
        part.held()
    };
    assert!(bytes("one") <= 64 * MIB, "{}", bytes("one"));
    assert!(bytes("one") > 45 * MIB, "{}", bytes("one"));
    // The other identity is not affected.
    let known = format!("Bearer {two}");
    let answer = ask(at, "POST", &[JSON, ("authorization", &known)], &initialize(0)).await;
    assert_eq!(answer.status, 200);
    let name = answer.header("acp-connection-id").unwrap().to_owned();
    let text = "x".repeat(MIB);
    let message = serde_json::json!({"jsonrpc": "2.0", "method": "_x", "params": {"text": text}}).to_string();
    let headers = [JSON, ("authorization", &*known), ("acp-connection-id", &*name)];
    assert_eq!(ask(at, "POST", &headers, &message).await.status, 202);
    drop(held);
    let gone = async {
        while bytes("one") > 0 || bytes("two") > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, gone).await.expect("the memory of closed connections is released");
}

#[tokio::test]
async fn short_bodies_on_one_http2_socket_are_counted() {
    const COUNT: usize = 100;
    const SENT: usize = 15 << 10;
    let running = start(listener(), HttpLimits { header_timeout: LONG, ..HttpLimits::default() });
    _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let url = format!("http://{}/acp", running.address);
    // The first request opens the socket that all requests share.
    let first = client.post(&url).header(JSON.0, JSON.1).body(initialize(0)).send().await.unwrap();
    assert_eq!(first.status(), 200);
    let mut posting = tokio::task::JoinSet::new();
    for _ in 0..COUNT {
        let piece = futures_util::stream::once(async { Ok::<_, std::io::Error>(vec![b' '; SENT]) });
        let body = reqwest::Body::wrap_stream(piece.chain(futures_util::stream::pending()));
        posting.spawn(client.post(&url).header(JSON.0, JSON.1).body(body).send());
    }
    let part = running.handle.shared.unfinished.part(&Identity::local());
    let counted = async {
        // One message uses the free allowance of the socket, and is not counted.
        while part.held() < (COUNT - 1) * SENT {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, counted).await.expect("the unfinished messages are counted");
    drop((posting, client));
    let gone = async {
        while part.held() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, gone).await.expect("the memory of closed connections is released");
}

#[tokio::test]
async fn a_body_over_the_memory_limit_is_refused_and_a_short_one_is_not() {
    let running = start(listener(), short_timeouts());
    let name = connect(running.address).await;
    let post = async |length: usize| {
        let text = "x".repeat(length);
        let message =
            serde_json::json!({"jsonrpc": "2.0", "method": "_x", "params": {"text": text}}).to_string();
        ask(running.address, "POST", &[JSON, ("acp-connection-id", &name)], &message).await.status
    };
    assert_eq!(post(100 << 10).await, 202);
    let mut all = running.handle.shared.unfinished.part(&Identity::local());
    assert!(all.resize(64 * MIB));
    assert_eq!(post(100 << 10).await, 429);
    assert_eq!(post(1 << 10).await, 202);
    drop(all);
    assert_eq!(post(100 << 10).await, 202);
}

#[tokio::test]
async fn a_stalled_message_ends_its_web_socket_although_pings_are_answered() {
    let running = start(listener(), short_timeouts());
    let (mut web, _) = super::kit::web(running.address, &[]).await.unwrap();
    super::kit::send(&mut web, &serde_json::from_str(&initialize(0)).unwrap()).await;
    receive(&mut web).await.unwrap();
    let begun = Frame::message(vec![b'x'; 100 << 10], OpCode::Data(Data::Text), false);
    web.send(Message::Frame(begun)).await.unwrap();
    // The WebSocket library answers pings while it reads.
    assert_eq!(receive(&mut web).await, Err(1013));
}

/// Opens a WebSocket, byte by byte, and begins a message of 60 MiB.
async fn open_with_long_message(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!(
        "GET /acp HTTP/1.1\r\nhost: {at}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.unwrap());
    }
    let length = (60 * MIB as u64).to_be_bytes();
    stream.write_all(&[&[0x81, 0xff][..], &length, &[0; 4]].concat()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_web_socket_with_an_endless_message_makes_room() {
    let running = start(listener(), long());
    let mut all = running.handle.shared.unfinished.part(&Identity::local());
    assert!(all.resize(60 * MIB));
    let mut stream = open_with_long_message(running.address).await;
    let piece = vec![b'x'; MIB];
    let mut answer = Vec::new();
    let (mut from, mut to) = stream.split();
    let sending = async {
        for _ in 0..10 {
            // The server stops reading once there is no room.
            _ = to.write_all(&piece).await;
        }
    };
    let reading = async { from.read_to_end(&mut answer).await };
    let (_, read) = tokio::join!(sending, tokio::time::timeout(LONG, reading));
    _ = read.expect("closed in time");
    // The client receives a close frame with the code for "try again later".
    assert_eq!(
        answer.get(..4).map(|head| (head[0], u16::from_be_bytes([head[2], head[3]]))),
        Some((0x88, 1013))
    );
    // Short messages of the same identity are not affected.
    let (mut web, _) = super::kit::web(running.address, &[]).await.unwrap();
    super::kit::send(&mut web, &serde_json::from_str(&initialize(0)).unwrap()).await;
    receive(&mut web).await.unwrap();
}

/// Opens a resumable connection over lines, and sends `lines` after `initialize`.
async fn resumable(running: &Running, lines: &str) -> UnixStream {
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    running.handle.adopt(Adopted::Unix(theirs), Bytes::new(), Identity::local(), 0).unwrap();
    let mut stream = UnixStream::from_std(ours).unwrap();
    let initialize =
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"_meta":{"narrows":{"resume":1}}}}"#;
    stream.write_all(format!("{initialize}\n{lines}").as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn whole_messages_count_until_the_backend_reads_them() {
    let limits = HttpLimits {
        max_message: 4 * MIB,
        unfinished_per_identity: 4 * MIB,
        replay_bytes: 64 << 10,
        ..HttpLimits::default()
    };
    let running = start(listener(), limits);
    let held = || running.handle.shared.unfinished.part(&Identity::local()).held();
    let text = "x".repeat(3 * MIB);
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"_x\",\"params\":[\"{text}\"]}}\n");
    // The agent does not read while its own output is not read.
    let prompt = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"count":20000}}"#;
    let stuck = resumable(&running, &format!("{prompt}\n{long}")).await;
    let is_held = async {
        while held() < 3 * MIB {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, is_held).await.expect("a counted message");
    // It still counts when the client is gone, because its connection is kept.
    drop(stuck);
    expect_disconnects(&running, [1, 0, 0, 0]).await;
    assert!(held() >= 3 * MIB, "{}", held());
    let mut other = resumable(&running, "").await;
    _ = tokio::time::timeout(LONG, other.write_all(long.as_bytes())).await.unwrap();
    let mut rest = Vec::new();
    _ = tokio::time::timeout(LONG, other.read_to_end(&mut rest)).await.expect("no room for another one");
    assert!(held() <= 4 * MIB, "{}", held());
    // Room for one of them is enough for short messages.
    let mut short = resumable(&running, "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"_y\"}\n").await;
    let mut read = String::new();
    while !read.contains("\"id\":7") {
        let mut piece = [0; 1024];
        let count = tokio::time::timeout(LONG, short.read(&mut piece)).await.unwrap().unwrap();
        assert!(count > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
}
