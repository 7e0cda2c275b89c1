//! The least work an agent can do: find the text in the events of the model server, and copy it into
//! updates.
//!
//! One thread, raw sockets, no HTTP except the request, no JSON except finding strings. It understands only
//! the client and the server of this bench. Its cost is the lower bound for any agent.
//!
//! There are two variants: the plain one writes each update at once; the gathering one writes all updates
//! of one read together, which no agent can beat.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use memchr::memmem;
use rustix::event::{PollFd, PollFlags, poll};

const PROMPT: &[u8] =
    b"{\"model\":\"bench\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}]}";
const UPDATE: &[u8] = b"\",\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\
                       \"content\":{\"type\":\"text\",\"text\":\"";

struct Place {
    address: String,
    path: String,
}

/// A prompt whose answer is being copied.
struct Turn {
    id: String,
    /// The beginning of every update.
    start: Vec<u8>,
    socket: TcpStream,
    /// An incomplete line of input.
    rest: Vec<u8>,
}

/// The destination of updates.
struct Output {
    stdout: File,
    /// Output that is not written yet.
    gathered: Vec<u8>,
    gathers: bool,
}

impl Output {
    /// Writes the message in `gathered`, or keeps it for later.
    fn end_message(&mut self) -> io::Result<()> {
        if self.gathers { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.write_all(&self.gathered)?;
        self.gathered.clear();
        Ok(())
    }
}

/// Serves stdin and stdout until stdin ends.
pub(crate) fn serve(gathers: bool) -> io::Result<()> {
    let place = Place::from_environment()?;
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut out = Output { stdout, gathered: Vec::new(), gathers };
    let mut turns: Vec<Turn> = Vec::new();
    let mut requests = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut sessions = 0;
    loop {
        let ready: Vec<bool> = {
            let mut all = vec![PollFd::new(&stdin, PollFlags::IN)];
            all.extend(turns.iter().map(|turn| PollFd::new(&turn.socket, PollFlags::IN)));
            poll(&mut all, None)?;
            all.iter().map(|one| !one.revents().is_empty()).collect()
        };
        let mut goes_on = ready[1..].iter();
        let mut failure = Ok(());
        turns.retain_mut(|turn| {
            !goes_on.next().is_some_and(|ready| *ready)
                || turn.read(&mut buffer, &mut out).unwrap_or_else(|error| {
                    failure = Err(error);
                    false
                })
        });
        failure?;
        if ready[0] {
            let count = stdin.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            requests.extend_from_slice(&buffer[..count]);
            let end = memchr::memrchr(b'\n', &requests).map_or(0, |last| last + 1);
            for line in requests[..end].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                turns.extend(answer(line, &place, &mut sessions, &mut out)?);
            }
            requests.drain(..end);
        }
        out.flush()?;
    }
}

/// Answers a request, or begins the requested turn.
fn answer(line: &[u8], place: &Place, sessions: &mut u32, out: &mut Output) -> io::Result<Option<Turn>> {
    let id = between(line, b"\"id\":", b",").unwrap_or_default();
    let id = String::from_utf8_lossy(id).into_owned();
    let result = match between(line, b"\"method\":\"", b"\"") {
        Some(b"initialize") => r#"{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]}"#.to_owned(),
        Some(b"session/new") => {
            *sessions += 1;
            format!(r#"{{"sessionId":"floor-{sessions}"}}"#)
        }
        _ => {
            let session = between(line, b"\"sessionId\":\"", b"\"").unwrap_or_default();
            return Turn::begin(id, session, place).map(Some);
        }
    };
    writeln!(out.gathered, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)?;
    out.end_message()?;
    Ok(None)
}

impl Turn {
    fn begin(id: String, session: &[u8], place: &Place) -> io::Result<Self> {
        let start = [
            b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"",
            session,
            UPDATE,
        ];
        let mut socket = TcpStream::connect(&place.address)?;
        let head = format!(
            "POST {}/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            place.path,
            place.address,
            PROMPT.len()
        );
        socket.write_all(&[head.as_bytes(), PROMPT].concat())?;
        Ok(Self { id, start: start.concat(), socket, rest: Vec::new() })
    }

    /// Copies the available text. Returns `true` if more follows.
    fn read(&mut self, buffer: &mut [u8], out: &mut Output) -> io::Result<bool> {
        let count = self.socket.read(buffer)?;
        let Some(end) = memchr::memrchr(b'\n', &buffer[..count]) else {
            self.rest.extend_from_slice(&buffer[..count]);
            // The server sends the end of the body explicitly, so a missing end is an error.
            return if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(true) };
        };
        let mut lines = &buffer[..end];
        if !self.rest.is_empty() {
            // The one line that is split over two reads.
            let first = memchr::memchr(b'\n', lines).unwrap_or(end);
            self.rest.extend_from_slice(&lines[..first]);
            lines = &lines[first..];
            let rest = std::mem::take(&mut self.rest);
            if self.paste(&rest, out)? {
                return Ok(false);
            }
        }
        if self.paste(lines, out)? {
            return Ok(false);
        }
        self.rest.extend_from_slice(&buffer[end + 1..count]);
        Ok(true)
    }

    /// Copies every text in complete lines. Returns `true` if one of them ends the answer.
    fn paste(&self, lines: &[u8], out: &mut Output) -> io::Result<bool> {
        const CONTENT: &[u8] = b"\"content\":\"";
        let mut at = 0;
        for found in memmem::find_iter(lines, CONTENT) {
            at = found + CONTENT.len();
            let text = string(&lines[at..]);
            if !text.is_empty() {
                out.gathered.extend_from_slice(&self.start);
                out.gathered.extend_from_slice(text);
                out.gathered.extend_from_slice(b"\"}}}}\n");
                out.end_message()?;
            }
        }
        let is_over = memmem::find(&lines[at..], b"[DONE]").is_some();
        if is_over {
            let id = &self.id;
            writeln!(out.gathered, r#"{{"jsonrpc":"2.0","id":{id},"result":{{"stopReason":"end_turn"}}}}"#)?;
            out.end_message()?;
        }
        Ok(is_over)
    }
}

impl Place {
    fn from_environment() -> io::Result<Self> {
        let url = std::env::var("OPENAI_BASE_URL").map_err(io::Error::other)?;
        let url = url.strip_prefix("http://").ok_or(io::ErrorKind::InvalidInput)?;
        let (address, path) = url.split_once('/').ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { address: address.to_owned(), path: format!("/{path}") })
    }
}

/// Returns the content of a JSON string, up to its closing quote.
fn string(bytes: &[u8]) -> &[u8] {
    let mut from = 0;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[from..]) {
        if bytes[from + found] == b'"' {
            return &bytes[..from + found];
        }
        from = (from + found + 2).min(bytes.len());
    }
    bytes
}

/// Returns the text between the first `start` and the next `end`.
fn between<'a>(line: &'a [u8], start: &[u8], end: &[u8]) -> Option<&'a [u8]> {
    let from = memmem::find(line, start)? + start.len();
    let length = memmem::find(&line[from..], end)?;
    Some(&line[from..from + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_ends_at_its_own_quote() {
        for (bytes, expected) in [
            (&br#"abc","#[..], &b"abc"[..]),
            (br#"a\"b",""#, br#"a\"b"#),
            (br#"a\\","b""#, br"a\\"),
            (br#"","#, b""),
            (b"cut\\", b"cut\\"),
        ] {
            assert_eq!(string(bytes), expected);
        }
    }
}
