//! Two sockets for one connection: the newest wins.

use futures_util::{SinkExt, StreamExt};
use narrows_remote::client::Connected;
use narrows_remote::resume::{ResumeRequest, ResumeResponse};
use narrows_wire::View;
use tokio_tungstenite::tungstenite::Message;

use crate::cuts::{ask, initialize, open, recv};
use crate::server::{Carrier, Server};

/// Takes the connection over, as a late attempt would, and drops it.
async fn take_over(server: &Server, received: u64) {
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(server.url(server.address), stream).await.unwrap();
    let ask = ResumeRequest { id: "1".into(), connection: server.only_connection(), received };
    socket.send(Message::Text(ask.line().try_into().unwrap())).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_data();
    assert!(matches!(
        ResumeResponse::read(&View::parse(&answer), b"1"),
        Some(ResumeResponse::Resumed { .. })
    ));
}

#[tokio::test]
async fn a_client_takes_its_connection_back_from_a_late_attempt() {
    let server = Server::start(Carrier::Web, true, false).await;
    let Connected { mut link, outcome } = open(&server.url(server.address)).await;
    initialize(&mut link).await;
    for number in 1..=3 {
        ask(&link, "echo", number).await;
        assert_eq!(recv(&mut link).await.id(), Some(number.to_string().as_bytes()));
        take_over(&server, number + 1).await;
    }
    ask(&link, "echo", 4).await;
    assert_eq!(recv(&mut link).await.id(), Some(b"4".as_slice()));
    assert!(server.fenced() >= 3);
    assert_eq!(server.counts().0, 4);
    drop(link);
    outcome.wait().await.unwrap();
}
