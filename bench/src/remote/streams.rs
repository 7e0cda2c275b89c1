//! Streamable HTTP as the load uses it: messages are posted over one socket, and events arrive over
//! another.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::first::Speech;
use crate::bus::buffer::Rest;

const READ_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_HEAD_BYTES: usize = 16 << 10;

pub(crate) struct Streams {
    address: SocketAddr,
    path: String,
    posts: TcpStream,
    /// `true` if a message was posted and the answer was not read yet.
    owed: bool,
    connection: Option<String>,
    session: Option<String>,
    /// The response to `initialize`, which arrives in the body of its POST.
    heard: Option<Vec<u8>>,
    /// The event stream of the connection, later of the session.
    events: Option<Events>,
    scratch: Vec<u8>,
}

impl Streams {
    pub(crate) fn open(address: SocketAddr, path: &str) -> io::Result<Self> {
        Ok(Self {
            address,
            path: path.to_owned(),
            posts: connect(address)?,
            owed: false,
            connection: None,
            session: None,
            heard: None,
            events: None,
            scratch: vec![0; 64 << 10],
        })
    }

    /// Returns the headers of every request.
    fn names(&self) -> String {
        let mut names = format!("Host: {}\r\n", self.address);
        for (name, value) in [("Acp-Connection-Id", &self.connection), ("Acp-Session-Id", &self.session)] {
            if let Some(value) = value {
                names.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        names
    }

    /// Opens the event stream of the connection, or of the session if there is one.
    fn listen(&mut self) -> io::Result<()> {
        let mut stream = connect(self.address)?;
        let head = format!("GET {} HTTP/1.1\r\n{}Accept: text/event-stream\r\n\r\n", self.path, self.names());
        stream.write_all(head.as_bytes())?;
        let answer = Answer::read(&mut stream)?;
        answer.expect("200")?;
        let chunked = answer.header("transfer-encoding").is_some_and(|coding| coding == "chunked");
        if !chunked {
            return Err(io::Error::other("a stream of events that is not chunked"));
        }
        let mut events = Events { stream, chunks: Chunks::default(), rest: Rest::default() };
        events.feed(&answer.rest, &mut |_| {});
        self.events = Some(events);
        Ok(())
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, READ_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    Ok(stream)
}

impl Speech for Streams {
    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.owed) {
            Answer::read(&mut self.posts)?.expect("202")?;
        }
        let mut request = format!(
            "POST {} HTTP/1.1\r\n{}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            self.path,
            self.names(),
            line.len()
        )
        .into_bytes();
        request.extend_from_slice(line);
        self.posts.write_all(&request)?;
        if self.connection.is_some() {
            self.owed = true;
            return Ok(());
        }
        let answer = Answer::read(&mut self.posts)?;
        answer.expect("200")?;
        self.connection = answer.header("acp-connection-id").map(str::to_owned);
        if self.connection.is_none() {
            return Err(io::Error::other("`initialize` was answered without a connection"));
        }
        self.heard = Some(answer.rest);
        self.listen()
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        if let Some(line) = self.heard.take() {
            each(&line);
            return Ok(());
        }
        let Some(events) = &mut self.events else { return Err(ErrorKind::NotConnected.into()) };
        let count = events.stream.read(&mut self.scratch)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut opened = None;
        let looked_for = self.session.is_none();
        events.feed(&self.scratch[..count], &mut |line| {
            if looked_for {
                let message: Value = serde_json::from_slice(line).unwrap_or_default();
                opened = message["result"]["sessionId"].as_str().map(str::to_owned);
            }
            each(line);
        });
        if opened.is_some() {
            self.session = opened;
            self.listen()?;
        }
        Ok(())
    }
}

/// A response with its head parsed, and the data after it: the complete body if its length is known.
struct Answer {
    head: String,
    rest: Vec<u8>,
}

impl Answer {
    fn read(stream: &mut TcpStream) -> io::Result<Self> {
        let (mut bytes, mut scratch) = (Vec::new(), vec![0; MAX_HEAD_BYTES]);
        let mut more = |bytes: &mut Vec<u8>| match stream.read(&mut scratch)? {
            0 => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            count => {
                bytes.extend_from_slice(&scratch[..count]);
                Ok(())
            }
        };
        let end = loop {
            if let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
                break end;
            }
            if bytes.len() > MAX_HEAD_BYTES {
                return Err(io::Error::other("the head of the answer has no end"));
            }
            more(&mut bytes)?;
        };
        let rest = bytes.split_off(end + 4);
        let mut answer = Self { head: String::from_utf8_lossy(&bytes).into_owned(), rest };
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while answer.rest.len() < length {
            more(&mut answer.rest)?;
        }
        Ok(answer)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }

    fn expect(&self, status: &str) -> io::Result<()> {
        let first = self.head.lines().next().unwrap_or_default();
        if first.split(' ').nth(1) == Some(status) {
            return Ok(());
        }
        Err(io::Error::other(format!("{status} was to come, not {first}")))
    }
}

struct Events {
    stream: TcpStream,
    chunks: Chunks,
    rest: Rest,
}

impl Events {
    /// Passes the data of every event in these bytes to `each`. Each is one line.
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) {
        let Self { chunks, rest, .. } = self;
        chunks.feed(bytes, |body| {
            rest.lines(body, |line| {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if let Some(data) = line.strip_prefix(b"data:") {
                    each(data.strip_prefix(b" ").unwrap_or(data));
                }
            });
        });
    }
}

/// Removes the chunk lengths from a chunked body.
#[derive(Default)]
struct Chunks {
    left: usize,
    /// Beginning of the line between two chunks.
    head: Vec<u8>,
}

impl Chunks {
    fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (body, rest) = bytes.split_at(self.left.min(bytes.len()));
                each(body);
                self.left -= body.len();
                bytes = rest;
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', bytes) else { return self.head.extend_from_slice(bytes) };
            self.head.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            // An empty line follows each chunk.
            let length = String::from_utf8_lossy(&self.head);
            self.left = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
            self.head.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_depend_on_read_boundaries() {
        let events = "id: 1\ndata: {\"a\":1}\n\n: still there\n\ndata:{\"b\":2}\r\n\r\n";
        let mut stream = Vec::new();
        for part in events.as_bytes().chunks(11) {
            stream.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            stream.extend_from_slice(part);
            stream.extend_from_slice(b"\r\n");
        }
        for size in 1..=stream.len() {
            let (mut chunks, mut body) = (Chunks::default(), Vec::new());
            stream.chunks(size).for_each(|read| chunks.feed(read, |part| body.extend_from_slice(part)));
            assert_eq!(body, events.as_bytes(), "{size}");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("a socket");
        let mut events = Events { stream: socket, chunks: Chunks::default(), rest: Rest::default() };
        let mut heard = Vec::new();
        stream.chunks(5).for_each(|read| events.feed(read, &mut |data| heard.push(data.to_vec())));
        assert_eq!(heard, [&b"{\"a\":1}"[..], b"{\"b\":2}"]);
    }
}
