//! Servers over Streamable HTTP, simulated on loopback.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narrows_mcp::{CallError, CallOutcome, Content, Options, RawAnswer, Server, Servers};
use narrows_process::Environment;
use narrows_testkit::wait::wait_until;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
struct Request {
    method: String,
    headers: HashMap<String, String>,
    body: Value,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum EndpointBehavior {
    Json,
    Events,
    Silent,
    Moved(SocketAddr, u16),
    /// Refuses every request with 401.
    Closed,
    /// Answers the handshake with an endless body.
    Endless,
    Html,
    /// The server answers in JSON, and has no handshake.
    Modern,
}

struct Endpoint {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    async fn new(behavior: EndpointBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let log = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let log = log.clone();
                tokio::spawn(async move {
                    _ = serve(stream, behavior, &log).await;
                });
            }
        });
        Self { address, seen, task }
    }

    fn server(&self) -> Server {
        let headers = vec![("X-Key".to_owned(), "hunter2".to_owned())];
        Server::Http { name: "s".into(), url: format!("http://{}/mcp", self.address), headers }
    }

    async fn start(&self, start_timeout: Duration) -> Servers {
        let mut options = Options::new("/", Environment::empty());
        options.start_timeout = start_timeout;
        options.call_timeout = Duration::from_secs(10);
        let servers = Servers::start(vec![self.server()], options, None);
        servers.wait_until_settled(TEST_TIMEOUT).await;
        servers
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Request>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn saw(&self, condition: impl Fn(&Request) -> bool) -> bool {
        wait_until(TEST_TIMEOUT, || self.seen().iter().any(&condition)).await
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let method = line.split(' ').next()?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { method, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

async fn serve(
    stream: TcpStream,
    behavior: EndpointBehavior,
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        log.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        let out = stream.get_mut();
        match behavior {
            EndpointBehavior::Silent => std::future::pending().await,
            EndpointBehavior::Moved(to, status) => {
                let head = format!(
                    "HTTP/1.1 {status} Moved\r\nLocation: http://{to}/mcp\r\nContent-Length: 0\r\n\r\n"
                );
                out.write_all(head.as_bytes()).await?;
            }
            EndpointBehavior::Closed => {
                let challenge = "WWW-Authenticate: Bearer realm=\"mcp\"";
                let head = format!("HTTP/1.1 401 Unauthorized\r\n{challenge}\r\nContent-Length: 0\r\n\r\n");
                out.write_all(head.as_bytes()).await?;
            }
            EndpointBehavior::Html => whole(out, "200 OK", "text/html", b"<h1>Hello</h1>").await?,
            EndpointBehavior::Endless => {
                out.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n\"").await?;
                let much = [b'x'; 64 << 10];
                loop {
                    out.write_all(&much).await?;
                }
            }
            EndpointBehavior::Modern if request.body["method"] == "initialize" => {
                let error = json!({"code": -32601, "message": "there is no such method"});
                let answer = json!({"jsonrpc": "2.0", "id": request.body["id"], "error": error}).to_string();
                whole(out, "400 Bad Request", "application/json", answer.as_bytes()).await?;
            }
            EndpointBehavior::Json | EndpointBehavior::Events | EndpointBehavior::Modern => {
                respond(out, &request, behavior == EndpointBehavior::Events).await?;
            }
        }
    }
    Ok(())
}

async fn whole(out: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nMcp-Session-Id: session-1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.write_all(head.as_bytes()).await?;
    out.write_all(body).await
}

async fn event(out: &mut TcpStream, message: &Value) -> std::io::Result<()> {
    let event = format!("event: message\ndata: {message}\n\n");
    out.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}

async fn respond(out: &mut TcpStream, request: &Request, events: bool) -> std::io::Result<()> {
    if request.method != "POST" {
        let status = if request.method == "DELETE" { "200 OK" } else { "405 Method Not Allowed" };
        return whole(out, status, "text/plain", b"").await;
    }
    let (id, params) = (&request.body["id"], &request.body["params"]);
    if id.is_null() {
        return out.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await;
    }
    let result = match (request.body["method"].as_str().unwrap_or_default(), params["name"].as_str()) {
        ("initialize", _) => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "by hand", "version": "1"},
        }),
        ("server/discover", _) => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
            "capabilities": {"tools": {}},
        }),
        ("tools/list", _) => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        (_, Some("slow")) => std::future::pending().await,
        (_, Some("die")) => return Err(std::io::ErrorKind::ConnectionReset.into()),
        (_, Some("broken")) => return whole(out, "500 Oh No", "text/plain", b"it\nbroke").await,
        (_, Some("future")) => json!({"content": [], "future": {"a": 1.0}}),
        (_, Some("huge")) => json!({"content": [{"type": "text", "text": "x".repeat(17 << 20)}]}),
        _ => json!({"content": [{"type": "text", "text": params["arguments"].to_string()}]}),
    };
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    if !events {
        return whole(out, "200 OK", "application/json", answer.to_string().as_bytes()).await;
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMcp-Session-Id: session-1\r\n";
    out.write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await?;
    let token = &params["_meta"]["progressToken"];
    if !token.is_null() {
        let news = json!({"progressToken": token, "progress": 1, "message": "half"});
        event(out, &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": news})).await?;
    }
    event(out, &answer).await?;
    out.write_all(b"0\r\n\r\n").await
}

async fn call(servers: &Servers, tool: &str) -> Result<CallOutcome, CallError> {
    servers.call("s", tool, Map::from_iter([("a".to_owned(), json!(1))]), |_| {}).await
}

fn reason(servers: &Servers) -> String {
    let failures = servers.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures[0].reason.clone()
}

async fn works(behavior: EndpointBehavior) -> (Endpoint, Servers) {
    let endpoint = Endpoint::new(behavior).await;
    let servers = endpoint.start(TEST_TIMEOUT).await;
    assert_eq!(servers.failures(), []);
    assert_eq!(servers.tools().iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["echo"]);
    let outcome = call(&servers, "echo").await.expect("it echoes");
    assert_eq!(outcome.content, [Content::Text(r#"{"a":1}"#.into())]);
    (endpoint, servers)
}

#[tokio::test]
async fn forwarded_results_are_unchanged() {
    for behavior in [EndpointBehavior::Json, EndpointBehavior::Events, EndpointBehavior::Modern] {
        let (endpoint, servers) = works(behavior).await;
        let mut heard = Vec::new();
        let params = Map::from_iter([("name".to_owned(), json!("future"))]);
        let answer = servers.request("s", "tools/call", params, |news| heard.push(news.to_string())).await;
        let Ok(RawAnswer::Result(result)) = answer else { panic!("{answer:?} is no result") };
        assert_eq!(result.get(), r#"{"content":[],"future":{"a":1.0}}"#, "{behavior:?}");
        assert_eq!(heard.len(), usize::from(behavior == EndpointBehavior::Events));
        let headers = endpoint.seen().last().map(|request| request.headers.clone()).unwrap_or_default();
        let name = headers.get("mcp-name").map(String::as_str);
        assert_eq!(name, (behavior == EndpointBehavior::Modern).then_some("future"), "{headers:?}");
        call(&servers, "echo").await.expect("others are read as ever");
        servers.close().await;
    }
}

#[tokio::test]
async fn answers_can_be_json() {
    let (endpoint, servers) = works(EndpointBehavior::Json).await;
    servers.close().await;
    let seen = endpoint.seen().clone();
    assert!(seen.iter().all(|request| request.headers.get("x-key").is_some_and(|key| key == "hunter2")));
    let session = |request: &Request| request.headers.get("mcp-session-id").cloned();
    assert_eq!(session(&seen[0]), None);
    assert!(seen[1..].iter().all(|request| session(request).as_deref() == Some("session-1")), "{seen:#?}");
    assert_eq!(seen.last().map(|request| request.method.as_str()), Some("DELETE"), "it ended the session");
}

#[tokio::test]
async fn answers_can_be_events() {
    let (_endpoint, servers) = works(EndpointBehavior::Events).await;
    let mut heard = Vec::new();
    servers.call("s", "echo", Map::new(), |text| heard.push(text)).await.expect("it echoes");
    assert_eq!(heard, ["half"]);
    servers.close().await;
}

#[tokio::test]
async fn a_server_that_refuses_the_handshake_is_connected_without_it() {
    let (endpoint, servers) = works(EndpointBehavior::Modern).await;
    servers.close().await;
    let called = endpoint.seen().iter().find(|request| request.body["method"] == "tools/call").cloned();
    let headers = called.expect("it was called").headers;
    assert_eq!(headers.get("mcp-protocol-version").map(String::as_str), Some("2026-07-28"));
    assert_eq!(headers.get("mcp-name").map(String::as_str), Some("echo"));
}

#[tokio::test]
async fn a_dropped_call_is_cancelled() {
    let (endpoint, servers) = works(EndpointBehavior::Json).await;
    let slow = |request: &Request| request.body["params"]["name"] == "slow";
    tokio::select! {
        _ = call(&servers, "slow") => panic!("it has no answer"),
        saw = endpoint.saw(slow) => assert!(saw),
    }
    let id = endpoint.seen().iter().find(|request| slow(request)).map(|request| request.body["id"].clone());
    let cancelled = |request: &Request| {
        request.body["method"] == "notifications/cancelled"
            && Some(&request.body["params"]["requestId"]) == id.as_ref()
    };
    assert!(endpoint.saw(cancelled).await);
    call(&servers, "echo").await.expect("the server is still there");
    servers.close().await;
}

#[tokio::test]
async fn a_lost_call_does_not_end_the_server() {
    for behavior in [EndpointBehavior::Json, EndpointBehavior::Events] {
        let (_endpoint, servers) = works(behavior).await;
        for (tool, expected) in [("die", ""), ("broken", "HTTP 500"), ("huge", "")] {
            let error = call(&servers, tool).await.expect_err("it is lost");
            assert!(
                matches!(&error, CallError::Lost(reason) if reason.contains(expected)),
                "{tool}: {error}"
            );
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        call(&servers, "echo").await.expect("the server is still there");
        assert_eq!(servers.failures(), []);
        servers.close().await;
    }
}

#[tokio::test]
async fn redirects_to_others_are_not_followed() {
    for status in [302, 307, 308] {
        let other = Endpoint::new(EndpointBehavior::Json).await;
        let endpoint = Endpoint::new(EndpointBehavior::Moved(other.address, status)).await;
        let servers = endpoint.start(TEST_TIMEOUT).await;
        let reason = reason(&servers);
        assert!(reason.contains(&format!("HTTP {status}")), "{reason}");
        servers.close().await;
        assert!(other.seen().is_empty(), "headers are not sent to other hosts");
    }
}

#[tokio::test]
async fn a_server_gets_its_own_token_and_never_anothers() {
    let (one, two) =
        (Endpoint::new(EndpointBehavior::Json).await, Endpoint::new(EndpointBehavior::Json).await);
    let server = |name: &str, endpoint: &Endpoint, key: &str| Server::Http {
        name: name.into(),
        url: format!("http://{}/mcp", endpoint.address),
        headers: vec![("Authorization".to_owned(), format!("Bearer {key}"))],
    };
    let options = Options::new("/", Environment::empty());
    let servers =
        Servers::start(vec![server("one", &one, "first"), server("two", &two, "second")], options, None);
    servers.wait_until_settled(TEST_TIMEOUT).await;
    for (name, args) in [("one", json!({"authorization": "Bearer second"})), ("two", json!({}))] {
        let params = Map::from_iter([("name".to_owned(), json!("echo")), ("arguments".to_owned(), args)]);
        servers.request(name, "tools/call", params, |_| {}).await.expect("it answers");
    }
    servers.close().await;
    for (endpoint, own) in [(&one, "Bearer first"), (&two, "Bearer second")] {
        let seen = endpoint.seen().clone();
        assert!(!seen.is_empty());
        for request in &seen {
            assert_eq!(request.headers.get("authorization").map(String::as_str), Some(own), "{request:?}");
        }
    }
}

#[tokio::test]
async fn faulty_servers_fail_with_a_reason() {
    for (behavior, limit, expected) in [
        (EndpointBehavior::Silent, Duration::from_millis(300), "not ready within 300ms"),
        (EndpointBehavior::Closed, TEST_TIMEOUT, "Bearer realm"),
        (EndpointBehavior::Html, TEST_TIMEOUT, "text/html"),
        (EndpointBehavior::Endless, TEST_TIMEOUT, "exceeds 16777216 bytes"),
    ] {
        let endpoint = Endpoint::new(behavior).await;
        let servers = endpoint.start(limit).await;
        let reason = reason(&servers);
        assert!(reason.contains(expected), "{behavior:?}: {reason}");
        let started = Instant::now();
        servers.close().await;
        assert!(started.elapsed() < Duration::from_secs(5), "{behavior:?}: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn an_unreachable_server_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it has one");
    drop(listener);
    let headers = vec![("X-Key".to_owned(), "hunter2".to_owned())];
    let server = Server::Http { name: "s".into(), url: format!("http://{address}/mcp"), headers };
    let servers = Servers::start(vec![server], Options::new("/", Environment::empty()), None);
    servers.wait_until_settled(TEST_TIMEOUT).await;
    let reason = reason(&servers);
    assert!(reason.to_lowercase().contains("refused") && !reason.contains("hunter2"), "{reason}");
    servers.close().await;
}
