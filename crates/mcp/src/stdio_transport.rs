//! Stdio transport: lines of bounded length over the pipes of a process.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use narrows_base::sync::lock;
use rmcp::RoleClient;
use rmcp::model::{ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::text::clipped;
use crate::verbatim::Verbatim;

pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Number of bytes kept from each end of an oversized message, to find the message's id.
const KEPT_END_BYTES: usize = 256;
/// Maximum number of characters kept of the first line that is not a message.
const MAX_STRAY_CHARS: usize = 120;

/// The first line of a server that is not a message. It may explain why answers are missing.
#[derive(Debug, Clone, Default)]
pub(crate) struct StrayOutput(Arc<Mutex<Option<String>>>);

impl StrayOutput {
    pub(crate) fn first(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    fn record(&self, line: &[u8]) {
        let mut first = lock(&self.0);
        if first.is_none() {
            let head = &line[..line.len().min(4 * MAX_STRAY_CHARS)];
            *first = Some(clipped(&String::from_utf8_lossy(head), MAX_STRAY_CHARS));
        }
    }
}

pub(crate) struct StdioTransport {
    reader: pipe::Receiver,
    lines: LineBuffer,
    stray: StrayOutput,
    stdin: Stdin,
    verbatim: Verbatim,
}

impl StdioTransport {
    pub(crate) fn new(stdout: pipe::Receiver, stdin: Stdin, stray: StrayOutput, verbatim: Verbatim) -> Self {
        Self { reader: stdout, lines: LineBuffer::new(MAX_MESSAGE_BYTES), stray, stdin, verbatim }
    }

    fn parse_message(&self, line: &[u8]) -> Parsed {
        self.verbatim
            .read(line)
            .map_or_else(|| parse_message(line), |message| Parsed::Message(Box::new(message)))
    }
}

/// Stdin of a process. It can be closed while a write is blocked.
#[derive(Debug, Clone)]
pub(crate) struct Stdin {
    pipe: Arc<AsyncMutex<Option<pipe::Sender>>>,
    closed: watch::Sender<bool>,
}

impl Stdin {
    pub(crate) fn new(pipe: pipe::Sender) -> Self {
        Self { pipe: Arc::new(AsyncMutex::new(Some(pipe))), closed: watch::Sender::new(false) }
    }

    pub(crate) async fn close(&self) {
        self.closed.send_replace(true);
        drop(self.pipe.lock().await.take());
    }

    async fn write(self, line: Vec<u8>) -> io::Result<()> {
        let mut closed = self.closed.subscribe();
        let write = async {
            match self.pipe.lock().await.as_mut() {
                Some(pipe) => pipe.write_all(&line).await,
                None => Err(io::ErrorKind::NotConnected.into()),
            }
        };
        // Writing to a process that does not read blocks until stdin is closed.
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => Err(io::ErrorKind::NotConnected.into()),
            result = write => result,
        }
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let stdin = self.stdin.clone();
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            stdin.write(line).await
        }
    }

    /// Cancel-safe: bytes that were read are kept for the next call.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            match self.lines.next() {
                Some(Line::Whole(line)) => match self.parse_message(&line) {
                    Parsed::Message(message) => return Some(*message),
                    Parsed::Invalid => self.stray.record(&line),
                    Parsed::Ignored => {}
                },
                Some(Line::Long { id: Some(id), length }) => {
                    let text = format!("its answer has {length} bytes, at most {MAX_MESSAGE_BYTES} are read");
                    return Some(JsonRpcMessage::error(ErrorData::internal_error(text, None), Some(id)));
                }
                Some(Line::Long { id: None, length }) => {
                    tracing::warn!(length, "message of an MCP server too long, skipped");
                }
                None => match self.reader.read_buf(&mut self.lines.buffer).await {
                    Ok(0) => return None,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "reading from an MCP server failed");
                        return None;
                    }
                },
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.stdin.close().await;
        Ok(())
    }
}

struct LineBuffer {
    buffer: BytesMut,
    /// Number of leading bytes that are known to contain no line end.
    searched: usize,
    limit: usize,
    long: Option<LongLine>,
}

struct LongLine {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: usize,
}

#[derive(Debug, PartialEq)]
enum Line {
    Whole(BytesMut),
    Long { id: Option<RequestId>, length: usize },
}

impl LineBuffer {
    fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, long: None }
    }

    /// Returns the next line. Returns `None` if more bytes must be read.
    fn next(&mut self) -> Option<Line> {
        let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let end = end.map(|end| end + self.searched);
        if self.long.is_none() && end.unwrap_or(self.buffer.len()) <= self.limit {
            self.searched = if end.is_some() { 0 } else { self.buffer.len() };
            let mut line = self.buffer.split_to(end? + 1);
            line.truncate(line.len() - 1);
            return Some(Line::Whole(line));
        }
        let part = self.buffer.split_to(end.unwrap_or(self.buffer.len()));
        self.searched = 0;
        let long = self.long.get_or_insert_with(|| LongLine {
            head: part[..part.len().min(KEPT_END_BYTES)].to_vec(),
            tail: Vec::new(),
            length: 0,
        });
        long.length += part.len();
        long.tail.extend_from_slice(&part[part.len().saturating_sub(KEPT_END_BYTES)..]);
        long.tail.drain(..long.tail.len().saturating_sub(KEPT_END_BYTES));
        end?;
        _ = self.buffer.split_to(1);
        let LongLine { head, tail, length } = self.long.take()?;
        Some(Line::Long { id: find_id(&head, &tail), length })
    }
}

/// Finds the id of an oversized answer in its first and last bytes. The client's ids are numbers, and
/// libraries write the id first or last.
fn find_id(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    let head = String::from_utf8_lossy(head);
    let tail = String::from_utf8_lossy(tail);
    // Before the member `result` no other object can be nested, so an id there is that of the answer.
    let before = head.split("\"result\"").next().filter(|before| !before.contains("\"method\""));
    let first = before.and_then(|before| before.split_once("\"id\""));
    // After the result, only the members `id` and `jsonrpc` can follow.
    let last = tail.rsplit_once("\"id\"").filter(|(_, after)| {
        let rest = after.trim_start_matches([':', ' ']).trim_start_matches(|c: char| c.is_ascii_digit());
        let rest: String = rest.chars().filter(|c| !c.is_whitespace()).collect();
        rest == "}" || rest == ",\"jsonrpc\":\"2.0\"}"
    });
    let (_, after) = first.or(last)?;
    let digits: String =
        after.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(RequestId::Number)
}

enum Parsed {
    Message(Box<ServerJsonRpcMessage>),
    Invalid,
    Ignored,
}

/// Parses a line as leniently as is safe. An answer that cannot be parsed becomes an error for the caller.
fn parse_message(line: &[u8]) -> Parsed {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Parsed::Ignored;
    }
    if let Ok(message) = serde_json::from_slice::<ServerJsonRpcMessage>(line) {
        return Parsed::Message(Box::new(message));
    }
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else { return Parsed::Invalid };
    if object.contains_key("method") {
        // The line is a notification or request with an unknown method.
        return Parsed::Ignored;
    }
    let id = object.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
    let Some(id) = id else { return Parsed::Invalid };
    object.insert("jsonrpc".to_owned(), "2.0".into());
    let repaired = serde_json::from_value::<ServerJsonRpcMessage>(Value::Object(object));
    Parsed::Message(Box::new(match repaired {
        Ok(message @ (JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))) => message,
        _ => JsonRpcMessage::error(ErrorData::internal_error("its response cannot be read", None), Some(id)),
    }))
}

#[cfg(test)]
mod tests;
