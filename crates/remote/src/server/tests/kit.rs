//! Test support: a server, an agent behind it, and clients that write every byte themselves.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::super::{
    Backend, ClientAuth, HttpLimits, HttpListenerConfig, HttpServer, HttpServerHandle, Opening,
};
use crate::identity::Identity;
use crate::tokens;

pub(super) const LONG: Duration = Duration::from_secs(20);

/// Answers `session/prompt` with `params.count` updates before the response, and echoes every other request.
/// Answers the notification `_test/long` with a response to 1 that has a text of `params.bytes`.
#[derive(Default)]
pub(in super::super) struct Agent {
    pub(super) opened: Mutex<Vec<Identity>>,
    pub(super) listeners: Mutex<Vec<usize>>,
    pub(super) heard: Arc<Mutex<Vec<String>>>,
    pub(super) refuses: bool,
    pub(super) refuses_with: Option<&'static str>,
    /// The `retryAfterMs` of the error with which the agent refuses.
    pub(super) retry_after_ms: Option<u64>,
    pub(super) ended: Arc<watch::Sender<usize>>,
    /// Limit of concurrent connections; 0 is no limit.
    pub(super) most: AtomicUsize,
}

impl Backend for Agent {
    fn open(&self, identity: Identity, listener: usize) -> Opening<'_> {
        let most = self.most.load(Ordering::Relaxed);
        if most > 0 && self.opened.lock().unwrap().len() - *self.ended.borrow() >= most {
            return Box::pin(async { Err(io::ErrorKind::WouldBlock.into()) });
        }
        self.opened.lock().unwrap().push(identity);
        self.listeners.lock().unwrap().push(listener);
        let heard = Arc::clone(&self.heard);
        let (refuses, refuses_with, ended) = (self.refuses, self.refuses_with, Arc::clone(&self.ended));
        let retry_after_ms = self.retry_after_ms;
        Box::pin(async move {
            if refuses {
                return Err(io::Error::other("no"));
            }
            let (ours, theirs) = StdUnixStream::pair()?;
            if let Some(words) = refuses_with {
                let mut error =
                    json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32016, "message": words}});
                if let Some(wait) = retry_after_ms {
                    error["error"]["data"] = json!({"retryAfterMs": wait});
                }
                (&theirs).write_all(format!("{error}\n").as_bytes())?;
                return Ok(ours);
            }
            theirs.set_nonblocking(true)?;
            let theirs = UnixStream::from_std(theirs)?;
            tokio::spawn(async move {
                act(theirs, heard).await;
                ended.send_modify(|count| *count += 1);
            });
            Ok(ours)
        })
    }

    fn open_later(&self, identity: Identity, listener: usize) -> Opening<'_> {
        Box::pin(async move {
            let mut ended = self.ended.subscribe();
            let (most, opened) = (self.most.load(Ordering::Relaxed), self.opened.lock().unwrap().len());
            ended.wait_for(|ended| opened - *ended < most).await.map_err(io::Error::other)?;
            self.open(identity, listener).await
        })
    }
}

async fn act(stream: UnixStream, heard: Arc<Mutex<Vec<String>>>) {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::with_capacity(1024, from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        heard.lock().unwrap().push(line.clone());
        let mut out = String::new();
        match serde_json::from_str::<Value>(&line) {
            Err(_) => out.push_str(
                "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"bad\"}}\n",
            ),
            Ok(message) => {
                let params = &message["params"];
                match message["method"].as_str() {
                    Some("_test/close") => return,
                    Some("_test/long") => {
                        let bytes = params["bytes"].as_u64().unwrap_or(0);
                        let text = "x".repeat(usize::try_from(bytes).unwrap());
                        out = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"{text}\"}}\n");
                    }
                    Some("_test/ask") => {
                        let ask = json!({"jsonrpc": "2.0", "id": "q", "method": "session/request_permission", "params": params});
                        out.push_str(&format!("{ask}\n"));
                    }
                    Some("session/prompt") => {
                        // All updates are written at once, because there are many and the tests share a
                        // thread with the agent.
                        let update = json!({"number": "NUMBER", "text": params["text"]});
                        let update = json!({"sessionId": params["sessionId"], "update": update});
                        let update = json!({"jsonrpc": "2.0", "method": "session/update", "params": update});
                        let update = format!("{update}\n");
                        for number in 1..=params["count"].as_u64().unwrap_or(0) {
                            out.push_str(&update.replace("\"NUMBER\"", &number.to_string()));
                        }
                    }
                    _ => {}
                }
                if let (Some(id), true) = (message.get("id"), message.get("method").is_some()) {
                    let result = match message["method"].as_str() {
                        Some("initialize") if params["fail"] == true => {
                            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "no"}})
                        }
                        Some("initialize") => {
                            json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": 1}})
                        }
                        Some("session/new") => {
                            json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": "s1"}})
                        }
                        _ => json!({"jsonrpc": "2.0", "id": id, "result": {"echo": params}}),
                    };
                    out.push_str(&format!("{result}\n"));
                }
            }
        }
        if to.write_all(out.as_bytes()).await.is_err() {
            return;
        }
    }
}

impl Agent {
    /// Waits until this many connections have ended.
    pub(super) async fn ended(&self, count: usize) {
        let mut ended = self.ended.subscribe();
        tokio::time::timeout(LONG, ended.wait_for(|ended| *ended == count))
            .await
            .expect("an end in time")
            .unwrap();
    }
}

/// A server that runs until this is dropped.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) handle: HttpServerHandle,
    pub(super) agent: Arc<Agent>,
    pub(super) directory: tempfile::TempDir,
    pub(super) served: tokio::task::JoinHandle<io::Result<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
    }
}

/// Waits until this many connections are counted as broken, resumed, with a gap, and expired.
pub(super) async fn expect_disconnects(running: &Running, expected: [u64; 4]) {
    let counted = || running.handle.disconnects().into_iter().map(|(_, count)| count).collect::<Vec<_>>();
    let waiting = async {
        while counted() != expected {
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(LONG, waiting).await;
    assert!(found.is_ok(), "{:?} is not {expected:?}", counted());
}

pub(super) fn listener() -> HttpListenerConfig {
    HttpListenerConfig {
        number: 0,
        address: "127.0.0.1:0".parse().unwrap(),
        path: "/acp".to_owned(),
        auth: ClientAuth::None,
        origins: vec!["https://app.example".to_owned()],
        hosts: vec!["bus.example".to_owned()],
        tls: None,
    }
}

pub(super) fn start(listener: HttpListenerConfig, limits: HttpLimits) -> Running {
    start_with(listener, limits, Agent::default())
}

pub(super) fn start_with(listener: HttpListenerConfig, limits: HttpLimits, agent: Agent) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let agent = Arc::new(agent);
    let front = HttpServer::bind(vec![listener], limits, Arc::clone(&agent) as Arc<dyn Backend>).unwrap();
    let (address, handle) = (front.local_addrs()[0], front.handle());
    let served = tokio::spawn(front.serve());
    Running { address, handle, agent, directory, served }
}

/// Starts a server with a token file. Returns the path of the file and the token of "one".
pub(super) fn start_with_token(limits: HttpLimits) -> (Running, PathBuf, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.toml");
    let token = tokens::add(&file, "one", Some(&["read".to_owned()]), SystemTime::UNIX_EPOCH).unwrap();
    let mut running =
        start(HttpListenerConfig { auth: ClientAuth::Token(file.clone()), ..listener() }, limits);
    running.directory = directory;
    (running, file, token)
}

/// Limits with which a server survives a test that only has its address.
pub(super) fn short_timeouts() -> HttpLimits {
    HttpLimits {
        header_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(600),
        ..HttpLimits::default()
    }
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.body.escape_ascii()))
    }
}

/// Sends a request over a socket of its own and returns the response.
pub(super) async fn ask(address: SocketAddr, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut reader = Reader::send(address, method, "/acp", headers, body).await;
    let mut answer = reader.head().await;
    let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    answer.body = vec![0; length];
    reader.stream.read_exact(&mut answer.body).await.unwrap();
    answer
}

pub(super) const JSON: (&str, &str) = ("content-type", "application/json");
pub(super) const EVENTS: (&str, &str) = ("accept", "text/event-stream");

pub(super) fn initialize(id: u32) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {"protocolVersion": 1}}).to_string()
}

/// Opens a connection over HTTP and returns its name.
pub(super) async fn connect(address: SocketAddr) -> String {
    let answer = ask(address, "POST", &[JSON], &initialize(0)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("acp-connection-id").unwrap().to_owned()
}

/// A response that is read piece by piece.
pub(super) struct Reader {
    pub(super) stream: BufReader<TcpStream>,
}

impl Reader {
    pub(super) async fn send(
        address: SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("host: {address}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(super) async fn line(&mut self) -> String {
        let mut line = String::new();
        tokio::time::timeout(LONG, self.stream.read_line(&mut line)).await.expect("a line in time").unwrap();
        line
    }

    pub(super) async fn head(&mut self) -> Answer {
        let first = self.line().await;
        let status = first.split(' ').nth(1).unwrap_or_else(|| panic!("{first:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_owned(), value.to_owned()));
        }
        Answer { status, headers, body: Vec::new() }
    }

    /// Returns the next chunk of a body; `None` at its end, or if the socket is closed.
    pub(super) async fn piece(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(self.line().await.trim_end(), 16).ok()?;
        let mut piece = vec![0; size + 2];
        self.stream.read_exact(&mut piece).await.ok()?;
        piece.truncate(size);
        (size > 0).then_some(piece)
    }
}

pub(super) struct Stream {
    reader: Reader,
    text: String,
}

impl Stream {
    pub(super) async fn open(
        address: SocketAddr,
        connection: &str,
        session: Option<&str>,
        cursor: Option<u64>,
    ) -> Self {
        let cursor = cursor.map(|cursor| cursor.to_string());
        let mut headers = vec![EVENTS, ("acp-connection-id", connection)];
        headers.extend(session.map(|session| ("acp-session-id", session)));
        headers.extend(cursor.as_deref().map(|cursor| ("last-event-id", cursor)));
        let mut reader = Reader::send(address, "GET", "/acp", &headers, "").await;
        let head = reader.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")), "{head:?}");
        Self { reader, text: String::new() }
    }

    /// Returns the next event or comment verbatim; `None` at the end.
    pub(super) async fn raw(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let rest = self.text.split_off(end + 2);
                return Some(std::mem::replace(&mut self.text, rest));
            }
            self.text.push_str(std::str::from_utf8(&self.reader.piece().await?).unwrap());
        }
    }

    /// Returns the next event: its number, if it has one, and its message.
    pub(super) async fn next(&mut self) -> Option<(Option<u64>, Value)> {
        loop {
            let event = self.raw().await?;
            if event.starts_with(':') {
                continue;
            }
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            let message = serde_json::from_str(field("data: ").unwrap()).unwrap();
            return Some((field("id: ").map(|id| id.parse().unwrap()), message));
        }
    }
}

pub(super) type Web = WebSocketStream<TcpStream>;

/// Opens a WebSocket with these headers, or returns the status of the refusal.
pub(super) async fn web(
    address: SocketAddr,
    headers: &[(&'static str, &str)],
) -> Result<(Web, Response), u16> {
    let mut request = format!("ws://{address}/acp").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(address).await.unwrap();
    match tokio_tungstenite::client_async(request, stream).await {
        Ok(connected) => Ok(connected),
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

pub(super) async fn send(web: &mut Web, message: &Value) {
    web.send(Message::text(message.to_string())).await.unwrap();
}

/// Returns the next message and skips pings. `Err` is the close code, or 0 without one.
pub(super) async fn receive(web: &mut Web) -> Result<Value, u16> {
    loop {
        match tokio::time::timeout(LONG, web.next()).await.expect("a message in time") {
            Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(Some(frame)))) => return Err(CloseCode::into(frame.code)),
            Some(Ok(Message::Close(None)) | Err(_)) | None => return Err(0),
            Some(Ok(_)) => {}
        }
    }
}
