//! Listeners for one user of this machine, and pools in a URL.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::{ClientAuth, HttpLimits, HttpListenerConfig};
use super::kit::{JSON, Running, ask, initialize, listener, start, web};

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn for_user(user: u32) -> Running {
    start(HttpListenerConfig { auth: ClientAuth::Owner(user), ..listener() }, HttpLimits::default())
}

fn refused(running: &Running) -> u64 {
    running.handle.refused().into_iter().find(|(reason, _)| *reason == "user").unwrap().1
}

#[tokio::test]
async fn only_the_user_that_a_listener_is_for_is_admitted() {
    let own = for_user(own_uid());
    assert_eq!(ask(own.address, "POST", &[JSON], &initialize(1)).await.status, 200);
    assert!(web(own.address, &[]).await.is_ok());
    assert_eq!(refused(&own), 0);

    let others = for_user(own_uid() + 1);
    let answer = ask(others.address, "POST", &[JSON], &initialize(1)).await;
    assert_eq!(answer.status, 403);
    assert_eq!(web(others.address, &[]).await.err(), Some(403));
    assert_eq!(refused(&others), 2);
    assert!(others.agent.heard.lock().unwrap().is_empty(), "nothing reaches an agent");
}

/// Returns the response to a GET with this target, head and body.
async fn get(address: SocketAddr, target: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_pool_in_the_query_of_a_url_is_refused_and_not_ignored() {
    let running = start(listener(), HttpLimits::default());
    for target in ["/acp?pool=echo", "/acp?a=1&POOL=echo", "/acp?pool"] {
        let answer = get(running.address, target).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("-32015"), "{target}: {answer}");
        assert!(answer.contains("select the pool in _meta of initialize"), "{target}: {answer}");
    }
    assert!(get(running.address, "/acp?pools=1").await.starts_with("HTTP/1.1 406 "));
}
