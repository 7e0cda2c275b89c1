//! A model server of negligible cost: it writes prepared bytes.
//!
//! They have the form that real servers use: chunked, an event per chunk, many chunks per write.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

pub(super) const BLOCK: usize = 200;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const MODELS: &str = r#"{"object":"list","data":[{"id":"bench","object":"model","owned_by":"bench"}]}"#;

/// The size of an answer: chunks of text, in complete blocks, and bytes per chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    pub(super) chunks: usize,
    pub(super) bytes: usize,
}

impl Stream {
    /// Returns the bytes of text in all chunks, as encoded in JSON.
    pub(super) fn text(self) -> usize {
        self.chunks * self.bytes
    }
}

pub(super) struct Server {
    address: SocketAddr,
}

/// Prepared blocks by the number of bytes per chunk.
type Blocks = Arc<Mutex<HashMap<usize, Arc<[u8]>>>>;

impl Server {
    /// Listens on a free port of this machine, with a thread per connection.
    pub(super) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let blocks = Blocks::default();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let blocks = Arc::clone(&blocks);
                // The error of a client that disconnects does not matter.
                thread::spawn(move || serve(&connection, &blocks));
            }
        });
        Ok(Self { address })
    }

    /// Returns the base URL under which every request is answered with `stream`.
    pub(super) fn url(&self, stream: Stream) -> String {
        format!("http://{}/{}x{}/v1", self.address, stream.chunks, stream.bytes)
    }
}

fn serve(connection: &TcpStream, blocks: &Blocks) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(path) = request(&mut reader)? {
        let stream = path.strip_suffix("/v1/chat/completions").and_then(named);
        match stream {
            Some(stream) => answer(connection, stream, &block(blocks, stream.bytes))?,
            None if path.ends_with("/v1/models") => plain(connection, "200 OK", MODELS)?,
            None => plain(connection, "404 Not Found", r#"{"error":{"message":"not here"}}"#)?,
        }
    }
    Ok(())
}

/// Reads a complete request and returns its path; `None` at the end of the connection.
fn request(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(Some(path))
}

/// Returns the stream that a path such as `/20000x4` names.
fn named(path: &str) -> Option<Stream> {
    let (chunks, bytes) = path.strip_prefix('/')?.split_once('x')?;
    Some(Stream { chunks: chunks.parse().ok()?, bytes: bytes.parse().ok()? })
}

fn plain(mut connection: &TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: ");
    connection.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes())
}

fn answer(mut connection: &TcpStream, stream: Stream, block: &[u8]) -> io::Result<()> {
    let first = delta(r#"{"role":"assistant","content":"","refusal":null}"#, "null");
    connection.write_all(format!("{HEAD}{}", chunked(&first)).as_bytes())?;
    for _ in 0..stream.chunks / BLOCK {
        connection.write_all(block)?;
    }
    let usage = event(
        "[]",
        &format!(r#"{{"prompt_tokens":9,"completion_tokens":{0},"total_tokens":{0}}}"#, stream.chunks),
    );
    let last = [delta("{}", "\"stop\""), usage, "data: [DONE]\n\n".to_owned()];
    let last: String = last.iter().map(|event| chunked(event)).collect();
    connection.write_all(format!("{last}0\r\n\r\n").as_bytes())
}

/// Returns the block for chunks with `bytes` bytes of text.
fn block(blocks: &Blocks, bytes: usize) -> Arc<[u8]> {
    let mut blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner);
    let block = blocks.entry(bytes).or_insert_with(|| {
        let mut block = String::new();
        for number in 0..BLOCK {
            let text = text(number, bytes);
            let event = delta(&format!(r#"{{"content":"{text}"}}"#), "null");
            block.push_str(&chunked(&event));
        }
        block.into_bytes().into()
    });
    Arc::clone(block)
}

/// Returns a piece of an answer as encoded in JSON: a word, sometimes with a line end or a quote.
fn text(number: usize, bytes: usize) -> String {
    let start = match number % 20 {
        7 => "\\n",
        13 => "\\\"",
        _ => " ",
    };
    let letters = b"abcdefghijklmnopqrstuvwxyz".iter().cycle().skip(number % 26);
    let word = letters.take(bytes - start.len()).map(|&letter| char::from(letter));
    start.chars().chain(word).collect()
}

fn delta(delta: &str, finish: &str) -> String {
    let choice = format!(r#"[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]"#);
    event(&choice, "null")
}

fn event(choices: &str, usage: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-8f2c41d07a6b4e19a1\",\"object\":\"chat.completion.chunk\",\
         \"created\":1763200000,\"model\":\"bench\",\"service_tier\":\"default\",\
         \"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":{choices},\"usage\":{usage}}}\n\n"
    )
}

fn chunked(event: &str) -> String {
    let mut chunk = String::new();
    write!(chunk, "{:x}\r\n{event}\r\n", event.len()).expect("a String takes everything");
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_text_has_the_length_that_was_asked_for_and_is_json() {
        for bytes in [4, 40] {
            for number in 0..BLOCK {
                let text = text(number, bytes);
                assert_eq!(text.len(), bytes, "{text}");
                let value: Result<String, _> = serde_json::from_str(&format!("\"{text}\""));
                assert!(value.is_ok(), "{text}");
            }
        }
    }

    #[test]
    fn a_path_names_a_stream() {
        assert_eq!(named("/20000x4"), Some(Stream { chunks: 20_000, bytes: 4 }));
        assert_eq!(named("/20000"), None);
        assert_eq!(named("/20000x"), None);
    }

    #[test]
    fn the_answer_to_a_request_has_every_chunk() {
        let stream = Stream { chunks: 2 * BLOCK, bytes: 4 };
        let server = Server::start().expect("a free port");
        let mut connection = TcpStream::connect(server.address).expect("it listens");
        let head = format!(
            "POST /{}x4/v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}",
            stream.chunks
        );
        connection.write_all(head.as_bytes()).expect("it reads");
        let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
        let texts: usize = lines
            .by_ref()
            .take_while(|line| line != "data: [DONE]")
            .filter_map(|line| {
                Some(serde_json::from_str::<serde_json::Value>(line.strip_prefix("data: ")?).expect("JSON"))
            })
            .filter(|event| {
                event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty())
            })
            .count();
        assert_eq!(texts, stream.chunks);
    }
}
