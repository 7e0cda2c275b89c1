//! Pings of a server: answered, but with one queued pong at most.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use narrows_remote::client::Connected;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::cuts::{open, recv};

/// Time limit of any step.
const LIMIT: Duration = Duration::from_secs(30);

/// The number of pings. Their pongs are several times larger than the kernel's buffers.
const PINGS: usize = 60_000;

/// Returns a payload of maximum length, which begins with this number.
fn payload(number: usize) -> String {
    format!("{number:0<8}{}", "x".repeat(117))
}

async fn accept(listener: &TcpListener) -> WebSocketStream<TcpStream> {
    let (stream, _) = listener.accept().await.unwrap();
    tokio_tungstenite::accept_async(stream).await.unwrap()
}

/// Returns the payloads of the pongs up to the one with this payload.
async fn pongs_until(socket: &mut WebSocketStream<TcpStream>, last: &str) -> Vec<String> {
    let mut pongs = Vec::new();
    while pongs.last().map(String::as_str) != Some(last) {
        let message = timeout(LIMIT, socket.next()).await.expect("a pong in time").unwrap().unwrap();
        if let Message::Pong(payload) = message {
            pongs.push(String::from_utf8(payload.to_vec()).unwrap());
        }
    }
    pongs
}

#[tokio::test]
async fn a_server_that_pings_and_does_not_read_has_one_pong_queued() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/acp", listener.local_addr().unwrap());
    let (Connected { mut link, .. }, mut socket) = tokio::join!(open(&url), accept(&listener));
    for number in 0..PINGS {
        socket.feed(Message::Ping(payload(number).into())).await.unwrap();
    }
    socket.send(r#"{"jsonrpc":"2.0","method":"done"}"#.into()).await.unwrap();
    // When this message arrives, all pings have been read.
    assert_eq!(recv(&mut link).await.method().as_deref(), Some("done"));
    let pongs = pongs_until(&mut socket, &payload(PINGS - 1)).await;
    assert!(pongs.len() < PINGS / 2, "{} pongs were queued", pongs.len());
}

#[tokio::test]
async fn pings_of_a_server_that_reads_are_answered_with_their_payload() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/acp", listener.local_addr().unwrap());
    let (Connected { mut link, .. }, mut socket) = tokio::join!(open(&url), accept(&listener));
    for sent in ["", "a", &payload(1)] {
        socket.send(Message::Ping(sent.to_owned().into())).await.unwrap();
        assert_eq!(pongs_until(&mut socket, sent).await, [sent]);
    }
    // Between the frames of one message.
    let halves = [r#"{"jsonrpc":"2.0","#, r#""method":"done"}"#];
    let first = Frame::message(halves[0], OpCode::Data(Data::Text), false);
    let second = Frame::message(halves[1], OpCode::Data(Data::Continue), true);
    socket.send(Message::Frame(first)).await.unwrap();
    socket.send(Message::Ping("between".into())).await.unwrap();
    socket.send(Message::Frame(second)).await.unwrap();
    assert_eq!(recv(&mut link).await.method().as_deref(), Some("done"));
    assert_eq!(pongs_until(&mut socket, "between").await, ["between"]);
}
