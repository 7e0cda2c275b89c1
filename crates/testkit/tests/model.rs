//! Tests of the scripted model server over a bare socket: its output, its records, and the ways it breaks
//! off.

use std::io::ErrorKind;
use std::time::Duration;

use narrows_testkit::model::{Framing, ModelServer, Plan, Reply, Step, nobody};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ASK: &str = "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}";

async fn connect(server: &ModelServer) -> TcpStream {
    TcpStream::connect(server.address()).await.expect("the server listens")
}

/// Sends a request. Returns everything up to `end` or the end of the connection, and the error if there was
/// one.
async fn ask(stream: &mut TcpStream, request: &str, end: &str) -> (String, Option<ErrorKind>) {
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut bytes = Vec::new();
    loop {
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return (String::from_utf8(bytes).expect("text"), None),
            Err(error) => return (String::from_utf8(bytes).expect("text"), Some(error.kind())),
            Ok(_) if !end.is_empty() && bytes.ends_with(end.as_bytes()) => {
                return (String::from_utf8(bytes).expect("text"), None);
            }
            Ok(_) => {}
        }
    }
}

fn joined(reply: &str) -> String {
    let mut rest = reply.split_once("\r\n\r\n").expect("a head").1;
    let mut body = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        if length == 0 {
            break;
        }
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    body
}

const LAST: &str = "\r\n0\r\n\r\n";

#[tokio::test]
async fn a_stream_comes_in_chunks_and_the_connection_stays() {
    let server = ModelServer::start([Reply::text("Hello world"), Reply::raw("data: second\n\n")]);
    let mut stream = connect(&server).await;
    let (first, _) = ask(&mut stream, ASK, LAST).await;
    assert!(first.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"), "{first}");
    let body = joined(&first);
    let events: Vec<&str> = body.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 6, "{body}");
    assert!(events[0].contains(r#""role":"assistant""#), "{body}");
    assert!(events[1].contains(r#"{"content":"Hello "}"#), "{body}");
    assert!(events[2].contains(r#"{"content":"world"}"#), "{body}");
    assert!(events[3].contains(r#""finish_reason":"stop""#), "{body}");
    assert!(events[4].contains(r#""total_tokens":12"#), "{body}");
    assert_eq!(events[5], "data: [DONE]");

    for _ in 0..2 {
        let (reply, _) = ask(&mut stream, ASK, LAST).await;
        assert_eq!(joined(&reply), "data: second\n\n", "the last is repeated");
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|seen| seen.connection == 0 && !seen.hung_up));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn requests_are_remembered() {
    let server = ModelServer::start(Reply::text("x"));
    let request = "POST /v1/chat/completions?a=b&c HTTP/1.1\r\nX-Thing: One\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}";
    ask(&mut connect(&server).await, request, LAST).await;
    server.seen_count(1).await;
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!(seen.query, "a=b&c");
    assert_eq!(seen.header("x-thing"), Some("One"));
    assert_eq!(seen.body, json!({"model": "m"}));
    assert_eq!(seen.bytes, br#"{"model":"m"}"#);
    assert!(seen.has("model") && !seen.has("messages") && seen.messages().is_empty());
}

#[tokio::test]
async fn paths_have_their_replies() {
    let plan = Plan::from(Reply::text("x"))
        .models(Reply::models(&["a", "b"]))
        .at("/api/v0/models", Reply::json(200, &json!({"data": []})));
    let server = ModelServer::start(plan);
    for (request, expected) in [
        ("GET /v1/models HTTP/1.1\r\n\r\n", r#""id":"b""#),
        ("GET /api/v0/models HTTP/1.1\r\n\r\n", r#"{"data":[]}"#),
        ("GET /v1/chat/completions HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("POST /v1//chat/completions HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("POST http://example.org/v1/chat/completions HTTP/1.1\r\n\r\n", "[DONE]"),
        ("POST /openai/deployments/d/chat/completions HTTP/1.1\r\n\r\n", "[DONE]"),
        ("GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
    ] {
        let closing = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut stream = connect(&server).await;
        stream.write_all(closing.as_bytes()).await.expect("the server reads");
        stream.shutdown().await.expect("a socket can be shut");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("text");
        assert!(reply.contains(expected), "{request}: {reply}");
    }
}

#[tokio::test]
async fn a_decision_comes_before_the_replies() {
    let plan = Plan::from(Reply::raw("planned"))
        .unless(|seen| (seen.body["model"] == "m").then(|| Reply::refused(400, "not m")));
    let server = ModelServer::start(plan);
    let mut stream = connect(&server).await;
    let (refused, _) = ask(&mut stream, ASK, "}}").await;
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("not m"), "{refused}");
    let (planned, _) = ask(&mut stream, &ASK.replace("\"m\"", "\"n\""), LAST).await;
    assert_eq!(joined(&planned), "planned");
    server.replan(Reply::raw("new"));
    assert_eq!(joined(&ask(&mut stream, ASK, LAST).await.0), "new");
}

#[tokio::test]
async fn replies_break_off_as_planned() {
    let half = || Reply::raw("data: half");
    let short = half().framing(Framing::Length).then(Step::Close).then(Step::Bytes(b"more".to_vec()));
    for (reply, expected, error) in [
        (half().then(Step::Close), "a\r\ndata: half\r\n", None),
        (short, "content-length: 14\r\n\r\ndata: half", None),
        (half().no_content_length(), "\r\n\r\ndata: half", None),
        (Reply::close(), "", None),
        (Reply::cut(), "", Some(ErrorKind::ConnectionReset)),
        (half().then(Step::Cut), "", Some(ErrorKind::ConnectionReset)),
        (Reply::close().before(Step::Bytes(b"SSH-2.0\r\n".to_vec())), "", None),
    ] {
        let server = ModelServer::start(reply.clone());
        let (got, kind) = ask(&mut connect(&server).await, ASK, "").await;
        assert!(got.ends_with(expected), "{reply:?}: {got}");
        assert_eq!(kind, error, "{reply:?}: {got}");
    }
}

#[tokio::test]
async fn a_gate_holds_the_reply_back() {
    let server =
        ModelServer::start(Reply::raw("one").then(Step::gate("go")).then(Step::Bytes(b"two".to_vec())));
    let mut stream = connect(&server).await;
    let (first, _) = ask(&mut stream, ASK, "one\r\n").await;
    assert!(!first.contains("two"));
    server.release("other");
    server.release("go");
    let (second, _) = ask(&mut stream, "", LAST).await;
    assert!(second.contains("two"), "{second}");
}

#[tokio::test]
async fn a_client_that_disconnects_is_noticed() {
    let endless =
        Reply::stream::<Vec<u8>>([]).then(Step::Forever(b": \n".to_vec(), Duration::from_millis(1)));
    for reply in [Reply::hang(), Reply::raw("x").then(Step::Hang), endless] {
        let server = ModelServer::start(reply);
        let mut stream = connect(&server).await;
        stream.write_all(ASK.as_bytes()).await.expect("the server reads");
        server.seen_count(1).await;
        assert!(!server.seen()[0].hung_up);
        drop(stream);
        server.hung_up().await;
        assert!(server.seen()[0].hung_up);
    }
}

#[tokio::test]
async fn a_stopped_server_is_gone() {
    let server = ModelServer::start(Reply::hang());
    let address = server.address();
    let mut stream = connect(&server).await;
    stream.write_all(ASK.as_bytes()).await.expect("the server reads");
    server.seen_count(1).await;
    drop(server);
    let mut rest = Vec::new();
    assert!(!matches!(stream.read_to_end(&mut rest).await, Ok(1..)), "{rest:?}");
    assert!(TcpStream::connect(address).await.is_err());
    assert!(TcpStream::connect(nobody().1).await.is_err());
    drop(ModelServer::start_at(address, Reply::text("back")));
}

async fn body_of(reply: Reply) -> String {
    let server = ModelServer::start(reply);
    joined(&ask(&mut connect(&server).await, ASK, LAST).await.0)
}

#[tokio::test]
async fn replies_can_be_changed() {
    let plain = || Reply::stream(["data: {\"a\":1}\n\n", "data: [DONE]\n\n"]);
    assert_eq!(body_of(plain().crlf()).await, "data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n");
    assert_eq!(body_of(plain().line_ends("\r")).await, "data: {\"a\":1}\r\rdata: [DONE]\r\r");
    assert_eq!(body_of(plain().without_done()).await, "data: {\"a\":1}\n\n");
    assert_eq!(
        body_of(plain().map_events(|event| event["a"] = json!(2)).only(1)).await,
        "data: {\"a\":2}\n\n"
    );
    assert_eq!(body_of(plain().split_every(1)).await, body_of(plain().at_once()).await);
    let repeated = plain().only(0).then(Step::Repeat(b"ab".to_vec(), 3));
    assert_eq!(body_of(repeated).await, "ababab");
    let spaced =
        plain().after_each(&Step::Pause(Duration::from_millis(1))).after(0, Step::Bytes(b": hi\n".to_vec()));
    assert!(body_of(spaced).await.starts_with(": hi\ndata: "));

    let answer = body_of(Reply::text("x").using(7, 8).finishing("length")).await;
    assert!(
        answer.contains(r#""total_tokens":15"#) && answer.contains(r#""finish_reason":"length""#),
        "{answer}"
    );
    assert!(!body_of(Reply::text("x").without_usage()).await.contains("usage"));
}

#[tokio::test]
async fn calls_come_in_pieces() {
    let body = body_of(Reply::tool_calls(&[("one", json!({"a": "é"})), ("two", json!({}))])).await;
    let mut arguments = [String::new(), String::new()];
    let mut names = Vec::new();
    for event in body.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<serde_json::Value>(event) else { continue };
        let call = &event["choices"][0]["delta"]["tool_calls"][0];
        if let Some(name) = call["function"]["name"].as_str() {
            names.push((name.to_owned(), call["id"].as_str().expect("an id").to_owned()));
        }
        if let Some(piece) = call["function"]["arguments"].as_str() {
            arguments[call["index"].as_u64().expect("an index") as usize].push_str(piece);
        }
    }
    assert_eq!(names, [("one".to_owned(), "call_1".to_owned()), ("two".to_owned(), "call_2".to_owned())]);
    assert_eq!(arguments, [r#"{"a":"é"}"#, "{}"]);
    assert!(body.contains(r#""finish_reason":"tool_calls""#));
}
