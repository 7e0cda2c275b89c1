//! Event streams that are cut are reopened immediately, but with increasing delays if they deliver nothing.

use std::time::{Duration, Instant};

use narrows_remote::client::Connected;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::cuts::{initialize, open, recv};

/// Less than the shortest delay between two attempts, which is 50 ms.
const AT_ONCE: Duration = Duration::from_millis(40);

/// Returns the method of the next request, and the socket for its response.
async fn next(listener: &TcpListener) -> (String, TcpStream) {
    let (method, _, stream) = next_of(listener).await;
    (method, stream)
}

/// Returns the method of the next request, the session of its header, and the socket for its response.
async fn next_of(listener: &TcpListener) -> (String, Option<String>, TcpStream) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut reader = BufReader::new(stream);
    let (mut first, mut length, mut session) = (String::new(), 0, None);
    reader.read_line(&mut first).await.unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("acp-session-id", value)) => session = Some(value.to_owned()),
            Some(_) => {}
            None => break,
        }
    }
    reader.read_exact(&mut vec![0; length]).await.unwrap();
    (first.split(' ').next().unwrap().to_owned(), session, reader.into_inner())
}

/// Answers `initialize` as a server that does not deduplicate posts.
async fn begin(listener: &TcpListener) {
    let (method, mut stream) = next(listener).await;
    assert_eq!(method, "POST");
    let body = r#"{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":1}}"#;
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\nacp-connection-id: c";
    let length = body.len();
    let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// Answers the next request for events with `events` and the end.
async fn cut(listener: &TcpListener, events: &str) {
    let (method, mut stream) = next(listener).await;
    assert_eq!(method, "GET");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{events}").as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_cut_is_reopened_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", listener.local_addr().unwrap());
    let Connected { mut link, .. } = open(&url).await;
    let answer = async {
        begin(&listener).await;
        cut(&listener, "").await;
    };
    tokio::join!(initialize(&mut link), answer);
    // One delay may be long on a busy machine, so the shortest of several is checked.
    let mut fastest = Duration::MAX;
    let mut closed = Instant::now();
    for number in 1..=20 {
        cut(&listener, &format!("id: {number}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"m\"}}\n\n")).await;
        fastest = fastest.min(closed.elapsed());
        closed = Instant::now();
        recv(&mut link).await;
    }
    assert!(fastest < AT_ONCE, "{fastest:?}");
    // The stream delivers no more events, so it is reopened immediately once, and then with increasing
    // delays.
    cut(&listener, "").await;
    let began = Instant::now();
    cut(&listener, "").await;
    cut(&listener, "").await;
    assert!(began.elapsed() >= 3 * AT_ONCE, "{:?}", began.elapsed());
}

/// Returns the head of a stream and its first event.
fn events(session: &str, update: &str) -> String {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let params = format!(r#"{{"sessionId":"{session}","update":{update}}}"#);
    format!("{head}data: {{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{params}}}\n\n")
}

/// Other servers may send the messages of a child session only on a stream of that session.
#[tokio::test]
async fn the_stream_of_a_child_session_is_opened_at_other_servers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", listener.local_addr().unwrap());
    let Connected { mut link, .. } = open(&url).await;
    let answer = async {
        begin(&listener).await;
        let (_, session, mut own) = next_of(&listener).await;
        assert_eq!(session, None);
        let announced = r#"{"sessionUpdate":"subagent_update","sessionId":"kid"}"#;
        own.write_all(events("s", announced).as_bytes()).await.unwrap();
        own
    };
    let ((), _own) = tokio::join!(initialize(&mut link), answer);
    let answer = async {
        let (method, session, mut stream) = next_of(&listener).await;
        assert_eq!((&*method, session.as_deref()), ("GET", Some("kid")));
        stream.write_all(events("kid", r#"{"sessionUpdate":"x"}"#).as_bytes()).await.unwrap();
        stream
    };
    assert_eq!(recv(&mut link).await.session().as_deref(), Some("s"));
    let (frame, _stream) = tokio::join!(recv(&mut link), answer);
    assert_eq!(frame.session().as_deref(), Some("kid"));
}

/// Otherwise a server could make the client open any number of streams, by naming another session in each
/// response.
#[tokio::test]
async fn only_the_response_to_a_request_that_opens_a_session_opens_its_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", listener.local_addr().unwrap());
    let Connected { mut link, .. } = open(&url).await;
    let answer = async {
        begin(&listener).await;
        let (_, session, mut own) = next_of(&listener).await;
        assert_eq!(session, None);
        own.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await.unwrap();
        own
    };
    let ((), mut own) = tokio::join!(initialize(&mut link), answer);
    let send = |id: &str, session: &str| {
        format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"sessionId\":\"{session}\"}}}}\n\n")
    };
    let unasked: String =
        (10..15).map(|number| send(&number.to_string(), &format!("unasked{number}"))).collect();
    own.write_all(unasked.as_bytes()).await.unwrap();
    for _ in 10..15 {
        recv(&mut link).await;
    }
    // One response to a request that opens a session, then another one to the same, and one with an overlong id.
    for (id, method) in [("1", "session/new"), ("2", "session/list"), ("3", "_x/open")] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
        link.sender.send(line.into()).await.unwrap();
        let (method, session, mut stream) = next_of(&listener).await;
        assert_eq!((&*method, session), ("POST", None), "{id}");
        let accepted = b"HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(accepted).await.unwrap();
    }
    let long = "x".repeat(5000);
    let answers = [send("2", "listed"), send("3", &long), send("1", "asked"), send("1", "again")].concat();
    own.write_all(answers.as_bytes()).await.unwrap();
    for _ in 0..4 {
        recv(&mut link).await;
    }
    let (method, session, _stream) = next_of(&listener).await;
    assert_eq!((&*method, session.as_deref()), ("GET", Some("asked")));
    let line = r#"{"jsonrpc":"2.0","method":"m"}"#;
    link.sender.send(line.into()).await.unwrap();
    let (method, ..) = next_of(&listener).await;
    assert_eq!(method, "POST", "no other stream was opened");
}
