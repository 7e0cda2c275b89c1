//! The first line of a connection. It shows whether the connection is resumable and has to be served by
//! another server.

use std::os::fd::OwnedFd;

use narrows_acp::method;
use narrows_wire::View;
use serde_json::Value;

use crate::core::{ClientId, Time};

use super::{About, Driver, Router};

const MAX_FIRST_LINE_BYTES: usize = 64 << 10;
const RESUME: &str = "_narrows/resume";

/// A resumable connection, with the bytes already read, for the server that continues it.
#[derive(Debug)]
pub struct ResumableConnection {
    pub socket: OwnedFd,
    pub read: Vec<u8>,
    pub listener: usize,
    pub identity: String,
}

/// Serves resumable connections. The event loop calls the handler, so it must not block.
pub type ResumableConnectionHandler = Box<dyn FnMut(ResumableConnection) + Send>;

#[derive(Debug)]
pub(super) struct FirstLine {
    pub(super) listener: usize,
    pub(super) identity: String,
    pub(super) read: Vec<u8>,
}

pub(super) enum FirstRead {
    /// The input is the bytes that were just read.
    Read,
    /// The input is all bytes since the beginning of the connection.
    All(Vec<u8>),
    /// There is no input: the first line is incomplete, or another server serves the connection.
    Nothing,
}

impl<B: Router> Driver<B> {
    pub(super) fn check_first_line(&mut self, now: Time, slot: u32, read: usize) -> FirstRead {
        let Some(conn) = self.conns.client(slot) else { return FirstRead::Nothing };
        let Some(mut first_line) = conn.first_line.take() else { return FirstRead::Read };
        let is_first = first_line.read.is_empty();
        first_line.read.extend_from_slice(&self.scratch[..read]);
        let start = first_line.read.iter().position(|byte| !byte.is_ascii_whitespace());
        let end = start.and_then(|start| Some(start + memchr::memchr(b'\n', &first_line.read[start..])?));
        match (start, end) {
            (Some(start), Some(end)) if is_resumable(&first_line.read[start..end]) => {
                self.hand_over(now, slot, *first_line);
                FirstRead::Nothing
            }
            (_, None) if first_line.read.len() < MAX_FIRST_LINE_BYTES => {
                conn.first_line = Some(first_line);
                FirstRead::Nothing
            }
            _ if is_first => FirstRead::Read,
            _ => FirstRead::All(first_line.read),
        }
    }

    fn hand_over(&mut self, now: Time, slot: u32, first_line: FirstLine) {
        let Some(conn) = self.conns.take_client(slot) else { return };
        conn.deregister(self.poll.registry());
        self.call_router(About::Client(slot), |router, conns| router.client_gone(now, ClientId(slot), conns));
        self.resume_accepting(now);
        if let Some(hand_over) = &mut self.hand_over {
            let FirstLine { listener, identity, read } = first_line;
            hand_over(ResumableConnection { socket: conn.into_socket(), read, listener, identity });
        }
    }
}

fn is_resumable(line: &[u8]) -> bool {
    if memchr::memmem::find(line, b"resume").is_none() {
        return false;
    }
    let message = View::parse(line);
    match message.method().as_deref() {
        Some(RESUME) => message.id().is_some(),
        Some(method::INITIALIZE) => {
            let params = message.params().and_then(|params| serde_json::from_slice::<Value>(params).ok());
            params.is_some_and(|params| params["_meta"]["narrows"]["resume"] == 1)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumable_connections_are_recognized() {
        #[track_caller]
        fn check(line: &str, expected: bool) {
            assert_eq!(is_resumable(line.as_bytes()), expected, "{line}");
        }
        let marked =
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"_meta":{"narrows":{"resume":1}}}}"#;
        check(marked, true);
        check(r#"{"jsonrpc":"2.0","id":"a","method":"_narrows/resume","params":{}}"#, true);
        check(r#"{"jsonrpc":"2.0","method":"_narrows/resume","params":{}}"#, false);
        check(&marked.replace("initialize", "session/new"), false);
        check(&marked.replace("\"resume\":1", "\"resume\":2"), false);
        check(&marked.replace("narrows", "other"), false);
        check(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"resume":1}}"#, false);
        check("resume", false);
        check("", false);
    }
}
