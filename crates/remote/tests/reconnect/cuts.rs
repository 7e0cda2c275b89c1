//! Connections that are cut at every message boundary and at random bytes, while both sides stream.

use std::net::SocketAddr;
use std::time::Duration;

use narrows_link::Link;
use narrows_remote::client::{ClientOptions, Connected, connect};
use narrows_wire::{Frame, Kind, message};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::cutter::Cutter;
use crate::server::{Carrier, Server};

/// Longer than any step takes on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the number of cuts: few by default, as many as requested in a long run.
fn wanted_cuts() -> u64 {
    std::env::var("NARROWS_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(100)
}

pub(crate) async fn open(url: &str) -> Connected {
    connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap()
}

pub(crate) async fn recv(link: &mut Link) -> Frame {
    timeout(STEP_TIMEOUT, link.receiver.recv())
        .await
        .expect("in time")
        .expect("a message, and not the end of the input")
}

pub(crate) async fn initialize(link: &mut Link) {
    let line = message::request(b"\"init\"", "initialize", &json!({"protocolVersion": 1})).unwrap();
    link.sender.send(line).await.unwrap();
    let answer = recv(link).await;
    assert_eq!(answer.bytes(), r#"{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":1}}"#);
}

pub(crate) async fn ask(link: &Link, method: &str, number: u64) {
    let line = message::request(number.to_string().as_bytes(), method, &[number]).unwrap();
    link.sender.send(line).await.unwrap();
}

/// Sends and receives until `enough`, and checks that every message arrived once and in order.
async fn stream(server: &Server, url: &str, enough: impl Fn(u64) -> bool, calm: impl FnOnce()) {
    // The first socket is not cut: the connection is not resumable before.
    let Connected { mut link, outcome } = loop {
        if let Ok(connected) = connect(&url.parse().unwrap(), ClientOptions::default()).await {
            break connected;
        }
    };
    initialize(&mut link).await;
    let sender = link.sender.clone();
    let (mut asked, mut answered, mut updates) = (0_u64, 0_u64, 0_u64);
    let mut calm = Some(calm);
    let mut stopped = false;
    loop {
        if !stopped && enough(answered) {
            if let Some(calm) = calm.take() {
                calm();
            }
            server.stop_streaming();
            stopped = true;
        }
        if stopped && answered == asked && updates == server.counts().1 {
            break;
        }
        // Up to 50 requests are pending at a time.
        if !stopped && asked < answered + 50 {
            asked += 1;
            let line = message::request(asked.to_string().as_bytes(), "echo", &[asked]).unwrap();
            sender.send(line).await.unwrap();
        }
        while let Ok(Some(frame)) = timeout(Duration::from_millis(1), link.receiver.recv()).await {
            match frame.kind() {
                Kind::Response => {
                    answered += 1;
                    assert_eq!(frame.id(), Some(answered.to_string().as_bytes()), "{:?}", frame.bytes());
                }
                Kind::Notification => {
                    updates += 1;
                    let params: Value = frame.read_params().unwrap();
                    assert_eq!(params["n"], updates);
                }
                kind => panic!("{kind:?} {:?}", frame.bytes()),
            }
            if asked < answered + 25 {
                break;
            }
        }
    }
    assert_eq!(server.counts(), (asked, updates));
    assert!(updates > 0 && asked > 0);
    drop((link, sender));
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

async fn at_random_bytes(carrier: Carrier) {
    let server = Server::start(carrier, true, true).await;
    let cutter = Cutter::start(server.address, 20_000).await;
    let url = server.url(cutter.address);
    let wanted = wanted_cuts();
    timeout(STEP_TIMEOUT * 10, stream(&server, &url, |_| cutter.cuts() >= wanted, || cutter.calm(true)))
        .await
        .unwrap();
    assert!(cutter.cuts() >= wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_socket_is_cut_at_random_bytes() {
    at_random_bytes(Carrier::Web).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_are_cut_at_random_bytes() {
    at_random_bytes(Carrier::Lines).await;
}

/// Cuts after the first message of each socket, then after the second of each, and so on.
async fn at_every_boundary(carrier: Carrier) {
    let server = Server::start(carrier, true, true).await;
    let wanted = wanted_cuts();
    let enough = |_| {
        let cuts = server.cuts();
        server.cut_after(2 + cuts % 40);
        cuts >= wanted
    };
    server.cut_after(2);
    let url = server.url(server.address);
    timeout(STEP_TIMEOUT * 10, stream(&server, &url, enough, || server.cut_after(0))).await.unwrap();
    assert!(server.cuts() >= wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_socket_is_cut_at_every_boundary() {
    at_every_boundary(Carrier::Web).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_are_cut_at_every_boundary() {
    at_every_boundary(Carrier::Lines).await;
}

/// Forwards the next connection to `to`, until that is aborted.
pub(crate) async fn pass(listener: &TcpListener, to: SocketAddr) -> AbortHandle {
    let (mut from, _) = listener.accept().await.unwrap();
    let mut to = TcpStream::connect(to).await.unwrap();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await }).abort_handle()
}
