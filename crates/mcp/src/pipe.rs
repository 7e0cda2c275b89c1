//! The stdio transport: lines of bounded length on the pipes of a process.

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

/// How long a message may be.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
/// How much of both ends of a longer one is looked at for its id.
const ENDS: usize = 256;
/// How many characters of the first line that is no message are kept.
const NOISE: usize = 120;

/// The first line a server wrote that is no message: the likely reason why it does not answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Noise(Arc<Mutex<Option<String>>>);

impl Noise {
    pub(crate) fn first(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    fn hear(&self, line: &[u8]) {
        let mut first = lock(&self.0);
        if first.is_none() {
            let head = &line[..line.len().min(4 * NOISE)];
            *first = Some(clipped(&String::from_utf8_lossy(head), NOISE));
        }
    }
}

/// Both pipes of a process.
pub(crate) struct Pipe {
    reader: pipe::Receiver,
    lines: Lines,
    noise: Noise,
    stdin: Stdin,
    verbatim: Verbatim,
}

impl Pipe {
    pub(crate) fn new(stdout: pipe::Receiver, stdin: Stdin, noise: Noise, verbatim: Verbatim) -> Self {
        Self { reader: stdout, lines: Lines::new(MAX_MESSAGE), noise, stdin, verbatim }
    }

    fn message(&self, line: &[u8]) -> Read {
        self.verbatim.read(line).map_or_else(|| message(line), |message| Read::Message(Box::new(message)))
    }
}

/// The way to a process's stdin, which can be closed whoever is writing.
#[derive(Debug, Clone)]
pub(crate) struct Stdin {
    pipe: Arc<AsyncMutex<Option<pipe::Sender>>>,
    closed: watch::Sender<bool>,
}

impl Stdin {
    pub(crate) fn new(pipe: pipe::Sender) -> Self {
        Self { pipe: Arc::new(AsyncMutex::new(Some(pipe))), closed: watch::Sender::new(false) }
    }

    /// The end of the process's input.
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
        // A process that does not read keeps a writer, and with it the pipe, until somebody closes it.
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => Err(io::ErrorKind::NotConnected.into()),
            result = write => result,
        }
    }
}

impl Transport<RoleClient> for Pipe {
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

    /// Can be abandoned at any await: what was read is kept.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            match self.lines.next() {
                Some(Line::Whole(line)) => match self.message(&line) {
                    Read::Message(message) => return Some(*message),
                    Read::Noise => self.noise.hear(&line),
                    Read::Nothing => {}
                },
                Some(Line::Long { id: Some(id), length }) => {
                    let text = format!("its answer has {length} bytes, at most {MAX_MESSAGE} are read");
                    return Some(JsonRpcMessage::error(ErrorData::internal_error(text, None), Some(id)));
                }
                Some(Line::Long { id: None, length }) => {
                    tracing::warn!(length, "a message of an MCP server is too long and was skipped");
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

/// What has been read, cut into lines.
struct Lines {
    buffer: BytesMut,
    /// Up to here there is no end of a line.
    searched: usize,
    limit: usize,
    long: Option<Long>,
}

/// A line over the limit that has not ended yet.
struct Long {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: usize,
}

#[derive(Debug, PartialEq)]
enum Line {
    Whole(BytesMut),
    Long { id: Option<RequestId>, length: usize },
}

impl Lines {
    fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, long: None }
    }

    /// The next line, or nothing if more must be read.
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
        let long = self.long.get_or_insert_with(|| Long {
            head: part[..part.len().min(ENDS)].to_vec(),
            tail: Vec::new(),
            length: 0,
        });
        long.length += part.len();
        long.tail.extend_from_slice(&part[part.len().saturating_sub(ENDS)..]);
        long.tail.drain(..long.tail.len().saturating_sub(ENDS));
        end?;
        _ = self.buffer.split_to(1);
        let Long { head, tail, length } = self.long.take()?;
        Some(Line::Long { id: id(&head, &tail), length })
    }
}

/// The id of an answer of which only the ends are known. Ours are numbers, and libraries write the id first or last.
fn id(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    let head = String::from_utf8_lossy(head);
    let tail = String::from_utf8_lossy(tail);
    // Before the result, where nothing else is nested.
    let before = head.split("\"result\"").next().filter(|before| !before.contains("\"method\""));
    let first = before.and_then(|before| before.split_once("\"id\""));
    // After it: nothing but the other two members may follow.
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

enum Read {
    Message(Box<ServerJsonRpcMessage>),
    Noise,
    Nothing,
}

/// Reads a line as leniently as is safe. An answer that cannot be read is an error to whoever waits for it.
fn message(line: &[u8]) -> Read {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Read::Nothing;
    }
    if let Ok(message) = serde_json::from_slice::<ServerJsonRpcMessage>(line) {
        return Read::Message(Box::new(message));
    }
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else { return Read::Noise };
    if object.contains_key("method") {
        // A notification that rmcp does not know, or a request that it does not understand.
        return Read::Nothing;
    }
    let id = object.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
    let Some(id) = id else { return Read::Noise };
    object.insert("jsonrpc".to_owned(), "2.0".into());
    let repaired = serde_json::from_value::<ServerJsonRpcMessage>(Value::Object(object));
    Read::Message(Box::new(match repaired {
        Ok(message @ (JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))) => message,
        _ => JsonRpcMessage::error(ErrorData::internal_error("its answer cannot be read", None), Some(id)),
    }))
}

#[cfg(test)]
mod tests;
