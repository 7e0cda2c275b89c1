//! Attacks: clients that know the connection ids of others, and small requests that expand to large ones.

use std::process::{Command, Stdio};

use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::super::HttpLimits;
use super::kit::{EVENTS, JSON, ask, connect, initialize, listener, start, start_with_token};
use crate::tokens;

#[tokio::test]
async fn a_foreign_connection_is_indistinguishable_from_a_missing_one() {
    let (running, file, token) = start_with_token(HttpLimits::default());
    let other = tokens::add(&file, "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    running.handle.reload().unwrap();
    let (owner, thief) = (format!("Bearer {token}"), format!("Bearer {other}"));
    let made = ask(running.address, "POST", &[JSON, ("authorization", &owner)], &initialize(1)).await;
    let name = made.header("acp-connection-id").unwrap().to_owned();
    let message = r#"{"jsonrpc":"2.0","id":7,"method":"session/new","params":{"cwd":"/"}}"#;
    let rows = [
        ("POST", &[JSON][..], message),
        ("GET", &[EVENTS], ""),
        ("GET", &[EVENTS, ("last-event-id", "0")], ""),
        ("GET", &[EVENTS, ("acp-session-id", "s1")], ""),
        ("DELETE", &[], ""),
    ];
    for (method, headers, body) in rows {
        let asked = async |connection: &str| {
            let more = [("authorization", &*thief), ("acp-connection-id", connection)];
            ask(running.address, method, &[headers, &more].concat(), body).await
        };
        let (foreign, unknown) = (asked(&name).await, asked("AAAAAAAAAAAAAAAAAAAAAA").await);
        assert_eq!(foreign.status, 404, "{method} {headers:?}");
        assert_eq!((foreign.status, foreign.body), (unknown.status, unknown.body), "{method} {headers:?}");
    }
    // Nothing has reached the agent, and the owner still has the connection.
    assert_eq!(running.agent.heard.lock().unwrap().len(), 1);
    let more = [JSON, ("authorization", &*owner), ("acp-connection-id", &*name)];
    assert_eq!(ask(running.address, "POST", &more, message).await.status, 202);
}

#[tokio::test]
async fn nothing_is_compressed() {
    let running = start(listener(), HttpLimits::default());
    let answer =
        ask(running.address, "POST", &[JSON, ("accept-encoding", "gzip, deflate, br")], &initialize(1)).await;
    assert_eq!((answer.status, answer.header("content-encoding")), (200, None));
    assert_eq!(answer.json()["result"]["protocolVersion"], 1);
    let mut request = format!("ws://{}/acp", running.address).into_client_request().unwrap();
    let offer = "permessage-deflate; client_max_window_bits".parse().unwrap();
    request.headers_mut().insert("sec-websocket-extensions", offer);
    let stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let (_, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert!(!response.headers().contains_key("sec-websocket-extensions"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_body_is_not_decompressed() {
    let running = start(listener(), HttpLimits::default());
    let name = connect(running.address).await;
    let url = format!("http://{}/acp", running.address);
    // The message consists mostly of spaces: a megabyte, compressed to a thousand bytes.
    let script = "(head -c 1000000 /dev/zero | tr '\\0' ' '; printf '{\"jsonrpc\":\"2.0\",\"method\":\"_x\"}') | gzip -9 \
                  | curl -q --noproxy '*' -sS -o /dev/null -w '%{http_code}' --max-time 20 -H 'content-type: application/json' \
                  -H 'content-encoding: gzip' -H \"acp-connection-id: $1\" --data-binary @- \"$0\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, &url, &name]).stderr(Stdio::null());
    let done = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
    match &*done.stdout {
        b"" => println!("skipped: there is no curl"),
        status => assert_eq!(status, b"400", "{done:?}"),
    }
    assert_eq!(running.agent.heard.lock().unwrap().len(), 1);
}
