//! A stream of events that is cut off is had again at once, and not in haste where that is of no use.

use std::time::{Duration, Instant};

use narrows_remote::client::Connected;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::cuts::{initialize, open, recv};

/// Less than a wait between two attempts ever is, which is 50 ms.
const AT_ONCE: Duration = Duration::from_millis(40);

/// The next request: its method, and what its answer goes to.
async fn next(listener: &TcpListener) -> (String, TcpStream) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).await.unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    reader.read_exact(&mut vec![0; length]).await.unwrap();
    (first.split(' ').next().unwrap().to_owned(), reader.into_inner())
}

/// The next request for events, and the answer to it: `events`, and the end.
async fn cut(listener: &TcpListener, events: &str) {
    let (method, mut stream) = next(listener).await;
    assert_eq!(method, "GET");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{events}").as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_cut_off_is_had_again_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", listener.local_addr().unwrap());
    let Connected { mut link, .. } = open(&url).await;
    let answer = async {
        let (method, mut stream) = next(&listener).await;
        assert_eq!(method, "POST");
        let body = r#"{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":1}}"#;
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\nacp-connection-id: c";
        let length = body.len();
        let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        // Cut off before anything came.
        cut(&listener, "").await;
    };
    tokio::join!(initialize(&mut link), answer);
    // A busy machine may be slow now and then, but not always.
    let mut fastest = Duration::MAX;
    let mut closed = Instant::now();
    for number in 1..=20 {
        cut(&listener, &format!("id: {number}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"m\"}}\n\n")).await;
        fastest = fastest.min(closed.elapsed());
        closed = Instant::now();
        recv(&mut link).await;
    }
    assert!(fastest < AT_ONCE, "{fastest:?}");
    // Nothing comes of it any more: once at once, and then less and less often.
    cut(&listener, "").await;
    let began = Instant::now();
    cut(&listener, "").await;
    cut(&listener, "").await;
    assert!(began.elapsed() >= 3 * AT_ONCE, "{:?}", began.elapsed());
}
