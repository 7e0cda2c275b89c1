//! A proxy that swallows the first events of a session's stream.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that forwards the head of the first stream of a session, but none of its events, and then cuts it.
pub(crate) struct Swallower {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Option<String>>>>,
}

impl Swallower {
    /// Cuts once `last` was swallowed.
    pub(crate) async fn start(server: SocketAddr, last: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let (seen, swallows) = (Arc::clone(&seen), Arc::new(AtomicBool::new(false)));
                let flag = Arc::clone(&swallows);
                tokio::spawn(async move {
                    // The end of one direction ends both.
                    tokio::select! {
                        _ = there(from_client, to_server, &seen, &flag) => {}
                        _ = back(from_server, to_client, &swallows, last) => {}
                    }
                });
            }
        });
        Self { address, asked }
    }

    /// Returns the `Last-Event-ID` of each request for the stream of a session.
    pub(crate) fn last_event_ids(&self) -> Vec<Option<String>> {
        self.asked.lock().unwrap().clone()
    }
}

async fn there(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    seen: &Mutex<Vec<Option<String>>>,
    swallows: &AtomicBool,
) -> Option<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        // A request without a body is forwarded immediately.
        let text = String::from_utf8_lossy(&buffer[..read]).to_ascii_lowercase();
        if text.starts_with("get ") && text.contains("acp-session-id: ") {
            let value = text.lines().find_map(|line| line.strip_prefix("last-event-id: "));
            let mut seen = seen.lock().unwrap();
            swallows.store(seen.is_empty(), Ordering::SeqCst);
            seen.push(value.map(str::to_owned));
        }
        to.write_all(&buffer[..read]).await.ok()?;
    }
}

async fn back(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    swallows: &AtomicBool,
    last: &str,
) -> Option<()> {
    let mut buffer = vec![0; 64 << 10];
    let (mut swallowed, mut passed) = (String::new(), false);
    while !swallowed.contains(last) {
        let read = from.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        if !swallows.load(Ordering::SeqCst) {
            to.write_all(&buffer[..read]).await.ok()?;
            continue;
        }
        swallowed.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if let (false, Some(end)) = (passed, swallowed.find("\r\n\r\n")) {
            to.write_all(&swallowed.as_bytes()[..end + 4]).await.ok()?;
            passed = true;
        }
    }
    Some(())
}
