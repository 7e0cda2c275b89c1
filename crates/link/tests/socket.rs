//! Tests of links over TCP and unix sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use bytes::Bytes;
use narrows_link::socket::{Address, AddressError, ListenError, Listener, connect};
use narrows_link::{CloseReason, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LINE: Bytes = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"x"}"#);

#[test]
fn addresses_are_displayed_as_they_are_written() {
    let tcp = |host: &str| Ok(Address::Tcp(host.to_owned()));
    let unix = |path: &str| Ok(Address::Unix(PathBuf::from(path)));
    for (text, expected) in [
        ("tcp://127.0.0.1:9000", tcp("127.0.0.1:9000")),
        ("tcp://localhost:0/", tcp("localhost:0")),
        ("tcp://[::1]:80", tcp("[::1]:80")),
        ("tcp://localhost", Err(AddressError::Port("tcp://localhost".to_owned()))),
        ("tcp://:80", Err(AddressError::Port("tcp://:80".to_owned()))),
        ("tcp://h:99999", Err(AddressError::Port("tcp://h:99999".to_owned()))),
        ("unix:/run/x.sock", unix("/run/x.sock")),
        ("unix:///run/x.sock", unix("/run/x.sock")),
        ("unix:x.sock", unix("x.sock")),
        ("unix:", Err(AddressError::Path)),
        ("http://h:80", Err(AddressError::Scheme("http://h:80".to_owned()))),
    ] {
        assert_eq!(text.parse(), expected, "{text}");
    }
    for text in ["tcp://127.0.0.1:9000", "unix:/run/x.sock"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
}

async fn echoes(address: &Address) {
    let listener = Listener::bind(address, &Options::default()).await.unwrap();
    let address = listener.address().unwrap();
    let serve = tokio::spawn(async move {
        let mut link = listener.accept().await.unwrap();
        while let Some(frame) = link.receiver.recv().await {
            link.sender.send(frame.into_bytes()).await.unwrap();
        }
        link.receiver.reason()
    });
    let mut link = connect(&address, &Options::default()).await.unwrap();
    for _ in 0..100 {
        link.sender.send(LINE).await.unwrap();
    }
    for _ in 0..100 {
        assert_eq!(link.receiver.recv().await.unwrap().bytes(), &LINE);
    }
    link.sender.close();
    assert_eq!(serve.await.unwrap(), CloseReason::Eof);
    assert!(link.receiver.recv().await.is_none());
}

#[tokio::test]
async fn frames_travel_over_tcp() {
    echoes(&"tcp://127.0.0.1:0".parse().unwrap()).await;
}

#[tokio::test]
async fn frames_travel_over_a_unix_socket_that_only_its_owner_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let address = Address::Unix(path.clone());
    echoes(&address).await;
    assert!(!path.exists(), "a listener cleans up after itself");
    let listener = Listener::bind(&address, &Options::default()).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the socket is left");

    let second = Listener::bind(&address, &Options::default()).await;
    assert!(matches!(second, Err(ListenError::InUse(_))), "{second:?}");
    drop(listener);
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Listener::bind(&Address::Unix(path.clone()), &Options::default()).await.unwrap());

    std::fs::write(&path, "precious").unwrap();
    let refused = Listener::bind(&Address::Unix(path.clone()), &Options::default()).await;
    assert!(matches!(refused, Err(ListenError::NotASocket(_))), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    let nowhere = Address::Unix(folder.path().join("no/such/folder/s"));
    let refused = Listener::bind(&nowhere, &Options::default()).await;
    assert!(matches!(refused, Err(ListenError::Io { .. })), "{refused:?}");
}

#[tokio::test]
async fn only_loopback_addresses_can_be_listened_on() {
    for address in ["tcp://0.0.0.0:0", "tcp://[::]:0"] {
        let refused = Listener::bind(&address.parse().unwrap(), &Options::default()).await;
        assert!(matches!(refused, Err(ListenError::NotLoopback(_) | ListenError::Io { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_web_page_that_finds_the_port_is_disconnected() {
    let listener = Listener::bind(&"tcp://127.0.0.1:0".parse().unwrap(), &Options::default()).await.unwrap();
    let Address::Tcp(host) = listener.address().unwrap() else { unreachable!() };
    let mut browser = TcpStream::connect(host).await.unwrap();
    browser
        .write_all(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n")
        .await
        .unwrap();
    let mut link = listener.accept().await.unwrap();
    assert!(link.receiver.recv().await.is_none(), "not even the body is read");
    assert_eq!(link.receiver.reason(), CloseReason::NotJson);
    let mut answer = String::new();
    browser.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("-32700"), "{answer}");
}
