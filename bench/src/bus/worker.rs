//! The echo worker: an ACP agent that repeats the text of a prompt, once or in updates.
//!
//! It answers everything it has read with one write. It runs on stdio or, for the run without a router, on
//! many connections.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use serde_json::Value;
use slab::Slab;

use super::buffer::{Got, Outbox, READ, Rest, read};
use super::message::{
    ANSWER, ANSWER_TEXT, HEAD, PROMPT, PROMPT_TAIL, PROMPT_TEXT, SESSION, Session, TAG, TAIL, TOP, Tag,
    UPDATE, UPDATE_HEAD, UPDATE_TEXT, number, session,
};

/// The token of the worker's own listener, for `bus-worker --listen ADDRESS`.
const LISTENER: Token = Token(usize::MAX);

/// Serves stdin and stdout, or the address that follows `--listen`.
pub(crate) fn serve(arguments: &[String]) -> io::Result<()> {
    match arguments {
        [] => serve_stdio(),
        [option, address] if option == "--listen" => {
            serve_tcp(address.parse().map_err(|_| io::Error::other("the address is invalid"))?)
        }
        _ => Err(io::Error::other("the worker knows `--listen ADDRESS` only")),
    }
}

fn serve_stdio() -> io::Result<()> {
    let mut echo = Echo::new();
    let (mut rest, mut out, mut scratch) = (Rest::default(), Vec::new(), vec![0; READ]);
    let (mut stdin, mut stdout) = (Descriptor(rustix::stdio::stdin()), Descriptor(rustix::stdio::stdout()));
    loop {
        let (got, bytes) = read(&mut stdin, &mut scratch)?;
        if got == Got::Ended {
            return Ok(());
        }
        rest.lines(bytes, |line| echo.answer(line, &mut out));
        stdout.write_all(&out)?;
        out.clear();
    }
}

/// Standard streams without the buffers of `std`, which would shorten reads and write every line
/// separately.
struct Descriptor(rustix::fd::BorrowedFd<'static>);

impl Read for Descriptor {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, bytes)?)
    }
}

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Connection {
    stream: TcpStream,
    rest: Rest,
    out: Outbox,
}

impl Connection {
    fn serve(&mut self, echo: &mut Echo, scratch: &mut [u8]) -> io::Result<bool> {
        loop {
            let (got, bytes) = read(&mut self.stream, scratch)?;
            let out = self.out.bytes();
            self.rest.lines(bytes, |line| echo.answer(line, out));
            self.out.flush(&mut self.stream)?;
            match got {
                Got::More => {}
                Got::Drained => return Ok(true),
                Got::Ended => return Ok(false),
            }
        }
    }
}

fn serve_tcp(address: SocketAddr) -> io::Result<()> {
    let mut listener = TcpListener::bind(address)?;
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let (mut echo, mut scratch) = (Echo::new(), vec![0; READ]);
    let mut connections: Slab<Connection> = Slab::new();
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let entry = connections.vacant_entry();
                    let both = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(entry.key()), both)?;
                    entry.insert(Connection { stream, rest: Rest::default(), out: Outbox::default() });
                }
                continue;
            }
            let place = event.token().0;
            let goes_on = connections.get_mut(place).is_none_or(|connection| {
                let written = connection.out.flush(&mut connection.stream);
                written.and_then(|()| connection.serve(&mut echo, &mut scratch)).unwrap_or(false)
            });
            if !goes_on {
                connections.remove(place);
            }
        }
    }
}

/// The state of the worker: the number of opened sessions.
pub(crate) struct Echo {
    process: u64,
    sessions: u64,
}

impl Echo {
    pub(crate) fn new() -> Self {
        Self { process: u64::from(std::process::id()), sessions: 0 }
    }

    pub(crate) fn answer(&mut self, line: &[u8], out: &mut Vec<u8>) {
        match Prompt::read(line) {
            Some(prompt) if self.knows(prompt.session) => prompt.answer(out),
            _ => self.control(line, out),
        }
    }

    /// Returns `true` if the worker has opened the session, or if the router never opens sessions.
    fn knows(&self, session: &Session) -> bool {
        session[0] == b'p'
            || session[0] == b'b'
                && number(&session[1..8]) == Some(self.process)
                && number(&session[9..]).is_some_and(|number| number < self.sessions)
    }

    fn control(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let message: Value = serde_json::from_slice(line).unwrap_or_default();
        let (Some(id), method) = (message.get("id"), message["method"].as_str()) else { return };
        let answer = match method {
            Some("initialize") => {
                r#""result":{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]"#.to_owned()
            }
            Some("session/new") => {
                let session = session(b'b', self.process, self.sessions);
                self.sessions += 1;
                format!(r#""result":{{"sessionId":"{}""#, String::from_utf8_lossy(&session))
            }
            Some(_) => r#""error":{"code":-32601,"message":"not for an echo""#.to_owned(),
            // An answer to a request that was never sent.
            None => return,
        };
        let tag = message["params"]["_meta"]["bench"]["echo"].as_str().unwrap_or_default();
        let meta = format!(r#","_meta":{{"bench":{{"echo":"{tag}"}}}}}}}}"#);
        out.extend_from_slice(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{answer}{meta}\n").as_bytes());
    }
}

/// A prompt of the load, in its one layout.
struct Prompt<'a> {
    id: &'a [u8],
    session: &'a Session,
    at_top: bool,
    text: &'a [u8],
    tag: Tag,
}

impl<'a> Prompt<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_prefix(HEAD)?.strip_suffix(PROMPT_TAIL)?;
        let (id, line) = line.split_at(memchr::memchr(b',', line)?);
        let top = line[1..].strip_prefix(TOP).and_then(|line| line.split_first_chunk::<SESSION>());
        let line = match top {
            Some((_, line)) => line.strip_prefix(b"\"")?,
            None => line,
        };
        let (session, line) = line.strip_prefix(PROMPT)?.split_first_chunk()?;
        let text = line.strip_prefix(PROMPT_TEXT)?;
        let (text, tag) = text.split_at(text.len().checked_sub(TAG)?);
        if top.is_some_and(|(top, _)| top != session) {
            return None;
        }
        Some(Self { id, session, at_top: top.is_some(), text, tag: Tag::read(tag)? })
    }

    fn answer(&self, out: &mut Vec<u8>) {
        for chunk in 0..self.tag.chunk {
            out.extend_from_slice(UPDATE_HEAD);
            if self.at_top {
                out.extend_from_slice(TOP);
                out.extend_from_slice(self.session);
                out.extend_from_slice(b"\",");
            }
            out.extend_from_slice(UPDATE);
            self.end(UPDATE_TEXT, Tag { chunk, ..self.tag }, out);
        }
        out.extend_from_slice(HEAD);
        out.extend_from_slice(self.id);
        if self.at_top {
            out.extend_from_slice(b",");
            out.extend_from_slice(TOP);
            out.extend_from_slice(self.session);
            out.extend_from_slice(b"\"");
        }
        out.extend_from_slice(b",");
        out.extend_from_slice(ANSWER);
        self.end(ANSWER_TEXT, self.tag, out);
    }

    fn end(&self, between: &[u8], tag: Tag, out: &mut Vec<u8>) {
        let mut digits = [0; TAG];
        tag.write(&mut digits);
        for part in [self.session, between, self.text, &digits, TAIL, b"\n"] {
            out.extend_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Dialect, Template, initialize, new_session};
    use super::*;

    const TAG: Tag = Tag { client: 3, request: 14, chunk: 2 };

    fn answer(echo: &mut Echo, line: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        echo.answer(line, &mut out);
        out
    }

    #[test]
    fn answers_match_the_expectation_of_the_load() {
        let mut echo = Echo::new();
        answer(&mut echo, new_session(1, TAG).as_bytes());
        for (dialect, session) in
            [(Dialect::Acp, session(b'b', echo.process, 0)), (Dialect::Top, session(b'p', 1, 2))]
        {
            let line = Template::prompt(dialect, b"hello").filled(123_456_789_012, &session, TAG).to_vec();
            let mut expected = Vec::new();
            for chunk in 0..2 {
                let tag = Tag { chunk, ..TAG };
                expected.extend_from_slice(Template::update(dialect, b"hello").filled(0, &session, tag));
                expected.push(b'\n');
            }
            let mut last = Template::answer(dialect, b"hello");
            expected.extend_from_slice(last.filled(123_456_789_012, &session, TAG));
            expected.push(b'\n');
            assert_eq!(
                String::from_utf8_lossy(&answer(&mut echo, &line)),
                String::from_utf8_lossy(&expected)
            );
        }
    }

    #[test]
    fn unknown_sessions_are_not_answered() {
        let mut echo = Echo::new();
        for session in [session(b'b', echo.process, 0), session(b'b', echo.process + 1, 0)] {
            let line =
                Template::prompt(Dialect::Acp, b"hello").filled(123_456_789_012, &session, TAG).to_vec();
            let said = answer(&mut echo, &line);
            assert!(said.windows(7).any(|window| window == b"\"error\""));
        }
        assert!(answer(&mut echo, br#"{"jsonrpc":"2.0","method":"session/cancel","params":{}}"#).is_empty());
        assert!(answer(&mut echo, b"no JSON").is_empty());
    }

    #[test]
    fn controls_are_answered_in_json_with_their_tag() {
        let mut echo = Echo::new();
        let lines = [initialize(7, TAG), new_session(8, TAG)];
        for (line, member) in lines.iter().zip(["protocolVersion", "sessionId"]) {
            let said = answer(&mut echo, line.as_bytes());
            let said = said.strip_suffix(b"\n").expect("a line");
            assert_eq!(Tag::parse(said), Some(TAG));
            let value: Value = serde_json::from_slice(said).expect("JSON");
            assert!(value["result"].get(member).is_some(), "{value}");
        }
        let said = answer(&mut echo, br#"{"jsonrpc":"2.0","id":"a","method":"x"}"#);
        let value: Value = serde_json::from_slice(&said).expect("JSON");
        assert_eq!(value["error"]["code"], -32601);
    }
}
