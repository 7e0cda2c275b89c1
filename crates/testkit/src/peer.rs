//! A scripted client that sends messages and returns every line it receives.

use std::io::Write;

use narrows_link::{Link, Options, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

use crate::tap::{Reader, tap};

/// An in-process agent's link and the scripted client at its other end. Must be created inside a runtime.
pub struct Stage {
    /// The link for the agent under test.
    pub link: Link,
    /// A second writer to the agent's output, for tests of programs that print.
    pub raw: Box<dyn Write + Send>,
    pub client: Peer,
}

/// Creates an agent's link, and the client at its other end.
#[must_use]
pub fn stage() -> Stage {
    let (input, to_agent) = tokio::io::duplex(256 << 10);
    let (writer, raw, from_agent) = tap();
    Stage {
        link: stream(input, writer, &Options::default()),
        raw: Box::new(raw),
        client: Peer { to_agent: Some(to_agent), from_agent: BufReader::new(from_agent), last: 0 },
    }
}

/// Creates the links of both ends of a conversation: the client's, the agent's, and a second writer to the
/// agent's output.
#[must_use]
pub fn pair() -> (Link, Link, Box<dyn Write + Send>) {
    let (input, to_agent) = tokio::io::duplex(256 << 10);
    let (writer, raw, from_agent) = tap();
    let far = stream(input, writer, &Options::default());
    (stream(from_agent, to_agent, &Options::default()), far, Box::new(raw))
}

/// A scripted client.
pub struct Peer {
    to_agent: Option<DuplexStream>,
    from_agent: BufReader<Reader>,
    last: u64,
}

impl Peer {
    /// Sends bytes. Succeeds even if the agent has exited.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        if let Some(to_agent) = &mut self.to_agent {
            let _ = to_agent.write_all(bytes).await;
        }
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &Value) {
        self.send_raw(format!("{message}\n").as_bytes()).await;
    }

    /// Sends a request. Returns its id.
    pub async fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.last += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        self.send(&message).await;
        self.last
    }

    /// Sends a notification.
    pub async fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Sends a result as the answer to a request of the agent.
    pub async fn answer(&mut self, request: &Value, result: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).await;
    }

    /// Closes the agent's input.
    pub fn hang_up(&mut self) {
        self.to_agent = None;
    }

    /// Receives the next line without its line end, or `None` at the end.
    pub async fn line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.from_agent.read_until(b'\n', &mut line).await.expect("memory can be read");
        if line.last() == Some(&b'\n') {
            line.pop();
            return Some(line);
        }
        (!line.is_empty()).then_some(line)
    }

    /// Receives the next message, or `None` at the end.
    ///
    /// # Panics
    /// If a line is not JSON.
    pub async fn next(&mut self) -> Option<Value> {
        let line = self.line().await?;
        let message = serde_json::from_slice(&line);
        Some(message.unwrap_or_else(|error| {
            let shown: String = String::from_utf8_lossy(&line).chars().take(200).collect();
            unreachable!("no JSON came: {error}: {shown}")
        }))
    }

    /// Receives messages up to and including the answer to request `id`. Calls `serve` for each request of
    /// the agent and sends what it returns, if anything.
    ///
    /// # Panics
    /// If the agent exits before.
    pub async fn until_answer(
        &mut self,
        id: u64,
        mut serve: impl FnMut(&Value) -> Option<Value>,
    ) -> (Vec<Value>, Value) {
        let mut before = Vec::new();
        loop {
            let message = self.next().await.expect("the agent answers before it exits");
            if message["id"] == id && message.get("method").is_none() {
                return (before, message);
            }
            if message.get("method").is_some()
                && message.get("id").is_some()
                && let Some(result) = serve(&message)
            {
                self.answer(&message, &result).await;
            }
            before.push(message);
        }
    }

    /// Sends a request. Returns its answer.
    ///
    /// # Panics
    /// If the agent exits before.
    pub async fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params).await;
        self.until_answer(id, |_| None).await.1
    }
}
