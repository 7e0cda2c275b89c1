//! The client of the admin API: sends one request to a running bus.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const READ_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_BYTES: u64 = 64 << 20;

/// The reason why a request to the admin API failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No bus listens on the socket.
    #[error("no bus is listening: {0}")]
    NotListening(io::Error),
    /// The bus did not answer within this time.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("no response from the bus: {0}")]
    Io(io::Error),
    /// The socket belongs to a listener for clients, not to the admin API.
    #[error("this socket is for clients, not the admin API")]
    ClientSocket,
    /// The status of the answer is not 200.
    #[error("the bus responded with status {0}")]
    BadStatus(String),
    /// The peer does not speak HTTP.
    #[error("the peer on this socket is not a bus")]
    NotABus,
}

/// Requests a page, such as `/status`, from the bus whose admin socket is at `path`.
///
/// # Errors
/// If no bus listens there, or it does not answer with the page.
pub fn ask(path: &Path, page: &str) -> Result<String, AskError> {
    ask_with_timeout(path, page, READ_TIMEOUT)
}

fn ask_with_timeout(path: &Path, page: &str, timeout: Duration) -> Result<String, AskError> {
    let mut stream = UnixStream::connect(path).map_err(AskError::NotListening)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Timeout(timeout),
        _ => AskError::Io(error),
    };
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
    // HTTP/1.0 has no chunked encoding, so the answer ends where the connection is closed.
    stream.write_all(format!("GET {page} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).map_err(failed)?;
    let mut first = [0];
    stream.read_exact(&mut first).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => AskError::NotABus,
        _ => failed(error),
    })?;
    // A listener for clients answers an invalid line with a JSON-RPC error, which begins with a brace.
    if first == *b"{" {
        return Err(AskError::ClientSocket);
    }
    let mut answer = first.to_vec();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut answer).map_err(failed)?;
    read(&answer)
}

fn read(answer: &[u8]) -> Result<String, AskError> {
    let answer = std::str::from_utf8(answer).map_err(|_| AskError::NotABus)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(AskError::NotABus)?;
    let first = head.lines().next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.0 ").or_else(|| first.strip_prefix("HTTP/1.1 "));
    let status = status.ok_or(AskError::NotABus)?;
    match status.starts_with("200") {
        true => Ok(body.to_owned()),
        false => Err(AskError::BadStatus(format!("{status}: {}", body.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_good_answer_has_a_body() {
        #[track_caller]
        fn check(answer: &str, expected: Result<&str, &str>) {
            let found = read(answer.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{answer:?}");
        }
        check("HTTP/1.0 200 OK\r\na: b\r\n\r\n{}\n", Ok("{}\n"));
        check("HTTP/1.1 200 OK\r\n\r\n", Ok(""));
        check(
            "HTTP/1.0 503 Service Unavailable\r\n\r\nno\n",
            Err("the bus responded with status 503 Service Unavailable: no"),
        );
        for stranger in ["", "\r\n\r\n", "HTTP/1.0 200 OK\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.ä\r\n\r\n"] {
            check(stranger, Err("the peer on this socket is not a bus"));
        }
    }

    #[test]
    fn other_peers_and_silent_ones_are_distinguished() {
        #[track_caller]
        fn check(answer: Option<&'static str>, expected: &str) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("s");
            let listener = UnixListener::bind(&path).unwrap();
            let other = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 64];
                assert!(stream.read(&mut asked).unwrap() > 0);
                if let Some(answer) = answer {
                    stream.write_all(answer.as_bytes()).unwrap();
                }
                // Only the peer with an empty answer closes the connection before the client does.
                if answer != Some("") {
                    while stream.read(&mut asked).is_ok_and(|read| read > 0) {}
                }
            });
            let timeout = Duration::from_millis(if answer.is_some() { 10_000 } else { 1 });
            let found = ask_with_timeout(&path, "/status", timeout).unwrap_err();
            assert_eq!(found.to_string(), expected);
            other.join().unwrap();
        }
        check(Some("{\"jsonrpc\":\"2.0\"}\n"), "this socket is for clients, not the admin API");
        check(Some(""), "the peer on this socket is not a bus");
        check(None, "no response within 0 s");
    }

    proptest! {
        #[test]
        fn any_response_is_read_without_a_panic(answer in prop::collection::vec(any::<u8>(), 0..64), head in "HTTP/1\\.\\PC{0,8}") {
            _ = read(&answer);
            _ = read(&[head.as_bytes(), b"\r\n\r\n", &answer].concat());
        }
    }
}
