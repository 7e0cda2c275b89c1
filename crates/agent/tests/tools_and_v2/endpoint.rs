//! An MCP server over HTTP on loopback, with one tool and JSON answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

pub(crate) struct Endpoint {
    address: SocketAddr,
    seen: Seen,
    task: JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    pub(crate) async fn new() -> Self {
        Self::start(false).await
    }

    pub(crate) async fn html() -> Self {
        Self::start(true).await
    }

    async fn start(html: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen::default();
        let log = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, html, log.clone()));
            }
        });
        Self { address, seen, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<(String, Value)> {
        self.seen.lock().unwrap().clone()
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head).await.ok().filter(|read| *read > 0)?;
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, serde_json::from_slice(&body).unwrap_or_default()))
}

async fn serve(stream: TcpStream, html: bool, log: Seen) {
    let mut stream = BufReader::new(stream);
    while let Some((head, body)) = read(&mut stream).await {
        log.lock().unwrap().push((head, body.clone()));
        let (status, kind, text) = match answer(&body) {
            _ if html => ("200 OK", "text/html", "<h1>Hello</h1>".to_owned()),
            Some(answer) => ("200 OK", "application/json", answer.to_string()),
            None if body.is_null() => ("405 Method Not Allowed", "text/plain", String::new()),
            None => ("202 Accepted", "text/plain", String::new()),
        };
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", text.len());
        if stream.get_mut().write_all((head + &text).as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(body: &Value) -> Option<Value> {
    let params = &body["params"];
    let result = match body["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "by hand", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}),
        "tools/call" => {
            json!({"content": [{"type": "text", "text": format!("added {}", params["arguments"])}]})
        }
        _ => return None,
    };
    Some(json!({"jsonrpc": "2.0", "id": body["id"], "result": result}))
}
