//! Streamable HTTP: single requests and event streams.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::super::HttpLimits;
use super::kit::{
    Agent, EVENTS, JSON, LONG, Reader, Stream, ask, connect, initialize, listener, short_timeouts, start,
    start_with,
};

fn request(id: u32, method: &str, params: &serde_json::Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

#[tokio::test]
async fn a_whole_conversation() {
    let running = start(listener(), HttpLimits::default());
    let at = running.address;
    let first = ask(at, "POST", &[JSON], &initialize(0)).await;
    assert_eq!((first.status, first.header("content-type")), (200, Some("application/json")));
    assert_eq!(first.json(), json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1}}));
    let name = first.header("acp-connection-id").unwrap();
    let connection = ("acp-connection-id", name);
    let mut own = Stream::open(at, name, None, None).await;
    let new = ask(at, "POST", &[JSON, connection], &request(1, "session/new", &json!({"cwd": "/"}))).await;
    assert_eq!((new.status, &*new.body), (202, &b""[..]));
    assert_eq!(
        own.next().await.unwrap(),
        (Some(1), json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s1"}}))
    );
    let mut session = Stream::open(at, name, Some("s1"), None).await;
    // The message names no session, so the session of the header counts.
    let prompt = request(2, "session/prompt", &json!({"count": 3}));
    let posted = ask(at, "POST", &[JSON, connection, ("acp-session-id", "s1")], &prompt).await;
    assert_eq!(posted.status, 202);
    for number in 1..=3 {
        let (id, update) = session.next().await.unwrap();
        assert_eq!((id, &update["params"]["update"]["number"]), (Some(number), &json!(number)));
        assert_eq!(update["params"]["sessionId"], "s1");
    }
    let (id, end) = session.next().await.unwrap();
    assert_eq!((id, &end["id"], &end["result"]["echo"]["sessionId"]), (Some(4), &json!(2), &json!("s1")));
    // The agent sends a request, and receives the response.
    ask(
        at,
        "POST",
        &[JSON, connection],
        &json!({"jsonrpc": "2.0", "method": "_test/ask", "params": {"sessionId": "s1"}}).to_string(),
    )
    .await;
    assert_eq!(session.next().await.unwrap().1["method"], "session/request_permission");
    let answer = json!({"jsonrpc": "2.0", "id": "q", "result": {}}).to_string();
    assert_eq!(ask(at, "POST", &[JSON, connection, ("acp-session-id", "s1")], &answer).await.status, 202);
    // The message has several lines, and the agent receives it as one.
    let pretty =
        format!("{:#}\n", json!({"jsonrpc": "2.0", "id": 5, "method": "_x", "params": {"a": [1, 2]}}));
    assert_eq!(ask(at, "POST", &[JSON, connection], &pretty).await.status, 202);
    assert_eq!(own.next().await.unwrap().1["result"]["echo"], json!({"a": [1, 2]}));
    assert_eq!(ask(at, "DELETE", &[connection], "").await.status, 202);
    assert_eq!((own.next().await, session.next().await), (None, None));
    assert_eq!(ask(at, "DELETE", &[connection], "").await.status, 404);
    assert_eq!(ask(at, "POST", &[JSON, connection], &prompt).await.status, 404);
    let heard = running.agent.heard.lock().unwrap().clone();
    assert_eq!(heard.len(), 6);
    assert!(heard[4].contains("\"q\""), "{heard:?}");
}

/// A proxy may hold back the head of a response until some of its body arrives.
#[tokio::test]
async fn every_event_stream_begins_with_a_comment_at_once() {
    let running = start(listener(), HttpLimits::default());
    let name = connect(running.address).await;
    for (session, cursor) in [(None, None), (None, Some(0)), (Some("s1"), None)] {
        let mut stream = Stream::open(running.address, &name, session, cursor).await;
        let first = tokio::time::timeout(Duration::from_secs(10), stream.raw()).await;
        // The first periodic comment would be sent after 15 seconds.
        let first = first.expect("a comment on an idle stream");
        assert_eq!(first.as_deref(), Some(": \n\n"), "{session:?} {cursor:?}");
    }
}

#[tokio::test]
async fn comments_are_sent_while_a_stream_is_idle() {
    let running = start(listener(), short_timeouts());
    let name = connect(running.address).await;
    let mut stream = Stream::open(running.address, &name, None, None).await;
    for _ in 0..4 {
        let comment = tokio::time::timeout(LONG, stream.raw()).await.expect("another comment in time");
        assert_eq!(comment.as_deref(), Some(": \n\n"));
    }
}

#[tokio::test]
async fn every_status_of_a_post() {
    let running = start(listener(), HttpLimits { max_message: 1000, ..HttpLimits::default() });
    let at = running.address;
    let name = connect(at).await;
    let connection = ("acp-connection-id", &*name);
    let session = ("acp-session-id", "s1");
    let prompt = request(1, "session/prompt", &json!({"sessionId": "s1"}));
    let status = async |headers: &[(&str, &str)], body: &str| ask(at, "POST", headers, body).await.status;
    assert_eq!(status(&[connection], &prompt).await, 415);
    assert_eq!(status(&[connection, ("content-type", "text/plain")], &prompt).await, 415);
    assert_eq!(
        status(&[connection, ("content-type", "application/x-www-form-urlencoded")], &prompt).await,
        415
    );
    assert_eq!(
        status(&[connection, ("content-type", "Application/JSON; charset=utf-8")], &prompt).await,
        202
    );
    assert_eq!(status(&[JSON], &prompt).await, 400, "no connection");
    assert_eq!(status(&[JSON, ("acp-connection-id", "nobody")], &prompt).await, 404);
    assert_eq!(
        status(&[JSON, connection], &request(1, "session/prompt", &json!({}))).await,
        400,
        "no session"
    );
    assert_eq!(
        status(&[JSON, connection, session], &request(1, "session/prompt", &json!({"sessionId": "s2"})))
            .await,
        400
    );
    assert_eq!(status(&[JSON, connection, session, session], &prompt).await, 400, "a duplicate header");
    assert_eq!(status(&[JSON, connection], &"x".repeat(1001)).await, 413);
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("[]", -32600),
        ("[1]", -32600),
        ("7", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, -32600),
        (r#"{"jsonrpc":"2.0","method":"x","params":{"sessionId":"a","sessionId":"b"}}"#, -32600),
        (&format!("[{}]", initialize(1)), -32600),
        ("{\"jsonrpc\":\"2.0\",\"method\":\"a\nb\"}", -32700),
    ] {
        let answer = ask(at, "POST", &[JSON, connection], body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(
            (&answer.json()["error"]["code"], &answer.json()["jsonrpc"]),
            (&json!(code), &json!("2.0")),
            "{body}"
        );
    }
    let mut bad = Reader::send(at, "POST", "/acp", &[JSON, ("content-length", "3")], "").await;
    tokio::io::AsyncWriteExt::write_all(&mut bad.stream, b"\"\xff\"").await.unwrap();
    assert_eq!(bad.head().await.status, 400);
    // A notification cannot open a connection.
    assert_eq!(status(&[JSON], r#"{"jsonrpc":"2.0","method":"initialize","params":{}}"#).await, 400);
    // An `initialize` that the agent refuses opens no connection.
    let failed = ask(at, "POST", &[JSON], &request(1, "initialize", &json!({"fail": true}))).await;
    assert_eq!((failed.status, failed.header("acp-connection-id")), (200, None));
    assert_eq!(failed.json()["error"]["code"], -32603);
    // Every `initialize` opens a connection of its own.
    let again = ask(at, "POST", &[JSON, connection], &initialize(9)).await;
    assert_ne!(again.header("acp-connection-id").unwrap(), name);
}

#[tokio::test]
async fn every_status_of_a_stream() {
    let running = start(listener(), HttpLimits::default());
    let at = running.address;
    let name = connect(at).await;
    let connection = ("acp-connection-id", &*name);
    let status = async |headers: &[(&str, &str)]| ask(at, "GET", headers, "").await.status;
    for accept in [
        "*/*",
        "application/json",
        "text/*",
        "text/event-stream;q=0",
        "Text/Event-Stream; Q=0.000, text/html",
    ] {
        assert_eq!(status(&[connection, ("accept", accept)]).await, 406, "{accept}");
    }
    assert_eq!(status(&[connection]).await, 406);
    assert_eq!(status(&[EVENTS]).await, 400);
    assert_eq!(status(&[EVENTS, ("acp-connection-id", "nobody")]).await, 404);
    assert_eq!(status(&[EVENTS, connection, ("last-event-id", "x")]).await, 400);
    let gap = ask(at, "GET", &[EVENTS, connection, ("last-event-id", "5")], "").await;
    assert_eq!((gap.status, &gap.json()["error"]["data"]["condition"]), (410, &json!("cursor_gap")));
    let mut own = Reader::send(
        at,
        "GET",
        "/acp",
        &[("accept", "application/json, Text/Event-Stream;q=0.5"), connection],
        "",
    )
    .await;
    assert_eq!(own.head().await.status, 200);
    assert_eq!(status(&[EVENTS, connection]).await, 409);
    let mut kept = Vec::new();
    for number in 0..16 {
        kept.push(Stream::open(at, &name, Some(&number.to_string()), None).await);
    }
    assert_eq!(status(&[EVENTS, connection, ("acp-session-id", "16")]).await, 404);
    assert_eq!(status(&[EVENTS, connection, ("acp-session-id", "0")]).await, 409);
    assert_eq!(ask(at, "DELETE", &[], "").await.status, 400);
    assert_eq!(ask(at, "DELETE", &[("acp-connection-id", "nobody")], "").await.status, 404);
}

#[tokio::test]
async fn an_agent_that_ends_or_is_unavailable() {
    let refusing = start_with(listener(), HttpLimits::default(), Agent { refuses: true, ..Agent::default() });
    assert_eq!(ask(refusing.address, "POST", &[JSON], &initialize(1)).await.status, 503);
    let away = Agent { refuses_with: Some("the bus is stopping"), ..Agent::default() };
    let away = start_with(listener(), HttpLimits::default(), away);
    for _ in 0..20 {
        let answer = ask(away.address, "POST", &[JSON], &initialize(1)).await;
        assert_eq!((answer.status, &*answer.body), (503, &b"the bus is stopping\n"[..]));
        assert_eq!(answer.header("retry-after"), None);
    }
    for (wait, seconds) in [(1, "1"), (1000, "1"), (1001, "2")] {
        let short =
            Agent { refuses_with: Some("short of memory"), retry_after_ms: Some(wait), ..Agent::default() };
        let short = start_with(listener(), HttpLimits::default(), short);
        let answer = ask(short.address, "POST", &[JSON], &initialize(1)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some(seconds)));
    }
    let running = start(listener(), HttpLimits::default());
    let name = connect(running.address).await;
    let connection = ("acp-connection-id", &*name);
    let mut own = Stream::open(running.address, &name, None, None).await;
    let last = json!({"jsonrpc": "2.0", "method": "_test/close"}).to_string();
    assert_eq!(ask(running.address, "POST", &[JSON, connection], &last).await.status, 202);
    assert_eq!(own.next().await, None);
    assert_eq!(ask(running.address, "POST", &[JSON, connection], &last).await.status, 404);
}

#[tokio::test]
async fn a_stream_sends_comments_and_an_unused_connection_expires() {
    let limits = HttpLimits { grace: Duration::from_millis(300), ..short_timeouts() };
    let running = start(listener(), limits);
    let name = connect(running.address).await;
    let mut own = Stream::open(running.address, &name, None, None).await;
    for _ in 0..3 {
        assert_eq!(own.raw().await.unwrap(), ": \n\n");
    }
    drop(own);
    let connection = ("acp-connection-id", &*name);
    running.agent.ended(1).await;
    assert_eq!(ask(running.address, "DELETE", &[connection], "").await.status, 404);
}

#[tokio::test]
async fn a_shutdown_ends_streams() {
    let mut running = start(listener(), HttpLimits::default());
    let name = connect(running.address).await;
    let mut own = Stream::open(running.address, &name, None, None).await;
    running.handle.shutdown();
    assert_eq!(own.next().await, None);
    tokio::time::timeout(LONG, &mut running.served).await.unwrap().unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn http_2_without_an_upgrade() {
    let running = start(listener(), HttpLimits::default());
    let url = format!("http://{}/acp", running.address);
    // Another test of this process may have installed the provider before.
    _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let first = client
        .post(&url)
        .header("content-type", "application/json")
        .body(initialize(0))
        .send()
        .await
        .unwrap();
    assert_eq!((first.status().as_u16(), first.version()), (200, reqwest::Version::HTTP_2));
    let name = first.headers()["acp-connection-id"].to_str().unwrap().to_owned();
    let mut stream = client
        .get(&url)
        .header("accept", "text/event-stream")
        .header("acp-connection-id", &name)
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
    let new = request(1, "session/new", &json!({"cwd": "/"}));
    let posted = client
        .post(&url)
        .header("content-type", "application/json")
        .header("acp-connection-id", &name)
        .body(new)
        .send()
        .await
        .unwrap();
    assert_eq!(posted.status(), 202);
    assert_eq!(stream.chunk().await.unwrap().unwrap(), ": \n\n");
    let event = stream.chunk().await.unwrap().unwrap();
    assert!(event.starts_with(b"id: 1\ndata: {") && event.ends_with(b"\n\n"), "{event:?}");
    let foreign = client.post(&url).header("host", "evil.example").send().await.unwrap();
    assert_eq!(foreign.status(), 403);
    let head = client.head(&url).send().await.unwrap();
    assert_eq!((head.status().as_u16(), &*head.bytes().await.unwrap()), (405, &b""[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl() {
    let running = start(listener(), HttpLimits::default());
    let url = format!("http://{}/acp", running.address);
    let curl = async |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-q", "--noproxy", "*", "-sS", "-i", "--max-time", "20"]).args(arguments).arg(&url);
        let done = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: there is no curl");
        return;
    }
    let body = initialize(0);
    let first = curl(&["-H", "content-type: application/json", "--data-binary", &body]).await;
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let name = first.lines().find_map(|line| line.strip_prefix("acp-connection-id: ")).unwrap();
    let connection = format!("acp-connection-id: {name}");
    assert!(curl(&["-d", &body]).await.starts_with("HTTP/1.1 415"), "a form is not JSON");
    assert!(curl(&["-H", &connection]).await.starts_with("HTTP/1.1 406"));
    assert!(curl(&["-H", "host: evil.example"]).await.starts_with("HTTP/1.1 403"));
    let new = request(1, "session/new", &json!({"cwd": "/"}));
    let posted =
        curl(&["-H", "content-type: application/json", "-H", &connection, "--data-binary", &new]).await;
    assert!(posted.starts_with("HTTP/1.1 202"), "{posted}");
    let ended = curl(&["-X", "DELETE", "-H", &connection]).await;
    assert!(ended.starts_with("HTTP/1.1 202"), "{ended}");
    let second =
        curl(&["--http2-prior-knowledge", "-H", "content-type: application/json", "--data-binary", &body])
            .await;
    assert!(second.is_empty() || second.starts_with("HTTP/2 200"), "{second}");
}
