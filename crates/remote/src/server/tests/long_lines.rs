//! Messages of the backend that are longer than any default limit.

use std::os::unix::net::UnixStream as StdUnixStream;

use bytes::Bytes;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::super::{Adopted, HttpLimits};
use super::kit::{JSON, LONG, Stream, ask, connect, listener, start};
use crate::identity::Identity;

/// Longer than [`narrows_wire::DEFAULT_MAX_LINE_BYTES`].
const LONG_BYTES: usize = 65 << 20;

fn request() -> String {
    json!({"jsonrpc": "2.0", "method": "_test/long", "params": {"bytes": LONG_BYTES}}).to_string()
}

#[tokio::test]
async fn the_longest_message_of_the_backend_is_not_dropped() {
    let running = start(listener(), HttpLimits::default());
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    running.handle.adopt(Adopted::Unix(theirs), Bytes::new(), Identity::local(), 0).unwrap();
    let mut lines = BufReader::with_capacity(1 << 20, UnixStream::from_std(ours).unwrap());
    let params = json!({"_meta": {"narrows": {"resume": 1}}});
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    lines.write_all(format!("{initialize}\n{}\n", request()).as_bytes()).await.unwrap();
    let mut line = Vec::new();
    tokio::time::timeout(LONG, lines.read_until(b'\n', &mut line)).await.unwrap().unwrap();
    line.clear();
    let read = tokio::time::timeout(LONG, lines.read_until(b'\n', &mut line)).await;
    assert!(read.is_ok_and(|read| read.unwrap() > LONG_BYTES), "resumable lines");
    let name = connect(running.address).await;
    let mut stream = Stream::open(running.address, &name, None, None).await;
    let posted = ask(running.address, "POST", &[JSON, ("acp-connection-id", &name)], &request()).await;
    assert_eq!(posted.status, 202, "{posted:?}");
    let event = async {
        loop {
            let event = stream.raw().await.unwrap();
            if !event.starts_with(':') {
                return event;
            }
        }
    };
    let event = tokio::time::timeout(LONG, event).await.unwrap();
    assert!(event.len() > LONG_BYTES, "{}", event.len());
}
