//! Proxies that respond in place of the server for a while, or cut idle connections repeatedly.

use std::time::{Duration, Instant};

use narrows_remote::client::{ClientOptions, Connected, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::cuts::{ask, initialize, open, pass, recv};
use crate::cutter::Cutter;
use crate::server::{Carrier, Server};

#[tokio::test]
async fn a_proxy_response_does_not_end_the_connection() {
    let server = Server::start(Carrier::Web, true, false).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = server.url(listener.local_addr().unwrap());
    let (connected, first) = tokio::join!(open(&url), pass(&listener, server.address));
    let Connected { mut link, outcome } = connected;
    initialize(&mut link).await;
    first.abort();
    ask(&link, "echo", 1).await;
    for said in [
        "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "who are you?\r\n",
    ] {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 2048]).await.unwrap() > 0);
        stream.write_all(said.as_bytes()).await.unwrap();
    }
    // A WebSocket server without resumable connections.
    let (stream, _) = listener.accept().await.unwrap();
    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
    futures_util::SinkExt::send(&mut socket, "hello".into()).await.unwrap();
    let _second = pass(&listener, server.address).await;
    assert_eq!(recv(&mut link).await.id(), Some(b"1".as_slice()));
    drop(link);
    outcome.wait().await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_survives_any_number_of_cuts() {
    let server = Server::start(Carrier::Web, true, false).await;
    let cutter = Cutter::start(server.address, u64::MAX).await;
    let grace_period = Duration::from_millis(500);
    let options = ClientOptions { grace_period, ..ClientOptions::default() };
    let Connected { mut link, outcome } =
        connect(&server.url(cutter.address).parse().unwrap(), options).await.unwrap();
    initialize(&mut link).await;
    let state = outcome.state();
    let began = Instant::now();
    while began.elapsed() < grace_period * 5 {
        let before = server.resumed();
        cutter.close(true);
        cutter.close(false);
        while server.resumed() == before || state.outage().is_some() {
            assert!(began.elapsed() < grace_period * 20, "the connection is resumed");
            tokio::task::yield_now().await;
        }
    }
    ask(&link, "echo", 1).await;
    assert_eq!(recv(&mut link).await.id(), Some(b"1".as_slice()));
    drop(link);
    outcome.wait().await.unwrap();
}
