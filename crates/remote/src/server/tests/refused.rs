//! HTTP/2 requests that are refused while their bodies are being sent.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::HttpLimits;
use super::kit::{LONG, listener, start, start_with_token};

pub(super) const DATA: u8 = 0;
const HEADERS: u8 = 1;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the head of a `POST` with literal names and values.
pub(super) fn head(address: SocketAddr, stream: u32, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // The bytes stand for `:method: POST`, `:scheme: http` and the name `:path` in the static table.
    let mut block = vec![0x83, 0x86, 0x04];
    block.extend(text(path));
    block.push(0x01);
    block.extend(text(&address.to_string()));
    for (name, value) in headers {
        block.push(0);
        block.extend(text(name));
        block.extend(text(value));
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// Reads up to the end of the stream. Returns the kinds of its frames and its body.
async fn read_response(socket: &mut TcpStream) -> (Vec<u8>, String) {
    let (mut kinds, mut said) = (Vec::new(), String::new());
    loop {
        let Received { kind, flags, stream, payload } = receive(socket).await;
        if stream != 1 || !matches!(kind, DATA | HEADERS | RESET) {
            continue;
        }
        kinds.push(kind);
        if kind == DATA {
            said.push_str(std::str::from_utf8(&payload).unwrap());
        }
        if kind == RESET || flags & END_STREAM != 0 {
            return (kinds, said);
        }
    }
}

pub(super) struct Received {
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

pub(super) async fn receive(socket: &mut TcpStream) -> Received {
    let mut head = [0; 9];
    timeout(LONG, socket.read_exact(&mut head)).await.expect("a frame in time").unwrap();
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    socket.read_exact(&mut payload).await.unwrap();
    Received { kind, flags, stream: u32::from_be_bytes(stream), payload }
}

/// Sends the head of a request without its body.
pub(super) async fn begin(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    socket.write_all(&head(address, 1, path, headers)).await.unwrap();
    socket
}

/// Checks that there is no response before the body; by then the server has announced its window.
async fn unanswered(socket: &mut TcpStream) {
    let early = timeout(Duration::from_millis(100), read_response(socket)).await;
    assert!(early.is_err(), "before the body: {early:?}");
}

#[tokio::test]
async fn a_short_body_is_read_before_its_refusal() {
    let (running, _, token) = start_with_token(HttpLimits { max_message: 1000, ..HttpLimits::default() });
    let known = format!("Bearer {token}");
    let (known, json) = (("authorization", &*known), ("content-type", "application/json"));
    for (path, headers, expected) in [
        ("/acp", &[("authorization", "Bearer nrw_wrong")][..], "not authorized\n"),
        ("/acp", &[("origin", "https://evil.example")], "origin not allowed\n"),
        ("/other", &[known], "not found\n"),
        ("/acp", &[known], "only application/json is accepted\n"),
        ("/acp", &[known, json], "the message is too long\n"),
    ] {
        let mut socket = begin(running.address, path, headers).await;
        unanswered(&mut socket).await;
        for flags in [0, 0, 0, END_STREAM] {
            socket.write_all(&frame(DATA, flags, 1, &[b'x'; 16 << 10])).await.unwrap();
        }
        assert_eq!(read_response(&mut socket).await, (vec![HEADERS, DATA], expected.to_owned()));
    }
}

#[tokio::test]
async fn a_long_or_missing_body_does_not_delay_a_refusal() {
    let running = start(listener(), HttpLimits::default());
    let refused = (vec![HEADERS, DATA], "only application/json is accepted\n".to_owned());
    let began = Instant::now();
    let mut socket = begin(running.address, "/acp", &[]).await;
    assert_eq!(read_response(&mut socket).await, refused);
    assert!(began.elapsed() < LONG / 2);
    let mut socket = begin(running.address, "/acp", &[]).await;
    unanswered(&mut socket).await;
    for _ in 0..5 {
        socket.write_all(&frame(DATA, 0, 1, &[b'x'; 16 << 10])).await.unwrap();
    }
    assert_eq!(read_response(&mut socket).await, refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_receives_the_status() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: there is no curl");
        return;
    }
    let running = start(listener(), HttpLimits::default());
    let url = format!("http://{}/acp", running.address);
    let body = "x".repeat(40_000);
    for (origin, status) in [("https://evil.example", "403"), ("https://app.example", "415")].repeat(10) {
        let mut command = Command::new("curl");
        command.args(["-q", "--noproxy", "*", "-sS", "--max-time", "20", "--http2-prior-knowledge"]);
        command.args(["-o", "/dev/null", "-w", "%{http_code}", "--data-binary", &body]);
        command.args(["-H", &format!("origin: {origin}"), &url]);
        let done = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let (said, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        // A curl without HTTP/2 support exits with 1 and reports only that.
        assert!(done.status.code() == Some(1) || (said == status && done.status.success()), "{said} {error}");
    }
}
